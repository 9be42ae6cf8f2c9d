"""When a source is polled: whenever it is ready, or at a fixed interval; and how much it reads before a stop."""

from __future__ import annotations

from collections import deque
from statistics import median_low
from typing import Final, Protocol

from penstock.clock import MonotonicTime, WallTime
from penstock.errors import assert_never
from penstock.graph.nodes import Every, Pace, WhenReady


class PollSchedule(Protocol):
    """When one source is polled."""

    def wait(self, wall: WallTime) -> int:
        """Microseconds until the next poll; 0 is now."""
        ...

    def polled(self, wall: WallTime) -> int:
        """Note that a poll begins now; returns the number of missed ticks."""
        ...

    def sent(self, *, takes_all: bool, is_behind: bool = False) -> None:
        """Note that the poll brought a batch: all rows that there are, or some; others may be of ticks long past."""
        ...

    def skip_until(self, wall: WallTime) -> None:
        """Note that the source is not polled before ``wall``: ticks until then do not count as missed."""
        ...


# Start the next batch 1.4 times the median batch time after the previous start: a source that keeps up is idle for
# two sevenths of the time. On a live keyed topic 1.6 took 16.8 s of processor time in 20 s and rows 495 ms (median),
# 1.3 took 20.1 s and 437 ms, 1.1 took 22.3 s and 341 ms; Structured Streaming took 25 s. Measured again when a batch
# had less to do: 1.5 took 17.3 s, 1.4 took 18.0 s, 1.3 took 18.5 s, and medians differed more from round to round.
IDLE_FACTOR: Final = 1.4
# But wait at most 10 times the linger time: rows pile up behind a slow batch.
MAX_WAIT_FACTOR: Final = 10
# The median of the last 7 batches leaves out one that a checkpoint slowed down: it has gathered enough rows already,
# and a pause in proportion to it would delay its late rows further.
MEDIAN_OF: Final = 7


class AdaptiveBatching:
    """Polls when the source is ready, but lets rows gather after a batch that took all that there was.

    Each batch has a fixed cost, so fewer and larger ones cost less. ``wait`` is first called when that batch has
    been processed. A poll without rows starts no wait, so the first rows after a quiet time are read at once. A wall
    clock that is set back ends the wait.

    >>> schedule = AdaptiveBatching(10)
    >>> schedule.polled(WallTime(100)), schedule.sent(takes_all=True)
    (0, None)
    >>> schedule.wait(WallTime(111)), schedule.wait(WallTime(117))
    (4, 0)
    >>> schedule.polled(WallTime(117)), schedule.sent(takes_all=True), schedule.wait(WallTime(120))
    (0, None, 7)
    """

    def __init__(self, linger: int = 0) -> None:
        self._linger = linger
        self._polled_at = 0
        self._gathers = False
        self._next = self._interval = 0
        self._durations: deque[int] = deque(maxlen=MEDIAN_OF)

    def wait(self, wall: WallTime) -> int:
        """Microseconds until the next batch may begin."""
        if self._gathers:
            self._gathers = False
            self._durations.append(wall - self._polled_at)
            median = median_low(self._durations)
            self._interval = max(self._linger, min(int(IDLE_FACTOR * median), MAX_WAIT_FACTOR * self._linger))
            self._next = self._polled_at + self._interval
        left = self._next - wall
        return left if 0 < left <= self._interval else 0

    def polled(self, wall: WallTime) -> int:
        """Start to measure a batch; there are no ticks to miss."""
        self._polled_at, self._gathers, self._next = wall, False, 0
        return 0

    def sent(self, *, takes_all: bool, is_behind: bool = False) -> None:
        """Let rows gather before the next batch, unless more are waiting."""
        self._gathers = takes_all and not is_behind

    def skip_until(self, wall: WallTime) -> None:
        """Do nothing: there are no ticks to miss."""


class FixedInterval:
    """Polls at ticks: the multiples of the interval since the epoch, whenever the job was started.

    The first tick is strictly after the first call. After a delay the newest tick is polled late; those before it are
    missed and not made up. After the wall clock was set back, the next tick is computed again. Rows of ticks that
    passed while the job was down are read between ticks.

    Args:
        interval: from one tick to the next, in microseconds.
        at_once: the first poll is at the start, and that of the first tick comes after it.

    >>> schedule = FixedInterval(10)
    >>> schedule.wait(WallTime(100)), schedule.wait(WallTime(110))
    (10, 0)
    >>> schedule.polled(WallTime(135)), schedule.wait(WallTime(135))
    (2, 5)
    """

    def __init__(self, interval: int, *, at_once: bool = False) -> None:
        self._interval = interval
        self._at_once = at_once
        self._next: int | None = None

    def wait(self, wall: WallTime) -> int:
        """Microseconds until the next tick; 0 from then on until the poll."""
        if self._at_once:
            return 0
        if self._next is None or self._next - wall > self._interval:
            self._next = self._after(wall)
        return max(0, self._next - wall)

    def polled(self, wall: WallTime) -> int:
        """Note the poll of the newest tick; returns the number of ticks between it and the one that was due."""
        if self._at_once:
            self._at_once = False
            self._next = self._after(wall) if self._next is None else self._next
            return 0
        due, self._next = self._next, self._after(wall)
        return 0 if due is None else max(0, (self._next - due) // self._interval - 1)

    def sent(self, *, takes_all: bool, is_behind: bool = False) -> None:  # noqa: ARG002 - the protocol's
        """Poll again at once while rows of ticks that passed wait; those that had no room wait for the next tick."""
        self._at_once = is_behind

    def skip_until(self, wall: WallTime) -> None:
        """Set the next tick to the first at or after ``wall``."""
        self._next = max(self._next or 0, self._after(WallTime(wall - 1)))

    def _after(self, wall: int) -> int:
        return (wall // self._interval + 1) * self._interval


def schedule_of(pace: Pace, *, at_once: bool = False) -> PollSchedule:
    """The poll schedule for the pace that the user set; with ``at_once`` its first poll does not wait for a tick."""
    match pace:
        case WhenReady(linger=linger):
            return AdaptiveBatching(linger)
        case Every(interval=interval):
            return FixedInterval(interval, at_once=at_once)
        case _:
            assert_never(pace)


# ---- the last batches before a stop ----------------------------------------------------------------------------------


class LastBatches:
    """How much is read between a request to stop and the final checkpoint, from a source that was given rows.

    >>> last = LastBatches()
    >>> last.may_read(MonotonicTime(7)), last.until
    (True, 5000007)
    >>> last.may_read(MonotonicTime(5_000_007))
    False
    """

    MOST: Final = 10
    TIME: Final = 5_000_000  # microseconds

    def __init__(self) -> None:
        self._batches = 0
        self.until: MonotonicTime | None = None
        """When to stop reading; ``None`` before the first poll."""

    def may_read(self, now: MonotonicTime) -> bool:
        """Whether another poll is allowed."""
        if self.until is None:
            self.until = MonotonicTime(now + self.TIME)
        return now < self.until and self._batches < self.MOST

    def sent(self) -> None:
        """Note a batch."""
        self._batches += 1
