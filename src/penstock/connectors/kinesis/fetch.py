"""Fetching the records of shards ahead of the batches: one fetcher a shard, a watcher that lists shards, threads.

A fetcher makes one request a step, keeps the pace that Kinesis allows, and follows its iterator through gaps: how far
a gap was crossed is nowhere but in the iterator. What decides about the stream is in ``reader``, on its thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.clock import MAX_WAIT, Clock, MonotonicTime
from penstock.connectors.kinesis.aggregation import unpack
from penstock.connectors.kinesis.client import (
    FailureKind,
    describe,
    failure_kind,
    from_millis,
    is_of_boto,
    iterator_arguments,
    list_shards,
    source_error,
    to_millis,
)
from penstock.connectors.kinesis.positions import After, AtTime, ShardPosition
from penstock.connectors.kinesis.shards import uncovered
from penstock.errors import ConnectorError, SourceChanged

if TYPE_CHECKING:
    from penstock.connectors.kinesis.client import KinesisClient, StreamAddress, StreamSummary
    from penstock.connectors.kinesis.shards import Listing

log: Final = logging.getLogger("penstock")

# ---- limits of Kinesis -----------------------------------------------------------------------------------------------

READ_INTERVAL: Final = 200_000
"""Least microseconds between two reads of a shard: five a second are allowed, to all consumers together."""
READ_BYTES_PER_SECOND: Final = 2_000_000
"""Bytes a second of a shard, likewise. A page may have 10 MB; then the next read waits for five seconds."""
MAX_RECORDS: Final = 10_000
"""Most records of a page."""
FIRST_BACKOFF, MAX_BACKOFF = 200_000, 5_000_000
"""Microseconds up to which a failed request waits before it is repeated: at first, and after many failures."""
WARN_AFTER: Final = 60_000_000
"""Microseconds of failures, or of pages that bring a shard no further, after which a warning is logged."""
FAIL_AFTER: Final = 300_000_000
"""Microseconds of them after which the job fails and restarts. Throttling never fails it."""
_DUE: Final = MonotonicTime(-(2**62))
"""A time that has come on any clock."""


class FetchedRecord(NamedTuple):
    """A record, or one of an aggregate. ``arrived`` is in microseconds since the epoch."""

    seq: int
    sub: int
    data: bytes
    partition_key: str
    explicit_hash_key: str | None
    arrived: int


class Stepper(Protocol):
    """What ``FetchPool`` runs: one thread at a time calls ``step``, once ``due`` has come."""

    @property
    def due(self) -> MonotonicTime | None:
        """When to call ``step``; ``None`` while there is nothing to do."""
        ...

    def step(self, now: MonotonicTime) -> None:
        """Do one thing, which may take the time of a request. Keeps its failures for the reader."""
        ...


# ---- backoff ---------------------------------------------------------------------------------------------------------


class Backoff:
    """Waits between failed requests: twice as long after each, a random part of it, so that consumers spread out.

    Args:
        random: gives numbers from 0 to 1.
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._failures = 0
        self.since: MonotonicTime | None = None
        """When the failures began that have not ended."""
        self.has_warned = False

    def failed(self, now: MonotonicTime) -> MonotonicTime:
        """Note a failure; returns when to try again."""
        self.since = now if self.since is None else self.since
        most = min(MAX_BACKOFF, FIRST_BACKOFF << min(self._failures, 16))
        self._failures += 1
        return MonotonicTime(now + max(1_000, int(most * self._random())))

    def succeeded(self) -> None:
        """Note a success."""
        self._failures, self.since, self.has_warned = 0, None, False

    def is_long(self, now: MonotonicTime) -> bool:
        """Whether to warn now: once for each row of failures, when it has lasted for ``WARN_AFTER``."""
        if self.has_warned or self.since is None or now < self.since + WARN_AFTER:
            return False
        self.has_warned = True
        return True


# ---- one shard -------------------------------------------------------------------------------------------------------


class ShardFetcher:
    """Reads one shard from a position on into a buffer.

    Args:
        client: of boto3.
        address: the stream, for messages.
        shard: its id.
        position: where to begin.
        read_until: up to when the shard was read before, in milliseconds; ``None`` if that is not known.
        retention: how long the stream keeps records, in milliseconds.
        wall: milliseconds since the epoch at a monotonic time. It must not jump as a machine's clock may.
        random: gives numbers from 0 to 1.
        poll_every: microseconds between reads of a shard that has no more records.
        max_bytes: of records that wait in the buffer; no page is fetched while there are more.
        stop_at_tip: fetch no more once the end of the shard was reached.

    Attributes:
        ended: the shard has no more records after those in the buffer, as far as Kinesis says.
        is_gone: Kinesis does not know the shard, or not the record of its position.
        lost: from and to when records may be missing that were kept no longer, in milliseconds; ``None`` if none are.
        failure: why the shard cannot be read; no request follows it.
        behind: milliseconds from the newest record to the last page; ``None`` before the first.
        throttled: number of refused requests.
        throttled_micros: how long they were waited for, together.
        has_reached_tip: a page has reached the end of the shard, as it was then.
    """

    def __init__(  # noqa: PLR0913 - what a fetcher has to know
        self,
        client: KinesisClient,
        address: StreamAddress,
        shard: str,
        position: ShardPosition,
        *,
        read_until: int | None,
        retention: int,
        wall: Callable[[MonotonicTime], int],
        random: Callable[[], float],
        poll_every: int,
        max_bytes: int,
        stop_at_tip: bool = False,
    ) -> None:
        self.shard = shard
        self._client = client
        self._address = address
        self._start = position
        self._last: tuple[int, int] = (position.seq, position.sub) if isinstance(position, After) else (-1, 0)
        self._has_read = False  # a page with records was read since the start
        self._read_until = read_until
        self._retention = retention
        self._wall = wall
        self._poll_every = poll_every
        self._max_bytes = max_bytes
        self._stop_at_tip = stop_at_tip
        self._backoff = Backoff(random)
        self._iterator: str | None = None
        self._record_bytes = 1_024  # of the last page's records
        self._arrivals = 0.0  # records a millisecond, in the last page
        self._next: MonotonicTime | None = _DUE
        self._lock = threading.Lock()
        self._buffer: deque[FetchedRecord] = deque()
        self._bytes = 0
        self._stuck_since: MonotonicTime | None = None
        self._least_behind: int | None = None
        self._has_renewed = False
        self.ended = False
        self.is_gone = False
        self.lost: tuple[int, int] | None = None
        self.failure: ConnectorError | None = None
        self.behind: int | None = None
        self.throttled = self.throttled_micros = 0
        self.has_reached_tip = False

    # ---- for the reader ----------------------------------------------------------------------------------------------

    @property
    def due(self) -> MonotonicTime | None:
        """When the next request is due; ``None`` while the buffer is full, and once the shard has ended or failed."""
        if self.ended or self.is_gone or self.failure is not None or self._bytes >= self._max_bytes:
            return None
        if self._stop_at_tip and self.has_reached_tip:
            return None
        return self._next

    def drained_until(self) -> int | None:
        """Milliseconds since the epoch up to which all records were taken; ``None`` while some are in the buffer."""
        with self._lock:
            return None if self._buffer else self._read_until

    @property
    def buffered(self) -> int:
        """Number of records in the buffer."""
        return len(self._buffer)

    @property
    def is_behind(self) -> bool:
        """Whether records wait, in the buffer or in Kinesis as of the last page."""
        return bool(self._buffer) or bool(self.behind)

    def estimate_waiting(self) -> int:
        """About how many records are in Kinesis that were not fetched."""
        return int(self._arrivals * (self.behind or 0)) + (1 if self.behind else 0)

    def count_until(self, is_beyond: Callable[[FetchedRecord], bool]) -> int:
        """Number of records in the buffer before the first for which ``is_beyond`` holds."""
        with self._lock:
            return next((index for index, record in enumerate(self._buffer) if is_beyond(record)), len(self._buffer))

    def sizes(self, most: int) -> list[int]:
        """Bytes of the first records in the buffer."""
        with self._lock:
            return [len(self._buffer[index].data) for index in range(min(most, len(self._buffer)))]

    def take(self, count: int) -> list[FetchedRecord]:
        """Take the first ``count`` records out of the buffer."""
        with self._lock:
            taken = [self._buffer.popleft() for _ in range(count)]
            self._bytes -= sum(len(record.data) for record in taken)
        return taken

    def restart(self, now: MonotonicTime) -> None:
        """Go on with another iterator, after an answer that has proved wrong. Called while no step is due."""
        self._iterator = None
        self._next = self._backoff.failed(now)
        self.ended = self.is_gone = False

    def forgive(self) -> None:
        """Go on behind what is lost."""
        self.lost = None

    # ---- requests ----------------------------------------------------------------------------------------------------

    def step(self, now: MonotonicTime) -> None:
        """Ask for an iterator, or for a page of records."""
        try:
            if self._iterator is None:
                self._open(now)
            else:
                self._read(self._iterator, now)
        except ConnectorError as error:
            self.failure = error
        except Exception as error:
            if not is_of_boto(error):
                raise
            self._failed(error, now)

    def _open(self, now: MonotonicTime) -> None:
        arguments = iterator_arguments(self._start)
        if self._has_read:  # each record that was fetched is in the buffer, or was taken: go on after it
            arguments = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": str(self._last[0])}
        answer = self._client.get_shard_iterator(**self._address.argument, ShardId=self.shard, **arguments)
        self._iterator = answer["ShardIterator"]
        self._next = now

    def _read(self, iterator: str, now: MonotonicTime) -> None:
        room = max(1, self._max_bytes - self._bytes)
        limit = min(MAX_RECORDS, max(1, room // self._record_bytes))
        page = self._client.get_records(ShardIterator=iterator, Limit=limit)
        self._backoff.succeeded()
        found = page["Records"]
        behind = int(page.get("MillisBehindLatest") or 0)
        self._check_gap(found, now)
        records = self._unpack(found)
        size = sum(len(record["Data"]) for record in found)
        if found:
            self._record_bytes = max(1, size // len(found))
            self._has_read = True
            first, last = (to_millis(found[index]["ApproximateArrivalTimestamp"]) for index in (0, -1))
            self._arrivals = len(records) / max(1, last - first)
        # An emulator says 0 before the end of a shard, so a full page proves nothing.
        at_tip = behind == 0 and len(found) < limit
        until = to_millis(found[-1]["ApproximateArrivalTimestamp"]) if found else self._wall(now) - behind
        following = page.get("NextShardIterator")
        with self._lock:
            self._buffer.extend(records)
            self._bytes += sum(len(record.data) for record in records)
            self._read_until = max(until, self._read_until or 0)
            self.behind, self.has_reached_tip = behind, self.has_reached_tip or at_tip
        self._iterator = following
        self._next = MonotonicTime(now + self._pause(size, has_more=bool(found) or behind > 0))
        if following is None:
            self.ended = True
        else:
            self._watch(now, behind, has_records=bool(found))

    def _pause(self, size: int, *, has_more: bool) -> int:
        """Microseconds to the next read: as soon as the shard's limits allow, or ``poll_every`` at its end."""
        least = min(READ_INTERVAL, self._poll_every)  # a test, or an emulator, may be read faster
        return max(least if has_more else self._poll_every, size * 1_000_000 // READ_BYTES_PER_SECOND)

    def _unpack(self, found: list[dict[str, Any]]) -> list[FetchedRecord]:
        """The records of a page that were not read before.

        Raises:
            SourceChanged: they are not in order. Then it cannot be said what was read.
        """
        records: list[FetchedRecord] = []
        for index, raw in enumerate(found):
            seq, data = int(raw["SequenceNumber"]), raw["Data"]
            if seq < self._last[0] or (seq == self._last[0] and (index or self._has_read)):
                msg = (
                    f"Shard {self.shard} of stream {self._address.stream} gave record {seq} after {self._last[0]}. "
                    "Check that endpoint_url= is the service that the position is of."
                )
                raise SourceChanged(msg)
            arrived = to_millis(raw["ApproximateArrivalTimestamp"]) * 1_000
            inner = unpack(data)
            if inner is None:
                unpacked = [FetchedRecord(seq, 0, data, raw["PartitionKey"], None, arrived)]
            else:
                unpacked = [
                    FetchedRecord(seq, sub, each.data, each.partition_key, each.explicit_hash_key, arrived)
                    for sub, each in enumerate(inner)
                ]
            if seq == self._last[0]:  # the record of the position, which was read in part or whole
                unpacked = unpacked[self._last[1] + 1 :]
            records += unpacked
            self._last = (seq, max(self._last[1] if seq == self._last[0] else 0, unpacked[-1].sub if unpacked else 0))
        return records

    def _check_gap(self, found: list[dict[str, Any]], now: MonotonicTime) -> None:
        """Note records that Kinesis has deleted before they were read. It goes on after them without a word."""
        until = self._read_until
        horizon = self._wall(now) - self._retention
        if until is None or until >= horizon:
            return
        is_first = not self._has_read and isinstance(self._start, After) and bool(found)
        if is_first and int(found[0]["SequenceNumber"]) == self._last[0]:  # the record before the next is still there
            return
        if found and to_millis(found[0]["ApproximateArrivalTimestamp"]) < horizon:  # kept for longer than it had to be
            return
        self.lost = (until, horizon)

    # ---- failures ----------------------------------------------------------------------------------------------------

    def _failed(self, error: Exception, now: MonotonicTime) -> None:
        kind = failure_kind(error)
        if kind is FailureKind.EXPIRED:
            self._iterator, self._next = None, self._backoff.failed(now)
            return
        if kind is FailureKind.GONE:
            self.is_gone = True
            return
        if kind is FailureKind.INVALID and isinstance(self._start, AtTime) and self._is_future(self._start, now):
            kind = FailureKind.OUTAGE  # the service's clock is behind ours: the time will come
        if kind in (FailureKind.REFUSED, FailureKind.INVALID):
            self.failure = source_error(error, self._address)
            return
        self._next = self._backoff.failed(now)
        if kind is FailureKind.THROTTLED:
            self.throttled += 1
            self.throttled_micros += self._next - now
        if self._backoff.is_long(now):
            log.warning(
                "shard %s of stream %s: %s", self.shard, self._address.stream, source_error(error, self._address)
            )
        if kind is FailureKind.OUTAGE and self._backoff.since is not None and now >= self._backoff.since + FAIL_AFTER:
            self.failure = source_error(error, self._address)

    def _is_future(self, start: AtTime, now: MonotonicTime) -> bool:
        return not self._has_read and self._wall(now) < start.ms + FAIL_AFTER // 1_000

    def _watch(self, now: MonotonicTime, behind: int, *, has_records: bool) -> None:
        """Get another iterator for a shard that is behind and comes no further, then fail."""
        if has_records or behind == 0 or self._least_behind is None or behind < self._least_behind:
            self._stuck_since, self._least_behind = now, behind
            self._has_renewed = self._has_renewed and behind > 0 and not has_records
            return
        assert self._stuck_since is not None
        if now >= self._stuck_since + FAIL_AFTER:
            at = from_millis(self._read_until or 0)
            msg = (
                f"Shard {self.shard} of stream {self._address.stream} has given no record for "
                f"{FAIL_AFTER // 1_000_000} s, though it is {behind / 1_000:g} s behind, at {at:%Y-%m-%d %H:%M:%S}. "
                "Another iterator gave none either. Check that the service works."
            )
            self.failure = source_error(TimeoutError(msg), self._address)
        elif now >= self._stuck_since + WARN_AFTER and not self._has_renewed:
            self._has_renewed = True
            self._iterator = None
            log.warning(
                "shard %s of stream %s: no record for %d s, though it is %g s behind; trying another iterator",
                *(self.shard, self._address.stream, WARN_AFTER // 1_000_000, behind / 1_000),
            )


# ---- the shards of the stream ----------------------------------------------------------------------------------------


class StreamWatcher:
    """Lists the shards of a stream. Runs in a ``FetchPool``; the reader takes over what it has found.

    Args:
        client: of boto3.
        address: the stream.
        every: microseconds between two listings; a random tenth is added, so that jobs spread out.
        random: gives numbers from 0 to 1.

    Attributes:
        summary: the stream at the last listing.
        listing: its shards then.
        number: of that listing, counted from 1.
        failure: why no more are made.
    """

    def __init__(
        self, client: KinesisClient, address: StreamAddress, *, every: int, random: Callable[[], float]
    ) -> None:
        self._client = client
        self._address = address
        self._every = every
        self._random = random
        self._backoff = Backoff(random)
        self._due = _DUE
        self._begun = 0
        self._is_wanted = False
        self.summary: StreamSummary | None = None
        self.listing: Listing = {}
        self.number = 0
        self.failure: ConnectorError | None = None

    @property
    def due(self) -> MonotonicTime | None:
        """When the next listing is due."""
        return None if self.failure is not None else self._due

    def want(self, now: MonotonicTime) -> int:
        """Ask for a listing that begins from now on; returns the number that it or a later one will have."""
        if self._backoff.since is None:
            self._due = min(self._due, now)
        self._is_wanted = True
        return self._begun + 1

    def step(self, now: MonotonicTime) -> None:
        """List the shards."""
        self._begun += 1
        self._is_wanted = False
        self._due = MonotonicTime(now + self._every + int(self._every * self._random() / 10))
        try:
            summary, listing = describe(self._client, self._address), list_shards(self._client, self._address)
        except Exception as error:
            if not is_of_boto(error):
                raise
            self._failed(error, now)
            return
        if self._is_incomplete(listing, now):
            return
        self._backoff.succeeded()
        self.summary, self.listing, self.number = summary, listing, self._begun
        if self._is_wanted:
            self._due = now

    def _is_incomplete(self, listing: Listing, now: MonotonicTime) -> bool:
        """Whether open shards are missing: then nothing is concluded from what is not listed (for five minutes)."""
        gap = uncovered(listing)
        if gap is None:
            return False
        self._due = self._backoff.failed(now)
        if self._backoff.is_long(now):
            log.warning(
                "stream %s: no open shard has the hash keys from %d to %d; a listing seems to be incomplete",
                *(self._address.stream, *gap),
            )
        since = self._backoff.since
        return since is None or now < since + FAIL_AFTER

    def _failed(self, error: Exception, now: MonotonicTime) -> None:
        kind = failure_kind(error)
        if kind in (FailureKind.REFUSED, FailureKind.INVALID):
            self.failure = source_error(error, self._address)
            return
        self._due = self._backoff.failed(now)
        if self._backoff.is_long(now):
            log.warning("stream %s: %s", self._address.stream, source_error(error, self._address))
        since = self._backoff.since
        if kind is not FailureKind.THROTTLED and since is not None and now >= since + FAIL_AFTER:
            self.failure = source_error(error, self._address)


# ---- threads ---------------------------------------------------------------------------------------------------------

MAX_THREADS: Final = 32
"""Most shards that are read at once."""


class FetchPool:
    """Runs fetchers when they are due: on threads, or within ``run_due`` if there are none.

    Threads hold the pool's lock while they ask for ``due``, which may take a fetcher's lock: never the other way round.

    Args:
        clock: for what is due.
        threads: most threads. 0 for tests, whose clock stands still meanwhile.
    """

    def __init__(self, clock: Clock, threads: int = MAX_THREADS) -> None:
        self._clock = clock
        self._max = threads
        self._changed = threading.Condition()
        self._steppers: list[Stepper] = []
        self._running: set[int] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._error: BaseException | None = None

    def add(self, stepper: Stepper) -> None:
        """Run a fetcher from now on."""
        with self._changed:
            self._steppers.append(stepper)
            if len(self._threads) < min(self._max, len(self._steppers)):
                name = f"penstock-kinesis-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()

    def remove(self, stepper: Stepper) -> None:
        """Run it no more; a step that has begun ends by itself."""
        with self._changed:
            self._steppers.remove(stepper)

    def wake(self) -> None:
        """Look again for what is due: a buffer has room, or a listing is wanted."""
        with self._changed:
            self._changed.notify_all()

    def run_due(self, now: MonotonicTime) -> None:
        """Without threads, run all that is due at ``now``, until nothing is. Raises what a fetcher has raised.

        No failure of a request is raised here: fetchers keep those.
        """
        if self._error is not None:
            raise self._error
        while not self._max:
            due = [each for each in self._steppers if each.due is not None and each.due <= now]
            if not due:
                return
            for each in due:
                each.step(now)

    def close(self) -> None:
        """End the threads. A request that is under way is not waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            while (stepper := self._await_due()) is not None:
                stepper.step(self._clock.now())
                with self._changed:
                    self._running.discard(id(stepper))
                    self._changed.notify()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()  # all threads end

    def _await_due(self) -> Stepper | None:
        with self._changed:
            while not self._closed and self._error is None:
                now = self._clock.now()
                times = [(each.due, each) for each in self._steppers if id(each) not in self._running]
                waiting = [(due, each) for due, each in times if due is not None]
                due, stepper = min(waiting, key=lambda each: each[0], default=(None, None))
                if due is not None and stepper is not None and due <= now:
                    self._running.add(id(stepper))
                    return stepper
                self._changed.wait(MAX_WAIT if due is None else min(MAX_WAIT, (due - now) / 1_000_000))
        return None
