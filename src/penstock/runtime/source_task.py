"""SourceTask: polls its reader, sends batches, and puts barriers between them with the reader's position."""

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
from penstock.graph.nodes import Every, Pace, WhenReady, WithWatermark
from penstock.handles import CheckpointId, Position, TaskSnapshot
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, ReadLimit, SourceReader
from penstock.runtime.channels import Rewrite, TaskOutput
from penstock.runtime.rate_control import RateControl
from penstock.runtime.task import Completed, StepResult, TaskEnvironment
from penstock.runtime.watermark_alignment import NO_PAUSE, AlignmentCoordinator, ReadPause

log = logging.getLogger("penstock")


# ---- rewrites that follow what becomes of a batch --------------------------------------------------------------------


def with_row_counts(rewrite: Rewrite, task: str, listener: Listener) -> Rewrite:
    """The rewrite, which also reports ``RowsRead`` once the first job over the batch has counted its rows."""

    def rewriting(batch: Batch) -> Batch:
        rewritten = rewrite(batch)
        metrics = rewritten.metrics.get("rows")
        if metrics is not None:
            metrics.when_settled(lambda: _report_rows(task, metrics.value, listener))
        return rewritten

    return rewriting


def with_rate_control(rewrite: Rewrite, task: str, control: RateControl, clock: Clock) -> Rewrite:
    """The rewrite, which also notifies the rate control when a batch is sent and when its first job succeeded."""

    def rewriting(batch: Batch) -> Batch:
        control.sent(batch.sequence, clock.now())
        rewritten = rewrite(batch)
        ran = ObservedMetrics(dict)  # has no figures; it settles when a job has succeeded, after the metrics before it
        ran.when_settled(lambda: _completed(rewritten, batch.sequence, control, clock))
        return replace(rewritten, metrics={**rewritten.metrics, f"ran:{task}": ran})

    return rewriting


def with_watermark_alignment(
    rewrite: Rewrite, with_watermark: WithWatermark, alignment: AlignmentCoordinator
) -> Rewrite:
    """The rewrite, which also reports a batch's event times to watermark alignment after its first job."""

    def rewriting(batch: Batch) -> Batch:
        rewritten = rewrite(batch)
        alignment.follow(rewritten, with_watermark)
        return rewritten

    return rewriting


def _completed(batch: Batch, sequence: int, control: RateControl, clock: Clock) -> None:
    metrics = batch.metrics.get("rows")
    rows = metrics.value.get("rows") if metrics is not None and metrics.value else batch.rows
    control.completed(sequence, rows if isinstance(rows, int) else 0, clock.now())


def _report_rows(task: str, figures: Mapping[str, object] | None, listener: Listener) -> None:
    rows = figures.get("rows") if figures else None
    if isinstance(rows, int):
        listener(RowsRead(task=task, rows=rows))


# ---- latency markers -------------------------------------------------------------------------------------------------


class LatencyMarkerTimer:
    """When a source sends its next latency marker: at a fixed rate from the first call on; missed ones are skipped.

    While there is no room downstream, only one marker is sent, which measures how long that lasts: markers never pile
    up behind a step that makes no progress.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._is_one_stuck = False
        self.next_at: MonotonicTime | None = None
        """When the next marker is due."""

    def due(self, now: MonotonicTime, *, has_room: bool) -> bool:
        """Whether to send a marker now; ``False`` before ``next_at``."""
        if self.next_at is not None and now < self.next_at:
            return False
        first = now if self.next_at is None else self.next_at
        self.next_at = MonotonicTime(first + ((now - first) // self._interval + 1) * self._interval)
        if not has_room and self._is_one_stuck:
            return False
        self._is_one_stuck = not has_room
        return True


# ---- poll schedules: when a source is ready, or at a fixed interval --------------------------------------------------


class PollSchedule(Protocol):
    """When one source is polled."""

    def wait(self, wall: WallTime) -> int:
        """Microseconds until the next poll; 0 is now."""
        ...

    def polled(self, wall: WallTime) -> int:
        """Note that a poll begins now; returns the number of missed ticks."""
        ...

    def sent(self, *, takes_all: bool, is_behind: bool = False) -> None:
        """Note that the poll brought a batch: all rows that there are, or some; others may be of ticks long past."""
        ...

    def skip_until(self, wall: WallTime) -> None:
        """Note that the source is not polled before ``wall``: ticks until then do not count as missed."""
        ...


# Start the next batch 1.6 times the median batch time after the previous start: a source that keeps up is idle for
# about 3/8 of the time.
IDLE_FACTOR: Final = 1.6
# But wait at most 10 times the linger time: rows pile up behind a slow batch.
MAX_WAIT_FACTOR: Final = 10
# The median of the last 7 batches leaves out one that a checkpoint slowed down: it has gathered enough rows already,
# and a pause in proportion to it would delay its late rows further.
MEDIAN_OF: Final = 7


class AdaptiveBatching:
    """Polls when the source is ready, but lets rows gather after a batch that took all that there was.

    Each batch has a fixed cost, so fewer and larger ones cost less. ``wait`` is first called when that batch has
    been processed. A poll without rows starts no wait, so the first rows after a quiet time are read at once. A wall
    clock that is set back ends the wait.

    >>> schedule = AdaptiveBatching(10)
    >>> schedule.polled(WallTime(100)), schedule.sent(takes_all=True)
    (0, None)
    >>> schedule.wait(WallTime(111)), schedule.wait(WallTime(117))
    (6, 0)
    >>> schedule.polled(WallTime(117)), schedule.sent(takes_all=True), schedule.wait(WallTime(120))
    (0, None, 7)
    """

    def __init__(self, linger: int = 0) -> None:
        self._linger = linger
        self._polled_at = 0
        self._gathers = False
        self._next = self._interval = 0
        self._durations: deque[int] = deque(maxlen=MEDIAN_OF)

    def wait(self, wall: WallTime) -> int:
        """Microseconds until the next batch may begin."""
        if self._gathers:
            self._gathers = False
            self._durations.append(wall - self._polled_at)
            median = median_low(self._durations)
            self._interval = max(self._linger, min(int(IDLE_FACTOR * median), MAX_WAIT_FACTOR * self._linger))
            self._next = self._polled_at + self._interval
        left = self._next - wall
        return left if 0 < left <= self._interval else 0

    def polled(self, wall: WallTime) -> int:
        """Start to measure a batch; there are no ticks to miss."""
        self._polled_at, self._gathers, self._next = wall, False, 0
        return 0

    def sent(self, *, takes_all: bool, is_behind: bool = False) -> None:
        """Let rows gather before the next batch, unless more are waiting."""
        self._gathers = takes_all and not is_behind

    def skip_until(self, wall: WallTime) -> None:
        """Do nothing: there are no ticks to miss."""


class FixedInterval:
    """Polls at ticks: the multiples of the interval since the epoch, whenever the job was started.

    The first tick is strictly after the first call. After a delay the newest tick is polled late; those before it are
    missed and not made up. After the wall clock was set back, the next tick is computed again. Rows of ticks that
    passed while the job was down are read between ticks.

    Args:
        interval: from one tick to the next, in microseconds.
        at_once: the first poll is at the start, and that of the first tick comes after it.

    >>> schedule = FixedInterval(10)
    >>> schedule.wait(WallTime(100)), schedule.wait(WallTime(110))
    (10, 0)
    >>> schedule.polled(WallTime(135)), schedule.wait(WallTime(135))
    (2, 5)
    """

    def __init__(self, interval: int, *, at_once: bool = False) -> None:
        self._interval = interval
        self._at_once = at_once
        self._next: int | None = None

    def wait(self, wall: WallTime) -> int:
        """Microseconds until the next tick; 0 from then on until the poll."""
        if self._at_once:
            return 0
        if self._next is None or self._next - wall > self._interval:
            self._next = self._after(wall)
        return max(0, self._next - wall)

    def polled(self, wall: WallTime) -> int:
        """Note the poll of the newest tick; returns the number of ticks between it and the one that was due."""
        if self._at_once:
            self._at_once = False
            self._next = self._after(wall) if self._next is None else self._next
            return 0
        due, self._next = self._next, self._after(wall)
        return 0 if due is None else max(0, (self._next - due) // self._interval - 1)

    def sent(self, *, takes_all: bool, is_behind: bool = False) -> None:  # noqa: ARG002 - the protocol's
        """Poll again at once while rows of ticks that passed wait; those that had no room wait for the next tick."""
        self._at_once = is_behind

    def skip_until(self, wall: WallTime) -> None:
        """Set the next tick to the first at or after ``wall``."""
        self._next = max(self._next or 0, self._after(WallTime(wall - 1)))

    def _after(self, wall: int) -> int:
        return (wall // self._interval + 1) * self._interval


def schedule_of(pace: Pace, *, at_once: bool = False) -> PollSchedule:
    """The poll schedule for the pace that the user set; with ``at_once`` its first poll does not wait for a tick."""
    match pace:
        case WhenReady(linger=linger):
            return AdaptiveBatching(linger)
        case Every(interval=interval):
            return FixedInterval(interval, at_once=at_once)
        case _:
            assert_never(pace)


# ---- mail of a source task -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finish:
    """Mail: the job ends in order; send the end of the stream downstream."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Mail: read nothing more, ever; the barrier of the final checkpoint comes next."""


SourceMail: TypeAlias = Barrier | CancelBarrier | Completed | Drain | Finish


# ---- the task --------------------------------------------------------------------------------------------------------


def rows_after_end(uid: str) -> StateIncompatible:
    """The refusal to read more rows of a source that has ended."""
    msg = (
        f"Source '{uid}' ended in an earlier run, or was drained, which closed all windows for ever, and now it has "
        "more rows. Give it another uid, rewind to a checkpoint before, or begin again with penstock run … --fresh. A "
        "source that will go on later must not be bounded."
    )
    return StateIncompatible(msg, uid=uid)


MOST_PENDING: Final = 100
"""Positions kept for checkpoints whose outcome is not known; there is one at a time unless messages are lost."""


class SourceTask:
    """Reads one source. Barriers come by mail and leave between two batches, with the position after the last one.

    After the barrier of a final checkpoint nothing more is read.

    Args:
        id: uid of the source.
        reader: is polled and closed by this task.
        output: where batches and control elements go.
        limits: asked before each poll.
        held: read nothing before the first checkpoint is in the log, which fixes where a new source began (rule C4).
        has_ended: the source ended in an earlier run.
        schedule: when to poll.
        markers: when to send latency markers, if at all.
        alignment: what not to read for now, where event times are aligned.
        shell: runs this task.
        clock: for polls, ticks and facts.
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
        schedule: PollSchedule | None = None,
        markers: LatencyMarkerTimer | None = None,
        alignment: AlignmentCoordinator | None = None,
        shell: TaskEnvironment,
        clock: Clock,
    ) -> None:
        self.id = id
        self._reader = reader
        self._output = output
        self._limits = limits
        self._schedule = schedule or AdaptiveBatching()
        self._markers = markers
        self._alignment = alignment
        self._pause = NO_PAUSE
        self._shell = shell
        self._clock = clock
        self._mail: deque[SourceMail] = deque()
        self._cancelled: set[CheckpointId] = set()  # whose cancellation is in the mail, perhaps behind the barrier
        self._positions: dict[CheckpointId, Position] = {}
        self._newest_completed: CheckpointId | None = None
        self._held = held
        self._has_ended = has_ended
        self._reading = True
        self._finished = False
        self._is_idle = False
        self._wake_at: MonotonicTime | None = None
        self._sent = 0
        self._took_all = False  # the last batch was all that there was to read
        self.doing = "starting"

    def post(self, mail: SourceMail) -> None:
        """Queue mail, which is answered before the next poll."""
        if isinstance(mail, CancelBarrier):
            self._cancelled.add(mail.checkpoint)
        self._mail.append(mail)

    def step(self) -> StepResult:
        """Answer mail, or read at most one batch."""
        if self._mail:
            self._answer(self._mail.popleft())
            return StepResult(worked=True, done=self._finished)
        marker_at = self._send_marker()
        result = self._read()
        if result.worked or marker_at is None:
            return result
        return replace(result, wake_at=min(result.wake_at or marker_at, marker_at))

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()

    def _read(self) -> StepResult:
        waits_for = self._waits_for()
        if waits_for is not None:
            self.doing = f"waiting for {waits_for}"
            return StepResult()
        now, wall = self._clock.now(), self._clock.wall()
        pause = self._update_pause(now, wall)
        if pause.everything:
            self.doing = f"waiting for {pause.by}, which is behind" if pause.by else "waiting for the first event times"
            return StepResult(wake_at=pause.wake_at)
        if self._wake_at is not None and now < self._wake_at:
            return self._sleep(self._wake_at)
        wait = self._schedule.wait(wall)
        if wait > 0:
            self.doing = "waiting for the time of its next batch"
            return StepResult(wake_at=MonotonicTime(now + wait))
        return self._poll(now, wall)

    def _waits_for(self) -> str | None:
        """What has to happen before the next poll, if anything; the task is woken when it has."""
        if self._held or not self._reading:
            return f"the {'first' if self._held else 'final'} checkpoint"
        if not self._output.has_room:
            return "room downstream"
        if self._took_all and not self._output.is_drained:
            return "its last batch to be through"  # rows that arrive meanwhile are read with the next
        return None

    def _poll(self, now: MonotonicTime, wall: WallTime) -> StepResult:
        self.doing = "polling"
        self._wake_at = None
        missed = self._schedule.polled(wall)
        if missed:
            self._shell.report(Counted(task=self.id, name="ticks_missed", amount=missed))
        poll = self._reader.poll(now=now, wall=wall, limits=self._read_limit())
        match poll:
            case PlannedBatch():
                self._refuse_after_end()
                self._send(poll, now)
                return StepResult(worked=True)
            case NoData(wake_at=wake_at, idle=idle):
                if self._alignment is not None:
                    self._alignment.polled_nothing(self.id, idle=idle, ended=poll.ended)
                if idle and not self._is_idle:
                    self._output.broadcast(WatermarkStatus(idle=True))
                self._is_idle = self._is_idle or idle
                self.doing = "waiting for data"
                self._wake_at = wake_at
                self._schedule.skip_until(WallTime(wall + wake_at - now))
                return self._sleep(wake_at)
            case CaughtUp():
                self._done(ended=False)
            case Ended():
                self._end()
            case _:
                assert_never(poll)
        return StepResult(worked=True)

    def _update_pause(self, now: MonotonicTime, wall: WallTime) -> ReadPause:
        """What is not read for now. A change is reported, and the reader is polled again at once."""
        if self._alignment is None:
            return NO_PAUSE
        before, self._pause = self._pause, self._alignment.pause(self.id, now)
        if self._pause.everything or before.everything:
            self._schedule.skip_until(wall)  # ticks during the pause are not missed
        if self._pause.partitions != before.partitions:
            self._wake_at = None
        if self._pause.ahead != before.ahead:
            self._shell.report(ReadingPaused(task=self.id, paused=self._pause.ahead, by=self._pause.by))
        return self._pause

    def _sleep(self, until: MonotonicTime) -> StepResult:
        """Nothing to read before then, unless the pause of a partition may end earlier."""
        return StepResult(wake_at=min(until, self._pause.wake_at or until))

    def _read_limit(self) -> ReadLimit:
        limits = self._limits()
        return replace(limits, paused=self._pause.partitions) if self._pause.partitions else limits

    def _send(self, planned: PlannedBatch, began: MonotonicTime) -> None:
        polled = self._clock.now()
        self._sent += 1
        self._took_all = planned.takes_all
        self._schedule.sent(takes_all=planned.takes_all, is_behind=planned.is_behind)
        if self._alignment is not None:
            self._alignment.sent(self.id, self._sent, began)
        self._is_idle = False  # a batch makes its edge active again
        self.doing = f"batch {self._sent}"
        failpoint("source.polled")
        frame = self._reader.frame(planned.plan)
        batch = Batch(
            frame=frame,
            sequence=self._sent,
            rows=planned.rows,
            metrics=dict(planned.metrics),
            verify=planned.verify,
            partitions=replace(planned.partitions, source=self.id) if planned.partitions is not None else None,
            source_batch=SourceBatch(self.id, self._sent, began),
        )
        # Reported before a task downstream can finish the batch, so that listeners get the facts of a batch in order.
        self._output.emit(batch, ready=lambda: self._report_read(planned, began, polled))

    def _report_read(self, planned: PlannedBatch, began: MonotonicTime, polled: MonotonicTime) -> None:
        poll_ms, plan_ms = (polled - began) / 1_000, (self._clock.now() - polled) / 1_000
        fact = BatchRead(task=self.id, sequence=self._sent, rows=planned.rows, poll_ms=poll_ms, plan_ms=plan_ms)
        self._shell.report(fact)

    def _refuse_after_end(self) -> None:
        """Refuse rows of a source that has ended: that closed all windows, so every row would be late."""
        if self._has_ended:
            raise rows_after_end(self.id)

    def _send_marker(self) -> MonotonicTime | None:
        """Send a latency marker if one is due; returns when the next one is. A failure is only logged."""
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
        """Send the end of event time, which closes all windows: no row will ever come."""
        self._has_ended = True
        self._output.broadcast(Watermark(at=MAX_WATERMARK))
        if self._reading:
            self._done(ended=True)

    def _done(self, *, ended: bool) -> None:
        self._reading = False
        if self._alignment is not None:
            self._alignment.source_done(self.id)
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
        """Send the barrier, unless its cancellation is in the mail too: then only the cancellation is sent."""
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
        elif self._newest_completed is None or checkpoint > self._newest_completed:
            log.warning(
                "source %s has no position for completed checkpoint %d: its reader is not notified", self.id, checkpoint
            )
        self._newest_completed = max(checkpoint, self._newest_completed or checkpoint)
        self._positions = {id: at for id, at in self._positions.items() if id > checkpoint}
