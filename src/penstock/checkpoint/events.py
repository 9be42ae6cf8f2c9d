"""Events into the coordinator, effects out of it, timers."""

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

# ----------------------------------------------------------------------------------------------------
# What the coordinator waits for: each timer says which wait it ends, so that a late one can be told. Only data.


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicDue:
    """Time for the next periodic checkpoint."""

    due: MonotonicTime


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDeadline:
    """This checkpoint has had its time."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDue:
    """Time to try a checkpoint again that must be: the first of a log, or the final one."""

    due: MonotonicTime


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRetryDue:
    """Time to commit this sink's oldest open committable again."""

    uid: str
    checkpoint: CheckpointId
    due: MonotonicTime


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDeadline:
    """Whoever asked to stop does not wait longer for output to be published."""

    request: str


Timer: TypeAlias = PeriodicDue | CheckpointDeadline | RetryDue | CommitRetryDue | StopDeadline


# ----------------------------------------------------------------------------------------------------
# What the coordinator is told: events, in the past tense, and their vocabulary. Only data.
#
# Every event carries ``at``, the instant it is reported, which decides; and ``wall``, the wall clock's time, which is
# only written down for people.

AttemptId = NewType("AttemptId", str)
"""One start of one task; never used again."""


class AckResult(Enum):
    """What became of an acknowledgement."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"
    """The same attempt has acknowledged this checkpoint before; what it brought is ignored."""
    UNKNOWN = "unknown"
    """The attempt is none of this run's; what it brought is of no use to anybody."""
    DISCARDED = "discarded"
    """The checkpoint is no longer pending. Layers stay with their step, committables go into the next manifest."""


class AbortReason(Enum):
    """Why a checkpoint, or a request for one, came to nothing: a closed list."""

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
    def is_told_by_task(self) -> bool:
        """Whether a task may decline with it."""
        return self in _TOLD_BY_TASK


_COUNTED = frozenset(
    {
        AbortReason.BARRIER_FAILED,
        AbortReason.SNAPSHOT_FAILED,
        AbortReason.EXPIRED,
        AbortReason.DECLINED,
        AbortReason.MANIFEST_FAILED,
    }
)
_TOLD_BY_TASK = frozenset(
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
        sources: the tasks that are asked for barriers.
        steps: written into every manifest.
        next_checkpoint: above all ids on any timeline.
        parent: the checkpoint that was restored, if any.
        open: committables of the log that the recovery has not published.
        initial: a new log or a new source: a checkpoint is taken at once, and no source sends a batch before
            ``NotifyCompleted`` (C4).
        settled: the recovery has published what the newest entry calls open; the next checkpoint, which records that,
            is worth while even if no row comes (S5).
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
    """Somebody asks for a checkpoint; with a ``name`` it is pinned: a savepoint."""

    at: MonotonicTime
    wall: WallTime
    request: str
    name: str | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Somebody asks the job to end after a final checkpoint; with a ``name`` that checkpoint is pinned.

    ``patience`` is how many microseconds the asker waits for everything to be published; ``None`` is for ever. With
    ``drain`` the sources end before that checkpoint, for good: all windows close, and nothing can be read after it.
    """

    at: MonotonicTime
    wall: WallTime
    request: str
    name: str | None = None
    owner: str = ""
    patience: int | None = None
    drain: bool = False


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
    """A timer asked for by ``WakeAt`` is due. ``doing`` says, for messages, what each task is doing."""

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
    """A task is gone; what it has not acknowledged it never will."""

    at: MonotonicTime
    wall: WallTime
    task: str
    attempt: AttemptId
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """The run is over by a failure, whoever's it is: what nobody will answer any more is answered now."""

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
    """The manifest is not in the log; ``definite``: and surely never will be. A fence is not reported here."""

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


# ----------------------------------------------------------------------------------------------------
# What the coordinator wants done: effects, in the imperative. Only data; the supervisor carries them out.


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectBarrier:
    """Have each of ``sources`` send the barrier between two batches. After a final one they send no batch more.

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
    """Nobody will use what this acknowledgement named. Observers may count it; no file is deleted for it."""

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
    """Tell whoever asked."""

    request: str
    answer: RequestOutcome
    checkpoint: CheckpointId | None
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
    """The run cannot go on; whether a restart can help is told by the error's class."""

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
