"""Runs a windowed aggregate the merge way: batches become layers, due windows are merged out of them and sent on.

Knows nothing of threads beyond its own locks, of barriers or the log. Jobs: one for each batch, or none where its
consumer's can do both; none to fire (the consumer's job runs the lazy result); merging, writing and restoring layers
in the background. Only if merging falls behind by several batches does a batch merge first, in a job more: its input
waits, and the stack cannot grow without bound. And who is to send rows that a restart has not brought back yet loads
them first, which is some jobs more.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Final, cast

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.elements import Batch, RefCount
from penstock.interfaces.operator import LATE_PORT, Collector, DeferredBatch, OperatorContext
from penstock.operators.windows.emit_strategy import EmitStrategy
from penstock.operators.windows.emitter import WindowEmitter
from penstock.operators.windows.ingest import BatchIntake, DeferredLayers, LayerQueries, PreAggregation
from penstock.operators.windows.results import ResultQueries
from penstock.operators.windows.sessions import SessionEmitter, SessionFrames, SessionResults
from penstock.spark.blocks import unpersist
from penstock.spark.plans import PlanPreparer, logical_plan
from penstock.spark.session import state_session
from penstock.state.compaction import Compaction, plan_memory_compaction
from penstock.state.durable import DurableLayers, PendingLayers
from penstock.state.layers import LayerLabel, cache_layer
from penstock.state.parquet import LayerWriter
from penstock.state.restore import live_layers, read_event_time, restore_layer
from penstock.state.schema import migrated, resolve_schema
from penstock.state.stack import MERGE_FAN_IN, SLOWDOWN_LIMIT, STOP_LIMIT, Stack

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from penstock.clock import EventTime
    from penstock.elements import ObservedMetrics
    from penstock.handles import CheckpointId, StateHandle
    from penstock.operators.windows.frames import WindowFrames
    from penstock.spark.blocks import JavaObject
    from penstock.state.layers import Layer

_MARKS: Final = itertools.count(1)
"""Of all steps of the process, since all share one cache."""


class WindowOperator:
    """See :class:`penstock.interfaces.operator.Operator`. Made by :meth:`WindowAggregate.open`.

    Counters: ``late`` (rows whose windows were closed, or without an event time), ``missing_time`` (those of them
    without an event time), ``fired`` (batches of results sent on, each with all windows due at once), ``compacted``.
    """

    def __init__(
        self, plan: WindowFrames, emission: EmitStrategy, context: OperatorContext, restored: StateHandle | None
    ) -> None:
        self._plan = plan
        self._context = context
        self._templates = PlanPreparer(context.spark)
        self._plans = LayerQueries(plan, self._templates, context.inputs[0])
        writer = _writer(plan, context)
        fired = closed = int(MIN_WATERMARK)
        if restored is None:
            self._stack = Stack()
            self._durable = DurableLayers(self._stack, writer)
        else:
            restored = _brought_over(restored, plan, context.uid)
            horizon, fired, closed = (read_event_time(restored, name) for name in ("horizon", "fired", "closed"))
            coming = restore_layer(restored, writer, context.spark, name="m00000000", turn=_turn(restored, emission))
            self._stack = Stack(horizon=horizon, restored=coming)
            self._durable = DurableLayers(self._stack, writer, live_layers(restored), horizon=horizon)
        self._emitter = self._sending(emission, fired=fired, closed=closed)
        self._emit: Collector | None = None
        self._folding = PreAggregation(plan.places)
        self._deferring = DeferredLayers(
            plan.layers_format, self._plans, self._stack, self._emitter, self._folding, context
        )
        self._merging = threading.Lock()
        self._beside_is_next = False
        self._pending: PendingLayers | None = None
        self._late = itertools.count()

    def process(self, batch: Batch, *, source: int, watermark: EventTime, emit: Collector) -> DeferredBatch | None:  # noqa: ARG002
        """Make the batch's layer, in one job, and send what it changed; late rows are counted, and sent on if read.

        If all that it changes is sent at once, and late rows are not read, the job is that of the results.

        If the stack is at its limit it is merged first, in a job more. Closed meanwhile, it keeps and sends nothing.
        """
        self._emit = emit
        if self._stack.height >= STOP_LIMIT:
            self._compact()
        moment = self._emitter.arrival() if self._plan.window.is_processing else None
        if moment is not None:
            self._emitter.advance(moment, emit)
        horizon = self._emitter.begin(watermark if moment is None else moment)
        frame = cast("DataFrame", batch.frame)
        flagged = self._plans.flagged(frame, horizon=horizon, mark=next(_MARKS), arrival=moment)
        if self._deferring.may(batch):
            arrival = BatchIntake(batch, flagged, self._plans, self._folding, reach=True)
            return self._deferring.begin(arrival, emit)
        kept: DataFrame | None = None
        if LATE_PORT in self._context.consumed:
            kept = self._plans.frame(flagged).persist()
            flagged = logical_plan(kept)
        arrival = BatchIntake(batch, flagged, self._plans, self._folding)
        late = 0
        try:
            arrival.told(self._keep(arrival.watched))
            late = 0 if self._stack.closed else arrival.late
        finally:
            if kept is not None and not late:
                unpersist(kept)
        if not self._stack.closed:
            arrival.report(self._context)
            if kept is not None and late:
                self._send_late(kept, late, emit)
            self._emitter.added(emit)
        return None

    def advance(self, watermark: EventTime, *, emit: Collector) -> EventTime | None:
        """Send on the windows that end at or before ``watermark`` and were not sent before; no job.

        In processing time event time says nothing, until it ends. Sessions are merged before, in a job, and sent only
        so far as is returned: see :class:`penstock.operators.windows.sessions.SessionEmitter`.
        """
        self._emit = emit
        if not self._plan.window.is_processing or watermark == MAX_WATERMARK:
            return self._emitter.advance(watermark, emit)
        return None

    def tick(self, *, emit: Collector) -> int | None:
        """Send changes, and windows of processing time, whose time has come; no job."""
        self._emit = emit
        return self._emitter.tick(emit)

    def snapshot(self, checkpoint: CheckpointId) -> PendingLayers:  # noqa: ARG002
        """Name the layers as of now; takes no time. An earlier snapshot never written is given up.

        Changes that wait for their time are sent before: what is sent after the barrier is not in the checkpoint.
        """
        if self._emit is not None:
            self._emitter.flush(self._emit)
        if self._pending:
            self._pending.give_up()
        self._pending = PendingLayers(self._durable, self._stack, self._stack.cover(self._emitter.notes()))
        if self._stack.closed:  # what it names may lack layers that are gone
            self._pending.give_up()
        return self._pending

    def completed(self, checkpoint: CheckpointId) -> None:
        """Nothing to do: layers belong to the step, not to the checkpoint."""

    def maintain(self) -> Callable[[], None] | None:
        """What is due: a merge of layers in memory, and a part of the restored rows or a merge of durable layers.

        In turns, for one may be due without end.
        """
        in_memory, beside = self._due(), self._beside()
        if beside and (self._beside_is_next or not in_memory):
            self._beside_is_next = False
            return beside
        if in_memory:
            self._beside_is_next = True
            return self._compact_beside
        return None

    def close(self) -> None:
        """Let go of every block; what was sent on is freed when its last consumer releases it."""
        self._deferring.close()
        self._stack.close()
        if self._pending:
            self._pending.give_up()

    def _sending(self, emission: EmitStrategy, *, fired: int, closed: int) -> WindowEmitter:
        plan, results, stack, context = self._plan, self._results(), self._stack, self._context
        if isinstance(plan, SessionFrames):
            merge = self._merge_all
            return SessionEmitter(plan, results, emission, stack, context, fired=fired, closed=closed, merge=merge)
        return WindowEmitter(plan, results, emission, stack, context, fired=fired, closed=closed)

    def _results(self) -> ResultQueries:
        plan = self._plan
        return ResultQueries(plan, self._templates, SessionResults(plan) if isinstance(plan, SessionFrames) else None)

    def _keep(self, flagged: JavaObject) -> int:
        """Put a layer of the rows that are on time on the stack, in one job; how many rows it has."""
        stack = self._stack
        rows, told = self._plans.partial(flagged, fold=self._folding.is_worth)
        layer = self._made(rows, told, level=0, epoch=stack.epoch, turn=self._emitter.turn)
        if layer:
            stack.add(layer)
        return layer.rows if layer else 0

    def _made(self, rows: DataFrame, told: ObservedMetrics, *, level: int, epoch: int, turn: int) -> Layer | None:
        """The layer of observed rows: one job."""
        tag = LayerLabel(name=self._stack.next_name(), level=level, epoch=epoch, turn=turn)
        return cache_layer(self._plan.layers_format, rows, told.read, tag)

    def _send_late(self, kept: DataFrame, late: int, emit: Collector) -> None:
        lease = RefCount(lambda: unpersist(kept))
        batch = Batch(frame=self._plan.late(kept), sequence=next(self._late), rows=late, ref_counts=(lease,))
        emit(batch, LATE_PORT)

    def _due(self) -> Compaction | None:
        return plan_memory_compaction(self._stack.sized(), fan=MERGE_FAN_IN, limit=SLOWDOWN_LIMIT)

    def _beside(self) -> Callable[[], None] | None:
        if self._stack.awaits:
            return self._bring_beside
        return self._durable.compact if self._durable.plan() else None

    def _bring_beside(self) -> None:
        """Part after part: there may be no batch for long that would ask for the next one."""
        while self._stack.awaits and not self._due():
            with self._context.background():
                self._stack.bring()

    def _compact_beside(self) -> None:
        with self._context.background():
            self._compact()

    def _compact(self) -> None:
        """Merge what the policy names into one layer: one job, outside of any lock that data waits for."""
        with self._merging:
            plan = self._due()
            if plan is None:
                return
            layers, lease = self._stack.lease_named(plan.names)
            try:
                if layers:
                    self._stack.replace(layers, self._merged(layers, plan))
                    self._context.count("compacted", len(layers))
            finally:
                lease.release()

    def _merge_all(self) -> None:
        """Put one layer in the place of all: one job, in the data path. Merging under way beside it is in vain."""
        layers, lease = self._stack.lease_due(MIN_WATERMARK, MAX_WATERMARK)
        try:
            names = tuple(layer.name for layer in layers)
            level = 1 + max((layer.level for layer in layers), default=0)
            plan = Compaction(names=names, level=level, reason="sessions may end")
            self._stack.rebase(self._merged(layers, plan) if layers else None)
        finally:
            lease.release()

    def _merged(self, layers: tuple[Layer, ...], plan: Compaction) -> Layer | None:
        rows, told = self._plans.merged(layers, self._stack.horizon)
        epoch, turn = max(layer.epoch for layer in layers), max(layer.turn for layer in layers)
        return self._made(rows, told, level=plan.level, epoch=epoch, turn=turn)


def _brought_over(restored: StateHandle, plan: WindowFrames, uid: str) -> StateHandle:
    """The state as this step is to read it; the start has asked whether it can, but whoever opens a step need not."""
    resolve_schema(restored, plan.keeps, uid=uid)
    return migrated(restored, plan.layers_format.ddl())


def _turn(restored: StateHandle, emission: EmitStrategy) -> int:
    """The turn of a restored layer: told, but for a step that sends changes now and did not when it was saved."""
    before = restored.detail.get("emit") if isinstance(restored.detail, dict) else None
    return 1 if emission.updates and before != "updates" else 0


def _writer(plan: WindowFrames, context: OperatorContext) -> LayerWriter:
    tasks = max(1, context.cores - 1)
    return LayerWriter(
        layers_format=plan.layers_format,
        filesystem=context.filesystem,
        folder=context.folder,
        prefix=f"g{context.generation}-",
        session=state_session(context.spark, tasks=tasks),
        tasks=tasks,
        background=context.background,
        failpoint=context.failpoint,
    )
