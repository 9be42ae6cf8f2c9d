"""Sends a windowed aggregate's results out of its layers: windows that end, windows that changed; runs no job.

A result is a lazy frame; its consumer's job runs it. What has changed is known by layers: each emission tells of all
layers that are there, so what comes after it is new. All that is new is told before a snapshot is named, so that a
restored step owes nothing.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.elements import Batch, RefCount
from penstock.errors import InternalError
from penstock.operators.windows.emit_strategy import EmitStrategy, EmitTimer, closed_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from penstock.clock import EventTime
    from penstock.elements import ObservedMetrics
    from penstock.handles import Json
    from penstock.interfaces.operator import Collector, OperatorContext
    from penstock.operators.windows.frames import WindowFrames
    from penstock.operators.windows.panes import DueWindows
    from penstock.operators.windows.results import ResultQueries
    from penstock.state.layers import Layer
    from penstock.state.stack import Stack


class WindowEmitter:
    """Decides when results are sent, makes them, and closes windows.

    Args:
        plan: of the step.
        results: makes what is sent.
        emission: what is sent, and when.
        stack: the step's layers.
        context: for its counters and clock.
        fired: windows that end at or before it were sent.
        closed: windows that end at or before it lack rows, whatever lateness is allowed now.
    """

    def __init__(
        self,
        plan: WindowFrames,
        results: ResultQueries,
        emission: EmitStrategy,
        stack: Stack,
        context: OperatorContext,
        *,
        fired: int,
        closed: int,
    ) -> None:
        self._plan = plan
        self._window = plan.window
        self._results = results
        self._emission = emission
        self._stack = stack
        self._context = context
        self._fired = fired
        self._closed = max(closed, closed_until(fired, self._window.lateness))
        self._rhythm = EmitTimer(emission.every)
        self._numbers = itertools.count()

    @property
    def turn(self) -> int:
        """The turn of a layer made now; 0 if it makes no difference what is new."""
        emission = self._emission
        return self._stack.turn if emission.updates or emission.early or self._window.lateness else 0

    @property
    def may_defer(self) -> bool:
        """Whether all changes by a batch are sent as soon as it is in."""
        return self._emission.updates and self._emission.every is None and self._open_ones() is not None

    def defer(self, layer: Layer, ran: ObservedMetrics, emit: Collector) -> None:
        """Send what a layer changes that is still to come; whoever runs that makes it, and settles ``ran``."""
        due = self._open_ones()
        if due is None:
            msg = f"step '{self._context.uid}' has closed all its windows, and a batch waits for what it changes"
            raise InternalError(msg)
        told = self._stack.tell(*due.panes, layer)
        self._send(self._results.changes(told, due), told.lease, emit, {f"ran:{self._context.uid}": ran})

    def notes(self) -> Mapping[str, Json]:
        """What must be known again after a restore."""
        return {
            "fired": None if self._fired == MIN_WATERMARK else self._fired,
            "closed": None if self._closed == MIN_WATERMARK else self._closed,
            "window": self._window.describe(),
            "emit": "updates" if self._emission.updates and self._owed() is None else "final",
        }

    def begin(self, watermark: int) -> int:
        """A batch comes under this watermark; rows of panes that end at or before the result are late.

        After a restore this may be the first that is heard of it.
        """
        closed = max(self._closed, closed_until(watermark, self._window.lateness))
        return max(self._stack.horizon, self._window.dead(closed))

    def added(self, emit: Collector) -> None:
        """A batch is in: send what it changed, if that is due."""
        if self._emission.updates or self._emission.early:
            if self._rhythm.beats(self._context.wall()):
                self.flush(emit)
        elif self._window.lateness:
            self._send_again(emit)

    def advance(self, watermark: int, emit: Collector) -> EventTime | None:
        """Send the windows that end at or before ``watermark`` and were not sent before; close those that are.

        Returns how far that is, if not as far as ``watermark``. Both bounds move only over ends that Python knows of:
        what Spark alone says ends there is still to come.
        """
        closed = closed_until(watermark, self._window.lateness)
        due, closing = self._window.due(self._fired, watermark), self._window.due(self._closed, closed)
        if due is not None and not self._emission.updates:
            self._fire(due, watermark, emit)
        elif closing is not None and self._stack.has_news(*closing.panes):
            self.flush(emit)
        if due is not None:
            self._fired = watermark
        if closing is not None:
            self._closed = closed
        self._stack.close_windows(self._window.dead(closed))
        return None

    def arrival(self) -> int:
        """The moment at which a batch arrives; never within a window that was sent."""
        return max(self._context.wall(), self._fired)

    def tick(self, emit: Collector) -> int | None:
        """Send what waits for its time, if that has come; else microseconds until it comes, if anything waits."""
        changes = self._beat(emit)
        if not self._window.is_processing or not self._stack.height:
            return changes
        now = self.arrival()
        self.advance(now, emit)
        end = self._window.after(now)
        known = self._stack.height and end != MAX_WATERMARK
        return min((rest for rest in (changes, end - now if known else None) if rest is not None), default=None)

    def _beat(self, emit: Collector) -> int | None:
        if self._emission.every is None or self._owed() is None:
            return None
        now = self._context.wall()
        if self._rhythm.beats(now):
            self.flush(emit)
            return None
        return self._emission.every - now % self._emission.every

    def flush(self, emit: Collector) -> None:
        """Send all changes that were not sent yet."""
        due = self._owed()
        if due is not None:
            self._send_news(due, emit, fired=(self._fired, self._fired))

    def _owed(self) -> DueWindows | None:
        """The windows that are open, if changes of any wait to be sent."""
        due = self._open_ones()
        paced = self._emission.updates or self._emission.early
        return due if paced and due and self._stack.has_news(*due.panes) else None

    def _open_ones(self) -> DueWindows | None:
        return self._window.due(self._closed, MAX_WATERMARK)

    def _fire(self, due: DueWindows, watermark: int, emit: Collector) -> None:
        open_ones = self._open_ones()
        if self._emission.early and open_ones:
            self._send_news(open_ones, emit, fired=(self._fired, watermark))
            return
        layers, lease = self._stack.lease_due(*due.panes)
        self._send(self._results.finished(layers, due) if layers else None, lease, emit)

    def _send_again(self, emit: Collector) -> None:
        """Send windows once more that were sent before and have new rows since."""
        due = self._window.due(self._closed, self._fired)
        news = due is not None and self._stack.has_news(*due.panes)
        told = self._stack.tell(*(due.panes if due and news else (MAX_WATERMARK, MIN_WATERMARK)))
        if due is None or not news:
            told.lease.release()
            return
        frame = self._results.changed(told, due, fired=(self._fired, self._fired), timing=False)
        self._send(frame, told.lease, emit)

    def _send_news(self, due: DueWindows, emit: Collector, *, fired: tuple[int, int]) -> None:
        told = self._stack.tell(*due.panes)
        frame: DataFrame | None = None
        if told.old or told.new:
            if self._emission.updates:
                frame = self._results.changes(told, due)
            else:
                frame = self._results.changed(told, due, fired=fired, timing=True)
        self._send(frame, told.lease, emit)

    def _send(
        self,
        frame: DataFrame | None,
        lease: RefCount,
        emit: Collector,
        measures: Mapping[str, ObservedMetrics] | None = None,
    ) -> None:
        if frame is None:
            lease.release()
            return
        self._context.count("fired", 1)
        emit(Batch(frame=frame, sequence=next(self._numbers), ref_counts=(lease,), metrics=measures or {}))
