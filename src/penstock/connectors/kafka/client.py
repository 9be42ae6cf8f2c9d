"""Connection, asynchronous questions, what Kafka's errors mean."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast

from penstock.connectors.kafka.offsets import Offsets, ResolvedOffsets, TopicPartition, Topics
from penstock.connectors.secrets import Option
from penstock.errors import ConnectorError, SourceChanged, SourceUnavailable
from penstock.formats import text

# ----------------------------------------------------------------------------------------------------
# What a reader asks of a Kafka cluster, and with which settings; loads no client library.
#
# Nothing here waits unless it is told to: questions are asked, and their answers looked for later.

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_ALWAYS: Final[Mapping[str, Option]] = {
    "auto.offset.reset": "error",  # what is not there any more is never left out without a word
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}
_USUALLY: Final[Mapping[str, Option]] = {"client.id": "penstock", "log.connection.close": False}
_IN_WORKERS: Final[Mapping[str, Option]] = {
    # What is fetched beyond a range is fetched for nothing.
    "fetch.message.max.bytes": 131_072,
    "fetch.queue.backoff.ms": 1,
    "log_level": 0,  # a broker that is away is the driver's to tell; here each worker would, without end
    "fetch.wait.max.ms": 1,  # what is to be read is there; only the end of a range of control records is waited for
    "queued.max.messages.kbytes": 4_096,
    "queued.min.messages": 5_000,
}
_LIVE: Final[Mapping[str, Option]] = {
    "fetch.queue.backoff.ms": 1,
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 32_768,
    "queued.min.messages": 100_000,
}
_NO_GROUP: Final = "penstock"
"""Consumers must have a group, though nothing is ever subscribed to or committed in this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How to reach a cluster. Holds references to secrets, never the secrets.

    Attributes:
        servers: ``bootstrap.servers``.
        options: further client properties; they win over ours where ours are only a matter of speed.
        group: whose offsets are committed and asked for, if any.
        committed_only: whether records of open and aborted transactions are left out.
    """

    servers: str
    options: Mapping[str, Option]
    group: str | None = None
    committed_only: bool = True

    def client_options(self) -> dict[str, Option]:
        """Of every client."""
        return {**_USUALLY, **self.options, "bootstrap.servers": self.servers}

    def worker_options(self) -> dict[str, Option]:
        """Of consumers that read exact ranges."""
        return {**_IN_WORKERS, **self._consumer_options()}

    def group_options(self) -> dict[str, Option]:
        """Of a consumer that only speaks for the group."""
        return self._consumer_options()

    def live_options(self) -> dict[str, Option]:
        """Of a consumer that has at hand what comes."""
        return {**_LIVE, **self._consumer_options()}

    def _consumer_options(self) -> dict[str, Option]:
        isolation = "read_committed" if self.committed_only else "read_uncommitted"
        ours = {"isolation.level": isolation, "group.id": self.group or _NO_GROUP}
        return {**self.client_options(), **_ALWAYS, **ours}


class KafkaFuture(Protocol[T_co]):
    """The answer to a question that was asked."""

    def ready(self) -> bool:
        """Whether it is there. Has to be asked, or it will not come."""
        ...

    def result(self) -> T_co:
        """The answer, once it is ready.

        Raises:
            ConnectorError: there is none, with ``retry`` set truthfully.
        """
        ...

    def wait(self, seconds: float) -> bool:
        """Wait until it is ready, but no longer than about that."""
        ...


class Consumer(Protocol):
    """A consumer that fetches what comes, and hands out what it has."""

    def add(self, at: Offsets) -> None:
        """Fetch these partitions too, from these offsets on."""
        ...

    def drop(self, parts: Collection[TopicPartition]) -> None:
        """Fetch these no more, and forget what was fetched of them."""
        ...

    def take(self, most: int, *, wait: float = 0) -> Sequence[Message]:
        """What is there by now, events of partitions too; if nothing is, what comes in so many seconds."""
        ...

    def close(self) -> None:
        """Release the connection. Twice is harmless."""
        ...


class Cluster(Protocol):
    """What a reader asks of a cluster."""

    def names(self) -> KafkaFuture[frozenset[str]]:
        """The names of all topics."""
        ...

    def ids(self, names: Collection[str]) -> KafkaFuture[Mapping[str, str | None]]:
        """The ids of topics; one that does not exist is missing."""
        ...

    def look(self, names: Collection[str], before: Topics) -> KafkaFuture[Topics]:
        """Topics with their partitions and what can be read of them.

        One that does not exist is missing. A partition that has no leader now is as it was ``before``.
        """
        ...

    def at_time(self, millis: int, parts: Collection[TopicPartition]) -> KafkaFuture[ResolvedOffsets]:
        """The first offset of each partition that is not older; ``None`` where all are."""
        ...

    def committed(self, parts: Collection[TopicPartition]) -> KafkaFuture[ResolvedOffsets]:
        """The offsets that the group has committed; ``None`` where it has not."""
        ...

    def commit(self, offsets: Offsets) -> KafkaFuture[None]:
        """Commit offsets to the group."""
        ...

    def complaints(self) -> Sequence[ClientError]:
        """What went wrong without a question, such as a broker that is away, since the last time."""
        ...

    def live(self) -> Consumer:
        """A consumer, not started."""
        ...

    def close(self) -> None:
        """Release the connection. Twice is harmless."""
        ...


_ROUND: Final = 0.1
"""Seconds from one look for an answer to the next, while one is waited for."""
Futures: TypeAlias = "Collection[Future[Any]]"
FutureSteps: TypeAlias = "Generator[Futures, None, T]"


class ChainedFuture(Generic[T]):
    """An answer that takes several questions: each is asked when the one before is answered, by whoever looks.

    Any thread may look.

    Args:
        steps: yields what is to be waited for, and returns the answer.
        translate: what the client raised, as an error of ours.
        served: called with each look, for clients that want to be; it may say that no answer will come.
    """

    def __init__(
        self,
        steps: FutureSteps[T],
        translate: Callable[[Exception], ConnectorError],
        served: Callable[[], ConnectorError | None],
    ) -> None:
        self._steps = steps
        self._translate = translate
        self._served = served
        self._waiting: Futures | None = ()
        self._error: ConnectorError | None = None
        self._value: T | None = None
        self._lock = threading.Lock()

    def ready(self) -> bool:
        """Whether it is there."""
        with self._lock:
            if self._waiting is not None and (error := self._served()) is not None:
                self._error, self._waiting = error, None
            while self._waiting is not None and all(future.done() for future in self._waiting):
                try:
                    self._waiting = next(self._steps)
                except StopIteration as end:
                    self._value, self._waiting = end.value, None
                except Exception as raised:
                    self._error, self._waiting = self._translate(raised), None
                    self._error.__cause__ = raised
            return self._waiting is None

    def result(self) -> T:
        """The answer."""
        assert self._waiting is None
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def wait(self, seconds: float) -> bool:
        """Wait for each step."""
        rounds = max(1, int(seconds / _ROUND))
        while not self.ready():
            if rounds <= 0:
                return False
            if wait(self._waiting or (), timeout=_ROUND).not_done:
                rounds -= 1
        return True


# ----------------------------------------------------------------------------------------------------
# What Kafka's errors mean for a job: whose fault, whether a retry can help, what to do. Knows no connection.
#
# Names are librdkafka's: those of its own making begin with an underscore, the others are the broker's.

MARK: Final = "penstock.kafka:"
"""Stands before what our code in a worker tells of a failed read in an exception's text, as JSON."""
END_REACHED: Final = "_PARTITION_EOF"
"""No error: there is nothing more in a partition by now, and its offset is where the next record will be."""
_LOGIN: Final = frozenset(
    {"SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE", "_AUTHENTICATION", "_SSL"}
)
_WORDLESS: Final = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_WAIT_COORD", "REQUEST_TIMED_OUT"})
_FORBIDDEN: Final = frozenset({"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "SECURITY_DISABLED"})
_GROUP: Final = frozenset({"GROUP_AUTHORIZATION_FAILED"})
_GONE: Final = frozenset({"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "_LOG_TRUNCATION"})
_UNKNOWN: Final = frozenset(
    {
        "UNKNOWN_TOPIC_OR_PART",
        "UNKNOWN_TOPIC_ID",
        "INCONSISTENT_TOPIC_ID",
        "TOPIC_EXCEPTION",
        "_UNKNOWN_TOPIC",
        "_UNKNOWN_PARTITION",
    }
)
_IMPOSSIBLE: Final = frozenset(
    {
        "INVALID_GROUP_ID",
        "INVALID_REQUEST",
        "UNSUPPORTED_COMPRESSION_TYPE",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "UNSUPPORTED_VERSION",
        "_BAD_COMPRESSION",
        "_BAD_MSG",
        "_FATAL",
        "_INVALID_ARG",
        "_NOT_IMPLEMENTED",
        "_UNSUPPORTED_FEATURE",
    }
)


class ClientError(Protocol):
    """What a client says went wrong: confluent-kafka's ``KafkaError``."""

    def name(self) -> str:
        """The code, as text."""
        ...

    def str(self) -> str:
        """For people."""
        ...


class FetchFailed(Exception):
    """A range cannot be read. The text is for :func:`explain`; it may come from another process."""

    def __init__(self, told: Mapping[str, object]) -> None:
        super().__init__(MARK + json.dumps(told))
        self.told = told


def is_transient(name: str) -> bool:
    """Whether a consumer that has met this error goes on by itself and only has to be waited for.

    A group that may not be used is none of a reader's business: it never joins one. A login that is refused in the
    middle of a run is tried again by the client, and ends the wait like a broker that is away.

    >>> is_transient("_TRANSPORT"), is_transient("NOT_LEADER_FOR_PARTITION"), is_transient("OFFSET_OUT_OF_RANGE")
    (True, True, False)
    """
    return name not in _FORBIDDEN | _GONE | _UNKNOWN | _IMPOSSIBLE


def is_refusal(name: str) -> bool:
    """Whether the other side, or this one, does not accept who the other is."""
    return name in _LOGIN


def is_outage(name: str) -> bool:
    """Whether no broker at all is connected; what came of each was said before."""
    return name == "_ALL_BROKERS_DOWN"


def is_bare_timeout(name: str) -> bool:
    """Whether the error only says that nothing came: what the client said besides tells why."""
    return name in _WORDLESS


def to_error(name: str, said: str, *, servers: str, what: str) -> ConnectorError:
    """The error of a job whose client met this one.

    Args:
        name: the code.
        said: the client's own words.
        servers: which cluster.
        what: what was wanted: ``"topic 'orders'"``.

    >>> to_error("_TRANSPORT", "connection refused", servers="k:9092", what="topic 'orders'").retry
    True
    """
    for names, kind, meaning in _MEANINGS:
        if name in names:
            return kind(f"Kafka at {servers}, {what}: {meaning.format(said=f'{name}: {said}')}")
    reach = "see that a broker runs there and can be reached"
    return SourceUnavailable(f"Kafka at {servers}, {what}: not reached ({name}: {said}); {reach}")


_MEANINGS: Final[tuple[tuple[frozenset[str], type[ConnectorError], str], ...]] = (
    (_LOGIN, ConnectorError, "no secure connection ({said}): check security.protocol, ssl.* and sasl.* in options"),
    (_FORBIDDEN, ConnectorError, "not allowed ({said}): grant READ and DESCRIBE on the topic to this job's user"),
    (_GROUP, ConnectorError, "not allowed ({said}): grant READ on the consumer group to this job's user"),
    (_GONE, SourceChanged, "what is to be read is gone ({said}): retention, or a topic made again, has removed it"),
    (_UNKNOWN, ConnectorError, "it is not there ({said}): create it, or correct the name"),
    (_IMPOSSIBLE, ConnectorError, "the client cannot go on ({said}): check the options of the source"),
)


def fetch_error(told: Mapping[str, Any]) -> ConnectorError:
    """The error of a job for what a failed read told."""
    if "message" in told:
        return ConnectorError(str(told["message"]))
    what = (
        f"topic {told.get('topic')!r} partition {told.get('partition')}, offsets {told.get('from')} to {told.get('to')}"
    )
    error = to_error(str(told.get("code")), str(told.get("said")), servers=str(told.get("servers")), what=what)
    if isinstance(error, SourceChanged) and told.get("goes_on"):
        return SourceUnavailable(f"{error}; a restart goes on behind it, as on_lost_offsets='continue' says")
    return error


def explain(exception: BaseException) -> ConnectorError | None:
    """What a failed job says about the ranges of topics it read; ``None`` if it failed for another reason."""
    for told in text.parse_marked(exception, MARK):
        return fetch_error(told)
    return None


def is_loss(told: Mapping[str, Any]) -> bool:
    """Whether a read failed because what it was to read is not there."""
    return told.get("code") in _GONE | _UNKNOWN


# ----------------------------------------------------------------------------------------------------
# What the clients of a reader say of their own accord: why an answer does not come, and what of it people are told.
#
# A client whose broker is away says so twenty times a second. People are told once, then now and then, then that it is
# over; the rest is there for whoever sets the logger ``penstock.kafka`` to debug.

log: Final = logging.getLogger("penstock.kafka")
_AT_ONCE: Final = 50
_TWICE_OVER: Final = frozenset({"FAIL", "ERROR"})
"""Facilities of log lines that say what the client also tells as an error."""


class ClientLog:
    """The last trouble that a client met by itself, and whether it ever reached the cluster.

    It also stands for the logger of clients. They may call it on any thread.
    """

    def __init__(self) -> None:
        self._last: ClientError | None = None
        self._reached = False
        self._refusals = 0
        self._complaints: deque[ClientError] = deque(maxlen=_AT_ONCE)
        self._lines: deque[str] = deque(maxlen=_AT_ONCE)

    def heard(self, trouble: ClientError) -> None:
        """Called by a client."""
        log.debug("%s: %s", trouble.name(), trouble.str())
        if not is_outage(trouble.name()):
            self._last = trouble
            self._refusals += is_refusal(trouble.name())

    def complained(self, trouble: ClientError) -> None:
        """Called by the client that is listened to all along, so that what it says is news."""
        self.heard(trouble)
        self._complaints.append(trouble)

    def complaints(self) -> list[ClientError]:
        """What it complained of since the last time; of very much the latest."""
        found = []
        while self._complaints:
            found.append(self._complaints.popleft())
        return found

    def log(self, level: int, words: str, *given: object) -> None:
        """Called by a client as its logger, with a facility, its name and a text; the same text is told once."""
        line = words % given
        if given[:1] and given[0] in _TWICE_OVER:
            level = logging.DEBUG
        elif level > logging.DEBUG:
            level = logging.DEBUG if line in self._lines else level
            self._lines.append(line)
        log.log(level, "%s", line)

    def answered(self) -> None:
        """The cluster was reached."""
        self._last, self._reached = None, True

    @property
    def last(self) -> ClientError | None:
        """The last trouble since the cluster was reached."""
        return self._last

    @property
    def refusal(self) -> ClientError | None:
        """Why the cluster lets nobody in with these options, if it has said so twice and never let anybody in."""
        return self._last if self._refusals > 1 and not self._reached else None

    def behind(self, trouble: ClientError) -> tuple[str, str]:
        """The code and the words for an error: where it only says that nothing came, those of what came before.

        A login is refused for good only if it never worked: a broker that is just starting may refuse some.
        """
        if self._last is None or not is_bare_timeout(trouble.name()):
            return trouble.name(), trouble.str()
        code = trouble.name() if self._reached else self._last.name()
        return code, f"{trouble.str()}; {self._last.str()}"


# ----------------------------------------------------------------------------------------------------
# Takes exact ranges of offsets out of what Kafka consumers bring, in the driver and in Spark's Python workers.
#
# Knows no plan and no decoding. Light, since every worker loads it; confluent-kafka is loaded when it is used.


class Message(Protocol):
    """A record, or an event of its partition: confluent-kafka's ``Message``. ``len()`` is that of its value."""

    def error(self) -> ClientError | None: ...  # noqa: D102 - as confluent-kafka has them
    def topic(self) -> str: ...  # noqa: D102
    def partition(self) -> int: ...  # noqa: D102
    def offset(self) -> int: ...  # noqa: D102
    def timestamp(self) -> tuple[int, int]: ...  # noqa: D102
    def key(self) -> bytes | None: ...  # noqa: D102
    def value(self) -> bytes | None: ...  # noqa: D102
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...  # noqa: D102
    def __len__(self) -> int: ...
