"""Timers of one step, in event time and in processing time."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.errors import StateIncompatible
from penstock.handles import Json


class TimeKind(str, Enum):
    """Which time a timer waits for."""

    EVENT = "event"
    """The step's watermark."""
    PROCESSING = "processing"
    """The wall clock."""


@dataclass(frozen=True, slots=True, order=True)
class KeyedTimer:
    """A timer of ``key``, due at ``at`` microseconds since the epoch."""

    at: int
    key: str = ""


_SPARE: Final = 64
"""Timers already removed that a heap may hold, in addition to one for each that waits."""


class _TimerHeap:
    """The timers of one kind. The heap may hold removed timers; the set has those that wait."""

    def __init__(self) -> None:
        self.waiting: set[KeyedTimer] = set()
        self._heap: list[KeyedTimer] = []

    def add(self, timer: KeyedTimer) -> bool:
        if timer in self.waiting:
            return False
        self.waiting.add(timer)
        heapq.heappush(self._heap, timer)
        if len(self._heap) > 2 * len(self.waiting) + _SPARE:
            self._heap = sorted(self.waiting)
        return True

    def first(self) -> KeyedTimer | None:
        while self._heap and self._heap[0] not in self.waiting:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def due(self, until: int) -> list[KeyedTimer]:
        found: list[KeyedTimer] = []
        while (timer := self.first()) is not None and timer.at <= until:
            self.waiting.discard(timer)
            found.append(timer)
        return found


class TimerQueue:
    """Timers by kind, time and key. A timer that is added several times is due once.

    An event-time timer is due once the watermark has reached it: no row strictly below it is expected then, the rule by
    which a window closes at its end.

    >>> queue = TimerQueue()
    >>> queue.add(TimeKind.EVENT, KeyedTimer(20, "b")), queue.add(TimeKind.EVENT, KeyedTimer(10, "a"))
    (True, True)
    >>> queue.due(TimeKind.EVENT, 19), queue.due(TimeKind.EVENT, 19), queue.next(TimeKind.EVENT)
    ([KeyedTimer(at=10, key='a')], [], 20)
    """

    def __init__(self) -> None:
        self._heaps = {kind: _TimerHeap() for kind in TimeKind}

    def __len__(self) -> int:
        return sum(len(heap.waiting) for heap in self._heaps.values())

    def add(self, kind: TimeKind, timer: KeyedTimer) -> bool:
        """Add a timer; ``False`` if it waits already. One in the past is due at the next call of ``due``."""
        return self._heaps[kind].add(timer)

    def remove(self, kind: TimeKind, timer: KeyedTimer) -> bool:
        """Remove a timer; ``False`` if it does not wait."""
        waiting = self._heaps[kind].waiting
        if timer not in waiting:
            return False
        waiting.discard(timer)
        return True

    def next(self, kind: TimeKind) -> int | None:
        """When the next timer is due; ``None`` if none waits."""
        first = self._heaps[kind].first()
        return None if first is None else first.at

    def due(self, kind: TimeKind, until: int) -> list[KeyedTimer]:
        """Remove and return the timers due at ``until`` or before, by time, then key.

        Timers that fire may add others that are due as well: call it until it returns none.
        """
        return self._heaps[kind].due(until)

    def snapshot(self) -> Json:
        """All timers that wait, as plain values that mean the same in another process."""
        return {
            kind.value: [[timer.at, timer.key] for timer in sorted(heap.waiting)] for kind, heap in self._heaps.items()
        }

    @classmethod
    def restored(cls, snapshot: Json) -> TimerQueue:
        """The inverse of ``snapshot``; ``None`` is a queue without timers.

        Raises:
            StateIncompatible: ``snapshot`` is no snapshot of timers.
        """
        queue = cls()
        if snapshot is None:
            return queue
        if not isinstance(snapshot, Mapping) or not snapshot.keys() <= {kind.value for kind in TimeKind}:
            raise _unreadable(snapshot)
        for kind, timers in snapshot.items():
            if not isinstance(timers, (list, tuple)):
                raise _unreadable(timers)
            for timer in timers:
                queue.add(TimeKind(kind), _timer(timer))
        return queue


def _timer(value: Json) -> KeyedTimer:
    match value:
        case [int(at), str(key)]:
            return KeyedTimer(at, key)
        case _:
            raise _unreadable(value)


def _unreadable(value: Json) -> StateIncompatible:
    return StateIncompatible(
        f"The state holds {value!r} where timers are expected. Another kind of step wrote it. Give this step a uid of "
        "its own."
    )
