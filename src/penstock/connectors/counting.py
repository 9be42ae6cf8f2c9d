"""The reader of sources that count: positions, rates."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.clock import MonotonicTime, WallTime
from penstock.elements import ObservedMetrics
from penstock.errors import GraphError, StateIncompatible
from penstock.handles import CheckpointId, Position
from penstock.interfaces.source import (
    CaughtUp,
    Ended,
    NoData,
    PlannedBatch,
    PollResult,
    ReadLimit,
    SourceContext,
    Until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


# ----------------------------------------------------------------------------------------------------
# How many numbers are due at a time, for sources that count; pure integers, no clock and no Spark.

SECOND: Final = 1_000_000
SHORTEST_WAIT: Final = 10_000
"""Microseconds; faster sources come in batches of at least so much time."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Rows a second, exact: ``rows`` in ``seconds``."""

    rows: int
    seconds: int

    @classmethod
    def of(cls, rows_per_second: float) -> Rate:
        """The rate, to a millionth of a row.

        Raises:
            GraphError: it is not above zero.

        >>> Rate.of(2.5)
        Rate(rows=5, seconds=2)
        """
        exact = Fraction(rows_per_second).limit_denominator(1_000_000) if rows_per_second > 0 else Fraction(0)
        if exact <= 0:
            msg = f"rows_per_second must be above 0, got {rows_per_second!r}"
            raise GraphError(msg)
        return cls(exact.numerator, exact.denominator)

    def at(self, number: int) -> int:
        """Microseconds after the start at which a number is due, rounded down."""
        return number * SECOND * self.seconds // self.rows

    def due(self, elapsed: int) -> int:
        """How many numbers are due ``elapsed`` microseconds after the start; the first at once.

        >>> Rate.of(10).due(0), Rate.of(10).due(99_999), Rate.of(10).due(100_000)
        (1, 1, 2)
        """
        if elapsed < 0:
            return 0
        return ((elapsed + 1) * self.rows - 1) // (SECOND * self.seconds) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CountPosition:
    """How far was counted: the next number, and the wall time (microseconds) of the very first batch, if there was."""

    next: int = 0
    started: int | None = None

    def position(self, kind: str) -> Position:
        """As a manifest holds it."""
        return Position(kind=kind, detail={"next": self.next, "started": self.started})

    @classmethod
    def resume(cls, kind: str, position: Position | None) -> CountPosition:
        """The inverse; ``None`` is a fresh start.

        Raises:
            StateIncompatible: the position is of another kind.
        """
        if position is None:
            return cls()
        detail: Any = position.detail
        if position.kind != kind or not isinstance(detail, dict) or not {"next", "started"} <= detail.keys():
            msg = f"the position is of kind {position.kind!r}, this source reads {kind!r}: give it a uid of its own"
            raise StateIncompatible(msg)
        return cls(next=detail["next"], started=detail["started"])


# ----------------------------------------------------------------------------------------------------
# The reader of sources that compute their rows from numbers; knows nothing of what the rows are.

_LONGEST_SEQUENCE: Final = 100_000


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The plan of a batch: the numbers from ``first`` on that are below ``end``, and when counting was started."""

    first: int
    end: int
    started: int


def number_frame(spark: SparkSession, first: int, end: int) -> DataFrame:
    """One row ``n BIGINT`` for each number. The bounds are data, not literals: nothing is compiled for another batch.

    ``spark.range`` would write its bounds into the generated code.
    """
    count = end - first
    slices = max(min(spark.sparkContext.defaultParallelism, count), -(-count // _LONGEST_SEQUENCE))
    bounds = [first + count * at // slices for at in range(slices + 1)]
    rows = ", ".join(f"({a}L, {b - 1}L)" for a, b in itertools.pairwise(bounds))
    return spark.sql(f"SELECT n FROM VALUES {rows} AS t(a, b) LATERAL VIEW explode(sequence(a, b)) AS n")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountLimits:
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
        extent: CountLimits,
        kind: str,
        resume: Position | None,
        build: Callable[[NumberRange], DataFrame],
    ) -> None:
        self._extent = extent
        self._kind = kind
        self._build = build
        self._count = CountPosition.resume(kind, resume)
        self._caught_up_at: int | None = None
        self._catching_up = context.until is Until.CAUGHT_UP
        if self._catching_up and extent.limit is None and extent.rate is None and extent.end is None:
            msg = "a source without limit and rate is never caught up: limit its rows, or give rows_per_second"
            raise GraphError(msg)

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
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
        known = ObservedMetrics.known({"rows": rows, "bytes": 0})
        plan = NumberRange(count.next, end, started)
        takes_all = extent.rate is not None and end == due
        return PlannedBatch(plan=plan, rows=rows, bytes=0, metrics={"rows": known}, takes_all=takes_all)

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

    def _nothing(self, now: MonotonicTime, elapsed: int) -> NoData:
        rate = cast("Rate", self._extent.rate)
        return NoData(wake_at=MonotonicTime(now + max(rate.at(self._count.next) - elapsed, SHORTEST_WAIT)))

    def frame(self, plan: object) -> DataFrame:
        """The plan's rows, computed by the executors."""
        return self._build(cast("NumberRange", plan))

    def position(self) -> Position:
        """The next number."""
        return self._count.position(self._kind)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Nothing is shown elsewhere."""

    def close(self) -> None:
        """Nothing is held."""
