"""SourceTask: polls its reader, sends batches, and puts barriers between them with the reader's position."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

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
from penstock.errors import PenstockError, StateIncompatible, assert_never
from penstock.facts import BatchRead, Counted, Listener, ReadingPaused, RowsRead, SourceRests
from penstock.failpoints import failpoint
from penstock.graph.nodes import WithWatermark
from penstock.handles import CheckpointId, Position, TaskSnapshot
from penstock.interfaces.source import (
    CaughtUp,
    Ended,
    NoData,
    PlannedBatch,
    PollResult,
    ReadLimit,
    SourceReader,
    SupportsLastBatches,
)
from penstock.runtime.channels import Rewrite, TaskOutput
from penstock.runtime.poll_schedule import AdaptiveBatching, LastBatches, PollSchedule
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


# ---- mail of a source task -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finish:
    """Mail: the job ends in order; send the end of the stream downstream."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Mail: read nothing more, ever; the barrier of the final checkpoint comes next."""


SourceMail: TypeAlias = Barrier | CancelBarrier | Completed | Drain | Finish


def _ends_reading(mail: SourceMail) -> bool:
    """Whether nothing is read after this mail."""
    return isinstance(mail, Drain) or (isinstance(mail, Barrier) and mail.kind is CheckpointKind.FINAL)


# ---- the task --------------------------------------------------------------------------------------------------------


def rows_after_end(uid: str) -> StateIncompatible:
    """The refusal to read more rows of a source that has ended."""
    msg = (
        f"Source '{uid}' ended in an earlier run, or was drained, which closed all windows for ever, and now it has "
        "more rows. Give it another uid, rewind to a checkpoint before, or begin again with penstock run … --fresh. A "
        "source that will go on later must not be bounded."
    )
    return StateIncompatible(msg, uid=uid)


LONG_REST: Final = 10_000_000
"""Microseconds without a poll, as planned, from which on they are reported."""
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
        reads_last: before the final checkpoint, read what the source was given, see ``LastBatches``.
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
        reads_last: bool = False,
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
        self._last = LastBatches() if reads_last and isinstance(reader, SupportsLastBatches) else None
        self._failed_at: Position | None = None  # the position before a last batch that could not be read
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
        self._rests_until: WallTime | None = WallTime(0)  # as reported; ``None`` has no known end
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
            if self._last is not None and _ends_reading(self._mail[0]) and self._reading and not self._held:
                return self._read_last(self._last)
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
            if pause.by:
                self._rest(None)
            return StepResult(wake_at=pause.wake_at)
        if self._wake_at is not None and now < self._wake_at:
            return self._sleep(self._wake_at)
        wait = self._schedule.wait(wall)
        if wait > 0:
            self.doing = "waiting for the time of its next batch"
            self._rest_for(wait, wall)
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
        if self._rests_until is None or self._rests_until > wall:
            self._rest(wall)
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
                self._rest_for(wake_at - now, wall)
                self._schedule.skip_until(WallTime(wall + wake_at - now))
                return self._sleep(wake_at)
            case CaughtUp():
                self._done(ended=False)
            case Ended():
                self._end()
            case _:
                assert_never(poll)
        return StepResult(worked=True)

    def _read_last(self, last: LastBatches) -> StepResult:
        """Read what the source was given, a batch at a time. What cannot be read now is read by the next start.

        No start reads on after a drain, so a drain reads all. It waits as long as the stop may take, and if a poll
        fails, so does the attempt: then nothing is drained.
        """
        now, wall = self._clock.now(), self._clock.wall()
        if last.until is None:
            assert isinstance(self._reader, SupportsLastBatches)  # or there were no last batches
            self._reader.take_no_more()
        poll: PollResult | None = None
        is_drain = isinstance(self._mail[0], Drain)
        may_read = last.may_read(now) or is_drain
        if may_read and not self._has_ended:
            if not self._output.has_room:
                self.doing = "waiting for room downstream"
                return StepResult(wake_at=None if is_drain else last.until)
            before = self._reader.position()
            try:
                poll = self._reader.poll(now=now, wall=wall, limits=self._read_limit())
            except PenstockError as error:
                if is_drain:
                    raise
                self._failed_at = before  # what the poll had read of its batch was not sent
                log.warning("source %s does not read the rest of its rows before the stop: %s", self.id, error)
        if isinstance(poll, PlannedBatch):
            last.sent()
            self._send(poll, now)
        elif isinstance(poll, NoData):
            return StepResult(wake_at=poll.wake_at)
        else:
            self._last = None
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

    def _rest_for(self, wait: int, wall: WallTime) -> None:
        if wait >= LONG_REST:
            self._rest(WallTime(wall + wait))

    def _rest(self, until: WallTime | None) -> None:
        """Report until when the source is not polled, so that nobody takes it for one that hangs."""
        if until != self._rests_until:
            self._rests_until = until
            self._shell.report(SourceRests(task=self.id, until=until))

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
        self._rest(None)
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
        position = self._failed_at or self._reader.position()
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
