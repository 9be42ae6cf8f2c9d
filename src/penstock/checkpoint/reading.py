"""Reads the whole log into a :class:`History` and refuses what does not hold together. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

from penstock.checkpoint import paths
from penstock.checkpoint.codec import decode
from penstock.checkpoint.entries import NOTHING, Claim, Entry, Manifest
from penstock.checkpoint.history import History, Unreadable
from penstock.errors import CheckpointUnreadable, LogGap, StateDirectoryRefused
from penstock.filesystem.base import FileSystem
from penstock.ids import EntryNumber, Generation


def numbers_in_log(filesystem: FileSystem) -> tuple[EntryNumber, ...]:
    """The numbers of all entries that exist now, rising. Other files in the folder are none of ours."""
    found = (paths.entry_number(path) for path in filesystem.list(paths.LOG))
    return tuple(sorted(number for number in found if number is not None))


def read_history(filesystem: FileSystem, job: str, *, past_unreadable: bool = False) -> History:
    """Everything at and above the floor.

    A reader does not stop the owner from appending and trimming: as long as the log moves, it is read again.

    Raises:
        LogGap: a number is missing above the floor.
        CheckpointUnreadable: an entry is not what was written, and no rewind went past it; not raised with
            ``past_unreadable``, for whoever is about to write that rewind.
        StateDirectoryRefused: it is another job's log.
    """
    numbers = numbers_in_log(filesystem)
    while True:
        reader = _Reader(filesystem, numbers)
        missing = reader.read()
        if missing is None:
            break
        again = numbers_in_log(filesystem)
        if again == numbers:
            msg = (
                f"{paths.entry(missing)} is missing although the log goes on to {numbers[-1]}: entries were removed by "
                "hand or the file system lost them; restore them from a copy"
            )
            raise LogGap(msg)
        numbers = again
    history = reader.history()
    _check_story(history, job)
    history = _without_lost(history)
    if not past_unreadable:
        _refuse_unreadable(history)
    return history


class _Reader:
    """One attempt to read a listing of the log."""

    def __init__(self, filesystem: FileSystem, numbers: Sequence[EntryNumber]) -> None:
        self._filesystem = filesystem
        self._numbers = numbers
        self._bytes: dict[EntryNumber, bytes] = {}
        self._entries: dict[EntryNumber, Entry] = {}
        self._unreadable: dict[EntryNumber, Unreadable] = {}
        self._floor = EntryNumber(0)

    def read(self) -> EntryNumber | None:
        """Read from the newest down to the floor; the number that is missing, if one is."""
        if not self._numbers:
            return None
        number, present = self._numbers[-1], frozenset(self._numbers)
        while number >= self._floor:
            if number not in present:
                return None if self._is_below_lost_floor() else number
            data = self._filesystem.read(paths.entry(number))
            if data is None:
                return number
            self._take(number, data)
            number = EntryNumber(number - 1)
        return None

    def _take(self, number: EntryNumber, data: bytes) -> None:
        self._bytes[number] = data
        try:
            entry = decode(data, number)
            self._check_link(entry)
        except CheckpointUnreadable as error:
            self._unreadable[number] = Unreadable(number=number, message=str(error))
            return
        self._entries[number] = entry
        if isinstance(entry.body, Manifest):
            self._floor = max(self._floor, entry.body.floor)

    def _check_link(self, entry: Entry) -> None:
        """The entry above holds the hash of this one's bytes."""
        above = self._entries.get(EntryNumber(entry.number + 1))
        if above is not None and above.previous != sha256(self._bytes[entry.number]).hexdigest():
            msg = f"{paths.entry(entry.number)} is not the entry that the one after it was written upon"
            raise CheckpointUnreadable(msg)

    def _is_below_lost_floor(self) -> bool:
        """A missing number proves nothing where the manifest that held the floor cannot be read."""
        newest = max((n for n, entry in self._entries.items() if isinstance(entry.body, Manifest)), default=NOTHING)
        return any(number > newest for number in self._unreadable)

    def history(self) -> History:
        if not self._numbers:
            return History()
        lowest = min(self._bytes)
        tail = self._numbers[-1]
        return History(
            entries=tuple(self._entries[number] for number in sorted(self._entries) if number >= self._floor),
            unreadable=tuple(self._unreadable[number] for number in sorted(self._unreadable)),
            tail=tail,
            tail_hash=sha256(self._bytes[tail]).hexdigest(),
            below_floor=tuple(number for number in self._numbers if number < max(lowest, self._floor)),
        )


def _without_lost(history: History) -> History:
    """An entry that a rewind went past stays lost, though its file may have been restored since: ids have jumped."""
    lost = history.lost
    if not lost:
        return history
    return replace(history, entries=tuple(entry for entry in history.entries if entry.number not in lost))


def _refuse_unreadable(history: History) -> None:
    for found in history.unreadable:
        if found.number not in history.lost:
            msg = f"{found.message}; restore the file from a copy, or begin empty with --fresh"
            raise CheckpointUnreadable(msg)


def _check_story(history: History, job: str) -> None:
    """All entries are of one log of this job, under the newest claim each, with rising checkpoints."""
    unreadable = {int(found.number) for found in history.unreadable}
    log_id: str | None = None
    claim: tuple[Generation, str] | None = None
    newest = -1
    for entry in history.entries:
        if entry.job != job:
            msg = f"this state directory holds the log of job {entry.job!r}, not of {job!r}; give this job its own"
            raise StateDirectoryRefused(msg)
        log_id = log_id or entry.log_id
        if entry.log_id != log_id:
            raise _incoherent(entry, f"is of log {entry.log_id}, those before it are of {log_id}")
        own = (entry.generation, entry.token)
        is_claimed = isinstance(entry.body, Claim) and int(entry.generation) == entry.number
        if is_claimed or (entry.generation in unreadable and (claim is None or entry.generation > claim[0])):
            claim = own  # a claim that cannot be read is known by what was written under it
        if claim is not None and own != claim:
            raise _incoherent(entry, f"is of generation {entry.generation}, its newest claim is {claim[0]}")
        if isinstance(entry.body, Manifest):
            if entry.body.checkpoint <= newest:
                raise _incoherent(entry, f"holds checkpoint {entry.body.checkpoint} after checkpoint {newest}")
            newest = entry.body.checkpoint


def _incoherent(entry: Entry, what: str) -> CheckpointUnreadable:
    return CheckpointUnreadable(f"{paths.entry(entry.number)} {what}: files of several logs lie in one folder")
