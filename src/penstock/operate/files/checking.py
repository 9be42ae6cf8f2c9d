"""Compares files with what was written down of them: there, as long, the same content. Knows no log and no job.

What names files (a job's log, an exported savepoint) says which; this says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from penstock.errors import CheckpointError
from penstock.operate.files.disk import digest, find

if TYPE_CHECKING:
    from penstock.filesystem.base import FileSystem
    from penstock.handles import FileRef

Progress: TypeAlias = Callable[[int, int], None]
"""Gets the bytes that were checked and those there are, again and again."""


def silent(_done: int, _total: int) -> None:
    """Where nobody watches."""


class Fault(str, Enum):
    """What is wrong with a file."""

    MISSING = "missing"
    LENGTH = "length"
    CONTENT = "content"
    UNREADABLE = "unreadable"
    REFERENCE = "reference"
    """Two entries say different things of it, or one names what is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file that is not what was written, and how that shows."""

    path: str
    fault: Fault
    message: str


def check(
    filesystem: FileSystem, files: Iterable[FileRef], *, quick: bool = False, progress: Progress = silent
) -> list[Problem]:
    """Everything that is wrong with these files; nothing is changed.

    Args:
        filesystem: to which their paths are relative.
        files: what was written down of them.
        quick: look at existence and length only; content is not read.
        progress: told how far it is.
    """
    listed = list(files)
    total = sum(file.length for file in listed)
    found, done = [], 0
    for file in listed:
        before = done
        progress(done, total)

        def read(piece: int) -> None:
            nonlocal done
            done += piece
            progress(min(done, total), total)

        problem = _check(filesystem, file, quick=quick, read=read)
        if problem is not None:
            found.append(problem)
        done = before + file.length
    progress(total, total)
    return found


def _check(filesystem: FileSystem, file: FileRef, *, quick: bool, read: Callable[[int], None]) -> Problem | None:
    try:
        there = find(filesystem, file.path)
        if there is None:
            return Problem(path=file.path, fault=Fault.MISSING, message="is not there")
        if there.length != file.length:
            message = f"has {there.length:,} bytes, {file.length:,} were written"
            return Problem(path=file.path, fault=Fault.LENGTH, message=message)
        content = None if quick else digest(filesystem, file.path, read)
    except CheckpointError as error:
        return Problem(path=file.path, fault=Fault.UNREADABLE, message=str(error))
    if content is None and not quick:
        return Problem(path=file.path, fault=Fault.MISSING, message="went away while it was checked")
    if content is not None and content != file.sha256:
        message = f"has other content than was written: sha256 is {content[:12]}…, {file.sha256[:12]}… was written"
        return Problem(path=file.path, fault=Fault.CONTENT, message=message)
    return None
