"""KafkaReader: reads topics in the driver while little waits, by executors while much waits.

In the driver a batch is what a prefetching consumer has fetched. For executors a batch is a plan of ranges.
Both advance the same offsets, so a switch skips nothing and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from penstock.clock import MonotonicTime
from penstock.connectors.kafka.client import FetchFailed, fetch_error, is_loss
from penstock.connectors.kafka.cluster import KafkaCluster
from penstock.connectors.kafka.commits import OffsetCommitter
from penstock.connectors.kafka.fetch import PartitionRecords, RecordCollector
from penstock.connectors.kafka.frames import KafkaFrames
from penstock.connectors.kafka.metadata import TopicIdCheck, fetch_metadata, resolve_position
from penstock.connectors.kafka.monitor import TopicMonitor
from penstock.connectors.kafka.offsets import KafkaPosition, OffsetRange, TopicPartition, advance, decode, encode
from penstock.connectors.kafka.planning import RowSizes, backlog, ends, plan
from penstock.elements import ObservedMetrics, SourcePartitions
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, ReadLimit, Until

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from penstock.clock import WallTime
    from penstock.connectors.kafka.client import Cluster, Consumer
    from penstock.connectors.kafka.config import KafkaConfig
    from penstock.connectors.kafka.offsets import Offsets, Topics
    from penstock.handles import CheckpointId, Position
    from penstock.interfaces.source import PollResult, ReadIn, SourceContext


@dataclass(frozen=True, slots=True)
class DriverBatch:
    """Plan of a batch that was read in the driver: its rows."""

    table: pa.Table


@dataclass(frozen=True, slots=True)
class ExecutorBatch:
    """Plan of a batch that executors will read: its ranges."""

    ranges: tuple[OffsetRange, ...]


# ---- reading in the driver -------------------------------------------------------------------------------------------

_MAX_MESSAGES: Final = 1_000
"""Most messages that one call takes from the consumer."""


class PrefetchingConsumer:
    """Reads partitions with one consumer, which is made at the first need.

    Args:
        new_consumer: makes a consumer.
        servers: for error messages.
    """

    def __init__(self, new_consumer: Callable[[], Consumer], *, servers: str) -> None:
        self._new_consumer = new_consumer
        self._servers = servers
        self._consumer: Consumer | None = None
        self._collector = RecordCollector({}, {}, servers=servers)
        self._row_bytes = 1024  # of the last rows

    @property
    def next(self) -> Offsets:
        """The next offset of each assigned partition."""
        return self._collector.next

    def assign(self, next: Offsets, end: Offsets) -> None:
        """Fetch exactly these partitions; one whose next offset is unchanged just goes on.

        Args:
            next: the next offset of each.
            end: the end of each that has one.
        """
        current = self._collector.next
        gone = [at for at, offset in current.items() if next.get(at) != offset]
        new = {at: offset for at, offset in next.items() if current.get(at) != offset}
        if gone and self._consumer is not None:
            self._consumer.unassign(gone)
        if new:
            self._consumer = self._consumer or self._new_consumer()
            self._consumer.assign(new)
        self._collector = RecordCollector(next, end, servers=self._servers)

    def take(self, *, rows: int, bytes: int | None, wait: float) -> list[PartitionRecords]:
        """Up to ``rows`` records that have arrived, of about ``bytes`` bytes; those of one partition in order.

        Raises:
            FetchFailed: a partition cannot be read further.
        """
        taken: list[PartitionRecords] = []
        count = size = 0
        while self._consumer is not None and count < rows and (bytes is None or size < bytes):
            most = _MAX_MESSAGES if bytes is None else max(1, (bytes - size) // self._row_bytes)
            most = min(rows - count, _MAX_MESSAGES, most)
            messages = self._consumer.take(most, wait=0 if taken else wait)
            records = self._collector.collect(messages)
            taken += records
            count += sum(len(part.messages) for part in records)
            size += sum(part.bytes for part in records)
            if len(messages) < most:
                break
        if count:
            self._row_bytes = max(1, size // count)
        return taken

    def unassign(self) -> None:
        """Fetch nothing more."""
        if self._consumer is not None and self._collector.next:
            self._consumer.unassign(list(self._collector.next))
        self._collector = RecordCollector({}, {}, servers=self._servers)

    def reopen(self) -> None:
        """Fetch nothing more, and use a new consumer next time."""
        self.close()
        self._consumer = None
        self._collector = RecordCollector({}, {}, servers=self._servers)

    def close(self) -> None:
        """Close the connection."""
        if self._consumer is not None:
            self._consumer.close()


# ---- in the driver or by executors -----------------------------------------------------------------------------------

# A small batch is read fastest by the consumer in the driver, a large backlog by all cores of the executors; the
# crossover is measured by bench/kafka_crossover.py. What counts is all that waits, not what a batch may take of it: a
# consumer returns a backlog one partition after the other, so that some would wait for others.

MAX_DRIVER_ROWS: Final = 30_000
"""Most waiting rows that are read in the driver."""
MAX_DRIVER_BYTES: Final = 24 * 1024 * 1024
"""Most waiting bytes that are read in the driver: less than the consumer prefetches."""
_MAX_BATCH_ROWS: Final = 100_000
"""Most rows of a batch if everything is read in the driver."""


@dataclass(slots=True)
class ReadModeChooser:
    """Decides for each batch whether it is read in the driver.

    Attributes:
        read_in: ``"driver"``, ``"executors"``, or ``"auto"``: by size.
        in_driver: the last decision.

    >>> mode, sizes, at = ReadModeChooser("auto"), RowSizes(), TopicPartition("orders", 0)
    >>> sizes.learn("orders", rows=1, bytes=100)
    >>> mode.choose_driver({at: 20_000}, sizes), mode.choose_driver({at: 12_000}, sizes)
    (False, True)
    >>> mode.choose_driver({at: 20_000}, sizes), mode.choose_driver({at: 40_000}, sizes)
    (True, False)
    """

    read_in: ReadIn
    in_driver: bool = False

    def choose_driver(self, waiting: Mapping[TopicPartition, int], sizes: RowSizes) -> bool:
        """Whether the next batch is read in the driver.

        Reading moves to the driver below half the limits and back above them: each switch has a cost.

        Args:
            waiting: number of offsets that wait in each partition that may be read.
            sizes: bytes per row of each topic.
        """
        if self.read_in != "auto":
            self.in_driver = self.read_in == "driver"
            return self.in_driver
        rows, size = sum(waiting.values()), sizes.estimate_bytes(waiting)
        factor = 1 if self.in_driver else 2
        self.in_driver = rows * factor <= MAX_DRIVER_ROWS and size * factor <= MAX_DRIVER_BYTES
        return self.in_driver

    def max_rows(self, limits: ReadLimit) -> int:
        """Most rows of a batch in the driver."""
        most = MAX_DRIVER_ROWS if self.read_in == "auto" else _MAX_BATCH_ROWS
        return most if limits.rows is None else min(most, limits.rows)


# ---- the reader ------------------------------------------------------------------------------------------------------

_REFRESH_INTERVAL: Final = 500_000
"""Microseconds between two requests for the topics, while the driver reads all that comes."""
_MIN_PAUSE, _MAX_PAUSE = 1_000, 8_000
"""Microseconds until a reader without data is polled again: at first, and after some polls without data."""
_RETRY_AFTER: Final = 50_000
"""Microseconds until a failed read is tried again."""
_WAIT_SECONDS: Final = 0.005
"""How long a poll waits for records, in a run with a fixed end, where records are known to exist."""


class KafkaReader:
    """Reads a source's topics from a position on. Made by ``Source.open``.

    Raises:
        ConnectorError: the topics cannot be read; ``Source.open`` says why.
    """

    def __init__(
        self,
        config: KafkaConfig,
        context: SourceContext,
        position: KafkaPosition | None,
        *,
        cluster: Cluster | None = None,
        frames: KafkaFrames | None = None,
    ) -> None:
        self._config = config
        self._cluster = cluster or KafkaCluster(config.connection)
        try:
            topics = fetch_metadata(config, self._cluster, position)
            position = resolve_position(config, self._cluster, topics, position)
            self._monitor = TopicMonitor(
                config, self._cluster, context.uid, context.report, topics=topics, position=position
            )
        except BaseException:
            self._cluster.close()
            raise
        self._commits = OffsetCommitter(config, self._cluster, context.uid, context.report)
        self._has_end = config.stop is not None or context.until is Until.CAUGHT_UP
        self._caught_up: Offsets | None = None
        if context.until is Until.CAUGHT_UP:
            end = config.replay_end
            self._caught_up = ends(self._monitor.position, topics) if end is None else end
        self._frames = frames or KafkaFrames(context.spark, config)
        self._consumer = PrefetchingConsumer(self._cluster.new_consumer, servers=config.servers)
        self._mode = ReadModeChooser(config.read_in)
        self._sizes = RowSizes()
        self._turn: TopicPartition | None = None
        self._assigned: object = None
        self._bounds_cache: tuple[tuple[KafkaPosition, Topics], Offsets] | None = None
        self._pause = _MIN_PAUSE
        self._not_before: MonotonicTime | None = None
        self._closed = False

    # ---- polling -----------------------------------------------------------------------------------------------------

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:  # noqa: ARG002 - as for any reader
        """The next batch: rows that have arrived in the driver, or ranges for executors.

        Raises:
            SourceUnavailable: the cluster was away for too long, or a partition returns nothing.
            SourceChanged: records that were to be read are lost.
            ConnectorError: the cluster refuses to be read.
        """
        config, monitor = self._config, self._monitor
        limits = config.limit_batch(limits)
        paused = self._paused(limits)
        if monitor.poll(now, paused=paused, in_driver=self._mode.in_driver):
            self._assigned = None
            self._consumer.reopen()
        self._commits.poll(monitor.position, now)
        bounds = self._bounds()
        if self._has_end and self._is_finished():
            monitor.report_lag(now, bounds, is_last=True)
            return Ended() if config.stop is not None else CaughtUp()
        if self._not_before is not None and now < self._not_before:
            return NoData(wake_at=self._not_before)
        waiting = {at: rows for at, rows in backlog(monitor.position, bounds).items() if at not in paused}
        for topic, (rows, size) in self._frames.new_sizes().items():
            self._sizes.learn(topic, rows=rows, bytes=size)
        was_in_driver = self._mode.in_driver
        if self._mode.choose_driver(waiting, self._sizes):
            return self._read_in_driver(now, limits, bounds, paused)
        if was_in_driver:
            self._leave_driver()
        return self._plan_for_executors(now, limits, bounds, paused)

    def _paused(self, limits: ReadLimit) -> frozenset[TopicPartition]:
        if not limits.paused:
            return frozenset()
        name = self._config.partition_name
        return frozenset(at for at in self._monitor.position.next if name(at) in limits.paused)

    def _bounds(self) -> Offsets:
        """The offset up to which each partition can be read; computed again only if something has changed."""
        state = self._monitor.position, self._monitor.topics
        cache = self._bounds_cache
        if cache is None or any(old is not new for old, new in zip(cache[0], state, strict=True)):
            cache = self._bounds_cache = state, ends(*state, caught_up=self._caught_up)
        return cache[1]

    def _is_finished(self) -> bool:
        position = self._monitor.position
        if self._config.stop is not None and position.is_done:
            return True
        if self._caught_up is None:
            return False
        return all(position.next.get(at, end) >= end for at, end in self._caught_up.items())

    def _no_data(self, now: MonotonicTime) -> NoData:
        self._pause = min(_MAX_PAUSE, self._pause * 2)
        position, name = self._monitor.position, self._config.partition_name
        ended = frozenset(name(at) for at, end in (position.stop or {}).items() if position.next.get(at, end) >= end)
        return NoData(wake_at=MonotonicTime(now + self._pause), ended=ended)

    # ---- in the driver -----------------------------------------------------------------------------------------------

    def _read_in_driver(
        self, now: MonotonicTime, limits: ReadLimit, bounds: Offsets, paused: Collection[TopicPartition]
    ) -> PollResult:
        monitor = self._monitor
        self._assign(bounds, paused)
        most = self._mode.max_rows(limits)
        try:
            records = self._consumer.take(rows=most, bytes=limits.bytes, wait=_WAIT_SECONDS if self._has_end else 0)
        except FetchFailed as error:
            return self._handle_failure(error, now)
        before = monitor.position
        ranges = [
            OffsetRange(at.topic, at.partition, before.next[at], offset)
            for at, offset in self._consumer.next.items()
            if offset != before.next[at]
        ]
        monitor.position = advance(before, ranges)
        rows = sum(len(part.messages) for part in records)
        monitor.refresh(now, after=0 if rows == most else _REFRESH_INTERVAL)
        if not rows:
            return self._no_data(now)
        self._pause = _MIN_PAUSE
        return self._driver_batch(records, rows, bounds, takes_all=rows < most)

    def _driver_batch(
        self, records: Sequence[PartitionRecords], rows: int, bounds: Offsets, *, takes_all: bool
    ) -> PlannedBatch:
        for part in records:
            self._sizes.learn(part.at.topic, rows=len(part.messages), bytes=part.bytes)
        size = sum(part.bytes for part in records)
        topics = {part.at.topic for part in records}
        table = self._frames.table(records)
        return PlannedBatch(
            plan=DriverBatch(table),
            rows=rows,
            bytes=size,
            metrics={"rows": ObservedMetrics.known({"rows": rows, "bytes": size}), **self._frames.metrics(table)},
            verify=self._topic_id_check(topics, ask_now=True),
            partitions=self._partitions(backlog(self._monitor.position, bounds), {part.at for part in records}),
            takes_all=takes_all,
        )

    def _assign(self, bounds: Offsets, paused: Collection[TopicPartition]) -> None:
        """Have the consumer fetch the partitions to read, unless it does so already."""
        monitor = self._monitor
        end = bounds if self._has_end else {}
        finished = len([at for at, offset in end.items() if monitor.position.next[at] >= offset])
        wanted = (monitor.changes, paused, finished, len(monitor.topics))
        if wanted == self._assigned:
            return
        self._assigned = wanted
        next = monitor.position.next
        to_read = (at for at in monitor.partitions if at not in paused)
        self._consumer.assign({at: next[at] for at in to_read if not self._has_end or next[at] < bounds[at]}, end)

    def _handle_failure(self, error: FetchFailed, now: MonotonicTime) -> PollResult:
        """Raise the error, unless offsets are lost: then the next refresh finds which, and handles the loss."""
        if not is_loss(error.details):
            raise fetch_error(error.details) from error
        self._leave_driver()
        self._monitor.refresh(now, after=0)
        self._not_before = MonotonicTime(now + _RETRY_AFTER)
        return NoData(wake_at=self._not_before)

    def _leave_driver(self) -> None:
        self._assigned = None
        self._consumer.unassign()

    # ---- by executors ------------------------------------------------------------------------------------------------

    def _plan_for_executors(
        self, now: MonotonicTime, limits: ReadLimit, bounds: Offsets, paused: Collection[TopicPartition]
    ) -> PollResult:
        monitor = self._monitor
        planned = plan(monitor.position, bounds, limits, self._sizes, turn=self._turn, paused=paused)
        if not planned.ranges:
            monitor.refresh(now, after=self._pause)
            return self._no_data(now)
        monitor.position, self._turn, self._pause = planned.position, planned.turn, _MIN_PAUSE
        monitor.refresh(now, after=0)
        ranges = planned.ranges
        return PlannedBatch(
            plan=ExecutorBatch(ranges),
            bytes=self._sizes.estimate_bytes({part.at: part.offsets for part in ranges}),
            verify=self._topic_id_check({part.topic for part in ranges}, ask_now=False),
            partitions=self._partitions(planned.behind, {part.at for part in ranges}),
            takes_all=not planned.behind,
        )

    # ---- every batch -------------------------------------------------------------------------------------------------

    def partitions(self) -> SourcePartitions:
        """The partitions that are read now."""
        return self._partitions((), ())

    def _partitions(self, behind: Collection[TopicPartition], read: Collection[TopicPartition]) -> SourcePartitions:
        """The partitions that may bring rows: not those that a bounded source has read to their stop.

        Args:
            behind: those with more rows than the batch takes.
            read: those that the batch has rows of.
        """
        position, name = self._monitor.position, self._config.partition_name
        open = [
            at
            for at in self._monitor.partitions
            if position.stop is None or at in read or position.next[at] < position.stop.get(at, 0)
        ]
        return SourcePartitions(
            names=tuple(map(name, open)),
            behind=frozenset(map(name, behind)),
            column=self._config.partition_column,
        )

    def _topic_id_check(self, topics: Collection[str], *, ask_now: bool) -> TopicIdCheck:
        """The check that topics of a batch are still those that were planned, once its rows were read."""
        ids = self._monitor.position.ids
        return TopicIdCheck(
            cluster=self._cluster,
            ids={name: id for name in topics if (id := ids.get(name)) is not None},
            skips_lost=self._config.on_lost_offsets == "continue",
            answer=self._cluster.topic_ids(topics) if ask_now else None,
        )

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of the plan's rows."""
        if isinstance(plan, DriverBatch):
            return self._frames.of_table(plan.table)
        return self._frames.of_ranges(cast("ExecutorBatch", plan).ranges)

    def position(self) -> Position:
        """The position after the last plan."""
        return encode(self._monitor.position)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Commit the checkpoint's offsets to the group, if the commit mode says so."""
        del checkpoint
        self._commits.checkpoint_completed(decode(position))

    def close(self) -> None:
        """Close the connections, after the last commit."""
        if not self._closed:
            self._closed = True
            self._commits.close()
            self._consumer.close()
            self._cluster.close()
