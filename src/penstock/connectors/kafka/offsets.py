"""Offsets, positions; where reading starts and stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from penstock.errors import ConnectorError, GraphError, InternalError, StateIncompatible
from penstock.handles import Json, Position

# ----------------------------------------------------------------------------------------------------
# How far each partition of Kafka topics was read, and how a manifest holds that; pure values that know no broker.
#
# Offsets mean what Kafka means by them: ``next`` is the offset of the first record that was not read yet, ``end`` of a
# range is the first that is not part of it. Between the two there may be fewer records than numbers: transaction
# markers take one each, and compaction leaves gaps.

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
class AvailableOffsets:
    """Which offsets of a partition can be read now: from ``earliest`` on, below ``latest``.

    ``latest`` is the last stable offset where only committed records are read, the high watermark elsewhere.
    """

    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the broker describes it. ``id`` tells it from one that is made again under its name."""

    id: str | None
    partitions: Mapping[int, AvailableOffsets]


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
class KafkaPosition:
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


def advance(progress: KafkaPosition, ranges: Sequence[OffsetRange]) -> KafkaPosition:
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


def encode(progress: KafkaPosition) -> Position:
    """Progress as a position that a manifest can hold: the same bytes for the same progress.

    >>> at = TopicPartition("orders", 0)
    >>> encode(KafkaPosition(ids={"orders": "x1"}, next={at: 7})).detail
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


def decode(position: Position) -> KafkaPosition:
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
    return KafkaPosition(ids=ids, next=next, stop=stop)


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


# ----------------------------------------------------------------------------------------------------
# Where reading of topics begins and ends: what users write, and the numbers it becomes. Asks no broker.
#
# Whoever resolves a boundary looks at its kind first: :class:`AtTime` needs the offsets of that time, ``"committed"``
# those that the group has committed; both are handed in as ``told``.

OffsetWord: TypeAlias = Literal["earliest", "latest"]
OffsetReset: TypeAlias = Literal["fail", "earliest", "latest"]
StartText: TypeAlias = "str | datetime | Mapping[str, Mapping[int, int | OffsetWord]]"
"""``"earliest"``, ``"latest"``, ``"committed"``, a time, or offsets by topic and partition."""
StopText: TypeAlias = "str | datetime | Mapping[str, Mapping[int, int | Literal['latest']]]"
"""``"latest"``, a time, or offsets by topic and partition."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record of each partition that is not older; milliseconds since the epoch, as in Kafka."""

    millis: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Offsets of each partition, or words for them."""

    offsets: Mapping[TopicPartition, int | OffsetWord]


Start: TypeAlias = "Literal['earliest', 'latest', 'committed'] | AtTimestamp | AtOffsets"
Stop: TypeAlias = "Literal['latest'] | AtTimestamp | AtOffsets"
ResolvedOffsets: TypeAlias = Mapping[TopicPartition, "int | None"]
"""What the broker answered, ``None`` where it has no offset of that time or of that group."""


def parse_start(start: object) -> Start:
    """The boundary that ``start`` means.

    Raises:
        GraphError: it means none.

    >>> parse_start("1970-01-01T00:00:01Z"), parse_start({"orders": {0: 12}})
    (AtTimestamp(millis=1000), AtOffsets(offsets={TopicPartition(topic='orders', partition=0): 12}))
    """
    return cast("Start", _parse("start", start, ("earliest", "latest", "committed"), ("earliest", "latest")))


def parse_stop(stop: object) -> Stop:
    """The boundary that ``stop`` means.

    Raises:
        GraphError: it means none.
    """
    return cast("Stop", _parse("stop", stop, ("latest",), ("latest",)))


def _parse(name: str, value: object, words: tuple[str, ...], inner: tuple[str, ...]) -> str | AtTimestamp | AtOffsets:
    if isinstance(value, str):
        return value if value in words else AtTimestamp(_millis(name, _moment(name, value, words)))
    if isinstance(value, datetime):
        return AtTimestamp(_millis(name, value))
    if isinstance(value, Mapping) and value:
        return AtOffsets(_offsets(name, value, inner))
    raise _meaningless(name, value, words)


def _moment(name: str, text: str, words: tuple[str, ...]) -> datetime:
    try:
        return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        raise _meaningless(name, text, words) from None


def _meaningless(name: str, value: object, words: tuple[str, ...]) -> GraphError:
    known = ", ".join(map(repr, words))
    hint = ", the group's offsets are called 'committed'" if value in ("group", "group-offsets") else ""
    return GraphError(
        f"{name} {value!r} says no place in a topic{hint}: write one of {known}, a time such as "
        "'2026-01-31T00:00:00Z', or offsets such as {'orders': {0: 120, 1: 97}}"
    )


def _millis(name: str, moment: datetime) -> int:
    if moment.tzinfo is None:
        msg = (
            f"{name} {moment.isoformat()!r} has no time zone, so it could be any of several moments: write it with "
            "one, as in '2026-01-31T00:00:00Z' or datetime(2026, 1, 31, tzinfo=timezone.utc)"
        )
        raise GraphError(msg)
    millis = (moment - _EPOCH) // timedelta(milliseconds=1)
    if millis < 0:
        msg = f"{name} {moment.isoformat()!r} is before 1970: records have no such times; write 'earliest'"
        raise GraphError(msg)
    return millis


def _offsets(
    name: str, given: Mapping[object, object], inner: tuple[str, ...]
) -> dict[TopicPartition, int | OffsetWord]:
    found: dict[TopicPartition, int | OffsetWord] = {}
    for topic, partitions in given.items():
        if not isinstance(topic, str) or not isinstance(partitions, Mapping) or not partitions:
            msg = f"{name} must have offsets by topic and partition, as {{'orders': {{0: 120}}}}; got {given!r}"
            raise GraphError(msg)
        for partition, offset in partitions.items():
            if not _is_number(partition) or not (_is_number(offset) or offset in inner):
                words = " or ".join(map(repr, inner))
                msg = (
                    f"{name} says {partition!r}: {offset!r} for topic {topic!r}: partitions are numbers from 0 on, and "
                    f"their offsets are such numbers too, or {words}"
                )
                raise GraphError(msg)
            found[TopicPartition(topic, cast("int", partition))] = cast("int | OffsetWord", offset)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def resolve_start(
    start: Start, topics: Topics, *, told: ResolvedOffsets | None = None, otherwise: OffsetReset = "fail"
) -> KafkaPosition:
    """The progress of a source that has read nothing: every partition begins at a number.

    Offsets that were given or committed are taken as they are; whether they can be read is for
    :func:`~penstock.connectors.kafka.planning.reconcile` to find out, as with any that were read up to.

    Args:
        start: where to begin.
        topics: what is there.
        told: for a time, the offsets of that time; for ``"committed"``, those of the group.
        otherwise: where to begin in a partition that ``start`` says nothing of.

    Raises:
        ConnectorError: ``start`` says nothing of a partition, and nothing else was said; or it names one that does
            not exist.
    """
    return KafkaPosition(
        ids={name: topic.id for name, topic in topics.items()},
        next=_resolve("start", start, topics, told or {}, otherwise),
    )


def resolve_stop(stop: Stop, topics: Topics, *, told: ResolvedOffsets | None = None) -> Offsets:
    """Where each partition that is there now ends.

    Raises:
        ConnectorError: ``stop`` does not name a partition, or one that does not exist.
    """
    return _resolve("stop", stop, topics, told or {}, "fail")


def _resolve(name: str, bound: Start | Stop, topics: Topics, told: ResolvedOffsets, otherwise: OffsetReset) -> Offsets:
    if isinstance(bound, AtOffsets):
        _check_named(name, bound, topics)
    return {
        TopicPartition(topic, partition): _place(name, bound, TopicPartition(topic, partition), found, told, otherwise)
        for topic, found in topics.items()
        for partition in sorted(found.partitions)
    }


def _check_named(name: str, bound: AtOffsets, topics: Topics) -> None:
    unknown = [at for at in bound.offsets if at.topic not in topics or at.partition not in topics[at.topic].partitions]
    if unknown:
        msg = f"{name} has offsets for {_list(unknown)}, which the source does not read or the cluster does not have"
        raise ConnectorError(msg)


def _place(
    name: str, bound: Start | Stop, at: TopicPartition, topic: Topic, told: ResolvedOffsets, otherwise: OffsetReset
) -> int:
    extent = topic.partitions[at.partition]
    offset: int | str | None
    match bound:
        case AtTimestamp():
            offset = told.get(at)
            offset = extent.latest if offset is None else offset  # nothing is as young: what comes next
        case AtOffsets():
            offset = bound.offsets.get(at, otherwise)
        case "committed":
            offset = told.get(at)
            offset = otherwise if offset is None else offset
        case _:
            offset = bound
    if isinstance(offset, int):
        return offset
    if offset == "fail":
        raise _unsaid(name, bound, at)
    return extent.earliest if offset == "earliest" else extent.latest


def _unsaid(name: str, bound: Start | Stop, at: TopicPartition) -> ConnectorError:
    if bound == "committed":
        return ConnectorError(
            f"start is 'committed', but the group has no offset for {at} (it never committed one, or it has expired): "
            "say where to begin in such partitions, start_otherwise='earliest' or 'latest'"
        )
    hint = ", or say where to begin in all others, start_otherwise='earliest' or 'latest'" if name == "start" else ""
    return ConnectorError(f"{name} has no offset for {at}: name each partition, perhaps with the word 'latest'{hint}")


def _list(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(map(str, sorted(partitions)[:5]))
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"  # noqa: PLR2004 - as shown


OFFSET_RESETS: Final = get_args(OffsetReset)
