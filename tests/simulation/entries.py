"""What the judge reads off an entry of the log."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from penstock.checkpoint import entry_codec
from penstock.checkpoint.entries import Claim, Condemn, Entry, Manifest, Pin, Rewind, Stopped, Unpin
from penstock.checkpoint.entry_codec import decode
from penstock.clock import MAX_WATERMARK
from penstock.handles import split_replays
from simulation.names import first_called
from simulation.sources import next_row

entry_codec.decode = lru_cache(maxsize=1000)(decode)
"""Bytes say what an entry is, and it is frozen; every start reads the log, so most are read many times."""


def positions(manifest: Manifest) -> dict[int, int]:
    return {
        int(first_called(task.task).removeprefix("source")): next_row(task.position)
        for task in manifest.tasks
        if task.position is not None
    }


def marks(manifest: Manifest | None, step: str) -> tuple[int, ...]:
    """The watermarks of a step's inputs."""
    tasks = manifest.tasks if manifest is not None else ()
    return next((tuple(task.watermarks) for task in tasks if first_called(task.task) == first_called(step)), ())


def waiting(manifest: Manifest) -> frozenset[tuple[int, int]]:
    """Rows that timers of the keyed step hold back."""
    found = set()
    for task in manifest.tasks:
        held: Any = task.state.detail if task.state is not None else None
        for timers in (held or {}).values():
            found.update(tuple(int(part) for part in key.split(":")) for _, key in timers)
    return frozenset(found)


def ended(manifest: Manifest) -> frozenset[int]:
    """Sources after whose rows no more can come."""
    return frozenset(
        int(first_called(task.task).removeprefix("source"))
        for task in manifest.tasks
        if task.position is not None and tuple(task.watermarks) == (MAX_WATERMARK,)
    )


def replays_read(manifest: Manifest | None) -> dict[str, int]:
    """How many replays of each place the checkpoint says were read."""
    for task in manifest.tasks if manifest is not None else ():
        if task.position is not None and first_called(task.task) == "source0":
            return split_replays(task.position)[1]
    return {}


def layer_paths(manifest: Manifest) -> set[str]:
    return {ref.path for task in manifest.tasks if task.state for layer in task.state.layers for ref in layer.files}


def fulfilled_by(entry: Entry) -> tuple[str, ...]:
    match entry.body:
        case Manifest() | Stopped():
            return entry.body.fulfils
        case Pin(request=request) | Unpin(request=request) | Rewind(request=request) if request is not None:
            return (request,)
        case _:
            return ()


def condemned_by(entry: Entry) -> tuple[int, ...]:
    match entry.body:
        case Manifest(condemned=ids) | Rewind(condemned=ids) | Condemn(checkpoints=ids):
            return ids
        case _:
            return ()


def brief(entry: Entry) -> str:
    match entry.body:
        case Manifest() as m:
            opened = [(item.uid, item.checkpoint) for item in m.open]
            return f"checkpoint {m.checkpoint} {m.kind.value} at {positions(m)} open {opened} condemns {m.condemned}"
        case Claim(host=host):
            return f"claim by {host}"
        case Rewind() as r:
            dropped = [(i.uid, i.checkpoint) for i in r.discard]
            return f"rewind to {r.to} discards {dropped} condemns {r.condemned} past {r.lost}"
        case other:
            return str(other)
