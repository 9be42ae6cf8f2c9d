"""Sources wait for the slowest they are joined with (max_drift)."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.clock import MIN_WATERMARK, MonotonicTime
from penstock.elements import Batch, max_event_times
from penstock.graph.nodes import WithWatermark
from penstock.graph.queries import AlignedStream, AlignmentGroup

# ----------------------------------------------------------------------------------------------------
# Where the streams stand that wait for each other: what each was told, what is on its way, who is idle.
#
# Compares nobody; :mod:`penstock.runtime.drift` does.

BATCHES_WITHOUT_TIME: Final = 4
"""After so many batches in which a partition with rows waiting told no event time, it is taken to have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPause:
    """What a source is to leave out of its next batch.

    Attributes:
        partitions: these.
        everything: it is not polled at all.
        ahead: what is further ahead than it may be, for people: ``orders/3``, or the source. Whoever only waits to be
            told of batches on their way is not among them.
        by: the slowest, for whom those wait.
        wake_at: when to ask again if nothing else happens: somebody may be idle then.
    """

    partitions: frozenset[str] = frozenset()
    everything: bool = False
    ahead: tuple[str, ...] = ()
    by: str | None = None
    wake_at: MonotonicTime | None = None

    def leaves_out(self, name: str) -> bool:
        """Whether a partition is not read; the empty name is that of all that are not told apart."""
        return self.everything or name in self.partitions


NO_PAUSE: Final = ReadPause()
"""Nothing is held."""


def qualified_name(source: str, name: str) -> str:
    """A partition's name among those of all sources; the source's own where its rows are not told apart."""
    return f"{source}/{name}" if name else source


@dataclass(slots=True, kw_only=True)
class PartitionProgress:
    """Where a partition stands: its largest event time, how far its last batch took it, when it last had rows."""

    heard: MonotonicTime
    time: int | None = None
    stride: int | None = None
    is_idle: bool = False
    patience: int = BATCHES_WITHOUT_TIME

    @property
    def is_awaited(self) -> bool:
        """Whether its first event time is on its way."""
        return self.time is None and self.patience > 0 and not self.is_idle

    def came_without(self, *, has_waiting: bool) -> None:
        """A batch told nothing of it: as long as it has rows waiting they will be in one of the next."""
        self.patience = self.patience - 1 if has_waiting else 0

    def came_to(self, time: int) -> None:
        """A batch told its largest event time."""
        if self.time is not None:
            self.stride = max(0, time - self.time)
        self.time = time if self.time is None else max(self.time, time)

    def may_pass(self, limit: int, on_the_way: int) -> bool:
        """Whether it may be beyond the limit once all on its way is told, if batches go on as the last one."""
        assert self.time is not None
        return on_the_way > 0 and (self.stride is None or self.time + on_the_way * self.stride > limit)


@dataclass(slots=True, kw_only=True)
class AlignedStreamState:
    """The rows of one source at one ``with_watermark``.

    It has spoken once a first job has told about a batch, or there was nothing to read; before, others wait for it.
    """

    mark: WithWatermark
    source: str
    heard: MonotonicTime
    places: dict[str, PartitionProgress] = field(default_factory=dict)
    on_the_way: dict[int, MonotonicTime] = field(default_factory=dict)
    has_spoken: bool = False
    is_given_up: bool = False

    @property
    def is_awaited(self) -> bool:
        """Whether others wait for its first word."""
        return not self.has_spoken and not self.is_given_up

    def look(self, now: MonotonicTime, hold: ReadPause) -> None:
        """The clock stands for what is held; what brought nothing for long is idle, unless something is on its way."""
        due = self.mark.idle_after
        may_be_idle = due is not None and not self.on_the_way
        for name, place in self.places.items():
            if hold.leaves_out(name):
                place.heard = max(place.heard, now)
            elif may_be_idle and now >= place.heard + (due or 0):
                place.is_idle = True
        if may_be_idle and now >= self.heard + (due or 0):
            self.is_given_up = True

    def idle_at(self, hold: ReadPause) -> Iterator[MonotonicTime]:
        """When its next partitions will be idle if nothing comes."""
        due = self.mark.idle_after
        if due is None or self.on_the_way:
            return
        if self.is_awaited:
            yield MonotonicTime(self.heard + due)
        for name, place in self.places.items():
            if not place.is_idle and not hold.leaves_out(name):
                yield MonotonicTime(place.heard + due)

    def told(self, polled: MonotonicTime, times: Mapping[str, int | None], behind: Collection[str]) -> None:
        """A first job has told how far a batch has come; partitions that are not named are gone."""
        self.places = {name: self.places.get(name) or PartitionProgress(heard=polled) for name in times}
        due = self.mark.idle_after
        for name, time in times.items():
            place = self.places[name]
            if time is not None:
                place.came_to(time)
            else:
                place.came_without(has_waiting=name in behind)
            if time is not None or name in behind:
                place.heard, place.is_idle = max(place.heard, polled), False
            elif due is not None and polled >= place.heard + due:
                place.is_idle = True


# ----------------------------------------------------------------------------------------------------
# Who may read on, so that no source runs far ahead of those it meets: a pure machine, one for each group of streams.
#
# It is told what is read and what first jobs say of event time, and answers, before each poll, what to leave out. It
# reads no clock and knows no threads. (Flink: watermark alignment, ``SourceCoordinator`` and ``SourceOperator``.)


class WatermarkAlignment:
    """The streams of one group, and how far ahead of the slowest each of them may be read.

    Event times are compared, not watermarks: two streams with different delays still read the same hour. The slowest
    is the least over all partitions that are known to be at some event time and are not idle; it is never held, so
    somebody can always go on. A source that has not spoken yet is waited for, until it is idle, and so for some batches
    is a partition of which no event time is known, if it has rows waiting. What is held is not idle.

    One that is within its limit may have several batches on the way, as long as they will not take it beyond, going by
    its last one; else it reads one at a time. So it is ahead by no more than its ``max_drift`` and one batch, or what
    its batches have grown by.

    >>> from penstock.graph.nodes import CallSite, WithWatermark
    >>> mark = WithWatermark(
    ...     id=1, origin=CallSite("a.py", 1), inputs=(), column="at", delay=0, idle_after=None, max_ahead=None,
    ...     max_drift=60,
    ... )
    >>> drift = WatermarkAlignment((AlignedStream(mark, frozenset(("a", "b"))),), now=MonotonicTime(0))
    >>> for source, time in (("a", 500), ("b", 100)):
    ...     drift.sent(source, 1, MonotonicTime(1))
    ...     drift.told(1, source, 1, {"": time})
    >>> ahead, behind = drift.hold("a", MonotonicTime(2)), drift.hold("b", MonotonicTime(2))
    >>> ahead.everything, ahead.by, behind.everything
    (True, 'b', False)
    """

    def __init__(self, group: AlignmentGroup, *, now: MonotonicTime) -> None:
        self._streams = [
            AlignedStreamState(mark=each.mark, source=uid, heard=now) for each in group for uid in _sorted(each)
        ]
        self._holds: dict[str, ReadPause] = {}

    @property
    def sources(self) -> frozenset[str]:
        """Whose streams are left in the group."""
        return frozenset(stream.source for stream in self._streams)

    def sent(self, source: str, number: int, now: MonotonicTime) -> None:
        """A source's batch is on its way; numbers rise."""
        for stream in self._of(source):
            stream.on_the_way[number] = stream.heard = now
            stream.is_given_up = False

    def told(
        self,
        mark: int,
        source: str,
        number: int,
        times: Mapping[str, int | None] | None,
        *,
        behind: Collection[str] = (),
    ) -> None:
        """A first job over a batch has succeeded, or nobody will run it. A batch may come by several ways.

        Args:
            mark: number of the ``with_watermark``.
            source: uid.
            number: of the batch.
            times: of each partition the largest event time in the batch, if it had any; the empty name where rows do
                not say which they are of. ``None`` if nothing is known.
            behind: partitions that have rows waiting.
        """
        for stream in self._of(source):
            if stream.mark.id == mark:
                polled = stream.on_the_way.pop(number, stream.heard)
                stream.has_spoken = True
                if times is not None:
                    stream.told(polled, times, behind)

    def rested(self, source: str, *, idle: bool, ended: Collection[str] = ()) -> None:
        """A poll brought nothing.

        Args:
            source: uid.
            idle: what was not held will bring nothing for now, or nothing any more.
            ended: partitions that will bring nothing any more.
        """
        hold = self._holds.get(source, NO_PAUSE)
        for stream in self._of(source):
            stream.has_spoken = stream.has_spoken or not stream.on_the_way
            for name, place in stream.places.items():
                place.is_idle = place.is_idle or name in ended or (idle and not hold.leaves_out(name))

    def left(self, source: str) -> None:
        """The source has nothing more to read in this run."""
        self._streams = [stream for stream in self._streams if stream.source != source]

    def hold(self, source: str, now: MonotonicTime) -> ReadPause:
        """What the source is to leave out of its next batch; asked before each poll."""
        for stream in self._streams:
            stream.look(now, self._holds.get(stream.source, NO_PAUSE))
        hold = self._decided(source)
        self._holds[source] = hold
        if hold == NO_PAUSE:
            return hold
        wakes = (at for each in self._streams for at in each.idle_at(self._holds.get(each.source, NO_PAUSE)))
        return replace(hold, wake_at=min(wakes, default=None))

    def _decided(self, source: str) -> ReadPause:
        mine = self._of(source)
        if any(stream.is_awaited and not stream.on_the_way for stream in mine):
            return NO_PAUSE
        everything = any(stream.is_awaited for stream in mine)  # one batch at a time until the first was told
        slowest = self._slowest(source)
        partitions: set[str] = set()
        ahead: set[str] = set()
        for stream in mine:
            far, waiting = self._beyond(stream, slowest)
            out = far | waiting
            everything = everything or (bool(out) and out >= stream.places.keys())
            partitions |= out
            ahead |= far
        return ReadPause(
            partitions=frozenset(partitions - {""}),
            everything=everything,
            ahead=tuple(sorted(qualified_name(source, name) for name in ahead)),
            by=slowest[0].name if ahead else None,
        )

    def _beyond(self, stream: AlignedStreamState, slowest: list[_Unit]) -> tuple[set[str], set[str]]:
        """The partitions that are too far ahead, and those that might be when all on their way is told."""
        far: set[str] = set()
        waiting: set[str] = set()
        drift = stream.mark.max_drift
        for name, place in stream.places.items() if drift is not None else ():
            others = (unit.time for unit in slowest if (unit.source, unit.partition) != (stream.source, name))
            floor = next(others, None)
            if floor is None or place.time is None:
                continue
            if place.time > floor + (drift or 0):
                far.add(name)
            elif place.may_pass(floor + (drift or 0), len(stream.on_the_way)):
                waiting.add(name)
        if slowest and slowest[0].source == stream.source:  # with several streams of its own it never waits for itself
            far -= far if slowest[0].partition == "" else {"", slowest[0].partition}
        return far, waiting

    def _slowest(self, source: str) -> list[_Unit]:
        """The least two: one of them is another than the one that asks. Whoever is awaited comes first."""
        times: dict[tuple[str, str], int] = {}
        for stream in self._streams:
            if stream.is_awaited and stream.source != source:
                times[stream.source, ""] = MIN_WATERMARK
            for name, place in stream.places.items():
                time = MIN_WATERMARK if place.is_awaited else place.time
                if time is not None and not place.is_idle:
                    key = stream.source, name
                    times[key] = min(times.get(key, time), time)
        return heapq.nsmallest(2, (_Unit(time, *key) for key, time in times.items()))

    def _of(self, source: str) -> list[AlignedStreamState]:
        return [stream for stream in self._streams if stream.source == source]


@dataclass(frozen=True, slots=True, order=True)
class _Unit:
    """What can be ahead or behind: a partition of a source."""

    time: int
    source: str
    partition: str

    @property
    def name(self) -> str:
        return qualified_name(self.source, self.partition)


def _sorted(stream: AlignedStream) -> list[str]:
    return sorted(stream.sources)


# ----------------------------------------------------------------------------------------------------
# The groups of an attempt, shared by the threads of its tasks: passes on what happens, wakes who may read again.
#
# Decides nothing; :mod:`penstock.runtime.drift` does.


class AlignmentCoordinator:
    """Asked by each source before it polls, and by each input before it calls a stream idle. Any thread may call.

    Args:
        groups: of the graph.
        now: when the attempt begins.
        wake: steps a source's task once more, by uid.
        finite: the run ends at what is there at its beginning, so what has nothing to read will never have any.
    """

    def __init__(
        self,
        groups: Sequence[AlignmentGroup],
        *,
        now: MonotonicTime,
        wake: Callable[[str], None],
        finite: bool = False,
    ) -> None:
        self._drifts = [WatermarkAlignment(group, now=now) for group in groups]
        self._marks = frozenset(stream.mark.id for group in groups for stream in group)
        self._wake = wake
        self._finite = finite
        self._holds: dict[str, ReadPause] = {}
        self._stood: dict[str, dict[str, MonotonicTime]] = {}
        self._lock = threading.Lock()

    def follows(self, mark: WithWatermark) -> bool:
        """Whether batches that pass this step are to be :meth:`followed <follow>`."""
        return mark.id in self._marks

    def follow(self, batch: Batch, mark: WithWatermark) -> None:
        """A batch has just been given the measure of this step: what it tells counts as soon as it is there."""
        measure, reading = batch.metrics.get(f"time:{mark.id}"), batch.source_batch
        if measure is None or reading is None:
            return
        partitions = batch.partitions

        def told() -> None:
            times = None if measure.value is None else max_event_times(measure.value, partitions)
            behind = partitions.behind if partitions is not None else frozenset[str]()
            behind = behind if times is None or "" not in times or not behind else frozenset(("",))
            with self._lock:
                for drift in self._drifts:
                    drift.told(mark.id, reading.source, reading.number, times, behind=behind)
            self._let_go()

        measure.when_settled(told)

    def sent(self, source: str, number: int, now: MonotonicTime) -> None:
        """A source has planned a batch."""
        with self._lock:
            for drift in self._drifts:
                drift.sent(source, number, now)

    def rested(self, source: str, *, idle: bool, ended: Collection[str] = ()) -> None:
        """A source had nothing; ``idle`` and ``ended`` as its reader says."""
        with self._lock:
            for drift in self._drifts:
                drift.rested(source, idle=idle or self._finite, ended=ended)
        self._let_go()

    def left(self, source: str) -> None:
        """A source has ended or is caught up."""
        with self._lock:
            for drift in self._drifts:
                drift.left(source)
            self._holds.pop(source, None)
        self._let_go()

    def hold(self, source: str, now: MonotonicTime) -> ReadPause:
        """What a source is to leave out of its next batch."""
        with self._lock:
            holds = [drift.hold(source, now) for drift in self._drifts if source in drift.sources]
            before, hold = self._holds.get(source, NO_PAUSE), _together(holds)
            self._holds[source] = hold
            if before != NO_PAUSE or hold != NO_PAUSE:
                names = (*_held(source, before), *_held(source, hold))
                self._stood.setdefault(source, {}).update(dict.fromkeys(names, now))
            return hold

    def stood(self, sources: Iterable[str], now: MonotonicTime) -> Mapping[str, MonotonicTime]:
        """Until when partitions (``orders/3``) or whole sources were held, so that this is no silence of theirs."""
        stood: dict[str, MonotonicTime] = {}
        with self._lock:
            for source in sources:
                stood.update(self._stood.get(source, {}))
                stood.update(dict.fromkeys(_held(source, self._holds.get(source, NO_PAUSE)), now))
        return stood

    def _let_go(self) -> None:
        """Those who wait ask again. Without the lock: a wake may do anything."""
        with self._lock:
            waiting = [source for source, hold in self._holds.items() if hold != NO_PAUSE]
        for source in waiting:
            self._wake(source)


def _held(source: str, hold: ReadPause) -> Iterable[str]:
    if hold.everything:
        yield source
    for name in hold.partitions:
        yield qualified_name(source, name)


def _together(holds: Sequence[ReadPause]) -> ReadPause:
    """A source of several groups waits for all of them."""
    if len(holds) == 1:
        return holds[0]
    return ReadPause(
        partitions=frozenset[str]().union(*(hold.partitions for hold in holds)),
        everything=any(hold.everything for hold in holds),
        ahead=tuple(sorted({name for hold in holds for name in hold.ahead})),
        by=next((hold.by for hold in holds if hold.by is not None), None),
        wake_at=min((hold.wake_at for hold in holds if hold.wake_at is not None), default=None),
    )
