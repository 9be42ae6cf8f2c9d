"""confluent-kafka's transactional producer behind the protocol of ``transactions``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.connectors.kafka.client import ClientLog, Connection
from penstock.connectors.kafka.cluster import new_client, require_client
from penstock.connectors.kafka.identity import Marker
from penstock.connectors.kafka.producer import ClientFailure, client_arguments, producer_options

if TYPE_CHECKING:
    from penstock.connectors.kafka.records import OutputRecord
    from penstock.connectors.secrets import Option

T = TypeVar("T")

_CALL_SECONDS: Final = 10.0
"""Time-out of one call; one that the client calls retriable is made again."""
_STEP: Final = 0.2
"""Seconds between two looks at a full queue."""
_ABORT_SECONDS: Final = 2.0
_COORDINATOR_MOVES: Final = frozenset(
    {
        "NOT_COORDINATOR",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "UNSTABLE_OFFSET_COMMIT",
        "_WAIT_COORD",
    }
)
"""The group's broker is being found, or has yet to load its offsets: the client does not ask again by itself."""
_MOST_READS: Final = 100
TRANSACTION_MS: Final = 300_000
"""How long a publication may take, unless the options say otherwise; then the broker aborts it."""
_DEFAULTS: Final[Mapping[str, Option]] = {
    "linger.ms": 1,
    "retry.backoff.ms": 1,  # markers of the transaction before are still being written: 100 ms would be waited for
    "retry.backoff.max.ms": 10,
    "transaction.timeout.ms": TRANSACTION_MS,
}


class KafkaTransactions:
    """A transactional producer, and a consumer of its group that never joins it.

    No delivery callback is set: with one, fencing breaks the client's calls. A commit fails if any delivery did.

    Raises:
        SettingsError: the client library is missing.
        ConnectorError: a secret is not there, or an option is not one of librdkafka's.
    """

    def __init__(self, connection: Connection, transactional_id: str, topic: str) -> None:
        require_client()
        from confluent_kafka import Consumer, Producer

        self._log = ClientLog()
        options = producer_options(connection, _DEFAULTS)
        options = {**options, "transactional.id": transactional_id, "error_cb": self._log.on_error}  # type: ignore[dict-item]
        self._producer: Any = new_client(Producer, options, self._log, of="sink")
        group = replace(connection, group=transactional_id)
        self._consumer: Any = new_client(Consumer, _reading_options(group, self._log), self._log, of="sink")
        self._topic = topic
        self._is_open = False

    def fence(self) -> None:
        """Initialise transactions."""
        self._call(lambda: self._producer.init_transactions(_CALL_SECONDS))

    def marker(self) -> Marker | None:
        """The committed offset of the group, once it is stable."""
        return self._call(lambda: committed_marker(self._consumer, self._topic))

    def begin(self) -> None:
        """Begin a transaction."""
        self._call(self._producer.begin_transaction)
        self._is_open = True

    def produce(self, records: Iterable[OutputRecord]) -> None:
        """Hand records to the producer. What it does not take is an error: a commit would go on without it."""
        produce, poll = self._producer.produce, self._producer.poll
        with self._translated():
            for record in records:
                while True:
                    try:
                        produce(*client_arguments(record))
                        break
                    except BufferError:  # the queue is full
                        poll(_STEP)

    def mark(self, marker: Marker) -> None:
        """Add the marker as an offset of the group."""
        from confluent_kafka import TopicPartition

        offsets = [TopicPartition(self._topic, 0, marker.next, marker.metadata)]
        group = self._consumer.consumer_group_metadata()
        self._call(lambda: self._producer.send_offsets_to_transaction(offsets, group, _CALL_SECONDS))

    def commit(self) -> None:
        """Commit; from here on nothing is aborted, for it may be committed."""
        self._is_open = False
        self._call(lambda: self._producer.commit_transaction(_CALL_SECONDS))

    def close(self) -> None:
        """Abort what is open, if that goes quickly, and let go."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        with suppress(Exception):
            producer.purge()
            if self._is_open:
                producer.abort_transaction(_ABORT_SECONDS)
        with suppress(Exception):
            self._consumer.close()

    def _call(self, call: Callable[[], T]) -> T:
        with self._translated():
            return call()

    def _translated(self) -> AbstractContextManager[None]:
        return _translated(self._log)


def look_at_marker(connection: Connection, transactional_id: str, topic: str) -> Marker | None:
    """The marker as it is now, without a fence: one that is being written may be missing.

    Raises:
        ClientFailure: the cluster does not tell.
        SettingsError: the client library is missing.
        ConnectorError: a secret is not there, or an option is not one of librdkafka's.
    """
    require_client()
    from confluent_kafka import Consumer

    log = ClientLog()
    group = replace(connection, group=transactional_id, committed_only=False)
    consumer = new_client(Consumer, _reading_options(group, log), log, of="sink")
    try:
        with _translated(log):
            return committed_marker(consumer, topic)
    finally:
        consumer.close()


def committed_marker(consumer: Any, topic: str) -> Marker | None:
    """The marker that a consumer's group has for a topic."""
    from confluent_kafka import KafkaException, TopicPartition

    for _ in range(_MOST_READS):
        try:
            (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=_CALL_SECONDS)
        except KafkaException as raised:
            error = raised.args[0]
        else:
            error = found.error
            if error is None:
                return Marker.parse(found.offset, found.metadata)
        if error.name() not in _COORDINATOR_MOVES:
            break
        consumer.poll(_STEP)
    raise KafkaException(error)


def _reading_options(group: Connection, log: ClientLog) -> dict[str, Any]:
    return {**group.group_options(), "log_level": 3, "error_cb": log.on_error}  # it knows no options of a producer


@contextmanager
def _translated(log: ClientLog) -> Iterator[None]:
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as raised:
        error = raised.args[0]
        code, message = log.with_cause(error)
        raise ClientFailure(code, message, retriable=error.retriable()) from raised
