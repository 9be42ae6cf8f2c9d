"""Offsets and positions of Kafka topics; how ``start`` and ``stop`` become offsets.

Offsets mean what Kafka means by them: ``next`` is the first offset not yet read, ``end`` the first one not part of a
range. There may be fewer records than offsets: transaction markers take one each, and compaction leaves gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from penstock.errors import ConnectorError, GraphError, InternalError, StateIncompatible
from penstock.handles import Json, Position

# ---- positions -------------------------------------------------------------------------------------------------------

KIND: Final = "kafka/1"
"""Kind of the positions; also the version of their format."""


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
    """The offsets of a partition that can be read now: from ``earliest`` on, below ``latest``.

    ``latest`` is the last stable offset where only committed records are read, the high watermark elsewhere.
    """

    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the broker describes it. Its ``id`` changes when it is deleted and made again under its name."""

    id: str | None
    partitions: Mapping[int, AvailableOffsets]


Topics: TypeAlias = Mapping[str, Topic]
"""The topics of a source that exist now, by name."""
Offsets: TypeAlias = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The records of one partition with offsets from ``start`` on, below ``end``."""

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
        """Number of offsets in the range: the most rows it can have."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPosition:
    """How far a source was read.

    Attributes:
        ids: the id of each topic; ``None`` if the broker has no ids.
        next: the next offset to read of each partition.
        stop: the end of each partition of a bounded source, which reads no other partitions; otherwise ``None``.
    """

    ids: Mapping[str, str | None] = field(default_factory=dict)
    next: Offsets = field(default_factory=dict)
    stop: Offsets | None = None

    @property
    def is_done(self) -> bool:
        """Whether a bounded source was read: ``next`` has reached ``stop`` in every partition.

        Offsets count, not records: the last offsets before a stop may be transaction markers.
        """
        return self.stop is not None and all(self.next.get(at, -1) >= end for at, end in self.stop.items())


def advance(position: KafkaPosition, ranges: Sequence[OffsetRange]) -> KafkaPosition:
    """The position after ranges were read that start at the position of each partition.

    Raises:
        InternalError: a range skips offsets, or reads some again.
    """
    after = dict(position.next)
    for part in ranges:
        if after.get(part.at) != part.start or part.end < part.start:
            msg = f"Range {part} does not follow on offset {after.get(part.at)} of {part.at}."
            raise InternalError(msg)
        after[part.at] = part.end
    return replace(position, next=after)


def encode(position: KafkaPosition) -> Position:
    """The position as a manifest holds it: the same bytes for equal positions.

    >>> at = TopicPartition("orders", 0)
    >>> encode(KafkaPosition(ids={"orders": "x1"}, next={at: 7})).detail
    {'bounded': False, 'topics': {'orders': {'id': 'x1', 'next': {'0': 7}}}}
    """
    topics: dict[str, dict[str, Json]] = {}
    for topic, id in sorted(position.ids.items()):
        topics[topic] = {"id": id, "next": _of_topic(position.next, topic)}
        if position.stop is not None:
            topics[topic]["stop"] = _of_topic(position.stop, topic)
    return Position(kind=KIND, detail={"bounded": position.stop is not None, "topics": topics})


def _of_topic(offsets: Offsets, topic: str) -> dict[str, Json]:
    return {str(at.partition): offset for at, offset in sorted(offsets.items()) if at.topic == topic}


def decode(position: Position) -> KafkaPosition:
    """The inverse of ``encode``.

    Fields that this version does not know are ignored: a field that must not be ignored needs another kind.

    Raises:
        StateIncompatible: another kind of source wrote the position, or this version cannot read it.
    """
    if position.kind != KIND:
        msg = (
            f"The position is of kind {position.kind!r}, but a Kafka source reads {KIND!r}. Give the new source a uid "
            "of its own, or restore with the source, or the version of penstock, that wrote it."
        )
        raise StateIncompatible(msg)
    detail: Any = position.detail
    try:
        topics = detail["topics"]
        ids = {topic: None if entry["id"] is None else _text(entry["id"]) for topic, entry in topics.items()}
        next = {at: offset for topic, entry in topics.items() for at, offset in _read(topic, entry["next"])}
        stop = None
        if detail["bounded"]:
            stop = {at: offset for topic, entry in topics.items() for at, offset in _read(topic, entry["stop"])}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = (
            f"The position of a Kafka source cannot be read ({error!r}). It was written by another version of "
            "penstock. Start that version, or give the source a uid of its own."
        )
        raise StateIncompatible(msg) from error
    if stop is not None and not stop.keys() <= next.keys():
        msg = (
            "The position of a Kafka source is damaged: it ends in partitions where it does not begin. Rewind to "
            "another checkpoint, or give the source a uid of its own."
        )
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


# ---- start and stop --------------------------------------------------------------------------------------------------

OffsetWord: TypeAlias = Literal["earliest", "latest"]
OffsetReset: TypeAlias = Literal["fail", "earliest", "latest"]
OFFSET_RESETS: Final = get_args(OffsetReset)
StartText: TypeAlias = "str | datetime | Mapping[str, Mapping[int, int | OffsetWord]]"
"""``"earliest"``, ``"latest"``, ``"committed"``, a time, or offsets by topic and partition."""
StopText: TypeAlias = "str | datetime | Mapping[str, Mapping[int, int | Literal['latest']]]"
"""``"latest"``, a time, or offsets by topic and partition."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record of each partition that is not older than ``millis`` since the epoch, as in Kafka."""

    millis: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset, or a word for one, for each partition."""

    offsets: Mapping[TopicPartition, int | OffsetWord]


Start: TypeAlias = "Literal['earliest', 'latest', 'committed'] | AtTimestamp | AtOffsets"
Stop: TypeAlias = "Literal['latest'] | AtTimestamp | AtOffsets"
ResolvedOffsets: TypeAlias = Mapping[TopicPartition, "int | None"]
"""Offsets that the broker looked up; ``None`` where it has none for that time or that group."""


def parse_start(start: object) -> Start:
    """``start`` as a boundary.

    Raises:
        GraphError: it is none.

    >>> parse_start("1970-01-01T00:00:01Z"), parse_start({"orders": {0: 12}})
    (AtTimestamp(millis=1000), AtOffsets(offsets={TopicPartition(topic='orders', partition=0): 12}))
    """
    return cast("Start", _parse("start", start, ("earliest", "latest", "committed"), ("earliest", "latest")))


def parse_stop(stop: object) -> Stop:
    """``stop`` as a boundary.

    Raises:
        GraphError: it is none.
    """
    return cast("Stop", _parse("stop", stop, ("latest",), ("latest",)))


def _parse(
    name: str, value: object, words: tuple[str, ...], offset_words: tuple[str, ...]
) -> str | AtTimestamp | AtOffsets:
    if isinstance(value, str):
        return value if value in words else AtTimestamp(_millis(name, _moment(name, value, words)))
    if isinstance(value, datetime):
        return AtTimestamp(_millis(name, value))
    if isinstance(value, Mapping) and value:
        return AtOffsets(_offsets(name, value, offset_words))
    raise _meaningless(name, value, words)


def _moment(name: str, text: str, words: tuple[str, ...]) -> datetime:
    try:
        return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        raise _meaningless(name, text, words) from None


def _meaningless(name: str, value: object, words: tuple[str, ...]) -> GraphError:
    known = ", ".join(map(repr, words))
    hint = " The group's offsets are called 'committed'." if value in ("group", "group-offsets") else ""
    return GraphError(
        f"{name}={value!r} is not a place in a topic.{hint} Write one of {known}, a time such as "
        "'2026-01-31T00:00:00Z', or offsets such as {'orders': {0: 120, 1: 97}}."
    )


def _millis(name: str, moment: datetime) -> int:
    if moment.tzinfo is None:
        msg = (
            f"{name}={moment.isoformat()!r} has no time zone, so it could be any of several moments. Write it with "
            "one, as in '2026-01-31T00:00:00Z' or datetime(2026, 1, 31, tzinfo=timezone.utc)."
        )
        raise GraphError(msg)
    millis = (moment - _EPOCH) // timedelta(milliseconds=1)
    if millis < 0:
        msg = f"{name}={moment.isoformat()!r} is before 1970, and records have no such times. Write 'earliest'."
        raise GraphError(msg)
    return millis


def _offsets(
    name: str, value: Mapping[object, object], words: tuple[str, ...]
) -> dict[TopicPartition, int | OffsetWord]:
    found: dict[TopicPartition, int | OffsetWord] = {}
    for topic, partitions in value.items():
        if not isinstance(topic, str) or not isinstance(partitions, Mapping) or not partitions:
            msg = f"{name}={value!r} has no offsets by topic and partition. Write {{'orders': {{0: 120}}}}."
            raise GraphError(msg)
        for partition, offset in partitions.items():
            if not _is_number(partition) or not (_is_number(offset) or offset in words):
                known = " or ".join(map(repr, words))
                msg = (
                    f"{name} has {{{partition!r}: {offset!r}}} for topic {topic!r}. Write partitions as numbers from 0 "
                    f"on, and their offsets as such numbers too, or as {known}."
                )
                raise GraphError(msg)
            found[TopicPartition(topic, cast("int", partition))] = cast("int | OffsetWord", offset)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def resolve_start(
    start: Start, topics: Topics, *, resolved: ResolvedOffsets | None = None, otherwise: OffsetReset = "fail"
) -> KafkaPosition:
    """The position of a source that has read nothing: an offset for every partition.

    Given and committed offsets are taken as they are. Whether they can be read is checked by
    ``reconcile``, as for any position.

    Args:
        start: where to begin.
        topics: the topics of the source.
        resolved: the offsets of the time that ``start`` is, or those of the group if it is ``"committed"``.
        otherwise: where to begin in a partition for which ``start`` gives no offset.

    Raises:
        ConnectorError: ``start`` gives no offset for a partition and ``otherwise`` is ``"fail"``, or it names a
            partition that does not exist.
    """
    return KafkaPosition(
        ids={name: topic.id for name, topic in topics.items()},
        next=_resolve("start", start, topics, resolved or {}, otherwise),
    )


def resolve_stop(stop: Stop, topics: Topics, *, resolved: ResolvedOffsets | None = None) -> Offsets:
    """The end of each partition that exists now.

    Raises:
        ConnectorError: ``stop`` leaves out a partition, or names one that does not exist.
    """
    return _resolve("stop", stop, topics, resolved or {}, "fail")


def _resolve(
    argument: str, bound: Start | Stop, topics: Topics, resolved: ResolvedOffsets, otherwise: OffsetReset
) -> Offsets:
    if isinstance(bound, AtOffsets):
        _check_named(argument, bound, topics)
    partitions = [TopicPartition(name, number) for name, topic in topics.items() for number in sorted(topic.partitions)]
    return {at: _resolve_partition(argument, bound, at, topics[at.topic], resolved, otherwise) for at in partitions}


def _check_named(argument: str, bound: AtOffsets, topics: Topics) -> None:
    unknown = [at for at in bound.offsets if at.topic not in topics or at.partition not in topics[at.topic].partitions]
    if unknown:
        msg = (
            f"{argument} has offsets for {_list(unknown)}, which the source does not read or the cluster does not "
            "have. Leave them out, or correct topics=."
        )
        raise ConnectorError(msg)


def _resolve_partition(
    argument: str,
    bound: Start | Stop,
    at: TopicPartition,
    topic: Topic,
    resolved: ResolvedOffsets,
    otherwise: OffsetReset,
) -> int:
    available = topic.partitions[at.partition]
    offset: int | str | None
    match bound:
        case AtTimestamp():
            offset = resolved.get(at)
            offset = available.latest if offset is None else offset  # every record is older: begin at the next one
        case AtOffsets():
            offset = bound.offsets.get(at, otherwise)
        case "committed":
            offset = resolved.get(at)
            offset = otherwise if offset is None else offset
        case _:
            offset = bound
    if isinstance(offset, int):
        return offset
    if offset == "fail":
        raise _no_offset(argument, bound, at)
    return available.earliest if offset == "earliest" else available.latest


def _no_offset(argument: str, bound: Start | Stop, at: TopicPartition) -> ConnectorError:
    if bound == "committed":
        return ConnectorError(
            f"start='committed', but the group has no offset for {at} (it never committed one, or it has expired). "
            "Say where to begin in such partitions, with start_otherwise='earliest' or 'latest'."
        )
    hint = (
        ", or say where to begin in all others, with start_otherwise='earliest' or 'latest'"
        if argument == "start"
        else ""
    )
    return ConnectorError(
        f"{argument} has no offset for {at}. Name each partition, perhaps with the word 'latest'{hint}."
    )


def _list(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(map(str, sorted(partitions)[:5]))
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"  # noqa: PLR2004 - as shown
