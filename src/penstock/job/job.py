"""``ps.Job``: start, wait, savepoint, stop; signals; ``get_or_create``."""

from __future__ import annotations

import logging
import os
import platform
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

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
from penstock.job.runner import JobRunner, StopSignal, StopTimeout, parse_until
from penstock.job.start import StartOptions, parse_start_options
from penstock.observability.report import Report, ReportCollector, notify_listener
from penstock.runtime.lifecycle import TERMINAL_STATES, JobState, Lifecycle
from penstock.settings import read_settings
from penstock.user_code import short_tracebacks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.checkpoint.history import History
    from penstock.checkpoint.log import OwnedLog


log = logging.getLogger("penstock")


# ---- requests of this process --------------------------------------------------------------------------------------


class AnswerWaiter:
    """Waits for the reply to one request.

    Attributes:
        is_sent: whether the request was sent.
    """

    def __init__(self) -> None:
        self.is_sent = False
        self._came = threading.Event()
        self._reply: AnswerRequest | None = None

    def set(self, reply: AnswerRequest) -> None:
        """Hand over the reply."""
        self._reply = reply
        self._came.set()

    def wait(self, seconds: float | None) -> AnswerRequest | None:
        """The reply; ``None`` if it did not come in time."""
        self._came.wait(seconds)
        return self._reply


def refuse_own_threads(call: str, instead: str) -> None:
    """Refuse a call that waits, on a thread of the job: the wait could not end.

    Raises:
        InternalError: the current thread is one of the job's.
    """
    if threading.current_thread().name.startswith("penstock-"):
        msg = f"{call} was called on one of the job's own threads, which it would wait for. {instead}"
        raise InternalError(msg)


def warn_if_unpublished(reply: AnswerRequest) -> None:
    """Log a warning if the job has stopped before all output was published; the next start publishes it."""
    if reply.outcome is RequestOutcome.UNPUBLISHED:
        log.warning("%s", reply.message)


class LocalRequests:
    """Requests from this process to one job."""

    def __init__(self, job: str, requests: RequestRegistry, clock: Clock, state: Callable[[], JobState]) -> None:
        self._job = job
        self._requests = requests
        self._clock = clock
        self._state = state
        self._stops: dict[str, tuple[StopRequested, AnswerWaiter]] = {}
        self._lock = threading.Lock()

    def checkpoint(self, name: str | None, timeout: float | None) -> CheckpointId:
        """Take a checkpoint; with a name it is a savepoint.

        Raises:
            SettingsError: the name is not valid.
            RequestRefused: the job does not run, or the name is taken.
            RequestFailed: the checkpoint failed, or did not complete in time.
        """
        what = "checkpoint()" if name is None else "savepoint()"
        refuse_own_threads(what, "Call it on a thread of your own.")
        if name is not None:
            check_savepoint_name(name)
        self._refuse_unless_alive(what)
        waiter = AnswerWaiter()
        event = CheckpointRequested(
            at=self._clock.now(), wall=self._clock.wall(), request=new_id(), name=name, owner=platform.node()
        )
        self._requests.submit(event, waiter.set)
        reply = waiter.wait(timeout)
        if reply is None:
            msg = (
                f"{what} of job {self._job!r} has not ended after {timeout:g} s. It may still be taken: penstock "
                f"checkpoints {self._job} shows whether it was."
            )
            raise RequestFailed(msg)
        self._check(what, reply)
        if reply.checkpoint is None:
            msg = f"{what} of job {self._job!r} is done, but the answer does not say which checkpoint it is."
            raise InternalError(msg)
        return reply.checkpoint

    def stop_request(self, name: str | None, timeout: int | None, *, drain: bool = False) -> StopRequested:
        """A request to stop. The same name gets the same request, until the job answers that it failed.

        Raises:
            SettingsError: the name is not valid.
            RequestRefused: a savepoint is wanted of a job that does not run.
        """
        if name is None:
            return self._new_stop(None, timeout, drain=drain)
        check_savepoint_name(name)
        with self._lock:
            if name not in self._stops:
                self._refuse_unless_alive("stop(savepoint=…)")
                self._stops[name] = self._new_stop(name, timeout, drain=drain), AnswerWaiter()
            return self._stops[name][0]

    def _new_stop(self, name: str | None, timeout: int | None, *, drain: bool) -> StopRequested:
        return StopRequested(
            at=self._clock.now(),
            wall=self._clock.wall(),
            request=new_id(),
            name=name,
            owner=platform.node(),
            patience=timeout,
            drain=drain,
        )

    def wait_for_stop(
        self, stop: StopRequested, ask: Callable[[StopRequested, AnswerCallback], None], seconds: float | None
    ) -> bool:
        """Send the request unless it was sent, and wait for the reply; returns whether it came in time.

        Raises:
            RequestRefused: the name is taken, and the job goes on.
            RequestFailed: the savepoint failed.
        """
        assert stop.name is not None  # without a name, callers wait for the job instead
        with self._lock:
            waiter = self._stops[stop.name][1]
            is_new, waiter.is_sent = not waiter.is_sent, True
        if is_new:
            ask(stop, waiter.set)
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
            msg = (
                f"{what} of job {self._job!r} is refused, because the job is {state.value}. Call it while the job runs."
            )
            raise RequestRefused(msg)


# ---- drain ---------------------------------------------------------------------------------------------------------


def never_ran_error(job: str) -> RequestRefused:
    """The refusal to drain a job that was never started: only a running job can end its sources."""
    return RequestRefused(f"Job {job!r} has not begun, and only a running job can be drained. Start it first.")


def require_drained(job: str, sources: Collection[str], owned: OwnedLog | None, *, is_cut_short: bool) -> None:
    """Check that a job that has ended was drained. A source that has ended by itself counts as drained.

    Raises:
        RequestFailed: the job has ended without its last checkpoint.
        RequestRefused: its last checkpoint was begun before the drain was requested.
    """
    if owned is not None and is_drained(owned.history, sources):
        return
    left = "its sources have not ended and windows stay open. Start it again, then stop it with drain alone."
    if is_cut_short:
        msg = f"Job {job!r} was not drained. It has ended without its last checkpoint, so {left}"
        raise RequestFailed(msg)
    msg = f"Job {job!r} was not drained. Its last checkpoint was begun before the drain was requested, so {left}"
    raise RequestRefused(msg)


def is_drained(history: History, sources: Collection[str]) -> bool:
    """Whether every source has ended for good in the checkpoint that the next start continues."""
    try:
        point = history.restore_point
    except CheckpointUnreadable:
        return False
    ended = {task.task for task in point.tasks if MAX_WATERMARK in task.watermarks} if point is not None else set()
    return point is not None and ended.issuperset(sources)


# ---- signals -------------------------------------------------------------------------------------------------------

WAKING_INTERVAL: Final = 0.5
"""Seconds after which a waiting thread wakes up to see whether there was a signal."""


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, call ``stop`` on a thread of its own; on the second, raise ``KeyboardInterrupt``.

    Only the main thread gets signals: on another thread this does nothing. Previous handlers are put back at the end.
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


# ---- the job -------------------------------------------------------------------------------------------------------


@short_tracebacks
class Job:
    """A pipeline on a state directory. Continues the newest complete checkpoint there, or starts empty.

    Args:
        pipeline: made by ``@ps.pipeline``.
        state: the folder that holds ``<job>/log`` and everything else the job remembers; made if absent.
        spark: a session to run on; it is neither stopped nor changed. Without one the job takes that of the process.
            If there is none it makes one, which is stopped when the last job on it ends.
        fresh: begin empty though there is state. That state stays, and ``rewind`` can go back to it.
        restore_from: begin at this savepoint or checkpoint of the job, or with the exported one in this folder: a
            ``Path``, or a text with a slash. Its files are copied; the folder is not needed afterwards.
        claim: take the folder's files over: they are deleted there, and no other job can begin with them.
        discard_unpublished: never publish output above ``restore_from`` that is not published yet.
        allow_non_restored_state: leave state unused whose step the pipeline no longer has.
        rename: new uids of steps, by the old uids whose state they continue. Without effect once a checkpoint has
            the new uids.
        take_over: claim the job even if a living process has it; that process notices, and ends.
        expect: refuse to start if the log has changed since this mark of it (``history.mark``). Counts for the first
            attempt.
        listener: gets every fact, from any thread.
        settings: options of ``penstock.settings.Settings``, durations as text: ``checkpoint_every="5s"``.

    Raises:
        GraphError: the pipeline is refused, before anything runs.
        SettingsError: an unknown or impossible option, or a rename in addition to ``fresh``.

    Example::

        job = ps.Job(orders, state="./state")
        print(job.run(until="caught-up").rows_written)
    """

    def __init__(  # noqa: PLR0913 - all options of a start
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
        self._users_listener = listener
        self._clock = SystemClock()
        self._collector = ReportCollector(sources=self.graph.sources, sinks=self.graph.sinks, clock=self._clock)
        self._lifecycle = Lifecycle()
        self._over = threading.Event()
        self._stop = StopSignal()
        self._requests = RequestRegistry()
        self._local_requests = LocalRequests(self.name, self._requests, self._clock, lambda: self.state)
        self._start = parse_start_options(
            fresh=fresh,
            restore_from=restore_from,
            claim=claim,
            discard_unpublished=discard_unpublished,
            allow_non_restored_state=allow_non_restored_state,
            rename=rename,
        )
        self._state = str(state)
        self._spark = spark
        self._take_over = take_over
        self._expect = expect
        self._runner: JobRunner | None = None
        self._thread: threading.Thread | None = None
        self._error: PenstockError | None = None
        self._error_frames: TracebackType | None = None
        self._is_stop_requested = False
        self._lock = threading.Lock()
        self._stop_timeout = StopTimeout(self._clock, self._over.wait, self._give_up)

    def __repr__(self) -> str:
        """Its name, its state directory and its numbers so far."""
        return f"<Job {self.name} on {self._state}: {self.report()}>"

    def _repr_html_(self) -> str:
        """The same for notebooks, with a table."""
        place = f"<b>Job {escape(self.name)}</b> on {escape(self._state)}"
        return f"<div>{place}{self.report()._repr_html_()}</div>"

    @property
    def state(self) -> JobState:
        """The state of the job now."""
        return self._lifecycle.state

    @property
    def is_over(self) -> bool:
        """Whether the job has ended: stopped, failed or fenced."""
        return self._lifecycle.is_over

    @property
    def is_cut_short(self) -> bool:
        """Whether a stop ended the job without its last checkpoint, which took longer than ``stop_timeout``.

        Nothing is lost: the next start continues the last complete checkpoint.
        """
        return self._runner is not None and self._runner.is_cut_short

    def report(self) -> Report:
        """The numbers of this job so far."""
        return self._collector.report()

    def run(self, until: str = "stopped") -> Report:
        """Start, and wait for the end. ``until="caught-up"`` reads what is there now, checkpoints, publishes, ends.

        Ctrl-C and SIGTERM stop the job in order: it takes a last checkpoint and publishes its output. A second signal
        ends the job at once. Nothing is lost by that: the next start continues the last complete checkpoint.

        Raises:
            PenstockError: the failure that ended the job.
        """
        with stop_on_signals(self.request_stop):
            self.start(until)
            self.wait()
        return self.report()

    def start(self, until: str = "stopped") -> None:
        """Start on a thread of its own, and return. A second call while the job runs only logs a warning.

        Raises:
            SettingsError: the job has ended. It does not start again: make a new one.
        """
        goal = parse_until(until)
        with self._lock:
            if self._lifecycle.is_over:
                msg = (
                    f"Job {self.name!r} is {self.state.value} and does not start again. Make a new Job, which "
                    "continues where this one ended."
                )
                raise SettingsError(msg)
            if self._thread is not None:
                log.warning("job %s is already %s; start() did nothing", self.name, self.state.value)
                return
            self._runner = JobRunner(
                self.graph,
                self._start,
                state=self._state,
                spark=self._spark,
                take_over=self._take_over,
                expect=self._expect,
                settings=self._settings,
                until=goal,
                clock=self._clock,
                lifecycle=self._lifecycle,
                stop=self._stop,
                requests=self._requests,
                listener=self._notify,
                report=self.report,
                ask_to_stop=self._ask_to_stop,
                finish=self._finish,
            )
            self._thread = threading.Thread(
                target=self._run, args=(self._runner,), name=f"penstock-job-{self.name}", daemon=True
            )
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; with a timeout in seconds, returns whether it came.

        Raises:
            PenstockError: the failure that ended the job.
        """
        if self._thread is None:
            return self._lifecycle.is_over
        if timeout is None:
            # The kernel may give a signal to any thread. Its handler runs on the main one, once that one wakes up.
            while not self._over.wait(WAKING_INTERVAL):
                pass
        elif not self._over.wait(timeout):
            return False
        self._thread.join()
        if self._error is not None:
            raise self._error.with_traceback(self._error_frames)  # else each call would add its own
        return True

    def savepoint(self, name: str, timeout: float | None = None) -> CheckpointId:
        """Take a checkpoint now that keeps this name and is never cleaned up; returns its id once it is in the log.

        While the job restores or waits for its next attempt, the request waits too.

        Raises:
            SettingsError: the name is not valid.
            RequestRefused: the job does not run, or the name is taken; the message says by which checkpoint.
            RequestFailed: the checkpoint failed, or did not complete within ``timeout`` seconds.
        """
        return self._local_requests.checkpoint(name, timeout)

    def checkpoint(self, timeout: float | None = None) -> CheckpointId:
        """Take a checkpoint now: like ``savepoint``, without a name."""
        return self._local_requests.checkpoint(None, timeout)

    def stop(self, timeout: float | None = None, *, savepoint: str | None = None, drain: bool = False) -> bool:
        """Take a last checkpoint, publish, end, and wait for the end. May be repeated; harmless after the end.

        With ``savepoint`` the last checkpoint keeps this name; if the name is refused, the job goes on. With
        ``drain`` the sources end first, for good: all windows close and are published. A later start that finds more
        rows is refused, unless it goes back to an earlier checkpoint.

        Raises:
            InternalError: called from one of the job's own threads, which would wait for itself.
            RequestRefused: the name is taken, the job does not run, or it is too late to drain it.
            RequestFailed: the job ended without its savepoint, or without the last checkpoint that a drain needs.
            PenstockError: the failure that ended the job instead.
        """
        refuse_own_threads("stop()", "Use request_stop().")
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
        event = self._local_requests.stop_request(savepoint, self._settings.stop_timeout, drain=drain)
        try:
            return self._local_requests.wait_for_stop(event, self._ask_to_stop, timeout)
        except RequestFailed:
            self.wait(timeout)  # raises the failure that ended the job, if there is one
            raise

    def request_stop(self) -> None:
        """Stop like ``stop``, without waiting; from any thread, a listener's too."""
        self._request_stop(drain=False)

    def _request_stop(self, *, drain: bool) -> None:
        with self._lock:
            first, self._is_stop_requested = not self._is_stop_requested, True
            if self._thread is None and not self._lifecycle.is_over:
                self._stop.ask()
                self._finish(JobState.STOPPED, None)
                return
        if first or drain:
            event = self._local_requests.stop_request(None, self._settings.stop_timeout, drain=drain)
            self._ask_to_stop(event, warn_if_unpublished)

    def _ask_to_stop(self, stop: StopRequested, callback: AnswerCallback) -> None:
        """Submit the request. With a savepoint's name the job stops only when it is sure to get that name."""
        if stop.name is None:
            self._stopping(stop.patience)
            self._requests.submit(stop, callback)
        else:
            self._requests.submit(stop, callback, accepted=lambda: self._stopping(stop.patience))

    def _stopping(self, timeout: int | None) -> None:
        """Stop; without the last checkpoint if that takes longer than the shortest timeout of all requests."""
        with self._lock:
            first = not self._stop.is_asked
            self._stop.ask()
        if first and self._runner is not None:
            self._runner.stop()
        self._stop_timeout.shorten(timeout)

    def _give_up(self) -> None:
        if self._runner is not None:
            self._runner.give_up()

    def _run(self, runner: JobRunner) -> None:
        try:
            runner.run()
        finally:
            self._over.set()

    def _notify(self, fact: Fact) -> None:
        self._collector(fact)
        notify_listener(self._users_listener, fact)

    def _finish(self, state: JobState, error: PenstockError | None) -> None:
        self._error = error
        self._error_frames = error.__traceback__ if error is not None else None
        self._lifecycle.to(state)
        self._notify(JobEnded(state=state.value, cause=str(error) if error else None))


def make_job(
    pipeline: PipelineDefinition,
    start: StartOptions,
    *,
    state: str,
    take_over: bool,
    expect: LogMark | None,
    listener: Listener,
    settings: Mapping[str, Any],
) -> Job:
    """A job whose start options are parsed already.

    Raises:
        GraphError: the pipeline is refused.
        SettingsError: an unknown or impossible option, or a rename in addition to ``fresh``.
    """
    job = Job(pipeline, state=state, take_over=take_over, expect=expect, listener=listener, **settings)
    check_rename(start.rename, fresh=start.fresh)
    job._start = start  # noqa: SLF001 - instead of the arguments that Job parses
    return job


# ---- jobs of this process -----------------------------------------------------------------------------------------

_live: dict[tuple[str, str], Job] = {}
_live_lock = threading.Lock()


@short_tracebacks
def get_or_create(pipeline: PipelineDefinition, *, state: str | Path, **options: object) -> Job:
    """This process's job of this name on this state directory, or a new one that continues the state that is there.

    The same call starts from a checkpoint directory or empty. Code is never stored: the pipeline given here runs.
    Options are those of ``Job``; they count only when it is made.

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
