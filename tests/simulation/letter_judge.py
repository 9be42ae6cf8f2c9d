"""The judge of dead letters: which there are, which replays name, what is read of them on which timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.entries import Entry, Manifest, Rewind
from penstock.dead_letters.store import Replay, decode_replay
from penstock.errors import CheckpointError
from simulation.entries import ended, replays_read
from simulation.facts import RowKey
from simulation.letter_tools import listed
from simulation.letters import read_again
from simulation.shapes import DEAD

if TYPE_CHECKING:
    from penstock.admin.dead_letter_replay import ReplayResult
    from simulation.ledger import Ledger
    from simulation.world import World

PLACE = "/job/deadletters"
Seen = tuple[int, frozenset[str]]


class Letters:
    """Letters are known by the paths of their files; of a checkpoint are those that its timeline has put there."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger

    # ------------------------------------------------------------------------------------------------- by the log

    def cover(self, manifest: Manifest) -> frozenset[RowKey]:
        """Rows that this checkpoint has read from letters, and its parent had not."""
        facts, parent = self._ledger.facts, manifest.parent
        kept = facts.letters.get(-1 if parent is None else parent, frozenset())
        found: set[RowKey] = set()
        for uid, number in replays_read(manifest).items():
            before = number if parent is None else replays_read(facts.manifests[parent]).get(uid, 0)
            if number < before:
                self._wrong(f"checkpoint {manifest.checkpoint} has read {number} replays of '{uid}', had {before}")
            for each in range(before + 1, number + 1):
                found |= self._rows(manifest, uid, each, kept)
        facts.letters[manifest.checkpoint] = kept | self._put(manifest)
        return frozenset(found)

    def _rows(self, manifest: Manifest, uid: str, number: int, kept: frozenset[str]) -> set[RowKey]:
        facts = self._ledger.facts
        replay = facts.replays.get(uid, {}).get(number)
        if replay is None:
            self._wrong(f"checkpoint {manifest.checkpoint} has read replay {number} of '{uid}', which is not there")
            return set()
        self._world.count("replay in a checkpoint")
        found: set[RowKey] = set()
        for path, place in _named(replay):
            if path not in kept or path in facts.dropped:
                self._world.count("letter passed over")
                continue
            source, row, _ = facts.content[facts.finals[path]][place]
            found.add((source, read_again(row, uid, number)))
        return found

    def _put(self, manifest: Manifest) -> frozenset[str]:
        facts, found = self._ledger.facts, set()
        for item in manifest.open:
            if item.target.startswith(PLACE):
                detail: Any = item.detail
                for staged, final in detail["moves"].items():
                    facts.finals[final] = staged
                    found.add(final)
        return frozenset(found)

    def bring(self, manifest: Manifest, letters: frozenset[str], read: dict[str, int], log_id: str) -> None:
        """A checkpoint from a folder: letters and replays are those of this directory, if it was exported here."""
        facts = self._ledger.facts
        is_ours = log_id == facts.log_id
        facts.letters[manifest.checkpoint] = letters if is_ours else frozenset()
        if replays_read(manifest) != (read if is_ours else {}):
            self._wrong(f"checkpoint {manifest.checkpoint}, from a folder, has read {replays_read(manifest)}: {read}")

    # ------------------------------------------------------------------------------------------------- by commands

    def landed(self, path: str, data: bytes) -> None:
        """A replay is there."""
        facts, replay = self._ledger.facts, decode_replay(data, path)
        known = facts.replays.setdefault(replay.uid, {})
        if replay.number != max(known, default=0) + 1:
            self._wrong(f"replay {replay.number} of '{replay.uid}' is there, behind {sorted(known)}")
        named = {letter for other in known.values() for letter in _named(other)}
        mine = {letter for other in known.values() if other.command == replay.command for letter in _named(other)}
        known[replay.number] = replay
        for file, place in _named(replay):
            if facts.finals.get(file) not in facts.done:
                self._wrong(f"replay {replay.number} names {file}, which is not published")
                return
            twice = mine if replay.command in facts.asked_again else named
            if (file, place) in twice:
                self._wrong(f"replay {replay.number} names letter {place} of {file}, as one before it does")
            source, row, _ = facts.content[facts.finals[file]][place]
            facts.again.add((source, read_again(row, replay.uid, replay.number)))
        self._world.count("replay")
        self._world.tell(
            f"replay {replay.number} of '{replay.uid}' names {[(e.file, e.ranges) for e in replay.letters]}"
        )

    def standing(self) -> Seen:
        """When that is, and the letters that can be seen now."""
        facts = self._ledger.facts
        here = facts.letters.get(-1 if facts.restore is None else facts.restore, frozenset())
        return facts.tail, frozenset(p for p in here if facts.finals[p] in facts.done) - facts.dropped

    def told(self, seen: Seen, done: ReplayResult) -> None:
        """A command has ended that was to replay all: nothing that was there when it began is left out."""
        facts, (tail, files) = self._ledger.facts, seen
        since = [facts.entries[n].body for n in range(tail + 1, facts.tail + 1)]
        if any(isinstance(body, Rewind) or (isinstance(body, Manifest) and body.origin) for body in since):
            return
        named = {letter for replay in facts.replays.get(done.uid, {}).values() for letter in _named(replay)}
        for path in sorted(files - facts.dropped):
            if path.startswith(f"{PLACE}/{done.uid}/"):
                left = [p for p in range(len(facts.content[facts.finals[path]])) if (path, p) not in named]
                if left:
                    self._wrong(f"all letters of '{done.uid}' were to be replayed, and {left} of {path} are not")

    @property
    def is_open(self) -> bool:
        """Whether there are letters that no replay names, and a source that could yet read them."""
        facts = self._ledger.facts
        if not facts.finals or facts.restore is None or 0 in ended(facts.manifests[facts.restore]):
            return False
        named = {path for replays in facts.replays.values() for r in replays.values() for path, _ in _named(r)}
        return bool(self.standing()[1] - named)

    @property
    def is_dear(self) -> bool:
        """Whether there are letters that only an older checkpoint has yet to read: when a drop is dangerous."""
        facts = self._ledger.facts
        if facts.restore is None or not facts.replays:
            return False
        newest = replays_read(facts.manifests[facts.restore])
        kept = [facts.manifests[id] for id in facts.known() if facts.letters.get(id)]
        return any(replays_read(each).get(uid, 0) < number for each in kept for uid, number in newest.items())

    def look(self) -> None:
        """Somebody lists letters: those that the restore point's timeline has published, and no others."""
        try:
            files = [file for place in listed(self._world) for file in place.files]
        except CheckpointError:
            if self._world.disk.rotten:
                return  # until somebody has gone past it, or put it back
            raise
        _, here = self.standing()
        told = {file.path for file in files if file.is_live}
        if told != here:
            self._wrong(f"listed are {sorted(told - here)} and should not be, and {sorted(here - told)} are not")
        self._world.count("letters listed")
        if any(not file.is_live for file in files):
            self._world.count("letters undone")

    def drop(self, files: Sequence[str]) -> None:
        """Somebody drops these: no checkpoint that can be restored has yet to read them."""
        facts = self._ledger.facts
        for uid, replays in facts.replays.items():
            last = {path: replay.number for replay in replays.values() for path, _ in _named(replay)}
            for id in facts.known():
                read = replays_read(facts.manifests[id]).get(uid, 0)
                for path in files:
                    if path in facts.letters.get(id, ()) and last.get(path, 0) > read:
                        self._wrong(f"{path} is dropped, and checkpoint {id} has yet to read replay {last[path]}")
        facts.dropped.update(files)

    # ------------------------------------------------------------------------------------------------- at the end

    def owed(self) -> dict[str, int]:
        """How many replays whoever starts now has to read: those that are there before its source has ended."""
        facts, world = self._ledger.facts, self._world
        shape = world.pipeline.shape
        if not shape.letters or DEAD in shape.without or facts.restore is None:
            return {}
        if 0 in ended(facts.manifests[facts.restore]):
            return {}
        uid = shape.uid(DEAD)
        return {uid: max(facts.replays.get(uid, {}), default=0)}

    def unread(self, owed: dict[str, int]) -> list[str]:
        """Of those, what was not read."""
        facts = self._ledger.facts
        read = replays_read(facts.manifests[facts.restore]) if facts.restore is not None else {}
        return [f"replay {number} of '{uid}' was not read" for uid, number in owed.items() if read.get(uid, 0) < number]

    def _wrong(self, what: str) -> None:
        self._ledger.violated("letters", what)


def _named(replay: Replay) -> list[tuple[str, int]]:
    """The letters of a replay: file, and place in it."""
    return [
        (f"{PLACE}/{replay.uid}/{each.file}", place)
        for each in replay.letters
        for start, end in each.ranges
        for place in range(start, end)
    ]


def puts_letters(entry: Entry) -> bool:
    """Whether this is a checkpoint with letters to publish."""
    return isinstance(entry.body, Manifest) and any(item.target.startswith(PLACE) for item in entry.body.open)
