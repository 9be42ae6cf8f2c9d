"""SourceTask: polls its reader, sends batches, puts barriers between them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Final, Protocol, TypeAlias

from penstock.clock import MAX_WATERMARK, Clock, MonotonicTime, WallTime
from penstock.elements import (
    Barrier,
    Batch,
    CancelBarrier,
    CheckpointKind,
    EndOfStream,
    LatencyMarker,
    ObservedMetrics,
    SourceBatch,
    Watermark,
    WatermarkStatus,
)
from penstock.errors import StateIncompatible, assert_never
from penstock.facts import BatchRead, Counted, Listener, ReadingPaused, RowsRead
from penstock.failpoints import failpoint
from penstock.graph.nodes import Every, WhenReady, WithWatermark
from penstock.graph.nodes import Pace as Asked
from penstock.handles import CheckpointId, Position, TaskSnapshot
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, ReadLimit, SourceReader
from penstock.runtime.channels import Rewrite, TaskOutput
from penstock.runtime.rate_control import RateControl
from penstock.runtime.task import Completed, StepResult, TaskEnvironment
from penstock.runtime.watermark_alignment import NO_PAUSE, AlignmentCoordinator, ReadPause

# ----------------------------------------------------------------------------------------------------
# What is told of batches while routes rewrite them: rows, pace, event time. Decides nothing and runs no job.


def with_row_counts(rewrite: Rewrite, task: str, listener: Listener) -> Rewrite:
    """Tell how many rows a source read, once the first job over the batch has told it."""

    def counted(batch: Batch) -> Batch:
        rewritten = rewrite(batch)
        measure = rewritten.measures.get("rows")
        if measure is not None:
            measure.when_settled(lambda: _tell_rows(task, measure.value, listener))
        return rewritten

    return counted


def with_rate_control(rewrite: Rewrite, task: str, control: RateControl, clock: Clock) -> Rewrite:
    """Tell the rate control when a batch leaves, and when a first job over it has succeeded."""

    def rewriting(batch: Batch) -> Batch:
        control.sent(batch.sequence, clock.now())
        rewritten = rewrite(batch)
        ran = ObservedMetrics(
            dict
        )  # tells nothing but that a job has succeeded; it settles after those that are here already
        ran.when_settled(lambda: _through(rewritten, batch.sequence, control, clock))
        return replace(rewritten, measures={**rewritten.measures, f"ran:{task}": ran})

    return rewriting


def with_watermark_alignment(rewrite: Rewrite, mark: WithWatermark, gates: AlignmentCoordinator) -> Rewrite:
    """Tell whoever aligns event times how far a batch has come, once the first job over it has told it."""

    def rewriting(batch: Batch) -> Batch:
        rewritten = rewrite(batch)
        gates.follow(rewritten, mark)
        return rewritten

    return rewriting


def _through(batch: Batch, sequence: int, control: RateControl, clock: Clock) -> None:
    measure = batch.measures.get("rows")
    rows = measure.value.get("rows") if measure is not None and measure.value else batch.rows
    control.through(sequence, rows if isinstance(rows, int) else 0, clock.now())


def _tell_rows(task: str, figures: Mapping[str, object] | None, listener: Listener) -> None:
    rows = figures.get("rows") if figures else None
    if isinstance(rows, int):
        listener(RowsRead(task=task, rows=rows))


# ----------------------------------------------------------------------------------------------------
# When a source sends its next latency marker; pure. Knows neither the task that sends it nor where it arrives.


class LatencyMarkerTimer:
    """A fixed rate, from the first question on; what is missed is not made up.

    While there is no room downstream one marker at most waits there, to tell how long that lasts: so markers never
    pile up behind a step that stands still.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._is_one_stuck = False
        self.next_at: MonotonicTime | None = None
        """When to ask again."""

    def due(self, now: MonotonicTime, *, has_room: bool) -> bool:
        """Whether to send one now; asked again before :attr:`next_at`, the answer is no."""
        if self.next_at is not None and now < self.next_at:
            return False
        first = now if self.next_at is None else self.next_at
        self.next_at = MonotonicTime(first + ((now - first) // self._interval + 1) * self._interval)
        if not has_room and self._is_one_stuck:
            return False
        self._is_one_stuck = not has_room
        return True


# ----------------------------------------------------------------------------------------------------
# When a source may be read next: when it is ready, or at the ticks of a metronome. Pure: wall time is an argument.


class PollSchedule(Protocol):
    """Asked before each poll of one source."""

    def wait(self, wall: WallTime) -> int:
        """Microseconds until the next poll; 0 is now."""
        ...

    def served(self, wall: WallTime) -> int:
        """A poll begins now; returns how many ticks have gone by without one."""
        ...

    def sent(self, *, takes_all: bool) -> None:
        """That poll brought rows: all that there are, or some."""
        ...

    def rest(self, until: WallTime) -> None:
        """The source will have nothing before then: ticks up to there are not missed."""
        ...


IDLE_FACTOR: Final = 1.6
"""The next batch begins so many times as long after the one before as batches take: who keeps up rests three
eighths of the time, but …
"""
MAX_WAIT_FACTOR: Final = 10
"""… they begin no more than so many times the time to linger apart, since rows gather while a long batch is at work."""
MEDIAN_OF: Final = 7
"""Batches by which is known how long they take, as a rule: one that had a checkpoint beside it has gathered rows
enough, and a pause in proportion to it would make its late rows later still.
"""


class AdaptiveBatching:
    """Whoever is ready goes on, but lets rows gather after a batch that took all: a batch costs time whatever is in it.

    It is asked for the first time when that batch is through. Polls that bring nothing count for nothing, so the first
    rows after a rest are read at once. A wall clock that is set back ends the wait.

    >>> linger = AdaptiveBatching(10)
    >>> linger.served(WallTime(100)), linger.sent(takes_all=True)
    (0, None)
    >>> linger.wait(WallTime(111)), linger.wait(WallTime(117))
    (6, 0)
    >>> linger.served(WallTime(117)), linger.sent(takes_all=True), linger.wait(WallTime(120))
    (0, None, 7)
    """

    def __init__(self, time: int = 0) -> None:
        self._time = time
        self._polled = 0
        self._gathers = False
        self._next = self._apart = 0
        self._took: deque[int] = deque(maxlen=MEDIAN_OF)

    def wait(self, wall: WallTime) -> int:
        """Until the next batch may begin."""
        if self._gathers:
            self._gathers = False
            self._took.append(wall - self._polled)
            as_a_rule = median_low(self._took)
            self._apart = max(self._time, min(int(IDLE_FACTOR * as_a_rule), MAX_WAIT_FACTOR * self._time))
            self._next = self._polled + self._apart
        left = self._next - wall
        return left if 0 < left <= self._apart else 0

    def served(self, wall: WallTime) -> int:
        """There are no ticks to miss."""
        self._polled, self._gathers, self._next = wall, False, 0
        return 0

    def sent(self, *, takes_all: bool) -> None:
        """The next batch begins some time after this one, or at once if more waits."""
        self._gathers = takes_all

    def rest(self, until: WallTime) -> None:
        """Nothing to do."""


class FixedInterval:
    """Ticks at multiples of its interval since the epoch, whenever it was started.

    The first tick is strictly after the first question. A tick that comes while nobody asks is served late, once;
    those before it are missed and not made up. A wall clock that is set back makes it aim anew.

    >>> metronome = FixedInterval(10)
    >>> metronome.wait(WallTime(100)), metronome.wait(WallTime(110))
    (10, 0)
    >>> metronome.served(WallTime(135)), metronome.wait(WallTime(135))
    (2, 5)
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._next: int | None = None

    def wait(self, wall: WallTime) -> int:
        """Until the tick that is next; 0 once it has come, until it is served."""
        if self._next is None or self._next - wall > self._interval:
            self._next = self._after(wall)
        return max(0, self._next - wall)

    def served(self, wall: WallTime) -> int:
        """The newest tick is served; the ones between it and the one that was due are missed."""
        due, self._next = self._next, self._after(wall)
        return 0 if due is None else max(0, (self._next - due) // self._interval - 1)

    def sent(self, *, takes_all: bool) -> None:
        """Makes no difference: what has no room waits for the next tick."""

    def rest(self, until: WallTime) -> None:
        """Aim at the first tick at or after ``until``."""
        self._next = max(self._next or 0, self._after(WallTime(until - 1)))

    def _after(self, wall: int) -> int:
        return (wall // self._interval + 1) * self._interval


def schedule_of(asked: Asked) -> PollSchedule:
    """The machine for what the user asked for."""
    match asked:
        case WhenReady(linger=time):
            return AdaptiveBatching(time)
        case Every(interval=interval):
            return FixedInterval(interval)
        case _:
            assert_never(asked)


# ----------------------------------------------------------------------------------------------------
# What a source's task gets between two batches, besides what goes on to others. Plain values.


@dataclass(frozen=True, slots=True)
class Finish:
    """Mail: the job ends in order; tell everybody downstream."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Mail: there is nothing more to read, ever; the barrier of the final checkpoint comes next."""


SourceMail: TypeAlias = Barrier | CancelBarrier | Completed | Drain | Finish


# ----------------------------------------------------------------------------------------------------
# The task of a source: asks its reader for plans, sends batches, and puts barriers between them with its position.

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
        reader: SourceReader,
        output: TaskOutput,
        *,
        limits: Callable[[], ReadLimit],
        held: bool = False,
        has_ended: bool = False,
        pace: PollSchedule | None = None,
        markers: LatencyMarkerTimer | None = None,
        gates: AlignmentCoordinator | None = None,
        shell: TaskEnvironment,
        clock: Clock,
    ) -> None:
        self.id = id
        self._reader = reader
        self._output = output
        self._limits = limits
        self._pace = pace or AdaptiveBatching()
        self._markers = markers
        self._gates = gates
        self._hold = NO_PAUSE
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
        self._wake_at: MonotonicTime | None = None
        self._sent = 0
        self._took_all = False
        self.doing = "starting"

    def post(self, mail: SourceMail) -> None:
        """Hand in mail; it is read before the next poll."""
        if isinstance(mail, CancelBarrier):
            self._cancelled.add(mail.checkpoint)
        self._mail.append(mail)

    def step(self) -> StepResult:
        """Answer mail, or read at most one batch."""
        if self._mail:
            self._answer(self._mail.popleft())
            return StepResult(worked=True, done=self._finished)
        mark_at = self._mark()
        progress = self._read()
        if progress.worked or mark_at is None:
            return progress
        return replace(progress, wake_at=min(progress.wake_at or mark_at, mark_at))

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()

    def _read(self) -> StepResult:
        waits_for = self._waits_for()
        if waits_for is not None:
            self.doing = f"waiting for {waits_for}"
            return StepResult()
        now, wall = self._clock.now(), self._clock.wall()
        hold = self._look(now, wall)
        if hold.everything:
            self.doing = f"waiting for {hold.by}, which is behind" if hold.by else "waiting to be told of event time"
            return StepResult(wake_at=hold.wake_at)
        if self._wake_at is not None and now < self._wake_at:
            return self._rest(self._wake_at)
        wait = self._pace.wait(wall)
        if wait > 0:
            self.doing = "waiting for the time of its next batch"
            return StepResult(wake_at=MonotonicTime(now + wait))
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

    def _poll(self, now: MonotonicTime, wall: WallTime) -> StepResult:
        self.doing = "polling"
        self._wake_at = None
        missed = self._pace.served(wall)
        if missed:
            self._shell.report(Counted(task=self.id, name="ticks_missed", amount=missed))
        poll = self._reader.poll(now=now, wall=wall, limits=self._within())
        match poll:
            case PlannedBatch():
                self._refuse_after_end()
                self._send(poll, now)
                return StepResult(worked=True)
            case NoData(wake_at=wake_at, idle=idle):
                if self._gates is not None:
                    self._gates.rested(self.id, idle=idle, ended=poll.ended)
                if idle and not self._is_idle:
                    self._output.broadcast(WatermarkStatus(idle=True))
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
        return StepResult(worked=True)

    def _look(self, now: MonotonicTime, wall: WallTime) -> ReadPause:
        """What is not read for now; what changes in it is told, and ends the reader's rest. No tick is missed by it."""
        if self._gates is None:
            return NO_PAUSE
        before, self._hold = self._hold, self._gates.hold(self.id, now)
        if self._hold.everything or before.everything:
            self._pace.rest(wall)
        if self._hold.partitions != before.partitions:
            self._wake_at = None
        if self._hold.ahead != before.ahead:
            self._shell.report(ReadingPaused(task=self.id, paused=self._hold.ahead, by=self._hold.by))
        return self._hold

    def _rest(self, until: MonotonicTime) -> StepResult:
        """Nothing to read before then, unless somebody for whom a partition waits is idle by then."""
        return StepResult(wake_at=min(until, self._hold.wake_at or until))

    def _within(self) -> ReadLimit:
        limits = self._limits()
        return replace(limits, paused=self._hold.partitions) if self._hold.partitions else limits

    def _send(self, rows: PlannedBatch, began: MonotonicTime) -> None:
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
            reading=SourceBatch(self.id, self._sent, began),
        )
        self._output.emit(batch, ready=lambda: self._tell_read(rows, began, polled))

    def _tell_read(self, rows: PlannedBatch, began: MonotonicTime, polled: MonotonicTime) -> None:
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

    def _mark(self) -> MonotonicTime | None:
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
        self._output.broadcast(Watermark(at=MAX_WATERMARK))
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
        watermarks = (MAX_WATERMARK,) if self._has_ended else ()
        snapshot = TaskSnapshot(task=self.id, position=position, watermarks=watermarks)
        self._shell.snapshot(self.id, checkpoint, lambda: snapshot)

    def _completed(self, checkpoint: CheckpointId) -> None:
        self._held = False
        position = self._positions.pop(checkpoint, None)
        if position is not None:
            self._reader.committed(checkpoint, position)
        elif self._newest is None or checkpoint > self._newest:
            log.warning("source %s has no position of checkpoint %d that completed: not told", self.id, checkpoint)
        self._newest = max(checkpoint, self._newest or checkpoint)
        self._positions = {id: at for id, at in self._positions.items() if id > checkpoint}
