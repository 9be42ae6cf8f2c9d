"""Runs an attempt of a job on the calling thread: tasks are stepped, background work is done in between, in one order.

Stands for threads and workers; the supervisor, the tasks and all they call are the product's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from penstock.failpoints import Crash
from penstock.ids import Instant
from penstock.job.requests import Hands
from penstock.runtime.clock import Clock
from penstock.runtime.roles import AnyTask, Wiring
from penstock.runtime.supervisor import Supervisor
from penstock.testing.clock import ManualClock
from penstock.testing.script import CrashRow


class Stepped:
    """Stands for a task's thread: whoever made it steps the task whenever it is due.

    Attributes:
        is_held: it is not stepped, whatever waits for it.
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
        self.is_held = False
        self._clock = clock
        self._around = around
        self._foreground = foreground
        self._failed = failed
        self._finished = finished
        self._task: AnyTask | None = None
        self._is_awake = False
        self._wake_at: Instant | None = None
        self._is_over = False

    def start(self, task: AnyTask) -> None:
        """Begin."""
        self._task = task
        self._is_awake = True

    def wake(self) -> None:
        """Something may have changed for the task."""
        self._is_awake = True

    def stop(self) -> None:
        """It is not stepped again."""
        self._is_over = True

    def join(self, seconds: float) -> bool:
        """Nothing runs by itself."""
        del seconds
        return True

    @property
    def next_step(self) -> Instant | None:
        """When it is to be stepped: now, later, or ``None``, when it is woken."""
        if self._task is None or self._is_over or self.is_held:
            return None
        return self._clock.now() if self._is_awake else self._wake_at

    def step(self) -> bool:
        """Step the task once; whether it worked.

        A task that did not, and asks to be called again at once, is called once more; then it waits until it is woken
        or time moves on, or it would be asked for ever.

        Raises:
            Crash: it came to an armed failpoint, or to a scripted crash.
        """
        worked = self._step() or (self._is_due and self._step())
        if self._is_due:
            self._wake_at = None
        return worked

    @property
    def _is_due(self) -> bool:
        return self._wake_at is not None and self._wake_at <= self._clock.now()

    def _step(self) -> bool:
        assert self._task is not None
        self._is_awake, self._wake_at = False, None
        try:
            with self._around(self.id), self._foreground():
                progress = self._task.step()
        except CrashRow as crash:
            place = f"a Crash row of {self.id!r}"
            raise Crash(place) from crash
        except Exception as error:
            self._is_over = True
            self._failed(self.id, error)
            return True
        if progress.done:
            self._is_over = True
            self._finished(self.id)
        self._is_awake = self._is_awake or progress.worked
        self._wake_at = progress.wake_at
        return progress.worked


class Pieces:
    """Stands for the workers: pieces of work, done one after another in the order they came."""

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._waiting: deque[tuple[str, Callable[[], None]]] = deque()
        self._is_closed = False

    def submit(self, owner: str, work: Callable[[], None]) -> None:
        """Do it later."""
        if not self._is_closed:
            self._waiting.append((owner, work))

    def close(self) -> None:
        """Drop what waits."""
        self._is_closed = True
        self._waiting.clear()

    def join(self, seconds: float) -> bool:  # noqa: ARG002
        """Nothing runs by itself that could be waited for."""
        return True

    def do_next(self) -> bool:
        """Do one piece; whether there was one.

        Raises:
            Crash: it came to an armed failpoint.
        """
        if not self._waiting:
            return False
        owner, work = self._waiting.popleft()
        try:
            work()
        except Exception as error:
            if not self._is_closed:
                self._failed(owner, error)
        return True


class Running:
    """An attempt that has begun, moved on by hand until it has ended, failed or crashed.

    What it raises (a :class:`~penstock.failpoints.Crash`, or the error that ended the attempt) leaves it dead; then
    only :meth:`tear_down` is left.
    """

    def __init__(self, supervisor: Supervisor, wiring: Wiring, clock: ManualClock) -> None:
        self.supervisor = supervisor
        self.wiring = wiring
        self._clock = clock
        self._steppers = {id: each for id, each in wiring.threads.items() if isinstance(each, Stepped)}
        self._is_finishing = False

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended in order, all tasks included."""
        return self.supervisor.ended is not None and self._is_finishing and self.supervisor.is_finished

    @property
    def hands(self) -> Hands:
        """What requests need of it."""
        return Hands(
            put=self.supervisor.request,
            broke=self.supervisor.broke,
            on_log=lambda work: self.wiring.workers.submit("log", work),
            clock=self._clock,
        )

    @property
    def doing(self) -> dict[str, str]:
        """What each task is doing, for messages; a held one is ``held``."""
        tasks = self.wiring.tasks.items()
        return {id: "held" if self._steppers[id].is_held else task.doing for id, task in tasks}

    def hold(self, task: str, *, is_held: bool) -> None:
        """Do not step a task, or do again."""
        self._steppers[task].is_held = is_held

    def wake(self, task: str) -> None:
        """Something may have changed for a task."""
        self._steppers[task].wake()

    def begin(self) -> None:
        """Start the tasks; nothing is stepped yet."""
        self.supervisor.begin(self.wiring)

    def settle(self) -> None:
        """Move on until nothing is left to do at this time."""
        while self._round():
            pass

    def advance_to(self, target: Instant) -> None:
        """Move the clock on, stopping wherever something is due."""
        self.settle()
        while (at := self.next_due) is not None and at <= target:
            self._clock.move_to(at)
            self.settle()
        self._clock.move_to(target)
        self.settle()

    @property
    def next_due(self) -> Instant | None:
        """The next time, later than now, at which something is to be done."""
        times = [self.supervisor.next_turn, *(each.next_step for each in self._steppers.values())]
        now = self._clock.now()
        return min((at for at in times if at is not None and now < at < _NEVER), default=None)

    def tear_down(self) -> None:
        """Let go of all that is in memory; nothing durable is touched."""
        self.supervisor.tear_down(self.wiring)

    def _round(self) -> bool:
        worked = self._turn()
        workers = self.wiring.workers
        worked |= isinstance(workers, Pieces) and workers.do_next()
        for each in self._steppers.values():
            at = each.next_step
            if at is not None and at <= self._clock.now():
                worked |= each.step()
        return worked

    def _turn(self) -> bool:
        at = self.supervisor.next_turn
        if at is None or at > self._clock.now():
            return False
        self.supervisor.turn()
        if self.supervisor.ended is not None and not self._is_finishing:
            self._is_finishing = True
            self.supervisor.finish()
        return True


_NEVER = Instant(2**61)
"""Times beyond are a task's way to say that only a wake-up helps."""
