"""The log of one job: numbered write-once entries, created if absent, with one owner (L1 to L9).

There is no lock, no lease and no clock. The process with the newest claim owns the log; any other process notices when
it writes its next entry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TypeVar

from penstock.checkpoint import paths
from penstock.checkpoint.entries import NO_ENTRY, Body, Claim, Entry, Manifest, Stopped, host_of
from penstock.checkpoint.entry_codec import decode, encode
from penstock.checkpoint.gc import collect, delete_recorded, orphans_of
from penstock.checkpoint.history import History, LogMark, Unreadable
from penstock.clock import format_time
from penstock.errors import (
    CheckpointError,
    CheckpointUnreadable,
    GenerationFenced,
    LogGap,
    PenstockError,
    StateDirectoryRefused,
    StorageFailed,
    sentence,
)
from penstock.failpoints import failpoint
from penstock.filesystem.base import Created, FileSystem, UnknownOutcome
from penstock.handles import EntryNumber, Generation

# ---- reading --------------------------------------------------------------------------------------------------------


def numbers_in_log(filesystem: FileSystem) -> tuple[EntryNumber, ...]:
    """The numbers of all entries that exist, rising. Other files in the folder are ignored."""
    found = (paths.entry_number(path) for path in filesystem.list(paths.LOG))
    return tuple(sorted(number for number in found if number is not None))


def read_history(filesystem: FileSystem, job: str, *, past_unreadable: bool = False) -> History:
    """All entries at and above the floor, checked to be one coherent log of this job.

    The owner may append and trim meanwhile. If an entry is missing and the log has changed, it is read again.

    Args:
        filesystem: rooted at the job's directory.
        job: the job's name.
        past_unreadable: list unreadable entries instead of refusing them, for a rewind that is about to skip them.

    Raises:
        LogGap: a number is missing above the floor.
        CheckpointUnreadable: an entry is not what was written, and no rewind skipped it.
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
                f"{paths.entry(missing)} is missing although the log goes on to {numbers[-1]}. Entries were removed "
                "by hand, or the file system lost them. Restore them from a copy."
            )
            raise LogGap(msg)
        numbers = again
    history = reader.history()
    _check_coherent(history, job)
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
        """Read from the newest entry down to the floor; returns the number that is missing, if one is."""
        if not self._numbers:
            return None
        number, present = self._numbers[-1], frozenset(self._numbers)
        while number >= self._floor:
            if number not in present:
                return None if self._is_below_lost_floor() else number
            data = self._filesystem.read(paths.entry(number))
            if data is None:
                return number
            self._add(number, data)
            number = EntryNumber(number - 1)
        return None

    def _add(self, number: EntryNumber, data: bytes) -> None:
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
        """Refuse the entry unless the next one holds the hash of its bytes."""
        above = self._entries.get(EntryNumber(entry.number + 1))
        if above is not None and above.previous != sha256(self._bytes[entry.number]).hexdigest():
            msg = f"{paths.entry(entry.number)} is not the file whose checksum entry {above.number} holds."
            raise CheckpointUnreadable(msg)

    def _is_below_lost_floor(self) -> bool:
        """Whether the manifest that recorded the floor may be unreadable: then a missing number proves nothing."""
        newest = max((n for n, entry in self._entries.items() if isinstance(entry.body, Manifest)), default=NO_ENTRY)
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
    """The history without lost entries. They stay lost even if their files were restored, since ids have jumped."""
    lost = history.lost
    if not lost:
        return history
    return replace(history, entries=tuple(entry for entry in history.entries if entry.number not in lost))


def _refuse_unreadable(history: History) -> None:
    for found in history.unreadable:
        if found.number not in history.lost:
            msg = f"{sentence(found.message)} Restore the file from a copy, or begin empty with penstock run … --fresh."
            raise CheckpointUnreadable(msg)


def _check_coherent(history: History, job: str) -> None:
    """Refuse entries of several logs or jobs, of a generation that is not the newest claim, or with falling ids."""
    unreadable = {int(found.number) for found in history.unreadable}
    log_id: str | None = None
    claim: tuple[Generation, str] | None = None
    newest = -1
    for entry in history.entries:
        if entry.job != job:
            msg = (
                f"This state directory holds the log of job {entry.job!r}, not of {job!r}. Give this job a directory "
                "of its own."
            )
            raise StateDirectoryRefused(msg)
        log_id = log_id or entry.log_id
        if entry.log_id != log_id:
            raise _incoherent(entry, f"is of log {entry.log_id}, those before it are of {log_id}")
        own = (entry.generation, entry.token)
        is_claimed = isinstance(entry.body, Claim) and int(entry.generation) == entry.number
        if is_claimed or (entry.generation in unreadable and (claim is None or entry.generation > claim[0])):
            claim = own  # an unreadable claim is known by the entries written under it
        if claim is not None and own != claim:
            raise _incoherent(entry, f"is of generation {entry.generation}, its newest claim is {claim[0]}")
        if isinstance(entry.body, Manifest):
            if entry.body.checkpoint <= newest:
                raise _incoherent(entry, f"holds checkpoint {entry.body.checkpoint} after checkpoint {newest}")
            newest = entry.body.checkpoint


def _incoherent(entry: Entry, what: str) -> CheckpointUnreadable:
    return CheckpointUnreadable(
        f"{paths.entry(entry.number)} {what}. The folder has files of several logs. Restore log/ from a copy."
    )


# ---- taking numbers (L3, L4) ----------------------------------------------------------------------------------------

T = TypeVar("T")
Sleep = Callable[[float], None]
"""Waits for seconds. It may raise, to give up: a write that was sent may then still land (L3)."""


class LogWriter:
    """Takes numbers of one job's log by writing entries under them.

    Args:
        filesystem: rooted at the job's directory.
        job: its name.
        pause: waits before a call of unknown outcome is repeated.
    """

    def __init__(self, filesystem: FileSystem, job: str, pause: Sleep) -> None:
        self._filesystem = filesystem
        self._job = job
        self._pause = pause

    def take(self, entry: Entry) -> bool:
        """Write the same bytes until the number is taken; whether this entry has it and is the newest.

        After a lost answer, "not found" proves nothing: the write may be on its way.

        Raises:
            StorageFailed: surely nothing was written, so the number may be used for another entry.
            StateDirectoryRefused: likewise, and trying again does not help.
        """
        path, data = paths.entry(entry.number), encode(entry)
        may_land = False
        for seconds in backoff():
            try:
                if self._filesystem.create(path, data) is Created.CREATED or self._filesystem.read(path) == data:
                    return self.is_newest(entry.number)
                return False
            except UnknownOutcome:
                may_land = True
            except (StorageFailed, StateDirectoryRefused):
                if not may_land:
                    raise
            self._pause(seconds)
        raise AssertionError  # pragma: no cover - the backoff has no end

    def is_newest(self, number: EntryNumber) -> bool:
        """Whether the entry exists and none is higher (L4).

        Otherwise it lies below the floor, or another claim followed at once.
        """
        newest = until_answered(
            lambda: numbers_in_log(self._filesystem)[-1:], self._pause, StorageFailed, StateDirectoryRefused
        )
        return newest == (number,)

    def read(self) -> History:
        """The current history, in one try; unreadable entries are listed.

        Raises:
            PenstockError: the log cannot be read at all.
        """
        return read_history(self._filesystem, self._job, past_unreadable=True)

    def fenced(self, number: EntryNumber) -> GenerationFenced:
        """The error that says who owns the log now. If that cannot be read, the error says so."""
        what = "This process no longer owns the job"
        try:
            history = self.read()
        except CheckpointError as error:
            return GenerationFenced(f"{what}. Entry {number} is not its own: {sentence(error)}")
        return fence_error(history.claim, number, what)


def fence_error(claim: Entry | None, number: EntryNumber, what: str) -> GenerationFenced:
    """The error that names the owner of the log: host, process and time, if its claim is still there."""
    who = "another process"
    if claim is not None and isinstance(claim.body, Claim):
        who = f"process {claim.body.pid} on {host_of(claim.body.host)}, started {format_time(claim.body.started)}"
    generation = f" as generation {claim.number}" if claim else ""
    return GenerationFenced(f"{what}. Entry {number} of its log was lost to {who}{generation}.")


def backoff() -> Iterator[float]:
    """Seconds to wait before each further try: doubled up to ten, without an end."""
    seconds = 0.1
    while True:
        yield seconds
        seconds = min(seconds * 2, 10.0)


def until_answered(ask: Callable[[], T], pause: Sleep, *failures: type[Exception]) -> T:
    """What ``ask`` returns, asked again as long as it raises one of ``failures``."""
    for seconds in backoff():
        try:
            return ask()
        except failures:
            pause(seconds)
    raise AssertionError  # pragma: no cover - the backoff has no end


# ---- claiming and appending -----------------------------------------------------------------------------------------


class Log:
    """The log in one job's directory. Any process may read it; a process that writes claims it first.

    Args:
        filesystem: rooted at the job's directory.
        job: its name; another job's log is refused.
        new_id: draws a random identity, for the log and for each claim.
        pause: waits before a write of unknown outcome, or the read under a claim, is repeated.
    """

    def __init__(self, filesystem: FileSystem, *, job: str, new_id: Callable[[], str], pause: Sleep) -> None:
        self._filesystem = filesystem
        self._job = job
        self._new_id = new_id
        self._pause = pause
        self._writer = LogWriter(filesystem, job, pause)

    def read(self, *, past_unreadable: bool = False) -> History:
        """The current history. A writer reads it again under its claim (L2).

        Raises:
            LogGap: a number is missing above the floor.
            CheckpointUnreadable: an entry is not what was written (unless ``past_unreadable``, for a rewind).
            StateDirectoryRefused: it is another job's log.
        """
        return read_history(self._filesystem, self._job, past_unreadable=past_unreadable)

    def claim(
        self,
        claim: Claim,
        *,
        take_over: bool = False,
        expect_tail: EntryNumber | None = None,
        expect: LogMark | None = None,
        after: Generation | None = None,
        past_unreadable: bool = False,
    ) -> OwnedLog:
        """Append a claim, and read the log again under it (L1, L2).

        Args:
            claim: the process that claims.
            take_over: go on even if another claim was made since this call began (L9).
            expect_tail: refuse unless the newest entry has this number.
            expect: refuse unless the log is exactly this far, and is no other log.
            after: for a restart within a process, its own last generation. If another process has claimed since,
                this one was fenced without noticing, and does not take the job back.
            past_unreadable: for a rewind: unreadable entries do not refuse.

        Raises:
            GenerationFenced: another process claimed meanwhile.
            StateDirectoryRefused: another job's directory, a log that was lost, a tail that is not the expected one.
            StorageFailed: surely nothing was claimed.
        """
        history = self.read(past_unreadable=past_unreadable)
        if after is not None and history.generation != after:
            raise fence_error(history.claim, EntryNumber(after + 1), "The job was taken over while this process paused")
        began = history.tail
        while True:
            self._refuse_strange(history, expect_tail, expect)
            entry = self._claim_entry(history, claim)
            failpoint("log.claim.before")
            if self._writer.take(entry):
                failpoint("log.claim.written")
                history = self._read_under_claim(past_unreadable=past_unreadable)
                if history.tail == entry.number:
                    return OwnedLog(self._filesystem, self._writer, entry, history)
            else:
                history = self.read(past_unreadable=past_unreadable)
            if (after is not None or not take_over) and (history.generation or 0) > began:
                raise fence_error(history.claim, entry.number, "A start of the same job was faster")

    def _read_under_claim(self, *, past_unreadable: bool) -> History:
        """Read until storage answers: a failed claim that is in the log would fence the next attempt of its process."""
        return until_answered(lambda: self.read(past_unreadable=past_unreadable), self._pause, StorageFailed)

    def _claim_entry(self, history: History, claim: Claim) -> Entry:
        log_id = history.log_id or self._new_id()
        number = EntryNumber(history.tail + 1)
        return Entry(
            number=number,
            log_id=log_id,
            job=self._job,
            generation=Generation(number),
            token=self._new_id(),
            previous=history.tail_hash,
            body=claim,
        )

    def _refuse_strange(self, history: History, expect_tail: EntryNumber | None, expect: LogMark | None) -> None:
        if expect_tail is not None and history.tail != expect_tail:
            msg = (
                f"The log has moved. Entry {expect_tail} was expected to be the newest, and {history.tail} is. Plan "
                "again."
            )
            raise StateDirectoryRefused(msg)
        if expect is not None and history.mark != expect:
            msg = f"The log has moved. {expect} was expected, and it ends with {history.mark}. Plan again."
            raise StateDirectoryRefused(msg)
        require_log(history, self._filesystem)


def require_log(history: History, filesystem: FileSystem) -> None:
    """Refuse to claim a log that was lost, as a whole or but for entries that cannot be read.

    Raises:
        CheckpointUnreadable: no readable entry is left.
        StateDirectoryRefused: the directory holds files, and no log.
    """
    if history.log_id is not None:
        return
    if not history.is_empty:
        msg = (
            f"{sentence(history.unreadable[0].message)} No entry is left that says which log this was. Restore log/ "
            "from a copy, or give the job an empty directory."
        )
        raise CheckpointUnreadable(msg)
    for folder in (paths.STATE, paths.STAGED, paths.WAL):
        for found in filesystem.list(folder):
            if numbers_in_log(filesystem):
                return  # another process has just begun the log: a claim will find its number taken
            msg = (
                f"The directory holds {found} but no log. The log was lost, and a new one would use its names again. "
                "Restore log/ from a copy, or give the job an empty directory."
            )
            raise StateDirectoryRefused(msg)


class OwnedLog:
    """The log under our claim, which alone allows to append. Safe to use from several threads.

    Attributes:
        history: all entries, including our own.
        generation: the number of our claim.
    """

    def __init__(self, filesystem: FileSystem, writer: LogWriter, claim: Entry, history: History) -> None:
        self._filesystem = filesystem
        self._writer = writer
        self._claim = claim
        self._lock = threading.Lock()
        self._fence: GenerationFenced | None = None
        self.history = history
        self.generation = claim.generation

    @property
    def claim(self) -> Entry:
        """Our claim, which the log trims after some checkpoints."""
        return self._claim

    @property
    def log_id(self) -> str:
        """Identity of the log, a part of every identity in a sink (S4)."""
        return self._claim.log_id

    @property
    def job(self) -> str:
        """The job whose log it is."""
        return self._claim.job

    @property
    def token(self) -> str:
        """Random identity of this claim."""
        return self._claim.token

    def append(self, body: Body) -> EntryNumber:
        """Write an entry; returns its number when it is in the log and ours.

        Raises:
            GenerationFenced: another process has the number: stop, commit and delete nothing more (L5).
            StorageFailed: surely nothing was written; the same or another entry may be tried.
        """
        before, after = _failpoints_of(body)
        with self._lock:
            self._refuse_if_fenced()
            number = EntryNumber(self.history.tail + 1)
            entry = replace(self._claim, number=number, previous=self.history.tail_hash, body=body)
            failpoint(before)
            if not self._writer.take(entry):
                self._fence = self._writer.fenced(number)
                raise self._fence
            failpoint(after)
            self.history = _extended(self.history, entry)
            return number

    def check(self) -> None:
        """Check that the log is still ours: before a retry at a fence, or when a file is missing.

        Raises:
            GenerationFenced: another process owns it.
            StateDirectoryRefused: there is no log any more.
        """
        with self._lock:
            self._refuse_if_fenced()
            if self._writer.is_newest(self.history.tail):
                return
            if not numbers_in_log(self._filesystem):
                msg = "The log of this job is gone. Its state directory was removed, or is not mounted. Bring it back."
                raise StateDirectoryRefused(msg)
            self._fence = self._writer.fenced(EntryNumber(self.history.tail + 1))
            raise self._fence

    def require_owner(self) -> None:
        """Raise the fence if another process surely owns the log; see ``superseded``.

        Raises:
            GenerationFenced: it does.
        """
        fence = self.superseded()
        if fence is not None:
            raise fence

    def superseded(self) -> GenerationFenced | None:
        """The fence, if another process surely owns the log: one read that never waits, from any thread.

        ``None`` is no promise: the log may be unreadable now, and the next write decides (L5). A lost write of our own
        that landed after all is no fence.
        """
        try:
            return self.look()
        except PenstockError:
            return None

    def look(self) -> GenerationFenced | None:
        """As ``superseded``, but ``None`` says that the log was readable and ours.

        Raises:
            CheckpointError: the log cannot be read now.
        """
        if self._fence is not None:
            return self._fence
        found = self._writer.read()
        what = "This process no longer owns the job"
        newest = found.entries[-1] if found.entries else None
        if newest is not None and newest.token != self.token and newest.generation > self.generation:
            self._fence = fence_error(found.claim, newest.number, what)
        strange = [each for each in found.unreadable if each.number > self.history.tail]
        if self._fence is None and strange:
            self._fence = GenerationFenced(
                f"{what}. Entry {strange[0].number} is not its own: {sentence(strange[0].message)}"
            )
        return self._fence

    def refuse_if_claimed(self) -> None:
        """Raise the fence if another process has claimed the log by now; one listing, from any thread, no waiting.

        Raises:
            GenerationFenced: it has.
            CheckpointError: the log cannot be read now, or is gone.
        """
        self._refuse_if_fenced()
        tail = self.history.tail
        numbers = numbers_in_log(self._filesystem)
        if not numbers:
            msg = "The log of this job is gone. Its state directory was removed, or is not mounted. Bring it back."
            raise StateDirectoryRefused(msg)
        # Another process's first entry is a claim, and nothing of ours can follow it. A newer entry of our own is one
        # that another thread is appending.
        if numbers[-1] > tail and (fence := self.look()) is not None:
            raise fence

    def trim(self) -> int:
        """Delete entries below the floor, oldest first; returns how many. The newest of them stays, as the guard.

        The floor is the one that a manifest in the log records.
        """
        with self._lock:
            self._refuse_if_fenced()
            # A paused process of an older generation may create its next entry under a number that was trimmed. While
            # the guard keeps its number, such a stray never lies directly below the floor: if the floor's manifest is
            # damaged, a reader comes to the guard first, and the guard's hash of its predecessor refuses the stray.
            guard = EntryNumber(self.history.floor - 1)
            present = numbers_in_log(self._filesystem)
            doomed = [number for number in present if number < guard]
            for number in doomed:
                failpoint("log.trim.before")
                self._refuse_if_fenced()  # another thread may have noticed the fence since
                self._filesystem.delete(paths.entry(number))
            self.history = replace(self.history, below_floor=(guard,) if guard in present else ())
            return len(doomed)

    def _refuse_if_fenced(self) -> None:
        if self._fence is not None:
            raise self._fence


def _failpoints_of(body: Body) -> tuple[str, str]:
    if isinstance(body, Manifest):
        return "checkpoint.manifest.before", "checkpoint.manifest.written"
    return "log.append.before", "log.append.written"


def _extended(history: History, entry: Entry) -> History:
    """The history with one more entry, without those that it puts below the floor."""
    longer = replace(
        history,
        entries=(*history.entries, entry),
        tail=entry.number,
        tail_hash=sha256(encode(entry)).hexdigest(),
    )
    dropped = tuple(e.number for e in longer.entries if e.number < longer.floor)
    return replace(
        longer,
        entries=tuple(e for e in longer.entries if e.number >= longer.floor),
        below_floor=(*history.below_floor, *dropped),
    )


# ---- manifests ------------------------------------------------------------------------------------------------------


class ManifestWriter:
    """Appends the manifests of one generation, and deletes what they condemn.

    One worker thread appends and another cleans up; the lock of ``OwnedLog`` keeps them apart.

    Args:
        log: the log under our claim.
        filesystem: rooted at the job's directory.
        retained: number of checkpoints that stay restorable, including the newest.
        leftovers: lists the files that drivers write, including those of older generations. It is called once, for the
            first manifest, which condemns the orphans (rule G2).
    """

    def __init__(
        self,
        log: OwnedLog,
        filesystem: FileSystem,
        *,
        retained: int,
        leftovers: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._log = log
        self._filesystem = filesystem
        self._retained = retained
        self._leftovers: Callable[[], Iterable[str]] | None = leftovers
        self._deleted = log.history.deleted

    def checkpoint(self, manifest: Manifest) -> EntryNumber:
        """Complete the manifest with what it condemns, and append it.

        Raises:
            GenerationFenced: another process owns the log now.
            StorageFailed: surely nothing was written.
        """
        history = self._log.history
        orphans: tuple[str, ...] = ()
        if self._leftovers is not None:
            orphans = orphans_of(history, self._log.generation, self._leftovers())
        complete = collect(manifest, history, retained=self._retained, deleted=self._deleted, orphans=orphans)
        number = self._log.append(complete)
        self._leftovers = None
        return number

    def stopped(self, body: Stopped) -> EntryNumber:
        """Append the entry that ends a job in order."""
        return self._log.append(body)

    def clean(self) -> None:
        """Delete the files that entries condemn, then the entries below the floor; repeating it does no harm."""
        self._deleted = delete_recorded(self._filesystem, self._log.history)
        self._log.trim()
