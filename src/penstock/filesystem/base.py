"""The smallest file system that a log, layers and staged output need.

Paths are ``/``-separated and relative to the root that the implementation was made with, unless they begin with
``/`` or a scheme. Every implementation passes ``penstock.testing.contracts.FileSystemContract``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from penstock.handles import FileRef


class Created(Enum):
    """The known outcome of a create-if-absent."""

    CREATED = "created"
    EXISTS = "exists"


class UnknownOutcome(Exception):
    """The call may or may not have had its effect, now or later. Only creating the same name again resolves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Whether ``FileSystem.move`` found its source."""

    found: bool


class FileSystem(Protocol):
    """Stores files. A failure that surely had no effect raises ``StorageFailed``, which names the path."""

    def read(self, path: str) -> bytes | None:
        """The whole content, or ``None`` if there is no such file."""
        ...

    def create(self, path: str, data: bytes) -> Created:
        """Create ``path`` with ``data`` if absent: atomic, exclusive, whole at once, durable on return.

        Raises:
            UnknownOutcome: the answer was lost; the write may still land later.
            StorageFailed: surely nothing was created.
        """
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write ``path`` as a whole, over an existing file. Only for hints: what decides anything is write-once."""
        ...

    def delete(self, path: str) -> None:
        """Delete one file, if it exists. Durable at the latest when the process ends in order."""
        ...

    def list(self, prefix: str) -> Sequence[str]:
        """All files below the folder ``prefix``, at any depth, sorted, strongly consistent; none if it is absent."""
        ...

    def remove_temporary(self, prefix: str) -> None:
        """Remove what unfinished writes have left below a folder in which no other process writes any more."""
        ...

    def remove_empty_folders(self, prefix: str) -> None:
        """Remove the folder and those below it, as far as they are empty; nobody writes there any more. Never fails."""
        ...

    def settle(self, path: str, synced: set[str] | None = None) -> FileRef:
        """Make a file that a Spark task wrote durable, including its name; returns its length and checksum.

        Args:
            path: of the file.
            synced: folders that were synced since all files of the caller were there: they are not synced again. The
                file's are added. By default each call syncs them.

        Raises:
            CheckpointUnreadable: it is not there.
        """
        ...

    def move(self, source: str, target: str) -> Moved:
        """Rename atomically and durably within one file system; creates the folders of ``target``.

        If the source is gone, the rename of another process is durable on return.
        """
        ...

    def url(self, path: str) -> str:
        """The address by which Spark reads and writes ``path``."""
        ...


def settle_all(filesystem: FileSystem, paths: Iterable[str]) -> list[FileRef]:
    """Settle files that are all there by now, in order, and sync each of their folders once.

    Raises:
        CheckpointUnreadable: one is not there.
    """
    synced: set[str] = set()
    return [filesystem.settle(path, synced) for path in paths]
