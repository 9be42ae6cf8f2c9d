"""Lets one consumer of a kept batch run it alone first: only then are its figures whole. Knows neither tasks nor Spark.

Figures of a persisted frame arrive when the tasks that computed its partitions end. A consumer that finds partitions in
the cache, computed by another's job that still runs, would read figures that lack them, and take zero for an answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class FirstRun:
    """Who runs first. Nothing here blocks: whoever may not go yet is called back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: str | None = None
        self._done = False
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_done(self) -> bool:
        """Whether a job over the batch has succeeded."""
        return self._done

    def claim(self, who: str, when_done: Callable[[], None]) -> bool:
        """Whether ``who`` may run the batch now; if not, ``when_done`` is called once it may ask again."""
        with self._lock:
            if self._done or self._runner in {None, who}:
                self._runner = self._runner or who
                return True
            self._waiting.append(when_done)
            return False

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the first job has succeeded; at once if it has."""
        with self._lock:
            if not self._done:
                self._waiting.append(callback)
                return
        callback()

    def done(self) -> None:
        """The first job over the batch has succeeded: the others may go. Later calls do nothing."""
        with self._lock:
            self._done = True
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
