"""Chained stateless steps, which rewrite a batch lazily: no job runs, and no user function runs again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, cast

from penstock.clock import MAX_WATERMARK, WallTime
from penstock.compiler.steps import CompiledStep, StepCompiler, passes_through, tables_of
from penstock.compiler.tables import TableSnapshot
from penstock.elements import Batch, ObservedMetrics, RefCount, SourcePartitions
from penstock.errors import InternalError, assert_never
from penstock.graph.nodes import ParseJson, PortSelect, StatelessStep, WithWatermark, bad_rows_of
from penstock.interfaces.source import UNDECODED_METRIC
from penstock.spark.blocks import JavaObject
from penstock.spark.bound_plans import (
    BoundPlan,
    BoundRows,
    ObservedRows,
    PreparedPlan,
    RebuiltRows,
    output_type,
    plan_of,
)
from penstock.spark.plans import ObservationSpec
from penstock.spark.session import parse_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class _Rebuild:
    """A step that is built again over each batch, and the columns that it gives."""

    build: Callable[[DataFrame], DataFrame]
    output_type: JavaObject


@dataclass(frozen=True, slots=True)
class _Observe:
    """An observation, and the steps that come before it."""

    observation: ObservationSpec
    after: tuple[CompiledStep, ...]


_Part: TypeAlias = PreparedPlan | _Rebuild | _Observe


@dataclass(frozen=True, slots=True)
class _Compiled:
    snapshots: tuple[int, ...]
    input_type: JavaObject
    parts: tuple[_Part, ...]
    steps: tuple[CompiledStep, ...]
    schema: StructType
    passing: dict[tuple[str, int], bool] = field(default_factory=dict)


class StepChain:
    """``chain(batch)`` returns the batch with its lazy frame rewritten and the metrics of the steps added.

    One thread at a time may call it. ``whole`` are the columns of batches whose records were all decoded by the source,
    if there may be such batches: they have a plan of their own.
    """

    def __init__(
        self,
        compiler: StepCompiler,
        steps: Sequence[StatelessStep],
        schema: StructType,
        *,
        whole: StructType | None = None,
        counts_rows: bool = False,
        wall: Callable[[], WallTime] | None = None,
    ) -> None:
        self._compiler = compiler
        self._steps = tuple(steps)
        self._inputs = {False: schema} if whole is None else {False: schema, True: whole}
        self._rows = compiler.count_rows(schema) if counts_rows else None
        self._wall = wall
        self._tables = tuple(dict.fromkeys(table for step in self._steps for table in tables_of(step)))
        self._lock = threading.Lock()
        snapshots = self._acquire_tables()
        self._compiled = {whole: self._compile(snapshots, whole=whole) for whole in self._inputs}
        for snapshot in snapshots:
            snapshot.lease.release()

    @property
    def schema(self) -> StructType:
        """The columns of rewritten batches."""
        return self._compiled[False].schema

    def __call__(self, batch: Batch) -> Batch:
        """Rewrite a batch. Its ref counts then include those of the tables it joins."""
        snapshots = self._acquire_tables()
        whole = True in self._inputs and self._is_whole(batch)
        compiled = self._current(snapshots, whole=whole)
        metrics = self._metrics(batch, whole=whole)
        frame = cast("DataFrame", batch.frame)
        plan = plan_of(frame)
        self._check_columns(plan, frame, compiled)
        parts: tuple[_Part, ...] = compiled.parts
        if self._rows is not None and "rows" not in metrics:
            parts = (_Observe(self._rows, ()), *parts)
        if parts:
            plan = self._rewritten(plan, parts, metrics, lambda after: _partitions_after(batch, compiled, after))
            frame = self._compiler.builder.frame(plan)
        return replace(
            batch,
            frame=frame,
            rows=batch.rows if self._keeps_rows() else None,
            metrics=metrics,
            ref_counts=(*batch.ref_counts, *_ref_counts(snapshots)),
            only_if=bad_rows_of(self._steps) or batch.only_if,
            partitions=_partitions_after(batch, compiled, compiled.steps),
        )

    def _is_whole(self, batch: Batch) -> bool:
        """Return whether the source has decoded all records of a batch, as far as is known when the batch is sent."""
        step = self._steps[0]
        name, figure = step.node.bad_rows if isinstance(step, PortSelect) else (UNDECODED_METRIC, "rows")
        metric = batch.metrics.get(name)
        return metric is not None and metric.is_zero(figure)

    def _metrics(self, batch: Batch, *, whole: bool) -> dict[str, ObservedMetrics]:
        metrics = dict(batch.metrics)
        step = self._steps[0] if True in self._inputs else None
        if isinstance(step, ParseJson):
            metrics.pop(UNDECODED_METRIC, None)
            if whole and step.on_error != "fail":
                name, figure = step.bad_rows
                metrics[name] = ObservedMetrics.known({figure: 0})
        elif whole and (empty := bad_rows_of(self._steps)) is not None:
            # The side of bad rows is not run then, so it must not report figures as lost that the other side brings.
            metrics = {empty[0]: metrics[empty[0]]}
        return metrics

    def _rewritten(
        self,
        plan: BoundPlan,
        parts: tuple[_Part, ...],
        metrics: dict[str, ObservedMetrics],
        partitions_after: Callable[[tuple[CompiledStep, ...]], SourcePartitions | None],
    ) -> BoundPlan:
        for part in parts:
            match part:
                case PreparedPlan():
                    plan = BoundRows(part, plan)
                case _Observe():
                    observation = _observation_of(part, partitions_after(part.after))
                    plan = ObservedRows(plan, observation, self._bound(observation))
                    metrics[observation.measure] = plan.metrics
                case _Rebuild():
                    plan = RebuiltRows(part.build, plan, part.output_type)
                case _:
                    assert_never(part)
        return plan

    def _bound(self, observation: ObservationSpec) -> int | None:
        if observation.max_ahead is None:
            return None
        return self._wall() + observation.max_ahead if self._wall is not None else MAX_WATERMARK

    def _check_columns(self, plan: BoundPlan, frame: DataFrame, compiled: _Compiled) -> None:
        # Plans are bound by position, so other columns than those compiled for would be mistaken for them.
        if not output_type(plan).sameType(compiled.input_type):
            msg = (
                f"A batch has the columns {frame.schema.simpleString()}, but the step before it declared "
                f"{compiled.input_type.simpleString()}"
            )
            raise InternalError(msg, where=str(self._steps[0].origin if self._steps else "the source"))

    def _acquire_tables(self) -> tuple[TableSnapshot, ...]:
        return self._compiler.tables.acquire_all(self._tables)

    def _current(self, snapshots: tuple[TableSnapshot, ...], *, whole: bool) -> _Compiled:
        with self._lock:
            if tuple(snapshot.rdd for snapshot in snapshots) != self._compiled[whole].snapshots:
                self._compiled[whole] = self._compile(snapshots, whole=whole)
            return self._compiled[whole]

    def _compile(self, snapshots: tuple[TableSnapshot, ...], *, whole: bool) -> _Compiled:
        by_name = {snapshot.name: snapshot for snapshot in snapshots}
        schema = self._inputs[whole]
        input_type = parse_type(self._compiler.spark, schema)
        compiled_steps: list[CompiledStep] = []
        for step in self._steps:
            compiled_steps += self._compiler.compile(step, schema, by_name, whole=whole)
            schema = compiled_steps[-1].schema
        return _Compiled(
            snapshots=tuple(snapshot.rdd for snapshot in snapshots),
            input_type=input_type,
            parts=tuple(self._parts_of(compiled_steps)),
            steps=tuple(compiled_steps),
            schema=schema,
        )

    def _parts_of(self, compiled_steps: Sequence[CompiledStep]) -> list[_Part]:
        """Return the parts of a chain: neighbouring plans as one, observations and rebuilt plans between them."""
        parts: list[_Part] = []
        for place, step in enumerate(compiled_steps):
            last = parts[-1] if parts else None
            if step.rebuild is not None:
                parts.append(_Rebuild(step.rebuild, parse_type(self._compiler.spark, step.schema)))
            elif isinstance(last, PreparedPlan):
                above = self._compiler.editor.bind(step.plan, step.leaf, last.plan)
                parts[-1] = PreparedPlan(leaf=last.leaf, plan=above, schema=step.schema)
            else:
                parts.append(PreparedPlan(leaf=step.leaf, plan=step.plan, schema=step.schema))
            if step.observation is not None:
                parts.append(_Observe(step.observation, tuple(compiled_steps[: place + 1])))
        flatten = self._compiler.editor.flatten
        return [replace(part, plan=flatten(part.plan)) if isinstance(part, PreparedPlan) else part for part in parts]

    def _keeps_rows(self) -> bool:
        return all(isinstance(step, WithWatermark) for step in self._steps)


def _partitions_after(batch: Batch, compiled: _Compiled, through: tuple[CompiledStep, ...]) -> SourcePartitions | None:
    """Return a batch's partitions after some steps, without their column if a step drops or changes it."""
    partitions = batch.partitions
    if partitions is None or partitions.column is None:
        return partitions
    key = partitions.column, len(through)
    if key not in compiled.passing:
        compiled.passing[key] = all(passes_through(step, partitions.column) for step in through)
    return partitions if compiled.passing[key] else partitions.without_column()


def _observation_of(part: _Observe, partitions: SourcePartitions | None) -> ObservationSpec:
    """Return the observation by partition, where it can be made, or the plain one."""
    column = partitions.by_column() if partitions is not None else None
    if partitions is None or column is None or part.observation.among is None:
        return part.observation
    return part.observation.among(column, partitions.names)


def _ref_counts(snapshots: Sequence[TableSnapshot]) -> tuple[RefCount, ...]:
    return tuple(snapshot.lease for snapshot in snapshots)
