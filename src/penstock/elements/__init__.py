"""What flows along an edge: batches of rows, and the control elements between them."""

from penstock.elements.batch import Batch, Lease, Measure, Reading
from penstock.elements.control import (
    Barrier,
    CancelBarrier,
    CheckpointKind,
    EndOfStream,
    InputStatus,
    LatencyMarker,
    Watermark,
)
from penstock.elements.first_run import FirstRun
from penstock.elements.partitions import Partitions

Element = Batch | Watermark | InputStatus | LatencyMarker | Barrier | CancelBarrier | EndOfStream

__all__ = [
    "Barrier",
    "Batch",
    "CancelBarrier",
    "CheckpointKind",
    "Element",
    "EndOfStream",
    "FirstRun",
    "InputStatus",
    "LatencyMarker",
    "Lease",
    "Measure",
    "Partitions",
    "Reading",
    "Watermark",
]
