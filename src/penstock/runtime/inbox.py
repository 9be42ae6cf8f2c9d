"""What waits for the deciding thread: events in the order they came, and alarms by time. Decides nothing."""

from __future__ import annotations

import heapq
import itertools
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.checkpoint.messages import CheckpointRequested, Event, StopRequested, Timer
from penstock.ids import Instant

CAPACITY = 10_000
"""Events that may wait for the deciding thread; who would put in more waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """A task or worker failed; ends the attempt."""

    owner: str
    error: BaseException


Request: TypeAlias = CheckpointRequested | StopRequested
"""Somebody waits for its answer."""

Item: TypeAlias = "Event | Broke | Callable[[], None]"


@dataclass(order=True, slots=True)
class _Alarm:
    at: Instant
    order: int
    timer: Timer = field(compare=False)


class Inbox:
    """Filled from any thread; the alarms belong to the deciding one."""

    def __init__(self) -> None:
        self._items: queue.Queue[Item] = queue.Queue(CAPACITY)
        self._alarms: list[_Alarm] = []
        self._order = itertools.count()

    def put(self, item: Item) -> None:
        """Hand in."""
        self._items.put(item)

    def take(self, seconds: float | None = 0.0) -> Item | None:
        """The next item, waited for at most so long (``None``: for ever); ``None`` if there is none."""
        try:
            return self._items.get_nowait() if seconds == 0 else self._items.get(timeout=seconds)
        except queue.Empty:
            return None

    def drain(self) -> Iterator[Item]:
        """Take out all that waits, from any thread."""
        while (item := self.take()) is not None:
            yield item

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, alarms apart."""
        return self._items.empty()

    def set_alarm(self, at: Instant, timer: Timer) -> None:
        """Ask for the timer at this instant."""
        heapq.heappush(self._alarms, _Alarm(at, next(self._order), timer))

    @property
    def next_alarm(self) -> Instant | None:
        """When the first alarm is due."""
        return self._alarms[0].at if self._alarms else None

    def due(self, now: Instant) -> Timer | None:
        """Take out the first alarm that is due, if one is."""
        if self._alarms and self._alarms[0].at <= now:
            return heapq.heappop(self._alarms).timer
        return None
