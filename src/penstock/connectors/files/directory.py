"""A directory as it is now: its files, their signatures, and the checks of what was planned."""

from __future__ import annotations

import errno
import os
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.files.listing import (
    FileSignature,
    FileSlice,
    compression_of,
    file_changed,
    file_unreadable,
    is_finished,
)
from penstock.errors import GraphError, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SAMPLE_BYTES: Final = 64 * 1024


def scan(root: str, *, pattern: str, recursive: bool) -> dict[str, FileSignature]:
    """Every finished file below ``root`` whose name matches, by its path relative to ``root``.

    Links to files are followed, links to folders are not. A file that disappears meanwhile is not listed.

    Raises:
        SourceUnavailable: ``root`` is missing, is no folder, or cannot be read.
    """
    found: dict[str, FileSignature] = {}
    try:
        _collect(root, "", pattern, recursive, found)
    except OSError as error:
        raise _unlisted(root, error) from error
    return found


def _unlisted(root: str, error: OSError) -> SourceUnavailable:
    if isinstance(error, PermissionError):
        return file_unreadable(str(error.filename or root), error.strerror)
    msg = f"Directory {root!r} cannot be listed ({error.strerror or error}). Mount it, create it or correct the path."
    return SourceUnavailable(msg)


def require_directory(root: str, uid: str | None = None) -> None:
    """Refuse a fresh start without the directory: a restart would not bring it, and its path may be wrong.

    Raises:
        GraphError: ``root`` is missing, or is no directory.
    """
    if os.path.isdir(root):
        return
    what = "is a file, not a directory" if os.path.exists(root) else "does not exist"
    remedy = f"Create it, mount it or correct the path (a relative one begins in {os.getcwd()})."
    msg = f"Directory {root!r} {what}. {remedy}"
    raise GraphError(msg, uid=uid)


def _collect(root: str, below: str, pattern: str, recursive: bool, found: dict[str, FileSignature]) -> None:
    for entry, name in _entries(root, below):
        try:
            if entry.is_dir(follow_symlinks=False):
                if recursive:
                    _collect(root, name, pattern, recursive, found)
            elif entry.is_file() and fnmatchcase(entry.name, pattern):
                status = entry.stat()
                found[name] = FileSignature(status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            continue


def _entries(root: str, below: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    with os.scandir(os.path.join(root, below) if below else root) as entries:
        for entry in entries:
            if is_finished(entry.name):
                yield entry, f"{below}/{entry.name}" if below else entry.name


def inode(root: str) -> int:
    """The inode of ``root``: a hint whether it is the directory of before. Numbers of devices change with mounts.

    Raises:
        SourceUnavailable: ``root`` is gone.
    """
    try:
        return os.stat(root).st_ino
    except OSError as error:
        raise _unlisted(root, error) from error


def signature(path: str) -> FileSignature | None:
    """The file's signature now, or ``None`` if it is gone.

    Raises:
        SourceUnavailable: the file exists, but its folder may not be read.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise file_unreadable(path, error.strerror) from error
    return FileSignature(status.st_size, status.st_mtime_ns)


def require_unchanged(root: str, slices: Sequence[FileSlice], when: str) -> None:
    """Check that files still have the signatures of their slices.

    Raises:
        SourceChanged: a file has changed or is gone.
        SourceUnavailable: a file cannot be looked at.
    """
    for part in slices:
        now = signature(os.path.join(root, part.name))
        if now != part.signature:
            raise file_changed(part.name, part.signature, now, when)


def require_readable(root: str, slices: Sequence[FileSlice]) -> None:
    """Check that files may be read: Spark says of those that may not that they do not exist.

    Raises:
        SourceUnavailable: this user may not read a file.
    """
    for part in slices:
        path = os.path.join(root, part.name)
        if not os.access(path, os.R_OK) and signature(path) is not None:
            raise file_unreadable(path, os.strerror(errno.EACCES))


def bytes_per_row(path: str, format: str) -> float | None:
    """Estimated bytes per row, by the file's footer or its first 64 KiB; ``None`` if unknown."""
    try:
        if format == "parquet":
            import pyarrow.parquet as pq

            footer: Any = pq.read_metadata(path)
            return os.path.getsize(path) / footer.num_rows if footer.num_rows else None
        if compression_of(path) is not None:
            return None
        with open(path, "rb") as file:
            sample = file.read(_SAMPLE_BYTES)
    except Exception:
        return None
    lines = sample.count(b"\n")
    return len(sample) / lines if lines else float(len(sample)) or None
