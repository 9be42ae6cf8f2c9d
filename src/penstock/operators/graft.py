"""Hangs an analysed plan onto another frame, so that a user's functions run once and their plan serves every batch.

A plan is built over a *leaf*, an empty relation of its own. For a batch the leaf is replaced by the batch's plan, in a
constant number of calls into the JVM however many columns and steps there are:

* ``transformUp`` takes a partial function, and a Scala ``Map`` of one entry is one: leaf to replacement;
* the plan above the leaf names its columns by the leaf's expression ids. A ``Union`` of an empty local relation with
  those ids and the batch's plan has them too; the optimiser then drops the empty side and leaves a plain renaming.

All that touches Spark's internals for this is here. Knows nothing of steps, streams or batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from penstock.state.blocks import Sequences, either, framed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Java: TypeAlias = Any
"""An object in the JVM."""

MOST: Final = 4
"""Replacements at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Where a plan is cut off from what is below it.

    Attributes:
        frame: an empty frame with the leaf as its plan; running it costs a Spark job, so that jobs are noticed.
        plan: the leaf's node.
        empty: an empty local relation with the leaf's columns and expression ids.
        rdd: the number by which the leaf is recognised in an analysed plan.
        schema: of the frame.
    """

    frame: DataFrame
    plan: Java
    empty: Java
    rdd: int
    schema: StructType


class Grafter:
    """The JVM's classes for one session, looked up once."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._session: Java = cast("Any", spark)._jsparkSession  # noqa: SLF001 - plans have no public way in
        self.jvm: Java = cast("Any", spark)._jvm  # noqa: SLF001
        logical = self.jvm.org.apache.spark.sql.catalyst.plans.logical
        self._union = logical.Union
        self._both = getattr(getattr(self.jvm, "org.apache.spark.sql.catalyst.plans.logical.Union$"), "MODULE$").apply
        self._local_relation = logical.LocalRelation
        self._maps = tuple(
            getattr(self.jvm, f"scala.collection.immutable.Map$Map{size}") for size in range(1, MOST + 1)
        )
        self._sequence = Sequences(self.jvm)
        self._none = getattr(getattr(self.jvm, "scala.None$"), "MODULE$")
        literals: Java = getattr(self.jvm, "org.apache.spark.sql.catalyst.expressions.Literal$")
        self.literal = getattr(literals, "MODULE$").apply

    def leaf(self, schema: StructType) -> Leaf:
        """A new leaf with these columns."""
        context = cast("Any", self.spark.sparkContext)._jsc  # noqa: SLF001
        rows = context.parallelize(self.jvm.java.util.ArrayList(), 1)
        made = self._session.createDataFrame(rows, self._session.parseDataType(schema.json()))
        plan = made.logicalPlan()
        return Leaf(
            frame=self._wrap(made), plan=plan, empty=self._empty(plan.output()), rdd=plan.rdd().id(), schema=schema
        )

    def _empty(self, output: Java) -> Java:
        given = (output, self._sequence.nil, False)
        return either(self._local_relation, (*given, self._none), given)  # before Spark 4.2 none for a stream

    def replaced(self, *pairs: Java) -> Java:
        """A partial function that replaces nodes, or expressions, by others: one and its replacement, then the next.

        At most :data:`MOST` pairs: of so many a Scala ``Map`` is made in one call.
        """
        return self._maps[len(pairs) // 2 - 1](*pairs)

    def hang(self, plan: Java, leaf: Leaf, below: Java) -> Java:
        """``plan`` with ``below`` in the place of its leaf: the same columns by position, whatever their names."""
        return plan.transformUp(self.replaced(leaf.plan, self._both(leaf.empty, below)))

    def union(self, plans: Sequence[Java]) -> Java:
        """The rows of analysed plans with the same columns, none of which has an expression id of another's."""
        if len(plans) == 1:
            return plans[0]
        return self._union(self._sequence(plans), False, False)

    def flatten(self, plan: Java) -> Java:
        """The same plan with fewer nodes: done once here, the optimiser need not do it again for each batch."""
        optimizer = self.jvm.org.apache.spark.sql.catalyst.optimizer
        aliases = getattr(self.jvm, "org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases$")
        plan = getattr(aliases, "MODULE$").apply(plan)
        for rule in ("PropagateEmptyRelation$", "CollapseProject$"):
            plan = getattr(getattr(optimizer, rule), "MODULE$").apply(plan)
        return plan

    def without_ctes(self, plan: Java) -> Java:
        """The plan with ``WITH`` clauses put in their places: two grafts of one clause would share its number."""
        if "WithCTE" not in plan.toString():
            return plan
        inline = self.jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE
        return either(inline, (True, False, False), (True, False)).apply(plan)  # before Spark 4.3 it has two

    def frame(self, plan: Java) -> DataFrame:
        """A lazy frame of a plan whose parts are analysed."""
        return framed(plan, self.spark)

    def _wrap(self, made: Java) -> DataFrame:
        from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

        return cast("DataFrame", ClassicFrame(made, self.spark))


def plan_of(frame: DataFrame) -> Java:
    """The analysed plan of a frame."""
    return cast("Any", frame)._jdf.queryExecution().analyzed()  # noqa: SLF001 - plans have no public way in


def items(seq: Java) -> Iterator[Java]:
    """The items of a Scala sequence."""
    return (seq.apply(place) for place in range(seq.size()))
