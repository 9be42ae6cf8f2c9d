"""One window for all time as SQL text; knows nothing of rows, keys or aggregates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.ids import BEGINNING, END_OF_TIME
from penstock.operators.window_base import Due

FIRST: Final = -62_135_596_800_000_000
LAST: Final = 253_402_300_799_999_999
"""Where the window begins and ends in state: the first and the last moment of the years 1 to 9999, which all readers
of its files know. Rows beyond them are in it as well."""


@dataclass(frozen=True, slots=True)
class Global:
    """The window that every row is in; see :class:`penstock.operators.window_base.Paned`. It ends when its input does.

    Attributes:
        is_processing: see :attr:`Window.is_processing`: rows have no event time, only an order of arrival.
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
        """See :meth:`Window.pane`. A row without a time is in it too."""
        del micros
        return f"{LAST}L"

    def pane_start(self, pane: str) -> str:
        """See :meth:`Paned.pane_start`."""
        return f"({pane} - {LAST - FIRST}L)"

    def windows(self, pane: str, first: str, last: str) -> str:
        """See :meth:`Paned.windows`."""
        return f"CASE WHEN {pane} BETWEEN {first} AND {last} THEN array(struct({FIRST}L AS start, {LAST}L AS end)) END"

    def due(self, after: int, until: int) -> Due | None:
        """See :meth:`Window.due`: at the end of time, and not before.

        >>> Global().due(0, 2**62) is None
        True
        """
        return Due(LAST, LAST, (LAST, LAST)) if after < until == END_OF_TIME else None

    def dead(self, closed: int) -> int:
        """See :meth:`Window.dead`."""
        return closed if closed == END_OF_TIME else BEGINNING

    def after(self, moment: int) -> int:
        """See :meth:`Window.after`."""
        del moment
        return END_OF_TIME

    def describe(self) -> str:
        """See :meth:`Window.describe`."""
        return "all time"
