"""The task of a source: asks its reader for plans, sends batches, and puts barriers between them with its position."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from penstock.elements import (
    Barrier,
    Batch,
    CancelBarrier,
    CheckpointKind,
    EndOfStream,
    InputStatus,
    LatencyMarker,
    Reading,
    Watermark,
)
from penstock.errors import StateIncompatible, assert_never
from penstock.facts import BatchRead, Counted, ReadingPaused
from penstock.failpoints import failpoint
from penstock.handles import Position, TaskSnapshot
from penstock.ids import END_OF_TIME, CheckpointId, Instant, WallTime
from penstock.runtime.clock import Clock
from penstock.runtime.drift_gates import DriftGates
from penstock.runtime.drift_streams import READ_ON, Hold
from penstock.runtime.latency import MarkerRhythm
from penstock.runtime.output import Output
from penstock.runtime.pacing import Linger, Pace
from penstock.runtime.source_mail import Drain, Finish, SourceMail
from penstock.runtime.task_protocols import Completed, Progress, Shell
from penstock.sources.base import CaughtUp, Ended, Limits, Nothing, Reader, Rows

log = logging.getLogger("penstock")

MOST_PENDING: Final = 100
"""Positions kept of checkpoints of which nothing was heard; there is one at a time unless messages are lost."""


class SourceTask:
    """Reads one source. Barriers come by mail and leave between two batches, with the position after the last one.

    ``limits`` is asked before each poll. After the barrier of a final checkpoint nothing more is read. ``held``:
    nothing is read before the first checkpoint is in the log, which fixes where a new source began (rule C4).
    ``pace`` says when to poll, ``markers`` when a latency marker leaves, if any do, and ``gates`` what not to read for
    now, where event times are aligned.
    """

    def __init__(  # noqa: PLR0913 - named parts, each of its own kind
        self,
        id: str,
        reader: Reader,
        output: Output,
        *,
        limits: Callable[[], Limits],
        held: bool = False,
        has_ended: bool = False,
        pace: Pace | None = None,
        markers: MarkerRhythm | None = None,
        gates: DriftGates | None = None,
        shell: Shell,
        clock: Clock,
    ) -> None:
        self.id = id
        self._reader = reader
        self._output = output
        self._limits = limits
        self._pace = pace or Linger()
        self._markers = markers
        self._gates = gates
        self._hold = READ_ON
        self._shell = shell
        self._clock = clock
        self._mail: deque[SourceMail] = deque()
        self._cancelled: set[CheckpointId] = set()  # their cancellation is in the mail, perhaps behind the barrier
        self._positions: dict[CheckpointId, Position] = {}
        self._newest: CheckpointId | None = None  # that completed
        self._held = held
        self._has_ended = has_ended
        self._reading = True
        self._finished = False
        self._is_idle = False
        self._wake_at: Instant | None = None
        self._sent = 0
        self._took_all = False
        self.doing = "starting"

    def post(self, mail: SourceMail) -> None:
        """Hand in mail; it is read before the next poll."""
        if isinstance(mail, CancelBarrier):
            self._cancelled.add(mail.checkpoint)
        self._mail.append(mail)

    def step(self) -> Progress:
        """Answer mail, or read at most one batch."""
        if self._mail:
            self._answer(self._mail.popleft())
            return Progress(worked=True, done=self._finished)
        mark_at = self._mark()
        progress = self._read()
        if progress.worked or mark_at is None:
            return progress
        return replace(progress, wake_at=min(progress.wake_at or mark_at, mark_at))

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()

    def _read(self) -> Progress:
        waits_for = self._waits_for()
        if waits_for is not None:
            self.doing = f"waiting for {waits_for}"
            return Progress()
        now, wall = self._clock.now(), self._clock.wall()
        hold = self._look(now, wall)
        if hold.everything:
            self.doing = f"waiting for {hold.by}, which is behind" if hold.by else "waiting to be told of event time"
            return Progress(wake_at=hold.wake_at)
        if self._wake_at is not None and now < self._wake_at:
            return self._rest(self._wake_at)
        wait = self._pace.wait(wall)
        if wait > 0:
            self.doing = "waiting for the time of its next batch"
            return Progress(wake_at=Instant(now + wait))
        return self._poll(now, wall)

    def _waits_for(self) -> str | None:
        """What it must not read before; whoever brings that about wakes it."""
        if self._held or not self._reading:
            return f"the {'first' if self._held else 'final'} checkpoint"
        if not self._output.has_room:
            return "room downstream"
        if self._took_all and not self._output.is_awaited:
            return "its last batch to be through"  # what comes meanwhile is read with the next
        return None

    def _poll(self, now: Instant, wall: WallTime) -> Progress:
        self.doing = "polling"
        self._wake_at = None
        missed = self._pace.served(wall)
        if missed:
            self._shell.report(Counted(task=self.id, name="ticks_missed", amount=missed))
        poll = self._reader.poll(now=now, wall=wall, limits=self._within())
        match poll:
            case Rows():
                self._refuse_after_end()
                self._send(poll, now)
                return Progress(worked=True)
            case Nothing(wake_at=wake_at, idle=idle):
                if self._gates is not None:
                    self._gates.rested(self.id, idle=idle, ended=poll.ended)
                if idle and not self._is_idle:
                    self._output.broadcast(InputStatus(idle=True))
                self._is_idle = self._is_idle or idle
                self.doing = "waiting for data"
                self._wake_at = wake_at
                self._pace.rest(WallTime(wall + wake_at - now))
                return self._rest(wake_at)
            case CaughtUp():
                self._done(ended=False)
            case Ended():
                self._end()
            case _:
                assert_never(poll)
        return Progress(worked=True)

    def _look(self, now: Instant, wall: WallTime) -> Hold:
        """What is not read for now; what changes in it is told, and ends the reader's rest. No tick is missed by it."""
        if self._gates is None:
            return READ_ON
        before, self._hold = self._hold, self._gates.hold(self.id, now)
        if self._hold.everything or before.everything:
            self._pace.rest(wall)
        if self._hold.partitions != before.partitions:
            self._wake_at = None
        if self._hold.ahead != before.ahead:
            self._shell.report(ReadingPaused(task=self.id, paused=self._hold.ahead, by=self._hold.by))
        return self._hold

    def _rest(self, until: Instant) -> Progress:
        """Nothing to read before then, unless somebody for whom a partition waits is idle by then."""
        return Progress(wake_at=min(until, self._hold.wake_at or until))

    def _within(self) -> Limits:
        limits = self._limits()
        return replace(limits, paused=self._hold.partitions) if self._hold.partitions else limits

    def _send(self, rows: Rows, began: Instant) -> None:
        polled = self._clock.now()
        self._sent += 1
        self._took_all = rows.takes_all
        self._pace.sent(takes_all=rows.takes_all)
        if self._gates is not None:
            self._gates.sent(self.id, self._sent, began)
        self._is_idle = False  # a batch makes its edge active again
        self.doing = f"batch {self._sent}"
        failpoint("source.polled")
        frame = self._reader.frame(rows.plan)
        batch = Batch(
            frame=frame,
            sequence=self._sent,
            rows=rows.rows,
            measures=dict(rows.measures),
            verify=rows.verify,
            partitions=replace(rows.partitions, source=self.id) if rows.partitions is not None else None,
            reading=Reading(self.id, self._sent, began),
        )
        self._output.emit(batch, ready=lambda: self._tell_read(rows, began, polled))

    def _tell_read(self, rows: Rows, began: Instant, polled: Instant) -> None:
        """Before anybody can be through with it: observers see what happens to one batch in order."""
        poll_ms, plan_ms = (polled - began) / 1_000, (self._clock.now() - polled) / 1_000
        fact = BatchRead(task=self.id, sequence=self._sent, rows=rows.rows, poll_ms=poll_ms, plan_ms=plan_ms)
        self._shell.report(fact)

    def _refuse_after_end(self) -> None:
        """Windows were closed for ever when the source ended: what it reads now would be late, all of it."""
        if self._has_ended:
            msg = (
                f"source '{self.id}' ended in an earlier run, or was drained, which closed all windows for ever; now "
                "it has more rows: give it another uid, rewind to a checkpoint before, or begin again with --fresh; a "
                "source that will go on later must not be bounded"
            )
            raise StateIncompatible(msg, uid=self.id)

    def _mark(self) -> Instant | None:
        """Send a latency marker if one is due; returns when to look again. It is never worth a failure."""
        if self._markers is None:
            return None
        now = self._clock.now()
        if self._markers.due(now, has_room=self._output.has_room):
            try:
                self._output.broadcast(LatencyMarker(source=self.id, sent=now))
            except Exception:
                log.warning("source %s could not send a latency marker", self.id, exc_info=True)
        return self._markers.next_at

    def _end(self) -> None:
        """Nothing more will come, ever: all windows close."""
        self._has_ended = True
        self._output.broadcast(Watermark(at=END_OF_TIME))
        if self._reading:
            self._done(ended=True)

    def _done(self, *, ended: bool) -> None:
        self._reading = False
        if self._gates is not None:
            self._gates.left(self.id)
        self._shell.source_done(self.id, ended=ended)

    def _answer(self, mail: SourceMail) -> None:
        match mail:
            case Barrier(checkpoint=checkpoint, kind=kind):
                self._barrier(mail, checkpoint, kind)
            case CancelBarrier(checkpoint=checkpoint):
                self._positions.pop(checkpoint, None)
                self._cancelled.discard(checkpoint)
                self._output.broadcast(mail)
            case Completed(checkpoint=checkpoint):
                self._completed(checkpoint)
            case Drain():
                if not self._has_ended:
                    self._end()
            case Finish():
                self._output.broadcast(EndOfStream())
                self._finished = True
            case _:
                assert_never(mail)

    def _barrier(self, barrier: Barrier, checkpoint: CheckpointId, kind: CheckpointKind) -> None:
        """Send it, unless its cancellation waits behind it: that alone frees whoever has the barrier from others."""
        if kind is CheckpointKind.FINAL:
            self._reading = False
        if checkpoint in self._cancelled:
            return
        position = self._reader.position()
        self._positions[checkpoint] = position
        if len(self._positions) > MOST_PENDING:
            del self._positions[min(self._positions)]
        self._output.broadcast(barrier)
        watermarks = (END_OF_TIME,) if self._has_ended else ()
        snapshot = TaskSnapshot(task=self.id, position=position, watermarks=watermarks)
        self._shell.capture(self.id, checkpoint, lambda: snapshot)

    def _completed(self, checkpoint: CheckpointId) -> None:
        self._held = False
        position = self._positions.pop(checkpoint, None)
        if position is not None:
            self._reader.committed(checkpoint, position)
        elif self._newest is None or checkpoint > self._newest:
            log.warning("source %s has no position of checkpoint %d that completed: not told", self.id, checkpoint)
        self._newest = max(checkpoint, self._newest or checkpoint)
        self._positions = {id: at for id, at in self._positions.items() if id > checkpoint}
