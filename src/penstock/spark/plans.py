"""Plans analysed once, bound to each batch, observed on the way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.elements import ObservedMetrics
from penstock.spark.blocks import CachedUnion, JavaObject, ScalaLists, call_either, frame_of_plan
from penstock.spark.sql import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


# ----------------------------------------------------------------------------------------------------
# Figures told apart by the partition that rows come from, as one column of SQL; knows nothing of what they count.
#
# One array column costs little; a column for each partition costs more than the batch (64 maxima: 360 ms for 38).


def per_partition_array(figure: str, column: str, names: Iterable[str], schema: StructType) -> str:
    """SQL for a JSON array of the aggregate ``figure`` for each partition.

    Args:
        figure: an aggregate in which ``{mine}`` stands for "the row is of that partition".
        column: has the partition's name.
        names: in the order of the array.
        schema: of the rows; a number is compared as a number.

    >>> from pyspark.sql.types import StructType
    >>> per_partition_array("count_if({mine})", "p", ["0", "1"], StructType.fromDDL("p INT"))
    'to_json(array(count_if(`p` = 0L), count_if(`p` = 1L)))'
    """
    is_number = schema[column].dataType.typeName() in ("byte", "short", "integer", "long")
    mine = (f"{quote_identifier(column)} = {f'{int(name)}L' if is_number else _text(name)}" for name in names)
    return f"to_json(array({', '.join(figure.format(mine=each) for each in mine)}))"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


# ----------------------------------------------------------------------------------------------------
# The edge to Spark's internals: cached blocks freed by hand, figures read with a time-out; knows nothing of layers.
#
# Everything here goes through py4j and is pinned by tests, because none of it is promised by PySpark's public API.
# Classes are asked for by their whole name at once: a dot at a time, the JVM looks for a class of each package's name
# in every jar, for up to half a millisecond each.


class FrameObservation:
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

MAX_REPLACEMENTS: Final = 4
"""Replacements at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLeaf:
    """Where a plan is cut off from what is below it.

    Attributes:
        frame: an empty frame with the leaf as its plan; running it costs a Spark job, so that jobs are noticed.
        plan: the leaf's node.
        empty: an empty local relation with the leaf's columns and expression ids.
        rdd: the number by which the leaf is recognised in an analysed plan.
        schema: of the frame.
    """

    frame: DataFrame
    plan: JavaObject
    empty: JavaObject
    rdd: int
    schema: StructType


class PlanEditor:
    """The JVM's classes for one session, looked up once."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._session: JavaObject = cast("Any", spark)._jsparkSession  # noqa: SLF001 - plans have no public way in
        self.jvm: JavaObject = cast("Any", spark)._jvm  # noqa: SLF001
        logical = self.jvm.org.apache.spark.sql.catalyst.plans.logical
        self._union = logical.Union
        self._both = getattr(getattr(self.jvm, "org.apache.spark.sql.catalyst.plans.logical.Union$"), "MODULE$").apply
        self._local_relation = logical.LocalRelation
        self._maps = tuple(
            getattr(self.jvm, f"scala.collection.immutable.Map$Map{size}") for size in range(1, MAX_REPLACEMENTS + 1)
        )
        self._sequence = ScalaLists(self.jvm)
        self._none = getattr(getattr(self.jvm, "scala.None$"), "MODULE$")
        literals: JavaObject = getattr(self.jvm, "org.apache.spark.sql.catalyst.expressions.Literal$")
        self.literal = getattr(literals, "MODULE$").apply

    def leaf(self, schema: StructType) -> PlanLeaf:
        """A new leaf with these columns."""
        context = cast("Any", self.spark.sparkContext)._jsc  # noqa: SLF001
        rows = context.parallelize(self.jvm.java.util.ArrayList(), 1)
        made = self._session.createDataFrame(rows, self._session.parseDataType(schema.json()))
        plan = made.logicalPlan()
        return PlanLeaf(
            frame=self._wrap(made), plan=plan, empty=self._empty(plan.output()), rdd=plan.rdd().id(), schema=schema
        )

    def _empty(self, output: JavaObject) -> JavaObject:
        given = (output, self._sequence.nil, False)
        return call_either(self._local_relation, (*given, self._none), given)  # before Spark 4.2 none for a stream

    def replaced(self, *pairs: JavaObject) -> JavaObject:
        """A partial function that replaces nodes, or expressions, by others: one and its replacement, then the next.

        At most :data:`MAX_REPLACEMENTS` pairs: of so many a Scala ``Map`` is made in one call.
        """
        return self._maps[len(pairs) // 2 - 1](*pairs)

    def hang(self, plan: JavaObject, leaf: PlanLeaf, below: JavaObject) -> JavaObject:
        """``plan`` with ``below`` in the place of its leaf: the same columns by position, whatever their names."""
        return plan.transformUp(self.replaced(leaf.plan, self._both(leaf.empty, below)))

    def union(self, plans: Sequence[JavaObject]) -> JavaObject:
        """The rows of analysed plans with the same columns, none of which has an expression id of another's."""
        if len(plans) == 1:
            return plans[0]
        return self._union(self._sequence(plans), False, False)

    def flatten(self, plan: JavaObject) -> JavaObject:
        """The same plan with fewer nodes: done once here, the optimiser need not do it again for each batch."""
        optimizer = self.jvm.org.apache.spark.sql.catalyst.optimizer
        aliases = getattr(self.jvm, "org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases$")
        plan = getattr(aliases, "MODULE$").apply(plan)
        for rule in ("PropagateEmptyRelation$", "CollapseProject$"):
            plan = getattr(getattr(optimizer, rule), "MODULE$").apply(plan)
        return plan

    def without_ctes(self, plan: JavaObject) -> JavaObject:
        """The plan with ``WITH`` clauses put in their places: two grafts of one clause would share its number."""
        if "WithCTE" not in plan.toString():
            return plan
        inline = self.jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE
        return call_either(inline, (True, False, False), (True, False)).apply(plan)  # before Spark 4.3 it has two

    def frame(self, plan: JavaObject) -> DataFrame:
        """A lazy frame of a plan whose parts are analysed."""
        return frame_of_plan(plan, self.spark)

    def _wrap(self, made: JavaObject) -> DataFrame:
        from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

        return cast("DataFrame", ClassicFrame(made, self.spark))


def analyzed_plan(frame: DataFrame) -> JavaObject:
    """The analysed plan of a frame."""
    return cast("Any", frame)._jdf.queryExecution().analyzed()  # noqa: SLF001 - plans have no public way in


def logical_plan(frame: DataFrame) -> JavaObject:
    """The logical plan of a frame, as it was built."""
    return cast("Any", frame)._jdf.logicalPlan()  # noqa: SLF001 - plans have no public way in


def optimized_plan(frame: DataFrame) -> JavaObject:
    """The logical plan of a frame after Spark's optimiser."""
    return cast("Any", frame)._jdf.queryExecution().optimizedPlan()  # noqa: SLF001


def java_schema(frame: DataFrame) -> JavaObject:
    """The columns of a frame as the JVM's ``StructType``, which compares types without names."""
    return cast("Any", frame)._jdf.schema()  # noqa: SLF001


def is_frame(value: object) -> bool:
    """Whether a value is a DataFrame of a classic session."""
    return hasattr(value, "_jdf")


def shown_table(frame: DataFrame, rows: int, truncate: int) -> str:
    """Spark's own table of the first rows, as ``DataFrame.show`` prints it."""
    plan: Any = frame._jdf  # noqa: SLF001
    return str(plan.showString(rows, truncate, False))


def scala_items(seq: JavaObject) -> Iterator[JavaObject]:
    """The items of a Scala sequence."""
    return (seq.apply(place) for place in range(seq.size()))


# ----------------------------------------------------------------------------------------------------
# Figures that the first job over a plan tells by the way (Spark's observations), read without hanging or lying.
#
# Knows nothing of which figures are wanted, nor of batches beyond their measures.

AHEAD_BOUND: Final = 2**62 + 20_261_121
"""Stands for the bound of a gauge in its SQL, until a batch brings the value."""
PER_PARTITION: Final = "partitions"
"""The figure that is one number for each partition: a JSON array, for reading a value of the JVM costs as much as a
column does.
"""
_PATIENCE_MS: Final = 5_000
_serials = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationSpec:
    """What to observe above a plan, resolved once.

    Attributes:
        measure: the name under which the figures are told.
        figures: their names, in order.
        metrics: the expressions, bound to the columns of the plan they were made over.
        max_ahead: microseconds after the wall clock that :data:`AHEAD_BOUND` stands for, if it stands anywhere.
        names: of the places of the figure :data:`PER_PARTITION`, where there is one.
        among: makes the same gauge with that figure, given the column that tells partitions apart and their names.
    """

    measure: str
    figures: tuple[str, ...]
    metrics: JavaObject
    max_ahead: int | None = None
    names: tuple[str, ...] = ()
    among: Callable[[str, tuple[str, ...]], ObservationSpec] | None = None


def observe_sql(
    frame: DataFrame,
    measure: str,
    figures: Mapping[str, str],
    *,
    max_ahead: int | None = None,
    names: tuple[str, ...] = (),
    among: Callable[[str, tuple[str, ...]], ObservationSpec] | None = None,
) -> ObservationSpec:
    """A gauge over a frame's plan; ``figures`` are aggregates as SQL."""
    from pyspark.sql import functions as F

    gauge = observe_columns(frame, measure, {name: F.expr(sql) for name, sql in figures.items()})
    return replace(gauge, max_ahead=max_ahead, names=names, among=among)


def observe_columns(frame: DataFrame, measure: str, figures: Mapping[str, Column]) -> ObservationSpec:
    """A gauge over a frame's plan; ``figures`` are aggregates."""
    first, *more = (figure.alias(name) for name, figure in figures.items())
    metrics = analyzed_plan(frame.observe("penstock", first, *more)).metrics()
    return ObservationSpec(measure=measure, figures=tuple(figures), metrics=metrics)


class PlanObserver:
    """Puts gauges on plans of one session."""

    def __init__(self, grafter: PlanEditor) -> None:
        self._grafter = grafter
        jvm = grafter.jvm
        self._collect = jvm.org.apache.spark.sql.catalyst.plans.logical.CollectMetrics
        self._observation = jvm.org.apache.spark.sql.Observation
        self._manager = cast("Any", grafter.spark)._jsparkSession.observationManager()  # noqa: SLF001
        self._bound = grafter.literal(AHEAD_BOUND)
        self._await = getattr(jvm, "scala.concurrent.Await").result
        self._patience = getattr(jvm, "scala.concurrent.duration.Duration").apply(_PATIENCE_MS, "millis")

    def observe(
        self, plan: JavaObject, gauge: ObservationSpec, *, bound: int | None = None
    ) -> tuple[JavaObject, ObservedMetrics]:
        """``plan`` with the gauge on top, and what will tell its figures. The label is used once in a process."""
        serial = next(_serials)
        label = f"{gauge.measure}#{serial}"
        node = self._collect(label, gauge.metrics, plan, -serial)
        if bound is not None:
            node = node.transformExpressions(self._grafter.replaced(self._bound, self._grafter.literal(bound)))
        observation = self._observation(label)
        self._manager.register(observation, -serial)
        return node, ObservedMetrics(lambda: self._read(observation, gauge))

    def _read(self, observation: JavaObject, gauge: ObservationSpec) -> Mapping[str, object] | None:
        """The figures; ``None`` if the job did not bring them: the optimiser had no use for the plan below."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            values = json.loads(self._await(observation.future(), self._patience).json()).values()
        except (Py4JJavaError, PySparkException):  # a row of nothing has no schema, and cannot be told
            return None
        if len(values) != len(gauge.figures):
            return None
        told: dict[str, object] = dict(zip(gauge.figures, values, strict=True))
        if gauge.names:
            told[PER_PARTITION] = dict(zip(gauge.names, json.loads(cast("str", told[PER_PARTITION])), strict=True))
        return told


# ----------------------------------------------------------------------------------------------------
# Plans that are analysed once though some of their numbers change: made over a leaf, hung onto a batch. Runs no job.
#
# A function from frame to frame is called with numbers that stand for others; what analysis makes of it is kept. For a
# batch, its numbers are put in their places and its plan in the leaf's (:mod:`penstock.operators.graft`): three calls
# to the JVM, where calling the function again takes several for each operation, and an analysis of all that is below.
# The function has to write such numbers by :func:`penstock.state.changing.changing`, or each would be compiled anew.
#
# Knows nothing of windows, layers and keys.

_STANDS_FOR: Final = 2**62 + 20_261_200
"""The first of the numbers that stand for others: no time, and no count, comes near."""
_MOST_NUMBERS: Final = 6
_INT: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPlan:
    """A plan over a leaf.

    Attributes:
        leaf: where it is cut off.
        plan: analysed, with numbers that stand for others.
        schema: of its result.
        gauge: what to observe above it.
    """

    leaf: PlanLeaf
    plan: JavaObject
    schema: StructType
    gauge: ObservationSpec | None = None


class PlanPreparer:
    """Makes templates for one session, and frames of them.

    >>> templates = PlanPreparer(spark)  # doctest: +SKIP
    >>> above = templates.make(schema, lambda rows, bound: rows.where(f"n > {changing(bound)}"), numbers=1)
    ...     # doctest: +SKIP
    >>> frame = templates.frame(templates.hang(above, analyzed_plan(batch), 17))  # doctest: +SKIP
    """

    def __init__(self, spark: SparkSession) -> None:
        self.grafter = PlanEditor(spark)
        self._observer = PlanObserver(self.grafter)
        self._arranger = CachedUnion(spark)
        self._parser: JavaObject = cast("Any", spark)._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
        self._places = [self._number(_STANDS_FOR + place) for place in range(_MOST_NUMBERS)]

    def make(
        self,
        schema: StructType,
        build: Callable[..., DataFrame],
        *,
        numbers: int = 0,
        figures: Mapping[str, Column] | None = None,
    ) -> PreparedPlan:
        """The template of a function.

        Args:
            schema: of the frame that it is given.
            build: called once, with the frame and so many numbers.
            numbers: how many, at most six.
            figures: aggregates to observe over its result, by name.
        """
        leaf = self.grafter.leaf(schema)
        frame = build(leaf.frame, *(_STANDS_FOR + place for place in range(numbers)))
        gauge = observe_columns(frame, "template", figures) if figures else None
        return PreparedPlan(
            leaf=leaf, plan=self.grafter.flatten(analyzed_plan(frame)), schema=frame.schema, gauge=gauge
        )

    def hang(self, template: PreparedPlan, below: JavaObject, *numbers: int) -> JavaObject:
        """The plan of a batch: ``below`` is that of a frame with the template's columns, the numbers are in order."""
        plan = template.plan
        pairs = list(zip(self._places, map(self._number, numbers), strict=False))
        for some in range(0, len(pairs), MAX_REPLACEMENTS):
            flat = (each for pair in pairs[some : some + MAX_REPLACEMENTS] for each in pair)
            plan = plan.transformAllExpressions(self.grafter.replaced(*flat))
        return self.grafter.hang(plan, template.leaf, below)

    def _number(self, value: int) -> JavaObject:
        """A BIGINT literal. A whole number of Python's would be an INT in the JVM if it is small."""
        if abs(value) > _INT:
            return self.grafter.literal(value)
        return self._parser.parseExpression(f"{value}L")

    def fits(self, template: PreparedPlan, below: JavaObject) -> bool:
        """Whether a plan has columns of the template's types: one is hung by position, whatever the names."""
        return bool(below.schema().sameType(template.leaf.plan.schema()))

    def gauge(self, template: PreparedPlan, figures: Mapping[str, Column]) -> ObservationSpec:
        """What observes figures over a template's result."""
        return observe_columns(self.frame(template.plan), "template", figures)

    def watch(self, plan: JavaObject, gauge: ObservationSpec) -> tuple[JavaObject, ObservedMetrics]:
        """A plan with a gauge above that was made over its template, and what will tell the figures."""
        return self._observer.observe(plan, gauge)

    def frame(self, plan: JavaObject) -> DataFrame:
        """A lazy frame of a plan."""
        return self.grafter.frame(plan)

    def union(self, frames: Sequence[DataFrame]) -> JavaObject:
        """The rows of cached frames with the same columns, which share no column's number."""
        plan = self._arranger.above(frames)
        if plan is not None:
            return plan
        plans = [logical_plan(frame) for frame in frames]
        return self.grafter.union(plans)


# ----------------------------------------------------------------------------------------------------
# The Spark side of sinks: counted writes, and removal of what only this process wrote; knows no checkpoint.

_ANSWER: Final = "2 s"


def with_row_count(frame: DataFrame) -> tuple[DataFrame, Callable[[], int | None]]:
    """``frame`` with its rows counted by whatever job runs over all of it, and the count.

    Read the count only after that job has succeeded. ``None``: Spark did not tell within two seconds, as when the
    optimiser finds that there are no rows.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observation: Any = Observation()
    observed = frame.observe(observation, F.count(F.lit(1)).alias("n"))

    def read() -> int | None:
        future = observation._jo.future()  # noqa: SLF001 - Observation.get would wait for ever
        if not _answered(frame.sparkSession, future):
            return None
        return int(observation.get["n"])

    return observed, read


def _answered(spark: SparkSession, future: Any) -> bool:
    if future.isCompleted():
        return True
    jvm: Any = spark._jvm  # noqa: SLF001
    try:
        patience = getattr(jvm, "scala.concurrent.duration.Duration").create(_ANSWER)
        getattr(jvm, "scala.concurrent.Await").ready(future, patience)
    except Exception:  # whatever it is, there is no answer
        return False
    return True
