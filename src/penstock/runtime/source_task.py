"""The task of a source: asks its reader for plans, sends batches, and puts barriers between them with its position."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from penstock.elements import Barrier, Batch, CancelBarrier, CheckpointKind, EndOfStream, Watermark
from penstock.facts import BatchRead
from penstock.failpoints import failpoint
from penstock.handles import Position, TaskSnapshot
from penstock.ids import END_OF_TIME, CheckpointId, Instant
from penstock.runtime.clock import Clock
from penstock.runtime.output import Output
from penstock.runtime.task import Completed, Progress, Shell
from penstock.sources.base import CaughtUp, Ended, Limits, Nothing, Reader, Rows


@dataclass(frozen=True, slots=True)
class Finish:
    """Mail: the job ends in order; tell everybody downstream."""


Mail: TypeAlias = Barrier | CancelBarrier | Completed | Finish


class SourceTask:
    """Reads one source. Barriers come by mail and leave between two batches, with the position after the last one.

    ``limits`` is asked before each poll. After the barrier of a final checkpoint nothing more is read. ``held``: nothing
    is read before the first checkpoint is in the log, which fixes where a new source began (rule C4).
    """

    def __init__(
        self,
        id: str,
        reader: Reader,
        output: Output,
        *,
        limits: Callable[[], Limits],
        held: bool = False,
        shell: Shell,
        clock: Clock,
    ) -> None:
        self.id = id
        self._reader = reader
        self._output = output
        self._limits = limits
        self._shell = shell
        self._clock = clock
        self._mail: deque[Mail] = deque()
        self._positions: dict[CheckpointId, Position] = {}
        self._held = held
        self._reading = True
        self._finished = False
        self._wake_at: Instant | None = None
        self._sent = 0
        self.doing = "starting"

    def post(self, mail: Mail) -> None:
        """Hand in mail; it is read before the next poll."""
        self._mail.append(mail)

    def step(self) -> Progress:
        """Answer mail, or read at most one batch."""
        if self._mail:
            self._answer(self._mail.popleft())
            return Progress(worked=True, done=self._finished)
        if self._held or not self._reading:
            self.doing = f"waiting for the {'first' if self._held else 'final'} checkpoint"
            return Progress()
        if not self._output.has_room:
            self.doing = "waiting for room downstream"
            return Progress()
        now = self._clock.now()
        if self._wake_at is not None and now < self._wake_at:
            return Progress(wake_at=self._wake_at)
        return self._poll(now)

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()

    def _poll(self, now: Instant) -> Progress:
        self.doing = "polling"
        poll = self._reader.poll(now=now, wall=self._clock.wall(), limits=self._limits())
        self._wake_at = None
        match poll:
            case Rows():
                self._send(poll, now)
                return Progress(worked=True)
            case Nothing(wake_at=wake_at):
                self.doing = "waiting for data"
                self._wake_at = wake_at
                return Progress(wake_at=wake_at)
            case CaughtUp():
                self._done(ended=False)
            case Ended():
                self._output.broadcast(Watermark(at=END_OF_TIME))
                self._done(ended=True)
        return Progress(worked=True)

    def _send(self, rows: Rows, began: Instant) -> None:
        self._sent += 1
        self.doing = f"batch {self._sent}"
        failpoint("source.polled")
        frame = self._reader.frame(rows.plan)
        self._output.emit(Batch(frame=frame, sequence=self._sent, rows=rows.rows, measures=dict(rows.measures)))
        took = (self._clock.now() - began) / 1_000
        self._shell.report(BatchRead(task=self.id, sequence=self._sent, rows=rows.rows, plan_ms=took))

    def _done(self, *, ended: bool) -> None:
        self._reading = False
        self._shell.source_done(self.id, ended=ended)

    def _answer(self, mail: Mail) -> None:
        match mail:
            case Barrier(checkpoint=checkpoint, kind=kind):
                self._barrier(mail, checkpoint, kind)
            case CancelBarrier(checkpoint=checkpoint):
                self._positions.pop(checkpoint, None)
                self._output.broadcast(mail)
            case Completed(checkpoint=checkpoint):
                self._completed(checkpoint)
            case Finish():
                self._output.broadcast(EndOfStream())
                self._finished = True

    def _barrier(self, barrier: Barrier, checkpoint: CheckpointId, kind: CheckpointKind) -> None:
        position = self._reader.position()
        self._positions[checkpoint] = position
        if kind is CheckpointKind.FINAL:
            self._reading = False
        self._output.broadcast(barrier)
        self._shell.capture(self.id, checkpoint, lambda: TaskSnapshot(task=self.id, position=position))

    def _completed(self, checkpoint: CheckpointId) -> None:
        self._held = False
        position = self._positions.pop(checkpoint, None)
        if position is not None:
            self._reader.committed(checkpoint, position)
        self._positions = {id: at for id, at in self._positions.items() if id > checkpoint}
