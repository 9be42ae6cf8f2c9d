"""Each stateless step compiled once; build errors in the user's words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from penstock.compiler.tables import StaticTables, TableSnapshot
from penstock.errors import GraphError, PenstockError, SchemaMismatch, UserFunctionError, assert_never, no_column
from penstock.formats import text
from penstock.graph.nodes import (
    BAD_PORT,
    Node,
    ParseCsv,
    ParseJson,
    PortSelect,
    RowWise,
    StatelessStep,
    WithWatermark,
    describe_step,
)
from penstock.interfaces.source import DECODED_RECORD
from penstock.spark.blocks import JavaObject
from penstock.spark.bound_plans import PlanBuilder
from penstock.spark.plan_check import JobWatch, PlanCheck
from penstock.spark.plans import (
    AHEAD_BOUND,
    PER_PARTITION,
    Figure,
    ObservationSpec,
    PlanEditor,
    PlanLeaf,
    analyzed_plan,
    figure_by_partition,
    is_frame,
    observe_sql,
    optimized_plan,
    plan_nodes,
    scala_items,
)
from penstock.spark.query_log import first_line, quiet
from penstock.spark.sql import nullable_columns, quote_identifier, variable_literal
from penstock.user_code import raised_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# ----------------------------------------------------------------------------------------- errors while a step is built


@contextmanager
def explain_build_errors(node: Node, columns: Sequence[str] = ()) -> Iterator[None]:
    """Turn errors raised within the block into errors that name the step, the user's line and the nearest columns."""
    try:
        with quiet():
            yield
    except PenstockError as error:
        error.where = error.where or str(node.origin)
        error.uid = error.uid or getattr(node, "uid", None)
        raise
    except Exception as error:
        raise _explained(error, node, columns) from error


def _explained(error: Exception, node: Node, columns: Sequence[str]) -> PenstockError:
    from pyspark.errors import AnalysisException, ParseException

    uid, where = getattr(node, "uid", None), str(node.origin)
    inside = raised_at(error)
    place = f" ({inside})" if inside and getattr(node, "verb", None) == "transform" else ""
    if isinstance(error, (AnalysisException, ParseException)):
        missing = _missing_column(error)
        if missing is not None:
            return SchemaMismatch(f"{describe_step(node)}{place}: {no_column(missing, columns)}", uid=uid, where=where)
        return GraphError(f"{describe_step(node)}{place}: {first_line(error)}.", uid=uid, where=where)
    msg = f"{describe_step(node)}{place} raised {type(error).__name__}: {first_line(error)}."
    return UserFunctionError(msg, uid=uid, where=where)


def _missing_column(error: Exception) -> str | None:
    condition = getattr(error, "getCondition", lambda: None)() or ""
    if not condition.startswith(("UNRESOLVED_COLUMN", "UNRESOLVED_USING_COLUMN", "FIELD_NOT_FOUND")):
        return None
    given: dict[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    name = given.get("objectName") or given.get("colName") or given.get("fieldName")
    return str(name).replace("`", "") if name else None


# ----------------------------------------------------------------------------------------------------- compiling a step


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """The plan of a step over a leaf of its own, to which each batch is bound.

    Attributes:
        leaf: the leaf under the plan, which stands for the batch.
        plan: the analysed plan.
        schema: the columns of the result.
        observation: what to observe above the plan.
        rebuild: builds the step over another frame; only for plans that hold a random seed.
    """

    leaf: PlanLeaf
    plan: JavaObject
    schema: StructType
    observation: ObservationSpec | None = None
    rebuild: Callable[[DataFrame], DataFrame] | None = None


class StepCompiler:
    """Compiles each step once and keeps the result, so that a user's function runs once.

    A step that joins tables is compiled again after one of them was read again.
    """

    def __init__(self, spark: SparkSession, tables: StaticTables) -> None:
        self.spark = spark
        self.tables = tables
        self.builder = PlanBuilder(spark)
        self.editor = self.builder.editor
        self.decoded: set[int] = set()
        """The ``parse_json`` steps whose source decodes: it sends records (``DECODED_RECORD``) with its rows."""
        self._lock = threading.RLock()
        self._made: dict[tuple[int, str, bool, bool], tuple[tuple[int, ...], tuple[CompiledStep, ...]]] = {}

    def compile(
        self,
        step: StatelessStep,
        schema: StructType,
        snapshots: Mapping[str, TableSnapshot],
        *,
        whole: bool = False,
        says_place: bool = True,
    ) -> tuple[CompiledStep, ...]:
        """Return the compiled parts of a step for these input columns; each but the last ends in an observation.

        ``whole``: for batches whose records were all decoded by the source, so that nothing is left to decode.
        ``says_place``: the error of a bad record says where it came from, which needs columns.
        """
        node, port = (step.node, step.port) if isinstance(step, PortSelect) else (step, "")
        whole = whole and node.id in self.decoded
        is_placeless = not says_place and isinstance(step, ParseJson) and not whole
        key = (node.id, port, whole, is_placeless)
        used = tuple(snapshots[table.name].rdd for table in tables_of(step))
        with self._lock:
            made = self._made.get(key)
            if made is None or made[0] != used:
                with explain_build_errors(node, schema.fieldNames()):
                    if is_placeless:
                        made = (used, self._parse(cast("ParseJson", step), nullable_columns(schema), says_place=False))
                    else:
                        make = self._make_whole if whole else self._make
                        made = (used, make(step, nullable_columns(schema), snapshots))
                self._made[key] = made
            return made[1]

    def count_rows(self, schema: StructType) -> ObservationSpec:
        """Return an observation that counts the rows of a source's frame. It uses no column, so it fits any plan."""
        return observe_sql(self.editor.new_leaf(schema).frame, "rows", {"rows": Figure(("count(1)",))})

    def _make(
        self, step: StatelessStep, schema: StructType, snapshots: Mapping[str, TableSnapshot]
    ) -> tuple[CompiledStep, ...]:
        match step:
            case RowWise():
                return (self._row_wise(step, schema, snapshots),)
            case ParseJson():
                return self._parse(step, schema)
            case WithWatermark():
                return (self._watermark(step, schema),)
            case PortSelect():
                return (self._port(step, schema),)
            case _:
                assert_never(step)

    def _row_wise(self, node: RowWise, schema: StructType, snapshots: Mapping[str, TableSnapshot]) -> CompiledStep:
        frames = [snapshots[table.name].frame for table in node.tables]
        leaf = self.editor.new_leaf(schema)
        built = self._build(node, leaf.frame, frames)
        plan = self.editor.without_ctes(analyzed_plan(built))
        check = PlanCheck(leaf.rdd, {snapshots[table.name].rdd for table in node.tables})
        try:
            check.check(plan)
        except GraphError as error:
            msg = f"{describe_step(node)}: {error}"
            raise GraphError(msg) from None
        _check_distinct(built.schema)

        def rebuild(frame: DataFrame) -> DataFrame:
            return cast("DataFrame", node.build(frame, *frames))

        return CompiledStep(leaf=leaf, plan=plan, schema=built.schema, rebuild=rebuild if check.is_volatile else None)

    def _build(self, node: RowWise, frame: DataFrame, frames: Sequence[DataFrame]) -> DataFrame:
        with JobWatch(self.spark) as watch:
            built = node.build(frame, *frames)
        if watch.jobs:
            msg = (
                f"{describe_step(node)}: It ran {watch.jobs} Spark job{'s' * (watch.jobs > 1)} (collect, count, rdd, "
                "localCheckpoint, …) while it was built, on an empty frame. Only describe what to do with a row."
            )
            raise GraphError(msg)
        if not is_frame(built):
            forgot = " Is a return missing?" if built is None else ""
            msg = f"{describe_step(node)} returned {type(built).__name__} instead of a DataFrame.{forgot}"
            raise UserFunctionError(msg)
        return cast("DataFrame", built)

    def _parse(self, node: ParseJson, schema: StructType, *, says_place: bool = True) -> tuple[CompiledStep, ...]:
        record = text.struct_type(self.spark, node.schema)
        done = DECODED_RECORD if node.id in self.decoded else None
        text.parsed_schema(_without(schema, done), node.column, record)
        leaf = self.editor.new_leaf(schema)
        if isinstance(node, ParseCsv):
            decoded = text.decode_csv(leaf.frame, node.column, record, dict(node.options))
        else:
            decoded = text.decode_json(leaf.frame, node.column, record, done=done)
        if node.on_error == "fail":
            place = text.place_of(schema.fieldNames()) if says_place else None
            return (_compiled(leaf, text.failfast(decoded, node.column, place=place or "NULL")),)
        measure, figure = node.bad_rows
        observation = observe_sql(decoded, measure, {figure: Figure((f"count_if({text.REASON} IS NOT NULL)",))})
        wide = _compiled(leaf, decoded, observation)
        if node.on_error == "split":
            return (wide,)
        above = self.editor.new_leaf(nullable_columns(wide.schema))
        return (wide, _compiled(above, text.permissive(above.frame, node.column)))

    def _port(self, step: PortSelect, schema: StructType) -> CompiledStep:
        leaf = self.editor.new_leaf(schema)
        if step.port == BAD_PORT:
            return _compiled(leaf, text.malformed(leaf.frame))
        return _compiled(leaf, text.drop_malformed(leaf.frame, step.node.column))

    def _make_whole(
        self, step: StatelessStep, schema: StructType, snapshots: Mapping[str, TableSnapshot]
    ) -> tuple[CompiledStep, ...]:
        """Compile a ``parse_json``, or a port of it, for batches that are fully decoded: there are no bad rows."""
        leaf = self.editor.new_leaf(schema)
        if isinstance(step, ParseJson):
            return (_compiled(leaf, _open_records(leaf.frame, step.column)),)
        step = cast("PortSelect", step)
        if step.port == BAD_PORT:
            (usual,) = self.compile(step, schema, snapshots)
            return (_compiled(leaf, _empty_bad_rows(leaf.frame, usual.schema, step.node.column)),)
        return (_compiled(leaf, leaf.frame),)

    def _watermark(self, node: WithWatermark, schema: StructType) -> CompiledStep:
        from pyspark.sql.types import TimestampType

        if node.column not in schema.fieldNames():
            leaf = self.editor.new_leaf(schema)
            leaf.frame.select(quote_identifier(node.column))  # Spark's own error has the nearest names
        elif not isinstance(schema[node.column].dataType, TimestampType):
            kind = schema[node.column].dataType.simpleString()
            msg = (
                f"{describe_step(node)}: Event time must be TIMESTAMP, but {node.column!r} is {kind}. "
                f'Convert it first, for example .with_column("{node.column}", "CAST({node.column} AS TIMESTAMP)").'
            )
            raise SchemaMismatch(msg)
        leaf = self.editor.new_leaf(schema)
        return _compiled(leaf, leaf.frame, _time_observation(node, leaf))


def tables_of(step: StatelessStep) -> tuple[Any, ...]:
    """Return the declared tables that a step reads."""
    return step.tables if isinstance(step, RowWise) else ()


def _time_observation(node: WithWatermark, leaf: PlanLeaf) -> ObservationSpec:
    @lru_cache(maxsize=16)  # one for each source above it; partitions come and go seldom
    def among(column: str, names: tuple[str, ...]) -> ObservationSpec:
        greatest = _greatest(node, "{mine} AND ")
        each = {PER_PARTITION: figure_by_partition(greatest, column, names, leaf.schema, merge="max")}
        return observe_sql(
            leaf.frame, f"time:{node.id}", _time_figures(node) | each, max_ahead=node.max_ahead, names=names
        )

    return observe_sql(leaf.frame, f"time:{node.id}", _time_figures(node), max_ahead=node.max_ahead, among=among)


def _time_figures(node: WithWatermark) -> dict[str, Figure]:
    column = quote_identifier(node.column)
    # not count_if: Spark computes its condition below the observation, so the bound would be a part of another stage
    is_ahead = f"unix_micros({column}) > {_bound(node)}" if node.max_ahead is not None else "false"
    ahead = f"count(CASE WHEN {is_ahead} THEN 1 END)"
    missing = f"count_if({column} IS NULL)"
    return {"max": Figure((_greatest(node),), merge="max"), "ahead": Figure((ahead,)), "missing": Figure((missing,))}


def _greatest(node: WithWatermark, condition: str = "") -> str:
    """Return SQL for the greatest event time that is not too far ahead, of rows for which the condition holds."""
    micros = f"unix_micros({quote_identifier(node.column)})"
    trusted = f"{micros} <= {_bound(node)}" if node.max_ahead is not None else "true"
    return f"max(CASE WHEN {condition}{trusted} THEN {micros} END)"


def _bound(node: WithWatermark) -> str:
    return variable_literal(AHEAD_BOUND, column=node.column)


def passes_through(step: CompiledStep, column: str) -> bool:
    """Return whether a step passes a column on unchanged."""
    before, after = (_attribute(plan, column) for plan in (step.leaf.plan, step.plan))
    return before is not None and before == after


def _attribute(plan: JavaObject, column: str) -> int | None:
    """Return the expression id of a plan's column."""
    found = (each.exprId().id() for each in scala_items(plan.output()) if each.name() == column)
    return next(found, None)


def _compiled(leaf: PlanLeaf, frame: DataFrame, observation: ObservationSpec | None = None) -> CompiledStep:
    return CompiledStep(leaf=leaf, plan=analyzed_plan(frame), schema=frame.schema, observation=observation)


def _check_distinct(schema: StructType) -> None:
    seen: set[str] = set()
    for name in schema.fieldNames():
        if name.lower() in seen:
            msg = f"Column {name!r} appears twice in the result (case does not count). Drop or rename one."
            raise SchemaMismatch(msg)
        seen.add(name.lower())


def _open_records(frame: DataFrame, column: str) -> DataFrame:
    """Return the fields of decoded records in place of the column: a projection."""
    kept = [quote_identifier(name) for name in frame.columns if name not in (column, DECODED_RECORD)]
    return frame.selectExpr(*kept, f"{DECODED_RECORD}.*")


def _empty_bad_rows(frame: DataFrame, schema: StructType, column: str) -> DataFrame:
    """Return an empty frame with the columns of bad rows."""
    from pyspark.sql import functions as F

    gone = (column, text.ERROR)
    columns = (
        F.lit(None).cast(f.dataType).alias(f.name) if f.name in gone else quote_identifier(f.name)
        for f in schema.fields
    )
    return frame.where("false").select(*columns)


def _without(schema: StructType, column: str | None) -> StructType:
    from pyspark.sql.types import StructType

    return StructType([field for field in schema.fields if field.name != column])


# ----------------------------------------------------------------------------------------------- columns that steps use


def columns_used(editor: PlanEditor, steps: Sequence[CompiledStep]) -> frozenset[str]:
    """Return the columns of the first step's input that Spark's optimiser leaves in the plan of the steps, in order."""
    first, *others = steps
    plan = first.plan
    for step in others:
        plan = editor.bind(step.plan, step.leaf, plan)
    optimized = optimized_plan(editor.frame(plan))
    used = set(_attributes(optimized.outputSet().toSeq()))
    for node in plan_nodes(optimized):
        used.update(_attributes(node.references().toSeq()))
    return frozenset(each.name() for each in scala_items(first.leaf.plan.output()) if each.exprId().id() in used)


def _attributes(attributes: JavaObject) -> Iterator[int]:
    return (each.exprId().id() for each in scala_items(attributes))
