"""What a Kafka reader watches between batches: new partitions, lost offsets, lag, stalls, outages.

``TopicMonitor`` sends requests and looks for their answers at each poll, so none of them delays a batch.
"""

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

log: Final = logging.getLogger("penstock")
_SECOND: Final = 1_000_000


# ---- lag -------------------------------------------------------------------------------------------------------------

_MAX_SAMPLES: Final = 120


@dataclass(frozen=True, slots=True)
class _Sample:
    """The next and the end offsets of partitions at one time."""

    at: MonotonicTime
    next: Offsets
    ends: Offsets


class LagMeter:
    """Computes the lag of a source in rows and seconds from samples of its end offsets.

    Lag in seconds is the time since a partition's end passed its position: the age of the next record, by its arrival.
    No record has to be read for it, and clocks of producers do not matter. A partition that is read to its end has no
    lag, however old its last record is. The age of records from before the first sample is estimated by the rate at
    which the partition has grown since then; if it has not grown, seconds are unknown.

    Args:
        every: microseconds between samples. Of more than 120 samples every other one is dropped and ``every`` doubled:
            the table stays small and reaches back as far as it can.
    """

    def __init__(self, every: int = _SECOND) -> None:
        self._every = every
        self._samples: list[_Sample] = []

    def observe(self, now: MonotonicTime, next: Offsets, ends: Offsets) -> None:
        """Take a sample, if the last one is old enough."""
        if self._samples and now < self._samples[-1].at + self._every:
            return
        self._samples.append(_Sample(now, next, ends))
        if len(self._samples) > _MAX_SAMPLES:
            self._samples = self._samples[::2]
            self._every *= 2

    def lag(
        self,
        task: str,
        now: MonotonicTime,
        next: Offsets,
        ends: Offsets,
        *,
        partition_name: Callable[[TopicPartition], str] = str,
    ) -> SourceLag:
        """The lag of every partition in ``ends``, and of all together; ``partition_name`` is its name in rows."""
        partitions = {
            str(at): PartitionLag(
                rows=max(0, end - next.get(at, 0)),
                seconds=self._seconds(at, now, next.get(at, 0), end),
                position=next.get(at, 0),
                end=end,
                rate=self._rate(at, now, next.get(at, 0)),
                name=partition_name(at),
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
        index = bisect_left(history, next + 1, key=lambda sample: sample.ends[at])
        if index == len(history):
            return 0.0  # the record arrived after the last sample
        if index > 0:
            before, after = history[index - 1], history[index]
            part = (next - before.ends[at]) / (after.ends[at] - before.ends[at])
            return (now - before.at - part * (after.at - before.at)) / _SECOND
        first = history[0]
        grown, took = end - first.ends[at], now - first.at
        return (end - next) * took / grown / _SECOND if grown > 0 and took > 0 else None

    def _rate(self, at: TopicPartition, now: MonotonicTime, next: int) -> float | None:
        """Rows per second that were read since the first sample; ``None`` without an earlier sample."""
        first = self._samples[0] if self._samples else None
        if first is None or now <= first.at or at not in first.next:
            return None
        return max(0, next - first.next[at]) * _SECOND / (now - first.at)

    def _eta(self, rows: int, now: MonotonicTime, next: Offsets, ends: Offsets) -> float | None:
        """Seconds until nothing waits, at the rate since the first sample; ``None`` if the lag does not shrink."""
        if rows == 0:
            return 0.0
        if not self._samples or now <= self._samples[0].at:
            return None
        first = self._samples[0]
        read = sum(offset - first.next[at] for at, offset in next.items() if at in first.next)
        came = sum(end - first.ends[at] for at, end in ends.items() if at in first.ends)
        gained = (read - came) / (now - first.at)
        return rows / gained / _SECOND if gained > 0 else None


# ---- outages ---------------------------------------------------------------------------------------------------------

_FIRST_REPEAT: Final = 10 * _SECOND
"""Microseconds from the first line about an outage to the second; each later interval is twice as long."""
_MAX_REPEAT: Final = 3_600 * _SECOND
_RECOVERED_AFTER: Final = 20 * _SECOND
"""Microseconds without an error after which one broker of several counts as back: clients retry it more often."""


@final
class OutageLog:
    """Decides which lines to log about an outage: its beginning, its duration now and then, its end.

    A client whose broker is away reports that twenty times a second. The logger ``penstock.kafka`` gets all of it.

    Args:
        subject: how each line begins: ``"source orders has trouble with Kafka at k:9092"``.

    >>> outage = OutageLog("source in has trouble with Kafka at k:9092")
    >>> outage.on_error(MonotonicTime(0), "connection refused", all_brokers=True)
    'source in has trouble with Kafka at k:9092: connection refused'
    >>> outage.on_error(MonotonicTime(1_000_000), "connection refused", all_brokers=True)
    >>> outage.on_answer(MonotonicTime(4_000_000), asked=MonotonicTime(3_000_000))
    'source in has trouble with Kafka at k:9092 no more; it lasted 4 s'
    """

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._since: MonotonicTime | None = None
        self._last_error = MonotonicTime(0)
        self._next_line = MonotonicTime(0)
        self._interval = _FIRST_REPEAT
        self._all_brokers = False

    def on_error(self, now: MonotonicTime, error: str, *, all_brokers: bool) -> str | None:
        """The line to log for an error, if there is one.

        Args:
            now: the time.
            error: the message.
            all_brokers: whether the whole cluster cannot be reached, not only one of its brokers.
        """
        self._last_error, self._all_brokers = now, self._all_brokers or all_brokers
        if self._since is None:
            self._since, self._next_line, self._interval = now, MonotonicTime(now + _FIRST_REPEAT), _FIRST_REPEAT
            return f"{self._subject}: {error}"
        if now < self._next_line:
            return None
        self._interval = min(_MAX_REPEAT, self._interval * 2)
        self._next_line = MonotonicTime(now + self._interval)
        return f"{self._subject}, for {(now - self._since) // _SECOND} s now: {error}"

    def on_answer(self, now: MonotonicTime, *, asked: MonotonicTime) -> str | None:
        """The line to log for an answer to a request sent at ``asked``, if it ends the outage."""
        if self._since is None or asked < self._last_error:
            return None
        if not self._all_brokers and now < self._last_error + _RECOVERED_AFTER:
            return None
        line = f"{self._subject} no more; it lasted {(now - self._since) // _SECOND} s"
        self._since, self._all_brokers = None, False
        return line


# ---- stalls ----------------------------------------------------------------------------------------------------------

_MAX_STEP: Final = 1_000_000
"""Microseconds that the time between two checks may add: longer pauses were not spent waiting for the broker."""


class StallAction(str, Enum):
    """What to do about a stalled partition, in the order of time."""

    WARN = "warn"
    REOPEN = "reopen"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledPartition:
    """A partition that has records waiting and returns none.

    Attributes:
        at: the partition.
        action: the action that is due; returned once.
        waited: microseconds without a record.
        next: the offset of the next record to read.
        end: the partition's end.
    """

    at: TopicPartition
    action: StallAction
    waited: int
    next: int
    end: int

    def error(self) -> SourceUnavailable:
        """The error for ``FAIL``; a restart of the job may help."""
        return SourceUnavailable(
            f"Partition {self.at} has given no record for {self.waited / 1_000_000:g} s, though offset {self.next} is "
            f"next and it ends at {self.end}. A new client got none either. Check that the broker that leads it runs, "
            "and that this client may read the topic."
        )


@dataclass(frozen=True, slots=True)
class _Wait:
    next: int
    checked: MonotonicTime
    waited: int = 0
    actions: tuple[StallAction, ...] = ()


@dataclass(slots=True)
class StallDetector:
    """Finds partitions that have records waiting and return none.

    A client may hold an assignment and get nothing, without any error: a deleted topic, a lost connection that was
    never closed. Only time between checks counts: a job that is slow downstream has no stall.

    >>> stalls = StallDetector(StallTimeouts(warn=1_000_000, reopen=2_000_000, fail=9_000_000))
    >>> at = TopicPartition("orders", 0)
    >>> stalls.check(MonotonicTime(0), {at: 5}, {at: 9})
    ()
    >>> [stall.action.value for stall in stalls.check(MonotonicTime(1_000_000), {at: 5}, {at: 9})]
    ['warn']
    """

    timeouts: StallTimeouts
    _waits: dict[TopicPartition, _Wait] = field(default_factory=dict)

    def check(
        self, now: MonotonicTime, next: Offsets, ends: Offsets, *, paused: Collection[TopicPartition] = ()
    ) -> tuple[StalledPartition, ...]:
        """The actions that are due now.

        Args:
            now: the time.
            next: the next offset of each partition.
            ends: the end of each partition.
            paused: partitions that are not asked for records.
        """
        self._waits = {
            at: self._continue(at, next[at], now)
            for at, end in ends.items()
            if at in next and next[at] < end and at not in paused
        }
        return tuple(stall for at in sorted(self._waits) for stall in self._due(at, ends[at]))

    def _continue(self, at: TopicPartition, next: int, now: MonotonicTime) -> _Wait:
        wait = self._waits.get(at)
        if wait is None or wait.next != next:
            return _Wait(next=next, checked=now)
        return replace(wait, checked=now, waited=wait.waited + min(now - wait.checked, _MAX_STEP))

    def _due(self, at: TopicPartition, end: int) -> list[StalledPartition]:
        wait = self._waits[at]
        timeouts = {
            StallAction.WARN: self.timeouts.warn,
            StallAction.REOPEN: self.timeouts.reopen,
            StallAction.FAIL: self.timeouts.fail,
        }
        due = [action for action in StallAction if wait.waited >= timeouts[action] and action not in wait.actions]
        self._waits[at] = replace(wait, actions=(*wait.actions, *due))
        return [StalledPartition(at=at, action=action, waited=wait.waited, next=wait.next, end=end) for action in due]


# ---- the topics of one source ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Refresh:
    """A request for the topics that is under way, and the position when it was sent."""

    answer: KafkaFuture[Topics]
    sent: MonotonicTime
    position: KafkaPosition


class TopicMonitor:
    """Keeps the topics of one source up to date, and reports what it finds as facts and log lines.

    Attributes:
        position: how far the source was read; the reader advances it.
        topics: the topics at the last refresh.
        changes: counts up when partitions come, go, or have to be read from another offset.
    """

    def __init__(
        self,
        config: KafkaConfig,
        cluster: Cluster,
        uid: str,
        report: Callable[[Fact], None],
        *,
        topics: Topics,
        position: KafkaPosition,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._uid = uid
        self._report = report
        self.position = position
        self.topics = topics
        self.changes = 0
        self._names: frozenset[str] = frozenset(config.topics) | topics.keys()
        self._refresh: _Refresh | None = None
        self._refreshed: MonotonicTime | None = None
        self._listing: KafkaFuture[frozenset[str]] | None = None
        self._listed: MonotonicTime | None = None
        self._absences = AbsenceFilter(gone_after=config.gone_after)
        self._stalls = StallDetector(config.stall_timeouts)
        self._lag = LagMeter()
        self._lag_reported: MonotonicTime | None = None
        self._away_since: MonotonicTime | None = None
        self._outage = OutageLog(f"source {uid} has trouble with Kafka at {config.servers}")
        self._update(topics, position, None)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that exist and are read, in order."""
        return sorted(
            at
            for at in self.position.next
            if at.topic in self.topics
            and at.partition in self.topics[at.topic].partitions
            and self._config.subscribes(at.topic)
        )

    def refresh(self, now: MonotonicTime, *, after: int) -> None:
        """Ask for the topics, unless a request is under way or was sent less than ``after`` microseconds ago."""
        if self._refresh is not None or (self._refreshed is not None and now < self._refreshed + after):
            return
        self._refresh = _Refresh(self._cluster.describe_topics(self._names, self.topics), now, self.position)
        self._refreshed = now

    def poll(self, now: MonotonicTime, *, paused: Collection[TopicPartition], in_driver: bool) -> bool:
        """Handle the answers that have come; whether a stalled partition needs another consumer.

        Args:
            now: the time.
            paused: partitions that are not asked for records.
            in_driver: whether a consumer in the driver asks for records of the others, so that they can stall.

        Raises:
            ConnectorError: the cluster was away for too long, records are lost, or a partition has stalled for good.
        """
        for error in self._cluster.take_errors():
            _warn(self._outage.on_error(now, error.str(), all_brokers=is_outage(error.name())))
        self._poll_names(now)
        refresh = self._refresh
        if refresh is None or not refresh.answer.ready():
            return False
        self._refresh = None
        try:
            topics = refresh.answer.result()
        except ConnectorError as failure:
            self._tolerate(failure, now)
            return False
        self._away_since = None
        _warn(self._outage.on_answer(now, asked=refresh.sent))
        self._update(topics, refresh.position, now)
        bounds = ends(self.position, topics)
        self.report_lag(now, bounds)
        return self._handle_stalls(now, bounds, paused) if in_driver else False

    def _tolerate(self, error: ConnectorError, now: MonotonicTime) -> None:
        """Raise an error that no retry mends, or once the cluster was away for too long: waiting loses nothing."""
        if not error.retry:
            raise error
        self._away_since = now if self._away_since is None else self._away_since
        if now >= self._away_since + self._config.stall_timeouts.fail:
            raise error
        _warn(self._outage.on_error(now, str(error), all_brokers=True))

    def _update(self, topics: Topics, position_then: KafkaPosition, now: MonotonicTime | None) -> None:
        """Take over topics that were asked for at ``position_then``; ``now`` is ``None`` at the start.

        Offsets count as lost only if they were lost at that position and still are at the current one.
        """
        changes = reconcile(self.position, topics, subscribed=self._config.subscribes)
        changes_then = reconcile(position_then, topics, subscribed=self._config.subscribes)
        lost_then = {(loss.at, loss.reason) for loss in changes_then.lost}
        lost = [loss for loss in changes.lost if (loss.at, loss.reason) in lost_then]
        if now is not None:
            lost = list(self._absences.certain(lost, now))
        else:  # what is missing at the start may still appear
            lost = [loss for loss in lost if loss.reason not in TRANSIENT_REASONS]
        self.topics = topics
        if now is None or self._config.discover_every is not None:
            self.position = changes.position
            if changes.found:
                self.changes += 1
                self._report(PartitionsFound(task=self._uid, partitions=tuple(map(str, changes.found))))
        if lost:
            self._handle_loss(lost)

    def _handle_loss(self, lost: Sequence[LostOffsets]) -> None:
        if self._config.on_lost_offsets == "fail":
            raise lost_offsets_error(lost)
        self.position = skip_lost(self.position, lost, self.topics)
        self.changes += 1
        for loss in lost:
            log.warning("source %s goes on without what is lost: %s", self._uid, loss)
            fact = OffsetsLost(
                task=self._uid, partition=str(loss.at), reason=loss.reason.value, first=loss.start, end=loss.end
            )
            self._report(fact)

    def _poll_names(self, now: MonotonicTime) -> None:
        """Look for new topics of a pattern."""
        every = self._config.discover_every
        if self._config.pattern is None or every is None:
            return
        if self._listing is None:
            if self._listed is None or now >= self._listed + every:
                self._listing, self._listed = self._cluster.list_topics(), now
            return
        if self._listing.ready():
            listing, self._listing = self._listing, None
            try:
                names = {name for name in listing.result() if self._config.subscribes(name)}
            except ConnectorError as error:
                self._tolerate(error, now)
                return
            self._names = frozenset(names | set(self.position.ids))

    def report_lag(self, now: MonotonicTime, bounds: Offsets, *, is_last: bool = False) -> None:
        """Report the lag up to ``bounds``, once a second; at once where nothing is read after it."""
        self._lag.observe(now, self.position.next, bounds)
        if is_last or self._lag_reported is None or now >= self._lag_reported + _SECOND:
            self._lag_reported = now
            name = self._config.partition_name
            self._report(self._lag.lag(self._uid, now, self.position.next, bounds, partition_name=name))

    def _handle_stalls(self, now: MonotonicTime, bounds: Offsets, paused: Collection[TopicPartition]) -> bool:
        reopen = False
        for stall in self._stalls.check(now, self.position.next, bounds, paused=paused):
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
                "source %s: partition %s has stood at offset %d for %d s, though it ends at %d%s",
                *(self._uid, stall.at, stall.next, stall.waited // _SECOND, stall.end),
                "; trying another connection" if stall.action is StallAction.REOPEN else "",
            )
        return reopen


def _warn(line: str | None) -> None:
    if line is not None:
        log.warning("%s", line)
