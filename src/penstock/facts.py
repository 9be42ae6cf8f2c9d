"""What the runtime reports to observers, as frozen values, and the listener that gets them.

Facts are for people and metrics: nothing decides by them. One fact a batch, never one a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from penstock.ids import CheckpointId, EventTime, Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted:
    """A driver owns the job and its tasks run.

    ``restored`` is the checkpoint it continues, ``None`` for an empty start; ``published`` counts the open outputs
    that were committed before anything else.
    """

    job: str
    generation: Generation
    restored: CheckpointId | None
    published: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRead:
    """A source sent a batch. ``plan_ms`` is what building its frame and rewriting it took in the driver."""

    task: str
    sequence: int
    rows: int | None
    plan_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRead:
    """The first job over a batch has told how many rows its source read for it."""

    task: str
    rows: int


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
    """A step adds to one of its counters, such as ``late``, ``missing_time``, ``ahead``, ``fired``, ``ticks_missed``.

    ``ahead`` are rows too far ahead of the wall clock to move the watermark.
    """

    task: str
    name: str
    amount: int


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


Fact: TypeAlias = (
    JobStarted
    | BatchRead
    | RowsRead
    | BatchDone
    | WatermarkAdvanced
    | WatermarkHeld
    | RowsLate
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
