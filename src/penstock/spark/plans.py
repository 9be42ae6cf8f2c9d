"""Spark's logical plans: edited, bound to rows, observed on the way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.elements import ObservedMetrics
from penstock.spark.blocks import JavaObject, ScalaLists, call_either, frame_of_plan, scala_object
from penstock.spark.session import parse_type
from penstock.spark.sql import quote_identifier, string_literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


# ---- plans of frames -------------------------------------------------------------------------------------------------


def analyzed_plan(frame: DataFrame) -> JavaObject:
    """The analysed plan of a frame."""
    return cast("Any", frame)._jdf.queryExecution().analyzed()  # noqa: SLF001 - plans have no public way in


def optimized_plan(frame: DataFrame) -> JavaObject:
    """The logical plan of a frame after Spark's optimiser."""
    return cast("Any", frame)._jdf.queryExecution().optimizedPlan()  # noqa: SLF001


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


def plan_nodes(plan: JavaObject) -> Iterator[JavaObject]:
    """The nodes of a plan, each before its children."""
    yield plan
    for child in scala_items(plan.children()):
        yield from plan_nodes(child)


def plan_kind(node: JavaObject) -> str:
    """The name of the class of a plan's node."""
    return str(node.getClass().getSimpleName()).removesuffix("$")


# ---- what Spark remembers of tables ----------------------------------------------------------------------------------


def forget_listed_files(session: SparkSession) -> None:
    """Have the session look up the tables of its catalog, and list their files, when a query next names them.

    Spark lists them at the first query and keeps that, so that it would never see what other processes write.
    """
    cast("Any", session)._jsparkSession.sessionState().catalog().invalidateAllCachedTables()  # noqa: SLF001


def list_files_of_views_again(frame: DataFrame) -> None:
    """List the files below temporary views of frames again: such a view keeps its plan, with the files listed once."""
    plan = analyzed_plan(frame)
    for part in (plan, *scala_items(plan.subqueriesAll())):
        for node in plan_nodes(part):
            if plan_kind(node) == "View" and node.isTempViewStoringAnalyzedPlan():
                for kept in (node, *scala_items(node.subqueriesAll())):
                    kept.refresh()


# ---- editing plans ---------------------------------------------------------------------------------------------------
# A plan is built once over a *leaf*, an empty relation of its own. Binding it to a batch replaces the leaf by the
# batch's plan, in a constant number of calls to the JVM, however many columns and steps there are:
#
# * ``transformUp`` takes a partial function, and a Scala ``Map`` of one entry is one: from the leaf to its replacement;
# * the plan above the leaf names its columns by the leaf's expression ids. A ``Union`` of an empty local relation with
#   those ids and the batch's plan has them too; the optimiser then drops the empty side and leaves a plain renaming.

_MAX_REPLACEMENTS: Final = 4
"""Replacements in one call: the largest immutable ``Map`` of Scala that has a class of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLeaf:
    """The empty relation that a plan is built over.

    Attributes:
        frame: an empty frame with the leaf as its plan; running it costs a Spark job, so that jobs are noticed.
        plan: the leaf's node.
        empty: an empty local relation with the leaf's columns and expression ids.
        rdd: id of the leaf's RDD, by which the leaf is recognised in an analysed plan.
        schema: of the frame.
    """

    frame: DataFrame
    plan: JavaObject
    empty: JavaObject
    rdd: int
    schema: StructType


class PlanEditor:
    """Builds and changes plans of one session. Classes of the JVM are looked up once."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._session: JavaObject = cast("Any", spark)._jsparkSession  # noqa: SLF001 - plans have no public way in
        self.jvm: JavaObject = cast("Any", spark)._jvm  # noqa: SLF001
        self._union = getattr(self.jvm, "org.apache.spark.sql.catalyst.plans.logical.Union")
        self._union_of_two = scala_object(self.jvm, "org.apache.spark.sql.catalyst.plans.logical.Union").apply
        self._local_relation = getattr(self.jvm, "org.apache.spark.sql.catalyst.plans.logical.LocalRelation")
        self._no_rows = getattr(self.jvm, "java.util.ArrayList")()
        self._maps = tuple(
            getattr(self.jvm, f"scala.collection.immutable.Map$Map{size}") for size in range(1, _MAX_REPLACEMENTS + 1)
        )
        self._lists = ScalaLists(self.jvm)
        self._none = scala_object(self.jvm, "scala.None")
        self.literal = scala_object(self.jvm, "org.apache.spark.sql.catalyst.expressions.Literal").apply

    def new_leaf(self, schema: StructType) -> PlanLeaf:
        """A new leaf with these columns."""
        context = cast("Any", self.spark.sparkContext)._jsc  # noqa: SLF001
        rows = context.parallelize(self._no_rows, 1)
        made = self._session.createDataFrame(rows, parse_type(self.spark, schema))
        plan = made.logicalPlan()
        return PlanLeaf(
            frame=self._wrap(made), plan=plan, empty=self._empty(plan.output()), rdd=plan.rdd().id(), schema=schema
        )

    def _empty(self, output: JavaObject) -> JavaObject:
        arguments = (output, self._lists.nil, False)
        return call_either(self._local_relation, (*arguments, self._none), arguments)  # Spark 4.2 added an argument

    def replacement(self, *pairs: JavaObject) -> JavaObject:
        """A partial function that replaces nodes or expressions.

        Args:
            pairs: a node and its replacement, the next node and its replacement, and so on; at most
                ``_MAX_REPLACEMENTS`` pairs.
        """
        return self._maps[len(pairs) // 2 - 1](*pairs)

    def replace_nodes(self, plan: JavaObject, pairs: Iterable[tuple[JavaObject, JavaObject]]) -> JavaObject:
        """A plan, or an expression, with nodes replaced by those that they are paired with."""
        for some in _in_groups(pairs):
            plan = plan.transformUp(self.replacement(*some))
        return plan

    def replace_expressions(self, plan: JavaObject, pairs: Iterable[tuple[JavaObject, JavaObject]]) -> JavaObject:
        """A plan with expressions replaced by those that they are paired with."""
        for some in _in_groups(pairs):
            plan = plan.transformAllExpressions(self.replacement(*some))
        return plan

    def bind(self, plan: JavaObject, leaf: PlanLeaf, below: JavaObject) -> JavaObject:
        """``plan`` with ``below`` in the place of its leaf: the same columns by position, whatever their names."""
        return self.replace_nodes(plan, [(leaf.plan, self._union_of_two(leaf.empty, below))])

    def union(self, plans: Sequence[JavaObject]) -> JavaObject:
        """The rows of analysed plans with the same columns, which share no expression id."""
        return self._union(self._lists(plans), False, False)

    def flatten(self, plan: JavaObject) -> JavaObject:
        """The same plan with fewer nodes: done once here, the optimiser need not do it again for each batch."""
        optimizer = "org.apache.spark.sql.catalyst.optimizer"
        aliases = "org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases"
        for rule in (aliases, f"{optimizer}.PropagateEmptyRelation", f"{optimizer}.CollapseProject"):
            plan = scala_object(self.jvm, rule).apply(plan)
        return plan

    def without_ctes(self, plan: JavaObject) -> JavaObject:
        """The plan with ``WITH`` clauses inlined: two bound copies of one clause would share its id."""
        if "WithCTE" not in plan.toString():
            return plan
        inline = getattr(self.jvm, "org.apache.spark.sql.catalyst.optimizer.InlineCTE")
        return call_either(inline, (True, False, False), (True, False)).apply(plan)  # before Spark 4.3 it has two

    def frame(self, plan: JavaObject) -> DataFrame:
        """A lazy frame of a plan whose parts are analysed."""
        return frame_of_plan(plan, self.spark)

    def _wrap(self, made: JavaObject) -> DataFrame:
        from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

        return cast("DataFrame", ClassicFrame(made, self.spark))


def _in_groups(pairs: Iterable[tuple[JavaObject, JavaObject]]) -> Iterator[Sequence[JavaObject]]:
    """Pairs one after another, in groups that one partial function can have."""
    flat, size = list(itertools.chain.from_iterable(pairs)), 2 * _MAX_REPLACEMENTS
    return (flat[first : first + size] for first in range(0, len(flat), size))


# ---- metrics observed by the first job over a plan -------------------------------------------------------------------

AHEAD_BOUND: Final = 2**62 + 20_261_121
"""Placeholder in the SQL of an ``ObservationSpec`` for the bound that a batch brings."""
PER_PARTITION: Final = "partitions"
"""The figure that is a JSON array with one number for each partition."""
_PATIENCE_MS: Final = 5_000
_serials = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Figure:
    """An aggregate over rows that may also be taken over groups of the rows, whose own aggregates are merged.

    Attributes:
        parts: aggregates over rows, as SQL.
        merge: the function that makes one value of a part's values in several groups.
        is_array: whether the figure is the JSON array of its parts; else there is one part.

    >>> Figure(("count(1)",)).over_groups(["n"])
    'sum(n)'
    >>> Figure(("max(a)", "max(b)"), merge="max", is_array=True).over_rows
    'to_json(array(max(a), max(b)))'
    """

    parts: tuple[str, ...]
    merge: str = "sum"
    is_array: bool = False

    @property
    def over_rows(self) -> str:
        """SQL for the figure over all rows."""
        return self._of(self.parts)

    def over_groups(self, columns: Iterable[str]) -> str:
        """SQL for the same figure over groups; ``columns`` have their parts."""
        return self._of(f"{self.merge}({column})" for column in columns)

    def _of(self, parts: Iterable[str]) -> str:
        # One array and not a column for each part: reading a value of the JVM costs as much as a column does, and 64
        # maxima cost more than the batch (360 ms for 38).
        return f"to_json(array({', '.join(parts)}))" if self.is_array else next(iter(parts))


def figure_by_partition(
    part: str, column: str, names: Iterable[str], schema: StructType, *, merge: str = "sum"
) -> Figure:
    """The figure that has an aggregate for each partition.

    Args:
        part: the aggregate, in which ``{mine}`` stands for "the row is of that partition".
        column: has the partition's name.
        names: in the order of the array.
        schema: of the rows; a number is compared as a number.
        merge: see ``Figure``.

    >>> from pyspark.sql.types import StructType
    >>> figure_by_partition("count_if({mine})", "p", ["0", "1"], StructType.fromDDL("p INT")).parts
    ('count_if(`p` = 0L)', 'count_if(`p` = 1L)')
    """
    mine = conditions_of(column, names, schema)
    return Figure(tuple(part.format(mine=each) for each in mine), merge=merge, is_array=True)


def conditions_of(column: str, names: Iterable[str], schema: StructType) -> list[str]:
    """SQL that a row is of a partition, for each partition: see ``figure_by_partition``."""
    is_number = schema[column].dataType.typeName() in ("byte", "short", "integer", "long")
    return [f"{quote_identifier(column)} = {f'{int(name)}L' if is_number else string_literal(name)}" for name in names]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservationSpec:
    """What to observe above a plan, resolved once.

    Attributes:
        measure: name of the observed metrics.
        figures: names of the figures, in order.
        sql: the figures, if they may be taken over groups of the rows too.
        metrics: the expressions, bound to the columns of the plan they were made over.
        max_ahead: microseconds after the wall clock that ``AHEAD_BOUND`` is replaced by, if the figures have it.
        names: of the partitions, in the order of the figure ``PER_PARTITION``, if there is one.
        among: makes the same spec with that figure, from the column that holds the partition and the partitions' names.
    """

    measure: str
    figures: tuple[str, ...]
    metrics: JavaObject
    sql: Mapping[str, Figure] = field(default_factory=dict)
    max_ahead: int | None = None
    names: tuple[str, ...] = ()
    among: Callable[[str, tuple[str, ...]], ObservationSpec] | None = None

    def figures_of(self, row: str) -> Mapping[str, object] | None:
        """The figures by name, from the JSON of the row of metrics; ``None`` if it has others."""
        values = json.loads(row).values()
        if len(values) != len(self.figures):
            return None
        return self.with_names(dict(zip(self.figures, values, strict=True)))

    def with_names(self, figures: Mapping[str, object]) -> Mapping[str, object]:
        """The figures with the partitions' names in the place of their order."""
        if not self.names:
            return figures
        by_partition = json.loads(cast("str", figures[PER_PARTITION]))
        return {**figures, PER_PARTITION: dict(zip(self.names, by_partition, strict=True))}


def observe_sql(
    frame: DataFrame,
    measure: str,
    figures: Mapping[str, Figure],
    *,
    max_ahead: int | None = None,
    names: tuple[str, ...] = (),
    among: Callable[[str, tuple[str, ...]], ObservationSpec] | None = None,
) -> ObservationSpec:
    """What to observe above a frame's plan."""
    from pyspark.sql import functions as F

    spec = observe_columns(frame, measure, {name: F.expr(figure.over_rows) for name, figure in figures.items()})
    return replace(spec, sql=figures, max_ahead=max_ahead, names=names, among=among)


def observe_columns(frame: DataFrame, measure: str, figures: Mapping[str, Column]) -> ObservationSpec:
    """What to observe above a frame's plan; ``figures`` are aggregates."""
    first, *more = (figure.alias(name) for name, figure in figures.items())
    metrics = analyzed_plan(frame.observe("penstock", first, *more)).metrics()
    return ObservationSpec(measure=measure, figures=tuple(figures), metrics=metrics)


class PlanObserver:
    """Puts observations on plans of one session."""

    def __init__(self, editor: PlanEditor) -> None:
        self._editor = editor
        jvm = editor.jvm
        self._collect = getattr(jvm, "org.apache.spark.sql.catalyst.plans.logical.CollectMetrics")
        self._observation = getattr(jvm, "org.apache.spark.sql.Observation")
        self._manager = cast("Any", editor.spark)._jsparkSession.observationManager()  # noqa: SLF001
        self._bound = editor.literal(AHEAD_BOUND)
        self._await = getattr(jvm, "scala.concurrent.Await").result
        self._patience = getattr(jvm, "scala.concurrent.duration.Duration").apply(_PATIENCE_MS, "millis")

    def observe(
        self, plan: JavaObject, spec: ObservationSpec, *, bound: int | None = None
    ) -> tuple[JavaObject, ObservedMetrics]:
        """``plan`` with the observation on top, and the metrics that its first action brings.

        Each call uses a label of its own, never used again in the process.
        """
        node, label, serial = self.labelled(plan, spec, bound=None if bound is None else self._editor.literal(bound))
        observation = self._observation(label)
        self._manager.register(observation, serial)
        return node, ObservedMetrics(lambda: self._read(observation, spec))

    def labelled(
        self, plan: JavaObject, spec: ObservationSpec, *, bound: JavaObject | None = None
    ) -> tuple[JavaObject, str, int]:
        """``plan`` with the observation on top, its label and its number. Nobody is told of the figures.

        Args:
            plan: what to observe.
            spec: the figures.
            bound: a literal that replaces ``AHEAD_BOUND``.
        """
        serial = -next(_serials)
        label = f"{spec.measure}#{-serial}"
        node = self._collect(label, spec.metrics, plan, serial)
        if bound is not None:
            node = node.transformExpressions(self._editor.replacement(self._bound, bound))
        return node, label, serial

    def _read(self, observation: JavaObject, spec: ObservationSpec) -> Mapping[str, object] | None:
        """The figures; ``None`` if the job did not bring them: the optimiser had no use for the plan below."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            row = self._await(observation.future(), self._patience).json()
        except (Py4JJavaError, PySparkException):  # also an empty row, which has no schema and no JSON
            return None
        return spec.figures_of(row)


# ---- metrics observed on frames --------------------------------------------------------------------------------------


class FrameObservation:
    """Figures over the rows that pass a point of a frame's plan, brought by its first job.

    Args:
        names: of the figures, in the order of the expressions that ``observe`` gets.
    """

    def __init__(self, names: Sequence[str]) -> None:
        from pyspark.sql import Observation

        self._names = tuple(names)
        self._observation = Observation()

    def observe(self, frame: DataFrame, figures: Sequence[Column]) -> DataFrame:
        """``frame``, observed. Each figure is an aggregate that gives one number."""
        return frame.observe(self._observation, *figures)

    def read(self, *, seconds: int = 10) -> dict[str, int | None] | None:
        """The figures of the first job, or ``None`` if none came in time.

        Call it only after the job's success: after a failure an observation reads zero, and if the optimiser has
        removed the observed branch it never comes.
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
