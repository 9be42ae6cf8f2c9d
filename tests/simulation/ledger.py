"""What must be true, kept beside what is: every durable change is told here and judged at once.

It reads entries with the product's decoder, and draws its own conclusions from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.checkpoint import paths
from penstock.checkpoint.entries import Claim, Condemn, Entry, Manifest, Pin, Rewind, Stopped, Unpin
from penstock.checkpoint.entry_codec import decode
from penstock.handles import Committable
from simulation.cuts import Cuts
from simulation.drains import Drains
from simulation.entries import brief, condemned_by, fulfilled_by, layer_paths
from simulation.exports import Imports
from simulation.facts import Facts, Violation
from simulation.letter_judge import PLACE, Letters
from simulation.letters import AGAIN
from simulation.names import first_called
from simulation.outside import Row, rows_of
from simulation.shapes import DEAD

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Ledger", "Violation"]


class Ledger:
    """Facts and rules. A violation stops the run where it happens, unless the world collects it."""

    def __init__(self, world: World, facts: Facts | None = None) -> None:
        self._world = world
        self._cuts = Cuts(world, self)
        self._drains = Drains(world, self)
        self._imports = Imports(world, self)
        self.letters = Letters(world, self)
        self.facts = facts or Facts()
        self.violation: Violation | None = None

    def violated(self, rule: str, what: str) -> None:
        """The first one is kept: whoever caused it may swallow the exception."""
        if self.violation is None:
            self.violation = Violation(rule, what)
            self._world.tell(f"VIOLATION {self.violation}")

    # ------------------------------------------------------------------------------------------------------- the log

    def entry_landed(self, path: str, data: bytes) -> None:
        number = paths.entry_number(path)
        if number is None:
            return
        entry, facts = decode(data, number), self.facts
        if number <= facts.tail:
            return  # a stray below the floor (L4)
        if number != facts.tail + 1:
            self.violated("S3", f"entry {number} above the tail {facts.tail}")
        facts.tail, facts.log_id = number, entry.log_id
        facts.entries[number] = entry
        self._world.tell(f"log {number}: {brief(entry)}")
        if isinstance(entry.body, Claim):
            facts.generation = number
        elif entry.generation != facts.generation:
            self.violated("S3", f"entry {number} is of generation {entry.generation}, the owner is {facts.generation}")
        for request in fulfilled_by(entry):
            if request in facts.fulfilled:
                self.violated("C3", f"request {request} is fulfilled by two entries")
            facts.fulfilled[request] = number
        self._take(entry)
        self._check_condemned()

    def _take(self, entry: Entry) -> None:
        facts = self.facts
        match entry.body:
            case Manifest() as manifest:
                self._manifest(manifest)
            case Rewind() as rewind:
                self._rewind(rewind)
            case Stopped() as stopped:
                self._drains.judge_stop(stopped)
            case Pin() as pin:
                facts.pins[pin.name] = pin.checkpoint
            case Unpin(name=name):
                facts.pins.pop(name, None)
            case Condemn(checkpoints=ids, files=files):
                facts.condemned.update(ids)
                facts.doomed.update(dict.fromkeys(files, facts.tail))

    def _check_condemned(self) -> None:
        facts = self.facts
        for name, checkpoint in facts.pins.items():
            if checkpoint in facts.condemned and not self._is_forgotten(checkpoint):
                self.violated("pin", f"checkpoint {checkpoint}, pinned as {name}, is condemned")
        if facts.restore is not None and facts.restore in facts.condemned:
            self.violated("restore", f"checkpoint {facts.restore} is to be restored and condemned")

    def _manifest(self, manifest: Manifest) -> None:
        facts, id = self.facts, manifest.checkpoint
        if any(id <= other for other in facts.manifests):
            self.violated("R4", f"checkpoint id {id} does not rise")
        facts.manifests[id] = manifest
        facts.condemned.update(manifest.condemned)
        for path, number in facts.doomed.items():
            if number <= manifest.deleted and path not in facts.came_back and self._world.disk.is_there(path):
                self.violated("done", f"{path} is there, and its deletion is recorded as done")
        facts.doomed.update(dict.fromkeys(manifest.condemned_files, facts.tail))
        facts.pins.update({pin.name: pin.checkpoint for pin in manifest.pins})
        if manifest.origin is not None:
            self._imports.judge(manifest)
        elif manifest.parent != facts.restore:
            self.violated("R1", f"checkpoint {id} continues {manifest.parent}, the log says {facts.restore}")
        facts.restore = id
        late = facts.discarded - facts.void - facts.done
        if late:
            self.violated("R3", f"{sorted(late)[0]} was discarded, sources run, and it is not voided")
        if manifest.origin is None:
            self._cuts.judge(manifest)
            self._drains.judge(manifest)

    def _rewind(self, rewind: Rewind) -> None:
        facts = self.facts
        for number in rewind.lost:
            self._lose(number)
        facts.condemned.update(rewind.condemned)
        facts.restore = rewind.to
        facts.discarded.update(ref.path for item in rewind.discard for ref in item.files)
        kept = facts.covered[rewind.to] if rewind.to is not None else {}
        for uid in self._world.sinks:
            seen = facts.published.setdefault(uid, Counter())
            expected = facts.expected.setdefault(uid, {})
            for row in self._world.all_rows():
                if row not in kept.get(uid, frozenset()):
                    expected[row] = seen[row] + 1
                elif not seen[row] and (uid, row) not in facts.excused:
                    self.violated("R2", f"rewind to {rewind.to}, whose row {row} '{uid}' has not published")
                else:
                    expected[row] = seen[row]

    def _lose(self, number: int) -> None:
        """An entry that cannot be read is gone past (R8): what only it said is no longer true."""
        facts, entry = self.facts, self.facts.entries[number]
        body = entry.body
        facts.doomed = {path: at for path, at in facts.doomed.items() if at != number}
        for request in fulfilled_by(entry):
            del facts.fulfilled[request]
        if isinstance(body, Pin):
            facts.pins.pop(body.name, None)
        if not isinstance(body, Manifest):
            return
        facts.condemned.add(body.checkpoint)
        named = {pin.name for pin in body.pins}
        facts.pins = {name: id for name, id in facts.pins.items() if id != body.checkpoint and name not in named}
        speaking = [
            (n, e.body.open if isinstance(e.body, Manifest) else ())
            for n, e in sorted(facts.entries.items())
            if n not in (number, facts.tail)
            and isinstance(e.body, Manifest | Rewind | Stopped)
            and self._world.disk.is_entry(n)
        ]
        newest, known = speaking[-1] if speaking else (-1, ())
        if newest < number:
            kept = {ref.path for item in known for ref in item.files}
            facts.lost |= {ref.path for item in body.open for ref in item.files} - kept - facts.done

    def wiped(self) -> None:
        """The operator deleted the state directory: all begins anew, and all is published once more."""
        before, self.facts = self.facts, Facts()
        self.facts.published, self.facts.exports, self.facts.owners = before.published, before.exports, before.owners
        self.facts.again = before.again
        for uid in self._world.sinks:
            seen = before.published.setdefault(uid, Counter())
            self.facts.expected[uid] = {row: seen[row] + 1 for row in self._world.all_rows()}

    def crashed(self) -> None:
        """What was deleted may be there again."""
        self.facts.dropped = {path for path in self.facts.dropped if not self._world.disk.is_there(path)}
        self.facts.came_back.update(path for path in self.facts.doomed if self._world.disk.is_there(path))

    def litter(self) -> list[str]:
        """Files of older generations that nothing needs and no entry condemns, though an owner has swept."""
        facts, found = self.facts, []
        keep = {path for id, m in facts.manifests.items() if id not in facts.condemned for path in layer_paths(m)}
        keep |= set(facts.staged) - facts.done - facts.discarded - facts.lost
        for path in self._world.disk.files:
            generation = paths.generation_of(path)
            is_old = generation is not None and generation < facts.generation
            if is_old and not path.startswith("/exports/") and path not in keep and path not in facts.doomed:
                found.append(path)
        shape = self._world.pipeline.shape
        gone = tuple(f"/out/{uid}/" for uid in shape.without)  # nobody lists their folders
        if shape.letters:
            gone += (f"{PLACE}/",) if DEAD in shape.without else ()
            found = [p for p in found if not p.startswith(PLACE) or p.startswith(f"{PLACE}/{shape.uid(DEAD)}/")]
        found = [path for path in found if not path.startswith(gone)]
        return [path for path in found if not path.endswith(".voided") and (path[0] != "/" or facts.log_id in path)]

    def _is_forgotten(self, checkpoint: int) -> bool:
        """Whether only entries condemn it that cannot be read and that a rewind went past: then nobody can know."""
        entries = self.facts.entries
        lost = {number for entry in entries.values() if isinstance(entry.body, Rewind) for number in entry.body.lost}
        condemns = {number for number, entry in entries.items() if checkpoint in condemned_by(entry)}
        manifests = [body for number in lost if isinstance(body := entries[number].body, Manifest)]
        is_lost = any(manifest.checkpoint == checkpoint for manifest in manifests)
        return bool(condemns) and condemns <= lost and not is_lost

    # ------------------------------------------------------------------------------------------------ files and sinks

    def deleted(self, path: str) -> None:
        facts = self.facts
        for id, manifest in facts.manifests.items():
            if id not in facts.condemned and path in layer_paths(manifest):
                self.violated("G1", f"{path} is deleted, checkpoint {id} needs it")
        if path in facts.finals and path not in facts.dropped:
            self.violated("letters", f"{path} is deleted, and nobody has dropped it")
        if path in facts.discarded:
            facts.void.add(path)
        elif path in facts.staged and path not in facts.done and path not in facts.lost:
            self.violated("G1", f"{path} is deleted, and was not published")

    def moved(self, source: str, data: bytes) -> None:
        if self._world.disk.is_there(f"{source}.voided"):
            self._void(source)
        elif source in self.facts.staged or "/.penstock/" in source:
            self.published(source.split("/.penstock/", maxsplit=1)[0].rpartition("/")[2], [source], rows_of(data))

    def voided(self, item: Committable) -> None:
        for ref in item.files:
            self._void(ref.path)

    def _void(self, path: str) -> None:
        if path not in self.facts.discarded:
            self.violated("R3", f"{path} is voided, and no entry says that it is discarded")
        self.facts.void.add(path)

    def published(self, uid: str, files: Sequence[str], rows: Sequence[Row]) -> None:
        facts, world, uid = self.facts, self._world, first_called(uid)
        late = False
        for path in files:
            if path not in facts.staged:
                self.violated("S4", f"{path} is published and in no manifest")
            if path in facts.void:
                self.violated("R3", f"{path} is published after it was voided")
            late = late or path in facts.discarded or path in facts.lost
            facts.done.add(path)
        seen = facts.published.setdefault(uid, Counter())
        expected = facts.expected.setdefault(uid, {})
        world.tell(f"published by {uid}: {[row[:2] for row in rows]}")
        for number, row, count in rows:
            key = (number, row)
            seen[key] += 1
            if late:
                expected[key] = expected.get(key, 1) + 1
            if not world.terms.shape.takes(uid, number, row):
                self.violated("port", f"row {key} is published by '{uid}', where it does not belong")
            if seen[key] > expected.get(key, 1):
                self._twice(uid, key, seen[key])
            if count and row < AGAIN and uid != DEAD and count != world.terms.shape.good_below(number, row) + 1:
                self.violated("state", f"row {key} was counted as {count}")

    def _twice(self, uid: str, key: tuple[int, int], times: int) -> None:
        if self._world.is_exact:
            self.violated("once", f"row {key} is published {times} times by '{uid}'")
        self._world.count("repeated")

    def missing(self, *, unread: bool = True) -> list[str]:
        """What should be published in the end and is not; ``unread`` rows, too."""
        facts, found = self.facts, []
        owed = facts.covered.get(facts.restore, {}) if facts.restore is not None else {}
        emitted = facts.emitted.get(facts.restore, frozenset()) if facts.restore is not None else frozenset()
        for number in self._world.pipeline.shape.sources if unread else ():
            total = self._world.terms.shape.totals[number]
            found += [f"row {(number, row)} was not read" for row in range(total) if (number, row) not in emitted]
        for uid in self._world.sinks:
            seen, expected = facts.published.get(uid, Counter()), facts.expected.get(uid, {})
            for row in sorted(owed.get(uid, ())):
                wanted = expected.get(row, 1)
                if seen[row] < wanted or (seen[row] > wanted and self._world.is_exact):
                    found.append(f"{uid}: row {row} {seen[row]} times, expected {wanted}")
        return found
