"""What windows of so many rows must hold, row by row in plain Python; knows nothing of penstock."""

from __future__ import annotations

from typing import TypeAlias

Row: TypeAlias = dict[str, object]


class Counted:
    """Rows of each key in order of their time within a batch; ``size`` of them are a window.

    Attributes:
        full: windows so far: user, first time, moment after the last time, the values of x in order of their time.
    """

    def __init__(self, size: int) -> None:
        self.full: list[tuple[object, ...]] = []
        self._size = size
        self._open: dict[object, list[Row]] = {}

    def batch(self, rows: list[Row]) -> None:
        """Rows that come at once."""
        for row in sorted((row for row in rows if row["at"] is not None), key=lambda row: row["at"]):
            waiting = self._open.setdefault(row["user"], [])
            waiting.append(row)
            if len(waiting) == self._size:
                self.full.append(_window(row["user"], self._open.pop(row["user"])))

    def rest(self) -> list[tuple[object, ...]]:
        """Windows that are not full."""
        return [_window(user, rows) for user, rows in self._open.items()]


class Running:
    """All rows of each key so far, told with each ``size`` of them.

    Attributes:
        told: user, how many rows, sum of x.
    """

    def __init__(self, size: int) -> None:
        self.told: list[tuple[object, ...]] = []
        self._size = size
        self._all: dict[object, list[Row]] = {}

    def batch(self, rows: list[Row]) -> None:
        """Rows that come at once."""
        for row in sorted((row for row in rows if row["at"] is not None), key=lambda row: row["at"]):
            mine = self._all.setdefault(row["user"], [])
            mine.append(row)
            if len(mine) % self._size == 0:
                self.told.append(_total(row["user"], mine))

    def rest(self) -> list[tuple[object, ...]]:
        """Keys that have had rows since they were told."""
        return [_total(user, rows) for user, rows in self._all.items() if len(rows) % self._size]


def _total(user: object, rows: list[Row]) -> tuple[object, ...]:
    return (user, len(rows), sum(row["x"] for row in rows))


def _window(user: object, rows: list[Row]) -> tuple[object, ...]:
    times = [row["at"] for row in rows]
    return (user, min(times), max(times) + 1, len(rows), sum(row["x"] for row in rows))
