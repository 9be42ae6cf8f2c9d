"""Time that stands still until a test moves it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from penstock.clock import MonotonicTime, WallTime, parse_duration
from penstock.errors import HarnessError
from penstock.testing.frames import micros_of

START: Final = "2026-01-01T00:00:00Z"
"""Where the wall clock of a test stands unless told otherwise."""


class ManualClock:
    """Both clocks of a job, moved by hand: the one for durations begins at 0, the wall clock where told.

    Args:
        wall: a ``datetime`` or ISO text; UTC if it has no offset.

    Raises:
        HarnessError: ``wall`` is no time.

    >>> clock = ManualClock("2026-01-01T12:00:00Z")
    >>> clock.advance("90 seconds")
    >>> clock.now(), str(clock.time)
    (90000000, '2026-01-01 12:01:30+00:00')
    """

    def __init__(self, wall: str | datetime = START) -> None:
        self._began = micros_of(wall)
        self._elapsed = 0

    def now(self) -> MonotonicTime:
        """Microseconds since it was made."""
        return MonotonicTime(self._elapsed)

    def wall(self) -> WallTime:
        """Microseconds since the epoch."""
        return WallTime(self._began + self._elapsed)

    @property
    def time(self) -> datetime:
        """The wall clock's time, in UTC."""
        return datetime.fromtimestamp(self.wall() // 1_000_000, timezone.utc).replace(
            microsecond=self.wall() % 1_000_000
        )

    def advance(self, duration: str) -> None:
        """Move both clocks on.

        Args:
            duration: for example ``"5 seconds"``.

        Raises:
            GraphError: it is no length of time.
        """
        self._elapsed += parse_duration("duration", duration)

    def move_to(self, instant: MonotonicTime) -> None:
        """Move on to a later :meth:`now`.

        Raises:
            HarnessError: it is earlier: the clock never goes back.
        """
        if instant < self._elapsed:
            msg = f"the clock stands at {self._elapsed} microseconds and never goes back, to {instant}"
            raise HarnessError(msg)
        self._elapsed = int(instant)
