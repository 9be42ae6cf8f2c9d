"""Runs tasks on threads of their own, and background work on workers. The only module that starts threads.

One thread a task: a step is never called twice at a time. A failure in a task is reported once and ends its thread;
the job is torn down by whoever gets the report.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from penstock.ids import Instant
from penstock.runtime.clock import Clock
from penstock.runtime.task import Progress


class Stepped(Protocol):
    """What a thread runs."""

    id: str
    doing: str

    def step(self) -> Progress:
        """Do at most one thing."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


class TaskThread:
    """Steps one task until it is done, stopped, or fails."""

    def __init__(
        self,
        id: str,
        *,
        clock: Clock,
        around: Callable[[str], AbstractContextManager[None]],
        foreground: Callable[[], AbstractContextManager[None]],
        failed: Callable[[str, BaseException], None],
        finished: Callable[[str], None],
    ) -> None:
        self.id = id
        self._clock = clock
        self._around = around
        self._foreground = foreground
        self._failed = failed
        self._finished = finished
        self._awake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Something may have changed for the task: step it again."""
        self._awake.set()

    def start(self, task: Stepped) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, args=(task,), name=f"penstock-{self.id}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end after the step it is in."""
        self._stopping = True
        self.wake()

    def join(self, seconds: float) -> bool:
        """Wait for its end; returns whether it ended."""
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self, task: Stepped) -> None:
        try:
            with self._around(self.id):
                self._loop(task)
        except BaseException as error:
            if not self._stopping:
                self._failed(self.id, error)

    def _loop(self, task: Stepped) -> None:
        while not self._stopping:
            self._awake.clear()
            with self._foreground():
                progress = task.step()
            if progress.done:
                self._finished(self.id)
                return
            if not progress.worked:
                self._awake.wait(self._seconds(progress.wake_at))

    def _seconds(self, wake_at: Instant | None) -> float | None:
        if wake_at is None:
            return None
        return max(0.0, (wake_at - self._clock.now()) / 1_000_000)


class Workers:
    """Background work: in order for each owner, one thread an owner, results reported by the work itself."""

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._closed = False

    def submit(self, owner: str, work: Callable[[], None]) -> None:
        """Run ``work`` after all that ``owner`` submitted before."""
        if self._closed:
            return
        pool = self._pools.get(owner)
        if pool is None:
            pool = self._pools[owner] = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-{owner}")
        pool.submit(self._run, owner, work)

    def close(self) -> None:
        """Drop what has not begun; what runs is left to end by itself."""
        self._closed = True
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for what runs."""
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, owner: str, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            if not self._closed:
                self._failed(owner, error)


class BackgroundSlots:
    """The background's share of the cores: at most ``cores - 1`` jobs at a time, for Spark never preempts a task.

    On one core a background job runs between batches: it and the data path take turns.
    """

    def __init__(self, cores: int) -> None:
        self._slots = threading.BoundedSemaphore(max(1, cores - 1))
        self._turns = threading.Lock() if cores == 1 else None

    @contextmanager
    def background(self) -> Iterator[None]:
        """Hold a slot."""
        with self._slots:
            if self._turns is None:
                yield
            else:
                with self._turns:
                    yield

    @contextmanager
    def foreground(self) -> Iterator[None]:
        """Hold the data path's turn, where there are turns."""
        if self._turns is None:
            yield
        else:
            with self._turns:
                yield
