"""``ps.shadow``: new code on a copy of the state, its output compared with that of the old code."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.admin.export import empty_folder, export_checkpoint
from penstock.admin.shadow_compare import Comparison, compare
from penstock.admin.shadow_pipeline import MutedPipeline, PipelineMuter
from penstock.checkpoint.export import open_export
from penstock.control.client import JobDirectory
from penstock.errors import RequestFailed, SettingsError, did_you_mean
from penstock.facts import Fact, RowsRead, SourceLag
from penstock.job.job import Job, stop_on_signals
from penstock.job.start import parse_start_options
from penstock.spark.session import borrow_session, current_session
from penstock.user_code import short_tracebacks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.api.pipeline import PipelineDefinition
    from penstock.checkpoint.export import Export
    from penstock.facts import Listener
    from penstock.graph.nodes import Graph
    from penstock.handles import Position
    from penstock.observability.report import Report


# ---- progress --------------------------------------------------------------------------------------------------------

COPYING: Final = "copying"
STARTING: Final = "starting"
COMPARING: Final = "comparing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a shadow run does now, and how much of it is done.

    Attributes:
        doing: ``copying`` the savepoint, ``starting`` Spark, running the ``old`` or the ``new`` code, or ``comparing``
            their output.
        done: bytes copied, rows read, or sinks compared.
        of: the total; ``None`` if it is not known.
        behind: rows that wait, where ``of`` is not known and sources report them.
    """

    doing: str
    done: int = 0
    of: int | None = None
    behind: int | None = None


StageCallback: TypeAlias = Callable[[Stage], None]
"""Called with each stage, from any thread; must be quick and must not raise."""


def ignore_stage(_stage: Stage) -> None:
    """The default: progress is not reported."""


# ---- one run ---------------------------------------------------------------------------------------------------------

OLD: Final = "old"
NEW: Final = "new"
COPY: Final = "copy"
"""Folders of a shadow run: the output of the old and the new code, and, while they run, their state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRun:
    """A finished run of the old or the new code.

    Attributes:
        side: ``old`` or ``new``.
        report: its figures.
        ends: the positions of its sources at its last checkpoint.
        sinks: the uids of its sinks.
        notes: what makes a comparison of its output less than exact.
    """

    side: str
    report: Report
    ends: Mapping[str, Position]
    sinks: frozenset[str]
    notes: tuple[str, ...] = field(default=())

    @property
    def rows(self) -> int:
        """The number of rows read, of all sources."""
        return sum(self.report.rows_read.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRunner:
    """Runs muted pipelines on copies of one export until they have caught up.

    Attributes:
        spark: the session.
        folder: of the shadow run.
        export: the folder of the export.
        listener: gets all facts.
        on_stage: gets the progress of a run.
        without: sources that are left out, under the uids of both codes.
        settings: of both runs.
    """

    spark: SparkSession
    folder: Path
    export: str
    listener: Listener | None
    on_stage: StageCallback
    without: frozenset[str]
    settings: Mapping[str, Any]

    def run(
        self,
        side: str,
        pipeline: PipelineDefinition,
        *,
        ends: Mapping[str, Position],
        rows: int | None = None,
        **options: Any,
    ) -> ShadowRun:
        """Run a pipeline until it has caught up.

        Args:
            side: ``old`` or ``new``.
            pipeline: the code.
            ends: the positions at which sources end.
            rows: the number of rows to read, if it is known.
            options: further options of the job, of this side alone.

        Raises:
            PenstockError: the error that ended the run.
        """
        muter = PipelineMuter(folder=self.folder / side, ends=ends, without=self.without)
        graph = pipeline.graph()
        state = self.folder / COPY / side
        job = Job(
            MutedPipeline(pipeline, muter),
            state=state,
            spark=self.spark,
            restore_from=Path(self.export),
            listener=ProgressListener(side, rows, self.on_stage, self.listener),
            **options,
            **self.settings,
        )
        _finish(job, side)
        return ShadowRun(
            side=side,
            report=job.report(),
            ends=_positions(state, pipeline.name),
            sinks=graph.sinks,
            notes=_notes(muter, graph),
        )


class ProgressListener:
    """A listener that reports the number of rows that a run has read, and passes every fact on."""

    def __init__(self, side: str, rows: int | None, on_stage: StageCallback, listener: Listener | None) -> None:
        self._side = side
        self._rows = rows
        self._on_stage = on_stage
        self._listener = listener
        self._read = 0
        self._behind: dict[str, int] = {}
        self._lock = threading.Lock()
        on_stage(Stage(doing=side, of=rows))

    def __call__(self, fact: Fact) -> None:
        """Pass a fact on, and report a stage if it changes one."""
        if self._listener is not None:
            self._listener(fact)
        with self._lock:
            match fact:
                case RowsRead(rows=rows):
                    self._read += rows
                case SourceLag(task=task, rows=int() as behind):
                    self._behind[task] = behind
                case _:
                    return
            stage = Stage(doing=self._side, done=self._read, of=self._rows, behind=self._waiting_rows())
        self._on_stage(stage)

    def _waiting_rows(self) -> int | None:
        """Rows that wait, as sources report them; ``None`` if the number of all rows is known."""
        return sum(self._behind.values()) if self._behind and self._rows is None else None


def _finish(job: Job, side: str) -> None:
    """Run a job until it has caught up; a run that was stopped before is an error."""
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        job.request_stop()

    with stop_on_signals(stop):
        job.start("caught-up")
        job.wait()
    if stopped.is_set() or job.is_cut_short:
        msg = f"The run of the {side} code was stopped before it had caught up, so there is nothing to compare."
        raise RequestFailed(msg)


def _positions(state: Path, job: str) -> dict[str, Position]:
    """The position of each source at the last checkpoint."""
    point = JobDirectory(state, job).read().restore_point
    tasks = point.tasks if point is not None else ()
    return {task.task: task.position for task in tasks if task.position is not None}


def _notes(muter: PipelineMuter, graph: Graph) -> tuple[str, ...]:
    return tuple(
        f"source '{uid}' is not in the old code, so it was read to what was there when it was opened: its rows are in "
        "the new output only"
        for uid in muter.unbounded(graph)
    )


# ---- both runs and their comparison ----------------------------------------------------------------------------------
# The runs write a pin to the job's directory and nothing else outside their folder: no source commits an offset.


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkShadow:
    """The result for one sink.

    Attributes:
        uid: of the sink.
        rows: the number that each run wrote, by ``old`` and ``new``; a code without the sink is missing.
        key: the columns that identify a row in both outputs, if they were given.
        comparison: how the rows differ; ``None`` if only one of the codes has the sink.
    """

    uid: str
    rows: Mapping[str, int]
    key: tuple[str, ...] = ()
    comparison: Comparison | None = None

    @property
    def is_same(self) -> bool:
        """Whether both wrote the same rows, by their common columns."""
        return self.comparison is not None and self.comparison.is_same


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowResult:
    """The result of a shadow run.

    Attributes:
        job: the pipeline's name.
        checkpoint: the one that both runs began at.
        folder: of the output: ``<folder>/old/<uid>`` and ``<folder>/new/<uid>``, Parquet.
        reports: of each run, by ``old`` and ``new``; without old code there is only the new one.
        sinks: by uid.
        notes: what makes the comparison less than exact.
    """

    job: str
    checkpoint: int
    folder: str
    reports: Mapping[str, Report]
    sinks: tuple[SinkShadow, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_compared(self) -> bool:
        """Whether there was old code to compare with."""
        return OLD in self.reports

    @property
    def is_same(self) -> bool:
        """Whether every sink got the same rows from both; ``False`` also if nothing was compared."""
        return self.is_compared and all(sink.is_same for sink in self.sinks)


@short_tracebacks
def shadow(  # noqa: PLR0913 - what can be said about two runs
    pipeline: PipelineDefinition,
    *,
    restore_from: str | int | os.PathLike[str],
    against: PipelineDefinition | None = None,
    state: str | Path = ".penstock",
    out: str | Path,
    key: Mapping[str, Sequence[str]] | None = None,
    spark: SparkSession | None = None,
    listener: Listener | None = None,
    rename: Mapping[str, str] | None = None,
    allow_non_restored_state: bool = False,
    without: Collection[str] = (),
    progress: StageCallback = ignore_stage,
    **settings: object,
) -> ShadowResult:
    """Run new code on a copy of a savepoint until it has caught up, its sinks muted; compare with the old code.

    Both runs begin with the same checkpoint and read to the same end: first the old code up to what is there when it
    starts, then the new code up to the same positions. The real job may run meanwhile; it is not disturbed.

    Args:
        pipeline: the new code.
        restore_from: a savepoint's name, a checkpoint's number, or an exported folder.
        against: the old code; without it rows are only counted.
        state: the folder that holds the real job's state.
        out: an empty folder, or one to be made: the output of the sinks is kept there as Parquet.
        key: by sink, the columns that identify a row in both outputs.
        spark: a session to run on; without one that of the process, or one is made and stopped.
        listener: gets the facts of both runs.
        rename: steps that have another uid in the new code, old to new.
        allow_non_restored_state: the new code may leave state unused.
        without: sources that neither run reads, by uid: for example those that cannot be read without being noticed.
        progress: called with each stage, from any thread.
        settings: of both runs, as of ``penstock.Job``.

    Raises:
        UnknownName: there is no such job, savepoint or folder.
        StateIncompatible: the new code cannot take the state over; a real start would be refused likewise.
        GraphError: a pipeline is refused, or a source of it cannot be read unnoticed and is not left out.
        SettingsError: a sink of ``key`` or a source of ``without`` does not exist, or a setting is impossible.
        PenstockError: the error that ended a run.

    Example::

        result = ps.shadow(new.orders, against=old.orders, restore_from="before-v2", state="./state", out="./shadow")
        assert result.is_same, result.sinks
    """
    keys = {uid: tuple(columns) for uid, columns in (key or {}).items()}
    graphs = {OLD: against.graph(), NEW: pipeline.graph()} if against is not None else {NEW: pipeline.graph()}
    left_out = _left_out_sources(graphs, keys, without, rename or {})
    folder = Path(empty_folder(out))
    for graph in graphs.values():  # a pipeline that cannot be muted is refused before anything runs
        PipelineMuter(folder=folder, ends={}, without=left_out).graph(graph)
    try:
        export, export_folder = _open_or_export(restore_from, state, (against or pipeline).name, folder, progress)
        if spark is None and current_session() is None:
            progress(Stage(doing=STARTING))
        with borrow_session(pipeline.name, spark) as session:
            runner = ShadowRunner(
                spark=session,
                folder=folder,
                export=export_folder,
                listener=listener,
                on_stage=progress,
                without=left_out,
                settings=settings,
            )
            runs: dict[str, ShadowRun] = {}
            if against is not None:
                runs[OLD] = runner.run(OLD, against, ends={})
            options: dict[str, Any] = {"rename": dict(rename)} if rename else {}
            options["allow_non_restored_state"] = allow_non_restored_state
            runs[NEW] = _run_new(runner, pipeline, runs.get(OLD), rename or {}, options)
            sinks = _compare(session, folder, runs, keys, progress)
    finally:
        shutil.rmtree(folder / COPY, ignore_errors=True)
    return ShadowResult(
        job=pipeline.name,
        checkpoint=export.checkpoint,
        folder=str(folder),
        reports={side: run.report for side, run in runs.items()},
        sinks=sinks,
        notes=(
            *(f"source '{uid}' was left out: no row of it was read, by either code" for uid in sorted(set(without))),
            *(runs[NEW].notes if OLD in runs else ()),
        ),
    )


def _left_out_sources(
    graphs: Mapping[str, Graph], keys: Collection[str], without: Collection[str], rename: Mapping[str, str]
) -> frozenset[str]:
    """The sources that are left out, under all their uids.

    Raises:
        SettingsError: no pipeline has a sink of ``keys``, or a source of ``without``.
    """
    for what, names, known in (
        ("key names the sink", keys, {uid for graph in graphs.values() for uid in graph.sinks}),
        ("without names the source", without, {uid for graph in graphs.values() for uid in graph.sources}),
    ):
        for uid in names:
            if uid not in known:
                msg = f"{what} {uid!r}, which no pipeline has{did_you_mean(uid, known)}"
                raise SettingsError(msg)
    same = [{old, new} for old, new in rename.items()]
    return frozenset(without).union(*(uids for uids in same if uids.intersection(without)))


def _run_new(
    runner: ShadowRunner,
    pipeline: PipelineDefinition,
    old: ShadowRun | None,
    rename: Mapping[str, str],
    options: Mapping[str, Any],
) -> ShadowRun:
    """Run the new code up to the positions that the old code has reached, if there is old code."""
    if old is None:
        return runner.run(NEW, pipeline, ends={}, **options)
    ends = {rename.get(uid, uid): position for uid, position in old.ends.items()}
    read = {rename.get(uid, uid): rows for uid, rows in old.report.rows_read.items()}
    sources = pipeline.graph().sources
    rows = sum(read.get(uid, 0) for uid in sources) if sources <= ends.keys() else None
    return runner.run(NEW, pipeline, ends=ends, rows=rows, **options)


def _open_or_export(
    restore_from: str | int | os.PathLike[str], state: str | Path, job: str, folder: Path, on_stage: StageCallback
) -> tuple[Export, str]:
    """The export that both runs begin with, and its folder: the given one, or a copy of a checkpoint."""
    start = parse_start_options(fresh=False, restore_from=restore_from, claim=False, discard_unpublished=False)
    if start.folder is not None:
        return open_export(start.folder, log_id=None), start.folder
    exported = export_checkpoint(
        JobDirectory(state, job),
        str(start.checkpoint),
        folder / COPY / "savepoint",
        progress=lambda done, total: on_stage(Stage(doing=COPYING, done=done, of=total)),
    )
    return exported.export, exported.folder


def _compare(
    spark: SparkSession,
    folder: Path,
    runs: Mapping[str, ShadowRun],
    keys: Mapping[str, tuple[str, ...]],
    on_stage: StageCallback,
) -> tuple[SinkShadow, ...]:
    found: list[SinkShadow] = []
    uids = sorted({uid for run in runs.values() for uid in run.sinks})
    for uid in uids:
        on_stage(Stage(doing=COMPARING, done=len(found), of=len(uids)))
        rows = {side: run.report.rows_written.get(uid, 0) for side, run in runs.items() if uid in run.sinks}
        comparison = None
        if len(rows) > 1:
            comparison = compare(spark, folder / OLD / uid, folder / NEW / uid, key=keys.get(uid, ()))
        found.append(SinkShadow(uid=uid, rows=rows, key=keys.get(uid, ()), comparison=comparison))
    return tuple(found)
