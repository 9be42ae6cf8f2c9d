"""Checks of the arguments of pipelines and streams; each error names the user's line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.errors import GraphError
from penstock.graph.nodes import CallSite, Every, GraphBuilder, PortRef, WhenReady, defined_at, is_column
from penstock.handles import check_name
from penstock.interfaces.source import receives

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from pyspark.sql import Column

# ---- pipelines and streams -------------------------------------------------------------------------------------------


def check_pipeline_name(name: object, origin: CallSite) -> None:
    """Refuse ``@ps.pipeline`` without a name, and impossible names."""
    if callable(name):
        msg = 'The pipeline has no name, by which its state is found. Write @ps.pipeline("name").'
        raise GraphError(msg, where=defined_at(name) or str(origin))
    try:
        check_name("name of a pipeline", name)
    except GraphError as error:
        error.where = str(origin)
        raise


def check_same(ours: GraphBuilder, theirs: GraphBuilder, origin: CallSite) -> None:
    """Refuse a stream or table of another pipeline."""
    if ours is not theirs:
        msg = (
            f"A stream or table of pipeline {theirs.name!r} is used in pipeline {ours.name!r}. "
            f"Read it in pipeline {ours.name!r} too."
        )
        raise GraphError(msg, where=str(origin))


def check_pace(pace: object, source: object, uid: str, origin: CallSite) -> None:
    """Refuse what is no pace, and missed ticks one by one of a source that does not know the ticks of its rows."""
    if not isinstance(pace, (WhenReady, Every)):
        msg = f'read() cannot take pace={pace!r}. Write ps.every("1 second"), ps.linger("20 ms") or ps.when_ready.'
        raise GraphError(msg, uid=uid, where=str(origin))
    if isinstance(pace, Every) and pace.catch_up > 1 and not receives(source):
        msg = (
            'read() cannot take missed="each" for this source: only one that receives rows, such as '
            "ps.receivers.Source, knows at which tick each came. Leave missed out."
        )
        raise GraphError(msg, uid=uid, where=str(origin))


def check_function(function: object, origin: CallSite) -> None:
    """Refuse an argument of ``transform()`` that cannot be called."""
    if not callable(function):
        msg = f"transform() cannot take {function!r}. Give it a function that takes a DataFrame and returns one."
        raise GraphError(msg, where=str(origin))


def check_united(refs: Sequence[PortRef], origin: CallSite) -> None:
    """Refuse a union of one stream, and of a stream with itself."""
    if len(refs) == 1:
        msg = "union() needs at least one other stream. Write stream.union(other)."
        raise GraphError(msg, where=str(origin))
    if len(set(refs)) < len(refs):
        msg = (
            "union() was given one stream twice, which would double its rows. "
            'To double them on purpose, write stream.union(stream.select("*")).'
        )
        raise GraphError(msg, where=str(origin))


def check_choice(
    name: str, value: object, choices: tuple[str, ...], origin: CallSite, *, uid: str | None = None
) -> None:
    """Refuse a value that is not among the choices."""
    if value not in choices:
        *others, last = map(repr, choices)
        msg = f"{name} is {value!r}, but must be {', '.join(others)} or {last}."
        raise GraphError(msg, uid=uid, where=str(origin))


# ---- columns ---------------------------------------------------------------------------------------------------------

_ALIASED: Final = re.compile(r"(?s)(.+?)\s+AS\s+([A-Za-z_]\w*|`[^`]+`)\s*", re.IGNORECASE)
"""An expression and its alias, as in ``a + b AS c``."""


def check_columns(verb: str, columns: tuple[object, ...], origin: CallSite) -> None:
    """Refuse an empty list of columns, and items that are neither SQL nor a Column."""
    if not columns:
        msg = f"{verb}() needs at least one column, as in {verb}('user')."
        raise GraphError(msg, where=str(origin))
    for column in columns:
        if not isinstance(column, str) and not is_column(column):
            msg = f"{verb}() cannot take {column!r} ({type(column).__name__}). Give it SQL text or a Column."
            raise GraphError(msg, where=str(origin))


def check_column_name(verb: str, column: object, origin: CallSite) -> None:
    """Refuse a value that is not the name of a column."""
    if not isinstance(column, str):
        msg = f"{verb}() needs the name of a column, got {column!r}. Make the column with with_column() first."
        raise GraphError(msg, where=str(origin))


def check_time_kept(time: str | None, names: Container[str], origin: CallSite) -> None:
    """Refuse new columns, by name, that would replace the event time ``time``."""
    if time is not None and time in names:
        msg = (
            f"Column {time!r} is the event time of the watermark. Change it before with_watermark(), or give the new "
            "column another name."
        )
        raise GraphError(msg, where=str(origin))


def column_text(column: object) -> str:
    """Return a column as text: the SQL, or what Spark prints of a Column."""
    return column if isinstance(column, str) else str(column).removeprefix("Column<'").removesuffix("'>")


def split_alias(text: str) -> tuple[str, str | None]:
    """Return an expression and the name that ``AS`` gives it, if any.

    >>> split_alias("a + b AS `c`"), split_alias("CAST(a AS INT)")
    (('a + b', 'c'), ('CAST(a AS INT)', None))
    """
    found = _ALIASED.fullmatch(text)
    return (found[1], found[2].strip("`")) if found else (text, None)


def redefined_columns(columns: tuple[str | Column, ...]) -> list[str]:
    """Return the aliases in a ``select`` that stand for anything but the column of the same name."""
    items = (split_alias(column_text(column)) for column in columns)
    return [name for expression, name in items if name is not None and expression.strip().strip("`") != name]
