"""A checkpoint copied into a folder; the folder verified."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.admin.savepoints import pinned_while_reading
from penstock.admin.verify import ByteProgress, Fault, Problem, check_files, ignore_progress
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
from penstock.checkpoint.history import resolve_checkpoint
from penstock.clock import sleep
from penstock.errors import CheckpointUnreadable, PenstockError, SettingsError, StateDirectoryRefused
from penstock.failpoints import failpoint
from penstock.filesystem.local import LocalFileSystem

if TYPE_CHECKING:
    from penstock.checkpoint.export import Export
    from penstock.control.client import JobDirectory
    from penstock.filesystem.base import FileSystem
    from penstock.handles import CheckpointId


# ----------------------------------------------------------------------------------------------------
# Copies one checkpoint of a job into a folder of its own: self-contained, relocatable, checksummed.
#
# The folder is an export once ``export.json`` is in it, which is written last. Of the job only a name for a while is
# changed. Output that is not published yet is not copied: publishing it is the job's own business (rule R7).

LOOK_AGAIN: Final = 0.25
"""Seconds from one look at what is still open to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export that is whole: where it lies, and what is in it."""

    folder: str
    export: Export


def export_checkpoint(
    job: JobDirectory, text: str, folder: str | Path, *, wait: float = 0.0, progress: ByteProgress = ignore_progress
) -> Exported:
    """Copy a checkpoint into a new folder.

    Args:
        job: whose; it may run.
        text: the savepoint's name, or the checkpoint's number.
        folder: made if absent; it must be empty.
        wait: seconds to wait for output of the checkpoint that the log does not know to be published. What is open
            after that is named in the export, and not in it.
        progress: gets the bytes that were copied and those there are.

    Raises:
        UnknownName: there is no such checkpoint; with the nearest name.
        StateDirectoryRefused: the folder has something in it, or cannot be written.
        CheckpointUnreadable: a file of the checkpoint is missing or changed.
        RequestFailed: a running job did not answer in time.

    Example::

        job = JobDirectory("./state", "orders")
        export_checkpoint(job, "before-v2", "/backup/orders-before-v2")
    """
    place = empty_folder(folder)
    checkpoint = resolve_checkpoint(job.read(), text)
    _wait(job, checkpoint, wait)
    with pinned_while_reading(job, checkpoint, purpose="export"):
        history = job.read()
        export = make_export(history, checkpoint, at=job.now(), version=version("penstock"))
        data = encode_export(export)
        decode_export(data, EXPORT)  # nobody else could read it either
        target = LocalFileSystem(place)
        try:
            _copy(job.filesystem, target, export, job.job, progress)
            _put(target, EXPORT, data)
        except (Exception, KeyboardInterrupt):
            _clear(target, export)
            raise
        failpoint("export.written")
    return Exported(folder=place, export=open_export(place, log_id=None))


def verify_export(folder: str | Path) -> Export:
    """Read every file of an export and compare it with what was recorded.

    Raises:
        UnknownName: there is no export.
        CheckpointUnreadable: something is missing or changed.
        StateDirectoryRefused: its files were taken over.
    """
    place = os.path.abspath(folder)
    export = open_export(place, log_id=None)
    there = LocalFileSystem(place)
    for file in export.files:
        read_checked(there, file.path, length=file.length, digest=file.sha256, where=place)
    return export


def empty_folder(folder: str | Path) -> str:
    """The absolute path of a folder that is not there yet, or has nothing in it.

    Raises:
        StateDirectoryRefused: it has something in it.
        SettingsError: it is not on a disk.
    """
    text = os.fspath(folder).removeprefix("file://")
    if not text or "://" in text:
        msg = f"{text!r}: an export is made on a local or mounted disk; copy it from there"
        raise SettingsError(msg)
    place = os.path.abspath(os.path.expanduser(text))
    found = None
    with suppress(FileNotFoundError):
        try:
            found = next(iter(sorted(os.listdir(place))), None)
        except NotADirectoryError as error:
            msg = f"{place} is a file; give a folder that is not there yet"
            raise StateDirectoryRefused(msg) from error
    if found is not None:
        msg = f"{place} is not empty, it has {found!r}; give a folder that is not there yet"
        raise StateDirectoryRefused(msg)
    return place


def _wait(job: JobDirectory, checkpoint: CheckpointId, seconds: float) -> None:
    """Until everything is known to be published, or for so long; a dead job publishes nothing."""
    if seconds <= 0 or not open_outputs(job.read(), checkpoint) or job.owner() is None:
        return
    deadline = job.clock.now() + int(seconds * 1_000_000)
    while open_outputs(job.read(), checkpoint) and (left := (deadline - job.clock.now()) / 1_000_000) > 0:
        sleep(min(LOOK_AGAIN, left))


def _copy(source: FileSystem, target: FileSystem, export: Export, job: str, progress: ByteProgress) -> None:
    done, total = 0, export.bytes
    for file in export.files:
        progress(done, total)
        data = read_checked(source, file.path, length=file.length, digest=file.sha256, where=job)
        _put(target, file.path, data)
        failpoint("export.file.copied")
        done += file.length
    progress(total, total)


def _put(target: FileSystem, path: str, data: bytes) -> None:
    if not write_once(target, path, data, sleep):
        msg = f"{path} is in the folder already: somebody else exports into it; give another one"
        raise StateDirectoryRefused(msg)


def _clear(target: FileSystem, export: Export) -> None:
    """What came of it is no export: take it away, as far as that goes."""
    with suppress(PenstockError):
        for file in export.files:
            target.delete(file.path)


# ----------------------------------------------------------------------------------------------------
# Whether an exported checkpoint is whole: every file that it was exported with. Changes nothing.
#
# ``export.verify_export`` raises at the first fault, for programs that want to go on or not; this one finds all of
# them.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportVerifyReport:
    """What was found.

    Attributes:
        folder: its absolute path.
        job: whose checkpoint it is; ``None`` if ``export.json`` cannot be read, and with it all else.
        checkpoint: its id there.
        names: what it was called there.
        quick: content was not read.
        files: how many were checked.
        bytes: of those.
        broken: what is wrong; nothing: it can be restored.
        others: files that do not belong to it.
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
    """Look at everything that a restore from this folder would read.

    Args:
        folder: with an ``export.json``.
        quick: look at existence and length only; content is not read.
        progress: gets the bytes that were checked and those there are.

    Raises:
        UnknownName: there is no export.
        StateDirectoryRefused: its files were taken over by a job.
    """
    place = os.path.abspath(os.path.expanduser(folder))
    there = LocalFileSystem(place)
    try:
        export = open_export(place, log_id=None)
    except CheckpointUnreadable as error:
        problem = Problem(path=EXPORT, fault=Fault.UNREADABLE, message=str(error))
        return ExportVerifyReport(folder=place, quick=quick, broken=(problem,))
    own = {EXPORT, CLAIMED, *(file.path for file in export.files)}
    return ExportVerifyReport(
        folder=place,
        job=export.job,
        checkpoint=export.checkpoint,
        names=export.names,
        quick=quick,
        files=len(export.files),
        bytes=export.bytes,
        broken=tuple(check_files(there, export.files, quick=quick, progress=progress)),
        others=tuple(path for path in there.list("") if path not in own),
    )
