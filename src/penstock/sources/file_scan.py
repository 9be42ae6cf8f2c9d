"""A directory as it is now: one listing, signatures, and a guess at the size of a row; decides nothing."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from penstock.errors import SourceUnavailable
from penstock.sources.file_listing import COMPRESSED, Signature, Slice, changed, is_finished, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SAMPLE = 64 * 1024


def scan(root: str, *, pattern: str, recursive: bool) -> dict[str, Signature]:
    """Every finished file below ``root`` whose name matches, by its path relative to ``root``.

    Links to files are followed, links to folders are not. A file that goes away meanwhile is not listed.

    Raises:
        SourceUnavailable: ``root`` is missing, no folder, or cannot be read.
    """
    found: dict[str, Signature] = {}
    try:
        _collect(root, "", pattern, recursive, found)
    except OSError as error:
        if isinstance(error, PermissionError):
            raise unreadable(str(error.filename or root), error.strerror) from error
        msg = f"directory {root!r} cannot be listed ({error.strerror or error}): create it, or correct the path"
        raise SourceUnavailable(msg) from error
    return found


def _collect(root: str, below: str, pattern: str, recursive: bool, found: dict[str, Signature]) -> None:
    for entry, name in _entries(root, below):
        try:
            if entry.is_dir(follow_symlinks=False):
                if recursive:
                    _collect(root, name, pattern, recursive, found)
            elif entry.is_file() and fnmatchcase(entry.name, pattern):
                status = entry.stat()
                found[name] = Signature(status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            continue


def _entries(root: str, below: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    with os.scandir(os.path.join(root, below) if below else root) as entries:
        for entry in entries:
            if is_finished(entry.name):
                yield entry, f"{below}/{entry.name}" if below else entry.name


def device(root: str) -> int | None:
    """Which file system ``root`` lies on, so that an unmounted one is not taken for an empty directory."""
    try:
        return os.stat(root).st_dev
    except OSError:
        return None


def signature(path: str) -> Signature | None:
    """The file's signature now, or ``None`` if it is gone.

    Raises:
        SourceUnavailable: it cannot be told, as without the right to look into its folder.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error.strerror) from error
    return Signature(status.st_size, status.st_mtime_ns)


def require_unchanged(root: str, slices: Sequence[Slice], when: str) -> None:
    """Check that files are what was planned.

    Raises:
        SourceChanged: one is not, or is gone.
        SourceUnavailable: it cannot be told.
    """
    for part in slices:
        now = signature(os.path.join(root, part.name))
        if now != part.signature:
            raise changed(part.name, part.signature, now, when)


def bytes_per_row(path: str, content: str) -> float | None:
    """About how many bytes a row has, from the file's footer or its first 64 KiB; ``None`` if that does not tell."""
    try:
        if content == "parquet":
            import pyarrow.parquet as pq

            footer: Any = pq.read_metadata(path)
            return os.path.getsize(path) / footer.num_rows if footer.num_rows else None
        if path.endswith(COMPRESSED):
            return None
        with open(path, "rb") as file:
            sample = file.read(_SAMPLE)
    except Exception:
        return None
    lines = sample.count(b"\n")
    return len(sample) / lines if lines else float(len(sample)) or None
