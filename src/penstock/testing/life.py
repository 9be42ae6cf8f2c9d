"""The life of a job under test: attempts begin, die as if killed, and begin again from what is durable.

Knows nothing of rows. Everything runs on the calling thread, which is left as it was.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from penstock import failpoints
from penstock.checkpoint.log import Log
from penstock.errors import HarnessError, PenstockError
from penstock.facts import JobEnded, Listener
from penstock.failpoints import Crash
from penstock.filesystem.local import LocalFileSystem
from penstock.graph.analyze import analyze
from penstock.graph.nodes import Graph
from penstock.job.attempt import Attempt, Plan
from penstock.job.explain import explain
from penstock.job.requests import Reply, Requests
from penstock.job.session import activate, take_over
from penstock.settings import Settings
from penstock.sources.base import Until
from penstock.state.sessions import active_session
from penstock.testing.clock import ManualClock
from penstock.testing.stepping import Pieces, Running, Stepped
from penstock.testing.substitute import nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


class Life:
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
        self.spark = take_over(spark)
        self.clock = clock
        self.number = 0
        self.point: CrashPoint | None = None
        self.restarts_then = False
        self.cause_of_death = "it was not started: use it in a with block"
        self.requests = Requests()
        self.answers: dict[str, Reply] = {}
        self._users = spark
        self._settings = settings
        self._listener = listener
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._ids = itertools.count(1)
        self._plan: Plan | None = None
        self._running: Running | None = None

    @property
    def folder(self) -> Path:
        """The state directory."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        return Path(self._folder.name)

    @property
    def running(self) -> Running:
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
        self._plan = Plan(
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
            thread=Stepped,
            workers=Pieces,
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
        self.requests = Requests()  # those of the process before died with it
        plan = replace(self._plan, requests=self.requests, answered=self.requests.answered)
        attempt = Attempt(plan, number=self.number, after=None)

        def start() -> None:
            try:
                wiring = attempt.open(running=lambda: None)
            except PenstockError:
                raise
            except Exception as error:
                raise explain(error) from error
            self._running = Running(attempt.supervisor, wiring, self.clock)
            self.requests.running(self._running.hands)
            self._running.begin()
            self._running.settle()

        self._live(start)

    def move(self, step: Callable[[Running], None]) -> None:
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
        except Crash as crash:
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
        if name not in failpoints.KNOWN:
            hint = nearest(name, failpoints.KNOWN) or f"there are {', '.join(sorted(failpoints.KNOWN))}"
            msg = f"there is no crash point {name!r}; {hint}"
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
        activate(self.spark)
        try:
            yield
        finally:
            with suppress(Exception):  # whatever the test is about to raise matters more than a JVM that is gone
                for name, value in before.items():
                    context.setLocalProperty(name, cast("Any", value))
                activate(active)

    def _new_id(self) -> str:
        """Random to whoever reads the log, the same in every run."""
        return sha256(f"penstock-test-{next(self._ids)}".encode()).hexdigest()[:32]

    def _pause(self, seconds: float) -> None:
        """Whoever waits to try again has waited: the clock moves."""
        self.clock.advance(f"{max(1, round(seconds * 1_000_000))} us")
