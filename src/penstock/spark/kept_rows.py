"""Rows that Spark has planned: as a frame, or kept as cached blocks by the first job that reads them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from penstock.spark.blocks import (
    JavaObject,
    RowLeaves,
    call_either,
    frame_of_plan,
    function_of,
    java_frame,
    mapped_rdd,
    scala_object,
)
from penstock.spark.kept_output import RowKeeper

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


# ---- Spark's classes -------------------------------------------------------------------------------------------------

INTERNALS: Final = {
    "mapped": "org.apache.spark.rdd.MapPartitionsRDD",
    "literal": "org.apache.spark.sql.catalyst.expressions.Literal",
    "long_array": "org.apache.spark.sql.catalyst.expressions.UnsafeArrayData",
    "array_type": "org.apache.spark.sql.types.ArrayType",
    "generic_array": "org.apache.spark.sql.catalyst.util.GenericArrayData",
    "scan": "org.apache.spark.sql.execution.RDDScanExec",
    "unknown": "org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning",
    "platform": "org.apache.spark.unsafe.Platform",
    "properties": "java.util.Properties",
    "settings": "java.util.HashMap",
    "text": "java.lang.String",
    "union": "org.apache.spark.rdd.UnionRDD",
    "side_by_side": "org.apache.spark.rdd.SQLPartitioningAwareUnionRDD",
    "zipped": "org.apache.spark.rdd.ZippedPartitionsRDD2",
    "filter": "org.apache.spark.sql.execution.FilterExec",
    "exchange": "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec",
    "hashed": "org.apache.spark.sql.catalyst.plans.physical.HashPartitioning",
    "if_else": "org.apache.spark.sql.catalyst.expressions.If",
    "tried": "org.apache.spark.sql.catalyst.expressions.TryEval",
    "coalesced": "org.apache.spark.sql.catalyst.expressions.Coalesce",
    "equal": "org.apache.spark.sql.catalyst.expressions.EqualTo",
    "task_number": "org.apache.spark.sql.catalyst.expressions.SparkPartitionID",
    "stage": "org.apache.spark.sql.execution.WholeStageCodegenExec",
    "evaluator": "org.apache.spark.sql.execution.WholeStageCodegenEvaluatorFactory",
    "shuffled": "org.apache.spark.sql.execution.ShuffledRowRDD",
    "row_serializer": "org.apache.spark.sql.execution.UnsafeRowSerializer",
    "arrays": "java.util.Arrays",
    "right": "scala.util.Right",
    "column_packer": "org.apache.spark.sql.execution.columnar.DefaultCachedBatchSerializer",
    "column_type": "org.apache.spark.sql.execution.columnar.ColumnType",
}
"""Classes that kept plans need, by the attribute of ``SparkClasses`` that has them."""


MANY_GROUPS: Final = {
    "spark.sql.codegen.aggregate.map.twolevel.partialOnly": "false",
    # The fast hash map of columns: the other one ends with its first page, and all further groups miss it. An array of
    # 2**17 numbers is 1 MB, so that it lies inside the generations of a heap above 4 GB.
    "spark.sql.codegen.aggregate.map.vectorized.enable": "true",
    "spark.sql.codegen.aggregate.fastHashMap.capacityBit": "17",
}
"""Settings for aggregations of many rows: Spark's fast hash map, with room for many groups, also after an exchange."""


@dataclass(frozen=True, slots=True)
class GeneratedCode:
    """The code of a stage, the metric of its time, and the objects that the code refers to by their places."""

    code: JavaObject
    metric: JavaObject
    constants: Sequence[JavaObject]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What exchanges rows.

    Attributes:
        columns: of the rows.
        partitioning: that it gives them.
        serializer: of the rows.
        metrics: what Spark counts while it exchanges rows; penstock does not read it.
    """

    columns: JavaObject
    partitioning: JavaObject
    serializer: JavaObject
    metrics: JavaObject


def missing_class(spark: SparkSession) -> str | None:
    """The name of a class that kept plans need and this Spark lacks; ``None`` if it has all.

    Without that class each batch is planned for itself, as any query is: slower, with the same results.
    """
    loader = _class_loader(spark)
    return next((name for name in INTERNALS.values() if not _has_class(loader, name)), None)


def _class_loader(spark: SparkSession) -> JavaObject:
    jvm: Any = spark._jvm  # noqa: SLF001 - there is no public way
    return getattr(jvm, "java.lang.Thread").currentThread().getContextClassLoader()


def _has_class(loader: JavaObject, name: str) -> bool:
    try:
        loader.loadClass(name)
    except Exception:  # whatever the reason, it cannot be used
        return False
    return True


class SparkClasses:
    """The classes of the JVM that kept plans use, looked up once."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001
        for attribute, name in INTERNALS.items():
            setattr(self, attribute, getattr(jvm, name))
        self.spark = spark
        self.context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001
        inner: Any = spark._jsparkSession  # noqa: SLF001
        self._inner = inner
        self.sql_settings: JavaObject = inner.sessionState().conf().settings()
        self._activate = getattr(jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession
        tags, of = scala_object(jvm, "scala.reflect.ClassTag"), getattr(jvm, "java.lang.Class").forName
        self.leaves = RowLeaves(spark)
        self.row_tag = self.leaves.row_tag
        self.longs = self.array_type(scala_object(jvm, "org.apache.spark.sql.types.LongType"), False)
        self.offset = int(self.platform.BYTE_ARRAY_OFFSET)
        self.keeps_one_copy = RowKeeper.keeps_one_copy(spark)
        self.no_partitions = self.unknown(0)
        exchanges = scala_object(jvm, "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec")
        self._send = exchanges.prepareShuffleDependency
        self._compile = scala_object(jvm, "org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator").compile
        self._any_tag = tags.Any()
        self._is_plan = of("org.apache.spark.sql.execution.SparkPlan").isInstance
        self._is_expression = of("org.apache.spark.sql.catalyst.expressions.Expression").isInstance
        self._none = scala_object(jvm, "scala.None")
        self._accumulators = scala_object(jvm, "org.apache.spark.util.AccumulatorContext")
        # from Spark 4.3 on; before, a node told what all tasks had observed
        aggregating = "org.apache.spark.sql.execution.LastAttemptAggregatingAccumulator"
        self._tells_by_rdd = _has_class(_class_loader(spark), aggregating)
        context = spark.sparkContext
        if context not in _copying:
            _copying[context] = _copying_function(spark)
        self.copy = _copying[context]

    def __getattr__(self, name: str) -> Any:  # so that types are known of the attributes of ``INTERNALS``
        raise AttributeError(name)

    def has_observed_apart(self, node: JavaObject) -> bool:
        """Whether tasks of several RDDs have observed rows at a node, which then tells only what the last one's did.

        So it is where a job reads some partitions of results, and another one then keeps the rest.
        """
        return self._tells_by_rdd and int(self._accumulators.get(node.accumulatorId()).get().getNumRDDs()) > 1

    def activate(self, session: JavaObject = None) -> None:
        """Make a session this thread's active one: nodes of plans that are made or copied take theirs from there.

        Args:
            session: the session; by default the one that these classes are of.
        """
        self._activate(self._inner if session is None else session)

    def session_for_many(self) -> JavaObject:
        """A clone of the session that has ``MANY_GROUPS`` as well."""
        session = self._inner.cloneSession()
        for name, value in MANY_GROUPS.items():
            session.conf().set(name, value)
        return session

    def array(self, values: Sequence[int]) -> JavaObject:
        """An array of BIGINT, as Spark has it."""
        # the layout of UnsafeArrayData: its size, a bit for each NULL in words of 8 bytes, the values
        size, words = len(values), -(-len(values) // 64)
        content = struct.pack(f"={1 + words + size}q", size, *[0] * words, *values)
        data = self.long_array()
        data.pointTo(content, self.offset, len(content))
        return data

    def array_literal(self, array: JavaObject) -> JavaObject:
        """The literal of an array of BIGINT."""
        return self.literal(array, self.longs)

    def constant_array(self, values: Sequence[int]) -> JavaObject:
        """A literal equal to the one that Spark's optimiser makes of constants, so that it finds that one in a plan."""
        gateway: Any = self.spark.sparkContext._gateway  # noqa: SLF001
        array = gateway.new_array(gateway.jvm.long, len(values))
        for place, value in enumerate(values):
            array[place] = value
        return self.array_literal(self.generic_array(array))

    def exchanged_by(self, exchange: JavaObject, columns: Sequence[JavaObject], partitions: int) -> JavaObject:
        """The exchange of a physical plan, by other columns."""
        others = [exchange.productElement(place) for place in range(1, exchange.productArity())]
        return self.exchange(self.hashed(self.leaves.lists(columns), partitions), *others)

    def copied(self, rdd: JavaObject, copies: int) -> JavaObject:
        """An RDD each of whose partitions has all rows of another."""
        one = rdd if rdd.getNumPartitions() == 1 else rdd.coalesce(1, False, self._none, None)
        return one if copies == 1 else self.union(self.context, self.leaves.lists([one] * copies), self.row_tag)

    def united(self, rdds: Sequence[JavaObject], partitions: int) -> JavaObject:
        """An RDD each of whose partitions has the rows of that partition of each of ``rdds``."""
        return self.side_by_side(self.context, self.leaves.lists(rdds), partitions, self.row_tag)

    def map_rows(self, rdds: Sequence[JavaObject], function: JavaObject) -> JavaObject:
        """An RDD of what a function of a task makes of the rows of one or two others, partition by partition."""
        if len(rdds) > 1:
            return self.zipped(self.context, function, *rdds, False, *[self.row_tag] * 3)
        return mapped_rdd(self.mapped, rdds[0], function, row_tag=self.row_tag, item_tag=self.row_tag)

    def generated_code(self, stage: JavaObject) -> GeneratedCode | None:
        """The code of a stage; ``None`` if Spark cannot compile it, or would not run it, since a method is too long."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        context, code = _pair(stage.doCodeGen())
        try:
            _, statistics = _pair(self._compile(code))
        except Py4JJavaError:
            return None
        if statistics.maxMethodCodeSize() > stage.conf().hugeMethodLimit():
            return None
        constants = context.references().toArray(self._any_tag)
        return GeneratedCode(code, stage.longMetric("pipelineTime"), constants)

    def is_plan(self, value: JavaObject) -> bool:
        """Whether an object is a node of a physical plan."""
        return bool(self._is_plan(value))

    def is_expression(self, value: JavaObject) -> bool:
        """Whether an object is an expression."""
        return bool(self._is_expression(value))

    def generated_rows(
        self, rdds: Sequence[JavaObject], code: GeneratedCode, others: Mapping[int, JavaObject]
    ) -> JavaObject:
        """An RDD of what generated code makes of the rows of one or two others.

        Args:
            rdds: the others.
            code: the code.
            others: objects that it is to refer to in place of its own.
        """
        constants = code.constants
        if others:
            constants = self.arrays.copyOf(constants, len(constants))
            for place, constant in others.items():
                constants[place] = constant
        # earlier releases took the code alone, which may be a broadcast now
        made = call_either(
            self.evaluator, (self.right(code.code), code.metric, constants), (code.code, code.metric, constants)
        )
        if len(rdds) == 1:
            return rdds[0].mapPartitionsWithEvaluator(made, self.row_tag)
        return rdds[0].zipPartitionsWithEvaluator(rdds[1], made, self.row_tag)

    def exchange_like(self, node: JavaObject) -> Exchange:
        """What exchanges rows as a node of a physical plan does."""
        columns = node.child().output()
        return Exchange(
            columns=columns,
            partitioning=node.outputPartitioning(),
            serializer=self.row_serializer(columns.size(), node.longMetric("dataSize")),
            metrics=node.metrics(),
        )

    def exchanged_rows(self, rdd: JavaObject, exchange: Exchange) -> JavaObject:
        """An RDD of the rows of another, exchanged."""
        arguments = (rdd, exchange.columns, exchange.partitioning, exchange.serializer, exchange.metrics)
        # Spark 4.3 added an argument: whether the reading stage begins before the writing one has ended
        return self.shuffled(call_either(self._send, (*arguments, False), arguments), exchange.metrics)

    def scan_of(self, columns: JavaObject, rdd: JavaObject, partitioning: JavaObject = None) -> JavaObject:
        """A leaf of a physical plan over an RDD of rows with these columns."""
        known = self.unknown(rdd.getNumPartitions()) if partitioning is None else partitioning
        arguments = (columns, rdd, "rows", known, self.leaves.lists.nil)
        # earlier releases took one argument fewer
        return call_either(self.scan, (*arguments, self._none), arguments)

    def scan_like(self, scan: JavaObject, rdd: JavaObject) -> JavaObject:
        """A leaf like another one, over an RDD of its rows."""
        return self.scan_of(scan.output(), rdd, scan.outputPartitioning())

    def rows_of(self, plan: JavaObject) -> JavaObject:
        """The RDD of the rows of a logical plan, planned for itself."""
        return java_frame(frame_of_plan(plan, self.spark)).queryExecution().executedPlan().execute()


def _pair(made: JavaObject) -> tuple[JavaObject, JavaObject]:
    return made.productElement(0), made.productElement(1)


_copying: WeakKeyDictionary[SparkContext, JavaObject] = WeakKeyDictionary()


def _copying_function(spark: SparkSession) -> JavaObject:
    """Spark's own function of a task that copies rows: an iterator may give the same row object again and again."""
    kept = java_frame(spark.range(1).localCheckpoint(eager=False)).logicalPlan().rdd()
    kept.unpersist(False)
    return function_of(kept)


# ---- rows that Spark has planned -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRows:
    """Rows as an RDD: planned, not run.

    Attributes:
        classes: see ``SparkClasses``.
        rdd: the rows.
        columns: of the rows, with Spark's expression ids.
        partitioning: how they are partitioned, by ``columns``.
    """

    classes: SparkClasses
    rdd: JavaObject
    columns: JavaObject
    partitioning: JavaObject

    def frame(self) -> DataFrame:
        """A lazy frame of the rows."""
        leaf = self.classes.leaves.make(self.columns, self.rdd, self.partitioning, is_checkpointed=False)
        return frame_of_plan(leaf, self.classes.spark)

    def keep(self) -> KeptRows:
        """Have the first job that reads the rows keep them as cached blocks."""
        return KeptRows(self)


class KeptRows:
    """Rows that the first job that reads them keeps as cached blocks, without lineage from then on.

    When that job ends, Spark computes the partitions that it did not read. A lost block is an error and never a
    recomputation. The blocks stay until ``penstock.spark.blocks.free_blocks``.

    Attributes:
        frame: the rows, with expression ids of their own: all rows of a kept plan have the same ids, and Spark would
            misread a union of them.
    """

    def __init__(self, rows: PlannedRows) -> None:
        classes = rows.classes
        self._rdd = classes.map_rows([rows.rdd], classes.copy)
        self._rdd.localCheckpoint()
        self._classes = classes
        leaf = classes.leaves.make(rows.columns, self._rdd, rows.partitioning)
        self.frame: DataFrame = frame_of_plan(leaf.newInstance(), classes.spark)

    def run(self) -> int:
        """Keep the rows, in one job, and return how many there are; free them if it fails."""
        return int(self._run(self._rdd.count))

    def finish(self) -> None:
        """Keep the rows that no job has kept, by a job if there are any; free them if it fails."""
        if not self._rdd.isCheckpointed():
            # A job that keeps rows of its own leaves this undone. Tasks run only for partitions that are missing.
            self._run(self._rdd.doCheckpoint)
        if not self._rdd.isCheckpointed():
            self.run()

    def _run(self, job: Callable[[], Any]) -> Any:
        try:
            with _sql_settings(self._classes):
                return job()
        except BaseException:
            self._rdd.unpersist(False)
            raise


@contextmanager
def _sql_settings(classes: SparkClasses) -> Iterator[None]:
    """Context in which this thread's jobs have the session's SQL settings.

    Expressions ask for settings when they run: ``to_json`` whether it writes NULLs. Spark's own queries send them along
    as local properties. A job over an RDD has to do it itself, and leaves the thread as it was.
    """
    before = classes.context.getLocalProperties()
    properties = classes.properties()
    properties.putAll(before)
    # One call: py4j ends a loop over Java's names by an exception, and PySpark asks the JVM fourteen times what it is.
    for name in str(classes.text.join("\n", before.stringPropertyNames())).split("\n"):
        if name.startswith("spark.sql."):
            properties.remove(name)  # of a setting that is not set any more
    properties.putAll(classes.sql_settings)
    classes.context.setLocalProperties(properties)
    try:
        yield
    finally:
        classes.context.setLocalProperties(before)
