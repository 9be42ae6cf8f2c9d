"""What a start publishes, voids, and has readers see again. Pure: from the log alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.checkpoint.entries import FIRST, Rewind
from penstock.checkpoint.history import History
from penstock.handles import Committable
from penstock.ids import CheckpointId, EntryNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlan:
    """Output that the log holds open.

    Attributes:
        uid: of the sink that made it.
        checkpoint: for which it was made.
        kind: who publishes it (``files/1``).
        target: where it goes.
        files: how many.
        bytes: of them.
    """

    uid: str
    checkpoint: CheckpointId
    kind: str
    target: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAgain:
    """Output of one sink that was published and whose rows are read, and published, once more.

    Attributes:
        uid: of the sink.
        checkpoints: whose output it is: the epochs.
        target: where it went.
        files: how many.
        bytes: of them.
    """

    uid: str
    checkpoints: tuple[CheckpointId, ...]
    target: str
    files: int
    bytes: int


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
            files=len(item.files),
            bytes=sum(file.length for file in item.files),
        )
        for item in items
    )


def rewinding(history: History, rewind: Rewind) -> RewindPlan:
    """What going back there means for readers (rule R2, hole 16)."""
    return RewindPlan(
        to=rewind.to,
        left=rewind.left,
        condemned=rewind.condemned,
        lost=rewind.lost,
        again=seen_again(history, rewind),
        is_more_published=rewind.to is None and history.floor > FIRST,
    )


def seen_again(history: History, rewind: Rewind) -> tuple[SeenAgain, ...]:
    """By sink, the output published for checkpoints that are neither the target nor before it on its timeline.

    What is open is published before the rewind, so it counts; what a rewind discards, this one or an earlier one, was
    never seen.
    """
    kept = _timeline(history, rewind.to)
    earlier = (entry.body.discard for entry in history.entries if isinstance(entry.body, Rewind))
    never = {_name(item) for items in (rewind.discard, *earlier) for item in items}
    first: dict[tuple[str, CheckpointId, str], tuple[CheckpointId, Committable]] = {}
    for checkpoint, (_, manifest) in history.manifests.items():
        for item in manifest.open:  # what an aborted checkpoint made is first held by a later one, and is its output
            first.setdefault(_name(item), (checkpoint, item))
    by_sink: dict[str, list[Committable]] = {}
    for name, (holder, item) in first.items():
        if holder not in kept and name not in never:
            by_sink.setdefault(item.uid, []).append(item)
    return tuple(_again(uid, items) for uid, items in sorted(by_sink.items()))


def _again(uid: str, items: Sequence[Committable]) -> SeenAgain:
    return SeenAgain(
        uid=uid,
        checkpoints=tuple(sorted({item.checkpoint for item in items})),
        target=items[-1].target,
        files=sum(len(item.files) for item in items),
        bytes=sum(file.length for item in items for file in item.files),
    )


def _timeline(history: History, to: CheckpointId | None) -> frozenset[CheckpointId]:
    """The target and all that it was built on, as far as the log has it."""
    found: set[CheckpointId] = set()
    while to is not None and to not in found:
        found.add(to)
        to = history.manifests[to][1].parent if to in history.manifests else None
    return frozenset(found)


def _name(item: Committable) -> tuple[str, CheckpointId, str]:
    """What tells one committable from another: a sink may hand over several for one checkpoint."""
    return item.uid, item.checkpoint, item.files[0].path if item.files else repr(item.detail)
