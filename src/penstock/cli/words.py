"""Numbers and times as people write them. Knows nothing of what they are of."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from penstock.ids import BEGINNING, END_OF_TIME

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def clock_time(wall: int) -> str:
    """The time of day where the user is."""
    return datetime.fromtimestamp(wall / 1_000_000).astimezone().strftime("%H:%M:%S")


def event_time(micros: int) -> str:
    """A time that the data says, in UTC."""
    try:
        at = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros} us"
    return at.strftime("%Y-%m-%d %H:%M:%S")


def size(number: int) -> str:
    """Bytes as people write them.

    >>> size(2_100_000)
    '2.1 MB'
    """
    value, units = float(number), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1_000 and len(units) > 1:  # noqa: PLR2004 - the step of the units
        value /= 1_000
        units.pop(0)
    return f"{number} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def count(number: int, what: str) -> str:
    """A number of things.

    >>> count(1, "output"), count(2_000, "output")
    ('1 output', '2,000 outputs')
    """
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def when(wall: int) -> str:
    """A moment of wall time, in UTC.

    >>> when(1_767_268_800_000_000)
    '2026-01-01 12:00:00Z'
    """
    return f"{_EPOCH + timedelta(microseconds=wall):%Y-%m-%d %H:%M:%SZ}"


def clipped(text: str, most: int) -> str:
    """The beginning of a text, of so many characters at most; what cannot be printed as an escape.

    >>> clipped("abc", 3), clipped("abcd", 3), clipped("tab" + chr(9), 9) == "tab" + repr(chr(9))[1:-1]
    ('abc', 'ab…', True)
    """
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def watermark(at: int) -> str:
    """Event time of a step, in UTC.

    >>> watermark(0), watermark(BEGINNING), watermark(END_OF_TIME)
    ('1970-01-01 00:00:00', 'none yet', 'at the end')
    """
    if at == BEGINNING:
        return "none yet"
    return "at the end" if at == END_OF_TIME else event_time(at)


def age(micros: int) -> str:
    """How long something took or is ago, in its largest two units.

    >>> age(400_000), age(12_000_000), age(3_725_000_000), age(200_000_000_000)
    ('0.4 s', '12 s', '1 h 2 min', '2 d 7 h')
    """
    seconds = max(0, micros) / 1_000_000
    if seconds < 10:  # noqa: PLR2004 - tenths say something only of short times
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((place for place, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)
