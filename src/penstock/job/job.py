"""A job: a pipeline on a state directory, started, watched, stopped. Knows when attempts begin, not what they do."""

from __future__ import annotations

import logging
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.checkpoint.log import Log
from penstock.checkpoint.messages import AnswerRequest
from penstock.errors import GenerationFenced, InternalError, PenstockError, SettingsError
from penstock.facts import Fact, JobEnded, Listener
from penstock.filesystem.resolve import resolve
from penstock.graph.analyze import analyze
from penstock.graph.nodes import Read, Write
from penstock.graph.pipeline import PipelineDefinition
from penstock.graph.validate import validate_mode
from penstock.handles import Guarantee
from penstock.job.attempt import Plan
from penstock.job.attempts import Attempts, Stop, watch
from penstock.job.report import Report, Tally
from penstock.job.session import activate, make_session, take_over
from penstock.job.signals import stopping_on_signals
from penstock.runtime.clock import SystemClock
from penstock.runtime.lifecycle import JobState, Lifecycle
from penstock.settings import read_settings
from penstock.sources.base import Until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")


class Job:
    """A pipeline on a state directory. Continues the newest complete checkpoint there, or starts empty.

    Args:
        pipeline: what ``@ps.pipeline`` made.
        state: the folder that holds ``<job>/log`` and all else the job remembers; made if absent.
        spark: a session to run on; it is neither stopped nor changed. Without one the job makes its own, and stops
            it at the end.
        fresh: begin empty though there is state; what is there stays, and ``rewind`` can go back to it.
        allow_non_restored_state: leave state unused whose step the pipeline no longer has.
        take_over: claim the job even if another process claims it at the same time.
        listener: gets every fact, from any thread.
        settings: options of :class:`penstock.settings.Settings`, durations as text: ``checkpoint_every="5s"``.

    Raises:
        GraphError: the pipeline is refused, before anything runs.
        SettingsError: an unknown or impossible option.

    Example::

        job = ps.Job(orders, state="./state")
        report = job.run(until="caught-up")
        print(report.rows_written)
    """

    def __init__(
        self,
        pipeline: PipelineDefinition,
        *,
        state: str | Path,
        spark: SparkSession | None = None,
        fresh: bool = False,
        allow_non_restored_state: bool = False,
        take_over: bool = False,
        listener: Listener | None = None,
        **settings: object,
    ) -> None:
        self.graph = pipeline.graph()
        self.name = self.graph.name
        self._settings = read_settings(settings)
        validate_mode(self.graph, Guarantee(self._settings.mode))
        self._state = str(state)
        self._given = spark
        self._fresh = fresh
        self._flags = {"allow_non_restored_state": allow_non_restored_state, "take_over": take_over}
        self._observer = listener
        self._tally = Tally(
            sources=frozenset(node.uid for node in self.graph.nodes if isinstance(node, Read)),
            sinks=frozenset(node.uid for node in self.graph.nodes if isinstance(node, Write)),
        )
        self._lifecycle = Lifecycle()
        self._clock = SystemClock()
        self._over = threading.Event()
        self._stop = Stop()
        self._attempts: Attempts | None = None
        self._thread: threading.Thread | None = None
        self._error: PenstockError | None = None
        self._lock = threading.Lock()

    # ---------------------------------------------------------------------------------------------------- the public

    @property
    def state(self) -> JobState:
        """What the job is now."""
        return self._lifecycle.state

    @property
    def is_over(self) -> bool:
        """Whether it has ended, however."""
        return self._lifecycle.is_over

    @property
    def is_cut_short(self) -> bool:
        """Whether a stop ended it without its last checkpoint, which took longer than ``stop_timeout``.

        Nothing is lost by that: the next start goes on from the last complete checkpoint.
        """
        return self._attempts is not None and self._attempts.cut_short is not None

    def report(self) -> Report:
        """What it has done so far."""
        return self._tally.report()

    def run(self, until: str = "stopped") -> Report:
        """Start, and wait for the end. ``until="caught-up"`` reads what is there now, checkpoints, publishes, ends.

        Ctrl-C and SIGTERM stop it in order: a last checkpoint, its output published. A second one ends at once;
        nothing is lost by that either, the next start goes on from the last complete checkpoint.

        Raises:
            PenstockError: what ended it.
        """
        with stopping_on_signals(self.request_stop):
            self.start(until)
            self.wait()
        return self.report()

    def start(self, until: str = "stopped") -> None:
        """Begin on a thread of its own and return. A second call while it runs only warns.

        Raises:
            SettingsError: it is over: a stopped job does not come back, make a new one.
        """
        goal = _until(until)
        with self._lock:
            if self._lifecycle.is_over:
                msg = f"job {self.name!r} is {self.state.value} and does not start again; make a new Job, it continues"
                raise SettingsError(msg)
            if self._thread is not None:
                log.warning("job %s is already %s; start() did nothing", self.name, self.state.value)
                return
            self._thread = threading.Thread(
                target=self._drive, args=(goal,), name=f"penstock-job-{self.name}", daemon=True
            )
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; with a time-out in seconds, returns whether it came.

        Raises:
            PenstockError: what ended the job.
        """
        if self._thread is None:
            return self._lifecycle.is_over
        if not self._over.wait(timeout):
            return False
        self._thread.join()
        if self._error is not None:
            raise self._error
        return True

    def stop(self, timeout: float | None = None) -> bool:
        """Take a last checkpoint, publish, end, and wait for it. Harmless if it is over; may be repeated.

        Raises:
            InternalError: called from one of the job's own threads, which would wait for itself.
            PenstockError: what ended the job instead.
        """
        if threading.current_thread().name.startswith("penstock-"):
            msg = "stop() was called on one of the job's own threads, which it would wait for; use request_stop()"
            raise InternalError(msg)
        self.request_stop()
        return self.wait(timeout)

    def request_stop(self) -> None:
        """As :meth:`stop`, without waiting; from any thread, a listener's too."""
        with self._lock:
            first = not self._stop.is_asked
            self._stop.ask()
            if self._thread is None and not self._lifecycle.is_over:
                self._finish(JobState.STOPPED, None)
                return
        if first and self._attempts is not None:
            self._attempts.stop()
        if first and self._settings.stop_timeout is not None:
            watch(self._over.wait, self._settings.stop_timeout / 1_000_000, self._give_up)

    def _give_up(self) -> None:
        if self._attempts is not None:
            self._attempts.give_up()

    # ------------------------------------------------------------------------------------------------------- driving

    def _drive(self, until: Until) -> None:
        made: SparkSession | None = None
        try:
            self._lifecycle.to(JobState.RESTORING)
            made = None if self._given else make_session(self.name)
            plan = self._plan(take_over(self._given) if self._given else made, until)
            self._run_attempts(plan)
        except PenstockError as error:
            self._finish(JobState.FENCED if isinstance(error, GenerationFenced) else JobState.FAILED, error)
        except Exception as error:
            from penstock.job.explain import explain

            told = explain(error)
            told.__cause__ = error
            self._finish(JobState.FAILED, told)
        finally:
            if made is not None:
                _stop_session(made)
            self._over.set()

    def _run_attempts(self, plan: Plan) -> None:
        self._attempts = Attempts(plan, lifecycle=self._lifecycle, stop=self._stop, fresh=self._fresh)
        try:
            self._attempts.run()
        finally:
            with suppress(Exception):  # static tables, kept in blocks of a session that may be gone
                plan.analysis.close()
        self._finish(JobState.STOPPED, None)

    def _plan(self, spark: SparkSession | None, until: Until) -> Plan:
        assert spark is not None
        activate(spark)
        analysis = analyze(self.graph, spark, clock=self._clock)
        filesystem = resolve(f"{self._state}/{self.name}")
        return Plan(
            name=self.name,
            analysis=analysis,
            spark=spark,
            filesystem=filesystem,
            log=Log(filesystem, job=self.name, new_id=lambda: uuid.uuid4().hex, pause=self._stop.pause),  # noqa: TID251
            settings=self._settings,
            until=until,
            clock=self._clock,
            listener=self._tell,
            pause=self._stop.pause,
            answered=self._answered,
            **self._flags,
        )

    def _answered(self, answer: AnswerRequest) -> None:
        log.info("request %s: %s %s", answer.request, answer.answer.value, answer.message)

    def _tell(self, fact: Fact) -> None:
        self._tally(fact)
        if self._observer is not None:
            try:
                self._observer(fact)
            except Exception:
                log.exception("a listener raised on %s; it is ignored", type(fact).__name__)

    def _finish(self, state: JobState, error: PenstockError | None) -> None:
        self._error = error
        self._lifecycle.to(state)
        self._tell(JobEnded(state=state.value, cause=str(error) if error else None))


def _until(text: str) -> Until:
    try:
        return Until(text)
    except ValueError as error:
        msg = f"until is {text!r}, but must be one of {', '.join(each.value for each in Until)}"
        raise SettingsError(msg) from error


def _stop_session(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:
        log.debug("the Spark session was gone already")
