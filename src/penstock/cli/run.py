"""Penstock run."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, TypeAlias, cast

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
    Master,
    MaxRows,
    PipelineName,
    Rename,
    State,
    load_pipeline,
    renames_of,
    settings_of,
    user_code_error,
)
from penstock.cli.output import CommandOutput, ExitCode, Output, ProgressLine, UsageError
from penstock.cli.process import ChildWatcher, StopListener
from penstock.cli.words import progress_of
from penstock.clock import SystemClock
from penstock.errors import EngineDied, PenstockError
from penstock.facts import Fact, JobStarted, Restoring
from penstock.settings import read_settings
from penstock.spark.jvm import JvmWatch, log_jvm_to_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.admin.start_plan import FromExport
    from penstock.checkpoint.history import History, LogMark
    from penstock.graph.nodes import Graph
    from penstock.job.job import Job
    from penstock.job.start import SeenExport
    from penstock.settings import Settings


# ----------------------------------------------------------------------------------------------------
# ``penstock run``: its words and options.

Until: TypeAlias = Annotated[
    Literal["stopped", "caught-up"], Parameter(help="caught-up ends when what is there now is read.")
]
CheckpointEvery: TypeAlias = Annotated[str | None, Parameter(help="From trigger to trigger, such as 5s.")]
Discard: TypeAlias = Annotated[
    bool, Flag, Parameter(help="Output above --from that is not published yet never will be.")
]
Plan: TypeAlias = Annotated[
    str | None, Parameter(help="What `penstock plan --out` wrote: refuse if log, code or settings moved since.")
]
TakeOver: TypeAlias = Annotated[bool, Flag, Parameter(help="Claim the job even if a living process has it.")]
StopTimeout: TypeAlias = Annotated[str | None, Parameter(help="Most time for a stop; 8s by default.")]
Retained: TypeAlias = Annotated[int | None, Parameter(help="Complete checkpoints that stay restorable.")]
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
    master: Master = None,
    parent: HasParent = True,
    output: CommandOutput,
) -> int:
    """Run a pipeline, under a parent process unless ``--no-parent`` was given.

    Raises:
        PenstockError: it could not be started, or failed, and why.
    """
    settings = settings_of(checkpoint_every, stop_timeout, max_rows_per_batch, retained)
    options = RunOptions(pipeline=pipeline, state=state, until=until, master=master, settings=settings)
    options = replace(options, restore_from=restore_from, claim=claim, fresh=fresh, plan=plan, take_over=take_over)
    options = replace(options, rename=rename, allow_non_restored_state=allow_non_restored_state)
    options = replace(options, discard_unpublished=discard_unpublished)
    return run_as_parent(options, output) if parent else run_as_child(options, output)


# ----------------------------------------------------------------------------------------------------
# ``penstock run --plan``: a saved plan as the options of a run, and whether it may still be carried out.


def as_planned(options: RunOptions) -> RunOptions:
    """The options with which the plan was made, and none of a plan any more.

    Raises:
        UsageError: there is no such file, or the command line says otherwise how to begin.
        SettingsError: it holds no plan.
    """
    begin = read_saved(options).beginning
    place = None if begin.checkpoint is None else str(begin.checkpoint)
    if begin.export is not None:
        place = begin.export.folder
    claim = begin.export is not None and begin.export.claim
    for name, here, planned in (
        ("--fresh", options.fresh, begin.fresh),
        ("--from", _place(options.restore_from), place),
        ("--claim", options.claim, claim),
        ("--discard-unpublished", options.discard_unpublished, begin.discard_unpublished),
        ("--allow-non-restored-state", options.allow_non_restored_state, begin.allow_non_restored_state),
        ("--rename", renames_of(options.rename), dict(begin.rename)),
    ):
        if here and here != planned:
            msg = f"{name} was not planned so: leave it out, for the plan says where to begin, or plan again with it"
            raise UsageError(msg)
    return replace(
        options,
        plan=None,
        fresh=begin.fresh,
        restore_from=place,
        claim=claim,
        discard_unpublished=begin.discard_unpublished,
        allow_non_restored_state=begin.allow_non_restored_state,
        rename=tuple(f"{old}={new}" for old, new in begin.rename.items()),
    )


def read_saved(options: RunOptions) -> SavedPlan:
    """The plan that was saved.

    Raises:
        UsageError: there is no such file.
        SettingsError: it holds no plan.
    """
    assert options.plan is not None  # only asked of a run with a plan
    try:
        text = Path(options.plan).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"--plan {options.plan} cannot be read ({error}): name what penstock plan --out has written"
        raise UsageError(msg) from error
    return read_plan(text, options.plan)


def _place(restore_from: str | None) -> str | None:
    """As a plan has it: an exported folder by its absolute path."""
    from penstock.job.start import parse_start_options

    asked = parse_start_options(fresh=False, restore_from=restore_from, claim=False, discard_unpublished=False)
    return asked.folder or asked.checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedState:
    """What a start has to find for a plan to be carried out.

    Attributes:
        log: where the log has to be.
        export: the exported checkpoint that it has to begin with, if the plan was to begin with one.
    """

    log: LogMark
    export: SeenExport | None


def expected_state(options: RunOptions, graph: Graph, settings: Settings) -> ExpectedState:
    """What the start looks at again, under its claim; everything else is compared here.

    Raises:
        PlanOutdated: something has moved.
        CheckpointError: the log cannot be read.
    """
    from penstock.admin.plan import read_log
    from penstock.graph.fingerprint import fingerprint
    from penstock.job.start import SeenExport

    saved = read_saved(options)
    history = read_log(graph.name, options.state, past_unreadable=saved.beginning.is_rewind)
    require_unchanged(
        saved,
        job=graph.name,
        history=history,
        settings=asdict(settings),
        code=fingerprint(graph),
        export=_moved(saved.beginning.export, history),
    )
    export = saved.beginning.export
    seen = None if export is None else SeenExport(folder=export.folder, sha256=export.sha256)
    return ExpectedState(log=saved.log, export=seen)


def _moved(export: FromExport | None, history: History) -> str | None:
    """What has become of the exported checkpoint since the plan was made, if anything has."""
    from penstock.checkpoint.export import open_export
    from penstock.job.start import export_change

    if export is None:
        return None
    try:
        return export_change(open_export(export.folder, log_id=history.log_id), export.folder, export.sha256)
    except PenstockError as error:
        return str(error)


# ----------------------------------------------------------------------------------------------------
# ``penstock run``: as a parent that watches, or as the process that runs the job. Thin: all work is the job's.

STOP_TIMEOUT: Final = "8s"
"""So that a process that is asked to stop is gone after 10 s, which is what most that ask allow before they kill."""
FAILURE_GRACE: Final = 3.0
"""Seconds that a job gets to fail by itself once its JVM is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What was asked for on the command line."""

    pipeline: str
    state: str
    until: str = "stopped"
    fresh: bool = False
    restore_from: str | None = None
    claim: bool = False
    discard_unpublished: bool = False
    allow_non_restored_state: bool = False
    rename: tuple[str, ...] = ()
    take_over: bool = False
    master: str | None = None
    plan: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    def command(self, *, begins: bool, take_over: bool, traceback: bool) -> list[str]:
        """The command line of the process that does it; ``begins``: where it begins is not in the log yet."""
        parts = [sys.executable, "-m", "penstock", "run", self.pipeline, "--no-parent", "--state", self.state]
        parts += ["--until", self.until]
        flags = {
            "--fresh": self.fresh and begins,
            "--claim": self.claim and begins,
            "--discard-unpublished": self.discard_unpublished and begins,
            "--allow-non-restored-state": self.allow_non_restored_state,
            "--take-over": take_over,
            "--traceback": traceback,
        }
        parts += [name for name, is_set in flags.items() if is_set]
        for pair in self.rename:  # always: harmless once a checkpoint names the new uids, and needed until then
            parts += ["--rename", pair]
        given = {
            "from": self.restore_from if begins else None,
            "plan": self.plan,
            "master": self.master,
            **self.settings,
        }
        for name, value in given.items():
            if value is not None:
                parts += [f"--{name.replace('_', '-')}", str(value)]
        return parts


def run_as_parent(options: RunOptions, output: Output) -> int:
    """Watch a child that runs the job.

    ``--fresh`` and ``--from`` count until a child had begun to read. ``--take-over`` counts for the first child only:
    whoever takes the job from that one meanwhile keeps it. ``--plan`` likewise: the log moves on with that one. Those
    after it begin as was planned.
    """
    from penstock.job.start import parse_start_options

    read_settings(options.settings)
    parse_start_options(
        fresh=options.fresh,
        restore_from=options.restore_from,
        claim=options.claim,
        discard_unpublished=options.discard_unpublished,
    )
    renames_of(options.rename)
    later = options if options.plan is None else as_planned(options)
    starts = itertools.count()

    def command(has_run: bool) -> Sequence[str]:
        is_first = next(starts) == 0
        given = options if is_first else later
        return given.command(
            begins=not has_run,
            take_over=given.take_over and is_first,
            traceback=output.traceback,
        )

    parent = ChildWatcher(
        command,
        tell=lambda text: output.note(f"penstock: {text}", style="yellow"),
    )
    code = parent.run()
    output.err.show_cursor(True)
    return code


def run_as_child(options: RunOptions, output: Output) -> int:
    """Run the job in this process."""
    return _Runner(options, output).run()


class _Runner:
    """One job in this process, with everything that may end it."""

    def __init__(self, options: RunOptions, output: Output) -> None:
        self._options = options
        self._output = output
        self._live: LiveOutput | None = None
        self._waiting = ProgressLine(output)
        self._name = ""
        self._has_started = False
        self._over = threading.Event()
        self._requests = StopListener(at_once=self._end_at_once, tell=lambda text: output.note(f"penstock: {text}"))
        self._engine = JvmWatch(self._engine_died)

    def run(self) -> int:
        _log_to(self._output)
        if self._options.master is not None:
            os.environ["PENSTOCK_MASTER"] = self._options.master
        job = self._job()
        self._requests.bind(job.request_stop)
        try:
            if not self._requests.is_asked:
                self._waiting.on(f"{job.name}: starting Spark")
                job.start(self._options.until)
            job.wait()
        except PenstockError as error:
            return self._failed(error)
        finally:
            self._engine.release()
            self._over.set()
            self._close_lines()
        return ExitCode.INTERRUPTED if job.is_cut_short else ExitCode.ENDED

    def _job(self) -> Job:
        from penstock.job.job import Job

        options = self._options if self._options.plan is None else as_planned(self._options)
        settings = run_settings(options.settings)
        definition = load_pipeline(options.pipeline)
        self._name = definition.name
        seen: ExpectedState | None = None
        if self._options.plan is not None:
            seen = expected_state(self._options, definition.graph(), read_settings(settings))
        engine_log = log_jvm_to_file(definition.name, options.state)
        logging.getLogger("penstock").debug("the engine writes its log to %s", engine_log)
        try:
            job = Job(
                definition,
                state=options.state,
                fresh=options.fresh,
                restore_from=(None if seen is None else seen.export) or options.restore_from,
                claim=options.claim,
                discard_unpublished=options.discard_unpublished,
                allow_non_restored_state=options.allow_non_restored_state,
                rename=renames_of(options.rename),
                take_over=options.take_over,
                expect=None if seen is None else seen.log,
                listener=self._listen,
                **cast("Any", settings),
            )
        except PenstockError:
            raise
        except Exception as error:
            raise user_code_error(error) from error
        self._live = LiveOutput(job.name, output=self._output, clock=SystemClock(), sinks=job.graph.sinks)
        return job

    def _listen(self, fact: Fact) -> None:
        if isinstance(fact, Restoring) and not self._has_started:
            self._waiting.now(f"{self._name}: {progress_of(fact)}")
        if isinstance(fact, JobStarted):
            self._has_started = True  # from then on there is a line of now, and one at a time
            self._waiting.off()
            self._engine.begin()
            self._requests.running()
        if self._live is not None:
            self._live(fact)

    def _close_lines(self) -> None:
        """Leave the terminal as it was."""
        self._waiting.off()
        if self._live is not None:
            self._live.close()

    def _failed(self, error: PenstockError) -> int:
        self._close_lines()
        if self._engine.is_dead and not isinstance(error, EngineDied):
            error = _dead(error)
        code = self._output.error(error)
        if code == ExitCode.ENGINE_DIED:
            self._leave(code)
        return code

    # ------------------------------------------------------------------------- ends that do not come from the job

    def _end_at_once(self) -> NoReturn:
        self._output.note("penstock: ended at once; the next start goes on from the last complete checkpoint")
        self._leave(ExitCode.INTERRUPTED)

    def _engine_died(self) -> None:
        if not self._over.wait(FAILURE_GRACE):
            self._output.error(_dead(None))
            self._leave(ExitCode.ENGINE_DIED)

    def _leave(self, code: ExitCode) -> NoReturn:
        """End this process now: nothing that still runs in it could do anything useful."""
        self._close_lines()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def run_settings(given: Mapping[str, object]) -> Mapping[str, object]:
    """Those of the command line, and how long a stop may take; the environment counts before our own default of it."""
    if read_settings(given).stop_timeout is None:
        return {**given, "stop_timeout": STOP_TIMEOUT}
    return given


def _dead(cause: BaseException | None) -> EngineDied:
    error = EngineDied("the JVM under Spark is gone; the job goes on from its last complete checkpoint")
    error.__cause__ = cause
    return error


class _ToOutput(logging.Handler):
    """Log records of penstock, as lines of ours."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        self._output.note(f"penstock: {record.getMessage()}", style="yellow")


def _log_to(output: Output) -> None:
    logger = logging.getLogger("penstock")
    logger.addHandler(_ToOutput(output))
    logger.propagate = False
    if not output.traceback:  # the JVM's client would tell of its death first, with a trace, on the root logger itself
        logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
