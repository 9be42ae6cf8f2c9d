"""Which records of which partitions the next batch reads, within its caps and fairly; pure, and knows no broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Final

from penstock.sources.base import Limits
from penstock.sources.kafka.offsets import OffsetRange, Offsets, Progress, TopicPartition, Topics, advance

_EQUAL_SHARE: Final = 8
"""One row in so many of a batch is divided equally, whatever waits where."""

_FIRST_GUESS: Final = 1024
"""Bytes of a row of which nothing is known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The next batch, empty if there is nothing to read, the progress after it, and whose turn was last."""

    ranges: tuple[OffsetRange, ...]
    progress: Progress
    turn: TopicPartition | None = None
    behind: frozenset[TopicPartition] = frozenset()


def ends(progress: Progress, topics: Topics, *, caught_up: Offsets | None = None) -> Offsets:
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


def backlog(progress: Progress, ends: Offsets) -> dict[TopicPartition, int]:
    """How many offsets wait in each partition that has some, in the order of partitions."""
    waiting = {at: end - progress.next[at] for at, end in sorted(ends.items())}
    return {at: offsets for at, offsets in waiting.items() if offsets > 0}


def plan(
    progress: Progress,
    ends: Offsets,
    limits: Limits,
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
