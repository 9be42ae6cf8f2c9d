"""What the runtime reports to listeners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from penstock.clock import EventTime
from penstock.handles import CheckpointId, Generation

# ----------------------------------------------------------------------------------------------------
# What becomes of a batch on its way: its times, its watermark, late rows. Knows nothing of checkpoints.


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRead:
    """A source sent a batch.

    ``poll_ms`` is what choosing what to read took, and reading it, where that is done in the driver; ``plan_ms`` what
    building the frame of it and rewriting that took.
    """

    task: str
    sequence: int
    rows: int | None
    poll_ms: float
    plan_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """A step or sink is through with a batch. ``rows`` is what it wrote; ``figures`` what the batch's measures told."""

    task: str
    sequence: int
    rows: int | None
    duration_ms: float
    figures: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkAdvanced:
    """Event time of a task rose."""

    task: str
    at: EventTime


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkHeld:
    """Another one than before holds a task's event time back, which stands ``at`` now.

    ``by`` is a partition of a source (``orders/3``), or the source or step behind one of several inputs.
    """

    task: str
    by: str
    at: EventTime


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLate:
    """Rows of a source's partition (``orders/3``) came too late for a step; they are in its counter ``late`` too."""

    task: str
    partition: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMeasured:
    """A marker that a source sent has arrived at a sink: how long what is queued between them takes to get through.

    Markers pass operators by, so the time that rows wait in windows is not in it, nor their checkpoint's.
    """

    source: str
    task: str
    micros: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A step adds to a counter: ``late``, ``missing_time``, ``ahead`` (of the clock, by too much), ``fired``."""

    task: str
    name: str
    amount: int


# ----------------------------------------------------------------------------------------------------
# What becomes of a job: its start, its checkpoints, what it publishes, its end. Knows nothing of data.


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


# ----------------------------------------------------------------------------------------------------
# What sources tell: rows read, partitions found and lost, how far they are behind. Knows nothing of steps.


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRead:
    """The first job over a batch has told how many rows its source read for it."""

    task: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPaused:
    """Others than before of a source's partitions are too far ahead in event time (``max_drift``) and not read on.

    ``paused`` names them (``orders/3``), or the source if its rows do not say which partition they are of; if it is
    empty, everything is read again. ``by`` is the slowest, for whom they wait: a partition or a source.
    """

    task: str
    paused: tuple[str, ...]
    by: str | None


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far reading is behind one partition's end: rows at most, and the age of the next one, if it can be told.

    ``position`` is the next to be read, ``end`` the first that is not there yet, ``rate`` the rows a second that were
    read of late; ``name`` is what rows call the partition where facts of watermarks name it. Each only if known.
    """

    rows: int
    seconds: float | None
    position: int | None = None
    end: int | None = None
    rate: float | None = None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLag:
    """How far a source is behind, in all and by partition (``orders-3``).

    ``seconds`` is the greatest of the partitions', ``None`` as long as one of them is unknown. ``eta_seconds`` is when
    nothing will be waiting at the pace of late; ``None`` if more comes than is read.
    """

    task: str
    rows: int
    seconds: float | None
    eta_seconds: float | None
    partitions: Mapping[str, PartitionLag]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsFound:
    """A source reads partitions that it did not know before, from their first row on."""

    task: str
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStalled:
    """A partition has rows waiting and gives none; ``action`` is what is done: ``warn``, ``reopen`` or ``fail``."""

    task: str
    partition: str
    action: str
    waited_ms: float
    position: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsLost:
    """A source goes on without rows that it can no longer read, as it was told to (``on_lost_offsets="continue"``).

    They are those from offset ``first`` on that lie below ``end``, which is ``None`` where nobody can know it.
    """

    task: str
    partition: str
    reason: str
    first: int
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommitted:
    """A source's offsets, by partition, were committed to its group for people to see; if not, ``error`` says why."""

    task: str
    group: str
    offsets: Mapping[str, int]
    error: str | None = None


# ----------------------------------------------------------------------------------------------------
# What the runtime reports to observers, as frozen values, and the listener that gets them.
#
# Facts are for people and metrics: nothing decides by them. One fact a batch, never one a row.

Fact: TypeAlias = (
    Restoring
    | JobStarted
    | BatchRead
    | RowsRead
    | BatchDone
    | WatermarkAdvanced
    | WatermarkHeld
    | ReadingPaused
    | RowsLate
    | SourceLag
    | PartitionsFound
    | PartitionStalled
    | OffsetsLost
    | OffsetsCommitted
    | LatencyMeasured
    | Counted
    | BarrierPassed
    | CheckpointCompleted
    | CheckpointFailed
    | Published
    | Restarting
    | JobEnded
)


class Listener(Protocol):
    """Gets every fact, on the thread it arose on; must be quick and must not raise."""

    def __call__(self, fact: Fact) -> None:
        """Take one in."""
        ...
