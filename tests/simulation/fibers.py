"""Pieces of work that stop in the middle and go on later, one at a time: threads that hand a baton over.

Deterministic, since only the holder of the baton runs. Knows nothing of what is run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from typing import Any


class Killed(BaseException):
    """The process of this piece of work is dead; not an ``Exception``, so that nobody handles it on the way."""


class _Carrier:
    """A thread that runs one piece of work after another, whenever it is handed the baton."""

    def __init__(self) -> None:
        self.go = threading.Lock()
        self.back = threading.Lock()
        self.go.acquire()
        self.back.acquire()
        self.work: Callable[[], None] = lambda: None
        self.is_done = True
        threading.Thread(target=self._loop, daemon=True, name="simulated").start()

    def _loop(self) -> None:
        while True:
            self.go.acquire()
            self.work()
            self.is_done = True
            self.back.release()


_idle: list[_Carrier] = []


def busy() -> int:
    """How many threads carry a piece of work that is neither over nor ended."""
    return sum(thread.name == "simulated" for thread in threading.enumerate()) - len(_idle)


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this process on one core, where the baton is handed over in half the time; for work that is not shared."""
    before = _cores()
    _move_to({before[os.getpid() % len(before)]} if before else set())
    try:
        yield
    finally:
        _move_to(set(before))


def queue_of_cores(workers: int, context: BaseContext) -> Any:
    """A core for each of so many worker processes, to be taken by ``take_core``."""
    cores = _cores() or [0]
    queue = context.Queue()
    for number in range(workers):
        queue.put(cores[number % len(cores)])
    return queue


def take_core(queue: Any) -> None:
    """Keep this worker process on the next core of the queue for as long as it lives."""
    core = queue.get()
    _move_to({core} if _cores() else set())


def _cores() -> list[int]:
    """On which this process may run; empty where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _move_to(cores: set[int]) -> None:
    for thread in threading.enumerate() if cores else ():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread.native_id or 0, cores)


class Fiber:
    """One piece of work. ``work`` runs until its end, or until it calls ``pause``."""

    current: Fiber | None = None

    def __init__(self, work: Callable[[], None]) -> None:
        self._carrier = _idle.pop() if _idle else _Carrier()
        self._carrier.work = lambda: self._run(work)
        self._carrier.is_done = False
        self._is_killed = False
        self.error: BaseException | None = None
        self.is_over = False

    def _run(self, work: Callable[[], None]) -> None:
        try:
            if self._is_killed:
                return
            work()
        except BaseException as error:
            self.error = error

    def resume(self) -> None:
        """Run on, until the next pause or the end."""
        before, Fiber.current = Fiber.current, self
        self._carrier.go.release()
        self._carrier.back.acquire()
        Fiber.current = before
        if self._carrier.is_done:
            self.is_over = True
            _idle.append(self._carrier)

    def pause(self) -> None:
        """Called from within: hand the baton back."""
        self._carrier.back.release()
        self._carrier.go.acquire()
        if self._is_killed:
            raise Killed

    def kill(self) -> None:
        """Unwind it: each pause raises."""
        self._is_killed = True
        while not self.is_over:
            self.resume()


class FiberLock:
    """A lock among fibers: who finds it taken pauses until it is free."""

    def __init__(self) -> None:
        self._is_taken = False

    def __enter__(self) -> None:
        while self._is_taken:
            assert Fiber.current is not None, "somebody who cannot wait found the lock taken"
            Fiber.current.pause()
        self._is_taken = True

    def __exit__(self, *_: object) -> None:
        self._is_taken = False
