"""Which columns of a source anybody looks at: what Spark's optimiser leaves of the steps behind it. Runs no job.

Knows nothing of batches and of what a source does with the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from penstock.graph.nodes import Graph, ParseJson, Read, Ref, RowWise, WithWatermark
from penstock.operators.graft import Grafter, Java, items

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.graph.pieces import Piece


def steps_behind(graph: Graph, read: Read) -> list[RowWise | ParseJson | WithWatermark]:
    """The steps that a source's rows go through before anybody else sees them: those that follow each other alone."""
    steps: list[RowWise | ParseJson | WithWatermark] = []
    ref = Ref(read.id)
    while True:
        consumers = list(graph.consumers(ref))
        step = consumers[0] if len(consumers) == 1 else None
        if not isinstance(step, (RowWise, ParseJson, WithWatermark)):
            return steps
        if isinstance(step, ParseJson) and step.on_error == "split":  # bad rows keep all columns
            return steps
        steps.append(step)
        ref = Ref(step.id)


def columns_used(grafter: Grafter, pieces: Sequence[Piece]) -> frozenset[str]:
    """The columns of the first piece's input that the pieces, in this order, use or pass on."""
    first, *others = pieces
    plan = first.plan
    for piece in others:
        plan = grafter.hang(piece.plan, piece.leaf, plan)
    optimized = cast("Any", grafter.frame(plan))._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - no public way
    used = set(_attributes(optimized.outputSet().toSeq()))
    for node in _nodes(optimized):
        used.update(_attributes(node.references().toSeq()))
    return frozenset(each.name() for each in items(first.leaf.plan.output()) if each.exprId().id() in used)


def _nodes(plan: Java) -> Iterator[Java]:
    yield plan
    for child in items(plan.children()):
        yield from _nodes(child)


def _attributes(attributes: Java) -> Iterator[int]:
    return (each.exprId().id() for each in items(attributes))
