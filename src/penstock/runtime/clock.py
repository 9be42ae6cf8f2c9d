"""The only readers of time. Everything else gets time in events or asks a :class:`Clock` handed to it."""

from __future__ import annotations

import time
from typing import Final, Protocol

from penstock.ids import Instant, WallTime

LONGEST_WAIT: Final = 3_600.0
"""Seconds after which a thread looks again whatever it was told: an operating system's wait has a limit."""


class Clock(Protocol):
    """Two readings that never mix: one for durations, one for people."""

    def now(self) -> Instant:
        """Microseconds of a clock that never goes back."""
        ...

    def wall(self) -> WallTime:
        """Microseconds since the epoch."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Instant:
        """Microseconds of the monotonic clock."""
        return Instant(time.monotonic_ns() // 1_000)

    def wall(self) -> WallTime:
        """Microseconds since the epoch, by the wall clock."""
        return WallTime(time.time_ns() // 1_000)


def pause(seconds: float) -> None:
    """Sleep. For backoff on threads that have nothing else to do; never in tests, never on the deciding thread."""
    time.sleep(seconds)
