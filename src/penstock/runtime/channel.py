"""A bounded queue of elements on one edge: that bound is the backpressure. Knows nothing of what elements mean."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from penstock.elements import Batch, Element

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
