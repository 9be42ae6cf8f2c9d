"""Questions waited for: topics, start offsets, topic ids, backlog."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.connectors.kafka.client import Connection
from penstock.connectors.kafka.offsets import (
    AtTimestamp,
    KafkaPosition,
    TopicPartition,
    Topics,
    decode,
    resolve_start,
    resolve_stop,
)
from penstock.connectors.kafka.planning import backlog, ends, reconcile
from penstock.errors import ConnectorError, SourceChanged, SourceUnavailable
from penstock.interfaces.source import Backlog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from penstock.connectors.kafka.client import Cluster, KafkaFuture
    from penstock.connectors.kafka.config import KafkaConfig
    from penstock.connectors.kafka.offsets import ResolvedOffsets, Start, Stop
    from penstock.handles import Position


# ----------------------------------------------------------------------------------------------------
# Where a reader begins: a first look at its topics, and the numbers that boundaries become. Waits for answers.

T = TypeVar("T")
SECONDS: Final = 15.0
"""How long an answer is waited for; a cluster that is slower counts as away."""
_MOMENT: Final = 0.1
"""Seconds from one question to the next, while a topic is not there or a broker not quite."""
_SOON: Final = 1.0
_TRIES: Final = 30
"""So often a question is asked that is refused within so many seconds."""


def fetch_metadata(source: KafkaConfig, cluster: Cluster, progress: KafkaPosition | None) -> Topics:
    """The topics of a source as they are now.

    A topic that the source has never read has to be there; it is waited for as long as one that was read would be,
    because a broker that has just started does not know all of them.

    Raises:
        ConnectorError: the cluster cannot be reached, or a topic is not there.
    """
    rounds = max(1, int(source.gone_after / 1_000_000 / _MOMENT))
    while True:
        names = topic_names(source, cluster, progress)
        topics = _asked(partial(cluster.look, names, {}))
        known = set() if progress is None else set(progress.ids)
        missing = [name for name in source.topics if name not in topics and name not in known]
        if not missing:
            return topics
        rounds -= 1
        if rounds <= 0:
            msg = (
                f"Kafka at {source.servers} has no topic {', '.join(map(repr, missing))}, or does not show it to this "
                "job's user: create it, correct topics=, or grant DESCRIBE on it"
            )
            raise ConnectorError(msg)
        threading.Event().wait(_MOMENT)


def topic_names(source: KafkaConfig, cluster: Cluster, progress: KafkaPosition | None) -> Collection[str]:
    """The topics to look at: those that are subscribed to, and those that were read."""
    known = [] if progress is None else [name for name in progress.ids if source.subscribes(name)]
    if source.pattern is None:
        return source.topics
    return {*known, *(name for name in _asked(cluster.names) if source.subscribes(name))}


def resolve_position(
    source: KafkaConfig, cluster: Cluster, topics: Topics, progress: KafkaPosition | None
) -> KafkaPosition:
    """Progress to go on from, with the stop that the source has now.

    Raises:
        ConnectorError: a boundary says nothing of a partition, or the cluster cannot be reached.
    """
    if progress is None:
        told = _told(source.start, cluster, topics)
        progress = resolve_start(source.start, topics, told=told, otherwise=source.start_otherwise)
    if source.stop is None:
        return KafkaPosition(ids=progress.ids, next=progress.next)
    if progress.stop is not None:
        return progress
    stop = resolve_stop(source.stop, topics, told=_told(source.stop, cluster, topics))
    return KafkaPosition(ids=progress.ids, next=progress.next, stop=stop)


def _told(bound: Start | Stop, cluster: Cluster, topics: Topics) -> ResolvedOffsets:
    parts = [TopicPartition(name, partition) for name, topic in topics.items() for partition in topic.partitions]
    if not parts:
        return {}
    if isinstance(bound, AtTimestamp):
        return _asked(lambda: cluster.at_time(bound.millis, parts))
    return _asked(lambda: cluster.committed(parts)) if bound == "committed" else {}


def _asked(question: Callable[[], KafkaFuture[T]]) -> T:
    """The answer; asked again while a broker that is not quite back refuses it at once. One that is away is slow."""
    for _ in range(_TRIES):
        answer = question()
        if not answer.wait(_SOON):
            return await_answer(answer)
        try:
            return answer.result()
        except ConnectorError as error:
            if not error.retry:
                raise
        threading.Event().wait(_MOMENT)
    return await_answer(question())


def await_answer(answer: KafkaFuture[T]) -> T:
    """The answer, waited for.

    Raises:
        ConnectorError: there is none.
    """
    if not answer.wait(SECONDS):
        msg = f"Kafka has not answered within {SECONDS:g} s: see that its brokers are well and can be reached"
        raise SourceUnavailable(msg)
    return answer.result()


# ----------------------------------------------------------------------------------------------------
# Proves that the topics that were read are those that were planned: a topic's name is not its identity.


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdCheck:
    """Called after rows were read, on any thread. An id never comes back, so it is enough to look afterwards.

    A consumer goes on in a topic that was deleted and made again without a word: at the same offsets, with other rows.

    Attributes:
        cluster: is asked.
        ids: of the topics that were read, where the cluster has ids.
        goes_on: a restart leaves out what is lost.
        answer: to a question that was asked after the rows were read, if it was.
    """

    cluster: Cluster
    ids: Mapping[str, str]
    goes_on: bool
    answer: KafkaFuture[Mapping[str, str | None]] | None = None

    def __call__(self) -> None:
        """See that it is so.

        Raises:
            SourceChanged: a topic was made again under its name.
            SourceUnavailable: nobody can tell now, or a restart reads the new one.
        """
        if not self.ids:
            return
        now = await_answer(self.answer or self.cluster.ids(list(self.ids)))
        changed = sorted(name for name, id in self.ids.items() if now.get(name, id) not in (id, None))
        if not changed:
            return
        told = f"topic {', '.join(map(repr, changed))} was deleted and made again while it was read"
        if self.goes_on:
            msg = f"{told}; a restart reads the new one from its beginning"
            raise SourceUnavailable(msg)
        msg = f"{told}: give the new topic another name, or the source another uid"
        raise SourceChanged(msg)


# ----------------------------------------------------------------------------------------------------
# What waits in topics for a reader at a position: asked of the brokers, without reading or committing anything.

NEAR_RETENTION: Final = 10
"""A position in the oldest of so many equal parts of what a partition keeps is near to being lost."""


def backlog_of(source: KafkaConfig, resume: Position | None, *, cluster: Cluster | None = None) -> Backlog:
    """What a reader of this source would find.

    Raises:
        StateIncompatible: the position is not one of a Kafka source.
        ConnectorError: the cluster cannot be reached, a topic is not there, or a boundary says nothing of a partition.
    """
    progress = None if resume is None else decode(resume)
    asked = cluster or _cluster(source)
    try:
        topics = fetch_metadata(source, asked, progress)
        return backlog_between(
            source, resolve_position(source, asked, topics, progress), topics, resumed=progress is not None
        )
    finally:
        asked.close()


def backlog_between(source: KafkaConfig, progress: KafkaPosition, topics: Topics, *, resumed: bool) -> Backlog:
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
    return Backlog(
        rows=sum(waiting.values()),
        partitions={str(at): (here.next[at], end) for at, end in sorted(until.items())},
        warnings=(
            *(f"{loss} can no longer be read: {then}" for loss in found.lost),
            *(_near_the_edge(here, topics, frozenset(waiting).difference(told)) if resumed else ()),
        ),
    )


def _near_the_edge(progress: KafkaPosition, topics: Topics, waiting: frozenset[TopicPartition]) -> Iterator[str]:
    """Partitions whose retention is close behind the position: it has deleted before, most of what is left waits."""
    for at in sorted(waiting):
        extent = topics[at.topic].partitions[at.partition]
        behind, kept = progress.next[at] - extent.earliest, extent.latest - extent.earliest
        if extent.earliest > 0 and 0 <= behind * NEAR_RETENTION < kept:
            yield (
                f"{at}: only {behind:,} of the {kept:,} offsets that the topic keeps lie before the position: "
                "retention may delete what waits before it is read"
            )


def _cluster(source: KafkaConfig) -> Cluster:
    from penstock.connectors.kafka.cluster import KafkaCluster

    return KafkaCluster(
        Connection(
            servers=source.servers,
            options=source.options,
            group=source.group,
            committed_only=source.isolation == "read_committed",
        )
    )
