"""``ps.generator``: rows that a user function computes from numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.counting import (
    CountingReader,
    CountLimits,
    CountPosition,
    NumberFrames,
    Rate,
    built_schema,
)
from penstock.connectors.limits import check_limit
from penstock.errors import PenstockError, UserFunctionError, sentence
from penstock.handles import Guarantee, Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.interfaces.source import SourceContext

__all__ = ["Source"]


KIND: Final = "generator/1"


@dataclass(frozen=True, slots=True)
class Source:
    """Rows made by ``build`` from a frame with the column ``n BIGINT``: 0, 1, 2 … Exactly-once.

    ``build`` is called with the first batch of a start, and must work row by row, deterministically: what it makes of a
    number must depend on nothing but the number. For chance use ``xxhash64(n, 'a seed')``, not ``rand()``, which gives
    other rows at a replay. If it is not row-wise, it is called for each batch, which is slower.

    Args:
        build: from a DataFrame with ``n`` to the rows.
        rows_per_second: pace; ``None`` makes rows as fast as they are taken.
        rows: end after that many; the watermark then goes to the end of time. ``None`` goes on for ever.
        per_batch: the most rows of a batch.

    Raises:
        GraphError: a number is impossible.

    >>> Source(lambda frame: frame.selectExpr("n AS id", "n % 7 AS user"), rows=1000).describe()
    'generator of 1,000 rows'
    """

    build: Callable[[DataFrame], DataFrame]
    rows_per_second: float | None = field(default=None, kw_only=True)
    rows: int | None = field(default=None, kw_only=True)
    per_batch: int = field(default=10_000, kw_only=True)
    _end: int | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.rows_per_second is not None:
            Rate.of(self.rows_per_second)
        check_limit("rows", self.rows, least=0)
        check_limit("per_batch", self.per_batch)

    @property
    def guarantee(self) -> Guarantee:
        """Rows are computed from their numbers."""
        return Guarantee.EXACTLY_ONCE

    @property
    def position_kind(self) -> str:
        """The kind of this source's positions."""
        return KIND

    def schema(self, spark: SparkSession) -> StructType:
        """The columns that ``build`` makes.

        Raises:
            UserFunctionError: ``build`` failed, or gave no DataFrame.
        """
        return built_schema(spark, self._build_rows)

    def open(self, context: SourceContext, resume: Position | None) -> CountingReader:
        """A reader that counts on after ``resume``.

        Raises:
            StateIncompatible: the position is of another kind.
        """
        rate = None if self.rows_per_second is None else Rate.of(self.rows_per_second)
        limits = CountLimits(limit=self.rows, rate=rate, per_batch=self.per_batch, end=self._end)
        return CountingReader(context, limits, KIND, resume, NumberFrames(context.spark, self._build_rows))

    def _build_rows(self, numbers: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame

        code: Any = getattr(self.build, "__code__", None)
        where = f"{code.co_filename}:{code.co_firstlineno}" if code else None
        try:
            rows: Any = self.build(numbers.select("n"))
        except PenstockError:
            raise
        except Exception as error:
            msg = f"The generator's function raised {type(error).__name__}: {sentence(error)}"
            raise UserFunctionError(msg, where=where) from error
        if not isinstance(rows, DataFrame):
            msg = f"The generator's function returned {type(rows).__name__}. Let it return a DataFrame."
            raise UserFunctionError(msg, where=where)
        return rows

    def has_more(self, position: Position) -> bool:
        """Whether there are rows still to be made."""
        return self.rows is None or CountPosition.decode(KIND, position).next < self.rows

    def replayed(self, end: Position | None) -> Source:
        """The same numbers; a run until caught up ends at ``end``, if given."""
        return replace(self, _end=None if end is None else CountPosition.decode(KIND, end).next)

    def describe(self) -> str:
        """Number of rows and rate, for people."""
        count = "rows" if self.rows is None else f"{self.rows:,} row{'s' * (self.rows != 1)}"
        pace = "" if self.rows_per_second is None else f", {self.rows_per_second:,.10g} rows/s"
        return f"generator of {count}{pace}"
