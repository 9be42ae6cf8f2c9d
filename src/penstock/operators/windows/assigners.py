"""The windows that users name, such as ``ps.tumbling``; session, count and global windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeVar
from zoneinfo import ZoneInfo, available_timezones

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, format_duration, parse_duration
from penstock.errors import GraphError, did_you_mean
from penstock.operators.windows.panes import (
    DAY,
    HOUR,
    CumulativeWindow,
    DueWindows,
    SlidingWindow,
    TumblingWindow,
    Window,
    ZonedWindow,
    floor,
)

if TYPE_CHECKING:
    from penstock.operators.windows.panes import FixedWindow


# ---- count windows ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CountWindow:
    """Windows of a number of rows of a key, which end when they are full; see ``Window``.

    Attributes:
        size: how many rows.
        is_running: one window for all time, which is sent every ``size`` rows and keeps its rows.
        is_processing: see ``Window.is_processing``: rows have no event time, only an order of arrival.
    """

    size: int
    is_running: bool = False
    is_processing: bool = False

    @property
    def lateness(self) -> int:
        """No row is late."""
        return 0

    @property
    def is_paned(self) -> bool:
        """State holds windows that are not full."""
        return False

    def pane(self, micros: str) -> str:
        """SQL for the microsecond after a row."""
        return f"(CASE WHEN {micros} = {MAX_WATERMARK}L THEN {micros} ELSE {micros} + 1L END)"

    def due(self, after: int, until: int) -> DueWindows | None:
        """See ``Window.due``: windows that are not full end at the end of time."""
        return DueWindows(after + 1, until, (MIN_WATERMARK, until)) if after < until == MAX_WATERMARK else None

    def dead(self, closed: int) -> int:
        """See ``Window.dead``."""
        return closed if closed == MAX_WATERMARK else MIN_WATERMARK

    def after(self, moment: int) -> int:
        """See ``Window.after``."""
        del moment
        return MAX_WATERMARK

    def describe(self) -> str:
        """See ``Window.describe``."""
        return f"{'all time, ' if self.is_running else ''}every {self.size} rows"


# ---- the global window -----------------------------------------------------------------------------------------------

FIRST: Final = -62_135_596_800_000_000
LAST: Final = 253_402_300_799_999_999
"""Bounds of the global window in state: those of the years 1 to 9999, which all readers of its files know."""
# Rows beyond them are in it as well.


@dataclass(frozen=True, slots=True)
class GlobalWindow:
    """One window for all rows, which ends when its input does; see ``PanedWindow``.

    Attributes:
        is_processing: see ``Window.is_processing``: rows have no event time, only an order of arrival.
    """

    is_processing: bool = False

    @property
    def lateness(self) -> int:
        """No row is late."""
        return 0

    @property
    def is_paned(self) -> bool:
        """The window is one pane."""
        return False

    def pane(self, micros: str) -> str:
        """See ``Window.pane``. A row without a time is in it too."""
        del micros
        return f"{LAST}L"

    def pane_start(self, pane: str) -> str:
        """See ``PanedWindow.pane_start``."""
        return f"({pane} - {LAST - FIRST}L)"

    def windows(self, pane: str, first: str, last: str) -> str:
        """See ``PanedWindow.windows``."""
        return f"CASE WHEN {pane} BETWEEN {first} AND {last} THEN array(struct({FIRST}L AS start, {LAST}L AS end)) END"

    def due(self, after: int, until: int) -> DueWindows | None:
        """See ``Window.due``: at the end of time, and not before.

        >>> GlobalWindow().due(0, 2**62) is None
        True
        """
        return DueWindows(LAST, LAST, (LAST, LAST)) if after < until == MAX_WATERMARK else None

    def dead(self, closed: int) -> int:
        """See ``Window.dead``."""
        return closed if closed == MAX_WATERMARK else MIN_WATERMARK

    def after(self, moment: int) -> int:
        """See ``Window.after``."""
        del moment
        return MAX_WATERMARK

    def describe(self) -> str:
        """See ``Window.describe``."""
        return "all time"


# ---- session windows -------------------------------------------------------------------------------------------------
# Each row opens a session of its own, from its time to its time and the gap. Sessions of one key that overlap or touch
# are one, as in Spark and Flink. So a session is known only when nothing can come that would prolong it: a row at its
# very end would.

_MINUTE: Final = 60_000_000
_SECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Sessions, which end when no row has come for a gap; see ``penstock.operators.windows.panes.Window``.

    Attributes:
        gap: in microseconds, at least 1; ``None`` if each row has its own.
        by: SQL for each row's own gap, an INTERVAL DAY TO SECOND.
        lateness: see ``Window.lateness``.
        is_processing: see ``Window.is_processing``.
    """

    gap: int | None = None
    by: str | None = None
    lateness: int = 0
    is_processing: bool = False

    @property
    def is_paned(self) -> bool:
        """State holds sessions, or parts of them."""
        return False

    @property
    def grid(self) -> int:
        """Sessions are sent and closed when time passes a multiple of this; all of the state is merged then."""
        return _SECOND if self.gap is None else min(max(self.gap // 10, 1), _MINUTE)

    def pane(self, micros: str) -> str:
        """SQL for the end of the session that a row opens; NULL if the row's gap is NULL or not above zero."""
        last = f"{MAX_WATERMARK}L"
        if self.gap is not None:
            return f"(CASE WHEN {micros} > {MAX_WATERMARK - self.gap}L THEN {last} ELSE {micros} + {self.gap}L END)"
        seconds = f"CAST(CAST(CAST(({self.by}) AS INTERVAL DAY TO SECOND) AS INTERVAL SECOND) AS DECIMAL(20, 6))"
        gap = f"CAST({seconds} * 1000000 AS BIGINT)"
        return f"(CASE WHEN {micros} IS NOT NULL AND {gap} > 0 THEN coalesce(try_add({micros}, {gap}), {last}) END)"

    def due(self, after: int, until: int) -> DueWindows | None:
        """See ``Window.due``. Later panes count too: a session may go on with rows that end later.

        >>> SessionWindow(gap=10).due(5, 20).panes == (6, MAX_WATERMARK)
        True
        """
        return DueWindows(after + 1, until, (after + 1, MAX_WATERMARK)) if until > after else None

    def dead(self, closed: int) -> int:
        """See ``Window.dead``."""
        return closed

    def after(self, moment: int) -> int:
        """The first moment after ``moment`` at which sessions are sent; rows decide whether one ends then."""
        return self.bound(moment) + self.grid + 1

    def bound(self, watermark: int) -> int:
        """The bound up to which sessions are sent and closed under a watermark; it is below the watermark.

        At the watermark itself rows may still come, and would prolong a session that ends there.

        >>> SessionWindow(gap=1_000_000).bound(1_234_567), SessionWindow(gap=10).bound(MAX_WATERMARK) == MAX_WATERMARK
        (1200000, True)
        >>> SessionWindow(gap=100).bound(20), SessionWindow(gap=100).bound(21)
        (10, 20)
        """
        if watermark in (MIN_WATERMARK, MAX_WATERMARK):
            return watermark
        return max(floor(watermark - 1, self.grid, 0), MIN_WATERMARK)

    def describe(self) -> str:
        """See ``Window.describe``."""
        time = " of processing time" if self.is_processing else ""
        gap = f"by {self.by}" if self.gap is None else f"with a gap of {format_duration(self.gap)}"
        return f"sessions {gap}{time}"


# ---- the windows that users name -------------------------------------------------------------------------------------

_MONDAY: Final = 4 * DAY
"""Microseconds from the epoch, a Thursday, to the next Monday."""
_Shape = TypeVar("_Shape", TumblingWindow, SlidingWindow, CumulativeWindow)


def tumbling(
    size: str,
    *,
    offset: str | None = None,
    timezone: str | None = None,
    allowed_lateness: str | None = None,
    time: Literal["event", "processing"] = "event",
) -> Window:
    """Windows of length ``size``, side by side: every row is in exactly one.

    Args:
        size: for example ``"1 minute"``.
        offset: shifts where windows begin; days that begin at 22:00 are ``tumbling("1 day", offset="22 hours")``.
        timezone: lay windows out by the clocks of this zone, as in ``tumbling("1 day", timezone="Europe/Berlin")``,
            where a day has 23 or 25 hours twice a year. Then ``size`` is a whole number of hours, and weeks begin on
            Monday. Without it windows are aligned to the epoch in UTC, and weeks begin on Thursday.
        allowed_lateness: how long after its end, in event time, a window still takes rows. It is sent at its end, and
            again whenever such rows have changed it.
        time: ``"event"``, by the watermark; or ``"processing"``: a row's time is the moment at which its batch arrives
            at the step, no row is late, and windows end by the clock. A batch that is read again after a restart may
            then be in another window than before.

    Raises:
        GraphError: a length cannot be read, ``size`` is not above zero, the zone is not known, or lateness is allowed
            in processing time.

    >>> tumbling("1 minute").describe()
    'tumbling 1 minute'
    """
    length = parse_duration("size of a tumbling window", size, least=1)
    is_processing, lateness = _is_processing(time, allowed_lateness), _lateness(allowed_lateness)
    offset_micros = _offset("tumbling", offset) % length
    shape = TumblingWindow(size=length, offset=offset_micros, lateness=lateness, is_processing=is_processing)
    return _in_zone(shape, length, timezone)


def sliding(
    size: str,
    slide: str,
    *,
    offset: str | None = None,
    timezone: str | None = None,
    allowed_lateness: str | None = None,
) -> Window:
    """Windows of length ``size``, one beginning every ``slide``: a row is in several, as many as overlap.

    State holds panes as long as the greatest length that divides both, so lengths that share a large one cost less.

    Args:
        size: for example ``"10 minutes"``.
        slide: for example ``"1 minute"``; not longer than ``size``.
        offset: see ``tumbling``.
        timezone: see ``tumbling``; ``slide`` is then a whole number of hours too.
        allowed_lateness: see ``tumbling``.

    Raises:
        GraphError: as for ``tumbling``, or ``slide`` is longer than ``size``: rows would be in no window.

    >>> sliding("10 minutes", "1 minute").describe()
    'sliding 10 minutes every 1 minute'
    """
    length = parse_duration("size of a sliding window", size, least=1)
    every = parse_duration("slide of a sliding window", slide, least=1)
    if every > length:
        msg = f"Windows of {size!r} every {slide!r} leave gaps, whose rows are in no window. Slide by {size!r} or less."
        raise GraphError(msg)
    lateness = _lateness(allowed_lateness)
    shape = SlidingWindow(size=length, slide=every, offset=_offset("sliding", offset) % every, lateness=lateness)
    return _in_zone(shape, every, timezone)


def cumulative(
    step: str, size: str, *, offset: str | None = None, timezone: str | None = None, allowed_lateness: str | None = None
) -> Window:
    """Windows that begin together every ``size`` and end one ``step`` later each, up to ``size`` (Flink's CUMULATE).

    With ``cumulative("1 hour", "1 day")`` each hour brings the day's figures so far.

    Args:
        step: for example ``"1 hour"``.
        size: for example ``"1 day"``; a multiple of ``step``.
        offset: see ``tumbling``.
        timezone: see ``tumbling``; ``step`` is then a whole number of hours too.
        allowed_lateness: see ``tumbling``.

    Raises:
        GraphError: as for ``tumbling``, or ``size`` is no multiple of ``step``.

    >>> cumulative("1 hour", "1 day").describe()
    'cumulative 1 hour up to 1 day'
    """
    each = parse_duration("step of a cumulative window", step, least=1)
    length = parse_duration("size of a cumulative window", size, least=1)
    if length % each:
        msg = f"Cumulative windows that grow by {step!r} cannot end at {size!r}. Give a size that is a multiple of it."
        raise GraphError(msg)
    lateness = _lateness(allowed_lateness)
    shape = CumulativeWindow(step=each, size=length, offset=_offset("cumulative", offset) % length, lateness=lateness)
    return _in_zone(shape, length, timezone)


def session(
    gap: str | None = None,
    *,
    by: str | None = None,
    allowed_lateness: str | None = None,
    time: Literal["event", "processing"] = "event",
) -> Window:
    """Sessions: rows of a key that follow one another within ``gap`` are one window, however long it gets.

    It starts with its first row and ends ``gap`` after its last one; a row at that very moment prolongs it. A row is
    late if it came, alone, to a session that is closed already; one that is not is joined to what is still there.

    Sessions are sent when time passes a multiple of a tenth of the gap, at most of a minute (of a second, with
    ``by``): all that is open is merged then.

    Args:
        gap: for example ``"30 minutes"``.
        by: in its place, SQL over the step's columns that gives each row its own gap, an INTERVAL DAY TO SECOND, as in
            ``session(by="CASE WHEN device = 'tv' THEN INTERVAL 3 HOURS ELSE INTERVAL 30 MINUTES END")``. Rows whose
            gap is NULL or not above zero are in no session: they go to ``.late``.
        allowed_lateness: how long after its end a session can still be prolonged. It is sent at its end, and again
            whenever rows have changed it: two that were sent may become one that is sent too.
        time: ``"event"``, by the watermark; or ``"processing"``: a row's time is the moment at which its batch arrives
            at the step, no row is late, and a session ends when nothing of its key has arrived for a gap. Time in
            which the job does not run counts, so after a stop of a gap or more all sessions have ended. A batch that
            is read again after a restart arrives again.

    Raises:
        GraphError: a length cannot be read, not one of ``gap`` and ``by`` is given, or lateness is allowed in
            processing time.

    >>> session("30 minutes").describe()
    'sessions with a gap of 30 minutes'
    """
    is_processing, lateness = _is_processing(time, allowed_lateness), _lateness(allowed_lateness)
    if (gap is None) == (by is None) or not isinstance(by, str | None):
        msg = 'session() takes a gap, as in session("30 minutes"), or by= with SQL text that gives each row its own.'
        raise GraphError(msg)
    length = None if gap is None else parse_duration("gap of a session", gap, least=1)
    return SessionWindow(gap=length, by=by, lateness=lateness, is_processing=is_processing)


def count_window(rows: int) -> Window:
    """Windows of ``rows`` rows: each key's first ones, the next ones, and so on. Each is sent when it is full.

    Rows of a key count in order of their event time within a batch, and of two batches as they came; without a
    watermark before it, as they came. So no row is late. ``window_start`` is the least time of its rows, ``window_end``
    the moment after the greatest. Windows that are not full at the end of the input are sent then.

    Args:
        rows: how many, at least 1.

    Raises:
        GraphError: ``rows`` is no whole number of at least 1.

    >>> count_window(100).describe()
    'every 100 rows'
    """
    return CountWindow(_rows(f"count_window({rows!r})", rows))


def global_window(*, every_rows: int | None = None) -> Window:
    """One window for all rows of a key, whenever they come; its bounds are NULL. It ends when the input ends.

    So it is meant for results before that: with ``emit="updates"``, ``early="10 seconds"`` or ``every_rows``. No row is
    late, and no watermark is needed.

    Args:
        every_rows: send a result of a key after every ``every_rows`` rows of it, over all its rows so far: Flink's
            ``CountTrigger`` on ``GlobalWindows``. Rows of a key count in order of their event time within a batch, as
            in ``count_window``, so the results do not depend on where batches are cut if rows come in order. At
            the end of the input, keys that have had rows since their last result are sent.

    Raises:
        GraphError: ``every_rows`` is no whole number of at least 1.

    >>> global_window().describe(), global_window(every_rows=100).describe()
    ('all time', 'all time, every 100 rows')
    """
    if every_rows is None:
        return GlobalWindow()
    return CountWindow(_rows(f"global_window(every_rows={every_rows!r})", every_rows), is_running=True)


def _rows(what: str, rows: int) -> int:
    if not isinstance(rows, int) or isinstance(rows, bool) or not 0 < rows < 2**31:
        msg = f"{what}: The number of rows must be a whole number from 1 to 2147483647."
        raise GraphError(msg)
    return rows


def _offset(kind: str, offset: str | None) -> int:
    return 0 if offset is None else parse_duration(f"offset of a {kind} window", offset, least=-(2**62))


def _is_processing(time: str, allowed_lateness: str | None) -> bool:
    if time not in ("event", "processing") or (time == "processing" and allowed_lateness is not None):
        if time == "processing":
            msg = 'time="processing" makes no row late, so allowed_lateness has no effect. Leave it out.'
        else:
            msg = f'time={time!r} is not possible. Write "event" or "processing".'
        raise GraphError(msg)
    return time == "processing"


def _lateness(text: str | None) -> int:
    return 0 if text is None else parse_duration("allowed_lateness", text)


def _in_zone(shape: _Shape, period: int, zone: str | None) -> Window:
    """``shape`` by the clocks of a zone, if one is given; its layout repeats after ``period``."""
    if zone is None:
        return shape
    fixed: FixedWindow = shape
    if fixed.step % HOUR:
        msg = (
            f"Windows by the clocks of {zone!r} need lengths of whole hours, not {format_duration(fixed.step)}. "
            "Leave the time zone out, and give an offset if the zone's hours do not begin with those of UTC."
        )
        raise GraphError(msg)
    _check_zone(zone)
    if period % (7 * DAY) == 0:
        shape = replace(shape, offset=(shape.offset + _MONDAY) % period)
    return ZonedWindow(shape, zone)


def _check_zone(zone: str) -> None:
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        example = "Did you mean an IANA name such as 'Europe/Berlin'?"
        hint = did_you_mean(zone, available_timezones(), most=3, otherwise=example)
        msg = f"Time zone {zone!r} is not known{hint}"
        raise GraphError(msg) from error
