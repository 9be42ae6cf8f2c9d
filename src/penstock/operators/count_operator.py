"""Runs an aggregate over windows of so many rows: each batch makes the one layer anew, and full windows are sent on.

Jobs: one for each batch; none to send (the consumer's job runs the lazy result). A batch reads and writes the windows
of all keys that are not full, or of all keys in the window for all time, whichever keys it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.ids import BEGINNING, END_OF_TIME, EventTime
from penstock.operators.count_plan import CountPlan
from penstock.operators.emitter import Emitter
from penstock.operators.window_operator import WindowOperator
from penstock.state.blocks import Figures
from penstock.state.keeping import Tag, build
from penstock.state.layer import union

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from penstock.operators.base import Emit
    from penstock.operators.emission import Emission
    from penstock.operators.graft import Java
    from penstock.state.layer import Layer


class CountEmitter(Emitter):
    """Sends windows that are full, and at the end of time what is left."""

    _plan: CountPlan
    _full = 0
    may_defer = False

    def found(self, full: int) -> None:
        """The newest layer has so many full windows."""
        self._full = full

    def added(self, emit: Emit) -> None:
        """Send what a batch has filled."""
        if self._full:
            self._send_windows(emit, full=True)

    def advance(self, watermark: int, emit: Emit) -> EventTime | None:
        """At the end of time, send what is left."""
        if watermark == END_OF_TIME and self._fired != END_OF_TIME:
            if self._stack.rows > self._full:
                self._send_windows(emit, full=False)
            self._fired = self._closed = END_OF_TIME
            self._stack.close_windows(END_OF_TIME)
        return None

    def _send_windows(self, emit: Emit, *, full: bool) -> None:
        layers, lease = self._stack.lease_due(BEGINNING, END_OF_TIME)
        self._send(self._windows(layers, full=full) if layers else None, lease, emit)

    def _windows(self, layers: Sequence[Layer], *, full: bool) -> DataFrame:
        rows = union(layers)
        found = self._plan.layers.full(rows) if full else self._plan.layers.rest(rows)
        return found.select(*self._plan.bounds, *self._plan.finishes)


class CountOperator(WindowOperator):
    """See :class:`penstock.operators.base.Operator`. Counters are those of :class:`WindowOperator`."""

    _plan: CountPlan
    _emitter: CountEmitter

    def _sending(self, emission: Emission, *, fired: int, closed: int) -> Emitter:
        return CountEmitter(
            self._plan, self._results(), emission, self._stack, self._context, fired=fired, closed=closed
        )

    def _keep(self, flagged: Java) -> int:
        layers_format, stack = self._plan.layers, self._stack
        filled = Figures(("full",))
        layers, lease = stack.lease_due(BEGINNING, END_OF_TIME)
        try:
            state = layers_format.between(union(layers), BEGINNING) if layers else None
            windows = filled.watch(self._plan.counted(self._plans.frame(flagged), state), [layers_format.figure()])
            layer = build(layers_format, windows, Tag(name=stack.next_name(), level=0, epoch=stack.epoch))
        finally:
            lease.release()
        told: Mapping[str, int | None] | None = filled.read()
        if layer and told is None:
            told = layer.frame.agg(layers_format.figure()).collect()[0].asDict()
        if stack.rebase(layer):
            self._emitter.found((told or {}).get("full") or 0)
        return layer.rows if layer else 0
