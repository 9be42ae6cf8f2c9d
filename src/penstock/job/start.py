"""StartOptions; what a start begins with; the declared state of steps."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from penstock.checkpoint.entries import StepRecord, StepRole
from penstock.checkpoint.export import EXPORT, OpenFolder, open_export, plan_import, resume_import
from penstock.checkpoint.history import resolve_checkpoint
from penstock.checkpoint.recovery import Recovery
from penstock.compiler.tasks import TaskSpec
from penstock.errors import PlanOutdated, SettingsError, StateIncompatible, UnknownName
from penstock.filesystem.local import LocalFileSystem
from penstock.graph.nodes import Keyed, Read, Union, Write
from penstock.handles import ColumnAction, ColumnChange, Generation, TaskSnapshot
from penstock.interfaces.operator import StateSchema
from penstock.interfaces.source import ChecksPosition
from penstock.state.schema import resolve_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.checkpoint.export import Export, Import
    from penstock.checkpoint.history import History
    from penstock.clock import WallTime
    from penstock.compiler.analysis import Analysis
    from penstock.handles import CheckpointId


# ----------------------------------------------------------------------------------------------------
# Where a job begins: its newest checkpoint, empty, an older one, or an exported copy. Says it; begins nothing.
#
# Whatever is not the newest checkpoint counts until an attempt has begun so: from then on that is in the log.


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenExport:
    """An exported checkpoint as somebody has seen it: a path that is begun with only if it still is the same.

    Attributes:
        folder: the absolute path of its folder.
        sha256: of its ``export.json``.
    """

    folder: str
    sha256: str

    def __fspath__(self) -> str:
        return self.folder


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """What was asked for.

    Attributes:
        fresh: empty, beside what is there.
        checkpoint: at this checkpoint of the job's own log: a savepoint's name, or a number.
        folder: with an exported checkpoint: the absolute path of its folder.
        sha256: of that folder's ``export.json``, if it has to be that one.
        claim: the folder's files become the job's.
        discard_unpublished: what is open above the checkpoint is voided and not published.
    """

    fresh: bool = False
    checkpoint: str | None = None
    folder: str | None = None
    sha256: str | None = None
    claim: bool = False
    discard_unpublished: bool = False

    @property
    def is_rewind(self) -> bool:
        """Whether it goes back in its own log, which alone goes past what cannot be read."""
        return self.fresh or self.checkpoint is not None


FROM_LATEST: Final = StartOptions()
"""As ever: the newest checkpoint, or empty if there is none."""


class ResolvedStart(TypedDict):
    """What a recovery is told of it."""

    fresh: bool
    rewind_to: CheckpointId | None
    discard_unpublished: bool
    bring: Import | None


def parse_start_options(
    *, fresh: bool, restore_from: str | int | os.PathLike[str] | None, claim: bool, discard_unpublished: bool
) -> StartOptions:
    """What the arguments of a start mean. A text with a slash, or that begins with a dot, is a folder.

    Raises:
        SettingsError: they contradict one another.

    >>> parse_start_options(fresh=False, restore_from="before-v2", claim=False, discard_unpublished=False).checkpoint
    'before-v2'
    >>> parse_start_options(fresh=False, restore_from="/exports/orders", claim=True, discard_unpublished=False).folder
    '/exports/orders'
    """
    place = None if restore_from is None or isinstance(restore_from, int) else os.fspath(restore_from)
    is_folder = place is not None and (not isinstance(restore_from, str) or "/" in place or place.startswith("."))
    checkpoint = None if restore_from is None or is_folder else str(restore_from)
    if fresh and restore_from is not None:
        msg = f"fresh begins empty, restore_from={str(restore_from)!r} does not: give one of the two"
        raise SettingsError(msg)
    if claim and not is_folder:
        msg = "claim takes an exported folder's files over: give that folder as restore_from, with a slash in its path"
        raise SettingsError(msg)
    if discard_unpublished and not (fresh or checkpoint):
        msg = (
            "discard_unpublished is for going back in the job's own log: give a savepoint or a number as restore_from, "
            "or fresh. Before a start from a folder, rewind with it"
        )
        raise SettingsError(msg)
    folder = os.path.abspath(os.path.expanduser(place)) if is_folder and place is not None else None
    return StartOptions(
        fresh=fresh,
        checkpoint=checkpoint,
        folder=folder,
        sha256=restore_from.sha256 if isinstance(restore_from, SeenExport) else None,
        claim=claim,
        discard_unpublished=discard_unpublished,
    )


def resolve_start(
    beginning: StartOptions,
    history: History,
    *,
    job: str,
    at: WallTime,
    generation: Generation | None = None,
    folders: OpenFolder = LocalFileSystem,
) -> ResolvedStart:
    """What it means for the log as it is, which is decided again under the claim (rule L2).

    An export that is the restore point already, because a start crashed right after it had come so far, is not brought
    twice: the start goes on from there.

    Args:
        beginning: what was asked for.
        history: of the log.
        job: whose it is.
        at: now.
        generation: of our claim; before there is one, that of the next.
        folders: how an exported folder is read.

    Raises:
        UnknownName: there is no such checkpoint, or no such folder.
        CheckpointUnreadable: the folder holds no export, or not what was exported.
        StateDirectoryRefused: the folder's files were taken over.
        PlanOutdated: the folder holds another export than the one that was to be begun with.
    """
    found = ResolvedStart(
        fresh=beginning.fresh,
        rewind_to=None,
        discard_unpublished=beginning.discard_unpublished,
        bring=None,
    )
    if beginning.checkpoint is not None:
        found["rewind_to"] = _which(history, beginning.checkpoint, job)
    if beginning.folder is not None:
        folder, claims = beginning.folder, beginning.claim
        export = open_export(folder, log_id=history.log_id, folders=folders)
        changed = None if beginning.sha256 is None else export_change(export, folder, beginning.sha256)
        if changed is not None:
            msg = f"since the plan was made has moved the export: {changed}; plan again"
            raise PlanOutdated(msg)
        found["bring"] = resume_import(export, history, folder=folder, at=at) or plan_import(
            export,
            history,
            folder=folder,
            generation=Generation(history.tail + 1) if generation is None else generation,
            at=at,
            claims=claims,
        )
    return found


def export_change(export: Export, folder: str, sha256: str) -> str | None:
    """In words, that a folder holds another export than somebody has seen in it; ``None`` if it is the same."""
    if export.sha256 == sha256:
        return None
    return f"{folder} holds another one, checkpoint {export.checkpoint} of job {export.job!r}"


def _which(history: History, text: str, job: str) -> CheckpointId:
    hint = f"; an exported folder is written with a slash: ./{text}" if Path(text, EXPORT).is_file() else ""
    if history.is_empty:
        msg = f"job {job!r} has no state here, so it has no checkpoint {text!r}{hint}"
        raise UnknownName(msg)
    try:
        return resolve_checkpoint(history, text)
    except UnknownName as error:
        msg = f"{error}{hint}"
        raise UnknownName(msg) from None


# ----------------------------------------------------------------------------------------------------
# What the steps of a graph keep, and whether what a checkpoint holds can become that. Analyses plans, runs no job.

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSteps:
    """A graph as a restore sees it.

    Attributes:
        steps: as manifests record them.
        keeps: by uid, what a stateful step keeps.
        positions: by uid, the kind of positions of a source that tells it.
    """

    steps: tuple[StepRecord, ...]
    keeps: Mapping[str, StateSchema] = field(default_factory=dict)
    positions: Mapping[str, str] = field(default_factory=dict)

    def judge(self, step: StepRecord, snapshot: TaskSnapshot) -> tuple[ColumnChange, ...]:
        """What becomes of a step's state: see :data:`penstock.checkpoint.recovery.SchemaResolver`.

        Raises:
            StateIncompatible: it cannot be taken over.
        """
        kind = self.positions.get(step.uid)
        if snapshot.position is not None and kind not in (None, snapshot.position.kind):
            msg = (
                f"the position is of kind {snapshot.position.kind!r}, this source reads {kind!r}: give the new source "
                "a uid of its own, or restore with the source that wrote it"
            )
            raise StateIncompatible(msg, uid=step.uid)
        keeps = self.keeps.get(step.uid)
        return (
            resolve_schema(snapshot.state, keeps, uid=step.uid)
            if snapshot.state is not None and keeps is not None
            else ()
        )


def declare_steps(tasks: Sequence[TaskSpec], analysis: Analysis, spark: SparkSession) -> DeclaredSteps:
    """Ask the steps of a graph what they keep."""
    keeps: dict[str, StateSchema] = {}
    positions: dict[str, str] = {}
    for task in tasks:
        match task.node:
            case Keyed(spec=spec, inputs=inputs):
                keeps[task.id] = spec.keeps(tuple(analysis.schema(ref) for ref in inputs), spark)
            case Read(source=ChecksPosition(position_kind=kind)):
                positions[task.id] = kind
    return DeclaredSteps(steps=step_records(tasks, keeps), keeps=keeps, positions=positions)


def step_records(tasks: Sequence[TaskSpec], keeps: Mapping[str, StateSchema] | None = None) -> tuple[StepRecord, ...]:
    """The tasks, as manifests record them; with their schemas, if it is told what they keep."""
    records = []
    for task in tasks:
        match task.node:
            case Read(uid=uid):
                records.append(StepRecord(uid=uid, role=StepRole.SOURCE))
            case Keyed(uid=uid, spec=spec):
                schema = keeps[uid].schema if keeps and uid in keeps else ""
                records.append(StepRecord(uid=uid, role=StepRole.STEP, kind=spec.kind, schema=schema))
            case Write(uid=uid):
                records.append(StepRecord(uid=uid, role=StepRole.SINK))
            case Union():
                records.append(StepRecord(uid=task.id, role=StepRole.STEP))
    return tuple(records)


def log_schema_changes(recovery: Recovery) -> None:
    """Say what is restored otherwise than it was kept."""
    for old, new in recovery.renamed.items():
        log.warning("step '%s' goes on from checkpoint %s of '%s'", new, recovery.restored, old)
    for change in recovery.changes:
        moves = [str(move) for move in change.moves if move.act is not ColumnAction.KEEP]
        if moves:
            log.warning("step '%s' goes on with changed state: it %s", change.uid, "; ".join(moves))
