"""Bounded queues (backpressure) and the routes a task sends along."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.elements import Batch, Element, RefCount, is_empty
from penstock.interfaces.operator import MAIN_PORT

# ----------------------------------------------------------------------------------------------------
# A bounded queue of elements on one edge: that bound is the backpressure. Knows nothing of what elements mean.

CAPACITY = 2
"""Batches that wait on an edge before its sender stops taking in more."""


class Channel:
    """First in, first out, from one task to one input of another.

    Only batches count towards the capacity, for a barrier must never wait behind a full channel's limit. A sender
    looks at :attr:`has_room` before it begins work that may emit, so :meth:`put` never blocks; one piece of work may
    overshoot by the few batches it emits.
    """

    def __init__(self, *, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._elements: deque[Element] = deque()
        self._batches = 0
        self._is_worked_on = False
        self._lock = threading.Lock()
        self._on_put: Callable[[], None] = _nobody
        self._on_take: Callable[[], None] = _nobody

    def connect(self, *, on_put: Callable[[], None], on_take: Callable[[], None]) -> None:
        """Tell the receiver when something came, and the sender when there is room again or nothing left to do."""
        self._on_put = on_put
        self._on_take = on_take

    @property
    def has_room(self) -> bool:
        """Whether the sender may begin work that emits a batch here."""
        return self._batches < self._capacity

    @property
    def is_awaited(self) -> bool:
        """Whether all that was sent is through: whoever receives has told so, and nothing waits."""
        return not self._elements and not self._is_worked_on

    def put(self, element: Element) -> None:
        """Append an element."""
        with self._lock:
            self._elements.append(element)
            self._batches += isinstance(element, Batch)
        self._on_put()

    def peek(self) -> Element | None:
        """The next element, left where it is."""
        with self._lock:
            return self._elements[0] if self._elements else None

    def take(self) -> Element:
        """Remove and return the next element.

        Raises:
            IndexError: there is none; the one receiver has just peeked, so this cannot happen to it.
        """
        with self._lock:
            element = self._elements.popleft()
            is_batch = isinstance(element, Batch)
            self._batches -= is_batch
            self._is_worked_on |= is_batch
        self._on_take()
        return element

    def through(self) -> bool:
        """The receiver is done with what it took, and so is everybody behind it; whether that is news."""
        with self._lock:
            told, self._is_worked_on = self._is_worked_on, False
        if told:
            self._on_take()
        return told

    def drain(self) -> list[Element]:
        """Remove and return all that is left, when the job is torn down."""
        with self._lock:
            left, self._batches = list(self._elements), 0
            self._elements.clear()
        return left


def _nobody() -> None:
    """Nobody waits yet."""


# ----------------------------------------------------------------------------------------------------
# Where a task's elements go: along routes, rewritten by fused steps, into channels. Runs nothing itself.


class Rewrite(Protocol):
    """Fused stateless steps: a batch with another lazy frame, and with the measures that were built into it."""

    def __call__(self, batch: Batch) -> Batch:
        """Rewrite; runs no job."""
        ...


class PersistBatch(Protocol):
    """Persists a batch that several will run. The result's ref counts free it when each of ``readers`` released it."""

    def __call__(self, batch: Batch, readers: int) -> Batch:
        """Persist; runs no job."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPath:
    """A route, ready to walk: its steps compiled, its leaf a channel.

    ``only_if`` is the measure and the figure without which a batch has no rows for this branch.
    """

    rewrite: Rewrite | None
    channel: Channel | None = None
    branches: tuple[OutputPath, ...] = ()
    only_if: tuple[str, str] | None = None

    def channels(self) -> Sequence[Channel]:
        """All channels it leads to."""
        found = [channel for branch in self.branches for channel in branch.channels()]
        return [self.channel, *found] if self.channel is not None else found


class TaskOutput:
    """All outputs of one task. Batches go by port; control elements go everywhere, in order with them."""

    def __init__(self, paths: Mapping[str, OutputPath], keep: PersistBatch) -> None:
        self._paths = paths
        self._keep = keep
        self._channels = [channel for path in paths.values() for channel in path.channels()]
        self._sent = 0

    @property
    def has_room(self) -> bool:
        """Whether every channel has room, so that work may begin that emits anywhere."""
        return all(channel.has_room for channel in self._channels)

    @property
    def is_awaited(self) -> bool:
        """Whether everybody downstream is through with all that was sent."""
        return all(channel.is_awaited for channel in self._channels)

    @property
    def is_end(self) -> bool:
        """Whether nothing comes behind: the task is a sink."""
        return not self._channels

    def emit(self, batch: Batch, port: str = MAIN_PORT, *, ready: Callable[[], None] | None = None) -> None:
        """Send a batch along the port's route. One that nobody reads is released at once.

        ``ready`` is called when all its rewriting is done, before anybody downstream can see it.
        """
        path = self._paths.get(port)
        if path is None:
            batch.release()
            return
        self._sent += 1
        parcels = list(self._walk(replace(batch, sequence=self._sent), path))
        if ready is not None:
            ready()
        for channel, rewritten in parcels:
            channel.put(rewritten)

    def broadcast(self, element: Element) -> None:
        """Send a control element to everybody."""
        for channel in self._channels:
            channel.put(element)

    def _walk(self, batch: Batch, path: OutputPath) -> Iterator[tuple[Channel, Batch]]:
        if path.rewrite is not None:
            batch = path.rewrite(batch)
        if path.channel is not None:
            yield path.channel, batch
        if path.branches:
            kept = self._kept(batch, path.branches)
            for branch in path.branches:
                yield from self._walk(kept, branch)

    def _kept(self, batch: Batch, branches: Sequence[OutputPath]) -> Batch:
        """A batch for several branches: one that no more than one will run need not be persisted."""
        runners = sum(not is_empty(replace(batch, only_if=each.only_if or batch.only_if)) for each in branches)
        if runners > 1:
            return self._keep(batch, len(branches))
        return replace(batch, ref_counts=(RefCount(batch.release, holders=len(branches)),))
