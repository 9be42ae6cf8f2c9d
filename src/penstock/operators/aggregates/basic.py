"""Sum, count, min, max, avg, variance and standard deviation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.operators.aggregates.base import Aggregate, Part, unsupported_input
from penstock.spark.sql import quotient

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


# ---- sum, count, min, max, avg ---------------------------------------------------------------------------------------

_ROOMY: Final = 28
"""Digits of a decimal whose sum can have ten more: Spark has 38."""


def sum(of: str | Column) -> Aggregate:
    """Sum of the values that are not NULL; NULL if there are none. Whole numbers give LONG, decimals ten more digits.

    Decimals of more than 28 digits are refused where ANSI is off, and so is their mean: Spark would make an overflow
    NULL, which merging takes for no rows.

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
    """The values as DOUBLE, converted as Spark does it, for a function that is computed in that type.

    Raises:
        GraphError: they are no numbers.
    """
    from pyspark.sql.types import NullType, NumericType, StringType

    if isinstance(input_type, (NumericType, StringType, NullType)):
        return column.cast("double")
    raise unsupported_input(
        function, input_type, "which is no number", "Convert it first, as in unix_micros(…) for a time."
    )


def _room(function: str) -> Callable[[DataFrame, Column], None]:
    """A check that refuses decimals whose sum may overflow: without ANSI it is NULL, which merging takes for no rows.

    Ten more digits are enough for ten thousand million rows; only decimals whose sum cannot have them are refused.
    """

    def check(rows: DataFrame, column: Column) -> None:
        from pyspark.sql.types import DecimalType

        kind = rows.select(column).schema[0].dataType
        if not isinstance(kind, DecimalType) or kind.precision <= _ROOMY:
            return
        if rows.sparkSession.conf.get("spark.sql.ansi.enabled") != "true":
            why = "whose sum may overflow and would then be wrong without ANSI"
            remedy = f"Cast it to at most {_ROOMY} digits, or set spark.sql.ansi.enabled=true."
            raise unsupported_input(function, kind, why, remedy)

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


# ---- variance and standard deviation ---------------------------------------------------------------------------------
# Sums of squares would be simpler to merge, but the difference of two of them cancels: the variance of values around a
# billion would be noise, or negative. So a partial holds count, mean and the squared deviations from its own mean, and
# merging moves them to the common one (Chan, Golub and LeVeque's way, which is also that of Spark between its tasks).

_SCALE: Final = 2.0**64
"""A power of two above any number of rows: a sum of values scaled by it overflows only where their mean does."""


def stddev(of: str | Column) -> Aggregate:
    """Sample standard deviation (n - 1) of the values that are not NULL, as DOUBLE: Spark's ``stddev_samp``.

    NULL for less than two values; NaN if one is NaN or infinite. The last digits depend on how rows fell into
    batches, as in Spark they do on how they fell into partitions.

    >>> stddev("latency").label
    'stddev_latency'
    """
    return _moments("stddev", of, sample=True, root=True)


def stddev_pop(of: str | Column) -> Aggregate:
    """Population standard deviation (n) of the values that are not NULL, as DOUBLE; NULL if there are none.

    >>> stddev_pop("latency").alias("spread").label
    'spread'
    """
    return _moments("stddev_pop", of, sample=False, root=True)


def variance(of: str | Column) -> Aggregate:
    """Sample variance (n - 1) of the values that are not NULL, as DOUBLE: Spark's ``var_samp``; see ``stddev``.

    >>> variance("latency").label
    'variance_latency'
    """
    return _moments("variance", of, sample=True, root=False)


def var_pop(of: str | Column) -> Aggregate:
    """Population variance (n) of the values that are not NULL, as DOUBLE; NULL if there are none.

    >>> var_pop("latency").label
    'var_pop_latency'
    """
    return _moments("var_pop", of, sample=False, root=False)


def _moments(function: str, of: str | Column, *, sample: bool, root: bool) -> Aggregate:
    def partial(column: Column, input_type: DataType) -> Column:
        return _of_rows(as_double(function, column, input_type))

    parts = (Part(name="moments", partial=partial, merge=_merged),)
    finish = _finish(sample=sample, root=root)
    return Aggregate(function=function, of=(of,), parts=parts, finish=lambda p, _type: finish(p["moments"]))


def _finish(*, sample: bool, root: bool) -> Callable[[Column], Column]:
    def finish(moments: Column) -> Column:
        from pyspark.sql import functions as F

        divisor = moments["n"] - 1 if sample else moments["n"]
        found = moments["m2"] / divisor.cast("double")
        return F.when(divisor > 0, F.sqrt(found) if root else found)

    return finish


def _of_rows(column: Column) -> Column:
    """The moments of a batch's rows; ``regr_sxx`` is how Spark gives away the squared deviations inside ``var_pop``."""
    from pyspark.sql import functions as F

    # The mean of equal values is that value to the last digit, so that their deviation over all batches is 0.
    equal = F.min(column) == F.max(column)
    mean = F.when(equal, F.min(column)).otherwise(F.avg(column / _SCALE) * _SCALE)
    return _struct(F.count(column), F.coalesce(mean, F.lit(0.0)), F.coalesce(F.regr_sxx(column, column), F.lit(0.0)))


def _merged(partials: Column) -> Column:
    from pyspark.sql import functions as F

    none = _struct(F.lit(0).cast("bigint"), F.lit(0.0), F.lit(0.0))
    return F.reduce(F.collect_list(partials), none, _sum_of_two)


def _sum_of_two(left: Column, right: Column) -> Column:
    from pyspark.sql import functions as F

    rows = left["n"] + right["n"]
    apart = right["mean"] - left["mean"]
    step = apart / rows.cast("double")
    mean = left["mean"] + step * right["n"]
    squares = left["m2"] + right["m2"] + apart * step * left["n"] * right["n"]
    # With no rows on one side the general way would round the other's mean, or divide by 0.
    return F.when(left["n"] == 0, right).when(right["n"] == 0, left).otherwise(_struct(rows, mean, squares))


def _struct(rows: Column, mean: Column, squares: Column) -> Column:
    from pyspark.sql import functions as F

    return F.struct(rows.alias("n"), mean.alias("mean"), squares.alias("m2"))
