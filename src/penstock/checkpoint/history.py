"""All entries taken together; timelines after rewinds; names."""

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

# ----------------------------------------------------------------------------------------------------
# What the log says, all entries taken together: a pure value. Knows nothing of files, nor of who asks.
#
# Nothing is stored as a status: what is restorable, open, pinned or condemned follows from which entries exist.

ID_JUMP: Final = 1_000_000
"""How far checkpoint ids jump over an entry that cannot be read: more than it can have used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """An entry that is there but is not what was written."""

    number: EntryNumber
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMark:
    """How far a log was when somebody looked: its newest entry by number and by its bytes, so nothing else will do."""

    log_id: str | None
    tail: EntryNumber
    tail_hash: str

    def __str__(self) -> str:
        return f"entry {self.tail} ({self.tail_hash[:12]})" if self.tail_hash else "no entry"


@dataclass(frozen=True, kw_only=True)
class History:
    """The entries at and above the floor, in order, and everything that follows from them.

    Attributes:
        entries: those that can be read.
        unreadable: those that cannot; a plain read of the log refuses them unless a rewind names them as lost.
        tail: number of the newest entry, ``-1`` in an empty log.
        tail_hash: sha256 of its bytes.
        below_floor: numbers that are in the log but no longer needed: what trimming deletes.
    """

    entries: tuple[Entry, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    tail: EntryNumber = NO_ENTRY
    tail_hash: str = ""
    below_floor: tuple[EntryNumber, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nobody has ever claimed this log."""
        return self.tail == NO_ENTRY

    @property
    def mark(self) -> LogMark:
        """How far the log is."""
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
        """Checkpoints that can never be restored again, wherever that is said (R6)."""
        found: set[CheckpointId] = set()
        for entry in self.entries:
            match entry.body:
                case Condemn(checkpoints=ids) | Manifest(condemned=ids) | Rewind(condemned=ids):
                    found.update(ids)
        return frozenset(found)

    @cached_property
    def pins(self) -> Mapping[str, Pin]:
        """Names that checkpoints have now, wherever they were given (R6)."""
        held: dict[str, Pin] = {}
        for entry in self.entries:
            match entry.body:
                case Pin() as pin:
                    held[pin.name] = pin
                case Unpin(name=name):
                    held.pop(name, None)
                case Manifest(pins=pins):
                    held.update({pin.name: pin for pin in pins})
        return held

    def names_of(self, checkpoint: CheckpointId) -> tuple[str, ...]:
        """Names that this checkpoint has now, sorted."""
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
        """What the last checkpoint or rewind entry says (R1); ``None`` is empty state.

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
            msg = f"{paths.entry(number)} rewinds to checkpoint {target}, which the log does not hold as restorable"
            raise CheckpointUnreadable(msg)
        return found

    @cached_property
    def open_committables(self) -> tuple[Committable, ...]:
        """What may not be published yet, in order: the list of the newest entry that speaks of it (R5).

        A manifest's list is complete. Before a rewind everything was published but what it discards; a ``stopped``
        entry says that nothing is open.
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
        """Above every id in the log, on any timeline (R4), and far above what a lost entry may have used (R8)."""
        return self.next_checkpoint_past(self.lost)

    def next_checkpoint_past(self, lost: frozenset[EntryNumber]) -> CheckpointId:
        """The same, for whoever is about to record that these entries are lost."""
        events = sorted([*((number, None) for number in lost), *((n, key) for key, (n, _) in self.manifests.items())])
        newest = -1
        for _, key in events:
            newest = newest + ID_JUMP if key is None else max(newest, key)
        return CheckpointId(newest + 1)

    @cached_property
    def lost(self) -> frozenset[EntryNumber]:
        """Entries that cannot be read and that a rewind went past."""
        return frozenset(
            number for entry in self.entries if isinstance(entry.body, Rewind) for number in entry.body.lost
        )

    @property
    def floor(self) -> EntryNumber:
        """Entries below are not read: the newest manifest says so."""
        return self._newest_manifest.floor if self._newest_manifest else FIRST_ENTRY

    @property
    def deleted(self) -> EntryNumber:
        """Deletions recorded up to this entry are done."""
        return self._newest_manifest.deleted if self._newest_manifest else NO_ENTRY

    @cached_property
    def _newest_manifest(self) -> Manifest | None:
        return next((e.body for e in reversed(self.entries) if isinstance(e.body, Manifest)), None)

    @property
    def claim(self) -> Entry | None:
        """The newest claim, unless it was trimmed away."""
        return next((entry for entry in reversed(self.entries) if isinstance(entry.body, Claim)), None)

    @property
    def generation(self) -> Generation | None:
        """Who owns the log, by the number of its claim."""
        return self.entries[-1].generation if self.entries else None

    def condemnations(self, after: EntryNumber = NO_ENTRY) -> Iterator[tuple[EntryNumber, tuple[str, ...]]]:
        """Entries above ``after`` that condemn files, and which, oldest first."""
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
        """``roots`` and every checkpoint of the log that continues one of them, however remotely."""
        found = set(roots)
        for key, (_, manifest) in self.manifests.items():
            if manifest.parent in found:
                found.add(key)
        return frozenset(found)


# ----------------------------------------------------------------------------------------------------
# Which name was meant: the nearest of those that are there, and which checkpoint a name or number is. Pure.


def name_conflict(history: History, name: str) -> str | None:
    """Why a new savepoint cannot have this name, if another has it."""
    pin = history.pins.get(name)
    if pin is None:
        return None
    return f"{name!r} exists already: it is checkpoint {pin.checkpoint}; choose another name, names never move"


def resolve_checkpoint(history: History, text: str) -> CheckpointId:
    """The restorable checkpoint that a savepoint's name, or a number, means.

    Raises:
        UnknownName: there is none, or its files may be gone; with those there are.
    """
    if not text.isdecimal():
        pin = history.pins.get(text)
        if pin is None:
            names = did_you_mean(text, history.pins) or "; it has none at all"
            msg = f"job {history.job!r} has no savepoint {text!r}{names}"
            raise UnknownName(msg)
        return pin.checkpoint
    checkpoint = CheckpointId(int(text))
    if checkpoint not in history.restorable:
        why = "is condemned, its files may be gone" if checkpoint in history.condemned else "is not in the log"
        known = ", ".join(map(str, history.restorable)) or "none"
        msg = f"checkpoint {checkpoint} {why}; restorable are: {known}"
        raise UnknownName(msg)
    return checkpoint


# ----------------------------------------------------------------------------------------------------
# Which output of a log belongs to what the job has done as it stands now, after rewinds: a pure decision.


@dataclass(frozen=True, slots=True)
class Timeline:
    """The checkpoints that led to one, among all that the log knows.

    Attributes:
        known: ids of all checkpoints of the log, sorted.
        mine: that checkpoint and those it was built on.
        undone: ranges of ids of other timelines, each with its first and the one behind its last; also of checkpoints
            that the log has forgotten.
        below: the newest checkpoint that it was built on and that the log no longer knows, or that cannot be read, if
            there is one.
    """

    known: tuple[CheckpointId, ...] = ()
    mine: frozenset[CheckpointId] = frozenset()
    undone: tuple[tuple[int, int], ...] = ()
    below: CheckpointId | None = None

    def has(self, checkpoint: int) -> bool:
        """Whether output that was prepared for a checkpoint is of this timeline, or of the time after it.

        Output of an aborted checkpoint is in the next one.

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
        """Ranges of all ids, up to the newest that is known, which are not of this timeline."""
        found, first = list(self.undone), 0 if self.below is None else self.below + 1
        for each in self.known:
            if each < first:
                continue  # known, and below one that is not: what was undone there that one's successor says
            if each not in self.mine:
                found.append((first, each + 1))
            first = each + 1
        return _joined(found)


UNBROKEN: Final = Timeline()
"""Of a log without checkpoints: nothing was undone."""


def timeline(history: History, restored: CheckpointId | None) -> Timeline:
    """The timeline that leads to a checkpoint; ``None`` for a job that began empty.

    What is read from the sources behind that checkpoint is read again: whatever other output there is of that time is
    of rows that come again.
    """
    manifests = history.manifests
    mine: set[CheckpointId] = set()
    undone = set(_gone_past(history))
    key = restored
    while key is not None and key in manifests and key not in mine:
        mine.add(key)
        manifest = manifests[key][1]
        undone.update(manifest.undone)
        key = _continues(manifest, history)
    return Timeline(tuple(sorted(manifests)), frozenset(mine), _joined(undone), key)


def _gone_past(history: History) -> Iterator[tuple[int, int]]:
    """Ids that only entries may have had that cannot be read (R8): those that a rewind past them jumps over.

    Whoever wrote such an entry knew it, and may have published what it says.
    """
    for number, body in ((entry.number, entry.body) for entry in history.entries):
        if isinstance(body, Rewind) and body.lost:
            before = replace(history, entries=tuple(each for each in history.entries if each.number < number))
            lost = frozenset(each for each in history.lost if each < number)
            yield max(before.manifests, default=-1) + 1, before.next_checkpoint_past(lost)


def abandoned_ids(manifest: Manifest, history: History) -> tuple[tuple[int, int], ...]:
    """What a manifest that is about to be appended says in ``undone``.

    The log forgets rewinds and what they left, while output of that time may stay for ever: so each checkpoint says
    what is not of its timeline. Nothing, as long as nobody has gone back.
    """
    before = _continues(manifest, history)
    said = () if before is None else manifest.undone
    ranges = (*timeline(history, before).others(), *said)
    return _joined((first, min(end, manifest.checkpoint)) for first, end in ranges if first < manifest.checkpoint)


def _continues(manifest: Manifest, history: History) -> CheckpointId | None:
    """The checkpoint of this log whose state it has; what was exported from this log goes on where it was then."""
    origin = manifest.origin
    if manifest.parent is not None or origin is None or origin.log_id != history.log_id:
        return manifest.parent
    return origin.checkpoint if origin.checkpoint < manifest.checkpoint else None  # else of a copy that went apart


def _joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same ids in as few ranges as can be, sorted."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return tuple(found)
