"""Brings an exported checkpoint into a log: reads the folder, copies its files, writes the entry. Decides nothing.

A crash at any point is followed by the same again, under another generation and so other names, or by nothing: what it
left behind is condemned with everything else that no entry names.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING

from penstock.checkpoint import paths
from penstock.checkpoint.exported import CLAIMED, EXPORT, Claimed, decode_claimed, decode_export, encode_claimed
from penstock.checkpoint.numbers import backoff
from penstock.errors import CheckpointUnreadable, StateDirectoryRefused, UnknownName
from penstock.facts import Restoring
from penstock.failpoints import failpoint
from penstock.filesystem.base import Created, UnknownOutcome
from penstock.filesystem.local import LocalFileSystem

if TYPE_CHECKING:
    from penstock.checkpoint.exported import Export
    from penstock.checkpoint.importing import Copy, Import
    from penstock.checkpoint.log import OwnedLog
    from penstock.facts import Listener
    from penstock.filesystem.base import FileSystem

Pause = Callable[[float], object]
Folders = Callable[[str], "FileSystem"]
"""Where the files of an exported folder are, by its path."""


def open_export(folder: str, *, log_id: str | None, folders: Folders = LocalFileSystem) -> Export:
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


def bring_in(
    bring: Import,
    *,
    log: OwnedLog,
    filesystem: FileSystem,
    pause: Pause,
    listener: Listener,
    folders: Folders = LocalFileSystem,
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
