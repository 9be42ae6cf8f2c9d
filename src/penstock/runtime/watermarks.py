"""Watermarks by partition, and their minimum over inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime, MonotonicTime

# ----------------------------------------------------------------------------------------------------
# How event time moves through a task: pure machines that generate and combine watermarks. They read no clock.


@dataclass(slots=True)
class BoundedOutOfOrderness:
    """Watermark of a partition, or of an edge without any: the largest event time seen, less the delay.

    It never goes back. Late means strictly below the watermark, so with a delay of zero two rows of one time are both
    in time.

    >>> edge = BoundedOutOfOrderness(delay=5)
    >>> edge.observe(EventTime(20)), edge.observe(EventTime(12))
    (15, 15)
    """

    delay: int
    at: EventTime = MIN_WATERMARK

    def observe(self, largest: EventTime) -> EventTime:
        """A batch with this largest event time has passed."""
        self.at = max(self.at, EventTime(largest - self.delay))
        return self.at

    def end(self) -> EventTime:
        """Nothing comes any more."""
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
        """The input that holds the watermark back: the least of those that are active and have not ended."""
        live = (i for i, at in enumerate(self.inputs) if i not in self.ended | self.idle and at != MAX_WATERMARK)
        return min(live, key=lambda i: self.inputs[i], default=None)

    @property
    def all_idle(self) -> bool:
        """Whether no input holds anything back (and not all have ended)."""
        return bool(self.idle) and len(self.idle | self.ended) == len(self.inputs)

    def advance(self, source: int, at: EventTime) -> EventTime | None:
        """The watermark of one input; returns the combined one if it rose. A step back is ignored."""
        self.inputs[source] = max(self.inputs[source], at)
        return self._raise()

    def set_idle(self, source: int, idle: bool) -> EventTime | None:
        """An input went idle or active again; returns the combined watermark if it rose.

        One that comes back behind the combined watermark holds it where it is until it has caught up.
        """
        (self.idle.add if idle else self.idle.discard)(source)
        return self._raise()

    def end(self, source: int) -> EventTime | None:
        """An input ended; it holds nothing back any more."""
        self.ended.add(source)
        return self._raise()

    def _raise(self) -> EventTime | None:
        live = [i for i, at in enumerate(self.inputs) if i not in self.ended and at != MAX_WATERMARK]
        holding = [self.inputs[i] for i in live if i not in self.idle]
        if (
            not holding and live
        ):  # all that could still bring rows are idle: as far as they came, not to the end of time
            holding = [max(self.inputs[i] for i in live)]
        elif not holding:
            holding = [max(self.inputs)] if MAX_WATERMARK in self.inputs else []
        least = min(holding, default=self.at)
        if least <= self.at:
            return None
        self.at = least
        return least


# ----------------------------------------------------------------------------------------------------
# The watermark of one edge out of those of its source's partitions: a pure machine. It reads no clock.


@dataclass(slots=True, kw_only=True)
class _Partition:
    """One partition: its mark, the source it is of, when it last had rows or had some waiting, and if it is idle."""

    mark: BoundedOutOfOrderness
    source: str
    heard: MonotonicTime
    is_idle: bool = False


@dataclass(slots=True)
class PartitionWatermarks:
    """Each partition's watermark trails its largest event time by the delay; the edge's is the least of them.

    A partition without rows for ``idle_after`` holds nothing back, unless it is known to have some waiting; if all are
    idle the edge stands as far as they came. One that is new stands where the edge does, and holds it there until it
    has brought rows or is idle: its rows from then on are judged as everybody's. One that is gone holds nothing back.
    The edge never goes back.

    A snapshot has only where the edge stands, so after a restart all are new, and stand there. It was the slowest of
    those that were not idle, so what any of them had not brought yet is not late now, unless it already was. Where
    rows of several sources come, none counts before each has told its partitions (:meth:`expect`), lest the one that
    is read first takes the edge past the others.

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
        """Another that stands where this does, to go on from here by itself."""
        parts = {name: replace(part, mark=replace(part.mark)) for name, part in self._partitions.items()}
        return replace(self, _partitions=parts)

    def expect(self, sources: Iterable[str], now: MonotonicTime) -> None:
        """These sources have partitions which they have yet to name. Until then each is one that is new."""
        for uid in sources:
            self._partitions[uid] = _Partition(mark=BoundedOutOfOrderness(self.delay, self.at), source=uid, heard=now)

    def stood(self, until: Mapping[str, MonotonicTime]) -> None:
        """Partitions and sources that were held until then: so long nobody asked them for rows."""
        for name, part in self._partitions.items():
            held = [until[known] for known in (name, part.source) if known in until]
            part.heard = max([part.heard, *held])

    def observe(
        self, largest: Mapping[str, int | None], *, source: str, now: MonotonicTime, behind: Collection[str] = ()
    ) -> EventTime:
        """A batch has passed.

        Args:
            largest: of each live partition of its source, by qualified name: the largest event time, if it had any.
            source: other partitions that came from it are gone.
            now: when the batch was taken.
            behind: partitions that have rows waiting.
        """
        self._partitions = {
            name: part for name, part in self._partitions.items() if part.source != source or name in largest
        }
        for name, time in largest.items():
            part = self._partitions.get(name)
            if part is None:
                part = _Partition(mark=BoundedOutOfOrderness(self.delay, self.at), source=source, heard=now)
                self._partitions[name] = part
            if time is not None:
                part.mark.observe(EventTime(time))
            if time is not None or name in behind:
                part.heard = max(part.heard, now)
        return self.look(now)

    def look(self, now: MonotonicTime) -> EventTime:
        """Call those idle that brought nothing for long."""
        for part in self._partitions.values():
            part.is_idle = self.idle_after is not None and now >= part.heard + self.idle_after
        holder = self._holder()
        if holder is not None:
            self.at = max(self.at, holder.mark.at)
        return self.at

    def idle_at(self) -> MonotonicTime | None:
        """When the next partition is to be called idle if nothing comes."""
        if self.idle_after is None or len(self._partitions) < 2:  # noqa: PLR2004 - alone it is the edge that is idle
            return None
        waiting = [part.heard for part in self._partitions.values() if not part.is_idle]
        return MonotonicTime(min(waiting) + self.idle_after) if waiting else None

    def end(self) -> EventTime:
        """Nothing comes any more."""
        self.at = MAX_WATERMARK
        return self.at

    @property
    def holder(self) -> str | None:
        """Which of several partitions holds the edge back; ``None`` if there is only one, or all are idle."""
        held = self._holder()
        if held is None or held.is_idle or len(self._partitions) < 2:  # noqa: PLR2004 - then there is no choice
            return None
        return next(name for name, part in self._partitions.items() if part is held)

    def _holder(self) -> _Partition | None:
        active = [part for part in self._partitions.values() if not part.is_idle]
        if active:
            return min(active, key=lambda part: part.mark.at)
        return max(self._partitions.values(), key=lambda part: part.mark.at, default=None)
