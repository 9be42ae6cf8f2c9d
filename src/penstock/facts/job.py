"""What becomes of a job: its start, its checkpoints, what it publishes, its end. Knows nothing of data."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ids import CheckpointId, Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """A driver owns the job and prepares its start, which may take a while; told before each part of it.

    ``publishing`` counts outputs that the log held open, ``copying`` bytes of an exported checkpoint, ``restoring``
    bytes of state. ``task`` is the sink or the step whose turn it is, ``None`` for copying.
    """

    doing: str
    task: str | None
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted:
    """A driver owns the job and its tasks run.

    ``restored`` is the checkpoint it continues, ``None`` for an empty start; ``published`` counts the open outputs
    that were committed before anything else. ``age_ms`` is how old that checkpoint is; ``new``, ``migrated`` and
    ``dropped`` are the steps whose state is not simply taken over; ``imported`` is the folder it was brought from.
    """

    job: str
    generation: Generation
    restored: CheckpointId | None
    published: int
    attempt: int
    age_ms: float | None = None
    new: tuple[str, ...] = ()
    migrated: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    imported: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierPassed:
    """A step or sink has named its state for a checkpoint and sent the barrier on; writing it goes on beside the data.

    ``aligned_ms`` is the time from its first barrier to its last, in which inputs that were ahead waited; ``stall_ms``
    that in which nothing went through, while state was named.
    """

    task: str
    checkpoint: CheckpointId
    aligned_ms: float
    stall_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCompleted:
    """A manifest is in the log. Durations from the trigger on."""

    checkpoint: CheckpointId
    kind: str
    duration_ms: float
    bytes: int
    committables: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """A checkpoint was aborted."""

    checkpoint: CheckpointId
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A sink made the output of a checkpoint visible, found it so, or says why not yet."""

    task: str
    checkpoint: CheckpointId
    outcome: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarting:
    """The job failed and begins again from its restore point after ``delay_ms``."""

    cause: str
    delay_ms: float
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """The job is over: ``stopped``, ``caught up``, ``ended``, ``failed`` or ``fenced``."""

    state: str
    cause: str | None = None
