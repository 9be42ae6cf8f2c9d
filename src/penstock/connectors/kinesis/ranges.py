"""Exact ranges of shards, read by Spark's Python workers. The driver has fixed them before a job reads them.

A range ends at a record that exists, records do not change, and their order is that of their numbers: so each attempt
of a task reads the same rows, or fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from penstock.clock import Clock, sleep
from penstock.connectors.kinesis.fetch import FAIL_AFTER, READ_INTERVAL, FetchedRecord, ShardFetcher
from penstock.errors import ConnectorError, SourceUnavailable
from penstock.formats import text

if TYPE_CHECKING:
    from penstock.connectors.kinesis.client import KinesisClient, StreamAddress
    from penstock.connectors.kinesis.shards import ShardRange

MARK: Final = "penstock-kinesis-range:"
"""What the text of a failure begins with."""
PORTION_BYTES: Final = 8 * 1024 * 1024
"""About the bytes of a record batch."""


class RangeFailed(Exception):
    """A range cannot be read. ``explain`` finds the message in its text, also in that of another process.

    Args:
        message: why.
        retry: whether a restart of the job can help. It cannot if, for example, a secret or a right is missing.
    """

    def __init__(self, message: str, *, retry: bool = True) -> None:
        super().__init__(MARK + json.dumps({"message": message, "retry": retry}))


def explain(exception: BaseException) -> ConnectorError | None:
    """The job's error for a Spark job that could not read a range; ``None`` for any other failure.

    If records are lost, the job restarts: its reader finds that out, and does what ``on_lost_records`` says.
    """
    details = next(text.parse_marked(exception, MARK), None)
    if details is None:
        return None
    error = SourceUnavailable if details["retry"] else ConnectorError
    return error(str(details["message"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTask:
    """A range, and what its reader has to know.

    Attributes:
        part: the range.
        read_until: up to when the shard was read before it, in milliseconds; ``None`` if that is not known.
        retention: how long the stream keeps records, in milliseconds.
    """

    part: ShardRange
    read_until: int | None
    retention: int


def read_range(
    task: RangeTask,
    client: KinesisClient,
    address: StreamAddress,
    *,
    clock: Clock,
    pause: Callable[[float], None] = sleep,
    throttled: Callable[[int, int], None] = lambda requests, micros: None,  # noqa: ARG005 - their names
) -> Iterator[list[FetchedRecord]]:
    """Exactly the records of a range, in portions.

    Args:
        task: the range.
        client: of boto3.
        address: the stream.
        clock: the time.
        pause: called with the seconds of each wait.
        throttled: called in the end with the number of refused requests, and the microseconds they were waited for.

    Raises:
        RangeFailed: records of the range are not there, or cannot be read.
    """
    part, began, wall = task.part, clock.now(), clock.wall()
    fetcher = ShardFetcher(
        client,
        address,
        part.shard,
        part.after,
        read_until=task.read_until,
        retention=task.retention,
        wall=lambda now: (wall + now - began) // 1_000,
        random=Random().random,
        poll_every=READ_INTERVAL,
        max_bytes=PORTION_BYTES,
    )
    end, last, progress = (part.to.seq, part.to.sub), (-1, 0), began
    while last < end:
        now = clock.now()
        if fetcher.due is not None:
            pause(max(0, fetcher.due - now) / 1_000_000)
            fetcher.step(clock.now())
        _check(fetcher, part, address)
        records = fetcher.take(fetcher.buffered)
        if records:
            progress, last = clock.now(), records[-1][:2]
            yield _until(end, records)
            if last >= end and end not in {record[:2] for record in records}:
                raise _failed(part, address, f"record {last[0]} came in the place of the last one")
        elif fetcher.ended or fetcher.is_gone:
            raise _failed(part, address, "the shard has ended before the last record")
        elif clock.now() > progress + FAIL_AFTER:
            raise _failed(part, address, "no record came for five minutes")
    throttled(fetcher.throttled, fetcher.throttled_micros)


def _until(end: tuple[int, int], records: list[FetchedRecord]) -> list[FetchedRecord]:
    """The records up to the last one of the range: what arrives later belongs to other ranges."""
    return [record for record in records if record[:2] <= end]


def _check(fetcher: ShardFetcher, part: ShardRange, address: StreamAddress) -> None:
    if fetcher.failure is not None:
        raise RangeFailed(str(fetcher.failure), retry=fetcher.failure.retry)
    if fetcher.lost is not None:
        raise _failed(part, address, "records of it may be kept no longer")


def _failed(part: ShardRange, address: StreamAddress, why: str) -> RangeFailed:
    return RangeFailed(
        f"Shard {part.shard} of stream {address.stream} cannot be read from {part.after} to {part.to}: {why}. A "
        "restart finds out what is there."
    )


# ---- counts ----------------------------------------------------------------------------------------------------------


def row_count(counts: Sequence[int], shard: str) -> int | None:
    """The rows of a range as all reads have counted them; ``None`` if none has read it to its end.

    Raises:
        SourceUnavailable: two reads have found other numbers of rows.
    """
    found = set(counts)
    if len(found) > 1:
        msg = (
            f"Two reads of the same range of shard {shard} had {' and '.join(map(str, sorted(found)))} records. A "
            "restart reads the batch again."
        )
        raise SourceUnavailable(msg)
    return next(iter(found), None)


# ---- how long ranges are ---------------------------------------------------------------------------------------------

FIRST_WINDOW: Final = 10_000
"""Milliseconds of arrival that a range has at first: at most 10,000 records and 10 MB, by the limits of a shard."""
MIN_WINDOW, MAX_WINDOW = 500, 600_000


def adapt_window(window: int, rows: int, most: int) -> int:
    """The next window, by the rows of a batch: half after one that was too large, twice after a small one.

    >>> adapt_window(10_000, 5, 100), adapt_window(10_000, 70, 100), adapt_window(10_000, 101, 100)
    (20000, 10000, 5000)
    """
    if rows > most:
        return max(MIN_WINDOW, window // 2)
    return min(MAX_WINDOW, window * 2) if rows < most // 2 else window
