"""The judge of one checkpoint: its state and its output hold exactly what lies before its positions."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING

from penstock.checkpoint.entries import Manifest
from penstock.clock import MAX_WATERMARK
from penstock.handles import Committable, StateHandle
from simulation.entries import ended, positions, waiting
from simulation.facts import RowKey
from simulation.letters import AGAIN
from simulation.names import first_called
from simulation.outside import rows_of

if TYPE_CHECKING:
    from simulation.ledger import Ledger
    from simulation.world import World


class Cuts:
    """Judges manifests as they land. In at-least-once mode there may be more than lies before, never less."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger

    def judge(self, manifest: Manifest) -> None:
        """Once all that was before this manifest is known."""
        facts = self._ledger.facts
        parent = manifest.parent
        chain = dict(facts.chains.get(parent, {})) if parent is not None else {}
        for item in manifest.open:
            uid = first_called(item.uid)
            chain[uid] = chain.get(uid, frozenset()) | {ref.path for ref in item.files}
            for ref in item.files:
                self._staged(item, ref.path, ref.sha256)
        facts.chains[manifest.checkpoint] = chain
        at = positions(manifest)
        self._cover(manifest, at)
        for task in manifest.tasks:
            if task.state is not None:
                self._judge_time(manifest, task.watermark, at)
                self._judge_state(manifest, task.state, at)
        for uid, owed in facts.covered[manifest.checkpoint].items():
            found = Counter((s, r) for path in chain.get(uid, ()) for s, r, _ in facts.content.get(path, ()))
            self._compare(f"output of '{uid}'", found, Counter(owed), manifest)

    def _cover(self, manifest: Manifest, at: dict[int, int]) -> None:
        """What is owed to each sink: what was before, and what was read since, to those that the graph has."""
        facts, shape = self._ledger.facts, self._world.terms.shape
        parent = -1 if manifest.parent is None else manifest.parent
        old = facts.covered.get(parent, {})
        read = facts.read.get(parent, frozenset()) | {(s, row) for s, end in at.items() for row in range(end)}
        read |= self._ledger.letters.cover(manifest)
        emitted = read - waiting(manifest)
        fresh = emitted - facts.emitted.get(parent, frozenset())
        present = {first_called(step.uid) for step in manifest.steps}
        owed = dict(old)
        for uid in self._world.sinks:
            if uid in present:
                owed[uid] = owed.get(uid, frozenset()) | {row for row in fresh if shape.takes(uid, *row)}
        facts.read[manifest.checkpoint], facts.emitted[manifest.checkpoint] = read, emitted
        facts.covered[manifest.checkpoint] = owed

    def _staged(self, item: Committable, path: str, digest: str) -> None:
        facts = self._ledger.facts
        if path in facts.staged:
            return
        facts.staged[path] = item
        data = self._world.disk.durable(path)
        if data is None or sha256(data).hexdigest() != digest:
            self._ledger.violated("S2", f"{path} is open in checkpoint {item.checkpoint} and not durable")
            return
        facts.content[path] = rows_of(data)

    def _judge_time(self, manifest: Manifest, watermark: int, at: dict[int, int]) -> None:
        shape = self._world.terms.shape
        if not self._world.is_exact or self._world.is_grown or (shape.marked and shape.idle_after is not None):
            return  # rows behind an early barrier, an idle input, the end of all other sources: it may be further
        present = [int(first_called(step.uid)[6:]) for step in manifest.steps if step.uid.startswith("source")]
        over = ended(manifest)  # drained, perhaps, of which there is another judge
        allowed = min(MAX_WATERMARK if s in over else self._world.time_allowed(s, at.get(s, 0)) for s in present)
        if watermark > allowed:
            self._ledger.violated("watermark", f"a step stands at {watermark}, its input allows {allowed}")

    def _judge_state(self, manifest: Manifest, state: StateHandle, at: dict[int, int]) -> None:
        shape = self._world.terms.shape
        below = Counter((s, row) for s, end in at.items() for row in range(end) if not shape.is_bad(s, row))
        again = (key for key in self._ledger.facts.read[manifest.checkpoint] if key[1] >= AGAIN and key[0] in at)
        below.update(key for key in again if not shape.is_bad(*key))
        found: Counter[RowKey] = Counter()
        for ref in (file for layer in state.layers for file in layer.files):
            data = self._world.disk.durable(ref.path)
            if data is None or sha256(data).hexdigest() != ref.sha256:
                self._ledger.violated("layers", f"{ref.path} of checkpoint {manifest.checkpoint} is not durable")
                return
            found.update((row[0], row[1]) for row in rows_of(data) if row[0] in at)
        self._compare("state", found, below, manifest)

    def _compare(self, what: str, found: Counter[RowKey], wanted: Counter[RowKey], manifest: Manifest) -> None:
        more, less = found - wanted, wanted - found
        if more and not self._world.is_exact:
            self._world.count("too much in a snapshot")
            more.clear()
        if more or less:
            self._ledger.violated(
                "cut", f"{what} in checkpoint {manifest.checkpoint}: too much {dict(more)}, too little {dict(less)}"
            )
