"""What a windowed aggregate sends, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, format_duration, parse_duration
from penstock.errors import GraphError
from penstock.operators.windows.panes import floor

MIN_EMIT_INTERVAL: Final = 10_000
"""Least interval of emissions, in microseconds."""


@dataclass(frozen=True, slots=True)
class EmitStrategy:
    """What is sent, and when. Made by ``emit_strategy``.

    Attributes:
        updates: changes are sent, as rows with ``_change``; else whole results.
        early: whole results are sent before a window's end too, and say in ``_timing`` when they were sent.
        every: microseconds of processing time; changes or early results are sent at its multiples. ``None``: with
            each batch.
    """

    updates: bool = False
    early: bool = False
    every: int | None = None

    @property
    def before_end(self) -> bool:
        """Whether anything of a window is sent before its end."""
        return self.updates or self.early

    def describe(self) -> str:
        """In a few words, for people; nothing for plain final results."""
        if not self.before_end:
            return ""
        pace = "with each batch" if self.every is None else f"every {format_duration(self.every)}"
        return f", {'changes' if self.updates else 'early results'} {pace}"


ON_WINDOW_CLOSE: Final = EmitStrategy()


def emit_strategy(emit: str, emit_every: str | None, early: str | None) -> EmitStrategy:
    """The strategy of ``agg(emit=…, emit_every=…, early=…)``.

    Raises:
        GraphError: a value is not possible, or two do not go together.

    >>> emit_strategy("updates", "1 second", None).every
    1000000
    """
    if emit not in ("final", "updates"):
        msg = f'agg() cannot take emit={emit!r}. Write "final" (each window at its end) or "updates" (each change).'
        raise GraphError(msg)
    if emit == "updates" and early is not None:
        msg = 'emit="updates" sends every change as it comes. Leave early out, or set emit_every to have fewer.'
        raise GraphError(msg)
    if emit == "final" and emit_every is not None:
        msg = (
            'agg() takes emit_every with emit="updates" only. For preliminary results beside final ones write '
            'early="10 seconds".'
        )
        raise GraphError(msg)
    if emit == "updates":
        every = None if emit_every is None else parse_duration("emit_every", emit_every, least=MIN_EMIT_INTERVAL)
        return EmitStrategy(updates=True, every=every)
    return (
        ON_WINDOW_CLOSE
        if early is None
        else EmitStrategy(early=True, every=parse_duration("early", early, least=MIN_EMIT_INTERVAL))
    )


class EmitTimer:
    """Says when an emission is due, in processing time: at multiples of its interval.

    >>> timer = EmitTimer(10)
    >>> [timer.is_due(now) for now in (17, 19, 20, 25, 47, 49)]
    [False, False, True, False, True, False]
    """

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._last: int | None = None

    def is_due(self, now: int) -> bool:
        """Whether a multiple of the interval has passed since the last call; always true without an interval.

        The first call with an interval returns false.
        """
        if self._every is None:
            return True
        multiple = floor(now, self._every, 0)
        last, self._last = self._last, multiple
        return last is not None and multiple > last


def closed_until(watermark: int, lateness: int) -> int:
    """The time at or before which the ends of closed windows lie. The least and greatest watermark stay as they are.

    >>> closed_until(100, 10)
    90
    """
    if watermark in (MIN_WATERMARK, MAX_WATERMARK):
        return watermark
    return max(watermark - lateness, MIN_WATERMARK)
