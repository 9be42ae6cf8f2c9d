"""Notices partitions that have records waiting and bring none: first a warning, then a new client, then an error. Pure.

A client may hold an assignment and get nothing, without any error: a topic that was deleted, a lost connection that
nobody closed. Time counts only while somebody looks, so a job that is held up by what is behind it has no stall.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from penstock.errors import SourceUnavailable
from penstock.ids import Instant
from penstock.sources.kafka.offsets import Offsets, TopicPartition

_LONGEST_LOOK: Final = 1_000_000
"""Microseconds that one look may add: what is beyond was not spent waiting for the broker."""


class Action(str, Enum):
    """What to do about a stall, in the order of time."""

    WARN = "warn"
    REOPEN = "reopen"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """After how many microseconds without a record, though some wait, each is done."""

    warn: int
    reopen: int
    fail: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A partition that does not move.

    Attributes:
        at: the partition.
        action: what is due now; told once.
        waited: microseconds that it was waited for.
        next: where it stands.
        end: where it ends.
    """

    at: TopicPartition
    action: Action
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
    looked: Instant
    waited: int = 0
    done: tuple[Action, ...] = ()


@dataclass(slots=True)
class StallWatch:
    """Follows the partitions of one source from look to look.

    >>> watch = StallWatch(Patience(warn=1_000_000, reopen=2_000_000, fail=9_000_000))
    >>> at = TopicPartition("orders", 0)
    >>> watch.look(Instant(0), {at: 5}, {at: 9})
    ()
    >>> [stall.action.value for stall in watch.look(Instant(1_000_000), {at: 5}, {at: 9})]
    ['warn']
    """

    patience: Patience
    _waits: dict[TopicPartition, _Wait] = field(default_factory=dict)

    def look(
        self, now: Instant, next: Offsets, ends: Offsets, *, paused: Collection[TopicPartition] = ()
    ) -> tuple[Stall, ...]:
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

    def _go_on(self, at: TopicPartition, next: int, now: Instant) -> _Wait:
        wait = self._waits.get(at)
        if wait is None or wait.next != next:
            return _Wait(next=next, looked=now)
        return replace(wait, looked=now, waited=wait.waited + min(now - wait.looked, _LONGEST_LOOK))

    def _due(self, at: TopicPartition, end: int) -> list[Stall]:
        wait = self._waits[at]
        limits = {Action.WARN: self.patience.warn, Action.REOPEN: self.patience.reopen, Action.FAIL: self.patience.fail}
        due = [action for action in Action if wait.waited >= limits[action] and action not in wait.done]
        self._waits[at] = replace(wait, done=(*wait.done, *due))
        return [Stall(at=at, action=action, waited=wait.waited, next=wait.next, end=end) for action in due]
