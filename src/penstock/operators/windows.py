"""Windows over event time as SQL text and whole-number arithmetic; knows nothing of rows, keys or aggregates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.durations import format_duration, parse_duration


class Window(Protocol):
    """How event times fall into windows. Bounds are microseconds since the epoch: the time zone plays no part."""

    def end(self, micros: str) -> str:
        """SQL for the end, in microseconds and exclusive, of the window that holds the time ``micros`` (SQL)."""
        ...

    def start(self, end: str) -> str:
        """SQL for the start, in microseconds and inclusive, of the window that ends at ``end`` (SQL)."""
        ...

    def due(self, horizon: int, watermark: int) -> tuple[int, int] | None:
        """First and last window end in ``(horizon, watermark]``, or ``None`` if no window ends there."""
        ...

    def describe(self) -> str:
        """In a few words, for people."""
        ...


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one length, side by side: every time falls into exactly one.

    Attributes:
        size: length in microseconds, at least 1.
        offset: where a window begins, in microseconds after the epoch; from 0 up to below ``size``.
    """

    size: int
    offset: int = 0

    def end(self, micros: str) -> str:
        """See :meth:`Window.end`. ``pmod`` is never negative, so times before 1970 floor like all others."""
        return f"({micros} - pmod({micros} - {self.offset}L, {self.size}L) + {self.size}L)"

    def start(self, end: str) -> str:
        """See :meth:`Window.start`."""
        return f"({end} - {self.size}L)"

    def due(self, horizon: int, watermark: int) -> tuple[int, int] | None:
        """See :meth:`Window.due`. Python's whole numbers do not overflow: the ends of time are no special case.

        >>> Tumbling(size=10).due(-11, 20)
        (-10, 20)
        >>> Tumbling(size=10).due(20, 29) is None
        True
        """
        first = (horizon - self.offset) // self.size * self.size + self.offset + self.size
        last = (watermark - self.offset) // self.size * self.size + self.offset
        return (first, last) if first <= last else None

    def describe(self) -> str:
        """See :meth:`Window.describe`."""
        shift = f", offset {format_duration(self.offset)}" if self.offset else ""
        return f"tumbling {format_duration(self.size)}{shift}"


def tumbling(size: str, *, offset: str | None = None) -> Tumbling:
    """Windows of length ``size``, side by side, aligned to the epoch (in UTC) plus ``offset``.

    Args:
        size: for example ``"1 minute"``.
        offset: shifts where windows begin; days that begin at 22:00 UTC are ``tumbling("1 day", offset="22 hours")``.

    Raises:
        GraphError: a length cannot be read, or ``size`` is not above zero.

    >>> tumbling("1 minute").size
    60000000
    """
    length = parse_duration("size of a tumbling window", size, least=1)
    shift = 0 if offset is None else parse_duration("offset of a tumbling window", offset, least=-(2**62))
    return Tumbling(size=length, offset=shift % length)
