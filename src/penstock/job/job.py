"""A job: a pipeline on a state directory, started, watched, stopped. Knows when attempts begin, not what they do."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.checkpoint.history import LogMark
from penstock.checkpoint.messages import StopRequested
from penstock.checkpoint.renaming import check_rename
from penstock.errors import PenstockError, RequestFailed, SettingsError
from penstock.facts import Fact, JobEnded, Listener
from penstock.graph.pipeline import PipelineDefinition
from penstock.graph.validate import validate_mode
from penstock.handles import Guarantee
from penstock.ids import CheckpointId
from penstock.job.asking import Asking, refuse_own_threads, warn_if_unpublished
from penstock.job.attempts import Patience, Stop
from penstock.job.beginning import read_beginning
from penstock.job.draining import refuse_undrained, undrained_for_it_never_ran
from penstock.job.drive import Drive, Orders, read_until
from penstock.job.report import Report, Tally, tell_safely
from penstock.job.requests import Requests, Tell
from penstock.job.signals import stopping_on_signals
from penstock.runtime.clock import SystemClock
from penstock.runtime.lifecycle import JobState, Lifecycle
from penstock.settings import read_settings

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
        self._tally = Tally(sources=self.graph.sources, sinks=self.graph.sinks)
        self._lifecycle = Lifecycle()
        self._clock = SystemClock()
        self._over = threading.Event()
        self._stop = Stop()
        self._requests = Requests()
        self._asking = Asking(self.name, self._requests, self._clock, lambda: self.state)
        self._orders = Orders(
            graph=self.graph,
            state=str(state),
            spark=spark,
            settings=self._settings,
            beginning=read_beginning(
                fresh=fresh, restore_from=restore_from, claim=claim, discard_unpublished=discard_unpublished
            ),
            allow_non_restored_state=allow_non_restored_state,
            take_over=take_over,
            expect=expect,
            rename=check_rename(rename, fresh=fresh),
        )
        self._drive: Drive | None = None
        self._thread: threading.Thread | None = None
        self._error: PenstockError | None = None
        self._is_asked = False
        self._lock = threading.Lock()
        self._patience = Patience(self._clock, self._over.wait, self._give_up)

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
        with stopping_on_signals(self.request_stop):
            self.start(until)
            self.wait()
        return self.report()

    def start(self, until: str = "stopped") -> None:
        """Begin on a thread of its own and return. A second call while it runs only warns.

        Raises:
            SettingsError: it is over: a stopped job does not come back, make a new one.
        """
        goal = read_until(until)
        with self._lock:
            if self._lifecycle.is_over:
                msg = f"job {self.name!r} is {self.state.value} and does not start again; make a new Job, it continues"
                raise SettingsError(msg)
            if self._thread is not None:
                log.warning("job %s is already %s; start() did nothing", self.name, self.state.value)
                return
            self._drive = Drive(
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
            raise undrained_for_it_never_ran(self.name)
        deadline = None if timeout is None else self._clock.now() + timeout * 1_000_000
        if savepoint is None:
            self._request_stop(drain=drain)
        elif not self._stop_at(savepoint, timeout, drain=drain):
            return False
        is_over = self.wait(None if deadline is None else max(0.0, (deadline - self._clock.now()) / 1_000_000))
        if is_over and drain:
            refuse_undrained(self.name, self.graph.sources, self._requests.owned, is_cut_short=self.is_cut_short)
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

    def _ask_to_stop(self, stop: StopRequested, tell: Tell) -> None:
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

    def _begin(self, drive: Drive) -> None:
        try:
            drive.run()
        finally:
            self._over.set()

    def _tell(self, fact: Fact) -> None:
        self._tally(fact)
        tell_safely(self._observer, fact)

    def _finish(self, state: JobState, error: PenstockError | None) -> None:
        self._error = error
        self._lifecycle.to(state)
        self._tell(JobEnded(state=state.value, cause=str(error) if error else None))
