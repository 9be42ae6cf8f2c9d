"""Events into the coordinator, effects out of it, and the timers it waits for: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NewType, TypeAlias

from penstock.checkpoint.entries import Manifest, StepRecord, Stopped
from penstock.clock import MonotonicTime, WallTime
from penstock.elements import CheckpointKind
from penstock.errors import PenstockError
from penstock.handles import CheckpointId, CommitOutcome, Committable, EntryNumber, Json, TaskSnapshot

# ---- timers: each names the wait that it ends, so that a late one is recognised --------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicDue:
    """Time for the next periodic checkpoint."""

    due: MonotonicTime


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDeadline:
    """The timeout of this checkpoint."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDue:
    """Time to try a mandatory checkpoint again: the initial or the final one."""

    due: MonotonicTime


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRetryDue:
    """Time to commit the oldest open committable of this sink and shard again."""

    uid: str
    checkpoint: CheckpointId
    due: MonotonicTime
    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDeadline:
    """This stop request does not wait longer for output to be published."""

    request: str


Timer: TypeAlias = PeriodicDue | CheckpointDeadline | RetryDue | CommitRetryDue | StopDeadline


# ---- events: in the past tense ---------------------------------------------------------------------------------------
#
# Every event carries ``at``, the instant of the report, by which the coordinator decides; and ``wall``, the time on the
# wall clock, which is only written down for people.

AttemptId = NewType("AttemptId", str)
"""One start of one task; never used again."""


class AckResult(Enum):
    """What became of an acknowledgement."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"
    """The same attempt has acknowledged this checkpoint before; the snapshot is ignored."""
    UNKNOWN = "unknown"
    """The attempt does not belong to this run; the snapshot is of no use."""
    DISCARDED = "discarded"
    """The checkpoint is no longer pending. Layers stay with their step, committables go into the next manifest."""


class AbortReason(Enum):
    """Why a checkpoint was aborted, or a request for one refused: a closed list."""

    TOO_MANY_REQUESTS = "too many requests are queued"
    STOPPING = "the job is ending"
    BARRIER_FAILED = "a source could not send its barrier"
    SNAPSHOT_FAILED = "a task could not make its snapshot durable"
    EXPIRED = "it timed out"
    DECLINED = "a task declined"
    TASK_NOT_READY = "a task was not ready"
    TASK_CLOSING = "a task was closing"
    TASK_FAILED = "a task failed"
    MANIFEST_FAILED = "its manifest could not be written"
    RUN_FAILED = "the run ended by a failure"

    @property
    def is_counted(self) -> bool:
        """Whether it counts toward the tolerated number of failures."""
        return self in _COUNTED

    @property
    def is_for_tasks(self) -> bool:
        """Whether a task may decline with it."""
        return self in _FOR_TASKS


_COUNTED = frozenset(
    {
        AbortReason.BARRIER_FAILED,
        AbortReason.SNAPSHOT_FAILED,
        AbortReason.EXPIRED,
        AbortReason.DECLINED,
        AbortReason.MANIFEST_FAILED,
    }
)
_FOR_TASKS = frozenset(
    {
        AbortReason.BARRIER_FAILED,
        AbortReason.SNAPSHOT_FAILED,
        AbortReason.DECLINED,
        AbortReason.TASK_NOT_READY,
        AbortReason.TASK_CLOSING,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """All tasks are restored; no source has sent anything yet. Its effects are carried out before sources start.

    Attributes:
        attempts: every task of this run and its attempt; all of them acknowledge.
        sources: the tasks that send barriers.
        steps: written into every manifest.
        next_checkpoint: above all ids on any timeline.
        parent: the checkpoint that was restored, if any.
        open: committables of the log that the recovery has not published.
        initial: a new log or a new source: a checkpoint is taken at once, and no source sends a batch before
            ``NotifyCompleted`` (C4).
        settled: the recovery has published what the newest entry lists as open; the next checkpoint, which records
            that, is worth while even if no row comes (S5).
        settings: of the run, written into every manifest.
    """

    at: MonotonicTime
    wall: WallTime
    attempts: Mapping[str, AttemptId]
    sources: tuple[str, ...]
    steps: tuple[StepRecord, ...]
    next_checkpoint: CheckpointId
    parent: CheckpointId | None = None
    open: tuple[Committable, ...] = ()
    initial: bool = False
    settled: bool = False
    settings: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequested:
    """A request for a checkpoint; with a ``name`` it is pinned: a savepoint."""

    at: MonotonicTime
    wall: WallTime
    request: str
    name: str | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """A request to end the job after a final checkpoint; with a ``name`` that checkpoint is pinned.

    ``patience`` is how many microseconds the requester waits for everything to be published; ``None`` is for ever. With
    ``drain`` the sources end before that checkpoint, for good: all windows close, and nothing can be read after it.
    """

    at: MonotonicTime
    wall: WallTime
    request: str
    name: str | None = None
    owner: str = ""
    patience: int | None = None
    drain: bool = False


RequestEvent: TypeAlias = CheckpointRequested | StopRequested
"""The events that wait for an ``AnswerRequest``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllSourcesDone:
    """Every source has ended or caught up: the final checkpoint is due at once."""

    at: MonotonicTime
    wall: WallTime


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMade:
    """A batch was sent or a timer fired: state or positions differ from the last checkpoint's."""

    at: MonotonicTime
    wall: WallTime


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A timer of a ``WakeAt`` is due. ``doing`` holds, for messages, what each task is doing."""

    at: MonotonicTime
    wall: WallTime
    timer: Timer
    doing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAcknowledged:
    """A task's snapshot is durable. Acknowledgements of one task come in order of checkpoints.

    Each committable is handed over once, also for a checkpoint that was aborted meanwhile: it is carried into the
    next manifest.
    """

    at: MonotonicTime
    wall: WallTime
    checkpoint: CheckpointId
    attempt: AttemptId
    snapshot: TaskSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeclined:
    """A task cannot take part in this checkpoint."""

    at: MonotonicTime
    wall: WallTime
    checkpoint: CheckpointId
    task: str
    attempt: AttemptId
    reason: AbortReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed:
    """A task has failed and acknowledges nothing more."""

    at: MonotonicTime
    wall: WallTime
    task: str
    attempt: AttemptId
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """The run is over by a failure, of a task or of anything else: every open request is answered now."""

    at: MonotonicTime
    wall: WallTime
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestWritten:
    """The checkpoint's manifest is in the log, and it is ours."""

    at: MonotonicTime
    wall: WallTime
    checkpoint: CheckpointId
    entry: EntryNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFailed:
    """The manifest is not in the log; if ``definite``, it never will be. A fence is not reported here."""

    at: MonotonicTime
    wall: WallTime
    checkpoint: CheckpointId
    definite: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReturned:
    """A ``Commit`` has ended."""

    at: MonotonicTime
    wall: WallTime
    uid: str
    checkpoint: CheckpointId
    outcome: CommitOutcome
    message: str = ""
    shard: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedWritten:
    """The ``stopped`` entry is in the log, and it is ours."""

    at: MonotonicTime
    wall: WallTime
    entry: EntryNumber


Event: TypeAlias = (
    RunStarted
    | CheckpointRequested
    | StopRequested
    | AllSourcesDone
    | ProgressMade
    | TimerFired
    | TaskAcknowledged
    | TaskDeclined
    | TaskFailed
    | RunFailed
    | ManifestWritten
    | ManifestFailed
    | CommitReturned
    | StoppedWritten
)


# ---- effects: in the imperative; the supervisor carries them out -----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectBarrier:
    """Have each of ``sources`` send the barrier between two batches. After a final one they send no more batches.

    With ``drain`` each source ends first, as if there were nothing more to read, ever.
    """

    checkpoint: CheckpointId
    kind: CheckpointKind
    sources: tuple[str, ...]
    drain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortCheckpoint:
    """Cancel the barriers and tell the tasks. ``last_completed`` is the newest checkpoint in the log."""

    checkpoint: CheckpointId
    reason: AbortReason
    message: str
    last_completed: CheckpointId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteManifest:
    """Complete the manifest with what the collector condemns (``gc.collect``) and append it: the commit point.

    Ends in ``ManifestWritten`` or ``ManifestFailed``, or in a fence, which ends the run.
    """

    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyCompleted:
    """Tell the tasks that the checkpoint is in the log: for monitoring and carry-over; it cleans nothing."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Publish. Ends in ``CommitReturned``. ``attempt`` counts from 1."""

    item: Committable
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeAt:
    """Report ``TimerFired`` at ``at``. One that comes late or is no longer wanted does no harm."""

    at: MonotonicTime
    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardSnapshot:
    """The files that this acknowledgement names are not used. Observers may count it; no file is deleted for it."""

    checkpoint: CheckpointId
    task: str
    attempt: AttemptId
    result: AckResult


class RequestOutcome(Enum):
    """How a request ended."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    UNPUBLISHED = "taken, but not everything is published"
    UNKNOWN = "not known; the log will tell"
    """The run failed while the entry was on its way to the log: the next owner finds it there, or does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """Answer a request.

    Attributes:
        request: its id.
        outcome: how it ended.
        checkpoint: the one that was taken, pinned, or is in the way.
        message: the outcome for people, with the reason.
    """

    request: str
    outcome: RequestOutcome
    checkpoint: CheckpointId | None = None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStopped:
    """Append the entry; ends in ``StoppedWritten``."""

    body: Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob:
    """The final checkpoint is in the log: end the tasks. If ``published``, a ``stopped`` entry says so."""

    published: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FailJob:
    """The run cannot go on; the class of the error says whether a restart can help."""

    error: type[PenstockError]
    message: str


Effect: TypeAlias = (
    InjectBarrier
    | AbortCheckpoint
    | WriteManifest
    | NotifyCompleted
    | Commit
    | WakeAt
    | DiscardSnapshot
    | AnswerRequest
    | WriteStopped
    | EndJob
    | FailJob
)
