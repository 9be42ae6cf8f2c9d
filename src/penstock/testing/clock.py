"""A clock that only a test moves."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from typing import Final

from penstock.clock import MonotonicTime, WallTime, parse_duration
from penstock.errors import HarnessError
from penstock.testing.frames import micros_of

START: Final = "2026-01-01T00:00:00Z"
"""Time of a test's wall clock at its start, by default."""


class ManualClock:
    """Both clocks of a job, moved by hand: the monotonic one begins at 0, the wall clock at ``wall``.

    Args:
        wall: a ``datetime`` or ISO text; UTC if it has no offset.

    Raises:
        HarnessError: ``wall`` is not a time.

    >>> clock = ManualClock("2026-01-01T12:00:00Z")
    >>> clock.advance("90 seconds")
    >>> clock.now(), str(clock.time)
    (90000000, '2026-01-01 12:01:30+00:00')
    """

    def __init__(self, wall: str | datetime = START) -> None:
        self._began = micros_of(wall)
        self._elapsed = 0
        self._waiting: list[threading.Condition] = []

    def now(self) -> MonotonicTime:
        """Return the microseconds since the clock was made."""
        return MonotonicTime(self._elapsed)

    def wall(self) -> WallTime:
        """Return the microseconds since the epoch."""
        return WallTime(self._began + self._elapsed)

    @property
    def time(self) -> datetime:
        """The wall clock's time, in UTC."""
        return datetime.fromtimestamp(self.wall() // 1_000_000, timezone.utc).replace(
            microsecond=self.wall() % 1_000_000
        )

    def advance(self, duration: str) -> None:
        """Move both clocks forward.

        Args:
            duration: for example ``"5 seconds"``.

        Raises:
            GraphError: it is not a length of time.
        """
        self._elapsed += parse_duration("duration", duration)
        self._wake()

    def move_to(self, instant: MonotonicTime) -> None:
        """Move both clocks forward to a later ``now``.

        Raises:
            HarnessError: it is earlier: the clock never goes back.
        """
        if instant < self._elapsed:
            msg = f"The clock stands {(self._elapsed - instant) / 1_000_000:g} s later, and never goes back."
            raise HarnessError(msg)
        self._elapsed = int(instant)
        self._wake()

    def wait(self, changed: threading.Condition, until: MonotonicTime) -> None:
        """Wait until the clock is moved to ``until``, or ``changed`` is notified; the caller holds ``changed``."""
        self._waiting.append(changed)  # before the clock is read: a move after that notifies
        try:
            if self._elapsed < until:
                changed.wait()
        finally:
            self._waiting.remove(changed)

    def _wake(self) -> None:
        for changed in tuple(self._waiting):
            with changed:
                changed.notify_all()
