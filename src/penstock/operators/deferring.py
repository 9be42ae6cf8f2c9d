"""Leaves a batch's layer to the job of what it changes, where each batch sends all its changes at once.

Runs no job itself, unless nobody else does. Knows nothing of how results are made, or of when a task waits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.elements import Batch, Measure
from penstock.operators.base import LATE, MAIN, Deferred, Emit, OperatorContext
from penstock.state.blocks import completes_by_hand
from penstock.state.keeping import LazyLayer, Tag
from penstock.state.lean import LeanSession

if TYPE_CHECKING:
    from penstock.operators.arrival import Arrival
    from penstock.operators.emitter import Emitter
    from penstock.operators.folding import Folding
    from penstock.operators.layer_plans import LayerPlans
    from penstock.state.layer import Layer, LayerFormat
    from penstock.state.stack import Stack


class Deferring:
    """Makes layers by the way, one at a time.

    Args:
        layers_format: of the step.
        plans: make the layers.
        stack: where they come to lie.
        emitter: sends what they change.
        folding: says whether batches are large.
        context: of the step.
    """

    def __init__(
        self,
        layers_format: LayerFormat,
        plans: LayerPlans,
        stack: Stack,
        emitter: Emitter,
        folding: Folding,
        context: OperatorContext,
    ) -> None:
        self._format = layers_format
        self._plans = plans
        self._stack = stack
        self._emitter = emitter
        self._folding = folding
        self._context = context
        self._can = completes_by_hand(context.spark)
        self._beside: LeanSession | None = None
        self._coming: Layer | None = None

    def may(self, batch: Batch) -> bool:
        """Whether one job can do for a batch and what it changes: nobody else runs the one or waits for the other.

        Large batches go alone: a job counts for little beside them, and how many groups they have must be known.
        """
        is_read = MAIN in self._context.consumed and LATE not in self._context.consumed
        is_small = self._folding.is_small and not self._stack.awaits
        return is_read and self._is_plain(batch) and is_small and self._emitter.may_defer and self._can

    def begin(self, arrival: Arrival, emit: Emit) -> Deferred:
        """Send what a batch changes.

        How far the layer reaches is told by the rows before they travel, not by the layer: a task that has kept a part
        of it and fails over what comes after finds that part when it is tried again, and tells nothing of it.
        """
        if self._beside is None:
            self._beside = LeanSession(self._context.spark)
        rows = self._plans.unwatched(arrival.watched)
        tag = Tag(name=self._stack.next_name(), level=0, epoch=self._stack.epoch, turn=self._emitter.turn)
        lazy = LazyLayer(self._format, rows, arrival.extent, tag, beside=self._beside)
        self._coming = lazy.layer
        ran = Measure(dict)
        self._emitter.defer(lazy.layer, ran, emit)
        return Deferred(ran=ran, finish=partial(self._finish, lazy, arrival))

    @staticmethod
    def _is_plain(batch: Batch) -> bool:
        """Whether nobody else runs the batch, and it is joined with nothing, so that its rows travel to the layer.

        A join may bring rows together by key already: then they would be counted where the layer is kept.
        """
        return not batch.firsts and not batch.leases

    def close(self) -> None:
        """Let go of a layer that was not finished."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.lease.release()

    def _finish(self, lazy: LazyLayer, arrival: Arrival) -> None:
        layer = lazy.finish()
        self._coming = None
        if layer is not None:
            self._stack.add(layer)
        arrival.told(layer.rows if layer is not None else 0)
        if not self._stack.closed:
            arrival.report(self._context)
