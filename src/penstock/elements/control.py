"""Control elements: plain frozen values that travel between batches, in order with them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.ids import CheckpointId, EventTime, Instant


class CheckpointKind(str, Enum):
    """Why a checkpoint is taken."""

    PERIODIC = "periodic"
    SAVEPOINT = "savepoint"
    FINAL = "final"
    IMPORT = "import"
    """Brought from an exported folder: no task ever took it."""
    WRITTEN = "written"
    """By hand: one step's state was made of a table, all else was taken from another checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """No row strictly below ``at`` is expected any more on this edge."""

    at: EventTime


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStatus:
    """The edge went idle (it no longer holds the watermark back) or became active again."""

    idle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMarker:
    """Sent by a source now and then, waits behind batches like a row, bypasses operators' logic, ends at sinks."""

    source: str
    sent: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """Everything before it belongs to the checkpoint, nothing after it."""

    checkpoint: CheckpointId
    kind: CheckpointKind = CheckpointKind.PERIODIC


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelBarrier:
    """The checkpoint is aborted: whoever waits for its barrier waits no longer."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfStream:
    """Nothing comes after it on this edge."""
