"""A thread that calls a function at regular times, by a clock that a test can move."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, final

from penstock.clock import MAX_WAIT, Clock, MonotonicTime, SystemClock

if TYPE_CHECKING:
    from penstock.clock import WallTime

log: Final = logging.getLogger("penstock")


class TimerClock(Clock, Protocol):
    """A clock that a thread can wait for."""

    def wait(self, changed: threading.Condition, until: MonotonicTime) -> None:
        """Wait until the time has come or ``changed`` is notified; may return earlier. The caller holds ``changed``."""
        ...


@final
class MachineTimerClock:
    """The machine's clocks, and waiting by them."""

    def __init__(self) -> None:
        self._clock = SystemClock()

    def now(self) -> MonotonicTime:
        """Microseconds of the monotonic clock."""
        return self._clock.now()

    def wall(self) -> WallTime:
        """Microseconds since the epoch, by the wall clock."""
        return self._clock.wall()

    def wait(self, changed: threading.Condition, until: MonotonicTime) -> None:
        """Wait for at most an hour."""
        changed.wait(min(max(0, until - self.now()) / 1_000_000, MAX_WAIT))


@final
class RecurringTimer:
    """Calls a function on a thread of its own, once for each multiple of an interval since the epoch.

    Calls that are due while one runs follow it back to back: none is left out, and no two run at once. An exception is
    logged, and the next call comes in time; what is no ``Exception``, and a ``MemoryError``, ends the thread.

    Args:
        clock: its wall time sets the first call, its monotonic time the others: setting a clock moves none.
        interval: microseconds.
        function: what to call.
        name: of the thread.
    """

    def __init__(self, clock: TimerClock, interval: int, function: Callable[[], None], name: str) -> None:
        self._clock = clock
        self._interval = interval
        self._function = function
        self._changed = threading.Condition()
        self._stopping = False
        wall = clock.wall()
        self._next = MonotonicTime(clock.now() + (wall // interval + 1) * interval - wall)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Call no more, and wait for a call that runs: it is not interrupted."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            self._next = MonotonicTime(self._next + self._interval)
            try:
                self._function()
            except MemoryError:
                raise
            except Exception:
                log.exception("%s failed; its next call comes in time", self._thread.name)

    def _wait(self) -> bool:
        """Whether a call is due; ``False`` once the timer is stopped."""
        with self._changed:
            while not self._stopping and self._clock.now() < self._next:
                self._clock.wait(self._changed, self._next)
            return not self._stopping
