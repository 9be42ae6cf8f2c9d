"""Sums, counts, extremes and means: aggregates whose parts Spark merges by functions of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.operators.aggregates.base import Aggregate, Part, refusal
from penstock.operators.decimals import quotient

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_ROOMY: Final = 28
"""Digits of a decimal to which its sum adds ten more: Spark has 38."""


def sum(of: str | Column) -> Aggregate:
    """Sum of the values that are not NULL; NULL if there are none. Whole numbers give LONG, decimals ten more digits.

    Decimals of more than 28 digits are refused where ANSI is off, and so is their mean: Spark would make an overflow
    NULL, which cannot be told from no rows when sums are merged.

    >>> sum("amount").label
    'sum_amount'
    """
    return Aggregate(
        function="sum",
        of=(of,),
        parts=(_part("sum", "sum", "sum"),),
        finish=lambda p, _type: p["sum"],
        check=_room("sum"),
    )


def count(of: str | Column | None = None) -> Aggregate:
    """Number of rows, or of values of ``of`` that are not NULL.

    >>> count().alias("n").label
    'n'
    """
    columns = () if of is None else (of,)
    parts = (_part("count", "count", "sum"),)
    return Aggregate(function="count", of=columns, parts=parts, finish=lambda p, _type: _or_zero(p["count"]))


def min(of: str | Column) -> Aggregate:
    """Least value that is not NULL, NULL if there is none; NaN is greater than every number.

    >>> min("amount").alias("cheapest").label
    'cheapest'
    """
    return Aggregate(function="min", of=(of,), parts=(_part("min", "min", "min"),), finish=lambda p, _type: p["min"])


def max(of: str | Column) -> Aggregate:
    """Greatest value that is not NULL, NULL if there is none; NaN is greater than every number.

    >>> max("amount").label
    'max_amount'
    """
    return Aggregate(function="max", of=(of,), parts=(_part("max", "max", "max"),), finish=lambda p, _type: p["max"])


def avg(of: str | Column) -> Aggregate:
    """Mean of the values that are not NULL, as DOUBLE; of decimals a decimal with four more places. NULL without any.

    >>> avg("amount").label
    'avg_amount'
    """
    parts = (
        Part(name="sum", partial=_sum_for_mean, merge=_function("sum"), skips_null=True),
        _part("count", "count", "sum"),
    )
    return Aggregate(
        function="avg",
        of=(of,),
        parts=parts,
        finish=lambda p, input_type: quotient(p["sum"], p["count"], input_type),
        check=_room("avg"),
    )


def as_double(function: str, column: Column, input_type: DataType) -> Column:
    """The values as DOUBLE, for a function that is computed in that type, as Spark converts them by itself.

    Raises:
        GraphError: they are no numbers.
    """
    from pyspark.sql.types import NullType, NumericType, StringType

    if isinstance(input_type, (NumericType, StringType, NullType)):
        return column.cast("double")
    raise refusal(function, input_type, "which is no number", "convert it first, as in unix_micros(…) for a time")


def _room(function: str) -> Callable[[DataFrame, Column], None]:
    """Without ANSI a sum of decimals that overflows is NULL, which would be taken for no rows when it is merged.

    Ten more digits are enough for ten thousand million rows; only where a sum cannot have them is it refused.
    """

    def check(rows: DataFrame, column: Column) -> None:
        from pyspark.sql.types import DecimalType

        kind = rows.select(column).schema[0].dataType
        if not isinstance(kind, DecimalType) or kind.precision <= _ROOMY:
            return
        if rows.sparkSession.conf.get("spark.sql.ansi.enabled") != "true":
            why = "whose sum may overflow and would then be wrong without ANSI"
            remedy = f"cast it to at most {_ROOMY} digits, or set spark.sql.ansi.enabled=true"
            raise refusal(function, kind, why, remedy)

    return check


def _function(name: str) -> Callable[[Column], Column]:
    def call(column: Column) -> Column:
        from pyspark.sql import functions as F

        made: Any = getattr(F, name)(column)
        return made  # type: ignore[no-any-return]

    return call


def _part(name: str, partial: str, merge: str) -> Part:
    call = _function(partial)
    return Part(name=name, partial=lambda column, _type: call(column), merge=_function(merge), skips_null=True)


def _or_zero(column: Column) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(column, F.lit(0).cast("bigint"))


def _sum_for_mean(column: Column, input_type: DataType) -> Column:
    """Spark's ``avg`` adds up DOUBLE, whole numbers too, except for decimals."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DecimalType

    if isinstance(input_type, DecimalType):
        return F.sum(column)
    return F.sum(as_double("avg", column, input_type))
