"""What becomes of a batch on its way: its times, its watermark, late rows. Knows nothing of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.ids import EventTime


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
