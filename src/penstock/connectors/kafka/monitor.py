"""Between polls: new partitions, lost offsets, lag, stalls, outages."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, final

from penstock.clock import MonotonicTime
from penstock.connectors.kafka.client import is_outage
from penstock.connectors.kafka.config import StallTimeouts
from penstock.connectors.kafka.offsets import Offsets, TopicPartition
from penstock.connectors.kafka.planning import (
    TRANSIENT_REASONS,
    AbsenceFilter,
    ends,
    lost_offsets_error,
    reconcile,
    skip_lost,
)
from penstock.errors import ConnectorError, SourceUnavailable
from penstock.facts import OffsetsLost, PartitionLag, PartitionsFound, PartitionStalled, SourceLag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.connectors.kafka.client import Cluster, KafkaFuture
    from penstock.connectors.kafka.config import KafkaConfig
    from penstock.connectors.kafka.offsets import KafkaPosition, Topics
    from penstock.connectors.kafka.planning import LostOffsets
    from penstock.facts import Fact


# ----------------------------------------------------------------------------------------------------
# How far behind a source is, partition by partition, and which partitions do not move; pure, and reads no clock.

_SECOND: Final = 1_000_000
_SAMPLES: Final = 120


@dataclass(frozen=True, slots=True)
class _Sample:
    """Where reading stood, and where partitions ended, at one moment."""

    at: MonotonicTime
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

    def observe(self, now: MonotonicTime, next: Offsets, ends: Offsets) -> None:
        """Take a sample, if it is time for one."""
        if self._samples and now < self._samples[-1].at + self._every:
            return
        self._samples.append(_Sample(now, next, ends))
        if len(self._samples) > _SAMPLES:
            self._samples = self._samples[::2]
            self._every *= 2

    def lag(
        self,
        task: str,
        now: MonotonicTime,
        next: Offsets,
        ends: Offsets,
        *,
        named: Callable[[TopicPartition], str] = str,
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

    def _seconds(self, at: TopicPartition, now: MonotonicTime, next: int, end: int) -> float | None:
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

    def _rate(self, at: TopicPartition, now: MonotonicTime, next: int) -> float | None:
        """Rows a second that were read since the first sample; ``None`` as long as there is no time between."""
        first = self._samples[0] if self._samples else None
        if first is None or now <= first.at or at not in first.next:
            return None
        return max(0, next - first.next[at]) * _SECOND / (now - first.at)

    def _eta(self, rows: int, now: MonotonicTime, next: Offsets, ends: Offsets) -> float | None:
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


# ----------------------------------------------------------------------------------------------------
# What the clients of a reader say of their own accord: why an answer does not come, and what of it people are told.
#
# A client whose broker is away says so twenty times a second. People are told once, then now and then, then that it is
# over; the rest is there for whoever sets the logger ``penstock.kafka`` to debug.

_AGAIN: Final = 10 * _SECOND
"""Microseconds from the first line about a trouble to the second; each later wait is twice as long."""
_SELDOM: Final = 3_600 * _SECOND
"""The longest of these waits."""
_CALM: Final = 20 * _SECOND
"""Microseconds without a word after which one broker of several is well again: clients try it at least so often."""


@final
class OutageLog:
    """Decides what is told of a cluster in trouble: its beginning, that it goes on, its end. Pure.

    Args:
        what: who has trouble with what: ``"source orders has trouble with Kafka at k:9092"``.

    >>> outage = OutageLog("source in has trouble with Kafka at k:9092")
    >>> outage.met(MonotonicTime(0), "connection refused", whole=True)
    'source in has trouble with Kafka at k:9092: connection refused'
    >>> outage.met(MonotonicTime(1_000_000), "connection refused", whole=True)
    >>> outage.answered(MonotonicTime(4_000_000), asked=MonotonicTime(3_000_000))
    'source in has trouble with Kafka at k:9092 no more; it lasted 4 s'
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: MonotonicTime | None = None
        self._last = MonotonicTime(0)
        self._due = MonotonicTime(0)
        self._wait = _AGAIN
        self._whole = False

    def met(self, now: MonotonicTime, words: str, *, whole: bool) -> str | None:
        """Something went wrong; what to tell, if anything.

        Args:
            now: the time.
            words: what.
            whole: whether nothing of the cluster can be reached, not only one of its brokers.
        """
        self._last, self._whole = now, self._whole or whole
        if self._since is None:
            self._since, self._due, self._wait = now, MonotonicTime(now + _AGAIN), _AGAIN
            return f"{self._what}: {words}"
        if now < self._due:
            return None
        self._wait = min(_SELDOM, self._wait * 2)
        self._due = MonotonicTime(now + self._wait)
        return f"{self._what}, for {(now - self._since) // _SECOND} s now: {words}"

    def answered(self, now: MonotonicTime, *, asked: MonotonicTime) -> str | None:
        """The cluster answered what it was asked then; what to tell, if that means that it is well again."""
        if self._since is None or asked < self._last or not (self._whole or now >= self._last + _CALM):
            return None
        told = f"{self._what} no more; it lasted {(now - self._since) // _SECOND} s"
        self._since, self._whole = None, False
        return told


# ----------------------------------------------------------------------------------------------------
# Notices partitions that have records waiting and bring none: first a warning, then a new client, then an error. Pure.
#
# A client may hold an assignment and get nothing, without any error: a topic that was deleted, a lost connection that
# nobody closed. Time counts only while somebody looks, so a job that is held up by what is behind it has no stall.

_LONGEST_LOOK: Final = 1_000_000
"""Microseconds that one look may add: what is beyond was not spent waiting for the broker."""


class StallAction(str, Enum):
    """What to do about a stall, in the order of time."""

    WARN = "warn"
    REOPEN = "reopen"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledPartition:
    """A partition that does not move.

    Attributes:
        at: the partition.
        action: what is due now; told once.
        waited: microseconds that it was waited for.
        next: where it stands.
        end: where it ends.
    """

    at: TopicPartition
    action: StallAction
    waited: int
    next: int
    end: int

    def error(self) -> SourceUnavailable:
        """The error for one whose time is up; a restart of the job may help."""
        return SourceUnavailable(
            f"partition {self.at} has given no record for {self.waited / 1_000_000:g} s, though it stands at offset "
            f"{self.next} and ends at {self.end}; a new client got none either. See that the broker that leads it is "
            "well, and that this client may read the topic"
        )


@dataclass(frozen=True, slots=True)
class _Wait:
    next: int
    looked: MonotonicTime
    waited: int = 0
    done: tuple[StallAction, ...] = ()


@dataclass(slots=True)
class StallDetector:
    """Follows the partitions of one source from look to look.

    >>> watch = StallDetector(StallTimeouts(warn=1_000_000, reopen=2_000_000, fail=9_000_000))
    >>> at = TopicPartition("orders", 0)
    >>> watch.look(MonotonicTime(0), {at: 5}, {at: 9})
    ()
    >>> [stall.action.value for stall in watch.look(MonotonicTime(1_000_000), {at: 5}, {at: 9})]
    ['warn']
    """

    patience: StallTimeouts
    _waits: dict[TopicPartition, _Wait] = field(default_factory=dict)

    def look(
        self, now: MonotonicTime, next: Offsets, ends: Offsets, *, paused: Collection[TopicPartition] = ()
    ) -> tuple[StalledPartition, ...]:
        """What is due now.

        Args:
            now: when the partitions were asked for records.
            next: where each stands.
            ends: where each ends.
            paused: those that were not asked.
        """
        self._waits = {
            at: self._go_on(at, next[at], now)
            for at, end in ends.items()
            if at in next and next[at] < end and at not in paused
        }
        return tuple(stall for at in sorted(self._waits) for stall in self._due(at, ends[at]))

    def _go_on(self, at: TopicPartition, next: int, now: MonotonicTime) -> _Wait:
        wait = self._waits.get(at)
        if wait is None or wait.next != next:
            return _Wait(next=next, looked=now)
        return replace(wait, looked=now, waited=wait.waited + min(now - wait.looked, _LONGEST_LOOK))

    def _due(self, at: TopicPartition, end: int) -> list[StalledPartition]:
        wait = self._waits[at]
        limits = {
            StallAction.WARN: self.patience.warn,
            StallAction.REOPEN: self.patience.reopen,
            StallAction.FAIL: self.patience.fail,
        }
        due = [action for action in StallAction if wait.waited >= limits[action] and action not in wait.done]
        self._waits[at] = replace(wait, done=(*wait.done, *due))
        return [StalledPartition(at=at, action=action, waited=wait.waited, next=wait.next, end=end) for action in due]


# ----------------------------------------------------------------------------------------------------
# What a reader knows of its cluster from look to look, and what it tells of it: losses, lag, stalls. Plans nothing.
#
# Questions are asked and their answers looked for with each poll, so none holds up a batch.

log: Final = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class _Look:
    """A look that is under way, and how far was read when it began."""

    answer: KafkaFuture[Topics]
    began: MonotonicTime
    progress: KafkaPosition


class TopicMonitor:
    """Follows the topics of one source.

    Attributes:
        progress: how far was read; whoever plans moves it on.
        topics: as they were at the last look.
        looked: when that look began.
        changes: rises when partitions came, went, or have to be read from another place.
    """

    def __init__(
        self,
        source: KafkaConfig,
        cluster: Cluster,
        uid: str,
        report: Callable[[Fact], None],
        *,
        topics: Topics,
        progress: KafkaPosition,
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._uid = uid
        self._report = report
        self.progress = progress
        self.topics = topics
        self.looked: MonotonicTime | None = None
        self.changes = 0
        self._names: frozenset[str] = frozenset(source.topics) | topics.keys()
        self._look: _Look | None = None
        self._listing: KafkaFuture[frozenset[str]] | None = None
        self._listed: MonotonicTime | None = None
        self._absences = AbsenceFilter(patience=source.gone_after)
        self._stalls = StallDetector(source.patience)
        self._lag = LagMeter()
        self._told: MonotonicTime | None = None
        self._away: MonotonicTime | None = None
        self._outage = OutageLog(f"source {uid} has trouble with Kafka at {source.servers}")
        self._learn(topics, progress, None)

    @property
    def looking(self) -> bool:
        """Whether a look is under way."""
        return self._look is not None

    @property
    def parts(self) -> list[TopicPartition]:
        """The partitions that are there and are read, in order."""
        return sorted(
            at
            for at in self.progress.next
            if at.topic in self.topics
            and at.partition in self.topics[at.topic].partitions
            and self._source.subscribes(at.topic)
        )

    def look(self, now: MonotonicTime, *, after: int) -> None:
        """Begin a look, unless one is under way or the last one began less than so many microseconds ago."""
        if self._look is not None or (self.looked is not None and now < self.looked + after):
            return
        self._look = _Look(self._cluster.look(self._names, self.topics), now, self.progress)
        self.looked = now

    def hear(self, now: MonotonicTime, *, paused: Collection[TopicPartition], reading: bool) -> bool:
        """See whether answers have come; ``True`` if a partition has stalled so that another consumer is to be tried.

        Args:
            now: the time.
            paused: partitions that are not asked for records.
            reading: whether the others are.

        Raises:
            ConnectorError: the cluster was away for too long, records are lost, or a partition has stalled for good.
        """
        for trouble in self._cluster.complaints():
            _warn(self._outage.met(now, trouble.str(), whole=is_outage(trouble.name())))
        self._hear_names(now)
        look = self._look
        if look is None or not look.answer.ready():
            return False
        self._look = None
        try:
            topics = look.answer.result()
        except ConnectorError as error:
            self._bear(error, now)
            return False
        self._away = None
        _warn(self._outage.answered(now, asked=look.began))
        self._learn(topics, look.progress, now)
        bounds = ends(self.progress, topics)
        self._tell_lag(now, bounds)
        return self._tell_stalls(now, bounds, paused) if reading else False

    def _bear(self, error: ConnectorError, now: MonotonicTime) -> None:
        """A cluster that is away for a while is no reason to fail: nothing is lost by waiting."""
        if not error.retry:
            raise error
        self._away = now if self._away is None else self._away
        if now >= self._away + self._source.patience.fail:
            raise error
        _warn(self._outage.met(now, str(error), whole=True))

    def _learn(self, topics: Topics, then: KafkaPosition, now: MonotonicTime | None) -> None:
        """Take over what is there now. What is lost must have been so when the look began, and still be so."""
        seen = reconcile(self.progress, topics, subscribed=self._source.subscribes)
        before = reconcile(then, topics, subscribed=self._source.subscribes)
        told = {(loss.at, loss.reason) for loss in before.lost}
        lost = [loss for loss in seen.lost if (loss.at, loss.reason) in told]
        if now is not None:
            lost = list(self._absences.certain(lost, now))
        else:
            lost = [
                loss for loss in lost if loss.reason not in TRANSIENT_REASONS
            ]  # what is not there at the start may come yet
        self.topics = topics
        if now is None or self._source.discover_every is not None:
            self.progress = seen.progress
            if seen.found:
                self.changes += 1
                self._report(PartitionsFound(task=self._uid, partitions=tuple(map(str, seen.found))))
        if lost:
            self._lose(lost)

    def _lose(self, lost: Sequence[LostOffsets]) -> None:
        if self._source.on_lost_offsets == "fail":
            raise lost_offsets_error(lost)
        self.progress = skip_lost(self.progress, lost, self.topics)
        self.changes += 1
        for loss in lost:
            log.warning("source %s goes on without what is lost: %s", self._uid, loss)
            fact = OffsetsLost(
                task=self._uid, partition=str(loss.at), reason=loss.reason.value, first=loss.start, end=loss.end
            )
            self._report(fact)

    def _hear_names(self, now: MonotonicTime) -> None:
        """Look for new topics of a pattern."""
        every = self._source.discover_every
        if self._source.pattern is None or every is None:
            return
        if self._listing is None:
            if self._listed is None or now >= self._listed + every:
                self._listing, self._listed = self._cluster.names(), now
            return
        if self._listing.ready():
            listing, self._listing = self._listing, None
            try:
                names = {name for name in listing.result() if self._source.subscribes(name)}
            except ConnectorError as error:
                self._bear(error, now)
                return
            self._names = frozenset(names | set(self.progress.ids))

    def _tell_lag(self, now: MonotonicTime, bounds: Offsets) -> None:
        self._lag.observe(now, self.progress.next, bounds)
        if self._told is None or now >= self._told + _SECOND:
            self._told = now
            lag = self._lag.lag(self._uid, now, self.progress.next, bounds, named=self._source.partition_name)
            self._report(lag)

    def _tell_stalls(self, now: MonotonicTime, bounds: Offsets, paused: Collection[TopicPartition]) -> bool:
        reopen = False
        for stall in self._stalls.look(now, self.progress.next, bounds, paused=paused):
            fact = PartitionStalled(
                task=self._uid,
                partition=str(stall.at),
                action=stall.action.value,
                waited_ms=stall.waited / 1_000,
                position=stall.next,
                end=stall.end,
            )
            self._report(fact)
            if stall.action is StallAction.FAIL:
                raise stall.error()
            reopen = reopen or stall.action is StallAction.REOPEN
            log.warning(
                "source %s: partition %s stands at offset %d for %d s, though it ends at %d%s",
                *(self._uid, stall.at, stall.next, stall.waited // _SECOND, stall.end),
                "; trying another connection" if stall.action is StallAction.REOPEN else "",
            )
        return reopen


def _warn(line: str | None) -> None:
    if line is not None:
        log.warning("%s", line)
