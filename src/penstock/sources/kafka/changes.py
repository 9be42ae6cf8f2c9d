"""Compares how far topics were read with what is there now: what is new, and what can no longer be read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from penstock.errors import SourceChanged
from penstock.ids import Instant
from penstock.sources.kafka.offsets import Progress, Topic, TopicPartition, Topics


class Reason(str, Enum):
    """Why records cannot be read any more."""

    EXPIRED = "expired"
    """Retention, or somebody, deleted them before they were read."""
    TRUNCATED = "truncated"
    """The partition ends before what was read: an unclean election, a restored copy, another cluster."""
    RECREATED = "recreated"
    """The topic was deleted and made again under its name."""
    TOPIC_GONE = "topic gone"
    PARTITION_GONE = "partition gone"


DOUBTFUL: Final = frozenset({Reason.TOPIC_GONE, Reason.PARTITION_GONE, Reason.TRUNCATED})
"""What a broker may say for a moment though it is not so, see :class:`Absences`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one partition has lost.

    Attributes:
        at: the partition.
        reason: why.
        start: the first offset concerned.
        end: the first one behind them; ``None`` if nobody can know.
    """

    at: TopicPartition
    reason: Reason
    start: int
    end: int | None = None

    @property
    def offsets(self) -> int | None:
        """How many offsets are concerned: the most records that were lost."""
        return None if self.end is None else self.end - self.start

    def __str__(self) -> str:
        count = "from offset" if self.end is None else f"{self.offsets} offsets from"
        return f"{self.at}: {self.reason.value}, {count} {self.start} on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """Progress with what is new in it, the new partitions, and what was lost; of that, progress is as it was."""

    progress: Progress
    found: tuple[TopicPartition, ...] = ()
    lost: tuple[Loss, ...] = ()


def reconcile(progress: Progress, topics: Topics, *, subscribed: Callable[[str], bool]) -> Reconciled:
    """Compare progress with what is there.

    A partition or topic that was not there before begins at its earliest offset, so nothing of it is missed; a bounded
    source takes no new ones but those that it has a stop for. Progress of topics that are no longer subscribed to is
    kept, should they be again.

    Args:
        progress: what was read.
        topics: what is there, of the topics that are subscribed to.
        subscribed: whether a topic of that name is read by the source.
    """
    lost = tuple(_losses(progress, topics, subscribed))
    recreated = {loss.at.topic for loss in lost if loss.reason is Reason.RECREATED}
    found: dict[TopicPartition, int] = {}
    ids = dict(progress.ids)
    for name, topic in topics.items():
        if name in recreated:
            continue
        new = {at: earliest for at, earliest in _beginnings(name, topic) if at not in progress.next}
        if progress.stop is not None:
            new = {at: earliest for at, earliest in new.items() if at in progress.stop}
        if progress.stop is None or new or name in ids:
            ids[name] = topic.id or ids.get(name)
        found |= new
    after = replace(progress, ids=ids, next={**progress.next, **found})
    return Reconciled(progress=after, found=tuple(sorted(found)), lost=lost)


def _beginnings(name: str, topic: Topic) -> Iterator[tuple[TopicPartition, int]]:
    for partition, extent in topic.partitions.items():
        yield TopicPartition(name, partition), extent.earliest


def _losses(progress: Progress, topics: Topics, subscribed: Callable[[str], bool]) -> Iterator[Loss]:
    for at, next in sorted(progress.next.items()):
        if not subscribed(at.topic):
            continue
        stop = None if progress.stop is None else progress.stop.get(at, next)
        if stop is not None and next >= stop:
            continue  # it was read, whatever became of it
        loss = _loss(at, next, stop, progress.ids.get(at.topic), topics.get(at.topic))
        if loss is not None:
            yield loss


def _loss(at: TopicPartition, next: int, stop: int | None, id: str | None, topic: Topic | None) -> Loss | None:
    if topic is None:
        return Loss(at=at, reason=Reason.TOPIC_GONE, start=next, end=stop)
    if id is not None and topic.id is not None and id != topic.id:
        return Loss(at=at, reason=Reason.RECREATED, start=next, end=stop)
    extent = topic.partitions.get(at.partition)
    if extent is None:
        return Loss(at=at, reason=Reason.PARTITION_GONE, start=next, end=stop)
    if next < extent.earliest:
        end = extent.earliest if stop is None else min(extent.earliest, stop)
        return Loss(at=at, reason=Reason.EXPIRED, start=next, end=end)
    if next > extent.latest:
        return Loss(at=at, reason=Reason.TRUNCATED, start=extent.latest, end=next)
    return None


def skip(progress: Progress, lost: Sequence[Loss], topics: Topics) -> Progress:
    """Progress that goes on behind what was lost.

    Expired records: at the earliest that are there. Truncated: at the end, since what is before it was read, unless
    the topic has no id to prove that it is the same one; then at the earliest. A topic made again: all of it, from its
    earliest records on; a bounded source does not read it, its stop was an offset of the old one. What is gone is
    forgotten: should it come back, it is new.
    """
    gone: set[TopicPartition] = set()
    after = dict(progress.next)
    ids = dict(progress.ids)
    for loss in lost:
        topic = topics.get(loss.at.topic)
        extent = None if topic is None else topic.partitions.get(loss.at.partition)
        if topic is not None and loss.reason is Reason.RECREATED and progress.stop is None:
            ids[loss.at.topic] = topic.id
            after |= dict(_beginnings(loss.at.topic, topic))
        if extent is None or (loss.reason is Reason.RECREATED and progress.stop is not None):
            gone.add(loss.at)
        elif loss.reason is Reason.TRUNCATED and topic is not None and topic.id is not None:
            after[loss.at] = extent.latest
        else:
            after[loss.at] = extent.earliest
    next = {at: offset for at, offset in after.items() if at not in gone}
    stop = None if progress.stop is None else {at: end for at, end in progress.stop.items() if at not in gone}
    kept = {at.topic for at in next} | {name for name in ids if name in topics}
    return Progress(ids={name: id for name, id in ids.items() if name in kept}, next=next, stop=stop)


def refusal(lost: Sequence[Loss]) -> SourceChanged:
    """The error for what was lost, with the ways out."""
    shown = "; ".join(map(str, lost[:5])) + (f"; and {len(lost) - 5} more" if len(lost) > 5 else "")  # noqa: PLR2004
    remedies = "; ".join(dict.fromkeys(_REMEDIES[loss.reason] for loss in lost))
    msg = (
        f"records that were to be read are no longer there ({shown}). Reading on would leave them out, or read others "
        f"for them. {remedies}. To go on without them, with each range counted: on_lost_offsets='continue'; to begin "
        "again: --fresh, or a new uid for the source"
    )
    return SourceChanged(msg)


_REMEDIES: Final = {
    Reason.EXPIRED: "Keep records for longer than the job may be down (retention.ms, retention.bytes)",
    Reason.TRUNCATED: "See that servers= is the same cluster, and that it lost no replica that was ahead of others "
    "(unclean.leader.election.enable)",
    Reason.RECREATED: "A topic's name is not its identity: give the new topic another name, or the source another uid",
    Reason.TOPIC_GONE: "See that the topic exists and that this client may describe it",
    Reason.PARTITION_GONE: "See that servers= is the same cluster: partitions of a topic never become fewer",
}


@dataclass(slots=True)
class Absences:
    """Believes that topics, partitions or their last records are gone only after it was told so for a while.

    Brokers that have just started do not know all topics for a moment, nor that all records of a partition are stable.
    Other losses are certain at once.

    Args:
        patience: microseconds from the first look without them to belief.

    >>> gone = Loss(at=TopicPartition("orders", 0), reason=Reason.TOPIC_GONE, start=7)
    >>> doubt = Absences(patience=1_000_000)
    >>> doubt.certain([gone], Instant(0)), len(doubt.certain([gone], Instant(1_000_000)))
    ((), 1)
    """

    patience: int
    _since: Mapping[TopicPartition, Instant] = field(default_factory=dict)

    def certain(self, lost: Sequence[Loss], now: Instant) -> tuple[Loss, ...]:
        """Those of the losses of one look that are to be believed."""
        self._since = {loss.at: self._since.get(loss.at, now) for loss in lost if loss.reason in DOUBTFUL}
        return tuple(loss for loss in lost if now >= self._since.get(loss.at, now - self.patience) + self.patience)
