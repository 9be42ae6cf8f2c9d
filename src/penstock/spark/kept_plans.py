"""Physical plans that are planned once and bound to the rows of each batch."""

from __future__ import annotations

import itertools
import logging
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from penstock.errors import assert_never
from penstock.spark.blocks import JavaObject, java_frame
from penstock.spark.bound_plans import (
    FIRST_PLACEHOLDER,
    BoundPlan,
    BoundRows,
    InputRows,
    MatchedRows,
    ObservedRows,
    PlanBuilder,
    PlanParts,
    PreparedPlan,
    RebuiltRows,
    UnitedRows,
    parts_of,
)
from penstock.spark.keepable import array_literals, is_keepable, is_keepable_physical, is_row_wise, json_of
from penstock.spark.kept_functions import METRICS, PLACEHOLDERS, BatchNumbers, KeptFunctions, functions_of
from penstock.spark.kept_rows import PlannedRows, SparkClasses, missing_class
from penstock.spark.packed_rows import RowPacker
from penstock.spark.plans import PlanEditor, plan_kind, plan_nodes
from penstock.spark.row_owners import OwnRows, Placement, RowOwners, exchange_of

log: Final = logging.getLogger("penstock")

# A batch's plan differs from the last one's in its rows and its numbers alone. So Spark's physical plan of a shape is
# made once, with empty leaves and placeholders for numbers, and a batch gets a copy with its own leaves and numbers. A
# copy has tasks, shuffles and figures of its own, and generates the same code, so nothing is compiled. From the second
# batch on, the functions of the plan's tasks take the copy's place, if they can be taken: see ``functions_of``.
#
# What depends on more than its rows is planned for each batch (``keepable``), and so is everything where this Spark
# lacks a class: see ``missing_class``.


# ---- one kept plan ---------------------------------------------------------------------------------------------------

_TAKEN_AT: Final = 2
"""Number of the batch by which the functions of tasks are taken: that costs more than a copy."""
_PLACEHOLDER: Final = re.compile(rf"(?<!\d){str(FIRST_PLACEHOLDER)[:-4]}\d{{4}}(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """A leaf of a kept plan, and the place of its rows among the inputs."""

    node: JavaObject
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanTemplate:
    """A physical plan with placeholders.

    Attributes:
        plan: the physical plan.
        scans: its leaves.
        arrays: the placeholders of each literal that has some.
        labels: of the observed parts, in the order of ``parts_of``.
        partitioning: of its rows.
    """

    plan: JavaObject
    scans: Sequence[_Scan]
    arrays: Collection[tuple[int, ...]]
    labels: Sequence[str]
    partitioning: JavaObject


class KeptPlan:
    """A physical plan, copied for its first batch; then the functions of its tasks are put over each batch's rows.

    Args:
        classes: see ``SparkClasses``.
        editor: of its session.
        template: what is copied.
        own: gives each task its own rows, if the plan has lost its exchange.
        session: that its copies are of, if it is not the session of ``classes``.
    """

    def __init__(
        self,
        classes: SparkClasses,
        editor: PlanEditor,
        template: _PlanTemplate,
        own: OwnRows | None,
        session: JavaObject,
    ) -> None:
        self._classes = classes
        self._editor = editor
        self._plan = template.plan
        self._scans = template.scans
        self._arrays = {placeholders: classes.constant_array(placeholders) for placeholders in template.arrays}
        self._labels = template.labels
        self._own = own
        self._session = session
        self._columns, self._partitioning = classes.leaves.nullable(template.plan.output(), template.partitioning)
        self._figures = _metrics_of(template.plan, template.labels)
        self._batches = itertools.count(1)
        self._functions: KeptFunctions | None = None

    def bind(self, plan: BoundPlan) -> PlannedRows:
        """The rows of a batch. Its figures are read from nodes of its own."""
        self._classes.activate(self._session)
        try:
            return self._bound(plan)
        finally:
            if self._session is not None:  # what else this thread does is done in the session itself
                self._classes.activate()

    def _bound(self, plan: BoundPlan) -> PlannedRows:
        parts = list(parts_of(plan))
        inputs = [part for part in parts if isinstance(part, InputRows)]
        rdds = [self._classes.rows_of(part.plan) if part.is_from_python else part.plan.rdd() for part in inputs]
        counted: Callable[[], int] | None = None
        if self._own is not None:
            rdds[0], counted = self._own.of(rdds[0])
        rdd, nodes = self._executed(numbers_of(parts), rdds)
        observed = (part for part in parts if isinstance(part, ObservedRows))
        for part, label in zip(observed, self._labels, strict=True):
            part.read_from(partial(_figures_of, self._classes, nodes.get(label), part, inputs[0].sent, counted))
        return PlannedRows(classes=self._classes, rdd=rdd, columns=self._columns, partitioning=self._partitioning)

    def _executed(
        self, numbers: tuple[int, ...], rdds: Sequence[JavaObject]
    ) -> tuple[JavaObject, Mapping[str, JavaObject]]:
        """The RDD of a batch, and the nodes that observe it, by label."""
        mine = BatchNumbers(self._classes, self._editor, self._arrays, numbers)
        if self._functions is not None:
            return self._functions.over(rdds, mine)
        if next(self._batches) == _TAKEN_AT:
            try:
                functions = self._functions_of_tasks()
                if functions is not None:
                    found = functions.over(rdds, mine)
                    self._functions = functions
                    return found
            except Exception as error:  # whatever this Spark does otherwise, a copy gives the same rows
                log.warning(
                    "The code of a plan cannot be kept, so each batch copies the plan, which is slower: %s", error
                )
        copy = self._over(mine.put_into(self._plan), dict(enumerate(rdds)))
        nodes = {label: copy.p(number) for label, number in self._figures.items()}
        return copy.execute(), nodes

    def _functions_of_tasks(self) -> KeptFunctions | None:
        """The functions of the plan's tasks, taken over leaves without rows."""
        # a union of leaves needs their partitions
        rdds = {
            scan.place: self._classes.leaves.empty_rows(max(1, scan.node.outputPartitioning().numPartitions()))
            for scan in self._scans
        }
        places = {rdd.id(): place for place, rdd in rdds.items()}
        return functions_of(self._classes, self._editor, self._over(self._plan, rdds), places, self._arrays)

    def _over(self, plan: JavaObject, rdds: Mapping[int, JavaObject]) -> JavaObject:
        """The plan over other input rows, given by their places."""
        scans = ((scan.node, self._classes.scan_like(scan.node, rdds[scan.place])) for scan in self._scans)
        return self._editor.replace_nodes(plan, scans)


def numbers_of(parts: Sequence[BoundPlan]) -> tuple[int, ...]:
    """The numbers of the parts of a plan, in order."""
    found: list[int] = []
    for part in parts:
        if isinstance(part, BoundRows):
            found += part.numbers
        elif isinstance(part, ObservedRows) and part.bound is not None:
            found.append(part.bound)
    return tuple(found)


def _one_partitioning(plan: JavaObject) -> JavaObject:
    """How a physical plan's rows are partitioned; the first of several ways to say it."""
    partitioning = plan.outputPartitioning()
    while plan_kind(partitioning) == "PartitioningCollection":
        partitioning = partitioning.partitionings().apply(0)
    return partitioning


def _figures_of(
    classes: SparkClasses,
    node: JavaObject | None,
    rows: ObservedRows,
    sent: int | None,
    counted: Callable[[], int] | None,
) -> Mapping[str, object] | None:
    """The figures of a node, after a job; ``None`` if the optimiser had no use for it, or it does not tell all of them.

    Args:
        classes: see ``SparkClasses``.
        node: observes the rows.
        rows: see ``ObservedRows``.
        sent: how many input rows there are.
        counted: returns how many of them tasks have passed on, where each keeps its own.
    """
    if node is None or (counted is not None and counted() != sent) or classes.has_observed_apart(node):
        return None
    return rows.spec.figures_of(str(node.collectedMetrics().json()))


def _metrics_of(plan: JavaObject, labels: Sequence[str]) -> dict[str, int]:
    """The numbers of the nodes of a physical plan that observe figures, by their labels."""
    if not labels:
        return {}
    found: dict[str, int] = {}
    for number in itertools.count():
        node = plan.p(number)
        if node is None:
            return found
        if plan_kind(node) == METRICS:
            found[str(node.name())] = number
    raise AssertionError


# ---- all kept plans of a session -------------------------------------------------------------------------------------

_said: set[str] = set()
"""Missing classes that the log has named."""
_MOST: Final = 32
"""Number of shapes that are kept: of a step's batches, results and merges."""

_Shape: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _KnownShape:
    """The plan of a shape, if it may be kept, and the objects whose ids are in the shape.

    Prepared plans are not held: with the last of a table's content, the plan that has sent that content to tasks goes.
    """

    plan: KeptPlan | None
    parts: tuple[object, ...]


class KeptPlans:
    """The kept plans of one session, by shape. They are forgotten when an SQL setting of the session changes.

    Args:
        builder: of the session.

    Attributes:
        packer: packs rows; ``None`` if this Spark lacks the classes.
    """

    def __init__(self, builder: PlanBuilder) -> None:
        self._builder = builder
        missing = missing_class(builder.spark)
        if missing is not None and missing not in _said:
            _said.add(missing)
            log.warning("This Spark has no class %s. Each batch is planned for itself, which is slower.", missing)
        self._classes = None if missing is not None else SparkClasses(builder.spark)
        self._owners = None if self._classes is None else RowOwners(self._classes, builder)
        self.packer = None if self._classes is None else RowPacker(self._classes)
        self._lock = threading.Lock()
        self._shapes: OrderedDict[_Shape, _KnownShape] = OrderedDict()
        self._settings: JavaObject = None

    @property
    def is_supported(self) -> bool:
        """Whether this Spark has the classes."""
        return self._classes is not None

    def kept(self, plan: BoundPlan, placement: Placement | None = None) -> PlannedRows | None:
        """The rows of a plan, by a copy of the kept plan of its shape; ``None`` if its shape may not be kept.

        Args:
            plan: the plan.
            placement: how it is to exchange rows; if the driver sends few, it need not.
        """
        known = self.find(plan, placement)
        return None if known is None else known.bind(plan)

    def find(self, plan: BoundPlan, placement: Placement | None = None) -> KeptPlan | None:
        """The kept plan of the shape of a plan; ``None`` if its shape may not be kept."""
        shape = None if self._classes is None else self._shape(plan)
        if shape is None:
            return None
        self._forget_if_changed()
        if placement is None:
            return self._known(shape, plan, None)
        placed = (id(placement.keys), placement.partitions, shape)
        own = self._known(("own", *placed), plan, placement) if placement.sent is not None else None
        return own or self._known(("placed", *placed), plan, replace(placement, may_copy=False))

    def _known(self, shape: _Shape, plan: BoundPlan, placement: Placement | None) -> KeptPlan | None:
        with self._lock:
            known = self._shapes.get(shape)
            if known is not None:
                self._shapes.move_to_end(shape)
        if known is None:
            parts = [*_identities(plan), *(() if placement is None else (placement.keys,))]
            held = (
                weakref.ref(part, self._forget(shape)) if isinstance(part, PreparedPlan) else part for part in parts
            )
            known = _KnownShape(self._plan_once(plan, placement), tuple(held))
            with self._lock:
                self._shapes[shape] = known
                while len(self._shapes) > _MOST:
                    self._shapes.popitem(last=False)
        return known.plan

    def planned(self, plan: BoundPlan, placement: Placement | None = None) -> PlannedRows:
        """As ``kept``; if the shape may not be kept, Spark plans it for this batch alone."""
        return self.kept(plan, placement) or self._plan_for_itself(plan)

    def _forget(self, shape: _Shape) -> Callable[[object], None]:
        shapes = self._shapes

        def forget(_: object) -> None:
            shapes.pop(shape, None)  # without the lock: whoever holds it may be collecting garbage

        return forget

    def _forget_if_changed(self) -> None:
        """Forget all plans if a setting has changed: settings are in plans, as the time zone is."""
        assert self._classes is not None
        settings = self._classes.sql_settings
        with self._lock:
            if self._settings is None or not settings.equals(self._settings):
                self._settings = self._classes.settings(settings)
                self._shapes.clear()

    def _shape(self, plan: BoundPlan) -> _Shape | None:
        """What is alike in plans that one physical plan fits; ``None`` if there is no such plan."""
        match plan:
            case InputRows():
                return None if plan.partitioning is None else ("rows", plan.partitioning)
            case BoundRows():
                below = self._shape(plan.below)
                return None if below is None else (id(plan.prepared), len(plan.numbers), below)
            case ObservedRows():
                below = self._shape(plan.below)
                return None if below is None else (id(plan.spec), plan.bound is None, below)
            case RebuiltRows():
                return None
            case UnitedRows():
                sides = [self._shape(side) for side in plan.sides]
                return None if None in sides else ("united", *sides)
            case MatchedRows():
                sides = [self._shape(side) for side in (plan.rows, plan.others)]
                return ("matched", plan.keys, *sides) if _lie_together(sides, plan.keys) else None
            case _:
                assert_never(plan)

    # ---- planning

    def _plan_once(self, plan: BoundPlan, placement: Placement | None) -> KeptPlan | None:
        """The kept plan of a shape; ``None`` if it depends on more than its rows, or Spark has made something else."""
        assert self._classes is not None
        self._classes.activate()
        numbers, labels, rdds = iter(PLACEHOLDERS), list[str](), list[int]()
        parts = PlanParts(
            rows=partial(self._empty, rdds),
            number=lambda _: self._builder.editor.literal(next(numbers)),
            observe=partial(self._labelled, labels),
        )
        logical = self._builder.build(plan, parts)
        analysed = json_of(logical)
        if analysed is None or not is_keepable(analysed):
            return None
        query = java_frame(self._builder.editor.frame(logical)).queryExecution()
        arrays = _arrays_of(json_of(query.optimizedPlan()), analysed)
        physical, editor = query.executedPlan(), self._builder.editor
        if isinstance(plan, MatchedRows):  # rows with equal keys lie together already, which Spark cannot know
            for exchange in [node for node in plan_nodes(physical) if plan_kind(node) == "ShuffleExchangeExec"]:
                physical = editor.replace_nodes(physical, [(exchange, exchange.child())])
        partitioning, own = _one_partitioning(physical), None
        if placement is not None:
            found = exchange_of(physical, placement)
            if found is None:
                return None
            exchange, keys = found
            mended = self._classes.exchanged_by(exchange, keys, placement.partitions)
            placed = editor.replace_nodes(physical, [(exchange, mended)])
            partitioning = _one_partitioning(placed)
            if placement.sent is None:
                physical = placed
            else:
                own = self._own_rows(placement)
                # On a cluster a task that is tried again elsewhere computes its rows again, and either copy may be
                # read. Rows that were exchanged are the same for both, those of a function of Python may differ.
                if own is None or not (self._classes.keeps_one_copy or is_row_wise(analysed)):
                    return None
                physical = editor.replace_nodes(physical, [(exchange, exchange.child())])
        scans = list(_scans_of(physical, rdds))
        if arrays is None or {scan.place for scan in scans} != set(range(len(rdds))):
            return None
        if not is_keepable_physical(physical):
            return None
        template = _PlanTemplate(plan=physical, scans=scans, arrays=arrays, labels=labels, partitioning=partitioning)
        has_many = placement is not None and own is None
        session = self._classes.session_for_many() if has_many else None
        return KeptPlan(self._classes, editor, template, own, session)

    def _own_rows(self, placement: Placement) -> OwnRows | None:
        assert self._owners is not None
        assert placement.sent is not None
        return self._owners.own_rows(placement, self._empty([], placement.sent))

    def _empty(self, rdds: list[int], rows: InputRows) -> JavaObject:
        """A leaf like that of input rows, without a row; ``rdds`` gets the number of its RDD.

        All its columns are nullable: what is known of the first batch may not hold of the next.
        """
        assert self._classes is not None
        classes, leaf = self._classes, rows.plan
        empty = classes.context.emptyRDD(classes.row_tag)
        rdds.append(empty.id())
        # without a known partitioning it has 0 partitions, since a plan for one would lack exchanges that two need
        partitioning = leaf.outputPartitioning() if rows.partitioning else classes.no_partitions
        columns, partitioning = classes.leaves.nullable(leaf.output(), partitioning)
        return classes.leaves.make(columns, empty, partitioning)

    def _labelled(
        self, labels: list[str], rows: ObservedRows, below: JavaObject, bound: JavaObject | None
    ) -> JavaObject:
        node, label, _ = self._builder.observer.labelled(below, rows.spec, bound=bound)
        labels.append(label)
        return node

    def _plan_for_itself(self, plan: BoundPlan) -> PlannedRows:
        assert self._classes is not None
        self._classes.activate()
        labels: list[str] = []
        parts = PlanParts(
            rows=lambda rows: rows.plan, number=self._builder.number, observe=partial(self._labelled, labels)
        )
        frame = self._builder.editor.frame(self._builder.build(plan, parts))
        physical = java_frame(frame).queryExecution().executedPlan()
        observed = (part for part in parts_of(plan) if isinstance(part, ObservedRows))
        numbers = _metrics_of(physical, labels)
        for part, label in zip(observed, labels, strict=True):
            node = physical.p(numbers[label]) if label in numbers else None
            part.read_from(partial(_figures_of, self._classes, node, part, None, None))
        columns, partitioning = self._classes.leaves.nullable(physical.output(), _one_partitioning(physical))
        return PlannedRows(classes=self._classes, rdd=physical.execute(), columns=columns, partitioning=partitioning)


def _lie_together(sides: Sequence[_Shape | None], keys: Sequence[str]) -> bool:
    """Whether both sides are input rows, and rows of both that have the same keys are in partitions of one number."""
    by_keys = f"hashpartitioning({', '.join(keys)}, "
    match sides:
        case [("rows", str(left)), ("rows", str(right))]:
            return left == right and left.startswith(("SinglePartition", by_keys))
        case _:
            return False


def _identities(plan: BoundPlan) -> Iterator[object]:
    """The objects whose ids are in a plan's shape."""
    for part in parts_of(plan):
        if isinstance(part, BoundRows):
            yield part.prepared
        elif isinstance(part, ObservedRows):
            yield part.spec


def _arrays_of(optimized: str | None, analysed: str) -> set[tuple[int, ...]] | None:
    """The array literals with placeholders in an optimised plan; ``None`` if a placeholder is elsewhere, or was lost.

    A number elsewhere would be a part of generated code, and one that is lost may have decided something.

    Args:
        optimized: the plan, as JSON.
        analysed: the plan that it was made of.
    """
    if optimized is None:
        return None
    literals = array_literals(optimized)
    for placeholder in map(int, set(_PLACEHOLDER.findall(analysed))):
        in_arrays = sum(values.count(placeholder) for values in literals)
        if not in_arrays or in_arrays != optimized.count(str(placeholder)):
            return None
    return {values for values in literals if any(value in PLACEHOLDERS for value in values)}


def _scans_of(plan: JavaObject, rdds: Sequence[int]) -> Iterator[_Scan]:
    """The leaves of a physical plan that read input rows."""
    for node in plan_nodes(plan):
        if plan_kind(node) == "RDDScanExec" and (number := node.rdd().id()) in rdds:
            yield _Scan(node=node, place=rdds.index(number))
