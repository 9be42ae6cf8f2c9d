"""Where reading of topics begins and ends: what users write, and the numbers it becomes. Asks no broker.

Whoever resolves a boundary looks at its kind first: :class:`AtTime` needs the offsets of that time, ``"committed"``
those that the group has committed; both are handed in as ``told``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final, Literal, TypeAlias, cast, get_args

from penstock.errors import ConnectorError, GraphError
from penstock.sources.kafka.offsets import Offsets, Progress, Topic, TopicPartition, Topics

Word: TypeAlias = Literal["earliest", "latest"]
Otherwise: TypeAlias = Literal["fail", "earliest", "latest"]
StartText: TypeAlias = "str | datetime | Mapping[str, Mapping[int, int | Word]]"
"""``"earliest"``, ``"latest"``, ``"committed"``, a time, or offsets by topic and partition."""

StopText: TypeAlias = "str | datetime | Mapping[str, Mapping[int, int | Literal['latest']]]"
"""``"latest"``, a time, or offsets by topic and partition."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of each partition that is not older; milliseconds since the epoch, as in Kafka."""

    millis: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Offsets of each partition, or words for them."""

    offsets: Mapping[TopicPartition, int | Word]


Start: TypeAlias = "Literal['earliest', 'latest', 'committed'] | AtTime | AtOffsets"
Stop: TypeAlias = "Literal['latest'] | AtTime | AtOffsets"
Told: TypeAlias = Mapping[TopicPartition, "int | None"]
"""What the broker answered, ``None`` where it has no offset of that time or of that group."""


def parse_start(start: object) -> Start:
    """The boundary that ``start`` means.

    Raises:
        GraphError: it means none.

    >>> parse_start("1970-01-01T00:00:01Z"), parse_start({"orders": {0: 12}})
    (AtTime(millis=1000), AtOffsets(offsets={TopicPartition(topic='orders', partition=0): 12}))
    """
    return cast("Start", _parse("start", start, ("earliest", "latest", "committed"), ("earliest", "latest")))


def parse_stop(stop: object) -> Stop:
    """The boundary that ``stop`` means.

    Raises:
        GraphError: it means none.
    """
    return cast("Stop", _parse("stop", stop, ("latest",), ("latest",)))


def _parse(name: str, value: object, words: tuple[str, ...], inner: tuple[str, ...]) -> str | AtTime | AtOffsets:
    if isinstance(value, str):
        return value if value in words else AtTime(_millis(name, _moment(name, value, words)))
    if isinstance(value, datetime):
        return AtTime(_millis(name, value))
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


def _offsets(name: str, given: Mapping[object, object], inner: tuple[str, ...]) -> dict[TopicPartition, int | Word]:
    found: dict[TopicPartition, int | Word] = {}
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
            found[TopicPartition(topic, cast("int", partition))] = cast("int | Word", offset)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def resolve_start(start: Start, topics: Topics, *, told: Told | None = None, otherwise: Otherwise = "fail") -> Progress:
    """The progress of a source that has read nothing: every partition begins at a number.

    Offsets that were given or committed are taken as they are; whether they can be read is for
    :func:`~penstock.sources.kafka.changes.reconcile` to find out, as with any that were read up to.

    Args:
        start: where to begin.
        topics: what is there.
        told: for a time, the offsets of that time; for ``"committed"``, those of the group.
        otherwise: where to begin in a partition that ``start`` says nothing of.

    Raises:
        ConnectorError: ``start`` says nothing of a partition, and nothing else was said; or it names one that does
            not exist.
    """
    return Progress(
        ids={name: topic.id for name, topic in topics.items()},
        next=_resolve("start", start, topics, told or {}, otherwise),
    )


def resolve_stop(stop: Stop, topics: Topics, *, told: Told | None = None) -> Offsets:
    """Where each partition that is there now ends.

    Raises:
        ConnectorError: ``stop`` does not name a partition, or one that does not exist.
    """
    return _resolve("stop", stop, topics, told or {}, "fail")


def _resolve(name: str, bound: Start | Stop, topics: Topics, told: Told, otherwise: Otherwise) -> Offsets:
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


def _place(name: str, bound: Start | Stop, at: TopicPartition, topic: Topic, told: Told, otherwise: Otherwise) -> int:
    extent = topic.partitions[at.partition]
    offset: int | str | None
    match bound:
        case AtTime():
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


OTHERWISE: Final = get_args(Otherwise)
