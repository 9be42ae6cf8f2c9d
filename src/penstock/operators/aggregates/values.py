"""First, last, collect; distinct counts; percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.errors import GraphError
from penstock.operators.aggregates.base import Aggregate, Part, check_ordered, is_collated, unsupported_input
from penstock.operators.aggregates.basic import as_double

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column
    from pyspark.sql.types import DataType


# ---- distinct counts: exact by a set, approximate by a sketch --------------------------------------------------------

_FEWEST, _MOST = 4, 21
"""Least and greatest size of a sketch in Spark, as powers of two."""
_SPREAD: Final = 1.04
"""Standard error of a merged sketch of one register; k registers divide it by the root of k."""


def count_distinct(of: str | Column, *more: str | Column) -> Aggregate:
    """Number of distinct values, exactly, as LONG; of several columns, of distinct combinations.

    As Spark's ``count(DISTINCT …)``: NULL is not counted, nor is a combination that has one; all NaN are one value,
    -0.0 is 0.0, and collated strings are equal as their collation says. State holds every distinct value of a window:
    for many of them take ``approx_count_distinct``.

    >>> count_distinct("user", "device").label
    'count_distinct_user_device'
    """

    def partial(column: Column, input_type: DataType) -> Column:
        from pyspark.sql import functions as F

        check_ordered("count_distinct", input_type)
        # Spark's set compares bytes and refuses collations; _set drops the equal values that are left.
        return _set(F.collect_list(column) if is_collated(input_type) else F.collect_set(column))

    def merge(partials: Column) -> Column:
        from pyspark.sql import functions as F

        return _set(F.flatten(F.collect_list(partials)))

    def finish(values: Column) -> Column:
        from pyspark.sql import functions as F

        return F.array_size(values).cast("bigint")

    return Aggregate(
        function="count_distinct",
        of=(of, *more),
        shape=_together,
        parts=(Part(name="set", partial=partial, merge=merge),),
        finish=lambda p, _type: finish(p["set"]),
    )


def approx_count_distinct(of: str | Column, *more: str | Column, rsd: float = 0.02) -> Aggregate:
    """Number of distinct values, estimated, as LONG; of several columns, of distinct combinations.

    What counts as distinct is as in ``count_distinct``. State is a HyperLogLog sketch of at most some kilobytes,
    however many values there are: 4 KB at the default. A few values are counted exactly, or nearly so.

    Args:
        of: a column's name or SQL, or a Column; anything but maps, variants and collated strings.
        *more: more columns.
        rsd: relative standard error at most, 0.00072 to 0.26: two of three results are closer than that. Half the
            error takes four times the state. With a new ``rsd``, windows that are open keep the coarser of the two.

    Raises:
        GraphError: ``rsd`` is out of range.

    >>> approx_count_distinct("user", rsd=0.01).label
    'approx_count_distinct_user'
    """
    name, size = "approx_count_distinct", _size(rsd)

    def partial(column: Column, input_type: DataType) -> Column:
        from pyspark.sql import functions as F

        check_ordered(name, input_type)
        if is_collated(input_type):
            why, remedy = "whose collation a hash does not see", "Give it lower(…), or use ps.agg.count_distinct."
            raise unsupported_input(name, input_type, why, remedy)
        # The sketch takes few types and skips the empty string, so values are hashed first.
        return F.hll_sketch_agg(F.when(column.isNotNull(), F.xxhash64(column)), size)

    def merge(partials: Column) -> Column:
        from pyspark.sql import functions as F

        return F.hll_union_agg(partials, True)  # of several sizes: rsd may have been changed

    def finish(sketch: Column) -> Column:
        from pyspark.sql import functions as F

        return F.hll_sketch_estimate(sketch)

    return Aggregate(
        function=name,
        of=(of, *more),
        shape=_together,
        parts=(Part(name="hll", partial=partial, merge=merge),),
        finish=lambda p, _type: finish(p["hll"]),
    )


def _size(rsd: float) -> int:
    """The smallest sketch, as a power of two, that is as exact as asked for.

    >>> _size(0.02), _size(0.05), _size(0.26)
    (12, 9, 4)
    """
    if isinstance(rsd, (int, float)) and not isinstance(rsd, bool) and rsd > 0:
        for size in range(_FEWEST, _MOST + 1):
            if _SPREAD / 2 ** (size / 2) <= rsd:
                return size
    msg = f"rsd of ps.agg.approx_count_distinct must be a number of at least 0.00072, got {rsd!r}."
    raise GraphError(msg)


def _together(columns: Sequence[Column], _order: Column) -> Column:
    """One column; several as a struct, NULL as soon as one of them is."""
    from pyspark.sql import functions as F

    if len(columns) == 1:
        return columns[0]
    known = columns[0].isNotNull()
    for column in columns[1:]:
        known &= column.isNotNull()
    return F.when(known, F.struct(*(column.alias(f"v{place}") for place, column in enumerate(columns, 1))))


def _set(values: Column) -> Column:
    """Sorted, and without what equals its left neighbour: Spark's order knows NaN, -0.0 and collations, at any depth.

    ``array_distinct`` would compare all pairs where the type is not a simple one. The sorted array is put into an
    array of its own to get a name for it, so that it is not sorted again for each element.
    """
    from pyspark.sql import functions as F

    def distinct(ordered: Column) -> Column:
        return F.filter(ordered, lambda value, place: ~value.eqNullSafe(F.get(ordered, place - 1)))

    return F.get(F.transform(F.array(F.sort_array(values)), distinct), 0)


# ---- first, last and collected values --------------------------------------------------------------------------------
# Rows come in no order, so "first" means least by a column: the event time, if no other is given. Rows that are equal
# in it are ordered by their value, never by their batch or task. So the result does not depend on how rows were cut
# into batches, and merging is a plain minimum, maximum or sort.


def first(of: str | Column, *, by: str | Column | None = None, ignore_nulls: bool = False) -> Aggregate:
    """The value of the earliest row, in the input's type. NULL if there is no row, or its value is NULL.

    Of several rows at the same place the least value is taken, NULL being less than any.

    Args:
        of: a column's name or SQL, or a Column; anything but maps and variants, which have no order.
        by: what orders the rows; the event time if not given. Rows for which it is NULL are left out.
        ignore_nulls: the earliest row whose value is not NULL.

    >>> first("status", by="version").label
    'first_status'
    """
    return _one("first", of, by, ignore_nulls=ignore_nulls)


def last(of: str | Column, *, by: str | Column | None = None, ignore_nulls: bool = False) -> Aggregate:
    """The value of the latest row, in the input's type. NULL if there is no row, or its value is NULL.

    Of several rows at the same place the greatest value is taken, NULL being less than any.

    Args:
        of: a column's name or SQL, or a Column; anything but maps and variants, which have no order.
        by: what orders the rows; the event time if not given. Rows for which it is NULL are left out.
        ignore_nulls: the latest row whose value is not NULL.

    >>> last("price", ignore_nulls=True).alias("close").label
    'close'
    """
    return _one("last", of, by, ignore_nulls=ignore_nulls)


def collect(of: str | Column, *, limit: int | None = None, by: str | Column | None = None) -> Aggregate:
    """All values that are not NULL as an ARRAY, in order; an empty one if there are none.

    The order is that of the event time, then of the value. State grows with the rows: set a ``limit`` unless windows
    are small.

    Args:
        of: a column's name or SQL, or a Column; anything but maps and variants, which have no order.
        limit: keep only that many, the first in the order.
        by: what orders the values instead of the event time. Rows for which it is NULL are left out.

    Raises:
        GraphError: ``limit`` is no whole number above zero.

    >>> collect("page", limit=10).label
    'collect_page'
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        msg = f"limit of ps.agg.collect must be a whole number above zero, got {limit!r}."
        raise GraphError(msg)

    def partial(column: Column, input_type: DataType) -> Column:
        from pyspark.sql import functions as F

        check_ordered("collect", input_type)
        return _sorted(F.collect_list(column), limit)

    def merge(partials: Column) -> Column:
        from pyspark.sql import functions as F

        return _sorted(F.flatten(F.collect_list(partials)), limit)

    def finish(values: Column) -> Column:
        from pyspark.sql import functions as F

        return F.transform(values, lambda pair: pair["value"])

    return Aggregate(
        function="collect",
        of=(of,),
        by=by,
        shape=_pair(ignore_nulls=True),
        parts=(Part(name="values", partial=partial, merge=merge),),
        finish=lambda p, _type: finish(p["values"]),
        parameters={"limit": limit},
    )


def _one(function: str, of: str | Column, by: str | Column | None, *, ignore_nulls: bool) -> Aggregate:
    def partial(column: Column, input_type: DataType) -> Column:
        check_ordered(function, input_type)
        return merge(column)

    def merge(column: Column) -> Column:
        from pyspark.sql import functions as F

        return F.min(column) if function == "first" else F.max(column)

    return Aggregate(
        function=function,
        of=(of,),
        by=by,
        shape=_pair(ignore_nulls=ignore_nulls),
        parts=(Part(name=function, partial=partial, merge=merge),),
        finish=lambda p, _type: p[function]["value"],
    )


def _pair(*, ignore_nulls: bool) -> Callable[[Sequence[Column], Column], Column]:
    """A function to one struct of order and value, which Spark compares in this order; NULL for a row left out."""

    def shape(columns: Sequence[Column], order: Column) -> Column:
        from pyspark.sql import functions as F

        (value,) = columns
        counts = order.isNotNull() & value.isNotNull() if ignore_nulls else order.isNotNull()
        return F.when(counts, F.struct(order.alias("by"), value.alias("value")))

    return shape


def _sorted(pairs: Column, limit: int | None) -> Column:
    from pyspark.sql import functions as F

    ordered = F.sort_array(pairs)
    return ordered if limit is None else F.slice(ordered, 1, limit)


# ---- percentiles: exact by all values, approximate by a sketch -------------------------------------------------------

_LEAST_K, _MOST_K = 8, 65535
_NEEDED: Final = "kll_merge_agg_double"
"""The newest function of Spark that a sketch needs."""


def percentile(of: str | Column, p: float | Sequence[float]) -> Aggregate:
    """The exact percentile of the values that are not NULL, interpolated, as DOUBLE: Spark's ``percentile`` (of 4.3).

    NULL if there are no values. NaN is greater than every number. State holds every value of a window: for many of
    them take ``approx_percentile``.

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
        msg = f"k of ps.agg.approx_percentile must be a whole number from {_LEAST_K} to {_MOST_K}, got {k!r}."
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
            msg = f"ps.agg.{function} takes shares from 0.0 to 1.0, such as 0.99, got {share!r}."
            raise GraphError(msg)
    if not given:
        msg = f"ps.agg.{function} was given an empty list of shares. Give it at least one, such as [0.5, 0.99]."
        raise GraphError(msg)
    return [float(share) for share in given]


def _exact(values: Column, shares: list[float], *, several: bool) -> Column:
    """Percentiles of sorted values, to the last digit as Spark's ``percentile`` since 4.3 (SPARK-57982).

    Between minus infinity and another value the result is NaN, as there.
    """
    from pyspark.sql import functions as F

    def at(share: float) -> Column:
        place = (F.array_size(values) - 1) * F.lit(share)
        below, above = F.floor(place), F.ceil(place)
        left, right = (F.get(values, side.cast("int")) for side in (below, above))
        between = left + (place - below) * (right - left)  # rises with the share, also in the last digit
        return F.when(left.eqNullSafe(right), left).otherwise(between)

    return _listed([at(share) for share in shares], several=several, known=F.array_size(values) > 0)


def _sketch(column: Column, input_type: DataType, k: int) -> Column:
    from pyspark.sql import functions as F

    if not hasattr(F, _NEEDED):
        remedy = "Upgrade Spark, or take ps.agg.percentile, which is exact."
        msg = f"ps.agg.approx_percentile needs {_NEEDED}, which came with Spark 4.1.2. {remedy}"
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
    """One value or an array; NULL unless ``known``, since without values there is nothing to look up."""
    from pyspark.sql import functions as F

    return F.when(known, F.array(*values) if several else values[0])
