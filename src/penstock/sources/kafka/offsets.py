"""How far each partition of Kafka topics was read, and how a manifest holds that; pure values that know no broker.

Offsets mean what Kafka means by them: ``next`` is the offset of the first record that was not read yet, ``end`` of a
range is the first that is not part of it. Between the two there may be fewer records than numbers: transaction markers
take one each, and compaction leaves gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from penstock.errors import InternalError, StateIncompatible
from penstock.handles import Json, Position

KIND: Final = "kafka/1"


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic.

    >>> str(TopicPartition("orders", 3))
    'orders-3'
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Extent:
    """Which offsets of a partition can be read now: from ``earliest`` on, below ``latest``.

    ``latest`` is the last stable offset where only committed records are read, the high watermark elsewhere.
    """

    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the broker describes it. ``id`` tells it from one that is made again under its name."""

    id: str | None
    partitions: Mapping[int, Extent]


Topics: TypeAlias = Mapping[str, Topic]
"""What is there now, of the topics that are subscribed to. One that does not exist is missing."""

Offsets: TypeAlias = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The records of one partition from offset ``start`` on that lie below ``end``."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def at(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def offsets(self) -> int:
        """How many offsets it spans: the most rows it can have."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What was read so far.

    Attributes:
        ids: the id of each topic that was seen; ``None`` where the broker has none to give.
        next: of each partition, the next offset to read.
        stop: of a bounded source, where each partition ends; no other partition is ever read. Else ``None``.
    """

    ids: Mapping[str, str | None] = field(default_factory=dict)
    next: Offsets = field(default_factory=dict)
    stop: Offsets | None = None

    @property
    def is_done(self) -> bool:
        """Whether a bounded source has been read: every partition's position has reached its stop.

        The position counts, not the last record: behind it there may be transaction markers only.
        """
        return self.stop is not None and all(self.next.get(at, -1) >= end for at, end in self.stop.items())


def advance(progress: Progress, ranges: Sequence[OffsetRange]) -> Progress:
    """Progress after ranges that begin where each partition stood.

    Raises:
        InternalError: a range leaves offsets out, or reads some again.
    """
    after = dict(progress.next)
    for part in ranges:
        if after.get(part.at) != part.start or part.end < part.start:
            msg = f"range {part} does not follow on offset {after.get(part.at)} of {part.at}"
            raise InternalError(msg)
        after[part.at] = part.end
    return replace(progress, next=after)


def encode(progress: Progress) -> Position:
    """Progress as a position that a manifest can hold: the same bytes for the same progress.

    >>> at = TopicPartition("orders", 0)
    >>> encode(Progress(ids={"orders": "x1"}, next={at: 7})).detail
    {'bounded': False, 'topics': {'orders': {'id': 'x1', 'next': {'0': 7}}}}
    """
    topics: dict[str, dict[str, Json]] = {}
    for topic, id in sorted(progress.ids.items()):
        topics[topic] = {"id": id, "next": _of_topic(progress.next, topic)}
        if progress.stop is not None:
            topics[topic]["stop"] = _of_topic(progress.stop, topic)
    return Position(kind=KIND, detail={"bounded": progress.stop is not None, "topics": topics})


def _of_topic(offsets: Offsets, topic: str) -> dict[str, Json]:
    return {str(at.partition): offset for at, offset in sorted(offsets.items()) if at.topic == topic}


def decode(position: Position) -> Progress:
    """The inverse of :func:`encode`.

    Fields that this version does not know are ignored: those that must not be will come under another kind.

    Raises:
        StateIncompatible: the position was made by another kind of source, or is not what this version writes.
    """
    if position.kind != KIND:
        msg = (
            f"the position is of kind {position.kind!r}, a Kafka source reads {KIND!r}: give the new source a uid of "
            "its own, or restore with the source, or the version of penstock, that wrote it"
        )
        raise StateIncompatible(msg)
    detail: Any = position.detail
    try:
        topics = detail["topics"]
        ids = {topic: None if told["id"] is None else _text(told["id"]) for topic, told in topics.items()}
        next = {at: offset for topic, told in topics.items() for at, offset in _read(topic, told["next"])}
        stop = None
        if detail["bounded"]:
            stop = {at: offset for topic, told in topics.items() for at, offset in _read(topic, told["stop"])}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = (
            f"the position of a Kafka source cannot be read ({error!r}): it was written by another version of penstock"
        )
        raise StateIncompatible(msg) from error
    if stop is not None and not stop.keys() <= next.keys():
        msg = "the position of a Kafka source ends in partitions where it does not begin: it is damaged"
        raise StateIncompatible(msg)
    return Progress(ids=ids, next=next, stop=stop)


def _read(topic: str, offsets: Any) -> list[tuple[TopicPartition, int]]:
    return [(TopicPartition(topic, int(partition)), _offset(offset)) for partition, offset in offsets.items()]


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        msg = f"{value!r} is not an offset"
        raise ValueError(msg)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        msg = f"{value!r} is not a topic's id"
        raise TypeError(msg)
    return value
