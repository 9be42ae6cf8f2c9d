"""Putting records into a stream: requests that keep the order of each key, though any entry of them may fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.clock import Clock, SystemClock, sleep
from penstock.connectors.kinesis.aggregation import UserRecord, pack
from penstock.connectors.kinesis.client import FailureKind, failure_kind, is_of_boto, sink_error
from penstock.connectors.kinesis.fetch import FAIL_AFTER, Backoff
from penstock.errors import ConnectorError, SinkUnavailable

if TYPE_CHECKING:
    from penstock.connectors.kinesis.client import KinesisClient, StreamAddress

MAX_ENTRIES: Final = 500
"""Most entries of a request."""
MAX_REQUEST_BYTES: Final = 5 * 1024 * 1024
"""Most bytes of a request, with the keys."""
MAX_KEY: Final = 256
"""Most characters of a partition key."""
MAX_AGGREGATE_BYTES: Final = 50 * 1024
"""About the most bytes of data in an aggregate, as the Kinesis Producer Library has it."""


class OutgoingRecord(NamedTuple):
    """A record to put. Records without a key have none to be in order with."""

    key: str | None
    data: bytes


class PutEntry(NamedTuple):
    """An entry of a request: its partition key, its bytes, and the key with which it keeps order."""

    partition_key: str
    data: bytes
    order: str | None

    @property
    def size(self) -> int:
        """Bytes that count for a request."""
        return len(self.data) + len(self.partition_key.encode())


def entries_of(
    records: Iterable[OutgoingRecord], random_key: Callable[[], str], *, aggregates: bool
) -> Iterable[PutEntry]:
    """Yield the entries of some records, in order for each key. With ``aggregates``, records of a key are packed.

    Raises:
        ConnectorError: a key is longer than Kinesis takes.
    """
    open: dict[str | None, list[OutgoingRecord]] = {}
    sizes: dict[str | None, int] = {}
    for record in records:
        key = record.key
        if key is not None and len(key) > MAX_KEY:
            msg = (
                f"A partition key has {len(key)} characters ({key[:20]!r}…), and Kinesis takes {MAX_KEY}. Name a "
                "shorter column in key=, or one with a hash of it, such as 'md5(name)'."
            )
            raise ConnectorError(msg)
        if not aggregates:
            yield _entry([record], random_key)
            continue
        size = sizes.get(key, 0) + len(record.data)
        if key in open and size > MAX_AGGREGATE_BYTES:
            yield _entry(open.pop(key), random_key)
            size = len(record.data)
        open.setdefault(key, []).append(record)
        sizes[key] = size
    for left in open.values():
        yield _entry(left, random_key)


def _entry(records: Sequence[OutgoingRecord], random_key: Callable[[], str]) -> PutEntry:
    key = records[0].key
    partition_key = random_key() if key is None else key
    if len(records) == 1:
        return PutEntry(partition_key, records[0].data, key)
    return PutEntry(partition_key, pack([UserRecord(partition_key, None, record.data) for record in records]), key)


# ---- what is sent when -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class EntryQueue:
    """Entries that wait, by key. A request has one of each key, so an entry that fails holds back those after it.

    Attributes:
        keeps_order: whether it is so; otherwise a request takes entries as they come.
    """

    keeps_order: bool
    _waiting: dict[object, deque[PutEntry]] = field(default_factory=dict)
    _turn: deque[object] = field(default_factory=deque)
    _sent: list[object] = field(default_factory=list)
    _added: int = 0

    def add(self, entry: PutEntry) -> None:
        """Put an entry behind the others of its key."""
        self._added += 1
        key: object = self._added  # in order with no other
        if self.keeps_order and entry.order is not None:
            key = entry.order
        if key not in self._waiting:
            self._waiting[key] = deque()
            self._turn.append(key)
        self._waiting[key].append(entry)

    def next_request(self) -> list[PutEntry]:
        """The entries of the next request: as many as it takes, the longest waiting keys first."""
        self._sent, size = [], 0
        taken: list[PutEntry] = []
        for key in self._turn:
            entry = self._waiting[key][0]
            size += entry.size
            if len(taken) == MAX_ENTRIES or (taken and size > MAX_REQUEST_BYTES):
                break
            taken.append(entry)
            self._sent.append(key)
        return taken

    def answered(self, has_failed: Sequence[bool]) -> None:
        """Note which entries of the last request have failed: they are the first again of their keys."""
        for key, failed in zip(self._sent, has_failed, strict=True):
            self._turn.popleft()
            if not failed:
                self._waiting[key].popleft()
            if self._waiting[key]:
                self._turn.append(key)
            else:
                del self._waiting[key]

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._turn


class RecordPutter:
    """Puts records, and returns when Kinesis has acknowledged each.

    Args:
        client: of boto3.
        address: the stream.
        keeps_order: of the records of a key.
        aggregates: pack records of a key.
        clock: for how long failures last.
        random: gives numbers from 0 to 1.
        wait: waits for some seconds.
    """

    def __init__(
        self,
        client: KinesisClient,
        address: StreamAddress,
        *,
        keeps_order: bool,
        aggregates: bool,
        clock: Clock | None = None,
        random: Random | None = None,
        wait: Callable[[float], None] = sleep,
    ) -> None:
        self._client = client
        self._address = address
        self._keeps_order = keeps_order
        self._aggregates = aggregates
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._wait = wait

    def put(self, records: Iterable[OutgoingRecord]) -> None:
        """Put all records.

        Raises:
            SinkUnavailable: some were refused for five minutes, as by a stream with too few shards.
            ConnectorError: they are refused for good.
        """
        queue, backoff = EntryQueue(self._keeps_order), Backoff(self._random.random)
        for entry in entries_of(records, self._random_key, aggregates=self._aggregates):
            queue.add(entry)
        while not queue.is_empty:
            request = queue.next_request()
            refused, cause = self._send(request)
            queue.answered(refused)
            if len(request) > sum(refused):
                backoff.succeeded()  # it goes on, if slowly
            if any(refused):
                self._back_off(backoff, cause, sum(refused))

    def _random_key(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def _send(self, request: Sequence[PutEntry]) -> tuple[list[bool], str]:
        """Which entries were refused, and why the first of them was.

        Raises:
            ConnectorError: the request is refused for good.
        """
        records = [{"PartitionKey": entry.partition_key, "Data": entry.data} for entry in request]
        try:
            answer: dict[str, Any] = self._client.put_records(**self._address.argument, Records=records)
        except Exception as error:
            if not is_of_boto(error):
                raise
            if failure_kind(error) not in (FailureKind.THROTTLED, FailureKind.OUTAGE):
                raise sink_error(error, self._address) from error
            return [True] * len(request), str(error)
        results = answer["Records"]
        errors = [f"{each['ErrorCode']}: {each.get('ErrorMessage', '')}" for each in results if each.get("ErrorCode")]
        return [bool(each.get("ErrorCode")) for each in results], errors[0] if errors else ""

    def _back_off(self, backoff: Backoff, cause: str, refused: int) -> None:
        now = self._clock.now()
        until = backoff.failed(now)
        if backoff.since is not None and now >= backoff.since + FAIL_AFTER:
            msg = (
                f"Stream {self._address.stream} at {self._address.place} has refused {refused} records for "
                f"{FAIL_AFTER // 1_000_000} s ({cause}). See that the service works, and that the stream has enough "
                "shards for 1 MB and 1,000 records a second each."
            )
            raise SinkUnavailable(msg)
        self._wait((until - now) / 1_000_000)
