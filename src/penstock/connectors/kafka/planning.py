"""What the next batch reads; what is new or lost: pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate, pairwise
from typing import Final

from penstock.clock import MonotonicTime
from penstock.connectors.kafka.offsets import (
    KafkaPosition,
    OffsetRange,
    Offsets,
    Topic,
    TopicPartition,
    Topics,
    advance,
)
from penstock.errors import SourceChanged
from penstock.interfaces.source import ReadLimit

# ----------------------------------------------------------------------------------------------------
# Compares how far topics were read with what is there now: what is new, and what can no longer be read. Pure.


class LossReason(str, Enum):
    """Why records cannot be read any more."""

    EXPIRED = "expired"
    """Retention, or somebody, deleted them before they were read."""
    TRUNCATED = "truncated"
    """The partition ends before what was read: an unclean election, a restored copy, another cluster."""
    RECREATED = "recreated"
    """The topic was deleted and made again under its name."""
    TOPIC_GONE = "topic gone"
    PARTITION_GONE = "partition gone"


TRANSIENT_REASONS: Final = frozenset({LossReason.TOPIC_GONE, LossReason.PARTITION_GONE, LossReason.TRUNCATED})
"""What a broker may say for a moment though it is not so, see :class:`AbsenceFilter`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostOffsets:
    """What one partition has lost.

    Attributes:
        at: the partition.
        reason: why.
        start: the first offset concerned.
        end: the first one behind them; ``None`` if nobody can know.
    """

    at: TopicPartition
    reason: LossReason
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
class TopicChanges:
    """Progress with what is new in it, the new partitions, and what was lost; of that, progress is as it was."""

    progress: KafkaPosition
    found: tuple[TopicPartition, ...] = ()
    lost: tuple[LostOffsets, ...] = ()


def reconcile(progress: KafkaPosition, topics: Topics, *, subscribed: Callable[[str], bool]) -> TopicChanges:
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
    recreated = {loss.at.topic for loss in lost if loss.reason is LossReason.RECREATED}
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
    return TopicChanges(progress=after, found=tuple(sorted(found)), lost=lost)


def _beginnings(name: str, topic: Topic) -> Iterator[tuple[TopicPartition, int]]:
    for partition, extent in topic.partitions.items():
        yield TopicPartition(name, partition), extent.earliest


def _losses(progress: KafkaPosition, topics: Topics, subscribed: Callable[[str], bool]) -> Iterator[LostOffsets]:
    for at, next in sorted(progress.next.items()):
        if not subscribed(at.topic):
            continue
        stop = None if progress.stop is None else progress.stop.get(at, next)
        if stop is not None and next >= stop:
            continue  # it was read, whatever became of it
        loss = _loss(at, next, stop, progress.ids.get(at.topic), topics.get(at.topic))
        if loss is not None:
            yield loss


def _loss(at: TopicPartition, next: int, stop: int | None, id: str | None, topic: Topic | None) -> LostOffsets | None:
    if topic is None:
        return LostOffsets(at=at, reason=LossReason.TOPIC_GONE, start=next, end=stop)
    if id is not None and topic.id is not None and id != topic.id:
        return LostOffsets(at=at, reason=LossReason.RECREATED, start=next, end=stop)
    extent = topic.partitions.get(at.partition)
    if extent is None:
        return LostOffsets(at=at, reason=LossReason.PARTITION_GONE, start=next, end=stop)
    if next < extent.earliest:
        end = extent.earliest if stop is None else min(extent.earliest, stop)
        return LostOffsets(at=at, reason=LossReason.EXPIRED, start=next, end=end)
    if next > extent.latest:
        return LostOffsets(at=at, reason=LossReason.TRUNCATED, start=extent.latest, end=next)
    return None


def skip_lost(progress: KafkaPosition, lost: Sequence[LostOffsets], topics: Topics) -> KafkaPosition:
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
        if topic is not None and loss.reason is LossReason.RECREATED and progress.stop is None:
            ids[loss.at.topic] = topic.id
            after |= dict(_beginnings(loss.at.topic, topic))
        if extent is None or (loss.reason is LossReason.RECREATED and progress.stop is not None):
            gone.add(loss.at)
        elif loss.reason is LossReason.TRUNCATED and topic is not None and topic.id is not None:
            after[loss.at] = extent.latest
        else:
            after[loss.at] = extent.earliest
    next = {at: offset for at, offset in after.items() if at not in gone}
    stop = None if progress.stop is None else {at: end for at, end in progress.stop.items() if at not in gone}
    kept = {at.topic for at in next} | {name for name in ids if name in topics}
    return KafkaPosition(ids={name: id for name, id in ids.items() if name in kept}, next=next, stop=stop)


def lost_offsets_error(lost: Sequence[LostOffsets]) -> SourceChanged:
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
    LossReason.EXPIRED: "Keep records for longer than the job may be down (retention.ms, retention.bytes)",
    LossReason.TRUNCATED: "See that servers= is the same cluster, and that it lost no replica that was ahead of others "
    "(unclean.leader.election.enable)",
    LossReason.RECREATED: "A topic's name is not its identity: give the new topic another name, "
    "or the source another uid",
    LossReason.TOPIC_GONE: "See that the topic exists and that this client may describe it",
    LossReason.PARTITION_GONE: "See that servers= is the same cluster: partitions of a topic never become fewer",
}


@dataclass(slots=True)
class AbsenceFilter:
    """Believes that topics, partitions or their last records are gone only after it was told so for a while.

    Brokers that have just started do not know all topics for a moment, nor that all records of a partition are stable.
    Other losses are certain at once.

    Args:
        patience: microseconds from the first look without them to belief.

    >>> gone = LostOffsets(at=TopicPartition("orders", 0), reason=LossReason.TOPIC_GONE, start=7)
    >>> doubt = AbsenceFilter(patience=1_000_000)
    >>> doubt.certain([gone], MonotonicTime(0)), len(doubt.certain([gone], MonotonicTime(1_000_000)))
    ((), 1)
    """

    patience: int
    _since: Mapping[TopicPartition, MonotonicTime] = field(default_factory=dict)

    def certain(self, lost: Sequence[LostOffsets], now: MonotonicTime) -> tuple[LostOffsets, ...]:
        """Those of the losses of one look that are to be believed."""
        self._since = {loss.at: self._since.get(loss.at, now) for loss in lost if loss.reason in TRANSIENT_REASONS}
        return tuple(loss for loss in lost if now >= self._since.get(loss.at, now - self.patience) + self.patience)


# ----------------------------------------------------------------------------------------------------
# Which records of which partitions the next batch reads, within its caps and fairly; pure, and knows no broker.

_EQUAL_SHARE: Final = 8
"""One row in so many of a batch is divided equally, whatever waits where."""
_FIRST_GUESS: Final = 1024
"""Bytes of a row of which nothing is known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The next batch, empty if there is nothing to read, the progress after it, and whose turn was last."""

    ranges: tuple[OffsetRange, ...]
    progress: KafkaPosition
    turn: TopicPartition | None = None
    behind: frozenset[TopicPartition] = frozenset()


def ends(progress: KafkaPosition, topics: Topics, *, caught_up: Offsets | None = None) -> Offsets:
    """Up to where each partition can be read now.

    That is what is there, but not more than a bounded source's stops, nor than ``caught_up``, what was there when a run
    that drains began; partitions that neither names are not read.
    """
    found = {}
    for name, topic in topics.items():
        for partition, extent in topic.partitions.items():
            at = TopicPartition(name, partition)
            bounds = [bound.get(at, 0) for bound in (progress.stop, caught_up) if bound is not None]
            if at in progress.next:
                found[at] = min([extent.latest, *bounds])
    return found


def backlog(progress: KafkaPosition, ends: Offsets) -> dict[TopicPartition, int]:
    """How many offsets wait in each partition that has some, in the order of partitions."""
    waiting = {at: end - progress.next[at] for at, end in sorted(ends.items())}
    return {at: offsets for at, offsets in waiting.items() if offsets > 0}


def plan(
    progress: KafkaPosition,
    ends: Offsets,
    limits: ReadLimit,
    sizes: RowSizes,
    *,
    turn: TopicPartition | None = None,
    paused: Collection[TopicPartition] = (),
) -> Planned:
    """The next batch.

    Of what waits, each partition gives the same part, so those that hold the same hours stay together in event time
    and are through together; but an eighth of a batch is divided equally, so that a partition with little never waits
    for one with much. Rows left over by rounding go round from batch to batch: with fewer rows than partitions every
    partition still has its turn.

    Args:
        progress: where each partition stands.
        ends: up to where each can be read.
        limits: most rows and bytes; a batch has at least one row, whatever its size.
        sizes: what rows of a topic weigh.
        turn: of the batch before; the partitions after it come first.
        paused: partitions that are not to be read now, as they are ahead of others.
    """
    waiting = {at: offsets for at, offsets in backlog(progress, ends).items() if at not in paused}
    total = sum(waiting.values())
    most = total if limits.rows is None else min(total, max(1, limits.rows))
    shares, last = _share(waiting, most, turn)
    while limits.bytes is not None and most > 1 and (weight := sizes.weigh(shares)) > limits.bytes:
        most = max(1, min(most - 1, int(most * limits.bytes / weight)))
        shares, last = _share(waiting, most, turn)
    ranges = tuple(
        OffsetRange(at.topic, at.partition, progress.next[at], progress.next[at] + rows)
        for at, rows in shares.items()
        if rows
    )
    return Planned(
        ranges=ranges,
        progress=advance(progress, ranges),
        turn=last,
        behind=frozenset(at for at, offsets in waiting.items() if offsets > shares[at]).union(
            at for at in paused if ends.get(at, 0) > progress.next.get(at, 0)
        ),
    )


def _share(
    waiting: Mapping[TopicPartition, int], most: int, turn: TopicPartition | None
) -> tuple[dict[TopicPartition, int], TopicPartition | None]:
    """Divide ``most`` rows among those that wait, who have at least as many."""
    if most >= sum(waiting.values()):
        return dict(waiting), turn
    equal = most // (_EQUAL_SHARE * len(waiting))
    shares = {at: min(offsets, equal) for at, offsets in waiting.items()}
    left = most - sum(shares.values())
    rest = {at: offsets - shares[at] for at, offsets in waiting.items()}
    total = sum(rest.values())
    for at, offsets in rest.items():
        shares[at] += left * offsets // total
    over = most - sum(shares.values())
    open = [at for at, offsets in waiting.items() if offsets > shares[at]]
    in_turn = [at for at in open if turn is None or at > turn] + [at for at in open if turn is not None and at <= turn]
    for at in in_turn[:over]:
        shares[at] += 1
    return shares, in_turn[over - 1] if over else turn


def cut(ranges: Sequence[OffsetRange], tasks: int) -> tuple[tuple[OffsetRange, ...], ...]:
    """Divide a batch among tasks evenly, no more than it has offsets; each reads neighbouring ranges.

    >>> for part in cut([OffsetRange("a", 0, 0, 6), OffsetRange("b", 0, 10, 12)], 2):
    ...     print([(str(range.at), range.start, range.end) for range in part])
    [('a-0', 0, 4)]
    [('a-0', 4, 6), ('b-0', 10, 12)]
    """
    total = sum(part.offsets for part in ranges)
    tasks = min(tasks, total)
    bounds = [total * number // tasks for number in range(tasks + 1)] if tasks else []
    starts = list(accumulate((part.offsets for part in ranges), initial=0))
    return tuple(
        tuple(
            replace(part, start=part.start + max(0, low - begins), end=min(part.end, part.start + high - begins))
            for part, begins in zip(ranges, starts, strict=False)
            if begins < high and begins + part.offsets > low
        )
        for low, high in pairwise(bounds)
    )


@dataclass(slots=True)
class RowSizes:
    """What rows of each topic weigh in bytes, judged by those that were read: rises at once, falls slowly.

    >>> sizes = RowSizes()
    >>> sizes.learn("orders", rows=10, bytes=4000)
    >>> sizes.weigh({TopicPartition("orders", 0): 5, TopicPartition("new", 0): 1})
    3024
    """

    _bytes: dict[str, float] = field(default_factory=dict)

    def learn(self, topic: str, *, rows: int, bytes: int) -> None:
        """So many rows had so many bytes, keys and headers included."""
        if rows < 1:
            return
        seen, known = bytes / rows, self._bytes.get(topic, 0.0)
        self._bytes[topic] = max(seen, known + (seen - known) / 4)

    def weigh(self, rows: Mapping[TopicPartition, int]) -> int:
        """About how many bytes they have."""
        return int(sum(count * self._bytes.get(at.topic, _FIRST_GUESS) for at, count in rows.items()))
