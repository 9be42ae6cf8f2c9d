"""How event time moves through a task: pure machines that generate and combine watermarks. They read no clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.ids import BEGINNING, END_OF_TIME, EventTime


@dataclass(slots=True)
class BoundedDelay:
    """Watermark of a partition, or of an edge without any: the largest event time seen, less the delay.

    It never goes back. Late means strictly below the watermark, so with a delay of zero two rows of one time are both
    in time.

    >>> edge = BoundedDelay(delay=5)
    >>> edge.observe(EventTime(20)), edge.observe(EventTime(12))
    (15, 15)
    """

    delay: int
    at: EventTime = BEGINNING

    def observe(self, largest: EventTime) -> EventTime:
        """A batch with this largest event time has passed."""
        self.at = max(self.at, EventTime(largest - self.delay))
        return self.at

    def end(self) -> EventTime:
        """Nothing comes any more."""
        self.at = END_OF_TIME
        return self.at


@dataclass(slots=True)
class Valve:
    """Combines the watermarks of several inputs: the minimum over those that are active, never going back.

    (Flink: ``StatusWatermarkValve``; scenario 140.)

    >>> valve = Valve.of(2)
    >>> valve.advance(0, EventTime(10)), valve.advance(1, EventTime(7))
    (None, 7)
    >>> valve.set_idle(1, True)
    10
    """

    inputs: list[EventTime]
    idle: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    at: EventTime = BEGINNING

    @classmethod
    def of(cls, inputs: int) -> Valve:
        """A valve that has seen nothing."""
        return cls([BEGINNING] * inputs)

    @classmethod
    def restored(cls, inputs: tuple[EventTime, ...]) -> Valve:
        """A valve as a snapshot left it."""
        return cls(list(inputs), at=min(inputs, default=BEGINNING))

    @property
    def holder(self) -> int | None:
        """The input that holds the watermark back: the least of those that are active and have not ended."""
        live = (i for i, at in enumerate(self.inputs) if i not in self.ended | self.idle and at != END_OF_TIME)
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
        live = [i for i, at in enumerate(self.inputs) if i not in self.ended and at != END_OF_TIME]
        holding = [self.inputs[i] for i in live if i not in self.idle]
        if (
            not holding and live
        ):  # all that could still bring rows are idle: as far as they came, not to the end of time
            holding = [max(self.inputs[i] for i in live)]
        elif not holding:
            holding = [max(self.inputs)] if END_OF_TIME in self.inputs else []
        least = min(holding, default=self.at)
        if least <= self.at:
            return None
        self.at = least
        return least
