"""What the steps of a graph keep, and whether what a checkpoint holds can become that. Analyses plans, runs no job."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.checkpoint.entries import StepRecord, StepRole
from penstock.checkpoint.recovery import Recovery
from penstock.errors import StateIncompatible
from penstock.graph.nodes import Keyed, Read, Union, Write
from penstock.handles import Act, ColumnMove, TaskSnapshot
from penstock.runtime.plan import TaskPlan
from penstock.sources.base import Positioned
from penstock.state.migration import Keeps, judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.graph.analyze import Analysis

log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A graph as a restore sees it.

    Attributes:
        steps: as manifests record them.
        keeps: by uid, what a stateful step keeps.
        positions: by uid, the kind of positions of a source that tells it.
    """

    steps: tuple[StepRecord, ...]
    keeps: Mapping[str, Keeps] = field(default_factory=dict)
    positions: Mapping[str, str] = field(default_factory=dict)

    def judge(self, step: StepRecord, snapshot: TaskSnapshot) -> tuple[ColumnMove, ...]:
        """What becomes of a step's state: see :data:`penstock.checkpoint.matching.Judge`.

        Raises:
            StateIncompatible: it cannot be taken over.
        """
        kind = self.positions.get(step.uid)
        if snapshot.position is not None and kind not in (None, snapshot.position.kind):
            msg = (
                f"the position is of kind {snapshot.position.kind!r}, this source reads {kind!r}: give the new source "
                "a uid of its own, or restore with the source that wrote it"
            )
            raise StateIncompatible(msg, uid=step.uid)
        keeps = self.keeps.get(step.uid)
        return judge(snapshot.state, keeps, uid=step.uid) if snapshot.state is not None and keeps is not None else ()


def declare(tasks: Sequence[TaskPlan], analysis: Analysis, spark: SparkSession) -> Declared:
    """Ask the steps of a graph what they keep."""
    keeps: dict[str, Keeps] = {}
    positions: dict[str, str] = {}
    for task in tasks:
        match task.node:
            case Keyed(spec=spec, inputs=inputs):
                keeps[task.id] = spec.keeps(tuple(analysis.schema(ref) for ref in inputs), spark)
            case Read(source=Positioned(position_kind=kind)):
                positions[task.id] = kind
    return Declared(steps=step_records(tasks, keeps), keeps=keeps, positions=positions)


def step_records(tasks: Sequence[TaskPlan], keeps: Mapping[str, Keeps] | None = None) -> tuple[StepRecord, ...]:
    """The tasks, as manifests record them; with their schemas, if it is told what they keep."""
    records = []
    for task in tasks:
        match task.node:
            case Read(uid=uid):
                records.append(StepRecord(uid=uid, role=StepRole.SOURCE))
            case Keyed(uid=uid, spec=spec):
                schema = keeps[uid].schema if keeps and uid in keeps else ""
                records.append(StepRecord(uid=uid, role=StepRole.STEP, kind=spec.kind, schema=schema))
            case Write(uid=uid):
                records.append(StepRecord(uid=uid, role=StepRole.SINK))
            case Union():
                records.append(StepRecord(uid=task.id, role=StepRole.STEP))
    return tuple(records)


def tell(recovery: Recovery) -> None:
    """Say what is restored otherwise than it was kept."""
    for old, new in recovery.renamed.items():
        log.warning("step '%s' goes on from checkpoint %s of '%s'", new, recovery.restored, old)
    for change in recovery.changes:
        moves = [str(move) for move in change.moves if move.act is not Act.KEEP]
        if moves:
            log.warning("step '%s' goes on with changed state: it %s", change.uid, "; ".join(moves))
