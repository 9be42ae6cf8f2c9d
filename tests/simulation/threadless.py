"""What stands for threads and workers in the simulation: tasks that are stepped, pieces of work that are fibers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.clock import MonotonicTime
from penstock.dead_letters.store import Replay
from penstock.elements import Batch, FirstRunGate, RefCount
from penstock.runtime.executors import AnyTask
from penstock.runtime.task import StepTask
from simulation.fibers import Fiber
from simulation.letters import rows_again

if TYPE_CHECKING:
    from simulation.process import Driver, Process


class Stepped:
    """Stands for a thread: a task that the scheduler steps."""

    def __init__(self, id: str, *, process: Driver, clock: Any, failed: Any, finished: Any, **_: Any) -> None:
        self.id = id
        self._process = process
        self._clock = clock
        self._failed = failed
        self._finished = finished
        self._task: AnyTask | None = None
        self._awake = False
        self._wake_at: MonotonicTime | None = None
        self.is_over = False

    def start(self, task: AnyTask) -> None:
        self._task = task
        self._awake = True

    def wake(self) -> None:
        self._awake = True

    def stop(self) -> None:
        self.is_over = True

    def join(self, seconds: float) -> bool:
        return True

    @property
    def next_step(self) -> MonotonicTime | None:
        if self._task is None or self.is_over:
            return None
        return self._clock.now() if self._awake else self._wake_at

    def is_due(self, now: int) -> bool:
        """Whether a step may find something to do."""
        if self._awake:
            return self._task is not None and not self.is_over
        return self._wake_at is not None and self._wake_at <= now and not self.is_over

    def step(self) -> None:
        assert self._task is not None
        self._awake, self._wake_at = False, None
        try:
            progress = self._task.step()
        except Exception as error:
            self.is_over = True
            self._failed(self.id, error)
            return
        if progress.done:
            self.is_over = True
            self._finished(self.id)
        self._awake = self._awake or progress.worked
        if not progress.worked and not self._awake and isinstance(self._task, StepTask):
            self._process.times.judge_rest(self._task)
        self._wake_at = progress.wake_at


class Queues:
    """Stands for the workers: in order for each owner, each piece of work a fiber."""

    def __init__(self, process: Process, failed: Callable[[str, BaseException], None]) -> None:
        self._process = process
        self._failed = failed
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        self._closed = False

    def submit(self, owner: str, work: Callable[[], None]) -> None:
        if self._closed:
            return
        line = self._waiting.setdefault(owner, deque())
        line.append(work)
        if len(line) == 1:
            self._begin(owner)

    def close(self) -> None:
        self._closed = True

    def join(self, seconds: float) -> bool:
        """Nothing is waited for: what runs may end late, as where a real one is given up."""
        return not any(self._waiting.values())

    def _begin(self, owner: str) -> None:
        self._process.spawn(owner, lambda: self._run(owner))

    def _run(self, owner: str) -> None:
        line = self._waiting[owner]
        try:
            line[0]()
        except Exception as error:
            if not self._closed:
                self._failed(owner, error)
        line.popleft()
        if line and not self._closed:
            self._begin(owner)


class FakeEdge:
    """Where Spark would be. ``spark`` is whoever asks connectors and steps to do something."""

    def __init__(self, process: Driver) -> None:
        self.spark: Any = process
        self.kept = 0
        """Batches that are persisted now."""

    def around(self, task: str) -> AbstractContextManager[None]:
        return nullcontext()

    def foreground(self) -> AbstractContextManager[None]:
        return nullcontext()

    def background(self, name: str) -> Any:
        return nullcontext

    def cancel(self) -> None:
        pass

    def letters(self, replay: Replay, schema: object) -> Any:
        """What Spark would read of a replay."""
        return rows_again(self.spark.world, replay)

    def keep(self, batch: Batch, readers: int) -> Batch:
        self.kept += 1

        def free() -> None:
            self.kept -= 1
            batch.release()

        return replace(
            batch, ref_counts=(RefCount(free, holders=readers),), run_gates=(*batch.run_gates, FirstRunGate())
        )


@dataclass(eq=False)
class Piece:
    """A piece of work that has been begun or waits to begin."""

    name: str
    fiber: Fiber | None
    work: Callable[[], None]
    sleeps_until: int = 0
