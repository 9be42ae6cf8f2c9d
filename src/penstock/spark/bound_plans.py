"""A batch's plan by its parts; Spark's own plan is made of them when it is needed."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from penstock.elements import ObservedMetrics
from penstock.errors import assert_never
from penstock.spark.blocks import JavaObject, java_frame, logical_plan
from penstock.spark.plans import ObservationSpec, PlanEditor, PlanLeaf, PlanObserver, plan_kind
from penstock.spark.sql import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# ---- plans over a leaf -----------------------------------------------------------------------------------------------
# A function from frame to frame is called once, with placeholders for its numbers, and what analysis makes of it is
# kept. A batch's numbers replace the placeholders, and its plan the leaf: three calls to the JVM. Calling the function
# again would take several for each operation, and an analysis of all that is below. The function has to write its
# numbers by ``variable_literal``, or Spark would compile the plan of each batch.

FIRST_PLACEHOLDER: Final = 2**62 + 20_261_200
"""The first placeholder for a number: no time, and no count, comes near."""
MAX_NUMBERS: Final = 6
"""Most numbers of one prepared plan."""
_INT: Final = 2**31


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedPlan:
    """A plan over a leaf.

    Attributes:
        leaf: what the plan is built over.
        plan: analysed, with placeholders for numbers.
        schema: of its result.
        observation: what to observe above it.
    """

    leaf: PlanLeaf
    plan: JavaObject
    schema: StructType
    observation: ObservationSpec | None = None

    @cached_property
    def input_type(self) -> JavaObject:
        """The columns of its leaf, as the JVM has them."""
        return self.leaf.plan.schema()

    @cached_property
    def output_type(self) -> JavaObject:
        """The columns of its result, as the JVM has them."""
        return self.plan.schema()


# ---- plans of a batch ------------------------------------------------------------------------------------------------
# A batch's plan is described by what is bound to what. So the same description can become a logical plan, which Spark
# optimises and plans with all that is built on it, or find the physical plan that was kept for its shape.


_KNOWN_PARTITIONING: Final = re.compile(r"SinglePartition\$?|hashpartitioning\([\w#, ]+, \d+\)")
_FROM_PYTHON: Final = ("MapInArrow", "PythonMapInArrow")
"""Nodes by which sources read in tasks; the name depends on Spark's version."""
_EXPRESSION_ID: Final = re.compile(r"#\d+L?")


@dataclass(frozen=True, eq=False)
class InputRows:
    """Rows that plans are bound above: the plan of a frame."""

    plan: JavaObject
    is_cached: bool = False
    """Whether Spark keeps the frame's rows once a job has read them (``persist``)."""

    sent: int | None = None
    """How many rows there are, if the driver sends them to the tasks; ``None`` if tasks read them."""

    @cached_property
    def _kind(self) -> str:
        return plan_kind(self.plan)

    @cached_property
    def is_from_python(self) -> bool:
        """Whether tasks make the rows in Python. Spark can move nothing into that: it may be planned for itself."""
        return self._kind in _FROM_PYTHON

    @cached_property
    def partitioning(self) -> str | None:
        """How the rows are partitioned, as text; ``None`` if they are no RDD whose place others can take."""
        if self.is_cached:
            return None
        if self.is_from_python:
            return ""
        if self._kind != "LogicalRDD":
            return None
        text = str(self.plan.outputPartitioning().toString())
        return _EXPRESSION_ID.sub("", text) if _KNOWN_PARTITIONING.fullmatch(text) else ""


@dataclass(frozen=True, slots=True, eq=False)
class BoundRows:
    """A prepared plan bound to the rows below it, and the numbers in the order of its function's arguments."""

    prepared: PreparedPlan
    below: BoundPlan
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class RebuiltRows:
    """What a function makes of a frame of the rows below: for plans that hold a random seed."""

    build: Callable[[DataFrame], DataFrame]
    below: BoundPlan
    output_type: JavaObject = None


@dataclass(frozen=True, slots=True, eq=False)
class UnitedRows:
    """The rows of plans with the same columns, which share no expression id."""

    sides: tuple[BoundPlan, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MatchedRows:
    """The rows that have the keys of some others. Both have the same columns, and share no expression id.

    Keys are compared by their hash, so rows with other keys may be among them.
    """

    rows: BoundPlan
    others: BoundPlan
    keys: tuple[str, ...]


class ObservedRows:
    """Rows that are observed on the way.

    Args:
        below: the rows.
        spec: the figures.
        bound: microseconds since the epoch that ``AHEAD_BOUND`` stands for, if the figures have it.

    Attributes:
        metrics: the figures, after the first job over the rows.
    """

    def __init__(self, below: BoundPlan, spec: ObservationSpec, bound: int | None = None) -> None:
        self.below = below
        self.spec = spec
        self.bound = bound
        self.metrics = ObservedMetrics(self._read)
        self._source: Callable[[], Mapping[str, object] | None] | None = None
        self._expected: dict[str, int] = {}

    def read_from(self, source: Callable[[], Mapping[str, object] | None]) -> None:
        """Say how the figures are read once a job has run."""
        self._source = source

    def lose_unless(self, figure: str, value: int) -> None:
        """Take the figures for lost if one of them has another value, so that they are not those of all rows."""
        self._expected[figure] = value

    def _read(self) -> Mapping[str, object] | None:
        source, self._source = self._source, None
        figures = None if source is None else source()
        is_whole = figures is not None and all(figures[name] == value for name, value in self._expected.items())
        return figures if is_whole else None


BoundPlan: TypeAlias = InputRows | BoundRows | RebuiltRows | UnitedRows | MatchedRows | ObservedRows


def plan_of(frame: DataFrame) -> BoundPlan:
    """The plan of a frame, as it was bound if that is known."""
    if frame.is_cached:
        return InputRows(logical_plan(frame), is_cached=True)
    bound: BoundPlan | None = vars(frame).get(_BOUND)
    return bound if bound is not None else InputRows(logical_plan(frame))


def note_sent(frame: DataFrame, rows: int) -> None:
    """Note that the driver sends the rows of a frame to its tasks, and how many there are."""
    setattr(frame, _BOUND, InputRows(logical_plan(frame), sent=rows))


def output_type(plan: BoundPlan) -> JavaObject:
    """The columns of a plan's rows as the JVM's ``StructType``, which compares types without names."""
    match plan:
        case InputRows():
            return plan.plan.schema()
        case BoundRows():
            return plan.prepared.output_type
        case RebuiltRows():
            return plan.output_type
        case UnitedRows():
            return output_type(plan.sides[0])
        case MatchedRows():
            return output_type(plan.rows)
        case ObservedRows():
            return output_type(plan.below)
        case _:
            assert_never(plan)


def parts_of(plan: BoundPlan) -> Iterator[BoundPlan]:
    """All parts of a plan, those below before those above."""
    match plan:
        case InputRows():
            pass
        case UnitedRows():
            for side in plan.sides:
                yield from parts_of(side)
        case MatchedRows():
            yield from parts_of(plan.rows)
            yield from parts_of(plan.others)
        case BoundRows() | RebuiltRows() | ObservedRows():
            yield from parts_of(plan.below)
        case _:
            assert_never(plan)
    yield plan


# ---- Spark's plan of a batch -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanParts:
    """How parts of a bound plan become parts of Spark's logical plan. Each is called in the order of ``parts_of``.

    Attributes:
        rows: the plan of input rows.
        number: the literal of a number.
        observe: the plan of observed rows, from the plan below and the literal of its bound.
    """

    rows: Callable[[InputRows], JavaObject]
    number: Callable[[int], JavaObject]
    observe: Callable[[ObservedRows, JavaObject, JavaObject | None], JavaObject]


class PlanBuilder:
    """Makes Spark's logical plans of bound plans, in one session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.editor = PlanEditor(spark)
        self.observer = PlanObserver(self.editor)
        self._parser: JavaObject = cast("Any", spark)._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
        self._placeholders = [self.editor.literal(FIRST_PLACEHOLDER + place) for place in range(MAX_NUMBERS)]
        self._plain = PlanParts(rows=lambda rows: rows.plan, number=self.number, observe=self._observed)

    def frame(self, plan: BoundPlan) -> DataFrame:
        """A lazy frame of a plan. Spark's own is made when the frame is first used."""
        return cast("DataFrame", _planned_frame()(self, plan))

    def logical(self, plan: BoundPlan) -> JavaObject:
        """Spark's logical plan. Its figures come by an action over a frame of it."""
        return self.build(plan, self._plain)

    def build(self, plan: BoundPlan, parts: PlanParts) -> JavaObject:
        """Spark's logical plan, made of parts."""
        match plan:
            case InputRows():
                return parts.rows(plan)
            case BoundRows():
                below = self.build(plan.below, parts)
                numbered = self._numbered(plan.prepared.plan, list(map(parts.number, plan.numbers)))
                return self.editor.bind(numbered, plan.prepared.leaf, below)
            case RebuiltRows():
                return logical_plan(plan.build(self.editor.frame(self.build(plan.below, parts))))
            case UnitedRows():
                return self.editor.union([self.build(side, parts) for side in plan.sides])
            case MatchedRows():
                rows, others = (self.editor.frame(self.build(each, parts)) for each in (plan.rows, plan.others))
                return logical_plan(_matched(rows, others, plan.keys))
            case ObservedRows():
                below = self.build(plan.below, parts)
                return parts.observe(plan, below, None if plan.bound is None else parts.number(plan.bound))
            case _:
                assert_never(plan)

    def number(self, value: int) -> JavaObject:
        """A BIGINT literal. py4j would send a small ``int`` of Python as an INT."""
        if abs(value) > _INT:
            return self.editor.literal(value)
        return self._parser.parseExpression(f"{value}L")

    def _numbered(self, plan: JavaObject, literals: Sequence[JavaObject]) -> JavaObject:
        return self.editor.replace_expressions(plan, zip(self._placeholders, literals, strict=False))

    def _observed(self, rows: ObservedRows, below: JavaObject, bound: JavaObject | None) -> JavaObject:
        node, metrics = self.observer.observe(below, rows.spec, bound=bound)
        rows.read_from(metrics.read)
        return node


def _matched(rows: DataFrame, others: DataFrame, keys: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F

    # A hash is one BIGINT that is never NULL, whatever the keys are: NULL is a key as any other.
    of_rows, of_others = (F.xxhash64(*(each[quote_identifier(key)] for key in keys)) for each in (rows, others))
    return rows.join(others.hint("shuffle_hash"), of_rows == of_others, "left_semi")


_BOUND: Final = "bound_plan"
"""Attribute of a frame whose plan was bound."""


@cache
def _planned_frame() -> type[Any]:
    """The class of frames whose plan is made at their first use; made late, since it needs PySpark."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    class PlannedFrame(ClassicFrame):
        def __init__(self, builder: PlanBuilder, plan: BoundPlan) -> None:
            super().__init__(None, builder.spark)
            del self._jdf  # found below from now on
            self._builder = builder
            self._lock = threading.Lock()
            setattr(self, _BOUND, plan)

        @cached_property
        def _jdf(self) -> JavaObject:
            with self._lock:
                made = vars(self).get("_made")
                if made is None:
                    plan = self._builder.logical(vars(self)[_BOUND])
                    made = self._made = java_frame(self._builder.editor.frame(plan))
                return made

    return PlannedFrame
