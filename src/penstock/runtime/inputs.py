"""The inputs of one task: whose turn it is, whose watermark holds. Knows nothing of operators and sinks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.elements import Batch, Element, Measure
from penstock.graph.nodes import WithWatermark
from penstock.ids import BEGINNING, END_OF_TIME, EventTime, Instant
from penstock.runtime.channel import Channel
from penstock.runtime.watermarks import BoundedDelay, Valve


@dataclass(slots=True, kw_only=True)
class Input:
    """One input: a channel, and the generator of its watermark where its route has a ``with_watermark``."""

    channel: Channel
    mark: WithWatermark | None
    generator: BoundedDelay | None = None
    unsettled: deque[Measure] = field(default_factory=deque)
    last_batch: Instant | None = None

    @classmethod
    def of(cls, channel: Channel, mark: WithWatermark | None, at: EventTime) -> Input:
        """An input whose watermark stands ``at``."""
        generator = BoundedDelay(mark.delay, at) if mark is not None else None
        return cls(channel=channel, mark=mark, generator=generator)

    def took(self, batch: Batch, now: Instant, wake: Callable[[], None]) -> None:
        """A batch was taken: its largest event time counts as soon as its first job has told it."""
        self.last_batch = now
        if self.mark is not None and (measure := batch.measures.get(f"time:{self.mark.id}")) is not None:
            self.unsettled.append(measure)
            measure.when_settled(wake)

    def told(self) -> EventTime | None:
        """The generator's watermark after the batches that have settled, in order; ``None`` if it did not move."""
        if self.generator is None:
            return None
        before = self.generator.at
        while self.unsettled and self.unsettled[0].settled:
            figures = self.unsettled.popleft().value
            largest = figures.get("max") if figures else None
            if isinstance(largest, int):
                self.generator.observe(EventTime(largest))
        return self.generator.at if self.generator.at > before else None

    def passed(self, at: EventTime) -> EventTime | None:
        """A watermark from upstream: counts where there is no generator, or at the end of time."""
        if self.generator is None:
            return at
        return self.generator.end() if at == END_OF_TIME else None

    def idle_at(self) -> Instant | None:
        """When this input is to be called idle if nothing comes, and nothing is queued."""
        if self.mark is None or self.mark.idle_after is None or self.last_batch is None:
            return None
        return Instant(self.last_batch + self.mark.idle_after)


class Inputs:
    """All inputs of a task, read in turns, but for those that an alignment blocks."""

    def __init__(
        self,
        channels: Sequence[Channel],
        marks: Sequence[WithWatermark | None],
        *,
        restored: tuple[EventTime, ...] = (),
        wake: Callable[[], None],
    ) -> None:
        at = restored or tuple(BEGINNING for _ in channels)
        self._inputs = [Input.of(*parts) for parts in zip(channels, marks, at, strict=True)]
        self._turn = 0
        self.wake = wake
        self.valve = Valve.restored(at)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, source: int) -> Input:
        return self._inputs[source]

    def ready(self, blocked: frozenset[int]) -> list[tuple[int, Element]]:
        """What can be taken now: the head of each input that is not blocked, whose turn it is first."""
        order = [(self._turn + i) % len(self._inputs) for i in range(len(self._inputs))]
        heads = ((i, self._inputs[i].channel.peek()) for i in order if i not in blocked)
        return [(i, head) for i, head in heads if head is not None]

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
                (at, each.mark.delay if each.mark else 0, tuple(each.unsettled))
                for at, each in zip(self.valve.inputs, self._inputs, strict=True)
            )
        )

    def check_idle(self, now: Instant) -> Instant | None:
        """Call inputs idle that brought nothing for long; returns when to look again.

        An input with something queued is never idle: then it is this task that is behind.
        """
        wake: list[Instant] = []
        for i, each in enumerate(self._inputs):
            if each.last_batch is None:
                each.last_batch = now  # quiet since the start counts as well
            due = each.idle_at()
            if due is None or i in self.valve.idle:
                continue
            if due > now or each.channel.peek() is not None:
                wake.append(due if due > now else Instant(now + 100_000))
            else:
                self.valve.set_idle(i, True)
        return min(wake, default=None)


@dataclass(frozen=True, slots=True)
class FrozenWatermarks:
    """Watermarks as of a barrier: for each input where it stood, its delay, and measures still to come."""

    parts: tuple[tuple[EventTime, int, tuple[Measure, ...]], ...]

    @property
    def settled(self) -> bool:
        """Whether nothing is still to come."""
        return all(measure.settled for _, _, measures in self.parts for measure in measures)

    def values(self) -> tuple[EventTime, ...]:
        """One watermark for each input."""
        return tuple(_after(*part) for part in self.parts)


def _after(at: EventTime, delay: int, measures: tuple[Measure, ...]) -> EventTime:
    generator = BoundedDelay(delay, at)
    for measure in measures:
        largest = measure.value.get("max") if measure.value else None
        if isinstance(largest, int):
            generator.observe(EventTime(largest))
    return generator.at
