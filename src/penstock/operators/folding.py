"""Whether rows are aggregated before they travel to their places: judged by the batch before. Knows no frame."""

from __future__ import annotations

from typing import Final

WORTH: Final = 8
"""So many rows a group must have: with fewer, aggregating twice costs more than moving rows does."""

LEAST: Final = 50_000
"""Rows of a batch below which moving them costs less than the stages that aggregating first adds."""


class Folding:
    """Follows how many rows of a batch fall into one group.

    >>> folding = Folding()
    >>> folding.is_worth
    False
    >>> folding.told(rows=100_000, groups=200)
    >>> folding.is_worth
    True
    """

    def __init__(self) -> None:
        self.is_worth = False

    def told(self, *, rows: int, groups: int) -> None:
        """A batch had so many rows that counted, in so many groups. One without rows says nothing."""
        if rows:
            self.is_worth = rows >= LEAST and rows >= WORTH * groups
