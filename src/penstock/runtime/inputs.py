"""The inputs of one task: which is read next, and which one's watermark holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime, MonotonicTime
from penstock.elements import Batch, Element, ObservedMetrics, SourcePartitions, max_event_times
from penstock.facts import Counted, Fact, WatermarkHeld
from penstock.graph.nodes import WithWatermark
from penstock.runtime.channels import Channel, TaskOutput
from penstock.runtime.watermarks import PartitionWatermarks, WatermarkValve

# ---- one input -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PendingTimes:
    """A batch whose largest event times may not be observed yet, and when its source was polled for it."""

    metrics: ObservedMetrics
    partitions: SourcePartitions | None
    polled_at: MonotonicTime

    def apply_to(self, watermarks: PartitionWatermarks) -> None:
        """Advance the watermarks by the event times that the metrics have, once settled."""
        figures = self.metrics.value
        if figures is None:
            return
        partitions, largest = self.partitions, max_event_times(figures, self.partitions)
        if partitions is None:
            if largest[""] is not None:
                watermarks.observe(largest, source="", now=self.polled_at)
            return
        behind = ("",) if "" in largest and partitions.behind else partitions.behind
        watermarks.observe(
            {partitions.qualified(name): time for name, time in largest.items()},
            source=partitions.source,
            now=self.polled_at,
            behind={partitions.qualified(name) for name in behind},
        )


def _nothing_paused(now: MonotonicTime) -> Mapping[str, MonotonicTime]:
    del now
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamInfo:
    """Where the rows of an input come from.

    Attributes:
        name: the upstream task, for people.
        expected: sources whose partitions are still to be named, where the rows come from several sources.
        paused_until: until when partitions and sources upstream were paused by watermark alignment, by name.
    """

    name: str = ""
    expected: frozenset[str] = frozenset()
    paused_until: Callable[[MonotonicTime], Mapping[str, MonotonicTime]] = _nothing_paused


@dataclass(slots=True, kw_only=True)
class Input:
    """One input: a channel, and a watermark generator if its route has a ``with_watermark``.

    Attributes:
        channel: where its elements come from.
        with_watermark: the last such step of its route.
        upstream: where its rows come from.
        generator: makes the watermark from the event times of its batches.
        unsettled: batches whose event times are still to be observed, in order.
        last_batch: when it last had a batch, or was acknowledged; idleness is counted from then on.
        last_polled: when its source was polled for the last batch. Whether it has had rows since is not known before
            the next poll.
        in_flight_for: how long the source was not polled, since its last batch was not acknowledged yet.
        ahead: rows too far ahead of the wall clock that are not reported yet.
        waits_for: a number of batches taken here, and what was sent downstream by then; they are acknowledged once that
            is through.
    """

    channel: Channel
    with_watermark: WithWatermark | None
    upstream: UpstreamInfo
    generator: PartitionWatermarks | None = None
    unsettled: deque[PendingTimes] = field(default_factory=deque)
    last_batch: MonotonicTime | None = None
    last_polled: MonotonicTime | None = None
    in_flight_for: int = 0
    ahead: int = 0
    waits_for: tuple[int, tuple[int, ...]] | None = None

    @classmethod
    def of(cls, channel: Channel, with_watermark: WithWatermark | None, at: EventTime, upstream: UpstreamInfo) -> Input:
        """An input whose watermark is ``at``."""
        step = with_watermark
        generator = PartitionWatermarks(step.delay, at, step.idle_after) if step is not None else None
        return cls(channel=channel, with_watermark=step, generator=generator, upstream=upstream)

    def begin(self, now: MonotonicTime) -> None:
        """Count idleness from now on, before any batch came."""
        self.last_batch = now
        if self.generator is not None:
            self.generator.expect(self.upstream.expected, now)

    def skip_pauses(self, now: MonotonicTime) -> None:
        """Exclude pauses by watermark alignment from idleness."""
        paused_until = self.upstream.paused_until(now)
        if paused_until:
            self.last_batch = max(self.last_batch if self.last_batch is not None else now, *paused_until.values())
            if self.generator is not None:
                self.generator.paused_until(paused_until)

    def received(self, batch: Batch, now: MonotonicTime, wake: Callable[[], None]) -> None:
        """Note a batch; ``wake`` is called when its event times have been observed."""
        polled = batch.source_batch.polled_at if batch.source_batch is not None else None
        self.last_batch, self.last_polled, self.in_flight_for = now, now if polled is None else polled, 0
        step = self.with_watermark
        if step is not None and (metrics := batch.metrics.get(f"time:{step.id}")) is not None:
            self.unsettled.append(PendingTimes(metrics, batch.partitions, self.last_polled))
            metrics.when_settled(wake)

    def acknowledge(self, now: MonotonicTime, output: TaskOutput) -> None:
        """Acknowledge the batches that are processed, here and downstream; idleness is counted from the last one on.

        Called when all that was taken is processed here. Other inputs may send more and more downstream, so it does not
        wait until nothing is left there.
        """
        while self.channel.through < self.channel.taken:
            if self.waits_for is None:
                self.waits_for = (self.channel.taken, output.sent)
            taken, sent = self.waits_for
            if not output.is_through(sent):
                return
            self.waits_for = None
            self.channel.acknowledge(taken)
            if self.last_polled is not None:
                self.last_batch, self.in_flight_for = now, now - self.last_polled

    def advance_from_metrics(self) -> EventTime | None:
        """The generator's watermark after all settled batches, in order; ``None`` if it did not move."""
        if self.generator is None:
            return None
        before = self.generator.at
        while self.unsettled and self.unsettled[0].metrics.settled:
            settled = self.unsettled.popleft()
            self.skip_pauses(settled.polled_at)
            settled.apply_to(self.generator)
            ahead = (settled.metrics.value or {}).get("ahead")
            self.ahead += ahead if isinstance(ahead, int) else 0
        return self.generator.at if self.generator.at > before else None

    def advance_from_upstream(self, at: EventTime) -> EventTime | None:
        """The watermark after one from upstream, which counts without a generator, or at the end of time."""
        if self.generator is None:
            return at
        return self.generator.end() if at == MAX_WATERMARK else None

    def idle_at(self) -> MonotonicTime | None:
        """When this input becomes idle if nothing comes and nothing is queued."""
        step = self.with_watermark
        if step is None or step.idle_after is None or self.last_batch is None:
            return None
        return MonotonicTime(self.last_batch + step.idle_after)


# ---- all inputs ------------------------------------------------------------------------------------------------------


class Inputs:
    """All inputs of a task, read in turns, except those that a barrier alignment blocks."""

    def __init__(
        self,
        channels: Sequence[Channel],
        with_watermarks: Sequence[WithWatermark | None],
        *,
        upstream: Sequence[UpstreamInfo] = (),
        restored: tuple[EventTime, ...] = (),
        wake: Callable[[], None],
    ) -> None:
        at = restored or tuple(MIN_WATERMARK for _ in channels)
        upstream = upstream or [UpstreamInfo(name=str(source)) for source in range(len(channels))]
        self._inputs = [Input.of(*parts) for parts in zip(channels, with_watermarks, at, upstream, strict=True)]
        self._turn = 0
        self._reported_holder: str | None = None
        self.wake = wake
        self.valve = WatermarkValve.restored(at)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, source: int) -> Input:
        return self._inputs[source]

    def ready(self, blocked: frozenset[int]) -> list[tuple[int, Element]]:
        """The head of each input that has one and is not blocked, in the order of turns."""
        order = [(self._turn + i) % len(self._inputs) for i in range(len(self._inputs))]
        heads = ((i, self._inputs[i].channel.peek()) for i in order if i not in blocked)
        return [(i, head) for i, head in heads if head is not None]

    def take(self, source: int) -> Element:
        """Take the head of an input; the turn passes to the next input."""
        self._turn = (source + 1) % len(self._inputs)
        return self._inputs[source].channel.take()

    def acknowledge(self, now: MonotonicTime, output: TaskOutput) -> None:
        """Acknowledge the batches of each input that are processed, here and downstream."""
        for each in self._inputs:
            each.acknowledge(now, output)

    def advance(self) -> EventTime:
        """Advance by the event times of settled batches; returns the combined watermark."""
        for i, each in enumerate(self._inputs):
            at = each.advance_from_metrics()
            if at is not None:
                self.valve.advance(i, at)
        return self.valve.at

    def drain(self) -> None:
        """Release the batches that are queued here: the job is torn down and no task will run them."""
        for each in self._inputs:
            for element in each.channel.drain():
                if isinstance(element, Batch):
                    element.release()

    def frozen(self) -> FrozenWatermarks:
        """The watermarks after all batches taken so far, some of which may not be observed yet."""
        return FrozenWatermarks(
            tuple(
                (at, each.generator.copy() if each.generator else None, tuple(each.unsettled))
                for at, each in zip(self.valve.inputs, self._inputs, strict=True)
            )
        )

    def check_idle(self, now: MonotonicTime) -> MonotonicTime | None:
        """Set inputs idle that have been quiet for ``idle_after``; returns when to check again.

        An input with batches in flight, here or downstream, is never idle: this task or one after it is behind, and
        the source may wait for that.
        """
        wake: list[MonotonicTime] = []
        for i, each in enumerate(self._inputs):
            if each.last_batch is None:
                each.begin(now)
            each.skip_pauses(now)
            partitions_due = self._check_idle_partitions(i, now)
            if partitions_due is not None:
                wake.append(partitions_due)
            due = each.idle_at()
            if due is None or i in self.valve.idle or not each.channel.is_drained:
                continue
            if due > now:
                wake.append(due)
            else:
                self.valve.set_idle(i, True)
        return min(wake, default=None)

    def _check_idle_partitions(self, source: int, now: MonotonicTime) -> MonotonicTime | None:
        """Set partitions of an input idle that have been quiet for ``idle_after``; returns when to check again.

        Batches in flight or not observed yet may have rows of any partition, so nothing becomes idle before they are
        observed. Nor does the time that the last batch was in flight count, in which the source was not polled.
        """
        each = self._inputs[source]
        if each.generator is None or each.unsettled or not each.channel.is_drained:
            return None
        due = each.generator.idle_at()
        if due is not None and due + each.in_flight_for <= now:
            self.valve.advance(source, each.generator.mark_idle(MonotonicTime(now - each.in_flight_for)))
            due = each.generator.idle_at()
        return None if due is None else MonotonicTime(due + each.in_flight_for)

    def new_facts(self, task: str, at: EventTime) -> Iterator[Fact]:
        """What listeners do not know yet: rows too far ahead of the wall clock, and what else holds event time back."""
        ahead = sum(each.ahead for each in self._inputs)
        if ahead:
            for each in self._inputs:
                each.ahead = 0
            yield Counted(task=task, name="ahead", amount=ahead)
        before, self._reported_holder = self._reported_holder, self.holder
        if self._reported_holder is not None and self._reported_holder != before:
            yield WatermarkHeld(task=task, by=self._reported_holder, at=at)

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
    """Watermarks as of a barrier: for each input its watermark, its generator, and the batches not observed then."""

    parts: tuple[tuple[EventTime, PartitionWatermarks | None, tuple[PendingTimes, ...]], ...]

    @property
    def settled(self) -> bool:
        """Whether all batches are observed by now."""
        return all(each.metrics.settled for _, _, unsettled in self.parts for each in unsettled)

    def values(self) -> tuple[EventTime, ...]:
        """One watermark for each input."""
        return tuple(_after(*part) for part in self.parts)


def _after(at: EventTime, generator: PartitionWatermarks | None, unsettled: tuple[PendingTimes, ...]) -> EventTime:
    if generator is None:
        return at
    generator = generator.copy()
    for each in unsettled:
        each.apply_to(generator)
    return max(at, generator.at)
