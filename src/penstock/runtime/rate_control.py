"""The number of rows the next batch may hold, so that batches keep up: Spark Streaming's PID estimator.

(Spark: ``PIDRateEstimator`` and ``RateController``; mission row S33.)
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from penstock.clock import MonotonicTime

SECOND: Final = 1_000_000
DEFAULT_BATCH_DURATION: Final = SECOND
"""Target duration of a batch whose source has no interval of its own, in microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSample:
    """One batch whose first job has finished.

    Attributes:
        at: when it finished.
        rows: number of rows.
        processing: microseconds that the first step worked on it.
        scheduling: microseconds that it waited for the batches before it.
    """

    at: MonotonicTime
    rows: int
    processing: int
    scheduling: int


class PIDRateEstimator:
    """A rate in rows a second, corrected after each batch by its distance from the rate that was achieved.

    The proportional part is the error: the current rate less the achieved rate. The integral part is the accumulated
    error: the rows that waited, spread over an interval. The derivative part damps changes of the error; it is off by
    default. The first batch only sets the starting point. Batches without rows, without duration or older than the
    last one are ignored.

    Args:
        interval: microseconds in which accumulated rows are to be worked off.
        proportional: weight of the error.
        integral: weight of the accumulated error.
        derivative: weight of the error's change.
        least: the lowest rate.
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
        """The rate after this batch; ``None`` if it is ignored, or was the first."""
        if sample.rows <= 0 or sample.processing <= 0 or (self._last is not None and sample.at <= self._last[0]):
            return None
        achieved = sample.rows / sample.processing * SECOND
        if self._last is None:
            self._last = (sample.at, achieved, 0.0)
            return None
        at, rate, last_error = self._last
        error = rate - achieved
        accumulated = sample.scheduling * achieved / self._interval
        change = (error - last_error) / ((sample.at - at) / SECOND)
        corrected = rate - self._proportional * error - self._integral * accumulated - self._derivative * change
        corrected = max(self._least, corrected)
        self._last = (sample.at, corrected, error)
        return corrected


class RateControl:
    """Measures one source's batches from when they are sent until their first job has finished, and caps the next.

    Batches are processed one after the other: a batch that was sent during the previous one has waited, and its
    processing begins when the previous one ended. Any thread may call.
    """

    def __init__(self, interval: int = DEFAULT_BATCH_DURATION, *, estimator: PIDRateEstimator | None = None) -> None:
        self._interval = interval
        self._estimator = estimator or PIDRateEstimator(interval)
        self._sent: dict[int, MonotonicTime] = {}
        self._free: MonotonicTime | None = None
        self._rate: float | None = None
        self._lock = threading.Lock()

    def sent(self, sequence: int, at: MonotonicTime) -> None:
        """Note that the source sent a batch."""
        with self._lock:
            self._sent[sequence] = at

    def completed(self, sequence: int, rows: int, at: MonotonicTime) -> BatchSample | None:
        """Note that the first job over a batch has succeeded; earlier unfinished batches are forgotten.

        Returns:
            What was measured, or ``None`` for a batch that was completed before or forgotten.
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
        """The most rows that the next batch may hold; ``rows`` is the configured limit."""
        with self._lock:
            if self._rate is None:
                return rows
            wanted = max(1, int(self._rate * self._interval / SECOND))
            return wanted if rows is None else min(rows, wanted)
