"""Windows of so many rows, and all time by so many, as SQL text; knows nothing of rows, keys or aggregates."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ids import BEGINNING, END_OF_TIME
from penstock.operators.window_base import Due


@dataclass(frozen=True, slots=True)
class Counted:
    """Windows of so many rows of a key, which end when they are full; see :class:`Window`.

    Attributes:
        size: how many rows.
        is_running: one window for all time, which is sent with each so many rows and keeps those that it has.
        is_processing: see :attr:`Window.is_processing`: rows have no event time, only an order of arrival.
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
        """What lies in state is a window that is not full."""
        return False

    def pane(self, micros: str) -> str:
        """SQL for the moment after a row."""
        return f"(CASE WHEN {micros} = {END_OF_TIME}L THEN {micros} ELSE {micros} + 1L END)"

    def due(self, after: int, until: int) -> Due | None:
        """See :meth:`Window.due`: what is not full ends at the end of time."""
        return Due(after + 1, until, (BEGINNING, until)) if after < until == END_OF_TIME else None

    def dead(self, closed: int) -> int:
        """See :meth:`Window.dead`."""
        return closed if closed == END_OF_TIME else BEGINNING

    def after(self, moment: int) -> int:
        """See :meth:`Window.after`."""
        del moment
        return END_OF_TIME

    def describe(self) -> str:
        """See :meth:`Window.describe`."""
        return f"{'all time, ' if self.is_running else ''}every {self.size} rows"
