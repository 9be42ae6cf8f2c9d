"""A checkpoint as a folder of its own, and how a log imports it.

::

    export.json                     written last and whole at once: a folder without it is no export
    state/<uid>/<generation>/…      the files of all layers, under the names that they have in the job's directory
    wal/<uid>/<generation>/…        the blocks of received rows that are not read, and the keys of all requests
    claimed.json                    which log has taken the files over, if one has

All paths are relative to the folder, so it can be moved. Sinks' output is not in it: unpublished output belongs to the
log in which it was prepared (rule R7).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.entries import FIRST_ENTRY, NO_ENTRY, Manifest, Origin
from penstock.checkpoint.entry_codec import FORMS
from penstock.checkpoint.exported_blocks import has_received, imported_by, is_received_file, move_blocks
from penstock.checkpoint.history import History, abandoned_ids
from penstock.checkpoint.log import OwnedLog, Sleep, backoff
from penstock.checkpoint.received import named_folders, recorded_positions
from penstock.clock import WallTime
from penstock.codec import Codec, JsonForm, dump_sealed, load_sealed
from penstock.elements import CheckpointKind
from penstock.errors import CheckpointUnreadable, InternalError, StateDirectoryRefused, UnknownName
from penstock.facts import Listener, Restoring
from penstock.failpoints import failpoint
from penstock.filesystem.base import Created, FileSystem, UnknownOutcome
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CheckpointId, FileRef, Generation, LayerRef, StateHandle, TaskSnapshot, split_replays

FORMAT: Final = 1
"""Version of the format of ``export.json`` and ``claimed.json``."""
EXPORT: Final = "export.json"
CLAIMED: Final = "claimed.json"
OpenFolder = Callable[[str], FileSystem]
"""Opens the files of an exported folder, by its path."""

# ---- the documents of a folder --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpublishedOutput:
    """Output of an exported checkpoint that was not confirmed to be published; the export does not hold it."""

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
        names: savepoint names of the checkpoint in that log.
        manifest: the checkpoint without what belongs to its own log: nothing is open, pinned or condemned.
        received: files of received rows that the checkpoint has not read, and of keys of requests; ``None`` if no
            source receives rows, or a version that left them out has made it.
        left_open: output of this checkpoint or an earlier one that was open.
        at: when it was exported.
        version: version of the penstock that exported it.
        sha256: of the bytes of ``export.json``; empty until they are written.
    """

    log_id: str
    job: str
    names: tuple[str, ...]
    manifest: Manifest
    left_open: tuple[UnpublishedOutput, ...]
    at: WallTime
    version: str
    received: tuple[FileRef, ...] | None = None
    sha256: str = ""

    @property
    def checkpoint(self) -> CheckpointId:
        """Its id in the log that it was taken in."""
        return self.manifest.checkpoint

    @property
    def files(self) -> tuple[FileRef, ...]:
        """Every file once, sorted by path."""
        return tuple(sorted((*self.manifest.state_files, *(self.received or ())), key=lambda file: file.path))

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return self.manifest.state_bytes + sum(file.length for file in self.received or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Which log has taken an export's files over. The file is written once: the first log has them."""

    log_id: str
    job: str
    at: WallTime


_FORMS: Final = {
    **FORMS,
    Export: JsonForm(
        version=FORMAT,
        names={"log_id": "log", "manifest": "checkpoint"},
        optional={"received"},
        unwritten={"sha256"},
    ),
    UnpublishedOutput: JsonForm(at_least={"checkpoint": 0}),
    Claimed: JsonForm(version=FORMAT, names={"log_id": "log"}),
}
_EXPORTS: Final = Codec(Export, _FORMS)
_CLAIMS: Final = Codec(Claimed, _FORMS)


def make_export(
    history: History,
    checkpoint: CheckpointId,
    *,
    at: WallTime,
    version: str,
    received: tuple[FileRef, ...] | None = None,
) -> Export:
    """The export of a restorable checkpoint; its files are still to be copied, but for those of received rows."""
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
        received=received,
    )


def open_outputs(history: History, checkpoint: CheckpointId) -> tuple[UnpublishedOutput, ...]:
    """Output of this checkpoint and earlier ones that is not confirmed to be published."""
    return tuple(
        UnpublishedOutput(uid=item.uid, checkpoint=item.checkpoint, kind=item.kind, target=item.target)
        for item in history.open_committables
        if item.checkpoint <= checkpoint
    )


def encode_export(export: Export) -> bytes:
    """The bytes of ``export.json``."""
    return dump_sealed(_EXPORTS.to_json(export))


def decode_export(data: bytes, where: str) -> Export:
    """The export of these bytes.

    Raises:
        CheckpointUnreadable: they are not exactly what was written, or name a file outside the folder.
    """
    export = replace(_EXPORTS.from_json(load_sealed(data, where), where), sha256=sha256(data).hexdigest())
    # A folder may come from elsewhere: it must not make a job read or write other files.
    for file in export.manifest.state_files:
        if not file.path.startswith(f"{paths.STATE}/") or not paths.is_ours(file.path):
            raise _outside(file, where)
    for file in export.received or ():
        if not is_received_file(file.path):
            raise _outside(file, where)
    return export


def _outside(file: FileRef, where: str) -> CheckpointUnreadable:
    msg = (
        f"{where} names the file {file.path!r}. An export has layers below {paths.STATE}/, and blocks of received rows "
        f"below {paths.WAL}/."
    )
    return CheckpointUnreadable(msg)


def encode_claimed(claimed: Claimed) -> bytes:
    """The bytes of ``claimed.json``."""
    return dump_sealed(_CLAIMS.to_json(claimed))


def decode_claimed(data: bytes, where: str) -> Claimed:
    """The claim of these bytes.

    Raises:
        CheckpointUnreadable: they are not exactly what was written.
    """
    return _CLAIMS.from_json(load_sealed(data, where), where)


# ---- the import as a plan -------------------------------------------------------------------------------------------
# An import is one entry: the checkpoint itself, with its ``origin``. Before it is in the log nothing is restored, so
# the next start imports again or continues what was there. After it the folder is not needed any more.


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One file to copy: ``source`` in the exported folder, and ``path`` in the job's directory."""

    source: FileRef
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import: the files are copied, the folder is claimed, the manifest is appended, the folder is emptied.

    Attributes:
        folder: path of the export.
        export: its content.
        manifest: the checkpoint as an entry of this log, its layers under names of this generation.
        copies: every file.
        claims: the files become this log's alone. Otherwise the folder is neither claimed nor emptied.
        at: when it was planned.
        is_brought: an earlier start did all but empty the folder, and crashed.
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

    Nothing is open in the new manifest. Output that is open in *this* log is published before; output that was open
    in another log is published by that log (rule R7).
    """
    mover = _Mover(generation, knows_replays=export.log_id == history.log_id)
    if export.log_id != history.log_id:  # this log still has the blocks of its own checkpoints
        mover.received, mover.log_id = export.received, history.log_id or ""
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
    """The rest of an import whose checkpoint is the restore point anyway; ``None`` if there is none.

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
            f"This log has taken over the files of {folder} already, as its checkpoint {before.checkpoint}. Start "
            f"without the folder to go on, or from {before.checkpoint} to go back there."
        )
        raise StateDirectoryRefused(msg)
    return None


class _Mover:
    """Gives layers new names: this log's own layers may have the old ones already."""

    def __init__(self, generation: Generation, *, knows_replays: bool) -> None:
        self._generation = generation
        self._knows_replays = knows_replays
        self._numbers: Iterator[int] = itertools.count(1)
        self.received: tuple[FileRef, ...] | None = None
        self.log_id = ""
        self.copies: dict[str, Copy] = {}

    def task(self, snapshot: TaskSnapshot) -> TaskSnapshot:
        if snapshot.position is not None and not self._knows_replays:  # replays of another log do not count here
            snapshot = replace(snapshot, position=split_replays(snapshot.position)[0])
        if has_received(snapshot) and self.received is not None:
            moved = move_blocks(snapshot, self.received, log_id=self.log_id, generation=self._generation)
            snapshot = moved.snapshot
            self.copies |= {path: Copy(source=file, path=path) for file, path in moved.files}
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
        """The file below its layer's new folder; folders below its old one, which describe its rows, stay."""
        _, _, _, rest = file.path.split("/", 3)
        path = f"{folder}/{rest.removeprefix(f'{before}/')}"
        if path in self.copies:
            msg = f"Two files of one exported layer would have the name {path}. {file.path} is one of them."
            raise InternalError(msg)
        self.copies[path] = Copy(source=file, path=path)
        return replace(file, path=path)


# ---- the import carried out -----------------------------------------------------------------------------------------
# After a crash at any point, the next start imports again under another generation, and so other names, or not at all.
# The files of the first try are condemned as orphans, since no entry names them.


def open_export(folder: str, *, log_id: str | None, folders: OpenFolder = LocalFileSystem) -> Export:
    """The content of an exported folder, if this log may have it.

    Args:
        folder: its path.
        log_id: of the log that imports; a log that has taken the files over may read them again. ``None`` for a new
            log.
        folders: how it is opened.

    Raises:
        UnknownName: there is no export.
        CheckpointUnreadable: the export is incomplete, or not as it was written.
        StateDirectoryRefused: another log has taken its files over.
    """
    exported = folders(folder)
    data = exported.read(EXPORT)
    if data is None:
        raise _no_export(exported, folder)
    export = decode_export(data, f"{folder}/{EXPORT}")
    claimed = exported.read(CLAIMED)
    if claimed is not None:
        refuse_claimed(decode_claimed(claimed, f"{folder}/{CLAIMED}"), folder, log_id)
    return export


def refuse_claimed(claimed: Claimed, folder: str, log_id: str | None) -> None:
    """Refuse an export whose files another log has taken over.

    Raises:
        StateDirectoryRefused: it was another log.
    """
    if claimed.log_id != log_id:
        msg = (
            f"The files of {folder} belong to job {claimed.job!r} (log {claimed.log_id}), which has taken them over. "
            "Export a checkpoint of that job, or begin with another folder."
        )
        raise StateDirectoryRefused(msg)


def _no_export(exported: FileSystem, folder: str) -> UnknownName | CheckpointUnreadable:
    if exported.list(paths.LOG):
        return UnknownName(
            f"{folder} is the directory of a job, not an exported checkpoint. Make one with penstock savepoint "
            "export. To go back in a job's own state, give the savepoint's name or a number instead of a path."
        )
    if exported.list(paths.STATE):
        return CheckpointUnreadable(
            f"{folder} holds files but no {EXPORT}, which is written last, so that export did not end. Export "
            "once more, into another folder."
        )
    return UnknownName(
        f"There is no exported checkpoint in {folder}, because it has no {EXPORT}. Name the folder that penstock "
        "savepoint export has written."
    )


def execute_import(
    bring: Import,
    *,
    log: OwnedLog,
    filesystem: FileSystem,
    pause: Sleep,
    listener: Listener,
    folders: OpenFolder = LocalFileSystem,
) -> None:
    """Carry out an import; its entry is the commit point.

    Raises:
        CheckpointUnreadable: a file of the folder is not the one that was exported.
        StateDirectoryRefused: another log has taken the folder's files over.
        GenerationFenced: another process owns the job now.
    """
    exported = folders(bring.folder)
    if not bring.is_brought:
        _remove_left_over(filesystem, log, bring)
        done, total = 0, sum(copy.source.length for copy in bring.copies)
        for copy in bring.copies:
            listener(Restoring(doing="copying", task=None, done=done, total=total))
            failpoint("import.file.before")
            _copy(exported, copy, bring.folder, filesystem, pause)
            failpoint("import.file.copied")
            done += copy.source.length
        if bring.claims:  # all files are known to be sound by now; no other log can have the folder from here on
            _claim(exported, bring, log, pause)
            failpoint("import.claimed")
        log.append(bring.manifest)
    if bring.claims:  # export.json and claimed.json stay
        is_own = bring.export.log_id == log.log_id  # then its received rows stay: this log has its own, and took none
        kept = {file.path for file in bring.export.received or () if is_own}
        for file in bring.export.files:
            if file.path not in kept:
                failpoint("import.release.before")
                exported.delete(file.path)


def _remove_left_over(filesystem: FileSystem, log: OwnedLog, bring: Import) -> None:
    """Delete the blocks that earlier imports have copied and not brought into the log."""
    read = {position.uid for _, position in recorded_positions(bring.manifest, log.log_id)}
    named = named_folders(log.history) | read
    for path in filesystem.list(paths.WAL):
        folder = path.split("/")[1]
        generation = imported_by(folder)
        # Our claim ended all older generations: none of them can name its folder any more. A newer one may have named
        # its own since we read the log. So this is safe also in a process that no longer owns the log.
        if generation is not None and generation < log.generation and folder not in named:
            filesystem.delete(path)


def read_checked(filesystem: FileSystem, path: str, *, length: int, digest: str, where: str) -> bytes:
    """The content of a file, checked against its recorded length and digest.

    Raises:
        CheckpointUnreadable: it is missing or changed.
    """
    data = filesystem.read(path)
    if data is None:
        msg = f"File {where}/{path} is missing. {length} bytes were recorded."
        raise CheckpointUnreadable(msg)
    found = sha256(data).hexdigest()
    if (len(data), found) != (length, digest):
        msg = (
            f"File {where}/{path} has {len(data)} bytes, sha256 {found}. Recorded were {length} bytes, sha256 {digest}."
        )
        raise CheckpointUnreadable(msg)
    return data


def write_once(filesystem: FileSystem, path: str, data: bytes, pause: Sleep) -> bool:
    """Create a file and be sure of it; ``False`` if it exists with another content."""
    for seconds in backoff():
        try:
            return filesystem.create(path, data) is Created.CREATED or filesystem.read(path) == data
        except UnknownOutcome:
            pause(seconds)
    raise AssertionError  # pragma: no cover - the backoff has no end


def _claim(exported: FileSystem, bring: Import, log: OwnedLog, pause: Sleep) -> None:
    mine = Claimed(log_id=log.log_id, job=log.history.job or "", at=bring.at)
    if not write_once(exported, CLAIMED, encode_claimed(mine), pause):
        data = exported.read(CLAIMED)
        if data is not None:
            refuse_claimed(decode_claimed(data, f"{bring.folder}/{CLAIMED}"), bring.folder, log.log_id)


def _copy(exported: FileSystem, copy: Copy, folder: str, filesystem: FileSystem, pause: Sleep) -> None:
    source = copy.source
    data = read_checked(exported, source.path, length=source.length, digest=source.sha256, where=folder)
    if not write_once(filesystem, copy.path, data, pause):
        msg = f"{copy.path} exists already with another content. Names are never used twice."
        raise StateDirectoryRefused(msg)
