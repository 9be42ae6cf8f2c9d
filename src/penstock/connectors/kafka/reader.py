"""KafkaReader: prefetched in the driver or ranges for executors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from penstock.clock import MonotonicTime
from penstock.connectors.kafka.client import Connection, FetchFailed, fetch_error, is_loss
from penstock.connectors.kafka.commits import OffsetCommitPolicy, OffsetCommitter
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
    from penstock.connectors.kafka.config import KafkaConfig, ReadIn
    from penstock.connectors.kafka.offsets import Offsets, Topics
    from penstock.handles import CheckpointId, Position
    from penstock.interfaces.source import PollResult, SourceContext


# ----------------------------------------------------------------------------------------------------
# The two kinds of plan of a Kafka batch, and the partitions that it tells of. Values only.


@dataclass(frozen=True, slots=True)
class DriverBatch:
    """A plan: rows that are here."""

    table: pa.Table


@dataclass(frozen=True, slots=True)
class ExecutorBatch:
    """A plan: ranges that workers are to read."""

    ranges: tuple[OffsetRange, ...]


def partitions_of(
    source: KafkaConfig,
    progress: KafkaPosition,
    there: Collection[TopicPartition],
    behind: Collection[TopicPartition],
    read: Collection[TopicPartition],
) -> SourcePartitions:
    """All partitions that may bring rows. One that a bounded source has read to its stop holds nobody back any more.

    Args:
        source: gives them their names.
        progress: after the batch.
        there: those that are read, in order.
        behind: those that have more than the batch takes.
        read: those that the batch has rows of.
    """
    stop = progress.stop
    live = [at for at in there if stop is None or at in read or progress.next[at] < stop.get(at, 0)]
    return SourcePartitions(
        names=tuple(map(source.partition_name, live)),
        behind=frozenset(map(source.partition_name, behind)),
        column=source.partition_column,
    )


def ended_of(source: KafkaConfig, progress: KafkaPosition) -> frozenset[str]:
    """The partitions that a bounded source has read to their stop."""
    stop = progress.stop or {}
    return frozenset(source.partition_name(at) for at, end in stop.items() if progress.next.get(at, end) >= end)


# ----------------------------------------------------------------------------------------------------
# The driver's own hands on topics: a consumer that fetches what comes, followed partition by partition. No plans.

_STEP: Final = 1_000
"""Most records that are taken at a time."""


class PrefetchingConsumer:
    """Follows partitions with one consumer, which is made when it is needed first.

    Args:
        made: makes a consumer.
        servers: for the message of an error.
    """

    def __init__(self, made: Callable[[], Consumer], *, servers: str) -> None:
        self._made = made
        self._servers = servers
        self._consumer: Consumer | None = None
        self._intake = RecordCollector({}, {}, servers=servers)
        self._row = 1024  # bytes of one, by those that were taken last

    @property
    def next(self) -> Offsets:
        """Where each partition that was to be followed stands."""
        return self._intake.next

    def follow(self, at: Offsets, end: Offsets) -> None:
        """Fetch exactly these partitions from now on; those that stand there already just go on.

        Args:
            at: where each is to be read on.
            end: where they end, of those that do.
        """
        stands = self._intake.next
        gone = [part for part, offset in stands.items() if at.get(part) != offset]
        new = {part: offset for part, offset in at.items() if stands.get(part) != offset}
        if gone and self._consumer is not None:
            self._consumer.drop(gone)
        if new:
            self._consumer = self._consumer or self._made()
            self._consumer.add(new)
        self._intake = RecordCollector(at, end, servers=self._servers)

    def take(self, *, rows: int, bytes: int | None, wait: float) -> list[PartitionRecords]:
        """Records that are here by now, those of a partition in order; at most so many, and about so many bytes.

        Raises:
            FetchFailed: a partition cannot be read further.
        """
        found: list[PartitionRecords] = []
        count = size = 0
        while self._consumer is not None and count < rows and (bytes is None or size < bytes):
            most = min(rows - count, _STEP, _STEP if bytes is None else max(1, (bytes - size) // self._row))
            chunk = self._consumer.take(most, wait=0 if found else wait)
            runs = self._intake.take(chunk)
            found += runs
            count += sum(len(run.messages) for run in runs)
            size += sum(sum(map(len, run.messages)) for run in runs)
            if len(chunk) < most:
                break
        if count:
            self._row = max(1, size // count)
        return found

    def rest(self) -> None:
        """Fetch nothing more."""
        if self._consumer is not None and self._intake.next:
            self._consumer.drop(list(self._intake.next))
        self._intake = RecordCollector({}, {}, servers=self._servers)

    def reopen(self) -> None:
        """Fetch nothing more, and with another consumer next time."""
        self.close()
        self._consumer = None
        self._intake = RecordCollector({}, {}, servers=self._servers)

    def close(self) -> None:
        """Release the connection."""
        if self._consumer is not None:
            self._consumer.close()


# ----------------------------------------------------------------------------------------------------
# Where the next batch of a Kafka source is read: in the driver or by the executors. Pure.
#
# In the driver a consumer has at hand what comes, so a small batch costs least and is there soonest. Executors read a
# backlog with all cores. Which is better changes over at a size that ``bench/kafka_crossover.py`` measures. What counts
# is all that waits, not what of it a batch may hold: the consumer brings a backlog one partition after the other, and
# so some would wait for others; what executors read is planned, a part of each.

MAX_DRIVER_ROWS: Final = 30_000
"""Rows that wait up to which they are read in the driver."""
MAX_DRIVER_BYTES: Final = 24 * 1024 * 1024
"""Bytes of the same: less than a consumer keeps at hand."""
_MOST_AT_HAND: Final = 100_000
"""Rows of a batch where everything is read in the driver."""


@dataclass(slots=True)
class ReadModeChooser:
    """Chooses for each batch.

    Attributes:
        read_in: what was asked for: ``"driver"``, ``"executors"``, or ``"auto"``, by size.
        is_here: whether the last batch was read in the driver.

    >>> places, sizes, at = ReadModeChooser("auto"), RowSizes(), TopicPartition("orders", 0)
    >>> sizes.learn("orders", rows=1, bytes=100)
    >>> places.choose({at: 20_000}, sizes), places.choose({at: 12_000}, sizes)
    (False, True)
    >>> places.choose({at: 20_000}, sizes), places.choose({at: 40_000}, sizes)
    (True, False)
    """

    read_in: ReadIn
    is_here: bool = False

    def choose(self, waiting: Mapping[TopicPartition, int], sizes: RowSizes) -> bool:
        """Whether the next batch is read in the driver.

        What is read there stays there until there is twice as much as would bring it back: changing over costs.

        Args:
            waiting: how many offsets wait in each partition that may be read.
            sizes: what rows weigh.
        """
        if self.read_in != "auto":
            self.is_here = self.read_in == "driver"
            return self.is_here
        rows, weight = sum(waiting.values()), sizes.weigh(waiting)
        share = 1 if self.is_here else 2
        self.is_here = rows * share <= MAX_DRIVER_ROWS and weight * share <= MAX_DRIVER_BYTES
        return self.is_here

    def most(self, limits: ReadLimit) -> int:
        """Most rows of a batch in the driver."""
        most = MAX_DRIVER_ROWS if self.read_in == "auto" else _MOST_AT_HAND
        return most if limits.rows is None else min(most, limits.rows)


# ----------------------------------------------------------------------------------------------------
# Reads topics from a position on: what is at hand here, a backlog in the executors. Knows no checkpoint.
#
# While little waits, a consumer in the driver has it at hand when it is asked for, and the batch is what it has. While
# much waits, a batch is a plan of ranges that workers read. Both follow the same offsets, so changing over leaves
# nothing out and reads nothing again.

_EVERY: Final = 500_000
"""Microseconds from one look at the topics to the next, while what comes is read as it comes."""
_SHORTEST, _LONGEST = 1_000, 8_000
"""Microseconds until a reader that had nothing is asked again: at first, and when it was so for a while."""
_SOON: Final = 50_000
"""Microseconds until something that failed is tried again."""
_PATIENCE: Final = 0.005
"""Seconds that a reader with a fixed end waits for records that it knows to be there."""


class KafkaReader:
    """Reads a source's topics from one progress on. Made by :meth:`Source.open`.

    Raises:
        ConnectorError: the topics cannot be read; :meth:`Source.open` says why.
    """

    def __init__(
        self,
        source: KafkaConfig,
        context: SourceContext,
        progress: KafkaPosition | None,
        *,
        cluster: Cluster | None = None,
        frames: KafkaFrames | None = None,
    ) -> None:
        connection = Connection(
            servers=source.servers,
            options=source.options,
            group=source.group,
            committed_only=source.isolation == "read_committed",
        )
        self._source = source
        self._cluster = cluster or _cluster(connection)
        try:
            topics = fetch_metadata(source, self._cluster, progress)
            progress = resolve_position(source, self._cluster, topics, progress)
            self._watch = TopicMonitor(
                source, self._cluster, context.uid, context.report, topics=topics, progress=progress
            )
        except BaseException:
            self._cluster.close()
            raise
        decides = OffsetCommitPolicy(source.committing.mode, interval=source.commit_interval)
        self._commits = OffsetCommitter(source, self._cluster, context.uid, context.report, decides=decides)
        self._fixed = source.stop is not None or context.until is Until.CAUGHT_UP
        self._caught_up: Offsets | None = None
        if context.until is Until.CAUGHT_UP:
            self._caught_up = ends(self._watch.progress, topics) if source.end is None else source.end
        self._frames = frames or KafkaFrames(context.spark, source, connection)
        self._hands = PrefetchingConsumer(self._cluster.live, servers=source.servers)
        self._sizes = RowSizes()
        self._turn: TopicPartition | None = None
        self._followed: object = None
        self._bounded: tuple[tuple[KafkaPosition, Topics], Offsets] | None = None
        self._places = ReadModeChooser(source.read_in)
        self._pause = _SHORTEST
        self._not_before: MonotonicTime | None = None
        self._closed = False

    # --------------------------------------------------------------------------------------------------------- polling

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:  # noqa: ARG002 - as for any reader
        """What is at hand, or ranges of what waits.

        Raises:
            SourceUnavailable: the cluster was away for too long, or a partition gives nothing.
            SourceChanged: records that were to be read are lost.
            ConnectorError: the cluster refuses to be read.
        """
        source, watch = self._source, self._watch
        limits = source.capped(limits)
        paused = self._paused(limits)
        if watch.hear(now, paused=paused, reading=self._places.is_here):
            self._reopen()
        self._commits.look(watch.progress, now)
        bounds = self._bounds()
        if self._fixed and self._is_through():
            return Ended() if source.stop is not None else CaughtUp()
        if self._not_before is not None and now < self._not_before:
            return NoData(wake_at=self._not_before)
        waiting = {at: rows for at, rows in backlog(watch.progress, bounds).items() if at not in paused}
        for topic, (rows, size) in self._frames.weighed().items():
            self._sizes.learn(topic, rows=rows, bytes=size)
        was_here = self._places.is_here
        if self._places.choose(waiting, self._sizes):
            return self._from_hand(now, limits, bounds, paused)
        if was_here:
            self._leave_hands()
        return self._from_executors(now, limits, bounds, paused)

    def _paused(self, limits: ReadLimit) -> frozenset[TopicPartition]:
        if not limits.paused:
            return frozenset()
        return frozenset(at for at in self._watch.progress.next if self._source.partition_name(at) in limits.paused)

    def _bounds(self) -> Offsets:
        """Up to where each partition can be read; worked out anew only if something has changed."""
        state = self._watch.progress, self._watch.topics
        if self._bounded is None or any(old is not new for old, new in zip(self._bounded[0], state, strict=True)):
            self._bounded = state, ends(*state, caught_up=self._caught_up)
        return self._bounded[1]

    def _is_through(self) -> bool:
        progress = self._watch.progress
        if self._source.stop is not None and progress.is_done:
            return True
        if self._caught_up is None:
            return False
        return all(progress.next.get(at, end) >= end for at, end in self._caught_up.items())

    # ---------------------------------------------------------------------------------------------------- in the driver

    def _from_hand(
        self, now: MonotonicTime, limits: ReadLimit, bounds: Offsets, paused: Collection[TopicPartition]
    ) -> PollResult:
        watch = self._watch
        self._follow(bounds, paused)
        most = self._places.most(limits)
        try:
            runs = self._hands.take(rows=most, bytes=limits.bytes, wait=_PATIENCE if self._fixed else 0)
        except FetchFailed as error:
            return self._failed(error, now)
        before = watch.progress
        moved = [
            OffsetRange(at.topic, at.partition, before.next[at], offset)
            for at, offset in self._hands.next.items()
            if offset != before.next[at]
        ]
        watch.progress = advance(before, moved)
        rows = sum(len(run.messages) for run in runs)
        watch.look(now, after=0 if rows == most else _EVERY)
        if not rows:
            return self._nothing(now)
        self._pause = _SHORTEST
        return self._in_hand(runs, rows, bounds, takes_all=rows < most)

    def _in_hand(
        self, runs: Sequence[PartitionRecords], rows: int, bounds: Offsets, *, takes_all: bool
    ) -> PlannedBatch:
        size = 0
        for run in runs:
            weight = sum(map(len, run.messages))
            self._sizes.learn(run.at.topic, rows=len(run.messages), bytes=weight)
            size += weight
        names = {run.at.topic for run in runs}
        table = self._frames.table(runs)
        return PlannedBatch(
            plan=DriverBatch(table),
            rows=rows,
            bytes=size,
            metrics={"rows": ObservedMetrics.known({"rows": rows, "bytes": size}), **self._frames.told(table)},
            verify=self._unchanged(names, asked=True),
            partitions=self._partitions(backlog(self._watch.progress, bounds), {run.at for run in runs}),
            takes_all=takes_all,
        )

    def _follow(self, bounds: Offsets, paused: Collection[TopicPartition]) -> None:
        """Have the consumer fetch what is to be read on, unless it does already."""
        watch = self._watch
        fixed = bounds if self._fixed else {}
        is_done = len([at for at, end in fixed.items() if watch.progress.next[at] >= end])
        wanted = (watch.changes, paused, is_done, len(watch.topics))
        if wanted == self._followed:
            return
        self._followed = wanted
        next = watch.progress.next
        at = {at: next[at] for at in watch.parts if at not in paused and (not self._fixed or next[at] < bounds[at])}
        self._hands.follow(at, fixed)

    def _failed(self, error: FetchFailed, now: MonotonicTime) -> PollResult:
        """A consumer cannot go on. If offsets are gone, the next look says which and what to do."""
        if not is_loss(error.told):
            raise fetch_error(error.told) from error
        self._leave_hands()
        self._watch.look(now, after=0)
        self._not_before = MonotonicTime(now + _SOON)
        return NoData(wake_at=self._not_before)

    def _leave_hands(self) -> None:
        self._followed = None
        self._hands.rest()

    def _reopen(self) -> None:
        self._followed = None
        self._hands.reopen()

    def _nothing(self, now: MonotonicTime) -> NoData:
        self._pause = min(_LONGEST, self._pause * 2)
        return NoData(wake_at=MonotonicTime(now + self._pause), ended=ended_of(self._source, self._watch.progress))

    # ------------------------------------------------------------------------------------------------ in the executors

    def _from_executors(
        self, now: MonotonicTime, limits: ReadLimit, bounds: Offsets, paused: Collection[TopicPartition]
    ) -> PollResult:
        watch = self._watch
        planned = plan(watch.progress, bounds, limits, self._sizes, turn=self._turn, paused=paused)
        if not planned.ranges:
            watch.look(now, after=self._pause)
            return self._nothing(now)
        watch.progress, self._turn, self._pause = planned.progress, planned.turn, _SHORTEST
        watch.look(now, after=0)
        ranges = planned.ranges
        names = {part.topic for part in ranges}
        return PlannedBatch(
            plan=ExecutorBatch(ranges),
            bytes=self._sizes.weigh({part.at: part.offsets for part in ranges}),
            verify=self._unchanged(names, asked=False),
            partitions=self._partitions(planned.behind, {part.at for part in ranges}),
            takes_all=not planned.behind,
        )

    def partitions(self) -> SourcePartitions:
        """All that are read now."""
        return self._partitions((), ())

    def _partitions(self, behind: Collection[TopicPartition], read: Collection[TopicPartition]) -> SourcePartitions:
        return partitions_of(self._source, self._watch.progress, self._watch.parts, behind, read)

    def _unchanged(self, names: Collection[str], *, asked: bool) -> TopicIdCheck:
        """What proves, after rows of these topics were read, that they are the topics that were planned."""
        ids = self._watch.progress.ids
        return TopicIdCheck(
            cluster=self._cluster,
            ids={name: id for name in names if (id := ids.get(name)) is not None},
            goes_on=self._source.on_lost_offsets == "continue",
            answer=self._cluster.ids(names) if asked else None,
        )

    # ----------------------------------------------------------------------------------------------- the reader's rest

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of the plan's rows."""
        if isinstance(plan, DriverBatch):
            return self._frames.of_table(plan.table)
        return self._frames.of_ranges(cast("ExecutorBatch", plan).ranges)

    def position(self) -> Position:
        """After the last plan."""
        return encode(self._watch.progress)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Have the offsets committed to the group, if they are to be, with one of the next polls."""
        del checkpoint
        self._commits.completed(decode(position))

    def close(self) -> None:
        """Release the connections."""
        if not self._closed:
            self._closed = True
            self._commits.finish()
            self._hands.close()
            self._cluster.close()


def _cluster(connection: Connection) -> Cluster:
    from penstock.connectors.kafka.cluster import KafkaCluster

    return KafkaCluster(connection)
