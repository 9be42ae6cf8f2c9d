"""Windows by the clocks of a time zone: a day has 23 or 25 hours twice a year. Reads no clock of its own.

A window of whole hours or days is laid out on the zone's *local* time, as if it were UTC, and each bound is then looked
up: it is the moment at which the zone's clocks first show it, or would, had they not been put forward over it. So an
hour that clocks show twice is one window of two hours, and the hour that they leave out has none.

In SQL the moments come from Spark (that is, Java), in Python from ``zoneinfo``. Spark alone decides which rows are in a
window; Python decides when it is sent. If their time zone data differ, a result is late by the difference, never lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from penstock.ids import BEGINNING
from penstock.operators.panes import floor, within
from penstock.operators.window_base import Due

if TYPE_CHECKING:
    from penstock.operators.window_base import Fixed

HOUR: Final = 3_600_000_000
DAY: Final = 24 * HOUR

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FAR: Final = 62_000_000_000 * 1_000_000
"""Within nineteen centuries of the epoch, on either side, Python has dates; beyond, local time is taken for UTC."""

_LONGEST_JUMP: Final = 3 * HOUR
"""No zone has put its clocks back further than this since 1970."""


@dataclass(frozen=True, slots=True)
class Zoned:
    """Windows of whole hours, days or weeks by the clocks of a zone.

    Attributes:
        local: the windows on local time, as if that were UTC; their panes are at least an hour long.
        zone: an IANA name.
    """

    local: Fixed
    zone: str

    @property
    def lateness(self) -> int:
        """See :attr:`Window.lateness`."""
        return self.local.lateness

    @property
    def is_processing(self) -> bool:
        """See :attr:`Window.is_processing`."""
        return self.local.is_processing

    @property
    def is_paned(self) -> bool:
        """See :attr:`Window.is_paned`."""
        return self.local.is_paned

    def pane(self, micros: str) -> str:
        """See :meth:`Window.pane`: the first bound after the time, of those that the local time points at.

        Clocks that were put back have passed some bounds already; those do not count again. Clocks that were put
        forward show more than a bound that they left out, whose moment is still to come.
        """
        end = self.local.bound(self._local_sql(micros))
        left_out = self._moment_sql(self._before(end))
        ends = _first(f"> {micros}", self._bounds(end, self.local.step))
        return within(micros, f"least(CASE WHEN {left_out} > {micros} THEN {left_out} END, {ends})")

    def pane_start(self, pane: str) -> str:
        """See :meth:`Paned.pane_start`. Clocks that were put forward have passed several bounds at one moment."""
        starts = self._bounds(self.local.pane_start(self._local_end(pane)), -self.local.step)
        return _first(f"< {pane}", starts)

    def windows(self, pane: str, first: str, last: str) -> str:
        """See :meth:`Paned.windows`. Where clocks leave hours out, windows that become the same are one."""
        end = self._local_end(pane)
        before = self._before(end)
        local = f"(CASE WHEN {self._moment_sql(before)} = {pane} THEN {before} ELSE {end} END)"  # clocks jumped over it
        found = self.local.windows(local, first, last)
        bounds = ", ".join(f"{self._moment_sql(f'w.{bound}')} AS {bound}" for bound in ("start", "end"))
        return f"array_distinct(transform({found}, w -> struct({bounds})))"

    def due(self, after: int, until: int) -> Due | None:
        """See :meth:`Window.due`; ``first`` and ``last`` are local.

        >>> from penstock.operators.panes import Tumbling
        >>> Zoned(Tumbling(size=DAY), "Europe/Berlin").due(1_743_200_000_000_000, 1_743_300_000_000_000).last // DAY
        20177
        """
        found = self.local.due(self._bound(after), self._bound(until))
        if found is None:
            return None
        if self.is_paned:
            return Due(found.first, found.last, (self._moment(found.panes[0]), self._moment(found.panes[1])))
        return Due(found.first, found.last, (after + 1, until))  # whatever Spark says ends there

    def dead(self, closed: int) -> int:
        """See :meth:`Window.dead`."""
        return BEGINNING if closed == BEGINNING else self._moment(self.local.dead(self._bound(closed)))

    def after(self, moment: int) -> int:
        """See :meth:`Window.after`."""
        return self._moment(self.local.after(self._bound(moment)))

    def describe(self) -> str:
        """See :meth:`Window.describe`."""
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
