"""Watermarks of partitions and of inputs, and the minimum over them. Pure state machines: they read no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime, MonotonicTime

# ---- generating and combining watermarks -----------------------------------------------------------------------------


@dataclass(slots=True)
class BoundedOutOfOrderness:
    """Watermark of a partition, or of an edge without partitions: the largest event time seen, less the delay.

    It never goes back. A row is late if it is strictly below the watermark: with a delay of zero, two rows with the
    same event time are both in time.

    >>> edge = BoundedOutOfOrderness(delay=5)
    >>> edge.observe(EventTime(20)), edge.observe(EventTime(12))
    (15, 15)
    """

    delay: int
    at: EventTime = MIN_WATERMARK

    def observe(self, largest: EventTime) -> EventTime:
        """Take in the largest event time of a batch; returns the watermark."""
        self.at = max(self.at, EventTime(largest - self.delay))
        return self.at

    def end(self) -> EventTime:
        """Go to the end of time: no more rows come."""
        self.at = MAX_WATERMARK
        return self.at


@dataclass(slots=True)
class WatermarkValve:
    """Combines the watermarks of several inputs: the minimum over those that are active, never going back.

    (Flink: ``StatusWatermarkValve``; scenario 140.)

    >>> valve = WatermarkValve.of(2)
    >>> valve.advance(0, EventTime(10)), valve.advance(1, EventTime(7))
    (None, 7)
    >>> valve.set_idle(1, True)
    10
    """

    inputs: list[EventTime]
    idle: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    at: EventTime = MIN_WATERMARK

    @classmethod
    def of(cls, inputs: int) -> WatermarkValve:
        """A valve that has seen nothing."""
        return cls([MIN_WATERMARK] * inputs)

    @classmethod
    def restored(cls, inputs: tuple[EventTime, ...]) -> WatermarkValve:
        """A valve as a snapshot left it."""
        return cls(list(inputs), at=min(inputs, default=MIN_WATERMARK))

    @property
    def holder(self) -> int | None:
        """The input that holds the watermark back: the lowest of those that are active and have not ended."""
        return min(self._live - self.idle, key=lambda i: (self.inputs[i], i), default=None)

    @property
    def all_idle(self) -> bool:
        """Whether no input holds anything back (and not all have ended)."""
        live = self._live
        return bool(live) and live <= self.idle

    @property
    def _live(self) -> set[int]:
        """The inputs that have not ended."""
        return {i for i, at in enumerate(self.inputs) if i not in self.ended and at != MAX_WATERMARK}

    def advance(self, source: int, at: EventTime) -> EventTime | None:
        """Take in the watermark of one input; returns the combined one if it rose. A step back is ignored."""
        self.inputs[source] = max(self.inputs[source], at)
        return self._raise()

    def set_idle(self, source: int, idle: bool) -> EventTime | None:
        """Set an input idle or active again; returns the combined watermark if it rose.

        An input that becomes active below the combined watermark keeps it from rising until it has caught up.
        """
        (self.idle.add if idle else self.idle.discard)(source)
        return self._raise()

    def end(self, source: int) -> EventTime | None:
        """Note that an input ended; it holds nothing back any more. Returns the combined watermark if it rose."""
        self.ended.add(source)
        return self._raise()

    def _raise(self) -> EventTime | None:
        live = self._live
        holding = [self.inputs[i] for i in live if i not in self.idle]
        if not holding and live:  # all inputs that have not ended are idle: as far as they came, not to the end of time
            holding = [max(self.inputs[i] for i in live)]
        elif not holding:
            holding = [max(self.inputs)] if MAX_WATERMARK in self.inputs else []
        least = min(holding, default=self.at)
        if least <= self.at:
            return None
        self.at = least
        return least


# ---- the watermark of one edge, from those of partitions -------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Partition:
    """One partition: its watermark, its source, and when it last had rows in a batch or waiting."""

    watermark: BoundedOutOfOrderness
    source: str
    last_active: MonotonicTime
    is_idle: bool = False


@dataclass(slots=True)
class PartitionWatermarks:
    """The watermark of an edge: the minimum over its partitions, each its largest event time less the delay.

    The edge's watermark never goes back. A partition without rows for ``idle_after`` holds nothing back, unless it is
    known to have rows waiting. If all partitions are idle, the edge is at the highest of them. A new partition starts
    at the edge's watermark and holds it there until it has brought rows or is idle. A partition that is gone holds
    nothing back.

    A snapshot contains only the edge's watermark, so after a restart all partitions are new and start there. It was
    the lowest of the active ones, so rows that were not late before are not late now. Where rows of several sources
    come, the watermark does not rise before each source has named its partitions (``expect``): otherwise the source
    that is read first would take the edge past the others.

    >>> edge = PartitionWatermarks(delay=5)
    >>> edge.observe({"t/0": 20, "t/1": 12}, source="t", now=MonotonicTime(0))
    7
    >>> edge.holder, edge.observe({"t/0": 21, "t/1": 40}, source="t", now=MonotonicTime(1)), edge.holder
    ('t/1', 16, 't/0')
    """

    delay: int
    at: EventTime = MIN_WATERMARK
    idle_after: int | None = None
    _partitions: dict[str, _Partition] = field(default_factory=dict)

    def copy(self) -> PartitionWatermarks:
        """An independent copy."""
        parts = {name: replace(part, watermark=replace(part.watermark)) for name, part in self._partitions.items()}
        return replace(self, _partitions=parts)

    def expect(self, sources: Iterable[str], now: MonotonicTime) -> None:
        """Wait for sources that have not named their partitions yet; until then each counts as one new partition."""
        for uid in sources:
            self._add(uid, uid, now)

    def paused_until(self, until: Mapping[str, MonotonicTime]) -> None:
        """Count idleness only after the pauses of partitions or whole sources, by name."""
        for name, part in self._partitions.items():
            paused = [until[known] for known in (name, part.source) if known in until]
            part.last_active = max([part.last_active, *paused])

    def observe(
        self, largest: Mapping[str, int | None], *, source: str, now: MonotonicTime, behind: Collection[str] = ()
    ) -> EventTime:
        """Take in the event times of a batch; returns the watermark.

        Args:
            largest: each live partition of its source, by qualified name, with its largest event time, if it had any.
            source: uid; other partitions of that source are gone.
            now: when the source was polled for the batch.
            behind: partitions that have rows waiting.
        """
        self._partitions = {
            name: part for name, part in self._partitions.items() if part.source != source or name in largest
        }
        for name, time in largest.items():
            part = self._partitions.get(name) or self._add(name, source, now)
            if time is not None:
                part.watermark.observe(EventTime(time))
            if time is not None or name in behind:
                part.last_active = max(part.last_active, now)
        return self.mark_idle(now)

    def mark_idle(self, now: MonotonicTime) -> EventTime:
        """Mark partitions idle that were quiet for ``idle_after``; returns the watermark."""
        for part in self._partitions.values():
            part.is_idle = self.idle_after is not None and now >= part.last_active + self.idle_after
        holder = self._holder()
        if holder is not None:
            self.at = max(self.at, holder.watermark.at)
        return self.at

    def idle_at(self) -> MonotonicTime | None:
        """When the next partition becomes idle if nothing comes."""
        if self.idle_after is None or len(self._partitions) < 2:  # noqa: PLR2004 - with one partition, the edge as a whole becomes idle
            return None
        waiting = [part.last_active for part in self._partitions.values() if not part.is_idle]
        return MonotonicTime(min(waiting) + self.idle_after) if waiting else None

    def end(self) -> EventTime:
        """Go to the end of time: no more rows come."""
        self.at = MAX_WATERMARK
        return self.at

    @property
    def holder(self) -> str | None:
        """The partition that holds the edge back; ``None`` if there is only one, or all are idle."""
        held = self._holder()
        if held is None or held.is_idle or len(self._partitions) < 2:  # noqa: PLR2004 - with one partition there is no choice
            return None
        return next(name for name, part in self._partitions.items() if part is held)

    def _add(self, name: str, source: str, now: MonotonicTime) -> _Partition:
        watermark = BoundedOutOfOrderness(self.delay, self.at)
        part = self._partitions[name] = _Partition(watermark=watermark, source=source, last_active=now)
        return part

    def _holder(self) -> _Partition | None:
        active = [part for part in self._partitions.values() if not part.is_idle]
        if active:
            return min(active, key=lambda part: part.watermark.at)
        return max(self._partitions.values(), key=lambda part: part.watermark.at, default=None)
