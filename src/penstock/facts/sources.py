"""What sources tell: rows read, partitions found and lost, how far they are behind. Knows nothing of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
