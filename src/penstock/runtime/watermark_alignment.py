"""Watermark alignment: a source pauses while it is too far ahead of the sources its rows meet (``max_drift``)."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.clock import MIN_WATERMARK, MonotonicTime
from penstock.elements import Batch, max_event_times
from penstock.graph.nodes import WithWatermark
from penstock.graph.queries import AlignmentGroup

BATCHES_WITHOUT_TIME: Final = 4
"""Number of batches without an event time after which a partition with a backlog is no longer waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPause:
    """What a source leaves out of its next batch.

    Attributes:
        partitions: names of the partitions that are not read.
        everything: whether the source is not polled at all.
        ahead: qualified names of what is too far ahead, for people: ``orders/3``, or the source. What only waits for
            the event times of batches in flight is not included.
        by: qualified name of the slowest partition or source, which those ahead wait for.
        wake_at: when to ask again if nothing else happens: the next time at which a partition may become idle.
    """

    partitions: frozenset[str] = frozenset()
    everything: bool = False
    ahead: tuple[str, ...] = ()
    by: str | None = None
    wake_at: MonotonicTime | None = None

    def leaves_out(self, name: str) -> bool:
        """Whether a partition is not read; rows that do not say their partition have the empty name."""
        return self.everything or name in self.partitions


NO_PAUSE: Final = ReadPause()
"""Everything is read."""


def qualified_name(source: str, name: str) -> str:
    """``source/name``; only the source's uid if ``name`` is empty: its rows do not say their partition."""
    return f"{source}/{name}" if name else source


# ---- progress of the streams -----------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class PartitionProgress:
    """How far a partition has been read, in event time.

    Attributes:
        last_active: when it last had rows or a backlog, or was paused.
        time: its largest event time, in microseconds; ``None`` before the first.
        stride: by how much its last batch raised ``time``.
        is_idle: it holds nobody back.
        patience: number of further batches in which its first event time is still waited for.
    """

    last_active: MonotonicTime
    time: int | None = None
    stride: int | None = None
    is_idle: bool = False
    patience: int = BATCHES_WITHOUT_TIME

    @property
    def is_awaited(self) -> bool:
        """Whether its first event time is still expected."""
        return self.time is None and self.patience > 0 and not self.is_idle

    def observed(self, time: int) -> None:
        """Take in a batch's largest event time in this partition."""
        if self.time is not None:
            self.stride = max(0, time - self.time)
        self.time = time if self.time is None else max(self.time, time)

    def observed_nothing(self, *, has_waiting: bool) -> None:
        """Note a batch without event times of this partition; rows that are waiting come in one of the next batches."""
        self.patience = self.patience - 1 if has_waiting else 0

    def may_pass(self, limit: int, in_flight: int) -> bool:
        """Whether the batches in flight may take it past the limit, if each has the stride of the last one."""
        assert self.time is not None
        return in_flight > 0 and (self.stride is None or self.time + in_flight * self.stride > limit)


@dataclass(slots=True, kw_only=True)
class AlignedStreamState:
    """The rows of one source at one ``with_watermark``.

    Attributes:
        with_watermark: the step that says which column has the event time.
        source: uid of the source.
        last_active: when the source last sent a batch.
        partitions: the progress of each partition, by its name.
        in_flight: when each batch was polled whose event times are not known yet, by its number.
        has_reported: a batch was observed, or there was nothing to read. Until then other sources wait.
        is_given_up: nothing was read for ``idle_after``, so other sources no longer wait for the first report.
    """

    with_watermark: WithWatermark
    source: str
    last_active: MonotonicTime
    partitions: dict[str, PartitionProgress] = field(default_factory=dict)
    in_flight: dict[int, MonotonicTime] = field(default_factory=dict)
    has_reported: bool = False
    is_given_up: bool = False

    @property
    def is_awaited(self) -> bool:
        """Whether other sources wait for its first report."""
        return not self.has_reported and not self.is_given_up

    def mark_idle(self, now: MonotonicTime, pause: ReadPause) -> None:
        """Mark partitions idle that were inactive for ``idle_after``, unless paused or while batches are in flight."""
        idle_after = self.with_watermark.idle_after
        may_be_idle = idle_after is not None and not self.in_flight
        for name, partition in self.partitions.items():
            if pause.leaves_out(name):
                partition.last_active = max(partition.last_active, now)
            elif may_be_idle and now >= partition.last_active + (idle_after or 0):
                partition.is_idle = True
        if may_be_idle and now >= self.last_active + (idle_after or 0):
            self.is_given_up = True

    def idle_times(self, pause: ReadPause) -> Iterator[MonotonicTime]:
        """The times at which its partitions become idle if nothing is read until then."""
        idle_after = self.with_watermark.idle_after
        if idle_after is None or self.in_flight:
            return
        if self.is_awaited:
            yield MonotonicTime(self.last_active + idle_after)
        for name, partition in self.partitions.items():
            if not partition.is_idle and not pause.leaves_out(name):
                yield MonotonicTime(partition.last_active + idle_after)

    def observed(self, polled: MonotonicTime, times: Mapping[str, int | None], behind: Collection[str]) -> None:
        """Take in a batch's event times by partition; forgets partitions that are not in ``times``."""
        self.partitions = {name: self.partitions.get(name) or PartitionProgress(last_active=polled) for name in times}
        idle_after = self.with_watermark.idle_after
        for name, time in times.items():
            partition = self.partitions[name]
            if time is not None:
                partition.observed(time)
            else:
                partition.observed_nothing(has_waiting=name in behind)
            if time is not None or name in behind:
                partition.last_active, partition.is_idle = max(partition.last_active, polled), False
            elif idle_after is not None and polled >= partition.last_active + idle_after:
                partition.is_idle = True


# ---- one group of streams --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class _PartitionTime:
    """The event time of a partition; those of one group are ordered by it."""

    time: int
    source: str
    partition: str

    @property
    def name(self) -> str:
        return qualified_name(self.source, self.partition)


class WatermarkAlignment:
    """Decides how far ahead of the slowest stream of a group each source may read.

    It is a pure state machine: it reads no clock and has no threads. (Flink: watermark alignment,
    ``SourceCoordinator`` and ``SourceOperator``.)

    Event times are compared, not watermarks: two streams with different delays still read the same hour. The slowest
    partition is the one with the lowest event time of all that are not idle. It is never paused, so one source can
    always read. A source that has not reported yet is waited for until it is idle. A partition without an event time is
    waited for during ``BATCHES_WITHOUT_TIME`` batches, if it has a backlog. A paused partition is not idle.

    Far from its limit a partition may have several batches in flight. Once they could take it past the limit, judging
    by the stride of its last batch, it is read one batch at a time. So it is ahead by at most its ``max_drift`` plus
    one batch, or plus the amount by which its batches have grown.

    >>> from penstock.graph.nodes import CallSite, WithWatermark
    >>> from penstock.graph.queries import AlignedStream
    >>> step = WithWatermark(
    ...     id=1, origin=CallSite("a.py", 1), inputs=(), column="at", delay=0, idle_after=None, max_ahead=None,
    ...     max_drift=60,
    ... )
    >>> alignment = WatermarkAlignment((AlignedStream(step, frozenset(("a", "b"))),), now=MonotonicTime(0))
    >>> for source, time in (("a", 500), ("b", 100)):
    ...     alignment.sent(source, 1, MonotonicTime(1))
    ...     alignment.observed(1, source, 1, {"": time})
    >>> ahead, behind = alignment.pause("a", MonotonicTime(2)), alignment.pause("b", MonotonicTime(2))
    >>> ahead.everything, ahead.by, behind.everything
    (True, 'b', False)
    """

    def __init__(self, group: AlignmentGroup, *, now: MonotonicTime) -> None:
        self._streams = [
            AlignedStreamState(with_watermark=each.mark, source=uid, last_active=now)
            for each in group
            for uid in sorted(each.sources)
        ]
        self._pauses: dict[str, ReadPause] = {}

    @property
    def sources(self) -> frozenset[str]:
        """Uids of the group's sources that are not done."""
        return frozenset(stream.source for stream in self._streams)

    def sent(self, source: str, number: int, now: MonotonicTime) -> None:
        """Note that a batch of the source is in flight. Later batches have higher numbers."""
        for stream in self._streams_of(source):
            stream.in_flight[number] = stream.last_active = now
            stream.is_given_up = False

    def observed(
        self,
        with_watermark: int,
        source: str,
        number: int,
        times: Mapping[str, int | None] | None,
        *,
        behind: Collection[str] = (),
    ) -> None:
        """Take in the event times of a batch after its first job, or note that no job will run it.

        A batch that takes several routes is observed several times.

        Args:
            with_watermark: id of the step.
            source: uid of the source.
            number: number of the batch.
            times: each partition's largest event time in the batch, if it has any, by name; the empty name if rows do
                not say their partition. ``None`` if nothing is known.
            behind: names of the partitions with a backlog.
        """
        for stream in self._streams_of(source):
            if stream.with_watermark.id == with_watermark:
                polled = stream.in_flight.pop(number, stream.last_active)
                stream.has_reported = True
                if times is not None:
                    stream.observed(polled, times, behind)

    def polled_nothing(self, source: str, *, idle: bool, ended: Collection[str] = ()) -> None:
        """Note that a poll brought no batch.

        Args:
            source: uid of the source.
            idle: the partitions that are not paused have no rows for now, or will have none any more.
            ended: names of the partitions that will have no rows any more.
        """
        pause = self._pauses.get(source, NO_PAUSE)
        for stream in self._streams_of(source):
            stream.has_reported = stream.has_reported or not stream.in_flight
            for name, partition in stream.partitions.items():
                partition.is_idle = partition.is_idle or name in ended or (idle and not pause.leaves_out(name))

    def source_done(self, source: str) -> None:
        """Drop a source that has nothing more to read in this run."""
        self._streams = [stream for stream in self._streams if stream.source != source]

    def pause(self, source: str, now: MonotonicTime) -> ReadPause:
        """What the source leaves out of its next batch; asked before each poll."""
        for stream in self._streams:
            stream.mark_idle(now, self._pauses.get(stream.source, NO_PAUSE))
        pause = self._decide(source)
        self._pauses[source] = pause
        if pause == NO_PAUSE:
            return pause
        times = (at for each in self._streams for at in each.idle_times(self._pauses.get(each.source, NO_PAUSE)))
        return replace(pause, wake_at=min(times, default=None))

    def _decide(self, source: str) -> ReadPause:
        """What the source leaves out, by what is known now; without ``wake_at``."""
        streams = self._streams_of(source)
        if any(stream.is_awaited and not stream.in_flight for stream in streams):
            return NO_PAUSE  # others wait for its first batch
        everything = any(stream.is_awaited for stream in streams)  # no second batch until the first is observed
        slowest = self._slowest(source)
        partitions: set[str] = set()
        ahead: set[str] = set()
        for stream in streams:
            too_far, uncertain = self._split_ahead(stream, slowest)
            paused = too_far | uncertain
            everything = everything or (bool(paused) and paused >= stream.partitions.keys())
            partitions |= paused
            ahead |= too_far
        return ReadPause(
            partitions=frozenset(partitions - {""}),
            everything=everything,
            ahead=tuple(sorted(qualified_name(source, name) for name in ahead)),
            by=slowest[0].name if ahead else None,
        )

    def _split_ahead(self, stream: AlignedStreamState, slowest: list[_PartitionTime]) -> tuple[set[str], set[str]]:
        """The partitions that are too far ahead, and those that may be once their batches in flight are observed."""
        too_far: set[str] = set()
        uncertain: set[str] = set()
        max_drift = stream.with_watermark.max_drift
        for name, partition in stream.partitions.items() if max_drift is not None else ():
            others = (each.time for each in slowest if (each.source, each.partition) != (stream.source, name))
            floor = next(others, None)
            if floor is None or partition.time is None:
                continue
            if partition.time > floor + (max_drift or 0):
                too_far.add(name)
            elif partition.may_pass(floor + (max_drift or 0), len(stream.in_flight)):
                uncertain.add(name)
        if slowest and slowest[0].source == stream.source:  # a source with several streams never waits for itself
            too_far -= too_far if slowest[0].partition == "" else {"", slowest[0].partition}
        return too_far, uncertain

    def _slowest(self, source: str) -> list[_PartitionTime]:
        """The two slowest partitions, awaited ones first; the slowest itself is compared with the second."""
        times: dict[tuple[str, str], int] = {}
        for stream in self._streams:
            if stream.is_awaited and stream.source != source:
                times[stream.source, ""] = MIN_WATERMARK
            for name, partition in stream.partitions.items():
                time = MIN_WATERMARK if partition.is_awaited else partition.time
                if time is not None and not partition.is_idle:
                    key = stream.source, name
                    times[key] = min(times.get(key, time), time)
        return heapq.nsmallest(2, (_PartitionTime(time, *key) for key, time in times.items()))

    def _streams_of(self, source: str) -> list[AlignedStreamState]:
        return [stream for stream in self._streams if stream.source == source]


# ---- all groups of an attempt ----------------------------------------------------------------------------------------


class AlignmentCoordinator:
    """Watermark alignment of all groups of an attempt. Any thread may call.

    Each source asks ``pause`` before a poll. An input's idle time is counted from ``paused_until`` on.

    Args:
        groups: the alignment groups of the graph.
        now: when the attempt begins.
        wake: wakes the task of the source with this uid.
        finite: the run only reads what is there when it begins, so a source with nothing to read stays idle.
    """

    def __init__(
        self,
        groups: Sequence[AlignmentGroup],
        *,
        now: MonotonicTime,
        wake: Callable[[str], None],
        finite: bool = False,
    ) -> None:
        self._alignments = [WatermarkAlignment(group, now=now) for group in groups]
        self._steps = frozenset(stream.mark.id for group in groups for stream in group)
        self._wake = wake
        self._finite = finite
        self._pauses: dict[str, ReadPause] = {}
        self._paused_until: dict[str, dict[str, MonotonicTime]] = {}
        self._lock = threading.Lock()

    def follows(self, with_watermark: WithWatermark) -> bool:
        """Whether batches that pass this step are to be given to ``follow``."""
        return with_watermark.id in self._steps

    def follow(self, batch: Batch, with_watermark: WithWatermark) -> None:
        """Take in the event times that this step observes in the batch, when the first job over it has finished."""
        metrics, source_batch = batch.metrics.get(f"time:{with_watermark.id}"), batch.source_batch
        if metrics is None or source_batch is None:
            return
        partitions = batch.partitions

        def take_in() -> None:
            times = None if metrics.value is None else max_event_times(metrics.value, partitions)
            behind = partitions.behind if partitions is not None else frozenset[str]()
            if behind and times is not None and "" in times:  # rows do not say their partition
                behind = frozenset(("",))
            with self._lock:
                for alignment in self._alignments:
                    alignment.observed(
                        with_watermark.id, source_batch.source, source_batch.number, times, behind=behind
                    )
            self._wake_paused()

        metrics.when_settled(take_in)

    def sent(self, source: str, number: int, now: MonotonicTime) -> None:
        """Note that a source has planned a batch."""
        with self._lock:
            for alignment in self._alignments:
                alignment.sent(source, number, now)

    def polled_nothing(self, source: str, *, idle: bool, ended: Collection[str] = ()) -> None:
        """Note that a poll brought no batch; see ``WatermarkAlignment.polled_nothing``."""
        with self._lock:
            for alignment in self._alignments:
                alignment.polled_nothing(source, idle=idle or self._finite, ended=ended)
        self._wake_paused()

    def source_done(self, source: str) -> None:
        """Note that a source has ended or is caught up."""
        with self._lock:
            for alignment in self._alignments:
                alignment.source_done(source)
            self._pauses.pop(source, None)
        self._wake_paused()

    def pause(self, source: str, now: MonotonicTime) -> ReadPause:
        """What the source leaves out of its next batch, in all groups together; asked before each poll."""
        with self._lock:
            pauses = [alignment.pause(source, now) for alignment in self._alignments if source in alignment.sources]
            before, pause = self._pauses.get(source, NO_PAUSE), _combine(pauses)
            self._pauses[source] = pause
            if before != NO_PAUSE or pause != NO_PAUSE:
                names = (*_paused_names(source, before), *_paused_names(source, pause))
                self._paused_until.setdefault(source, {}).update(dict.fromkeys(names, now))
            return pause

    def paused_until(self, sources: Iterable[str], now: MonotonicTime) -> Mapping[str, MonotonicTime]:
        """When each partition (``orders/3``) or source was last paused; time until then does not count as idle."""
        paused_until: dict[str, MonotonicTime] = {}
        with self._lock:
            for source in sources:
                paused_until.update(self._paused_until.get(source, {}))
                paused_until.update(dict.fromkeys(_paused_names(source, self._pauses.get(source, NO_PAUSE)), now))
        return paused_until

    def _wake_paused(self) -> None:
        """Let paused sources ask again. Call it without the lock: ``wake`` may take other locks."""
        with self._lock:
            paused = [source for source, pause in self._pauses.items() if pause != NO_PAUSE]
        for source in paused:
            self._wake(source)


def _paused_names(source: str, pause: ReadPause) -> Iterable[str]:
    if pause.everything:
        yield source
    for name in pause.partitions:
        yield qualified_name(source, name)


def _combine(pauses: Sequence[ReadPause]) -> ReadPause:
    """The pause of a source that is in several groups and waits for all of them."""
    if len(pauses) == 1:
        return pauses[0]
    return ReadPause(
        partitions=frozenset[str]().union(*(pause.partitions for pause in pauses)),
        everything=any(pause.everything for pause in pauses),
        ahead=tuple(sorted({name for pause in pauses for name in pause.ahead})),
        by=next((pause.by for pause in pauses if pause.by is not None), None),
        wake_at=min((pause.wake_at for pause in pauses if pause.wake_at is not None), default=None),
    )
