"""Pure decisions of a Kafka source: what is new or lost in its topics, what the next batch reads."""

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

# ---- new and lost partitions -----------------------------------------------------------------------------------------


class LossReason(str, Enum):
    """Why records can no longer be read."""

    EXPIRED = "expired"
    """Retention or a delete request removed them before they were read."""
    TRUNCATED = "truncated"
    """The partition ends before the position: an unclean election, a restored copy, another cluster."""
    RECREATED = "recreated"
    """The topic was deleted and made again under its name."""
    TOPIC_GONE = "topic gone"
    PARTITION_GONE = "partition gone"


TRANSIENT_REASONS: Final = frozenset({LossReason.TOPIC_GONE, LossReason.PARTITION_GONE, LossReason.TRUNCATED})
"""Losses that a broker may report for a moment in error, see ``AbsenceFilter``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostOffsets:
    """Offsets of one partition that can no longer be read.

    Attributes:
        at: the partition.
        reason: why.
        start: the first lost offset.
        end: the first offset after them; ``None`` if unknown.
    """

    at: TopicPartition
    reason: LossReason
    start: int
    end: int | None = None

    @property
    def offsets(self) -> int | None:
        """Number of lost offsets: the most records that were lost."""
        return None if self.end is None else self.end - self.start

    def __str__(self) -> str:
        count = "from offset" if self.end is None else f"{self.offsets} offsets from"
        return f"{self.at}: {self.reason.value}, {count} {self.start} on"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChanges:
    """What ``reconcile`` found.

    Attributes:
        position: the position with the new partitions added. Lost partitions keep their offsets.
        found: the new partitions.
        lost: what was lost.
    """

    position: KafkaPosition
    found: tuple[TopicPartition, ...] = ()
    lost: tuple[LostOffsets, ...] = ()


def reconcile(position: KafkaPosition, topics: Topics, *, subscribed: Callable[[str], bool]) -> TopicChanges:
    """Compare a position with the topics as they are now.

    A new partition or topic begins at its earliest offset, so that none of its records is missed. A bounded source
    takes only new partitions that it has a stop for. The offsets of topics that are no longer subscribed to are kept.

    Args:
        position: how far the topics were read.
        topics: the subscribed topics as they are now.
        subscribed: whether the source reads a topic of that name.
    """
    lost = tuple(_losses(position, topics, subscribed))
    recreated = {loss.at.topic for loss in lost if loss.reason is LossReason.RECREATED}
    found: dict[TopicPartition, int] = {}
    ids = dict(position.ids)
    for name, topic in topics.items():
        if name in recreated:
            continue
        new = {at: earliest for at, earliest in _earliest(name, topic) if at not in position.next}
        if position.stop is not None:
            new = {at: earliest for at, earliest in new.items() if at in position.stop}
        if position.stop is None or new or name in ids:
            ids[name] = topic.id or ids.get(name)
        found |= new
    after = replace(position, ids=ids, next={**position.next, **found})
    return TopicChanges(position=after, found=tuple(sorted(found)), lost=lost)


def _earliest(name: str, topic: Topic) -> Iterator[tuple[TopicPartition, int]]:
    for partition, available in topic.partitions.items():
        yield TopicPartition(name, partition), available.earliest


def _losses(position: KafkaPosition, topics: Topics, subscribed: Callable[[str], bool]) -> Iterator[LostOffsets]:
    for at, next in sorted(position.next.items()):
        if not subscribed(at.topic):
            continue
        stop = None if position.stop is None else position.stop.get(at, next)
        if stop is not None and next >= stop:
            continue  # it was read before it was lost
        loss = _loss(at, next, stop, position.ids.get(at.topic), topics.get(at.topic))
        if loss is not None:
            yield loss


def _loss(at: TopicPartition, next: int, stop: int | None, id: str | None, topic: Topic | None) -> LostOffsets | None:
    if topic is None:
        return LostOffsets(at=at, reason=LossReason.TOPIC_GONE, start=next, end=stop)
    if id is not None and topic.id is not None and id != topic.id:
        return LostOffsets(at=at, reason=LossReason.RECREATED, start=next, end=stop)
    available = topic.partitions.get(at.partition)
    if available is None:
        return LostOffsets(at=at, reason=LossReason.PARTITION_GONE, start=next, end=stop)
    if next < available.earliest:
        end = available.earliest if stop is None else min(available.earliest, stop)
        return LostOffsets(at=at, reason=LossReason.EXPIRED, start=next, end=end)
    if next > available.latest:
        return LostOffsets(at=at, reason=LossReason.TRUNCATED, start=available.latest, end=next)
    return None


def skip_lost(position: KafkaPosition, lost: Sequence[LostOffsets], topics: Topics) -> KafkaPosition:
    """The position after what was lost.

    - Expired: the earliest offset.
    - Truncated: the end, since the records before it were read; the earliest offset if the topic has no id that
      proves it is the same topic.
    - Topic made again: its earliest offsets. A bounded source does not read it: its stop belongs to the old topic.
    - Topic or partition gone: none. If it comes back, it is new.
    """
    gone: set[TopicPartition] = set()
    after = dict(position.next)
    ids = dict(position.ids)
    for loss in lost:
        topic = topics.get(loss.at.topic)
        available = None if topic is None else topic.partitions.get(loss.at.partition)
        if topic is not None and loss.reason is LossReason.RECREATED and position.stop is None:
            ids[loss.at.topic] = topic.id
            after |= dict(_earliest(loss.at.topic, topic))
        if available is None or (loss.reason is LossReason.RECREATED and position.stop is not None):
            gone.add(loss.at)
        elif loss.reason is LossReason.TRUNCATED and topic is not None and topic.id is not None:
            after[loss.at] = available.latest
        else:
            after[loss.at] = available.earliest
    next = {at: offset for at, offset in after.items() if at not in gone}
    stop = None if position.stop is None else {at: end for at, end in position.stop.items() if at not in gone}
    kept = {at.topic for at in next} | {name for name in ids if name in topics}
    return KafkaPosition(ids={name: id for name, id in ids.items() if name in kept}, next=next, stop=stop)


def lost_offsets_error(lost: Sequence[LostOffsets]) -> SourceChanged:
    """The error for lost offsets, with the remedies."""
    shown = "; ".join(map(str, lost[:5])) + (f"; and {len(lost) - 5} more" if len(lost) > 5 else "")  # noqa: PLR2004
    remedies = " ".join(dict.fromkeys(_REMEDIES[loss.reason] for loss in lost))
    msg = (
        f"Records that were to be read are no longer there ({shown}). Reading on would leave them out, or read others "
        f"for them. {remedies} To go on without them, with each range counted, write on_lost_offsets='continue'. To "
        "begin again, start with penstock run … --fresh, or give the source a new uid."
    )
    return SourceChanged(msg)


_REMEDIES: Final = {
    LossReason.EXPIRED: "Keep records for longer than the job may be down (retention.ms, retention.bytes).",
    LossReason.TRUNCATED: "Check that servers= is the same cluster, and that it lost no replica that was ahead of "
    "others (unclean.leader.election.enable).",
    LossReason.RECREATED: "A topic's name is not its identity. Give the new topic another name, "
    "or the source another uid.",
    LossReason.TOPIC_GONE: "Check that the topic exists and that this client may describe it.",
    LossReason.PARTITION_GONE: "Check that servers= is the same cluster: partitions of a topic never become fewer.",
}


@dataclass(slots=True)
class AbsenceFilter:
    """Accepts losses of ``TRANSIENT_REASONS`` only after they were reported for a while.

    Brokers that have just started do not know all topics for a moment, nor that all records of a partition are stable.

    Args:
        gone_after: microseconds from the first report to acceptance.

    >>> gone = LostOffsets(at=TopicPartition("orders", 0), reason=LossReason.TOPIC_GONE, start=7)
    >>> absences = AbsenceFilter(gone_after=1_000_000)
    >>> absences.certain([gone], MonotonicTime(0)), len(absences.certain([gone], MonotonicTime(1_000_000)))
    ((), 1)
    """

    gone_after: int
    _since: Mapping[TopicPartition, MonotonicTime] = field(default_factory=dict)

    def certain(self, lost: Sequence[LostOffsets], now: MonotonicTime) -> tuple[LostOffsets, ...]:
        """The losses of one report that are certain."""
        self._since = {loss.at: self._since.get(loss.at, now) for loss in lost if loss.reason in TRANSIENT_REASONS}
        return tuple(loss for loss in lost if now >= self._since.get(loss.at, now - self.gone_after) + self.gone_after)


# ---- the next batch --------------------------------------------------------------------------------------------------

_EQUAL_SHARE: Final = 8
"""Every eighth row of a batch is divided equally among partitions, however much waits in each."""
_FIRST_GUESS: Final = 1024
"""Assumed bytes of a row while no row of its topic was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The next batch.

    Attributes:
        ranges: what it reads; empty if there is nothing to read.
        position: the position after it.
        turn: the partition that got the last row left over by rounding.
        behind: the partitions with more rows than the batch takes.
    """

    ranges: tuple[OffsetRange, ...]
    position: KafkaPosition
    turn: TopicPartition | None = None
    behind: frozenset[TopicPartition] = frozenset()


def ends(position: KafkaPosition, topics: Topics, *, caught_up: Offsets | None = None) -> Offsets:
    """The offset up to which each partition can be read now.

    The latest offset, limited by the stops of a bounded source and by ``caught_up``, the ends when a draining run
    began. A partition missing from a given limit is not read.
    """
    found = {}
    for name, topic in topics.items():
        for partition, available in topic.partitions.items():
            at = TopicPartition(name, partition)
            bounds = [bound.get(at, 0) for bound in (position.stop, caught_up) if bound is not None]
            if at in position.next:
                found[at] = min([available.latest, *bounds])
    return found


def backlog(position: KafkaPosition, ends: Offsets) -> dict[TopicPartition, int]:
    """Number of offsets that wait in each partition; partitions with none are left out."""
    waiting = {at: end - position.next[at] for at, end in sorted(ends.items())}
    return {at: offsets for at, offsets in waiting.items() if offsets > 0}


def plan(
    position: KafkaPosition,
    ends: Offsets,
    limits: ReadLimit,
    sizes: RowSizes,
    *,
    turn: TopicPartition | None = None,
    paused: Collection[TopicPartition] = (),
) -> Planned:
    """Plan the next batch.

    Each partition gives the same share of what waits in it. So partitions that hold the same hours stay together in
    event time. An eighth of the batch is divided equally: a partition with few rows never waits for one with many.
    Rows left over by rounding go to the partitions in turn, so with fewer rows than partitions each is still read.

    Args:
        position: the next offset of each partition.
        ends: up to where each can be read.
        limits: most rows and bytes; a batch has at least one row, whatever its size.
        sizes: bytes per row of each topic.
        turn: of the previous batch; leftover rows go first to the partitions after it.
        paused: partitions that are not read now, because they are ahead of others.
    """
    waiting = {at: offsets for at, offsets in backlog(position, ends).items() if at not in paused}
    total = sum(waiting.values())
    most = total if limits.rows is None else min(total, max(1, limits.rows))
    shares, last = _share(waiting, most, turn)
    while limits.bytes is not None and most > 1 and (weight := sizes.estimate_bytes(shares)) > limits.bytes:
        most = max(1, min(most - 1, int(most * limits.bytes / weight)))
        shares, last = _share(waiting, most, turn)
    ranges = tuple(
        OffsetRange(at.topic, at.partition, position.next[at], position.next[at] + rows)
        for at, rows in shares.items()
        if rows
    )
    return Planned(
        ranges=ranges,
        position=advance(position, ranges),
        turn=last,
        behind=frozenset(at for at, offsets in waiting.items() if offsets > shares[at]).union(
            at for at in paused if ends.get(at, 0) > position.next.get(at, 0)
        ),
    )


def _share(
    waiting: Mapping[TopicPartition, int], most: int, turn: TopicPartition | None
) -> tuple[dict[TopicPartition, int], TopicPartition | None]:
    """Divide ``most`` rows among the partitions that wait; also the next ``turn``."""
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
    """Divide a batch evenly among tasks, at most one for each offset; each reads neighbouring ranges.

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
    """Estimated bytes per row of each topic, by the rows that were read: rises at once, falls slowly.

    >>> sizes = RowSizes()
    >>> sizes.learn("orders", rows=10, bytes=4000)
    >>> sizes.estimate_bytes({TopicPartition("orders", 0): 5, TopicPartition("new", 0): 1})
    3024
    """

    _bytes: dict[str, float] = field(default_factory=dict)

    def learn(self, topic: str, *, rows: int, bytes: int) -> None:
        """Note that ``rows`` rows of a topic had ``bytes`` bytes."""
        if rows < 1:
            return
        seen, known = bytes / rows, self._bytes.get(topic, 0.0)
        self._bytes[topic] = max(seen, known + (seen - known) / 4)

    def estimate_bytes(self, rows: Mapping[TopicPartition, int]) -> int:
        """Estimated bytes of that many rows of each partition."""
        return int(sum(count * self._bytes.get(at.topic, _FIRST_GUESS) for at, count in rows.items()))
