"""KinesisReader: makes batches of the records that fetchers have read ahead, in the driver; of many shards, of ranges.

All decisions are made in ``poll``, on the thread of the source: what the threads have found, they leave for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, cast

from penstock.clock import Clock, MonotonicTime, SystemClock, format_time
from penstock.connectors.kinesis.client import describe, is_of_boto, list_shards, new_client, source_error
from penstock.connectors.kinesis.fetch import MAX_THREADS, FetchedRecord, FetchPool, ShardFetcher, StreamWatcher
from penstock.connectors.kinesis.frames import KinesisFrames, ShardRecords
from penstock.connectors.kinesis.lag import ThrottleMeter, report_lag
from penstock.connectors.kinesis.lease_commits import LeaseCommits
from penstock.connectors.kinesis.lease_import import ImportedStart, match_listing
from penstock.connectors.kinesis.positions import After, AtHorizon, AtTime, order
from penstock.connectors.kinesis.probe import ShardProber
from penstock.connectors.kinesis.ranges import FIRST_WINDOW, RangeTask, adapt_window, row_count
from penstock.connectors.kinesis.shards import (
    KinesisPosition,
    ShardRange,
    advance,
    begin_at,
    check_identity,
    decode,
    discover,
    drop,
    encode,
    end_of_replay,
    finish,
    fit_bytes,
    is_beyond,
    readable,
    share,
    start,
    uncovered,
)
from penstock.elements import ObservedMetrics, SourcePartitions
from penstock.errors import InternalError, SourceChanged, SourceUnavailable
from penstock.facts import OffsetsLost, PartitionsFound
from penstock.interfaces.source import CaughtUp, NoData, PlannedBatch, ReadLimit, Until

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.clock import WallTime
    from penstock.connectors.kinesis.client import KinesisClient
    from penstock.connectors.kinesis.config import KinesisConfig
    from penstock.connectors.kinesis.shards import Listing
    from penstock.handles import CheckpointId, Position
    from penstock.interfaces.source import PollResult, SourceContext

log: Final = logging.getLogger("penstock")

BUFFER_BYTES: Final = 64 * 1024 * 1024
"""Bytes of records that wait for batches, of all shards together; each may go beyond its part by one page."""
_MIN_SHARE: Final = 2 * 1024 * 1024
"""Least part of a shard."""
_MAX_ROWS: Final = 100_000
"""Most rows of a batch if nothing else limits it."""
_MIN_PAUSE, _MAX_PAUSE = 1_000, 10_000
"""Microseconds until a reader without records is polled again: at first, and after some polls without any."""
MANY_SHARDS: Final = MAX_THREADS
"""Most shards that the driver reads if ``read_in`` is ``"auto"``; executors read until there are half as many."""
_LAG_EVERY: Final = 1_000_000
_MAX_RESTARTS: Final = 5
"""How often in a row a shard that is listed may be unknown to reads, before its position counts as wrong."""


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """Plan of a batch: its ranges, which are fixed before a job reads them, and its rows."""

    ranges: tuple[ShardRange, ...]
    table: pa.Table


@dataclass(frozen=True, slots=True)
class RangesBatch:
    """Plan of a batch that executors will read.

    Attributes:
        number: of the batch.
        ranges: its ranges, which are fixed before a job reads them.
        most: about how many rows it was to have.
    """

    number: int
    ranges: tuple[RangeTask, ...]
    most: int


def _most_rows(limits: ReadLimit) -> int:
    return _MAX_ROWS if limits.rows is None else min(_MAX_ROWS, max(1, limits.rows))


class KinesisReader:
    """Reads a source's shards from a position on. Made by ``Source.open``.

    Args:
        config: of the source.
        context: of the job.
        position: where to read on; ``None`` for a first start.
        client: of boto3; made if there is none.
        frames: makes tables and frames; made at the first batch if there are none.
        clock: of the threads.
        threads: most threads that fetch; 0 for tests.
        random: gives numbers from 0 to 1, for waits.
        leases: the source's lease table; made if there is none. It is closed with the reader.

    Raises:
        ConnectorError: the stream cannot be read, or its leases are not to be had; ``Source.open`` says why.
    """

    def __init__(  # noqa: PLR0913 - what tests put in the place of the world
        self,
        config: KinesisConfig,
        context: SourceContext,
        position: KinesisPosition | None,
        *,
        client: KinesisClient | None = None,
        frames: KinesisFrames | None = None,
        clock: Clock | None = None,
        threads: int = MAX_THREADS,
        random: Callable[[], float] | None = None,
        leases: LeaseCommits | None = None,
    ) -> None:
        self._config = config
        self._uid = context.uid
        self._report = context.report
        self._throttling = ThrottleMeter(context.count)
        self._client = client if client is not None else new_client(config.address)
        self._clock = clock or SystemClock()
        # Not seeded: several jobs should not ask at the same moments.
        self._random = random or Random().random
        self._until_caught_up = context.until is Until.CAUGHT_UP
        # The wall clock as it was, and monotonic time since: a clock that is set does not look like lost records.
        self._opened = self._clock.now()
        self._opened_wall = context.wall() // 1_000
        self._pool = FetchPool(self._clock, threads)
        self._fetchers: dict[str, ShardFetcher] = {}
        self._listings: dict[str, int] = {}
        self._restarts: dict[str, int] = {}
        self._orphans: frozenset[str] = frozenset()
        self._watcher = StreamWatcher(self._client, config.address, every=config.discover_every, random=self._random)
        self._seen = 0
        self._listing, self._retention = {}, 0
        self._leases = leases if leases is not None else LeaseCommits(config.leases, context)
        try:
            self._position = self._first_position(position)
            self._leases.opened(self._position.shards)
        except BaseException:  # leases that were taken would stay taken
            self._leases.close()
            raise
        self._encoded = self._position, encode(self._position)
        self._frames = frames
        self._spark = context.spark
        self._turn: str | None = None
        self._in_executors = False
        self._number = 0
        self._window = FIRST_WINDOW
        self._pause = _MIN_PAUSE
        self._lag_due = self._opened
        self._closed = False
        self._pool.add(self._watcher)

    # ---- the start ---------------------------------------------------------------------------------------------------

    _listing: Listing

    def _first_position(self, resume: KinesisPosition | None) -> KinesisPosition:
        """The position to read on from, with the shards that there are now.

        Raises:
            ConnectorError: the stream cannot be described.
            SourceChanged: it is another one than that of the position.
            LeaseLost: the KCL application runs in whose place it is to begin.
            LeaseTableInvalid: the application's table does not say where to begin.
        """
        config = self._config
        try:
            summary, listing = describe(self._client, config.address), list_shards(self._client, config.address)
        except Exception as error:
            if not is_of_boto(error):
                raise
            raise source_error(error, config.address) from error
        if uncovered(listing) is not None:
            msg = (
                f"Stream {config.address.stream} at {config.address.place} is {summary.status}, and not all of its "
                "shards are listed. Wait until it is ACTIVE."
            )
            raise SourceUnavailable(msg)
        self._listing, self._retention = listing, summary.retention
        if resume is not None:
            check_identity(resume, summary.arn, summary.created)
            changes = discover(resume, listing, listing)
            self._orphans = changes.orphans
            return changes.position
        first = start(summary.arn, summary.created, listing, AtHorizon())
        horizon = self._opened_wall - summary.retention
        if isinstance(config.start, ImportedStart):
            return begin_at(first, match_listing(config.start.positions, self._parents()), horizon)
        kcl = self._leases.start(self._parents())
        if kcl is not None:
            return begin_at(first, kcl, horizon)
        if config.start == "earliest":
            return first
        # A time instead of "latest": a crash before the first record comes skips nothing.
        ms = self._opened_wall if config.start == "latest" else config.start
        return begin_at(first, dict.fromkeys(first.shards, AtTime(ms)), horizon)

    def _wall(self, now: MonotonicTime) -> int:
        """Milliseconds since the epoch at a monotonic time."""
        return self._opened_wall + (now - self._opened) // 1_000

    # ---- polling -----------------------------------------------------------------------------------------------------

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:  # noqa: ARG002 - as for any reader
        """The next batch of what was fetched.

        Raises:
            SourceUnavailable: the service was away for too long, or a shard brings nothing.
            SourceChanged: records that were to be read are lost, or the stream is another one.
            ConnectorError: the stream refuses to be read.
            LeaseLost: a lease that the job is to own was lost.
        """
        self._leases.check()
        self._pool.run_due(now)
        self._take_listing()
        self._start_fetchers()
        for shard in list(self._fetchers):
            self._look_at(shard, now)
        self._start_fetchers()
        if now >= self._lag_due:
            self._lag_due = MonotonicTime(now + _LAG_EVERY)
            self._report(report_lag(self._uid, self._fetchers))
            self._note_read()
            for shard, fetcher in self._fetchers.items():
                self._throttling.note(shard, fetcher)
        if self._until_caught_up and self._is_caught_up():
            self._report(report_lag(self._uid, self._fetchers))
            return CaughtUp()
        return self._plan(now, self._config.limit_batch(limits))

    def _take_listing(self) -> None:
        watcher = self._watcher
        if watcher.failure is not None:
            raise watcher.failure
        number = watcher.number
        if number == self._seen or watcher.summary is None:
            return
        check_identity(self._position, watcher.summary.arn, watcher.summary.created)
        previous, self._listing = self._listing, watcher.listing
        self._seen, self._retention = number, watcher.summary.retention
        changes = discover(self._position, self._listing, previous)
        self._position, self._orphans = changes.position, changes.orphans
        if changes.found:
            self._leases.shards_found(self._position.shards)
            self._report(PartitionsFound(task=self._uid, partitions=changes.found))

    def _start_fetchers(self) -> None:
        """Fetch the shards that may be read, and only those."""
        ids = readable(self._position, self._orphans)
        if self._read_in_executors(len(ids)) is not self._in_executors:
            self._in_executors = not self._in_executors
            for shard in list(self._fetchers):  # what they have fetched is read again from the position
                self._remove(shard)
        for shard in ids:
            if shard not in self._fetchers:
                self._fetchers[shard] = self._new_fetcher(shard, len(ids))
                self._pool.add(self._fetchers[shard])

    def _read_in_executors(self, shards: int) -> bool:
        config = self._config
        if config.read_in != "auto" or config.replay_end is not None:  # an end is a record, which is not to be passed
            return config.read_in == "executors" and config.replay_end is None
        return shards > (MANY_SHARDS // 2 if self._in_executors else MANY_SHARDS)

    def _new_fetcher(self, shard: str, shards: int) -> ShardFetcher:
        state = self._position.shards[shard]
        new = partial(ShardProber, window=lambda: self._window) if self._in_executors else ShardFetcher
        return new(
            self._client,
            self._config.address,
            shard,
            state.position,
            read_until=state.read_until,
            retention=self._retention,
            wall=self._wall,
            random=self._random,
            poll_every=self._config.poll_every,
            max_bytes=max(_MIN_SHARE, BUFFER_BYTES // shards),
            stop_at_tip=self._until_caught_up and self._config.replay_end is None,
        )

    # ---- what fetchers have found ------------------------------------------------------------------------------------

    def _look_at(self, shard: str, now: MonotonicTime) -> None:
        """Act on the end, the loss or the failure of a shard."""
        fetcher = self._fetchers[shard]
        if fetcher.failure is not None:
            raise fetcher.failure
        if fetcher.lost is not None:
            since, until = (format_time(ms * 1_000) for ms in fetcher.lost)
            self._lose(
                shard, f"records that arrived from {since} to {until} are kept no longer, and were not read", "expired"
            )
            fetcher.forgive()
        if not fetcher.ended and not fetcher.is_gone:
            self._listings.pop(shard, None)
            return
        # What a null iterator or an unknown shard means is said by a listing that was made after it: the shard has
        # closed, and its children are in the same checkpoint as its end; or the answer was wrong.
        if shard not in self._listings:
            self._listings[shard] = self._watcher.want(now)
            self._pool.wake()
        if self._seen < self._listings[shard] or fetcher.buffered:
            return
        listed = self._listing.get(shard)
        if fetcher.ended and (listed is None or listed.is_closed):
            self._remove(shard)
            self._position = finish(self._position, shard)
            self._leases.shards_found(self._position.shards)  # its lease is wanted no more
        elif listed is not None:
            self._restart(shard, now)
        else:
            self._remove(shard)
            self._lose(shard, "the stream has no such shard any more, and it was not read to its end", "shard gone")
            self._position = drop(self._position, shard)

    def _restart(self, shard: str, now: MonotonicTime) -> None:
        fetcher = self._fetchers[shard]
        self._restarts[shard] = self._restarts.get(shard, 0) + 1
        if fetcher.is_gone and self._restarts[shard] > _MAX_RESTARTS:
            position = self._position.shards[shard].position
            msg = (
                f"Shard {shard} of stream {self._config.address.stream} is there, but its position {position} is not. "
                "The position is of another stream of that name. Check endpoint_url=, region= and the account, or give "
                "the source a uid of its own."
            )
            raise SourceChanged(msg)
        del self._listings[shard]
        fetcher.restart(now)
        self._pool.wake()

    def _remove(self, shard: str) -> None:
        fetcher = self._fetchers.pop(shard)
        self._pool.remove(fetcher)
        self._throttling.forget(shard, fetcher)
        self._listings.pop(shard, None)
        self._restarts.pop(shard, None)

    def _lose(self, shard: str, what: str, reason: str) -> None:
        if self._config.on_lost_records == "fail":
            msg = (
                f"Shard {shard} of stream {self._config.address.stream}: {what}. Reading on would leave them out. Keep "
                "records for longer than the job may be down (the stream's retention period). To go on without them, "
                "write on_lost_records='continue'. To begin again, start with penstock run … --fresh, or give the "
                "source a new uid."
            )
            raise SourceChanged(msg)
        log.warning("source %s goes on without what is lost: shard %s: %s", self._uid, shard, what)
        position = self._position.shards[shard].position
        first = position.seq + 1 if isinstance(position, After) else 0
        self._report(OffsetsLost(task=self._uid, partition=shard, reason=reason, first=first, end=None))

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _is_caught_up(self) -> bool:
        """Whether all was read that was there when the reader was opened, or up to the end of a replay."""
        end = self._config.replay_end
        if end is None:
            return all(
                id in self._fetchers and self._fetchers[id].has_reached_tip and not self._fetchers[id].buffered
                for id in self._position.unfinished
            )
        for id in self._position.unfinished:
            until = end_of_replay(end, id, self._parents())
            if until is not None and order(self._position.shards[id].position) < order(until):
                return False
        return True

    def _note_read(self) -> None:
        """Note up to when shards were read that bring nothing: a checkpoint without it looks older than it is."""
        shards = dict(self._position.shards)
        for shard, fetcher in self._fetchers.items():
            until = fetcher.drained_until()
            if until is not None and fetcher.behind is not None:
                shards[shard] = replace(shards[shard], read_until=until)
        self._position = replace(self._position, shards=shards)

    def _parents(self) -> Mapping[str, tuple[str, ...]]:
        return {id: shard.parents for id, shard in self._listing.items()}

    def _available(self, shard: str) -> int:
        """Number of fetched records of a shard that may be read."""
        fetcher = self._fetchers[shard]
        if not self._until_caught_up or self._config.replay_end is None:
            return fetcher.buffered
        end = end_of_replay(self._config.replay_end, shard, self._parents())
        return fetcher.count_until(lambda record: is_beyond(record.seq, record.sub, end))

    # ---- batches -----------------------------------------------------------------------------------------------------

    def _plan(self, now: MonotonicTime, limits: ReadLimit) -> PollResult:
        available = {shard: self._available(shard) for shard in sorted(self._fetchers)}
        waiting = {shard: rows for shard, rows in available.items() if rows and shard not in limits.paused}
        if not waiting:
            self._pause = min(_MAX_PAUSE, self._pause * 2)
            return NoData(wake_at=MonotonicTime(now + self._pause))
        self._pause = _MIN_PAUSE
        shares, self._turn = self._share(waiting, limits)
        if self._in_executors:
            return self._plan_for_executors(shares, _most_rows(limits))
        taken, ranges = [], []
        for shard, count in shares.items():
            if count:
                records = self._fetchers[shard].take(count)
                taken.append(ShardRecords(shard, records))
                ranges.append(self._range(shard, records))
        self._position = advance(self._position, ranges)
        self._pool.wake()  # there is room again
        return self._batch(taken, tuple(ranges))

    def _plan_for_executors(self, shares: Mapping[str, int], most: int) -> PlannedBatch:
        tasks = []
        for shard, count in shares.items():
            if count:
                before = self._position.shards[shard].read_until
                part = replace(self._range(shard, self._fetchers[shard].take(count)), count=None)
                tasks.append(RangeTask(part=part, read_until=before, retention=self._retention))
        self._position = advance(self._position, [task.part for task in tasks])
        self._pool.wake()
        self._number += 1
        plan, partitions = RangesBatch(self._number, tuple(tasks), most), self.partitions()
        return PlannedBatch(
            plan=plan,
            verify=lambda: self._verify(plan),
            partitions=partitions,
            takes_all=not partitions.behind,
        )

    def _verify(self, plan: RangesBatch) -> None:
        """Check that all reads of the batch's ranges had the same number of rows.

        Raises:
            SourceUnavailable: they had not.
        """
        assert self._frames is not None  # it has made the plan's frame
        counts = self._frames.take_counts(plan.number, plan.ranges)
        rows = [row_count(count, task.part.shard) for count, task in zip(counts, plan.ranges, strict=True)]
        read = [count for count in rows if count is not None]
        if len(read) == len(plan.ranges):
            self._window = adapt_window(self._window, sum(read), plan.most)
        self._throttling.add(*self._frames.take_throttling())

    def _share(self, waiting: Mapping[str, int], limits: ReadLimit) -> tuple[dict[str, int], str | None]:
        most = _most_rows(limits)
        shares, turn = share(waiting, most, self._turn)
        if limits.bytes is not None:
            sizes = {shard: self._fetchers[shard].sizes(rows) for shard, rows in shares.items()}
            rows = sum(shares.values())
            while (fitting := fit_bytes(shares, sizes, limits.bytes)) < rows:
                shares, turn = share(waiting, fitting, self._turn)
                rows = fitting
        return shares, turn

    def _range(self, shard: str, records: list[FetchedRecord]) -> ShardRange:
        fetcher, last = self._fetchers[shard], records[-1]
        until = fetcher.drained_until()
        return ShardRange(
            shard=shard,
            after=self._position.shards[shard].position,
            to=After(last.seq, last.sub),
            count=len(records),
            read_until=last.arrived // 1_000 if until is None else until,
        )

    def _batch(self, taken: list[ShardRecords], ranges: tuple[ShardRange, ...]) -> PlannedBatch:
        frames = self._frames = self._frames or KinesisFrames(self._spark, self._config)
        table = frames.table(taken)
        rows = sum(len(part.records) for part in taken)
        if table.num_rows != rows:
            msg = f"A batch of {rows} records has {table.num_rows} rows."
            raise InternalError(msg)
        size = sum(len(record.data) for part in taken for record in part.records)
        partitions = self.partitions()
        return PlannedBatch(
            plan=FetchedBatch(ranges, table),
            rows=rows,
            bytes=size,
            metrics={"rows": ObservedMetrics.known({"rows": rows, "bytes": size}), **frames.metrics(table)},
            partitions=partitions,
            takes_all=not partitions.behind,
        )

    def partitions(self) -> SourcePartitions:
        """The shards that are read now.

        A shard stays among them until a listing has its children: event time does not pass their records.
        """
        names = tuple(readable(self._position, self._orphans))
        behind = (id for id in names if id in self._fetchers and self._fetchers[id].is_behind)
        return SourcePartitions(names=names, behind=frozenset(behind), column=self._config.partition_column)

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of the plan's rows."""
        frames = self._frames = self._frames or KinesisFrames(self._spark, self._config)
        if isinstance(plan, RangesBatch):
            return frames.of_ranges(plan.number, plan.ranges)
        return frames.of_table(cast("FetchedBatch", plan).table)

    def position(self) -> Position:
        """The position after the last plan."""
        if self._encoded[0] is not self._position:  # asked for before each poll, and most polls change nothing
            self._encoded = self._position, encode(self._position)
        return self._encoded[1]

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:  # noqa: ARG002 - as for any reader
        """Note the position of a complete checkpoint for the lease table; that changes nothing that is read."""
        self._leases.checkpoint_completed(decode(position).shards)

    def close(self) -> None:
        """End the threads, export the last completed checkpoint, and give up the leases."""
        if not self._closed:
            self._closed = True
            self._pool.close()
            self._leases.close()
