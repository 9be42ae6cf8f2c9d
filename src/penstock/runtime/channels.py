"""Channels, which are bounded queues between tasks (backpressure), and the output paths that lead to them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.elements import Batch, Element, RefCount, is_empty
from penstock.interfaces.operator import MAIN_PORT

# ---- channels --------------------------------------------------------------------------------------------------------

CAPACITY = 2
"""Batches that are queued on an edge before its sender stops taking in more."""


class Channel:
    """A queue from one task to one input of another.

    Only batches count towards the capacity, since a barrier must never wait for room. A sender checks
    ``has_room`` before it begins work that may emit, so ``put`` never blocks; one piece of work may exceed the
    capacity by the few batches that it emits.

    Attributes:
        sent: number of batches that were put.
        taken: how many of them the receiver has taken.
        through: how many of them are processed, by the receiver and downstream, as far as it has said.
    """

    def __init__(self, *, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._elements: deque[Element] = deque()
        self.sent = self.taken = self.through = 0
        self._lock = threading.Lock()
        self._on_put: Callable[[], None] = _ignore
        self._on_take: Callable[[], None] = _ignore

    def connect(self, *, on_put: Callable[[], None], on_take: Callable[[], None]) -> None:
        """Call ``on_put`` after each put, and ``on_take`` when there may be room again or all is acknowledged."""
        self._on_put = on_put
        self._on_take = on_take

    @property
    def has_room(self) -> bool:
        """Whether the sender may begin work that emits a batch here."""
        return self.sent - self.taken < self._capacity

    @property
    def is_drained(self) -> bool:
        """Whether nothing is queued, and the receiver has acknowledged all batches."""
        return not self._elements and self.through == self.sent

    def put(self, element: Element) -> None:
        """Append an element."""
        with self._lock:
            self._elements.append(element)
            self.sent += isinstance(element, Batch)
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
            self.taken += isinstance(element, Batch)
        self._on_take()
        return element

    def acknowledge(self, through: int) -> None:
        """Note that so many of the batches are processed, by the receiver and downstream."""
        with self._lock:
            is_new = through > self.through
            self.through = max(through, self.through)
        if is_new:
            self._on_take()

    def drain(self) -> list[Element]:
        """Remove and return all elements, when the job is torn down."""
        with self._lock:
            left = list(self._elements)
            self._elements.clear()
            self.taken = self.through = self.sent
        return left


def _ignore() -> None:
    pass


# ---- output paths: through chained steps into channels ---------------------------------------------------------------

Rewrite: TypeAlias = Callable[[Batch], Batch]
"""Chained stateless steps: the batch with another lazy frame and the metrics that it observes. Runs no job."""
PersistBatch: TypeAlias = Callable[[Batch, int], Batch]
"""Persists a batch for a number of consumers; it is freed when all of them have released it. Runs no job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPath:
    """A route whose steps are compiled and whose leaves are channels.

    ``only_if`` is a metric and its figure: if that is zero, a batch has no rows for this branch.
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
        """Whether every channel has room, so that the task may begin work that emits a batch."""
        return all(channel.has_room for channel in self._channels)

    @property
    def is_drained(self) -> bool:
        """Whether all tasks downstream have processed all that was sent."""
        return all(channel.is_drained for channel in self._channels)

    @property
    def sent(self) -> tuple[int, ...]:
        """The number of batches that were sent along each path."""
        return tuple(channel.sent for channel in self._channels)

    def is_through(self, sent: tuple[int, ...]) -> bool:
        """Whether all tasks downstream have processed what was sent when ``sent`` was this."""
        return all(channel.through >= count for channel, count in zip(self._channels, sent, strict=True))

    @property
    def is_end(self) -> bool:
        """Whether no task is downstream: the task is a sink."""
        return not self._channels

    def emit(self, batch: Batch, port: str = MAIN_PORT, *, ready: Callable[[], None] | None = None) -> None:
        """Send a batch along the port's path. Without a path it is released at once.

        ``ready`` is called when the batch is rewritten, before a task downstream can take it.
        """
        path = self._paths.get(port)
        if path is None:
            batch.release()
            return
        self._sent += 1
        rewritten = list(self._walk(replace(batch, sequence=self._sent), path))
        if ready is not None:
            ready()
        for channel, each in rewritten:
            channel.put(each)

    def broadcast(self, element: Element) -> None:
        """Send a control element to all channels."""
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
        """The batch for several branches, persisted if more than one of them will run it."""
        runners = sum(not is_empty(replace(batch, only_if=each.only_if or batch.only_if)) for each in branches)
        if runners > 1:
            return self._keep(batch, len(branches))
        return replace(batch, ref_counts=(RefCount(batch.release, holders=len(branches)),))
