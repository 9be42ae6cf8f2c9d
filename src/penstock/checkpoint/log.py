"""The log of one job: numbered entries, created if absent, one owner (L1 to L9). Knows nothing of what entries mean.

No lock, no lease, no clock: whoever's claim is newest owns the log, and anybody else notices at the next entry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

from penstock.checkpoint import paths
from penstock.checkpoint.codec import encode
from penstock.checkpoint.entries import Body, Claim, Entry, Manifest
from penstock.checkpoint.history import History, LogMark
from penstock.checkpoint.numbers import Numbers, Pause, fenced_by
from penstock.checkpoint.reading import numbers_in_log, read_history
from penstock.errors import CheckpointUnreadable, GenerationFenced, PenstockError, StateDirectoryRefused
from penstock.failpoints import failpoint
from penstock.filesystem.base import FileSystem
from penstock.ids import EntryNumber, Generation


class Log:
    """The log in one job's directory; anybody may read it, whoever wants to write claims it first.

    Args:
        filesystem: rooted at the job's directory.
        job: its name; another job's log is refused.
        new_id: draws a random identity, for the log and for each claim.
        pause: waits between repetitions of a write of unknown outcome.
    """

    def __init__(self, filesystem: FileSystem, *, job: str, new_id: Callable[[], str], pause: Pause) -> None:
        self._filesystem = filesystem
        self._job = job
        self._new_id = new_id
        self._numbers = Numbers(filesystem, job, pause)

    def read(self, *, past_unreadable: bool = False) -> History:
        """What the log says now. Reading decides nothing for a writer: it reads again under its claim (L2).

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
        """Own the log from here on; what was read before is read again under the claim (L1, L2).

        Args:
            claim: who claims.
            take_over: go on even if another claim was made since this call began (L9).
            expect_tail: refuse if the log has moved since somebody looked at it.
            expect: the same, and no other log will do.
            after: our own last generation, for a restart within a process: if somebody else has claimed since then,
                we were fenced without noticing, and do not take the job back.
            past_unreadable: for a rewind: entries that cannot be read do not refuse.

        Raises:
            GenerationFenced: another process claimed meanwhile.
            StateDirectoryRefused: another job's directory, a log that was lost, a tail that is not the expected one.
            StorageFailed: surely nothing was claimed.
        """
        history = self.read(past_unreadable=past_unreadable)
        if after is not None and history.generation != after:
            raise fenced_by(history.claim, EntryNumber(after + 1), "the job was taken over while this process paused")
        began = history.tail
        while True:
            self._refuse_strange(history, expect_tail, expect)
            entry = self._claim_entry(history, claim)
            failpoint("log.claim.before")
            if self._numbers.take(entry):
                failpoint("log.claim.written")
                history = self.read(past_unreadable=past_unreadable)
                if history.tail == entry.number:
                    return OwnedLog(self._filesystem, self._numbers, entry, history)
            else:
                history = self.read(past_unreadable=past_unreadable)
            if (after is not None or not take_over) and (history.generation or 0) > began:
                raise fenced_by(history.claim, entry.number, "a start of the same job was faster")

    def _claim_entry(self, history: History, claim: Claim) -> Entry:
        log_id = history.log_id
        if log_id is None:
            if not history.is_empty:
                msg = f"{history.unreadable[0].message}; no entry is left that tells which log this was"
                raise CheckpointUnreadable(msg)
            log_id = self._new_id()
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
            msg = f"the log has moved: entry {expect_tail} was expected to be the newest, {history.tail} is; plan again"
            raise StateDirectoryRefused(msg)
        if expect is not None and history.mark != expect:
            msg = f"the log has moved: {expect} was expected, it ends with {history.mark}; plan again"
            raise StateDirectoryRefused(msg)
        if not history.is_empty:
            return
        for folder in (paths.STATE, paths.STAGED, paths.WAL):
            for found in self._filesystem.list(folder):
                if numbers_in_log(self._filesystem):
                    return  # it was begun by somebody else a moment ago: our claim will find it taken
                msg = (
                    f"the directory holds {found} but no log: the log was lost, and a new one would use its names "
                    "again; restore log/ from a copy, or give the job an empty directory"
                )
                raise StateDirectoryRefused(msg)


class OwnedLog:
    """The log under our claim: the only thing that can append. Safe to use from several threads.

    Attributes:
        history: everything the log says, our own entries included.
        generation: the number of our claim.
    """

    def __init__(self, filesystem: FileSystem, numbers: Numbers, claim: Entry, history: History) -> None:
        self._filesystem = filesystem
        self._numbers = numbers
        self._claim = claim
        self._lock = threading.Lock()
        self._fence: GenerationFenced | None = None
        self.history = history
        self.generation = claim.generation

    @property
    def log_id(self) -> str:
        """A part of every identity in a sink (S4)."""
        return self._claim.log_id

    @property
    def job(self) -> str:
        """Whose log it is."""
        return self._claim.job

    @property
    def token(self) -> str:
        """Random, drawn for this claim."""
        return self._claim.token

    def append(self, body: Body) -> EntryNumber:
        """Write an entry; returns when it is in the log and ours.

        Raises:
            GenerationFenced: the number is somebody else's: stop, commit and delete nothing more (L5).
            StorageFailed: surely nothing was written, the same or another entry may be tried.
        """
        before, after = _names(body)
        with self._lock:
            self._refuse_if_fenced()
            number = EntryNumber(self.history.tail + 1)
            entry = replace(self._claim, number=number, previous=self.history.tail_hash, body=body)
            failpoint(before)
            if not self._numbers.take(entry):
                self._fence = self._numbers.fenced(number)
                raise self._fence
            failpoint(after)
            self.history = _extended(self.history, entry)
            return number

    def check(self) -> None:
        """Look whether the log is still ours: before beginning again at a fence, or when a file is missing.

        Raises:
            GenerationFenced: it is not.
            StateDirectoryRefused: there is no log any more.
        """
        with self._lock:
            self._refuse_if_fenced()
            if self._numbers.is_newest(self.history.tail):
                return
            if not numbers_in_log(self._filesystem):
                msg = "the log of this job is gone: its state directory was removed, or is not mounted; bring it back"
                raise StateDirectoryRefused(msg)
            self._fence = self._numbers.fenced(EntryNumber(self.history.tail + 1))
            raise self._fence

    def superseded(self) -> GenerationFenced | None:
        """The fence, if the log surely is somebody else's by now: one look that never waits, from any thread.

        ``None`` is no promise: the log may be out of sight just now, and what is written next decides (L5). An entry
        of our own that landed after all is nobody else's.
        """
        try:
            return self.look()
        except PenstockError:
            return None

    def look(self) -> GenerationFenced | None:
        """As :meth:`superseded`; but ``None`` says that the log was there and ours when it was read.

        Raises:
            CheckpointError: it is out of sight.
        """
        if self._fence is not None:
            return self._fence
        found = self._numbers.read()
        what = "this process no longer owns the job"
        newest = found.entries[-1] if found.entries else None
        if newest is not None and newest.token != self.token and newest.generation > self.generation:
            self._fence = fenced_by(found.claim, newest.number, what)
        strange = [each for each in found.unreadable if each.number > self.history.tail]
        if self._fence is None and strange:
            self._fence = GenerationFenced(f"{what}: entry {strange[0].number} is not its own ({strange[0].message})")
        return self._fence

    def trim(self) -> int:
        """Delete the entries below the floor that a manifest in the log records, oldest first. How many there were."""
        with self._lock:
            self._refuse_if_fenced()
            doomed = [number for number in numbers_in_log(self._filesystem) if number < self.history.floor]
            for number in doomed:
                failpoint("log.trim.before")
                self._refuse_if_fenced()  # which may have been learned since, by a look from another thread
                self._filesystem.delete(paths.entry(number))
            self.history = replace(self.history, below_floor=())
            return len(doomed)

    def _refuse_if_fenced(self) -> None:
        if self._fence is not None:
            raise self._fence


def _names(body: Body) -> tuple[str, str]:
    if isinstance(body, Manifest):
        return "checkpoint.manifest.before", "checkpoint.manifest.written"
    return "log.append.before", "log.append.written"


def _extended(history: History, entry: Entry) -> History:
    """The history with one entry more, without those that it puts below the floor."""
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
