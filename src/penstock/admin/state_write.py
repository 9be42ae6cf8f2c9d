"""``ps.write_state``: a table as the state of a step, in a savepoint of a job that is stopped or has yet to begin."""

# The table is checked before the job is claimed. Under the claim its rows become a layer in a folder of this
# generation. Then one entry of the log makes the savepoint: the other steps as they were at a checkpoint, this step's
# state, and the name. A crash before that entry leaves the job as it was, and files that the next owner deletes. The
# entry lists open output, so the next start publishes it first.

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.admin.state_read import frames_of, open_job, reading_session, resolve_manifest
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Manifest, Pin, StepRecord, StepRole
from penstock.checkpoint.history import abandoned_ids, name_conflict
from penstock.clock import MIN_WATERMARK
from penstock.control.client import JobDirectory, process_name, root_of
from penstock.elements import CheckpointKind
from penstock.errors import JobIsRunning, RequestRefused, StateIncompatible, UnknownName
from penstock.failpoints import failpoint
from penstock.filesystem import resolve
from penstock.handles import StateHandle, TaskSnapshot, check_savepoint_name
from penstock.spark.session import default_parallelism
from penstock.user_code import short_tracebacks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from penstock.api.pipeline import PipelineDefinition
    from penstock.checkpoint.history import History
    from penstock.checkpoint.log import OwnedLog
    from penstock.clock import WallTime
    from penstock.handles import CheckpointId, Json, LayerRef
    from penstock.operators.windows.table import StateTable


@short_tracebacks
def write_state(
    spark: SparkSession,
    state: str | Path,
    uid: str,
    frame: DataFrame,
    *,
    name: str,
    job: str | None = None,
    at: int | str | None = None,
    pipeline: PipelineDefinition | None = None,
) -> CheckpointId:
    """Make a savepoint in which the state of one step is this table; the next start continues it.

    Everything else in it (positions, other steps, watermarks) is as it was at a checkpoint. If that is not the newest,
    this is a rewind too: rows read since then are read and published again. A job without a checkpoint begins with
    this state, and its sources at their start; it needs ``pipeline``.

    The columns are those of ``read_state``: key columns, ``window_start`` and ``window_end`` where there are
    windows, and each aggregate, finished (``sum``, ``count``, ``min``, ``max``) or as its parts, which
    ``read_state(…, raw=True)`` gives. NULL is a key like any other. Output that was sent before is not taken back.

    Args:
        spark: a classic session; it is left as it was.
        state: the job's own directory, or the folder that holds the state of jobs.
        uid: of the step.
        frame: all rows of the new state; rows of the old state that it lacks are gone. It is read once.
        name: of the savepoint, never used before.
        job: the job's name, if ``state`` is the folder of several.
        at: where all else comes from: a checkpoint's number or a savepoint's name; the restore point unless given.
        pipeline: for a step that the checkpoint does not have, for changed code, or for a custom aggregate.

    Returns:
        The number of the new checkpoint.

    Raises:
        JobIsRunning: stop it first.
        SchemaMismatch: columns or rows are not those of the step's state; nothing was changed.
        StateIncompatible: the step's state is not a table, or the pipeline is needed.
        UnknownName: no such job, checkpoint or step.
        RequestRefused: the name is taken, or a discard is not finished.
        GenerationFenced: another process took the job meanwhile.

    Example::

        fixed = ps.read_state(spark, "./state/orders", "totals").where("user <> 'test'")
        ps.write_state(spark, "./state/orders", "totals", fixed, name="without-test-users")
    """
    check_savepoint_name(name)
    directory = _directory(state, job, pipeline)
    if directory.owner() is not None:
        msg = f"Job {directory.job!r} is running. Stop it first with penstock stop {directory.job}."
        raise JobIsRunning(msg)
    history = directory.log.read()
    _require_writable(history, name)
    with reading_session(spark) as session:
        target = _Target.resolve(history, uid, at, pipeline, session)
        with _checked_rows(target, frame, session) as rows, directory.own(expect_tail=history.tail) as owned:
            is_new = owned.history.restore_point is None and not owned.history.manifests
            _require_writable(owned.history, name)
            write = ManualWrite(name=name, owner=process_name(), at=directory.now())
            handle = target.handle(_write_layer(directory, owned, target, rows, session), write)
            manifest = manifest_with(owned.history, target.base, uid, handle, write)
            owned.append(manifest)
            if is_new:
                directory.write_stopped(owned)
    return manifest.checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualWrite:
    """The name of the savepoint, the process that writes it, and the time."""

    name: str
    owner: str
    at: WallTime


def manifest_with(
    history: History, base: Manifest | None, uid: str, handle: StateHandle, write: ManualWrite
) -> Manifest:
    """Return the entry: a new checkpoint that is ``base`` except for one step's state and the name.

    All that is open now is open in it (rule R5), its id is above all others (R4), and it condemns nothing.
    """
    checkpoint = history.next_checkpoint
    record = StepRecord(uid=uid, role=StepRole.STEP, kind=handle.kind, schema=handle.schema)
    steps = base.steps if base is not None else ()
    tasks = base.tasks if base is not None else ()
    previous = next((task for task in tasks if task.task == uid), TaskSnapshot(task=uid))
    snapshot = replace(previous, state=handle)
    manifest = Manifest(
        checkpoint=checkpoint,
        kind=CheckpointKind.WRITTEN,
        parent=base.checkpoint if base is not None else None,
        triggered=write.at,
        completed=write.at,
        steps=tuple({**{step.uid: step for step in steps}, uid: record}.values()),
        tasks=tuple({**{task.task: task for task in tasks}, uid: snapshot}.values()),
        open=history.open_committables,
        pins=(Pin(name=write.name, checkpoint=checkpoint, at=write.at, owner=write.owner),),
        deleted=history.deleted,
        floor=history.floor,
        settings=base.settings if base is not None else {},
    )
    return replace(manifest, undone=abandoned_ids(manifest, history))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Target:
    """The step whose state is written, the form of that state, and the checkpoint that it is based on."""

    uid: str
    base: Manifest | None
    table: StateTable
    detail: dict[str, Json]

    @classmethod
    def resolve(
        cls,
        history: History,
        uid: str,
        at: int | str | None,
        pipeline: PipelineDefinition | None,
        session: SparkSession,
    ) -> _Target:
        from penstock.operators.windows.table import table_of_record, table_of_step

        base = resolve_manifest(history, at) if at is not None or history.restore_point is not None else None
        state = next((task.state for task in base.tasks if task.task == uid), None) if base is not None else None
        if pipeline is not None:
            table = table_of_step(frames_of(pipeline, uid, session, base))
        elif state is not None:
            table = table_of_record(state, uid=uid, partitions=default_parallelism(session))
        else:
            msg = f"No checkpoint says what the state of step {uid!r} looks like. Give pipeline=, which has that step."
            raise UnknownName(msg)
        if table.lists:
            names = ", ".join(table.lists)
            msg = f"{names}: No checkpoint says how a custom aggregate is merged. Give pipeline=, which has it."
            raise StateIncompatible(msg, uid=uid)
        return cls(uid=uid, base=base, table=table, detail=_detail(state, table))

    @property
    def horizon(self) -> int:
        found = self.detail["horizon"]
        return found if isinstance(found, int) else MIN_WATERMARK

    def handle(self, layers: tuple[LayerRef, ...], write: ManualWrite) -> StateHandle:
        layers_format = self.table.layers_format
        origin: dict[str, Json] = {
            "by": write.owner,
            "at": write.at,
            "on": self.base.checkpoint if self.base is not None else None,
            "rows": sum(layer.rows for layer in layers),
        }
        detail = {**self.detail, "written": origin}
        return StateHandle(kind=layers_format.kind, schema=layers_format.ddl(), layers=layers, detail=detail)


def _detail(state: StateHandle | None, table: StateTable) -> dict[str, Json]:
    """The detail of the state's handle; it keeps the step's progress if the step is the same."""
    layers_format, window = table.layers_format, table.frames.window
    detail: dict[str, Json] = {"horizon": None, "fired": None, "closed": None, "emit": "final"}
    if state is not None and state.kind == layers_format.kind and isinstance(state.detail, dict):
        detail |= state.detail
        closed = detail["closed"]
        if detail.get("window") != window.describe() and isinstance(closed, int):
            detail["horizon"] = window.dead(closed)
    own: dict[str, Json] = {"partitions": layers_format.partitions, "window": window.describe()}
    return detail | own | {"table": layers_format.table}


def _directory(state: str | Path, job: str | None, pipeline: PipelineDefinition | None) -> JobDirectory:
    """The job's directory; with a pipeline the job may have yet to begin."""
    if pipeline is None:
        return open_job(state, job)
    name = pipeline.graph().name
    if job not in (None, name):
        msg = f"The pipeline is of job {name!r}, not of {job!r}. Give that of {job!r}."
        raise UnknownName(msg)
    root = root_of(state)
    if root is None or (root / paths.LOG).is_dir() or (root / name / paths.LOG).is_dir():
        return open_job(state, None if root is not None and (root / paths.LOG).is_dir() else name)
    folder = root.absolute().parent if root.absolute().name == name else root
    resolve(f"{folder}/{name}")
    return JobDirectory(folder, name, begin=True)


def _require_writable(history: History, name: str) -> None:
    msg = name_conflict(history, name)
    if msg is not None:
        raise RequestRefused(msg)
    if history.to_void:
        msg = (
            f"A rewind of job {history.job!r} discarded output and was interrupted. Run penstock settle {history.job}."
        )
        raise RequestRefused(msg)


@contextmanager
def _checked_rows(target: _Target, frame: DataFrame, session: SparkSession) -> Iterator[DataFrame]:
    """The rows in the form of layers, read once and checked; their blocks are freed afterwards."""
    from penstock.operators.windows.table import check_rows, to_layer_rows
    from penstock.spark.blocks import free_blocks, local_checkpoint, with_session

    rows = to_layer_rows(target.table, with_session(frame, session))
    checked = local_checkpoint(target.table.layers_format.hashed(rows))
    try:
        check_rows(target.table, checked, horizon=target.horizon)
        yield checked
    finally:
        free_blocks(checked)


def _write_layer(
    directory: JobDirectory, owned: OwnedLog, target: _Target, rows: DataFrame, session: SparkSession
) -> tuple[LayerRef, ...]:
    """Write the rows as one durable layer; none if there are no rows."""
    from penstock.spark.session import state_session
    from penstock.state.layers import LayerStats
    from penstock.state.parquet import LayerWriter

    layers_format = target.table.layers_format
    stats = rows.agg(*layers_format.stats).collect()[0]
    if not stats["rows"]:
        return ()
    tasks = default_parallelism(session)
    writer = LayerWriter(
        layers_format=layers_format,
        filesystem=directory.filesystem,
        folder=paths.state_folder(target.uid, owned.generation),
        prefix=f"g{owned.generation}-",
        session=state_session(session, tasks=tasks),
        tasks=tasks,
        background=nullcontext,
        failpoint=failpoint,
    )
    layer_stats = LayerStats(rows=stats["rows"], level=0, first_end=stats["first"], last_end=stats["last"])
    return (writer.write(lambda _part: rows, layer_stats, horizon=target.horizon, live_rows=layer_stats.rows),)
