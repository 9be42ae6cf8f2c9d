"""First, last and collected values: aggregates for which the order of rows matters, so that order is made definite.

Rows come in no order, so "first" means least by a column: the event time, if no other is given. Rows with the same
place in that order are told apart by their value, never by which batch or task they came in: so the result is the
same however the rows were cut into batches, and merging is a plain minimum, maximum or sort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import GraphError
from penstock.operators.aggregates.base import Aggregate, Part, check_ordered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType


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
        msg = f"limit of ps.agg.collect must be a whole number above zero, got {limit!r}"
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
    """Order and value as one struct, which Spark compares field by field; NULL for a row that is left out."""

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
