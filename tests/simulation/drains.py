"""The judge of drains: a job that was drained has emitted all that it has read, and nothing is read behind that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint.entries import Manifest, Stopped
from penstock.elements import CheckpointKind
from simulation.entries import ended, positions, waiting

if TYPE_CHECKING:
    from simulation.ledger import Ledger
    from simulation.world import World


class Drains:
    """Judges manifests, and the entries that say that somebody has what he asked for, as they land."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger

    def judge(self, manifest: Manifest) -> None:
        """Sources whose event time has come to its end though they have more rows were drained, all at once."""
        facts, tell, id = self._ledger.facts, self._ledger.violated, manifest.checkpoint
        at, over = positions(manifest), ended(manifest)
        totals = self._world.terms.shape.totals
        cut_short = frozenset(source for source in over if at[source] < totals[source])
        parent = -1 if manifest.parent is None else manifest.parent
        before = facts.cut_short.get(parent, frozenset()) & at.keys()
        facts.cut_short[id] = cut_short
        for source in sorted(before):
            if source not in over:
                tell("drain", f"checkpoint {id} has forgotten that source {source} was drained")
            elif at[source] > positions(facts.manifests[parent])[source]:
                tell("drain", f"source {source} was drained, and checkpoint {id} is behind more of its rows")
        fresh = sorted(cut_short - before)
        if not fresh:
            return
        if manifest.kind is not CheckpointKind.FINAL or not self._world.is_draining:
            tell("drain", f"checkpoint {id}, {manifest.kind.value}, says that sources {fresh} have come to their end")
        elif over < at.keys():
            tell("drain", f"checkpoint {id} was to drain all sources, and {sorted(at.keys() - over)} have not ended")
        elif waiting(manifest):
            tell("drain", f"checkpoint {id} has drained its sources, and holds back {sorted(waiting(manifest))}")

    def judge_stop(self, stopped: Stopped) -> None:
        """Whoever asked for a drain is told that it was done."""
        facts = self._ledger.facts
        manifest = facts.manifests[stopped.checkpoint]
        if not facts.drains & set(stopped.fulfils):
            return
        self._world.count("drained")
        left = positions(manifest).keys() - ended(manifest)
        if left or waiting(manifest):
            what = (
                f"in checkpoint {manifest.checkpoint} {sorted(left)} have not ended, {sorted(waiting(manifest))} wait"
            )
            self._ledger.violated("drain", f"the job is said to be drained, and {what}")
