"""Checkpoints copied into folders, and such folders verified."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.admin.savepoints import pinned_while_reading
from penstock.admin.verify import ByteProgress, Fault, Problem, check_files, ignore_progress
from penstock.checkpoint import paths
from penstock.checkpoint.export import (
    CLAIMED,
    EXPORT,
    decode_export,
    encode_export,
    make_export,
    open_export,
    open_outputs,
    read_checked,
    write_once,
)
from penstock.checkpoint.exported_blocks import has_received, received_files
from penstock.checkpoint.history import resolve_checkpoint
from penstock.clock import sleep
from penstock.errors import CheckpointUnreadable, PenstockError, SettingsError, StateDirectoryRefused
from penstock.failpoints import failpoint
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import FileRef

if TYPE_CHECKING:
    from penstock.checkpoint.export import Export
    from penstock.checkpoint.history import History
    from penstock.control.client import JobDirectory
    from penstock.filesystem.base import FileSystem
    from penstock.handles import CheckpointId


# ---- export ----------------------------------------------------------------------------------------------------------
# A folder is an export once it has ``export.json``, which is written last. The job gets only a pin while it is read.
# Output that is not published yet is not copied: only the job itself publishes it (rule R7).

POLL_INTERVAL: Final = 0.25
"""Seconds between two looks at output that is still open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export that is complete: its folder and its content."""

    folder: str
    export: Export


def export_checkpoint(
    job: JobDirectory, text: str, folder: str | Path, *, wait: float = 0.0, progress: ByteProgress = ignore_progress
) -> Exported:
    """Copy a checkpoint into a new folder.

    Args:
        job: the job's directory; the job may run.
        text: the savepoint's name, or the checkpoint's number.
        folder: created if absent; it must be empty.
        wait: seconds to wait for output of the checkpoint that is not known to be published. Output that is still open
            afterwards is named in the export, but is not in it.
        progress: called with the bytes that were copied and the total.

    Raises:
        UnknownName: there is no such checkpoint; the message names the nearest.
        StateDirectoryRefused: the folder is not empty, or cannot be written.
        CheckpointUnreadable: a file of the checkpoint is missing or changed.
        RequestFailed: a running job did not answer in time.

    Example::

        job = JobDirectory("./state", "orders")
        export_checkpoint(job, "before-v2", "/backup/orders-before-v2")
    """
    path = empty_folder(folder)
    checkpoint = resolve_checkpoint(job.read(), text)
    _wait_until_published(job, checkpoint, wait)
    with pinned_while_reading(job, checkpoint, purpose="export"):
        history = job.read()
        target = LocalFileSystem(path)
        try:
            received = _copy_received(job.filesystem, target, history, checkpoint)
            export = make_export(history, checkpoint, at=job.now(), version=version("penstock"), received=received)
            data = encode_export(export)
            decode_export(data, EXPORT)  # fails now rather than when the export is used
            _copy(job.filesystem, target, export, job.job, progress)
            _put(target, EXPORT, data)
        except (Exception, KeyboardInterrupt):
            _clear(target)
            raise
        failpoint("export.written")
    return Exported(folder=path, export=open_export(path, log_id=None))


def verify_export(folder: str | Path) -> Export:
    """Compare every file of an export with what was recorded, and return the export.

    Raises:
        UnknownName: there is no export.
        CheckpointUnreadable: a file is missing or changed.
        StateDirectoryRefused: a job has taken its files over.
    """
    path = os.path.abspath(folder)
    export = open_export(path, log_id=None)
    filesystem = LocalFileSystem(path)
    for file in export.files:
        read_checked(filesystem, file.path, length=file.length, digest=file.sha256, where=path)
    return export


def empty_folder(folder: str | Path) -> str:
    """Return the absolute path of a folder that does not exist yet, or is empty.

    Raises:
        StateDirectoryRefused: the folder is not empty.
        SettingsError: the folder is not on a disk.
    """
    text = os.fspath(folder).removeprefix("file://")
    if not text or "://" in text:
        msg = f"{text!r} is not a local folder. Export to a local or mounted disk, and copy it from there."
        raise SettingsError(msg)
    path = os.path.abspath(os.path.expanduser(text))
    found = None
    with suppress(FileNotFoundError):
        try:
            found = next(iter(sorted(os.listdir(path))), None)
        except NotADirectoryError as error:
            msg = f"{path} is a file. Give a folder that does not exist yet."
            raise StateDirectoryRefused(msg) from error
    if found is not None:
        msg = f"{path} is not empty, it has {found!r}. Give a folder that does not exist yet."
        raise StateDirectoryRefused(msg)
    return path


def _wait_until_published(job: JobDirectory, checkpoint: CheckpointId, seconds: float) -> None:
    """Wait for a running job to publish the checkpoint's output; a stopped one publishes nothing."""
    if seconds <= 0 or not open_outputs(job.read(), checkpoint) or job.owner() is None:
        return
    deadline = job.clock.now() + int(seconds * 1_000_000)
    while open_outputs(job.read(), checkpoint) and (left := (deadline - job.clock.now()) / 1_000_000) > 0:
        sleep(min(POLL_INTERVAL, left))


def _copy_received(
    source: FileSystem, target: FileSystem, history: History, checkpoint: CheckpointId
) -> tuple[FileRef, ...] | None:
    """Copy what a start from the checkpoint would read of received rows, and the keys of requests.

    ``None`` if no source receives rows: such an export is as it always was.
    """
    if not any(has_received(task) for task in history.restorable[checkpoint].tasks):
        return None
    copied = []
    for path, data in received_files(source, history.restorable[checkpoint], history.log_id):
        _put(target, path, data)
        copied.append(FileRef(path=path, length=len(data), sha256=sha256(data).hexdigest()))
    return tuple(copied)


def _copy(source: FileSystem, target: FileSystem, export: Export, job: str, progress: ByteProgress) -> None:
    total = export.bytes
    done = sum(file.length for file in export.received or ())
    for file in sorted(export.manifest.state_files, key=lambda file: file.path):
        progress(done, total)
        data = read_checked(source, file.path, length=file.length, digest=file.sha256, where=job)
        _put(target, file.path, data)
        failpoint("export.file.copied")
        done += file.length
    progress(total, total)


def _put(target: FileSystem, path: str, data: bytes) -> None:
    if not write_once(target, path, data, sleep):
        msg = f"{path} is in the folder already, because another process exports into it. Give another folder."
        raise StateDirectoryRefused(msg)


def _clear(target: FileSystem) -> None:
    """Delete the copied files of an export that failed; ``export.json`` is not there yet."""
    with suppress(PenstockError):
        for path in (*target.list(paths.STATE), *target.list(paths.WAL)):
            target.delete(path)


# ---- verification of a folder ----------------------------------------------------------------------------------------
# ``verify_export`` raises at the first fault; ``verify_folder`` finds all of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportVerifyReport:
    """The result of a check.

    Attributes:
        folder: its absolute path.
        job: the job of the checkpoint; ``None`` if ``export.json`` cannot be read, and then all else is missing too.
        checkpoint: its id in that job.
        names: its names in that job.
        quick: content was not read.
        files: how many were checked.
        bytes: their size.
        broken: what is wrong; if nothing, the export can be restored.
        others: files that do not belong to the export.
    """

    folder: str
    job: str | None = None
    checkpoint: CheckpointId | None = None
    names: tuple[str, ...] = ()
    quick: bool = False
    files: int = 0
    bytes: int = 0
    broken: tuple[Problem, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.broken

    @property
    def remedies(self) -> tuple[str, ...]:
        """What an operator can do."""
        if self.is_sound:
            return ()
        return ("export the checkpoint once more, into another folder, or put the files back from a copy",)


def verify_folder(
    folder: str | Path, *, quick: bool = False, progress: ByteProgress = ignore_progress
) -> ExportVerifyReport:
    """Check everything that a restore from this folder would read.

    Args:
        folder: with an ``export.json``.
        quick: check existence and length only; content is not read.
        progress: called with the bytes that were checked and the total.

    Raises:
        UnknownName: there is no export.
        StateDirectoryRefused: a job has taken its files over.
    """
    path = os.path.abspath(os.path.expanduser(folder))
    filesystem = LocalFileSystem(path)
    try:
        export = open_export(path, log_id=None)
    except CheckpointUnreadable as error:
        problem = Problem(path=EXPORT, fault=Fault.UNREADABLE, message=str(error))
        return ExportVerifyReport(folder=path, quick=quick, broken=(problem,))
    own = {EXPORT, CLAIMED, *(file.path for file in export.files)}
    return ExportVerifyReport(
        folder=path,
        job=export.job,
        checkpoint=export.checkpoint,
        names=export.names,
        quick=quick,
        files=len(export.files),
        bytes=export.bytes,
        broken=tuple(check_files(filesystem, export.files, quick=quick, progress=progress)),
        others=tuple(other for other in filesystem.list("") if other not in own),
    )
