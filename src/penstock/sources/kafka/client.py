"""What a reader asks of a Kafka cluster, and with which settings; loads no client library.

Nothing here waits unless it is told to: questions are asked, and their answers looked for later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast

from penstock.errors import ConnectorError
from penstock.sources.kafka.bounds import Told
from penstock.sources.kafka.offsets import Offsets, TopicPartition, Topics
from penstock.sources.kafka.secrets import Option

if TYPE_CHECKING:
    from penstock.sources.kafka.errors import Trouble
    from penstock.sources.kafka.fetch import Message

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


class Answer(Protocol[T_co]):
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


class Live(Protocol):
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

    def names(self) -> Answer[frozenset[str]]:
        """The names of all topics."""
        ...

    def ids(self, names: Collection[str]) -> Answer[Mapping[str, str | None]]:
        """The ids of topics; one that does not exist is missing."""
        ...

    def look(self, names: Collection[str], before: Topics) -> Answer[Topics]:
        """Topics with their partitions and what can be read of them.

        One that does not exist is missing. A partition that has no leader now is as it was ``before``.
        """
        ...

    def at_time(self, millis: int, parts: Collection[TopicPartition]) -> Answer[Told]:
        """The first offset of each partition that is not older; ``None`` where all are."""
        ...

    def committed(self, parts: Collection[TopicPartition]) -> Answer[Told]:
        """The offsets that the group has committed; ``None`` where it has not."""
        ...

    def commit(self, offsets: Offsets) -> Answer[None]:
        """Commit offsets to the group."""
        ...

    def complaints(self) -> Sequence[Trouble]:
        """What went wrong without a question, such as a broker that is away, since the last time."""
        ...

    def live(self) -> Live:
        """A consumer, not started."""
        ...

    def close(self) -> None:
        """Release the connection. Twice is harmless."""
        ...


_ROUND: Final = 0.1
"""Seconds from one look for an answer to the next, while one is waited for."""

Waiting: TypeAlias = "Collection[Future[Any]]"
Steps: TypeAlias = "Generator[Waiting, None, T]"


class Asking(Generic[T]):
    """An answer that takes several questions: each is asked when the one before is answered, by whoever looks.

    Any thread may look.

    Args:
        steps: yields what is to be waited for, and returns the answer.
        translate: what the client raised, as an error of ours.
        served: called with each look, for clients that want to be; it may say that no answer will come.
    """

    def __init__(
        self,
        steps: Steps[T],
        translate: Callable[[Exception], ConnectorError],
        served: Callable[[], ConnectorError | None],
    ) -> None:
        self._steps = steps
        self._translate = translate
        self._served = served
        self._waiting: Waiting | None = ()
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
