"""One stage for a small batch: each task gets all rows and keeps those of its keys, in place of an exchange by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.spark.blocks import function_of
from penstock.spark.bound_plans import (
    FIRST_PLACEHOLDER,
    BoundPlan,
    BoundRows,
    InputRows,
    PlanBuilder,
    PlanParts,
    PreparedPlan,
    parts_of,
)
from penstock.spark.keepable import is_keepable, is_row_wise, json_of
from penstock.spark.plans import optimized_plan, plan_kind, plan_nodes, scala_items

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.spark.blocks import JavaObject
    from penstock.spark.kept_rows import SparkClasses


# A small batch pays for an exchange with a second stage and files, which takes longer than its rows. So each of the n
# tasks gets the whole batch, and keeps the rows whose keys the exchange would have sent to it: the filter computes
# Spark's own expression of the partition. A row has one owner, since all tasks compute the same of it. The filter comes
# before everything else, so each row is computed and counted once.
#
# The key of a row must be an expression over the batch's columns, which Spark's optimiser finds if there is one. What
# an exchange would have brought together is then where layers have it, so small and large batches mix on one state.

MAX_COPIED_ROWS: Final = 20_000
"""Rows times tasks up to which copies cost less than an exchange (measured with two tasks)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How a plan that groups rows is to exchange them: by some of its keys.

    Attributes:
        rows: the plan of the rows, below the exchange.
        keys: the columns to exchange them by, prepared over those of ``rows``, under the names that the exchange has.
        partitions: number of partitions that they are exchanged into.
        may_copy: whether each task may get all rows of a small batch, in place of an exchange.
    """

    rows: BoundPlan
    keys: PreparedPlan
    partitions: int
    may_copy: bool = True

    @property
    def sent(self) -> InputRows | None:
        """The input rows, if the driver sends them and they are few enough to be copied to each task."""
        inputs = [part for part in parts_of(self.rows) if isinstance(part, InputRows)]
        if not self.may_copy:
            return None
        if len(inputs) != 1 or inputs[0].sent is None or inputs[0].sent * self.partitions > MAX_COPIED_ROWS:
            return None
        return inputs[0]


class OwnRows:
    """Gives each task the rows of a batch that it owns.

    Args:
        classes: see ``SparkClasses``.
        columns: of the rows.
        is_own: the condition that a row is the task's, over ``columns``.
        tasks: how many there are.
    """

    def __init__(self, classes: SparkClasses, columns: JavaObject, is_own: JavaObject, tasks: int) -> None:
        self._classes = classes
        self._tasks = tasks
        # a stage with generated code tells its filter the number of the task
        own = classes.filter(is_own, classes.scan_of(columns, classes.leaves.empty_rows(1)))
        self._function = function_of(classes.stage(own, 1).execute())
        self._passed = own.longMetric("numOutputRows")

    def of(self, rows: JavaObject) -> tuple[JavaObject, Callable[[], int]]:
        """The RDD of the rows of another, each in its owner's partition, and how many there were, once a job has run.

        Fewer than there are means that figures of the job are not those of all rows: a task that is tried again after
        it has cached its rows finds them, and observes nothing. One batch at a time may be run.
        """
        before = int(self._passed.value())
        own = self._classes.map_rows([self._classes.copied(rows, self._tasks)], self._function)
        return own, lambda: int(self._passed.value()) - before


class RowOwners:
    """Finds which task owns a row.

    Args:
        classes: see ``SparkClasses``.
        builder: of the session.
    """

    def __init__(self, classes: SparkClasses, builder: PlanBuilder) -> None:
        self._classes = classes
        self._builder = builder

    def own_rows(self, placement: Placement, leaf: JavaObject) -> OwnRows | None:
        """What gives each task its own rows; ``None`` if a key is no expression over the columns of the input.

        A row that a step drops, so that it may have no key, is the first task's.

        Args:
            placement: the exchange that this replaces.
            leaf: stands for the input rows.
        """
        classes, number = self._classes, self._builder.editor.literal(FIRST_PLACEHOLDER)
        parts = PlanParts(rows=lambda _: leaf, number=lambda _: number, observe=lambda _rows, below, _bound: below)
        logical = self._builder.build(BoundRows(placement.keys, placement.rows), parts)
        analysed = json_of(logical)
        if analysed is None or not is_keepable(analysed):
            return None
        keys = optimized_plan(self._builder.editor.frame(logical))
        columns, below = (keys.projectList(), keys.child()) if plan_kind(keys) == "Project" else (keys.output(), keys)
        condition, below = (below.condition(), below.child()) if plan_kind(below) == "Filter" else (None, below)
        if plan_kind(below) != "LogicalRDD" or below.rdd().id() != leaf.rdd().id() or not _is_of_the_row(keys):
            return None
        values = [column.child() if plan_kind(column) == "Alias" else column for column in scala_items(columns)]
        first = self._builder.editor.literal(0)
        owner = classes.hashed(classes.leaves.lists(values), placement.partitions).partitionIdExpression()
        if condition is not None:
            owner = classes.if_else(condition, owner, first)
        # A key that cannot be computed fails where rows are grouped, and not for one that is late and has no group.
        owner = classes.coalesced(classes.leaves.lists([classes.tried(owner), first]))
        return OwnRows(classes, leaf.output(), classes.equal(owner, classes.task_number()), placement.partitions)


def _is_of_the_row(keys: JavaObject) -> bool:
    """Whether all that a plan computes of a row depends on the row alone, and on no number of the batch."""
    text = json_of(keys)
    return text is not None and str(FIRST_PLACEHOLDER) not in text and is_row_wise(text)


def exchange_of(plan: JavaObject, placement: Placement) -> tuple[JavaObject, list[JavaObject]] | None:
    """The exchange of a physical plan, and the columns in it that are a placement's keys.

    ``None`` if it is not the only one, or not by these and other columns.
    """
    exchanges = [node for node in plan_nodes(plan) if plan_kind(node).endswith("ExchangeExec")]
    if len(exchanges) != 1 or plan_kind(exchanges[0].outputPartitioning()) != "HashPartitioning":
        return None
    columns = list(scala_items(exchanges[0].outputPartitioning().expressions()))
    if any(plan_kind(column) != "AttributeReference" for column in columns):
        return None
    by_name = {str(column.name()): column for column in columns}
    names = placement.keys.schema.names
    return (exchanges[0], [by_name[name] for name in names]) if by_name.keys() >= set(names) else None
