"""Looks at files without changing them: length, age, content, and which there are. Knows no meaning of any."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from penstock.checkpoint import paths
from penstock.checkpoint.gc import stages_of
from penstock.errors import StorageFailed
from penstock.ids import WallTime

if TYPE_CHECKING:
    from penstock.checkpoint.history import History
    from penstock.filesystem.base import FileSystem

_CHUNK: Final = 1 << 20
_STAGED_LETTERS = re.compile(r"deadletters/[^/]+/\.penstock/.+")
"""Beside their target, which is below the job's directory: entries name them by absolute paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file that is there: its bytes, and when it was last written, as far as its file system tells."""

    length: int
    written: WallTime | None


def find(filesystem: FileSystem, path: str) -> Found | None:
    """What a file is from outside, or ``None`` if it is not there.

    Raises:
        StorageFailed: it cannot be looked at.
    """
    place = _place(filesystem, path)
    if place is None:
        data = filesystem.read(path)
        return None if data is None else Found(length=len(data), written=None)
    try:
        told = os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _failed(place, error) from error
    return Found(length=told.st_size, written=WallTime(told.st_mtime_ns // 1_000))


def digest(filesystem: FileSystem, path: str, read: Callable[[int], None] = lambda _bytes: None) -> str | None:
    """The sha256 of a file's content, read piece by piece, or ``None`` if it is not there; ``read`` hears of each.

    Raises:
        StorageFailed: it cannot be read.
    """
    place = _place(filesystem, path)
    if place is None:
        data = filesystem.read(path)
        return None if data is None else sha256(data).hexdigest()
    found = sha256()
    try:
        with open(place, "rb") as content:
            while chunk := content.read(_CHUNK):
                found.update(chunk)
                read(len(chunk))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _failed(place, error) from error
    return found.hexdigest()


def files_of(filesystem: FileSystem, history: History) -> Iterator[str]:
    """Every file in the job's directory, and what its sinks have staged beside their targets, as far as the log says.

    Raises:
        StorageFailed: a folder cannot be listed.
    """
    yield from (path for path in filesystem.list("") if not _STAGED_LETTERS.fullmatch(path))
    for folder in stages_of(history):
        yield from filesystem.list(folder)


def generation_below(path: str) -> int | None:
    """The generation in whose folder a file lies, write-ahead blocks included.

    >>> generation_below("wal/socket/7/0"), generation_below("control/report.json")
    (7, None)
    """
    parts = path.split("/")
    if parts[0] == paths.WAL and len(parts) > 3 and parts[2].isdecimal():  # noqa: PLR2004 - wal/uid/generation/block
        return int(parts[2])
    return paths.generation_of(path)


def _place(filesystem: FileSystem, path: str) -> str | None:
    """Where the operating system finds it; ``None`` if it does not."""
    address = filesystem.url(path)
    return address.removeprefix("file://") if address.startswith("file:") else None


def _failed(place: str, error: OSError) -> StorageFailed:
    return StorageFailed(f"cannot look at {place}: {error.strerror or error}")
