"""A job stepped on the calling thread; its crashes and restarts."""

from __future__ import annotations

import itertools
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from penstock import failpoints
from penstock.checkpoint.log import Log
from penstock.clock import Clock, MonotonicTime
from penstock.compiler.analysis import analyze
from penstock.control.server import Reply, RequestRegistry, RunningAttempt
from penstock.errors import HarnessError, PenstockError, did_you_mean
from penstock.facts import JobEnded, Listener
from penstock.failpoints import FailpointCrash
from penstock.filesystem.local import LocalFileSystem
from penstock.graph.nodes import Graph
from penstock.interfaces.source import Until
from penstock.job.attempt import Attempt, JobEnvironment
from penstock.job.failures import to_penstock_error
from penstock.runtime.executors import AnyTask, AttemptParts
from penstock.runtime.supervisor import Supervisor
from penstock.settings import Settings
from penstock.spark.session import active_session, clone_session, set_active_session
from penstock.testing.clock import ManualClock
from penstock.testing.sources import CrashRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ----------------------------------------------------------------------------------------------------
# Runs an attempt of a job on the calling thread: tasks are stepped, background work is done in between, in one order.
#
# Stands for threads and workers; the supervisor, the tasks and all they call are the product's own.


class SteppedTask:
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
        self._wake_at: MonotonicTime | None = None
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
    def next_step(self) -> MonotonicTime | None:
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
            raise FailpointCrash(place) from crash
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


class SerialWorkers:
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


class SteppedAttempt:
    """An attempt that has begun, moved on by hand until it has ended, failed or crashed.

    What it raises (a :class:`~penstock.failpoints.FailpointCrash`, or the error that ended the attempt) leaves it dead;
    then only :meth:`tear_down` is left.
    """

    def __init__(self, supervisor: Supervisor, wiring: AttemptParts, clock: ManualClock) -> None:
        self.supervisor = supervisor
        self.wiring = wiring
        self._clock = clock
        self._steppers = {id: each for id, each in wiring.threads.items() if isinstance(each, SteppedTask)}
        self._is_finishing = False

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended in order, all tasks included."""
        return self.supervisor.ended is not None and self._is_finishing and self.supervisor.is_finished

    @property
    def hands(self) -> RunningAttempt:
        """What requests need of it."""
        return RunningAttempt(
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

    def advance_to(self, target: MonotonicTime) -> None:
        """Move the clock on, stopping wherever something is due."""
        self.settle()
        while (at := self.next_due) is not None and at <= target:
            self._clock.move_to(at)
            self.settle()
        self._clock.move_to(target)
        self.settle()

    @property
    def next_due(self) -> MonotonicTime | None:
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
        worked |= isinstance(workers, SerialWorkers) and workers.do_next()
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


_NEVER = MonotonicTime(2**61)
"""Times beyond are a task's way to say that only a wake-up helps."""


# ----------------------------------------------------------------------------------------------------
# The life of a job under test: attempts begin, die as if killed, and begin again from what is durable.
#
# Knows nothing of rows. Everything runs on the calling thread, which is left as it was.

_PROPERTIES: Final = (
    "spark.scheduler.pool",
    "spark.jobGroup.id",
    "spark.job.description",
    "spark.job.interruptOnCancel",
    "spark.job.tags",
)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Where the job is to die, and how often each place had been reached when that was said."""

    name: str
    reached: dict[str, int]

    def story(self) -> str:
        """For people: it was not reached, but these were."""
        since = {name: count - self.reached.get(name, 0) for name, count in failpoints.reached().items()}
        others = ", ".join(f"{name} ({count} times)" for name, count in sorted(since.items()) if count > 0)
        return f"crash(at={self.name!r}) was never reached; since then were: {others or 'none'}"


class JobUnderTest:
    """Attempt after attempt of one job in a temporary directory. At most one is alive.

    Attributes:
        number: how many attempts have begun.
        point: the crash that still waits for its failpoint.
        requests: what is asked of the attempt that is alive, judged as everywhere.
        answers: how requests ended, by their ids.
        restarts_then: whether a restart follows that crash by itself.
        cause_of_death: why no attempt is alive, if one was.
    """

    def __init__(self, spark: SparkSession, settings: Settings, clock: ManualClock, listener: Listener) -> None:
        self.spark = clone_session(spark)
        self.clock = clock
        self.number = 0
        self.point: CrashPoint | None = None
        self.restarts_then = False
        self.cause_of_death = "it was not started: use it in a with block"
        self.requests = RequestRegistry()
        self.answers: dict[str, Reply] = {}
        self._users = spark
        self._settings = settings
        self._listener = listener
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._ids = itertools.count(1)
        self._plan: JobEnvironment | None = None
        self._running: SteppedAttempt | None = None

    @property
    def folder(self) -> Path:
        """The state directory."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        return Path(self._folder.name)

    @property
    def running(self) -> SteppedAttempt:
        """The attempt that is alive.

        Raises:
            HarnessError: none is.
        """
        if self._running is None:
            msg = f"the job does not run: {self.cause_of_death}"
            raise HarnessError(msg)
        return self._running

    @property
    def is_alive(self) -> bool:
        """Whether an attempt is."""
        return self._running is not None

    # ------------------------------------------------------------------------------------------------------ attempts

    def play(self, graph: Graph) -> None:
        """From the next attempt on, run this graph.

        Raises:
            GraphError: it is refused.
            HarnessError: it has another name, and so another state.
        """
        before = self._plan
        if before is not None and before.name != graph.name:
            msg = f"pipeline {graph.name!r} is no new version of {before.name!r}: state is found by the pipeline's name"
            raise HarnessError(msg)
        with self.own_thread():
            analysis = analyze(graph, self.spark, clock=self.clock)
        filesystem = LocalFileSystem(self.folder / graph.name)
        self._plan = JobEnvironment(
            name=graph.name,
            analysis=analysis,
            spark=self.spark,
            filesystem=filesystem,
            log=Log(filesystem, job=graph.name, new_id=self._new_id, pause=self._pause),
            settings=self._settings,
            until=Until.STOPPED,
            clock=self.clock,
            listener=self._listener,
            allow_non_restored_state=False,
            take_over=False,
            pause=self._pause,
            answered=self.requests.answered,
            thread=SteppedTask,
            workers=SerialWorkers,
        )
        if before is not None:
            before.analysis.close()

    def restore_so(self, *, allow_non_restored_state: bool, rename: Mapping[str, str]) -> None:
        """For the next attempts: whether state whose step is gone may be left unused, and which have another uid."""
        assert self._plan is not None
        self._plan = replace(self._plan, allow_non_restored_state=allow_non_restored_state, rename=rename)

    def begin(self) -> None:
        """A new attempt, as in a new process, and what it does by itself; an armed crash may end it at once.

        Raises:
            PenstockError: it cannot begin, or failed.
        """
        assert self._plan is not None
        self.number += 1
        self.restarts_then = False
        self.requests = RequestRegistry()  # those of the process before died with it
        plan = replace(self._plan, requests=self.requests, answered=self.requests.answered)
        attempt = Attempt(plan, number=self.number, after=None)

        def start() -> None:
            try:
                wiring = attempt.open(running=lambda: None)
            except PenstockError:
                raise
            except Exception as error:
                raise to_penstock_error(error) from error
            self._running = SteppedAttempt(attempt.supervisor, wiring, self.clock)
            self.requests.running(self._running.hands)
            self._running.begin()
            self._running.settle()

        self._live(start)

    def move(self, step: Callable[[SteppedAttempt], None]) -> None:
        """Let the attempt that is alive do something, then all that follows from it at this time.

        Raises:
            HarnessError: none is alive.
            PenstockError: what ended it.
        """
        running = self.running

        def go_on() -> None:
            step(running)
            running.settle()

        self._live(go_on)

    def _live(self, act: Callable[[], None]) -> None:
        """Do it; a crash ends the attempt, and the restart that was asked for follows."""
        try:
            with self.own_thread():
                act()
        except FailpointCrash as crash:
            self.die(f"it crashed at {crash}; restart() is next", at=str(crash))
        except Exception as error:
            self.die(f"it failed: {error}")
            self._listener(JobEnded(state="failed", cause=str(error)))
            raise
        if self._running is not None and self._running.has_ended:
            self.die("it has ended")
            self._listener(JobEnded(state="stopped"))

    def die(self, cause: str, *, at: str | None = None) -> None:
        """Nothing goes on from here; what was in memory is gone, what is durable stays as it is.

        If that was the crash that was armed, and a restart is to follow, it follows.
        """
        self.cause_of_death = cause
        running, self._running = self._running, None
        if running is not None:
            with self.own_thread():
                running.tear_down()
        if self.point is not None and at == self.point.name:
            failpoints.disarm(self.point.name)
            self.point = None
            if self.restarts_then:
                self.begin()

    def arm(self, name: str, *, hit: int) -> None:
        """Die when a failpoint is reached.

        Raises:
            HarnessError: there is no such failpoint, or another crash still waits.
        """
        if name not in failpoints.FAILPOINTS:
            there = failpoints.FAILPOINTS
            hint = did_you_mean(name, there, otherwise=f"there are {', '.join(sorted(there))}")
            msg = f"there is no crash point {name!r}{hint}"
            raise HarnessError(msg)
        if self.point is not None:
            msg = f"{self.point.story()}; one crash at a time"
            raise HarnessError(msg)
        failpoints.arm(name, "raise", hit=hit)
        self.point = CrashPoint(name, dict(failpoints.reached()))

    def close(self) -> str | None:
        """Let go of everything; what was armed and not reached is told."""
        story = None
        if self.point is not None:
            story = self.point.story()
            failpoints.disarm(self.point.name)
            self.point = None
        if self._running is not None:
            self.die("the with block is over")
        if self._plan is not None:
            with suppress(Exception):  # static tables of a session that may be gone
                self._plan.analysis.close()
        if self._folder is not None:
            self._folder.cleanup()
        return story

    # ------------------------------------------------------------------------------------------------- what it runs on

    @contextmanager
    def own_thread(self) -> Iterator[None]:
        """The calling thread as one of the engine's: its session and job properties are the user's again afterwards."""
        context = self.spark.sparkContext
        before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
        active = active_session() or self._users
        set_active_session(self.spark)
        try:
            yield
        finally:
            with suppress(Exception):  # whatever the test is about to raise matters more than a JVM that is gone
                for name, value in before.items():
                    context.setLocalProperty(name, cast("Any", value))
                set_active_session(active)

    def _new_id(self) -> str:
        """Random to whoever reads the log, the same in every run."""
        return sha256(f"penstock-test-{next(self._ids)}".encode()).hexdigest()[:32]

    def _pause(self, seconds: float) -> None:
        """Whoever waits to try again has waited: the clock moves."""
        self.clock.advance(f"{max(1, round(seconds * 1_000_000))} us")
