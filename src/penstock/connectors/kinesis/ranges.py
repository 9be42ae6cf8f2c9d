"""Exact ranges of shards, read by Spark's Python workers. The driver has fixed them before a job reads them.

A range ends at a record that exists, records do not change, and their order is that of their numbers: so each attempt
of a task reads the same rows, or fails.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from pyspark.accumulators import AccumulatorParam

from penstock.clock import Clock, SystemClock, sleep
from penstock.connectors.kinesis.client import new_client
from penstock.connectors.kinesis.fetch import FAIL_AFTER, READ_INTERVAL, FetchedRecord, ShardFetcher
from penstock.errors import PenstockError, SourceUnavailable
from penstock.formats import text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator

    from penstock.connectors.kinesis.client import KinesisClient, StreamAddress
    from penstock.connectors.kinesis.frames import ShardColumns
    from penstock.connectors.kinesis.shards import ShardRange

MARK: Final = "penstock-kinesis-range:"
"""What the text of a failure begins with."""
PORTION_BYTES: Final = 8 * 1024 * 1024
"""About the bytes of a record batch."""


class RangeFailed(Exception):
    """A range cannot be read. ``explain`` finds the message in its text, also in that of another process."""

    def __init__(self, message: str) -> None:
        super().__init__(MARK + json.dumps({"message": message}))
        self.message = message


def explain(exception: BaseException) -> SourceUnavailable | None:
    """The job's error for a Spark job that could not read a range; ``None`` for any other failure.

    The job restarts. If records are lost, its reader finds that out, and does what ``on_lost_records`` says.
    """
    details = next(text.parse_marked(exception, MARK), None)
    return None if details is None else SourceUnavailable(str(details["message"]))


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
        raise RangeFailed(str(fetcher.failure))
    if fetcher.lost is not None:
        raise _failed(part, address, "records of it may be kept no longer")


def _failed(part: ShardRange, address: StreamAddress, why: str) -> RangeFailed:
    return RangeFailed(
        f"Shard {part.shard} of stream {address.stream} cannot be read from {part.after} to {part.to}: {why}. A "
        "restart finds out what is there."
    )


# ---- counts ----------------------------------------------------------------------------------------------------------


class CountAccumulator(AccumulatorParam[dict[str, tuple[int, ...]]]):
    """Collects the numbers that tasks report, by name."""

    def zero(self, value: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """No numbers."""
        del value
        return {}

    def addInPlace(
        self, value1: dict[str, tuple[int, ...]], value2: dict[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]]:
        """Those of both, in ``value1``."""
        for name, numbers in value2.items():
            value1[name] = value1.get(name, ()) + numbers
        return value1


THROTTLED: Final = ""
"""The name of pairs of numbers: refused requests, and microseconds that they were waited for."""


# ---- in a Python worker ----------------------------------------------------------------------------------------------

_clients: dict[tuple[object, ...], KinesisClient] = {}


def _client(address: StreamAddress) -> KinesisClient:
    """This process's client with these options, made by the first call."""
    key = (
        os.getpid(),
        address.region,
        address.endpoint_url,
        *sorted(address.options.items(), key=lambda each: each[0]),
    )
    if key not in _clients:
        _clients.clear()
        _clients[key] = new_client(address)
    return _clients[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRangeReader:
    """Reads the ranges of tasks, given by number. Spark calls it in its Python workers.

    Attributes:
        batch: the number of the batch, for counts.
        tasks: the ranges of each task.
        columns: makes the rows.
        address: the stream; secrets by reference.
        counts: gets the number of rows of each range that was read to its end.
    """

    batch: int
    tasks: tuple[tuple[RangeTask, ...], ...]
    columns: ShardColumns
    address: StreamAddress
    counts: Accumulator[dict[str, tuple[int, ...]]] = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the tasks whose numbers are in ``batches``."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for task in self.tasks[number]:
                    yield from self._read(task)

    def _read(self, task: RangeTask) -> Iterator[pa.RecordBatch]:
        shard, rows = task.part.shard, 0
        try:
            records = read_range(
                task, _client(self.address), self.address, clock=SystemClock(), throttled=self._throttled
            )
            for portion in records:
                if portion:
                    rows += len(portion)
                    yield self.columns.batch([(shard, portion)])
        except PenstockError as error:
            raise RangeFailed(str(error)) from error
        self.counts.add({count_name(self.batch, shard): (rows,)})

    def _throttled(self, requests: int, micros: int) -> None:
        if requests:
            self.counts.add({THROTTLED: (requests, micros)})


def count_name(batch: int, shard: str) -> str:
    """The name of the number of rows of a shard in a batch."""
    return f"{batch}/{shard}"


def as_tasks(ranges: tuple[RangeTask, ...], most: int) -> tuple[tuple[RangeTask, ...], ...]:
    """Deal ranges out to at most so many tasks."""
    return tuple(ranges[at::most] for at in range(min(most, len(ranges))))


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
