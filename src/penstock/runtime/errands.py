"""What workers do for an attempt: snapshots, entries, commits, clean-up. Each reports its end as an event."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.checkpoint.entries import Manifest, Stopped
from penstock.checkpoint.messages import (
    AbortReason,
    AttemptId,
    CommitReturned,
    Event,
    ManifestFailed,
    ManifestWritten,
    StoppedWritten,
    TaskAcknowledged,
    TaskDeclined,
)
from penstock.errors import CheckpointAborted, CheckpointError, CommitFailed, GenerationFenced, StorageFailed
from penstock.facts import CheckpointCompleted, Listener, Published
from penstock.failpoints import failpoint
from penstock.handles import CommitOutcome, Committable, TaskSnapshot
from penstock.ids import CheckpointId
from penstock.runtime.clock import Clock
from penstock.runtime.roles import Wiring


class Errands:
    """The errands of one attempt. Methods return at once; the work itself runs on the attempt's workers."""

    def __init__(
        self,
        wiring: Wiring,
        attempts: Mapping[str, AttemptId],
        *,
        clock: Clock,
        listener: Listener,
        put: Callable[[Event], None],
    ) -> None:
        self._wiring = wiring
        self._attempts = attempts
        self._clock = clock
        self._listener = listener
        self._put = put
        self._known_files: set[str] = set()

    def capture(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        """Make a snapshot durable on the task's worker, then acknowledge.

        Storage that refuses fails the checkpoint, which may be tolerated; any other failure fails the attempt.
        """
        self._wiring.workers.submit(f"{task}-snapshot", lambda: self._capture(task, checkpoint, work))

    def _capture(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        try:
            with self._wiring.snapshot():
                snapshot = work()
        except Exception as error:
            told = self._wiring.explain(error)
            if not isinstance(told, CheckpointAborted | StorageFailed):
                raise
            is_storage = isinstance(told, StorageFailed)
            reason = AbortReason.SNAPSHOT_FAILED if is_storage else AbortReason.TASK_NOT_READY
            self.decline(task, checkpoint, reason, str(told))
            return
        self._put(
            TaskAcknowledged(
                at=self._clock.now(),
                wall=self._clock.wall(),
                checkpoint=checkpoint,
                attempt=self._attempts[task],
                snapshot=snapshot,
            )
        )

    def decline(self, task: str, checkpoint: CheckpointId, reason: AbortReason, message: str) -> None:
        """A task will not take part in this checkpoint."""
        self._put(
            TaskDeclined(
                at=self._clock.now(),
                wall=self._clock.wall(),
                checkpoint=checkpoint,
                task=task,
                attempt=self._attempts[task],
                reason=reason,
                message=message,
            )
        )

    def manifest(self, manifest: Manifest) -> None:
        """Write a manifest: the commit point."""
        self._wiring.workers.submit("log", lambda: self._manifest(manifest))

    def stopped(self, body: Stopped) -> None:
        """Write the entry of an orderly end."""
        self._wiring.workers.submit("log", lambda: self._stopped(body))

    def commit(self, item: Committable) -> None:
        """Publish."""
        self._wiring.workers.submit(f"{item.uid}-commit", lambda: self._commit(item))

    def _manifest(self, manifest: Manifest) -> None:
        try:
            entry = self._wiring.journal.checkpoint(manifest)
        except GenerationFenced:
            raise
        except CheckpointError as error:
            self._put(
                ManifestFailed(
                    at=self._clock.now(),
                    wall=self._clock.wall(),
                    checkpoint=manifest.checkpoint,
                    definite=True,
                    message=str(error),
                )
            )
            return
        self._tell_completed(manifest)
        self._put(
            ManifestWritten(at=self._clock.now(), wall=self._clock.wall(), checkpoint=manifest.checkpoint, entry=entry)
        )
        self._wiring.workers.submit("clean-up", self._clean)

    def _tell_completed(self, manifest: Manifest) -> None:
        files = manifest.files
        written = sum(file.length for file in files if file.path not in self._known_files)
        self._known_files = {file.path for file in files}
        self._listener(
            CheckpointCompleted(
                checkpoint=manifest.checkpoint,
                kind=manifest.kind.value,
                duration_ms=(manifest.completed - manifest.triggered) / 1_000,
                bytes=written,
                committables=sum(item.checkpoint == manifest.checkpoint for item in manifest.open),
            )
        )

    def _clean(self) -> None:
        with self._wiring.background():
            self._wiring.journal.clean()

    def _stopped(self, body: Stopped) -> None:
        entry = self._wiring.journal.stopped(body)
        self._put(StoppedWritten(at=self._clock.now(), wall=self._clock.wall(), entry=entry))

    def _commit(self, item: Committable) -> None:
        failpoint("sink.commit.before")
        message = ""
        try:
            outcome = self._wiring.publish(item)
        except CommitFailed as error:
            outcome, message = CommitOutcome.RETRY, str(error)
        failpoint("sink.published")
        self._listener(Published(task=item.uid, checkpoint=item.checkpoint, outcome=outcome.value, message=message))
        self._put(
            CommitReturned(
                at=self._clock.now(),
                wall=self._clock.wall(),
                uid=item.uid,
                checkpoint=item.checkpoint,
                outcome=outcome,
                message=message,
            )
        )
