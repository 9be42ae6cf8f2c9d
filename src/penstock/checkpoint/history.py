"""All entries of the log taken together, and what follows from them; names of checkpoints; timelines after rewinds.

Nothing is stored as a status: what is restorable, open, pinned or condemned follows from which entries exist.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.entries import (
    FIRST_ENTRY,
    NO_ENTRY,
    Claim,
    Condemn,
    Entry,
    Manifest,
    Pin,
    Rewind,
    Stopped,
    Unpin,
)
from penstock.errors import CheckpointUnreadable, UnknownName, did_you_mean
from penstock.handles import CheckpointId, Committable, EntryNumber, Generation

ID_JUMP: Final = 1_000_000
"""Checkpoint ids that are skipped for each unreadable entry: more than it can have used."""

# ---- the history of a log -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """An entry whose file exists but does not hold what was written."""

    number: EntryNumber
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMark:
    """How far a log was when it was read: its newest entry, by number and by hash of its bytes."""

    log_id: str | None
    tail: EntryNumber
    tail_hash: str

    def __str__(self) -> str:
        return f"entry {self.tail} ({self.tail_hash[:12]})" if self.tail_hash else "no entry"


@dataclass(frozen=True, kw_only=True)
class History:
    """The entries at and above the floor, in order, and everything that follows from them.

    Attributes:
        entries: the readable ones.
        unreadable: the others. A plain read of the log refuses them unless a rewind names them as lost.
        tail: number of the newest entry, ``-1`` in an empty log.
        tail_hash: sha256 of its bytes.
        below_floor: numbers of entries that exist but are no longer needed; trimming keeps only the newest.
    """

    entries: tuple[Entry, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    tail: EntryNumber = NO_ENTRY
    tail_hash: str = ""
    below_floor: tuple[EntryNumber, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the log has no entry."""
        return self.tail == NO_ENTRY

    @property
    def mark(self) -> LogMark:
        """The newest entry, to compare with later."""
        return LogMark(log_id=self.log_id, tail=self.tail, tail_hash=self.tail_hash)

    @property
    def log_id(self) -> str | None:
        """Identity of the log, ``None`` while it is empty."""
        return self.entries[0].log_id if self.entries else None

    @property
    def job(self) -> str | None:
        """The job whose log it is, ``None`` while it is empty."""
        return self.entries[0].job if self.entries else None

    @cached_property
    def manifests(self) -> Mapping[CheckpointId, tuple[EntryNumber, Manifest]]:
        """Every checkpoint in the log, on any timeline, oldest first."""
        return {
            entry.body.checkpoint: (entry.number, entry.body)
            for entry in self.entries
            if isinstance(entry.body, Manifest)
        }

    @cached_property
    def condemned(self) -> frozenset[CheckpointId]:
        """Checkpoints that can never be restored again, by any kind of entry (R6)."""
        found: set[CheckpointId] = set()
        for entry in self.entries:
            match entry.body:
                case Condemn(checkpoints=ids) | Manifest(condemned=ids) | Rewind(condemned=ids):
                    found.update(ids)
        return frozenset(found)

    @cached_property
    def pins(self) -> Mapping[str, Pin]:
        """The current pins by name, given by any kind of entry (R6)."""
        current: dict[str, Pin] = {}
        for entry in self.entries:
            match entry.body:
                case Pin() as pin:
                    current[pin.name] = pin
                case Unpin(name=name):
                    current.pop(name, None)
                case Manifest(pins=pins):
                    current.update({pin.name: pin for pin in pins})
        return current

    def names_of(self, checkpoint: CheckpointId) -> tuple[str, ...]:
        """The current names of a checkpoint, sorted."""
        return tuple(sorted(pin.name for pin in self.pins.values() if pin.checkpoint == checkpoint))

    @property
    def pinned(self) -> frozenset[CheckpointId]:
        """Checkpoints that have a name."""
        return frozenset(pin.checkpoint for pin in self.pins.values())

    @property
    def restorable(self) -> Mapping[CheckpointId, Manifest]:
        """Checkpoints that could be restored, on any timeline, oldest first."""
        return {key: manifest for key, (_, manifest) in self.manifests.items() if key not in self.condemned}

    @cached_property
    def restore_point(self) -> Manifest | None:
        """The checkpoint that the last manifest or rewind sets (R1); ``None`` is empty state.

        Raises:
            CheckpointUnreadable: a rewind names a checkpoint that is not there.
        """
        for entry in reversed(self.entries):
            match entry.body:
                case Manifest() as manifest:
                    return manifest
                case Rewind(to=target):
                    return None if target is None else self._target(entry.number, target)
        return None

    def _target(self, number: EntryNumber, target: CheckpointId) -> Manifest:
        found = self.restorable.get(target)
        if found is None:
            msg = f"{paths.entry(number)} rewinds to checkpoint {target}, which the log does not hold as restorable."
            raise CheckpointUnreadable(msg)
        return found

    @cached_property
    def open_committables(self) -> tuple[Committable, ...]:
        """Committables that may be unpublished, in order, by the newest manifest, rewind or ``stopped`` entry (R5).

        A manifest's list is complete. Before a rewind everything is published but what it discards. After a
        ``stopped`` entry nothing is open.
        """
        for entry in reversed(self.entries):
            match entry.body:
                case Manifest(open=items):
                    return items
                case Rewind() | Stopped():
                    return ()
        return ()

    @cached_property
    def to_void(self) -> tuple[Committable, ...]:
        """Discarded committables that a recovery voids before its sources start (R3)."""
        found: list[Committable] = []
        for entry in reversed(self.entries):
            match entry.body:
                case Manifest() | Stopped():
                    break
                case Rewind(discard=items):
                    found[:0] = items
        return tuple(found)

    @property
    def next_checkpoint(self) -> CheckpointId:
        """The next id: above all ids of all timelines (R4), and above those that lost entries may have used (R8)."""
        return self.next_checkpoint_past(self.lost)

    def next_checkpoint_past(self, lost: frozenset[EntryNumber]) -> CheckpointId:
        """The next id after a rewind that records these entries as lost."""
        events = sorted([*((number, None) for number in lost), *((n, key) for key, (n, _) in self.manifests.items())])
        newest = -1
        for _, key in events:
            newest = newest + ID_JUMP if key is None else max(newest, key)
        return CheckpointId(newest + 1)

    @cached_property
    def lost(self) -> frozenset[EntryNumber]:
        """Numbers of unreadable entries that a rewind skipped."""
        return frozenset(
            number for entry in self.entries if isinstance(entry.body, Rewind) for number in entry.body.lost
        )

    @property
    def floor(self) -> EntryNumber:
        """Number of the first entry that is read, by the newest manifest."""
        return self._newest_manifest.floor if self._newest_manifest else FIRST_ENTRY

    @property
    def deleted(self) -> EntryNumber:
        """The entry up to which recorded deletions are done."""
        return self._newest_manifest.deleted if self._newest_manifest else NO_ENTRY

    @cached_property
    def _newest_manifest(self) -> Manifest | None:
        return next((e.body for e in reversed(self.entries) if isinstance(e.body, Manifest)), None)

    @property
    def claim(self) -> Entry | None:
        """The owner's claim; ``None`` if it was trimmed away or is unreadable: an earlier one is another process's."""
        newest = next((entry for entry in reversed(self.entries) if isinstance(entry.body, Claim)), None)
        return newest if newest is not None and newest.generation == self.generation else None

    @property
    def generation(self) -> Generation | None:
        """The generation that owns the log."""
        return self.entries[-1].generation if self.entries else None

    def condemnations(self, after: EntryNumber = NO_ENTRY) -> Iterator[tuple[EntryNumber, tuple[str, ...]]]:
        """Entries above ``after`` that condemn files, each with its files, oldest first."""
        for entry in self.entries:
            match entry.body:
                case Condemn(files=files) | Manifest(condemned_files=files) if files and entry.number > after:
                    yield entry.number, files

    def condemned_files(self, after: EntryNumber = NO_ENTRY) -> tuple[str, ...]:
        """Files that entries above ``after`` condemn, oldest first."""
        return tuple(path for _, files in self.condemnations(after) for path in files)

    def entry_that_fulfils(self, request: str) -> Entry | None:
        """The entry that answers a request, if there is one (C3)."""
        for entry in self.entries:
            match entry.body:
                case Manifest(fulfils=ids) | Stopped(fulfils=ids) if request in ids:
                    return entry
                case Pin(request=held) | Unpin(request=held) | Rewind(request=held) if held == request:
                    return entry
        return None

    def built_on(self, roots: frozenset[CheckpointId]) -> frozenset[CheckpointId]:
        """``roots`` and every checkpoint of the log that continues one of them, directly or not."""
        found = set(roots)
        for key, (_, manifest) in self.manifests.items():
            if manifest.parent in found:
                found.add(key)
        return frozenset(found)


# ---- names of checkpoints -------------------------------------------------------------------------------------------


def name_conflict(history: History, name: str) -> str | None:
    """Why a new savepoint cannot have this name; ``None`` if it can."""
    pin = history.pins.get(name)
    if pin is None:
        return None
    return f"{name!r} exists already as checkpoint {pin.checkpoint}. Choose another name, because names never move."


def resolve_checkpoint(history: History, text: str) -> CheckpointId:
    """The restorable checkpoint that a savepoint's name, or a number, means.

    Raises:
        UnknownName: there is none, or its files may be gone; the message lists those that can be restored.
    """
    if not text.isdecimal():
        pin = history.pins.get(text)
        if pin is None:
            names = did_you_mean(text, history.pins) or ". It has none at all."
            msg = f"Job {history.job!r} has no savepoint {text!r}{names}"
            raise UnknownName(msg)
        if pin.checkpoint not in history.restorable:
            msg = (
                f"Savepoint {text!r} is checkpoint {pin.checkpoint}, which is lost. Its entry in the log could not be "
                f"read and was given up. Drop the name with penstock savepoint drop {history.job} {text}."
            )
            raise UnknownName(msg)
        return pin.checkpoint
    checkpoint = CheckpointId(int(text))
    if checkpoint not in history.restorable:
        why = "is condemned, so its files may be gone" if checkpoint in history.condemned else "is not in the log"
        known = ", ".join(map(str, history.restorable)) or "none"
        msg = f"Checkpoint {checkpoint} {why}. Restorable checkpoints: {known}."
        raise UnknownName(msg)
    return checkpoint


# ---- timelines ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timeline:
    """The checkpoints that led to one checkpoint, among all that the log knows.

    Attributes:
        known: ids of all checkpoints of the log, sorted.
        mine: that checkpoint and those it was built on.
        undone: half-open ranges of ids on other timelines, including checkpoints that were trimmed from the log.
        below: the newest checkpoint it was built on that is no longer in the log, or unreadable; ``None`` if there is
            none.
    """

    known: tuple[CheckpointId, ...] = ()
    mine: frozenset[CheckpointId] = frozenset()
    undone: tuple[tuple[int, int], ...] = ()
    below: CheckpointId | None = None

    def has(self, checkpoint: int) -> bool:
        """Whether output that was prepared for a checkpoint is on this timeline, or later than it.

        Output of an aborted checkpoint belongs to the next one.

        >>> left = Timeline(known=(0, 1, 2, 3), mine=frozenset({0, 1}))
        >>> [left.has(each) for each in (1, 2, 3, 4)]
        [True, False, False, True]
        """
        if any(first <= checkpoint < end for first, end in self.undone):
            return False
        if self.below is not None and checkpoint <= self.below:
            return True
        at = bisect_left(self.known, checkpoint)
        return at == len(self.known) or self.known[at] in self.mine

    def others(self) -> tuple[tuple[int, int], ...]:
        """Ranges of all ids that are not on this timeline, up to the newest known one."""
        found, first = list(self.undone), 0 if self.below is None else self.below + 1
        for each in self.known:
            if each < first:
                continue  # known but older than ``below``, whose successor records in ``undone`` what was undone there
            if each not in self.mine:
                found.append((first, each + 1))
            first = each + 1
        return _merged(found)


UNBROKEN: Final = Timeline()
"""The timeline of a log without checkpoints: nothing was undone."""


def timeline(history: History, restored: CheckpointId | None) -> Timeline:
    """The timeline that leads to ``restored``; ``None`` for a job that began empty.

    Sources read all rows behind that checkpoint again, so output of other timelines is of rows that come again.
    """
    manifests = history.manifests
    mine: set[CheckpointId] = set()
    undone = set(_ids_skipped(history))
    key = restored
    while key is not None and key in manifests and key not in mine:
        mine.add(key)
        manifest = manifests[key][1]
        undone.update(manifest.undone)
        key = _predecessor(manifest, history)
    return Timeline(tuple(sorted(manifests)), frozenset(mine), _merged(undone), key)


def _ids_skipped(history: History) -> Iterator[tuple[int, int]]:
    """Checkpoint ids that may have been used by unreadable entries; a rewind skips them (R8).

    The process that wrote such an entry may have published the output that it names.
    """
    for number, body in ((entry.number, entry.body) for entry in history.entries):
        if isinstance(body, Rewind) and body.lost:
            before = replace(history, entries=tuple(each for each in history.entries if each.number < number))
            lost = frozenset(each for each in history.lost if each < number)
            yield max(before.manifests, default=-1) + 1, before.next_checkpoint_past(lost)


def abandoned_ids(manifest: Manifest, history: History) -> tuple[tuple[int, int], ...]:
    """The value of ``undone`` for a manifest that is about to be appended; empty before the first rewind.

    Rewinds and abandoned checkpoints are trimmed from the log, while their output may stay for ever. So each
    checkpoint records which ids are not on its timeline.
    """
    before = _predecessor(manifest, history)
    recorded = () if before is None else manifest.undone
    ranges = (*timeline(history, before).others(), *recorded)
    return _merged((first, min(end, manifest.checkpoint)) for first, end in ranges if first < manifest.checkpoint)


def _predecessor(manifest: Manifest, history: History) -> CheckpointId | None:
    """The checkpoint of this log that a manifest continues: its parent, or its origin if that is of this log."""
    origin = manifest.origin
    if manifest.parent is not None or origin is None or origin.log_id != history.log_id:
        return manifest.parent
    return origin.checkpoint if origin.checkpoint < manifest.checkpoint else None  # else exported from a copied log


def _merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same ids in as few ranges as possible, sorted."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return tuple(found)
