"""What the log says of each checkpoint: its size, its output, whether it can be restored. Pure; prints nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.checkpoint.history import History
    from penstock.ids import CheckpointId, EntryNumber, Generation, WallTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        checkpoint: its number, which rises over the whole log.
        kind: why it was taken.
        entry: its number in the log.
        generation: the claim under which it was taken.
        parent: the checkpoint it continues.
        triggered: when it was begun.
        completed: when it was complete.
        new_bytes: of files that no earlier checkpoint of the log names.
        bytes: of all files that it needs.
        outputs: how many its sinks handed over.
        open: how many of them the log does not know to be published.
        is_restorable: it is not condemned.
        names: of its savepoints.
        is_restore_point: the next start continues it.
    """

    checkpoint: CheckpointId
    kind: str
    entry: EntryNumber
    generation: Generation
    parent: CheckpointId | None
    triggered: WallTime
    completed: WallTime
    new_bytes: int
    bytes: int
    outputs: int
    open: int
    is_restorable: bool
    names: tuple[str, ...]
    is_restore_point: bool

    @property
    def seconds(self) -> float:
        """From the trigger to the last acknowledgement."""
        return (self.completed - self.triggered) / 1_000_000


def checkpoints_of(history: History) -> tuple[Checkpoint, ...]:
    """All checkpoints of the log, oldest first; condemned ones too, as long as their entries are there."""
    open_now = [item.checkpoint for item in history.open_committables]
    point = history.restore_point
    generations = {entry.number: entry.generation for entry in history.entries}
    seen: set[str] = set()
    found = []
    for key, (number, manifest) in history.manifests.items():
        files = manifest.files
        found.append(
            Checkpoint(
                checkpoint=key,
                kind=manifest.kind.value,
                entry=number,
                generation=generations[number],
                parent=manifest.parent,
                triggered=manifest.triggered,
                completed=manifest.completed,
                new_bytes=sum(file.length for file in files if file.path not in seen),
                bytes=sum(file.length for file in files),
                outputs=sum(item.checkpoint == key for item in manifest.open),
                open=open_now.count(key),
                is_restorable=key not in history.condemned,
                names=history.names_of(key),
                is_restore_point=point is not None and point.checkpoint == key,
            )
        )
        seen.update(file.path for file in files)
    return tuple(found)
