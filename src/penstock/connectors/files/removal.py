"""What becomes of files that were read, how far a directory's files were removed, and what a start finds of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.connectors.files.directory import signature
from penstock.connectors.files.listing import MOST_SHOWN, FileSignature, FilesPosition, forget
from penstock.errors import GraphError, SourceChanged, SourceUnavailable
from penstock.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

HIDDEN: Final = ".penstock"
"""Folder in the directory with the record, and with files that are being deleted; names with a dot are not read."""
_DIGITS: Final = 12
_MARK: Final = re.compile(r"\.penstock-[0-9a-f]{16}")
_ROUNDS_OF_A_CHECKPOINT: Final = 4
"""Most rounds with files that a position still names: that of its checkpoint, and of those confirmed late before it."""
_MOST_EARLIER: Final = 1_000
"""Most earlier lineages that a record keeps: a crash between a barrier and its checkpoint makes one."""
UNNUMBERED: Final = ""
"""In a record, the lineage of positions that have none: they were written while the source removed no files."""
_ROUND: Final = re.compile(r"(\d{12})-(\d{12})")


# ---- the record ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalRecord:
    """How far the files of a directory were removed. Files are numbered from 1 in the order of reading.

    Attributes:
        lineage: of the positions whose files were removed.
        owner: of the reader that may remove more. A reader of an older process finds another one, and stops.
        start: number of the newest file that was removable before the newest round.
        read: number of the newest file that is removable now.
        seen: number of the newest file that any checkpoint may have read. A start behind it is another history, in
            which later numbers may mean other files: it has a lineage of its own.
        earlier: the lineages before it, each with the newest number that still means the same file. A position of
            ``UNNUMBERED`` has no numbers: what it has read comes after that number.
        returnable: those of them since which no file was put back. Their positions may be returned to from beyond that
            number too, as long as no later file is removable: they name all files that they have read since.
        number: of the record: each one that is written has the next number.
        log_id: identity of the log of the owner's job.
        generation: of the owner: see ``SourceContext``.
    """

    lineage: str
    owner: str
    start: int
    read: int
    seen: int
    earlier: Mapping[str, int] = field(default_factory=dict)
    returnable: frozenset[str] = frozenset()
    number: int = 0
    log_id: str = ""
    generation: int = 0

    def branch(self, lineage: str, position: FilesPosition) -> RemovalRecord:
        """The record for a history that goes on from a position, which ``is_rewound`` has not refused.

        Args:
            lineage: of the new history.
            position: with numbers: see ``numbered``.
        """
        left = position.lineage or UNNUMBERED
        common = position.read if left == self.lineage else min(position.read, self.earlier[left])
        # The first ones are dropped first. The lineage that is left comes first: if attempts fail one after the other,
        # it is that of an attempt without a checkpoint. That of the position comes last: they all start from there.
        earlier = {self.lineage: common} | {each: min(read, common) for each, read in self.earlier.items()}
        earlier.pop(left)
        earlier[left] = common if left == UNNUMBERED else position.read
        earlier = dict([*earlier.items()][-_MOST_EARLIER:])
        has_put_back = position.read < self.read
        returnable = frozenset({UNNUMBERED}) if has_put_back else self.returnable | {self.lineage}
        return replace(
            self,
            lineage=lineage,
            start=min(self.start, position.read),
            read=min(self.read, position.read),
            seen=position.read,
            earlier=earlier,
            returnable=returnable & earlier.keys(),
        )

    @property
    def round(self) -> str:
        """The folder in the archive for the files of the newest round."""
        return _round(self.start, self.read)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedFile:
    """A file that was removed and is still there, in the archive or on the way to be deleted."""

    name: str
    path: str
    signature: FileSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What becomes of the files of a directory after they were read.

    Attributes:
        root: the directory.
        way: ``"archive"``, ``"delete"``, or ``None``: they stay.
        archive: where archived files go.
        key: what else the source selects its files by; each selection has a record of its own.
    """

    root: str
    way: str | None
    archive: str
    key: str

    @property
    def records(self) -> str:
        """The files of the record, as a pattern: the one with the highest number counts."""
        return os.path.join(self.root, HIDDEN, f"{self._name}*.json")

    @property
    def store(self) -> str:
        """Where files are moved: the archive, or a folder from which they are deleted one checkpoint later.

        A file there is the proof that the one which a position names was removed: a new one may have its name.
        """
        if self.way == "archive":
            return self.archive
        return os.path.join(self.root, HIDDEN, f"{self._name}.deleting")

    @property
    def _name(self) -> str:
        return f"read-{hashlib.sha256(self.key.encode()).hexdigest()[:8]}"

    def record(self) -> RemovalRecord | None:
        """The record, or ``None`` if nothing was ever removed.

        Raises:
            SourceChanged: it is there and cannot be read.
        """
        tried, path = None, self.records
        try:
            while (numbers := self._numbers()) and numbers[-1] != tried:
                number = numbers[-1]
                path = self._path(number)
                try:
                    return _read(path, number)
                except FileNotFoundError:
                    tried = number  # a newer one has taken its place, unless it was removed
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            msg = (
                f"File {path!r} cannot be read ({error!r}). It says how many files were archived or deleted. Give "
                "this user the right to read it, or put back a copy of it. Without it a rewind would not notice that "
                "files are missing."
            )
            raise SourceChanged(msg) from error
        return None

    def write(self, record: RemovalRecord) -> RemovalRecord:
        """The record as it is written now, durably: the next one after the number that it has.

        Raises:
            OSError: it cannot be written.
            SourceUnavailable: another reader has written since the record was read.
        """
        record = replace(record, number=record.number + 1)
        values = {
            "lineage": record.lineage,
            "owner": record.owner,
            "start": record.start,
            "read": record.read,
            "seen": record.seen,
            # Apart: older versions, which have no rule for it, would take its positions for such with numbers.
            "earlier": {lineage: read for lineage, read in record.earlier.items() if lineage != UNNUMBERED},
            "unnumbered": record.earlier.get(UNNUMBERED),
            "returnable": sorted(record.returnable),
            "log": record.log_id,
            "generation": record.generation,
        }
        path = self._path(record.number)
        folder = os.path.dirname(path)
        with suppress(FileExistsError):  # the directory itself is not made: it may not be mounted
            os.mkdir(folder)
        temporary = f"{path}.{record.owner}"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(values, file)
            file.flush()
            os.fsync(file.fileno())
        failpoint("source.files.record")
        # A process that was stopped since it read the record must not put an old one in the place of its successor's,
        # so the name is taken once. A number that was deleted can be taken again: then a higher one is there.
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise second_remover(self) from None
        finally:
            os.unlink(temporary)
        sync_folders([folder, self.root])
        numbers = self._numbers()
        if numbers[-1:] != [record.number]:
            raise second_remover(self)
        with suppress(OSError):  # they do not count any more
            for number in numbers[:-1]:
                os.unlink(self._path(number))
        return record

    def is_current(self, record: RemovalRecord) -> bool:
        """Whether a record that was read or written is still there, and none was written after it."""
        return os.path.exists(self._path(record.number)) and not os.path.exists(self._path(record.number + 1))

    def _path(self, number: int) -> str:
        return os.path.join(self.root, HIDDEN, f"{self._name}.{number}.json" if number else f"{self._name}.json")

    def _numbers(self) -> list[int]:
        """The numbers of the records that are there, in order; 0 is one of before records had numbers."""
        try:
            names = os.listdir(os.path.join(self.root, HIDDEN))
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = (re.fullmatch(rf"{self._name}(?:\.(\d+))?\.json", name) for name in names)
        return sorted(int(match[1] or 0) for match in found if match)

    def folder(self, record: RemovalRecord) -> str:
        """Where files of the newest round are moved."""
        return os.path.join(self.store, record.round)

    def archived_after(self, position: FilesPosition, record: RemovalRecord) -> list[RemovedFile]:
        """The files that were archived after the position: those that it has not read, and some that it has.

        Raises:
            SourceChanged: not all of them are in the archive, or others have their names.
        """
        rounds = [(start, read) for start, read in self.rounds() if read > position.read]
        covered = position.read
        for start, read in rounds:
            if start <= covered:
                covered = max(covered, read)
        if self.way != "archive" or covered < record.read:
            raise removed_since(self, record.read - position.read)
        found = [each for start, read in rounds for each in self.removed_in(start, read)]
        counts = Counter(each.name for each in found)
        taken = [name for name, count in counts.items() if count > 1 or os.path.lexists(os.path.join(self.root, name))]
        if taken:
            raise name_taken(self, taken)
        return found

    def removed_in(self, start: int, read: int) -> Iterator[RemovedFile]:
        """The files of a round that are still there."""
        for name, path in _files_below(os.path.join(self.store, _round(start, read))):
            now = signature(path)
            if now is not None:
                yield RemovedFile(name=name, path=path, signature=now)

    def rounds(self) -> list[tuple[int, int]]:
        """The rounds whose files are still there, as in ``RemovalRecord``, in order."""
        try:
            names = os.listdir(self.store)
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = (_ROUND.fullmatch(name) for name in names)
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def newest_round(self) -> int:
        """The highest number of a file that is still there."""
        return max((read for _, read in self.rounds()), default=0)

    @property
    def _mark(self) -> str:
        """File in the archive that says whose it is: files of two directories would be mixed up in a rewind."""
        return f".penstock-{hashlib.sha256(json.dumps([self.root, self.key]).encode()).hexdigest()[:16]}"

    def claim_archive(self) -> None:
        """Mark the archive as that of this directory.

        Raises:
            GraphError: it is another directory's.
            OSError: it cannot be written.
        """
        mark = os.path.join(self.archive, self._mark)
        if self.way == "archive" and not os.path.exists(mark):
            os.makedirs(self.archive, exist_ok=True)
            with open(mark, "a", encoding="utf-8"):
                pass
            try:
                self.check()  # after the mark: of two sources that begin at once, one at least sees the other's
            except GraphError:
                os.unlink(mark)
                raise

    def check(self) -> None:
        """Check that files can be moved to the archive by a rename, and that it is this directory's alone.

        Raises:
            GraphError: it is on another file system, or another directory's.
        """
        if self.way != "archive":
            return
        existing = self.archive
        while not os.path.exists(existing):
            existing = os.path.dirname(existing)
        try:
            is_other = os.stat(existing).st_dev != os.stat(self.root).st_dev
        except OSError:
            return  # what is missing is said where the directory is listed
        if is_other:
            msg = (
                f"Archive {self.archive!r} is on another file system than directory {self.root!r}. Files are archived "
                "by a rename, which is whole or not done. Choose archive= on the same file system, and let another "
                "program copy from there."
            )
            raise GraphError(msg)
        with suppress(FileNotFoundError, NotADirectoryError):
            others = [name for name in os.listdir(self.archive) if _MARK.fullmatch(name) and name != self._mark]
            if others:
                msg = (
                    f"Archive {self.archive!r} has files of another directory, or of another pattern of this one "
                    f"({others[0]}). A rewind could not tell them apart. Give each source an archive= of its own. If "
                    "the directory was moved, remove that file."
                )
                raise GraphError(msg)


def _read(path: str, number: int) -> RemovalRecord:
    with open(path, "rb") as file:
        values: Any = json.loads(file.read())
    earlier = {str(lineage): int(read) for lineage, read in values["earlier"].items()}
    unnumbered = values.get("unnumbered")  # older records do not say it
    return RemovalRecord(
        lineage=str(values["lineage"]),
        owner=str(values["owner"]),
        start=int(values["start"]),
        read=int(values["read"]),
        seen=int(values["seen"]),
        earlier=earlier if unnumbered is None else {**earlier, UNNUMBERED: int(unnumbered)},
        returnable=frozenset(map(str, values.get("returnable", ()))),
        number=number,
        log_id=str(values.get("log", "")),  # older records do not say it
        generation=int(values.get("generation", 0)),
    )


def is_rewound(removal: Removal, record: RemovalRecord, position: FilesPosition) -> bool:
    """Whether files were removed that the position, one of a checkpoint, has not read.

    Raises:
        SourceChanged: the record is not of the position's history, so that numbers say nothing.
    """
    if position.lineage == record.lineage:
        return position.read < record.read
    lineage = position.lineage or UNNUMBERED
    common = record.earlier.get(lineage, -1)
    if lineage != UNNUMBERED and position.read <= common:
        return position.read < record.read
    if lineage not in record.returnable or record.read > common:
        raise _other_history(removal)
    return False


def numbered(record: RemovalRecord, position: FilesPosition) -> FilesPosition:
    """The position, which ``is_rewound`` has not refused, with the number of its newest file."""
    if position.lineage is not None:
        return position
    return replace(position, read=record.earlier[UNNUMBERED] + len(position.done))


def without_removed(removal: Removal, position: FilesPosition) -> FilesPosition:
    """The position without the files that were removed after it, while its checkpoint was the newest one."""
    if not position.done:
        return position
    rounds = [each for each in removal.rounds() if each[1] <= position.read][-_ROUNDS_OF_A_CHECKPOINT:]
    found = (each for start, read in rounds for each in removal.removed_in(start, read))
    return forget(position, [each.name for each in found if position.done.get(each.name) == each.signature])


def has_lost_record(removal: Removal, position: FilesPosition) -> bool:
    """Whether files of the position may have been removed, but the directory does not have the record of it.

    Raises:
        SourceChanged: the record is there and cannot be read.
    """
    if position.lineage is None or position.read <= len(position.done):
        return False
    record = removal.record()
    return record is None or position.lineage not in {record.lineage, *record.earlier}


def _round(start: int, read: int) -> str:
    return f"{start:0{_DIGITS}}-{read:0{_DIGITS}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAtStart:
    """What a start finds of the files that were removed.

    Attributes:
        position: without the files that were removed after it.
        back: the files that the start puts back from the archive and reads.
        warnings: what the user should know, each in sentences.
    """

    position: FilesPosition
    back: Mapping[str, FileSignature] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def found_at_start(removal: Removal, position: FilesPosition | None) -> FoundAtStart:
    """What a start from a position finds; ``None`` is a fresh start. Nothing is written or moved.

    Raises:
        GraphError: the archive cannot be used.
        SourceChanged: files that the position has not read were removed, and cannot be put back.
    """
    removal.check()
    if position is None:
        found = removal.record() if removal.way is not None else None
        warnings = () if found is None else (removed_before(removal, found),)
        return FoundAtStart(position=FilesPosition(), warnings=warnings)
    record = None if removal.way is None and position.lineage is None else removal.record()
    if record is None:
        return FoundAtStart(position=position)
    if not is_rewound(removal, record, position):
        return FoundAtStart(position=without_removed(removal, position))
    if removal.way is None:
        raise removed_since(removal, record.read - position.read)
    archived = removal.archived_after(position, record)
    back = {each.name: each.signature for each in archived if not position.has_read(each.name, each.signature)}
    kept = forget(position, [each.name for each in archived if each.name not in back])
    return FoundAtStart(position=kept, back=back, warnings=(put_back(removal, archived),))


def _files_below(top: str) -> Iterator[tuple[str, str]]:
    """Names relative to ``top``, and paths."""
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            yield os.path.relpath(path, top), path


def sync_folders(folders: Iterable[str]) -> None:
    """Make renames durable: a file that comes back after a power failure would be read again."""
    for folder in sorted(set(folders)):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ---- messages --------------------------------------------------------------------------------------------------------


def removed_before(removal: Removal, record: RemovalRecord) -> str:
    """The warning for a fresh start on a directory from which files were removed."""
    where = (
        f" To read archived ones again, move them back from {removal.archive!r}." if removal.way == "archive" else ""
    )
    return (
        f"Files were archived or deleted from directory {removal.root!r} before this fresh start, by an earlier run or "
        f"by another job ({record.read} files in all). They are not read.{where} Only one job may remove files of a "
        "directory: stop the other one if it still runs."
    )


def put_back(removal: Removal, files: Sequence[RemovedFile]) -> str:
    """The warning for a start from an older checkpoint that finds its files in the archive."""
    return (
        f"{len(files)} files that were archived after this checkpoint are moved back from {removal.archive!r} to "
        f"{removal.root!r} at the start, and read again."
    )


def removed_since(removal: Removal, count: int) -> SourceChanged:
    """The error for an older checkpoint whose files were removed, and cannot be put back."""
    if removal.way == "archive":
        what = f"Not all of the {count} files that were read after this checkpoint are in archive {removal.archive!r}."
        remedy = "Put the missing folders back there, or rewind to a newer checkpoint."
    else:
        what = (
            f"{count} files that were read after this checkpoint were archived or deleted from directory "
            f"{removal.root!r} (after_read), so they cannot be read again."
        )
        remedy = "Rewind to a newer checkpoint. Or, if they are archived, give the source after_read='archive'."
    msg = (
        f"{what} Going on would lose their rows. {remedy} If their rows may be missing, or once you have put the files "
        f"back yourself, remove {removal.records!r}, which says how many files were removed."
    )
    return SourceChanged(msg)


def _other_history(removal: Removal) -> SourceChanged:
    msg = (
        f"Files of directory {removal.root!r} were archived or deleted by another job, by a fresh start of this one, "
        "or after a rewind that this checkpoint is not part of. Which rows of this checkpoint are still to be read "
        "cannot be told. Rewind to a newer checkpoint, or begin again with 'penstock run … --fresh'. If you know that "
        f"no file is missing and none is there twice, remove {removal.records!r}, which says how many files were "
        "removed."
    )
    return SourceChanged(msg)


def second_remover(removal: Removal) -> SourceUnavailable:
    """The error for a second job that removes files of the directory. A restart finds which of the two may go on."""
    msg = (
        f"Another job archives or deletes files of directory {removal.root!r} while this one does "
        f"({removal.records!r} has changed). Each may take files from the other that it has not read yet. Stop one of "
        "them, or give each job a directory of its own."
    )
    return SourceUnavailable(msg)


def name_taken(removal: Removal, names: Sequence[str]) -> SourceChanged:
    """The error for archived files that cannot all be put back, because several have one name."""
    shown = ", ".join(repr(name) for name in names[:MOST_SHOWN])
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    msg = (
        f"Archived files cannot be put back for this older checkpoint: directory {removal.root!r} has other files of "
        f"the same names, or archive {removal.archive!r} has several of one name ({shown}{more}). Rename all but one "
        "of each, then start again."
    )
    return SourceChanged(msg)


def record_lost(removal: Removal) -> SourceUnavailable:
    """The error for another directory than before, without the record of the files that were removed."""
    msg = (
        f"Directory {removal.root!r} is another one than before, and does not have {removal.records!r}. Probably it is "
        "not mounted. Mount it again, and reading goes on. If the directory was made anew, give the source "
        "may_be_emptied=True."
    )
    return SourceUnavailable(msg)


def unwritable(removal: Removal, error: OSError) -> SourceUnavailable:
    """The error for a directory in which files cannot be moved."""
    msg = (
        f"Directory {removal.root!r} cannot be written ({error.strerror or error}), but after_read={removal.way!r} "
        "moves files in it. Give this user the right to write there, or leave after_read out."
    )
    return SourceUnavailable(msg)
