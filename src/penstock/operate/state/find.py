"""Which job, checkpoint and step a person means who wants to see state, and what of it lies where. Loads no Spark.

What is shown comes from the log alone, so it is there for running and dead jobs alike.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.checkpoint import paths
from penstock.checkpoint.entries import StepRole
from penstock.checkpoint.names import near, which_checkpoint
from penstock.errors import CondemnedWhileRead, UnknownName
from penstock.operate.directory import JobDirectory, jobs_in, root_of

if TYPE_CHECKING:
    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import History
    from penstock.handles import FileRef, StateHandle, TaskSnapshot
    from penstock.ids import CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The state of one step at a checkpoint.

    Attributes:
        uid: of the step.
        kind: name and version of the format.
        schema: the columns of its layers, as Spark DDL.
        rows: of all layers, before rows of one key are merged: an upper bound.
        bytes: of all files.
        layers: how many.
        files: below the job's directory, oldest layer first.
        written: who wrote it by hand, when and on what, if the checkpoint was made so.
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
    """The job that is meant by its own directory, by the folder of all jobs and its name, or by the only one there.

    Raises:
        UnknownName: there is none, or several and no name.
    """
    root = root_of(state)
    if job is not None or root is None:
        return JobDirectory(state, job or "")
    folder = Path(os.path.abspath(root))
    if (folder / paths.LOG).is_dir():
        return JobDirectory(folder.parent, folder.name)
    names = jobs_in(state)
    if len(names) > 1:
        msg = f"{root} holds the state of several jobs: {', '.join(names)}; say which, as in job={names[0]!r}"
        raise UnknownName(msg)
    return JobDirectory(state, names[0] if names else folder.name)


def chosen(history: History, at: int | str | None) -> Manifest:
    """The checkpoint that is meant: by number, by a savepoint's name, or that which the next start continues.

    Raises:
        UnknownName: there is none, or its files may be gone; with those there are.
    """
    if at is not None:
        return history.manifests[which_checkpoint(history, str(at))][1]
    point = history.restore_point
    if point is None:
        known = ", ".join(map(str, history.restorable)) or "none"
        msg = f"job {history.job!r} would start empty, there is no newest checkpoint; restorable are: {known}"
        raise UnknownName(msg)
    return point


def snapshot_of(manifest: Manifest, uid: str) -> TaskSnapshot:
    """What a step that holds state contributed to a checkpoint.

    Raises:
        UnknownName: it holds none, or is not there; with those that do.
    """
    for snapshot in manifest.tasks:
        if snapshot.task == uid and snapshot.state is not None:
            return snapshot
    raise UnknownName(_why_none(manifest, uid))


def state_of(manifest: Manifest, uid: str) -> StateHandle:
    """The state of a step at a checkpoint; raises as :func:`snapshot_of`."""
    state = snapshot_of(manifest, uid).state
    assert state is not None
    return state


def _why_none(manifest: Manifest, uid: str) -> str:
    roles = {step.uid: step.role for step in manifest.steps}
    holders = [snapshot.task for snapshot in manifest.tasks if snapshot.state is not None]
    there = f"state is held by: {', '.join(sorted(holders)) or 'no step at all'}"
    match roles.get(uid):
        case StepRole.SOURCE:
            return f"{uid!r} is a source: a checkpoint has its position, which is no table; {there}"
        case StepRole.SINK:
            return f"{uid!r} is a sink, which keeps no state; {there}"
        case StepRole.STEP:
            return f"step {uid!r} keeps no state; {there}"
        case _:
            return f"checkpoint {manifest.checkpoint} has no step {uid!r}{near(uid, holders) or '; ' + there}"


def held_by(manifest: Manifest) -> tuple[Held, ...]:
    """All state that a checkpoint has, by the steps' order."""
    found = []
    for snapshot in manifest.tasks:
        state = snapshot.state
        if state is None:
            continue
        found.append(
            Held(
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


def check_whole(job: JobDirectory, checkpoint: CheckpointId) -> None:
    """Look at the log again, after reading: was the checkpoint restorable all the time (rule G4)?

    What is condemned stays so, and only what is condemned is deleted: if it is restorable now, its files were there.

    Raises:
        CondemnedWhileRead: it was not.
    """
    if checkpoint not in job.read().restorable:
        msg = (
            f"checkpoint {checkpoint} of job {job.job!r} was condemned while it was read, so some of its files may "
            "have been gone: read a newer one, or give it a name before (penstock savepoint create)"
        )
        raise CondemnedWhileRead(msg)
