"""The reader of sources that compute their rows from numbers; knows nothing of what the rows are."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from penstock.elements import Measure
from penstock.errors import GraphError
from penstock.ids import CheckpointId, Instant, WallTime
from penstock.sources.base import CaughtUp, Ended, Limits, Nothing, Poll, Rows, SourceContext, Until
from penstock.sources.pace import SHORTEST_WAIT, Count, Rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from penstock.handles import Position

_LONGEST_SEQUENCE: Final = 100_000


@dataclass(frozen=True, slots=True)
class Numbers:
    """The plan of a batch: the numbers from ``first`` on that are below ``end``, and when counting was started."""

    first: int
    end: int
    started: int


def numbers(spark: SparkSession, first: int, end: int) -> DataFrame:
    """One row ``n BIGINT`` for each number. The bounds are data, not literals: nothing is compiled for another batch.

    ``spark.range`` would write its bounds into the generated code.
    """
    count = end - first
    slices = max(min(spark.sparkContext.defaultParallelism, count), -(-count // _LONGEST_SEQUENCE))
    bounds = [first + count * at // slices for at in range(slices + 1)]
    rows = ", ".join(f"({a}L, {b - 1}L)" for a, b in itertools.pairwise(bounds))
    return spark.sql(f"SELECT n FROM VALUES {rows} AS t(a, b) LATERAL VIEW explode(sequence(a, b)) AS n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is counted: to ``limit`` (or for ever), at ``rate`` (or as fast as taken), so many a batch.

    ``end`` is where a run until caught up ends, if not at what is due when it begins.
    """

    limit: int | None
    rate: Rate | None
    per_batch: int | None
    end: int | None = None


class CountingReader:
    """Counts on from a position; a batch is a range of numbers."""

    def __init__(
        self,
        context: SourceContext,
        extent: Extent,
        kind: str,
        resume: Position | None,
        build: Callable[[Numbers], DataFrame],
    ) -> None:
        self._extent = extent
        self._kind = kind
        self._build = build
        self._count = Count.resume(kind, resume)
        self._caught_up_at: int | None = None
        self._catching_up = context.until is Until.CAUGHT_UP
        if self._catching_up and extent.limit is None and extent.rate is None and extent.end is None:
            msg = "a source without limit and rate is never caught up: limit its rows, or give rows_per_second"
            raise GraphError(msg)

    def poll(self, *, now: Instant, wall: WallTime, limits: Limits) -> Poll:
        """The numbers that are due."""
        extent, count = self._extent, self._count
        if extent.limit is not None and count.next >= extent.limit:
            return Ended()
        started = count.started if count.started is not None else int(wall)
        due = end = self._due(int(wall) - started)
        if end <= count.next:
            return CaughtUp() if self._catching_up else self._nothing(now, int(wall) - started)
        caps = [cap for cap in (extent.per_batch, limits.rows) if cap is not None]
        end = min([end, *(count.next + max(1, cap) for cap in caps)])
        self._count = replace(count, next=end, started=started)
        rows = end - count.next
        known = Measure.known({"rows": rows, "bytes": 0})
        plan = Numbers(count.next, end, started)
        takes_all = extent.rate is not None and end == due
        return Rows(plan=plan, rows=rows, bytes=0, measures={"rows": known}, takes_all=takes_all)

    def _due(self, elapsed: int) -> int:
        """Below which number may be read now."""
        extent = self._extent
        bounds = [extent.limit] if extent.limit is not None else []
        if self._catching_up and extent.end is not None:
            bounds.append(extent.end)
        elif extent.rate is not None:
            due = extent.rate.due(elapsed)
            if self._catching_up:
                if self._caught_up_at is None:
                    self._caught_up_at = due
                due = self._caught_up_at
            bounds.append(due)
        # With neither there is always more.
        return min(bounds) if bounds else self._count.next + (extent.per_batch or 1)

    def _nothing(self, now: Instant, elapsed: int) -> Nothing:
        rate = cast("Rate", self._extent.rate)
        return Nothing(wake_at=Instant(now + max(rate.at(self._count.next) - elapsed, SHORTEST_WAIT)))

    def frame(self, plan: object) -> DataFrame:
        """The plan's rows, computed by the executors."""
        return self._build(cast("Numbers", plan))

    def position(self) -> Position:
        """The next number."""
        return self._count.position(self._kind)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Nothing is shown elsewhere."""

    def close(self) -> None:
        """Nothing is held."""
