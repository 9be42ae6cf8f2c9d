"""How to start a job, where that begins in its log, and the state that its steps declare."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from penstock.checkpoint.entries import StepRecord, StepRole
from penstock.checkpoint.export import EXPORT, OpenFolder, open_export, plan_import, resume_import
from penstock.checkpoint.history import resolve_checkpoint
from penstock.checkpoint.recovery import Recovery, check_rename, decide_recovery
from penstock.clock import UTC
from penstock.compiler.tasks import TaskSpec
from penstock.errors import CheckpointUnreadable, PlanOutdated, SettingsError, StateIncompatible, UnknownName
from penstock.filesystem.local import LocalFileSystem
from penstock.graph.nodes import Keyed, Read, Union, Write
from penstock.handles import ColumnAction, ColumnChange, Generation, TaskSnapshot, split_replays
from penstock.interfaces.operator import StateSchema
from penstock.interfaces.source import ChecksPosition, SupportsFixedColumns
from penstock.spark.session import session_timezone
from penstock.state.restore import live_layers
from penstock.state.schema import resolve_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.export import Export, Import
    from penstock.checkpoint.history import History
    from penstock.clock import WallTime
    from penstock.compiler.analysis import Analysis
    from penstock.graph.nodes import Graph
    from penstock.handles import CheckpointId, Json, Position
    from penstock.settings import Settings

log = logging.getLogger("penstock")


# ---- how to start --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """How to start the job. Without any of them it continues its newest checkpoint, or starts empty.

    Attributes:
        fresh: start empty; the state that is there stays.
        checkpoint: start at this checkpoint of the job's own log: a savepoint's name, or a number.
        folder: start with an exported checkpoint: the absolute path of its folder.
        sha256: digest that the ``export.json`` in that folder must have; ``None`` accepts any.
        claim: take the folder's files over.
        discard_unpublished: void output above the checkpoint that is not published yet.
        allow_non_restored_state: leave state unused whose step the pipeline no longer has.
        rename: new uids of steps, by their old ones.
    """

    fresh: bool = False
    checkpoint: str | None = None
    folder: str | None = None
    sha256: str | None = None
    claim: bool = False
    discard_unpublished: bool = False
    allow_non_restored_state: bool = False
    rename: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_rewind(self) -> bool:
        """Whether the start goes back in its own log; only such a start skips unreadable entries."""
        return self.fresh or self.checkpoint is not None

    def from_latest(self) -> StartOptions:
        """The options of later starts, once the log records this one: they continue from there."""
        return StartOptions(allow_non_restored_state=self.allow_non_restored_state, rename=self.rename)


TIMEZONE: Final = "timezone"
"""The setting with the session's time zone."""
FROM_LATEST: Final = StartOptions()
"""The start without any option."""


class ResolvedStart(TypedDict):
    """Arguments of ``decide_recovery`` that say where a start begins."""

    fresh: bool
    rewind_to: CheckpointId | None
    discard_unpublished: bool
    bring: Import | None
    allow_non_restored_state: bool
    rename: Mapping[str, str]


def parse_start_options(
    *,
    fresh: bool,
    restore_from: str | int | os.PathLike[str] | None,
    claim: bool,
    discard_unpublished: bool,
    allow_non_restored_state: bool = False,
    rename: Mapping[str, str] | None = None,
) -> StartOptions:
    """The options as one value. A text with a slash, or that begins with a dot, names a folder.

    Raises:
        SettingsError: they contradict one another.
        GraphError: a renamed uid is not a uid.

    >>> parse_start_options(fresh=False, restore_from="before-v2", claim=False, discard_unpublished=False).checkpoint
    'before-v2'
    >>> parse_start_options(fresh=False, restore_from="/exports/orders", claim=True, discard_unpublished=False).folder
    '/exports/orders'
    """
    path = None if restore_from is None or isinstance(restore_from, int) else os.fspath(restore_from)
    is_folder = path is not None and (not isinstance(restore_from, str) or "/" in path or path.startswith("."))
    checkpoint = None if restore_from is None or is_folder else str(restore_from)
    if fresh and restore_from is not None:
        msg = (
            f"A start is either fresh or from {str(restore_from)!r}. Leave out --fresh or --from (in Python fresh or "
            "restore_from)."
        )
        raise SettingsError(msg)
    if claim and not is_folder:
        msg = (
            "--claim takes over the files of an exported folder. Give that folder with --from (in Python "
            "restore_from), with a slash in its path."
        )
        raise SettingsError(msg)
    if discard_unpublished and not (fresh or checkpoint):
        msg = (
            "--discard-unpublished is for going back in the job's own log. Give a savepoint or a number with --from "
            "(in Python restore_from), or begin with --fresh. Before a start from a folder, use it with penstock "
            "rewind."
        )
        raise SettingsError(msg)
    return StartOptions(
        fresh=fresh,
        checkpoint=checkpoint,
        folder=os.path.abspath(os.path.expanduser(path)) if is_folder and path is not None else None,
        claim=claim,
        discard_unpublished=discard_unpublished,
        allow_non_restored_state=allow_non_restored_state,
        rename=check_rename(rename, fresh=fresh),
    )


def resolve_start(
    start: StartOptions,
    history: History,
    *,
    job: str,
    at: WallTime,
    generation: Generation | None = None,
    folders: OpenFolder = LocalFileSystem,
) -> ResolvedStart:
    """Where these options begin in the log as it is now. Under the claim they are resolved again (rule L2).

    An export is not imported twice: if a crashed start has made it the restore point, the start continues there.

    Args:
        start: the options.
        history: of the job's log.
        job: its name.
        at: the present time.
        generation: of the claim; before there is one, the next generation is assumed.
        folders: opens an exported folder.

    Raises:
        UnknownName: there is no such checkpoint, or no such folder.
        CheckpointUnreadable: the folder holds no export, or its content has changed.
        StateDirectoryRefused: the folder's files were taken over.
        PlanOutdated: the folder holds another export than the options require.
    """
    return ResolvedStart(
        fresh=start.fresh,
        rewind_to=None if start.checkpoint is None else _checkpoint_id(history, start.checkpoint, job),
        discard_unpublished=start.discard_unpublished,
        bring=_import_of(start, history, at=at, generation=generation, folders=folders),
        allow_non_restored_state=start.allow_non_restored_state,
        rename=start.rename,
    )


def export_change(export: Export, folder: str, sha256: str) -> str | None:
    """How the export in a folder differs from the one with this digest, in words; ``None`` if it is the same."""
    if export.sha256 == sha256:
        return None
    return f"{folder} holds another one, checkpoint {export.checkpoint} of job {export.job!r}."


def _import_of(
    start: StartOptions, history: History, *, at: WallTime, generation: Generation | None, folders: OpenFolder
) -> Import | None:
    folder = start.folder
    if folder is None:
        return None
    export = open_export(folder, log_id=history.log_id, folders=folders)
    change = None if start.sha256 is None else export_change(export, folder, start.sha256)
    if change is not None:
        msg = f"The plan is outdated. The export has moved: {change} Plan again."
        raise PlanOutdated(msg)
    return resume_import(export, history, folder=folder, at=at) or plan_import(
        export,
        history,
        folder=folder,
        generation=Generation(history.tail + 1) if generation is None else generation,
        at=at,
        claims=start.claim,
    )


def _checkpoint_id(history: History, text: str, job: str) -> CheckpointId:
    hint = f" An exported folder is written with a slash: ./{text}." if Path(text, EXPORT).is_file() else ""
    if history.is_empty:
        msg = f"Job {job!r} has no state here, so it has no checkpoint {text!r}.{hint}"
        raise UnknownName(msg)
    try:
        return resolve_checkpoint(history, text)
    except UnknownName as error:
        msg = f"{error}{hint}"
        raise UnknownName(msg) from None


# ---- settings that are recorded --------------------------------------------------------------------------------------


def recorded_settings(settings: Settings, spark: SparkSession | None) -> dict[str, Json]:
    """The settings as manifests and plans record them: the time zone is the one that the job has.

    Args:
        settings: of the start.
        spark: the session of the job; without one, that which it would run on.
    """
    return asdict(settings) | {TIMEZONE: settings.timezone or session_timezone(spark)}


def unchosen_timezone(settings: Settings, spark: SparkSession | None) -> str | None:
    """The time zone that a job has by its session, perhaps by accident; ``None`` if its settings choose one."""
    return None if settings.timezone is not None else session_timezone(spark)


def check_timezone(restored: Manifest | None, zone: str | None) -> None:
    """Refuse to go on from a checkpoint of another time zone, unless the zone was chosen as a setting.

    Times without a zone would be hours apart from those before them: windows would close early, or rows be late.

    Args:
        restored: the checkpoint that is restored.
        zone: the session's; ``None`` if the job's settings choose one.

    Raises:
        StateIncompatible: the zones differ.
    """
    before = timezone_of(restored.settings) if restored is not None else None
    if restored is None or before is None or zone in (before, None):
        return
    msg = (
        f"Checkpoint {restored.checkpoint} was taken in the time zone {before!r}, and this Spark session has {zone!r}. "
        f"Times without a zone would mean other moments from here on. Go on with timezone={before!r} "
        f"(PENSTOCK_TIMEZONE={before}), or change it with timezone={zone!r}."
    )
    raise StateIncompatible(msg)


def timezone_of(recorded: Mapping[str, Json]) -> str | None:
    """The time zone of recorded settings; ``None`` if no run has recorded them.

    >>> timezone_of({"retained": 3}), timezone_of({"timezone": "Asia/Tokyo"}), timezone_of({})
    ('UTC', 'Asia/Tokyo', None)
    """
    if not recorded:
        return None
    return str(recorded.get(TIMEZONE, UTC))  # it was always UTC before it was recorded


# ---- recorded positions ---------------------------------------------------------------------------------------------


def recorded_positions(
    graph: Graph, start: StartOptions, read_log: Callable[[], History], *, at: WallTime
) -> dict[str, Position]:
    """The positions that a start restores; none if no source takes its columns from its data.

    Raises:
        PenstockError: the log cannot be read, or the start is refused.
    """
    if not any(isinstance(node, Read) and _takes_columns(node.source) for node in graph.nodes):
        return {}
    history = read_log()
    resolved = resolve_start(start, history, job=graph.name, at=at)
    bring = resolved["bring"]
    if bring is not None:
        return source_positions(bring.manifest, start.rename)
    resolved["allow_non_restored_state"], resolved["rename"] = True, {}
    bare = decide_recovery(history, (), at=at, **resolved)
    found = None if bare.restored is None else history.manifests.get(bare.restored)
    return {} if found is None else source_positions(found[1], start.rename)


def source_positions(manifest: Manifest, rename: Mapping[str, str]) -> dict[str, Position]:
    """The positions of a checkpoint as the sources wrote them, by the uids that the sources have after renames."""
    tasks = manifest.tasks
    return {rename.get(t.task, t.task): split_replays(t.position)[0] for t in tasks if t.position is not None}


def _takes_columns(source: object) -> bool:
    return isinstance(source, SupportsFixedColumns) and source.takes_columns


# ---- declared state of steps ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSteps:
    """The steps of a graph, and the state they declare.

    Attributes:
        steps: as manifests record them.
        schemas: by uid, the state schema of a stateful step.
        positions: by uid, the kind of positions of a source that checks it.
    """

    steps: tuple[StepRecord, ...]
    schemas: Mapping[str, StateSchema] = field(default_factory=dict)
    positions: Mapping[str, str] = field(default_factory=dict)

    def resolver(self, step: StepRecord, snapshot: TaskSnapshot) -> tuple[ColumnChange, ...]:
        """How a step's restored columns change: a ``penstock.checkpoint.recovery.SchemaResolver``.

        Raises:
            StateIncompatible: the state cannot be restored.
        """
        kind = self.positions.get(step.uid)
        if snapshot.position is not None and kind not in (None, snapshot.position.kind):
            msg = (
                f"The position is of kind {snapshot.position.kind!r}, and this source reads {kind!r}. Give the new "
                "source a uid of its own, or restore with the source that wrote it."
            )
            raise StateIncompatible(msg, uid=step.uid)
        schema = self.schemas.get(step.uid)
        if snapshot.state is None or schema is None:
            return ()
        return resolve_schema(snapshot.state, schema, uid=step.uid)


def declare_steps(tasks: Sequence[TaskSpec], analysis: Analysis, spark: SparkSession) -> DeclaredSteps:
    """The steps with their state schemas and position kinds; analyses plans, runs no Spark job."""
    schemas = {
        task.id: task.node.spec.keeps(tuple(analysis.schema(ref) for ref in task.node.inputs), spark)
        for task in tasks
        if isinstance(task.node, Keyed)
    }
    return replace(declare_without_columns(tasks), steps=step_records(tasks, schemas), schemas=schemas)


def declare_without_columns(tasks: Sequence[TaskSpec]) -> DeclaredSteps:
    """The steps with their position kinds, as far as they are known without Spark."""
    positions: dict[str, str] = {}
    for task in tasks:
        match task.node:
            case Read(source=ChecksPosition(position_kind=kind)):
                positions[task.id] = kind
    return DeclaredSteps(steps=step_records(tasks), positions=positions)


def step_records(tasks: Sequence[TaskSpec], schemas: Mapping[str, StateSchema] | None = None) -> tuple[StepRecord, ...]:
    """The tasks as manifests record them; with the schemas of those that are given."""
    records = []
    for task in tasks:
        match task.node:
            case Read(uid=uid):
                records.append(StepRecord(uid=uid, role=StepRole.SOURCE))
            case Keyed(uid=uid, spec=spec):
                schema = schemas[uid].schema if schemas and uid in schemas else ""
                records.append(StepRecord(uid=uid, role=StepRole.STEP, kind=spec.kind, schema=schema))
            case Write(uid=uid):
                records.append(StepRecord(uid=uid, role=StepRole.SINK))
            case Union():
                records.append(StepRecord(uid=task.id, role=StepRole.STEP))
    return tuple(records)


def restored_files(recovery: Recovery) -> list[str]:
    """The files of state that a recovery restores; those of a state that cannot be read are left to the restore."""
    found: list[str] = []
    for snapshot in recovery.snapshots.values():
        if snapshot.state is not None:
            with suppress(CheckpointUnreadable):
                found += [file.path for ref in live_layers(snapshot.state) for file in ref.files]
    return found


def log_schema_changes(recovery: Recovery) -> None:
    """Log a warning for each step that is restored under a new uid or with changed columns."""
    for old, new in recovery.renamed.items():
        log.warning("step '%s' goes on from checkpoint %s of '%s'", new, recovery.restored, old)
    for change in recovery.changes:
        moves = [str(move) for move in change.moves if move.act is not ColumnAction.KEEP]
        if moves:
            log.warning("step '%s' goes on with changed state: it %s", change.uid, "; ".join(moves))
