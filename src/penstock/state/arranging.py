"""Cached rows of several frames as one leaf of a plan: beside one another, or above. Runs no job, copies no row.

A union of frames is a part of a plan for each of them: Spark optimises each, generates code for each and sends it to
each task. One leaf costs the same however many frames are in it. Knows nothing of layers and of what rows mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from penstock.state.blocks import Sequences, either

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

_ONE: Final = "SinglePartition"
_ALONE: Final = re.compile(r"hashpartitioning\(.+, 1\)")
_PLACED: Final = re.compile(_ONE + r"|hashpartitioning\(.+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is asked of a frame once: each answer is a call to the JVM.

    ``placement`` says how its rows are shared out, and is empty if Spark does not know. What belongs together is in
    partitions of the same number in frames with the same columns and the same placement.
    """

    plan: Any
    rows: Any
    placement: str


class Arranger:
    """The JVM's classes for one session, looked up once."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - plans have no public way in
        self._session: Any = session._jsparkSession  # noqa: SLF001
        self._rows = getattr(jvm, "org.apache.spark.sql.execution.LogicalRDD")
        self._hashing = getattr(jvm, "org.apache.spark.sql.catalyst.plans.physical.HashPartitioning")
        self._beside = getattr(jvm, "org.apache.spark.rdd.UnionRDD")
        self._above = getattr(jvm, "org.apache.spark.rdd.SQLPartitioningAwareUnionRDD")
        self._none = getattr(getattr(jvm, "scala.None$"), "MODULE$")
        self._sequence = Sequences(jvm)
        self._tag = getattr(getattr(jvm, "scala.reflect.ClassTag$"), "MODULE$").AnyRef()
        self._one = getattr(jvm, "scala.collection.immutable.Map$Map1")
        self._known: WeakKeyDictionary[DataFrame, _Known] = WeakKeyDictionary()
        self._placed: WeakKeyDictionary[DataFrame, tuple[Any, Any]] = WeakKeyDictionary()

    def above(self, frames: Sequence[DataFrame]) -> Any | None:
        """A plan of the rows of frames that have the same columns; ``None`` if they are shared out in different ways.

        Each was made by :func:`penstock.state.blocks.cut`, or here.
        """
        known = [self._ask(frame) for frame in frames]
        if len(known) == 1:
            return known[0].plan
        if not known[0].placement or any(each.placement != known[0].placement for each in known):
            return None
        columns, placed = self._sound(frames[0], known[0])
        return self._leaf(columns, self._stacked([each.rows for each in known], placed.numPartitions()), placed)

    def beside(self, frames: Sequence[DataFrame], columns: Sequence[str], *, partitions: int) -> Any:
        """A plan of the rows of frames of one partition each, hashed by ``columns``.

        Partition ``p`` of so many ``partitions`` is made of the frames ``p``, ``p + partitions`` and so on. Whoever
        calls it vouches that Spark's hash would have placed each row where it is. The blocks stay those of the frames.
        """
        plans = [_plan(frame) for frame in frames]
        by = _internals(frames[0].select(*columns)).queryExecution().analyzed().output()
        rdds = [plan.rdd() for plan in plans]
        context = rdds[0].context()
        stories = [
            self._beside(context, self._sequence(rdds[first : first + partitions]), self._tag)
            for first in range(0, len(rdds), partitions)
        ]
        return self._leaf(plans[0].output(), self._stacked(stories, partitions), self._hashing(by, partitions))

    def _ask(self, frame: DataFrame) -> _Known:
        known = self._known.get(frame)
        if known is None:
            plan = _plan(frame)
            told = _ALONE.sub(_ONE, re.sub(r"#\d+L?", "", plan.outputPartitioning().toString()))
            known = _Known(plan=plan, rows=plan.rdd(), placement=told if _PLACED.fullmatch(told) else "")
            self._known[frame] = known
        return known

    def _sound(self, frame: DataFrame, known: _Known) -> tuple[Any, Any]:
        """A frame's columns, each of which may be NULL in another one, and its partitioning by just these.

        Spark's own may name one that the optimiser knew more of, or less, and a plan above it then loses sight of it.
        """
        found = self._placed.get(frame)
        if found is None:
            placed, output = known.plan.outputPartitioning(), known.plan.output()
            columns = [output.apply(at).withNullability(True) for at in range(output.size())]
            if placed.toString() != _ONE:
                own = {column.exprId().id(): column for column in columns}
                by = placed.references().toSeq()
                for column in (by.apply(at) for at in range(by.size())):
                    placed = placed.transform(self._one(column, own[column.exprId().id()]))
            found = self._placed[frame] = self._sequence(columns), placed
        return found

    def _stacked(self, rdds: Sequence[Any], partitions: int) -> Any:
        """One RDD whose partitions are those of the same number of each."""
        if len(rdds) == 1:
            return rdds[0]
        return self._above(rdds[0].context(), self._sequence(rdds), partitions, self._tag)

    def _leaf(self, columns: Any, rows: Any, placed: Any) -> Any:
        given = (columns, rows, placed, self._sequence.nil, False, self._none, self._session, self._none, self._none)
        # before Spark 4.3 it does not say whether it is checkpointed
        return either(self._rows, (*given, True), given)


def _plan(frame: DataFrame) -> Any:
    return _internals(frame).logicalPlan()


def _internals(frame: DataFrame) -> Any:
    return frame._jdf  # noqa: SLF001
