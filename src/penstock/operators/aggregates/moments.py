"""Variance and standard deviation: count, mean and squared deviations, merged without loss of digits.

Sums of squares would be simpler to merge, but the difference of two of them cancels: the variance of values around a
billion would be noise, or negative. So a partial holds the deviations from its own mean, and merging moves them to
the common one (Chan, Golub and LeVeque's way, which is also that of Spark between its own tasks).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.operators.aggregates.base import Aggregate, Part
from penstock.operators.aggregates.simple import as_double

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_SCALE: Final = 2.0**64
"""More than the rows that can be counted, so that a scaled sum overflows only where its mean does; exact to apply."""


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
    """Sample variance (n - 1) of the values that are not NULL, as DOUBLE: Spark's ``var_samp``; see :func:`stddev`.

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
    # Not only a short cut: with no rows on one side the general way would round the other's mean, and divide by 0.
    return F.when(left["n"] == 0, right).when(right["n"] == 0, left).otherwise(_struct(rows, mean, squares))


def _struct(rows: Column, mean: Column, squares: Column) -> Column:
    from pyspark.sql import functions as F

    return F.struct(rows.alias("n"), mean.alias("mean"), squares.alias("m2"))
