"""Column types as Spark writes them: taken apart, compared, put together; pure text. Knows no state.

Names within a ``struct`` are written without quotes, so a name with ``:``, ``,`` or ``<`` in it may not be understood;
then a type is equal to itself and to nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.handles import StateColumn
from penstock.state.changing import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_COLUMN: Final = re.compile(r"`((?:[^`]|``)*)` (.+)")
_OPENS, _CLOSES = "<(", ">)"


def columns_of(ddl: str) -> tuple[StateColumn, ...]:
    """The columns that a state handle's schema names.

    Raises:
        ValueError: it is not written so.

    >>> columns_of("`a b` bigint, `x` struct<by:timestamp,value:decimal(10,2)>")[1].type
    'struct<by:timestamp,value:decimal(10,2)>'
    """
    return tuple(_column(part.strip()) for part in _parts(ddl))


def ddl_of(columns: Iterable[StateColumn]) -> str:
    """The inverse of :func:`columns_of`."""
    return ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)


def widens(before: str, now: str) -> bool:
    """Whether each value of the type ``before`` is one of the type ``now``, unchanged, and types are of one family.

    >>> widens("int", "bigint"), widens("bigint", "int"), widens("float", "double"), widens("bigint", "double")
    (True, False, True, False)
    >>> widens("decimal(10,2)", "decimal(12,2)"), widens("decimal(10,2)", "decimal(10,4)")
    (True, False)
    >>> widens("array<struct<by:timestamp,value:int>>", "array<struct<by:timestamp,value:bigint>>")
    True
    """
    if before == now:
        return True
    try:
        return _widens(_parsed(before), _parsed(now))
    except ValueError:
        return False


def spark_type(text: str) -> str:
    """The type with the names within it quoted, for Spark to parse.

    >>> spark_type("array<struct<by:timestamp,a-b:int>>")
    'array<struct<`by`:timestamp,`a-b`:int>>'
    """
    try:
        return _written(_parsed(text), quoted)
    except ValueError:
        return text


# --------------------------------------------------------------------------------------------------------------- types


@dataclass(frozen=True, slots=True)
class _Plain:
    name: str


@dataclass(frozen=True, slots=True)
class _Nested:
    """``array``, ``map`` or ``struct``; only the last has names."""

    outer: str
    names: tuple[str, ...]
    types: tuple[_Type, ...]


_Type: TypeAlias = "_Plain | _Nested"


def _widens(before: _Type, now: _Type) -> bool:
    if isinstance(before, _Nested) and isinstance(now, _Nested):
        alike = (before.outer, before.names, len(before.types)) == (now.outer, now.names, len(now.types))
        if before.outer == "map" and before.types[0] != now.types[0]:
            return False
        return alike and all(map(_widens, before.types, now.types))
    if isinstance(before, _Nested) or isinstance(now, _Nested):
        return False
    return before == now or _plain_widens(before.name, now.name)


def _plain_widens(before: str, now: str) -> bool:
    if before in _WHOLE and now in _WHOLE:
        return _WHOLE.index(before) < _WHOLE.index(now)
    if (before, now) == ("float", "double"):
        return True
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(now)
    if not old or not new:
        return False
    (digits, scale), (more_digits, more_scale) = ((int(found[1]), int(found[2])) for found in (old, new))
    return more_scale >= scale and more_digits - more_scale >= digits - scale


def _parsed(text: str) -> _Type:
    """The tree of a type.

    Raises:
        ValueError: it was not understood: written again it would not be the same.
    """
    made = _tree(text)
    if _written(made, str) != text:
        msg = f"type {text!r} is not understood"
        raise ValueError(msg)
    return made


def _tree(text: str) -> _Type:
    outer, opens, rest = text.partition("<")
    if not opens or outer not in ("array", "map", "struct"):
        return _Plain(text)
    if not rest.endswith(">"):
        msg = f"type {text!r} does not end"
        raise ValueError(msg)
    parts = tuple(_parts(rest[:-1]))
    if outer != "struct":
        return _Nested(outer, (), tuple(map(_tree, parts)))
    pairs = [part.partition(":") for part in parts]
    return _Nested(outer, tuple(name for name, _, _ in pairs), tuple(_tree(kind) for _, _, kind in pairs))


def _written(kind: _Type, name_of: Callable[[str], str]) -> str:
    if isinstance(kind, _Plain):
        return kind.name
    inner = [_written(each, name_of) for each in kind.types]
    if kind.names:
        inner = [f"{name_of(name)}:{each}" for name, each in zip(kind.names, inner, strict=True)]
    return f"{kind.outer}<{','.join(inner)}>"


# ---------------------------------------------------------------------------------------------------------------- text


def _column(text: str) -> StateColumn:
    found = _COLUMN.fullmatch(text)
    if found is None:
        msg = f"{text!r} is no column"
        raise ValueError(msg)
    return StateColumn(found[1].replace("``", "`"), found[2])


def _parts(text: str) -> Iterator[str]:
    """What stands between commas that are in no brackets and no quotes.

    Raises:
        ValueError: a bracket or quote is not closed.
    """
    depth, is_quoted, places = 0, False, [-1]
    for place, sign in enumerate(text):
        if sign == "`":
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif sign == "," and depth == 0:
            places.append(place)
        else:
            depth += (sign in _OPENS) - (sign in _CLOSES)
    if depth or is_quoted:
        msg = f"{text!r} does not end"
        raise ValueError(msg)
    for before, after in pairwise([*places, len(text)]):
        yield text[before + 1 : after]
