"""Runs tasks and background work: protocols and the threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.entries import Manifest, Stopped
from penstock.checkpoint.events import AnswerRequest, RunStarted
from penstock.clock import MAX_WAIT, Clock, MonotonicTime
from penstock.errors import PenstockError
from penstock.handles import CommitOutcome, Committable, EntryNumber
from penstock.runtime.source_task import SourceTask
from penstock.runtime.task import StepTask

# ----------------------------------------------------------------------------------------------------
# What an attempt consists of, as the supervisor sees it: small protocols, so that it runs with threads or without.

AnyTask: TypeAlias = "SourceTask | StepTask"


class Journal(Protocol):
    """Appends to the log on behalf of this attempt, and cleans up what an entry allows."""

    def checkpoint(self, manifest: Manifest) -> EntryNumber:
        """Complete the manifest with what is condemned, and append it."""
        ...

    def stopped(self, body: Stopped) -> EntryNumber:
        """Append the entry of an orderly end."""
        ...

    def clean(self) -> None:
        """Delete what recorded entries allow; repeats are harmless."""
        ...


class TaskRunner(Protocol):
    """Steps one task whenever there may be something to do, never twice at a time."""

    def start(self, task: AnyTask) -> None:
        """Begin."""
        ...

    def wake(self) -> None:
        """Something may have changed for the task."""
        ...

    def stop(self) -> None:
        """End after the step it is in."""
        ...

    def join(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        ...


class WorkerPool(Protocol):
    """Runs pieces of work beside the tasks: in order for each owner; a failure is reported by whoever runs them."""

    def submit(self, owner: str, work: Callable[[], None]) -> None:
        """Run ``work`` after all that ``owner`` submitted before."""
        ...

    def close(self) -> None:
        """Drop what has not begun."""
        ...

    def join(self, seconds: float) -> bool:
        """Once closed: wait for the end of what has begun; whether it came."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptParts:
    """Everything an attempt runs on, put together by the job."""

    coordinator: Coordinator
    started: Callable[[MonotonicTime], RunStarted]
    tasks: Mapping[str, AnyTask]
    threads: Mapping[str, TaskRunner]
    workers: WorkerPool
    journal: Journal
    publish: Callable[[Committable], CommitOutcome]
    explain: Callable[[BaseException], PenstockError]
    cancel: Callable[[], None]
    background: Callable[[], AbstractContextManager[None]]
    snapshot: Callable[[], AbstractContextManager[None]]
    answered: Callable[[AnswerRequest], None]

    @property
    def sources(self) -> tuple[str, ...]:
        """The tasks that read from outside."""
        return tuple(id for id, task in self.tasks.items() if isinstance(task, SourceTask))


# ----------------------------------------------------------------------------------------------------
# Runs tasks on threads of their own, and background work on workers. The only module that starts threads.
#
# One thread a task: a step is never called twice at a time. A failure in a task is reported once and ends its thread;
# the job is torn down by whoever gets the report.


class TaskRunnerFactory(Protocol):
    """Makes what steps a task: a thread, or whatever schedules tasks without threads."""

    def __call__(
        self,
        id: str,
        *,
        clock: Clock,
        around: Callable[[str], AbstractContextManager[None]],
        foreground: Callable[[], AbstractContextManager[None]],
        failed: Callable[[str, BaseException], None],
        finished: Callable[[str], None],
    ) -> TaskRunner:
        """Make it; it begins when it is started."""
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

    def start(self, task: AnyTask) -> None:
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

    def _run(self, task: AnyTask) -> None:
        try:
            with self._around(self.id):
                self._loop(task)
        except BaseException as error:
            if not self._stopping:
                self._failed(self.id, error)

    def _loop(self, task: AnyTask) -> None:
        while not self._stopping:
            self._awake.clear()
            with self._foreground():
                progress = task.step()
            if progress.done:
                self._finished(self.id)
                return
            if not progress.worked:
                self._awake.wait(self._seconds(progress.wake_at))

    def _seconds(self, wake_at: MonotonicTime | None) -> float | None:
        if wake_at is None:
            return None
        return min(max(0.0, (wake_at - self._clock.now()) / 1_000_000), MAX_WAIT)


class WorkerThreads:
    """Background work: in order for each owner, one thread an owner, results reported by the work itself.

    The threads are daemons: one that hangs in a Spark job or a commit does not keep the process from ending.
    """

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._lock = threading.Lock()
        self._queues: dict[str, queue.SimpleQueue[Callable[[], None] | None]] = {}
        self._ended = threading.Condition(self._lock)
        self._running = 0
        self._closed = False

    def submit(self, owner: str, work: Callable[[], None]) -> None:
        """Run ``work`` after all that ``owner`` submitted before."""
        with self._lock:
            if self._closed:
                return
            waiting = self._queues.get(owner)
            if waiting is None:
                waiting = self._queues[owner] = queue.SimpleQueue()
                self._begin(owner, waiting)
            waiting.put(work)

    def _begin(self, owner: str, waiting: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        thread = threading.Thread(target=self._run, args=(owner, waiting), name=f"penstock-{owner}", daemon=True)
        self._running += 1
        thread.start()

    def close(self) -> None:
        """Drop what has not begun; what runs is left to end by itself."""
        with self._lock:
            self._closed = True
            for waiting in self._queues.values():
                waiting.put(None)

    def join(self, seconds: float) -> bool:
        """Once closed: wait for the end of what has begun; whether it came within so many seconds, for all of it."""
        with self._ended:
            return self._ended.wait_for(lambda: self._running == 0, seconds)

    def _run(self, owner: str, waiting: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (work := waiting.get()) is not None and not self._closed:
            try:
                work()
            except BaseException as error:
                if not self._closed:
                    self._failed(owner, error)
        with self._ended:
            self._running -= 1
            self._ended.notify_all()
