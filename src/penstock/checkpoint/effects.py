"""What the coordinator wants done: effects, in the imperative. Only data; the supervisor carries them out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from penstock.checkpoint.entries import Manifest, Stopped
from penstock.checkpoint.events import AbortReason, AckResult, AttemptId
from penstock.checkpoint.timers import Timer
from penstock.elements.control import CheckpointKind
from penstock.errors import PenstockError
from penstock.handles import Committable
from penstock.ids import CheckpointId, Instant


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

    at: Instant
    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardSnapshot:
    """Nobody will use what this acknowledgement named. Observers may count it; no file is deleted for it."""

    checkpoint: CheckpointId
    task: str
    attempt: AttemptId
    result: AckResult


class Answer(Enum):
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
    answer: Answer
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
