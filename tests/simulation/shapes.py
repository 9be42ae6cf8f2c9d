"""Pipelines to simulate: a few sources, perhaps a union, perhaps a keyed step, sinks of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.elements import Batch, Measure
from penstock.graph.nodes import Graph, Keyed, Node, Origin, Read, Ref, Union, WithWatermark, Write
from penstock.job.attempt import step_records
from penstock.runtime.plan import plan_tasks
from simulation.pieces import CountSpec, FakeSink, IntSource, kept

if TYPE_CHECKING:
    from simulation.world import World

HERE = Origin("simulation", 1)
KINDS = ("files/1", "table/1", "broker/1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a pipeline looks like; drawn from a seed, or given."""

    totals: tuple[int, ...]
    union: bool
    keyed: bool
    marked: bool
    sinks: tuple[str, ...]

    @classmethod
    def drawn(cls, chance: Random) -> Shape:
        sources = chance.choice((1, 2, 2, 3))
        keyed = chance.random() < 0.75
        return cls(
            totals=tuple(chance.randint(2, 6) for _ in range(sources)),
            union=sources > 1 and (not keyed or chance.random() < 0.5),
            keyed=keyed,
            marked=chance.random() < 0.5,
            sinks=tuple(chance.sample(KINDS, chance.choice((1, 1, 2, 3)))),
        )


class FakeAnalysis:
    """Answers as ``graph.analyze`` would, for integers."""

    def __init__(self, graph: Graph, world: World) -> None:
        self.graph = graph
        self._world = world

    def schema(self, ref: Ref) -> None:
        return None

    def segment(self, node: Node, steps: Sequence[Any], *, is_root: bool = True) -> Any:
        marks = [step for step in steps if isinstance(step, WithWatermark)]

        def rewrite(batch: Batch) -> Batch:
            rows: Any = batch.frame
            largest = max(self._world.time_of(row) for _, row, _ in rows)
            told = {f"time:{mark.id}": Measure(lambda: {"max": largest}) for mark in marks}
            counted = {"rows": Measure(lambda: {"rows": len(rows)})} if is_root and isinstance(node, Read) else {}
            return replace(batch, measures={**batch.measures, **told, **counted})

        return rewrite


class FakeEdge:
    """Where Spark would be."""

    spark: Any = None

    def around(self, task: str) -> AbstractContextManager[None]:
        return nullcontext()

    def foreground(self) -> AbstractContextManager[None]:
        return nullcontext()

    def background(self, name: str) -> Any:
        return nullcontext

    def cancel(self) -> None:
        pass

    keep = staticmethod(kept)


class Pipeline:
    """A shape as a graph of product nodes, with its task plans."""

    def __init__(self, shape: Shape, world: World) -> None:
        self._nodes: list[Node] = []
        self.shape = shape
        ends = [self._source(number, total, world) for number, total in enumerate(shape.totals)]
        if shape.union:
            ends = [self._add(Union, inputs=tuple(ends))]
        if shape.keyed:
            ends = [self._add(Keyed, inputs=tuple(ends), uid="count", spec=CountSpec(world))]
        for number, kind in enumerate(shape.sinks):
            self._add(Write, inputs=(ends[0],), uid=f"sink{number}", sink=FakeSink(world, kind))
        self.graph = Graph(name="sim", origin=HERE, nodes=tuple(self._nodes))
        self.plans = plan_tasks(self.graph)
        self.steps = step_records(self.plans)
        self.analysis = FakeAnalysis(self.graph, world)

    def _source(self, number: int, total: int, world: World) -> Ref:
        ref = self._add(Read, uid=f"source{number}", source=IntSource(world, number, total))
        if not self.shape.marked:
            return ref
        return self._add(WithWatermark, inputs=(ref,), column="at", delay=0, idle_after=None, max_ahead=None)

    def _add(self, kind: Any, **fields: Any) -> Ref:
        self._nodes.append(kind(id=len(self._nodes), origin=HERE, **fields))
        return Ref(len(self._nodes) - 1)
