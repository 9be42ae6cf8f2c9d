"""Mergeable aggregates, ``ps.agg``: triples of partial, merge and finish; knows nothing of windows or layers.

An aggregate over a batch is kept as one or more *partial* columns; partials of the same key and window from many
batches are *merged* column by column; the result is *finished* from them when it is due. NULL, NaN, -0.0, overflow
and result types are those of Spark's own function over all rows at once. Where that is a matter of order (the last
digits of a sum of DOUBLE, which zero ``min`` gives for 0.0 and -0.0) it stays one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import GraphError
from penstock.operators.decimals import quotient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_NAME: Final = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """One partial column of an aggregate.

    Attributes:
        name: the column is called ``<alias>__<name>`` in the layers.
        partial: from the input column and its type to an aggregate over the rows of a batch.
        merge: from the partial column to an aggregate over partials; associative and commutative. Its result is cast
            to the partial column's type, so that merging again and again changes no type.
    """

    name: str
    partial: Callable[[Column, DataType], Column]
    merge: Callable[[Column], Column]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aggregate:
    """What to compute over the rows of a key and window. Made by the functions of this module, named by :meth:`alias`.

    Attributes:
        function: its name, for people.
        of: a column's name or SQL, or a Column; ``None`` stands for the row itself.
        parts: the partial columns.
        finish: from the partial columns by part name, and the input's type, to the result.
        name: of the result column; ``None`` until given.
    """

    function: str
    of: str | Column | None
    parts: tuple[Part, ...]
    finish: Callable[[Mapping[str, Column], DataType], Column]
    name: str | None = None

    def alias(self, name: str) -> Aggregate:
        """The same aggregate, its result called ``name``."""
        return replace(self, name=name)

    @property
    def label(self) -> str:
        """The result column's name: as given, else from the function and the column (``sum_amount``).

        Raises:
            GraphError: an expression has no name of its own.
        """
        if self.name is not None:
            return self.name
        if self.of is None:
            return self.function
        if isinstance(self.of, str) and _NAME.fullmatch(self.of):
            return f"{self.function}_{self.of}"
        msg = f'ps.agg.{self.function}({self.of!r}) has no name: add .alias("…") to it'
        raise GraphError(msg)


def sum(of: str | Column) -> Aggregate:
    """Sum of the values that are not NULL; NULL if there are none. Whole numbers give LONG, decimals ten more digits.

    >>> sum("amount").label
    'sum_amount'
    """
    return Aggregate(function="sum", of=of, parts=(_part("sum", "sum", "sum"),), finish=lambda p, _type: p["sum"])


def count(of: str | Column | None = None) -> Aggregate:
    """Number of rows, or of values of ``of`` that are not NULL.

    >>> count().alias("n").label
    'n'
    """
    parts = (_part("count", "count", "sum"),)
    return Aggregate(function="count", of=of, parts=parts, finish=lambda p, _type: _or_zero(p["count"]))


def min(of: str | Column) -> Aggregate:
    """Least value that is not NULL; NaN is greater than every number."""
    return Aggregate(function="min", of=of, parts=(_part("min", "min", "min"),), finish=lambda p, _type: p["min"])


def max(of: str | Column) -> Aggregate:
    """Greatest value that is not NULL; NaN is greater than every number."""
    return Aggregate(function="max", of=of, parts=(_part("max", "max", "max"),), finish=lambda p, _type: p["max"])


def avg(of: str | Column) -> Aggregate:
    """Mean of the values that are not NULL, as DOUBLE; of decimals a decimal with four more places."""
    parts = (
        Part(name="sum", partial=_sum_for_mean, merge=_function("sum")),
        _part("count", "count", "sum"),
    )
    return Aggregate(
        function="avg", of=of, parts=parts, finish=lambda p, input_type: quotient(p["sum"], p["count"], input_type)
    )


FUNCTIONS: Final = ("avg", "count", "max", "min", "sum")
"""What ``ps.agg`` has."""


def check_aggregate(value: object) -> Aggregate:
    """``value`` if it is one of ``ps.agg``.

    Raises:
        GraphError: it is not; the message has the name to use.
    """
    if isinstance(value, Aggregate):
        return value
    found = re.search(r"'(\w+)\(", str(value))
    name = found[1].lower() if found else ""
    name = {"mean": "avg"}.get(name, name)
    use = f"ps.agg.{name}(…)" if name in FUNCTIONS else "one of " + ", ".join(f"ps.agg.{word}" for word in FUNCTIONS)
    msg = f"agg() was given {value!r} ({type(value).__name__}), which cannot be merged over batches: use {use}"
    raise GraphError(msg)


def _function(name: str) -> Callable[[Column], Column]:
    def call(column: Column) -> Column:
        from pyspark.sql import functions as F

        made: Any = getattr(F, name)(column)
        return made  # type: ignore[no-any-return]

    return call


def _part(name: str, partial: str, merge: str) -> Part:
    call = _function(partial)
    return Part(name=name, partial=lambda column, _type: call(column), merge=_function(merge))


def _or_zero(column: Column) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(column, F.lit(0).cast("bigint"))


def _sum_for_mean(column: Column, input_type: DataType) -> Column:
    """Spark's ``avg`` adds up DOUBLE, whole numbers too, except for decimals."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DecimalType, NullType, NumericType, StringType

    if isinstance(input_type, DecimalType):
        return F.sum(column)
    if isinstance(input_type, (NumericType, StringType, NullType)):
        return F.sum(column.cast("double"))
    msg = f"ps.agg.avg cannot take the mean of {input_type.simpleString()}: give it a number"
    raise GraphError(msg)
