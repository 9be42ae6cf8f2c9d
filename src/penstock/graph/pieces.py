"""Builds each stateless step once, over an empty leaf of its input's columns, checks it, and keeps its plan.

Knows nothing of batches: :mod:`penstock.graph.segment` hangs pieces onto them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from penstock import formats
from penstock.errors import GraphError, SchemaMismatch, UserFunctionError
from penstock.graph.nodes import BAD, ParseJson, RowWise, WithWatermark
from penstock.graph.steps import title
from penstock.graph.trouble import told
from penstock.operators.by_partition import array_by_partition
from penstock.operators.gauge import BOUND, PARTITIONS, Gauge, Observer, make_gauge
from penstock.operators.graft import Grafter, Java, Leaf, items, plan_of
from penstock.operators.job_watch import JobWatch
from penstock.operators.plan_check import PlanCheck
from penstock.operators.tables import Reading, StaticTables
from penstock.sources.base import RECORD
from penstock.state.changing import changing, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class PortOf(Protocol):
    """Takes one port of a decoded, split ``parse_json``."""

    @property
    def node(self) -> ParseJson:
        """The step."""
        ...

    @property
    def port(self) -> str:
        """``out`` or ``bad``."""
        ...


Step: TypeAlias = RowWise | ParseJson | WithWatermark | PortOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One step's plan over a leaf of its own.

    Attributes:
        leaf: where it is cut off.
        plan: analysed.
        schema: of its result.
        gauge: what to observe above it.
        rebuild: builds it anew over another frame; only for plans that hold a random seed.
    """

    leaf: Leaf
    plan: Java
    schema: StructType
    gauge: Gauge | None = None
    rebuild: Callable[[DataFrame], DataFrame] | None = None


class Pieces:
    """Makes pieces and keeps them, so that a user's function runs once however often its step is asked for.

    A step with tables is built again when one of them was read again.
    """

    def __init__(self, spark: SparkSession, tables: StaticTables) -> None:
        self.spark = spark
        self.tables = tables
        self.grafter = Grafter(spark)
        self.observer = Observer(self.grafter)
        self.decoded: set[int] = set()
        """The ``parse_json`` steps that get records with their rows (``RECORD``), from a source that decodes."""
        self._lock = threading.RLock()
        self._made: dict[tuple[int, str, bool], tuple[tuple[int, ...], tuple[Piece, ...]]] = {}

    def of(
        self, step: Step, schema: StructType, readings: Mapping[str, Reading], *, whole: bool = False
    ) -> tuple[Piece, ...]:
        """The pieces of a step whose input has these columns, in order; each but the last ends in a gauge.

        ``whole``: for batches that have all their records from the source, so that there is nothing left to decode.
        """
        node = step if isinstance(step, (RowWise, ParseJson, WithWatermark)) else step.node
        whole = whole and node.id in self.decoded
        key = (node.id, "" if step is node else cast("PortOf", step).port, whole)
        used = tuple(readings[table.name].rdd for table in tables_of(step))
        with self._lock:
            made = self._made.get(key)
            if made is None or made[0] != used:
                with told(node, schema.fieldNames()):
                    make = self._make_whole if whole else self._make
                    made = (used, make(step, _nullable(schema), readings))
                self._made[key] = made
            return made[1]

    def rows_gauge(self, schema: StructType) -> Gauge:
        """Counts the rows of a source's frame. It looks at no column, so it fits any plan."""
        return make_gauge(self.grafter.leaf(schema).frame, "rows", {"rows": "count(1)"})

    def _make(self, step: Step, schema: StructType, readings: Mapping[str, Reading]) -> tuple[Piece, ...]:
        match step:
            case RowWise():
                return (self._row_wise(step, schema, readings),)
            case ParseJson():
                return self._parse(step, schema)
            case WithWatermark():
                return (self._watermark(step, schema),)
            case _:
                return (self._port(step, schema),)

    def _row_wise(self, node: RowWise, schema: StructType, readings: Mapping[str, Reading]) -> Piece:
        frames = [readings[table.name].frame for table in node.tables]
        leaf = self.grafter.leaf(schema)
        built = self._watched(node, leaf.frame, frames)
        plan = self.grafter.without_ctes(plan_of(built))
        check = PlanCheck(leaf.rdd, {readings[table.name].rdd for table in node.tables})
        try:
            check.check(plan)
        except GraphError as error:
            msg = f"{title(node)}: {error}"
            raise GraphError(msg) from None
        _distinct(built.schema)

        def rebuild(frame: DataFrame) -> DataFrame:
            return cast("DataFrame", node.build(frame, *frames))

        return Piece(leaf=leaf, plan=plan, schema=built.schema, rebuild=rebuild if check.is_volatile else None)

    def _watched(self, node: RowWise, frame: DataFrame, frames: Sequence[DataFrame]) -> DataFrame:
        with JobWatch(self.spark) as watch:
            built = node.build(frame, *frames)
        if watch.jobs:
            msg = (
                f"{title(node)}: it ran {watch.jobs} Spark job{'s' * (watch.jobs > 1)} while it was built (collect, "
                "count, rdd, localCheckpoint, …), on an empty frame; it may only describe what to do with a row"
            )
            raise GraphError(msg)
        if not hasattr(built, "_jdf"):
            forgot = "; is a return missing?" if built is None else ""
            msg = f"{title(node)} returned {type(built).__name__} instead of a DataFrame{forgot}"
            raise UserFunctionError(msg)
        return cast("DataFrame", built)

    def _parse(self, node: ParseJson, schema: StructType) -> tuple[Piece, ...]:
        record = formats.struct_type(self.spark, node.schema)
        done = RECORD if node.id in self.decoded else None
        formats.parsed_schema(_without(schema, done), node.column, record)
        leaf = self.grafter.leaf(schema)
        decoded = formats.decode_json(leaf.frame, node.column, record, done=done)
        if node.on_error == "fail":
            return (_piece(leaf, formats.strict(decoded, node.column)),)
        measure, figure = node.bad_rows
        gauge = make_gauge(decoded, measure, {figure: f"count_if({formats.REASON} IS NOT NULL)"})
        wide = _piece(leaf, decoded, gauge)
        if node.on_error == "split":
            return (wide,)
        above = self.grafter.leaf(_nullable(wide.schema))
        return (wide, _piece(above, formats.lenient(above.frame, node.column)))

    def _port(self, step: PortOf, schema: StructType) -> Piece:
        leaf = self.grafter.leaf(schema)
        if step.port == BAD:
            return _piece(leaf, formats.rejected(leaf.frame))
        return _piece(leaf, formats.good(leaf.frame, step.node.column))

    def _make_whole(self, step: Step, schema: StructType, readings: Mapping[str, Reading]) -> tuple[Piece, ...]:
        """The same of rows that are good, all of them: a split one gives its good rows, and bad ones are never run."""
        leaf = self.grafter.leaf(schema)
        if isinstance(step, ParseJson):
            return (_piece(leaf, _opened(leaf.frame, step.column)),)
        step = cast("PortOf", step)
        if step.port == BAD:
            (usual,) = self.of(step, schema, readings)
            return (_piece(leaf, _none_of(leaf.frame, usual.schema, step.node.column)),)
        return (_piece(leaf, leaf.frame),)

    def _watermark(self, node: WithWatermark, schema: StructType) -> Piece:
        from pyspark.sql.types import TimestampType

        if node.column not in schema.fieldNames():
            leaf = self.grafter.leaf(schema)
            leaf.frame.select(quoted(node.column))  # Spark's own error has the nearest names
        elif not isinstance(schema[node.column].dataType, TimestampType):
            kind = schema[node.column].dataType.simpleString()
            msg = (
                f"{title(node)}: event time must be TIMESTAMP, but {node.column!r} is {kind}; convert it before, for "
                f'example .with_column("{node.column}", "CAST({node.column} AS TIMESTAMP)")'
            )
            raise SchemaMismatch(msg)
        leaf = self.grafter.leaf(schema)
        return _piece(leaf, leaf.frame, _time_gauge(node, leaf))


def tables_of(step: Step) -> tuple[Any, ...]:
    """The declared tables that a step reads."""
    return step.tables if isinstance(step, RowWise) else ()


def _time_gauge(node: WithWatermark, leaf: Leaf) -> Gauge:
    @lru_cache(maxsize=2)  # partitions come and go seldom
    def among(column: str, names: tuple[str, ...]) -> Gauge:
        each = {PARTITIONS: array_by_partition(_greatest(node, "{mine} AND "), column, names, leaf.schema)}
        return make_gauge(
            leaf.frame, f"time:{node.id}", _time_figures(node) | each, max_ahead=node.max_ahead, names=names
        )

    return make_gauge(leaf.frame, f"time:{node.id}", _time_figures(node), max_ahead=node.max_ahead, among=among)


def _time_figures(node: WithWatermark) -> dict[str, str]:
    column = quoted(node.column)
    ahead = f"count_if(unix_micros({column}) > {_bound(node)})" if node.max_ahead is not None else "count_if(false)"
    return {"max": _greatest(node), "ahead": ahead, "missing": f"count_if({column} IS NULL)"}


def _greatest(node: WithWatermark, condition: str = "") -> str:
    """The greatest event time of the rows that are believed, and for which the condition holds."""
    micros = f"unix_micros({quoted(node.column)})"
    believed = f"{micros} <= {_bound(node)}" if node.max_ahead is not None else "true"
    return f"max(CASE WHEN {condition}{believed} THEN {micros} END)"


def _bound(node: WithWatermark) -> str:
    return changing(BOUND, beside=node.column)


def passes(piece: Piece, column: str) -> bool:
    """Whether a column of what comes into a step goes out of it as it came."""
    before, after = (_attribute(plan, column) for plan in (piece.leaf.plan, piece.plan))
    return before is not None and before == after


def _attribute(plan: Java, column: str) -> int | None:
    """The expression id of a plan's column."""
    found = (each.exprId().id() for each in items(plan.output()) if each.name() == column)
    return next(found, None)


def _piece(leaf: Leaf, frame: DataFrame, gauge: Gauge | None = None) -> Piece:
    return Piece(leaf=leaf, plan=plan_of(frame), schema=frame.schema, gauge=gauge)


def _distinct(schema: StructType) -> None:
    seen: set[str] = set()
    for name in schema.fieldNames():
        if name.lower() in seen:
            msg = f"column {name!r} stands twice in the result (case does not count): drop or rename one"
            raise SchemaMismatch(msg)
        seen.add(name.lower())


def _opened(frame: DataFrame, column: str) -> DataFrame:
    """Rows whose records are all there: a projection and no more."""
    kept = [quoted(name) for name in frame.columns if name not in (column, RECORD)]
    return frame.selectExpr(*kept, f"{RECORD}.*")


def _none_of(frame: DataFrame, schema: StructType, column: str) -> DataFrame:
    """No bad rows, but their columns: those of before, the parsed one too, and the reason."""
    from pyspark.sql import functions as F

    gone = (column, formats.ERROR)
    columns = (F.lit(None).cast(f.dataType).alias(f.name) if f.name in gone else quoted(f.name) for f in schema.fields)
    return frame.where("false").select(*columns)


def _without(schema: StructType, column: str | None) -> StructType:
    from pyspark.sql.types import StructType

    return StructType([field for field in schema.fields if field.name != column])


def _nullable(schema: StructType) -> StructType:
    """The same columns, any of which may be NULL: what is below a leaf may then be either."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, f.dataType, True, f.metadata) for f in schema.fields])
