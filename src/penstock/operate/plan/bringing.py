"""What a start with an exported checkpoint brings in, and what readers and the folder notice of it. Pure.

The import itself is decided by :mod:`penstock.checkpoint.importing`; here it is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.checkpoint.entries import FIRST
from penstock.checkpoint.exported import LeftOpen
from penstock.checkpoint.history import History
from penstock.checkpoint.importing import Import
from penstock.handles import Committable, output_names
from penstock.ids import CheckpointId, WallTime
from penstock.operate.plan.outputs import SeenAgain, seen_by_readers
from penstock.operate.rewinding import restore_point_of, seen_again


@dataclass(frozen=True, slots=True, kw_only=True)
class BringPlan:
    """An exported checkpoint that a start makes the job's own.

    Attributes:
        folder: where it lies.
        log_id: of the log that it was taken in.
        job: that log's job.
        checkpoint: its id there.
        names: what it was called there.
        completed: when it was taken.
        exported: when it was copied into the folder.
        version: of penstock, which did that.
        sha256: of its ``export.json``.
        files: that are copied; if it is brought already, that were.
        bytes: of them.
        claim: the files are deleted in the folder once they are copied, and nobody else can have them.
        is_brought: it is the restore point of the job's log already: a start crashed right after that.
        left: the checkpoint of the job's own log that is not continued for it; ``None`` if there is none.
        is_own: it was taken in this very log.
        left_open: output of another log that it did not know to be published.
        again: what readers see again, by sink, where it was taken in this log.
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
    left_open: tuple[LeftOpen, ...]
    again: tuple[SeenAgain, ...]
    is_more_published: bool

    @property
    def is_change(self) -> bool:
        """Whether anything is done that a start without the folder would not do."""
        return not self.is_brought or self.claim

    def warnings(self) -> Iterator[str]:
        """What whoever starts with it should know."""
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


def bringing(history: History, bring: Import, voided: Sequence[Committable]) -> BringPlan:
    """What that import means.

    Args:
        history: the log that it goes into.
        bring: as it was decided.
        voided: what of this log is never published.
    """
    export, is_own = bring.export, bring.export.log_id == history.log_id
    is_undone = is_own and not bring.is_brought
    return BringPlan(
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
        again=_again(history, export.checkpoint, voided) if is_undone else (),
        is_more_published=is_undone and export.checkpoint not in history.manifests and history.floor > FIRST,
    )


def _again(history: History, checkpoint: CheckpointId, voided: Sequence[Committable]) -> tuple[SeenAgain, ...]:
    """As of a rewind to that checkpoint; the log may have forgotten it, but what came after has higher ids."""
    found = {
        uid: tuple((key, item) for key, item in held if key > checkpoint)
        for uid, held in seen_again(history, checkpoint, voided).items()
    }
    return seen_by_readers({uid: held for uid, held in found.items() if held})
