"""``ps.read_state``: the state of a step as a table; the state of two checkpoints compared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.checkpoint import paths
from penstock.checkpoint.entries import Manifest, StepRole
from penstock.checkpoint.history import resolve_checkpoint
from penstock.control.client import JobDirectory, jobs_in, root_of
from penstock.errors import (
    CondemnedWhileRead,
    LayerMissing,
    PenstockError,
    StateIncompatible,
    UnknownName,
    did_you_mean,
)
from penstock.job.failures import to_penstock_error
from penstock.spark.session import active_session, clone_session, default_parallelism, set_active_session
from penstock.user_code import short_tracebacks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.api.pipeline import PipelineDefinition
    from penstock.checkpoint.history import History
    from penstock.filesystem.base import FileSystem
    from penstock.handles import CheckpointId, FileRef, StateHandle
    from penstock.operators.windows.frames import WindowFrames
    from penstock.operators.windows.table import StateTable
    from penstock.state.layers import LayerFormat


# ---- jobs, checkpoints and steps -------------------------------------------------------------------------------------
# All of it comes from the log alone and needs no Spark, so it is there for running and dead jobs alike.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """The state of one step at a checkpoint.

    Attributes:
        uid: of the step.
        kind: name and version of the format.
        schema: the columns of its layers, as Spark DDL.
        rows: of all layers, before rows of one key are merged: an upper bound.
        bytes: size of all files.
        layers: their number.
        files: below the job's directory, oldest layer first.
        written: by whom, when and on what ``write_state`` made it, if it did.
    """

    uid: str
    kind: str
    schema: str
    rows: int
    bytes: int
    layers: int
    files: tuple[FileRef, ...]
    written: object = None


def open_job(state: str | Path, job: str | None = None) -> JobDirectory:
    """Return a job by its own directory, by the folder of jobs and its name, or by a folder with only one job.

    Raises:
        UnknownName: there is none, or there are several and no name.
    """
    root = root_of(state)
    if job is not None or root is None:
        return JobDirectory(state, job or "")
    folder = Path(os.path.abspath(root))
    if (folder / paths.LOG).is_dir():
        return JobDirectory(folder.parent, folder.name)
    names = jobs_in(state)
    if len(names) > 1:
        msg = f"{root} holds the state of several jobs: {', '.join(names)}. Name one, as in job={names[0]!r}."
        raise UnknownName(msg)
    return JobDirectory(state, names[0] if names else folder.name)


def resolve_manifest(history: History, at: int | str | None) -> Manifest:
    """Return a checkpoint by number or by a savepoint's name, or the one that the next start continues.

    Raises:
        UnknownName: there is none, or its files may be gone; the message names those there are.
    """
    if at is not None:
        return history.manifests[resolve_checkpoint(history, str(at))][1]
    point = history.restore_point
    if point is None:
        known = ", ".join(map(str, history.restorable)) or "none"
        msg = f"Job {history.job!r} would start empty, so it has no newest checkpoint. Restorable checkpoints: {known}."
        raise UnknownName(msg)
    return point


def state_of(manifest: Manifest, uid: str) -> StateHandle:
    """Return the state of a step at a checkpoint.

    Raises:
        UnknownName: the step has no state, or does not exist; the message names the steps that have.
    """
    for snapshot in manifest.tasks:
        if snapshot.task == uid and snapshot.state is not None:
            return snapshot.state
    raise UnknownName(_why_none(manifest, uid))


def _why_none(manifest: Manifest, uid: str) -> str:
    roles = {step.uid: step.role for step in manifest.steps}
    holders = [snapshot.task for snapshot in manifest.tasks if snapshot.state is not None]
    there = f"State is held by: {', '.join(sorted(holders)) or 'no step at all'}."
    match roles.get(uid):
        case StepRole.SOURCE:
            return f"{uid!r} is a source. A checkpoint has its position, which is not a table. {there}"
        case StepRole.SINK:
            return f"{uid!r} is a sink, which keeps no state. {there}"
        case StepRole.STEP:
            return f"Step {uid!r} keeps no state. {there}"
        case _:
            return f"Checkpoint {manifest.checkpoint} has no step {uid!r}{did_you_mean(uid, holders) or '. ' + there}"


def states_of(manifest: Manifest) -> tuple[StepState, ...]:
    """Return all state of a checkpoint, in the order of its steps."""
    found = []
    for snapshot in manifest.tasks:
        state = snapshot.state
        if state is None:
            continue
        found.append(
            StepState(
                uid=snapshot.task,
                kind=state.kind,
                schema=state.schema,
                rows=state.rows,
                bytes=state.bytes,
                layers=len(state.layers),
                files=state.files,
                written=state.detail.get("written") if isinstance(state.detail, dict) else None,
            )
        )
    return tuple(found)


def require_still_restorable(job: JobDirectory, checkpoint: CheckpointId) -> None:
    """Require, after reading, that the checkpoint was restorable all the time (rule G4).

    What is condemned stays so, and only what is condemned is deleted: if it is restorable now, its files were there.

    Raises:
        CondemnedWhileRead: it was not.
    """
    if checkpoint not in job.read().restorable:
        msg = (
            f"Checkpoint {checkpoint} of job {job.job!r} was condemned while it was read, so some of its files may "
            "have been gone. Read a newer one, or give it a name before (penstock savepoint create)."
        )
        raise CondemnedWhileRead(msg)


# ---- read_state ------------------------------------------------------------------------------------------------------
# The rows are copied into Spark's cache, and the log is read again before they are returned (rule G4). A reader that is
# too late gets an error and never a part. A pin would need an entry, and so a claim of a stopped job.


@short_tracebacks
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
    """Return the state of a step at a checkpoint as a table; the job may run, be stopped, or have died.

    The table has one row for each key and open window: the key columns, ``window_start`` and ``window_end`` where there
    are windows, and the aggregates under their names. It has no closed windows and no superseded rows. An aggregate of
    one's own (``ps.agg.custom``) is code, which no checkpoint holds: without ``pipeline`` its parts are shown,
    ``<name>__<part>``, each as a list of what is still to be merged.

    The rows are copied first, in one Spark job or a few, so a later clean-up does not take them away.

    Args:
        spark: a classic session; it is left as it was.
        state: the job's own directory, such as ``"./state/orders"``, or the folder that holds the state of jobs.
        uid: of the step.
        job: the job's name, if ``state`` is the folder of several.
        at: a checkpoint's number or a savepoint's name; the one that the next start continues unless given.
        raw: partial aggregates as the layers hold them, merged, with panes instead of windows that overlap.
        pipeline: finish with its code instead of what the checkpoint recorded.

    Raises:
        UnknownName: no such job, checkpoint or step, or the step has no state; the message names the nearest.
        CondemnedWhileRead: the checkpoint was cleaned up meanwhile.
        StateIncompatible: its state is not a table, or is that of another pipeline.
        CheckpointUnreadable: a file is not the one that was written.

    Example::

        totals = ps.read_state(spark, "./state/orders", "totals", at="before-v2")
        totals.where("amount > 1000").show()
    """
    directory = open_job(state, job)
    manifest = resolve_manifest(directory.read(), at)
    return StateReader(spark, directory, pipeline=pipeline).rows(manifest, uid, raw=raw)


@dataclass(frozen=True, slots=True)
class StateReader:
    """Reads state of one job, finished by what the checkpoints recorded, or by a pipeline."""

    spark: SparkSession
    directory: JobDirectory
    pipeline: PipelineDefinition | None = None

    def rows(self, manifest: Manifest, uid: str, *, raw: bool = False) -> DataFrame:
        """Return all rows of a step at a checkpoint; raises as ``read_state``."""
        from penstock.spark.blocks import with_session
        from penstock.state.schema import migrated

        handle = state_of(manifest, uid)
        try:
            with reading_session(self.spark) as session:
                table = self.table(session, manifest, uid)
                if self.pipeline is not None:
                    handle = migrated(handle, table.layers_format.ddl())
                rows = _table(session, self.directory.filesystem, handle, table, raw=raw)
                rows = rows.localCheckpoint(eager=True)
        except LayerMissing:
            require_still_restorable(self.directory, manifest.checkpoint)
            raise
        except PenstockError:
            raise
        except Exception as error:
            require_still_restorable(self.directory, manifest.checkpoint)
            raise to_penstock_error(error) from error
        require_still_restorable(self.directory, manifest.checkpoint)
        return with_session(rows, self.spark)

    def identity(self, manifest: Manifest, uid: str) -> tuple[str, ...]:
        """Return the columns by which a row is the same row at another checkpoint."""
        with reading_session(self.spark) as session:
            return self.table(session, manifest, uid).identity

    def table(self, session: SparkSession, manifest: Manifest, uid: str) -> StateTable:
        """Return how the rows of the step's layers become a table."""
        from penstock.operators.windows.table import table_of_record, table_of_step
        from penstock.state.schema import resolve_schema

        handle = state_of(manifest, uid)
        if self.pipeline is None:
            return table_of_record(handle, uid=uid, partitions=default_parallelism(session))
        frames = frames_of(self.pipeline, uid, session, manifest)
        resolve_schema(handle, frames.keeps, uid=uid)
        return table_of_step(frames)


def frames_of(
    pipeline: PipelineDefinition, uid: str, session: SparkSession, manifest: Manifest | None = None
) -> WindowFrames:
    """Return the frames of a step of a pipeline that goes on from a checkpoint.

    Raises:
        UnknownName: the pipeline has no such step with state; the message names the nearest.
        StateIncompatible: its state is not a table.
        GraphError: the pipeline is refused.
    """
    from penstock.compiler.analysis import analyze
    from penstock.graph.nodes import Keyed, PortRef
    from penstock.job.start import source_positions
    from penstock.operators.windows.aggregate import WindowAggregate

    graph = pipeline.graph()
    steps = {node.uid: node for node in graph.nodes if isinstance(node, Keyed)}
    node = steps.get(uid)
    if node is None:
        msg = f"Pipeline {graph.name!r} has no step {uid!r} that keeps state{did_you_mean(uid, steps)}"
        raise UnknownName(msg)
    spec = node.spec
    if not isinstance(spec, WindowAggregate):
        tables = sorted(each for each, step in steps.items() if isinstance(step.spec, WindowAggregate))
        msg = (
            f"Its state is of kind {spec.kind!r}, which is not a table. Tables of pipeline {graph.name!r}: "
            f"{', '.join(tables) or 'none'}. Read one of these, or the files that penstock state show {graph.name} "
            "--json names."
        )
        raise StateIncompatible(msg, uid=uid)
    positions = {} if manifest is None else source_positions(manifest, {})
    analysis = analyze(graph, session, only=PortRef(node.id), positions=positions)
    try:
        schema = analysis.schema(node.inputs[0])
        return spec.frames(uid=uid, schema=schema, session=session, partitions=default_parallelism(session))
    finally:
        analysis.close()


@contextmanager
def reading_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a clone of the user's session that is active on this thread; restores the active one afterwards."""
    session = clone_session(spark)
    previous = active_session() or spark
    set_active_session(session)
    try:
        yield session
    finally:
        set_active_session(previous)


def _table(
    session: SparkSession, filesystem: FileSystem, handle: StateHandle, table: StateTable, *, raw: bool
) -> DataFrame:
    from penstock.state.restore import read_event_time

    horizon = read_event_time(handle, "horizon")
    rows = scan_live(session, filesystem, handle, table.layers_format)
    if raw:
        return table.partials(rows, horizon=horizon)
    return table.finished(rows, horizon=horizon, closed=read_event_time(handle, "closed"))


def scan_live(
    session: SparkSession, filesystem: FileSystem, handle: StateHandle, layers_format: LayerFormat
) -> DataFrame:
    """Return the rows of all layers with live rows, with the columns of the handle; each file is checked.

    Raises:
        LayerMissing: a file does not exist.
        CheckpointUnreadable: a file is not the one that was written.
    """
    from penstock.operators.windows.table import schema_of
    from penstock.state.parquet import scan_layers
    from penstock.state.restore import check_files, live_layers

    refs = live_layers(handle)
    check_files(refs, filesystem, layers_format.uid)
    as_written = replace(layers_format, schema=schema_of(handle))
    return scan_layers(as_written, filesystem, session, [(ref, ref.files) for ref in refs])


# ---- differences between checkpoints ---------------------------------------------------------------------------------

_BEFORE, _AFTER, _SIDE, _ROW = (f"__penstock_{name}" for name in ("before", "after", "side", "row"))
CHANGES: Final = ("delete", "insert", "update_before", "update_after")


def diff_state(reader: StateReader, history: History, uid: str, before: int | str, after: int | str) -> DataFrame:
    """Return the rows that were inserted, deleted or updated, with the kind of change in ``_change``.

    A row is identified by key and window (in a counted window that is not full, by the key). An updated row is there
    twice, as ``update_before`` and ``update_after``; an unchanged row is not there.

    Args:
        reader: of the job.
        history: its log.
        uid: the step.
        before: a checkpoint's number or a savepoint's name.
        after: likewise; it may be the older one.

    Raises:
        UnknownName: no such checkpoint or step.
        StateIncompatible: the two have other columns.
        CondemnedWhileRead: a checkpoint was cleaned up meanwhile.
    """
    manifests = [resolve_manifest(history, at) for at in (before, after)]
    old, new = (reader.rows(manifest, uid) for manifest in manifests)
    if [(field.name, field.dataType) for field in old.schema] != [(field.name, field.dataType) for field in new.schema]:
        msg = (
            f"At {before} the table has {old.schema.simpleString()}, at {after} {new.schema.simpleString()}. Look at "
            "each with --at."
        )
        raise StateIncompatible(msg, uid=uid)
    return _changes(old, new, reader.identity(manifests[1], uid))


def _changes(old: DataFrame, new: DataFrame, identity: tuple[str, ...]) -> DataFrame:
    from pyspark.sql import functions as F

    from penstock.interfaces.sink import CHANGE_COLUMN
    from penstock.spark.sql import quote_identifier

    keys = [F.col(quote_identifier(name)) for name in identity]
    values = F.struct(*(F.col(quote_identifier(name)) for name in old.columns if name not in identity))
    sides = [frame.select(*keys, values.alias(_ROW), F.lit(side).alias(_SIDE)) for side, frame in enumerate((old, new))]
    row_of = [F.first(F.when(F.col(_SIDE) == side, F.col(_ROW)), ignorenulls=True) for side in (0, 1)]
    both = sides[0].union(sides[1]).groupBy(*keys).agg(row_of[0].alias(_BEFORE), row_of[1].alias(_AFTER))
    was, is_now = F.col(_BEFORE), F.col(_AFTER)
    changed = both.where(~_comparable(both, _BEFORE).eqNullSafe(_comparable(both, _AFTER)))
    kinds = (
        F.when(was.isNull(), F.array(_change_row("insert", is_now)))
        .when(is_now.isNull(), F.array(_change_row("delete", was)))
        .otherwise(F.array(_change_row("update_before", was), _change_row("update_after", is_now)))
    )
    found = changed.select(*keys, F.explode(kinds).alias(_ROW)).select(
        *keys, f"{_ROW}.row.*", F.col(f"{_ROW}.change").alias(CHANGE_COLUMN)
    )
    return found.select(*map(quote_identifier, old.columns), CHANGE_COLUMN)


def _change_row(change: str, row: Column) -> Column:
    from pyspark.sql import functions as F

    return F.struct(row.alias("row"), F.lit(change).alias("change"))


def _comparable(frame: DataFrame, name: str) -> Column:
    """The row, or its JSON text if Spark cannot compare it."""
    from pyspark.sql import functions as F

    from penstock.operators.aggregates.base import is_ordered

    return F.col(name) if is_ordered(frame.schema[name].dataType) else F.to_json(F.col(name))
