"""How often a source is read, as the user says it; knows neither clocks nor what is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.durations import format_duration, parse_duration

SHORTEST: Final = 10_000
"""Microseconds between two ticks, at least."""


LINGER: Final = 50_000
"""Microseconds from the beginning of one batch to that of the next at least, while each takes all there is."""


@dataclass(frozen=True, slots=True)
class WhenReady:
    """Read as soon as the step before is free and there is data, and at least ``linger`` microseconds after the last.

    Who lags behind does not linger: while more waits than a batch takes, the next one begins at once.
    """

    linger: int = LINGER

    def __str__(self) -> str:
        return "when ready" if self.linger == LINGER else f"when ready, lingering {format_duration(self.linger)}"


@dataclass(frozen=True, slots=True)
class Every:
    """Read at the ticks of a metronome: multiples of ``interval`` microseconds since the epoch."""

    interval: int

    def __str__(self) -> str:
        return f"every {format_duration(self.interval)}"


Pace: TypeAlias = WhenReady | Every

when_ready: Final = WhenReady()
"""The pace of a source that is given none: as :func:`linger` of 50 milliseconds."""


at_once: Final = WhenReady(linger=0)
"""Without a pause: where nobody waits for more rows, as in a run until caught up."""


def linger(time: str) -> WhenReady:
    """Read when there is data, but let rows gather: a batch begins at least that long after the one before.

    A batch costs time whatever is in it, so many small ones cost processors and save little delay: at 10,000 rows a
    second on two cores, half of the rows were through after 68 milliseconds with the 50 that are the default, after 92
    with 100, for two thirds of the processors' time. Where batches take longer than that, a pause of three fifths of
    what they take as a rule leaves time to others, while batches begin no more than ten times that time apart. The
    first rows after a rest are read at once, and so is what a batch had no room for.
    Kafka's producers have ``linger.ms`` and Flink's edges a buffer timeout for the same reason.

    Args:
        time: for example ``"20 ms"``; ``"0 ms"`` is no pause.

    Raises:
        GraphError: it is no length of time.

    >>> print(linger("20 ms"))
    when ready, lingering 20 milliseconds
    """
    return WhenReady(parse_duration("linger", time, least=0))


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
