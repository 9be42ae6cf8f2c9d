"""Windows of fixed length by panes: tumbling, sliding, cumulative, zoned."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from math import gcd
from typing import Final, Protocol, runtime_checkable
from zoneinfo import ZoneInfo

from penstock.clock import MIN_WATERMARK, format_duration

# ---- what a window is ------------------------------------------------------------------------------------------------
# A *pane* is the longest stretch of time that no window's bound cuts: all rows of a pane are in the same windows. State
# keeps one row for each key and pane, and a pane is put into its windows only when they are sent. Windows and panes are
# identified by their ends.


@dataclass(frozen=True, slots=True)
class DueWindows:
    """Windows that end within a stretch of time, and the panes they consist of.

    Attributes:
        first: end of the first window, as ``Window.windows`` takes it.
        last: end of the last window, likewise.
        panes: least and greatest end of the panes of these windows, in microseconds since the epoch.
    """

    first: int
    last: int
    panes: tuple[int, int]


class Window(Protocol):
    """Assigns event times to windows. Times are microseconds since the epoch; a start belongs to a window, its end not.

    Where rows decide when a window begins (sessions, count windows), state keeps a row's own stretch of time in the
    place of a pane; all others are ``PanedWindow``.
    """

    @property
    def lateness(self) -> int:
        """Microseconds of event time after a window's end during which its rows are not late."""
        ...

    @property
    def is_processing(self) -> bool:
        """Whether a row's time is that of its batch's arrival, in processing time."""
        ...

    @property
    def is_paned(self) -> bool:
        """Whether a window may have several panes, or a pane be in several windows."""
        ...

    def pane(self, micros: str) -> str:
        """SQL for the end of the pane of the time ``micros`` (SQL); NULL if it has none."""
        ...

    def due(self, after: int, until: int) -> DueWindows | None:
        """The windows that end in ``(after, until]``, or ``None`` if none does."""
        ...

    def dead(self, closed: int) -> int:
        """The bound at or before which panes end that are in no window ending after ``closed``."""
        ...

    def after(self, moment: int) -> int:
        """The first end of a window after a moment."""
        ...

    def describe(self) -> str:
        """A short text for people. Windows that need different state have different texts."""
        ...


@runtime_checkable
class PanedWindow(Window, Protocol):
    """Windows whose bounds do not depend on rows."""

    def pane_start(self, pane: str) -> str:
        """SQL for the start of the pane that ends at ``pane`` (SQL)."""
        ...

    def windows(self, pane: str, first: str, last: str) -> str:
        """SQL for the windows of a pane: an array of structs of two BIGINT, start and end; NULL if there are none.

        Only windows from ``first`` to ``last`` (SQL for the values of a ``DueWindows``).
        """
        ...


class FixedWindow(PanedWindow, Protocol):
    """Windows of fixed lengths."""

    @property
    def step(self) -> int:
        """The length of a pane, in microseconds."""
        ...

    @property
    def offset(self) -> int:
        """A bound of panes, in microseconds after the epoch."""
        ...

    def bound(self, micros: str) -> str:
        """SQL for the first bound of panes after ``micros`` (SQL), however far that is."""
        ...


# ---- windows of fixed length -----------------------------------------------------------------------------------------

MAX_EVENT_MICROS: Final = 2**61
"""Microseconds from 1970, some 73,000 years. Times beyond are in no window: bounds could overflow."""


@dataclass(frozen=True, slots=True)
class TumblingWindow:
    """Windows of one length, side by side: every time is in exactly one.

    Attributes:
        size: length in microseconds, at least 1.
        offset: where a window begins, in microseconds after the epoch; from 0 up to below ``size``.
        lateness: see ``Window.lateness``.
        is_processing: see ``Window.is_processing``.
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
        """See ``Window.pane``."""
        return within(micros, self.bound(micros))

    def bound(self, micros: str) -> str:
        """See ``FixedWindow.bound``."""
        return _next(micros, self.size, self.offset)

    def pane_start(self, pane: str) -> str:
        """See ``PanedWindow.pane_start``."""
        return f"({pane} - {self.size}L)"

    def windows(self, pane: str, first: str, last: str) -> str:
        """See ``PanedWindow.windows``."""
        return _ends(f"greatest({pane}, {first})", f"least({pane}, {last})", self.size, f"end - {self.size}L")

    def due(self, after: int, until: int) -> DueWindows | None:
        """See ``Window.due``. The least and greatest watermark are no special case: ``int`` does not overflow.

        >>> TumblingWindow(size=10).due(-11, 20)
        DueWindows(first=-10, last=20, panes=(-10, 20))
        >>> TumblingWindow(size=10).due(20, 29) is None
        True
        """
        first, last = self.after(after), floor(until, self.size, self.offset)
        return DueWindows(first, last, (first, last)) if first <= last else None

    def dead(self, closed: int) -> int:
        """See ``Window.dead``."""
        return max(floor(closed, self.size, self.offset), MIN_WATERMARK)

    def after(self, moment: int) -> int:
        """See ``Window.after``."""
        return floor(moment, self.size, self.offset) + self.size

    def describe(self) -> str:
        """See ``Window.describe``."""
        time = " of processing time" if self.is_processing else ""
        return f"tumbling {format_duration(self.size)}{time}{_shift(self.offset)}"


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Windows of one length, one beginning every ``slide``: a time is in several. Flink calls them hopping.

    A pane is as long as the greatest common divisor of both.

    Attributes:
        size: length in microseconds, at least ``slide``.
        slide: from one beginning to the next.
        offset: where some window begins, in microseconds after the epoch; from 0 up to below ``slide``.
        lateness: see ``Window.lateness``.
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
        """See ``Window.pane``."""
        return within(micros, self.bound(micros))

    def bound(self, micros: str) -> str:
        """See ``FixedWindow.bound``."""
        return _next(micros, self.step, self.offset % self.step)

    def pane_start(self, pane: str) -> str:
        """See ``PanedWindow.pane_start``."""
        return f"({pane} - {self.step}L)"

    def windows(self, pane: str, first: str, last: str) -> str:
        """See ``PanedWindow.windows``."""
        shift = self.offset + self.size
        greatest = f"({pane} + {self.size - self.step}L)"
        lowest = f"greatest({pane} + pmod({shift}L - {pane}, {self.slide}L), {first})"
        highest = f"least({greatest} - pmod({greatest} - {shift}L, {self.slide}L), {last})"
        return _ends(lowest, highest, self.slide, f"end - {self.size}L")

    def due(self, after: int, until: int) -> DueWindows | None:
        """See ``Window.due``.

        >>> SlidingWindow(size=15, slide=10).due(14, 26)
        DueWindows(first=15, last=25, panes=(5, 25))
        """
        first, last = self.after(after), self._last_end(until)
        panes = (max(first - self.size + self.step, MIN_WATERMARK), last)
        return DueWindows(first, last, panes) if first <= last else None

    def dead(self, closed: int) -> int:
        """See ``Window.dead``: the next window that is not closed begins there.

        >>> SlidingWindow(size=15, slide=10).dead(14), SlidingWindow(size=15, slide=10).dead(15)
        (0, 10)
        """
        return max(self._last_end(closed) + self.slide - self.size, MIN_WATERMARK)

    def after(self, moment: int) -> int:
        """See ``Window.after``."""
        return self._last_end(moment) + self.slide

    def describe(self) -> str:
        """See ``Window.describe``."""
        return f"sliding {format_duration(self.size)} every {format_duration(self.slide)}{_shift(self.offset)}"

    def _last_end(self, micros: int) -> int:
        return floor(micros, self.slide, self.offset + self.size)


@dataclass(frozen=True, slots=True)
class CumulativeWindow:
    """Windows that begin together every ``size`` and end one ``step`` after the other (Flink's CUMULATE).

    Attributes:
        step: length of the first window, and of a pane.
        size: length of the last window, a multiple of ``step``.
        offset: where windows begin, in microseconds after the epoch; from 0 up to below ``size``.
        lateness: see ``Window.lateness``.
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
        """See ``Window.pane``."""
        return within(micros, self.bound(micros))

    def bound(self, micros: str) -> str:
        """See ``FixedWindow.bound``."""
        return _next(micros, self.step, self.offset % self.step)

    def pane_start(self, pane: str) -> str:
        """See ``PanedWindow.pane_start``."""
        return f"({pane} - {self.step}L)"

    def windows(self, pane: str, first: str, last: str) -> str:
        """See ``PanedWindow.windows``."""
        begin = f"({pane} - 1L - pmod({pane} - 1L - {self.offset}L, {self.size}L))"
        lowest, highest = f"greatest({pane}, {first})", f"least({begin} + {self.size}L, {last})"
        return _ends(lowest, highest, self.step, begin)

    def due(self, after: int, until: int) -> DueWindows | None:
        """See ``Window.due``.

        >>> CumulativeWindow(step=10, size=30).due(40, 50)
        DueWindows(first=50, last=50, panes=(40, 50))
        """
        first, last = self.after(after), floor(until, self.step, self.offset % self.step)
        panes = (max(floor(first - 1, self.size, self.offset) + self.step, MIN_WATERMARK), last)
        return DueWindows(first, last, panes) if first <= last else None

    def dead(self, closed: int) -> int:
        """See ``Window.dead``.

        >>> CumulativeWindow(step=10, size=30).dead(59), CumulativeWindow(step=10, size=30).dead(60)
        (30, 60)
        """
        return max(floor(closed, self.size, self.offset), MIN_WATERMARK)

    def after(self, moment: int) -> int:
        """See ``Window.after``."""
        return floor(moment, self.step, self.offset % self.step) + self.step

    def describe(self) -> str:
        """See ``Window.describe``."""
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
    """SQL for ``pane``, but NULL for times that are in no window: see ``MAX_EVENT_MICROS``."""
    return f"(CASE WHEN {micros} BETWEEN -{MAX_EVENT_MICROS}L AND {MAX_EVENT_MICROS}L THEN {pane} END)"


def _ends(lowest: str, highest: str, step: int, start: str) -> str:
    """SQL for windows ending from ``lowest`` to ``highest`` by ``step``; ``start`` is SQL over ``end``."""
    ends = f"sequence({lowest}, {highest}, {step}L)"
    return f"CASE WHEN {lowest} <= {highest} THEN transform({ends}, end -> struct({start} AS start, end AS end)) END"


def _shift(offset: int) -> str:
    return f", offset {format_duration(offset)}" if offset else ""


# ---- windows by the clocks of a time zone ----------------------------------------------------------------------------
# A window of whole hours or days is laid out on the zone's *local* time, as if it were UTC. Each bound is then
# converted to the time at which the zone's clocks first show it, or would have, had they not been put forward over it.
# So a day has 23 or 25 hours twice a year, an hour that clocks show twice is one window of two hours, and the hour that
# they leave out has none.
#
# In SQL, Spark (that is, Java) converts, in Python ``zoneinfo``. Spark alone decides which rows are in a window; Python
# decides when it is sent. If their time zone data differ, a result is late by the difference, never lost.

HOUR: Final = 3_600_000_000
DAY: Final = 24 * HOUR
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FAR: Final = 62_000_000_000 * 1_000_000
"""Microseconds from the epoch within which Python has dates, 19 centuries; beyond, local time is taken for UTC."""
_LONGEST_JUMP: Final = 3 * HOUR
"""Most that a zone has put its clocks back since 1970."""


@dataclass(frozen=True, slots=True)
class ZonedWindow:
    """Windows of whole hours, days or weeks by the clocks of a zone.

    Attributes:
        local: the windows on local time, as if that were UTC; their panes are at least an hour long.
        zone: an IANA name.
    """

    local: FixedWindow
    zone: str

    @property
    def lateness(self) -> int:
        """See ``Window.lateness``."""
        return self.local.lateness

    @property
    def is_processing(self) -> bool:
        """See ``Window.is_processing``."""
        return self.local.is_processing

    @property
    def is_paned(self) -> bool:
        """See ``Window.is_paned``."""
        return self.local.is_paned

    def pane(self, micros: str) -> str:
        """See ``Window.pane``: the first bound after the time, of those that the local time points at.

        Clocks that were put back have passed some bounds already; those do not count again. Clocks that were put
        forward show more than a bound that they left out, whose moment is still to come.
        """
        end = self.local.bound(self._local_sql(micros))
        left_out = self._moment_sql(self._before(end))
        ends = _first(f"> {micros}", self._bounds(end, self.local.step))
        return within(micros, f"least(CASE WHEN {left_out} > {micros} THEN {left_out} END, {ends})")

    def pane_start(self, pane: str) -> str:
        """See ``PanedWindow.pane_start``. Clocks that were put forward have passed several bounds at one moment."""
        starts = self._bounds(self.local.pane_start(self._local_end(pane)), -self.local.step)
        return _first(f"< {pane}", starts)

    def windows(self, pane: str, first: str, last: str) -> str:
        """See ``PanedWindow.windows``. Where clocks leave hours out, windows that become the same are one."""
        end = self._local_end(pane)
        before = self._before(end)
        local = f"(CASE WHEN {self._moment_sql(before)} = {pane} THEN {before} ELSE {end} END)"  # clocks jumped over it
        found = self.local.windows(local, first, last)
        bounds = ", ".join(f"{self._moment_sql(f'w.{bound}')} AS {bound}" for bound in ("start", "end"))
        return f"array_distinct(transform({found}, w -> struct({bounds})))"

    def due(self, after: int, until: int) -> DueWindows | None:
        """See ``Window.due``; ``first`` and ``last`` are local.

        >>> from penstock.operators.windows.panes import TumblingWindow
        >>> days = ZonedWindow(TumblingWindow(size=DAY), "Europe/Berlin")
        >>> days.due(1_743_200_000_000_000, 1_743_300_000_000_000).last // DAY
        20177
        """
        found = self.local.due(self._bound(after), self._bound(until))
        if found is None:
            return None
        if self.is_paned:
            return DueWindows(found.first, found.last, (self._moment(found.panes[0]), self._moment(found.panes[1])))
        return DueWindows(found.first, found.last, (after + 1, until))  # whatever Spark says ends there

    def dead(self, closed: int) -> int:
        """See ``Window.dead``."""
        return MIN_WATERMARK if closed == MIN_WATERMARK else self._moment(self.local.dead(self._bound(closed)))

    def after(self, moment: int) -> int:
        """See ``Window.after``."""
        return self._moment(self.local.after(self._bound(moment)))

    def describe(self) -> str:
        """See ``Window.describe``."""
        return f"{self.local.describe()}, {self.zone}"

    def _bound(self, moment: int) -> int:
        """The last bound of a pane, in local time, that the zone's clocks have reached at ``moment``."""
        step = self.local.step
        bound = floor(_shown(moment, self.zone), step, self.local.offset % step)
        while self._moment(bound) > moment:
            bound -= step
        while self._moment(bound + step) <= moment:
            bound += step
        return bound

    def _bounds(self, local: str, step: int) -> list[str]:
        """SQL for the moments of a bound and of as many after it, or before, as one jump of clocks may pass."""
        return [self._moment_sql(f"({local} + {n * step}L)") for n in range(2 + _LONGEST_JUMP // self.local.step)]

    def _moment(self, local: int) -> int:
        return _moment(local, self.zone)

    def _local_end(self, pane: str) -> str:
        """SQL for the end of a pane in local time: clocks may have jumped just there, so look before it."""
        return self.local.bound(f"({self._local_sql(f'({pane} - 1L)')})")

    def _before(self, bound: str) -> str:
        return f"({bound} - {self.local.step}L)"

    def _local_sql(self, micros: str) -> str:
        return f"unix_micros(from_utc_timestamp(timestamp_micros({micros}), '{self.zone}'))"

    def _moment_sql(self, local: str) -> str:
        return f"unix_micros(to_utc_timestamp(timestamp_micros({local}), '{self.zone}'))"


def _shown(moment: int, zone: str) -> int:
    """What the zone's clocks show, as microseconds since they showed 1970."""
    if abs(moment) > _FAR:
        return moment
    shown = (_EPOCH + timedelta(microseconds=moment)).astimezone(ZoneInfo(zone))
    return (shown.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(microseconds=1)


def _moment(local: int, zone: str) -> int:
    """When the zone's clocks first show ``local``; if they leave it out, when they would have without the jump."""
    if abs(local) > _FAR:
        return local
    shown = (_EPOCH + timedelta(microseconds=local)).replace(tzinfo=ZoneInfo(zone))
    return (shown - _EPOCH) // timedelta(microseconds=1)


def _first(condition: str, moments: list[str]) -> str:
    """SQL for the first of the moments that fulfils the condition, or the last."""
    cases = " ".join(f"WHEN {moment} {condition} THEN {moment}" for moment in moments[:-1])
    return f"CASE {cases} ELSE {moments[-1]} END"
