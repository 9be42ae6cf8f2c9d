"""Requests that are waited for: topics, start and stop offsets, topic ids, backlog."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.connectors.kafka.cluster import KafkaCluster
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

T = TypeVar("T")
ANSWER_TIMEOUT: Final = 15.0
"""Seconds until a cluster that does not answer counts as unreachable."""
_RETRY_INTERVAL: Final = 0.1
"""Seconds between two requests, while a topic is missing or a broker refuses to answer."""
_QUICK_ANSWER: Final = 1.0
_TRIES: Final = 30
"""Number of requests whose answer, within ``_QUICK_ANSWER`` seconds, may be a transient error."""


# ---- where a reader starts -------------------------------------------------------------------------------------------


def fetch_metadata(config: KafkaConfig, cluster: Cluster, position: KafkaPosition | None) -> Topics:
    """The topics of a source as they are now.

    A topic that was never read has to exist. It is waited for as long as a missing one would be that was read
    (``gone_after``): a broker that has just started does not know all topics.

    Raises:
        ConnectorError: the cluster cannot be reached, or a topic does not exist.
    """
    rounds = max(1, int(config.gone_after / 1_000_000 / _RETRY_INTERVAL))
    while True:
        names = topic_names(config, cluster, position)
        topics = _ask(partial(cluster.describe_topics, names, {}))
        known = set() if position is None else set(position.ids)
        missing = [name for name in config.topics if name not in topics and name not in known]
        if not missing:
            return topics
        rounds -= 1
        if rounds <= 0:
            msg = (
                f"Kafka at {config.servers} has no topic {', '.join(map(repr, missing))}, or does not show it to this "
                "job's user. Create it, correct topics=, or grant DESCRIBE on it."
            )
            raise ConnectorError(msg)
        threading.Event().wait(_RETRY_INTERVAL)


def topic_names(config: KafkaConfig, cluster: Cluster, position: KafkaPosition | None) -> Collection[str]:
    """The topics to describe: those subscribed to, and of a pattern also those that were read."""
    known = [] if position is None else [name for name in position.ids if config.subscribes(name)]
    if config.pattern is None:
        return config.topics
    return {*known, *(name for name in _ask(cluster.list_topics) if config.subscribes(name))}


def resolve_position(
    config: KafkaConfig, cluster: Cluster, topics: Topics, position: KafkaPosition | None
) -> KafkaPosition:
    """The position to read on from, with the stop offsets that the source has now.

    Raises:
        ConnectorError: ``start`` or ``stop`` gives no offset for a partition, or the cluster cannot be reached.
    """
    if position is None:
        resolved = _look_up(config.start, cluster, topics)
        position = resolve_start(config.start, topics, resolved=resolved, otherwise=config.start_otherwise)
    if config.stop is None:
        return KafkaPosition(ids=position.ids, next=position.next)
    if position.stop is not None:
        return position
    stop = resolve_stop(config.stop, topics, resolved=_look_up(config.stop, cluster, topics))
    return KafkaPosition(ids=position.ids, next=position.next, stop=stop)


def _look_up(bound: Start | Stop, cluster: Cluster, topics: Topics) -> ResolvedOffsets:
    """The offsets that only the brokers know: those of a time, or those that the group has committed."""
    partitions = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]
    if not partitions:
        return {}
    if isinstance(bound, AtTimestamp):
        return _ask(lambda: cluster.offsets_for_time(bound.millis, partitions))
    return _ask(lambda: cluster.committed_offsets(partitions)) if bound == "committed" else {}


def _ask(request: Callable[[], KafkaFuture[T]]) -> T:
    """The answer to a request, sent again while a broker that is not quite back refuses it at once.

    A broker that is away does not answer quickly, and gets one request.
    """
    for _ in range(_TRIES):
        future = request()
        if not future.wait(_QUICK_ANSWER):
            return await_answer(future)
        try:
            return future.result()
        except ConnectorError as error:
            if not error.retry:
                raise
        threading.Event().wait(_RETRY_INTERVAL)
    return await_answer(request())


def await_answer(future: KafkaFuture[T]) -> T:
    """The answer, waited for.

    Raises:
        ConnectorError: the request failed, or there was no answer in time.
    """
    if not future.wait(ANSWER_TIMEOUT):
        msg = f"Kafka has not answered within {ANSWER_TIMEOUT:g} s. Check that its brokers run and can be reached."
        raise SourceUnavailable(msg)
    return future.result()


# ---- topic ids -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdCheck:
    """Checks after rows were read that their topics are those that were planned. Called on any thread.

    A consumer reads on silently in a topic that was deleted and made again: the same offsets, other rows. An id is
    never used twice, so a check after reading is enough.

    Attributes:
        cluster: the cluster to ask.
        ids: the planned ids of the topics that were read, where the cluster has ids.
        skips_lost: whether a restart skips what is lost.
        answer: the answer to a request that was sent after the rows were read, if one was.
    """

    cluster: Cluster
    ids: Mapping[str, str]
    skips_lost: bool
    answer: KafkaFuture[Mapping[str, str | None]] | None = None

    def __call__(self) -> None:
        """Check the ids.

        Raises:
            SourceChanged: a topic was deleted and made again.
            SourceUnavailable: the same, but a restart reads the new topic; or the cluster does not answer.
        """
        if not self.ids:
            return
        now = await_answer(self.answer or self.cluster.topic_ids(list(self.ids)))
        changed = sorted(name for name, id in self.ids.items() if now.get(name, id) not in (id, None))
        if not changed:
            return
        cause = f"Topic {', '.join(map(repr, changed))} was deleted and made again while it was read."
        if self.skips_lost:
            msg = f"{cause} A restart reads the new one from its beginning."
            raise SourceUnavailable(msg)
        msg = f"{cause} Give the new topic another name, or the source another uid."
        raise SourceChanged(msg)


# ---- backlog ---------------------------------------------------------------------------------------------------------

NEAR_RETENTION: Final = 10
"""A position in the oldest tenth of the offsets that a partition keeps is close to being lost to retention."""


def backlog_of(config: KafkaConfig, resume: Position | None, *, cluster: Cluster | None = None) -> Backlog:
    """What waits for a reader of this source. Asks the brokers; reads and commits nothing.

    Raises:
        StateIncompatible: the position is not one of a Kafka source.
        ConnectorError: the cluster cannot be reached, a topic does not exist, or a boundary gives no offset for a
            partition.
    """
    position = None if resume is None else decode(resume)
    cluster = cluster or KafkaCluster(config.connection)
    try:
        topics = fetch_metadata(config, cluster, position)
        return backlog_between(
            config, resolve_position(config, cluster, topics, position), topics, resumed=position is not None
        )
    finally:
        cluster.close()


def backlog_between(config: KafkaConfig, position: KafkaPosition, topics: Topics, *, resumed: bool) -> Backlog:
    """What waits between a position and the ends of its topics.

    Retention is judged only for a position that is ``resumed``: a start at the earliest record is always near it.
    """
    changes = reconcile(position, topics, subscribed=config.subscribes)
    current = changes.position
    until = ends(current, topics)
    waiting = backlog(current, until)
    reported = (*changes.found, *(loss.at for loss in changes.lost))
    consequence = "they are left out and reported"
    if config.on_lost_offsets == "fail":
        consequence = "the start fails (on_lost_offsets='fail')"
    return Backlog(
        rows=sum(waiting.values()),
        partitions={str(at): (current.next[at], end) for at, end in sorted(until.items())},
        warnings=(
            *(f"{loss} can no longer be read: {consequence}" for loss in changes.lost),
            *(_near_retention(current, topics, frozenset(waiting).difference(reported)) if resumed else ()),
        ),
    )


def _near_retention(position: KafkaPosition, topics: Topics, waiting: frozenset[TopicPartition]) -> Iterator[str]:
    """A warning for each partition whose retention has deleted before and is close behind the position."""
    for at in sorted(waiting):
        available = topics[at.topic].partitions[at.partition]
        behind, kept = position.next[at] - available.earliest, available.latest - available.earliest
        if available.earliest > 0 and 0 <= behind * NEAR_RETENTION < kept:
            yield (
                f"{at}: only {behind:,} of the {kept:,} offsets that the topic keeps lie before the position: "
                "retention may delete what waits before it is read"
            )
