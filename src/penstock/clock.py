"""Kinds of time, clocks, and times and lengths of time as text."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from typing import Final, NewType, Protocol

from penstock.errors import GraphError

# ---- kinds of time ---------------------------------------------------------------------------------------------------

EventTime = NewType("EventTime", int)
"""Microseconds since the epoch, as the data says."""
WallTime = NewType("WallTime", int)
"""Microseconds since the epoch, as the wall clock says. Data for people, never used to decide an order."""
MonotonicTime = NewType("MonotonicTime", int)
"""Microseconds of a clock that never goes back; its zero has no meaning. Durations and timers use it."""
MIN_WATERMARK: Final = EventTime(-(2**63))
"""The watermark before anything was seen."""
MAX_WATERMARK: Final = EventTime(2**63 - 1)
"""The watermark after the last row of a source that ended by itself."""


# ---- time zones ------------------------------------------------------------------------------------------------------

UTC: Final = "UTC"
_UTC_NAMES: Final = frozenset({UTC, "Etc/UTC", "GMT", "Etc/GMT", "Z", "Zulu", "+00:00"})


def canonical_timezone(name: str) -> str:
    """The name of a time zone, with one name for UTC.

    >>> canonical_timezone("Etc/UTC"), canonical_timezone("Europe/Berlin")
    ('UTC', 'Europe/Berlin')
    """
    return UTC if name in _UTC_NAMES else name


# ---- clocks ----------------------------------------------------------------------------------------------------------
# No other module reads the machine's time: it comes in events, or from a Clock that is passed in.

MAX_WAIT: Final = 3_600.0
"""Longest wait of a thread, in seconds; then it checks again, since an operating system's wait has a limit."""


class Clock(Protocol):
    """Monotonic time for durations, and wall time for people; the two never mix."""

    def now(self) -> MonotonicTime:
        """Microseconds of a clock that never goes back."""
        ...

    def wall(self) -> WallTime:
        """Microseconds since the epoch."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> MonotonicTime:
        """Microseconds of the monotonic clock."""
        return MonotonicTime(time.monotonic_ns() // 1_000)

    def wall(self) -> WallTime:
        """Microseconds since the epoch, by the wall clock."""
        return WallTime(time.time_ns() // 1_000)


def sleep(seconds: float) -> None:
    """Sleep. For backoff on threads that have nothing else to do; never in tests, never on the deciding thread."""
    time.sleep(seconds)


# ---- moments as people read them -------------------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def format_time(micros: int, *, fraction: bool = False) -> str:
    """A moment in microseconds since 1970 as date and time, in UTC, as every text for people has it.

    >>> format_time(1_767_268_800_000_000), format_time(1_500_000, fraction=True)
    ('2026-01-01 12:00:00 UTC', '1970-01-01 00:00:01.500000 UTC')
    """
    try:
        at = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return "before the year 1" if micros < 0 else "after the year 9999"
    return f"{at:%Y-%m-%d %H:%M:%S.%f} UTC" if fraction else f"{at:%Y-%m-%d %H:%M:%S} UTC"


# ---- lengths of time such as "1 minute" ------------------------------------------------------------------------------

_UNITS: Final = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
}
_PLURAL: Final = frozenset({"microsecond", "millisecond", "second", "minute", "hour", "day", "week"})
_SHAPE: Final = re.compile(r"\s*(-?\d+)\s*([a-z]+)\s*")
_LONGEST: Final = 1000 * 366 * 86_400_000_000
"""A thousand years, in microseconds: anything longer is a mistake, and would leave the range of timestamps."""


def parse_duration(what: str, text: object, *, least: int = 0) -> int:
    """Microseconds of a whole number and a unit.

    Units are ``microsecond``, ``millisecond``, ``second``, ``minute``, ``hour``, ``day`` and ``week``, each with or
    without an ``s``, and ``us``, ``ms``, ``s``, ``min``, ``h``, ``d``. Days have 24 hours; months and years have no
    fixed length and are refused.

    Args:
        what: the argument's name, for the message.
        text: for example ``"500 milliseconds"`` or ``"5s"``.
        least: the smallest length allowed, in microseconds.

    Raises:
        GraphError: ``text`` is not such a length, is shorter than ``least`` or longer than a thousand years.

    >>> parse_duration("size", "1 minute")
    60000000
    """
    found = _SHAPE.fullmatch(text) if isinstance(text, str) else None
    unit = _unit(found[2]) if found else None
    if found is None or unit is None:
        msg = (
            f"{what} {text!r} is not a length of time. Write a whole number and one of microseconds, milliseconds, "
            'seconds, minutes, hours, days, weeks, as in "90 seconds".'
        )
        raise GraphError(msg)
    micros = int(found[1]) * unit
    if micros < least:
        msg = f"{what} {text!r} is too short. It must be at least {format_duration(least)}."
        raise GraphError(msg)
    if abs(micros) > _LONGEST:
        msg = f"{what} {text!r} is too long. It must be at most a thousand years."
        raise GraphError(msg)
    return micros


def format_duration(micros: int) -> str:
    """The shortest text that ``parse_duration`` reads as ``micros``.

    >>> format_duration(90_000_000)
    '90 seconds'
    """
    for unit in ("week", "day", "hour", "minute", "second", "millisecond"):
        size = _UNITS[unit]
        if micros and micros % size == 0:
            count = micros // size
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{micros} microsecond" if micros == 1 else f"{micros} microseconds"


def _unit(word: str) -> int | None:
    if word in _UNITS:
        return _UNITS[word]
    singular = word.removesuffix("s")
    return _UNITS[singular] if singular in _PLURAL else None
