"""Who may run a Spark job beside the data path, and when. Knows neither Spark nor what the jobs do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class BackgroundSlots:
    """The background's share of the cores: at most ``cores - 1`` jobs at a time, for Spark never preempts a task.

    On one core a background job runs between batches: it and the data path take turns. A snapshot takes several jobs,
    and while it is under way no more than one piece of other work begins: a checkpoint waits for what runs and for one
    merge, not for one between each two of its jobs. One it does wait for, or merges would never have their turn where
    snapshot follows snapshot.
    """

    def __init__(self, cores: int) -> None:
        self._free = max(1, cores - 1)
        self._changed = threading.Condition()
        self._snapshots = 0
        self._others = 0  # that may still begin beside the snapshots under way
        self._thread = threading.local()
        self._turns = threading.Lock() if cores == 1 else None

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """What this thread does in the background belongs to a snapshot."""
        with self._changed:
            self._snapshots += 1
            self._others = 1
        self._thread.is_ahead = True
        try:
            yield
        finally:
            self._thread.is_ahead = False
            with self._changed:
                self._snapshots -= 1
                self._changed.notify_all()

    @contextmanager
    def background(self) -> Iterator[None]:
        """Hold a slot."""
        self._take(is_ahead=getattr(self._thread, "is_ahead", False))
        try:
            with self.foreground():
                yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

    def _take(self, *, is_ahead: bool) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._free and (is_ahead or not self._snapshots or self._others))
            self._free -= 1
            if not is_ahead and self._snapshots:
                self._others -= 1

    @contextmanager
    def foreground(self) -> Iterator[None]:
        """Hold the data path's turn, where there are turns."""
        if self._turns is None:
            yield
        else:
            with self._turns:
                yield
