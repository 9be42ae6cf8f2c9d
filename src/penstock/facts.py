"""What the runtime reports to listeners: one fact a batch, never one a row. No code decides by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from penstock.clock import EventTime, WallTime
from penstock.handles import CheckpointId, Generation

# ---- batches and event time ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRead:
    """A source sent a batch.

    ``poll_ms`` is the time to plan the batch, and to read it if that is done in the driver; ``plan_ms`` is the time to
    make its frame and to rewrite it.
    """

    task: str
    sequence: int
    rows: int | None
    poll_ms: float
    plan_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """A step or sink has finished a batch. ``rows`` is what it wrote; ``figures`` has the batch's observed metrics."""

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
    """Another partition, source or step than before holds a task's event time back, which is ``at`` now.

    ``by`` is a partition of a source (``orders/3``), or the source or step behind one of several inputs.
    """

    task: str
    by: str
    at: EventTime


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLate:
    """Rows of a source's partition (``orders/3``) were too late for a step; its counter ``late`` includes them."""

    task: str
    partition: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMeasured:
    """A latency marker of a source has arrived at a sink: the time that queued data takes between them.

    Markers bypass operators, so the time that rows wait in windows, or for their checkpoint, is not included.
    """

    source: str
    task: str
    micros: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A step or source adds to a counter: ``late``, ``missing_time``, ``ahead`` (of the clock, by too much), ``fired``.

    A source counts ``throttled`` requests, which its service refused because there were too many, and the time that it
    waited before it repeated them, ``throttled_ms``.
    """

    task: str
    name: str
    amount: int


THROTTLED, THROTTLED_MS = "throttled", "throttled_ms"
"""Names of counters of a source."""


# ---- jobs and checkpoints --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """A driver owns the job and prepares its start, which may take a while; reported before each part of it.

    ``done`` and ``total`` count outputs that the log held open (``publishing``), bytes of an exported checkpoint
    (``copying``) or bytes of state (``restoring``). ``task`` is the current sink or step, ``None`` for copying.
    """

    doing: str
    task: str | None
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted:
    """A driver owns the job and its tasks run.

    ``restored`` is the checkpoint it continues from, ``None`` for an empty start; ``published`` counts the open outputs
    that were committed first. ``age_ms`` is the age of that checkpoint. ``new``, ``migrated`` and ``dropped`` are the
    steps whose state is not restored unchanged. ``imported`` is the folder that the checkpoint was imported from.
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
    """A step or sink has taken its snapshot and forwarded the barrier; the snapshot is made durable in the background.

    ``aligned_ms`` is the time from its first barrier to its last, during which inputs that were ahead waited.
    ``stall_ms`` is the time that the snapshot took, during which no element was processed.
    """

    task: str
    checkpoint: CheckpointId
    aligned_ms: float
    stall_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCompleted:
    """A manifest is in the log. The duration is counted from the trigger on."""

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
    """A sink has published the output of a checkpoint, found it published, or says why it is not yet."""

    task: str
    checkpoint: CheckpointId
    outcome: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarting:
    """The job failed and restarts from its restore point after ``delay_ms``."""

    cause: str
    delay_ms: float
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """The job is over: ``stopped``, ``caught up``, ``ended``, ``failed`` or ``fenced``."""

    state: str
    cause: str | None = None


# ---- sources ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRead:
    """The first job over a batch has counted the rows that the source read for it."""

    task: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPaused:
    """Other partitions of a source than before are paused: they are too far ahead in event time (``max_drift``).

    ``paused`` names them (``orders/3``), or the source if its rows do not say their partition; if it is empty,
    everything is read again. ``by`` is the slowest partition or source, which they wait for.
    """

    task: str
    paused: tuple[str, ...]
    by: str | None


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far reading is behind one partition's end: the most rows, and the age of the next one if known.

    ``position`` is the next position to be read, ``end`` the first that does not exist yet. ``rate`` is the number of
    rows read per second recently, ``name`` the partition's name in rows and in facts of watermarks. Each only if known.
    """

    rows: int
    seconds: float | None
    position: int | None = None
    end: int | None = None
    rate: float | None = None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLag:
    """How far a source is behind, in total and by partition (``orders-3``).

    ``seconds`` is the maximum over the partitions, ``None`` while one of them is unknown. ``eta_seconds`` is the time
    until no row is waiting, at the current rate; ``None`` if more rows arrive than are read. A source of files has no
    ``rows``, but ``files`` and ``bytes`` that are not read yet; its ``seconds`` are the age of the oldest such file.
    """

    task: str
    rows: int | None
    seconds: float | None
    eta_seconds: float | None
    partitions: Mapping[str, PartitionLag]
    files: int | None = None
    bytes: int | None = None

    @property
    def is_behind(self) -> bool:
        """Whether anything waits."""
        return bool(self.rows or self.files)

    @property
    def text(self) -> str:
        """What waits, for people.

        >>> SourceLag(task="in", rows=None, seconds=2.0, eta_seconds=None, partitions={}, files=3, bytes=1_200).text
        '3 files (1,200 bytes)'
        """
        if self.rows is not None:
            return f"{self.rows:,} row{'' if self.rows == 1 else 's'}"
        return f"{self.files or 0:,} file{'' if self.files == 1 else 's'} ({self.bytes or 0:,} bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRests:
    """A source is not polled before ``until``, as planned. Pauses of some seconds are not reported.

    ``until`` is ``None`` while it waits for slower sources (``max_drift``), and once it has ended.
    """

    task: str
    until: WallTime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsFound:
    """A source has found new partitions, which it reads from their first row on."""

    task: str
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStalled:
    """A partition has rows waiting but brings none; ``action`` is ``warn``, ``reopen`` or ``fail``."""

    task: str
    partition: str
    action: str
    waited_ms: float
    position: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsLost:
    """A source continues without rows that it can no longer read (``on_lost_offsets="continue"``).

    Those rows are from offset ``first`` on and below ``end``, which is ``None`` if it cannot be known.
    """

    task: str
    partition: str
    reason: str
    first: int
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommitted:
    """A source's offsets, by partition, were committed to its group for monitoring; if not, ``error`` says why."""

    task: str
    group: str
    offsets: Mapping[str, int]
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExported:
    """A shard's position was written to a lease table for other consumers; if not, ``error`` says why.

    ``checkpoint`` is what its row was to have: a sequence number, or ``SHARD_END``.
    """

    task: str
    table: str
    shard: str
    checkpoint: str
    error: str | None = None


# ---- facts and listeners ---------------------------------------------------------------------------------------------

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
    | SourceRests
    | PartitionsFound
    | PartitionStalled
    | OffsetsLost
    | OffsetsCommitted
    | LeaseExported
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
    """Gets every fact, on the thread that it occurred on. It must be quick and must not raise."""

    def __call__(self, fact: Fact) -> None:
        """Take in a fact."""
        ...
