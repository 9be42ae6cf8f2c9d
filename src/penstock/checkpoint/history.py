"""What the log says, all entries taken together: a pure value. Knows nothing of files, nor of who asks.

Nothing is stored as a status: what is restorable, open, pinned or condemned follows from which entries exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.entries import FIRST, NOTHING, Claim, Condemn, Entry, Manifest, Pin, Rewind, Stopped, Unpin
from penstock.errors import CheckpointUnreadable
from penstock.handles import Committable
from penstock.ids import CheckpointId, EntryNumber, Generation

LOST_JUMP: Final = 1_000_000
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
    tail: EntryNumber = NOTHING
    tail_hash: str = ""
    below_floor: tuple[EntryNumber, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nobody has ever claimed this log."""
        return self.tail == NOTHING

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
            newest = newest + LOST_JUMP if key is None else max(newest, key)
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
        return self._newest_manifest.floor if self._newest_manifest else FIRST

    @property
    def deleted(self) -> EntryNumber:
        """Deletions recorded up to this entry are done."""
        return self._newest_manifest.deleted if self._newest_manifest else NOTHING

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

    def condemnations(self, after: EntryNumber = NOTHING) -> Iterator[tuple[EntryNumber, tuple[str, ...]]]:
        """Entries above ``after`` that condemn files, and which, oldest first."""
        for entry in self.entries:
            match entry.body:
                case Condemn(files=files) | Manifest(condemned_files=files) if files and entry.number > after:
                    yield entry.number, files

    def condemned_files(self, after: EntryNumber = NOTHING) -> tuple[str, ...]:
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
