"""How often a source is read, as the user says it; knows neither clocks nor what is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.durations import format_duration, parse_duration

SHORTEST: Final = 10_000
"""Microseconds between two ticks, at least."""


@dataclass(frozen=True, slots=True)
class WhenReady:
    """Read as soon as the step before is free and there is data: the least delay."""

    def __str__(self) -> str:
        return "when ready"


@dataclass(frozen=True, slots=True)
class Every:
    """Read at the ticks of a metronome: multiples of ``interval`` microseconds since the epoch."""

    interval: int

    def __str__(self) -> str:
        return f"every {format_duration(self.interval)}"


Pace: TypeAlias = WhenReady | Every

when_ready: Final = WhenReady()
"""The pace of a source that is given none."""


def every(interval: str) -> Every:
    """At most one batch in each interval, begun at its multiples: fewer, larger batches, in step across jobs.

    The first batch begins at the first multiple after the start, so a restart keeps the rhythm. A tick that finds the
    source still busy is served late, by one batch that takes what has come; those before it are not made up, and
    counted as ``ticks_missed``. A run until caught up does not wait for ticks.

    Args:
        interval: for example ``"1 second"``; at least 10 milliseconds.

    Raises:
        GraphError: it is no length of time, or too short.

    >>> print(every("90 seconds"))
    every 90 seconds
    """
    return Every(parse_duration("interval", interval, least=SHORTEST))
