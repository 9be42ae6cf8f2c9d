"""New code on a copy of yesterday's state: sinks muted into a folder, outputs compared with those of the old code.

Nothing of the job's own directory is changed but a name for a while, and nothing outside: sources are only read, their
offsets are committed nowhere. Compares by ``comparing``, mutes by ``muting``, runs by ``runs``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.names import near
from penstock.errors import SettingsError
from penstock.job.beginning import read_beginning
from penstock.job.importing import open_export
from penstock.job.session import make_session, take_over
from penstock.operate.directory import JobDirectory
from penstock.operate.export import empty_folder, export_checkpoint
from penstock.operate.shadow.comparing import Comparison, compare
from penstock.operate.shadow.muting import Muting
from penstock.operate.shadow.runs import COPY, NEW, OLD, Run, Runner
from penstock.operate.shadow.stages import COMPARING, COPYING, STARTING, Stage, Told, nobody

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.checkpoint.exported import Export
    from penstock.facts import Listener
    from penstock.graph.nodes import Graph
    from penstock.graph.pipeline import PipelineDefinition
    from penstock.job import Report


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
    progress: Told = nobody,
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
        Muting(folder=folder, ends={}, without=silent).graph(graph)  # what is refused is refused before anything runs
    try:
        export, place = _begin_with(restore_from, state, (against or pipeline).name, folder, progress)
        given = spark or _started(pipeline.name, progress)
        try:
            session = take_over(given)
            runner = Runner(
                spark=session,
                folder=folder,
                export=place,
                listener=listener,
                tell=progress,
                without=silent,
                settings=settings,
            )
            runs: dict[str, Run] = {}
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


def _started(name: str, tell: Told) -> SparkSession:
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
                msg = f"{what} {uid!r}, which no pipeline has{near(uid, known)}"
                raise SettingsError(msg)
    same = [{old, new} for old, new in rename.items()]
    return frozenset(without).union(*(uids for uids in same if uids.intersection(without)))


def _as_far(
    runner: Runner, pipeline: PipelineDefinition, old: Run | None, rename: Mapping[str, str], options: Mapping[str, Any]
) -> Run:
    """The run of the new code, to where the old one has come, if there was one."""
    if old is None:
        return runner.run(NEW, pipeline, ends={}, **options)
    ends = {rename.get(uid, uid): position for uid, position in old.ends.items()}
    read = {rename.get(uid, uid): rows for uid, rows in old.report.rows_read.items()}
    sources = pipeline.graph().sources
    rows = sum(read.get(uid, 0) for uid in sources) if sources <= ends.keys() else None
    return runner.run(NEW, pipeline, ends=ends, rows=rows, **options)


def _begin_with(
    restore_from: str | int | os.PathLike[str], state: str | Path, job: str, folder: Path, tell: Told
) -> tuple[Export, str]:
    """What both runs begin with, and the folder that it lies in: one that is given, or a copy of our own."""
    wanted = read_beginning(fresh=False, restore_from=restore_from, claim=False, discard_unpublished=False)
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
    runs: Mapping[str, Run],
    keys: Mapping[str, tuple[str, ...]],
    tell: Told,
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
