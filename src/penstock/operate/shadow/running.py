"""New code on a copy of yesterday's state: sinks muted into a folder, outputs compared with those of the old code.

Nothing of the job's own directory is changed but a name for a while, and nothing outside: sources are only read, their
offsets are committed nowhere. Compares by ``comparing``, mutes by ``muting``; runs jobs like any other.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.checkpoint.names import near
from penstock.errors import RequestFailed, SettingsError
from penstock.job import Job
from penstock.job.beginning import read_beginning
from penstock.job.importing import open_export
from penstock.job.session import make_session, take_over
from penstock.job.signals import stopping_on_signals
from penstock.operate.directory import JobDirectory
from penstock.operate.export import empty_folder, export_checkpoint
from penstock.operate.shadow.comparing import Comparison, compare
from penstock.operate.shadow.muting import Muted, Muting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.checkpoint.exported import Export
    from penstock.facts import Listener
    from penstock.graph.nodes import Graph
    from penstock.graph.pipeline import PipelineDefinition
    from penstock.handles import Position
    from penstock.job import Report

OLD: Final = "old"
NEW: Final = "new"
COPY: Final = "copy"
"""Below the folder of a shadow run: what the old and the new code wrote, and, while they run, their state."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of one code."""

    side: str
    report: Report
    ends: Mapping[str, Position]
    sinks: frozenset[str]
    notes: tuple[str, ...] = field(default=())


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
        settings: of both runs, as of :class:`penstock.Job`.

    Raises:
        UnknownName: there is no such job, savepoint or folder.
        StateIncompatible: the new code cannot take the state over; a real start would be refused likewise.
        GraphError: a pipeline is refused.
        SettingsError: a sink of ``key`` is not there, or a setting is impossible.
        PenstockError: what ended a run.

    Example::

        result = ps.shadow(new.orders, against=old.orders, restore_from="before-v2", state="./state", out="./shadow")
        assert result.is_same, result.sinks
    """
    keys = {uid: tuple(columns) for uid, columns in (key or {}).items()}
    graphs = {OLD: against, NEW: pipeline} if against is not None else {NEW: pipeline}
    known = {uid for each in graphs.values() for uid in each.graph().sinks}
    for uid in keys:
        if uid not in known:
            msg = f"key names the sink {uid!r}, which no pipeline has{near(uid, known)}"
            raise SettingsError(msg)
    folder = Path(empty_folder(out))
    try:
        export, place = _begin_with(restore_from, state, (against or pipeline).name, folder)
        given = spark or make_session(pipeline.name)
        try:
            session = take_over(given)
            runner = _Runner(session, folder, place, listener, settings)
            runs: dict[str, _Run] = {}
            if against is not None:
                runs[OLD] = runner.run(OLD, against, ends={})
            ends = runs[OLD].ends if OLD in runs else {}
            ends = {(rename or {}).get(uid, uid): position for uid, position in ends.items()}
            given_too: dict[str, Any] = {"rename": dict(rename)} if rename else {}
            given_too["allow_non_restored_state"] = allow_non_restored_state
            runs[NEW] = runner.run(NEW, pipeline, ends=ends, **given_too)
            sinks = _compare(session, folder, runs, keys)
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
        notes=runs[NEW].notes if OLD in runs else (),
    )


def _begin_with(
    restore_from: str | int | os.PathLike[str], state: str | Path, job: str, folder: Path
) -> tuple[Export, str]:
    """What both runs begin with, and the folder that it lies in: one that is given, or a copy of our own."""
    wanted = read_beginning(fresh=False, restore_from=restore_from, claim=False, discard_unpublished=False)
    if wanted.folder is not None:
        return open_export(wanted.folder, log_id=None), wanted.folder
    made = export_checkpoint(JobDirectory(state, job), str(wanted.checkpoint), folder / COPY / "savepoint")
    return made.export, made.folder


class _Runner:
    """Runs muted pipelines on copies of one export."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        export: str,
        listener: Listener | None,
        settings: Mapping[str, object],
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._export = export
        self._listener = listener
        self._settings: Mapping[str, Any] = settings

    def run(self, side: str, pipeline: PipelineDefinition, *, ends: Mapping[str, Position], **options: Any) -> _Run:
        """Run it until it has caught up; with options of a job that are this side's alone.

        Raises:
            PenstockError: what ended it, with whose code it was.
        """
        muting = Muting(folder=self._folder / side, ends=ends)
        graph = pipeline.graph()
        state = self._folder / COPY / side
        job = Job(
            Muted(pipeline, muting),
            state=state,
            spark=self._spark,
            restore_from=Path(self._export),
            listener=self._listener,
            **options,
            **self._settings,
        )
        _finish(job, side)
        return _Run(
            side=side,
            report=job.report(),
            ends=_positions(state, pipeline.name),
            sinks=graph.sinks,
            notes=_notes(muting, graph),
        )


def _finish(job: Job, side: str) -> None:
    """Run it until it has caught up; a run that was stopped before shows nothing."""
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        job.request_stop()

    with stopping_on_signals(stop):
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


def _notes(muting: Muting, graph: Graph) -> tuple[str, ...]:
    return tuple(
        f"source '{uid}' cannot be made to end where the old code has ended: what came between the two runs is in the "
        "new output only"
        for uid in muting.unbounded(graph)
    )


def _compare(
    spark: SparkSession, folder: Path, runs: Mapping[str, _Run], keys: Mapping[str, tuple[str, ...]]
) -> tuple[SinkShadow, ...]:
    found = []
    for uid in sorted({uid for run in runs.values() for uid in run.sinks}):
        rows = {side: run.report.rows_written.get(uid, 0) for side, run in runs.items() if uid in run.sinks}
        comparison = None
        if len(rows) > 1:
            comparison = compare(spark, folder / OLD / uid, folder / NEW / uid, key=keys.get(uid, ()))
        found.append(SinkShadow(uid=uid, rows=rows, key=keys.get(uid, ()), comparison=comparison))
    return tuple(found)
