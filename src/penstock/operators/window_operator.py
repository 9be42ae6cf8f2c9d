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
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.elements import Batch, Lease
from penstock.ids import BEGINNING, END_OF_TIME
from penstock.operators.arrival import Arrival
from penstock.operators.base import LATE, Deferred, Emit, OperatorContext
from penstock.operators.deferring import Deferring
from penstock.operators.emission import Emission
from penstock.operators.emitter import Emitter
from penstock.operators.folding import Folding
from penstock.operators.layer_plans import LayerPlans
from penstock.operators.result_plans import ResultPlans
from penstock.operators.session_emitter import SessionEmitter
from penstock.operators.session_plan import SessionPlan
from penstock.operators.session_results import SessionResults
from penstock.operators.template import Templates
from penstock.state.blocks import unpersist
from penstock.state.compaction import Merge, plan_merge
from penstock.state.durable import DurableLayers, PendingLayers
from penstock.state.keeping import Tag, keep
from penstock.state.migration import carried, judge
from penstock.state.restore import live_refs, moment_of, restore_layer
from penstock.state.sessions import state_session
from penstock.state.stack import CROWDED, FAN, LIMIT, Stack
from penstock.state.writer import LayerWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from penstock.elements import Measure
    from penstock.handles import StateHandle
    from penstock.ids import CheckpointId, EventTime
    from penstock.operators.graft import Java
    from penstock.operators.window_plan import WindowPlan
    from penstock.state.layer import Layer

_MARKS: Final = itertools.count(1)
"""Of all steps of the process, since all share one cache."""


class WindowOperator:
    """See :class:`penstock.operators.base.Operator`. Made by :meth:`WindowAggregate.open`.

    Counters: ``late`` (rows whose windows were closed, or without an event time), ``missing_time`` (those of them
    without an event time), ``fired`` (batches of results sent on, each with all windows due at once), ``compacted``.
    """

    def __init__(
        self, plan: WindowPlan, emission: Emission, context: OperatorContext, restored: StateHandle | None
    ) -> None:
        self._plan = plan
        self._context = context
        self._templates = Templates(context.spark)
        self._plans = LayerPlans(plan, self._templates, context.inputs[0])
        writer = _writer(plan, context)
        fired = closed = int(BEGINNING)
        if restored is None:
            self._stack = Stack()
            self._durable = DurableLayers(self._stack, writer)
        else:
            restored = _brought_over(restored, plan, context.uid)
            horizon, fired, closed = (moment_of(restored, name) for name in ("horizon", "fired", "closed"))
            coming = restore_layer(restored, writer, context.spark, name="m00000000", turn=_turn(restored, emission))
            self._stack = Stack(horizon=horizon, restored=coming)
            self._durable = DurableLayers(self._stack, writer, live_refs(restored), horizon=horizon)
        self._emitter = self._sending(emission, fired=fired, closed=closed)
        self._emit: Emit | None = None
        self._folding = Folding(plan.places)
        self._deferring = Deferring(plan.layers_format, self._plans, self._stack, self._emitter, self._folding, context)
        self._merging = threading.Lock()
        self._beside_is_next = False
        self._pending: PendingLayers | None = None
        self._late = itertools.count()

    def process(self, batch: Batch, *, source: int, watermark: EventTime, emit: Emit) -> Deferred | None:  # noqa: ARG002
        """Make the batch's layer, in one job, and send what it changed; late rows are counted, and sent on if read.

        If all that it changes is sent at once, and late rows are not read, the job is that of the results.

        If the stack is at its limit it is merged first, in a job more. Closed meanwhile, it keeps and sends nothing.
        """
        self._emit = emit
        if self._stack.height >= LIMIT:
            self._compact()
        moment = self._emitter.arrival() if self._plan.window.is_processing else None
        if moment is not None:
            self._emitter.advance(moment, emit)
        horizon = self._emitter.begin(watermark if moment is None else moment)
        frame = cast("DataFrame", batch.frame)
        flagged = self._plans.flagged(frame, horizon=horizon, mark=next(_MARKS), arrival=moment)
        if self._deferring.may(batch):
            arrival = Arrival(batch, flagged, self._plans, self._folding, reach=True)
            return self._deferring.begin(arrival, emit)
        kept: DataFrame | None = None
        if LATE in self._context.consumed:
            kept = self._plans.frame(flagged).persist()
            flagged = cast("Any", kept)._jdf.logicalPlan()  # noqa: SLF001 - plans have no public way in
        arrival = Arrival(batch, flagged, self._plans, self._folding)
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

    def advance(self, watermark: EventTime, *, emit: Emit) -> EventTime | None:
        """Send on the windows that end at or before ``watermark`` and were not sent before; no job.

        In processing time event time says nothing, until it ends. Sessions are merged before, in a job, and sent only
        so far as is returned: see :class:`penstock.operators.session_emitter.SessionEmitter`.
        """
        self._emit = emit
        if not self._plan.window.is_processing or watermark == END_OF_TIME:
            return self._emitter.advance(watermark, emit)
        return None

    def tick(self, *, emit: Emit) -> int | None:
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

    def _sending(self, emission: Emission, *, fired: int, closed: int) -> Emitter:
        plan, results, stack, context = self._plan, self._results(), self._stack, self._context
        if isinstance(plan, SessionPlan):
            merge = self._merge_all
            return SessionEmitter(plan, results, emission, stack, context, fired=fired, closed=closed, merge=merge)
        return Emitter(plan, results, emission, stack, context, fired=fired, closed=closed)

    def _results(self) -> ResultPlans:
        plan = self._plan
        return ResultPlans(plan, self._templates, SessionResults(plan) if isinstance(plan, SessionPlan) else None)

    def _keep(self, flagged: Java) -> int:
        """Put a layer of the rows that are on time on the stack, in one job; how many rows it has."""
        stack = self._stack
        rows, told = self._plans.partial(flagged, fold=self._folding.is_worth)
        layer = self._made(rows, told, level=0, epoch=stack.epoch, turn=self._emitter.turn)
        if layer:
            stack.add(layer)
        return layer.rows if layer else 0

    def _made(self, rows: DataFrame, told: Measure, *, level: int, epoch: int, turn: int) -> Layer | None:
        """The layer of observed rows: one job."""
        tag = Tag(name=self._stack.next_name(), level=level, epoch=epoch, turn=turn)
        return keep(self._plan.layers_format, rows, told.read, tag)

    def _send_late(self, kept: DataFrame, late: int, emit: Emit) -> None:
        lease = Lease(lambda: unpersist(kept))
        batch = Batch(frame=self._plan.late(kept), sequence=next(self._late), rows=late, leases=(lease,))
        emit(batch, LATE)

    def _due(self) -> Merge | None:
        return plan_merge(self._stack.sized(), fan=FAN, limit=CROWDED)

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
        layers, lease = self._stack.lease_due(BEGINNING, END_OF_TIME)
        try:
            names = tuple(layer.name for layer in layers)
            level = 1 + max((layer.level for layer in layers), default=0)
            plan = Merge(names=names, level=level, reason="sessions may end")
            self._stack.rebase(self._merged(layers, plan) if layers else None)
        finally:
            lease.release()

    def _merged(self, layers: tuple[Layer, ...], plan: Merge) -> Layer | None:
        rows, told = self._plans.merged(layers, self._stack.horizon)
        epoch, turn = max(layer.epoch for layer in layers), max(layer.turn for layer in layers)
        return self._made(rows, told, level=plan.level, epoch=epoch, turn=turn)


def _brought_over(restored: StateHandle, plan: WindowPlan, uid: str) -> StateHandle:
    """The state as this step is to read it; the start has asked whether it can, but whoever opens a step need not."""
    judge(restored, plan.keeps, uid=uid)
    return carried(restored, plan.layers_format.ddl())


def _turn(restored: StateHandle, emission: Emission) -> int:
    """The turn of a restored layer: told, but for a step that sends changes now and did not when it was saved."""
    before = restored.detail.get("emit") if isinstance(restored.detail, dict) else None
    return 1 if emission.updates and before != "updates" else 0


def _writer(plan: WindowPlan, context: OperatorContext) -> LayerWriter:
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
