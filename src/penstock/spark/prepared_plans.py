"""Prepares plans once, binds them to batches, and has them run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import GraphError
from penstock.spark.blocks import (
    CachedUnion,
    JavaObject,
    count_kept,
    local_checkpoint,
    logical_plan,
    may_run_twice,
)
from penstock.spark.bound_plans import (
    FIRST_PLACEHOLDER,
    BoundPlan,
    BoundRows,
    InputRows,
    MatchedRows,
    ObservedRows,
    PlanBuilder,
    PreparedPlan,
    UnitedRows,
    output_type,
)
from penstock.spark.kept_plans import KeptPlans
from penstock.spark.plan_check import PlanCheck
from penstock.spark.plans import ObservationSpec, analyzed_plan, observe_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.elements import ObservedMetrics
    from penstock.spark.kept_rows import KeptRows
    from penstock.spark.packed_rows import RowPacker
    from penstock.spark.row_owners import Placement


class PlanPreparer:
    """Prepares plans for one session, and makes frames and kept rows of them.

    >>> preparer = PlanPreparer(spark)  # doctest: +SKIP
    >>> above = preparer.prepare(schema, lambda rows, bound: rows.where(f"n > {variable_literal(bound)}"), numbers=1)
    ...     # doctest: +SKIP
    >>> frame = preparer.frame(preparer.bind(above, plan_of(batch), 17))  # doctest: +SKIP
    """

    def __init__(self, spark: SparkSession) -> None:
        self._builder = PlanBuilder(spark)
        self.editor = self._builder.editor
        self._kept = KeptPlans(self._builder)
        self._cached_union = CachedUnion(spark)

    def prepare(
        self,
        schema: StructType,
        build: Callable[..., DataFrame],
        *,
        numbers: int = 0,
        figures: Mapping[str, Column] | None = None,
    ) -> PreparedPlan:
        """The prepared plan of a function.

        Args:
            schema: of the frame that the function gets.
            build: the function; called once, with the frame and ``numbers`` numbers.
            numbers: how many, at most six.
            figures: aggregates to observe over its result, by name.
        """
        leaf = self.editor.new_leaf(schema)
        frame = build(leaf.frame, *(FIRST_PLACEHOLDER + place for place in range(numbers)))
        observation = observe_columns(frame, "template", figures) if figures else None
        plan = self.editor.flatten(analyzed_plan(frame))
        return PreparedPlan(leaf=leaf, plan=plan, schema=frame.schema, observation=observation)

    def prepare_row_wise(self, schema: StructType, build: Callable[[DataFrame], DataFrame]) -> PreparedPlan | None:
        """The prepared plan of a function; ``None`` if it is not row-wise, or draws random numbers."""
        prepared = self.prepare(schema, build)
        check = PlanCheck(prepared.leaf.rdd, set())
        try:
            check.check(prepared.plan)
        except GraphError:
            return None
        return None if check.is_volatile else prepared

    def bind(self, prepared: PreparedPlan, below: BoundPlan, *numbers: int) -> BoundPlan:
        """The plan of a batch.

        Args:
            prepared: the plan to bind.
            below: rows with the columns of ``prepared.leaf``.
            numbers: in the order of the function's arguments.
        """
        return BoundRows(prepared, below, numbers)

    def fits(self, prepared: PreparedPlan, below: BoundPlan) -> bool:
        """Whether ``below`` has columns of the leaf's types: a plan is bound by position, whatever the names."""
        return bool(output_type(below).sameType(prepared.input_type))

    def observation(self, prepared: PreparedPlan, figures: Mapping[str, Column]) -> ObservationSpec:
        """What observes figures over the result of a prepared plan."""
        return observe_columns(self.editor.frame(prepared.plan), "template", figures)

    def observe(
        self, plan: BoundPlan, spec: ObservationSpec, *, bound: int | None = None
    ) -> tuple[BoundPlan, ObservedMetrics]:
        """A bound plan with an observation on top that was made over its prepared plan, and the metrics to come.

        Args:
            plan: the rows.
            spec: the figures.
            bound: see ``ObservedRows``.
        """
        observed = ObservedRows(plan, spec, bound)
        return observed, observed.metrics

    # ---- running plans

    def frame(self, plan: BoundPlan) -> DataFrame:
        """A lazy frame of a plan, planned by Spark with all that is built on it."""
        return self._builder.frame(plan)

    def result(self, plan: BoundPlan) -> DataFrame:
        """A lazy frame of a plan's rows. What is built on it begins with these rows, if their plan is kept."""
        rows = self._kept.kept(plan)
        return self.frame(plan) if rows is None else rows.frame()

    def is_kept(self, plan: BoundPlan, placement: Placement) -> bool:
        """Whether a plan is kept that a placement exchanges: then it need not exchange rows itself."""
        return self._kept.find(plan, placement) is not None

    def checkpoint(
        self, plan: BoundPlan, placement: Placement | None = None, *, counted: Callable[[int], None] | None = None
    ) -> DataFrame:
        """Run a plan now, in one job, and keep its rows as cached blocks: see ``local_checkpoint``.

        Args:
            plan: the plan.
            placement: see ``KeptPlans.kept``.
            counted: gets the number of rows, where figures that the job observed might be those of fewer.
        """
        rows = self._kept.kept(plan, placement)
        if rows is None:
            frame = local_checkpoint(self.frame(plan))
            if counted is not None and may_run_twice(frame.sparkSession):
                counted(count_kept(frame))
            return frame
        cached = rows.keep()
        found = cached.run()
        if counted is not None:
            counted(found)
        return cached.frame

    def checkpoint_later(self, plan: BoundPlan, placement: Placement | None = None) -> KeptRows:
        """As ``checkpoint``, by the first job that reads the rows; see ``can_checkpoint_later``."""
        return self._kept.planned(plan, placement).keep()

    @property
    def can_checkpoint_later(self) -> bool:
        """Whether this Spark has the classes that ``checkpoint_later`` needs."""
        return self._kept.is_supported

    @property
    def packer(self) -> RowPacker | None:
        """Packs rows; ``None`` if this Spark lacks classes that it needs."""
        return self._kept.packer

    # ---- layers as input

    def union(self, frames: Sequence[DataFrame]) -> BoundPlan:
        """The rows of cached frames with the same columns, which share no expression id."""
        plan = self._cached_union.stacked(frames)
        if plan is not None:
            return InputRows(plan)
        return self.unite([InputRows(logical_plan(frame)) for frame in frames])

    def unite(self, plans: Sequence[BoundPlan]) -> BoundPlan:
        """The rows of plans with the same columns, which share no expression id."""
        return plans[0] if len(plans) == 1 else UnitedRows(tuple(plans))

    def matched(self, rows: BoundPlan, others: BoundPlan, keys: Sequence[str]) -> BoundPlan:
        """``rows`` that have the keys of ``others``, if it takes no exchange to find them; else all of them.

        Args:
            rows: see ``MatchedRows``.
            others: see ``MatchedRows``; a task has all their keys in memory.
            keys: names of the columns that are the keys.
        """
        found = self._kept.kept(MatchedRows(rows, others, tuple(keys)))
        return rows if found is None else InputRows(logical_plan(found.frame()))

    def in_one(self, frames: Sequence[tuple[DataFrame, Sequence[DataFrame]]], number: int) -> BoundPlan | None:
        """See ``CachedUnion.in_one``."""
        plan: JavaObject | None = self._cached_union.in_one(frames, number)
        return None if plan is None else InputRows(plan)

    def side_by_side(self, frames: Sequence[DataFrame], columns: Sequence[str], *, partitions: int) -> DataFrame:
        """See ``CachedUnion.side_by_side``."""
        return self.editor.frame(self._cached_union.side_by_side(frames, columns, partitions=partitions))
