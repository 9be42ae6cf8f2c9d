"""What unions take over: they have no uid, so each input finds its watermark by the name of what it comes from. Pure.

A union is known by the tasks that it unites. In a changed pipeline an input goes on from where it was, whatever its
place is now, one that is new from the beginning, and of several from one task none can be told from another: they go
on from the least. So a watermark is never ahead of what its input has brought.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.handles import TaskSnapshot
from penstock.ids import BEGINNING, EventTime

_UNION: Final = "union@"
_PARTS: Final = re.compile(r"(union@|\+|#\d+$)")
_TWIN: Final = re.compile(r"#\d+$")
_PORTS: Final = re.compile(r"(?:\.(?:late|bad))*")


def union_id(origins: Sequence[str]) -> str:
    """The name of a union by what it unites, in order; no uid can be called so.

    >>> union_id(["orders", "returns.late"])
    'union@orders+returns.late'
    """
    return _UNION + "+".join(origins)


def origins_of(id: str) -> tuple[str, ...]:
    """What a union unites; nothing if this is no union's name, or one of unions, whose parts its name does not tell.

    >>> origins_of("union@orders+returns.late#2"), origins_of("orders"), origins_of("union@union@a+b+c")
    (('orders', 'returns.late'), (), ())
    """
    parts = _TWIN.sub("", id).removeprefix(_UNION) if id.startswith(_UNION) else ""
    return tuple(parts.split("+")) if parts and _UNION not in parts else ()


def renamed_union(id: str, names: Mapping[str, str]) -> str:
    """The name of a union after what it unites was renamed; any other name as it is.

    >>> renamed_union("union@union@orders.late+returns+b#2", {"orders": "sales"})
    'union@union@sales.late+returns+b#2'
    """
    if not id.startswith(_UNION):
        return id
    return "".join(_renamed(part, names) for part in _PARTS.split(id))


def _renamed(origin: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if origin.startswith(old) and _PORTS.fullmatch(origin, len(old)):
            return new + origin[len(old) :]
    return origin


def united_anew(declared: Sequence[str], recorded: Sequence[TaskSnapshot]) -> dict[str, TaskSnapshot]:
    """For each union of a graph, given by the names of its tasks, what its inputs go on from, if that is known."""
    unions = {task.task: task for task in recorded if len(task.watermarks) == len(origins_of(task.task)) > 0}
    found = {id: _snapshot(id, origins_of(id), unions) for id in declared if origins_of(id)}
    return {id: snapshot for id, snapshot in found.items() if snapshot is not None}


def _snapshot(id: str, origins: Sequence[str], unions: Mapping[str, TaskSnapshot]) -> TaskSnapshot | None:
    alike = [task for name, task in unions.items() if sorted(origins_of(name)) == sorted(origins)]
    if id in unions and len(alike) == 1 and len(set(origins)) == len(origins):
        return unions[id]
    known = alike or _nearest(origins, unions)
    if not known:
        return None
    least = {origin: _least(origin, known) for origin in origins}
    return TaskSnapshot(task=id, watermarks=tuple(least[origin] for origin in origins))


def _nearest(origins: Sequence[str], unions: Mapping[str, TaskSnapshot]) -> list[TaskSnapshot]:
    """The unions that have most inputs in common with one; several if that cannot be told."""
    common = {name: len(set(origins_of(name)) & set(origins)) for name in unions}
    most = max(common.values(), default=0)
    return [unions[name] for name, count in common.items() if count == most > 0]


def _least(origin: str, unions: Sequence[TaskSnapshot]) -> EventTime:
    """The least watermark that an input from there had; the beginning if there was none."""
    pairs = [pair for task in unions for pair in zip(origins_of(task.task), task.watermarks, strict=True)]
    return min((at for name, at in pairs if name == origin), default=BEGINNING)
