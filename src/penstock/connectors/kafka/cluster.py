"""confluent-kafka's clients behind the protocols of ``client``: one consumer, one cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.kafka.client import ChainedFuture, ClientLog, Connection, is_transient, to_error
from penstock.connectors.kafka.offsets import AvailableOffsets, Offsets, Topic, TopicPartition, Topics
from penstock.connectors.secrets import resolve
from penstock.errors import ConnectorError, SettingsError

if TYPE_CHECKING:
    from penstock.connectors.kafka.client import ClientError, FutureSteps, Message
    from penstock.connectors.kafka.offsets import ResolvedOffsets

REQUEST_SECONDS: Final = 10.0
"""Time-out of one request to a cluster."""
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""The topic id that brokers before 2.8 return."""


def require_client() -> None:
    """Check that confluent-kafka can be imported.

    Raises:
        SettingsError: it cannot.
    """
    try:
        import confluent_kafka.admin  # noqa: F401
    except ImportError as error:
        msg = f"Kafka needs confluent-kafka, which cannot be loaded ({error}). Run pip install 'penstock[kafka]'."
        raise SettingsError(msg) from error


def new_client(client: Any, options: Mapping[str, Any], log: ClientLog, *, of: str) -> Any:
    """A client of confluent-kafka's; ``of`` says whose options they are, for people.

    Raises:
        ConnectorError: a secret is not there, or an option is not one of librdkafka's.
    """
    from confluent_kafka import KafkaException

    try:
        return client(resolve(options), logger=log)
    except KafkaException as raised:
        why = f"The client refuses an option ({raised.args[0].str()}). Correct options= of the {of}."
        msg = f"Kafka at {options['bootstrap.servers']}: {why}"
        raise ConnectorError(msg) from None


class KafkaConsumer:
    """A consumer that fetches in threads of the client library."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._closed = False

    def assign(self, offsets: Offsets) -> None:
        """Fetch these partitions too, from these offsets on."""
        from confluent_kafka import TopicPartition as ClientPartition

        self._consumer.incremental_assign(
            [ClientPartition(at.topic, at.partition, offset) for at, offset in offsets.items()]
        )

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these partitions, and drop what was fetched of them."""
        from confluent_kafka import TopicPartition as ClientPartition

        self._consumer.incremental_unassign([ClientPartition(at.topic, at.partition) for at in partitions])

    def take(self, most: int, *, wait: float = 0) -> Sequence[Message]:
        """Up to ``most`` messages that have arrived; if none, those of the next ``wait`` seconds."""
        if wait:
            first: list[Message] = self._consumer.consume(1, timeout=wait)
            return first + self._consumer.consume(most - 1, timeout=0) if first and most > 1 else first
        taken: Sequence[Message] = self._consumer.consume(most, timeout=0)
        return taken

    def close(self) -> None:
        """Close the connection."""
        if not self._closed:
            self._closed = True
            self._consumer.close()


class KafkaCluster:
    """The clients of one reader.

    There is one admin client for the whole time: one that is dropped during a request never answers it.

    Raises:
        ConnectorError: a secret is not there, or an option is not one of librdkafka's.
    """

    def __init__(self, connection: Connection) -> None:
        require_client()
        from confluent_kafka.admin import AdminClient

        self._connection = connection
        self._log = ClientLog()
        self._admin: Any = self._new_client(AdminClient, connection.client_options(), self._log.on_reported_error)
        self._group: Any = None
        self._commit_result: Future[None] = Future()
        self._closed = False

    def _new_client(self, client: Any, options: Mapping[str, Any], on_error: Callable[[Any], None]) -> Any:
        return new_client(client, {**options, "error_cb": on_error}, self._log, of="source")

    # ---- requests, each a chain of steps for ChainedFuture -----------------------------------------------------------

    def list_topics(self) -> ChainedFuture[frozenset[str]]:
        """The names of all topics."""
        return self._request(self._list_topics(), "the list of topics")

    def _list_topics(self) -> FutureSteps[frozenset[str]]:
        future = _in_thread(lambda: self._admin.list_topics(timeout=REQUEST_SECONDS))
        yield [future]
        return frozenset(future.result().topics)

    def topic_ids(self, names: Collection[str]) -> ChainedFuture[Mapping[str, str | None]]:
        """The ids of topics; a topic that does not exist is missing."""
        return self._request(self._topic_ids(names), _topics_text(names))

    def _topic_ids(self, names: Collection[str]) -> FutureSteps[Mapping[str, str | None]]:
        return {name: _id(topic) for name, topic in (yield from self._described(names)).items()}

    def _described(self, names: Collection[str]) -> FutureSteps[Mapping[str, Any]]:
        from confluent_kafka import KafkaException, TopicCollection

        if not names:
            return {}
        futures = self._admin.describe_topics(TopicCollection(sorted(names)), request_timeout=REQUEST_SECONDS)
        yield list(futures.values())
        found = {}
        for name, future in futures.items():
            try:
                found[name] = future.result()
            except KafkaException as error:
                if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise
        self._log.on_answer()
        return found

    def describe_topics(self, names: Collection[str], known: Topics) -> ChainedFuture[Topics]:
        """Topics with their partitions and the offsets that can be read."""
        return self._request(self._describe_topics(names, known), _topics_text(names))

    def _describe_topics(self, names: Collection[str], known: Topics) -> FutureSteps[Topics]:
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it is exported in all but its stub

        described = yield from self._described(names)
        partitions = [TopicPartition(name, each.id) for name, topic in described.items() for each in topic.partitions]
        spec: Any = OffsetSpec
        first = self._list_offsets(partitions, spec.earliest())
        last = self._list_offsets(partitions, spec.latest())
        yield [*first.values(), *last.values()]
        earliest, latest = _offsets(first), _offsets(last)
        found: dict[str, Topic] = {}
        for name, topic in described.items():
            known_offsets = known[name].partitions if name in known else {}
            available = {}
            for at in (TopicPartition(name, each.id) for each in topic.partitions):
                begin, end = earliest[at], latest[at]
                if isinstance(begin, int) and isinstance(end, int):
                    available[at.partition] = AvailableOffsets(begin, max(begin, end))
                elif at.partition in known_offsets:
                    available[at.partition] = known_offsets[at.partition]
                else:
                    raise next(error for error in (begin, end) if isinstance(error, Exception))
            found[name] = Topic(id=_id(topic), partitions=available)
        return found

    def _list_offsets(self, partitions: Collection[TopicPartition], spec: Any) -> Mapping[Any, Future[Any]]:
        from confluent_kafka import IsolationLevel
        from confluent_kafka import TopicPartition as ClientPartition

        if not partitions:
            return {}
        committed = self._connection.committed_only
        futures: Mapping[Any, Future[Any]] = self._admin.list_offsets(
            {ClientPartition(at.topic, at.partition): spec for at in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=REQUEST_SECONDS,
        )
        return futures

    def offsets_for_time(self, millis: int, partitions: Collection[TopicPartition]) -> ChainedFuture[ResolvedOffsets]:
        """The first offset of each partition whose record is not older; ``None`` where all are older."""
        steps = self._offsets_for_time(millis, partitions)
        return self._request(steps, f"the offsets of a time in {len(partitions)} partitions")

    def _offsets_for_time(self, millis: int, partitions: Collection[TopicPartition]) -> FutureSteps[ResolvedOffsets]:
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it is exported in all but its stub

        futures = self._list_offsets(partitions, OffsetSpec.for_timestamp(millis))
        yield list(futures.values())
        return {at: _offset_or_none(offset) for at, offset in _offsets(futures).items()}

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> ChainedFuture[ResolvedOffsets]:
        """The offsets that the group has committed; ``None`` where it has none."""
        return self._request(self._committed_offsets(partitions), f"group {self._connection.group!r}")

    def _committed_offsets(self, partitions: Collection[TopicPartition]) -> FutureSteps[ResolvedOffsets]:
        from confluent_kafka import KafkaException
        from confluent_kafka import TopicPartition as ClientPartition

        client = self._group_client()
        client_partitions = [ClientPartition(at.topic, at.partition) for at in partitions]
        future = _in_thread(lambda: client.committed(client_partitions, timeout=REQUEST_SECONDS))
        yield [future]
        for each in future.result():
            if each.error is not None:
                raise KafkaException(each.error)
        return {TopicPartition(each.topic, each.partition): _offset_or_none(each.offset) for each in future.result()}

    def commit(self, offsets: Offsets) -> ChainedFuture[None]:
        """Commit offsets to the group; only one commit may be under way."""
        return self._request(self._commit(offsets), f"group {self._connection.group!r}")

    def _commit(self, offsets: Offsets) -> FutureSteps[None]:
        from confluent_kafka import TopicPartition as ClientPartition

        client, self._commit_result = self._group_client(), Future()
        client_partitions = [ClientPartition(at.topic, at.partition, offset) for at, offset in offsets.items()]
        client.commit(offsets=client_partitions, asynchronous=True)
        yield [self._commit_result]
        self._commit_result.result()

    def _group_client(self) -> Any:
        """The client that asks and commits for the group, without ever joining it.

        A consumer: the admin client's requests about groups end the process if their broker goes away meanwhile.
        """
        from confluent_kafka import Consumer

        if self._group is None:
            options = {**self._connection.group_options(), "on_commit": self._on_commit}
            self._group = self._new_client(Consumer, options, self._log.on_error)
        return self._group

    def _on_commit(self, error: Any, client_partitions: Sequence[Any]) -> None:
        from confluent_kafka import KafkaException

        error = error or next((each.error for each in client_partitions if each.error is not None), None)
        if self._commit_result.done():
            return
        if error is None:
            self._commit_result.set_result(None)
        else:
            self._commit_result.set_exception(KafkaException(error))

    def take_errors(self) -> list[ClientError]:
        """Errors since the last call that belong to no request."""
        self._admin.poll(0)
        return self._log.take_errors()

    def _request(self, steps: FutureSteps[Any], what: str) -> ChainedFuture[Any]:
        return ChainedFuture(steps, lambda error: self._translate(error, what), lambda: self._poll_clients(what))

    def _poll_clients(self, what: str) -> ConnectorError | None:
        self._admin.poll(0)
        if self._group is not None:
            self._group.poll(0)
        refusal = self._log.refusal
        return None if refusal is None else self._error(refusal.name(), refusal.str(), what)

    def _translate(self, raised: Exception, what: str) -> ConnectorError:
        from confluent_kafka import KafkaException

        if isinstance(raised, ConnectorError):
            return raised
        if not isinstance(raised, KafkaException):
            raise raised
        return self._error(*self._log.with_cause(raised.args[0]), what)

    def _error(self, code: str, message: str, what: str) -> ConnectorError:
        return to_error(code, message, servers=self._connection.servers, what=what)

    # ---- consumers ---------------------------------------------------------------------------------------------------

    def new_consumer(self) -> KafkaConsumer:
        """A consumer that fetches nothing yet."""
        from confluent_kafka import Consumer

        return KafkaConsumer(self._new_client(Consumer, self._connection.prefetch_options(), self._log.on_error))

    def close(self) -> None:
        """Poll the clients' callbacks a last time, then close the group's client."""
        if not self._closed:
            self._closed = True
            self._admin.poll(0)
            if self._group is not None:
                self._group.close()


def _in_thread(call: Callable[[], Any]) -> Future[Any]:
    """The result of a blocking call in a thread: a broker that is away must not block the reader."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _offsets(futures: Mapping[Any, Future[Any]]) -> dict[TopicPartition, int | Exception]:
    """The offset of each partition, or a transient error in its place; any other error is raised."""
    from confluent_kafka import KafkaException

    found: dict[TopicPartition, int | Exception] = {}
    for each, future in futures.items():
        try:
            found[TopicPartition(each.topic, each.partition)] = future.result().offset
        except KafkaException as error:
            if not is_transient(error.args[0].name()):
                raise
            found[TopicPartition(each.topic, each.partition)] = error
    return found


def _id(topic: Any) -> str | None:
    id = str(topic.topic_id)
    return None if id == _NO_ID else id


def _offset_or_none(offset: int | Exception) -> int | None:
    if isinstance(offset, Exception):
        raise offset
    return offset if offset >= 0 else None


def _topics_text(names: Iterable[str]) -> str:
    return "topic " + ", ".join(map(repr, sorted(names)[:5]))
