"""Percentiles: exact, by keeping all values, or approximate, by a sketch of fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.errors import GraphError
from penstock.operators.aggregates.base import Aggregate, Part
from penstock.operators.aggregates.simple import as_double

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_LEAST_K, _MOST_K = 8, 65535
_NEEDED: Final = "kll_merge_agg_double"
"""The youngest of the functions of Spark that a sketch needs."""


def percentile(of: str | Column, p: float | Sequence[float]) -> Aggregate:
    """The exact percentile of the values that are not NULL, interpolated, as DOUBLE: Spark's ``percentile``.

    NULL if there are no values. NaN is greater than every number. State holds every value of a window: for many of
    them take :func:`approx_percentile`.

    Args:
        of: a number: a column's name or SQL, or a Column.
        p: from 0.0 to 1.0, 0.5 being the median; or several, and the result is an ARRAY of DOUBLE in their order.

    Raises:
        GraphError: ``p`` is not between 0 and 1.

    >>> percentile("latency", [0.5, 0.99]).label
    'percentile_latency'
    """
    shares = _shares("percentile", p)

    def partial(column: Column, input_type: DataType) -> Column:
        from pyspark.sql import functions as F

        return F.sort_array(F.collect_list(as_double("percentile", column, input_type)))

    def merge(partials: Column) -> Column:
        from pyspark.sql import functions as F

        return F.sort_array(F.flatten(F.collect_list(partials)))

    return Aggregate(
        function="percentile",
        of=(of,),
        parts=(Part(name="values", partial=partial, merge=merge),),
        finish=lambda parts, _type: _exact(parts["values"], shares, several=isinstance(p, Sequence)),
        parameters={"p": shares if isinstance(p, Sequence) else p},
    )


def approx_percentile(of: str | Column, p: float | Sequence[float], *, k: int = 200) -> Aggregate:
    """A value near the percentile, in the input's type; of decimals and text as DOUBLE. NULL if there are no values.

    State is a KLL sketch of some kilobytes, however many values there are. Up to ``k`` values the result is exact:
    the least value with at least the share ``p`` of all values at or below it. Beyond, it is still one of the values,
    and with 99 % confidence its rank is off by less than 1.4 % of their number at ``k=200``, 0.3 % at ``k=1000``. The
    sketch tosses coins: the same rows may give another value in another run, as near. NULL and NaN do not count;
    whole numbers beyond 2^53 are rounded as DOUBLE is. Needs Spark 4.1.2.

    Args:
        of: a number: a column's name or SQL, or a Column.
        p: from 0.0 to 1.0, 0.5 being the median; or several, and the result is an ARRAY in their order.
        k: size of the sketch, 8 to 65535. With a new ``k``, windows that are open keep the coarser of the two.

    Raises:
        GraphError: ``p`` is not between 0 and 1, or ``k`` is out of range.

    >>> approx_percentile("latency", 0.99).alias("p99").label
    'p99'
    """
    shares = _shares("approx_percentile", p)
    if not isinstance(k, int) or isinstance(k, bool) or not _LEAST_K <= k <= _MOST_K:
        msg = f"k of ps.agg.approx_percentile must be a whole number from {_LEAST_K} to {_MOST_K}, got {k!r}"
        raise GraphError(msg)
    return Aggregate(
        function="approx_percentile",
        of=(of,),
        parts=(Part(name="kll", partial=lambda column, kind: _sketch(column, kind, k), merge=_merge(k)),),
        finish=lambda parts, kind: _estimate(parts["kll"], kind, shares, several=isinstance(p, Sequence)),
        parameters={"p": shares if isinstance(p, Sequence) else p, "k": k},
    )


def _shares(function: str, p: float | Sequence[float]) -> list[float]:
    given = list(p) if isinstance(p, Sequence) else [p]
    for share in given:
        if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 <= share <= 1:
            msg = f"ps.agg.{function} takes shares from 0.0 to 1.0, such as 0.99, got {share!r}"
            raise GraphError(msg)
    if not given:
        msg = f"ps.agg.{function} was given an empty list of shares: give it at least one, such as [0.5, 0.99]"
        raise GraphError(msg)
    return [float(share) for share in given]


def _exact(values: Column, shares: list[float], *, several: bool) -> Column:
    """From sorted values, step by step as Spark's ``percentile`` does it, so that not even the last digit differs."""
    from pyspark.sql import functions as F

    def at(share: float) -> Column:
        place = (F.array_size(values) - 1) * F.lit(share)
        below, above = F.floor(place), F.ceil(place)
        left, right = (F.get(values, side.cast("int")) for side in (below, above))
        between = (above - place) * left + (place - below) * right
        return F.when(left.eqNullSafe(right), left).otherwise(between)

    return _listed([at(share) for share in shares], several=several, known=F.array_size(values) > 0)


def _sketch(column: Column, input_type: DataType, k: int) -> Column:
    from pyspark.sql import functions as F

    if not hasattr(F, _NEEDED):
        remedy = "upgrade, or take ps.agg.percentile, which is exact"
        msg = f"ps.agg.approx_percentile needs {_NEEDED}, which came with Spark 4.1.2: {remedy}"
        raise GraphError(msg)
    return F.kll_sketch_agg_double(as_double("approx_percentile", column, input_type), k)


def _merge(k: int) -> Callable[[Column], Column]:
    def merge(partials: Column) -> Column:
        from pyspark.sql import functions as F

        return F.kll_merge_agg_double(partials, k)

    return merge


def _estimate(sketch: Column, input_type: DataType, shares: list[float], *, several: bool) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import FloatType, IntegralType

    known = F.kll_sketch_get_n_double(sketch) > 0
    found = [F.kll_sketch_get_quantile_double(sketch, F.lit(share)) for share in shares]
    if isinstance(input_type, (IntegralType, FloatType)):
        found = [value.cast(input_type) for value in found]
    return _listed(found, several=several, known=known)


def _listed(values: list[Column], *, several: bool, known: Column) -> Column:
    """NULL without values: only then may a place outside of an array, or an empty sketch, be asked for."""
    from pyspark.sql import functions as F

    return F.when(known, F.array(*values) if several else values[0])
