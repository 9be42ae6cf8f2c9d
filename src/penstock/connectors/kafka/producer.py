"""A producer without transactions, which delivers at least once; and what the errors of producers mean."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.connectors.kafka.client import ClientLog, Connection
from penstock.connectors.kafka.cluster import new_client, require_client
from penstock.errors import ConnectorError, SinkUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.connectors.kafka.client import ClientError
    from penstock.connectors.kafka.records import OutputRecord
    from penstock.connectors.secrets import Option

# ---- what errors mean ------------------------------------------------------------------------------------------------


class ClientFailure(Exception):
    """A call of a client failed.

    Attributes:
        code: the client's name of the error, such as ``_TIMED_OUT``.
        retriable: the client says that the same call may be made again.
    """

    def __init__(self, code: str, message: str, *, retriable: bool = False) -> None:
        super().__init__(code, message)  # the same arguments, so that it can be sent from an executor
        self.code = code
        self.message = message
        self.retriable = retriable

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


_LOGIN: Final = frozenset({"SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "_AUTHENTICATION", "_SSL"})
_MEANINGS: Final[tuple[tuple[frozenset[str], str], ...]] = (
    (_LOGIN, "No secure connection ({cause}). Check security.protocol, ssl.* and sasl.* in options."),
    (
        frozenset({"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"}),
        "Not allowed ({cause}). Grant WRITE and DESCRIBE on the topic to this job's user.",
    ),
    (
        frozenset({"TRANSACTIONAL_ID_AUTHORIZATION_FAILED"}),
        "Not allowed ({cause}). Grant WRITE and DESCRIBE on the transactional id to this job's user.",
    ),
    (
        frozenset({"GROUP_AUTHORIZATION_FAILED"}),
        "Not allowed ({cause}). Grant READ on the marker's consumer group, and on the topic, to this job's user.",
    ),
    (
        frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION"}),
        "There is no such topic or partition ({cause}). Create it, or correct the name.",
    ),
    (
        frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"}),
        "A record is too large ({cause}). Raise message.max.bytes in options and max.message.bytes of the topic, or "
        "make the rows smaller.",
    ),
    (
        frozenset({"INVALID_TRANSACTION_TIMEOUT"}),
        "The broker allows no such time-out ({cause}). Lower transaction.timeout.ms in options, or raise "
        "transaction.max.timeout.ms of the brokers.",
    ),
    (
        frozenset({"INVALID_RECORD", "INVALID_TIMESTAMP", "POLICY_VIOLATION", "INVALID_REQUIRED_ACKS"}),
        "The broker refuses a record ({cause}). A compacted topic needs keys; see the settings of the topic.",
    ),
    (
        frozenset({"UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE", "_NOT_IMPLEMENTED", "_INVALID_ARG"}),
        "The client cannot do this here ({cause}). Check the options of the sink and the version of the brokers.",
    ),
)
"""Names of errors that no retry mends; any other name is an outage."""


def is_lasting(name: str) -> bool:
    """Whether an error of a producer stays until somebody mends its reason.

    >>> is_lasting("TOPIC_AUTHORIZATION_FAILED"), is_lasting("_TRANSPORT")
    (True, False)
    """
    return any(name in names for names, _ in _MEANINGS)


def sink_error(name: str, message: str, *, servers: str, what: str) -> ConnectorError:
    """The job's error for an error of a producer.

    Args:
        name: the client's code.
        message: the client's message.
        servers: which cluster.
        what: what was to be done, such as ``"topic 'orders'"``.

    >>> sink_error("_MSG_TIMED_OUT", "timed out", servers="k:9092", what="topic 'orders'").retry
    True
    """
    cause = f"{name}: {message}"
    for names, meaning in _MEANINGS:
        if name in names:
            return ConnectorError(f"Kafka at {servers}, {what}: {meaning.format(cause=cause)}")
    reach = "See that a broker runs there and can be reached."
    return SinkUnavailable(f"Kafka at {servers}, {what}: Not delivered ({cause}). {reach}")


# ---- options ---------------------------------------------------------------------------------------------------------

_DEFAULTS: Final[Mapping[str, Option]] = {
    "linger.ms": 5,
    "partitioner": "murmur2_random",  # as the Java client: a key goes to the same partition whoever writes it
}
_REQUIRED: Final[Mapping[str, Option]] = {"enable.idempotence": True, "delivery.report.only.error": True}


def producer_options(
    connection: Connection, defaults: Mapping[str, Option] = MappingProxyType({})
) -> dict[str, Option]:
    """Properties of a producer; ``defaults`` are those that it has besides."""
    return {**_DEFAULTS, **defaults, **connection.client_options(), **_REQUIRED}


# ---- the producer ----------------------------------------------------------------------------------------------------


class Deliveries(Protocol):
    """Sends records in the background. An error that ends a delivery is raised by the next call, and by each later."""

    def send(self, records: Iterable[OutputRecord]) -> None:
        """Hand records over, in their order for each partition; waits while the queue is full.

        Raises:
            ConnectorError: an earlier record was not delivered, or one of these cannot be sent.
        """
        ...

    def flush(self) -> None:
        """Wait until everything that was handed over is delivered.

        Raises:
            ConnectorError: something was not.
        """
        ...

    def close(self) -> None:
        """Let go of the connection, and of what is not delivered. Calling it twice is harmless."""
        ...


_STEP: Final = 0.2
"""Seconds between two looks for a failure while everything waits."""
_POLL_EVERY: Final = 1_000
"""Records between two looks for failures."""


class KafkaDeliveries:
    """confluent-kafka's producer as ``Deliveries``.

    Raises:
        SettingsError: the client library is missing.
        ConnectorError: a secret is not there, or an option is not one of librdkafka's.
    """

    def __init__(self, connection: Connection, what: str) -> None:
        require_client()
        from confluent_kafka import Producer

        self._servers = connection.servers
        self._what = what
        self._failure: ConnectorError | None = None
        self._log = ClientLog()
        options = {**producer_options(connection), "error_cb": self._log.on_error}
        self._producer: Any = new_client(Producer, options, self._log, of="sink")
        self._closed = False

    def send(self, records: Iterable[OutputRecord]) -> None:
        """Hand records over."""
        from confluent_kafka import KafkaException

        produce, poll = self._producer.produce, self._producer.poll
        for number, record in enumerate(records):
            if number % _POLL_EVERY == 0:
                poll(0)
                self._raise_failure()
            while True:
                try:
                    produce(*client_arguments(record, self._on_delivery))
                    break
                except BufferError:  # the queue is full
                    poll(_STEP)
                    self._raise_failure()
                except KafkaException as raised:
                    self._failed(raised.args[0])
                    self._raise_failure()

    def flush(self) -> None:
        """Wait for all deliveries; the client gives each up after ``message.timeout.ms``."""
        while not self._closed and self._producer.flush(_STEP) and self._failure is None:
            pass
        self._raise_failure()

    def close(self) -> None:
        """Drop what is not delivered."""
        if not self._closed:
            self._closed = True
            self._producer.purge()
            self._producer.poll(0)

    def _on_delivery(self, error: ClientError | None, _message: object) -> None:
        if error is not None and not self._closed:
            self._failed(error)

    def _failed(self, error: ClientError) -> None:
        if self._failure is None:
            name, message = self._log.with_cause(error)
            self._failure = sink_error(name, message, servers=self._servers, what=self._what)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def client_arguments(record: OutputRecord, on_delivery: object = None) -> tuple[object, ...]:
    """The arguments of confluent-kafka's ``produce`` for a record."""
    topic, key, value, partition, timestamp_ms, headers = record
    return (
        topic,
        value,
        key,
        -1 if partition is None else partition,
        on_delivery,
        None,
        timestamp_ms or 0,
        headers or [],
    )
