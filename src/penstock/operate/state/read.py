"""State of a step as a DataFrame: ``ps.read_state``. Claims nothing, writes nothing, works on a dead job's directory.

The rows are copied into Spark's cache and the log is looked at again before anybody gets them (rule G4): a reader is
told that it came too late, and never gets a part. A pin would need an entry, and so a claim of a job that is stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.checkpoint.entries import Manifest
from penstock.checkpoint.names import near
from penstock.errors import LayerMissing, PenstockError, StateIncompatible, UnknownName
from penstock.job.explain import explain
from penstock.job.session import activate, cores_of, take_over
from penstock.operate.directory import JobDirectory
from penstock.operate.state.find import check_whole, chosen, open_job, state_of
from penstock.state.sessions import active_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from penstock.filesystem.base import FileSystem
    from penstock.graph.pipeline import PipelineDefinition
    from penstock.handles import StateHandle
    from penstock.operators.window_plan import WindowPlan
    from penstock.operators.window_table import StateTable
    from penstock.state.layer import LayerFormat


def read_state(
    spark: SparkSession,
    state: str | Path,
    uid: str,
    *,
    job: str | None = None,
    at: int | str | None = None,
    raw: bool = False,
    pipeline: PipelineDefinition | None = None,
) -> DataFrame:
    """The state of a step at a checkpoint, as a table of finished rows; of a job that runs, is stopped, or died.

    One row for each key and open window: the key columns, ``window_start`` and ``window_end`` where there are windows,
    and the aggregates under their names. Closed windows are not in it, nor is anything that was superseded. An
    aggregate of one's own (``ps.agg.custom``) is code, which no checkpoint holds: without ``pipeline`` its parts are
    shown, ``<name>__<part>``, each as a list of what is still to be merged.

    The rows are copied first, in one Spark job or a few, so that nothing that is cleaned up later takes them away.

    Args:
        spark: a classic session; it is left as it was.
        state: the job's own directory, such as ``"./state/orders"``, or the folder that holds the state of jobs.
        uid: of the step.
        job: the job's name, if ``state`` is the folder of several.
        at: a checkpoint's number or a savepoint's name; that which the next start continues unless given.
        raw: partial aggregates as the layers hold them, merged, with panes instead of windows that overlap.
        pipeline: finish with its code instead of what the checkpoint recorded.

    Raises:
        UnknownName: no such job, checkpoint or step, or one that holds no state; with the nearest.
        CondemnedWhileRead: the checkpoint was cleaned up meanwhile.
        StateIncompatible: its state is no table, or that of another pipeline.
        CheckpointUnreadable: a file is not the one that was written.

    Example::

        totals = ps.read_state(spark, "./state/orders", "totals", at="before-v2")
        totals.where("amount > 1000").show()
    """
    directory = open_job(state, job)
    manifest = chosen(directory.read(), at)
    return StateReader(spark, directory, pipeline=pipeline).rows(manifest, uid, raw=raw)


@dataclass(frozen=True, slots=True)
class StateReader:
    """Reads state of one job, finished by what the checkpoints recorded, or by a pipeline."""

    spark: SparkSession
    directory: JobDirectory
    pipeline: PipelineDefinition | None = None

    def rows(self, manifest: Manifest, uid: str, *, raw: bool = False) -> DataFrame:
        """The rows of a step at a checkpoint: all of them, or an error; raises as :func:`read_state`."""
        from penstock.state.blocks import rebind
        from penstock.state.migration import carried

        handle = state_of(manifest, uid)
        try:
            with working(self.spark) as session:
                table = self.table(session, handle, uid)
                if self.pipeline is not None:
                    handle = carried(handle, table.layers_format.ddl())
                kept = _table(session, self.directory.filesystem, handle, table, raw=raw)
                kept = kept.localCheckpoint(eager=True)
        except LayerMissing:
            check_whole(self.directory, manifest.checkpoint)
            raise
        except PenstockError:
            raise
        except Exception as error:
            check_whole(self.directory, manifest.checkpoint)
            raise explain(error) from error
        check_whole(self.directory, manifest.checkpoint)
        return rebind(kept, self.spark)

    def identity(self, manifest: Manifest, uid: str) -> tuple[str, ...]:
        """The columns by which a row is the same row at another checkpoint."""
        with working(self.spark) as session:
            return self.table(session, state_of(manifest, uid), uid).identity

    def table(self, session: SparkSession, handle: StateHandle, uid: str) -> StateTable:
        """How the rows of its layers become a table."""
        from penstock.operators.window_table import planned, recorded
        from penstock.state.migration import judge

        if self.pipeline is None:
            return recorded(handle, uid=uid, partitions=cores_of(session))
        plan = plan_of(self.pipeline, uid, session)
        judge(handle, plan.keeps, uid=uid)
        return planned(plan)


def plan_of(pipeline: PipelineDefinition, uid: str, session: SparkSession) -> WindowPlan:
    """What a step of a pipeline does to frames.

    Raises:
        UnknownName: it has no such step that keeps state; with the nearest.
        StateIncompatible: its state is no table.
        GraphError: the pipeline is refused.
    """
    from penstock.graph.analyze import analyze
    from penstock.graph.nodes import Keyed, Ref
    from penstock.operators.window_aggregate import WindowAggregate

    graph = pipeline.graph()
    steps = {node.uid: node for node in graph.nodes if isinstance(node, Keyed)}
    node = steps.get(uid)
    if node is None:
        msg = f"pipeline {graph.name!r} has no step {uid!r} that keeps state{near(uid, steps)}"
        raise UnknownName(msg)
    spec = node.spec
    if not isinstance(spec, WindowAggregate):
        tables = sorted(each for each, step in steps.items() if isinstance(step.spec, WindowAggregate))
        msg = (
            f"its state is of kind {spec.kind!r}, which is no table; tables of pipeline {graph.name!r} are: "
            f"{', '.join(tables) or 'none'}. Read one of these, or the files that penstock state show {graph.name} "
            "--json names"
        )
        raise StateIncompatible(msg, uid=uid)
    analysis = analyze(graph, session, only=Ref(node.id))
    try:
        given = analysis.schema(node.inputs[0])
        return spec.plan(uid=uid, schema=given, session=session, partitions=cores_of(session))
    finally:
        analysis.close()


@contextmanager
def working(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of our own beside the user's, active on this thread; afterwards that is as it was."""
    session = take_over(spark)
    before = active_session() or spark
    activate(session)
    try:
        yield session
    finally:
        activate(before)


def _table(
    session: SparkSession, filesystem: FileSystem, handle: StateHandle, table: StateTable, *, raw: bool
) -> DataFrame:
    from penstock.state.restore import moment_of

    horizon = moment_of(handle, "horizon")
    rows = scan_live(session, filesystem, handle, table.layers_format)
    if raw:
        return table.partials(rows, horizon=horizon)
    return table.finished(rows, horizon=horizon, closed=moment_of(handle, "closed"))


def scan_live(
    session: SparkSession, filesystem: FileSystem, handle: StateHandle, layers_format: LayerFormat
) -> DataFrame:
    """The rows of all layers that hold any that live, with the columns that the handle says; each file is looked at.

    Raises:
        LayerMissing: a file is not there.
        CheckpointUnreadable: a file is not the one that was written.
    """
    from penstock.operators.window_table import schema_of
    from penstock.state.restore import check_files, live_refs
    from penstock.state.scan import scan

    refs = live_refs(handle)
    check_files(refs, filesystem, layers_format.uid)
    as_kept = replace(layers_format, schema=schema_of(handle))
    return scan(as_kept, filesystem, session, [(ref, ref.files) for ref in refs])
