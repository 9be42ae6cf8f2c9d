"""Decides how recorded state becomes the state that a step declares."""

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

# State is described as Spark DDL: key columns, start and end of a stretch of time, then partial columns, each called
# ``<alias>__<part>``. Aggregates come and go as a whole, types only get wider, and keys and windows stay as they are.

STARTS: Final = ("window_start", "pane_start")
"""Names of the column with the start of a row's stretch of time: keys come before it, the end after it."""
_REMEDY: Final = "Put the old one back, or give the step a new uid and start it without its state."


class IncompatibleSchema(ValueError):
    """State cannot be taken over. The text has the reason, and a remedy if there is a better one than a new uid."""


def resolve_schema(recorded: StateHandle, declared: StateSchema, *, uid: str) -> tuple[ColumnChange, ...]:
    """What becomes of each column of the state that a checkpoint recorded; empty if nothing changes.

    Raises:
        StateIncompatible: the state cannot be taken over; the message has both sides and the remedy.
    """
    if recorded.kind != declared.kind:
        msg = (
            f"The checkpoint holds state of kind {recorded.kind!r}, but this step keeps {declared.kind!r}. "
            "Give it another uid."
        )
        raise StateIncompatible(msg, uid=uid)
    window = recorded.detail.get("window") if isinstance(recorded.detail, dict) else None
    if window != declared.window:
        msg = (
            f"The checkpoint's state is cut for windows {window!r}, but the pipeline declares {declared.window!r}. "
            f"{_REMEDY}"
        )
        raise StateIncompatible(msg, uid=uid)
    try:
        for ref in recorded.layers:
            column_changes(schema_of(recorded, ref), declared.schema)
        return column_changes(recorded.schema, declared.schema)
    except IncompatibleSchema as error:
        msg = (
            f"The checkpoint's state has the columns {recorded.schema}, but the pipeline declares {declared.schema}. "
            f"{error} {_REMEDY}"
        )
        raise StateIncompatible(msg, uid=uid) from error


def column_changes(recorded: str, declared: str) -> tuple[ColumnChange, ...]:
    """How recorded columns become the declared ones, both given as DDL: in the declared order, dropped ones last.

    Empty if all have the same names and types, in whatever order.

    Raises:
        IncompatibleSchema: that is not possible.

    >>> for change in column_changes(
    ...     "`user` string, `window_start` timestamp, `window_end` timestamp, `low__min` int, `n__count` bigint",
    ...     "`user` string, `window_start` timestamp, `window_end` timestamp, `low__min` bigint, `x__sum` double",
    ... ):
    ...     print(change)
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
    changes = [ColumnChange(recorded=held.pop(each.name.casefold(), None), declared=each) for each in now.all]
    for change in changes:
        if change.act is ColumnAction.WIDEN and change.recorded and change.declared:
            _check_widens(change.recorded, change.declared)
    changes += [ColumnChange(recorded=each, declared=None) for each in held.values()]
    return () if all(change.recorded == change.declared for change in changes) else tuple(changes)


def schema_of(recorded: StateHandle, ref: LayerRef) -> str:
    """The columns of a layer's files as DDL: the state's, unless the layer was written under an older schema."""
    return layer_columns(ref) or recorded.schema


def layer_columns(ref: LayerRef) -> str | None:
    """The columns of a layer that was written under an older schema than its checkpoint's, from its detail.

    Raises:
        CheckpointUnreadable: the detail is not what a step writes.
    """
    found = ref.detail.get("schema") if isinstance(ref.detail, dict) else None
    if found is not None and not isinstance(found, str):
        msg = f"Layer {ref.name} says {found!r} of its columns. Expected was Spark DDL."
        raise unexpected_detail(msg)
    return found


def unexpected_detail(problem: str) -> CheckpointUnreadable:
    """The error that a manifest has another detail than a step writes."""
    return CheckpointUnreadable(f"{problem} Rewind to an earlier checkpoint, or put the log back from a copy.")


def migrated(recorded: StateHandle, declared: str) -> StateHandle:
    """The same state under the declared schema. The details of layers with other columns record these.

    A dropped column is gone for good, though files still have it. Otherwise the value that an aggregate of the same
    name, added later, begins with would depend on when layers are merged.

    Raises:
        IncompatibleSchema: the state cannot be taken over.
    """
    return replace(
        recorded, schema=declared, layers=tuple(_migrated_layer(recorded, ref, declared) for ref in recorded.layers)
    )


def _migrated_layer(recorded: StateHandle, ref: LayerRef, declared: str) -> LayerRef:
    changes = column_changes(schema_of(recorded, ref), declared)
    detail = dict(ref.detail) if isinstance(ref.detail, dict) else {}
    before = detail.pop("schema", None)
    if changes:
        detail["schema"] = format_columns(change.recorded for change in changes if change.recorded and change.declared)
    elif before is None:
        return ref
    return replace(ref, detail=detail)


# ---- what may not change ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parts:
    """The columns of a state, by their purpose."""

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
        msg = f"The two cannot be compared: {error}."
        raise IncompatibleSchema(msg) from error
    place = next((place for place, column in enumerate(columns) if column.name in STARTS), None)
    if place is None:
        msg = f"{ddl!r} has none of the columns {', '.join(STARTS)}, so its keys cannot be told."
        raise IncompatibleSchema(msg)
    return _Parts(columns[:place], columns[place : place + 2], columns[place + 2 :])


def _check_keys(before: _Parts, now: _Parts) -> None:
    """Keys may only change their order: otherwise rows of different keys would be merged."""
    if set(before.keys) != set(now.keys):
        msg = f"The keys were {_shown(before.keys)} and are {_shown(now.keys)}, but keys cannot change."
        raise IncompatibleSchema(msg)
    if before.bounds != now.bounds:
        msg = f"Rows were cut by {_shown(before.bounds)} and are by {_shown(now.bounds)}."
        raise IncompatibleSchema(msg)


def _check_aggregates(before: _Parts, now: _Parts) -> None:
    """Parts of an aggregate belong together: with some kept and others new its result would mix both."""
    held, wanted = _families(before.partials), _families(now.partials)
    for alias in held.keys() & wanted.keys():
        if held[alias].keys() != wanted[alias].keys():
            msg = (
                f"Aggregate {alias!r} was kept as {_shown(held[alias].values())} and would be as "
                f"{_shown(wanted[alias].values())}. It is another function now, so give it another alias."
            )
            raise IncompatibleSchema(msg)


def _families(partials: Sequence[StateColumn]) -> dict[str, dict[str, StateColumn]]:
    """The parts of each aggregate, by its alias."""
    found: dict[str, dict[str, StateColumn]] = {}
    for column in partials:
        alias, _, part = column.name.casefold().rpartition("__")
        found.setdefault(alias, {})[part] = column
    return found


def _check_widens(before: StateColumn, now: StateColumn) -> None:
    if not widens(before.type, now.type):
        msg = (
            f"Column {now.name!r} was {before.type} and would be {now.type}, which does not hold all that the other "
            "does. Cast the aggregate's input to what it was, or give the aggregate another alias, which begins empty."
        )
        raise IncompatibleSchema(msg)


def _shown(columns: Iterable[StateColumn]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns) or "none"
