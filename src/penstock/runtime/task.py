"""StepTask: takes an element from its inputs, lets the step's logic process it, follows barriers, and forwards."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeAlias

from penstock.clock import MIN_WATERMARK, Clock, EventTime, MonotonicTime
from penstock.elements import (
    Barrier,
    Batch,
    CancelBarrier,
    Element,
    EndOfStream,
    LatencyMarker,
    Watermark,
    WatermarkStatus,
    is_empty,
)
from penstock.errors import assert_never
from penstock.facts import BarrierPassed, BatchDone, Fact, LatencyMeasured, WatermarkAdvanced
from penstock.handles import CheckpointId, TaskSnapshot
from penstock.runtime.barriers import (
    AbortAlignment,
    AlignedBarrierHandler,
    AlignmentEffect,
    BarrierArrived,
    BarrierHandler,
    CancelArrived,
    InputEnded,
    TakeSnapshot,
)
from penstock.runtime.channels import TaskOutput
from penstock.runtime.inputs import FrozenWatermarks, Inputs

# ---- snapshots between the barrier and the worker --------------------------------------------------------------------

SnapshotWork: TypeAlias = Callable[[tuple[EventTime, ...]], TaskSnapshot]
"""Makes a snapshot durable and describes it, given the watermarks at the barrier. Runs on a worker."""


class PendingSnapshots:
    """Snapshots that wait for the event times of batches before their barrier, in order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[CheckpointId, FrozenWatermarks, SnapshotWork]] = deque()

    def add(self, checkpoint: CheckpointId, watermarks: FrozenWatermarks, work: SnapshotWork) -> None:
        """Queue a snapshot."""
        self._waiting.append((checkpoint, watermarks, work))

    def ready(self) -> list[tuple[CheckpointId, Callable[[], TaskSnapshot]]]:
        """Remove and return the snapshots whose watermarks are known, oldest first."""
        found: list[tuple[CheckpointId, Callable[[], TaskSnapshot]]] = []
        while self._waiting and self._waiting[0][1].settled:
            checkpoint, watermarks, work = self._waiting.popleft()
            found.append((checkpoint, partial(work, watermarks.values())))
        return found


class BarrierTimer:
    """Measures how long a task's barriers take, from the first of a checkpoint on."""

    def __init__(self) -> None:
        self._first: MonotonicTime | None = None

    def arrived(self, now: MonotonicTime) -> None:
        """Note that a barrier arrived; only the first of an alignment counts."""
        self._first = now if self._first is None else self._first

    def abandoned(self, now: MonotonicTime, *, aligning: bool) -> None:
        """Note that an alignment was abandoned; ``aligning`` if the barrier that caused it has begun another."""
        self._first = now if aligning else None

    def passed(self, task: str, checkpoint: CheckpointId, *, began: MonotonicTime, now: MonotonicTime) -> BarrierPassed:
        """The fact to report: the last barrier arrived when the snapshot ``began``, and was sent on now."""
        first, self._first = self._first, None
        aligned = 0 if first is None else began - first
        return BarrierPassed(
            task=task, checkpoint=checkpoint, aligned_ms=aligned / 1_000, stall_ms=(now - began) / 1_000
        )


# ---- a task, its logic and what runs it ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Whether a call of ``step`` did anything, when to call it again if not woken before, and if it was the last."""

    worked: bool = False
    wake_at: MonotonicTime | None = None
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Mail: this checkpoint is in the log."""

    checkpoint: CheckpointId


class TaskLogic(Protocol):
    """What a union, an operator or a sink does with elements."""

    runs_batches: bool
    """Whether it runs jobs over batches; a union only passes them on."""

    def process(self, batch: Batch, *, source: int, watermark: EventTime, output: TaskOutput) -> int | None:
        """Process a batch, then release it or pass it on; returns the number of rows made or written, if known."""
        ...

    def settle(self, wake: Callable[[], None]) -> bool:
        """Finish the batch that was processed last; ``False`` if a job downstream has to run first.

        In that case ``wake`` is called after that job. Until then only ``completed`` and ``maintain`` are called.
        """
        ...

    def advance(self, watermark: EventTime, *, output: TaskOutput) -> EventTime | None:
        """Act on a watermark. Afterwards it is forwarded, or the returned one if that is lower.

        One that was held back comes again once ``tick`` has nothing left to wait for.
        """
        ...

    def tick(self, *, output: TaskOutput) -> int | None:
        """Act in processing time; returns after how many microseconds to call again, if at all."""
        ...

    def snapshot(self, checkpoint: CheckpointId) -> SnapshotWork:
        """The snapshot of the state as of now, still to be made durable."""
        ...

    def completed(self, checkpoint: CheckpointId) -> None:
        """Note that the checkpoint is in the log."""
        ...

    def maintain(self) -> Callable[[], None] | None:
        """Background work that is due, if any."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


class TaskEnvironment(Protocol):
    """What runs a task, as the task sees it. Calls return at once."""

    def snapshot(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        """Make a snapshot durable on a worker, in order for each task, then acknowledge the checkpoint."""
        ...

    def abandoned(self, task: str, checkpoint: CheckpointId) -> None:
        """Note that the task abandoned this checkpoint."""
        ...

    def source_done(self, task: str, *, ended: bool) -> None:
        """Note that a source has nothing more to read in this run: it ended, or caught up."""
        ...

    def maintain(self, task: str, work: Callable[[], None]) -> None:
        """Run background work of a task on a worker."""
        ...

    def report(self, fact: Fact) -> None:
        """Report a fact to the listener."""
        ...


# ---- when a task may run a batch that several consumers run ----------------------------------------------------------

SIDE_BRANCH_TIMEOUT: Final = 2_000_000
"""Microseconds that a side branch waits for the main one, whose job shows whether the side branch has rows."""
UNTIL_WOKEN: Final = MonotonicTime(2**62)
"""Stands for "call again only when woken"."""


class BatchGate:
    """Keeps the consumers of a persisted batch apart until one of them has run it.

    A side branch that may have no rows lets the main branch go first, whose job shows whether it has any. Of the other
    consumers, the first that asks runs alone, so that the metrics of its job are complete.
    """

    def __init__(self, task: str, wake: Callable[[], None], *, runs_batches: bool) -> None:
        self._task = task
        self._wake = wake
        self._runs = runs_batches
        self._held_since: dict[int, MonotonicTime] = {}

    def wait_for(self, source: int, head: Element, now: MonotonicTime) -> MonotonicTime | None:
        """``None`` if the head of input ``source`` may be taken now; else when to ask again if not woken before."""
        if not self._runs or not isinstance(head, Batch) or not head.run_gates:
            return None
        due = self._side_branch_due(source, head, now)
        if due is not None:
            return due
        if is_empty(head) or all(gate.claim(self._task, self._wake) for gate in head.run_gates):
            self._held_since.pop(source, None)
            return None
        return UNTIL_WOKEN

    def _side_branch_due(self, source: int, head: Batch, now: MonotonicTime) -> MonotonicTime | None:
        """Until when a side branch waits for the main one, if it still does."""
        if head.only_if is None or all(gate.is_done for gate in head.run_gates):
            return None
        if source not in self._held_since:
            self._held_since[source] = now
            for gate in head.run_gates:
                gate.when_done(self._wake)
        due = MonotonicTime(self._held_since[source] + SIDE_BRANCH_TIMEOUT)
        return due if due > now else None


# ---- the task --------------------------------------------------------------------------------------------------------


class StepTask:
    """A task with inputs: follows barriers, combines watermarks, and lets its logic process batches.

    A scheduler calls ``step`` again and again, one call at a time for each task. So the elements, watermarks,
    timers and snapshots of one step are never processed concurrently. A call never blocks on another task: with no
    room downstream, or nothing to read, it returns at once and says when to call again.
    """

    def __init__(
        self,
        id: str,
        inputs: Inputs,
        output: TaskOutput,
        logic: TaskLogic,
        *,
        barriers: Callable[[int], BarrierHandler] = AlignedBarrierHandler,
        shell: TaskEnvironment,
        clock: Clock,
    ) -> None:
        self.id = id
        self._inputs = inputs
        self._output = output
        self._logic = logic
        self._shell = shell
        self._clock = clock
        self._barriers = barriers(len(inputs))
        self._mail: deque[Completed] = deque()
        self._ended: set[int] = set()
        self._announced = MIN_WATERMARK  # to the logic
        self._forwarded = MIN_WATERMARK
        self._idle_forwarded = False
        self._waits_for_tick = False
        self._snapshots = PendingSnapshots()
        self._barrier_timer = BarrierTimer()
        self._gate = BatchGate(id, inputs.wake, runs_batches=logic.runs_batches)
        self._maintaining = False
        self._unsettled: tuple[Batch, MonotonicTime, int | None] | None = None
        self.doing = "starting"

    def post(self, mail: Completed) -> None:
        """Queue mail, which is answered before the next element."""
        self._mail.append(mail)

    def step(self) -> StepResult:
        """Do at most one thing."""
        while self._mail:
            self._logic.completed(self._mail.popleft().checkpoint)
            self._maintain()  # not only after batches: compaction goes on when no more come
        if not self._settle():
            self._take_ready_snapshots()
            return StepResult()
        self._advance()
        self._take_ready_snapshots()
        now = self._clock.now()
        self._inputs.acknowledge(now, self._output)
        if not self._output.has_room:
            self.doing = "waiting for room downstream"
            return StepResult()
        wake = self._inputs.check_idle(now)
        waited, delay = self._waits_for_tick, self._logic.tick(output=self._output)
        self._waits_for_tick = delay is not None
        if delay is not None:
            wake = _earlier(wake, MonotonicTime(now + delay))
        elif waited and self._forwarded < self._announced:
            self._offer()  # what held it back was sent
        self._advance()
        self._forward_status()
        for source, head in self._inputs.ready(self._barriers.blocked):
            wait = self._gate.wait_for(source, head, self._clock.now())
            if wait is None:
                self._take(source)
                return StepResult(worked=True, done=len(self._ended) == len(self._inputs))
            wake = _earlier(wake, wait)
        aligning = self._barriers.aligning
        self.doing = "idle" if aligning is None else f"aligning checkpoint {aligning}"
        return StepResult(wake_at=wake)

    def close(self) -> None:
        """Release what is held, queued batches too; the task is not stepped again."""
        self._inputs.drain()
        self._logic.close()

    def _take(self, source: int) -> None:
        element = self._inputs.take(source)
        match element:
            case Batch():
                self._batch(source, element)
            case Watermark(at=at):
                self._advance_input(source, at)
            case WatermarkStatus(idle=idle):
                self._inputs.valve.set_idle(source, idle)
            case LatencyMarker():
                self._marked(element)
            case Barrier():
                self._barrier_timer.arrived(self._clock.now())
                self._align(self._barriers.handle(BarrierArrived(source=source, barrier=element)))
            case CancelBarrier():
                self._align(self._barriers.handle(CancelArrived(source=source, cancel=element)))
            case EndOfStream():
                self._end(source)
            case _:
                assert_never(element)
        self._advance()

    def _batch(self, source: int, batch: Batch) -> None:
        began = self._clock.now()
        self.doing = f"batch {batch.sequence}"
        self._inputs.valve.set_idle(source, False)
        self._inputs[source].received(batch, began, self._inputs.wake)
        rows = self._logic.process(batch, source=source, watermark=self._announced, output=self._output)
        self._unsettled = (batch, began, rows)
        self._settle()

    def _settle(self) -> bool:
        """Finish the last batch; ``False`` while it waits for a job downstream, and the task does nothing else."""
        if self._unsettled is None:
            return True
        if not self._logic.settle(self._inputs.wake):
            self.doing = "waiting for a job over its results"
            return False
        (batch, began, rows), self._unsettled = self._unsettled, None
        duration_ms = (self._clock.now() - began) / 1_000
        figures = {name: metrics.value for name, metrics in batch.metrics.items() if metrics.value}
        self._shell.report(
            BatchDone(task=self.id, sequence=batch.sequence, rows=rows, duration_ms=duration_ms, figures=figures)
        )
        self._maintain()
        return True

    def _marked(self, marker: LatencyMarker) -> None:
        """Forward a latency marker past the logic; at a sink, report its latency."""
        self._output.broadcast(marker)
        if self._output.is_end:
            micros = self._clock.now() - marker.sent
            self._shell.report(LatencyMeasured(source=marker.source, task=self.id, micros=micros))

    def _advance_input(self, source: int, at: EventTime) -> None:
        watermark = self._inputs[source].advance_from_upstream(at)
        if watermark is not None:
            self._inputs.valve.advance(source, watermark)

    def _advance(self) -> None:
        at = self._inputs.advance()
        if at > self._announced:
            self._announced = at
            self.doing = "advancing event time"
            self._offer()
            # The next tick may send what holds it back, and then has nothing to wait for.
            self._waits_for_tick = self._waits_for_tick or self._forwarded < at
            self._shell.report(WatermarkAdvanced(task=self.id, at=at))
        for fact in self._inputs.new_facts(self.id, self._announced):
            self._shell.report(fact)

    def _offer(self) -> None:
        """Tell the logic the watermark, and forward it as far as the logic lets it pass."""
        at = self._announced
        held = self._logic.advance(at, output=self._output)
        forward = at if held is None else min(at, held)
        if forward > self._forwarded:
            self._forwarded = forward
            self._output.broadcast(Watermark(at=forward))

    def _forward_status(self) -> None:
        idle = self._inputs.valve.all_idle
        if idle != self._idle_forwarded:
            self._idle_forwarded = idle
            self._output.broadcast(WatermarkStatus(idle=idle))

    def _end(self, source: int) -> None:
        self._ended.add(source)  # its watermark stays: at the end of time if the source ended, not at a stop
        self._align(self._barriers.handle(InputEnded(source=source)))
        if len(self._ended) == len(self._inputs):
            self._output.broadcast(EndOfStream())

    def _align(self, effects: list[AlignmentEffect]) -> None:
        for effect in effects:
            match effect:
                case TakeSnapshot(barrier=barrier):
                    self._snapshot(barrier)
                case AbortAlignment(checkpoint=checkpoint):
                    self._barrier_timer.abandoned(self._clock.now(), aligning=self._barriers.aligning is not None)
                    self._output.broadcast(CancelBarrier(checkpoint=checkpoint))
                    self._shell.abandoned(self.id, checkpoint)
                case _:
                    assert_never(effect)

    def _snapshot(self, barrier: Barrier) -> None:
        began = self._clock.now()
        self._advance()
        self.doing = f"snapshot of checkpoint {barrier.checkpoint}"
        work = self._logic.snapshot(barrier.checkpoint)
        self._output.broadcast(barrier)
        self._shell.report(self._barrier_timer.passed(self.id, barrier.checkpoint, began=began, now=self._clock.now()))
        self._snapshots.add(barrier.checkpoint, self._inputs.frozen(), work)
        self._take_ready_snapshots()

    def _take_ready_snapshots(self) -> None:
        for checkpoint, work in self._snapshots.ready():
            self._shell.snapshot(self.id, checkpoint, work)

    def _maintain(self) -> None:
        work = None if self._maintaining else self._logic.maintain()
        if work is None:
            return
        self._maintaining = True

        def run() -> None:
            try:
                work()
            finally:
                self._maintaining = False

        self._shell.maintain(self.id, run)


def _earlier(wake: MonotonicTime | None, other: MonotonicTime | None) -> MonotonicTime | None:
    return other if wake is None else wake if other is None else min(wake, other)
