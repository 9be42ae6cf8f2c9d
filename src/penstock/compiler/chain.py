"""Fused stateless steps, ready to rewrite batches: lazily, without a job, without running a user's function again.

Knows neither tasks nor channels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, cast

from penstock.clock import MAX_WATERMARK, WallTime
from penstock.compiler.steps import CompiledStep, PortSelection, StatelessStep, StepCompiler, passes_through, tables_of
from penstock.compiler.tables import TableSnapshot
from penstock.elements import Batch, ObservedMetrics, RefCount, SourcePartitions
from penstock.errors import InternalError, assert_never
from penstock.graph.nodes import BAD_PORT, ParseJson, RowWise, WithWatermark
from penstock.interfaces.source import UNDECODED_METRIC
from penstock.spark.blocks import JavaObject
from penstock.spark.plans import ObservationSpec, PlanLeaf, java_schema, logical_plan
from penstock.spark.session import parse_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class _Graft:
    plan: JavaObject
    leaf: PlanLeaf


@dataclass(frozen=True, slots=True)
class _Rebuild:
    build: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class _Gauged:
    """A gauge, and the steps that rows have been through when they come to it."""

    gauge: ObservationSpec
    after: tuple[CompiledStep, ...]


_Part: TypeAlias = _Graft | _Rebuild | _Gauged


@dataclass(frozen=True, slots=True)
class _Compiled:
    readings: tuple[int, ...]
    input_type: JavaObject
    parts: tuple[_Part, ...]
    pieces: tuple[CompiledStep, ...]
    schema: StructType
    passing: dict[tuple[str, int], bool] = field(default_factory=dict)


class StepChain:
    """``segment(batch)`` is the batch with its lazy frame rewritten and the steps' measures added.

    Safe to call from one thread at a time; runs no job. ``schema`` is that of the result. ``whole`` are the columns of
    batches that have all their records from a source that decodes, where there may be such: a plan of its own is for
    them.
    """

    def __init__(
        self,
        pieces: StepCompiler,
        steps: Sequence[StatelessStep],
        schema: StructType,
        *,
        whole: StructType | None = None,
        counts_rows: bool = False,
        wall: Callable[[], WallTime] | None = None,
    ) -> None:
        self._pieces = pieces
        self._steps = tuple(steps)
        self._inputs = {False: schema} if whole is None else {False: schema, True: whole}
        self._rows = pieces.rows_gauge(schema) if counts_rows else None
        self._wall = wall
        self._tables = tuple(dict.fromkeys(table for step in self._steps for table in tables_of(step)))
        self._lock = threading.Lock()
        readings = self._take()
        self._compiled = {whole: self._compile(readings, whole=whole) for whole in self._inputs}
        for reading in readings:
            reading.lease.release()

    @property
    def schema(self) -> StructType:
        """The columns of rewritten batches."""
        return self._compiled[False].schema

    def __call__(self, batch: Batch) -> Batch:
        """See :meth:`apply`."""
        return self.apply(batch)

    def apply(self, batch: Batch) -> Batch:
        """Rewrite a batch. Its ref counts then include the tables it joins."""
        readings = self._take()
        whole = True in self._inputs and self._is_whole(batch)
        compiled = self._current(readings, whole=whole)
        measures = self._measures(batch, whole=whole)
        frame = cast("DataFrame", batch.frame)
        self._check_columns(frame, compiled)
        parts: tuple[_Part, ...] = compiled.parts
        if self._rows is not None and "rows" not in measures:
            parts = (_Gauged(self._rows, ()), *parts)
        if parts:
            frame = self._rewritten(frame, parts, measures, lambda after: _told_apart(batch, compiled, after))
        return replace(
            batch,
            frame=frame,
            rows=batch.rows if self._keeps_rows() else None,
            metrics=measures,
            ref_counts=(*batch.ref_counts, *_leases(readings)),
            only_if=self._only_if() or batch.only_if,
            partitions=_told_apart(batch, compiled, compiled.pieces),
        )

    def _is_whole(self, batch: Batch) -> bool:
        """Whether the batch has all its records from its source, as far as is known when it is sent."""
        step = self._steps[0]
        name, figure = (
            (UNDECODED_METRIC, "rows") if isinstance(step, ParseJson) else cast("PortSelection", step).node.bad_rows
        )
        measure = batch.metrics.get(name)
        return measure is not None and measure.is_zero(figure)

    def _measures(self, batch: Batch, *, whole: bool) -> dict[str, ObservedMetrics]:
        measures = dict(batch.metrics)
        step = self._steps[0] if True in self._inputs else None
        if isinstance(step, ParseJson):
            measures.pop(UNDECODED_METRIC, None)
            if whole and step.on_error != "fail":
                name, figure = step.bad_rows
                measures[name] = ObservedMetrics.known({figure: 0})
        elif whole and (empty := self._only_if()) is not None:
            # Nobody runs it, so nobody who has it may say that figures are lost which others wait for.
            measures = {empty[0]: measures[empty[0]]}
        return measures

    def _rewritten(
        self,
        frame: DataFrame,
        parts: tuple[_Part, ...],
        measures: dict[str, ObservedMetrics],
        told_apart: Callable[[tuple[CompiledStep, ...]], SourcePartitions | None],
    ) -> DataFrame:
        editor = self._pieces.editor
        plan = logical_plan(frame)
        for part in parts:
            match part:
                case _Graft():
                    plan = editor.bind(part.plan, part.leaf, plan)
                case _Gauged():
                    gauge = _among(part, told_apart(part.after))
                    plan, measures[gauge.measure] = self._pieces.observer.observe(plan, gauge, bound=self._bound(gauge))
                case _Rebuild():
                    plan = logical_plan(part.build(editor.frame(plan)))
                case _:
                    assert_never(part)
        return editor.frame(plan)

    def _bound(self, gauge: ObservationSpec) -> int | None:
        if gauge.max_ahead is None:
            return None
        return self._wall() + gauge.max_ahead if self._wall is not None else MAX_WATERMARK

    def _check_columns(self, frame: DataFrame, compiled: _Compiled) -> None:
        """A graft goes by position: other columns than were compiled for would be taken for them."""
        schema = java_schema(frame)
        if not schema.sameType(compiled.input_type):
            msg = (
                f"a batch has the columns {frame.schema.simpleString()}, but the step before it declared "
                f"{compiled.input_type.simpleString()}"
            )
            raise InternalError(msg, where=str(_origin(self._steps)))

    def _take(self) -> tuple[TableSnapshot, ...]:
        return tuple(self._pieces.tables.take(table) for table in self._tables)

    def _current(self, readings: tuple[TableSnapshot, ...], *, whole: bool) -> _Compiled:
        with self._lock:
            if tuple(reading.rdd for reading in readings) != self._compiled[whole].readings:
                self._compiled[whole] = self._compile(readings, whole=whole)
            return self._compiled[whole]

    def _compile(self, readings: tuple[TableSnapshot, ...], *, whole: bool) -> _Compiled:
        by_name = {reading.name: reading for reading in readings}
        schema = self._inputs[whole]
        input_type = parse_type(self._pieces.spark, schema)
        pieces: list[CompiledStep] = []
        for step in self._steps:
            pieces += self._pieces.of(step, schema, by_name, whole=whole)
            schema = pieces[-1].schema
        return _Compiled(
            readings=tuple(reading.rdd for reading in readings),
            input_type=input_type,
            parts=tuple(self._fused(pieces)),
            pieces=tuple(pieces),
            schema=schema,
        )

    def _fused(self, pieces: Sequence[CompiledStep]) -> list[_Part]:
        """Neighbouring plans become one; gauges and plans that are built anew stand between."""
        parts: list[_Part] = []
        for place, piece in enumerate(pieces):
            last = parts[-1] if parts else None
            if piece.rebuild is not None:
                parts.append(_Rebuild(piece.rebuild))
            elif isinstance(last, _Graft):
                parts[-1] = _Graft(self._pieces.editor.bind(piece.plan, piece.leaf, last.plan), last.leaf)
            else:
                parts.append(_Graft(piece.plan, piece.leaf))
            if piece.gauge is not None:
                parts.append(_Gauged(piece.gauge, tuple(pieces[: place + 1])))
        flatten = self._pieces.editor.flatten
        return [_Graft(flatten(part.plan), part.leaf) if isinstance(part, _Graft) else part for part in parts]

    def _keeps_rows(self) -> bool:
        return all(isinstance(step, WithWatermark) for step in self._steps)

    def _only_if(self) -> tuple[str, str] | None:
        for step in self._steps:
            if not isinstance(step, (RowWise, ParseJson, WithWatermark)) and step.port == BAD_PORT:
                return step.node.bad_rows
        return None


def _told_apart(batch: Batch, compiled: _Compiled, through: tuple[CompiledStep, ...]) -> SourcePartitions | None:
    """A batch's partitions after some steps: one may drop the column that tells them, or change it."""
    partitions = batch.partitions
    if partitions is None or partitions.column is None:
        return partitions
    key = partitions.column, len(through)
    if key not in compiled.passing:
        compiled.passing[key] = all(passes_through(piece, partitions.column) for piece in through)
    return partitions if compiled.passing[key] else partitions.without_column()


def _among(part: _Gauged, told: SourcePartitions | None) -> ObservationSpec:
    """The gauge that tells a batch's partitions apart, where it can."""
    column = told.by_column() if told is not None else None
    if told is None or column is None or part.gauge.among is None:
        return part.gauge
    return part.gauge.among(column, told.names)


def _leases(readings: Sequence[TableSnapshot]) -> tuple[RefCount, ...]:
    return tuple(reading.lease for reading in readings)


def _origin(steps: Sequence[StatelessStep]) -> object:
    for step in steps:
        return step.origin if isinstance(step, (RowWise, ParseJson, WithWatermark)) else step.node.origin
    return "the source"
