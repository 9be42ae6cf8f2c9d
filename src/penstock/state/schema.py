"""Decides how recorded state becomes the state that a step declares; pure. Knows neither Spark nor files.

State is described as Spark DDL: key columns, where a stretch of time starts and ends, then partial columns, each called
``<alias>__<part>``. Aggregates come and go as a whole, types only get wider, and keys and windows stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.errors import CheckpointUnreadable, StateIncompatible
from penstock.handles import ColumnAction, ColumnChange, StateColumn, StateHandle
from penstock.interfaces.operator import StateSchema
from penstock.spark.sql import format_columns, parse_columns, widens

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.handles import LayerRef

STARTS: Final = ("window_start", "pane_start")
"""The first of two columns that say where a row's stretch of time starts and ends; the keys stand before it."""
_REMEDY: Final = "put the old one back, or give the step a new uid and start it without its state"


class IncompatibleSchema(ValueError):
    """State cannot be taken over; the text says why, and the way out where there is a shorter one than a new uid."""


def resolve_schema(held: StateHandle, keeps: StateSchema, *, uid: str) -> tuple[ColumnChange, ...]:
    """What becomes of each column of the state that a checkpoint holds; nothing if all stays as it is.

    Raises:
        StateIncompatible: it cannot be taken over; with both sides and the remedy.
    """
    if held.kind != keeps.kind:
        msg = f"the checkpoint holds state of kind {held.kind!r}, this step keeps {keeps.kind!r}: give it another uid"
        raise StateIncompatible(msg, uid=uid)
    window = held.detail.get("window") if isinstance(held.detail, dict) else None
    if window != keeps.window:
        msg = f"the checkpoint's state is cut for windows {window!r}; the pipeline declares {keeps.window!r}: {_REMEDY}"
        raise StateIncompatible(msg, uid=uid)
    try:
        for ref in held.layers:
            column_changes(schema_of(held, ref), keeps.schema)
        return column_changes(held.schema, keeps.schema)
    except IncompatibleSchema as error:
        msg = (
            f"the checkpoint's state has the columns {held.schema}; the pipeline declares {keeps.schema}: {error}; "
            f"{_REMEDY}"
        )
        raise StateIncompatible(msg, uid=uid) from error


def column_changes(recorded: str, declared: str) -> tuple[ColumnChange, ...]:
    """How columns recorded as one DDL become those declared as another, in the order declared, what is dropped last.

    Nothing if all have the same names and types, in whatever order.

    Raises:
        Refused: that is not possible.

    >>> for move in column_changes(
    ...     "`user` string, `window_start` timestamp, `window_end` timestamp, `low__min` int, `n__count` bigint",
    ...     "`user` string, `window_start` timestamp, `window_end` timestamp, `low__min` bigint, `x__sum` double",
    ... ):
    ...     print(move)
    keeps user string
    keeps window_start timestamp
    keeps window_end timestamp
    widens low__min from int to bigint
    adds x__sum double, from now on
    drops n__count bigint
    """
    if recorded == declared:
        return ()
    before, now = _split(recorded), _split(declared)
    _check_keys(before, now)
    _check_aggregates(before, now)
    held = {column.name.casefold(): column for column in before.all}
    moves = [ColumnChange(recorded=held.pop(each.name.casefold(), None), declared=each) for each in now.all]
    for move in moves:
        if move.act is ColumnAction.WIDEN and move.recorded and move.declared:
            _check_widens(move.recorded, move.declared)
    moves += [ColumnChange(recorded=each, declared=None) for each in held.values()]
    return () if all(move.recorded == move.declared for move in moves) else tuple(moves)


def schema_of(held: StateHandle, ref: LayerRef) -> str:
    """The columns of a layer's files that count, as DDL: the state's, unless it was written under an older schema."""
    return layer_columns(ref) or held.schema


def layer_columns(ref: LayerRef) -> str | None:
    """The columns of a layer that was written under an older schema than its checkpoint's, as its detail says.

    Raises:
        CheckpointUnreadable: the detail is not what a step writes.
    """
    found = ref.detail.get("schema") if isinstance(ref.detail, dict) else None
    if found is not None and not isinstance(found, str):
        msg = f"layer {ref.name} says {found!r} of its columns, expected Spark DDL"
        raise CheckpointUnreadable(msg)
    return found


def migrated(held: StateHandle, declared: str) -> StateHandle:
    """The same state under the declared schema: of layers with other columns, each says itself which it has.

    A column that is dropped is gone for good, though files still have it: else it would depend on when layers are
    merged what an aggregate of the same name, added later, begins with.

    Raises:
        Refused: it cannot be taken over.
    """
    return replace(held, schema=declared, layers=tuple(_carried(held, ref, declared) for ref in held.layers))


def _carried(held: StateHandle, ref: LayerRef, declared: str) -> LayerRef:
    moves = column_changes(schema_of(held, ref), declared)
    detail = dict(ref.detail) if isinstance(ref.detail, dict) else {}
    before = detail.pop("schema", None)
    if moves:
        detail["schema"] = format_columns(move.recorded for move in moves if move.recorded and move.declared)
    elif before is None:
        return ref
    return replace(ref, detail=detail)


# -------------------------------------------------------------------------------------------------- what may not change


@dataclass(frozen=True, slots=True)
class _Parts:
    """The columns of a state by what they are for."""

    keys: tuple[StateColumn, ...]
    bounds: tuple[StateColumn, ...]
    partials: tuple[StateColumn, ...]

    @property
    def all(self) -> tuple[StateColumn, ...]:
        return (*self.keys, *self.bounds, *self.partials)


def _split(ddl: str) -> _Parts:
    try:
        columns = parse_columns(ddl)
    except ValueError as error:
        msg = f"{error}, so the two cannot be compared"
        raise IncompatibleSchema(msg) from error
    place = next((place for place, column in enumerate(columns) if column.name in STARTS), None)
    if place is None:
        msg = f"{ddl!r} has none of the columns {', '.join(STARTS)}, so nobody can tell its keys"
        raise IncompatibleSchema(msg)
    return _Parts(columns[:place], columns[place : place + 2], columns[place + 2 :])


def _check_keys(before: _Parts, now: _Parts) -> None:
    """The keys may stand in another order, no more: rows would be put together that were not meant to be."""
    if set(before.keys) != set(now.keys):
        msg = f"the keys were {_shown(before.keys)} and are {_shown(now.keys)}; keys cannot change"
        raise IncompatibleSchema(msg)
    if before.bounds != now.bounds:
        msg = f"rows were cut by {_shown(before.bounds)} and are by {_shown(now.bounds)}"
        raise IncompatibleSchema(msg)


def _check_aggregates(before: _Parts, now: _Parts) -> None:
    """Parts of an aggregate belong together: with some kept and others new it would tell a mixture of both."""
    held, wanted = _families(before.partials), _families(now.partials)
    for alias in held.keys() & wanted.keys():
        if held[alias].keys() != wanted[alias].keys():
            msg = (
                f"aggregate {alias!r} was kept as {_shown(held[alias].values())} and would be as "
                f"{_shown(wanted[alias].values())}: it is another function now, so give it another alias"
            )
            raise IncompatibleSchema(msg)


def _families(partials: Sequence[StateColumn]) -> dict[str, dict[str, StateColumn]]:
    """By alias, the parts of each aggregate."""
    found: dict[str, dict[str, StateColumn]] = {}
    for column in partials:
        alias, _, part = column.name.casefold().rpartition("__")
        found.setdefault(alias, {})[part] = column
    return found


def _check_widens(before: StateColumn, now: StateColumn) -> None:
    if not widens(before.type, now.type):
        msg = (
            f"column {now.name!r} was {before.type} and would be {now.type}, which does not hold all that the other "
            "does: cast the aggregate's input to what it was, or give the aggregate another alias and begin it anew"
        )
        raise IncompatibleSchema(msg)


def _shown(columns: Iterable[StateColumn]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns) or "none"
