"""One job from its start to its end, on one thread: asks for the owner, makes a session, runs attempts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.checkpoint.control_files import ControlFiles
from penstock.checkpoint.history import LogMark
from penstock.checkpoint.log import Log
from penstock.checkpoint.messages import StopRequested
from penstock.errors import GenerationFenced, PenstockError, SettingsError
from penstock.facts import Listener
from penstock.filesystem.resolve import resolve
from penstock.graph.analyze import analyze
from penstock.graph.nodes import Graph
from penstock.job.asking import new_id
from penstock.job.attempt import Plan
from penstock.job.attempts import Attempts, GivenUp, Stop
from penstock.job.beginning import CONTINUE, Beginning, decided
from penstock.job.control import ControlWatch
from penstock.job.hint import HintWriter
from penstock.job.owner import OwnerCheck, note_over
from penstock.job.placing import placed
from penstock.job.report import Report
from penstock.job.requests import Requests, Tell
from penstock.job.session import activate, make_session, take_over
from penstock.job.side_outputs import side_outputs
from penstock.runtime.clock import Clock
from penstock.runtime.lifecycle import JobState, Lifecycle
from penstock.settings import Settings
from penstock.sources.base import Until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What whoever made the job wants."""

    graph: Graph
    state: str
    spark: SparkSession | None
    settings: Settings
    beginning: Beginning
    allow_non_restored_state: bool
    take_over: bool
    expect: LogMark | None = None
    rename: Mapping[str, str] = field(default_factory=dict)


class Drive:
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
        stop: Stop,
        requests: Requests,
        listener: Listener,
        report: Callable[[], Report],
        ask_to_stop: Callable[[StopRequested, Tell], None],
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
        self._hint: HintWriter | None = None
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
            spark = take_over(given) if given else made
            assert spark is not None
            self._refuse_if_given_up()
            self._run_attempts(self._plan(spark, place), place)
            self._end(JobState.STOPPED, None)
        except GivenUp:  # stopped before there was anything to stop
            self._end(JobState.STOPPED, None)
        except PenstockError as error:
            self._end(JobState.FENCED if isinstance(error, GenerationFenced) else JobState.FAILED, error)
        except Exception as error:
            from penstock.job.explain import explain

            told = explain(error)
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
            raise GivenUp(msg)

    def _end(self, state: JobState, error: PenstockError | None) -> None:
        self._requests.close(error)
        self._finish(state, error)
        if self._hint is not None:
            self._hint.finish()

    def _run_attempts(self, plan: Plan, place: _Place) -> None:
        self._attempts = Attempts(plan, lifecycle=self._lifecycle, stop=self._stop, beginning=self._orders.beginning)
        if self._is_given_up:  # it came before there was anybody to tell
            self._attempts.give_up()
        self._hint = self._hint_writer(place)
        control = ControlWatch(
            place.files,
            self._requests,
            stop=self._ask_to_stop,
            state=self._word,
            clock=self._clock,
            beside=self._hint.look,
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

    def _hint_writer(self, place: _Place) -> HintWriter:
        return HintWriter(
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
            note_over(self._requests.owned.log_id, self._requests.owned.generation)

    def _plan(self, spark: SparkSession, place: _Place) -> Plan:
        activate(spark)
        return Plan(
            name=self._name,
            analysis=analyze(placed(self._orders.graph, place.filesystem), spark, clock=self._clock),
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

    def __init__(self, orders: Orders, clock: Clock, stop: Stop) -> None:
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
        if self._beginning != CONTINUE:
            history = self.log.read(past_unreadable=True)
            decided(self._beginning, history, job=self._name, at=self._clock.wall())

    def check_owner(self) -> None:
        """Refuse while a living owner answers, unless told to take over."""
        if not self._is_taken_over:
            self._check()


def _stop_session(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception:
        log.debug("the Spark session was gone already")


def read_until(text: str) -> Until:
    """How far a run reads, as users write it.

    Raises:
        SettingsError: it says nothing of that kind.
    """
    try:
        return Until(text)
    except ValueError as error:
        msg = f"until is {text!r}, but must be one of {', '.join(each.value for each in Until)}"
        raise SettingsError(msg) from error
