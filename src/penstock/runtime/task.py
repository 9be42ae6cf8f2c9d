"""StepTask: takes an element, follows barriers, forwards; TaskEnvironment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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

# ----------------------------------------------------------------------------------------------------
# A task's snapshots between barrier and worker: how long barriers took, and which watermarks are still to be told.
#
# Knows neither elements nor what a snapshot holds.

SnapshotWork: TypeAlias = Callable[[tuple[EventTime, ...]], TaskSnapshot]
"""Makes a snapshot durable and describes it, given the watermarks at the barrier. Runs on a worker."""


class PendingSnapshots:
    """Snapshots that were named and wait for what batches before the barrier tell of event time. In order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[CheckpointId, FrozenWatermarks, SnapshotWork]] = deque()

    def add(self, checkpoint: CheckpointId, watermarks: FrozenWatermarks, capture: SnapshotWork) -> None:
        """One more."""
        self._waiting.append((checkpoint, watermarks, capture))

    def ready(self) -> list[tuple[CheckpointId, Callable[[], TaskSnapshot]]]:
        """Those that wait for nothing any more, oldest first; each is told once."""
        found = []
        while self._waiting and self._waiting[0][1].settled:
            checkpoint, watermarks, capture = self._waiting.popleft()
            found.append((checkpoint, _given(capture, watermarks.values())))
        return found


class BarrierTimer:
    """How long a task's barriers take, from the first of a checkpoint on."""

    def __init__(self) -> None:
        self._first: MonotonicTime | None = None

    def came(self, now: MonotonicTime) -> None:
        """A barrier came; only the first of an alignment counts."""
        self._first = now if self._first is None else self._first

    def abandoned(self, now: MonotonicTime, *, aligning: bool) -> None:
        """An alignment was given up; ``aligning`` if the barrier that caused it has begun another."""
        self._first = now if aligning else None

    def passed(self, task: str, checkpoint: CheckpointId, *, began: MonotonicTime, now: MonotonicTime) -> BarrierPassed:
        """The last barrier came when naming state ``began``, and went on now."""
        first, self._first = self._first, None
        aligned = 0 if first is None else began - first
        return BarrierPassed(
            task=task, checkpoint=checkpoint, aligned_ms=aligned / 1_000, stall_ms=(now - began) / 1_000
        )


def _given(capture: SnapshotWork, watermarks: tuple[EventTime, ...]) -> Callable[[], TaskSnapshot]:
    return lambda: capture(watermarks)


# ----------------------------------------------------------------------------------------------------
# What a task asks of its work and of what runs it, and what it tells; knows neither threads nor Spark.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step did: whether it worked, and when it wants to be called again without being woken."""

    worked: bool = False
    wake_at: MonotonicTime | None = None
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Mail: this checkpoint is in the log."""

    checkpoint: CheckpointId


class TaskLogic(Protocol):
    """What a step does with what arrives: a union, an operator or a sink."""

    runs_batches: bool
    """Whether it runs jobs over batches; a union only passes them on."""

    def process(self, batch: Batch, *, source: int, watermark: EventTime, output: TaskOutput) -> int | None:
        """Take in a batch (and release it, or pass it on); returns the rows it made or wrote, if known."""
        ...

    def settle(self, wake: Callable[[], None]) -> bool:
        """Be done with the batch that was taken in last; ``False`` if a job downstream has to run before.

        Then ``wake`` is called after it. Until it is done nothing else is asked for but background work, and nothing
        told but that a checkpoint is in the log.
        """
        ...

    def advance(self, watermark: EventTime, *, output: TaskOutput) -> EventTime | None:
        """The watermark rose; it is forwarded afterwards, or what is returned, if that is lower."""
        ...

    def tick(self, *, output: TaskOutput) -> int | None:
        """Act in processing time; after how many microseconds to ask again, if it matters."""
        ...

    def snapshot(self, checkpoint: CheckpointId) -> SnapshotWork:
        """Name the state as of now."""
        ...

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is in the log."""
        ...

    def maintain(self) -> Callable[[], None] | None:
        """Background work that is due."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


class TaskEnvironment(Protocol):
    """What a task may ask of what runs it. Calls return at once."""

    def snapshot(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        """Carry out the durable part of a snapshot on a worker, in order for each task, then acknowledge it."""
        ...

    def abandoned(self, task: str, checkpoint: CheckpointId) -> None:
        """The task will not take part in this checkpoint any more."""
        ...

    def source_done(self, task: str, *, ended: bool) -> None:
        """A source has nothing more to read in this run: it ended, or caught up."""
        ...

    def maintain(self, task: str, work: Callable[[], None]) -> None:
        """Run background work of a task on a worker."""
        ...

    def report(self, fact: Fact) -> None:
        """Tell observers."""
        ...


# ----------------------------------------------------------------------------------------------------
# When a task may run a batch that others run too. Knows nothing of channels and operators.

SIDE_BRANCH_TIMEOUT: Final = 2_000_000
"""Microseconds that a side branch waits for the main one to tell whether it has rows at all."""
UNTIL_WOKEN: Final = MonotonicTime(2**62)
"""Nothing but a wake-up helps."""


class BatchGate:
    """Keeps the consumers of a kept batch apart until one of them has run it.

    A side branch that may have no rows lets the main one go first, which tells; of the others the first that asks runs
    alone, so that the figures of its job are whole.
    """

    def __init__(self, task: str, wake: Callable[[], None], *, runs_batches: bool) -> None:
        self._task = task
        self._wake = wake
        self._runs = runs_batches
        self._held: dict[int, MonotonicTime] = {}

    def wait_for(self, source: int, head: Element, now: MonotonicTime) -> MonotonicTime | None:
        """``None`` if the head of input ``source`` may be taken now; else when to ask again without being woken."""
        if not self._runs or not isinstance(head, Batch) or not head.firsts:
            return None
        due = self._patience(source, head, now)
        if due is not None:
            return due
        if is_empty(head) or all(first.claim(self._task, self._wake) for first in head.firsts):
            self._held.pop(source, None)
            return None
        return UNTIL_WOKEN

    def _patience(self, source: int, head: Batch, now: MonotonicTime) -> MonotonicTime | None:
        """Until when a side branch waits for the main one, if it still does."""
        if head.only_if is None or all(first.is_done for first in head.firsts):
            return None
        if source not in self._held:
            self._held[source] = now
            for first in head.firsts:
                first.when_done(self._wake)
        due = MonotonicTime(self._held[source] + SIDE_BRANCH_TIMEOUT)
        return due if due > now else None


# ----------------------------------------------------------------------------------------------------
# One task: takes an element, lets its work do what it means, forwards. Knows neither threads nor Spark.
#
# A scheduler calls :meth:`step` again and again, one call at a time for each task, so that element, watermark, timer
# and snapshot of one step never run concurrently. A step never blocks on another task: with no room downstream, or
# nothing to read, it says so and when to be called again.


class StepTask:
    """A task with inputs: follows barriers as ``barriers`` does, combines watermarks, lets its work do the rest."""

    def __init__(
        self,
        id: str,
        inputs: Inputs,
        output: TaskOutput,
        work: TaskLogic,
        *,
        barriers: Callable[[int], BarrierHandler] = AlignedBarrierHandler,
        shell: TaskEnvironment,
        clock: Clock,
    ) -> None:
        self.id = id
        self._inputs = inputs
        self._output = output
        self._work = work
        self._shell = shell
        self._clock = clock
        self._alignment = barriers(len(inputs))
        self._mail: deque[Completed] = deque()
        self._ended: set[int] = set()
        self._announced = MIN_WATERMARK
        self._passed_on = MIN_WATERMARK
        self._idle_announced = False
        self._captures = PendingSnapshots()
        self._barriers = BarrierTimer()
        self._turns = BatchGate(id, inputs.wake, runs_batches=work.runs_batches)
        self._maintaining = False
        self._unsettled: tuple[Batch, MonotonicTime, int | None] | None = None
        self.doing = "starting"

    def post(self, mail: Completed) -> None:
        """Hand in mail; it is read before the next element."""
        self._mail.append(mail)

    def step(self) -> StepResult:
        """Do at most one thing."""
        while self._mail:
            self._work.completed(self._mail.popleft().checkpoint)
            self._maintain()  # not only after batches: state settles too when no more come
        if not self._settle():
            self._report_captures()
            return StepResult()
        self._advance()
        self._report_captures()
        if not self._output.has_room:
            self.doing = "waiting for room downstream"
            return StepResult()
        now = self._clock.now()
        wake = self._inputs.check_idle(now)
        if (rest := self._work.tick(output=self._output)) is not None:
            wake = MonotonicTime(now + rest) if wake is None else min(wake, MonotonicTime(now + rest))
        self._advance()
        self._announce_status()
        for source, head in self._inputs.ready(self._alignment.blocked):
            wait = self._turns.wait_for(source, head, self._clock.now())
            if wait is None:
                self._take(source)
                return StepResult(worked=True, done=len(self._ended) == len(self._inputs))
            wake = wait if wake is None else min(wake, wait)
        if self._output.is_awaited and (look := self._inputs.through(now)) is not None:
            wake = look if wake is None else min(wake, look)
        aligning = self._alignment.aligning
        self.doing = "idle" if aligning is None else f"aligning checkpoint {aligning}"
        return StepResult(wake_at=wake)

    def close(self) -> None:
        """Release what is held, waiting batches too; the task is not stepped again."""
        self._inputs.drain()
        self._work.close()

    def _take(self, source: int) -> None:
        element = self._inputs.take(source)
        match element:
            case Batch():
                self._batch(source, element)
            case Watermark(at=at):
                self._passed(source, at)
            case WatermarkStatus(idle=idle):
                self._inputs.valve.set_idle(source, idle)
            case LatencyMarker():
                self._marked(element)
            case Barrier():
                self._barriers.came(self._clock.now())
                self._align(self._alignment.handle(BarrierArrived(source=source, barrier=element)))
            case CancelBarrier():
                self._align(self._alignment.handle(CancelArrived(source=source, cancel=element)))
            case EndOfStream():
                self._end(source)
            case _:
                assert_never(element)
        self._advance()

    def _batch(self, source: int, batch: Batch) -> None:
        began = self._clock.now()
        self.doing = f"batch {batch.sequence}"
        self._inputs.valve.set_idle(source, False)
        self._inputs[source].took(batch, began, self._inputs.wake)
        rows = self._work.process(batch, source=source, watermark=self._announced, output=self._output)
        self._unsettled = (batch, began, rows)
        self._settle()

    def _settle(self) -> bool:
        """Be done with the last batch, unless it waits for a job downstream: then with nothing else before it."""
        if self._unsettled is None:
            return True
        if not self._work.settle(self._inputs.wake):
            self.doing = "waiting for a job over its results"
            return False
        (batch, began, rows), self._unsettled = self._unsettled, None
        took = (self._clock.now() - began) / 1_000
        figures = {name: measure.value for name, measure in batch.measures.items() if measure.value}
        self._shell.report(
            BatchDone(task=self.id, sequence=batch.sequence, rows=rows, duration_ms=took, figures=figures)
        )
        self._maintain()
        return True

    def _marked(self, marker: LatencyMarker) -> None:
        """Past the work, to whoever comes next; at a sink it has arrived."""
        self._output.broadcast(marker)
        if self._output.is_end:
            micros = self._clock.now() - marker.sent
            self._shell.report(LatencyMeasured(source=marker.source, task=self.id, micros=micros))

    def _passed(self, source: int, at: EventTime) -> None:
        passed = self._inputs[source].passed(at)
        if passed is not None:
            self._inputs.valve.advance(source, passed)

    def _advance(self) -> None:
        at = self._inputs.advance()
        if at > self._announced:
            self._announced = at
            self.doing = "advancing event time"
            held = self._work.advance(at, output=self._output)
            passed = at if held is None else min(at, held)
            if passed > self._passed_on:
                self._passed_on = passed
                self._output.broadcast(Watermark(at=passed))
            self._shell.report(WatermarkAdvanced(task=self.id, at=at))
        for fact in self._inputs.news(self.id, self._announced):
            self._shell.report(fact)

    def _announce_status(self) -> None:
        idle = self._inputs.valve.all_idle
        if idle != self._idle_announced:
            self._idle_announced = idle
            self._output.broadcast(WatermarkStatus(idle=idle))

    def _end(self, source: int) -> None:
        self._ended.add(source)  # its watermark stays: at the end of time if the source ended, not at a stop
        self._align(self._alignment.handle(InputEnded(source=source)))
        if len(self._ended) == len(self._inputs):
            self._output.broadcast(EndOfStream())

    def _align(self, effects: list[AlignmentEffect]) -> None:
        for effect in effects:
            match effect:
                case TakeSnapshot(barrier=barrier):
                    self._snapshot(barrier)
                case AbortAlignment(checkpoint=checkpoint):
                    self._barriers.abandoned(self._clock.now(), aligning=self._alignment.aligning is not None)
                    self._output.broadcast(CancelBarrier(checkpoint=checkpoint))
                    self._shell.abandoned(self.id, checkpoint)
                case _:
                    assert_never(effect)

    def _snapshot(self, barrier: Barrier) -> None:
        began = self._clock.now()
        self._advance()
        self.doing = f"snapshot of checkpoint {barrier.checkpoint}"
        capture = self._work.snapshot(barrier.checkpoint)
        self._output.broadcast(barrier)
        self._shell.report(self._barriers.passed(self.id, barrier.checkpoint, began=began, now=self._clock.now()))
        self._captures.add(barrier.checkpoint, self._inputs.frozen(), capture)
        self._report_captures()

    def _report_captures(self) -> None:
        for checkpoint, work in self._captures.ready():
            self._shell.snapshot(self.id, checkpoint, work)

    def _maintain(self) -> None:
        work = None if self._maintaining else self._work.maintain()
        if work is None:
            return
        self._maintaining = True

        def run() -> None:
            try:
                work()
            finally:
                self._maintaining = False

        self._shell.maintain(self.id, run)
