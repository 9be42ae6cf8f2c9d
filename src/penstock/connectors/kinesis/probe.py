"""``ShardProber``: finds where ranges of a shard may end, without fetching what is between.

Kinesis has no end offsets. A range must end at a record that exists, so the driver looks for one: the first record that
arrived at a time between the last range and the end of the shard. That is a page of one record, however many records
the range has. Near the end of a shard, where only some wait, it reads them, and keeps their numbers alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.clock import MonotonicTime
from penstock.connectors.kinesis.client import FailureKind, failure_kind, from_millis
from penstock.connectors.kinesis.fetch import FetchedRecord, ShardFetcher

if TYPE_CHECKING:
    from penstock.connectors.kinesis.client import KinesisClient, StreamAddress
    from penstock.connectors.kinesis.positions import ShardPosition

MIN_JUMP: Final = 1_000
"""Milliseconds that a shard must be behind for a probe to leave records out."""
BEFORE_END: Final = 500
"""Milliseconds that a probe stays before the newest record: behind it there may be no answer."""
PROBE_BYTES: Final = 256 * 1024
"""About the bytes of a page that is read near the end of a shard."""
MAX_BOUNDS: Final = 1_000
"""Most records in the buffer of a prober."""


class ShardProber(ShardFetcher):
    """Finds records of one shard at which ranges may end. Its buffer has their numbers, without data.

    Args:
        client: of boto3.
        address: the stream, for messages.
        shard: its id.
        position: where the first range begins.
        window: milliseconds of arrival that a range may have.
        more: the other arguments of a ``ShardFetcher``.
    """

    def __init__(
        self,
        client: KinesisClient,
        address: StreamAddress,
        shard: str,
        position: ShardPosition,
        *,
        window: Callable[[], int],
        **more: Any,
    ) -> None:
        super().__init__(client, address, shard, position, **{**more, "max_bytes": PROBE_BYTES})
        self._window = window
        self._read_at = MonotonicTime(0)
        self._is_jump = False
        self._may_jump = True
        self._jumped: tuple[int, int] | None = None

    @property
    def due(self) -> MonotonicTime | None:
        """When to look for the next end; ``None`` while an end behind left-out records waits, or the buffer is full."""
        with self._lock:  # the reader may take the last record meanwhile
            has_jumped = bool(self._buffer) and self._buffer[-1][:2] == self._jumped
            is_full = len(self._buffer) >= MAX_BOUNDS
        return None if has_jumped or is_full else super().due

    def _jump_to(self, now: MonotonicTime) -> int | None:
        """The time to look at, in milliseconds since the epoch; ``None``: read what comes."""
        if not self._may_jump or not self._has_read or not self.behind or self._read_until is None:
            return None
        behind = self.behind + (now - self._read_at) // 1_000
        if behind < MIN_JUMP:
            return None
        return self._read_until + min(max(1, self._window()), behind - BEFORE_END)

    def _open(self, now: MonotonicTime) -> None:
        at = self._jump_to(now)
        self._is_jump = at is not None
        if at is None:
            super()._open(now)
            return
        answer = self._client.get_shard_iterator(
            **self._address.argument, ShardId=self.shard, ShardIteratorType="AT_TIMESTAMP", Timestamp=from_millis(at)
        )
        self._iterator, self._next = answer["ShardIterator"], now

    def _read(self, iterator: str, now: MonotonicTime) -> None:
        before = self._last
        if self._is_jump:
            self._probe(iterator, now)
        else:
            super()._read(iterator, now)
            if self._last != before:
                self._read_at = now
        # Only behind a record: how far a gap was crossed is nowhere but in the iterator.
        if self._last != before and not self.ended and self._jump_to(now) is not None:
            self._iterator = None

    def _probe(self, iterator: str, now: MonotonicTime) -> None:
        page = self._client.get_records(ShardIterator=iterator, Limit=1)
        self._backoff.succeeded()
        found, behind = page["Records"], int(page.get("MillisBehindLatest") or 0)
        self._next = MonotonicTime(now + self._pause(0, has_more=True))
        if not found and behind and page.get("NextShardIterator"):
            self._iterator = page["NextShardIterator"]
            return
        self._iterator = None
        if not found or int(found[0]["SequenceNumber"]) <= self._last[0]:
            self._may_jump = False  # until a record was read
            return
        [*_, last] = self._unpack(found)
        with self._lock:
            self._buffer.append(last)
            self._jumped = last[:2]
            self._read_until = max(last.arrived // 1_000, self._read_until or 0)
            self.behind = behind
        self._read_at = now

    def _unpack(self, found: list[dict[str, Any]]) -> list[FetchedRecord]:
        records = [record._replace(data=b"") for record in super()._unpack(found)]
        self._may_jump = self._may_jump or bool(records)
        return records

    def _failed(self, error: Exception, now: MonotonicTime) -> None:
        if self._is_jump and failure_kind(error) not in (FailureKind.THROTTLED, FailureKind.EXPIRED):
            self._iterator, self._is_jump, self._may_jump = None, False, False
            self._next = self._backoff.failed(now)
            return
        super()._failed(error, now)
