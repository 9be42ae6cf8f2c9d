"""Job: start, wait, savepoint, stop; signals; get_or_create."""

from __future__ import annotations

import logging
import os
import platform
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from penstock.api.pipeline import PipelineDefinition
from penstock.checkpoint.events import AnswerRequest, CheckpointRequested, RequestOutcome, StopRequested
from penstock.checkpoint.history import LogMark
from penstock.checkpoint.recovery import check_rename
from penstock.clock import MAX_WATERMARK, Clock, SystemClock
from penstock.control.server import AnswerCallback, RequestRegistry
from penstock.errors import (
    CheckpointUnreadable,
    InternalError,
    PenstockError,
    RequestFailed,
    RequestRefused,
    SettingsError,
)
from penstock.facts import Fact, JobEnded, Listener
from penstock.graph.validate import validate_mode
from penstock.handles import CheckpointId, Guarantee, check_savepoint_name, new_id
from penstock.job.runner import JobRunner, Orders, StopSignal, StopTimeout, parse_until
from penstock.job.start import parse_start_options
from penstock.observability.report import Report, ReportCollector, notify_listener
from penstock.runtime.lifecycle import TERMINAL_STATES, JobState, Lifecycle
from penstock.settings import read_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.checkpoint.history import History
    from penstock.checkpoint.log import OwnedLog


# ----------------------------------------------------------------------------------------------------
# What a program asks of its own running job: makes the requests, waits for replies, and turns them into errors.

log = logging.getLogger("penstock")


class AnswerWaiter:
    """Waits for one reply.

    Attributes:
        is_used: whether somebody has asked for it.
    """

    def __init__(self) -> None:
        self.is_used = False
        self._came = threading.Event()
        self._reply: AnswerRequest | None = None

    def tell(self, reply: AnswerRequest) -> None:
        """It came."""
        self._reply = reply
        self._came.set()

    def wait(self, seconds: float | None) -> AnswerRequest | None:
        """The reply; ``None`` if it did not come in time."""
        self._came.wait(seconds)
        return self._reply


def refuse_own_threads(call: str, instead: str) -> None:
    """Refuse to wait on a thread that has to go on for the wait to end.

    Raises:
        InternalError: it is one.
    """
    if threading.current_thread().name.startswith("penstock-"):
        msg = f"{call} was called on one of the job's own threads, which it would wait for; {instead}"
        raise InternalError(msg)


def warn_if_unpublished(reply: AnswerRequest) -> None:
    """A stop whose output nobody has published yet has ended the job all the same; the next start publishes it."""
    if reply.outcome is RequestOutcome.UNPUBLISHED:
        log.warning("%s", reply.message)


class LocalRequests:
    """The requests of this process to one job."""

    def __init__(self, job: str, requests: RequestRegistry, clock: Clock, state: Callable[[], JobState]) -> None:
        self._job = job
        self._requests = requests
        self._clock = clock
        self._state = state
        self._stops: dict[str, tuple[StopRequested, AnswerWaiter]] = {}
        self._lock = threading.Lock()

    def checkpoint(self, name: str | None, timeout: float | None) -> CheckpointId:
        """Take one; with a name it is a savepoint.

        Raises:
            SettingsError: the name is none.
            RequestRefused: the job does not run, or the name is taken.
            RequestFailed: it came to nothing, or not in time.
        """
        what = "checkpoint()" if name is None else "savepoint()"
        refuse_own_threads(what, "call it on a thread of your own")
        if name is not None:
            check_savepoint_name(name)
        self._refuse_unless_alive(what)
        waiter = AnswerWaiter()
        asked = CheckpointRequested(
            at=self._clock.now(), wall=self._clock.wall(), request=new_id(), name=name, owner=platform.node()
        )
        self._requests.submit(asked, waiter.tell)
        reply = waiter.wait(timeout)
        if reply is None:
            msg = f"{what} of job {self._job!r} has not ended after {timeout:g} s; it may still be taken"
            raise RequestFailed(msg)
        self._check(what, reply)
        if reply.checkpoint is None:
            msg = f"{what} of job {self._job!r} is done, but nobody says which checkpoint it is"
            raise InternalError(msg)
        return reply.checkpoint

    def stop(self, name: str | None, patience: int | None, *, drain: bool = False) -> StopRequested:
        """The request of a stop; of the same name it is the same one, until it is answered that it came to nothing.

        Raises:
            SettingsError: the name is none.
            RequestRefused: a savepoint is wanted of a job that does not run.
        """
        if name is None:
            return self._new_stop(None, patience, drain=drain)
        check_savepoint_name(name)
        with self._lock:
            if name not in self._stops:
                self._refuse_unless_alive("stop(savepoint=…)")
                self._stops[name] = self._new_stop(name, patience, drain=drain), AnswerWaiter()
            return self._stops[name][0]

    def _new_stop(self, name: str | None, patience: int | None, *, drain: bool) -> StopRequested:
        return StopRequested(
            at=self._clock.now(),
            wall=self._clock.wall(),
            request=new_id(),
            name=name,
            owner=platform.node(),
            patience=patience,
            drain=drain,
        )

    def wait_for_stop(
        self, stop: StopRequested, ask: Callable[[StopRequested, AnswerCallback], None], seconds: float | None
    ) -> bool:
        """Ask, once, and wait for the reply at most so long; whether it came.

        Raises:
            RequestRefused: the name is taken, and the job goes on.
        """
        assert stop.name is not None  # whoever wants no name waits for the job
        with self._lock:
            waiter = self._stops[stop.name][1]
            is_new, waiter.is_used = not waiter.is_used, True
        if is_new:
            ask(stop, waiter.tell)
        reply = waiter.wait(seconds)
        if reply is None:
            return False
        if reply.outcome is RequestOutcome.UNPUBLISHED:
            warn_if_unpublished(reply)
        elif reply.outcome is not RequestOutcome.DONE:
            with self._lock:
                if self._stops.get(stop.name, (None, None))[1] is waiter:
                    del self._stops[stop.name]
            self._check("stop(savepoint=…)", reply)
        return True

    def _check(self, what: str, reply: AnswerRequest) -> None:
        if reply.outcome is RequestOutcome.DONE:
            return
        msg = f"{what} of job {self._job!r}: {reply.message}"
        raise (RequestRefused if reply.outcome is RequestOutcome.REFUSED else RequestFailed)(msg)

    def _refuse_unless_alive(self, what: str) -> None:
        state = self._state()
        if state is JobState.CREATED or state in TERMINAL_STATES:
            msg = f"{what} of job {self._job!r}: it is not running, its state is {state.value!r}"
            raise RequestRefused(msg)


# ----------------------------------------------------------------------------------------------------
# Whether a job that was stopped has been drained: derived from its last checkpoint. Asks nobody, stops nothing.


def never_ran_error(job: str) -> RequestRefused:
    """Only a job that runs can end its sources; one that has not begun stays so."""
    return RequestRefused(f"job {job!r} has not begun, and only a running job can be drained: start it first")


def require_drained(job: str, sources: Collection[str], owned: OwnedLog | None, *, is_cut_short: bool) -> None:
    """Say so if a job that is over was to be drained and was not.

    A source that has ended by itself is as good as one that was drained: nothing can be read after either.

    Raises:
        RequestFailed: it has ended without its last checkpoint.
        RequestRefused: that checkpoint was begun before anybody asked for a drain.
    """
    if owned is not None and is_drained(owned.history, sources):
        return
    left = "its sources have not ended and windows stay open; start it again, then stop it with drain alone"
    if is_cut_short:
        msg = f"job {job!r} was not drained: it has ended without its last checkpoint, so {left}"
        raise RequestFailed(msg)
    msg = f"job {job!r} was not drained: its last checkpoint was begun before that was asked for, so {left}"
    raise RequestRefused(msg)


def is_drained(history: History, sources: Collection[str]) -> bool:
    """Whether the checkpoint that the next start continues says of every source that it has ended for good."""
    try:
        point = history.restore_point
    except CheckpointUnreadable:
        return False
    ended = {task.task for task in point.tasks if MAX_WATERMARK in task.watermarks} if point is not None else set()
    return point is not None and ended.issuperset(sources)


# ----------------------------------------------------------------------------------------------------
# Ctrl-C and SIGTERM while a job runs in the main thread: once to stop in order, twice to end at once.


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Have the first signal call ``stop``, on a thread of its own, and the second raise ``KeyboardInterrupt``.

    Outside of the main thread, which alone gets signals, nothing is changed. Handlers that were there come back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        del frame
        seen += 1
        if seen > 1:
            raise KeyboardInterrupt
        log.warning("%s: taking a last checkpoint, then stopping; again to end at once", signal.Signals(number).name)
        threading.Thread(target=stop, name="stop-request", daemon=True).start()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ----------------------------------------------------------------------------------------------------
# A job: a pipeline on a state directory, started, watched, stopped. Knows when attempts begin, not what they do.


class Job:
    """A pipeline on a state directory. Continues the newest complete checkpoint there, or starts empty.

    Args:
        pipeline: what ``@ps.pipeline`` made.
        state: the folder that holds ``<job>/log`` and all else the job remembers; made if absent.
        spark: a session to run on; it is neither stopped nor changed. Without one the job makes its own, and stops
            it at the end.
        fresh: begin empty though there is state; what is there stays, and ``rewind`` can go back to it.
        restore_from: begin at this savepoint or checkpoint of the job, or with the exported one in this folder: a
            ``Path``, or a text with a slash. Its files are copied; the folder is not needed afterwards.
        claim: take the folder's files over: they are deleted there, and nobody else can begin with them.
        discard_unpublished: output above ``restore_from`` that is not published yet never will be.
        allow_non_restored_state: leave state unused whose step the pipeline no longer has.
        rename: new uids of steps by their old ones, to go on with those; does nothing once a checkpoint has the new.
        take_over: claim the job even if a living process has it, which that process notices and ends.
        expect: refuse if the log is not as it was when somebody looked (``history.mark``); for the first attempt.
        listener: gets every fact, from any thread.
        settings: options of :class:`penstock.settings.Settings`, durations as text: ``checkpoint_every="5s"``.

    Raises:
        GraphError: the pipeline is refused, before anything runs.
        SettingsError: an unknown or impossible option, or a rename beside ``fresh``.

    Example::

        job = ps.Job(orders, state="./state")
        print(job.run(until="caught-up").rows_written)
    """

    def __init__(  # noqa: PLR0913 - all that can be said of a start
        self,
        pipeline: PipelineDefinition,
        *,
        state: str | Path,
        spark: SparkSession | None = None,
        fresh: bool = False,
        restore_from: str | int | os.PathLike[str] | None = None,
        claim: bool = False,
        discard_unpublished: bool = False,
        allow_non_restored_state: bool = False,
        rename: Mapping[str, str] | None = None,
        take_over: bool = False,
        expect: LogMark | None = None,
        listener: Listener | None = None,
        **settings: object,
    ) -> None:
        self.graph = pipeline.graph()
        self.name = self.graph.name
        self._settings = read_settings(settings)
        validate_mode(self.graph, Guarantee(self._settings.mode))
        self._observer = listener
        self._tally = ReportCollector(sources=self.graph.sources, sinks=self.graph.sinks)
        self._lifecycle = Lifecycle()
        self._clock = SystemClock()
        self._over = threading.Event()
        self._stop = StopSignal()
        self._requests = RequestRegistry()
        self._asking = LocalRequests(self.name, self._requests, self._clock, lambda: self.state)
        self._orders = Orders(
            graph=self.graph,
            state=str(state),
            spark=spark,
            settings=self._settings,
            beginning=parse_start_options(
                fresh=fresh, restore_from=restore_from, claim=claim, discard_unpublished=discard_unpublished
            ),
            allow_non_restored_state=allow_non_restored_state,
            take_over=take_over,
            expect=expect,
            rename=check_rename(rename, fresh=fresh),
        )
        self._drive: JobRunner | None = None
        self._thread: threading.Thread | None = None
        self._error: PenstockError | None = None
        self._is_asked = False
        self._lock = threading.Lock()
        self._patience = StopTimeout(self._clock, self._over.wait, self._give_up)

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
        return self._drive is not None and self._drive.is_cut_short

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
        with stop_on_signals(self.request_stop):
            self.start(until)
            self.wait()
        return self.report()

    def start(self, until: str = "stopped") -> None:
        """Begin on a thread of its own and return. A second call while it runs only warns.

        Raises:
            SettingsError: it is over: a stopped job does not come back, make a new one.
        """
        goal = parse_until(until)
        with self._lock:
            if self._lifecycle.is_over:
                msg = f"job {self.name!r} is {self.state.value} and does not start again; make a new Job, it continues"
                raise SettingsError(msg)
            if self._thread is not None:
                log.warning("job %s is already %s; start() did nothing", self.name, self.state.value)
                return
            self._drive = JobRunner(
                self._orders,
                until=goal,
                clock=self._clock,
                lifecycle=self._lifecycle,
                stop=self._stop,
                requests=self._requests,
                listener=self._tell,
                report=self.report,
                ask_to_stop=self._ask_to_stop,
                finish=self._finish,
            )
            self._thread = threading.Thread(
                target=self._begin, args=(self._drive,), name=f"penstock-job-{self.name}", daemon=True
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

    def savepoint(self, name: str, timeout: float | None = None) -> CheckpointId:
        """Take a checkpoint now that keeps this name and is never cleaned up; returns its id once it is in the log.

        While the job restores or waits for its next attempt, it waits for that.

        Raises:
            SettingsError: the name is not one.
            RequestRefused: the job does not run, or the name is taken; the message says by which checkpoint.
            RequestFailed: it came to nothing, or not within ``timeout`` seconds.
        """
        return self._asking.checkpoint(name, timeout)

    def checkpoint(self, timeout: float | None = None) -> CheckpointId:
        """Take a checkpoint now; as :meth:`savepoint`, without a name."""
        return self._asking.checkpoint(None, timeout)

    def stop(self, timeout: float | None = None, *, savepoint: str | None = None, drain: bool = False) -> bool:
        """Take a last checkpoint, publish, end, and wait for it. Harmless if it is over; may be repeated.

        With ``savepoint`` that checkpoint keeps this name; if it cannot have it, the job goes on. With ``drain`` the
        sources end first, for good: all windows close and are published, and a later start that finds more rows is
        refused unless it goes back to a checkpoint before.

        Raises:
            InternalError: called from one of the job's own threads, which would wait for itself.
            RequestRefused: the name is taken, or the job does not run; or it is too late to drain it.
            RequestFailed: the job ended without its savepoint, or undrained for want of its last checkpoint.
            PenstockError: what ended the job instead.
        """
        refuse_own_threads("stop()", "use request_stop()")
        if drain and self._thread is None:
            raise never_ran_error(self.name)
        deadline = None if timeout is None else self._clock.now() + timeout * 1_000_000
        if savepoint is None:
            self._request_stop(drain=drain)
        elif not self._stop_at(savepoint, timeout, drain=drain):
            return False
        is_over = self.wait(None if deadline is None else max(0.0, (deadline - self._clock.now()) / 1_000_000))
        if is_over and drain:
            require_drained(self.name, self.graph.sources, self._requests.owned, is_cut_short=self.is_cut_short)
        return is_over

    def _stop_at(self, savepoint: str, timeout: float | None, *, drain: bool) -> bool:
        event = self._asking.stop(savepoint, self._settings.stop_timeout, drain=drain)
        try:
            return self._asking.wait_for_stop(event, self._ask_to_stop, timeout)
        except RequestFailed:
            self.wait(timeout)  # which raises what ended the job, if it was an error
            raise

    def request_stop(self) -> None:
        """As :meth:`stop`, without waiting; from any thread, a listener's too."""
        self._request_stop(drain=False)

    def _request_stop(self, *, drain: bool) -> None:
        with self._lock:
            first, self._is_asked = not self._is_asked, True
            if self._thread is None and not self._lifecycle.is_over:
                self._stop.ask()
                self._finish(JobState.STOPPED, None)
                return
        if first or drain:
            self._ask_to_stop(self._asking.stop(None, self._settings.stop_timeout, drain=drain), warn_if_unpublished)

    def _ask_to_stop(self, stop: StopRequested, tell: AnswerCallback) -> None:
        """One that wants a name stops the job only once it is sure to get it."""
        if stop.name is None:
            self._stopping(stop.patience)
            self._requests.submit(stop, tell)
        else:
            self._requests.submit(stop, tell, accepted=lambda: self._stopping(stop.patience))

    def _stopping(self, patience: int | None) -> None:
        """The job ends; without its last checkpoint, if that takes longer than the least patient of those who ask."""
        with self._lock:
            first = not self._stop.is_asked
            self._stop.ask()
        if first and self._drive is not None:
            self._drive.stop()
        self._patience.least(patience)

    def _give_up(self) -> None:
        if self._drive is not None:
            self._drive.give_up()

    def _begin(self, drive: JobRunner) -> None:
        try:
            drive.run()
        finally:
            self._over.set()

    def _tell(self, fact: Fact) -> None:
        self._tally(fact)
        notify_listener(self._observer, fact)

    def _finish(self, state: JobState, error: PenstockError | None) -> None:
        self._error = error
        self._lifecycle.to(state)
        self._tell(JobEnded(state=state.value, cause=str(error) if error else None))


# ----------------------------------------------------------------------------------------------------
# The jobs that this process has, so that the same call finds one or makes it. Knows nothing of what jobs do.

_live: dict[tuple[str, str], Job] = {}
_live_lock = threading.Lock()


def get_or_create(pipeline: PipelineDefinition, *, state: str | Path, **options: object) -> Job:
    """The job of this name on this state directory that this process has, or a new one that continues what is there.

    The same call starts from a checkpoint directory or afresh. Code is never stored: the pipeline given here runs.
    Options are those of :class:`Job`; they count only when it is made.

    Example::

        job = ps.get_or_create(orders, state="./state")
        job.run(until="caught-up")
    """
    key = (str(Path(state).resolve()) if "://" not in str(state) else str(state), pipeline.name)
    with _live_lock:
        job = _live.get(key)
        if job is None or job.is_over:
            job = _live[key] = Job(pipeline, state=state, **options)  # type: ignore[arg-type]
        return job
