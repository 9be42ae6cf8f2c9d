"""The functions of a plan's tasks, taken once and put over the rows of each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import assert_never
from penstock.spark.blocks import function_of
from penstock.spark.plans import plan_kind, scala_items

if TYPE_CHECKING:
    from penstock.spark.blocks import JavaObject
    from penstock.spark.kept_rows import SparkClasses

# To execute a copy of a physical plan, Spark writes the text of its code anew, to find that it has compiled it before:
# most of what a small batch costs the driver. A narrow stage is a function from a partition's rows to rows, with
# nothing of a batch in it. So the functions are taken from the RDDs that the plan makes over leaves without rows.
#
# A node that observes figures has an accumulator of its own in its function, and may have a number of the batch, as the
# time after which a clock must be wrong. So it is copied for each batch, over the rows that the functions below give. A
# plan with an exchange, or other RDDs than these, is copied as a whole.

METRICS: Final = "CollectMetricsExec"
"""The node that observes figures."""


@dataclass(frozen=True, slots=True)
class _Input:
    """The input rows of this place."""

    place: int


@dataclass(frozen=True, slots=True)
class _Mapped:
    """What a function of a task makes of the rows below."""

    function: JavaObject
    below: _Stage


@dataclass(frozen=True, slots=True)
class _Observed:
    """The rows below, observed by a node that is copied for each batch."""

    node: JavaObject
    label: str
    below: _Stage


@dataclass(frozen=True, slots=True)
class _United:
    """The rows of several inputs, partition by partition."""

    partitions: int
    sides: tuple[_Stage, ...]


@dataclass(frozen=True, slots=True)
class _Zipped:
    """What a function of a task makes of the rows of two stages, partition by partition: a join."""

    function: JavaObject
    sides: tuple[_Stage, ...]


_Stage: TypeAlias = _Input | _Mapped | _Observed | _United | _Zipped


class KeptFunctions:
    """The functions of a plan's tasks.

    Args:
        classes: see ``SparkClasses``.
        stage: what the plan is made of.
    """

    def __init__(self, classes: SparkClasses, stage: _Stage) -> None:
        self._classes = classes
        self._stage = stage

    def over(
        self, inputs: Sequence[JavaObject], numbered: Callable[[JavaObject], JavaObject]
    ) -> tuple[JavaObject, Mapping[str, JavaObject]]:
        """The RDD of a batch, and the nodes that observe it, by label.

        Args:
            inputs: the RDDs of its input rows.
            numbered: returns a node that observes with the numbers of the batch.
        """
        nodes: dict[str, JavaObject] = {}
        return self._over(self._stage, inputs, numbered, nodes), nodes

    def _over(
        self,
        stage: _Stage,
        inputs: Sequence[JavaObject],
        numbered: Callable[[JavaObject], JavaObject],
        nodes: dict[str, JavaObject],
    ) -> JavaObject:
        classes = self._classes
        match stage:
            case _Input(place):
                return inputs[place]
            case _Mapped(function, below):
                return classes.map_rows(self._over(below, inputs, numbered, nodes), function)
            case _Observed(node, label, below):
                nodes[label] = numbered(classes.over_rows(node, self._over(below, inputs, numbered, nodes)))
                return nodes[label].execute()
            case _United(partitions, sides):
                return classes.united([self._over(side, inputs, numbered, nodes) for side in sides], partitions)
            case _Zipped(function, sides):
                return classes.zipped_rows([self._over(side, inputs, numbered, nodes) for side in sides], function)
            case _:
                assert_never(stage)


def functions_of(
    classes: SparkClasses, replaced: Callable[..., JavaObject], plan: JavaObject, scans: Mapping[int, int]
) -> KeptFunctions | None:
    """The functions of a physical plan's tasks; ``None`` if its RDDs are others than can be made of functions.

    Args:
        classes: see ``SparkClasses``.
        replaced: returns a plan with nodes replaced, from the plan and pairs of a node and its replacement.
        plan: the plan.
        scans: the places of its input rows, by the id of the RDD that its leaf reads.
    """
    stage = _Taking(classes, replaced, scans).stage_of(plan)
    return None if stage is None else KeptFunctions(classes, stage)


class _Taking:
    def __init__(self, classes: SparkClasses, replaced: Callable[..., JavaObject], scans: Mapping[int, int]) -> None:
        self._classes = classes
        self._replaced = replaced
        self._scans = scans

    def stage_of(self, plan: JavaObject) -> _Stage | None:
        """What a plan is made of."""
        if plan_kind(plan) == METRICS:
            below = self.stage_of(plan.child())
            return None if below is None else _Observed(plan, str(plan.name()), below)
        known: dict[int, _Stage] = {rdd: _Input(place) for rdd, place in self._scans.items()}
        projected: dict[int, _Stage] = {}
        pairs: list[JavaObject] = []
        for node in _observing(plan):
            below = self.stage_of(node)
            if below is None:
                return None
            empty = self._classes.empty_rows(1)
            projected[empty.id()] = below
            pairs += node, self._classes.scan_of(node.output(), empty)
        return self._of_rdd(self._replaced(plan, *pairs).execute(), known, projected)

    def _of_rdd(self, rdd: JavaObject, known: Mapping[int, _Stage], projected: Mapping[int, _Stage]) -> _Stage | None:
        if rdd.id() in known or rdd.isBarrier() or rdd.getResourceProfile() is not None:
            return known.get(rdd.id())
        match plan_kind(rdd):
            case "MapPartitionsRDD":
                below = rdd.prev()
                if below.id() in projected:  # the scan's function, which copies rows that are copies already
                    return projected[below.id()]
                stage = self._of_rdd(below, known, projected)
                return None if stage is None else _Mapped(function_of(rdd), stage)
            case "SQLPartitioningAwareUnionRDD" | "ZippedPartitionsRDD2" as kind:
                is_union = kind == "SQLPartitioningAwareUnionRDD"
                rdds = scala_items(rdd.rdds()) if is_union else (rdd.rdd1(), rdd.rdd2())
                sides = [self._of_rdd(side, known, projected) for side in rdds]
                found = tuple(side for side in sides if side is not None)
                if len(found) < len(sides):
                    return None
                return _United(rdd.getNumPartitions(), found) if is_union else _Zipped(function_of(rdd), found)
            case _:
                return None


def _observing(plan: JavaObject) -> Iterator[JavaObject]:
    """The nodes below a plan that observe figures, without those below them."""
    for child in scala_items(plan.children()):
        if plan_kind(child) == METRICS:
            yield child
        else:
            yield from _observing(child)
