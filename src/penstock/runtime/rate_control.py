"""How many rows the next batch may hold so that batches keep pace: Spark Streaming's estimator. Reads no clock.

(Spark: ``PIDRateEstimator`` and ``RateController``; mission row S33.)
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from penstock.clock import MonotonicTime

SECOND: Final = 1_000_000
DEFAULT_BATCH_DURATION: Final = SECOND
"""How long a batch is meant to take where its source has no interval of its own, in microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSample:
    """One batch that is through.

    Attributes:
        at: when it was through.
        rows: how many it held.
        processing: microseconds that the first step worked on it.
        scheduling: microseconds that it waited for the batches before it.
    """

    at: MonotonicTime
    rows: int
    processing: int
    scheduling: int


class PIDRateEstimator:
    """A rate in rows a second, corrected after each batch by how far it was from what was processed.

    ``error`` is the rate asked for less the rate achieved (proportional part); the rows that waited, spread over an
    interval, are what errors have piled up (integral part); how fast the error changes is damped by the derivative
    part, off by default. The first batch only sets the starting point. Batches without rows, without duration or
    older than the last say nothing.

    Args:
        interval: microseconds in which piled up rows are to be worked off.
        proportional: weight of the error.
        integral: weight of what has piled up.
        derivative: weight of the error's change.
        least: the rate never falls below.
    """

    def __init__(
        self,
        interval: int,
        *,
        proportional: float = 1.0,
        integral: float = 0.2,
        derivative: float = 0.0,
        least: float = 100.0,
    ) -> None:
        self._interval = interval
        self._proportional = proportional
        self._integral = integral
        self._derivative = derivative
        self._least = least
        self._last: tuple[MonotonicTime, float, float] | None = None

    def estimate(self, sample: BatchSample) -> float | None:
        """The rate after this batch; ``None`` if it says nothing, or was the first."""
        if sample.rows <= 0 or sample.processing <= 0 or (self._last is not None and sample.at <= self._last[0]):
            return None
        achieved = sample.rows / sample.processing * SECOND
        if self._last is None:
            self._last = (sample.at, achieved, 0.0)
            return None
        at, rate, last_error = self._last
        error = rate - achieved
        piled_up = sample.scheduling * achieved / self._interval
        change = (error - last_error) / ((sample.at - at) / SECOND)
        corrected = rate - self._proportional * error - self._integral * piled_up - self._derivative * change
        corrected = max(self._least, corrected)
        self._last = (sample.at, corrected, error)
        return corrected


class RateControl:
    """Follows one source's batches from the moment they are sent until a first job has run them, and caps the next.

    Batches are run one after the other, so one that was sent while the one before was being run has waited; its
    processing begins when that ended. Any thread may tell.
    """

    def __init__(self, interval: int = DEFAULT_BATCH_DURATION, *, estimator: PIDRateEstimator | None = None) -> None:
        self._interval = interval
        self._estimator = estimator or PIDRateEstimator(interval)
        self._sent: dict[int, MonotonicTime] = {}
        self._free: MonotonicTime | None = None
        self._rate: float | None = None
        self._lock = threading.Lock()

    def sent(self, sequence: int, at: MonotonicTime) -> None:
        """A batch left the source."""
        with self._lock:
            self._sent[sequence] = at

    def through(self, sequence: int, rows: int, at: MonotonicTime) -> BatchSample | None:
        """A first job over the batch has succeeded. Earlier ones that never told are forgotten.

        Returns:
            What was measured, or ``None`` for a batch that was told before or forgotten.
        """
        with self._lock:
            began = self._sent.get(sequence)
            self._sent = {number: when for number, when in self._sent.items() if number > sequence}
            if began is None:
                return None
            start = began if self._free is None else max(began, self._free)
            self._free = at
            sample = BatchSample(at=at, rows=rows, processing=at - start, scheduling=start - began)
            rate = self._estimator.estimate(sample)
            self._rate = rate if rate is not None else self._rate
            return sample

    def cap(self, rows: int | None) -> int | None:
        """Most rows of the next batch, ``rows`` being the limit that was set."""
        with self._lock:
            if self._rate is None:
                return rows
            wanted = max(1, int(self._rate * self._interval / SECOND))
            return wanted if rows is None else min(rows, wanted)
