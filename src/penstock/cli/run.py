"""``penstock run``: as a parent that watches, or as the process that runs the job."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, NoReturn, TypeAlias

from cyclopts import Parameter

from penstock.admin.plan_document import SavedPlan, read_plan, require_unchanged
from penstock.cli.live import LiveOutput
from penstock.cli.options import (
    STATE,
    Begin,
    Claim,
    Flag,
    Fresh,
    LeaveState,
    MaxRows,
    PipelineName,
    Rename,
    State,
    explaining_user_code,
    load_pipeline,
    settings_of,
    start_options,
)
from penstock.cli.output import CommandOutput, ExitCode, Output, ProgressLine, UsageError
from penstock.cli.process import ChildWatcher, StopListener
from penstock.cli.spark_options import NO_OPTIONS, SparkArguments, SparkOptions, note_ignored
from penstock.cli.words import progress_of
from penstock.clock import SystemClock
from penstock.errors import EngineDied, PenstockError
from penstock.facts import Fact, JobStarted, Restoring
from penstock.settings import read_settings
from penstock.spark.jvm import JvmWatch, log_jvm_to_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.checkpoint.history import History, LogMark
    from penstock.graph.nodes import Graph
    from penstock.job.job import Job
    from penstock.job.start import StartOptions
    from penstock.settings import Settings


STOP_TIMEOUT: Final = "8s"
"""Default for ``stop_timeout`` in ``penstock run``."""  # orchestrators usually kill 10 s after they ask to stop
FAILURE_GRACE: Final = 3.0
"""Seconds that a job gets to fail by itself once its JVM is dead."""


# ---- the command ---------------------------------------------------------------------------------------------------

Until: TypeAlias = Annotated[
    Literal["stopped", "caught-up"], Parameter(help="caught-up ends when what is there now is read.")
]
CheckpointEvery: TypeAlias = Annotated[str | None, Parameter(help="Time from one checkpoint to the next, such as 5s.")]
Discard: TypeAlias = Annotated[
    bool, Flag, Parameter(help="With --from or --fresh: never publish output above that is not published yet.")
]
Plan: TypeAlias = Annotated[
    str | None, Parameter(help="File of `penstock plan --out`: refuse if log, code or settings have changed since.")
]
TakeOver: TypeAlias = Annotated[bool, Flag, Parameter(help="Claim the job even if a living process has it.")]
StopTimeout: TypeAlias = Annotated[str | None, Parameter(help="Maximum time for a stop; 8s by default.")]
Retained: TypeAlias = Annotated[int | None, Parameter(help="Number of complete checkpoints that stay restorable.")]
HasParent: TypeAlias = Annotated[
    bool, Parameter(name="--parent", negative="--no-parent", help="Watch the job and start it again.")
]


def run(  # noqa: PLR0913 - the options of the command
    pipeline: PipelineName,
    /,
    *,
    state: State = STATE,
    until: Until = "stopped",
    checkpoint_every: CheckpointEvery = None,
    fresh: Fresh = False,
    restore_from: Annotated[str | None, Begin] = None,
    claim: Claim = False,
    discard_unpublished: Discard = False,
    allow_non_restored_state: LeaveState = False,
    plan: Plan = None,
    rename: Rename = (),
    take_over: TakeOver = False,
    stop_timeout: StopTimeout = None,
    max_rows_per_batch: MaxRows = None,
    retained: Retained = None,
    spark: SparkArguments = NO_OPTIONS,
    parent: HasParent = True,
    output: CommandOutput,
) -> int:
    """Run a pipeline, under a parent process unless ``--no-parent`` was given.

    Raises:
        PenstockError: it could not be started, or failed, and why.
    """
    settings = settings_of(checkpoint_every, stop_timeout, max_rows_per_batch, retained)
    read_settings(settings)  # refused before anything else
    spark.read()  # refused here, not by one child after another
    start = start_options(
        fresh=fresh,
        restore_from=restore_from,
        claim=claim,
        discard_unpublished=discard_unpublished,
        allow_non_restored_state=allow_non_restored_state,
        rename=rename,
    )
    command = RunCommand(
        pipeline=pipeline,
        state=state,
        start=start,
        until=until,
        take_over=take_over,
        spark=spark,
        plan=plan,
        settings=settings,
    )
    return run_as_parent(command, output) if parent else run_as_child(command, output)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """``penstock run`` with its options.

    Attributes:
        pipeline: ``module:name``.
        state: the folder that holds the state of jobs.
        start: how to start.
        until: when the run ends by itself.
        take_over: claim the job even if its owner lives.
        spark: how to make the session.
        plan: the file of a saved plan.
        settings: those given as options.
    """

    pipeline: str
    state: str
    start: StartOptions
    until: str = "stopped"
    take_over: bool = False
    spark: SparkOptions = NO_OPTIONS
    plan: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    def child_command(self, *, begins: bool, take_over: bool, traceback: bool) -> list[str]:
        """The command line of the process that runs the job.

        Args:
            begins: whether the log does not record this start yet, so that the child must know where to begin.
            take_over: whether the child may take the job over.
            traceback: whether the child shows all frames of an error.
        """
        start = self.start
        parts = [sys.executable, "-m", "penstock", "run", self.pipeline, "--no-parent", "--state", self.state]
        parts += ["--until", self.until]
        flags = {
            "--fresh": start.fresh and begins,
            "--claim": start.claim and begins,
            "--discard-unpublished": start.discard_unpublished and begins,
            "--allow-non-restored-state": start.allow_non_restored_state,
            "--take-over": take_over,
            "--traceback": traceback,
        }
        parts += [name for name, is_set in flags.items() if is_set]
        for old, new in start.rename.items():  # always: needed until a checkpoint has the new uids, harmless after that
            parts += ["--rename", f"{old}={new}"]
        values = {
            "from": (start.folder or start.checkpoint) if begins else None,
            "plan": self.plan,
            **self.settings,
        }
        for name, value in values.items():
            if value is not None:
                parts += [f"--{name.replace('_', '-')}", str(value)]
        return [*parts, *self.spark.words()]


# ---- with a saved plan ---------------------------------------------------------------------------------------------


def as_planned(command: RunCommand) -> RunCommand:
    """The command with the start options of its plan, and without the plan.

    Raises:
        UsageError: there is no such file, or the command line contradicts the plan.
        SettingsError: the file holds no plan.
    """
    planned, given = read_saved(command).start, command.start
    for name, here, there in (
        ("--fresh", given.fresh, planned.fresh),
        ("--from", given.folder or given.checkpoint, planned.folder or planned.checkpoint),
        ("--claim", given.claim, planned.claim),
        ("--discard-unpublished", given.discard_unpublished, planned.discard_unpublished),
        ("--allow-non-restored-state", given.allow_non_restored_state, planned.allow_non_restored_state),
        ("--rename", given.rename, planned.rename),
    ):
        if here and here != there:
            msg = f"{name} differs from the plan, which says where to begin. Leave it out, or plan again with it."
            raise UsageError(msg)
    return replace(command, plan=None, start=planned)


def read_saved(command: RunCommand) -> SavedPlan:
    """The saved plan of a command that has one.

    Raises:
        UsageError: there is no such file.
        SettingsError: the file holds no plan.
    """
    assert command.plan is not None
    try:
        text = Path(command.plan).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"--plan {command.plan} cannot be read: {error}. Name a file that penstock plan --out has written."
        raise UsageError(msg) from error
    return read_plan(text, command.plan)


def expected_log(command: RunCommand, graph: Graph, settings: Settings) -> LogMark:
    """The mark at which the claim must find the log. Everything else that a plan is made from is compared here.

    Raises:
        PlanOutdated: something has moved since the plan was made.
        CheckpointError: the log cannot be read.
    """
    from penstock.admin.plan import read_log
    from penstock.graph.fingerprint import fingerprint
    from penstock.job.start import recorded_settings

    saved = read_saved(command)
    history = read_log(graph.name, command.state, past_unreadable=saved.start.is_rewind)
    require_unchanged(
        saved,
        job=graph.name,
        history=history,
        settings=recorded_settings(settings, None),
        code=fingerprint(graph),
        export=_changed_export(saved.start, history),
    )
    return saved.log


def _changed_export(start: StartOptions, history: History) -> str | None:
    """How the exported checkpoint has changed since the plan was made; ``None`` if it has not."""
    from penstock.checkpoint.export import open_export
    from penstock.job.start import export_change

    if start.folder is None or start.sha256 is None:
        return None
    try:
        return export_change(open_export(start.folder, log_id=history.log_id), start.folder, start.sha256)
    except PenstockError as error:
        return str(error)


# ---- parent and child ----------------------------------------------------------------------------------------------


def run_as_parent(command: RunCommand, output: Output) -> int:
    """Watch a child that runs the job, and start another one when it dies.

    ``--fresh`` and ``--from`` count until a child has begun to read. ``--take-over`` and ``--plan`` count for the first
    child only: a process that takes the job from it keeps the job, and the log moves on from what was planned. Later
    children start with the options of the plan.
    """
    later = command if command.plan is None else as_planned(command)
    starts = itertools.count()

    def child_command(has_run: bool) -> Sequence[str]:
        is_first = next(starts) == 0
        chosen = command if is_first else later
        return chosen.child_command(
            begins=not has_run,
            take_over=chosen.take_over and is_first,
            traceback=output.traceback,
        )

    parent = ChildWatcher(
        child_command,
        notify=lambda text: output.note(f"penstock: {text}", style="yellow"),
    )
    code = parent.run()
    output.err.show_cursor(True)
    return code


def run_as_child(command: RunCommand, output: Output) -> int:
    """Run the job in this process."""
    return _Runner(command, output).run()


class _Runner:
    """One job in this process, with everything that may end it."""

    def __init__(self, command: RunCommand, output: Output) -> None:
        self._command = command
        self._output = output
        self._live: LiveOutput | None = None
        self._progress = ProgressLine(output)
        self._name = ""
        self._has_started = False
        self._over = threading.Event()
        self._stop_listener = StopListener(
            at_once=self._end_at_once, notify=lambda text: output.note(f"penstock: {text}")
        )
        self._jvm_watch = JvmWatch(self._jvm_died)

    def run(self) -> int:
        _log_to(self._output)
        job = self._job()
        self._stop_listener.bind(job.request_stop)
        try:
            if not self._stop_listener.is_asked:
                self._progress.on(f"{job.name}: starting Spark")
                job.start(self._command.until)
            job.wait()
        except PenstockError as error:
            return self._failed(error)
        finally:
            self._jvm_watch.release()
            self._over.set()
            self._close_lines()
        if job.is_cut_short:
            return ExitCode.INTERRUPTED
        from penstock.admin.warming import make_in_background

        make_in_background(SystemClock())  # for the next start; the JVM of this one has ended
        return ExitCode.ENDED

    def _job(self) -> Job:
        from penstock.job.job import make_job

        has_plan = self._command.plan is not None
        command = as_planned(self._command) if has_plan else self._command
        settings = run_settings(command.settings)
        configuration = command.spark.use()
        definition = load_pipeline(command.pipeline, state=command.state)
        note_ignored(configuration, self._output)
        self._name = definition.name
        jvm_log = log_jvm_to_file(definition.name, command.state)  # the graph may need a JVM
        logging.getLogger("penstock").debug("the engine writes its log to %s", jvm_log)
        expect: LogMark | None = None
        if has_plan:
            expect = expected_log(self._command, definition.graph(), read_settings(settings))
        with explaining_user_code():
            job = make_job(
                definition,
                command.start,
                state=command.state,
                take_over=command.take_over,
                expect=expect,
                listener=self._listen,
                settings=settings,
            )
        self._live = LiveOutput(job.name, output=self._output, clock=SystemClock(), sinks=job.graph.sinks)
        return job

    def _listen(self, fact: Fact) -> None:
        if isinstance(fact, Restoring) and not self._has_started:
            self._progress.now(f"{self._name}: {progress_of(fact)}")
        if isinstance(fact, JobStarted):
            self._has_started = True  # from now on LiveOutput shows the progress line; there is one at a time
            self._progress.off()
            self._jvm_watch.begin()
            self._stop_listener.report_running()
        if self._live is not None:
            self._live(fact)

    def _close_lines(self) -> None:
        """Remove progress lines from the terminal."""
        self._progress.off()
        if self._live is not None:
            self._live.close()

    def _failed(self, error: PenstockError) -> int:
        self._close_lines()
        if self._jvm_watch.is_dead and not isinstance(error, EngineDied):
            error = _engine_died(error)
        code = self._output.error(error)
        if code == ExitCode.ENGINE_DIED:
            self._leave(code)
        return code

    # ---- ends that do not come from the job ------------------------------------------------------------------------

    def _end_at_once(self) -> NoReturn:
        self._output.note("penstock: ended at once; the next start goes on from the last complete checkpoint")
        self._leave(ExitCode.INTERRUPTED)

    def _jvm_died(self) -> None:
        if not self._over.wait(FAILURE_GRACE):
            self._output.error(_engine_died(None))
            self._leave(ExitCode.ENGINE_DIED)

    def _leave(self, code: ExitCode) -> NoReturn:
        """End this process now: whatever still runs in it has nothing left to do."""
        self._close_lines()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def run_settings(settings: Mapping[str, object]) -> Mapping[str, object]:
    """The settings of the command line, with the default for ``stop_timeout`` unless the environment sets it."""
    if read_settings(settings).stop_timeout is None:
        return {**settings, "stop_timeout": STOP_TIMEOUT}
    return settings


def _engine_died(cause: BaseException | None) -> EngineDied:
    error = EngineDied("The JVM under Spark is gone. The job goes on from its last complete checkpoint.")
    error.__cause__ = cause
    return error


class _ToOutput(logging.Handler):
    """Prints penstock's log records as notes."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "is_fact", False):  # LiveOutput shows the fact
            self._output.note(f"penstock: {record.getMessage()}", style="yellow")


def _log_to(output: Output) -> None:
    logger = logging.getLogger("penstock")
    logger.addHandler(_ToOutput(output))
    logger.propagate = False
    if not output.traceback:  # py4j would report a dead JVM first, with a trace, on the root logger itself
        logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
