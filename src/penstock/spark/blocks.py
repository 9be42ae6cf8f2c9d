"""Cached blocks: kept, freed by hand, several as one leaf of a plan."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary

from penstock.errors import LayerMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.session import LeanSession

# Spark's internals are called through py4j. PySpark's public API promises none of this; tests pin it. Classes are asked
# for by their whole name: with a dot at a time, the JVM looks for a class of each package's name in every jar, for up
# to half a millisecond each.


# ---- calls to the JVM ------------------------------------------------------------------------------------------------

JavaObject: TypeAlias = Any
"""An object in the JVM."""


def scala_object(jvm: JavaObject, name: str) -> JavaObject:
    """Scala's ``object`` of that whole name."""
    return getattr(getattr(jvm, f"{name}$"), "MODULE$")


class ScalaLists:
    """Makes Scala's lists; its classes are looked up once."""

    def __init__(self, jvm: JavaObject) -> None:
        self.nil = scala_object(jvm, "scala.collection.immutable.Nil")
        self._cons = getattr(jvm, "scala.collection.immutable.$colon$colon")

    def __call__(self, items: Sequence[JavaObject]) -> JavaObject:
        """A list of these."""
        made = self.nil
        for item in reversed(items):
            made = self._cons(item, made)
        return made


def call_either(call: Callable[..., Any], newer: Sequence[Any], older: Sequence[Any]) -> Any:
    """Call into Spark with the arguments of its newer releases, or with those of an older one that has others."""
    try:
        return call(*newer)
    except Exception as error:
        if "does not exist" not in str(error):
            raise
        return call(*older)


def frame_of_plan(plan: JavaObject, session: SparkSession) -> DataFrame:
    """A frame of a plan whose parts are analysed, without a second analysis: all rules would go over a leaf, too."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    jvm: Any = session.sparkContext._jvm  # noqa: SLF001
    ofrows = getattr(jvm, "org.apache.spark.sql.classic.Dataset").ofRows
    plan.setAnalyzed()
    dataset = ofrows(session._jsparkSession, plan)  # noqa: SLF001
    return ClassicDataFrame(dataset, session)


def with_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same frame under another session's settings."""
    return frame_of_plan(_internals(frame).queryExecution().analyzed(), session)


def _internals(frame: DataFrame) -> JavaObject:
    return frame._jdf  # noqa: SLF001


# ---- rows kept as cached blocks --------------------------------------------------------------------------------------

_LOST = ("CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", "Checkpoint block rdd_")


def local_checkpoint(frame: DataFrame) -> DataFrame:
    """Run ``frame`` now, in one job, and keep its rows as cached blocks without lineage.

    Its partitioning is kept. A lost block is an error and never a recomputation. The blocks stay until
    :func:`free_blocks`; garbage collection would free them only when the JVM happens to collect. Its columns have
    expression ids of their own: frames that are bound to one plan have the same ids, and Spark would misread a union
    of them.
    """
    return _fresh(frame.localCheckpoint(eager=True), frame.sparkSession)


class LazyCheckpoint:
    """As :func:`local_checkpoint`, but the first job that reads the rows keeps them.

    At the end of any job over them Spark makes sure that all partitions are there, and forgets then how they were made.

    Args:
        frame: none of its observed metrics has been read.
        lean: a session with the settings of the frame's. Keeping rows completes at once all that is observed in the
            session that asks for it, before anything ran; so the frame's own session must not ask.
    """

    def __init__(self, frame: DataFrame, lean: LeanSession) -> None:
        self._session = frame.sparkSession
        self._run = with_session(frame, lean.session)
        with lean.planning(self._run):
            kept = self._run.localCheckpoint(eager=False)
        self._rows = _internals(kept).logicalPlan().rdd()
        self.frame: DataFrame = _fresh(kept, self._session)

    def finish(self) -> None:
        """Complete what was observed. Runs a job if none has read the rows."""
        if not self._rows.isCheckpointed():
            self._rows.count()
        manager = cast("Any", self._session)._jsparkSession.observationManager()  # noqa: SLF001
        manager.tryComplete(_internals(self._run).queryExecution())


def can_complete_observations(session: SparkSession) -> bool:
    """Whether :class:`LazyCheckpoint` can complete what was observed: there is no way to before Spark 4.2."""
    major, minor, *_ = session.version.split(".")
    return (int(major), int(minor)) >= (4, 2)


def _fresh(kept: DataFrame, session: SparkSession) -> DataFrame:
    """Checkpointed rows with expression ids of their own."""
    plan = _internals(kept).logicalPlan()
    fresh = plan.newInstance()
    if not fresh.references().isEmpty():  # a leaf that reads nothing
        fresh = _partitioned_by_own_columns(fresh, session)
    return frame_of_plan(fresh, session)


def _partitioned_by_own_columns(fresh: JavaObject, session: SparkSession) -> JavaObject:
    """``fresh``, a new instance of the leaf of checkpointed rows, partitioned by its own columns.

    Spark gives the leaf the partitioning of the plan that ran, and finds the columns there by all that it knows of
    them. If analysis and the optimiser know different things of a column, such as whether it may be NULL, that column
    keeps the id that it had in that plan. A layer that seems to be partitioned by columns that it does not have costs
    each merge with it an exchange; the merged layer is then partitioned in another way than its neighbours, and costs
    the next exchange. So the leaf's own columns are found by their names, of which each is there once.
    """
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001
    one = getattr(jvm, "scala.collection.immutable.Map$Map1")
    output, foreign = fresh.output(), fresh.references().toSeq()
    by_name = {output.apply(place).name(): output.apply(place) for place in range(output.size())}
    for number in range(foreign.size()):
        column = foreign.apply(number)
        own = by_name.get(column.name())
        if own is not None:
            fresh = fresh.transformExpressions(one(column, own))
    return fresh


def free_blocks(frame: DataFrame) -> None:
    """Free the blocks of a frame made by :func:`local_checkpoint`, without waiting. Freeing twice is fine.

    After the end of the Spark context or of the JVM there is nothing to free, and nothing is raised.
    """
    with _unless_gone(frame):
        _internals(frame).logicalPlan().rdd().unpersist(False)


def free_rows(rows: JavaObject) -> None:
    """Free the blocks of an RDD."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    with suppress(Py4JError, OSError):  # only a dead JVM refuses, and it holds no blocks
        rows.unpersist(False)


def unpersist(frame: DataFrame) -> None:
    """Free the blocks of a persisted frame; as :func:`free_blocks` if Spark has ended."""
    with _unless_gone(frame):
        frame.unpersist()


@contextmanager
def explain_lost_blocks(uid: str) -> Iterator[None]:
    """Turn the loss of a cached block into an error that restarts the job from durable layers.

    Raises:
        LayerMissing: a job inside failed because a block is lost.
    """
    try:
        yield
    except Exception as error:
        if is_lost_block(error):
            msg = "a cached block of the state is lost (an executor died?): the job restarts from durable layers"
            raise LayerMissing(msg, uid=uid) from error
        raise


def is_lost_block(error: BaseException) -> bool:
    """Whether a Spark job failed because a cached block of some layer is gone."""
    text = str(error)
    return any(sign in text for sign in _LOST)


@contextmanager
def _unless_gone(frame: DataFrame) -> Iterator[None]:
    """Swallow an error only if Spark itself has ended: a clean-up must not hide why."""
    try:
        yield
    except Exception:
        if not _is_gone(frame.sparkSession):
            raise


def _is_gone(session: SparkSession) -> bool:
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
# A union of frames is a part of a plan for each of them: Spark optimises each, generates code for each and sends it to
# each task. One leaf costs the same however many frames are in it.

_ONE: Final = "SinglePartition"
_ALONE: Final = re.compile(r"hashpartitioning\(.+, 1\)")
_PLACED: Final = re.compile(_ONE + r"|hashpartitioning\(.+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockFacts:
    """What is asked of a frame once: each answer is a call to the JVM.

    ``placement`` says how its rows are partitioned; empty if Spark does not know. In frames with the same columns and
    the same placement, rows with the same keys are in partitions of the same number.
    """

    plan: JavaObject
    rows: JavaObject
    placement: str


class CachedUnion:
    """Puts cached rows of several frames into one leaf of a plan. Runs no job, copies no row.

    Classes of the JVM are looked up once for a session.
    """

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - plans have no public way in
        self._session: Any = session._jsparkSession  # noqa: SLF001
        self._rows = getattr(jvm, "org.apache.spark.sql.execution.LogicalRDD")
        self._hashing = getattr(jvm, "org.apache.spark.sql.catalyst.plans.physical.HashPartitioning")
        self._concatenated = getattr(jvm, "org.apache.spark.rdd.UnionRDD")
        self._by_partition = getattr(jvm, "org.apache.spark.rdd.SQLPartitioningAwareUnionRDD")
        self._none = scala_object(jvm, "scala.None")
        self._lists = ScalaLists(jvm)
        self._tag = scala_object(jvm, "scala.reflect.ClassTag").AnyRef()
        self._one = getattr(jvm, "scala.collection.immutable.Map$Map1")
        self._facts: WeakKeyDictionary[DataFrame, _BlockFacts] = WeakKeyDictionary()
        self._partitionings: WeakKeyDictionary[DataFrame, tuple[Any, Any]] = WeakKeyDictionary()

    def stacked(self, frames: Sequence[DataFrame]) -> JavaObject | None:
        """A plan of the rows of frames with the same columns; ``None`` if they are partitioned in different ways.

        Each was made by :func:`local_checkpoint`, or here.
        """
        facts = [self._facts_of(frame) for frame in frames]
        if len(facts) == 1:
            return facts[0].plan
        if not facts[0].placement or any(each.placement != facts[0].placement for each in facts):
            return None
        columns, partitioning = self._own_partitioning(frames[0], facts[0])
        rows = self._zipped([each.rows for each in facts], partitioning.numPartitions())
        return self._leaf(columns, rows, partitioning)

    def side_by_side(self, frames: Sequence[DataFrame], columns: Sequence[str], *, partitions: int) -> JavaObject:
        """A plan of the rows of frames of one partition each, hashed by ``columns``.

        Partition ``p`` consists of the frames ``p``, ``p + partitions`` and so on. The caller guarantees that Spark's
        hash would have placed each row there. The blocks stay those of the frames.
        """
        plans = [_plan(frame) for frame in frames]
        by = _internals(frames[0].select(*columns)).queryExecution().analyzed().output()
        rdds = [plan.rdd() for plan in plans]
        context = rdds[0].context()
        stacked = [
            self._concatenated(context, self._lists(rdds[first : first + partitions]), self._tag)
            for first in range(0, len(rdds), partitions)
        ]
        return self._leaf(plans[0].output(), self._zipped(stacked, partitions), self._hashing(by, partitions))

    def _facts_of(self, frame: DataFrame) -> _BlockFacts:
        facts = self._facts.get(frame)
        if facts is None:
            plan = _plan(frame)
            text = _ALONE.sub(_ONE, re.sub(r"#\d+L?", "", plan.outputPartitioning().toString()))
            facts = _BlockFacts(plan=plan, rows=plan.rdd(), placement=text if _PLACED.fullmatch(text) else "")
            self._facts[frame] = facts
        return facts

    def _own_partitioning(self, frame: DataFrame, facts: _BlockFacts) -> tuple[JavaObject, JavaObject]:
        """A frame's columns, all of them nullable as they may be in another frame, and its partitioning by these.

        Spark's own partitioning may name a column of which the optimiser knew more, or less; a plan above it would then
        not find the column.
        """
        found = self._partitionings.get(frame)
        if found is None:
            partitioning, output = facts.plan.outputPartitioning(), facts.plan.output()
            columns = [output.apply(at).withNullability(True) for at in range(output.size())]
            if partitioning.toString() != _ONE:
                own = {column.exprId().id(): column for column in columns}
                by = partitioning.references().toSeq()
                for column in (by.apply(at) for at in range(by.size())):
                    partitioning = partitioning.transform(self._one(column, own[column.exprId().id()]))
            found = self._partitionings[frame] = self._lists(columns), partitioning
        return found

    def _zipped(self, rdds: Sequence[JavaObject], partitions: int) -> JavaObject:
        """One RDD whose partitions join those of the same number of each."""
        if len(rdds) == 1:
            return rdds[0]
        return self._by_partition(rdds[0].context(), self._lists(rdds), partitions, self._tag)

    def _leaf(self, columns: JavaObject, rows: JavaObject, partitioning: JavaObject) -> JavaObject:
        none = self._none
        arguments = (columns, rows, partitioning, self._lists.nil, False, none, self._session, none, none)
        # Spark 4.3 added an argument: whether it is checkpointed
        return call_either(self._rows, (*arguments, True), arguments)


def _plan(frame: DataFrame) -> JavaObject:
    return _internals(frame).logicalPlan()
