"""What readers need of a Kafka client: connection, requests, the meaning of errors. Does not import confluent-kafka."""

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

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# ---- connection ------------------------------------------------------------------------------------------------------

_REQUIRED: Final[Mapping[str, Option]] = {
    "auto.offset.reset": "error",  # lost offsets are an error, never skipped silently
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}
_DEFAULTS: Final[Mapping[str, Option]] = {"client.id": "penstock", "log.connection.close": False}
_WORKER_DEFAULTS: Final[Mapping[str, Option]] = {
    "fetch.message.max.bytes": 131_072,  # little: what is fetched beyond a range is thrown away
    "fetch.queue.backoff.ms": 1,
    "log_level": 0,  # the driver logs that a broker is away; each worker would repeat it without end
    "fetch.wait.max.ms": 1,  # the records exist; only a range that ends in control records is waited for
    "queued.max.messages.kbytes": 4_096,
    "queued.min.messages": 5_000,
}
_PREFETCH_DEFAULTS: Final[Mapping[str, Option]] = {
    "fetch.queue.backoff.ms": 1,
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 32_768,
    "queued.min.messages": 100_000,
}
_NO_GROUP: Final = "penstock"
"""``group.id`` of sources without a group: consumers must have one, but nothing is committed in this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How to reach a cluster. Holds references to secrets, never the secrets.

    Attributes:
        servers: ``bootstrap.servers``.
        options: further client properties; they override the defaults, not the required ones.
        group: the consumer group whose offsets are committed and asked for, if there is one.
        committed_only: whether records of open and aborted transactions are left out.
    """

    servers: str
    options: Mapping[str, Option]
    group: str | None = None
    committed_only: bool = True

    def client_options(self) -> dict[str, Option]:
        """Properties of every client."""
        return {**_DEFAULTS, **self.options, "bootstrap.servers": self.servers}

    def group_options(self) -> dict[str, Option]:
        """Properties of every consumer. One that only commits for the group needs no others."""
        isolation = "read_committed" if self.committed_only else "read_uncommitted"
        ours = {"isolation.level": isolation, "group.id": self.group or _NO_GROUP}
        return {**self.client_options(), **_REQUIRED, **ours}

    def worker_options(self) -> dict[str, Option]:
        """Properties of consumers that read exact ranges in Python workers."""
        return {**_WORKER_DEFAULTS, **self.group_options()}

    def prefetch_options(self) -> dict[str, Option]:
        """Properties of the consumer that prefetches in the driver."""
        return {**_PREFETCH_DEFAULTS, **self.group_options()}


# ---- what a reader asks of a cluster ---------------------------------------------------------------------------------


class KafkaFuture(Protocol[T_co]):
    """The answer to a request. The request makes progress only while this is polled or waited for."""

    def ready(self) -> bool:
        """Whether the answer is there. Polls the client, never blocks."""
        ...

    def result(self) -> T_co:
        """The answer, once it is ready.

        Raises:
            ConnectorError: the request failed, with ``retry`` set truthfully.
        """
        ...

    def wait(self, seconds: float) -> bool:
        """Block until the answer is ready, for at most about ``seconds``; whether it is."""
        ...


class ClientError(Protocol):
    """An error of a client: confluent-kafka's ``KafkaError``."""

    def name(self) -> str:
        """The code, such as ``_TRANSPORT``."""
        ...

    def str(self) -> str:
        """The message."""
        ...


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


class Consumer(Protocol):
    """Fetches records in the background, and hands out those that have arrived."""

    def assign(self, offsets: Offsets) -> None:
        """Fetch these partitions too, from these offsets on."""
        ...

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these partitions, and drop what was fetched of them."""
        ...

    def take(self, most: int, *, wait: float = 0) -> Sequence[Message]:
        """Up to ``most`` messages that have arrived, events included. Without any, wait for up to ``wait`` seconds."""
        ...

    def close(self) -> None:
        """Close the connection. Calling it twice is harmless."""
        ...


class Cluster(Protocol):
    """What a reader asks of a cluster."""

    def list_topics(self) -> KafkaFuture[frozenset[str]]:
        """The names of all topics."""
        ...

    def topic_ids(self, names: Collection[str]) -> KafkaFuture[Mapping[str, str | None]]:
        """The ids of topics, by name; a topic that does not exist is left out."""
        ...

    def describe_topics(self, names: Collection[str], known: Topics) -> KafkaFuture[Topics]:
        """Topics with their partitions and the offsets that can be read.

        A topic that does not exist is left out. A partition without a leader is returned as it is in ``known``.
        """
        ...

    def offsets_for_time(self, millis: int, partitions: Collection[TopicPartition]) -> KafkaFuture[ResolvedOffsets]:
        """The first offset of each partition whose record is not older; ``None`` where all are older."""
        ...

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> KafkaFuture[ResolvedOffsets]:
        """The offsets that the group has committed; ``None`` where it has none."""
        ...

    def commit(self, offsets: Offsets) -> KafkaFuture[None]:
        """Commit offsets to the group."""
        ...

    def take_errors(self) -> Sequence[ClientError]:
        """Remove and return the errors that belong to no request, such as that of a broker that is away."""
        ...

    def new_consumer(self) -> Consumer:
        """A consumer that fetches nothing yet."""
        ...

    def close(self) -> None:
        """Close the connection. Calling it twice is harmless."""
        ...


_WAIT_STEP: Final = 0.1
"""Longest time between two polls of a future that is waited for, in seconds."""
Futures: TypeAlias = "Collection[Future[Any]]"
FutureSteps: TypeAlias = "Generator[Futures, None, T]"


class ChainedFuture(Generic[T]):
    """The answer to several requests in a row. A poll sends the next request once the previous one is answered.

    Any thread may poll.

    Args:
        steps: yields the futures to wait for, and returns the answer.
        translate: makes a ``ConnectorError`` of what the client raised.
        poll_client: called by each poll, for clients that need it; returns an error if no answer will come.
    """

    def __init__(
        self,
        steps: FutureSteps[T],
        translate: Callable[[Exception], ConnectorError],
        poll_client: Callable[[], ConnectorError | None],
    ) -> None:
        self._steps = steps
        self._translate = translate
        self._poll_client = poll_client
        self._waiting_for: Futures | None = ()  # None: there is an answer or an error
        self._error: ConnectorError | None = None
        self._value: T | None = None
        self._lock = threading.Lock()

    def ready(self) -> bool:
        """Whether the answer is there."""
        with self._lock:
            if self._waiting_for is not None and (error := self._poll_client()) is not None:
                self._error, self._waiting_for = error, None
            while self._waiting_for is not None and all(future.done() for future in self._waiting_for):
                try:
                    self._waiting_for = next(self._steps)
                except StopIteration as end:
                    self._value, self._waiting_for = end.value, None
                except Exception as raised:
                    self._error, self._waiting_for = self._translate(raised), None
                    self._error.__cause__ = raised
            return self._waiting_for is None

    def result(self) -> T:
        """The answer."""
        assert self._waiting_for is None
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def wait(self, seconds: float) -> bool:
        """Block until the answer is ready, for at most about ``seconds``; whether it is."""
        rounds = max(1, int(seconds / _WAIT_STEP))
        while not self.ready():
            if rounds <= 0:
                return False
            if wait(self._waiting_for or (), timeout=_WAIT_STEP).not_done:
                rounds -= 1  # else it was answered at once, and no time has passed
        return True


# ---- what Kafka's errors mean ----------------------------------------------------------------------------------------

MARK: Final = "penstock.kafka:"
"""Precedes the JSON by which a worker reports a failed read, in the text of its exception."""
END_REACHED: Final = "_PARTITION_EOF"
"""Not an error: a partition has no more records now. The event's offset is that of its next record."""
# Names of errors are those of librdkafka. Its own begin with an underscore, the others are the broker's.
_LOGIN: Final = frozenset(
    {"SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE", "_AUTHENTICATION", "_SSL"}
)
_BARE_TIMEOUT: Final = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_WAIT_COORD", "REQUEST_TIMED_OUT"})
_FORBIDDEN: Final = frozenset({"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "SECURITY_DISABLED"})
_GROUP_FORBIDDEN: Final = frozenset({"GROUP_AUTHORIZATION_FAILED"})
_GONE: Final = frozenset({"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "_LOG_TRUNCATION"})
_UNKNOWN_TOPIC: Final = frozenset(
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
_MEANINGS: Final[tuple[tuple[frozenset[str], type[ConnectorError], str], ...]] = (
    (_LOGIN, ConnectorError, "No secure connection ({cause}). Check security.protocol, ssl.* and sasl.* in options."),
    (_FORBIDDEN, ConnectorError, "Not allowed ({cause}). Grant READ and DESCRIBE on the topic to this job's user."),
    (_GROUP_FORBIDDEN, ConnectorError, "Not allowed ({cause}). Grant READ on the consumer group to this job's user."),
    (_GONE, SourceChanged, "What is to be read is gone ({cause}). Retention, or a topic made again, has removed it."),
    (_UNKNOWN_TOPIC, ConnectorError, "It is not there ({cause}). Create it, or correct the name."),
    (_IMPOSSIBLE, ConnectorError, "The client cannot go on ({cause}). Check the options of the source."),
)
"""Names of errors; the class and the text of the job's error for them. Any other name is an outage."""


class FetchFailed(Exception):
    """A range cannot be read. ``explain`` finds the details in its text, also in that of another process."""

    def __init__(self, details: Mapping[str, object]) -> None:
        super().__init__(MARK + json.dumps(details))
        self.details = details


def is_transient(name: str) -> bool:
    """Whether a consumer recovers from this error by itself, so that it only has to be waited for.

    A group that may not be used is transient, since a reader never joins one. So is a login that is refused in the
    middle of a run: the client tries again, and the wait ends as it does for a broker that is away.

    >>> is_transient("_TRANSPORT"), is_transient("NOT_LEADER_FOR_PARTITION"), is_transient("OFFSET_OUT_OF_RANGE")
    (True, True, False)
    """
    return name not in _FORBIDDEN | _GONE | _UNKNOWN_TOPIC | _IMPOSSIBLE


def is_refusal(name: str) -> bool:
    """Whether the broker does not accept the client's identity, or the client the broker's."""
    return name in _LOGIN


def is_outage(name: str) -> bool:
    """Whether no broker at all is connected. The errors of each broker were reported before."""
    return name == "_ALL_BROKERS_DOWN"


def is_bare_timeout(name: str) -> bool:
    """Whether the error only says that no answer came; the client's earlier errors say why."""
    return name in _BARE_TIMEOUT


def is_loss(details: Mapping[str, Any]) -> bool:
    """Whether a read failed because the records it was to read are not there."""
    return details.get("code") in _GONE | _UNKNOWN_TOPIC


def to_error(name: str, message: str, *, servers: str, what: str) -> ConnectorError:
    """The job's error for a client's error.

    Args:
        name: the client's code.
        message: the client's message.
        servers: which cluster.
        what: what was asked for, such as ``"topic 'orders'"``.

    >>> to_error("_TRANSPORT", "connection refused", servers="k:9092", what="topic 'orders'").retry
    True
    """
    for names, error_class, meaning in _MEANINGS:
        if name in names:
            return error_class(f"Kafka at {servers}, {what}: {meaning.format(cause=f'{name}: {message}')}")
    reach = "Check that a broker runs there and can be reached."
    return SourceUnavailable(f"Kafka at {servers}, {what}: Not reached ({name}: {message}). {reach}")


def fetch_error(details: Mapping[str, Any]) -> ConnectorError:
    """The job's error for the details of a failed read."""
    if "message" in details:
        return ConnectorError(str(details["message"]))
    first, end = details.get("from"), details.get("to")
    what = f"topic {details.get('topic')!r} partition {details.get('partition')}, offsets {first} to {end}"
    code, cause = str(details.get("code")), str(details.get("cause"))
    error = to_error(code, cause, servers=str(details.get("servers")), what=what)
    if isinstance(error, SourceChanged) and details.get("skips_lost"):
        return SourceUnavailable(f"{error} A restart goes on after it, as on_lost_offsets='continue' says.")
    return error


def explain(exception: BaseException) -> ConnectorError | None:
    """The job's error for a Spark job that could not read a range of a topic; ``None`` for any other failure."""
    details = next(text.parse_marked(exception, MARK), None)
    return None if details is None else fetch_error(details)


# ---- errors and log lines that belong to no request ------------------------------------------------------------------

log: Final = logging.getLogger("penstock.kafka")
"""Gets every error at level DEBUG: a client whose broker is away repeats it twenty times a second."""
_MAX_QUEUED: Final = 50
"""Number of errors that are kept until they are taken, and of log lines that are remembered."""
_ALSO_ERRORS: Final = frozenset({"FAIL", "ERROR", "GETPID"})
"""Facilities of log lines that the client also reports as errors, or that it deals with by itself."""


class ClientLog:
    """Collects what clients report by themselves: their errors, and whether one ever reached the cluster.

    It is the clients' logger as well. Any thread may call it.
    """

    def __init__(self) -> None:
        self._last: ClientError | None = None
        self._reached = False
        self._refusals = 0
        self._errors: deque[ClientError] = deque(maxlen=_MAX_QUEUED)
        self._lines: deque[str] = deque(maxlen=_MAX_QUEUED)

    def on_error(self, error: ClientError) -> None:
        """Take an error: the error callback of a client."""
        log.debug("%s: %s", error.name(), error.str())
        if not is_outage(error.name()):
            self._last = error
            self._refusals += is_refusal(error.name())

    def on_reported_error(self, error: ClientError) -> None:
        """Take an error of the client that is polled all the time, which ``take_errors`` returns too."""
        self.on_error(error)
        self._errors.append(error)

    def take_errors(self) -> list[ClientError]:
        """Remove and return the reported errors; if there were very many, the latest of them."""
        errors = []
        while self._errors:
            errors.append(self._errors.popleft())
        return errors

    def log(self, level: int, message: str, *arguments: object) -> None:
        """Log a line of a client, at level DEBUG if it is repeated or is reported as an error too.

        A client calls it as its logger; the arguments are a facility, the client's name and a text.
        """
        line = message % arguments
        if arguments[:1] and arguments[0] in _ALSO_ERRORS:
            level = logging.DEBUG
        elif level > logging.DEBUG:
            level = logging.DEBUG if line in self._lines else level
            self._lines.append(line)
        log.log(level, "%s", line)

    def on_answer(self) -> None:
        """Note that the cluster has answered a request."""
        self._last, self._reached = None, True

    @property
    def last_error(self) -> ClientError | None:
        """The last error since the cluster answered."""
        return self._last

    @property
    def refusal(self) -> ClientError | None:
        """The error of a login that was refused twice and has never worked.

        One refusal means nothing: a broker that is just starting may refuse some logins.
        """
        return self._last if self._refusals > 1 and not self._reached else None

    def with_cause(self, error: ClientError) -> tuple[str, str]:
        """Code and message of an error. A bare time-out takes the code of the last error, and adds its message.

        Once the cluster was reached, the code stays that of the time-out: the login has worked, so a retry may help.
        """
        if self._last is None or not is_bare_timeout(error.name()):
            return error.name(), error.str()
        code = error.name() if self._reached else self._last.name()
        return code, f"{error.str()}; {self._last.str()}"
