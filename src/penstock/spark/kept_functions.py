"""The functions of a plan's tasks, taken once and put over the rows of each batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import assert_never
from penstock.spark.blocks import function_of, is_java_object
from penstock.spark.bound_plans import FIRST_PLACEHOLDER, MAX_NUMBERS
from penstock.spark.plans import plan_kind, plan_nodes, scala_items

if TYPE_CHECKING:
    from penstock.spark.blocks import JavaObject
    from penstock.spark.kept_rows import Exchange, GeneratedCode, SparkClasses
    from penstock.spark.plans import PlanEditor

# To execute a copy of a physical plan, Spark writes the text of its code anew, to find that it has compiled it before:
# most of what a small batch costs the driver. But generated code is a text and the objects that it refers to, and all
# that is a batch's are its input rows and its numbers, which are arrays among those objects. So both are taken once, by
# leaves without rows and placeholders for numbers, and a batch puts in its own.
#
# Nodes without generated code are functions from a partition's rows to rows, taken from the RDDs that they make. An
# exchange is made for each batch. What remains is copied for each batch, over the rows that the stages below give:
# nodes with a number in another place, those that observe figures, which have an accumulator of their own, and those
# that make other RDDs. What has nothing of a batch, as a table that is exchanged, is executed once.

PLACEHOLDERS: Final = range(FIRST_PLACEHOLDER + MAX_NUMBERS, FIRST_PLACEHOLDER + 800)
"""Numbers in the place of a kept plan's numbers, in order."""
METRICS: Final = "CollectMetricsExec"
"""The node that observes figures."""
_EXCHANGE: Final = "ShuffleExchangeExec"
_BROADCAST: Final = "BroadcastExchangeExec"
_GENERATED: Final = "WholeStageCodegenExec"
_AGGREGATE: Final = "HashAggregateExec"
_SCAN: Final = "RDDScanExec"
_SORT: Final = "SortExec"
_MAPPED: Final = "MapPartitionsRDD"
_UNION: Final = "SQLPartitioningAwareUnionRDD"


@dataclass(frozen=True, slots=True)
class _Input:
    """The input rows of this place."""

    place: int
    sides: tuple[()] = ()


@dataclass(frozen=True, slots=True)
class _Generated:
    """What generated code makes of the rows of one or two stages, partition by partition.

    Attributes:
        code: the code, and the objects that it refers to.
        arrays: the placeholders of those objects that are arrays of them, by place.
        sides: the stages.
    """

    code: GeneratedCode
    arrays: Mapping[int, tuple[int, ...]]
    sides: tuple[_Stage, ...]


@dataclass(frozen=True, slots=True)
class _Mapped:
    """What a function of a task makes of the rows of one or two stages, partition by partition."""

    function: JavaObject
    sides: tuple[_Stage, ...]


@dataclass(frozen=True, slots=True)
class _Exchanged:
    """The rows below, exchanged."""

    exchange: Exchange
    sides: tuple[_Stage]


@dataclass(frozen=True, slots=True)
class _United:
    """The rows of several inputs, partition by partition."""

    partitions: int
    sides: tuple[_Stage, ...]


@dataclass(frozen=True, slots=True)
class _Copied:
    """What nodes that are copied for each batch make of the rows of stages.

    Attributes:
        plan: the nodes, over scans of no rows in place of the stages. Without one, and without numbers, it is no copy
            that is executed but the plan itself, whose rows are exchanged once.
        has_numbers: whether a node has some.
        scans: those that stand for the stages.
        sides: the stages.
        label: of the figures, if the topmost node observes some.
    """

    plan: JavaObject
    has_numbers: bool
    scans: tuple[JavaObject, ...] = ()
    sides: tuple[_Stage, ...] = ()
    label: str | None = None


_Stage: TypeAlias = _Input | _Generated | _Mapped | _Exchanged | _United | _Copied


class BatchNumbers:
    """The numbers of a batch, in place of the placeholders of a plan.

    Args:
        classes: see ``SparkClasses``.
        editor: of the session.
        arrays: the literals with placeholders, by these.
        numbers: the numbers that these stand for, in order.
    """

    def __init__(
        self,
        classes: SparkClasses,
        editor: PlanEditor,
        arrays: Mapping[tuple[int, ...], JavaObject],
        numbers: tuple[int, ...],
    ) -> None:
        self._classes = classes
        self._editor = editor
        self._arrays = arrays
        self._numbers = numbers
        self._made: dict[tuple[int, ...], JavaObject] = {}

    def array(self, placeholders: tuple[int, ...]) -> JavaObject:
        """The array of the numbers that these placeholders stand for."""
        if placeholders not in self._made:
            self._made[placeholders] = self._classes.array([self._number(value) for value in placeholders])
        return self._made[placeholders]

    def put_into(self, plan: JavaObject) -> JavaObject:
        """A plan with its numbers."""
        pairs = ((literal, self._classes.array_literal(self.array(each))) for each, literal in self._arrays.items())
        return self._editor.replace_expressions(plan, pairs)

    def _number(self, value: int) -> int:
        """What takes the place of a value in the kept plan: itself, or the number that it is the placeholder of."""
        return self._numbers[value - PLACEHOLDERS.start] if value in PLACEHOLDERS else value


class KeptFunctions:
    """The functions of a plan's tasks.

    Args:
        classes: see ``SparkClasses``.
        editor: of the session.
        stage: what the plan is made of.
    """

    def __init__(self, classes: SparkClasses, editor: PlanEditor, stage: _Stage) -> None:
        self._classes = classes
        self._editor = editor
        self._stage = stage

    def over(self, inputs: Sequence[JavaObject], numbers: BatchNumbers) -> tuple[JavaObject, Mapping[str, JavaObject]]:
        """The RDD of a batch, and the nodes that observe it, by label.

        Args:
            inputs: the RDDs of its input rows.
            numbers: its numbers.
        """
        nodes: dict[str, JavaObject] = {}
        return self._over(self._stage, inputs, numbers, nodes), nodes

    def _over(
        self, stage: _Stage, inputs: Sequence[JavaObject], numbers: BatchNumbers, nodes: dict[str, JavaObject]
    ) -> JavaObject:
        classes = self._classes
        rdds = [self._over(side, inputs, numbers, nodes) for side in stage.sides]
        match stage:
            case _Input(place):
                return inputs[place]
            case _Generated(code, arrays):
                return classes.generated_rows(rdds, code, {place: numbers.array(arrays[place]) for place in arrays})
            case _Mapped(function):
                return classes.map_rows(rdds, function)
            case _Exchanged(exchange):
                return classes.exchanged_rows(rdds[0], exchange)
            case _United(partitions):
                return classes.united(rdds, partitions)
            case _Copied(plan, has_numbers, scans, _, label):
                pairs = ((scan, classes.scan_like(scan, rdd)) for scan, rdd in zip(scans, rdds, strict=True))
                copy = self._editor.replace_nodes(plan, pairs)
                copy = numbers.put_into(copy) if has_numbers else copy
                if label is not None:
                    nodes[label] = copy
                return copy.execute()
            case _:
                assert_never(stage)


def functions_of(
    classes: SparkClasses,
    editor: PlanEditor,
    plan: JavaObject,
    inputs: Mapping[int, int],
    arrays: Mapping[tuple[int, ...], JavaObject],
) -> KeptFunctions | None:
    """The functions of a physical plan's tasks; ``None`` if input rows are sent to all tasks.

    Args:
        classes: see ``SparkClasses``.
        editor: of the session.
        plan: the plan, with placeholders in place of numbers.
        inputs: the places of its input rows, by the id of the RDD that its leaf reads.
        arrays: the literals with placeholders, by these.
    """
    taking = _Taking(classes, editor, inputs, arrays)
    stage = taking.stage_of(plan)
    # what is sent to all tasks is no stage: input rows there would always be those of the leaf
    return KeptFunctions(classes, editor, stage) if taking.found == set(inputs.values()) else None


class _Taking:
    def __init__(
        self,
        classes: SparkClasses,
        editor: PlanEditor,
        inputs: Mapping[int, int],
        arrays: Mapping[tuple[int, ...], JavaObject],
    ) -> None:
        self.found: set[int] = set()
        self._classes = classes
        self._editor = editor
        self._inputs = inputs
        other = classes.constant_array([0])
        self._literals = [(literal, other) for literal in arrays.values()]
        self._numbers = {str(number) for array in arrays for number in array if number >= FIRST_PLACEHOLDER}
        self._placeholders = {f"[{','.join(map(str, array))}]": array for array in arrays}

    def stage_of(self, plan: JavaObject) -> _Stage:
        """What a plan is made of."""
        if not any(leaf.rdd().id() in self._inputs for leaf in _leaves(plan)) and not self._has_numbers(plan):
            return _Copied(plan, has_numbers=False)
        if plan_kind(plan) == _EXCHANGE and not self._has_numbers(plan.outputPartitioning()):
            return _Exchanged(self._classes.exchange_like(plan), (self.stage_of(plan.child()),))
        above, stages = self._apart(plan)
        kind, has_numbers = plan_kind(above), self._has_numbers(above)
        found = self._generated(above, stages) if kind == _GENERATED else None
        if found is None and kind != METRICS and not has_numbers:
            found = self._of_rdd(above.execute(), stages)
        return self._copied(above, stages, has_numbers=has_numbers) if found is None else found

    def _apart(self, plan: JavaObject) -> tuple[JavaObject, dict[int, _Stage]]:
        """The topmost nodes of a plan over scans of no rows, and the stages of these, by the id of the scan's RDD."""
        stages: dict[int, _Stage] = {}
        pairs: list[tuple[JavaObject, JavaObject]] = []
        for node in _separate(plan):
            # a union of leaves needs their partitions
            partitioning = node.outputPartitioning()
            empty = self._classes.leaves.empty_rows(max(1, partitioning.numPartitions()))
            stages[empty.id()] = self.stage_of(node)
            pairs.append((node, self._classes.scan_of(node.output(), empty, partitioning)))
        return self._editor.replace_nodes(plan, pairs), stages

    def _copied(self, plan: JavaObject, stages: Mapping[int, _Stage], *, has_numbers: bool) -> _Stage:
        scans: list[JavaObject] = []
        sides: list[_Stage] = []
        for leaf in _leaves(plan):
            side = stages.get(leaf.rdd().id()) or self._input(leaf.rdd())
            if side is not None:  # or it is a table
                scans.append(leaf)
                sides.append(side)
        label = str(plan.name()) if plan_kind(plan) == METRICS else None
        return _Copied(plan, has_numbers, tuple(scans), tuple(sides), label)

    def _generated(self, plan: JavaObject, stages: Mapping[int, _Stage]) -> _Stage | None:
        # Numbers may be nowhere but among the constants: not in the code, not in what is sent to all tasks, and not in
        # a node or an expression that the code calls.
        if any(map(self._has_numbers, _broadcasts(plan))):
            return None
        code = self._classes.generated_code(plan)
        if code is None:
            return None
        text = str(code.code.body())
        if any(number in text for number in self._numbers):
            return None
        arrays: dict[int, tuple[int, ...]] = {}
        for place, constant in enumerate(code.constants):
            kind = plan_kind(constant) if is_java_object(constant) else None
            if kind == "GenericArrayData" and (placeholders := self._placeholders.get(str(constant.toString()))):
                arrays[place] = placeholders
            elif any(map(self._has_numbers, _asked_by_code(constant, kind))):
                return None
        sides = self._of_rdds(scala_items(plan.child().inputRDDs()), stages)
        return None if sides is None else _Generated(code, arrays, sides)

    def _input(self, rdd: JavaObject) -> _Stage | None:
        place = self._inputs.get(rdd.id())
        if place is None:
            return None
        self.found.add(place)
        return _Input(place)

    def _of_rdds(self, rdds: Iterable[JavaObject], stages: Mapping[int, _Stage]) -> tuple[_Stage, ...] | None:
        found = [self._of_rdd(rdd, stages) for rdd in rdds]
        sides = tuple(side for side in found if side is not None)
        return sides if len(sides) == len(found) else None

    def _of_rdd(self, rdd: JavaObject, stages: Mapping[int, _Stage]) -> _Stage | None:
        if (rows := self._input(rdd)) is not None:
            return rows
        kind, below = plan_kind(rdd), list(_rdds_below(rdd))
        if not below or rdd.isBarrier() or rdd.getResourceProfile() is not None:
            return None
        if kind == _MAPPED and below[0].id() in stages:  # a scan's function, which copies rows that are copies already
            return stages[below[0].id()]
        sides = self._of_rdds(below, stages)
        if sides is None:
            return None
        return _United(rdd.getNumPartitions(), sides) if kind == _UNION else _Mapped(function_of(rdd), sides)

    def _has_numbers(self, constant: JavaObject) -> bool:
        """Whether an object is a node of a plan or an expression, and it or one below it has a placeholder."""
        if not self._literals:
            return False
        if self._classes.is_plan(constant):
            changed = self._editor.replace_expressions(constant, self._literals)
        elif self._classes.is_expression(constant):
            changed = self._editor.replace_nodes(constant, self._literals)
        else:
            return False
        return not changed.fastEquals(constant)


def _separate(plan: JavaObject) -> Iterator[JavaObject]:
    """The nodes below a plan that make stages of their own, without those below them."""
    for child in scala_items(plan.children()):
        is_input = plan_kind(child) == "InputAdapter"  # of generated code
        node = child.child() if is_input else child
        kind = plan_kind(node)
        if kind in (METRICS, _EXCHANGE, _GENERATED):
            yield node
        elif kind not in (_SCAN, _BROADCAST):  # what is sent to all tasks stays as it is
            # what is observed is made for itself, since the node that observes is copied
            yield from [node] if is_input or plan_kind(plan) == METRICS else _separate(node)


def _asked_by_code(constant: JavaObject, kind: str | None) -> Iterable[JavaObject]:
    """What generated code evaluates of an object that it refers to, if that is a node or an expression."""
    if kind in (None, "SQLMetric", _AGGREGATE):  # an aggregation is called for its buffers alone
        return ()
    return scala_items(constant.sortOrder()) if kind == _SORT else (constant,)


def _leaves(plan: JavaObject) -> Iterator[JavaObject]:
    """The scans of a plan, but for those of what is sent to all tasks."""
    if plan_kind(plan) == _SCAN:
        yield plan
    elif plan_kind(plan) != _BROADCAST:
        for child in scala_items(plan.children()):
            yield from _leaves(child)


def _broadcasts(stage: JavaObject) -> Iterator[JavaObject]:
    """The nodes below generated code that send rows to all tasks."""
    return (node for node in plan_nodes(stage) if plan_kind(node) == _BROADCAST)


def _rdds_below(rdd: JavaObject) -> Iterator[JavaObject]:
    """The RDDs that one is made of; none if a function of a task does not make it, or its rows are kept."""
    match plan_kind(rdd):
        case kind if kind == _MAPPED:
            below = rdd.prev()
            if below is not None:
                yield below
        case "ZippedPartitionsRDD2":
            yield from (rdd.rdd1(), rdd.rdd2())
        case kind if kind == _UNION:
            yield from scala_items(rdd.rdds())
