"""Aggregates that users write: named triples of functions on columns, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import GraphError, PenstockError, UserFunctionError, sentence
from penstock.operators.aggregates.base import Aggregate, Part
from penstock.spark.plans import analyzed_plan
from penstock.spark.query_log import first_line
from penstock.spark.session import empty_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_INPUT: Final = "of_"


def custom(
    name: str,
    *,
    of: str | Column | Sequence[str | Column] = (),
    partial: Mapping[str, Callable[..., Column]],
    merge: Mapping[str, Callable[[Column], Column]],
    finish: Callable[..., Column],
) -> Aggregate:
    """An aggregate of your own, from functions that return Spark columns.

    Each part is a column of the state. Its *partial* is computed over the rows of a batch, its *merge* over such
    partials, again and again and in any order. So merging must be associative and commutative, and keep the type. The
    result is *finished* from the parts. ::

        ps.agg.custom(
            "weighted_mean",
            of=["price", "amount"],
            partial={
                "total": lambda price, amount: F.sum(price * amount),
                "weight": lambda price, amount: F.sum(amount),
            },
            merge={"total": F.sum, "weight": F.sum},
            finish=lambda total, weight: total / weight,
        ).alias("price")

    Functions are called when the pipeline is checked and again whenever a plan is made, and must do nothing but make
    the same columns each time.

    Args:
        name: of the function, for people, and in the name of the result: ``weighted_mean_price_amount``.
        of: the inputs, columns' names or SQL, or Columns. With ``Aggregate.where``, all of them are NULL in rows
            that do not match.
        partial: by name of the part; takes the inputs in their order and gives an aggregate, such as ``F.sum(x)``.
        merge: by name of the part; takes the partials and gives an aggregate over them.
        finish: takes the merged parts by name, and gives a column that is no aggregate.

    Raises:
        GraphError: a name is impossible, or partial and merge do not name the same parts. Later, when the pipeline is
            checked, if a partial or merge is no aggregate, merging changes a type, or finish is an aggregate.

    >>> from pyspark.sql import functions as F
    >>> rows = custom("rows", partial={"n": F.count}, merge={"n": F.sum}, finish=lambda n: n)
    >>> rows.label
    'rows'
    """
    columns = tuple(of) if isinstance(of, Sequence) and not isinstance(of, str) else (of,)
    _check_names(name, partial, merge)
    _check_callable(name, {**{f"partial {key!r}": made for key, made in partial.items()}, "finish": finish})
    _check_callable(name, {f"merge {key!r}": made for key, made in merge.items()})
    triple = _Triple(name, len(columns), dict(partial), dict(merge), finish)
    return Aggregate(
        function=name,
        of=columns,
        shape=_shape,
        parts=tuple(triple.part(key) for key in partial),
        finish=lambda parts, _type: triple.finished(parts),
        check=triple.check,
        parameters=None,
    )


@dataclass(frozen=True, slots=True)
class _Triple:
    """The user's functions, and how they are called."""

    name: str
    inputs: int
    partials: Mapping[str, Callable[..., Column]]
    merges: Mapping[str, Callable[[Column], Column]]
    finish: Callable[..., Column]

    def part(self, key: str) -> Part:
        def partial(column: Column, _type: DataType) -> Column:
            return self.partial(key, column)

        return Part(name=key, partial=partial, merge=lambda column: self.merge(key, column))

    def partial(self, key: str, column: Column) -> Column:
        inputs = [column] if self.inputs <= 1 else [column[f"{_INPUT}{place}"] for place in range(self.inputs)]
        return self._called(self.partials[key], f"partial {key!r}", *inputs)

    def merge(self, key: str, column: Column) -> Column:
        return self._called(self.merges[key], f"merge {key!r}", column)

    def finished(self, parts: Mapping[str, Column]) -> Column:
        return self._called(self.finish, "finish", **parts)

    def check(self, rows: DataFrame, column: Column) -> None:
        """Have Spark analyse each function by itself, over no rows, and check its result."""
        from pyspark.sql import functions as F

        frames: list[DataFrame] = []
        for key in self.partials:
            partials = self._analysed(
                rows, self.partial(key, column).alias(key), self.partials[key], f"partial {key!r}"
            )
            merged = self._analysed(
                partials, self.merge(key, F.col(key)).alias(key), self.merges[key], f"merge {key!r}"
            )
            self._check_type(key, partials.schema[0].dataType, merged.schema[0].dataType)
            frames.append(partials)
        parts = _one_row(frames)
        finish = self.finished({key: F.col(key) for key in self.partials})
        self._analysed(parts, finish, self.finish, "finish", aggregate=False)

    def _called(self, function: Callable[..., Column], what: str, *columns: Column, **named: Column) -> Column:
        from pyspark.sql import Column

        try:
            made: object = function(*columns, **named)
        except PenstockError:
            raise
        except Exception as error:
            msg = f"{what} of {self._shown(function)} raised {type(error).__name__}: {sentence(error)}"
            raise UserFunctionError(msg) from error
        if not isinstance(made, Column):
            msg = f"{what} of {self._shown(function)} returned {made!r}. Let it return a Column, such as F.sum(column)."
            raise GraphError(msg)
        return made

    def _analysed(
        self, frame: DataFrame, column: Column, function: object, what: str, *, aggregate: bool = True
    ) -> DataFrame:
        from pyspark.errors import AnalysisException

        try:
            made = frame.select(column)
        except AnalysisException as error:
            msg = f"{what} of {self._shown(function)} cannot be computed: {first_line(error)}."
            raise GraphError(msg) from error
        plan = analyzed_plan(made)
        plain = plan.nodeName() in ("Aggregate", "Project") and plan.children().head().equals(analyzed_plan(frame))
        if not plain or (plan.nodeName() == "Aggregate") != aggregate or not plan.deterministic():
            expected = "an aggregate over its rows, such as F.sum(…)" if aggregate else "computed from one row of parts"
            msg = f"{what} of {self._shown(function)} gives {column}, which is not {expected}."
            raise GraphError(msg)
        return made

    def _check_type(self, key: str, partial: DataType, merged: DataType) -> None:
        """Refuse a merge that changes the type: while a window is open it is merged again and again."""
        from pyspark.sql.types import DecimalType

        if isinstance(partial, DecimalType) and isinstance(merged, DecimalType) and partial.scale == merged.scale:
            return  # a sum of decimals has more digits than its values; it is kept in the partial's
        before, after = partial.simpleString(), merged.simpleString()
        if before != after:
            msg = (
                f"The merge {key!r} of {self._shown(self.merges[key])} makes {after} of {before}. "
                f"Cast the partial to the type that merging gives, or the merge to {before}."
            )
            raise GraphError(msg)

    def _shown(self, function: object) -> str:
        place = _place(function)
        return f"ps.agg.custom({self.name!r})" + (f" ({place})" if place else "")


def _shape(columns: Sequence[Column], _order: Column) -> Column:
    from pyspark.sql import functions as F

    if len(columns) > 1:
        return F.struct(*(column.alias(f"{_INPUT}{place}") for place, column in enumerate(columns)))
    return columns[0] if columns else F.lit(1)


def _check_names(name: object, partial: Mapping[str, object], merge: Mapping[str, object]) -> None:
    for what, word in (("name", name), *(("part", key) for key in partial)):
        if not isinstance(word, str) or not _NAME.fullmatch(word):
            msg = f"ps.agg.custom needs a {what} of letters, digits and underscores, got {word!r}."
            raise GraphError(msg)
    for part in partial:
        if part.startswith("_") or "__" in part:
            msg = (
                f"Part {part!r} of ps.agg.custom({name!r}) begins with an underscore or has two in a row, which is how "
                "columns of state tell an alias from a part. Rename it."
            )
            raise GraphError(msg)
    if not partial:
        msg = f"ps.agg.custom({name!r}) has no part. Give it a partial and a merge, such as F.sum and F.sum."
        raise GraphError(msg)
    if partial.keys() != merge.keys():
        msg = (
            f"partial of ps.agg.custom({name!r}) has the parts {list(partial)}, merge has {list(merge)}. "
            "Name the same parts in both."
        )
        raise GraphError(msg)


def _check_callable(name: str, functions: Mapping[str, object]) -> None:
    for what, function in functions.items():
        if not callable(function):
            msg = f"{what} of ps.agg.custom({name!r}) must be a function that gives a Column, got {function!r}."
            raise GraphError(msg)


def _one_row(frames: Sequence[DataFrame]) -> DataFrame:
    """An empty frame with the columns of all."""
    from pyspark.sql.types import StructType

    schema = StructType([field for frame in frames for field in frame.schema.fields])
    return empty_frame(frames[0].sparkSession, schema)


def _place(function: object) -> str | None:
    """``shop.py:12``, where a user's function is defined; ``None`` for Spark's own functions."""
    code = getattr(function, "__code__", None)
    if code is None or "/pyspark/" in code.co_filename:
        return None
    file = Path(code.co_filename)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{shown}:{code.co_firstlineno}"
