"""The loop: owner check, session, attempts, restarts, stop."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.checkpoint.events import StopRequested
from penstock.checkpoint.history import LogMark
from penstock.checkpoint.log import Log
from penstock.clock import MAX_WAIT, Clock
from penstock.compiler.analysis import analyze
from penstock.control.client import OwnerCheck, mark_released
from penstock.control.protocol import ControlFiles
from penstock.control.server import AnswerCallback, ControlServer, RequestRegistry
from penstock.dead_letters.letters import with_dead_letter_folders
from penstock.errors import Domain, EngineDied, GenerationFenced, PenstockError, SettingsError
from penstock.facts import Listener, Restarting
from penstock.filesystem import resolve
from penstock.graph.nodes import Graph
from penstock.graph.queries import side_outputs
from penstock.handles import new_id
from penstock.interfaces.source import Until
from penstock.job.attempt import Attempt, JobEnvironment
from penstock.job.start import FROM_LATEST, StartOptions, resolve_start
from penstock.observability.report import Report
from penstock.observability.status_file import StatusFileWriter
from penstock.runtime.lifecycle import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    JobState,
    Lifecycle,
    NoRestart,
    RestartStrategy,
)
from penstock.settings import Settings
from penstock.spark.session import clone_session, make_session, set_active_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# ----------------------------------------------------------------------------------------------------
# Attempt after attempt until one ends in order or none may follow; and how a stop reaches the one that runs.
#
# Knows when attempts begin and end, not what they do.

log = logging.getLogger("penstock")
RESTART_STRATEGIES: Final[dict[str, RestartStrategy]] = {
    "exponential": ExponentialDelay(),
    "fixed": FixedDelay(),
    "rate": FailureRate(),
    "none": NoRestart(),
}


class StopTimedOut(PenstockError):
    """A stop was asked for, and something could not be done in time; nothing is lost."""

    domain = Domain.EXTERNAL


class StopSignal:
    """Whether the job was asked to stop. Set once, from any thread."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def is_asked(self) -> bool:
        """Whether it was."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Ask."""
        self._asked.set()

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; returns whether it was asked for."""
        return self._asked.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Wait before something is tried again; once a stop is asked for, give up instead.

        Raises:
            GivenUp: it was.
        """
        if self._asked.wait(seconds):
            msg = "stopped while waiting for storage or a sink; the next start goes on where this one gave up"
            raise StopTimedOut(msg)


class Attempts:
    """The attempts of one job, one after the other, on the thread that calls :meth:`run`."""

    def __init__(
        self, plan: JobEnvironment, *, lifecycle: Lifecycle, stop: StopSignal, beginning: StartOptions = FROM_LATEST
    ) -> None:
        self._plan = plan
        self._lifecycle = lifecycle
        self._stop = stop
        self._beginning = beginning
        self._strategy = RESTART_STRATEGIES[plan.settings.restart]
        self._current: Attempt | None = None
        self._is_given_up = False
        self.cut_short: PenstockError | None = None
        """What a stop could not wait for; what was read since the last checkpoint is read again by the next start."""
        self._lock = threading.Lock()

    def run(self) -> None:
        """Until the job has ended in order, or was cut short of that.

        Raises:
            PenstockError: what no restart helps, or one too many.
        """
        number = 1
        while not self._ends(number):
            self._lifecycle.to(JobState.RESTORING)
            number += 1

    def stop(self) -> None:
        """The job is to end: say so. The request itself comes to the attempt as all requests do."""
        with self._lock:
            if self._lifecycle.state is JobState.RUNNING:
                self._lifecycle.to(JobState.STOPPING)

    def give_up(self) -> None:
        """End without the last checkpoint: what it would have held is read again next time."""
        with self._lock:
            self._is_given_up = True
            attempt = self._current
        if attempt is not None:
            attempt.give_up(StopTimedOut("stopped before the last checkpoint was complete"))

    def _ends(self, number: int) -> bool:
        """Run one attempt; ``False`` if another is to follow, after a pause that is over."""
        try:
            self._next(number).run(self._running)
        except PenstockError as error:
            if isinstance(error, StopTimedOut) or (self._is_given_up and not isinstance(error, GenerationFenced)):
                self.cut_short = error
                log.warning("job %s: %s; the next start goes on from the last complete one", self._plan.name, error)
                return True
            self._wait_or_raise(error, number)
            return False
        return True

    def _next(self, number: int) -> Attempt:
        """The next attempt, which a stop can reach from here on.

        Raises:
            GivenUp: it came before.
        """
        before = self._current
        if before is not None and before.is_begun:
            self._beginning = FROM_LATEST  # and for good: the next one may fail before it has begun anything
        attempt = Attempt(
            self._plan,
            number=number,
            after=before.generation if before else None,
            beginning=self._beginning,
        )
        with self._lock:
            if self._is_given_up:
                msg = "stopped before the job had begun"
                raise StopTimedOut(msg)
            self._current = attempt
        return attempt

    def _wait_or_raise(self, error: PenstockError, number: int) -> None:
        clock = self._plan.clock
        self._strategy, delay = self._strategy.after_failure(clock.now(), chance=random.random())
        if not error.retry or isinstance(error, EngineDied) or delay is None or self._stop.is_asked:
            raise error
        self._lifecycle.to(JobState.RESTARTING)
        self._plan.listener(Restarting(cause=str(error), delay_ms=delay / 1_000, attempt=number))
        if self._stop.wait(delay / 1_000_000):
            raise error

    def _running(self) -> None:
        with self._lock:
            self._lifecycle.to(JobState.STOPPING if self._stop.is_asked else JobState.RUNNING)


class StopTimeout:
    """How long a job that is asked to stop may take: the least patient of those who ask counts.

    Args:
        clock: of the job.
        over: waits so many seconds for the job to be over; whether it is.
        give_up: called, on a thread of its own, when somebody does not wait longer.
    """

    def __init__(self, clock: Clock, over: Callable[[float], bool], give_up: Callable[[], None]) -> None:
        self._clock = clock
        self._over = over
        self._give_up = give_up
        self._latest: int | None = None
        self._lock = threading.Lock()

    def least(self, patience: int | None) -> None:
        """Somebody waits so many microseconds; ``None`` is for ever."""
        if patience is None:
            return
        latest = self._clock.now() + patience
        with self._lock:
            if self._latest is not None and self._latest <= latest:
                return
            self._latest = latest
        call_after_timeout(self._over, patience / 1_000_000, self._give_up)


def call_after_timeout(over: Callable[[float], bool], seconds: float, give_up: Callable[[], None]) -> None:
    """Call ``give_up`` unless the job is over within ``seconds``; on a thread of its own."""

    def wait() -> None:
        left = seconds
        while left > MAX_WAIT:
            if over(MAX_WAIT):
                return
            left -= MAX_WAIT
        if not over(left):
            give_up()

    threading.Thread(target=wait, name="penstock-stop-timeout", daemon=True).start()


# ----------------------------------------------------------------------------------------------------
# One job from its start to its end, on one thread: asks for the owner, makes a session, runs attempts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What whoever made the job wants."""

    graph: Graph
    state: str
    spark: SparkSession | None
    settings: Settings
    beginning: StartOptions
    allow_non_restored_state: bool
    take_over: bool
    expect: LogMark | None = None
    rename: Mapping[str, str] = field(default_factory=dict)


class JobRunner:
    """Runs the job once.

    Args:
        orders: what is wanted.
        until: when it ends by itself.
        clock: of the job.
        lifecycle: moved on here.
        stop: whether it was asked to stop.
        requests: to the job, from anywhere.
        listener: gets every fact.
        report: the numbers so far, for others to see.
        ask_to_stop: a request for that came through ``control/``.
        finish: gets the end, once.
    """

    def __init__(  # noqa: PLR0913 - everything that job and drive share
        self,
        orders: Orders,
        *,
        until: Until,
        clock: Clock,
        lifecycle: Lifecycle,
        stop: StopSignal,
        requests: RequestRegistry,
        listener: Listener,
        report: Callable[[], Report],
        ask_to_stop: Callable[[StopRequested, AnswerCallback], None],
        finish: Callable[[JobState, PenstockError | None], None],
    ) -> None:
        self._orders = orders
        self._name = orders.graph.name
        self._until = until
        self._clock = clock
        self._lifecycle = lifecycle
        self._stop = stop
        self._requests = requests
        self._listener = listener
        self._report = report
        self._hint: StatusFileWriter | None = None
        self._ask_to_stop = ask_to_stop
        self._finish = finish
        self._attempts: Attempts | None = None
        self._is_given_up = False
        self._is_cut_short = False

    @property
    def is_cut_short(self) -> bool:
        """Whether a stop ended it without its last checkpoint."""
        return self._is_cut_short or (self._attempts is not None and self._attempts.cut_short is not None)

    def stop(self) -> None:
        """The job is to end: it says so from now on."""
        if self._attempts is not None:
            self._attempts.stop()

    def give_up(self) -> None:
        """End without the last checkpoint; at the next opportunity, if there is no attempt yet."""
        self._is_given_up = True
        if self._attempts is not None:
            self._attempts.give_up()

    def run(self) -> None:
        """From the start to the end; never raises what a job can end with."""
        made: SparkSession | None = None
        try:
            self._lifecycle.to(JobState.RESTORING)
            place = _Place(self._orders, self._clock, self._stop)
            place.check_owner()  # before a session is made, which takes seconds
            place.check_beginning()
            given = self._orders.spark
            made = None if given else make_session(self._name)
            spark = clone_session(given) if given else made
            assert spark is not None
            self._refuse_if_given_up()
            self._run_attempts(self._plan(spark, place), place)
            self._end(JobState.STOPPED, None)
        except StopTimedOut:  # stopped before there was anything to stop
            self._end(JobState.STOPPED, None)
        except PenstockError as error:
            self._end(JobState.FENCED if isinstance(error, GenerationFenced) else JobState.FAILED, error)
        except Exception as error:
            from penstock.job.failures import to_penstock_error

            told = to_penstock_error(error)
            told.__cause__ = error
            self._end(JobState.FAILED, told)
        finally:
            self._requests.close()
            if made is not None:
                _stop_session(made)

    def _refuse_if_given_up(self) -> None:
        if self._is_given_up:
            self._is_cut_short = True
            msg = "stopped while the session was made"
            raise StopTimedOut(msg)

    def _end(self, state: JobState, error: PenstockError | None) -> None:
        self._requests.close(error)
        self._finish(state, error)
        if self._hint is not None:
            self._hint.finish()

    def _run_attempts(self, plan: JobEnvironment, place: _Place) -> None:
        self._attempts = Attempts(plan, lifecycle=self._lifecycle, stop=self._stop, beginning=self._orders.beginning)
        if self._is_given_up:  # it came before there was anybody to tell
            self._attempts.give_up()
        self._hint = self._hint_writer(place)
        control = ControlServer(
            place.files,
            self._requests,
            stop=self._ask_to_stop,
            state=self._word,
            clock=self._clock,
            after_look=self._hint.look,
        )
        control.start()
        try:
            self._attempts.run()
            self._requests.close(self._attempts.cut_short)
        except PenstockError as error:
            self._requests.close(error)
            raise
        finally:
            self._requests.close()
            control.close()
            self._note_over()
            with suppress(Exception):  # static tables, kept in blocks of a session that may be gone
                plan.analysis.close()

    def _hint_writer(self, place: _Place) -> StatusFileWriter:
        return StatusFileWriter(
            place.filesystem,
            job=self._name,
            report=self._report,
            owned=lambda: self._requests.owned,
            clock=self._clock,
            side_outputs=side_outputs(self._orders.graph),
        )

    def _word(self) -> str:
        """What it is doing, for others: a job that restores and then stops is one that stops."""
        return (JobState.STOPPING if self._stop.is_asked else self._lifecycle.state).value

    def _note_over(self) -> None:
        if self._requests.owned is not None:
            mark_released(self._requests.owned.log_id, self._requests.owned.generation)

    def _plan(self, spark: SparkSession, place: _Place) -> JobEnvironment:
        set_active_session(spark)
        return JobEnvironment(
            name=self._name,
            analysis=analyze(with_dead_letter_folders(self._orders.graph, place.filesystem), spark, clock=self._clock),
            spark=spark,
            filesystem=place.filesystem,
            log=place.log,
            settings=self._orders.settings,
            until=self._until,
            clock=self._clock,
            listener=self._listener,
            pause=self._stop.pause,
            answered=self._requests.answered,
            requests=self._requests,
            before_claim=place.check_owner,
            allow_non_restored_state=self._orders.allow_non_restored_state,
            take_over=self._orders.take_over,
            expect=self._orders.expect,
            rename=self._orders.rename,
        )


class _Place:
    """Where the job's state lies, and who has it."""

    def __init__(self, orders: Orders, clock: Clock, stop: StopSignal) -> None:
        name = orders.graph.name
        self.filesystem = resolve(f"{orders.state}/{name}")
        self.log = Log(self.filesystem, job=name, new_id=new_id, pause=stop.pause)
        self.files = ControlFiles(self.filesystem)
        self._is_taken_over = orders.take_over
        self._beginning = orders.beginning
        self._name, self._clock = name, clock
        self._check = OwnerCheck(job=name, log=self.log, files=self.files, clock=clock, new_id=new_id, pause=stop.pause)

    def check_beginning(self) -> None:
        """Refuse what surely cannot be begun with; what the log says then is looked at again under the claim."""
        if self._beginning != FROM_LATEST:
            history = self.log.read(past_unreadable=True)
            resolve_start(self._beginning, history, job=self._name, at=self._clock.wall())

    def check_owner(self) -> None:
        """Refuse while a living owner answers, unless told to take over."""
        if not self._is_taken_over:
            self._check()


def _stop_session(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:
        log.debug("the Spark session was gone already")


def parse_until(text: str) -> Until:
    """How far a run reads, as users write it.

    Raises:
        SettingsError: it says nothing of that kind.
    """
    try:
        return Until(text)
    except ValueError as error:
        msg = f"until is {text!r}, but must be one of {', '.join(each.value for each in Until)}"
        raise SettingsError(msg) from error
