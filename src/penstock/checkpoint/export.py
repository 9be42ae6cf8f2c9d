"""A checkpoint as a folder of its own, and how a log takes it in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from penstock.checkpoint import paths
from penstock.checkpoint.entries import FIRST_ENTRY, NO_ENTRY, Manifest, Origin
from penstock.checkpoint.entry_codec import FORMS
from penstock.checkpoint.history import History, abandoned_ids
from penstock.checkpoint.log import backoff
from penstock.clock import WallTime
from penstock.codec import Codec, JsonForm, dump_sealed, load_sealed
from penstock.elements import CheckpointKind
from penstock.errors import CheckpointUnreadable, InternalError, StateDirectoryRefused, UnknownName
from penstock.facts import Restoring
from penstock.failpoints import failpoint
from penstock.filesystem.base import Created, UnknownOutcome
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CheckpointId, FileRef, Generation, LayerRef, StateHandle, TaskSnapshot, split_replays

if TYPE_CHECKING:
    from penstock.checkpoint.log import OwnedLog
    from penstock.facts import Listener
    from penstock.filesystem.base import FileSystem


# ----------------------------------------------------------------------------------------------------
# A checkpoint as a folder of its own: what its ``export.json`` says, and who has taken it over. Pure; copies nothing.
#
# ::
#
#     export.json                     written last and whole at once: a folder without it is no export
#     state/<uid>/<generation>/…      the files of all layers, under the names that they have in the job's directory
#     claimed.json                    which log has taken the files over, if one has
#
# All paths are relative to the folder, so it can be moved. Sinks' output is not in it: what is not yet published
# belongs to the log in which it was prepared (rule R7).

FORMAT: Final = 1
EXPORT: Final = "export.json"
CLAIMED: Final = "claimed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpublishedOutput:
    """Output of an exported checkpoint that its log did not know to be published; the export does not hold it."""

    uid: str
    checkpoint: CheckpointId
    kind: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """One checkpoint, taken out of its log.

    Attributes:
        log_id: of the log that it was taken in.
        job: that log's job.
        names: what the checkpoint was called there.
        manifest: the checkpoint without all that only its own log can have: nothing open, pinned or condemned.
        left_open: what was open, of this checkpoint or an earlier one.
        at: when it was exported.
        version: of penstock, which exported it.
        sha256: of the bytes of ``export.json``; empty before they are written.
    """

    log_id: str
    job: str
    names: tuple[str, ...]
    manifest: Manifest
    left_open: tuple[UnpublishedOutput, ...]
    at: WallTime
    version: str
    sha256: str = ""

    @property
    def checkpoint(self) -> CheckpointId:
        """Its id in the log that it was taken in."""
        return self.manifest.checkpoint

    @property
    def files(self) -> tuple[FileRef, ...]:
        """Every file, once."""
        return tuple(sorted(self.manifest.state_files, key=lambda file: file.path))

    @property
    def bytes(self) -> int:
        """Of all files."""
        return self.manifest.state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Which log has taken an export's files over. The first that is written counts."""

    log_id: str
    job: str
    at: WallTime


_FORMS: Final = {
    **FORMS,
    Export: JsonForm(version=FORMAT, names={"log_id": "log", "manifest": "checkpoint"}, unwritten={"sha256"}),
    UnpublishedOutput: JsonForm(at_least={"checkpoint": 0}),
    Claimed: JsonForm(version=FORMAT, names={"log_id": "log"}),
}
_EXPORTS: Final = Codec(Export, _FORMS)
_CLAIMS: Final = Codec(Claimed, _FORMS)


def make_export(history: History, checkpoint: CheckpointId, *, at: WallTime, version: str) -> Export:
    """The export of a restorable checkpoint, its files still to be copied."""
    manifest = replace(
        history.restorable[checkpoint],
        open=(),
        pins=(),
        fulfils=(),
        condemned=(),
        condemned_files=(),
        deleted=NO_ENTRY,
        floor=FIRST_ENTRY,
    )
    assert history.log_id is not None  # it holds a checkpoint
    assert history.job is not None
    pins = (pin for pin in history.pins.values() if pin.checkpoint == checkpoint and pin.expires is None)
    return Export(
        log_id=history.log_id,
        job=history.job,
        names=tuple(sorted(pin.name for pin in pins)),
        manifest=manifest,
        left_open=open_outputs(history, checkpoint),
        at=at,
        version=version,
    )


def open_outputs(history: History, checkpoint: CheckpointId) -> tuple[UnpublishedOutput, ...]:
    """What the log does not know to be published, of this checkpoint and of those before it."""
    return tuple(
        UnpublishedOutput(uid=item.uid, checkpoint=item.checkpoint, kind=item.kind, target=item.target)
        for item in history.open_committables
        if item.checkpoint <= checkpoint
    )


# ------------------------------------------------------------------------------------------------------------- as bytes


def encode_export(export: Export) -> bytes:
    """The bytes of ``export.json``, with a checksum of their own."""
    return dump_sealed(_EXPORTS.to_json(export))


def decode_export(data: bytes, where: str) -> Export:
    """The export of these bytes.

    Raises:
        CheckpointUnreadable: they are not exactly what was written, or name a file outside of the folder.
    """
    export = replace(_EXPORTS.from_json(load_sealed(data, where), where), sha256=sha256(data).hexdigest())
    _refuse_outside(export.files, where)
    return export


def _refuse_outside(files: Sequence[FileRef], where: str) -> None:
    """Nobody who hands over a folder can have other files read, or written, than those in it."""
    for file in files:
        if not file.path.startswith(f"{paths.STATE}/") or not paths.is_ours(file.path):
            msg = f"{where} names the file {file.path!r}; an export has files below {paths.STATE}/ only"
            raise CheckpointUnreadable(msg)


def encode_claimed(claimed: Claimed) -> bytes:
    """The bytes of ``claimed.json``."""
    return dump_sealed(_CLAIMS.to_json(claimed))


def decode_claimed(data: bytes, where: str) -> Claimed:
    """The claim of these bytes.

    Raises:
        CheckpointUnreadable: they are not exactly what was written.
    """
    return _CLAIMS.from_json(load_sealed(data, where), where)


# ----------------------------------------------------------------------------------------------------
# What bringing an exported checkpoint into a log comes to: a checkpoint of that log, and files to copy. Pure.
#
# The import is one entry, the checkpoint itself with its ``origin``. Before it is in the log nothing was restored, and
# whoever begins next does the same again or goes on from what was there before; after it the folder is needed no more.


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
    manifest = replace(manifest, undone=abandoned_ids(manifest, history))
    return Import(
        folder=folder, export=export, manifest=manifest, copies=tuple(mover.copies.values()), claims=claims, at=at
    )


def imported_from(history: History, export: str) -> Manifest | None:
    """The newest checkpoint of the log that came from the export with this hash."""
    found = (manifest for _, manifest in reversed(tuple(history.manifests.values())))
    return next((each for each in found if each.origin is not None and each.origin.export == export), None)


def resume_import(export: Export, history: History, *, folder: str, at: WallTime) -> Import | None:
    """What is left of an import whose checkpoint is what the next start continues anyway; ``None`` if it is not.

    Raises:
        StateDirectoryRefused: the files were taken over, and the log has gone on since.
    """
    before, point = imported_from(history, export.sha256), history.restore_point
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
            snapshot = replace(snapshot, position=split_replays(snapshot.position)[0])
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


# ----------------------------------------------------------------------------------------------------
# Brings an exported checkpoint into a log: reads the folder, copies its files, writes the entry. Decides nothing.
#
# A crash at any point is followed by the same again, under another generation and so other names, or by nothing: what
# it left behind is condemned with everything else that no entry names.

Pause = Callable[[float], object]
OpenFolder = Callable[[str], "FileSystem"]
"""Where the files of an exported folder are, by its path."""


def open_export(folder: str, *, log_id: str | None, folders: OpenFolder = LocalFileSystem) -> Export:
    """What an exported folder holds, if this log may have it.

    Args:
        folder: where it lies.
        log_id: of the log that wants it: one that has taken it over may go on doing so. ``None`` if it has none yet.
        folders: how it is read.

    Raises:
        UnknownName: there is nothing there.
        CheckpointUnreadable: it is no export, or not as it was written.
        StateDirectoryRefused: another log has taken its files over.
    """
    there = folders(folder)
    data = there.read(EXPORT)
    if data is None:
        raise _no_export(there, folder)
    export = decode_export(data, f"{folder}/{EXPORT}")
    held = there.read(CLAIMED)
    if held is not None:
        refuse_claimed(decode_claimed(held, f"{folder}/{CLAIMED}"), folder, log_id)
    return export


def refuse_claimed(claimed: Claimed, folder: str, log_id: str | None) -> None:
    """Only one log takes an export's files over.

    Raises:
        StateDirectoryRefused: it was another.
    """
    if claimed.log_id != log_id:
        msg = (
            f"the files of {folder} were taken over by job {claimed.job!r} (log {claimed.log_id}) and belong to it; "
            f"export a checkpoint of that job, or begin with another folder"
        )
        raise StateDirectoryRefused(msg)


def _no_export(there: FileSystem, folder: str) -> UnknownName | CheckpointUnreadable:
    if there.list(paths.LOG):
        return UnknownName(
            f"{folder} is the directory of a job, not an exported checkpoint: penstock savepoint export makes one; to "
            "go back in a job's own state, give the savepoint's name or a number instead of a path"
        )
    if there.list(paths.STATE):
        return CheckpointUnreadable(
            f"{folder} holds files and no {EXPORT}, which is written last: that export did not end; export once more, "
            "into another folder"
        )
    return UnknownName(f"there is no exported checkpoint in {folder}: it has no {EXPORT}")


def execute_import(
    bring: Import,
    *,
    log: OwnedLog,
    filesystem: FileSystem,
    pause: Pause,
    listener: Listener,
    folders: OpenFolder = LocalFileSystem,
) -> None:
    """Do what the import says, in its order; its entry is the commit point.

    Raises:
        CheckpointUnreadable: a file of the folder is not the one that was exported.
        StateDirectoryRefused: another log takes the folder's files over.
        GenerationFenced: the job is somebody else's now.
    """
    there = folders(bring.folder)
    if not bring.is_brought:
        done, total = 0, sum(copy.source.length for copy in bring.copies)
        for copy in bring.copies:
            listener(Restoring(doing="copying", task=None, done=done, total=total))
            failpoint("import.file.before")
            _copy(there, copy, bring.folder, filesystem, pause)
            failpoint("import.file.copied")
            done += copy.source.length
        if bring.claims:  # once all of it is known to be sound: nobody else can have the folder from here on
            _claim(there, bring, log, pause)
            failpoint("import.claimed")
        log.append(bring.manifest)
    if bring.claims:  # what says so, and what it held, stays in the folder
        for file in bring.export.files:
            failpoint("import.release.before")
            there.delete(file.path)


def read_checked(there: FileSystem, path: str, *, length: int, digest: str, where: str) -> bytes:
    """The content of a file, if it is the one that was recorded.

    Raises:
        CheckpointUnreadable: it is missing or changed.
    """
    data = there.read(path)
    if data is None:
        msg = f"file {where}/{path} is not there; {length} bytes were recorded"
        raise CheckpointUnreadable(msg)
    found = sha256(data).hexdigest()
    if (len(data), found) != (length, digest):
        msg = (
            f"file {where}/{path} has {len(data)} bytes, sha256 {found}; {length} bytes, sha256 {digest} were recorded"
        )
        raise CheckpointUnreadable(msg)
    return data


def write_once(there: FileSystem, path: str, data: bytes, pause: Pause) -> bool:
    """Create a file and be sure of it; ``False`` if another content was there before."""
    for seconds in backoff():
        try:
            return there.create(path, data) is Created.CREATED or there.read(path) == data
        except UnknownOutcome:
            pause(seconds)
    raise AssertionError  # pragma: no cover - the backoff has no end


def _claim(there: FileSystem, bring: Import, log: OwnedLog, pause: Pause) -> None:
    mine = Claimed(log_id=log.log_id, job=log.history.job or "", at=bring.at)
    if not write_once(there, CLAIMED, encode_claimed(mine), pause):
        held = there.read(CLAIMED)
        if held is not None:
            refuse_claimed(decode_claimed(held, f"{bring.folder}/{CLAIMED}"), bring.folder, log.log_id)


def _copy(there: FileSystem, copy: Copy, folder: str, filesystem: FileSystem, pause: Pause) -> None:
    source = copy.source
    data = read_checked(there, source.path, length=source.length, digest=source.sha256, where=folder)
    if not write_once(filesystem, copy.path, data, pause):
        msg = f"{copy.path} is there already with another content; names are never used twice"
        raise StateDirectoryRefused(msg)
