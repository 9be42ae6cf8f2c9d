"""What a reader knows of its cluster from look to look, and what it tells of it: losses, lag, stalls. Plans nothing.

Questions are asked and their answers looked for with each poll, so none holds up a batch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import ConnectorError
from penstock.facts import OffsetsCommitted, OffsetsLost, PartitionsFound, PartitionStalled
from penstock.ids import Instant
from penstock.sources.kafka.changes import DOUBTFUL, Absences, reconcile, refusal, skip
from penstock.sources.kafka.errors import is_outage
from penstock.sources.kafka.lag import LagMeter
from penstock.sources.kafka.planning import ends
from penstock.sources.kafka.said import Outage
from penstock.sources.kafka.stalls import Action, StallWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from penstock.facts import Fact
    from penstock.sources.kafka.changes import Loss
    from penstock.sources.kafka.client import Answer, Cluster
    from penstock.sources.kafka.commits import OffsetCommits
    from penstock.sources.kafka.offsets import Offsets, Progress, TopicPartition, Topics
    from penstock.sources.kafka.source import Source

log: Final = logging.getLogger("penstock")

_SECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Look:
    """A look that is under way, and how far was read when it began."""

    answer: Answer[Topics]
    began: Instant
    progress: Progress


class ClusterWatch:
    """Follows the topics of one source.

    Attributes:
        progress: how far was read; whoever plans moves it on.
        topics: as they were at the last look.
        looked: when that look began.
        changes: rises when partitions came, went, or have to be read from another place.
    """

    def __init__(
        self,
        source: Source,
        cluster: Cluster,
        uid: str,
        report: Callable[[Fact], None],
        *,
        topics: Topics,
        progress: Progress,
    ) -> None:
        self._source = source
        self._cluster = cluster
        self._uid = uid
        self._report = report
        self.progress = progress
        self.topics = topics
        self.looked: Instant | None = None
        self.changes = 0
        self._names: frozenset[str] = frozenset(source.topics) | topics.keys()
        self._look: _Look | None = None
        self._listing: Answer[frozenset[str]] | None = None
        self._listed: Instant | None = None
        self._absences = Absences(patience=source.gone_after)
        self._stalls = StallWatch(source.patience)
        self._lag = LagMeter()
        self._told: Instant | None = None
        self._away: Instant | None = None
        self._outage = Outage(f"source {uid} has trouble with Kafka at {source.servers}")
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

    def look(self, now: Instant, *, after: int) -> None:
        """Begin a look, unless one is under way or the last one began less than so many microseconds ago."""
        if self._look is not None or (self.looked is not None and now < self.looked + after):
            return
        self._look = _Look(self._cluster.look(self._names, self.topics), now, self.progress)
        self.looked = now

    def hear(self, now: Instant, *, paused: Collection[TopicPartition], reading: bool) -> bool:
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

    def _bear(self, error: ConnectorError, now: Instant) -> None:
        """A cluster that is away for a while is no reason to fail: nothing is lost by waiting."""
        if not error.retry:
            raise error
        self._away = now if self._away is None else self._away
        if now >= self._away + self._source.patience.fail:
            raise error
        _warn(self._outage.met(now, str(error), whole=True))

    def _learn(self, topics: Topics, then: Progress, now: Instant | None) -> None:
        """Take over what is there now. What is lost must have been so when the look began, and still be so."""
        seen = reconcile(self.progress, topics, subscribed=self._source.subscribes)
        before = reconcile(then, topics, subscribed=self._source.subscribes)
        told = {(loss.at, loss.reason) for loss in before.lost}
        lost = [loss for loss in seen.lost if (loss.at, loss.reason) in told]
        if now is not None:
            lost = list(self._absences.certain(lost, now))
        else:
            lost = [loss for loss in lost if loss.reason not in DOUBTFUL]  # what is not there at the start may come yet
        self.topics = topics
        if now is None or self._source.discover_every is not None:
            self.progress = seen.progress
            if seen.found:
                self.changes += 1
                self._report(PartitionsFound(task=self._uid, partitions=tuple(map(str, seen.found))))
        if lost:
            self._lose(lost)

    def _lose(self, lost: Sequence[Loss]) -> None:
        if self._source.on_lost_offsets == "fail":
            raise refusal(lost)
        self.progress = skip(self.progress, lost, self.topics)
        self.changes += 1
        for loss in lost:
            log.warning("source %s goes on without what is lost: %s", self._uid, loss)
            fact = OffsetsLost(
                task=self._uid, partition=str(loss.at), reason=loss.reason.value, first=loss.start, end=loss.end
            )
            self._report(fact)

    def _hear_names(self, now: Instant) -> None:
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

    def _tell_lag(self, now: Instant, bounds: Offsets) -> None:
        self._lag.observe(now, self.progress.next, bounds)
        if self._told is None or now >= self._told + _SECOND:
            self._told = now
            lag = self._lag.lag(self._uid, now, self.progress.next, bounds, named=self._source.partition_name)
            self._report(lag)

    def _tell_stalls(self, now: Instant, bounds: Offsets, paused: Collection[TopicPartition]) -> bool:
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
            if stall.action is Action.FAIL:
                raise stall.error()
            reopen = reopen or stall.action is Action.REOPEN
            log.warning(
                "source %s: partition %s stands at offset %d for %d s, though it ends at %d%s",
                *(self._uid, stall.at, stall.next, stall.waited // _SECOND, stall.end),
                "; trying another connection" if stall.action is Action.REOPEN else "",
            )
        return reopen


def _warn(line: str | None) -> None:
    if line is not None:
        log.warning("%s", line)


class Commits:
    """Sends what is to be committed to the source's group, and tells what became of it."""

    def __init__(
        self, source: Source, cluster: Cluster, uid: str, report: Callable[[Fact], None], *, decides: OffsetCommits
    ) -> None:
        self._group = source.group or ""
        self._cluster = cluster
        self._uid = uid
        self._report = report
        self._decides = decides
        self._sent: tuple[Answer[None], Offsets] | None = None
        self._looked = Instant(0)
        self._over = False

    def completed(self, progress: Progress) -> None:
        """A checkpoint with this progress is complete; a source that has ended is not polled any more."""
        if not self._over:
            self._decides.completed(progress)
            self._go_on(self._looked)

    def look(self, progress: Progress, now: Instant) -> None:
        """Send what is due, and hear what became of what was sent."""
        self._looked = now
        self._decides.read(progress, now)
        self._go_on(now)

    def _go_on(self, now: Instant) -> None:
        if self._sent is not None and self._sent[0].ready():
            self._settle(now)
        if self._sent is None and (offsets := self._decides.take(now)) is not None:
            self._sent = self._cluster.commit(offsets), offsets
            self._sent[0].ready()  # it is asked for by the first look

    def _settle(self, now: Instant) -> None:
        assert self._sent is not None
        (answer, offsets), self._sent = self._sent, None
        error: ConnectorError | None = None
        try:
            answer.result()
        except ConnectorError as failed:
            error = failed
            log.warning("source %s could not commit offsets to group %s: %s", self._uid, self._group, failed)
        self._decides.settled(now, ok=error is None)
        told = {str(at): offset for at, offset in offsets.items()}
        said = None if error is None else str(error)
        self._report(OffsetsCommitted(task=self._uid, group=self._group, offsets=told, error=said))

    def finish(self) -> None:
        """The reader is closed: commit what the last checkpoint has, which no poll comes after, and nothing later."""
        self._over = True
        if self._sent is not None and self._sent[0].wait(_MORE_SECONDS):
            self._settle(self._looked)
        if self._sent is None and (offsets := self._decides.last()) is not None:
            self._sent = self._cluster.commit(offsets), offsets
            if self._sent[0].wait(_LAST_SECONDS):
                self._settle(self._looked)


_MORE_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 5.0
