"""ps.shadow: new code on a copy of the state."""

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
from penstock.spark.session import clone_session, make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.api.pipeline import PipelineDefinition
    from penstock.checkpoint.export import Export
    from penstock.facts import Listener
    from penstock.graph.nodes import Graph
    from penstock.handles import Position
    from penstock.observability.report import Report


# ----------------------------------------------------------------------------------------------------
# How far a shadow run is, for whoever waits for it. Decides nothing, prints nothing.

COPYING: Final = "copying"
STARTING: Final = "starting"
COMPARING: Final = "comparing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What is done now, and how much of it.

    Attributes:
        doing: ``copying`` the savepoint, ``starting`` Spark, running the ``old`` or the ``new`` code, or ``comparing``
            what they wrote.
        done: bytes that were copied, rows that a run has read, sinks that were compared.
        of: how many there are; ``None`` if that is not known.
        behind: rows that wait, as far as sources tell, where ``of`` is not known.
    """

    doing: str
    done: int = 0
    of: int | None = None
    behind: int | None = None


StageCallback: TypeAlias = Callable[[Stage], None]
"""Gets each stage, from any thread; must be quick and must not raise."""


def ignore_stage(_stage: Stage) -> None:
    """Where nobody waits."""


# ----------------------------------------------------------------------------------------------------
# One run of one code in a shadow: a muted pipeline on a copy of an export, to where it has caught up.

OLD: Final = "old"
NEW: Final = "new"
COPY: Final = "copy"
"""Below the folder of a shadow run: what the old and the new code wrote, and, while they run, their state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRun:
    """One run of one code, which has ended."""

    side: str
    report: Report
    ends: Mapping[str, Position]
    sinks: frozenset[str]
    notes: tuple[str, ...] = field(default=())

    @property
    def rows(self) -> int:
        """How many it has read, of all sources."""
        return sum(self.report.rows_read.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRunner:
    """Runs muted pipelines on copies of one export.

    Attributes:
        spark: the session.
        folder: of the shadow run.
        export: the folder of the export.
        listener: gets all facts.
        tell: told how far a run is.
        without: sources that are left out, by the uids of all codes.
        settings: of all runs.
    """

    spark: SparkSession
    folder: Path
    export: str
    listener: Listener | None
    tell: StageCallback
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
        """Run it until it has caught up; with options of a job that are this side's alone.

        Args:
            side: whose code it is.
            pipeline: the code.
            ends: where sources end.
            rows: how many there are to read, if that is known.
            options: further ones of the job.

        Raises:
            PenstockError: what ended it, with whose code it was.
        """
        muting = PipelineMuter(folder=self.folder / side, ends=ends, without=self.without)
        graph = pipeline.graph()
        state = self.folder / COPY / side
        job = Job(
            MutedPipeline(pipeline, muting),
            state=state,
            spark=self.spark,
            restore_from=Path(self.export),
            listener=ProgressListener(side, rows, self.tell, self.listener),
            **options,
            **self.settings,
        )
        _finish(job, side)
        return ShadowRun(
            side=side,
            report=job.report(),
            ends=_positions(state, pipeline.name),
            sinks=graph.sinks,
            notes=_notes(muting, graph),
        )


class ProgressListener:
    """A listener that tells how many rows a run has read, and of how many, and passes every fact on."""

    def __init__(self, side: str, rows: int | None, tell: StageCallback, listener: Listener | None) -> None:
        self._side = side
        self._rows = rows
        self._tell = tell
        self._listener = listener
        self._read = 0
        self._behind: dict[str, int] = {}
        self._lock = threading.Lock()
        tell(Stage(doing=side, of=rows))

    def __call__(self, fact: Fact) -> None:
        """Take one in."""
        if self._listener is not None:
            self._listener(fact)
        with self._lock:
            match fact:
                case RowsRead(rows=rows):
                    self._read += rows
                case SourceLag(task=task, rows=behind):
                    self._behind[task] = behind
                case _:
                    return
            stage = Stage(doing=self._side, done=self._read, of=self._rows, behind=self._left())
        self._tell(stage)

    def _left(self) -> int | None:
        """Rows that wait, as far as sources tell; what is known otherwise says more."""
        return sum(self._behind.values()) if self._behind and self._rows is None else None


def _finish(job: Job, side: str) -> None:
    """Run it until it has caught up; a run that was stopped before shows nothing."""
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        job.request_stop()

    with stop_on_signals(stop):
        job.start("caught-up")
        job.wait()
    if stopped.is_set() or job.is_cut_short:
        msg = f"the run of the {side} code was stopped before it had caught up, so there is nothing to compare"
        raise RequestFailed(msg)


def _positions(state: Path, job: str) -> dict[str, Position]:
    """Where each source stood at the last checkpoint."""
    point = JobDirectory(state, job).read().restore_point
    tasks = point.tasks if point is not None else ()
    return {task.task: task.position for task in tasks if task.position is not None}


def _notes(muting: PipelineMuter, graph: Graph) -> tuple[str, ...]:
    return tuple(
        f"source '{uid}' is not in the old code, so it was read to what was there when it was opened: its rows are in "
        "the new output only"
        for uid in muting.unbounded(graph)
    )


# ----------------------------------------------------------------------------------------------------
# New code on a copy of yesterday's state: sinks muted into a folder, outputs compared with those of the old code.
#
# Nothing of the job's own directory is changed but a name for a while, and nothing outside: sources are only read,
# their offsets are committed nowhere. Compares by ``comparing``, mutes by ``muting``, runs by ``runs``.


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkShadow:
    """What came of one sink.

    Attributes:
        uid: of the sink.
        rows: how many each run wrote, by ``old`` and ``new``; a run whose code does not have the sink is missing.
        key: the columns that say which old and which new row are the same, if they were given.
        comparison: how the rows differ; ``None`` if only one of the runs has the sink.
    """

    uid: str
    rows: Mapping[str, int]
    key: tuple[str, ...] = ()
    comparison: Comparison | None = None

    @property
    def is_same(self) -> bool:
        """Whether both wrote the same rows, as far as their common columns say."""
        return self.comparison is not None and self.comparison.is_same


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowResult:
    """What a shadow run has shown.

    Attributes:
        job: the pipeline's name.
        checkpoint: the one that both runs began at.
        folder: where what they wrote lies: ``<folder>/old/<uid>`` and ``<folder>/new/<uid>``, Parquet.
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

    Both runs begin with the same checkpoint and read to the same end: the old one first, up to what is there when it
    starts, then the new one up to where the old one has come. The real job may run meanwhile; it is not disturbed.

    Args:
        pipeline: the new code.
        restore_from: a savepoint's name, a checkpoint's number, or an exported folder.
        against: the old code; without it rows are only counted.
        state: the folder that holds the real job's state.
        out: an empty folder, or one to be made: what sinks would have written stays there as Parquet.
        key: by sink, columns that say which old and which new row are the same.
        spark: a session to run on; without one, one is made and stopped.
        listener: gets the facts of both runs.
        rename: steps that have another uid in the new code, old to new.
        allow_non_restored_state: the new code may leave state unused.
        without: sources that neither run reads, by uid: such as cannot be read without being noticed.
        progress: told how far it is, from any thread.
        settings: of both runs, as of :class:`penstock.Job`.

    Raises:
        UnknownName: there is no such job, savepoint or folder.
        StateIncompatible: the new code cannot take the state over; a real start would be refused likewise.
        GraphError: a pipeline is refused, or a source of it cannot be read unnoticed and is not left out.
        SettingsError: a sink of ``key`` or a source of ``without`` is not there, or a setting is impossible.
        PenstockError: what ended a run.

    Example::

        result = ps.shadow(new.orders, against=old.orders, restore_from="before-v2", state="./state", out="./shadow")
        assert result.is_same, result.sinks
    """
    keys = {uid: tuple(columns) for uid, columns in (key or {}).items()}
    graphs = {OLD: against.graph(), NEW: pipeline.graph()} if against is not None else {NEW: pipeline.graph()}
    silent = _known(graphs, keys, without, rename or {})
    folder = Path(empty_folder(out))
    for graph in graphs.values():
        PipelineMuter(folder=folder, ends={}, without=silent).graph(
            graph
        )  # what is refused is refused before anything runs
    try:
        export, place = _begin_with(restore_from, state, (against or pipeline).name, folder, progress)
        given = spark or _started(pipeline.name, progress)
        try:
            session = clone_session(given)
            runner = ShadowRunner(
                spark=session,
                folder=folder,
                export=place,
                listener=listener,
                tell=progress,
                without=silent,
                settings=settings,
            )
            runs: dict[str, ShadowRun] = {}
            if against is not None:
                runs[OLD] = runner.run(OLD, against, ends={})
            given_too: dict[str, Any] = {"rename": dict(rename)} if rename else {}
            given_too["allow_non_restored_state"] = allow_non_restored_state
            runs[NEW] = _as_far(runner, pipeline, runs.get(OLD), rename or {}, given_too)
            sinks = _compare(session, folder, runs, keys, progress)
        finally:
            if spark is None:
                given.stop()
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


def _started(name: str, tell: StageCallback) -> SparkSession:
    tell(Stage(doing=STARTING))
    return make_session(name)


def _known(
    graphs: Mapping[str, Graph], keys: Collection[str], without: Collection[str], rename: Mapping[str, str]
) -> frozenset[str]:
    """The sources that are left out, under all their uids; after a look whether all that is named is there.

    Raises:
        SettingsError: a pipeline has no such sink, or no such source.
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


def _as_far(
    runner: ShadowRunner,
    pipeline: PipelineDefinition,
    old: ShadowRun | None,
    rename: Mapping[str, str],
    options: Mapping[str, Any],
) -> ShadowRun:
    """The run of the new code, to where the old one has come, if there was one."""
    if old is None:
        return runner.run(NEW, pipeline, ends={}, **options)
    ends = {rename.get(uid, uid): position for uid, position in old.ends.items()}
    read = {rename.get(uid, uid): rows for uid, rows in old.report.rows_read.items()}
    sources = pipeline.graph().sources
    rows = sum(read.get(uid, 0) for uid in sources) if sources <= ends.keys() else None
    return runner.run(NEW, pipeline, ends=ends, rows=rows, **options)


def _begin_with(
    restore_from: str | int | os.PathLike[str], state: str | Path, job: str, folder: Path, tell: StageCallback
) -> tuple[Export, str]:
    """What both runs begin with, and the folder that it lies in: one that is given, or a copy of our own."""
    wanted = parse_start_options(fresh=False, restore_from=restore_from, claim=False, discard_unpublished=False)
    if wanted.folder is not None:
        return open_export(wanted.folder, log_id=None), wanted.folder
    made = export_checkpoint(
        JobDirectory(state, job),
        str(wanted.checkpoint),
        folder / COPY / "savepoint",
        progress=lambda done, total: tell(Stage(doing=COPYING, done=done, of=total)),
    )
    return made.export, made.folder


def _compare(
    spark: SparkSession,
    folder: Path,
    runs: Mapping[str, ShadowRun],
    keys: Mapping[str, tuple[str, ...]],
    tell: StageCallback,
) -> tuple[SinkShadow, ...]:
    found: list[SinkShadow] = []
    uids = sorted({uid for run in runs.values() for uid in run.sinks})
    for uid in uids:
        tell(Stage(doing=COMPARING, done=len(found), of=len(uids)))
        rows = {side: run.report.rows_written.get(uid, 0) for side, run in runs.items() if uid in run.sinks}
        comparison = None
        if len(rows) > 1:
            comparison = compare(spark, folder / OLD / uid, folder / NEW / uid, key=keys.get(uid, ()))
        found.append(SinkShadow(uid=uid, rows=rows, key=keys.get(uid, ()), comparison=comparison))
    return tuple(found)
