"""The edge to Spark's internals: cached blocks freed by hand, figures read with a time-out; knows nothing of layers.

Everything here goes through py4j and is pinned by tests, because none of it is promised by PySpark's public API.
Classes are asked for by their whole name at once: a dot at a time, the JVM looks for a class of each package's name in
every jar, for up to half a millisecond each.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import LayerMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.state.lean import LeanSession

_LOST = ("CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", "Checkpoint block rdd_")


def cut(frame: DataFrame) -> DataFrame:
    """Run ``frame`` now, in one job, and keep its rows as cached blocks without lineage.

    Its partitioning is kept. A lost block is an error and never a recomputation. The blocks stay until :func:`free`;
    garbage collection would free them only when the JVM happens to collect. Its columns have expression ids of their
    own: those of frames that are hung onto one plan are alike, and a union of such would be taken for something else.
    """
    return _fresh(frame.localCheckpoint(eager=True), frame.sparkSession)


class LazyCut:
    """As :func:`cut`, but the rows are kept by the first job that reads them, by the way.

    Spark sees to it at the end of any job over them that all partitions are there, and forgets then how they were made.

    Args:
        frame: of which what is observed has not been told.
        beside: a session with the settings of the frame's. To say in the frame's own that its rows are to be kept would
            complete what is observed in it at once, before anything ran: each session completes only its own.
    """

    def __init__(self, frame: DataFrame, beside: LeanSession) -> None:
        self._session = frame.sparkSession
        self._run = rebind(frame, beside.session)
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


def completes_by_hand(session: SparkSession) -> bool:
    """Whether :class:`LazyCut` can tell what was observed: before Spark 4.2 there is no way to."""
    major, minor, *_ = session.version.split(".")
    return (int(major), int(minor)) >= (4, 2)


def _fresh(kept: DataFrame, session: SparkSession) -> DataFrame:
    """Checkpointed rows with expression ids of their own."""
    plan = _internals(kept).logicalPlan()
    fresh = plan.newInstance()
    if not fresh.references().isEmpty():  # a leaf that reads nothing
        fresh = _placed(fresh, session)
    return framed(fresh, session)


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


class Sequences:
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


def either(call: Callable[..., Any], newer: Sequence[Any], older: Sequence[Any]) -> Any:
    """Call into Spark with the parameters of its newer releases, or with those of an older one that has others."""
    try:
        return call(*newer)
    except Exception as error:
        if "does not exist" not in str(error):
            raise
        return call(*older)


def free(frame: DataFrame) -> None:
    """Give back the blocks of a frame made by :func:`cut`, without waiting. Freeing twice is fine.

    After the end of the Spark context or of the JVM there is nothing to give back, and nothing is raised.
    """
    with _unless_gone(frame):
        _internals(frame).logicalPlan().rdd().unpersist(False)


def unpersist(frame: DataFrame) -> None:
    """Give back the blocks of a persisted frame; as :func:`free` if Spark has ended."""
    with _unless_gone(frame):
        frame.unpersist()


def rebind(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same frame under another session's settings."""
    return framed(_internals(frame).queryExecution().analyzed(), session)


def framed(plan: Any, session: SparkSession) -> DataFrame:
    """A frame of a plan whose parts are analysed, so that it need not be again: all rules would go over a leaf, too."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    jvm: Any = session.sparkContext._jvm  # noqa: SLF001
    ofrows = getattr(jvm, "org.apache.spark.sql.classic.Dataset").ofRows
    plan.setAnalyzed()
    dataset = ofrows(session._jsparkSession, plan)  # noqa: SLF001
    return ClassicDataFrame(dataset, session)


@contextmanager
def blocks_needed(uid: str) -> Iterator[None]:
    """Turn the loss of a cached block into an error that restarts the job from durable layers.

    Raises:
        LayerMissing: a job inside failed for want of a block.
    """
    try:
        yield
    except Exception as error:
        if lost_block(error):
            msg = "a cached block of the state is lost (an executor died?): the job restarts from durable layers"
            raise LayerMissing(msg, uid=uid) from error
        raise


def lost_block(error: BaseException) -> bool:
    """Whether a Spark job failed because a cached block of some layer is gone."""
    text = str(error)
    return any(sign in text for sign in _LOST)


def literal(url: str) -> str:
    r"""``url`` for Spark to read: what would be a pattern in it is escaped.

    The reader's option ``__globPaths__`` alone is no way: with it off, Spark 4.3 lists *all* given paths once for each
    that looks like a pattern, and without ``recursiveFileLookup`` their rows come as often.

    >>> print(literal("file:///plain/a-b_c%20"), literal("file:///a[b]{c}*?"))
    file:///plain/a-b_c%20 file:///a\[b\]\{c\}\*\?
    """
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", url)


class Figures:
    """What one job tells about the rows that pass a point of its plan, besides its result.

    Args:
        names: of the figures, in the order of the expressions given to :meth:`watch`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        from pyspark.sql import Observation

        self._names = tuple(names)
        self._observation = Observation()

    def watch(self, frame: DataFrame, figures: Sequence[Column]) -> DataFrame:
        """``frame``, watched. Each figure is an aggregate that gives one number."""
        return frame.observe(self._observation, *figures)

    def read(self, *, seconds: int = 10) -> dict[str, int | None] | None:
        """The figures of the first job, or ``None`` if none came in time.

        Call it only after the job's success: after a failure an observation reads zero, and if the optimiser has
        removed the watched branch it never comes.
        """
        observed: Any = self._observation
        jvm = observed._jvm  # noqa: SLF001
        patience = getattr(jvm, "scala.concurrent.duration.Duration").create(seconds, "seconds")
        try:
            row = getattr(jvm, "scala.concurrent.Await").result(observed._jo.future(), patience)  # noqa: SLF001
        except Exception as error:
            if "TimeoutException" in str(error):
                return None
            raise
        return {name: row.get(place) for place, name in enumerate(self._names)}


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
