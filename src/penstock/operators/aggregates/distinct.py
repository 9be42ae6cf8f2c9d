"""Counts of distinct values: exact, by keeping the set, or approximate, by a sketch of fixed size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import GraphError
from penstock.operators.aggregates.base import Aggregate, Part, check_ordered, is_collated, refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_FEWEST, _MOST = 4, 21
"""Sizes of a sketch that Spark takes, as powers of two."""

_SPREAD: Final = 1.04
"""Standard error of a merged sketch of one register; of k registers that over the root of k."""


def count_distinct(of: str | Column, *more: str | Column) -> Aggregate:
    """Number of distinct values, exactly, as LONG; of several columns, of distinct combinations.

    As Spark's ``count(DISTINCT …)``: NULL is not counted, nor is a combination that has one; all NaN are one value,
    -0.0 is 0.0, and collated strings are equal as their collation says. State holds every distinct value of a window:
    for many of them take :func:`approx_count_distinct`.

    >>> count_distinct("user", "device").label
    'count_distinct_user_device'
    """

    def partial(column: Column, input_type: DataType) -> Column:
        from pyspark.sql import functions as F

        check_ordered("count_distinct", input_type)
        # A set of Spark's compares bytes and refuses collations; in either case what is left equal goes below.
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

    What counts as distinct is as in :func:`count_distinct`. State is a HyperLogLog sketch of at most some kilobytes,
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
            why, remedy = "whose collation a hash does not see", "give it lower(…), or use ps.agg.count_distinct"
            raise refusal(name, input_type, why, remedy)
        # Hashed before the sketch: it takes few types, and would skip the empty string.
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
    msg = f"rsd of ps.agg.approx_count_distinct must be a number of at least 0.00072, got {rsd!r}"
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
