"""``ps.rate``: numbered rows at a steady rate, for demonstrations and load tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.connectors.counting import (
    SECOND,
    CountingReader,
    CountLimits,
    CountPosition,
    NumberFrames,
    Rate,
)
from penstock.connectors.limits import check_limit
from penstock.handles import Guarantee, Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.interfaces.source import SourceContext

__all__ = ["Source"]


KIND: Final = "rate/1"


@dataclass(frozen=True, slots=True)
class Source:
    """Rows ``value BIGINT, at TIMESTAMP``: 0, 1, 2 … and when each was due. Exactly-once.

    ``at`` is computed from the number and the time of the very first batch, which is part of the position: a replay
    gives the same rows, and after a pause those of the pause come too.

    Args:
        rows_per_second: above 0; fractions allowed.
        limit: end after that many rows; ``None`` goes on for ever.

    Raises:
        GraphError: a number is impossible.

    >>> Source(10).describe()
    'rate 10 rows/s'
    """

    rows_per_second: float
    limit: int | None = field(default=None, kw_only=True)
    _end: int | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        Rate.of(self.rows_per_second)
        check_limit("limit", self.limit, least=0)

    @property
    def guarantee(self) -> Guarantee:
        """Rows are computed from their numbers."""
        return Guarantee.EXACTLY_ONCE

    @property
    def position_kind(self) -> str:
        """The kind of this source's positions."""
        return KIND

    def schema(self, spark: SparkSession) -> StructType:  # noqa: ARG002 - the same in every session
        """``value BIGINT, at TIMESTAMP``."""
        from pyspark.sql.types import LongType, StructType, TimestampType

        return StructType().add("value", LongType(), False).add("at", TimestampType(), False)

    def open(self, context: SourceContext, resume: Position | None) -> CountingReader:
        """A reader that counts on after ``resume``.

        Raises:
            StateIncompatible: the position is of another kind.
        """
        rate = Rate.of(self.rows_per_second)

        def rows(numbers: DataFrame) -> DataFrame:
            micros = f"started + (n * {SECOND * rate.seconds}L) div {rate.rows}L"
            return numbers.selectExpr("n AS value", f"timestamp_micros({micros}) AS at")

        limits = CountLimits(limit=self.limit, rate=rate, per_batch=None, end=self._end)
        return CountingReader(context, limits, KIND, resume, NumberFrames(context.spark, rows))

    def has_more(self, position: Position) -> bool:
        """Whether the limit is not reached."""
        return self.limit is None or CountPosition.decode(KIND, position).next < self.limit

    def replayed(self, end: Position | None) -> Source:
        """The same numbers; a run until caught up ends at ``end``, if given."""
        return replace(self, _end=None if end is None else CountPosition.decode(KIND, end).next)

    def describe(self) -> str:
        """The rate, for people."""
        return f"rate {self.rows_per_second:,.10g} rows/s"
