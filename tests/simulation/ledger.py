"""What must be true, kept beside what is: every durable change is told here and judged at once.

It reads entries with the product's decoder, and draws its own conclusions from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import paths
from penstock.checkpoint.codec import decode
from penstock.checkpoint.entries import Claim, Condemn, Manifest, Pin, Rewind, Unpin
from penstock.handles import Committable
from simulation.entries import brief, layer_paths, positions
from simulation.outside import Row, rows_of

if TYPE_CHECKING:
    from simulation.world import World

RowKey = tuple[int, int]


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


@dataclass
class Facts:
    """Ghost state; copied with the world."""

    log_id: str = ""
    tail: int = -1
    generation: int = -1
    manifests: dict[int, Manifest] = field(default_factory=dict)
    chains: dict[int, dict[str, frozenset[str]]] = field(default_factory=dict)
    condemned: set[int] = field(default_factory=set)
    doomed: dict[str, int] = field(default_factory=dict)
    came_back: set[str] = field(default_factory=set)
    """Condemned, and perhaps there again after a crash: deletions need not be durable."""
    pins: dict[str, int] = field(default_factory=dict)
    restore: int | None = None
    staged: dict[str, Committable] = field(default_factory=dict)
    content: dict[str, list[Row]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    discarded: set[str] = field(default_factory=set)
    void: set[str] = field(default_factory=set)
    published: dict[str, Counter[RowKey]] = field(default_factory=dict)
    expected: dict[str, dict[RowKey, int]] = field(default_factory=dict)

    def copy(self) -> Facts:
        copied: dict[str, Any] = {name: _copied(value) for name, value in vars(self).items()}
        return Facts(**copied)


def _copied(value: Any) -> Any:
    if isinstance(value, Counter | set):
        return value.copy()
    return {key: _copied(each) for key, each in value.items()} if isinstance(value, dict) else value


class Ledger:
    """Facts and rules. A violation stops the run where it happens, unless the world collects it."""

    def __init__(self, world: World, facts: Facts | None = None) -> None:
        self._world = world
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
        self._world.tell(f"log {number}: {brief(entry)}")
        if isinstance(entry.body, Claim):
            facts.generation = number
        elif entry.generation != facts.generation:
            self.violated("S3", f"entry {number} is of generation {entry.generation}, the owner is {facts.generation}")
        match entry.body:
            case Manifest() as manifest:
                self._manifest(manifest)
            case Rewind() as rewind:
                self._rewind(rewind)
            case Pin() as pin:
                facts.pins[pin.name] = pin.checkpoint
            case Unpin(name=name):
                facts.pins.pop(name, None)
            case Condemn(checkpoints=ids):
                facts.condemned.update(ids)
        self._check_condemned()

    def _check_condemned(self) -> None:
        facts = self.facts
        for name, checkpoint in facts.pins.items():
            if checkpoint in facts.condemned:
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
        parent = manifest.parent
        if parent != facts.restore:
            self.violated("R1", f"checkpoint {id} continues {parent}, the log says {facts.restore}")
        facts.restore = id
        late = facts.discarded - facts.void - facts.done
        if late:
            self.violated("R3", f"{sorted(late)[0]} was discarded, sources run, and it is not voided")
        chain = dict(facts.chains.get(parent, {})) if parent is not None else {}
        for item in manifest.open:
            names = {ref.path for ref in item.files}
            chain[item.uid] = chain.get(item.uid, frozenset()) | names
            for ref in item.files:
                self._staged(item, ref.path, ref.sha256)
        facts.chains[id] = chain
        self._check_cut(manifest, chain)

    def _staged(self, item: Committable, path: str, digest: str) -> None:
        facts = self.facts
        if path in facts.staged:
            return
        facts.staged[path] = item
        data = self._world.disk.durable(path)
        if data is None or sha256(data).hexdigest() != digest:
            self.violated("S2", f"{path} is open in checkpoint {item.checkpoint} and not durable")
            return
        facts.content[path] = rows_of(data)

    def _check_cut(self, manifest: Manifest, chain: dict[str, frozenset[str]]) -> None:
        """State and output hold exactly what lies before the positions."""
        at = positions(manifest)
        below = Counter((s, row) for s, end in at.items() for row in range(end))
        for task in manifest.tasks:
            allowed = self._world.event_time_of(at)
            if task.state is not None and task.watermark > allowed:
                self.violated("watermark", f"'{task.task}' stands at {task.watermark}, its input allows {allowed}")
            if task.state is not None:
                found: Counter[RowKey] = Counter()
                for ref in (file for layer in task.state.layers for file in layer.files):
                    data = self._world.disk.durable(ref.path)
                    if data is None or sha256(data).hexdigest() != ref.sha256:
                        self.violated("layers", f"{ref.path} of checkpoint {manifest.checkpoint} is not durable")
                        return
                    found.update((row[0], row[1]) for row in rows_of(data))
                self._compare(f"state of '{task.task}'", found, below, manifest)
        for uid in self._world.sinks:
            rows = Counter((s, r) for path in chain.get(uid, ()) for s, r, _ in self.facts.content.get(path, ()))
            self._compare(f"output of '{uid}'", rows, below, manifest)

    def _compare(self, what: str, found: Counter[RowKey], below: Counter[RowKey], manifest: Manifest) -> None:
        if found != below:
            self.violated(
                "cut",
                f"{what} in checkpoint {manifest.checkpoint}: too much {dict(found - below)}, "
                f"too little {dict(below - found)}",
            )

    def _rewind(self, rewind: Rewind) -> None:
        facts = self.facts
        facts.condemned.update(rewind.condemned)
        facts.restore = rewind.to
        facts.discarded.update(ref.path for item in rewind.discard for ref in item.files)
        at = positions(facts.manifests[rewind.to]) if rewind.to is not None else {}
        for uid in self._world.sinks:
            seen = facts.published.setdefault(uid, Counter())
            expected = facts.expected.setdefault(uid, {})
            for row in self._world.all_rows():
                if row[1] >= at.get(row[0], 0):
                    expected[row] = seen[row] + 1
                elif not seen[row]:
                    self.violated("R2", f"rewind to {rewind.to}, whose row {row} '{uid}' has not published")
                else:
                    expected[row] = seen[row]

    def wiped(self) -> None:
        """The operator deleted the state directory: all begins anew, and all is published once more."""
        before, self.facts = self.facts, Facts()
        self.facts.published = before.published
        for uid in self._world.sinks:
            seen = before.published.setdefault(uid, Counter())
            self.facts.expected[uid] = {row: seen[row] + 1 for row in self._world.all_rows()}

    def crashed(self) -> None:
        """What was deleted may be there again."""
        self.facts.came_back.update(path for path in self.facts.doomed if self._world.disk.is_there(path))

    def litter(self) -> list[str]:
        """Files of older generations that nothing needs and no entry condemns, though an owner has swept."""
        facts, found = self.facts, []
        keep = {path for id, m in facts.manifests.items() if id not in facts.condemned for path in layer_paths(m)}
        keep |= set(facts.staged) - facts.done - facts.discarded
        for path in self._world.disk.files:
            generation = paths.generation_of(path)
            if (
                generation is not None
                and generation < facts.generation
                and path not in keep
                and path not in facts.doomed
            ):
                found.append(path)
        return [path for path in found if not path.endswith(".voided") and (path[0] != "/" or facts.log_id in path)]

    # ------------------------------------------------------------------------------------------------ files and sinks

    def deleted(self, path: str) -> None:
        facts = self.facts
        for id, manifest in facts.manifests.items():
            if id not in facts.condemned and path in layer_paths(manifest):
                self.violated("G1", f"{path} is deleted, checkpoint {id} needs it")
        if path in facts.discarded:
            facts.void.add(path)
        elif path in facts.staged and path not in facts.done:
            self.violated("G1", f"{path} is deleted, and was not published")

    def moved(self, source: str, data: bytes) -> None:
        if self._world.disk.is_there(f"{source}.voided"):
            self._void(source)
        elif source in self.facts.staged or "/.penstock/" in source:
            self.published(source.split("/")[2], [source], rows_of(data))

    def voided(self, item: Committable) -> None:
        for ref in item.files:
            self._void(ref.path)

    def _void(self, path: str) -> None:
        if path not in self.facts.discarded:
            self.violated("R3", f"{path} is voided, and no entry says that it is discarded")
        self.facts.void.add(path)

    def published(self, uid: str, files: Sequence[str], rows: Sequence[Row]) -> None:
        facts = self.facts
        late = False
        for path in files:
            if path not in facts.staged:
                self.violated("S4", f"{path} is published and in no manifest")
            if path in facts.void:
                self.violated("R3", f"{path} is published after it was voided")
            late = late or path in facts.discarded
            facts.done.add(path)
        seen = facts.published.setdefault(uid, Counter())
        expected = facts.expected.setdefault(uid, {})
        self._world.tell(f"published by {uid}: {[row[:2] for row in rows]}")
        for number, row, count in rows:
            key = (number, row)
            seen[key] += 1
            if late:
                expected[key] = expected.get(key, 1) + 1
            if seen[key] > expected.get(key, 1):
                self.violated("once", f"row {key} is published {seen[key]} times by '{uid}'")
            if self._world.pipeline.shape.keyed and count != row + 1:
                self.violated("state", f"row {key} was counted as {count}")

    def missing(self) -> list[str]:
        """What should be published in the end and is not."""
        found = []
        for uid in self._world.sinks:
            seen, expected = self.facts.published.get(uid, Counter()), self.facts.expected.get(uid, {})
            found += [
                f"{uid}: row {row} {seen[row]} times, expected {expected.get(row, 1)}"
                for row in self._world.all_rows()
                if seen[row] != expected.get(row, 1)
            ]
        return found
