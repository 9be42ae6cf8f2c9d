"""Cached blocks: rows kept by local checkpoints, freed explicitly, and joined into one leaf of a plan."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from penstock.errors import LayerMissing, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession


# Spark's internals are called through py4j. PySpark's public API promises none of this; tests pin it. Classes are
# looked up by their full name: attribute by attribute, the JVM would search every jar for a class named like each
# package, for up to half a millisecond each.


# ---- calls to the JVM ------------------------------------------------------------------------------------------------

JavaObject: TypeAlias = Any
"""An object in the JVM."""


def is_java_object(value: object) -> bool:
    """Whether a value is an object in the JVM, and not a Python value that py4j has made of one."""
    from py4j.java_gateway import JavaObject as Reference  # type: ignore[import-untyped]

    return isinstance(value, Reference)


def scala_object(jvm: JavaObject, name: str) -> JavaObject:
    """The Scala ``object`` with this full name."""
    return getattr(getattr(jvm, f"{name}$"), "MODULE$")


class ScalaLists:
    """Makes Scala lists; the classes for this are looked up once."""

    def __init__(self, jvm: JavaObject) -> None:
        self.nil = scala_object(jvm, "scala.collection.immutable.Nil")
        self._cons = getattr(jvm, "scala.collection.immutable.$colon$colon")

    def __call__(self, items: Sequence[JavaObject]) -> JavaObject:
        """A Scala list of ``items``."""
        result = self.nil
        for item in reversed(items):
            result = self._cons(item, result)
        return result


def call_either(call: Callable[..., Any], newer: Sequence[Any], older: Sequence[Any]) -> Any:
    """Call into Spark with the arguments of newer releases; if there is no such overload, with those of older ones."""
    try:
        return call(*newer)
    except Exception as error:
        if "does not exist" not in str(error):
            raise
        return call(*older)


def frame_of_plan(plan: JavaObject, session: SparkSession) -> DataFrame:
    """A frame of a plan whose parts are analysed. It is not analysed again: every rule would run over its leaves."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    jvm: Any = session.sparkContext._jvm  # noqa: SLF001
    of_rows = getattr(jvm, "org.apache.spark.sql.classic.Dataset").ofRows
    plan.setAnalyzed()
    dataset = of_rows(session._jsparkSession, plan)  # noqa: SLF001
    return ClassicDataFrame(dataset, session)


def with_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same frame under another session's settings."""
    return frame_of_plan(java_frame(frame).queryExecution().analyzed(), session)


def function_of(rdd: JavaObject) -> JavaObject:
    """The function of an RDD's tasks, which is private: what the RDD makes of the rows of the one below."""
    field = rdd.getClass().getDeclaredField("f")
    field.setAccessible(True)
    return field.get(rdd)


def mapped_rdd(
    of_class: JavaObject, rdd: JavaObject, function: JavaObject, *, row_tag: JavaObject, item_tag: JavaObject
) -> JavaObject:
    """The RDD of rows that a function of a task makes of the items of another, partition by partition.

    Args:
        of_class: ``MapPartitionsRDD``.
        rdd: the other.
        function: see ``function_of``.
        row_tag: class tag of rows.
        item_tag: class tag of the items.
    """
    tags = (row_tag, item_tag)
    # before Spark 4.2 there was one argument fewer
    return call_either(
        of_class,
        (rdd, function, False, False, False, False, *tags),
        (rdd, function, False, False, False, *tags),
    )


def java_frame(frame: DataFrame) -> JavaObject:
    """The JVM's object of a frame."""
    return frame._jdf  # noqa: SLF001


def logical_plan(frame: DataFrame) -> JavaObject:
    """The logical plan of a frame, as it was built."""
    return java_frame(frame).logicalPlan()


# ---- rows kept as cached blocks --------------------------------------------------------------------------------------

_LOST_BLOCK_ERRORS: Final = (
    "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND",
    "Checkpoint block rdd_",
    "was not found even though it's read-locked",  # its file is gone
)
"""Parts of Spark's messages about a lost block of a local checkpoint: its error class, and its texts."""


def local_checkpoint(frame: DataFrame) -> DataFrame:
    """Run ``frame`` now, in one job, and keep its rows as cached blocks without lineage.

    The result is partitioned as ``frame`` is. A lost block is an error and never a recomputation. The blocks stay until
    ``free_blocks``; garbage collection would free them only when the JVM happens to collect.

    Its columns have new expression ids: all frames bound to one prepared plan have the same ids, and Spark would
    misread a union of them.
    """
    return _with_new_ids(frame.localCheckpoint(eager=True), frame.sparkSession)


def may_run_twice(session: SparkSession) -> bool:
    """Whether Spark may run a task again: on a cluster, or in local mode where failures are allowed.

    A task that runs again after it has kept its part of a local checkpoint finds that part, and observes nothing.
    """
    return re.fullmatch(r"local(\[[^,]*\])?", session.sparkContext.master or "") is None


def count_kept(kept: DataFrame) -> int:
    """The number of rows of a local checkpoint, by a job over its blocks."""
    return int(logical_plan(kept).rdd().count())


def _with_new_ids(kept: DataFrame, session: SparkSession) -> DataFrame:
    """Checkpointed rows, with new expression ids for their columns."""
    leaf = logical_plan(kept).newInstance()
    if not leaf.references().isEmpty():  # a leaf has no input: these are columns of the plan that ran
        leaf = _partitioned_by_own_columns(leaf, session)
    return frame_of_plan(leaf, session)


def _partitioned_by_own_columns(leaf: JavaObject, session: SparkSession) -> JavaObject:
    """A leaf of checkpointed rows, with the columns of its partitioning replaced by its own of the same names.

    Spark gives the leaf the partitioning of the plan that ran, and replaces the columns there that equal one of the
    leaf's in every property. If analysis and the optimiser disagree about a column, such as whether it may be NULL,
    that column keeps the id that it had in the plan that ran.

    Then the layer seems to be partitioned by columns that it does not have, and each merge with it needs an exchange.
    The merged layer is partitioned differently from its neighbours, and the next merge needs another exchange. Column
    names are unique in a leaf, so they identify the columns.
    """
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001
    map1 = getattr(jvm, "scala.collection.immutable.Map$Map1")
    output, foreign = leaf.output(), leaf.references().toSeq()
    own_columns = {output.apply(index).name(): output.apply(index) for index in range(output.size())}
    for index in range(foreign.size()):
        column = foreign.apply(index)
        own = own_columns.get(column.name())
        if own is not None:
            leaf = leaf.transformExpressions(map1(column, own))
    return leaf


def free_blocks(frame: DataFrame) -> None:
    """Free the blocks of a frame made by ``local_checkpoint``, without waiting. Freeing twice is fine.

    Does nothing if the Spark context or the JVM has ended: their blocks are gone.
    """
    with _unless_gone(frame):
        logical_plan(frame).rdd().unpersist(False)


def free_rows(rows: JavaObject) -> None:
    """Free the blocks of an RDD."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    with suppress(Py4JError, OSError):  # only a dead JVM refuses, and it holds no blocks
        rows.unpersist(False)


def unpersist(frame: DataFrame) -> None:
    """Free the blocks of a persisted frame. Does nothing if Spark has ended, as ``free_blocks``."""
    with _unless_gone(frame):
        frame.unpersist()


def explain_lost_blocks(uid: str) -> AbstractContextManager[None]:
    """Turn the loss of a cached block in this context into an error that restarts the job from durable layers.

    Raises:
        LayerMissing: a job inside failed because a block is lost.
    """
    msg = "A cached block of the state is lost, perhaps with an executor. The job restarts from durable layers."
    return lost_blocks_as(LayerMissing(msg, uid=uid))


@contextmanager
def lost_blocks_as(explanation: PenstockError) -> Iterator[None]:
    """Raise an error in place of that of a job inside which failed because a cached block is lost."""
    try:
        yield
    except Exception as error:
        if is_lost_block(error):
            raise explanation from error
        raise


def is_lost_block(error: BaseException) -> bool:
    """Whether a Spark job failed because a cached block of some layer is gone."""
    text = str(error)
    return any(part in text for part in _LOST_BLOCK_ERRORS)


@contextmanager
def _unless_gone(frame: DataFrame) -> Iterator[None]:
    """Suppress an error if Spark has ended: the clean-up that raised it would hide the error that ended Spark."""
    try:
        yield
    except Exception:
        if not is_gone(frame.sparkSession):
            raise


def is_gone(session: SparkSession) -> bool:
    """Whether the session's context was stopped or its JVM does not answer."""
    from py4j.protocol import Py4JError

    context: Any = session.sparkContext._jsc  # noqa: SLF001
    if context is None:
        return True
    try:
        return bool(context.sc().isStopped())
    except (Py4JError, OSError):
        return True


# ---- several frames as one leaf of a plan ----------------------------------------------------------------------------
# In a union each frame is a branch of the plan: Spark optimises each, generates code for each and sends it to each
# task. One leaf costs the same however many frames are in it.

_SINGLE_PARTITION: Final = "SinglePartition"
_HASHED_INTO_ONE: Final = re.compile(r"hashpartitioning\(.+, 1\)")
_KNOWN_PLACEMENT: Final = re.compile(_SINGLE_PARTITION + r"|hashpartitioning\(.+\)")
_EXPRESSION_ID: Final = re.compile(r"#\d+L?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedLeaf:
    """The leaf of a frame's cached rows, asked for once a frame: each property takes a call to the JVM.

    Attributes:
        plan: the leaf.
        rdd: its rows.
        placement: Spark's text of how they are partitioned, without expression ids; empty if that is not known. In
            frames with the same columns and placement, rows with equal keys are in partitions of the same number.
    """

    plan: JavaObject
    rdd: JavaObject
    placement: str


def _are_placed_alike(leaves: Sequence[_CachedLeaf]) -> bool:
    """Whether rows with equal keys are in partitions of the same number in all of them."""
    placement = leaves[0].placement
    return bool(placement) and all(leaf.placement == placement for leaf in leaves)


class RowLeaves:
    """Makes leaves of plans over RDDs of rows."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - plans have no public way in
        self._session: Any = session._jsparkSession  # noqa: SLF001
        self._logical_rdd = getattr(jvm, "org.apache.spark.sql.execution.LogicalRDD")
        self._map1 = getattr(jvm, "scala.collection.immutable.Map$Map1")
        self._none = scala_object(jvm, "scala.None")
        self._some = getattr(jvm, "scala.Some")
        self._context: Any = session.sparkContext._jsc.sc()  # noqa: SLF001
        of = getattr(jvm, "java.lang.Class").forName
        self.row_tag = scala_object(jvm, "scala.reflect.ClassTag").apply(
            of("org.apache.spark.sql.catalyst.InternalRow")
        )
        self.lists = ScalaLists(jvm)

    def empty_rows(self, partitions: int) -> JavaObject:
        """An RDD without a row."""
        return self._context.parallelize(self.lists.nil, partitions, self.row_tag)

    def make(
        self,
        columns: JavaObject,
        rdd: JavaObject,
        partitioning: JavaObject,
        *,
        is_checkpointed: bool = True,
        statistics: JavaObject = None,
    ) -> JavaObject:
        """A leaf with these columns; without statistics it counts as too large to be sent to all tasks."""
        none = self._none
        known = none if statistics is None else self._some(statistics)
        arguments = (columns, rdd, partitioning, self.lists.nil, False, none, self._session, known, none)
        # Spark 4.3 added an argument: whether it is checkpointed
        return call_either(self._logical_rdd, (*arguments, is_checkpointed), arguments)

    def nullable(self, columns: JavaObject, partitioning: JavaObject) -> tuple[JavaObject, JavaObject]:
        """The columns, all nullable since they may be so in another frame, and the partitioning by these columns.

        Spark's own partitioning may have a column with another nullability, as the optimiser saw it; a plan above the
        leaf would not find that column.
        """
        own = [columns.apply(index).withNullability(True) for index in range(columns.size())]
        if partitioning.toString().startswith("hashpartitioning("):
            by_id = {column.exprId().id(): column for column in own}
            by_name = {column.name(): column for column in own}
            references = partitioning.references().toSeq()
            for column in (references.apply(index) for index in range(references.size())):
                mine = by_id.get(column.exprId().id()) or by_name[column.name()]
                partitioning = partitioning.transform(self._map1(column, mine))
        return self.lists(own), partitioning


def with_size_of_blocks(frame: DataFrame) -> DataFrame:
    """A frame of the same cached rows, whose plan says how many bytes they take.

    Spark knows of them what it knew of their query: nothing, where another database or Python gave the rows.
    """
    session, leaf = frame.sparkSession, logical_plan(frame)
    rdd = leaf.rdd()
    stored = [blocks for blocks in rdd.context().getRDDStorageInfo() if blocks.id() == rdd.id()]
    if not stored:  # it has no partition
        return frame
    # A size is a number of Scala, which py4j cannot send. So these are the statistics of a range of that size.
    numbers = session.range((stored[0].memSize() + stored[0].diskSize()) // 8)
    statistics = logical_plan(numbers).stats()
    made = RowLeaves(session).make(leaf.output(), rdd, leaf.outputPartitioning(), statistics=statistics)
    return frame_of_plan(made, session)


class CachedUnion:
    """Joins the cached rows of several frames into one leaf of a plan. Runs no job, copies no row."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - plans have no public way in
        self._row_leaves = RowLeaves(session)
        self._hash_partitioning = getattr(jvm, "org.apache.spark.sql.catalyst.plans.physical.HashPartitioning")
        self._union_rdd = getattr(jvm, "org.apache.spark.rdd.UnionRDD")
        self._partitionwise_union_rdd = getattr(jvm, "org.apache.spark.rdd.SQLPartitioningAwareUnionRDD")
        self._pruning_rdd = getattr(jvm, "org.apache.spark.rdd.PartitionPruningRDD")
        self._set1 = getattr(jvm, "scala.collection.immutable.Set$Set1")  # a function from numbers to Boolean, too
        self._unknown = getattr(jvm, "org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning")
        self._in_one = scala_object(jvm, f"org.apache.spark.sql.catalyst.plans.physical.{_SINGLE_PARTITION}")
        self._lists = self._row_leaves.lists
        self._class_tag = scala_object(jvm, "scala.reflect.ClassTag").AnyRef()
        self._leaves: WeakKeyDictionary[DataFrame, _CachedLeaf] = WeakKeyDictionary()
        self._partitionings: WeakKeyDictionary[DataFrame, tuple[Any, Any]] = WeakKeyDictionary()

    def stacked(self, frames: Sequence[DataFrame]) -> JavaObject | None:
        """A plan of the rows of all frames; ``None`` if they are not all partitioned in the same known way.

        Args:
            frames: with the same columns, each from ``local_checkpoint`` or of a plan made here.
        """
        leaves = [self._leaf_of(frame) for frame in frames]
        first = leaves[0]
        if len(leaves) == 1:
            return first.plan
        if not _are_placed_alike(leaves):
            return None
        columns, partitioning = self._own_partitioning(frames[0], first)
        rdd = self._zipped([leaf.rdd for leaf in leaves], partitioning.numPartitions())
        return self._row_leaves.make(columns, rdd, partitioning)

    def in_one(self, frames: Sequence[tuple[DataFrame, Sequence[DataFrame]]], number: int) -> JavaObject | None:
        """A plan, of one partition, of some rows of several frames: only a task for these will run.

        ``None`` if the frames are not all partitioned in the same known way.

        Args:
            frames: as in ``stacked``, each with frames of one partition that have the rows to read of it. Without these
                its partition ``number`` is read.
            number: of a partition.
        """
        leaves = [self._leaf_of(frame) for frame, _ in frames]
        if not _are_placed_alike(leaves):
            return None
        rdds = []
        for leaf, (_, parts) in zip(leaves, frames, strict=True):
            if parts:
                rdds += [logical_plan(part).rdd() for part in parts]
            else:
                rdds.append(self._pruning_rdd.create(leaf.rdd, self._set1(number)))
        columns, _ = self._own_partitioning(frames[0][0], leaves[0])
        return self._row_leaves.make(columns, self._zipped(rdds, 1), self._in_one)

    def side_by_side(self, frames: Sequence[DataFrame], columns: Sequence[str], *, partitions: int) -> JavaObject:
        """A plan of the rows of frames that have one partition each, as a frame hash-partitioned by ``columns``.

        Partition ``p`` consists of the frames ``p``, ``p + partitions`` and so on. The caller guarantees that Spark's
        hash would have placed each row there. The plan reads the frames' blocks, and has none of its own.
        """
        plans = [logical_plan(frame) for frame in frames]
        hashed_by = java_frame(frames[0].select(*columns)).queryExecution().analyzed().output()
        rdds = [plan.rdd() for plan in plans]
        context = rdds[0].context()
        # each has `partitions` partitions: those of the next frames
        rounds = [
            self._union_rdd(context, self._lists(rdds[first : first + partitions]), self._class_tag)
            for first in range(0, len(rdds), partitions)
        ]
        partitioning = self._hash_partitioning(hashed_by, partitions)
        return self._row_leaves.make(plans[0].output(), self._zipped(rounds, partitions), partitioning)

    def no_rows(self, columns: JavaObject) -> JavaObject:
        """A plan with these columns of one partition without rows: where Spark knows of none it makes no partition."""
        return self._row_leaves.make(columns, self._row_leaves.empty_rows(1), self._in_one)

    def one_after_another(self, columns: JavaObject, rdds: Sequence[JavaObject]) -> JavaObject:
        """A plan with these columns, all nullable: the partitions of the first RDD, then those of the next."""
        rdd = rdds[0] if len(rdds) == 1 else self._union_rdd(rdds[0].context(), self._lists(rdds), self._class_tag)
        nullable, partitioning = self._row_leaves.nullable(columns, self._unknown(rdd.getNumPartitions()))
        return self._row_leaves.make(nullable, rdd, partitioning)

    def _leaf_of(self, frame: DataFrame) -> _CachedLeaf:
        leaf = self._leaves.get(frame)
        if leaf is None:
            plan = logical_plan(frame)
            text = _EXPRESSION_ID.sub("", plan.outputPartitioning().toString())
            text = _HASHED_INTO_ONE.sub(_SINGLE_PARTITION, text)
            leaf = _CachedLeaf(plan=plan, rdd=plan.rdd(), placement=text if _KNOWN_PLACEMENT.fullmatch(text) else "")
            self._leaves[frame] = leaf
        return leaf

    def _own_partitioning(self, frame: DataFrame, leaf: _CachedLeaf) -> tuple[JavaObject, JavaObject]:
        """A frame's columns and its partitioning by them: see ``RowLeaves.nullable``."""
        found = self._partitionings.get(frame)
        if found is None:
            found = self._row_leaves.nullable(leaf.plan.output(), leaf.plan.outputPartitioning())
            self._partitionings[frame] = found
        return found

    def _zipped(self, rdds: Sequence[JavaObject], partitions: int) -> JavaObject:
        """One RDD whose partition ``p`` has the rows of partition ``p`` of each of ``rdds``."""
        if len(rdds) == 1:
            return rdds[0]
        return self._partitionwise_union_rdd(rdds[0].context(), self._lists(rdds), partitions, self._class_tag)
