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


# ----------------------------------------------------------------------------------------------------
# The edge to Spark's internals: cached blocks freed by hand, figures read with a time-out; knows nothing of layers.
#
# Everything here goes through py4j and is pinned by tests, because none of it is promised by PySpark's public API.
# Classes are asked for by their whole name at once: a dot at a time, the JVM looks for a class of each package's name
# in every jar, for up to half a millisecond each.

_LOST = ("CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", "Checkpoint block rdd_")


def local_checkpoint(frame: DataFrame) -> DataFrame:
    """Run ``frame`` now, in one job, and keep its rows as cached blocks without lineage.

    Its partitioning is kept. A lost block is an error and never a recomputation. The blocks stay until
    :func:`free_blocks`; garbage collection would free them only when the JVM happens to collect. Its columns have
    expression ids of their own: those of frames that are hung onto one plan are alike, and a union of such would be
    taken for something else.
    """
    return _fresh(frame.localCheckpoint(eager=True), frame.sparkSession)


class LazyCheckpoint:
    """As :func:`local_checkpoint`, but the rows are kept by the first job that reads them, by the way.

    Spark sees to it at the end of any job over them that all partitions are there, and forgets then how they were made.

    Args:
        frame: of which what is observed has not been told.
        beside: a session with the settings of the frame's. To say in the frame's own that its rows are to be kept would
            complete what is observed in it at once, before anything ran: each session completes only its own.
    """

    def __init__(self, frame: DataFrame, beside: LeanSession) -> None:
        self._session = frame.sparkSession
        self._run = with_session(frame, beside.session)
        with beside.planning(self._run):
            kept = self._run.localCheckpoint(eager=False)
        self._rows = _internals(kept).logicalPlan().rdd()
        self.frame: DataFrame = _fresh(kept, self._session)

    def finish(self) -> None:
        """Tell what was observed, once a job has run that reads the rows; if none has, run one."""
        if not self._rows.isCheckpointed():
            self._rows.count()
        manager = cast("Any", self._session)._jsparkSession.observationManager()  # noqa: SLF001
        manager.tryComplete(_internals(self._run).queryExecution())


def can_complete_observations(session: SparkSession) -> bool:
    """Whether :class:`LazyCheckpoint` can tell what was observed: before Spark 4.2 there is no way to."""
    major, minor, *_ = session.version.split(".")
    return (int(major), int(minor)) >= (4, 2)


def _fresh(kept: DataFrame, session: SparkSession) -> DataFrame:
    """Checkpointed rows with expression ids of their own."""
    plan = _internals(kept).logicalPlan()
    fresh = plan.newInstance()
    if not fresh.references().isEmpty():  # a leaf that reads nothing
        fresh = _placed(fresh, session)
    return frame_of_plan(fresh, session)


def _placed(fresh: Any, session: SparkSession) -> Any:
    """``fresh``, a new instance of the leaf of checkpointed rows, partitioned by its own columns.

    Spark gives it the partitioning of the plan that ran, and finds the columns there by all that it knows of them: one
    of which analysis and the optimiser know different things, as whether it may be null, keeps the id that it had in
    that plan. A layer that seems to be partitioned by columns that it does not have costs each merge with it an
    exchange, after which the layer is partitioned in another way than its neighbours: and so does the next. Its own
    columns are found by their names, of which each is there once.
    """
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001
    one = getattr(jvm, "scala.collection.immutable.Map$Map1")
    output, strange = fresh.output(), fresh.references().toSeq()
    places = {output.apply(place).name(): output.apply(place) for place in range(output.size())}
    for number in range(strange.size()):
        column = strange.apply(number)
        own = places.get(column.name())
        if own is not None:
            fresh = fresh.transformExpressions(one(column, own))
    return fresh


class ScalaLists:
    """Makes Scala's lists; its classes are looked up once."""

    def __init__(self, jvm: Any) -> None:
        self.nil = getattr(getattr(jvm, "scala.collection.immutable.Nil$"), "MODULE$")
        self._cons = getattr(jvm, "scala.collection.immutable.$colon$colon")

    def __call__(self, items: Sequence[Any]) -> Any:
        """A list of these."""
        made = self.nil
        for item in reversed(items):
            made = self._cons(item, made)
        return made


def call_either(call: Callable[..., Any], newer: Sequence[Any], older: Sequence[Any]) -> Any:
    """Call into Spark with the parameters of its newer releases, or with those of an older one that has others."""
    try:
        return call(*newer)
    except Exception as error:
        if "does not exist" not in str(error):
            raise
        return call(*older)


def free_blocks(frame: DataFrame) -> None:
    """Give back the blocks of a frame made by :func:`local_checkpoint`, without waiting. Freeing twice is fine.

    After the end of the Spark context or of the JVM there is nothing to give back, and nothing is raised.
    """
    with _unless_gone(frame):
        _internals(frame).logicalPlan().rdd().unpersist(False)


def unpersist(frame: DataFrame) -> None:
    """Give back the blocks of a persisted frame; as :func:`free_blocks` if Spark has ended."""
    with _unless_gone(frame):
        frame.unpersist()


def with_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same frame under another session's settings."""
    return frame_of_plan(_internals(frame).queryExecution().analyzed(), session)


def frame_of_plan(plan: Any, session: SparkSession) -> DataFrame:
    """A frame of a plan whose parts are analysed, so that it need not be again: all rules would go over a leaf, too."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    jvm: Any = session.sparkContext._jvm  # noqa: SLF001
    ofrows = getattr(jvm, "org.apache.spark.sql.classic.Dataset").ofRows
    plan.setAnalyzed()
    dataset = ofrows(session._jsparkSession, plan)  # noqa: SLF001
    return ClassicDataFrame(dataset, session)


@contextmanager
def explain_lost_blocks(uid: str) -> Iterator[None]:
    """Turn the loss of a cached block into an error that restarts the job from durable layers.

    Raises:
        LayerMissing: a job inside failed for want of a block.
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
    """Whether the session's context was stopped, by whomever, or its JVM does not answer."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    context: Any = session.sparkContext._jsc  # noqa: SLF001
    if context is None:
        return True
    try:
        return bool(context.sc().isStopped())
    except (Py4JError, OSError):
        return True


def _internals(frame: DataFrame) -> Any:
    return frame._jdf  # noqa: SLF001


# ----------------------------------------------------------------------------------------------------
# Hangs an analysed plan onto another frame, so that a user's functions run once and their plan serves every batch.
#
# A plan is built over a *leaf*, an empty relation of its own. For a batch the leaf is replaced by the batch's plan, in
# a constant number of calls into the JVM however many columns and steps there are:
#
# * ``transformUp`` takes a partial function, and a Scala ``Map`` of one entry is one: leaf to replacement;
# * the plan above the leaf names its columns by the leaf's expression ids. A ``Union`` of an empty local relation with
#   those ids and the batch's plan has them too; the optimiser then drops the empty side and leaves a plain renaming.
#
# All that touches Spark's internals for this is here. Knows nothing of steps, streams or batches.

JavaObject: TypeAlias = Any
"""An object in the JVM."""


# ----------------------------------------------------------------------------------------------------
# Static tables that row-wise steps join: read when first used, kept, and read again when due.
#
# A table is cut off from its query (a lazy local checkpoint): every batch sees one and the same content until the next
# reading, and its plan is a leaf that can be recognised. Knows nothing of steps.


def _free(rows: JavaObject) -> None:
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):  # only a dead JVM refuses, and it holds no blocks
        rows.unpersist(False)


# ----------------------------------------------------------------------------------------------------
# Cached rows of several frames as one leaf of a plan: beside one another, or above. Runs no job, copies no row.
#
# A union of frames is a part of a plan for each of them: Spark optimises each, generates code for each and sends it to
# each task. One leaf costs the same however many frames are in it. Knows nothing of layers and of what rows mean.

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


class CachedUnion:
    """The JVM's classes for one session, looked up once."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - plans have no public way in
        self._session: Any = session._jsparkSession  # noqa: SLF001
        self._rows = getattr(jvm, "org.apache.spark.sql.execution.LogicalRDD")
        self._hashing = getattr(jvm, "org.apache.spark.sql.catalyst.plans.physical.HashPartitioning")
        self._beside = getattr(jvm, "org.apache.spark.rdd.UnionRDD")
        self._above = getattr(jvm, "org.apache.spark.rdd.SQLPartitioningAwareUnionRDD")
        self._none = getattr(getattr(jvm, "scala.None$"), "MODULE$")
        self._sequence = ScalaLists(jvm)
        self._tag = getattr(getattr(jvm, "scala.reflect.ClassTag$"), "MODULE$").AnyRef()
        self._one = getattr(jvm, "scala.collection.immutable.Map$Map1")
        self._known: WeakKeyDictionary[DataFrame, _Known] = WeakKeyDictionary()
        self._placed: WeakKeyDictionary[DataFrame, tuple[Any, Any]] = WeakKeyDictionary()

    def above(self, frames: Sequence[DataFrame]) -> Any | None:
        """A plan of the rows of frames that have the same columns; ``None`` if they are shared out in different ways.

        Each was made by :func:`penstock.spark.blocks.local_checkpoint`, or here.
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
        return call_either(self._rows, (*given, True), given)


def _plan(frame: DataFrame) -> Any:
    return _internals(frame).logicalPlan()
