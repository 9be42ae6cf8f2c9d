"""The row-wise steps that are penstock's own, as functions from frame to frame, and how steps are named for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from penstock.durations import format_duration
from penstock.errors import assert_never
from penstock.graph.nodes import Keyed, Node, ParseJson, Read, RowWise, Union, WithWatermark, Write
from penstock.graph.parts import TableRef

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

Build: TypeAlias = "Callable[..., DataFrame]"

_LONGEST_TITLE = 80


def select(columns: tuple[str | Column, ...]) -> Build:
    """Columns and expressions, in order."""
    return lambda frame: frame.select(*map(_column, columns))


def where(condition: str | Column) -> Build:
    """A filter."""
    return lambda frame: frame.where(condition)


def with_columns(columns: Mapping[str, str | Column]) -> Build:
    """Columns added or replaced."""
    kept = dict(columns)
    return lambda frame: frame.withColumns({name: _column(value) for name, value in kept.items()})


def drop(names: tuple[str, ...]) -> Build:
    """Without some columns. One that is not there is an error: Spark would pass over a misspelt name."""

    def build(frame: DataFrame) -> DataFrame:
        frame.select(*(_column(name) for name in names))
        return frame.drop(*names)

    return build


def call(function: Callable[..., DataFrame], args: tuple[object, ...], kwargs: Mapping[str, object]) -> Build:
    """The user's function; tables among its arguments are replaced by the frames that follow, in order."""
    kept = dict(kwargs)
    handed = list(dict.fromkeys(part.table for part in (*args, *kept.values()) if isinstance(part, TableRef)))

    def build(frame: DataFrame, *frames: DataFrame) -> DataFrame:
        by_name = {table.name: given for table, given in zip(handed, frames, strict=True)}

        def resolved(part: object) -> object:
            return by_name[part.table.name] if isinstance(part, TableRef) else part

        return function(frame, *map(resolved, args), **{name: resolved(part) for name, part in kept.items()})

    return build


def call_text(function: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """``shop.add_tax(rate=0.2)``."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or "?"
    given = [*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())]
    return f"{module}.{name}({', '.join(given)})"


def ddl(schema: StructType) -> str:
    """A schema as text that is parsed again when the job is built."""
    return ", ".join(f"`{f.name.replace('`', '``')}` {f.dataType.simpleString()}" for f in schema.fields)


def title(node: Node) -> str:  # noqa: PLR0911 - one for each kind of step
    """A step in a few words: its verb, then its uid or what it does."""
    match node:
        case Read():
            return f"read '{node.uid}'"
        case RowWise():
            return _clipped(f"{node.verb} {node.text}") if node.verb != "sql" else "sql"
        case ParseJson():
            return f"parse_json {node.column}"
        case WithWatermark():
            return f"with_watermark {node.column}, delay {format_duration(node.delay)}"
        case Union():
            return "union"
        case Keyed():
            return f"'{node.uid}'"
        case Write():
            return f"write '{node.uid}'"
        case _:
            assert_never(node)


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST_TITLE else text[: _LONGEST_TITLE - 1] + "…"


def _column(value: str | Column) -> Column:
    from pyspark.sql import functions as F

    return F.expr(value) if isinstance(value, str) else value
