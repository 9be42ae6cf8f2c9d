"""What waits in topics for a reader at a position: asked of the brokers, without reading or committing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.sources.base import Waiting
from penstock.sources.kafka.changes import reconcile
from penstock.sources.kafka.client import Connection
from penstock.sources.kafka.offsets import Progress, TopicPartition, decode
from penstock.sources.kafka.planning import backlog, ends
from penstock.sources.kafka.start import begin, first_look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.handles import Position
    from penstock.sources.kafka.client import Cluster
    from penstock.sources.kafka.offsets import Topics
    from penstock.sources.kafka.source import Source

NEAR: Final = 10
"""A position in the oldest of so many equal parts of what a partition keeps is near to being lost."""


def waiting_of(source: Source, resume: Position | None, *, cluster: Cluster | None = None) -> Waiting:
    """What a reader of this source would find.

    Raises:
        StateIncompatible: the position is not one of a Kafka source.
        ConnectorError: the cluster cannot be reached, a topic is not there, or a boundary says nothing of a partition.
    """
    progress = None if resume is None else decode(resume)
    asked = cluster or _cluster(source)
    try:
        topics = first_look(source, asked, progress)
        return compare(source, begin(source, asked, topics, progress), topics, resumed=progress is not None)
    finally:
        asked.close()


def compare(source: Source, progress: Progress, topics: Topics, *, resumed: bool) -> Waiting:
    """What waits by what was read and what is there. Pure.

    A start from the earliest record on is at the edge of what is kept by itself; only what was read before is judged.
    """
    found = reconcile(progress, topics, subscribed=source.subscribes)
    here = found.progress
    until = ends(here, topics)
    waiting = backlog(here, until)
    told = (*found.found, *(loss.at for loss in found.lost))
    then = "they are left out and reported"
    if source.on_lost_offsets == "fail":
        then = "the start fails (on_lost_offsets='fail')"
    return Waiting(
        rows=sum(waiting.values()),
        partitions={str(at): (here.next[at], end) for at, end in sorted(until.items())},
        warnings=(
            *(f"{loss} can no longer be read: {then}" for loss in found.lost),
            *(_near_the_edge(here, topics, frozenset(waiting).difference(told)) if resumed else ()),
        ),
    )


def _near_the_edge(progress: Progress, topics: Topics, waiting: frozenset[TopicPartition]) -> Iterator[str]:
    """Partitions whose retention is close behind the position: it has deleted before, most of what is left waits."""
    for at in sorted(waiting):
        extent = topics[at.topic].partitions[at.partition]
        behind, kept = progress.next[at] - extent.earliest, extent.latest - extent.earliest
        if extent.earliest > 0 and 0 <= behind * NEAR < kept:
            yield (
                f"{at}: only {behind:,} of the {kept:,} offsets that the topic keeps lie before the position: "
                "retention may delete what waits before it is read"
            )


def _cluster(source: Source) -> Cluster:
    from penstock.sources.kafka.cluster import KafkaCluster

    return KafkaCluster(
        Connection(
            servers=source.servers,
            options=source.options,
            group=source.group,
            committed_only=source.isolation == "read_committed",
        )
    )
