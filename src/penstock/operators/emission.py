"""What a windowed aggregate sends, and when: a pure description; knows nothing of layers or frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.durations import format_duration, parse_duration
from penstock.errors import GraphError
from penstock.ids import BEGINNING, END_OF_TIME
from penstock.operators.panes import floor

SHORTEST: Final = 10_000
"""Microseconds between two emissions, at least."""


@dataclass(frozen=True, slots=True)
class Emission:
    """What is sent, and when. Made by :func:`emission`.

    Attributes:
        updates: changes are sent, as rows with ``_change``; else whole results.
        early: whole results are sent before a window's end too, and say in ``_timing`` when they were sent.
        every: at most one emission in so many microseconds of processing time, at its multiples; ``None``: each batch.
    """

    updates: bool = False
    early: bool = False
    every: int | None = None

    def describe(self) -> str:
        """In a few words, for people; nothing for plain final results."""
        if not self.updates and not self.early:
            return ""
        pace = "with each batch" if self.every is None else f"every {format_duration(self.every)}"
        return f", {'changes' if self.updates else 'early results'} {pace}"


FINAL: Final = Emission()


def emission(emit: str, emit_every: str | None, early: str | None) -> Emission:
    """What ``agg(emit=…, emit_every=…, early=…)`` means.

    Raises:
        GraphError: it means nothing.

    >>> emission("updates", "1 second", None).every
    1000000
    """
    if emit not in ("final", "updates"):
        msg = f'emit is {emit!r}, but must be "final" (each window at its end) or "updates" (each change)'
        raise GraphError(msg)
    if emit == "updates" and early is not None:
        msg = 'emit="updates" sends every change as it comes: leave early out, or set emit_every to have fewer'
        raise GraphError(msg)
    if emit == "final" and emit_every is not None:
        msg = 'emit_every goes with emit="updates"; for preliminary results beside final ones write early="10 seconds"'
        raise GraphError(msg)
    if emit == "updates":
        every = None if emit_every is None else parse_duration("emit_every", emit_every, least=SHORTEST)
        return Emission(updates=True, every=every)
    return FINAL if early is None else Emission(early=True, every=parse_duration("early", early, least=SHORTEST))


class Rhythm:
    """When an emission is due, in processing time: at multiples of its interval, the first at the first of them.

    >>> rhythm = Rhythm(10)
    >>> [rhythm.beats(now) for now in (17, 19, 20, 25, 47, 49)]
    [False, False, True, False, True, False]
    """

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._last: int | None = None

    def beats(self, now: int) -> bool:
        """Whether a beat has passed since it was last asked and said so."""
        if self._every is None:
            return True
        beat = floor(now, self._every, 0)
        last, self._last = self._last, beat
        return last is not None and beat > last


def earlier(watermark: int, lateness: int) -> int:
    """Windows that end at or before this are closed. The two ends of time stay what they are.

    >>> earlier(100, 10)
    90
    """
    if watermark in (BEGINNING, END_OF_TIME):
        return watermark
    return max(watermark - lateness, BEGINNING)
