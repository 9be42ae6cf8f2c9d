"""Whether rows are aggregated before they travel to their places: judged by the batches before. Knows no frame."""

from __future__ import annotations

from typing import Final

WORTH: Final = 8
"""So many rows a group must have: with fewer, aggregating twice costs more than moving rows does."""

LEAST: Final = 50_000
"""Rows of a batch below which moving them costs less than the stages that aggregating first adds."""

ASKED: Final = 32
"""Of so many large batches one is asked how evenly its rows fall into places, which costs each row a hash more."""

MOST_PLACES: Final = 32
"""Places that are told apart then: a key that fills one of more of them fills one of these too."""


class Folding:
    """Follows how many rows of a batch fall into one group, and whether a hot key has more than its place can take.

    Args:
        places: into how many rows travel.

    >>> folding = Folding()
    >>> folding.is_worth
    False
    >>> folding.told(rows=100_000, groups=200)
    >>> folding.is_worth
    True
    """

    def __init__(self, places: int = 1) -> None:
        self._places = min(places, MOST_PLACES)
        self.is_worth = False
        self._left = 0
        self._is_large = False
        self._heaviest = 0.0

    @property
    def is_small(self) -> bool:
        """Whether batches are so small that nothing depends on how many groups they have."""
        return not self._is_large

    @property
    def asks(self) -> int:
        """Of so many places the next batch is to tell how many of its rows the fullest gets; 0: it is not to tell."""
        return self._places if self._places > 1 and self._is_large and not self._left else 0

    def told(self, *, rows: int, groups: int, heaviest: int | None = None) -> None:
        """A batch had so many rows that counted, in so many groups. One without rows says nothing.

        Args:
            rows: that counted.
            groups: of them.
            heaviest: rows of the fullest place, if it was asked for.
        """
        if not rows:
            return
        self._is_large = rows >= LEAST
        self._left = max(0, self._left - 1)
        if heaviest is not None:
            self._left, self._heaviest = ASKED - 1, heaviest / rows
        self.is_worth = self._is_large and (rows >= WORTH * groups or self._is_skewed(rows, groups))

    def _is_skewed(self, rows: int, groups: int) -> bool:
        """Whether the fullest place has more to do than each has if all share the rows, and then the groups."""
        return rows + groups < self._heaviest * rows * self._places
