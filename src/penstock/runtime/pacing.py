"""When a source may be read next: when it is ready, or at the ticks of a metronome. Pure: wall time is an argument."""

from __future__ import annotations

from collections import deque
from statistics import median_low
from typing import Final, Protocol

from penstock.errors import assert_never
from penstock.graph.pace import Every, WhenReady
from penstock.graph.pace import Pace as Asked
from penstock.ids import WallTime


class Pace(Protocol):
    """Asked before each poll of one source."""

    def wait(self, wall: WallTime) -> int:
        """Microseconds until the next poll; 0 is now."""
        ...

    def served(self, wall: WallTime) -> int:
        """A poll begins now; returns how many ticks have gone by without one."""
        ...

    def sent(self, *, takes_all: bool) -> None:
        """That poll brought rows: all that there are, or some."""
        ...

    def rest(self, until: WallTime) -> None:
        """The source will have nothing before then: ticks up to there are not missed."""
        ...


REST: Final = 1.6
"""The next batch begins so many times as long after the one before as batches take: who keeps up rests three
eighths of the time, but …
"""

LONGEST: Final = 10
"""… they begin no more than so many times the time to linger apart, since rows gather while a long batch is at work."""

REMEMBERED: Final = 7
"""Batches by which is known how long they take, as a rule: one that had a checkpoint beside it has gathered rows
enough, and a pause in proportion to it would make its late rows later still.
"""


class Linger:
    """Whoever is ready goes on, but lets rows gather after a batch that took all: a batch costs time whatever is in it.

    It is asked for the first time when that batch is through. Polls that bring nothing count for nothing, so the first
    rows after a rest are read at once. A wall clock that is set back ends the wait.

    >>> linger = Linger(10)
    >>> linger.served(WallTime(100)), linger.sent(takes_all=True)
    (0, None)
    >>> linger.wait(WallTime(111)), linger.wait(WallTime(117))
    (6, 0)
    >>> linger.served(WallTime(117)), linger.sent(takes_all=True), linger.wait(WallTime(120))
    (0, None, 7)
    """

    def __init__(self, time: int = 0) -> None:
        self._time = time
        self._polled = 0
        self._gathers = False
        self._next = self._apart = 0
        self._took: deque[int] = deque(maxlen=REMEMBERED)

    def wait(self, wall: WallTime) -> int:
        """Until the next batch may begin."""
        if self._gathers:
            self._gathers = False
            self._took.append(wall - self._polled)
            as_a_rule = median_low(self._took)
            self._apart = max(self._time, min(int(REST * as_a_rule), LONGEST * self._time))
            self._next = self._polled + self._apart
        left = self._next - wall
        return left if 0 < left <= self._apart else 0

    def served(self, wall: WallTime) -> int:
        """There are no ticks to miss."""
        self._polled, self._gathers, self._next = wall, False, 0
        return 0

    def sent(self, *, takes_all: bool) -> None:
        """The next batch begins some time after this one, or at once if more waits."""
        self._gathers = takes_all

    def rest(self, until: WallTime) -> None:
        """Nothing to do."""


class Metronome:
    """Ticks at multiples of its interval since the epoch, whenever it was started.

    The first tick is strictly after the first question. A tick that comes while nobody asks is served late, once;
    those before it are missed and not made up. A wall clock that is set back makes it aim anew.

    >>> metronome = Metronome(10)
    >>> metronome.wait(WallTime(100)), metronome.wait(WallTime(110))
    (10, 0)
    >>> metronome.served(WallTime(135)), metronome.wait(WallTime(135))
    (2, 5)
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._next: int | None = None

    def wait(self, wall: WallTime) -> int:
        """Until the tick that is next; 0 once it has come, until it is served."""
        if self._next is None or self._next - wall > self._interval:
            self._next = self._after(wall)
        return max(0, self._next - wall)

    def served(self, wall: WallTime) -> int:
        """The newest tick is served; the ones between it and the one that was due are missed."""
        due, self._next = self._next, self._after(wall)
        return 0 if due is None else max(0, (self._next - due) // self._interval - 1)

    def sent(self, *, takes_all: bool) -> None:
        """Makes no difference: what has no room waits for the next tick."""

    def rest(self, until: WallTime) -> None:
        """Aim at the first tick at or after ``until``."""
        self._next = max(self._next or 0, self._after(WallTime(until - 1)))

    def _after(self, wall: int) -> int:
        return (wall // self._interval + 1) * self._interval


def pace_of(asked: Asked) -> Pace:
    """The machine for what the user asked for."""
    match asked:
        case WhenReady(linger=time):
            return Linger(time)
        case Every(interval=interval):
            return Metronome(interval)
        case _:
            assert_never(asked)
