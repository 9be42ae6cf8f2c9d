"""Runs tasks and background work: protocols and the threads.

An attempt runs on threads, as here, or without, as in tests and simulations.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import AnswerRequest, RunStarted
from penstock.checkpoint.log import ManifestWriter
from penstock.clock import MAX_WAIT, Clock, MonotonicTime
from penstock.errors import PenstockError
from penstock.handles import CommitOutcome, Committable
from penstock.runtime.source_task import SourceTask
from penstock.runtime.task import StepTask

# ---- what an attempt consists of -------------------------------------------------------------------------------------

AnyTask: TypeAlias = "SourceTask | StepTask"


class TaskRunner(Protocol):
    """Steps one task whenever there may be something to do, never twice at a time."""

    def start(self, task: AnyTask) -> None:
        """Begin to step the task."""
        ...

    def wake(self) -> None:
        """Step again: something may have changed for the task."""
        ...

    def stop(self) -> None:
        """End after the current step."""
        ...

    def join(self, seconds: float) -> bool:
        """Wait for the end; returns whether it came within ``seconds``."""
        ...


class TaskRunnerFactory(Protocol):
    """Makes a ``TaskRunner``."""

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
        """Make the runner of task ``id``; it begins when it is started.

        Args:
            id: of the task.
            clock: tells when a waiting task is due.
            around: what the thread of the task runs in.
            foreground: what each step runs in.
            failed: is called with the task and its error, once.
            finished: is called with the task at the end of its stream.
        """
        ...


class WorkerPool(Protocol):
    """Runs background work: in order for each owner. Failures are reported to the attempt."""

    def submit(self, owner: str, work: Callable[[], None]) -> None:
        """Run ``work`` after all that ``owner`` submitted before."""
        ...

    def close(self) -> None:
        """Drop the work that has not begun; work that runs is left to end by itself."""
        ...

    def join(self, seconds: float) -> bool:
        """Once closed, wait for the end of all work that has begun; returns whether it came within ``seconds``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptParts:
    """Everything an attempt runs on, put together by the job.

    Attributes:
        coordinator: takes the checkpoints.
        started: the first event, made when the attempt begins.
        tasks: every task.
        threads: runs each task.
        workers: run snapshots, log entries, commits and clean-up.
        manifest_writer: appends to the log and cleans up behind it.
        publish: commits one committable.
        explain: the error to report for any exception.
        cancel: cancels running Spark jobs.
        background: what clean-up runs in.
        snapshot: what the durable part of a snapshot runs in.
        answered: gets each answer to a request.
    """

    coordinator: Coordinator
    started: Callable[[MonotonicTime], RunStarted]
    tasks: Mapping[str, AnyTask]
    threads: Mapping[str, TaskRunner]
    workers: WorkerPool
    manifest_writer: ManifestWriter
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


# ---- threads ---------------------------------------------------------------------------------------------------------


class TaskThread:
    """Steps one task on a thread of its own until it is done, stopped, or fails.

    A failure is reported once and ends the thread; the supervisor, which gets the report, tears the job down.
    """

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

    def start(self, task: AnyTask) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, args=(task,), name=f"penstock-{self.id}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Step the task again."""
        self._awake.set()

    def stop(self) -> None:
        """End the thread after its current step."""
        self._stopping = True
        self.wake()

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread."""
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
    """Runs background work on one thread for each owner; the work itself reports its results.

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
        """Drop the work that has not begun."""
        with self._lock:
            self._closed = True
            for waiting in self._queues.values():
                waiting.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the end of all work that has begun."""
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
