"""Moves files that a complete checkpoint holds out of their directory, and puts archived ones back after a rewind.

The order is: the checkpoint is complete, the record is written, a file is moved, the folders are synced, the position
forgets the file. A crash in between leaves a file that the position of the checkpoint still names, so it is not read
again, and the next start removes it.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.connectors.files.directory import signature
from penstock.connectors.files.listing import FileSignature, FilesPosition, forget
from penstock.connectors.files.removal import (
    UNNUMBERED,
    Removal,
    RemovalRecord,
    RemovedFile,
    is_rewound,
    numbered,
    removed_before,
    second_remover,
    sync_folders,
    unwritable,
    without_removed,
)
from penstock.errors import SourceUnavailable
from penstock.failpoints import failpoint
from penstock.handles import new_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.interfaces.source import SourceContext

log = logging.getLogger("penstock")

MOST_AT_ONCE: Final = 1_000
"""Most files that are removed between two polls: moving a file takes some 50 µs, and barriers wait meanwhile."""


class FileRemover:
    """Removes the files of one reader that a complete checkpoint holds.

    Nothing that goes wrong with a file fails the job: the file stays, its entry in the position too, and it is tried
    again after the next checkpoint.
    """

    def __init__(self, removal: Removal, context: SourceContext) -> None:
        self._removal = removal
        self._uid = context.uid
        self._owner = new_id()
        self._log_id, self._generation = context.log_id, context.generation
        self._lineage = ""
        self._earlier: dict[str, int] = {}  # of a new record
        self._newest = 0  # the number that a new record begins with
        self._planned = 0
        self._found: RemovalRecord | None = None  # as it was read or written last
        self._held: dict[str, FileSignature] = {}
        self._held_read = 0
        self._confirmed: FilesPosition | None = None  # of a checkpoint since which nothing was deleted

    def resume(self, position: FilesPosition, *, is_fresh: bool) -> FilesPosition:
        """The position to read on from: a rewound one gets its files back from the archive.

        Args:
            position: of a checkpoint, unless ``is_fresh``.
            is_fresh: there is no checkpoint. Nothing is written then before the first one: a preview starts so too.

        Raises:
            GraphError: the archive is on another file system.
            SourceChanged: files that the position has not read were removed, and cannot be put back.
            SourceUnavailable: the record cannot be written, or a newer attempt has it already.
        """
        removal = self._removal
        removal.check()
        restored = position
        record = self._found = removal.record()
        # A process that was stopped between its claim of the log and here does not know that another has claimed it. It
        # would take the record from its successor, which could not go on.
        if record is not None and record.log_id == self._log_id and record.generation > self._generation:
            raise second_remover(removal)
        if record is not None and not is_fresh:
            try:
                position = self._take_over(record, position)
            except OSError as error:
                raise unwritable(removal, error) from error
        elif record is not None:
            log.warning("source %s: %s", self._uid, removed_before(removal, record))
        is_lost = record is None and restored.lineage is not None
        if record is None or is_fresh:
            position = self._begin(position, record)
        elif restored.lineage is not None:  # what one without it has read is not recorded as removable yet
            self._hold(restored)  # what was moved after it stays until a checkpoint does not name it any more
        self._lineage = position.lineage or ""
        if is_lost and self._earlier:  # an older checkpoint must not be taken for one without removed files
            self.planned(position)
        return position

    def _begin(self, position: FilesPosition, record: RemovalRecord | None) -> FilesPosition:
        """The position of a fresh start, or for a directory without a record: it has a lineage of its own.

        Numbers go on after those that there are. Files are removed once a checkpoint has the lineage.
        """
        newest = max(record.read if record is not None else 0, self._removal.newest_round())
        if position.lineage is not None:  # the record was lost
            position = without_removed(self._removal, position)
            there = sum(os.path.lexists(os.path.join(self._removal.root, name)) for name in position.done)
            if there < position.read:
                newest = max(newest, position.read)
        self._newest = newest
        read = max(position.read, newest + len(position.done))
        self._planned = read
        if position.lineage is not None:
            if not read:
                return position
            self._earlier = {position.lineage: position.read}
        elif record is None and not newest:  # with an archive and no record, the record is lost
            self._earlier = {UNNUMBERED: 0}
        return replace(position, lineage=new_id(), read=read)

    def _take_over(self, record: RemovalRecord, position: FilesPosition) -> FilesPosition:
        """Become the owner, which stops a reader of an older process, and finish what it has begun."""
        removal, is_back = self._removal, is_rewound(self._removal, record, position)
        position = numbered(record, position)
        if is_back:
            removal.archived_after(position, record)  # what is refused changes nothing
        record = self._write(self._owned(record))
        rounds_back = [each for each in removal.rounds() if each[1] > position.read] if is_back else []
        if is_back:  # looked up again: until now the other reader may have moved files
            self._put_back(removal.archived_after(position, record))
            # Of the first round the position has read files too: they are archived again.
            record = replace(record, start=min(record.start, rounds_back[0][0]))
        else:
            self._sweep(position)
        if position.lineage != record.lineage or position.read < record.seen:
            record = self._write(record.branch(new_id(), position))
        for start, read in rounds_back:  # not earlier: after a crash the folders tell that all files are there
            _remove_empty_folders(removal.folder(replace(record, start=start, read=read)), top_too=True)
        self._planned = position.read
        return replace(without_removed(removal, position), lineage=record.lineage)

    def _owned(self, record: RemovalRecord) -> RemovalRecord:
        return replace(record, owner=self._owner, log_id=self._log_id, generation=self._generation)

    def _write(self, record: RemovalRecord) -> RemovalRecord:
        self._found = self._removal.write(record)
        return self._found

    def _put_back(self, files: Sequence[RemovedFile]) -> None:
        root = self._removal.root
        for each in files:
            if not self._may_go_on():
                raise second_remover(self._removal)
            target = os.path.join(root, each.name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(each.path, target)
            failpoint("source.files.put_back")
        sync_folders(os.path.dirname(os.path.join(root, each.name)) for each in files)
        if files:
            log.info("source %s: %d archived files were put back and are read again", self._uid, len(files))

    def _sweep(self, position: FilesPosition) -> None:
        """Put back what a crash has left where it was moved, and is not the file that was read."""
        for start, read in self._removal.rounds()[-1:]:
            for each in [*self._removal.removed_in(start, read)]:
                if position.done.get(each.name, each.signature) != each.signature:
                    self._return(each.name, each.path)

    def hold(self, position: FilesPosition) -> None:
        """Take in that a checkpoint with this position is complete: the files that it has read may be removed."""
        if position.lineage == self._lineage and position.read >= self._held_read:
            self._hold(position)

    def _hold(self, position: FilesPosition) -> None:
        self._held = {name: before for name, before in position.done.items() if name not in position.gone}
        self._held_read = position.read
        self._confirmed = position if self._removal.way == "delete" and self._found is not None else None

    def _delete(self, position: FilesPosition) -> None:
        """Delete the files that were moved before this newest checkpoint: its position does not name them any more."""
        with suppress(OSError):  # what cannot be deleted is tried again
            for start, read in self._removal.rounds():
                if read > position.read:
                    break
                for each in [*self._removal.removed_in(start, read)]:
                    if position.done.get(each.name) != each.signature:
                        os.unlink(each.path)
            _remove_empty_folders(self._removal.store)

    def remove(self, position: FilesPosition, *, most: int | None = MOST_AT_ONCE) -> FilesPosition:
        """The position without the files that this call removed: at most so many of those that may be.

        Raises:
            GraphError: the archive is another directory's too.
            SourceUnavailable: another source removes files of the same directory.
        """
        if not self._held and self._confirmed is None:
            return position
        failures: list[tuple[str, str]] = []
        names: list[str] = []
        try:
            # Again before each call: a rewind may have begun elsewhere, and what it puts back must stay.
            if self._note(self._held_read):
                failpoint("source.files.noted")
                if self._confirmed is not None and self._may_go_on():
                    self._delete(self._confirmed)
                names = self._remove(position, failures, most)
            self._confirmed = None
        except OSError as error:
            failures.append((self._removal.records, str(error)))
            self._held.clear()
        if failures:
            path, reason = failures[0]
            log.warning(
                "source %s: %d files that were read could not be removed, such as %r (%s). They are tried again after "
                "the next checkpoint.",
                self._uid,
                len(failures),
                path,
                reason,
            )
        return forget(position, names)

    def _remove(self, position: FilesPosition, failures: list[tuple[str, str]], most: int | None) -> list[str]:
        assert self._found is not None  # it was noted
        folder, removed = self._removal.folder(self._found), []
        for name in [*self._held][:most]:
            before = self._held.pop(name)
            if position.done.get(name) != before:
                continue
            if not self._may_go_on():
                break
            try:
                if self._take(name, before, folder):
                    removed.append(name)
            except (OSError, SourceUnavailable) as error:
                failures.append((os.path.join(self._removal.root, name), str(error)))
        if removed:
            sync_folders(
                os.path.join(top, below)
                for name in removed
                for below in _folders_of(name)
                for top in (folder, self._removal.root)
            )
        return removed

    def planned(self, position: FilesPosition) -> None:
        """Write down that a checkpoint may be about to have this position.

        Raises:
            SourceUnavailable: another source removes files of the same directory.
        """
        is_recorded = self._found is not None and self._found.lineage == self._lineage
        if is_recorded and position.read <= self._planned:
            return
        before, self._planned = self._planned, position.read
        try:
            self._note(self._found.read if self._found is not None else self._newest)
        except OSError as error:
            self._planned = before
            log.warning("source %s: %s", self._uid, unwritable(self._removal, error))

    def _note(self, read: int) -> bool:
        """Write how far files may be removed. ``False``: the record is gone, so the directory may be another one.

        Raises:
            GraphError: the archive is another directory's too.
            OSError: it cannot be written.
            SourceUnavailable: another reader has written since.
        """
        if not self._is_ours():
            return False
        removal, record = self._removal, self._found
        if record is None or record.lineage != self._lineage:
            newest = self._newest
            record = RemovalRecord(
                lineage=self._lineage,
                owner=self._owner,
                start=newest,
                read=newest,
                seen=newest,
                earlier=self._earlier,
                returnable=frozenset({UNNUMBERED} & self._earlier.keys()),
                number=record.number if record is not None else 0,
            )
        if read > record.read:
            record = replace(record, start=record.read, read=read)
        record = replace(self._owned(record), seen=max(record.seen, read, self._planned))
        if self._held:
            removal.claim_archive()
            folder = removal.folder(record)
            if not os.path.isdir(folder):
                os.makedirs(folder)
                sync_folders([os.path.dirname(folder)])
        if record != self._found:
            self._write(record)
        return True

    def _may_go_on(self) -> bool:
        """As ``_is_ours``, at the price of two looks: asked before each file that is moved."""
        return (self._found is not None and self._removal.is_current(self._found)) or self._is_ours()

    def _is_ours(self) -> bool:
        """Whether the record is as this reader has found or left it. ``False``: it is gone, and nothing is removed.

        Raises:
            SourceUnavailable: another reader has written since.
        """
        removal, found = self._removal, self._removal.record()
        if found is None and self._found is not None:
            self._held.clear()
            log.warning(
                "source %s: file %r is gone. Nothing is removed until the next start, since the directory may not be "
                "mounted.",
                self._uid,
                removal.records,
            )
            return False
        if found != self._found:
            raise second_remover(removal)
        return True

    def _take(self, name: str, before: FileSignature, folder: str) -> bool:
        """Move a file out of the directory. ``False``: it is not the file that was read, and stays."""
        path = os.path.join(self._removal.root, name)
        if signature(path) != before:
            return False  # the next listing says what to make of it
        target = _free(os.path.join(folder, name))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(path, target)
        failpoint("source.files.moved")
        if signature(target) != before:  # replaced in the meantime, or a link that leads nowhere from there
            self._return(name, target)
            return False
        return True

    def _return(self, name: str, path: str) -> None:
        back = os.path.join(self._removal.root, name)
        if os.path.lexists(back):
            log.warning("source %s: file %r has changed since it was read, and was moved to %r.", self._uid, name, path)
        else:
            os.rename(path, back)


def _folders_of(name: str) -> Iterator[str]:
    """The folders that a file is below, up to ``""``.

    >>> [*_folders_of("2026/01/a.json")]
    ['2026/01', '2026', '']
    """
    while name:
        name = os.path.dirname(name)
        yield name


def _remove_empty_folders(top: str, *, top_too: bool = False) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        if folder != top or top_too:
            with suppress(OSError):  # it is not empty
                os.rmdir(folder)


def _free(path: str) -> str:
    """A path that no file has: the path, or the path with a number."""
    number, free = 1, path
    while os.path.lexists(free):
        number += 1
        free = f"{path}.{number}"
    return free
