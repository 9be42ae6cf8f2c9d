"""Runs a windowed aggregate: batches become layers, due windows are merged out of them and sent."""

from __future__ import annotations

import itertools
import threading
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.elements import Batch, RefCount
from penstock.interfaces.operator import LATE_PORT, Collector, DeferredBatch, OperatorContext
from penstock.operators.windows.emit_strategy import EmitStrategy
from penstock.operators.windows.emitter import WindowEmitter
from penstock.operators.windows.ingest import BatchIntake, DeferredLayers, LayerQueries, is_plain
from penstock.operators.windows.results import ResultQueries
from penstock.operators.windows.sessions import SessionEmitter, SessionFrames, SessionResults
from penstock.spark.blocks import unpersist
from penstock.spark.bound_plans import plan_of
from penstock.spark.prepared_plans import PlanPreparer
from penstock.spark.session import state_session
from penstock.state.compaction import (
    MAX_MERGE_READS,
    MERGED_AT_ONCE,
    Compaction,
    LayerSize,
    plan_crowded_compaction,
    plan_memory_compaction,
    plan_piece_merge,
)
from penstock.state.durable import DurableLayers, PendingLayers
from penstock.state.layers import (
    LayerLabel,
    cache_layer,
    cache_rows,
    join_rows,
    layer_of_rows,
    pack_rows,
    release_layers,
)
from penstock.state.parquet import HashSlice, LayerWriter, SlicedRows
from penstock.state.restore import live_layers, read_event_time, restore_layer
from penstock.state.schema import migrated, resolve_schema
from penstock.state.stack import MERGE_FAN_IN, SLOWDOWN_LIMIT, STOP_LIMIT, Stack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame

    from penstock.clock import EventTime
    from penstock.handles import CheckpointId, StateHandle
    from penstock.operators.windows.frames import WindowFrames
    from penstock.state.layers import CachedRows, Layer

_MARKS: Final = itertools.count(1)
"""Marks of persisted batches. All steps of the process share them, since they share one cache."""


class WindowOperator:
    """See ``penstock.interfaces.operator.Operator``. Made by ``WindowAggregate.open``.

    Jobs: one for each batch, or none if the job of its results makes the layer too; none to send results, whose
    consumer runs them; merging, writing and loading layers in the background. Some cases need more jobs in the data
    path. If merging falls behind by several batches, a batch merges first, so that the stack cannot grow without bound.
    A step that sends rows of a restored layer loads them first if they are not loaded yet. Sessions that may end merge
    all layers. Figures that a failed executor has lost are counted again.

    Counters: ``late`` (rows whose windows were closed, or without an event time), ``missing_time`` (those of them
    without an event time), ``fired`` (batches of results sent on, each with all windows due at once), ``compacted``.
    """

    def __init__(
        self, frames: WindowFrames, emission: EmitStrategy, context: OperatorContext, restored: StateHandle | None
    ) -> None:
        self._frames = frames
        self._context = context
        self._preparer = PlanPreparer(context.spark)
        self._queries = LayerQueries(frames, self._preparer, context.inputs[0])
        # where more than final results are sent, each batch may read all rows
        self._packer = None if emission.before_end else self._preparer.packer
        writer = _writer(frames, context)
        fired = closed = int(MIN_WATERMARK)
        if restored is None:
            self._stack = Stack()
            self._durable = DurableLayers(self._stack, writer)
        else:
            restored = _migrate(restored, frames, context.uid)
            horizon, fired, closed = (read_event_time(restored, name) for name in ("horizon", "fired", "closed"))
            number = _emission_number(restored, emission)
            loader = restore_layer(
                restored, writer, context.spark, name="m00000000", emission_number=number, packer=self._packer
            )
            self._stack = Stack(horizon=horizon, restored=loader)
            self._durable = DurableLayers(self._stack, writer, live_layers(restored), horizon=horizon)
        self._emitter = self._make_emitter(emission, fired=fired, closed=closed)
        self._emit: Collector | None = None
        self._deferred = DeferredLayers(frames.layers_format, self._queries, self._stack, self._emitter, context)
        self._choosing = threading.Lock()
        self._being_merged: frozenset[str] = frozenset()
        self._turn = 0
        self._pending: PendingLayers | None = None
        self._late = itertools.count()

    def process(self, batch: Batch, *, source: int, watermark: EventTime, emit: Collector) -> DeferredBatch | None:  # noqa: ARG002
        """Make the batch's layer, in one job, and send what it changed; late rows are counted, and sent if read.

        If all that it changes is sent at once, and late rows are not read, the job of the results makes the layer.
        If the stack is at its limit it is merged first, in a further job. If it is closed meanwhile, nothing is kept or
        sent.
        """
        self._emit = emit
        if self._stack.height >= STOP_LIMIT:
            self._compact(self._crowded)
        arrival = self._emitter.arrival_time() if self._frames.window.is_processing else None
        if arrival is not None:
            self._emitter.advance(arrival, emit)
        horizon = self._emitter.late_before(watermark if arrival is None else arrival)
        frame = cast("DataFrame", batch.frame)
        is_persisted = LATE_PORT in self._context.consumed
        mark = next(_MARKS) if is_persisted else 0
        flagged = self._queries.with_timeliness(frame, horizon=horizon, mark=mark, arrival=arrival)
        if self._deferred.may(batch):
            intake = BatchIntake(batch, flagged, self._queries, bounds=True)
            return self._deferred.begin(intake, emit)
        kept: DataFrame | None = None
        if is_persisted:
            kept = self._queries.frame(flagged).persist()
            flagged = plan_of(kept)
        intake = BatchIntake(batch, flagged, self._queries)
        late = 0
        try:
            self._keep(intake, may_copy=kept is None and is_plain(batch))
            intake.finish()
            self._deferred.note(intake)
            late = 0 if self._stack.closed else intake.late
        finally:
            if kept is not None and not late:
                unpersist(kept)
        if not self._stack.closed:
            intake.report(self._context)
            if kept is not None and late:
                self._send_late(kept, late, emit)
            self._emitter.batch_added(emit)
        return None

    def advance(self, watermark: EventTime, *, emit: Collector) -> EventTime | None:
        """Send the windows that end at or before ``watermark`` and were not sent before; no job.

        In processing time only the last watermark counts. Sessions are merged first, in a job, and sent only as far as
        is returned: see ``penstock.operators.windows.sessions.SessionEmitter``.
        """
        self._emit = emit
        if not self._frames.window.is_processing or watermark == MAX_WATERMARK:
            return self._emitter.advance(watermark, emit)
        return None

    def tick(self, *, emit: Collector) -> int | None:
        """Send changes and windows of processing time that are due; no job."""
        self._emit = emit
        return self._emitter.tick(emit)

    def snapshot(self, checkpoint: CheckpointId) -> PendingLayers:  # noqa: ARG002
        """Name the current layers; runs nothing. An earlier snapshot that was never written is given up.

        Changes that wait for their time are sent before: what is sent after the barrier is not in the checkpoint.
        """
        if self._emit is not None:
            self._emitter.flush(self._emit)
        if self._pending:
            self._pending.give_up()
        self._pending = PendingLayers(
            self._durable, self._stack, self._stack.begin_snapshot(self._emitter.snapshot_details())
        )
        if self._stack.closed:  # its layers may be gone
            self._pending.give_up()
        return self._pending

    def completed(self, checkpoint: CheckpointId) -> None:
        """Do nothing: layers belong to the step, not to the checkpoint."""

    def maintain(self) -> Callable[[], None] | None:
        """The background work that is due: a merge of layers in memory, a piece, or work on durable layers.

        The latter is loading restored rows, else a merge. They take turns since one may always be due.
        """
        kinds = (self._memory_work, self._piece_work, self._durable_work)
        for turn in range(self._turn, self._turn + len(kinds)):
            work = kinds[turn % len(kinds)]()
            if work:
                self._turn = (turn + 1) % len(kinds)
                return work
        return None

    def close(self) -> None:
        """Release every block; those of results are freed when their last consumer releases them."""
        self._deferred.close()
        self._stack.close()
        if self._pending:
            self._pending.give_up()

    def _make_emitter(self, emission: EmitStrategy, *, fired: int, closed: int) -> WindowEmitter:
        frames, results, stack, context = self._frames, self._results(), self._stack, self._context
        if isinstance(frames, SessionFrames):
            merge = self._merge_all
            return SessionEmitter(frames, results, emission, stack, context, fired=fired, closed=closed, merge=merge)
        return WindowEmitter(frames, results, emission, stack, context, fired=fired, closed=closed)

    def _results(self) -> ResultQueries:
        frames = self._frames
        return ResultQueries(
            frames, self._preparer, SessionResults(frames) if isinstance(frames, SessionFrames) else None
        )

    def _keep(self, intake: BatchIntake, *, may_copy: bool) -> None:
        """Put a layer of the rows on time on the stack, in one job.

        Args:
            intake: observes the batch's rows.
            may_copy: whether each task may get all rows of a small batch: see ``penstock.spark.row_owners``.
        """
        stack = self._stack
        rows, placement, metrics = intake.layer_rows(may_copy=may_copy)
        number = self._emitter.emission_number
        label = LayerLabel(name=stack.next_name(), level=0, emission_number=number)
        keep = partial(self._queries.keep, rows, placement)
        layer = cache_layer(self._frames.layers_format, keep, metrics.read, label)
        if layer:
            stack.add(layer)

    def _send_late(self, kept: DataFrame, late: int, emit: Collector) -> None:
        lease = RefCount(lambda: unpersist(kept))
        batch = Batch(frame=self._frames.late(kept), sequence=next(self._late), rows=late, ref_counts=(lease,))
        emit(batch, LATE_PORT)

    def _due(self) -> Compaction | None:
        layers = self._free(self._stack.sized())
        changing = self._durable.changing
        found = plan_memory_compaction(layers, changing=changing, fan=MERGE_FAN_IN, limit=SLOWDOWN_LIMIT)
        return found or self._enough()

    def _enough(self) -> Compaction | None:
        """Layers that may be enough for a piece together."""
        return plan_piece_merge(self._free(self._stack.unwritten()), room=self._durable.room)

    def _crowded(self) -> Compaction | None:
        """The least that must be merged for another layer."""
        return plan_crowded_compaction(self._free(self._stack.sized()), fan=MERGE_FAN_IN, limit=SLOWDOWN_LIMIT)

    def _free(self, layers: Sequence[LayerSize]) -> list[LayerSize]:
        """Those that are not being merged."""
        return [layer for layer in layers if layer.name not in self._being_merged]

    def _memory_work(self) -> Callable[[], None] | None:
        return self._compact_in_background if self._due() else None

    def _piece_work(self) -> Callable[[], None] | None:
        return self._write_piece if self._durable.is_piece_due() else None

    def _durable_work(self) -> Callable[[], None] | None:
        if self._stack.loading:
            return self._load_in_background
        return self._compact_durable if self._durable.plan() else None

    def _load_in_background(self) -> None:
        """Load part after part: for a long time no batch may come that would have the next part loaded."""
        while self._stack.loading:
            self._do_short_work()
            with self._context.background():
                self._stack.load_part()

    def _compact_durable(self) -> None:
        self._durable.compact(self._do_short_work)

    def _do_short_work(self) -> None:
        """Do what must not wait until all parts of longer work are done."""
        for work in (self._memory_work(), self._piece_work()):
            if work:
                work()

    def _do_small_work(self) -> None:
        """As ``_do_short_work``, between parts of a merge in memory: no other merge in parts."""
        self._compact(lambda: self._crowded() or self._enough(), self._context.background)
        if work := self._piece_work():
            work()

    def _write_piece(self) -> None:
        with self._context.background():
            self._durable.write_piece()

    def _compact_in_background(self) -> None:
        self._compact(self._due, self._context.background, between=self._do_small_work)

    def _compact(
        self,
        due: Callable[[], Compaction | None],
        slot: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """Merge layers outside of any lock that data waits for.

        The background and the data path may both merge: never the same layers.

        Args:
            due: says which.
            slot: makes the context of each job.
            between: called before each of several jobs, without a slot.
        """
        with self._choosing:
            compaction = due()
            if compaction is None:
                return
            names = frozenset(compaction.names)
            self._being_merged |= names
        layers, lease = self._stack.lease_named(compaction.names)
        try:
            if layers:
                merged = self._merged_in_parts(layers, compaction, slot, between)
                self._durable.note_merge([layer.rows for layer in layers], merged.rows if merged else 0)
                self._stack.replace(layers, merged)
                self._context.count("compacted", len(layers))
        finally:
            lease.release()
            with self._choosing:
                self._being_merged -= names

    def _merge_all(self) -> None:
        """Replace all layers by one: one job, in the data path. A merge in the background meanwhile is discarded."""
        layers, lease = self._stack.lease_due(MIN_WATERMARK, MAX_WATERMARK)
        try:
            names = tuple(layer.name for layer in layers)
            level = 1 + max((layer.level for layer in layers), default=0)
            compaction = Compaction(names=names, level=level, reason="sessions may end")
            self._stack.rebase(self._merged(layers, compaction) if layers else None)
        finally:
            lease.release()

    def _merged_in_parts(
        self,
        layers: tuple[Layer, ...],
        compaction: Compaction,
        slot: Callable[[], AbstractContextManager[None]],
        between: Callable[[], None],
    ) -> Layer | None:
        """As ``_merged``; many rows by several jobs of one task, each with a slot, so that other work goes between."""
        layers_format = self._frames.layers_format
        parts: list[CachedRows] = []
        rows, horizon = sum(layer.rows for layer in layers), self._stack.horizon
        if rows <= MERGED_AT_ONCE or not layers_format.slice_columns:
            with slot():
                return self._merged(layers, compaction)
        partitions = layers_format.partitions
        sliced = SlicedRows([(layer.rows, len(layer.parts) or partitions) for layer in layers])
        count = sliced.parts(least=partitions, most_rows=MERGED_AT_ONCE, most_reads=MAX_MERGE_READS)
        try:
            for number in range(count):
                between()
                if self._stack.closed:
                    release_layers(parts)
                    return None
                with slot():
                    part = self._queries.merged_part(layers, horizon, HashSlice(number, count))
                    if part is None:
                        return self._merged(layers, compaction)
                    found, metrics = part
                    kept = cache_rows(layers_format, partial(self._queries.keep, found), metrics.read)
                    parts.append(pack_rows(layers_format, kept, self._packer))
            joined = self._queries.joined([part.frame for part in parts])
            return layer_of_rows(join_rows(parts, joined), self._label_of(layers, compaction))
        except BaseException:
            release_layers(parts)
            raise

    def _merged(self, layers: tuple[Layer, ...], compaction: Compaction) -> Layer | None:
        rows, metrics = self._queries.merged(layers, self._stack.horizon)
        keep = partial(self._queries.keep, rows)
        return cache_layer(self._frames.layers_format, keep, metrics.read, self._label_of(layers, compaction))

    def _label_of(self, layers: tuple[Layer, ...], compaction: Compaction) -> LayerLabel:
        return LayerLabel(
            name=self._stack.next_name(),
            level=compaction.level,
            epoch=max(layer.epoch for layer in layers),
            emission_number=max(layer.emission_number for layer in layers),
        )


def _migrate(restored: StateHandle, frames: WindowFrames, uid: str) -> StateHandle:
    """The state under this step's schema. A start has checked that, but other callers may not have."""
    resolve_schema(restored, frames.keeps, uid=uid)
    return migrated(restored, frames.layers_format.ddl())


def _emission_number(restored: StateHandle, emission: EmitStrategy) -> int:
    """Emission number of a restored layer: 0, unless the step sends changes now and did not when it was saved."""
    before = restored.detail.get("emit") if isinstance(restored.detail, dict) else None
    return 1 if emission.updates and before != "updates" else 0


def _writer(frames: WindowFrames, context: OperatorContext) -> LayerWriter:
    tasks = max(1, context.cores - 1)
    return LayerWriter(
        layers_format=frames.layers_format,
        filesystem=context.filesystem,
        folder=context.folder,
        prefix=f"g{context.generation}-",
        session=state_session(context.spark, tasks=tasks),
        tasks=tasks,
        background=context.background,
        failpoint=context.failpoint,
    )
