"""Exported checkpoints: folders on the simulated disk, outside of the job's directory, and the judge of imports.

An export is made in one go, between two steps of the story: what may go wrong with it is not told here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.entries import Manifest
from penstock.checkpoint.export import CLAIMED, EXPORT, decode_claimed, encode_export, make_export
from penstock.checkpoint.exported_blocks import has_received, received_files
from penstock.checkpoint.history import History
from penstock.checkpoint.log import Log
from penstock.elements import CheckpointKind
from penstock.filesystem.base import Created
from penstock.handles import CheckpointId, FileRef
from simulation.entries import positions, replays_read, waiting
from simulation.outside import rows_of

if TYPE_CHECKING:
    from simulation.ledger import Ledger
    from simulation.world import World

RowKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Folder:
    """One of them, as the product reads and empties it: every call goes through the gate of the disk."""

    disk: Any
    place: str

    def read(self, path: str) -> bytes | None:
        return self.disk.read(f"{self.place}/{path}")  # type: ignore[no-any-return]

    def create(self, path: str, data: bytes) -> Created:
        return self.disk.create(f"{self.place}/{path}", data)  # type: ignore[no-any-return]

    def delete(self, path: str) -> None:
        self.disk.delete(f"{self.place}/{path}")

    def list(self, prefix: str) -> Sequence[str]:
        found = self.disk.list(f"{self.place}/{prefix}")
        return [path.removeprefix(f"{self.place}/") for path in found]


@dataclass(frozen=True, slots=True)
class Taken:
    """What the judge knows of an exported checkpoint, by the hash of its ``export.json``."""

    read: frozenset[RowKey]
    emitted: frozenset[RowKey]
    covered: dict[str, frozenset[RowKey]]
    cut_short: frozenset[int]
    letters: frozenset[str]
    replays: dict[str, int]
    log_id: str
    holds: tuple[object, ...]


def export(world: World, checkpoint: int) -> bool:
    """Put a checkpoint into a folder; ``False`` if it cannot be had any more."""
    history = Log(world.disk, job="sim", new_id=world.new_id, pause=lambda _: None).read()
    if checkpoint not in history.restorable:
        return False
    files = packed(world, history, CheckpointId(checkpoint))
    if files is None:
        return False
    data, place = files[EXPORT], f"/exports/{world.steps}"
    for path, content in files.items():
        world.disk.create(f"{place}/{path}", content)
    facts = world.ledger.facts
    facts.exports[sha256(data).hexdigest()] = Taken(
        facts.read[checkpoint],
        facts.emitted[checkpoint],
        facts.covered[checkpoint],
        facts.cut_short.get(checkpoint, frozenset()),
        facts.letters.get(checkpoint, frozenset()),
        replays_read(facts.manifests[checkpoint]),
        facts.log_id,
        holds(world, history.restorable[CheckpointId(checkpoint)]),
    )
    world.exported.append(place)
    world.tell(f"checkpoint {checkpoint} is exported to {place}")
    return True


def packed(world: World, history: History, checkpoint: CheckpointId) -> dict[str, bytes] | None:
    """The files of an export as ``admin.export`` copies them; ``None`` if one of them is not durable."""
    manifest, received, blocks = history.restorable[checkpoint], None, {}
    if any(has_received(task) for task in manifest.tasks):
        blocks = dict(received_files(world.disk, manifest, history.log_id))
        received = tuple(
            FileRef(path=path, length=len(data), sha256=sha256(data).hexdigest()) for path, data in blocks.items()
        )
    made = make_export(history, checkpoint, at=world.wall(), version="sim", received=received)
    files = {file.path: world.disk.durable(file.path) for file in made.manifest.state_files}
    if None in files.values():
        return None
    found: dict[str, Any] = {**files, **blocks, EXPORT: encode_export(made)}
    return found


def holds(world: World, manifest: Manifest) -> tuple[object, ...]:
    """The state of a checkpoint as anybody could read it: positions, rows of layers, timers, watermarks."""
    layers = [layer for task in manifest.tasks if task.state is not None for layer in task.state.layers]
    rows: Counter[object] = Counter()
    for file in (file for layer in layers for file in layer.files):
        data = world.disk.durable(file.path)
        if data is None or sha256(data).hexdigest() != file.sha256:
            return ("lost", file.path)
        rows.update(tuple(row) for row in rows_of(data))
    marks = sorted((task.task, tuple(task.watermarks)) for task in manifest.tasks)
    return (sorted(positions(manifest).items()), sorted(rows.items()), sorted(waiting(manifest)), marks)


def is_anothers(world: World, place: str) -> bool:
    """Whether the files of a folder are no longer to be had: another log has them, or this one had them before."""
    data = world.disk.files.get(f"{place}/{CLAIMED}")
    if data is None:
        return False
    facts = world.ledger.facts
    export = world.disk.files[f"{place}/{EXPORT}"]
    return decode_claimed(data, place).log_id != facts.log_id or sha256(export).hexdigest() in facts.owners


class Imports:
    """Judges checkpoints that come from a folder, as they land."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger

    def judge(self, manifest: Manifest) -> None:
        """Exactly what was exported, once, with nothing of anybody's output; what was open here before is published."""
        facts, tell = self._ledger.facts, self._ledger.violated
        id, origin = manifest.checkpoint, manifest.origin
        assert origin is not None
        taken = facts.exports.get(origin.export)
        if taken is None:
            tell("import", f"checkpoint {id} comes from a folder that was never exported")
            return
        if manifest.kind is not CheckpointKind.IMPORT or manifest.open:
            tell("R7", f"checkpoint {id} comes from a folder and has {manifest.open} to publish")
        owing = set(facts.staged) - facts.done - facts.discarded - facts.lost
        if owing:
            tell("R2", f"{min(owing)} is not published, and checkpoint {id}, from a folder, leaves it behind")
        if holds(self._world, manifest) != taken.holds:
            tell("import", f"checkpoint {id} is not what was exported: {holds(self._world, manifest)}, {taken.holds}")
        before = facts.manifests.get(-1 if facts.restore is None else facts.restore)
        if before is not None and before.origin is not None and before.origin.export == origin.export:
            tell("import", f"checkpoint {id} is brought although the job stands at it already")
        if origin.claimed and facts.owners.setdefault(origin.export, facts.log_id) != facts.log_id:
            tell("import", f"checkpoint {id} takes over files that log {facts.owners[origin.export]} has taken over")
        self._go_on(manifest, taken)

    def _go_on(self, manifest: Manifest, taken: Taken) -> None:
        """What the job owes from here on: what lies behind the checkpoint, once more if it was published before."""
        facts, id = self._ledger.facts, manifest.checkpoint
        facts.read[id], facts.emitted[id], facts.covered[id] = taken.read, taken.emitted, taken.covered
        facts.cut_short[id] = taken.cut_short
        self._ledger.letters.bring(manifest, taken.letters, taken.replays, taken.log_id)
        facts.chains[id] = {}
        for uid, rows in taken.covered.items():
            path = f"/exports/{id}/{uid}"
            facts.chains[id][uid] = frozenset({path})
            facts.content[path] = [(number, row, 0) for number, row in rows]
        for uid in self._world.sinks:
            seen = facts.published.setdefault(uid, Counter())
            kept = taken.covered.get(uid, frozenset())
            facts.excused.update((uid, row) for row in kept if not seen[row])
            facts.expected[uid] = {row: seen[row] + (row not in kept) for row in self._world.all_rows()}
