"""Who may read on, so that no source runs far ahead of those it meets: a pure machine, one for each group of streams.

It is told what is read and what first jobs say of event time, and answers, before each poll, what to leave out. It
reads no clock and knows no threads. (Flink: watermark alignment, ``SourceCoordinator`` and ``SourceOperator``.)
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from penstock.graph.drift import AlignedStream, DriftGroup
from penstock.ids import BEGINNING, Instant
from penstock.runtime.drift_streams import READ_ON, DriftStream, Hold, qualified


class Drift:
    """The streams of one group, and how far ahead of the slowest each of them may be read.

    Event times are compared, not watermarks: two streams with different delays still read the same hour. The slowest
    is the least over all partitions that are known to be at some event time and are not idle; it is never held, so
    somebody can always go on. A source that has not spoken yet is waited for, until it is idle, and so for some batches
    is a partition of which no event time is known, if it has rows waiting. What is held is not idle.

    One that is within its limit may have several batches on the way, as long as they will not take it beyond, going by
    its last one; else it reads one at a time. So it is ahead by no more than its ``max_drift`` and one batch, or what
    its batches have grown by.

    >>> from penstock.graph.nodes import Origin, WithWatermark
    >>> mark = WithWatermark(
    ...     id=1, origin=Origin("a.py", 1), inputs=(), column="at", delay=0, idle_after=None, max_ahead=None,
    ...     max_drift=60,
    ... )
    >>> drift = Drift((AlignedStream(mark, frozenset(("a", "b"))),), now=Instant(0))
    >>> for source, time in (("a", 500), ("b", 100)):
    ...     drift.sent(source, 1, Instant(1))
    ...     drift.told(1, source, 1, {"": time})
    >>> drift.hold("a", Instant(2)).everything, drift.hold("a", Instant(2)).by, drift.hold("b", Instant(2)).everything
    (True, 'b', False)
    """

    def __init__(self, group: DriftGroup, *, now: Instant) -> None:
        self._streams = [DriftStream(mark=each.mark, source=uid, heard=now) for each in group for uid in _sorted(each)]
        self._holds: dict[str, Hold] = {}

    @property
    def sources(self) -> frozenset[str]:
        """Whose streams are left in the group."""
        return frozenset(stream.source for stream in self._streams)

    def sent(self, source: str, number: int, now: Instant) -> None:
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
        hold = self._holds.get(source, READ_ON)
        for stream in self._of(source):
            stream.has_spoken = stream.has_spoken or not stream.on_the_way
            for name, place in stream.places.items():
                place.is_idle = place.is_idle or name in ended or (idle and not hold.leaves_out(name))

    def left(self, source: str) -> None:
        """The source has nothing more to read in this run."""
        self._streams = [stream for stream in self._streams if stream.source != source]

    def hold(self, source: str, now: Instant) -> Hold:
        """What the source is to leave out of its next batch; asked before each poll."""
        for stream in self._streams:
            stream.look(now, self._holds.get(stream.source, READ_ON))
        hold = self._decided(source)
        self._holds[source] = hold
        if hold == READ_ON:
            return hold
        wakes = (at for each in self._streams for at in each.idle_at(self._holds.get(each.source, READ_ON)))
        return replace(hold, wake_at=min(wakes, default=None))

    def _decided(self, source: str) -> Hold:
        mine = self._of(source)
        if any(stream.is_awaited and not stream.on_the_way for stream in mine):
            return READ_ON
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
        return Hold(
            partitions=frozenset(partitions - {""}),
            everything=everything,
            ahead=tuple(sorted(qualified(source, name) for name in ahead)),
            by=slowest[0].name if ahead else None,
        )

    def _beyond(self, stream: DriftStream, slowest: list[_Unit]) -> tuple[set[str], set[str]]:
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
                times[stream.source, ""] = BEGINNING
            for name, place in stream.places.items():
                time = BEGINNING if place.is_awaited else place.time
                if time is not None and not place.is_idle:
                    key = stream.source, name
                    times[key] = min(times.get(key, time), time)
        return heapq.nsmallest(2, (_Unit(time, *key) for key, time in times.items()))

    def _of(self, source: str) -> list[DriftStream]:
        return [stream for stream in self._streams if stream.source == source]


@dataclass(frozen=True, slots=True, order=True)
class _Unit:
    """What can be ahead or behind: a partition of a source."""

    time: int
    source: str
    partition: str

    @property
    def name(self) -> str:
        return qualified(self.source, self.partition)


def _sorted(stream: AlignedStream) -> list[str]:
    return sorted(stream.sources)
