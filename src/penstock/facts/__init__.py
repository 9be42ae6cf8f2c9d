"""What the runtime reports to observers, as frozen values, and the listener that gets them.

Facts are for people and metrics: nothing decides by them. One fact a batch, never one a row.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from penstock.facts.batches import (
    BatchDone,
    BatchRead,
    Counted,
    LatencyMeasured,
    RowsLate,
    WatermarkAdvanced,
    WatermarkHeld,
)
from penstock.facts.job import (
    BarrierPassed,
    CheckpointCompleted,
    CheckpointFailed,
    JobEnded,
    JobStarted,
    Published,
    Restarting,
    Restoring,
)
from penstock.facts.sources import (
    OffsetsCommitted,
    OffsetsLost,
    PartitionLag,
    PartitionsFound,
    PartitionStalled,
    ReadingPaused,
    RowsRead,
    SourceLag,
)

__all__ = [
    "BarrierPassed",
    "BatchDone",
    "BatchRead",
    "CheckpointCompleted",
    "CheckpointFailed",
    "Counted",
    "Fact",
    "JobEnded",
    "JobStarted",
    "LatencyMeasured",
    "Listener",
    "OffsetsCommitted",
    "OffsetsLost",
    "PartitionLag",
    "PartitionStalled",
    "PartitionsFound",
    "Published",
    "ReadingPaused",
    "Restarting",
    "Restoring",
    "RowsLate",
    "RowsRead",
    "SourceLag",
    "WatermarkAdvanced",
    "WatermarkHeld",
]

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
