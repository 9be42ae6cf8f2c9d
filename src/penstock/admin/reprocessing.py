"""What a rewind or an import publishes, voids and produces again; decided from the log alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.checkpoint.entries import FIRST_ENTRY, Rewind
from penstock.checkpoint.export import Import, UnpublishedOutput
from penstock.checkpoint.history import History
from penstock.checkpoint.recovery import plan_rewind
from penstock.clock import WallTime
from penstock.errors import CheckpointUnreadable
from penstock.handles import CheckpointId, Committable, EntryNumber, output_names

# ---- a rewind --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindEffects:
    """What a rewind does, in this order, and what readers of the output will notice.

    Attributes:
        to: the checkpoint that the next start continues; ``None`` is empty state.
        left: the checkpoint that it would have continued.
        publish: open output that is published first.
        void: open output that is never published.
        condemned: checkpoints that can never be restored again.
        lost: entries of the log that cannot be read and are given up.
        again: by sink, the checkpoints whose output is published a second time, under new ids (hole 16).
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


def rewind_effects(history: History, to: CheckpointId | None, *, discard_unpublished: bool = False) -> RewindEffects:
    """Return what ``rewind`` would do to this log.

    Raises:
        GraphError: the target cannot be restored, or a discarded checkpoint has a name.
    """
    entry = plan_rewind(history, to, at=WallTime(0), discard_unpublished=discard_unpublished)
    voided = (*history.to_void, *entry.discard)
    again = republished_by(history, to, voided)
    return RewindEffects(
        to=entry.to,
        left=entry.left,
        publish=tuple(item for item in history.open_committables if item not in entry.discard),
        void=voided,
        condemned=entry.condemned,
        lost=entry.lost,
        again={uid: tuple(dict.fromkeys(key for key, _ in found)) for uid, found in again.items()},
        outputs_again=tuple(item for found in again.values() for _, item in found),
    )


def republished_by(
    history: History, to: CheckpointId | None, voided: Sequence[Committable]
) -> Mapping[str, Sequence[tuple[CheckpointId, Committable]]]:
    """Return the output by sink of each epoch after the point where the old and the new timeline part."""
    found: dict[str, list[tuple[CheckpointId, Committable]]] = {}
    kept = frozenset(_ancestry(history, to))
    for checkpoint in reversed(_ancestry(history, restore_point_of(history))):
        if checkpoint not in kept:
            for item in _output_of(history, checkpoint):
                if item not in voided:
                    found.setdefault(item.uid, []).append((checkpoint, item))
    return dict(sorted(found.items()))


def restore_point_of(history: History) -> CheckpointId | None:
    """Return what the next start would continue; ``None`` if it begins empty, or if that cannot be read."""
    try:
        return history.restore_point.checkpoint if history.restore_point else None
    except CheckpointUnreadable:
        return None


def _ancestry(history: History, checkpoint: CheckpointId | None) -> tuple[CheckpointId, ...]:
    """A checkpoint and those it was built on, newest first; the log may have dropped the oldest."""
    found: list[CheckpointId] = []
    while checkpoint is not None and checkpoint in history.manifests:
        found.append(checkpoint)
        checkpoint = history.manifests[checkpoint][1].parent
    return tuple(found)


def _output_of(history: History, checkpoint: CheckpointId) -> tuple[Committable, ...]:
    """The output that came into the log with this checkpoint; that of an aborted one came with the next (rule S2)."""
    manifest = history.manifests[checkpoint][1]
    parent = history.manifests.get(manifest.parent) if manifest.parent is not None else None
    inherited = parent[1].open if parent else ()
    return tuple(item for item in manifest.open if item not in inherited)


# ---- a start ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlan:
    """Output that the log holds open.

    Attributes:
        uid: of the sink that made it.
        checkpoint: the one it was made for.
        kind: of its committer (``files/1``).
        target: where it is published.
        file_count: number of its files; ``None`` if it is not known.
        bytes: size of them.
    """

    uid: str
    checkpoint: CheckpointId
    kind: str
    target: str
    file_count: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepublishedOutput:
    """Output of one sink that was published and whose rows are read and published again.

    Attributes:
        uid: of the sink.
        checkpoints: the epochs of the output: the checkpoints with which it came into the log.
        target: where it was published.
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
        lost: numbers of entries that cannot be read and are skipped.
        again: output that is published again, by sink.
        is_more_published: output of checkpoints that the log no longer has was published, too.
    """

    to: CheckpointId | None
    left: CheckpointId | None
    condemned: tuple[CheckpointId, ...]
    lost: tuple[EntryNumber, ...]
    again: tuple[RepublishedOutput, ...]
    is_more_published: bool


def outputs(items: Sequence[Committable]) -> tuple[OutputPlan, ...]:
    """Return the outputs as people read them."""
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


def plan_rewind_effects(history: History, rewind: Rewind, voided: Sequence[Committable]) -> RewindPlan:
    """Return what a rewind means for readers of the output (rule R2, hole 16).

    Args:
        history: the log.
        rewind: the entry.
        voided: output that is never published: discarded by this entry or by an earlier one.
    """
    return RewindPlan(
        to=rewind.to,
        left=rewind.left,
        condemned=rewind.condemned,
        lost=rewind.lost,
        again=republished_outputs(republished_by(history, rewind.to, voided)),
        is_more_published=rewind.to is None and history.floor > FIRST_ENTRY,
    )


def republished_outputs(
    found: Mapping[str, Sequence[tuple[CheckpointId, Committable]]],
) -> tuple[RepublishedOutput, ...]:
    """Return the output that is published again, one for each sink."""
    return tuple(
        RepublishedOutput(
            uid=uid,
            checkpoints=tuple(dict.fromkeys(checkpoint for checkpoint, _ in items)),
            target=items[-1][1].target,
            outputs=outputs([item for _, item in items]),
        )
        for uid, items in found.items()
    )


# ---- a start with an exported checkpoint -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPlan:
    """An exported checkpoint that a start makes the job's own.

    Attributes:
        folder: of the export.
        log_id: of the log that it was taken in.
        job: that log's job.
        checkpoint: its id there.
        names: its names there.
        completed: when it was taken.
        exported: when it was copied into the folder.
        version: of the penstock that exported it.
        sha256: of its ``export.json``.
        files: number of files that are copied, or were if it is imported already.
        bytes: size of them.
        claim: the files are deleted in the folder once they are copied.
        is_brought: it is the restore point of the job's log already: a start crashed right after the import.
        left: the checkpoint of the job's own log that is not continued for it; ``None`` if there is none.
        is_own: it was taken in this very log.
        left_open: output that the export's log, if it is another one, did not know to be published.
        again: output that is published again, by sink, if the export was taken in this log.
        is_more_published: output of checkpoints that the log no longer has was published, too.
    """

    folder: str
    log_id: str
    job: str
    checkpoint: CheckpointId
    names: tuple[str, ...]
    completed: WallTime
    exported: WallTime
    version: str
    sha256: str
    files: int
    bytes: int
    claim: bool
    is_brought: bool
    left: CheckpointId | None
    is_own: bool
    left_open: tuple[UnpublishedOutput, ...]
    again: tuple[RepublishedOutput, ...]
    is_more_published: bool

    @property
    def is_change(self) -> bool:
        """Whether a start without the folder would do something else."""
        return not self.is_brought or self.claim

    def warnings(self) -> Iterator[str]:
        """Yield what a person should know before the start."""
        if self.is_own or self.is_brought:
            return
        yield (
            f"the export is of another log: what job '{self.job}' has published there behind checkpoint "
            f"{self.checkpoint}, or publishes if it goes on, this start publishes too, under ids of its own"
        )
        if self.left_open:
            named = output_names(*self.left_open)
            yield (
                f"the export's log did not know these to be published, and only its own job publishes them: {named}; "
                f"by itself if it runs, else by penstock settle {self.job}"
            )


def plan_import_effects(history: History, bring: Import, voided: Sequence[Committable]) -> ImportPlan:
    """Return what an import means.

    Args:
        history: the log that it goes into.
        bring: the import.
        voided: output of this log that is never published.
    """
    export, is_own = bring.export, bring.export.log_id == history.log_id
    is_undone = is_own and not bring.is_brought
    return ImportPlan(
        folder=bring.folder,
        log_id=export.log_id,
        job=export.job,
        checkpoint=export.checkpoint,
        names=export.names,
        completed=export.manifest.completed,
        exported=export.at,
        version=export.version,
        sha256=export.sha256,
        files=len(export.files),
        bytes=export.bytes,
        claim=bring.claims,
        is_brought=bring.is_brought,
        left=None if bring.is_brought else restore_point_of(history),
        is_own=is_own,
        left_open=() if is_own else export.left_open,
        again=_republished_by_import(history, export.checkpoint, voided) if is_undone else (),
        is_more_published=is_undone and export.checkpoint not in history.manifests and history.floor > FIRST_ENTRY,
    )


def _republished_by_import(
    history: History, checkpoint: CheckpointId, voided: Sequence[Committable]
) -> tuple[RepublishedOutput, ...]:
    """As for a rewind to that checkpoint. The log may have dropped it, but later ones have higher ids."""
    found = {
        uid: tuple((key, item) for key, item in items if key > checkpoint)
        for uid, items in republished_by(history, checkpoint, voided).items()
    }
    return republished_outputs({uid: items for uid, items in found.items() if items})
