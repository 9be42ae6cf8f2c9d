"""What an aggregate consists of, and which aggregates there are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import GraphError
from penstock.spark.sql import has_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from penstock.handles import Json


# ---- what an aggregate consists of -----------------------------------------------------------------------------------

ColumnOrName: TypeAlias = "str | Column"
"""A column as users write it: its name, SQL, or a Column."""
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_COLLATED: Final = re.compile(r"\bstring collate (?!UTF8_BINARY\b)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """One partial column of an aggregate.

    Attributes:
        name: the column is called ``<alias>__<name>`` in the layers.
        partial: from the input column and its type to an aggregate over the rows of a batch.
        merge: from the partial column to an aggregate over partials; associative and commutative. Its result is cast
            to the partial column's type, so that merging again and again changes no type.
        skips_null: whether a partial that is NULL makes no difference to ``merge``.
    """

    name: str
    partial: Callable[[Column, DataType], Column]
    merge: Callable[[Column], Column]
    skips_null: bool = False


def _only(columns: Sequence[Column], _order: Column) -> Column:
    from pyspark.sql import functions as F

    return columns[0] if columns else F.lit(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aggregate:
    """What to compute over the rows of a key and window. Made by the functions of ``ps.agg``, named by ``alias``.

    Attributes:
        function: its name, for people.
        of: columns' names or SQL, or Columns; empty for the row itself.
        parts: the partial columns.
        finish: from the partial columns by part name, and the input's type, to the result.
        by: orders the rows, if not their event time.
        shape: from the columns and the order to the one input column. A row does not count if that is NULL.
        conditions: a row counts only if all of them hold.
        check: refuses inputs that the aggregate cannot take, from a column of a frame without rows.
        name: of the result column; ``None`` until given.
        parameters: with these, and any column, the function of ``ps.agg`` makes an aggregate that finishes the same
            partials. State records them, so that it can be read without the pipeline. ``None`` if it cannot be.
    """

    function: str
    of: tuple[ColumnOrName, ...]
    parts: tuple[Part, ...]
    finish: Callable[[Mapping[str, Column], DataType], Column]
    by: ColumnOrName | None = None
    shape: Callable[[Sequence[Column], Column], Column] = _only
    conditions: tuple[ColumnOrName, ...] = ()
    check: Callable[[DataFrame, Column], None] | None = None
    name: str | None = None
    parameters: Mapping[str, Json] | None = field(default_factory=dict)

    def alias(self, name: str) -> Aggregate:
        """The same aggregate, its result called ``name``."""
        return replace(self, name=name)

    def where(self, condition: ColumnOrName) -> Aggregate:
        """The same aggregate over the rows for which ``condition`` holds, as SQL's ``FILTER (WHERE …)``.

        A key and window of which no row matches still has its result, with the function's value for no rows:
        0 for counts, an empty list for ``collect``, NULL for the others. Called twice, both conditions must hold.

        Args:
            condition: SQL text or a Column over the step's input; unknown counts as false.

        >>> from penstock.operators.aggregates.basic import sum
        >>> sum("amount").where("amount > 0").where("NOT refunded").alias("paid").conditions
        ('amount > 0', 'NOT refunded')
        """
        return replace(self, conditions=(*self.conditions, condition))

    @property
    def label(self) -> str:
        """The result column's name: by ``alias``, else from the function and the columns (``sum_amount``).

        Raises:
            GraphError: an expression has no name of its own.
        """
        if self.name is not None:
            return self.name
        for of in self.of:
            if not isinstance(of, str) or not _NAME.fullmatch(of):
                msg = f'ps.agg.{self.function}({of!r}) has no name. Add .alias("…") to it.'
                raise GraphError(msg)
        return "_".join((self.function, *map(str, self.of)))

    @property
    def is_of_rows(self) -> bool:
        """Whether only the number of rows counts: its input is a constant."""
        return self.shape is _only and not self.of and not self.conditions

    def input(self, column_of: Callable[[ColumnOrName], Column], time: Column) -> Column:
        """The one column that partials are computed from.

        Args:
            column_of: makes a Column of what the user wrote.
            time: the event time.
        """
        from pyspark.sql import functions as F

        order = time if self.by is None else column_of(self.by)
        column = self.shape([column_of(of) for of in self.of], order)
        for condition in self.conditions:
            column = F.when(column_of(condition), column)
        return column


def merge_once(merge: Callable[[Column], Column]) -> Callable[[Column], Column]:
    """``merge``, called once for each column; its results are kept.

    Spark's functions that take a function (``F.reduce``, ``F.filter``) give its arguments new names at each call, and
    these names get into generated code: made for each batch, an aggregate would be compiled for each batch.
    """
    made: dict[str, Column] = {}

    def merged(column: Column) -> Column:
        name = str(column)
        if name not in made:
            made[name] = merge(column)
        return made[name]

    return merged


def unsupported_input(function: str, data_type: DataType, why: str, remedy: str) -> GraphError:
    """The error for an input that a function cannot take."""
    msg = f"ps.agg.{function} cannot take {data_type.simpleString()}, {why}. {remedy}"
    return GraphError(msg)


def check_ordered(function: str, data_type: DataType) -> None:
    """Refuse values that Spark cannot put in order.

    Raises:
        GraphError: the type is, or holds, a map or a variant.
    """
    if not is_ordered(data_type):
        remedy = "Give it a field of the value, or its text, as in to_json(…)."
        raise unsupported_input(function, data_type, "which has no order", remedy)


def is_ordered(data_type: DataType) -> bool:
    """Whether Spark can order values, and so compare them: there is no map or variant in the type."""
    return not has_type(data_type, ("map", "variant"))


def is_collated(data_type: DataType) -> bool:
    """Whether equal values may differ in their bytes.

    >>> from pyspark.sql.types import ArrayType, StringType
    >>> is_collated(ArrayType(StringType("UTF8_LCASE"))), is_collated(StringType())
    (True, False)
    """
    return _COLLATED.search(data_type.simpleString()) is not None


# ---- which aggregates there are --------------------------------------------------------------------------------------

FUNCTIONS: Final = (
    "approx_count_distinct",
    "approx_percentile",
    "avg",
    "collect",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "min",
    "percentile",
    "stddev",
    "stddev_pop",
    "sum",
    "var_pop",
    "variance",
)
"""The functions of ``ps.agg``, except ``custom``."""
_INSTEAD: Final = {
    "any_value": "first(…, ignore_nulls=…)",
    "array_agg": "collect(…)",
    "collect_list": "collect(…)",
    "collect_set": "collect(…), and array_distinct on the result",
    "count_if": 'count().where("…")',
    "first_value": "first(…)",
    "hll_sketch_agg": "approx_count_distinct(…)",
    "last_value": "last(…)",
    "max_by": "last(…, by=…)",
    "mean": "avg(…)",
    "median": "percentile(…, 0.5)",
    "min_by": "first(…, by=…)",
    "percentile_approx": "approx_percentile(…, 0.5)",
    "std": "stddev(…)",
    "stddev_samp": "stddev(…)",
    "var_samp": "variance(…)",
}


def check_aggregate(value: object) -> Aggregate:
    """``value``, if it is an aggregate of ``ps.agg``.

    Raises:
        GraphError: it is none; the message has the name to use.
    """
    if isinstance(value, Aggregate):
        return value
    found = re.search(r"'(\w+)\(", str(value))
    name = found[1].lower() if found else ""
    if name in FUNCTIONS:
        use = f"ps.agg.{name}(…)"
    elif name in _INSTEAD:
        use = f"ps.agg.{_INSTEAD[name]}"
    else:
        use = "one of " + ", ".join(f"ps.agg.{word}" for word in FUNCTIONS) + ", or ps.agg.custom for one of your own"
    msg = f"agg() cannot take {value!r} ({type(value).__name__}), which cannot be merged over batches. Use {use}."
    raise GraphError(msg)
