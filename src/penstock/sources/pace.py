"""How many numbers are due at a time, for sources that count; pure integers, no clock and no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from penstock.errors import GraphError, StateIncompatible
from penstock.handles import Position

SECOND: Final = 1_000_000
SHORTEST_WAIT: Final = 10_000
"""Microseconds; faster sources come in batches of at least so much time."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Rows a second, exact: ``rows`` in ``seconds``."""

    rows: int
    seconds: int

    @classmethod
    def of(cls, rows_per_second: float) -> Rate:
        """The rate, to a millionth of a row.

        Raises:
            GraphError: it is not above zero.

        >>> Rate.of(2.5)
        Rate(rows=5, seconds=2)
        """
        exact = Fraction(rows_per_second).limit_denominator(1_000_000) if rows_per_second > 0 else Fraction(0)
        if exact <= 0:
            msg = f"rows_per_second must be above 0, got {rows_per_second!r}"
            raise GraphError(msg)
        return cls(exact.numerator, exact.denominator)

    def at(self, number: int) -> int:
        """Microseconds after the start at which a number is due, rounded down."""
        return number * SECOND * self.seconds // self.rows

    def due(self, elapsed: int) -> int:
        """How many numbers are due ``elapsed`` microseconds after the start; the first at once.

        >>> Rate.of(10).due(0), Rate.of(10).due(99_999), Rate.of(10).due(100_000)
        (1, 1, 2)
        """
        if elapsed < 0:
            return 0
        return ((elapsed + 1) * self.rows - 1) // (SECOND * self.seconds) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How far was counted: the next number, and the wall time (microseconds) of the very first batch, if there was."""

    next: int = 0
    started: int | None = None

    def position(self, kind: str) -> Position:
        """As a manifest holds it."""
        return Position(kind=kind, detail={"next": self.next, "started": self.started})

    @classmethod
    def resume(cls, kind: str, position: Position | None) -> Count:
        """The inverse; ``None`` is a fresh start.

        Raises:
            StateIncompatible: the position is of another kind.
        """
        if position is None:
            return cls()
        detail: Any = position.detail
        if position.kind != kind or not isinstance(detail, dict) or not {"next", "started"} <= detail.keys():
            msg = f"the position is of kind {position.kind!r}, this source reads {kind!r}: give it a uid of its own"
            raise StateIncompatible(msg)
        return cls(next=detail["next"], started=detail["started"])
