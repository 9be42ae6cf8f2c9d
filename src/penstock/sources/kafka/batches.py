"""The two kinds of plan of a Kafka batch, and the partitions that it tells of. Values only."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.elements import Partitions
from penstock.sources.kafka.offsets import OffsetRange, Progress, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.sources.kafka.source import Source


@dataclass(frozen=True, slots=True)
class InHand:
    """A plan: rows that are here."""

    table: pa.Table


@dataclass(frozen=True, slots=True)
class ByExecutors:
    """A plan: ranges that workers are to read."""

    ranges: tuple[OffsetRange, ...]


def partitions_of(
    source: Source,
    progress: Progress,
    there: Collection[TopicPartition],
    behind: Collection[TopicPartition],
    read: Collection[TopicPartition],
) -> Partitions:
    """All partitions that may bring rows. One that a bounded source has read to its stop holds nobody back any more.

    Args:
        source: gives them their names.
        progress: after the batch.
        there: those that are read, in order.
        behind: those that have more than the batch takes.
        read: those that the batch has rows of.
    """
    stop = progress.stop
    live = [at for at in there if stop is None or at in read or progress.next[at] < stop.get(at, 0)]
    return Partitions(
        names=tuple(map(source.partition_name, live)),
        behind=frozenset(map(source.partition_name, behind)),
        column=source.partition_column,
    )


def ended_of(source: Source, progress: Progress) -> frozenset[str]:
    """The partitions that a bounded source has read to their stop."""
    stop = progress.stop or {}
    return frozenset(source.partition_name(at) for at, end in stop.items() if progress.next.get(at, end) >= end)
