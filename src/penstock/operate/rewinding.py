"""What going back to a checkpoint means, before it is done: a pure decision on what the log says. Appends nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.checkpoint.history import History
from penstock.checkpoint.recovery import plan_rewind
from penstock.errors import CheckpointUnreadable
from penstock.handles import Committable
from penstock.ids import CheckpointId, EntryNumber, WallTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequences:
    """What a rewind does, in this order, and what readers of the output will notice.

    Attributes:
        to: the checkpoint that the next start continues; ``None`` is empty state.
        left: the one that it would have continued.
        publish: output that is open and is published first.
        void: output that is open and never will be published.
        condemned: checkpoints that can never be restored again.
        lost: entries of the log that cannot be read and are given up.
        again: by sink, the checkpoints whose output readers have, and will have a second time under new ids (hole 16).
        outputs_again: these outputs, one by one.
    """

    to: CheckpointId | None
    left: CheckpointId | None
    publish: tuple[Committable, ...] = ()
    void: tuple[Committable, ...] = ()
    condemned: tuple[CheckpointId, ...] = ()
    lost: tuple[EntryNumber, ...] = ()
    again: Mapping[str, tuple[CheckpointId, ...]] = field(default_factory=dict)
    outputs_again: tuple[Committable, ...] = ()


def consequences(history: History, to: CheckpointId | None, *, discard_unpublished: bool = False) -> Consequences:
    """What ``rewind`` would do to this log.

    Raises:
        GraphError: the target cannot be restored, or a discarded checkpoint has a name.
    """
    entry = plan_rewind(history, to, at=WallTime(0), discard_unpublished=discard_unpublished)
    voided = (*history.to_void, *entry.discard)
    again = seen_again(history, to, voided)
    return Consequences(
        to=entry.to,
        left=entry.left,
        publish=tuple(item for item in history.open_committables if item not in entry.discard),
        void=voided,
        condemned=entry.condemned,
        lost=entry.lost,
        again={uid: tuple(dict.fromkeys(key for key, _ in found)) for uid, found in again.items()},
        outputs_again=tuple(item for found in again.values() for _, item in found),
    )


def seen_again(
    history: History, to: CheckpointId | None, voided: Sequence[Committable]
) -> Mapping[str, Sequence[tuple[CheckpointId, Committable]]]:
    """By sink, the output of each epoch on the way from here back to where both timelines were one."""
    found: dict[str, list[tuple[CheckpointId, Committable]]] = {}
    kept = frozenset(_line(history, to))
    for checkpoint in reversed(_line(history, restore_point_of(history))):
        if checkpoint not in kept:
            for item in _made_by(history, checkpoint):
                if item not in voided:
                    found.setdefault(item.uid, []).append((checkpoint, item))
    return dict(sorted(found.items()))


def restore_point_of(history: History) -> CheckpointId | None:
    """What the next start would continue; ``None`` if it begins empty, or if that cannot be read."""
    try:
        return history.restore_point.checkpoint if history.restore_point else None
    except CheckpointUnreadable:
        return None


def _line(history: History, checkpoint: CheckpointId | None) -> tuple[CheckpointId, ...]:
    """A checkpoint and all that it was built on, newest first, as far as the log goes back."""
    found: list[CheckpointId] = []
    while checkpoint is not None and checkpoint in history.manifests:
        found.append(checkpoint)
        checkpoint = history.manifests[checkpoint][1].parent
    return tuple(found)


def _made_by(history: History, checkpoint: CheckpointId) -> tuple[Committable, ...]:
    """The output that came into the log with this checkpoint: an aborted one's came with the next (rule S2)."""
    manifest = history.manifests[checkpoint][1]
    before = history.manifests.get(manifest.parent) if manifest.parent is not None else None
    carried = before[1].open if before else ()
    return tuple(item for item in manifest.open if item not in carried)
