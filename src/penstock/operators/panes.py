"""Windows of fixed lengths as SQL text and whole-number arithmetic; knows nothing of rows, keys or aggregates."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Final

from penstock.durations import format_duration
from penstock.ids import BEGINNING
from penstock.operators.window_base import Due

FARTHEST: Final = 2**61
"""Microseconds from 1970, some 73,000 years: farther times are in no window, or its bounds might be no numbers."""


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one length, side by side: every time falls into exactly one.

    Attributes:
        size: length in microseconds, at least 1.
        offset: where a window begins, in microseconds after the epoch; from 0 up to below ``size``.
        lateness: see :attr:`Window.lateness`.
        is_processing: see :attr:`Window.is_processing`.
    """

    size: int
    offset: int = 0
    lateness: int = 0
    is_processing: bool = False

    @property
    def is_paned(self) -> bool:
        """A window is one pane."""
        return False

    @property
    def step(self) -> int:
        """The length of a pane."""
        return self.size

    def pane(self, micros: str) -> str:
        """See :meth:`Window.pane`."""
        return within(micros, self.bound(micros))

    def bound(self, micros: str) -> str:
        """See :meth:`Fixed.bound`."""
        return _next(micros, self.size, self.offset)

    def pane_start(self, pane: str) -> str:
        """See :meth:`Paned.pane_start`."""
        return f"({pane} - {self.size}L)"

    def windows(self, pane: str, first: str, last: str) -> str:
        """See :meth:`Paned.windows`."""
        return _ends(f"greatest({pane}, {first})", f"least({pane}, {last})", self.size, f"end - {self.size}L")

    def due(self, after: int, until: int) -> Due | None:
        """See :meth:`Window.due`. Python's whole numbers do not overflow: the ends of time are no special case.

        >>> Tumbling(size=10).due(-11, 20)
        Due(first=-10, last=20, panes=(-10, 20))
        >>> Tumbling(size=10).due(20, 29) is None
        True
        """
        first, last = self.after(after), floor(until, self.size, self.offset)
        return Due(first, last, (first, last)) if first <= last else None

    def dead(self, closed: int) -> int:
        """See :meth:`Window.dead`."""
        return max(floor(closed, self.size, self.offset), BEGINNING)

    def after(self, moment: int) -> int:
        """See :meth:`Window.after`."""
        return floor(moment, self.size, self.offset) + self.size

    def describe(self) -> str:
        """See :meth:`Window.describe`."""
        time = " of processing time" if self.is_processing else ""
        return f"tumbling {format_duration(self.size)}{time}{_shift(self.offset)}"


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of one length, one beginning every ``slide``: a time falls into several. Flink calls them hopping.

    A pane is as long as the greatest length that divides both.

    Attributes:
        size: length in microseconds, at least ``slide``.
        slide: from one beginning to the next.
        offset: where some window begins, in microseconds after the epoch; from 0 up to below ``slide``.
        lateness: see :attr:`Window.lateness`.
    """

    size: int
    slide: int
    offset: int = 0
    lateness: int = 0

    @property
    def is_paned(self) -> bool:
        """Windows overlap."""
        return True

    @property
    def is_processing(self) -> bool:
        """Of event time only."""
        return False

    @property
    def step(self) -> int:
        """The length of a pane."""
        return gcd(self.size, self.slide)

    def pane(self, micros: str) -> str:
        """See :meth:`Window.pane`."""
        return within(micros, self.bound(micros))

    def bound(self, micros: str) -> str:
        """See :meth:`Fixed.bound`."""
        return _next(micros, self.step, self.offset % self.step)

    def pane_start(self, pane: str) -> str:
        """See :meth:`Paned.pane_start`."""
        return f"({pane} - {self.step}L)"

    def windows(self, pane: str, first: str, last: str) -> str:
        """See :meth:`Paned.windows`."""
        shift = self.offset + self.size
        greatest = f"({pane} + {self.size - self.step}L)"
        lowest = f"greatest({pane} + pmod({shift}L - {pane}, {self.slide}L), {first})"
        highest = f"least({greatest} - pmod({greatest} - {shift}L, {self.slide}L), {last})"
        return _ends(lowest, highest, self.slide, f"end - {self.size}L")

    def due(self, after: int, until: int) -> Due | None:
        """See :meth:`Window.due`.

        >>> Sliding(size=15, slide=10).due(14, 26)
        Due(first=15, last=25, panes=(5, 25))
        """
        first, last = self.after(after), self._last_end(until)
        panes = (max(first - self.size + self.step, BEGINNING), last)
        return Due(first, last, panes) if first <= last else None

    def dead(self, closed: int) -> int:
        """See :meth:`Window.dead`: the next window that is not closed begins there.

        >>> Sliding(size=15, slide=10).dead(14), Sliding(size=15, slide=10).dead(15)
        (0, 10)
        """
        return max(self._last_end(closed) + self.slide - self.size, BEGINNING)

    def after(self, moment: int) -> int:
        """See :meth:`Window.after`."""
        return self._last_end(moment) + self.slide

    def describe(self) -> str:
        """See :meth:`Window.describe`."""
        return f"sliding {format_duration(self.size)} every {format_duration(self.slide)}{_shift(self.offset)}"

    def _last_end(self, micros: int) -> int:
        return floor(micros, self.slide, self.offset + self.size)


@dataclass(frozen=True, slots=True)
class Cumulative:
    """Windows that begin together every ``size`` and end one ``step`` after the other (Flink's CUMULATE).

    Attributes:
        step: length of the first window, and of a pane.
        size: length of the last window, a multiple of ``step``.
        offset: where windows begin, in microseconds after the epoch; from 0 up to below ``size``.
        lateness: see :attr:`Window.lateness`.
    """

    step: int
    size: int
    offset: int = 0
    lateness: int = 0

    @property
    def is_paned(self) -> bool:
        """A pane is in all windows that end after it, up to the last."""
        return True

    @property
    def is_processing(self) -> bool:
        """Of event time only."""
        return False

    def pane(self, micros: str) -> str:
        """See :meth:`Window.pane`."""
        return within(micros, self.bound(micros))

    def bound(self, micros: str) -> str:
        """See :meth:`Fixed.bound`."""
        return _next(micros, self.step, self.offset % self.step)

    def pane_start(self, pane: str) -> str:
        """See :meth:`Paned.pane_start`."""
        return f"({pane} - {self.step}L)"

    def windows(self, pane: str, first: str, last: str) -> str:
        """See :meth:`Paned.windows`."""
        begin = f"({pane} - 1L - pmod({pane} - 1L - {self.offset}L, {self.size}L))"
        lowest, highest = f"greatest({pane}, {first})", f"least({begin} + {self.size}L, {last})"
        return _ends(lowest, highest, self.step, begin)

    def due(self, after: int, until: int) -> Due | None:
        """See :meth:`Window.due`.

        >>> Cumulative(step=10, size=30).due(40, 50)
        Due(first=50, last=50, panes=(40, 50))
        """
        first, last = self.after(after), floor(until, self.step, self.offset % self.step)
        panes = (max(floor(first - 1, self.size, self.offset) + self.step, BEGINNING), last)
        return Due(first, last, panes) if first <= last else None

    def dead(self, closed: int) -> int:
        """See :meth:`Window.dead`.

        >>> Cumulative(step=10, size=30).dead(59), Cumulative(step=10, size=30).dead(60)
        (30, 60)
        """
        return max(floor(closed, self.size, self.offset), BEGINNING)

    def after(self, moment: int) -> int:
        """See :meth:`Window.after`."""
        return floor(moment, self.step, self.offset % self.step) + self.step

    def describe(self) -> str:
        """See :meth:`Window.describe`."""
        return f"cumulative {format_duration(self.step)} up to {format_duration(self.size)}{_shift(self.offset)}"


def floor(micros: int, size: int, offset: int) -> int:
    """The greatest multiple of ``size``, counted from ``offset``, that is not above ``micros``.

    >>> floor(-1, 10, 3)
    -7
    """
    return (micros - offset) // size * size + offset


def _next(micros: str, size: int, offset: int) -> str:
    """SQL for the least multiple above ``micros``. ``pmod`` is never negative, so 1970 is no special time."""
    return f"({micros} - pmod({micros} - {offset}L, {size}L) + {size}L)"


def within(micros: str, pane: str) -> str:
    """SQL for ``pane``, but NULL for times that are in no window: see :data:`FARTHEST`."""
    return f"(CASE WHEN {micros} BETWEEN -{FARTHEST}L AND {FARTHEST}L THEN {pane} END)"


def _ends(lowest: str, highest: str, step: int, start: str) -> str:
    """SQL for windows ending from ``lowest`` to ``highest`` by ``step``; ``start`` is SQL over ``end``."""
    ends = f"sequence({lowest}, {highest}, {step}L)"
    return f"CASE WHEN {lowest} <= {highest} THEN transform({ends}, end -> struct({start} AS start, end AS end)) END"


def _shift(offset: int) -> str:
    return f", offset {format_duration(offset)}" if offset else ""
