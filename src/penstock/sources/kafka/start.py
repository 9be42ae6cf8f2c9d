"""Where a reader begins: a first look at its topics, and the numbers that boundaries become. Waits for answers."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.errors import ConnectorError, SourceUnavailable
from penstock.sources.kafka.bounds import AtTime, resolve_start, resolve_stop
from penstock.sources.kafka.offsets import Progress, TopicPartition, Topics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.sources.kafka.bounds import Start, Stop, Told
    from penstock.sources.kafka.client import Answer, Cluster
    from penstock.sources.kafka.source import Source

T = TypeVar("T")

SECONDS: Final = 15.0
"""How long an answer is waited for; a cluster that is slower counts as away."""

_MOMENT: Final = 0.1
"""Seconds from one question to the next, while a topic is not there or a broker not quite."""

_SOON: Final = 1.0
_TRIES: Final = 30
"""So often a question is asked that is refused within so many seconds."""


def first_look(source: Source, cluster: Cluster, progress: Progress | None) -> Topics:
    """The topics of a source as they are now.

    A topic that the source has never read has to be there; it is waited for as long as one that was read would be,
    because a broker that has just started does not know all of them.

    Raises:
        ConnectorError: the cluster cannot be reached, or a topic is not there.
    """
    rounds = max(1, int(source.gone_after / 1_000_000 / _MOMENT))
    while True:
        names = names_of(source, cluster, progress)
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


def names_of(source: Source, cluster: Cluster, progress: Progress | None) -> Collection[str]:
    """The topics to look at: those that are subscribed to, and those that were read."""
    known = [] if progress is None else [name for name in progress.ids if source.subscribes(name)]
    if source.pattern is None:
        return source.topics
    return {*known, *(name for name in _asked(cluster.names) if source.subscribes(name))}


def begin(source: Source, cluster: Cluster, topics: Topics, progress: Progress | None) -> Progress:
    """Progress to go on from, with the stop that the source has now.

    Raises:
        ConnectorError: a boundary says nothing of a partition, or the cluster cannot be reached.
    """
    if progress is None:
        told = _told(source.start, cluster, topics)
        progress = resolve_start(source.start, topics, told=told, otherwise=source.start_otherwise)
    if source.stop is None:
        return Progress(ids=progress.ids, next=progress.next)
    if progress.stop is not None:
        return progress
    stop = resolve_stop(source.stop, topics, told=_told(source.stop, cluster, topics))
    return Progress(ids=progress.ids, next=progress.next, stop=stop)


def _told(bound: Start | Stop, cluster: Cluster, topics: Topics) -> Told:
    parts = [TopicPartition(name, partition) for name, topic in topics.items() for partition in topic.partitions]
    if not parts:
        return {}
    if isinstance(bound, AtTime):
        return _asked(lambda: cluster.at_time(bound.millis, parts))
    return _asked(lambda: cluster.committed(parts)) if bound == "committed" else {}


def _asked(question: Callable[[], Answer[T]]) -> T:
    """The answer; asked again while a broker that is not quite back refuses it at once. One that is away is slow."""
    for _ in range(_TRIES):
        answer = question()
        if not answer.wait(_SOON):
            return answered(answer)
        try:
            return answer.result()
        except ConnectorError as error:
            if not error.retry:
                raise
        threading.Event().wait(_MOMENT)
    return answered(question())


def answered(answer: Answer[T]) -> T:
    """The answer, waited for.

    Raises:
        ConnectorError: there is none.
    """
    if not answer.wait(SECONDS):
        msg = f"Kafka has not answered within {SECONDS:g} s: see that its brokers are well and can be reached"
        raise SourceUnavailable(msg)
    return answer.result()
