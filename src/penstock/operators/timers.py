"""Timers of one step, in event time and in processing time: a pure queue. Knows neither clocks nor what fires.

Time comes with the question. An event-time timer is due once the watermark has reached it: no row strictly below it
is expected then, the rule by which a window closes at its end.
"""

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
    """Due at ``at`` microseconds since the epoch, for ``key``."""

    at: int
    key: str = ""


_SPARE: Final = 64
"""Timers that were taken out and may stay in a heap, beside one for each that waits."""


class _Line:
    """The timers of one kind. The heap may hold timers that were taken out; the set is what counts."""

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
    """Timers by kind, time and key. A timer is one however often it is added, and is handed out once.

    >>> queue = TimerQueue()
    >>> queue.add(TimeKind.EVENT, KeyedTimer(20, "b")), queue.add(TimeKind.EVENT, KeyedTimer(10, "a"))
    (True, True)
    >>> queue.due(TimeKind.EVENT, 19), queue.due(TimeKind.EVENT, 19), queue.next(TimeKind.EVENT)
    ([KeyedTimer(at=10, key='a')], [], 20)
    """

    def __init__(self) -> None:
        self._lines = {kind: _Line() for kind in TimeKind}

    def __len__(self) -> int:
        return sum(len(line.waiting) for line in self._lines.values())

    def add(self, kind: TimeKind, timer: KeyedTimer) -> bool:
        """Wait for a timer; ``False`` if it is waited for already. One in the past is due at the next question."""
        return self._lines[kind].add(timer)

    def remove(self, kind: TimeKind, timer: KeyedTimer) -> bool:
        """Wait for it no longer; ``False`` if nobody did."""
        waiting = self._lines[kind].waiting
        if timer not in waiting:
            return False
        waiting.discard(timer)
        return True

    def next(self, kind: TimeKind) -> int | None:
        """When the next timer is due."""
        first = self._lines[kind].first()
        return None if first is None else first.at

    def due(self, kind: TimeKind, until: int) -> list[KeyedTimer]:
        """Take out what is due at ``until`` or before, by time, then key.

        What fires may add timers that are due as well: ask until nothing comes.
        """
        return self._lines[kind].due(until)

    def snapshot(self) -> Json:
        """All that wait, as plain values that mean the same in another process."""
        return {
            kind.value: [[timer.at, timer.key] for timer in sorted(line.waiting)] for kind, line in self._lines.items()
        }

    @classmethod
    def restored(cls, snapshot: Json) -> TimerQueue:
        """The inverse of :meth:`snapshot`; ``None`` is a queue without timers.

        Raises:
            StateIncompatible: this is no such snapshot.
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
    return StateIncompatible(f"the state holds {value!r} where timers are expected: another kind of step wrote it")
