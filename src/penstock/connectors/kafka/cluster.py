"""Confluent-kafka's clients behind it."""

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


# ----------------------------------------------------------------------------------------------------
# A consumer of confluent-kafka in the driver's hands. Decides nothing.


class KafkaConsumer:
    """A consumer that fetches what comes, in threads of the client library."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._closed = False

    def add(self, at: Offsets) -> None:
        """Fetch these partitions too, from these offsets on."""
        from confluent_kafka import TopicPartition as Place

        self._consumer.incremental_assign([Place(part.topic, part.partition, offset) for part, offset in at.items()])

    def drop(self, parts: Collection[TopicPartition]) -> None:
        """Fetch these no more, and forget what was fetched of them."""
        from confluent_kafka import TopicPartition as Place

        self._consumer.incremental_unassign([Place(part.topic, part.partition) for part in parts])

    def take(self, most: int, *, wait: float = 0) -> Sequence[Message]:
        """What is there by now; if nothing is, one that comes while it waits."""
        if wait:
            first: list[Message] = self._consumer.consume(1, timeout=wait)
            return first + self._consumer.consume(most - 1, timeout=0) if first and most > 1 else first
        taken: Sequence[Message] = self._consumer.consume(most, timeout=0)
        return taken

    def close(self) -> None:
        """Release the connection."""
        if not self._closed:
            self._closed = True
            self._consumer.close()


# ----------------------------------------------------------------------------------------------------
# A cluster as confluent-kafka shows it: long-lived clients that answer what a reader asks. Decides nothing.
#
# One admin client for each reader: one that is dropped while it is asked something never answers.

REQUEST_SECONDS: Final = 10.0
"""How long a cluster may take to answer one question."""
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""What brokers before 2.8 give for a topic's id."""


def require_client() -> None:
    """See that the client library is there.

    Raises:
        SettingsError: it is not.
    """
    try:
        import confluent_kafka.admin  # noqa: F401
    except ImportError as error:
        msg = f"Kafka needs confluent-kafka, which cannot be loaded ({error}): pip install 'penstock[kafka]'"
        raise SettingsError(msg) from error


class KafkaCluster:
    """The clients of one reader.

    Raises:
        ConnectorError: a secret is not there, or an option is not one of librdkafka's.
    """

    def __init__(self, connection: Connection) -> None:
        require_client()
        from confluent_kafka.admin import AdminClient

        self._connection = connection
        self._said = ClientLog()
        self._admin: Any = self._made(AdminClient, connection.client_options(), self._said.complained)
        self._group: Any = None
        self._committing: Future[None] = Future()
        self._closed = False

    def _made(self, client: Any, options: Mapping[str, Any], hears: Callable[[Any], None]) -> Any:
        from confluent_kafka import KafkaException

        try:
            return client({**resolve(options), "error_cb": hears}, logger=self._said)
        except KafkaException as error:
            trouble = error.args[0]
            msg = f"Kafka at {self._connection.servers}: an option of the source cannot be ({trouble.str()})"
            raise ConnectorError(msg) from None

    # ------------------------------------------------------------------------------------------------------- questions

    def names(self) -> ChainedFuture[frozenset[str]]:
        """The names of all topics."""
        return self._ask(self._names(), "the list of topics")

    def _names(self) -> FutureSteps[frozenset[str]]:
        answer = _called(lambda: self._admin.list_topics(timeout=REQUEST_SECONDS))
        yield [answer]
        return frozenset(answer.result().topics)

    def ids(self, names: Collection[str]) -> ChainedFuture[Mapping[str, str | None]]:
        """The ids of topics."""
        return self._ask(self._ids(names), _of(names))

    def _ids(self, names: Collection[str]) -> FutureSteps[Mapping[str, str | None]]:
        return {name: _id(topic) for name, topic in (yield from self._described(names)).items()}

    def _described(self, names: Collection[str]) -> FutureSteps[Mapping[str, Any]]:
        from confluent_kafka import KafkaException, TopicCollection

        if not names:
            return {}
        asked = self._admin.describe_topics(TopicCollection(sorted(names)), request_timeout=REQUEST_SECONDS)
        yield list(asked.values())
        found = {}
        for name, future in asked.items():
            try:
                found[name] = future.result()
            except KafkaException as error:
                if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise
        self._said.answered()
        return found

    def look(self, names: Collection[str], before: Topics) -> ChainedFuture[Topics]:
        """Topics with their partitions and what can be read of them."""
        return self._ask(self._look(names, before), _of(names))

    def _look(self, names: Collection[str], before: Topics) -> FutureSteps[Topics]:
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it is exported in all but its stub

        described = yield from self._described(names)
        parts = [TopicPartition(name, part.id) for name, topic in described.items() for part in topic.partitions]
        spec: Any = OffsetSpec
        first, last = self._ask_offsets(parts, spec.earliest()), self._ask_offsets(parts, spec.latest())
        yield [*first.values(), *last.values()]
        earliest, latest = _offsets(first), _offsets(last)
        found: dict[str, Topic] = {}
        for name, topic in described.items():
            known = before[name].partitions if name in before else {}
            extents = {}
            for at in (TopicPartition(name, part.id) for part in topic.partitions):
                begin, end = earliest[at], latest[at]
                if isinstance(begin, int) and isinstance(end, int):
                    extents[at.partition] = AvailableOffsets(begin, max(begin, end))
                elif at.partition in known:
                    extents[at.partition] = known[at.partition]
                else:
                    raise next(error for error in (begin, end) if isinstance(error, Exception))
            found[name] = Topic(id=_id(topic), partitions=extents)
        return found

    def _ask_offsets(self, parts: Collection[TopicPartition], spec: Any) -> Mapping[Any, Future[Any]]:
        from confluent_kafka import IsolationLevel
        from confluent_kafka import TopicPartition as Place

        if not parts:
            return {}
        committed = self._connection.committed_only
        asked: Mapping[Any, Future[Any]] = self._admin.list_offsets(
            {Place(at.topic, at.partition): spec for at in parts},
            isolation_level=IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=REQUEST_SECONDS,
        )
        return asked

    def at_time(self, millis: int, parts: Collection[TopicPartition]) -> ChainedFuture[ResolvedOffsets]:
        """The first offset of each partition that is not older."""
        return self._ask(self._at_time(millis, parts), f"the offsets of a time in {len(parts)} partitions")

    def _at_time(self, millis: int, parts: Collection[TopicPartition]) -> FutureSteps[ResolvedOffsets]:
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it is exported in all but its stub

        asked = self._ask_offsets(parts, OffsetSpec.for_timestamp(millis))
        yield list(asked.values())
        return {at: _offset_or_none(offset) for at, offset in _offsets(asked).items()}

    def committed(self, parts: Collection[TopicPartition]) -> ChainedFuture[ResolvedOffsets]:
        """The offsets that the group has committed."""
        return self._ask(self._committed(parts), f"group {self._connection.group!r}")

    def _committed(self, parts: Collection[TopicPartition]) -> FutureSteps[ResolvedOffsets]:
        from confluent_kafka import KafkaException
        from confluent_kafka import TopicPartition as Place

        member = self._member()
        places = [Place(at.topic, at.partition) for at in parts]
        answer = _called(lambda: member.committed(places, timeout=REQUEST_SECONDS))
        yield [answer]
        for place in answer.result():
            if place.error is not None:
                raise KafkaException(place.error)
        return {TopicPartition(each.topic, each.partition): _offset_or_none(each.offset) for each in answer.result()}

    def commit(self, offsets: Offsets) -> ChainedFuture[None]:
        """Commit offsets to the group. One at a time."""
        return self._ask(self._commit(offsets), f"group {self._connection.group!r}")

    def _commit(self, offsets: Offsets) -> FutureSteps[None]:
        from confluent_kafka import TopicPartition as Place

        member, self._committing = self._member(), Future()
        places = [Place(at.topic, at.partition, offset) for at, offset in offsets.items()]
        member.commit(offsets=places, asynchronous=True)
        yield [self._committing]
        self._committing.result()

    def _member(self) -> Any:
        """A client that speaks for the group, without ever joining it.

        A consumer, since the admin client's questions about groups end the process if their broker goes away meanwhile.
        """
        from confluent_kafka import Consumer

        if self._group is None:
            options = {**self._connection.group_options(), "on_commit": self._committed_now}
            self._group = self._made(Consumer, options, self._said.heard)
        return self._group

    def _committed_now(self, error: Any, places: Sequence[Any]) -> None:
        from confluent_kafka import KafkaException

        error = error or next((place.error for place in places if place.error is not None), None)
        if self._committing.done():
            return
        if error is None:
            self._committing.set_result(None)
        else:
            self._committing.set_exception(KafkaException(error))

    def complaints(self) -> list[ClientError]:
        """What went wrong without a question, since the last time."""
        self._admin.poll(0)
        return self._said.complaints()

    def _ask(self, steps: FutureSteps[Any], what: str) -> ChainedFuture[Any]:
        return ChainedFuture(steps, lambda error: self._translated(error, what), lambda: self._served(what))

    def _served(self, what: str) -> ConnectorError | None:
        self._admin.poll(0)
        if self._group is not None:
            self._group.poll(0)
        refusal = self._said.refusal
        return None if refusal is None else self._failure(refusal.name(), refusal.str(), what)

    def _translated(self, error: Exception, what: str) -> ConnectorError:
        from confluent_kafka import KafkaException

        if isinstance(error, ConnectorError):
            return error
        if not isinstance(error, KafkaException):
            raise error
        return self._failure(*self._said.behind(error.args[0]), what)

    def _failure(self, code: str, said: str, what: str) -> ConnectorError:
        return to_error(code, said, servers=self._connection.servers, what=what)

    # -------------------------------------------------------------------------------------------------------- consumers

    def live(self) -> KafkaConsumer:
        """A consumer that fetches nothing yet."""
        from confluent_kafka import Consumer

        return KafkaConsumer(self._made(Consumer, self._connection.live_options(), self._said.heard))

    def close(self) -> None:
        """Let go of the client, once it has served what it still has to say."""
        if not self._closed:
            self._closed = True
            self._admin.poll(0)
            if self._group is not None:
                self._group.close()


def _called(call: Callable[[], Any]) -> Future[Any]:
    """What a call that waits will bring: a broker that is away must not hold up the reader."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def _offsets(asked: Mapping[Any, Future[Any]]) -> dict[TopicPartition, int | Exception]:
    """What was answered for each partition; an error that will pass stands for the answer."""
    from confluent_kafka import KafkaException

    found: dict[TopicPartition, int | Exception] = {}
    for place, future in asked.items():
        try:
            found[TopicPartition(place.topic, place.partition)] = future.result().offset
        except KafkaException as error:
            if not is_transient(error.args[0].name()):
                raise
            found[TopicPartition(place.topic, place.partition)] = error
    return found


def _id(topic: Any) -> str | None:
    id = str(topic.topic_id)
    return None if id == _NO_ID else id


def _offset_or_none(offset: int | Exception) -> int | None:
    if isinstance(offset, Exception):
        raise offset
    return offset if offset >= 0 else None


def _of(names: Iterable[str]) -> str:
    return "topic " + ", ".join(map(repr, sorted(names)[:5]))
