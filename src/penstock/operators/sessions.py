"""Sessions as SQL text and whole-number arithmetic; knows nothing of rows, keys or aggregates.

Each row opens a session of its own, from its time to its time and the gap. Sessions of one key that overlap are one. So
unlike windows of other kinds a session is known only when nothing can come that would make it longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.durations import format_duration
from penstock.ids import BEGINNING, END_OF_TIME
from penstock.operators.panes import floor
from penstock.operators.window_base import Due

_MINUTE: Final = 60_000_000
_SECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Session:
    """Sessions that end when nothing has come for a gap; see :class:`penstock.operators.window_base.Window`.

    Attributes:
        gap: in microseconds, at least 1; ``None`` if each row has its own.
        by: SQL for each row's own gap, an INTERVAL DAY TO SECOND.
        lateness: see :attr:`Window.lateness`.
        is_processing: see :attr:`Window.is_processing`.
    """

    gap: int | None = None
    by: str | None = None
    lateness: int = 0
    is_processing: bool = False

    @property
    def is_paned(self) -> bool:
        """What lies in state is a session, or a part of one."""
        return False

    @property
    def grid(self) -> int:
        """Sessions are sent and closed when time passes a multiple of this: to do so, all of state is merged."""
        return _SECOND if self.gap is None else min(max(self.gap // 10, 1), _MINUTE)

    def pane(self, micros: str) -> str:
        """SQL for the end of the session that a row opens; NULL if its gap is NULL or not above zero."""
        last = f"{END_OF_TIME}L"
        if self.gap is not None:
            return f"(CASE WHEN {micros} > {END_OF_TIME - self.gap}L THEN {last} ELSE {micros} + {self.gap}L END)"
        seconds = f"CAST(CAST(CAST(({self.by}) AS INTERVAL DAY TO SECOND) AS INTERVAL SECOND) AS DECIMAL(20, 6))"
        gap = f"CAST({seconds} * 1000000 AS BIGINT)"
        return f"(CASE WHEN {micros} IS NOT NULL AND {gap} > 0 THEN coalesce(try_add({micros}, {gap}), {last}) END)"

    def due(self, after: int, until: int) -> Due | None:
        """See :meth:`Window.due`. What a session ends with may have to be known of all that ends later.

        >>> Session(gap=10).due(5, 20).panes == (6, END_OF_TIME)
        True
        """
        return Due(after + 1, until, (after + 1, END_OF_TIME)) if until > after else None

    def dead(self, closed: int) -> int:
        """See :meth:`Window.dead`."""
        return closed

    def after(self, moment: int) -> int:
        """See :meth:`Window.after`: an upper bound, since rows say when sessions end."""
        return self.bound(moment) + self.grid

    def bound(self, watermark: int) -> int:
        """How far sessions are sent and closed under a watermark.

        >>> Session(gap=1_000_000).bound(1_234_567), Session(gap=10).bound(END_OF_TIME) == END_OF_TIME
        (1200000, True)
        """
        if watermark in (BEGINNING, END_OF_TIME):
            return watermark
        return max(floor(watermark, self.grid, 0), BEGINNING)

    def describe(self) -> str:
        """See :meth:`Window.describe`."""
        time = " of processing time" if self.is_processing else ""
        gap = f"by {self.by}" if self.gap is None else f"with a gap of {format_duration(self.gap)}"
        return f"sessions {gap}{time}"
