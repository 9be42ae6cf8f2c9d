"""The inputs of one task: whose turn it is, whose watermark holds. Knows nothing of operators and sinks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime, MonotonicTime
from penstock.elements import Batch, Element, ObservedMetrics, SourcePartitions, max_event_times
from penstock.facts import Counted, Fact, WatermarkHeld
from penstock.graph.nodes import WithWatermark
from penstock.runtime.channels import Channel
from penstock.runtime.watermarks import PartitionWatermarks, WatermarkValve


@dataclass(frozen=True, slots=True)
class PendingTimes:
    """A batch whose largest event times are still to be told, and when its source was asked for it."""

    measure: ObservedMetrics
    partitions: SourcePartitions | None
    asked: MonotonicTime

    def tell(self, marks: PartitionWatermarks) -> None:
        """The measure has settled: what it says counts."""
        figures = self.measure.value
        if figures is None:
            return
        partitions, largest = self.partitions, max_event_times(figures, self.partitions)
        if partitions is None:
            if largest[""] is not None:
                marks.observe(largest, source="", now=self.asked)
            return
        behind = ("",) if "" in largest and partitions.behind else partitions.behind
        marks.observe(
            {partitions.qualified(name): time for name, time in largest.items()},
            source=partitions.source,
            now=self.asked,
            behind={partitions.qualified(name) for name in behind},
        )


def _never(now: MonotonicTime) -> Mapping[str, MonotonicTime]:
    """Nobody was held."""
    del now
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamInfo:
    """What an input knows of where its rows come from.

    ``name`` is the task before it, for people. ``expected`` are sources whose partitions will be told, where there are
    several sources. ``stood(now)``: until when partitions and sources before it were told to pause, by name.
    """

    name: str = ""
    expected: frozenset[str] = frozenset()
    stood: Callable[[MonotonicTime], Mapping[str, MonotonicTime]] = _never


@dataclass(slots=True, kw_only=True)
class Input:
    """One input: a channel, and the generator of its watermark where its route has a ``with_watermark``."""

    channel: Channel
    mark: WithWatermark | None
    upstream: UpstreamInfo
    generator: PartitionWatermarks | None = None
    unsettled: deque[PendingTimes] = field(default_factory=deque)
    last_batch: MonotonicTime | None = None
    asked: MonotonicTime | None = None
    """When its source was asked for the last batch: what it had after that nobody knows until it is asked again."""
    waited: int = 0
    """How long it was not, for what it had sent was not through."""
    ahead: int = 0

    @classmethod
    def of(cls, channel: Channel, mark: WithWatermark | None, at: EventTime, upstream: UpstreamInfo) -> Input:
        """An input whose watermark stands ``at``."""
        generator = PartitionWatermarks(mark.delay, at, mark.idle_after) if mark is not None else None
        return cls(channel=channel, mark=mark, generator=generator, upstream=upstream)

    def begin(self, now: MonotonicTime) -> None:
        """It is looked at for the first time: quiet since the start counts as well."""
        self.last_batch = now
        if self.generator is not None:
            self.generator.expect(self.upstream.expected, now)

    def stand(self, now: MonotonicTime) -> None:
        """While somebody before it was told to pause, no batch and no row of that partition is no silence."""
        stood = self.upstream.stood(now)
        if stood:
            self.last_batch = max(self.last_batch if self.last_batch is not None else now, *stood.values())
            if self.generator is not None:
                self.generator.stood(stood)

    def took(self, batch: Batch, now: MonotonicTime, wake: Callable[[], None]) -> None:
        """A batch was taken: its largest event times count as soon as its first job has told them."""
        asked = batch.source_batch.polled_at if batch.source_batch is not None else None
        self.last_batch, self.asked, self.waited = now, now if asked is None else asked, 0
        if self.mark is not None and (measure := batch.metrics.get(f"time:{self.mark.id}")) is not None:
            self.unsettled.append(PendingTimes(measure, batch.partitions, self.asked))
            measure.when_settled(wake)

    def through(self, now: MonotonicTime) -> bool:
        """All that was taken is through, here and behind; whether that is news. Silence begins anew with it."""
        is_news = self.channel.through()
        if is_news and self.asked is not None:
            self.last_batch, self.waited = now, now - self.asked
        return is_news

    def told(self) -> EventTime | None:
        """The generator's watermark after the batches that have settled, in order; ``None`` if it did not move."""
        if self.generator is None:
            return None
        before = self.generator.at
        while self.unsettled and self.unsettled[0].measure.settled:
            settled = self.unsettled.popleft()
            self.stand(settled.asked)
            settled.tell(self.generator)
            ahead = (settled.measure.value or {}).get("ahead")
            self.ahead += ahead if isinstance(ahead, int) else 0
        return self.generator.at if self.generator.at > before else None

    def passed(self, at: EventTime) -> EventTime | None:
        """A watermark from upstream: counts where there is no generator, or at the end of time."""
        if self.generator is None:
            return at
        return self.generator.end() if at == MAX_WATERMARK else None

    def idle_at(self) -> MonotonicTime | None:
        """When this input is to be called idle if nothing comes, and nothing is queued."""
        if self.mark is None or self.mark.idle_after is None or self.last_batch is None:
            return None
        return MonotonicTime(self.last_batch + self.mark.idle_after)


class Inputs:
    """All inputs of a task, read in turns, but for those that an alignment blocks."""

    def __init__(
        self,
        channels: Sequence[Channel],
        marks: Sequence[WithWatermark | None],
        *,
        upstream: Sequence[UpstreamInfo] = (),
        restored: tuple[EventTime, ...] = (),
        wake: Callable[[], None],
    ) -> None:
        at = restored or tuple(MIN_WATERMARK for _ in channels)
        upstream = upstream or [UpstreamInfo(name=str(source)) for source in range(len(channels))]
        self._inputs = [Input.of(*parts) for parts in zip(channels, marks, at, upstream, strict=True)]
        self._turn = 0
        self._holder: str | None = None
        self.wake = wake
        self.valve = WatermarkValve.restored(at)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, source: int) -> Input:
        return self._inputs[source]

    def ready(self, blocked: frozenset[int]) -> list[tuple[int, Element]]:
        """What can be taken now: the head of each input that is not blocked, whose turn it is first."""
        order = [(self._turn + i) % len(self._inputs) for i in range(len(self._inputs))]
        heads = ((i, self._inputs[i].channel.peek()) for i in order if i not in blocked)
        return [(i, head) for i, head in heads if head is not None]

    def through(self, now: MonotonicTime) -> MonotonicTime | None:
        """All that was taken is through, here and behind; returns when to look who is idle, if that is news."""
        told = [each for each in self._inputs if each.through(now)]
        return self.check_idle(now) if told else None

    def take(self, source: int) -> Element:
        """Take the head of an input; the next one has the turn then."""
        self._turn = (source + 1) % len(self._inputs)
        return self._inputs[source].channel.take()

    def advance(self) -> EventTime:
        """Take in what settled batches tell about event time; returns the combined watermark."""
        for i, each in enumerate(self._inputs):
            at = each.told()
            if at is not None:
                self.valve.advance(i, at)
        return self.valve.at

    def drain(self) -> None:
        """Let go of the batches that wait here: the job is being torn down and nobody will run them."""
        for each in self._inputs:
            for element in each.channel.drain():
                if isinstance(element, Batch):
                    element.release()

    def frozen(self) -> FrozenWatermarks:
        """The watermarks after all batches taken so far, which some of those have yet to tell."""
        return FrozenWatermarks(
            tuple(
                (at, each.generator.copy() if each.generator else None, tuple(each.unsettled))
                for at, each in zip(self.valve.inputs, self._inputs, strict=True)
            )
        )

    def check_idle(self, now: MonotonicTime) -> MonotonicTime | None:
        """Call inputs idle that brought nothing for long; returns when to look again.

        An input of which something is on its way, here or behind, is never idle: it is this task that is behind, or
        one after it, and the source may wait for that.
        """
        wake: list[MonotonicTime] = []
        for i, each in enumerate(self._inputs):
            if each.last_batch is None:
                each.begin(now)
            each.stand(now)
            quiet = self._look(i, now)
            if quiet is not None:
                wake.append(quiet)
            due = each.idle_at()
            if due is None or i in self.valve.idle or not each.channel.is_awaited:
                continue
            if due > now:
                wake.append(due)
            else:
                self.valve.set_idle(i, True)
        return min(wake, default=None)

    def _look(self, source: int, now: MonotonicTime) -> MonotonicTime | None:
        """Call partitions of an input idle that brought nothing for long; returns when to look again.

        What settled batches have told is known, what unsettled ones hold is not: those are waited for. So are those
        that are on their way, and the time that the last one took is nobody's silence, until the next one tells.
        """
        each = self._inputs[source]
        if each.generator is None or each.unsettled or not each.channel.is_awaited:
            return None
        due = each.generator.idle_at()
        if due is not None and due + each.waited <= now:
            self.valve.advance(source, each.generator.look(MonotonicTime(now - each.waited)))
            due = each.generator.idle_at()
        return None if due is None else MonotonicTime(due + each.waited)

    def news(self, task: str, at: EventTime) -> Iterator[Fact]:
        """What observers do not know yet: rows too far ahead of the wall clock, another that holds event time back."""
        ahead = sum(each.ahead for each in self._inputs)
        if ahead:
            for each in self._inputs:
                each.ahead = 0
            yield Counted(task=task, name="ahead", amount=ahead)
        before, self._holder = self._holder, self.holder
        if self._holder is not None and self._holder != before:
            yield WatermarkHeld(task=task, by=self._holder, at=at)

    @property
    def holder(self) -> str | None:
        """What holds the watermark back: a partition, or the task behind an input; ``None`` if there is no choice."""
        held = self.valve.holder
        if held is None:
            return None
        each = self._inputs[held]
        partition = each.generator.holder if each.generator is not None else None
        return partition or (each.upstream.name if len(self._inputs) > 1 else None)


@dataclass(frozen=True, slots=True)
class FrozenWatermarks:
    """Watermarks as of a barrier: for each input where it stood, its generator then, and what was still to come."""

    parts: tuple[tuple[EventTime, PartitionWatermarks | None, tuple[PendingTimes, ...]], ...]

    @property
    def settled(self) -> bool:
        """Whether nothing is still to come."""
        return all(each.measure.settled for _, _, unsettled in self.parts for each in unsettled)

    def values(self) -> tuple[EventTime, ...]:
        """One watermark for each input."""
        return tuple(_after(*part) for part in self.parts)


def _after(at: EventTime, marks: PartitionWatermarks | None, unsettled: tuple[PendingTimes, ...]) -> EventTime:
    if marks is None:
        return at
    marks = marks.copy()
    for each in unsettled:
        each.tell(marks)
    return max(at, marks.at)
