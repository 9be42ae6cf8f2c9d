"""Reads topics from a position on: what is at hand here, a backlog in the executors. Knows no checkpoint.

While little waits, a consumer in the driver has it at hand when it is asked for, and the batch is what it has. While
much waits, a batch is a plan of ranges that workers read. Both follow the same offsets, so changing over leaves nothing
out and reads nothing again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from penstock.elements import Measure, Partitions
from penstock.ids import Instant
from penstock.sources.base import CaughtUp, Ended, Nothing, Rows, Until
from penstock.sources.kafka.batches import ByExecutors, InHand, ended_of, partitions_of
from penstock.sources.kafka.client import Connection
from penstock.sources.kafka.commits import OffsetCommits
from penstock.sources.kafka.errors import FetchFailed, is_loss, told_of
from penstock.sources.kafka.frames import Frames
from penstock.sources.kafka.identity import Unchanged
from penstock.sources.kafka.live import Hands
from penstock.sources.kafka.offsets import OffsetRange, TopicPartition, advance, decode, encode
from penstock.sources.kafka.places import Places
from penstock.sources.kafka.planning import RowSizes, backlog, ends, plan
from penstock.sources.kafka.start import begin, first_look
from penstock.sources.kafka.watch import ClusterWatch, Commits

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import DataFrame

    from penstock.handles import Position
    from penstock.ids import CheckpointId, WallTime
    from penstock.sources.base import Limits, Poll, SourceContext
    from penstock.sources.kafka.client import Cluster
    from penstock.sources.kafka.fetch import Run
    from penstock.sources.kafka.offsets import Offsets, Progress, Topics
    from penstock.sources.kafka.source import Source

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
        source: Source,
        context: SourceContext,
        progress: Progress | None,
        *,
        cluster: Cluster | None = None,
        frames: Frames | None = None,
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
            topics = first_look(source, self._cluster, progress)
            progress = begin(source, self._cluster, topics, progress)
            self._watch = ClusterWatch(
                source, self._cluster, context.uid, context.report, topics=topics, progress=progress
            )
        except BaseException:
            self._cluster.close()
            raise
        decides = OffsetCommits(source.committing.mode, interval=source.commit_interval)
        self._commits = Commits(source, self._cluster, context.uid, context.report, decides=decides)
        self._fixed = source.stop is not None or context.until is Until.CAUGHT_UP
        self._caught_up: Offsets | None = None
        if context.until is Until.CAUGHT_UP:
            self._caught_up = ends(self._watch.progress, topics) if source.end is None else source.end
        self._frames = frames or Frames(context.spark, source, connection)
        self._hands = Hands(self._cluster.live, servers=source.servers)
        self._sizes = RowSizes()
        self._turn: TopicPartition | None = None
        self._followed: object = None
        self._bounded: tuple[tuple[Progress, Topics], Offsets] | None = None
        self._places = Places(source.read_in)
        self._pause = _SHORTEST
        self._not_before: Instant | None = None
        self._closed = False

    # --------------------------------------------------------------------------------------------------------- polling

    def poll(self, *, now: Instant, wall: WallTime, limits: Limits) -> Poll:  # noqa: ARG002 - as for any reader
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
            return Nothing(wake_at=self._not_before)
        waiting = {at: rows for at, rows in backlog(watch.progress, bounds).items() if at not in paused}
        for topic, (rows, size) in self._frames.weighed().items():
            self._sizes.learn(topic, rows=rows, bytes=size)
        was_here = self._places.is_here
        if self._places.choose(waiting, self._sizes):
            return self._from_hand(now, limits, bounds, paused)
        if was_here:
            self._leave_hands()
        return self._from_executors(now, limits, bounds, paused)

    def _paused(self, limits: Limits) -> frozenset[TopicPartition]:
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

    def _from_hand(self, now: Instant, limits: Limits, bounds: Offsets, paused: Collection[TopicPartition]) -> Poll:
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

    def _in_hand(self, runs: Sequence[Run], rows: int, bounds: Offsets, *, takes_all: bool) -> Rows:
        size = 0
        for run in runs:
            weight = sum(map(len, run.messages))
            self._sizes.learn(run.at.topic, rows=len(run.messages), bytes=weight)
            size += weight
        names = {run.at.topic for run in runs}
        table = self._frames.table(runs)
        return Rows(
            plan=InHand(table),
            rows=rows,
            bytes=size,
            measures={"rows": Measure.known({"rows": rows, "bytes": size}), **self._frames.told(table)},
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

    def _failed(self, error: FetchFailed, now: Instant) -> Poll:
        """A consumer cannot go on. If offsets are gone, the next look says which and what to do."""
        if not is_loss(error.told):
            raise told_of(error.told) from error
        self._leave_hands()
        self._watch.look(now, after=0)
        self._not_before = Instant(now + _SOON)
        return Nothing(wake_at=self._not_before)

    def _leave_hands(self) -> None:
        self._followed = None
        self._hands.rest()

    def _reopen(self) -> None:
        self._followed = None
        self._hands.reopen()

    def _nothing(self, now: Instant) -> Nothing:
        self._pause = min(_LONGEST, self._pause * 2)
        return Nothing(wake_at=Instant(now + self._pause), ended=ended_of(self._source, self._watch.progress))

    # ------------------------------------------------------------------------------------------------ in the executors

    def _from_executors(
        self, now: Instant, limits: Limits, bounds: Offsets, paused: Collection[TopicPartition]
    ) -> Poll:
        watch = self._watch
        planned = plan(watch.progress, bounds, limits, self._sizes, turn=self._turn, paused=paused)
        if not planned.ranges:
            watch.look(now, after=self._pause)
            return self._nothing(now)
        watch.progress, self._turn, self._pause = planned.progress, planned.turn, _SHORTEST
        watch.look(now, after=0)
        ranges = planned.ranges
        names = {part.topic for part in ranges}
        return Rows(
            plan=ByExecutors(ranges),
            bytes=self._sizes.weigh({part.at: part.offsets for part in ranges}),
            verify=self._unchanged(names, asked=False),
            partitions=self._partitions(planned.behind, {part.at for part in ranges}),
            takes_all=not planned.behind,
        )

    def partitions(self) -> Partitions:
        """All that are read now."""
        return self._partitions((), ())

    def _partitions(self, behind: Collection[TopicPartition], read: Collection[TopicPartition]) -> Partitions:
        return partitions_of(self._source, self._watch.progress, self._watch.parts, behind, read)

    def _unchanged(self, names: Collection[str], *, asked: bool) -> Unchanged:
        """What proves, after rows of these topics were read, that they are the topics that were planned."""
        ids = self._watch.progress.ids
        return Unchanged(
            cluster=self._cluster,
            ids={name: id for name in names if (id := ids.get(name)) is not None},
            goes_on=self._source.on_lost_offsets == "continue",
            answer=self._cluster.ids(names) if asked else None,
        )

    # ----------------------------------------------------------------------------------------------- the reader's rest

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of the plan's rows."""
        if isinstance(plan, InHand):
            return self._frames.of_table(plan.table)
        return self._frames.of_ranges(cast("ByExecutors", plan).ranges)

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
    from penstock.sources.kafka.cluster import KafkaCluster

    return KafkaCluster(connection)
