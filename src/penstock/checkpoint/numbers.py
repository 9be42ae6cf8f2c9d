"""Takes numbers of the log: writes until one is ours or somebody else's (L3, L4). Knows no entry's meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.checkpoint import paths
from penstock.checkpoint.codec import encode
from penstock.checkpoint.entries import Claim, Entry, host_of
from penstock.checkpoint.history import History
from penstock.checkpoint.reading import numbers_in_log, read_history
from penstock.errors import CheckpointError, GenerationFenced, StateDirectoryRefused, StorageFailed
from penstock.filesystem.base import Created, FileSystem, UnknownOutcome
from penstock.ids import EntryNumber

Pause = Callable[[float], None]
"""Waits so many seconds. It may raise, to give up: whatever was sent may then still land (L3)."""


class Numbers:
    """The numbers of one job's log.

    Args:
        filesystem: rooted at the job's directory.
        job: its name.
        pause: waits between repetitions of a call whose answer is not known.
    """

    def __init__(self, filesystem: FileSystem, job: str, pause: Pause) -> None:
        self._filesystem = filesystem
        self._job = job
        self._pause = pause

    def take(self, entry: Entry) -> bool:
        """Write the same bytes until the number is taken: by us, with nobody above us, or by somebody else.

        "Not found" proves nothing once an answer was lost: the write may be on its way.

        Raises:
            StorageFailed: surely nothing was written, so the number may be used for something else.
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
        """Whether it exists and none is higher: else it lies below the floor, or another claim came at once (L4)."""
        for seconds in backoff():
            try:
                return numbers_in_log(self._filesystem)[-1:] == (number,)
            except (StorageFailed, StateDirectoryRefused):
                self._pause(seconds)
        raise AssertionError  # pragma: no cover - the backoff has no end

    def read(self) -> History:
        """What the log says now, one try; entries that cannot be read are listed as such.

        Raises:
            PenstockError: it cannot be read at all.
        """
        return read_history(self._filesystem, self._job, past_unreadable=True)

    def fenced(self, number: EntryNumber) -> GenerationFenced:
        """Say who has the log now; whatever goes wrong in finding out does not hide that it is not us."""
        what = "this process no longer owns the job"
        try:
            history = self.read()
        except CheckpointError as error:
            return GenerationFenced(f"{what}: entry {number} is not its own ({error})")
        return fenced_by(history.claim, number, what)


def fenced_by(claim: Entry | None, number: EntryNumber, what: str) -> GenerationFenced:
    """The error that names who has the log: host, process and time, as far as its claim is still there."""
    who = "another process"
    if claim is not None and isinstance(claim.body, Claim):
        at = claim.body.started // 1_000_000
        who = f"process {claim.body.pid} on {host_of(claim.body.host)}, started at {at} (seconds since 1970)"
    generation = f" as generation {claim.number}" if claim else ""
    return GenerationFenced(f"{what}: entry {number} of its log was lost to {who}{generation}")


def backoff() -> Iterator[float]:
    """Seconds to wait before each further try: longer and longer up to ten, without an end."""
    seconds = 0.1
    while True:
        yield seconds
        seconds = min(seconds * 2, 10.0)
