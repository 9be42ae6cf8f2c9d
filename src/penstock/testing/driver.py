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
from penstock.checkpoint.events import AnswerRequest
from penstock.checkpoint.log import Log
from penstock.clock import Clock, MonotonicTime
from penstock.compiler.analysis import analyze
from penstock.control.server import RequestRegistry, RunningAttempt
from penstock.errors import HarnessError, PenstockError, did_you_mean, sentence
from penstock.facts import JobEnded, Listener
from penstock.failpoints import FailpointCrash
from penstock.filesystem.local import LocalFileSystem
from penstock.graph.nodes import Graph
from penstock.interfaces.source import Until
from penstock.job.attempt import Attempt
from penstock.job.failures import to_penstock_error
from penstock.job.start import FROM_LATEST, StartOptions
from penstock.job.wiring import JobEnvironment
from penstock.runtime.executors import AnyTask, AttemptParts
from penstock.runtime.supervisor import Supervisor
from penstock.settings import Settings
from penstock.spark.query_log import quiet
from penstock.spark.session import active_session, clone_session, set_active_session
from penstock.testing.clock import ManualClock
from penstock.testing.sources import CrashRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ---- one attempt -----------------------------------------------------------------------------------------------------
# Threads and workers are replaced. The supervisor, the tasks and all they call are the product's own.


_NEVER: Final = MonotonicTime(2**61)
"""A wake-up time beyond this means: only when woken."""


class SteppedTask:
    """Replaces a task's thread: its owner steps the task when it is due.

    Attributes:
        is_held: the task is not stepped, even if it is due.
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
        self._has_ended = False

    def start(self, task: AnyTask) -> None:
        """Make the task due."""
        self._task = task
        self._is_awake = True

    def wake(self) -> None:
        """Make the task due: something may have changed for it."""
        self._is_awake = True

    def stop(self) -> None:
        """Never step the task again."""
        self._has_ended = True

    def join(self, seconds: float) -> bool:
        """Return at once: there is no thread."""
        del seconds
        return True

    @property
    def next_step(self) -> MonotonicTime | None:
        """When the task is to be stepped: now, later, or ``None`` until it is woken."""
        if self._task is None or self._has_ended or self.is_held:
            return None
        return self._clock.now() if self._is_awake else self._wake_at

    def step(self) -> bool:
        """Step the task once; returns whether it worked.

        A task that did not work and asks for another step at once gets one more. Then it waits until it is woken or
        time moves on; otherwise it would be stepped for ever.

        Raises:
            Crash: it reached an armed failpoint, or a scripted crash.
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
                result = self._task.step()
        except CrashRow as crash:
            where = f"a Crash row of {self.id!r}"
            raise FailpointCrash(where) from crash
        except Exception as error:
            self._has_ended = True
            self._failed(self.id, error)
            return True
        if result.done:
            self._has_ended = True
            self._finished(self.id)
        self._is_awake = self._is_awake or result.worked
        self._wake_at = result.wake_at
        return result.worked


class SerialWorkers:
    """Replaces the workers: does pieces of work one after another, in the order they came."""

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._queue: deque[tuple[str, Callable[[], None]]] = deque()
        self._is_closed = False

    def submit(self, owner: str, work: Callable[[], None]) -> None:
        """Queue a piece of work."""
        if not self._is_closed:
            self._queue.append((owner, work))

    def close(self) -> None:
        """Drop the queue."""
        self._is_closed = True
        self._queue.clear()

    def join(self, seconds: float) -> bool:  # noqa: ARG002
        """Return at once: there are no threads."""
        return True

    def do_next(self) -> bool:
        """Do one piece of work; returns whether there was one.

        Raises:
            Crash: it reached an armed failpoint.
        """
        if not self._queue:
            return False
        owner, work = self._queue.popleft()
        try:
            work()
        except Exception as error:
            if not self._is_closed:
                self._failed(owner, error)
        return True


class SteppedAttempt:
    """An attempt that has begun, stepped until it has ended, failed or crashed.

    If a method raises a ``FailpointCrash`` or the error that ended the attempt, the attempt
    is dead, and only ``tear_down`` may follow.
    """

    def __init__(self, supervisor: Supervisor, wiring: AttemptParts, clock: ManualClock) -> None:
        self.supervisor = supervisor
        self.wiring = wiring
        self._clock = clock
        self._steppers = {id: each for id, each in wiring.threads.items() if isinstance(each, SteppedTask)}
        self._is_finishing = False

    @property
    def has_ended(self) -> bool:
        """Whether the job and all of its tasks have ended in order."""
        return self.supervisor.ended is not None and self._is_finishing and self.supervisor.is_finished

    @property
    def running_attempt(self) -> RunningAttempt:
        """The attempt in the form that requests need."""
        return RunningAttempt(
            put=self.supervisor.request,
            failed=self.supervisor.failed,
            on_log=lambda work: self.wiring.workers.submit("log", work),
            clock=self._clock,
        )

    @property
    def doing(self) -> dict[str, str]:
        """What each task is doing, for messages; ``held`` for a held one."""
        tasks = self.wiring.tasks.items()
        return {id: "held" if self._steppers[id].is_held else task.doing for id, task in tasks}

    def hold(self, task: str, *, is_held: bool) -> None:
        """Stop stepping a task, or step it again."""
        self._steppers[task].is_held = is_held

    def wake(self, task: str) -> None:
        """Wake a task."""
        self._steppers[task].wake()

    def begin(self) -> None:
        """Start the tasks without stepping them."""
        self.supervisor.begin(self.wiring)

    def settle(self) -> None:
        """Step until nothing is left to do at this time."""
        while self._round():
            pass

    def advance_to(self, target: MonotonicTime) -> None:
        """Move the clock forward, stopping at each time at which something is due."""
        self.settle()
        while (at := self.next_due) is not None and at <= target:
            self._clock.move_to(at)
            self.settle()
        self._clock.move_to(target)
        self.settle()

    @property
    def next_due(self) -> MonotonicTime | None:
        """The next time, later than now, at which something is due."""
        times = [self.supervisor.next_turn, *(each.next_step for each in self._steppers.values())]
        now = self._clock.now()
        return min((at for at in times if at is not None and now < at < _NEVER), default=None)

    def tear_down(self) -> None:
        """Release all memory; nothing durable changes."""
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


# ---- attempts of a job -----------------------------------------------------------------------------------------------
# Everything runs on the calling thread, whose session and job properties are restored afterwards.

_PROPERTIES: Final = (
    "spark.scheduler.pool",
    "spark.jobGroup.id",
    "spark.job.description",
    "spark.job.interruptOnCancel",
    "spark.job.tags",
)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The failpoint at which the job is to die, and how often each had been reached when it was armed."""

    name: str
    reached: dict[str, int]

    def not_reached(self) -> str:
        """The message that the failpoint was never reached, and which ones were."""
        since = {name: count - self.reached.get(name, 0) for name, count in failpoints.reached().items()}
        others = ", ".join(f"{name} ({count} times)" for name, count in sorted(since.items()) if count > 0)
        return f"crash(at={self.name!r}) was never reached. Reached since then: {others or 'none'}."


class JobUnderTest:
    """Runs one attempt of a job after another in a temporary directory.

    Attributes:
        number: of the newest attempt, from 1.
        point: the crash that still waits for its failpoint.
        requests: the requests to the attempt that is alive.
        answers: the answers to requests, by their ids.
        restarts_then: whether a restart follows that crash by itself.
        cause_of_death: why no attempt is alive, if none is.
    """

    def __init__(self, spark: SparkSession, settings: Settings, clock: ManualClock, listener: Listener) -> None:
        self.spark = clone_session(spark, timezone=settings.timezone)
        self.clock = clock
        self.number = 0
        self.point: CrashPoint | None = None
        self.restarts_then = False
        self.cause_of_death = "it was not started. Use it in a with block."
        self.requests = RequestRegistry()
        self.answers: dict[str, AnswerRequest] = {}
        self._user_session = spark
        self._settings = settings
        self._listener = listener
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._ids = itertools.count(1)
        self._env: JobEnvironment | None = None
        self._start = FROM_LATEST
        self._running: SteppedAttempt | None = None

    @property
    def folder(self) -> Path:
        """The folder of state directories."""
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
            msg = f"The job is not running: {sentence(self.cause_of_death)}"
            raise HarnessError(msg)
        return self._running

    @property
    def is_alive(self) -> bool:
        """Whether an attempt is alive."""
        return self._running is not None

    # ---- attempts ----------------------------------------------------------------------------------------------------

    def set_graph(self, graph: Graph) -> None:
        """Run this graph from the next attempt on.

        Raises:
            GraphError: it is refused.
            HarnessError: it has another name, and so another state.
        """
        previous = self._env
        if previous is not None and previous.name != graph.name:
            msg = f"Pipeline {graph.name!r} is no new version of {previous.name!r}. State is found by the name."
            raise HarnessError(msg)
        with self.own_thread():
            analysis = analyze(graph, self.spark, clock=self.clock)
        filesystem = LocalFileSystem(self.folder / graph.name)
        self._env = JobEnvironment(
            name=graph.name,
            analysis=analysis,
            spark=self.spark,
            filesystem=filesystem,
            log=Log(filesystem, job=graph.name, new_id=self._new_id, pause=self._pause),
            settings=self._settings,
            until=Until.STOPPED,
            clock=self.clock,
            listener=self._listener,
            requests=self.requests,
            pause=self._pause,
            thread=SteppedTask,
            workers=SerialWorkers,
        )
        if previous is not None:
            previous.analysis.close()

    def set_restore_options(self, *, allow_non_restored_state: bool, rename: Mapping[str, str]) -> None:
        """Set for the next attempts whether state may be left unused, and which steps have a new uid."""
        self._start = StartOptions(allow_non_restored_state=allow_non_restored_state, rename=rename)

    def begin(self) -> None:
        """Begin a new attempt, as in a new process; an armed crash may end it at once.

        Raises:
            PenstockError: it cannot begin, or failed.
        """
        assert self._env is not None
        self.number += 1
        self.restarts_then = False
        self.requests = RequestRegistry()  # those of the previous process died with it
        env = replace(self._env, requests=self.requests)
        attempt = Attempt(env, number=self.number, after=None, start=self._start)

        def start() -> None:
            try:
                wiring = attempt.open(running=lambda: None)
            except PenstockError:
                raise
            except Exception as error:
                raise to_penstock_error(error) from error
            self._running = SteppedAttempt(attempt.supervisor, wiring, self.clock)
            self.requests.attempt_started(self._running.running_attempt)
            self._running.begin()
            self._running.settle()

        self._guarded(start)

    def move(self, step: Callable[[SteppedAttempt], None]) -> None:
        """Let the attempt that is alive do something, then all that follows from it at this time.

        Raises:
            HarnessError: none is alive.
            PenstockError: the error that ended it.
        """
        running = self.running

        def go_on() -> None:
            step(running)
            running.settle()

        self._guarded(go_on)

    def _guarded(self, act: Callable[[], None]) -> None:
        """Call ``act``; a crash ends the attempt, and a restart that was asked for follows."""
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
        """End the attempt without cleaning up: what was in memory is gone, what is durable stays.

        If ``at`` is the armed crash and a restart was asked for, it follows.
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
        """Let the job die when a failpoint is reached.

        Raises:
            HarnessError: there is no such failpoint, or another crash still waits.
        """
        if name not in failpoints.FAILPOINTS:
            there = failpoints.FAILPOINTS
            hint = did_you_mean(name, there, otherwise=f"Crash points: {', '.join(sorted(there))}.")
            msg = f"Crash point {name!r} does not exist{hint}"
            raise HarnessError(msg)
        if self.point is not None:
            msg = f"{self.point.not_reached()} Arm one crash at a time."
            raise HarnessError(msg)
        failpoints.arm(name, "raise", hit=hit)
        self.point = CrashPoint(name, dict(failpoints.reached()))

    def close(self) -> str | None:
        """End the job and delete its folder; returns a message if an armed crash was never reached."""
        not_reached = None
        if self.point is not None:
            not_reached = self.point.not_reached()
            failpoints.disarm(self.point.name)
            self.point = None
        if self._running is not None:
            self.die("the with block is over")
        if self._env is not None:
            with suppress(Exception):  # static tables of a session that may be gone
                self._env.analysis.close()
        if self._folder is not None:
            self._folder.cleanup()
        return not_reached

    # ---- what it runs on ---------------------------------------------------------------------------------------------

    @contextmanager
    def own_thread(self) -> Iterator[None]:
        """Give the calling thread the engine's session; its session and job properties are restored afterwards."""
        context = self.spark.sparkContext
        before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
        active = active_session() or self._user_session
        set_active_session(self.spark)
        try:
            with quiet():
                yield
        finally:
            with suppress(Exception):  # an error of the test matters more than a lost JVM
                for name, value in before.items():
                    context.setLocalProperty(name, cast("Any", value))
                set_active_session(active)

    def _new_id(self) -> str:
        """Looks random in the log, and is the same in every run."""
        return sha256(f"penstock-test-{next(self._ids)}".encode()).hexdigest()[:32]

    def _pause(self, seconds: float) -> None:
        """Instead of a wait before the next try, the clock moves."""
        self.clock.advance(f"{max(1, round(seconds * 1_000_000))} us")
