"""What a torture's job has to read, as campaigns and verdicts see it; knows neither files nor topics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Feed(Protocol):
    """What the job has to read."""

    @property
    def rows(self) -> int:
        """How many rows there are, those aside that only close windows."""

    @property
    def delayed(self) -> set[int]:
        """The numbers of the rows that may be late."""

    def drop(self, count: int = 1) -> None:
        """Have something there for a life that begins."""

    def feeding(self, progress: Callable[[], int]) -> AbstractContextManager[None]:
        """Have something there all along; ``progress`` is a number that grows while the job works."""

    def drop_flush(self, user: str) -> None:
        """Close all windows: there will be no more."""
