"""What bringing an exported checkpoint into a log comes to: a checkpoint of that log, and files to copy. Pure.

The import is one entry, the checkpoint itself with its ``origin``. Before it is in the log nothing was restored, and
whoever begins next does the same again or goes on from what was there before; after it the folder is needed no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.checkpoint import paths
from penstock.checkpoint.entries import Manifest, Origin
from penstock.checkpoint.exported import Export
from penstock.checkpoint.history import History
from penstock.checkpoint.timeline import left_behind
from penstock.elements.control import CheckpointKind
from penstock.errors import InternalError, StateDirectoryRefused
from penstock.handles import FileRef, LayerRef, StateHandle, TaskSnapshot, apart
from penstock.ids import Generation, WallTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One file: where it is in the folder, with length and checksum, and where it goes in the job's directory."""

    source: FileRef
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """What is done, in this order: claim the folder (if it is taken over), copy, append the manifest, empty the folder.

    Attributes:
        folder: where the export lies.
        export: what it holds.
        manifest: the checkpoint as it will stand in this log, its layers under names of this generation.
        copies: every file.
        claims: the files become this log's alone.
        at: when.
        is_brought: all but the last is done: a start crashed right after it had come so far.
    """

    folder: str
    export: Export
    manifest: Manifest
    copies: tuple[Copy, ...]
    claims: bool
    at: WallTime
    is_brought: bool = False


def plan_import(
    export: Export, history: History, *, folder: str, generation: Generation, at: WallTime, claims: bool
) -> Import:
    """The import of an export into a log that we own as ``generation``.

    Nothing is open in it, whatever was when it was exported: everything open in *this* log is published before, and
    what was open elsewhere is another log's to publish (rule R7).
    """
    mover = _Mover(generation, knows_replays=export.log_id == history.log_id)
    tasks = tuple(mover.task(snapshot) for snapshot in export.manifest.tasks)
    manifest = replace(
        export.manifest,
        checkpoint=history.next_checkpoint,
        kind=CheckpointKind.IMPORT,
        parent=None,
        triggered=at,
        completed=at,
        tasks=tasks,
        deleted=history.deleted,
        floor=history.floor,
        origin=Origin(
            log_id=export.log_id,
            job=export.job,
            checkpoint=export.checkpoint,
            export=export.sha256,
            claimed=claims,
        ),
    )
    manifest = replace(manifest, undone=left_behind(manifest, history))
    return Import(
        folder=folder, export=export, manifest=manifest, copies=tuple(mover.copies.values()), claims=claims, at=at
    )


def brought(history: History, export: str) -> Manifest | None:
    """The newest checkpoint of the log that came from the export with this hash."""
    found = (manifest for _, manifest in reversed(tuple(history.manifests.values())))
    return next((each for each in found if each.origin is not None and each.origin.export == export), None)


def import_again(export: Export, history: History, *, folder: str, at: WallTime) -> Import | None:
    """What is left of an import whose checkpoint is what the next start continues anyway; ``None`` if it is not.

    Raises:
        StateDirectoryRefused: the files were taken over, and the log has gone on since.
    """
    before, point = brought(history, export.sha256), history.restore_point
    if before is None or before.origin is None:
        return None
    if point is not None and before.checkpoint == point.checkpoint:
        claims = before.origin.claimed
        return Import(folder=folder, export=export, manifest=before, copies=(), claims=claims, at=at, is_brought=True)
    if before.origin.claimed:
        msg = (
            f"this log has taken over the files of {folder} already, as its checkpoint {before.checkpoint}: start "
            f"without it to go on, or from {before.checkpoint} to go back there"
        )
        raise StateDirectoryRefused(msg)
    return None


class _Mover:
    """Gives layers new names: those that they have may be in use here, by this log's own layers."""

    def __init__(self, generation: Generation, *, knows_replays: bool) -> None:
        self._generation = generation
        self._knows_replays = knows_replays
        self._numbers: Iterator[int] = itertools.count(1)
        self.copies: dict[str, Copy] = {}

    def task(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        if snapshot.position is not None and not self._knows_replays:  # those of another log stay there
            snapshot = replace(snapshot, position=apart(snapshot.position)[0])
        state = snapshot.state
        if state is None:
            return replace(snapshot, committables=())
        return replace(snapshot, committables=(), state=self._state(snapshot.task, state))

    def _state(self, uid: str, state: StateHandle) -> StateHandle:
        return replace(state, layers=tuple(self._layer(uid, layer) for layer in state.layers))

    def _layer(self, uid: str, layer: LayerRef) -> LayerRef:
        name = f"g{self._generation}-i{next(self._numbers):06d}"
        folder = f"{paths.state_folder(uid, self._generation)}/{name}"
        return replace(layer, name=name, files=tuple(self._file(folder, layer.name, file) for file in layer.files))

    def _file(self, folder: str, before: str, file: FileRef) -> FileRef:
        """The file below its layer's new folder; what its folder there says of its rows stays."""
        _, _, _, rest = file.path.split("/", 3)
        path = f"{folder}/{rest.removeprefix(f'{before}/')}"
        if path in self.copies:
            msg = f"two files of one exported layer would have the name {path}: {file.path} is one of them"
            raise InternalError(msg)
        self.copies[path] = Copy(source=file, path=path)
        return replace(file, path=path)
