"""Sends a windowed aggregate's results out of its layers; closes windows."""

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

    It runs no job: a result is a lazy frame, and its consumer's job runs it. What has changed is known by layers: an
    emission has all layers that are there, so those that come after it are new. New layers are sent before a snapshot
    is taken, so that a restored step has nothing left to send.

    Args:
        frames: of the step.
        results: makes what is sent.
        emission: what is sent, and when.
        stack: the step's layers.
        context: for its counters and clock.
        fired: windows that end at or before it were sent.
        closed: windows that end at or before it lack rows, whatever lateness is allowed now.
    """

    def __init__(
        self,
        frames: WindowFrames,
        results: ResultQueries,
        emission: EmitStrategy,
        stack: Stack,
        context: OperatorContext,
        *,
        fired: int,
        closed: int,
    ) -> None:
        self._frames = frames
        self._window = frames.window
        self._results = results
        self._emission = emission
        self._stack = stack
        self._context = context
        self._fired = fired
        self._closed = max(closed, closed_until(fired, self._window.lateness))
        self._timer = EmitTimer(emission.every)
        self._numbers = itertools.count()

    @property
    def emission_number(self) -> int:
        """Emission number of a layer made now; 0 if the step does not send changes."""
        return self._stack.emission_number if self._emission.before_end or self._window.lateness else 0

    @property
    def may_defer(self) -> bool:
        """Whether all changes by a batch are sent at once."""
        return self._emission.updates and self._emission.every is None and self._open_windows() is not None

    def defer(self, layer: Layer, ran: ObservedMetrics, emit: Collector) -> None:
        """Send what a layer changes that is not made yet; the job that runs that makes it, and settles ``ran``."""
        due = self._open_windows()
        if due is None:
            msg = f"Step '{self._context.uid}' has closed all its windows, but a batch waits for what it changes."
            raise InternalError(msg)
        layers = self._stack.begin_emission(*due.panes, layer)
        self._send(self._results.changes(layers, due), layers.lease, emit, {f"ran:{self._context.uid}": ran})

    def snapshot_details(self) -> Mapping[str, Json]:
        """What a checkpoint records for a restore, in addition to the layers."""
        return {
            "fired": None if self._fired == MIN_WATERMARK else self._fired,
            "closed": None if self._closed == MIN_WATERMARK else self._closed,
            "window": self._window.describe(),
            "emit": "updates" if self._emission.updates and self._unsent() is None else "final",
        }

    def late_before(self, watermark: int) -> int:
        """The horizon of a batch: its rows are late if their panes end at or before this.

        Args:
            watermark: of the batch. After a restore, ``advance`` may not have been called with it yet.
        """
        closed = max(self._closed, closed_until(watermark, self._window.lateness))
        return max(self._stack.horizon, self._window.dead(closed))

    def batch_added(self, emit: Collector) -> None:
        """Send what a batch changed, if that is due."""
        if self._emission.before_end:
            if self._timer.is_due(self._context.wall()):
                self.flush(emit)
        elif self._window.lateness:
            self._send_again(emit)

    def advance(self, watermark: int, emit: Collector) -> EventTime | None:
        """Send the windows that end at or before ``watermark`` and were not sent before; close those that are.

        Returns how far that is, if not as far as ``watermark``. Both bounds move only over ends that Python knows of;
        windows that only Spark knows of still count as not sent.
        """
        closed = closed_until(watermark, self._window.lateness)
        due, closing = self._window.due(self._fired, watermark), self._window.due(self._closed, closed)
        if due is not None and not self._emission.updates:
            self._fire(due, watermark, emit)
        elif closing is not None and self._stack.has_unsent(*closing.panes):
            self.flush(emit)
        if due is not None:
            self._fired = watermark
        if closing is not None:
            self._closed = closed
        self._stack.close_windows(self._window.dead(closed))
        return None

    def arrival_time(self) -> int:
        """Processing time of a batch that arrives now; never within a window that was sent."""
        return max(self._context.wall(), self._fired)

    def tick(self, emit: Collector) -> int | None:
        """Send what waits for its time, if that has come. Returns microseconds until the next, if anything waits."""
        changes = self._tick_changes(emit)
        if not self._window.is_processing or not self._stack.height:
            return changes
        now = self.arrival_time()
        self.advance(now, emit)
        end = self._window.after(now)
        known = self._stack.height and end != MAX_WATERMARK
        return min((rest for rest in (changes, end - now if known else None) if rest is not None), default=None)

    def _tick_changes(self, emit: Collector) -> int | None:
        if self._emission.every is None or self._unsent() is None:
            return None
        now = self._context.wall()
        if self._timer.is_due(now):
            self.flush(emit)
            return None
        return self._emission.every - now % self._emission.every

    def flush(self, emit: Collector) -> None:
        """Send all changes that were not sent yet."""
        due = self._unsent()
        if due is not None:
            self._send_new(due, emit, fired=(self._fired, self._fired))

    def _unsent(self) -> DueWindows | None:
        """The open windows, if changes of any wait to be sent."""
        due = self._open_windows()
        return due if self._emission.before_end and due and self._stack.has_unsent(*due.panes) else None

    def _open_windows(self) -> DueWindows | None:
        return self._window.due(self._closed, MAX_WATERMARK)

    def _fire(self, due: DueWindows, watermark: int, emit: Collector) -> None:
        open_windows = self._open_windows()
        if self._emission.early and open_windows:
            self._send_new(open_windows, emit, fired=(self._fired, watermark))
            return
        layers, lease = self._stack.lease_due(*due.panes)
        self._send(self._results.finished(layers, due) if layers else None, lease, emit)

    def _send_again(self, emit: Collector) -> None:
        """Send again windows that have new rows since they were sent."""
        due = self._window.due(self._closed, self._fired)
        has_new = due is not None and self._stack.has_unsent(*due.panes)
        layers = self._stack.begin_emission(*(due.panes if due and has_new else (MAX_WATERMARK, MIN_WATERMARK)))
        if due is None or not has_new:
            layers.lease.release()
            return
        frame = self._results.changed(layers, due, fired=(self._fired, self._fired), timing=False)
        self._send(frame, layers.lease, emit)

    def _send_new(self, due: DueWindows, emit: Collector, *, fired: tuple[int, int]) -> None:
        layers = self._stack.begin_emission(*due.panes)
        frame: DataFrame | None = None
        if layers.old or layers.new:
            if self._emission.updates:
                frame = self._results.changes(layers, due)
            else:
                frame = self._results.changed(layers, due, fired=fired, timing=True)
        self._send(frame, layers.lease, emit)

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
