"""The reader of sources that compute rows from numbers: rates, positions, ranges of numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
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
from penstock.spark.arrow import ArrowSender
from penstock.spark.blocks import logical_plan
from penstock.spark.bound_plans import InputRows
from penstock.spark.prepared_plans import PlanPreparer
from penstock.spark.session import empty_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.spark.bound_plans import PreparedPlan


SECOND: Final = 1_000_000
_MIN_WAIT: Final = 10_000
"""Microseconds between two batches, at least: a faster rate makes larger batches."""
_MAX_SEQUENCE: Final = 100_000
"""Most numbers that one range, a row of a batch's plan, is expanded to."""
_RANGE: Final = ("a", "b", "started")
"""Columns of a range: its first number, its last, and ``NumberRange.started``."""


@dataclass(frozen=True, slots=True)
class Rate:
    """An exact rate: ``rows`` in ``seconds``."""

    rows: int
    seconds: int

    @classmethod
    def of(cls, rows_per_second: float) -> Rate:
        """The rate, to a millionth of a row.

        Raises:
            GraphError: it is no finite number above zero.

        >>> Rate.of(2.5)
        Rate(rows=5, seconds=2)
        """
        is_number = isinstance(rows_per_second, (int, float)) and not isinstance(rows_per_second, bool)
        is_possible = is_number and 0 < rows_per_second < math.inf
        exact = Fraction(rows_per_second).limit_denominator(1_000_000) if is_possible else Fraction(0)
        if exact <= 0:
            msg = f"rows_per_second={rows_per_second!r} is not possible. Give a number above 0."
            raise GraphError(msg)
        return cls(exact.numerator, exact.denominator)

    def at(self, number: int) -> int:
        """When a number is due, in microseconds after the start, rounded down."""
        return number * SECOND * self.seconds // self.rows

    def due(self, elapsed: int) -> int:
        """How many numbers are due ``elapsed`` microseconds after the start; the first one is due at once.

        >>> Rate.of(10).due(0), Rate.of(10).due(99_999), Rate.of(10).due(100_000)
        (1, 1, 2)
        """
        if elapsed < 0:
            return 0
        return ((elapsed + 1) * self.rows - 1) // (SECOND * self.seconds) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CountPosition:
    """The next number, and the wall time of the very first batch in microseconds, if there was one."""

    next: int = 0
    started: int | None = None

    def encode(self, kind: str) -> Position:
        """The position as a manifest holds it."""
        return Position(kind=kind, detail={"next": self.next, "started": self.started})

    @classmethod
    def decode(cls, kind: str, position: Position | None) -> CountPosition:
        """The inverse of ``encode``; ``None`` is a fresh start.

        Raises:
            StateIncompatible: the position is of another kind.
        """
        if position is None:
            return cls()
        detail: Any = position.detail
        if position.kind != kind or not isinstance(detail, dict) or not {"next", "started"} <= detail.keys():
            msg = f"The position is of kind {position.kind!r}, but the source reads {kind!r}. Give it a uid of its own."
            raise StateIncompatible(msg)
        return cls(next=detail["next"], started=detail["started"])


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The plan of a batch: the numbers from ``first`` on, below ``end``, and the wall time of the first batch."""

    first: int
    end: int
    started: int


class NumberFrames:
    """Makes the frames of batches. What a function makes of numbers is analysed once, if it is row-wise.

    Args:
        spark: the session.
        build: makes rows of a frame with the columns ``n``, the number, and ``started``, as a ``NumberRange`` has it.
    """

    def __init__(self, spark: SparkSession, build: Callable[[DataFrame], DataFrame]) -> None:
        self._spark = spark
        self._build: Callable[[DataFrame], DataFrame] = lambda ranges: build(_numbers(ranges))

    @cached_property
    def _sender(self) -> ArrowSender:
        return ArrowSender(self._spark, _ranges())

    @cached_property
    def _preparer(self) -> PlanPreparer:
        return PlanPreparer(self._spark)

    @cached_property
    def _prepared(self) -> PreparedPlan | None:
        return self._preparer.prepare_row_wise(_ranges(), self._build)

    def frame(self, plan: NumberRange) -> DataFrame:
        """A lazy frame of a batch."""
        # The bounds are rows, so that Spark compiles once: `spark.range` would write them into the generated code.
        ranges = self._sender.frame(self._batches(plan))
        if self._prepared is None:
            return self._build(ranges)
        return self._preparer.frame(self._preparer.bind(self._prepared, InputRows(logical_plan(ranges))))

    def _batches(self, plan: NumberRange) -> list[pa.RecordBatch]:
        """Ranges of numbers, as rows: some for each task."""
        import pyarrow as pa

        count = plan.end - plan.first
        tasks = min(self._spark.sparkContext.defaultParallelism, count)
        each = -(-count // (tasks * _MAX_SEQUENCE))
        parts = tasks * each
        bounds = [plan.first + count * at // parts for at in range(parts + 1)]
        rows = [{"a": a, "b": b - 1, "started": plan.started} for a, b in itertools.pairwise(bounds) if a < b]
        schema = pa.schema([(name, pa.int64()) for name in _RANGE])
        batches = (rows[at : at + each] for at in range(0, len(rows), each))
        return [pa.RecordBatch.from_pylist(batch, schema=schema) for batch in batches]


def built_schema(spark: SparkSession, build: Callable[[DataFrame], DataFrame]) -> StructType:
    """The columns that a function makes of numbers: see ``NumberFrames``."""
    return build(_numbers(empty_frame(spark, _ranges()))).schema


def _ranges() -> StructType:
    from pyspark.sql import types as t

    return t.StructType([t.StructField(name, t.LongType(), nullable=False) for name in _RANGE])


def _numbers(ranges: DataFrame) -> DataFrame:
    return ranges.selectExpr("explode(sequence(a, b)) AS n", "started")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountLimits:
    """How much is counted.

    Attributes:
        limit: the source ends there; ``None``: never.
        rate: ``None``: as fast as batches are taken.
        per_batch: most numbers of a batch, if limited.
        end: where a run until caught up ends; ``None``: at what is due when it begins.
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
        count_limits: CountLimits,
        kind: str,
        resume: Position | None,
        frames: NumberFrames,
    ) -> None:
        self._limits = count_limits
        self._kind = kind
        self._frames = frames
        self._count = CountPosition.decode(kind, resume)
        self._caught_up_at: int | None = None
        self._catching_up = context.until is Until.CAUGHT_UP
        endless = count_limits.limit is None and count_limits.rate is None and count_limits.end is None
        if self._catching_up and endless:
            msg = "A source without an end is never caught up. Give it rows= or rows_per_second=."
            raise GraphError(msg)

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        """The numbers that are due."""
        count_limits, count = self._limits, self._count
        if count_limits.limit is not None and count.next >= count_limits.limit:
            return Ended()
        started = count.started if count.started is not None else int(wall)
        due = end = self._due(int(wall) - started)
        if end <= count.next:
            return CaughtUp() if self._catching_up else self._no_data(now, int(wall) - started)
        most = [rows for rows in (count_limits.per_batch, limits.rows) if rows is not None]
        end = min([end, *(count.next + max(1, rows) for rows in most)])
        self._count = replace(count, next=end, started=started)
        rows = end - count.next
        known = ObservedMetrics.known({"rows": rows, "bytes": 0})
        plan = NumberRange(count.next, end, started)
        takes_all = count_limits.rate is not None and end == due
        return PlannedBatch(plan=plan, rows=rows, bytes=0, metrics={"rows": known}, takes_all=takes_all)

    def _due(self, elapsed: int) -> int:
        """The number below which numbers may be read now."""
        count_limits = self._limits
        bounds = [count_limits.limit] if count_limits.limit is not None else []
        if self._catching_up and count_limits.end is not None:
            bounds.append(count_limits.end)
        elif count_limits.rate is not None:
            due = count_limits.rate.due(elapsed)
            if self._catching_up:
                if self._caught_up_at is None:
                    self._caught_up_at = due
                due = self._caught_up_at
            bounds.append(due)
        # Without a bound there is always another batch.
        return min(bounds) if bounds else self._count.next + (count_limits.per_batch or 1)

    def _no_data(self, now: MonotonicTime, elapsed: int) -> NoData:
        rate = cast("Rate", self._limits.rate)
        return NoData(wake_at=MonotonicTime(now + max(rate.at(self._count.next) - elapsed, _MIN_WAIT)))

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of the plan's rows."""
        return self._frames.frame(cast("NumberRange", plan))

    def position(self) -> Position:
        """The position after the last plan."""
        return self._count.encode(self._kind)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Do nothing: positions are in checkpoints only."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
