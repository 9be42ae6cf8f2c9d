"""Refuses user plans that are not row-wise; notices jobs that building them ran."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import GraphError
from penstock.spark.blocks import JavaObject
from penstock.spark.plans import plan_kind, scala_items

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Self


# ---- jobs that building a plan ran -----------------------------------------------------------------------------------

_GROUP: Final = "spark.jobGroup.id"
_serials = itertools.count(1)


class JobWatch:
    """``with JobWatch(spark) as watch: …``; then ``watch.jobs`` counts the jobs that this thread began inside.

    Jobs of other threads do not count: this thread's have a job group of their own, which is looked up only if any job
    began at all.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._scala = cast("Any", self._context)._jsc.sc()  # noqa: SLF001 - there is no public count of jobs
        self._group = f"penstock-build-{next(_serials)}"
        self._before: str | None = None
        self._started = 0
        self.jobs = 0

    def __enter__(self) -> Self:
        self._before = self._context.getLocalProperty(_GROUP)
        self._context.setLocalProperty(_GROUP, self._group)
        self._started = self._scala.dagScheduler().numTotalJobs()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.setLocalProperty(_GROUP, cast("str", self._before))  # None removes it
        if self._scala.dagScheduler().numTotalJobs() == self._started:
            return
        self._scala.listenerBus().waitUntilEmpty(10_000)
        self.jobs = len(self._context.statusTracker().getJobIdsForGroup(self._group))


# ---- what is row-wise ------------------------------------------------------------------------------------------------
# Row-wise: each row of the result comes from one row of the stream, so that it is the same whatever other rows are in
# its batch. Between the root and the stream only the nodes listed here are allowed. What is made of declared tables
# alone may be anything: it is the same for every batch.
#
# ``mapInPandas`` and ``mapInArrow`` are allowed though a function could look beyond a row there; users are asked not
# to.

_ALLOWED: Final = frozenset(
    {
        "Project",
        "Filter",
        "Generate",
        "Expand",  # unpivot; under a rollup it has an Aggregate above, which is refused
        "SubqueryAlias",
        "View",
        "ResolvedHint",
        "MapInPandas",
        "MapInArrow",
        "PythonMapInArrow",
    }
)
_WINDOWED: Final = "It would see one batch only. Use .group_by(…, ps.tumbling(…)).agg(…), which sees whole windows."
_ORDER: Final = "A stream has no order and no end. Aggregate in a window, or sort what the sink holds."
_LAYOUT: Final = "How rows are cut may change with every run. Leave it out."
_SET: Final = "It would compare the rows of one batch. Join a declared p.table instead."
_REMEDIES: Final = {
    "Aggregate": _WINDOWED,
    "Window": _WINDOWED,
    "Pivot": _WINDOWED,
    "FlatMapGroupsInPandas": _WINDOWED,
    "FlatMapGroupsInArrow": _WINDOWED,
    "FlatMapCoGroupsInPandas": _WINDOWED,
    "FlatMapCoGroupsInArrow": _WINDOWED,
    "Distinct": _WINDOWED,
    "Deduplicate": _WINDOWED,
    "DeduplicateWithinWatermark": _WINDOWED,
    "Sort": _ORDER,
    "GlobalLimit": _ORDER,
    "LocalLimit": _ORDER,
    "Tail": _ORDER,
    "Offset": _ORDER,
    "Sample": 'It draws other rows at each replay. Use .where("pmod(xxhash64(id), 100) < 10"), which takes the same.',
    "Repartition": _LAYOUT,
    "RepartitionByExpression": _LAYOUT,
    "RebalancePartitions": _LAYOUT,
    "Union": "Use stream.union(other).",
    "Intersect": _SET,
    "Except": _SET,
    "CollectMetrics": "Leave .observe(…) out, since penstock counts rows itself.",
    "WithCTE": "Write the query without WITH.",
}
_NAMES: Final = {
    "GlobalLimit": "Limit",
    "LocalLimit": "Limit",
    "Aggregate": "Aggregate (a group by, a distinct or an aggregate function)",
    "Window": "Window (a window function)",
    "Deduplicate": "Deduplicate (drop duplicates)",
    "WithCTE": "WithCTE (a WITH clause)",
}
_SHOWN: Final = 100
_OTHERWISE: Final = "Only row-wise work is possible here: columns, filters, explode, joins with a declared p.table."
# Not a function of the row: what they give depends on how the batch is cut and where it was read.
_REFUSED_EXPRESSIONS: Final = {
    "MonotonicallyIncreasingID": "monotonically_increasing_id() begins again in each batch and numbers nothing. "
    "Use a column of the source, or uuid().",
    "SparkPartitionID": "spark_partition_id() depends on how a batch is cut. Leave it out.",
    "InputFileName": "input_file_name() is empty once a batch is kept. Use the source's own columns.",
    "InputFileBlockStart": "input_file_block_start() is lost once a batch is kept. Use the source's own columns.",
    "InputFileBlockLength": "input_file_block_length() is lost once a batch is kept. Use the source's own columns.",
}
# Join types under which a row of the left, or of the right, side depends on no other row of its side.
_LEFT_STREAM: Final = frozenset({"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"})
_RIGHT_STREAM: Final = frozenset({"Inner", "Cross", "RightOuter"})


@dataclass(slots=True)
class PlanCheck:
    """One check of one plan.

    Attributes:
        stream: RDD id of the stream's leaf.
        tables: RDD ids of the leaves of declared tables.
        is_volatile: after the check, whether the plan draws random numbers whose seed is a part of it.
    """

    stream: int
    tables: Collection[int]
    is_volatile: bool = field(default=False, init=False)

    def check(self, plan: JavaObject) -> None:
        """Refuse what is not row-wise.

        Raises:
            GraphError: the plan is not row-wise; the message names the operator and what to use instead.
        """
        if not self._walk(plan):
            msg = "The result does not come from the stream it was given. Build it from the frame that the step gets."
            raise GraphError(msg)

    def _walk(self, node: JavaObject) -> bool:
        """Whether rows of the stream come out of ``node``."""
        kind = plan_kind(node)
        for subquery in scala_items(node.subqueries()):
            if self._walk_subquery(subquery):
                msg = f"A subquery reads the stream itself. {_WINDOWED}"
                raise GraphError(msg)
        children = list(scala_items(node.children()))
        if not children:
            return self._leaf(node, kind)
        sides = [self._walk(child) for child in children]
        if not any(sides):
            return False
        self._node(node, kind, sides)
        self._expressions(node)
        return True

    def _walk_subquery(self, plan: JavaObject) -> bool:
        """A subquery over declared tables may be anything; of the stream it would see one batch."""
        return _has_leaf(plan, self.stream) or self._walk(plan)

    def _leaf(self, node: JavaObject, kind: str) -> bool:
        if kind == "LogicalRDD":
            number = node.rdd().id()
            if number == self.stream:
                return True
            if number in self.tables:
                return False
        msg = (
            f"The step reads {_shown(node)}, which is neither the stream nor a declared table. Declare it with "
            'p.table("name", "SELECT …") and pass that in.'
        )
        raise GraphError(msg)

    def _node(self, node: JavaObject, kind: str, sides: list[bool]) -> None:
        if kind == "Join":
            self._join(node, sides)
        elif kind not in _ALLOWED:
            msg = f"{_NAMES.get(kind, kind)} is not row-wise. {_REMEDIES.get(kind, _OTHERWISE)}"
            raise GraphError(msg)

    def _join(self, node: JavaObject, sides: list[bool]) -> None:
        join = str(node.joinType().toString())
        name = join.partition("(")[0]
        if all(sides):
            msg = "Join of the stream with itself would meet the rows of one batch only. Join a declared p.table."
            raise GraphError(msg)
        if name not in (_LEFT_STREAM if sides[0] else _RIGHT_STREAM):
            side = "left" if sides[0] else "right"
            msg = (
                f"Join {name} with the stream on the {side} is not row-wise: it would give rows of the table once a "
                "batch. Use an inner join, or an outer, semi or anti join that keeps the stream's side."
            )
            raise GraphError(msg)

    def _expressions(self, node: JavaObject) -> None:
        for expression in scala_items(node.expressions()):
            self._expression(expression)

    def _expression(self, expression: JavaObject) -> None:
        if expression.deterministic():
            return
        kind = plan_kind(expression)
        if kind in _REFUSED_EXPRESSIONS:
            raise GraphError(_REFUSED_EXPRESSIONS[kind])
        self.is_volatile = True
        for child in scala_items(expression.children()):
            self._expression(child)


def _has_leaf(plan: JavaObject, number: int) -> bool:
    below = [*scala_items(plan.children()), *scala_items(plan.subqueries())]
    if plan_kind(plan) == "LogicalRDD" and plan.rdd().id() == number:
        return True
    return any(_has_leaf(child, number) for child in below)


def _shown(node: JavaObject) -> str:
    text = str(node.toString()).strip().splitlines()[0]
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
