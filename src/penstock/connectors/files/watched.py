"""A directory that is watched: the files that count, and whether it is still the one that was read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.clock import SystemClock
from penstock.connectors.files.directory import inode, scan, signature
from penstock.connectors.files.listing import (
    FileSignature,
    FilesPosition,
    all_gone,
    folder_replaced,
    has_lost_all,
    only_whole,
    reconcile,
    unread_files,
)
from penstock.connectors.files.removal import Removal, has_lost_record, record_lost

WALL: Final = SystemClock()
"""Files have the times of the machine, also in a test that gives the job a clock of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A directory at one moment.

    Attributes:
        files: those that there are.
        position: the position, moved on to them.
        warnings: what may be wrong with the directory.
    """

    files: Mapping[str, FileSignature]
    position: FilesPosition
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedDirectory:
    """A directory whose files are read once each.

    Attributes:
        path: of the directory.
        pattern: of the names of its files.
        recursive: whether folders below it count.
        min_age: microseconds since a file was modified, before which it may still be written.
        may_be_emptied: whether all files that were read may vanish at once.
        end: only files that were read at that position count; ``None``: all do.
        removal: what becomes of files that were read.
        can_cut: whether the file of a name can be read in cuts.
    """

    path: str
    pattern: str
    recursive: bool
    min_age: int
    may_be_emptied: bool
    end: FilesPosition | None
    removal: Removal
    can_cut: Callable[[str], bool]

    def look(self, position: FilesPosition) -> Look:
        """The directory as it is now, and the position after it was listed.

        Raises:
            GraphError: a file is partly read that can only be read wholly.
            SourceUnavailable: the directory is missing, or is another one without the files that were read.
            SourceChanged: a file that was read, or partly read, has changed.
        """
        partial = position.partial
        if partial is not None and not self.can_cut(partial.name):
            raise only_whole(partial.name)
        files = self.listing()
        folder = inode(self.path)
        warnings = []
        self.require_record(position, folder)
        if not self.may_be_emptied and has_lost_all(files, position):
            if position.folder not in (None, folder) and not self._has_record_of(position):
                raise folder_replaced(self.path, position)
            warnings.append(f"{all_gone(self.path, position)}. Those that come back unchanged are not read again.")
        after = reconcile(files, position, lambda name: signature(os.path.join(self.path, name)) is not None)
        return Look(files=files, position=replace(after, folder=folder), warnings=tuple(warnings))

    def require_record(self, position: FilesPosition, folder: int) -> None:
        """Check that a directory from which this source removed files is still the same one.

        Raises:
            SourceUnavailable: it is another one, without the record of these files.
        """
        is_other = not self.may_be_emptied and position.folder not in (None, folder)
        if is_other and has_lost_record(self.removal, position):
            raise record_lost(self.removal)

    def _has_record_of(self, position: FilesPosition) -> bool:
        """Whether the directory has the record of files that this source removed from it: then it is mounted."""
        record = self.removal.record() if position.lineage is not None else None
        return record is not None and record.lineage == position.lineage

    @property
    def newest_ns(self) -> int | None:
        """Files that were modified later may still be written; ``None`` is no limit."""
        return (WALL.wall() - self.min_age) * 1_000 if self.min_age else None

    def unread(self, files: Mapping[str, FileSignature], position: FilesPosition) -> list[tuple[str, FileSignature]]:
        """The files that are to be read, in order: they are old enough."""
        return unread_files(files, position, newest_ns=self.newest_ns)

    def listing(self) -> dict[str, FileSignature]:
        """The files that exist now; of a replayed source only those that are to be replayed."""
        files, end = self.scan(), self.end
        return files if end is None else {name: found for name, found in files.items() if end.has_read(name, found)}

    def scan(self) -> dict[str, FileSignature]:
        """All files that there are now."""
        return scan(self.path, pattern=self.pattern, recursive=self.recursive)
