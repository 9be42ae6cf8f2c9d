"""Rate control: the number of rows that the next batch may have, by the PID estimator of Spark Streaming.

(Spark: ``PIDRateEstimator`` and ``RateController``.)
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from penstock.clock import MonotonicTime

SECOND: Final = 1_000_000  # microseconds
DEFAULT_BATCH_DURATION: Final = SECOND
"""Target duration of a batch if its source has no interval, in microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSample:
    """One batch whose first job has finished.

    Attributes:
        at: when it finished.
        rows: number of rows.
        processing: processing delay: microseconds from the start of its processing to the end of its first job.
        scheduling: scheduling delay: microseconds that it waited for earlier batches.
    """

    at: MonotonicTime
    rows: int
    processing: int
    scheduling: int


class PIDRateEstimator:
    """Estimates a sustainable rate in rows a second: the last rate, corrected by the rate that a batch achieved.

    The proportional part is the error: the last rate minus the achieved rate. The integral part is the accumulated
    error: the rows that could have been processed during the scheduling delay, spread over an interval. The derivative
    part damps changes of the error; it is off by default. The first batch only sets the starting point. Batches without
    rows, without duration or not later than the last one are ignored.

    Args:
        interval: microseconds over which the accumulated error is to be worked off.
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
        self._last: tuple[MonotonicTime, float, float] | None = None  # its time, the rate after it, its error

    def estimate(self, sample: BatchSample) -> float | None:
        """The rate after this batch; ``None`` if the batch is ignored or the first."""
        if sample.rows <= 0 or sample.processing <= 0 or (self._last is not None and sample.at <= self._last[0]):
            return None
        achieved = sample.rows / sample.processing * SECOND
        if self._last is None:
            self._last = (sample.at, achieved, 0.0)
            return None
        last_at, rate, last_error = self._last
        error = rate - achieved
        accumulated = sample.scheduling * achieved / self._interval
        change = (error - last_error) / ((sample.at - last_at) / SECOND)
        corrected = rate - self._proportional * error - self._integral * accumulated - self._derivative * change
        corrected = max(self._least, corrected)
        self._last = (sample.at, corrected, error)
        return corrected


class RateControl:
    """Limits the rows of one source's next batch to what is processed in an interval, as measured on earlier batches.

    A batch is measured from when it is sent until its first job has finished. Batches are processed one after the
    other: one that is sent while another is processed waits, and its processing starts when that has ended. Any thread
    may call.

    Args:
        interval: target duration of a batch, in microseconds.
        estimator: gets each sample; by default one with the same interval.
    """

    def __init__(self, interval: int = DEFAULT_BATCH_DURATION, *, estimator: PIDRateEstimator | None = None) -> None:
        self._interval = interval
        self._estimator = estimator or PIDRateEstimator(interval)
        self._sent: dict[int, MonotonicTime] = {}
        self._previous_end: MonotonicTime | None = None
        self._rate: float | None = None
        self._lock = threading.Lock()

    def sent(self, sequence: int, at: MonotonicTime) -> None:
        """Note that the source sent the batch with this sequence number."""
        with self._lock:
            self._sent[sequence] = at

    def completed(self, sequence: int, rows: int, at: MonotonicTime) -> BatchSample | None:
        """Note that the first job over a batch has succeeded; earlier unfinished batches are forgotten.

        Returns:
            The sample; ``None`` for a batch that was completed before or forgotten.
        """
        with self._lock:
            sent_at = self._sent.get(sequence)
            self._sent = {later: when for later, when in self._sent.items() if later > sequence}
            if sent_at is None:
                return None
            started_at = sent_at if self._previous_end is None else max(sent_at, self._previous_end)
            self._previous_end = at
            sample = BatchSample(at=at, rows=rows, processing=at - started_at, scheduling=started_at - sent_at)
            rate = self._estimator.estimate(sample)
            self._rate = rate if rate is not None else self._rate
            return sample

    def cap(self, rows: int | None) -> int | None:
        """The most rows that the next batch may have; ``None`` is no limit, ``rows`` the configured limit."""
        with self._lock:
            if self._rate is None:
                return rows
            sustainable = max(1, int(self._rate * self._interval / SECOND))
            return sustainable if rows is None else min(rows, sustainable)
