"""Runs a job from its start to its end: owner check, session, attempts, restarts, stop."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from penstock.checkpoint.events import StopRequested
from penstock.checkpoint.history import LogMark
from penstock.checkpoint.log import Log
from penstock.checkpoint.recovery import Recovery
from penstock.clock import MAX_WAIT, Clock
from penstock.compiler.analysis import analyze
from penstock.compiler.tasks import build_tasks
from penstock.control.client import OwnerCheck, mark_released
from penstock.control.protocol import ControlFiles
from penstock.control.server import AnswerCallback, ControlServer, RequestRegistry
from penstock.dead_letters.letters import with_dead_letter_folders
from penstock.errors import Domain, EngineDied, GenerationFenced, PenstockError, SettingsError
from penstock.facts import Listener, Restarting
from penstock.filesystem import resolve
from penstock.filesystem.ahead import SettledAhead
from penstock.filesystem.base import FileSystem
from penstock.graph.nodes import Graph
from penstock.graph.queries import side_outputs
from penstock.handles import new_id
from penstock.interfaces.source import Until
from penstock.job.attempt import Attempt
from penstock.job.decision import decide_start, refusal
from penstock.job.failures import to_penstock_error
from penstock.job.start import (
    StartOptions,
    declare_without_columns,
    recorded_positions,
    restored_files,
    unchosen_timezone,
)
from penstock.job.wiring import JobEnvironment
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
from penstock.spark.query_log import install_quiet_threads
from penstock.spark.session import borrow_session, set_active_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")
RESTART_STRATEGIES: Final[dict[str, RestartStrategy]] = {
    "exponential": ExponentialDelay(),
    "fixed": FixedDelay(),
    "rate": FailureRate(),
    "none": NoRestart(),
}


# ---- stop ----------------------------------------------------------------------------------------------------------


class StopTimedOut(PenstockError):
    """A job that is stopping could not finish something in time; nothing is lost."""

    domain = Domain.EXTERNAL


class StopSignal:
    """Whether the job was asked to stop. Set once, from any thread."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def is_asked(self) -> bool:
        """Whether the job was asked to stop."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Ask the job to stop."""
        self._asked.set()

    def wait(self, seconds: float) -> bool:
        """Wait at most this long for a request to stop; returns whether there is one."""
        return self._asked.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Sleep before a retry.

        Raises:
            StopTimedOut: the job was asked to stop.
        """
        if self._asked.wait(seconds):
            msg = (
                "The job was stopped while it waited for storage or a sink. The next start goes on where this one "
                "gave up."
            )
            raise StopTimedOut(msg)


class StopTimeout:
    """Time within which a stopping job has to end: the shortest of all stop requests.

    Args:
        clock: of the job.
        wait_for_end: waits at most this many seconds for the end of the job; returns whether it came.
        give_up: called on a thread of its own when the time is up.
    """

    def __init__(self, clock: Clock, wait_for_end: Callable[[float], bool], give_up: Callable[[], None]) -> None:
        self._clock = clock
        self._wait_for_end = wait_for_end
        self._give_up = give_up
        self._deadline: int | None = None
        self._lock = threading.Lock()

    def shorten(self, timeout: int | None) -> None:
        """Give up after ``timeout`` microseconds, unless an earlier request gives up sooner; ``None`` is no limit."""
        if timeout is None:
            return
        deadline = self._clock.now() + timeout
        with self._lock:
            if self._deadline is not None and self._deadline <= deadline:
                return
            self._deadline = deadline
        call_after_timeout(self._wait_for_end, timeout / 1_000_000, self._give_up)


def call_after_timeout(wait_for_end: Callable[[float], bool], seconds: float, give_up: Callable[[], None]) -> None:
    """Call ``give_up`` on a thread of its own, unless the job ends within ``seconds``."""

    def wait() -> None:
        left = seconds
        while left > MAX_WAIT:
            if wait_for_end(MAX_WAIT):
                return
            left -= MAX_WAIT
        if not wait_for_end(left):
            give_up()

    threading.Thread(target=wait, name="penstock-stop-timeout", daemon=True).start()


def parse_until(text: str) -> Until:
    """When a run ends by itself, as users write it.

    Raises:
        SettingsError: no such end is known.
    """
    try:
        return Until(text)
    except ValueError as error:
        msg = f"until is {text!r}. It must be one of {', '.join(each.value for each in Until)}."
        raise SettingsError(msg) from error


# ---- the loop ------------------------------------------------------------------------------------------------------


class JobRunner:
    """Runs the job once, on the thread that calls ``run``: one attempt after another until the end.

    Args:
        graph: the pipeline.
        start: how the first attempt starts.
        state: the folder that holds the job's directory.
        spark: a session to clone; without one that of the process, or one that is made: see ``borrow_session``.
        take_over: claim the job even if its owner lives.
        expect: the mark at which the first claim must find the log.
        settings: of the job.
        until: when the job ends by itself.
        clock: of the job.
        lifecycle: moved on here.
        stop: whether the job was asked to stop.
        requests: to the job, from any process.
        listener: gets every fact.
        report: returns the report so far.
        ask_to_stop: called for a stop request from ``control/``.
        finish: called once, with the final state and the error.
    """

    def __init__(  # noqa: PLR0913 - everything that the job shares with its runner
        self,
        graph: Graph,
        start: StartOptions,
        *,
        state: str,
        spark: SparkSession | None,
        take_over: bool,
        expect: LogMark | None,
        settings: Settings,
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
        self._graph = graph
        self._name = graph.name
        self._start = start
        self._state = state
        self._users_session = spark
        self._take_over = take_over
        self._expect = expect
        self._settings = settings
        self._until = until
        self._clock = clock
        self._lifecycle = lifecycle
        self._stop = stop
        self._requests = requests
        self._listener = listener
        self._report = report
        self._ask_to_stop = ask_to_stop
        self._finish = finish
        self._strategy = RESTART_STRATEGIES[settings.restart]
        self._status_file: StatusFileWriter | None = None
        self._lock = threading.Lock()
        self._checks: SettledAhead | None = None
        self._attempt: Attempt | None = None
        self._is_given_up = False
        self._cut_short: PenstockError | None = None

    @property
    def is_cut_short(self) -> bool:
        """Whether a stop ended the job without its last checkpoint.

        Rows read since the previous checkpoint are read again by the next start.
        """
        return self._cut_short is not None

    def stop(self) -> None:
        """Show the state ``stopping`` from now on. The request itself reaches the attempt as all requests do."""
        with self._lock:
            if self._lifecycle.state is JobState.RUNNING:
                self._lifecycle.to(JobState.STOPPING)

    def give_up(self) -> None:
        """End without the last checkpoint; before the first attempt, end as soon as one would begin."""
        with self._lock:
            self._is_given_up = True
            attempt = self._attempt
        if attempt is not None:
            attempt.give_up(StopTimedOut("The job was stopped before the last checkpoint was complete."))

    def run(self) -> None:
        """Run to the end; errors that end the job go to ``finish`` and are not raised."""
        session = ExitStack()
        try:
            self._lifecycle.to(JobState.RESTORING)
            filesystem = self._checks = SettledAhead(resolve(f"{self._state}/{self._name}"))
            session.callback(filesystem.end)
            job_log = Log(filesystem, job=self._name, new_id=new_id, pause=self._stop.pause)
            files = ControlFiles(filesystem)
            graph = with_dead_letter_folders(self._graph, filesystem)
            restored, refused = self._check_start(graph, filesystem, job_log)
            filesystem.begin(restored)  # while the owner is waited for and the JVM boots
            check_owner = self._owner_check(job_log, files)
            check_owner()  # before a session is made, which takes seconds
            if refused is not None:  # unless the owner, which is gone now, has changed that
                _, refused = self._check_start(graph, filesystem, job_log)
            if refused is not None:
                raise refused
            spark = session.enter_context(
                borrow_session(self._name, self._users_session, timezone=self._settings.timezone)
            )
            self._refuse_if_given_up()
            self._run_attempts(self._environment(graph, spark, filesystem, job_log, check_owner), files)
            self._end(JobState.STOPPED, None)
        except StopTimedOut:  # stopped before the first attempt
            self._end(JobState.STOPPED, None)
        except PenstockError as error:
            self._end(JobState.FENCED if isinstance(error, GenerationFenced) else JobState.FAILED, error)
        except Exception as raised:
            failure = to_penstock_error(raised)
            failure.__cause__ = raised
            self._end(JobState.FAILED, failure)
        finally:
            self._requests.close()
            session.close()

    def _owner_check(self, job_log: Log, files: ControlFiles) -> Callable[[], None]:
        """Refuses to go on while a living owner answers; with ``take_over`` it never does."""
        if self._take_over:
            return lambda: None
        return OwnerCheck(
            job=self._name, log=job_log, files=files, clock=self._clock, new_id=new_id, pause=self._stop.pause
        )

    def _check_start(
        self, graph: Graph, filesystem: FileSystem, job_log: Log
    ) -> tuple[Sequence[str], PenstockError | None]:
        """The files of state that this start will restore, and the error if it can be refused without columns.

        The log may move on until its claim. Each attempt decides again.
        """
        decided: list[Recovery] = []
        refused = refusal(
            lambda: decided.append(
                decide_start(
                    graph,
                    self._start,
                    job_log.read(past_unreadable=self._start.is_rewind),
                    declared=declare_without_columns(build_tasks(graph)),
                    zone=unchosen_timezone(self._settings, self._users_session),
                    filesystem=filesystem,
                    at=self._clock.wall(),
                )
            )
        )
        return [path for recovery in decided for path in restored_files(recovery)], refused

    def _refuse_if_given_up(self) -> None:
        if self._is_given_up:
            self._cut_short = StopTimedOut("The job was stopped while the session was made.")
            raise self._cut_short

    def _environment(
        self,
        graph: Graph,
        spark: SparkSession,
        filesystem: FileSystem,
        job_log: Log,
        check_owner: Callable[[], None],
    ) -> JobEnvironment:
        install_quiet_threads()
        set_active_session(spark)
        start = self._start
        positions = recorded_positions(
            graph, start, lambda: job_log.read(past_unreadable=start.is_rewind), at=self._clock.wall()
        )
        return JobEnvironment(
            name=self._name,
            analysis=analyze(graph, spark, clock=self._clock, positions=positions),
            spark=spark,
            filesystem=filesystem,
            log=job_log,
            settings=self._settings,
            until=self._until,
            clock=self._clock,
            listener=self._listener,
            requests=self._requests,
            pause=self._stop.pause,
            take_over=self._take_over,
            expect=self._expect,
            check_owner=check_owner,
        )

    # ---- attempts --------------------------------------------------------------------------------------------------

    def _run_attempts(self, env: JobEnvironment, files: ControlFiles) -> None:
        """Run attempts, and answer requests from ``control/`` meanwhile.

        Raises:
            PenstockError: a failure after which the job does not restart.
        """
        self._status_file = self._status_file_writer(env)
        control = ControlServer(
            files,
            self._requests,
            stop=self._ask_to_stop,
            state=self._state_word,
            clock=self._clock,
            after_look=self._status_file.write_if_due,
        )
        control.start()
        try:
            self._repeat_attempts(env)
            self._requests.close(self._cut_short)
        except PenstockError as error:
            self._requests.close(error)
            raise
        finally:
            self._requests.close()
            with suppress(Exception):  # such as a socket that listened while attempts came and went
                env.resources.close()
            control.close()
            if self._requests.owned is not None:
                mark_released(self._requests.owned.log_id, self._requests.owned.generation)
            with suppress(Exception):  # static tables, kept in blocks of a session that may be gone
                env.analysis.close()

    def _repeat_attempts(self, env: JobEnvironment) -> None:
        number = 1
        while not self._run_attempt(env, number):
            self._lifecycle.to(JobState.RESTORING)
            if self._checks is not None:
                self._checks.end()  # what was read at the start says nothing of a file by now
            number += 1

    def _run_attempt(self, env: JobEnvironment, number: int) -> bool:
        """Run one attempt. ``False``: it failed, the restart delay has passed, and another one follows."""
        try:
            self._next_attempt(env, number).run(self._show_running)
        except PenstockError as error:
            if isinstance(error, StopTimedOut) or (self._is_given_up and not isinstance(error, GenerationFenced)):
                self._cut_short = error
                log.warning("job %s: %s The next start goes on from the last complete checkpoint.", self._name, error)
                return True
            self._wait_or_raise(error, number)
            return False
        return True

    def _next_attempt(self, env: JobEnvironment, number: int) -> Attempt:
        """The next attempt, which ``give_up`` can end from now on.

        Raises:
            StopTimedOut: the job was given up before.
        """
        previous = self._attempt
        if previous is not None and previous.is_begun:
            self._start = self._start.from_latest()  # for all later ones: the next may fail before it has begun
        attempt = Attempt(env, number=number, after=previous.generation if previous else None, start=self._start)
        with self._lock:
            if self._is_given_up:
                msg = "The job was stopped before it had begun."
                raise StopTimedOut(msg)
            self._attempt = attempt
        return attempt

    def _wait_or_raise(self, error: PenstockError, number: int) -> None:
        if error.is_counted:
            self._strategy, delay = self._strategy.after_failure(self._clock.now(), chance=random.random())
        else:
            delay = self._strategy.uncounted_delay
        if not error.retry or isinstance(error, EngineDied) or delay is None or self._stop.is_asked:
            raise error
        self._lifecycle.to(JobState.RESTARTING)
        self._listener(Restarting(cause=str(error), delay_ms=delay / 1_000, attempt=number))
        text = "job %s: attempt %d failed, the next one begins in %.1f s: %s"
        log.warning(text, self._name, number, delay / 1_000_000, error, extra={"is_fact": True})
        if self._stop.wait(delay / 1_000_000):
            raise error

    def _show_running(self) -> None:
        with self._lock:
            self._lifecycle.to(JobState.STOPPING if self._stop.is_asked else JobState.RUNNING)

    # ---- what others see -------------------------------------------------------------------------------------------

    def _status_file_writer(self, env: JobEnvironment) -> StatusFileWriter:
        return StatusFileWriter(
            env.filesystem,
            job=self._name,
            report=self._report,
            owned=lambda: self._requests.owned,
            clock=self._clock,
            side_outputs=side_outputs(self._graph),
        )

    def _state_word(self) -> str:
        """The state as other processes see it: a job that restores in order to stop is stopping."""
        return (JobState.STOPPING if self._stop.is_asked else self._lifecycle.state).value

    def _end(self, state: JobState, error: PenstockError | None) -> None:
        self._requests.close(error)
        self._finish(state, error)
        if self._status_file is not None:
            self._status_file.finish()
