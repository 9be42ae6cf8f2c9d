"""Exact offset ranges out of what consumers return, in the driver and in Spark's Python workers.

Every worker imports this module, so it is light; confluent-kafka is imported when it is used.
"""

from __future__ import annotations

import gc
import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.connectors.kafka.client import END_REACHED, ClientLog, FetchFailed, Message, is_transient
from penstock.connectors.kafka.offsets import OffsetRange, TopicPartition
from penstock.connectors.secrets import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.connectors.secrets import Option


class PartitionRecords(NamedTuple):
    """Records of one partition, in order, and the bytes of their values."""

    at: TopicPartition
    messages: Sequence[Message]
    bytes: int


class RecordCollector:
    """Picks the records of given partitions, from given offsets on, out of what a consumer returns.

    Control records and gaps return no message. A range is complete when a later record or the end of its partition
    comes, which is an event with an offset.

    Args:
        begin: the first offset of each partition.
        end: the end of each partition that has one.
        servers: for error messages.

    Attributes:
        next: the next offset of each partition.
        unfinished: the partitions that have not reached their end.
    """

    def __init__(self, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], *, servers: str) -> None:
        self.next = dict(begin)
        self._end = end
        self._servers = servers
        self._partitions = {(at.topic, at.partition): at for at in begin}
        self.unfinished = {at for at, offset in begin.items() if at not in end or offset < end[at]}

    def collect(self, messages: Sequence[Message]) -> list[PartitionRecords]:
        """The records among ``messages`` that belong to the partitions, as they come: a partition may come again.

        Raises:
            FetchFailed: a partition cannot be read further.
        """
        if not messages:
            return []
        kind = type(messages[0])  # a method of it is called in C: a loop in Python takes twice as long
        events: list[Message] = []
        if any(map(kind.error, messages)):
            events = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        records = [
            part
            for topic, of_topic in groupby(messages, kind.topic)
            for partition, found in groupby(of_topic, kind.partition)
            if (part := self._records(self._partitions.get((topic, partition)), list(found)))
        ]
        for message in events:  # after the records: an event says nothing of those before it
            self._handle_event(message)
        return records

    def _records(self, at: TopicPartition | None, messages: list[Message]) -> PartitionRecords | None:
        if at is None or at not in self.unfinished:  # fetched before the partition was unassigned
            return None
        if messages[0].offset() < self.next[at]:
            raise self.failure(
                at, "_LOG_TRUNCATION", f"offset {messages[0].offset()} came where {self.next[at]} was due"
            )
        end, last = self._end.get(at), messages[-1].offset()
        if end is not None and last >= end:
            messages = messages[: bisect_left(messages, end, key=type(messages[0]).offset)]
            self._advance(at, end)
        else:
            self._advance(at, last + 1)
        return PartitionRecords(at, messages, sum(map(len, messages))) if messages else None

    def _advance(self, at: TopicPartition, offset: int) -> None:
        end = self._end.get(at)
        self.next[at] = offset if end is None else min(offset, end)
        if end is not None and offset >= end:
            self.unfinished.discard(at)

    def _handle_event(self, message: Message) -> None:
        error = message.error()
        assert error is not None  # it is an event
        name = error.name()
        at = self._partitions.get((message.topic(), message.partition()))
        if name == END_REACHED:
            if at in self.unfinished and message.offset() > self.next[at]:
                self._advance(at, message.offset())
        elif not is_transient(name) and (at is None or at in self.unfinished):
            raise self.failure(at, name, error.str())

    def failure(self, at: TopicPartition | None, code: str, cause: str) -> FetchFailed:
        """The exception for a partition that cannot be read; ``None``: the whole cluster cannot."""
        at = at or min(self.unfinished, default=TopicPartition("", -1))
        what = {"topic": at.topic, "partition": at.partition, "from": self.next.get(at), "to": self._end.get(at)}
        return FetchFailed({**what, "code": code, "cause": cause, "servers": self._servers})


# ---- reading ranges in a Python worker -------------------------------------------------------------------------------

MAX_PORTION_ROWS: Final = 16_384
"""Most records in one portion, the list of records that becomes one record batch."""
MAX_PORTION_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of values in one portion of several records."""
_MAX_MESSAGES: Final = 1_000
"""Most messages that one call takes from the consumer."""
_WAIT_STEP: Final = 0.2
"""Seconds of one wait for a record."""


def read(
    ranges: Sequence[OffsetRange], options: Mapping[str, Option], *, timeout: float
) -> Iterator[list[PartitionRecords]]:
    """All records of the ranges, in portions of bounded size; those of one partition in order.

    Args:
        ranges: of different partitions.
        options: of the consumer, which the worker keeps for the next call; secrets by reference.
        timeout: seconds without a message after which the read fails.

    Raises:
        FetchFailed: a range cannot be read, or nothing came for too long.
    """
    end = {part.at: part.end for part in ranges}
    servers = str(options["bootstrap.servers"])
    collector = RecordCollector({part.at: part.start for part in ranges}, end, servers=servers)
    if not collector.unfinished:
        return
    consumer, client_log = cached_consumer(options)
    client_log.on_answer()  # the driver did reach the cluster, and errors of earlier reads do not count
    try:
        _assign(consumer, collector)
        yield from _portions(_consume(consumer, collector, timeout, client_log))
    except GeneratorExit:  # a LIMIT above stopped the read: the records were right, the consumer is well
        consumer.unassign()
        raise
    except BaseException:
        discard_consumer(options)
        raise
    consumer.unassign()


def _assign(consumer: Any, collector: RecordCollector) -> None:
    from confluent_kafka import TopicPartition as ClientPartition

    consumer.assign(
        [ClientPartition(at.topic, at.partition, collector.next[at]) for at in sorted(collector.unfinished)]
    )


def _consume(
    consumer: Any, collector: RecordCollector, timeout: float, client_log: ClientLog
) -> Iterator[list[PartitionRecords]]:
    silent = 0.0
    assigned = len(collector.unfinished)
    while collector.unfinished:
        # Take what has arrived, or wait for one message: a wait for many would last until all of them have come.
        messages = consumer.consume(_MAX_MESSAGES, timeout=0) or consumer.consume(1, timeout=_WAIT_STEP)
        silent = 0.0 if messages else silent + _WAIT_STEP
        records = collector.collect(messages)
        if records:
            yield records
        if silent > timeout:
            why = f"; {client_log.last_error.str()}" if client_log.last_error is not None else ""
            raise collector.failure(None, "_TIMED_OUT", f"nothing came for {timeout:g} seconds{why}")
        if collector.unfinished and len(collector.unfinished) < assigned:  # or the broker goes on sending finished ones
            assigned = len(collector.unfinished)
            _unassign_finished(consumer, collector)


def _unassign_finished(consumer: Any, collector: RecordCollector) -> None:
    unfinished = collector.unfinished
    done = [each for each in consumer.assignment() if TopicPartition(each.topic, each.partition) not in unfinished]
    consumer.incremental_unassign(done)


def _portions(consumed: Iterable[list[PartitionRecords]]) -> Iterator[list[PartitionRecords]]:
    portion: list[PartitionRecords] = []
    rows = size = 0
    for records in consumed:
        for each in records:
            for part in _split(each):
                count = len(part.messages)
                if portion and (rows + count > MAX_PORTION_ROWS or size + part.bytes > MAX_PORTION_BYTES):
                    yield portion
                    portion, rows, size = [], 0, 0
                portion.append(part)
                rows, size = rows + count, size + part.bytes
    if portion:
        yield portion


def _split(records: PartitionRecords) -> Iterator[PartitionRecords]:
    """The records in parts that each fit into a portion, or hold one record."""
    messages = records.messages
    if records.bytes <= MAX_PORTION_BYTES and len(messages) <= MAX_PORTION_ROWS:
        yield records
        return
    begin = size = 0
    for number, message in enumerate(messages):
        length = len(message)
        if number > begin and (size + length > MAX_PORTION_BYTES or number - begin >= MAX_PORTION_ROWS):
            yield PartitionRecords(records.at, messages[begin:number], size)
            begin, size = number, 0
        size += length
    yield PartitionRecords(records.at, messages[begin:], size)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause Python's cyclic garbage collector.

    Records are many objects in no cycle, and the collector would traverse all objects, modules included, again and
    again: a third of the time of reading. Reference counts free records anyway.

    >>> with gc_paused():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# ---- consumers that a worker keeps -----------------------------------------------------------------------------------

_MAX_CACHED: Final = 4
"""Consumers that a worker keeps open, each with other options."""


class CachedConsumer(NamedTuple):
    """A consumer that is kept, and the errors that it reports by itself."""

    consumer: Any
    log: ClientLog


_consumers: OrderedDict[tuple[object, ...], CachedConsumer] = OrderedDict()


def cached_consumer(options: Mapping[str, Option]) -> CachedConsumer:
    """This process's consumer with these options, made by the first call.

    Raises:
        ConnectorError: a secret is not there.
    """
    from confluent_kafka import Consumer

    key = _key(options)
    if key not in _consumers:
        while len(_consumers) >= _MAX_CACHED:
            _consumers.popitem(last=False)[1].consumer.close()
        log = ClientLog()
        _consumers[key] = CachedConsumer(Consumer({**resolve(options), "error_cb": log.on_error}), log)
    _consumers.move_to_end(key)
    return _consumers[key]


def discard_consumer(options: Mapping[str, Option]) -> None:
    """Close this process's consumer with these options; the next call makes a new one."""
    cached = _consumers.pop(_key(options), None)
    if cached is not None:
        cached.consumer.close()


def _key(options: Mapping[str, Option]) -> tuple[object, ...]:
    return (os.getpid(), *sorted(options.items(), key=lambda item: item[0]))
