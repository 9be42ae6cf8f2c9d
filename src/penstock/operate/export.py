"""Copies one checkpoint of a job into a folder of its own: self-contained, relocatable, checksummed.

The folder is an export once ``export.json`` is in it, which is written last. Of the job only a name for a while is
changed. Output that is not published yet is not copied: publishing it is the job's own business (rule R7).
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.checkpoint.exported import EXPORT, decode_export, encode_export, open_at, take_out
from penstock.checkpoint.names import which_checkpoint
from penstock.errors import PenstockError, SettingsError, StateDirectoryRefused
from penstock.failpoints import failpoint
from penstock.filesystem.local import LocalFileSystem
from penstock.job.importing import open_export, read_checked, write_once
from penstock.operate.files.checking import Progress, silent
from penstock.operate.holding import held
from penstock.runtime.clock import pause

if TYPE_CHECKING:
    from penstock.checkpoint.exported import Export
    from penstock.filesystem.base import FileSystem
    from penstock.ids import CheckpointId
    from penstock.operate.directory import JobDirectory

LOOK_AGAIN: Final = 0.25
"""Seconds from one look at what is still open to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export that is whole: where it lies, and what is in it."""

    folder: str
    export: Export


def export_checkpoint(
    job: JobDirectory, text: str, folder: str | Path, *, wait: float = 0.0, progress: Progress = silent
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
    checkpoint = which_checkpoint(job.read(), text)
    _wait(job, checkpoint, wait)
    with held(job, checkpoint, purpose="export"):
        history = job.read()
        export = take_out(history, checkpoint, at=job.now(), version=version("penstock"))
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
    if seconds <= 0 or not open_at(job.read(), checkpoint) or job.owner() is None:
        return
    deadline = job.clock.now() + int(seconds * 1_000_000)
    while open_at(job.read(), checkpoint) and (left := (deadline - job.clock.now()) / 1_000_000) > 0:
        pause(min(LOOK_AGAIN, left))


def _copy(source: FileSystem, target: FileSystem, export: Export, job: str, progress: Progress) -> None:
    done, total = 0, export.bytes
    for file in export.files:
        progress(done, total)
        data = read_checked(source, file.path, length=file.length, digest=file.sha256, where=job)
        _put(target, file.path, data)
        failpoint("export.file.copied")
        done += file.length
    progress(total, total)


def _put(target: FileSystem, path: str, data: bytes) -> None:
    if not write_once(target, path, data, pause):
        msg = f"{path} is in the folder already: somebody else exports into it; give another one"
        raise StateDirectoryRefused(msg)


def _clear(target: FileSystem, export: Export) -> None:
    """What came of it is no export: take it away, as far as that goes."""
    with suppress(PenstockError):
        for file in export.files:
            target.delete(file.path)
