"""How far behind a source is, partition by partition, and which partitions do not move; pure, and reads no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.facts import PartitionLag, SourceLag
from penstock.ids import Instant
from penstock.sources.kafka.offsets import Offsets, TopicPartition

_SECOND: Final = 1_000_000
_SAMPLES: Final = 120


@dataclass(frozen=True, slots=True)
class _Sample:
    """Where reading stood, and where partitions ended, at one moment."""

    at: Instant
    next: Offsets
    ends: Offsets


class LagMeter:
    """Remembers where partitions ended at what time, and so tells how old the next record to be read is.

    Lag in seconds is the time since a partition's end passed the position: the age of the next record, by when it came.
    Nothing has to be read for it, clocks of producers do not matter, and a partition that is read to its end has no
    lag however old its last record is. What came before the first sample is judged by the rate at which the partition
    has grown since; if it has not, seconds are unknown.

    Args:
        every: microseconds from one sample to the next. When there are more than 120, every other one is forgotten
            and the pace halved, so the table stays small and reaches back as far as it can.
    """

    def __init__(self, every: int = _SECOND) -> None:
        self._every = every
        self._samples: list[_Sample] = []

    def observe(self, now: Instant, next: Offsets, ends: Offsets) -> None:
        """Take a sample, if it is time for one."""
        if self._samples and now < self._samples[-1].at + self._every:
            return
        self._samples.append(_Sample(now, next, ends))
        if len(self._samples) > _SAMPLES:
            self._samples = self._samples[::2]
            self._every *= 2

    def lag(
        self, task: str, now: Instant, next: Offsets, ends: Offsets, *, named: Callable[[TopicPartition], str] = str
    ) -> SourceLag:
        """The lag of every partition that has an end, and of all together; ``named`` is what rows call a partition."""
        partitions = {
            str(at): PartitionLag(
                rows=max(0, end - next.get(at, 0)),
                seconds=self._seconds(at, now, next.get(at, 0), end),
                position=next.get(at, 0),
                end=end,
                rate=self._rate(at, now, next.get(at, 0)),
                name=named(at),
            )
            for at, end in sorted(ends.items())
        }
        rows = sum(lag.rows for lag in partitions.values())
        seconds = [lag.seconds for lag in partitions.values()]
        known = [value for value in seconds if value is not None]
        return SourceLag(
            task=task,
            rows=rows,
            seconds=max(known, default=0.0) if len(known) == len(seconds) else None,
            eta_seconds=self._eta(rows, now, next, ends),
            partitions=partitions,
        )

    def _seconds(self, at: TopicPartition, now: Instant, next: int, end: int) -> float | None:
        if next >= end:
            return 0.0
        history = [sample for sample in self._samples if at in sample.ends]
        if not history:
            return None
        place = bisect_left(history, next + 1, key=lambda sample: sample.ends[at])
        if place == len(history):
            return 0.0  # the record came after the last sample
        if place > 0:
            before, after = history[place - 1], history[place]
            part = (next - before.ends[at]) / (after.ends[at] - before.ends[at])
            return (now - before.at - part * (after.at - before.at)) / _SECOND
        first = history[0]
        grown, took = end - first.ends[at], now - first.at
        return (end - next) * took / grown / _SECOND if grown > 0 and took > 0 else None

    def _rate(self, at: TopicPartition, now: Instant, next: int) -> float | None:
        """Rows a second that were read since the first sample; ``None`` as long as there is no time between."""
        first = self._samples[0] if self._samples else None
        if first is None or now <= first.at or at not in first.next:
            return None
        return max(0, next - first.next[at]) * _SECOND / (now - first.at)

    def _eta(self, rows: int, now: Instant, next: Offsets, ends: Offsets) -> float | None:
        """Seconds until nothing waits, at the pace since the first sample; ``None`` if it is not coming closer."""
        if rows == 0:
            return 0.0
        if not self._samples or now <= self._samples[0].at:
            return None
        first = self._samples[0]
        read = sum(offset - first.next[at] for at, offset in next.items() if at in first.next)
        came = sum(end - first.ends[at] for at, end in ends.items() if at in first.ends)
        gained = (read - came) / (now - first.at)
        return rows / gained / _SECOND if gained > 0 else None
