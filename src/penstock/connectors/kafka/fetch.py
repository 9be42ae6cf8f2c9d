"""Exact offset ranges out of what consumers bring."""

from __future__ import annotations

import gc
import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.connectors.kafka.client import END_REACHED, ClientLog, FetchFailed, Message, is_transient
from penstock.connectors.kafka.offsets import OffsetRange, TopicPartition
from penstock.connectors.secrets import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.connectors.kafka.client import ClientError
    from penstock.connectors.secrets import Option


# ----------------------------------------------------------------------------------------------------
# Python's garbage collector out of the way while many objects are made that are in no cycle. Knows no source.


@contextmanager
def gc_paused() -> Iterator[None]:
    """No collection of cycles inside.

    Ten thousands of records are ten thousands of objects for the collector, and each so many of them it looks through
    all that is there, modules included: a third of the time of reading records. Reference counts free them anyway.

    >>> with gc_paused():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# ----------------------------------------------------------------------------------------------------
# Takes exact ranges of offsets out of what Kafka consumers bring, in the driver and in Spark's Python workers.
#
# Knows no plan and no decoding. Light, since every worker loads it; confluent-kafka is loaded when it is used.

MAX_PORTION_ROWS: Final = 16_384
"""Most records that are handed on at a time."""
MAX_PORTION_BYTES: Final = 8 * 1024 * 1024
"""Bytes of values after which no more records are added to those that are handed on at a time."""
_CHUNK: Final = 1_000
_ROUND: Final = 0.2
"""Seconds of one wait for a record."""
_KEPT: Final = 4
"""Consumers that a worker keeps open, each with settings of its own."""


class PartitionRecords(NamedTuple):
    """Records of one partition, in order."""

    at: TopicPartition
    messages: Sequence[Message]


class RecordCollector:
    """Follows partitions from their first offset on: what belongs to them of all that a consumer brings.

    Control records and gaps bring nothing but the end of a partition, at an offset behind them; the end of a range is
    reached by the one or the other.

    Args:
        begin: where each partition begins.
        end: where they end, of those that do.
        servers: for the message of an error.
    """

    def __init__(self, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], *, servers: str) -> None:
        self.next = dict(begin)
        self._end = end
        self._servers = servers
        self._parts = {(at.topic, at.partition): at for at in begin}
        self.left = {at for at, offset in begin.items() if at not in end or offset < end[at]}

    def take(self, chunk: Sequence[Message]) -> list[PartitionRecords]:
        """The records of a chunk that belong to the partitions, by partition.

        Raises:
            FetchFailed: a partition cannot be read further from where it stands.
        """
        found: dict[tuple[str, int], list[Message]] = {}
        events: list[tuple[Message, ClientError]] = []
        for message in chunk:
            trouble = message.error()
            if trouble is not None:
                events.append((message, trouble))
                continue
            key = message.topic(), message.partition()
            try:
                found[key].append(message)
            except KeyError:
                found[key] = [message]
        runs = [run for key, messages in found.items() if (run := self._run(self._parts.get(key), messages))]
        for message, trouble in events:  # an end says nothing of the records before it
            self._event(message, trouble)
        return runs

    def _run(self, at: TopicPartition | None, messages: list[Message]) -> PartitionRecords | None:
        if at is None or at not in self.left:  # on its way since it was no longer asked for
            return None
        if messages[0].offset() < self.next[at]:
            raise self.failed(
                at, "_LOG_TRUNCATION", f"offset {messages[0].offset()} came where {self.next[at]} was due"
            )
        end, last = self._end.get(at), messages[-1].offset()
        if end is not None and last >= end:
            messages = messages[: bisect_left(messages, end, key=lambda message: message.offset())]
            self._stands(at, end)
        else:
            self._stands(at, last + 1)
        return PartitionRecords(at, messages) if messages else None

    def _stands(self, at: TopicPartition, offset: int) -> None:
        end = self._end.get(at)
        self.next[at] = offset if end is None else min(offset, end)
        if end is not None and offset >= end:
            self.left.discard(at)

    def _event(self, message: Message, trouble: ClientError) -> None:
        name = trouble.name()
        at = self._parts.get((message.topic(), message.partition()))
        if name == END_REACHED:
            if at in self.left and message.offset() > self.next[at]:
                self._stands(at, message.offset())
        elif not is_transient(name) and (at is None or at in self.left):
            raise self.failed(at, name, trouble.str())

    def failed(self, at: TopicPartition | None, code: str, said: str) -> FetchFailed:
        """What is to be told when a partition, or ``None``: the cluster, cannot be read."""
        at = at or min(self.left, default=TopicPartition("", -1))
        told = {"topic": at.topic, "partition": at.partition, "from": self.next.get(at), "to": self._end.get(at)}
        return FetchFailed({**told, "code": code, "said": said, "servers": self._servers})


def read(
    ranges: Sequence[OffsetRange], options: Mapping[str, Option], *, patience: float
) -> Iterator[list[PartitionRecords]]:
    """All records of the ranges, in a Python worker; those of one partition in order, in portions of bounded size.

    Args:
        ranges: of different partitions.
        options: of the consumer, which the worker keeps for the next time; secrets by reference.
        patience: seconds without anything new after which a broker is given up.

    Raises:
        FetchFailed: a range cannot be read, or nothing came for too long.
    """
    end = {part.at: part.end for part in ranges}
    intake = RecordCollector({part.at: part.start for part in ranges}, end, servers=str(options["bootstrap.servers"]))
    if not intake.left:
        return
    consumer, said = consumer_of(options)
    said.answered()  # the driver did reach the cluster, and what was said before is over
    try:
        _assign(consumer, intake)
        yield from _portions(_taken(consumer, intake, patience, said))
    except GeneratorExit:  # a limit above: what was read is right, and the consumer is well
        consumer.unassign()
        raise
    except BaseException:
        discard(options)
        raise
    consumer.unassign()


def _assign(consumer: Any, intake: RecordCollector) -> None:
    from confluent_kafka import TopicPartition as Place

    consumer.assign([Place(at.topic, at.partition, intake.next[at]) for at in sorted(intake.left)])


def _taken(
    consumer: Any, intake: RecordCollector, patience: float, said: ClientLog
) -> Iterator[list[PartitionRecords]]:
    silent = 0.0
    left = len(intake.left)
    while intake.left:
        # One is waited for, the others are there or not: a wait for many would last until all of them have come.
        chunk = consumer.consume(1, timeout=_ROUND)
        if chunk:
            chunk += consumer.consume(_CHUNK - 1, timeout=0)
        silent = 0.0 if chunk else silent + _ROUND
        runs = intake.take(chunk)
        if runs:
            yield runs
        if silent > patience:
            why = f"; {said.last.str()}" if said.last is not None else ""
            raise intake.failed(None, "_TIMED_OUT", f"nothing came for {patience:g} seconds{why}")
        if intake.left and len(intake.left) < left:  # or the broker goes on sending what nobody wants
            left = len(intake.left)
            _release(consumer, intake)


def _release(consumer: Any, intake: RecordCollector) -> None:
    done = [place for place in consumer.assignment() if TopicPartition(place.topic, place.partition) not in intake.left]
    consumer.incremental_unassign(done)


def _portions(taken: Iterable[list[PartitionRecords]]) -> Iterator[list[PartitionRecords]]:
    gathered: list[PartitionRecords] = []
    rows = size = 0
    for runs in taken:
        for run in runs:
            for part in _cut(run):
                count, length = len(part.messages), sum(map(len, part.messages))
                if gathered and (rows + count > MAX_PORTION_ROWS or size + length > MAX_PORTION_BYTES):
                    yield gathered
                    gathered, rows, size = [], 0, 0
                gathered.append(part)
                rows, size = rows + count, size + length
    if gathered:
        yield gathered


def _cut(run: PartitionRecords) -> Iterator[PartitionRecords]:
    """A run in parts that hold no more than a portion may, or one record each."""
    messages = run.messages
    if sum(map(len, messages)) <= MAX_PORTION_BYTES and len(messages) <= MAX_PORTION_ROWS:
        yield run
        return
    begin = size = 0
    for place, message in enumerate(messages):
        size += len(message)
        if place > begin and (size > MAX_PORTION_BYTES or place - begin >= MAX_PORTION_ROWS):
            yield PartitionRecords(run.at, messages[begin:place])
            begin, size = place, len(message)
    yield PartitionRecords(run.at, messages[begin:])


class CachedConsumer(NamedTuple):
    """A consumer that is kept, and what it says of its own accord."""

    consumer: Any
    said: ClientLog


_consumers: OrderedDict[tuple[object, ...], CachedConsumer] = OrderedDict()


def consumer_of(options: Mapping[str, Option]) -> CachedConsumer:
    """This process's consumer with these options, made when it is asked for the first time.

    Raises:
        ConnectorError: a secret is not there.
    """
    from confluent_kafka import Consumer

    key = _key(options)
    if key not in _consumers:
        while len(_consumers) >= _KEPT:
            _consumers.popitem(last=False)[1].consumer.close()
        said = ClientLog()
        _consumers[key] = CachedConsumer(Consumer({**resolve(options), "error_cb": said.heard}), said)
    _consumers.move_to_end(key)
    return _consumers[key]


def discard(options: Mapping[str, Option]) -> None:
    """Close this process's consumer with these options; the next one is a new one."""
    held = _consumers.pop(_key(options), None)
    if held is not None:
        held.consumer.close()


def _key(options: Mapping[str, Option]) -> tuple[object, ...]:
    return (os.getpid(), *sorted(options.items(), key=lambda item: item[0]))
