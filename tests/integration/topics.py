"""What tests do to topics: make them, fill them in every way that Kafka knows, and take them away. Starts no broker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from crash.waiting import until
from integration.broker import QUIET

PATIENCE = 60
"""Seconds that a broker gets to do what it was asked; long, since only a defect lets them pass."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record to produce; without a value it is a tombstone, without a partition its key chooses one."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: Sequence[Header] = ()
    timestamp_ms: int | None = None


class Transaction:
    """A transaction whose records lie in the topic already; what becomes of them is open until one of its methods.

    These return when its markers lie in the topic too: Kafka itself answers before.
    """

    def __init__(self, producer: Producer, topics: Topics, topic: str, partitions: set[int]) -> None:
        self._producer = producer
        self._topics = topics
        self._topic = topic
        self._partitions = partitions

    def commit(self) -> None:
        self._end(self._producer.commit_transaction)

    def abort(self) -> None:
        self._end(self._producer.abort_transaction)

    def _end(self, ask: Callable[[float], None]) -> None:
        before = self._topics.ends(self._topic, committed=False)
        ask(PATIENCE)

        def is_marked() -> bool:
            now = self._topics.ends(self._topic, committed=False)
            return all(now[each] > before[each] for each in self._partitions)

        until(PATIENCE, f"markers in {self._topic}", is_marked)


class Topics:
    """The topics of one broker, as somebody sees them who may do anything.

    Args:
        servers: where the broker is.
        client: further settings of all its clients, such as those of a listener with TLS.
    """

    def __init__(self, servers: str, client: dict[str, str | int] | None = None) -> None:
        self._settings: dict[str, str | int] = {"bootstrap.servers": servers, **QUIET, **(client or {})}
        self._numbers = itertools.count()
        self.admin = AdminClient(dict(self._settings))
        """For what is asked too seldom to have a method here."""

    # --------------------------------------------------------------------------------------------------------- topics

    def create(self, stem: str, partitions: int = 1, **config: str | int) -> str:
        """A new topic whose name begins with the stem and is nobody else's; its name.

        Args:
            stem: what it is about.
            partitions: how many.
            config: settings of the topic, underscores for dots: ``cleanup_policy="compact"``.
        """
        name = f"{stem}-{next(self._numbers)}"
        self.make(name, partitions, config)
        return name

    def delete(self, topic: str) -> None:
        """Delete it, and wait until the broker no longer knows it."""
        self.admin.delete_topics([topic])[topic].result(PATIENCE)
        until(PATIENCE, f"{topic} is gone", lambda: topic not in self.admin.list_topics(timeout=PATIENCE).topics)

    def recreate(self, topic: str, partitions: int = 1, **config: str | int) -> None:
        """Delete it, and make an empty one of the same name and another id."""
        self.delete(topic)
        self.make(topic, partitions, config)

    def add_partitions(self, topic: str, total: int) -> None:
        """Have so many partitions in all."""
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(PATIENCE)
        self._until_there(topic, total)

    def delete_records(self, topic: str, before: dict[int, int]) -> None:
        """Forget, by partition, what lies before an offset."""
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        for future in self.admin.delete_records(wanted).values():
            future.result(PATIENCE)

    def ends(self, topic: str, *, committed: bool = True) -> dict[int, int]:
        """The offset after the last record of each partition; of an open transaction only if not ``committed``."""
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(topic, OffsetSpec.latest(), isolation)

    def begins(self, topic: str) -> dict[int, int]:
        """The offset of the first record that each partition still has."""
        return self._offsets(topic, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)

    def id(self, topic: str) -> str:
        """What tells a topic from another that had its name before."""
        described = self.admin.describe_topics(TopicCollection([topic]))[topic]
        return str(described.result(PATIENCE).topic_id)

    def _offsets(self, topic: str, spec: OffsetSpec, isolation: IsolationLevel) -> dict[int, int]:
        there = self.admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        wanted = {TopicPartition(topic, partition): spec for partition in there}
        offsets: dict[int, int] = {}

        def are_told() -> bool:
            """A broker that has just come back answers for a moment that others know more of its partitions."""
            found = self.admin.list_offsets(wanted, isolation_level=isolation)
            try:
                offsets.update((each.partition, future.result(PATIENCE).offset) for each, future in found.items())
            except KafkaException as error:
                if not error.args[0].retriable() and error.args[0].name() != "UNKNOWN_LEADER_EPOCH":
                    raise
                return False
            return True

        until(PATIENCE, f"the offsets of {topic}", are_told)
        return offsets

    def make(self, name: str, partitions: int, config: dict[str, str | int] | None = None) -> None:
        """A new topic of this name, that can be written to when this returns."""
        wanted = NewTopic(
            name, partitions, 1, config={key.replace("_", "."): str(text) for key, text in (config or {}).items()}
        )
        self.admin.create_topics([wanted])[name].result(PATIENCE)
        self._until_there(name, partitions)

    def _until_there(self, name: str, partitions: int) -> None:
        """The controller knows them at once, the broker a little later, and leads them later still."""

        def is_led() -> bool:
            found = self.admin.list_topics(timeout=PATIENCE).topics.get(name)
            try:
                return found is not None and len(found.partitions) == len(self.ends(name)) == partitions
            except KafkaException:
                return False

        until(PATIENCE, f"{name} has {partitions} partitions", is_led)

    # -------------------------------------------------------------------------------------------------------- records

    def produce(self, topic: str, records: Iterable[Record], *, compression: str = "none") -> None:
        """Append the records, in their order within a partition, and wait until the broker has them.

        Those that follow each other in a partition share a compressed batch; Kafka leaves uncompressed what would grow.
        """
        producer = Producer(self._settings | {"linger.ms": 20, "compression.type": compression, **LARGE})
        _append(producer, topic, records)

    def read(self, topic: str) -> list[Record]:
        """All records, by partition, as a reader of committed ones sees them. None of its transactions is open."""
        reading = {"enable.partition.eof": True, "isolation.level": "read_committed", "enable.auto.commit": False}
        consumer = Consumer({**self._settings, **reading, "group.id": "reader", "auto.offset.reset": "earliest"})
        begins = self.begins(topic)
        left = set(begins)
        consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in begins.items()])
        found: list[Record] = []
        empty = 0
        while left:
            messages = consumer.consume(10_000, 0.1)  # it waits for so many, or so long
            empty = 0 if messages else empty + 1
            assert empty < 10 * PATIENCE, f"{topic} was not read to its end"
            for message in messages:
                if (error := message.error()) is not None:
                    assert error.name() == "_PARTITION_EOF", error
                    left.discard(message.partition())
                    continue
                place, time = message.partition(), message.timestamp()[1]
                found.append(Record(message.value(), message.key(), place, message.headers() or (), time))
        consumer.close()
        return sorted(found, key=lambda each: each.partition or 0)

    def transact(self, topic: str, records: Iterable[Record], *, name: str | None = None) -> Transaction:
        """Append the records in a transaction and leave it open.

        Args:
            topic: where they go.
            records: what is appended.
            name: the transactional id; another producer with the same one aborts what this one left open.
        """
        settings = {"transactional.id": name or f"transaction-{next(self._numbers)}", "retry.backoff.ms": 10, **LARGE}
        producer = Producer(self._settings | settings)
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        return Transaction(producer, self, topic, _append(producer, topic, records))


LARGE = {"message.max.bytes": 32 << 20}
"""Records of ten megabytes are among what is tried."""


def _append(producer: Producer, topic: str, records: Iterable[Record]) -> set[int]:
    """Wait until the broker has them all; the partitions that they went to."""
    failed: list[str] = []
    partitions: set[int | None] = set()

    def told(error: KafkaError | None, message: Message[bytes, bytes]) -> None:
        partitions.add(message.partition())
        if error is not None:
            failed.append(str(error))

    for value, key, partition, headers, timestamp_ms in records:
        place, time = -1 if partition is None else partition, timestamp_ms or 0  # as the client says "not given"
        while True:
            try:
                producer.produce(topic, value, key, place, told, timestamp=time, headers=list(headers))
                break
            except BufferError:  # the queue is full: wait until some of it is delivered
                producer.poll(1)
    left = producer.flush(PATIENCE)
    assert (left, failed) == (0, []), f"{topic}: {left} records not delivered in time"
    return {each for each in partitions if each is not None}
