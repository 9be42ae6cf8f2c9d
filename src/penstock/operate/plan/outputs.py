"""What a start publishes, voids, and has readers see again. Pure: from the log alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.checkpoint.entries import FIRST, Rewind
from penstock.checkpoint.history import History
from penstock.handles import Committable
from penstock.ids import CheckpointId, EntryNumber
from penstock.operate.rewinding import seen_again


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlan:
    """Output that the log holds open.

    Attributes:
        uid: of the sink that made it.
        checkpoint: for which it was made.
        kind: who publishes it (``files/1``).
        target: where it goes.
        file_count: of its files; ``None`` if it is not known.
        bytes: of them.
    """

    uid: str
    checkpoint: CheckpointId
    kind: str
    target: str
    file_count: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAgain:
    """Output of one sink that was published and whose rows are read, and published, once more.

    Attributes:
        uid: of the sink.
        checkpoints: with which it came into the log: the epochs, as ``penstock rewind`` names them.
        target: where it went.
        outputs: each of them.
    """

    uid: str
    checkpoints: tuple[CheckpointId, ...]
    target: str
    outputs: tuple[OutputPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindPlan:
    """The entry that a start writes before it reads.

    Attributes:
        to: the checkpoint that it goes to; ``None`` is empty state.
        left: the one that it leaves.
        condemned: checkpoints that can never be restored afterwards.
        lost: numbers of entries that cannot be read and are passed over.
        again: what readers see again, by sink.
        is_more_published: output of checkpoints that the log no longer has was published, too.
    """

    to: CheckpointId | None
    left: CheckpointId | None
    condemned: tuple[CheckpointId, ...]
    lost: tuple[EntryNumber, ...]
    again: tuple[SeenAgain, ...]
    is_more_published: bool


def outputs(items: Sequence[Committable]) -> tuple[OutputPlan, ...]:
    """Each of them, for people."""
    return tuple(
        OutputPlan(
            uid=item.uid,
            checkpoint=item.checkpoint,
            kind=item.kind,
            target=item.target,
            file_count=len(item.files),
            bytes=item.bytes,
        )
        for item in items
    )


def rewinding(history: History, rewind: Rewind, voided: Sequence[Committable]) -> RewindPlan:
    """What going back there means for readers (rule R2, hole 16).

    Args:
        history: the log.
        rewind: the entry.
        voided: what is never published: discarded by this entry or by one before.
    """
    return RewindPlan(
        to=rewind.to,
        left=rewind.left,
        condemned=rewind.condemned,
        lost=rewind.lost,
        again=seen_by_readers(seen_again(history, rewind.to, voided)),
        is_more_published=rewind.to is None and history.floor > FIRST,
    )


def seen_by_readers(found: Mapping[str, Sequence[tuple[CheckpointId, Committable]]]) -> tuple[SeenAgain, ...]:
    """By sink, output with the checkpoints with which it came into the log, added up."""
    return tuple(_again(uid, held) for uid, held in found.items())


def _again(uid: str, found: Sequence[tuple[CheckpointId, Committable]]) -> SeenAgain:
    return SeenAgain(
        uid=uid,
        checkpoints=tuple(dict.fromkeys(checkpoint for checkpoint, _ in found)),
        target=found[-1][1].target,
        outputs=outputs([item for _, item in found]),
    )
