"""One task: takes an element, lets its work do what it means, forwards. Knows neither threads nor Spark.

A scheduler calls :meth:`step` again and again, one call at a time for each task, so that element, watermark, timer
and snapshot of one step never run concurrently. A step never blocks on another task: with no room downstream, or
nothing to read, it says so and when to be called again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.elements import (
    Barrier,
    Batch,
    CancelBarrier,
    EndOfStream,
    InputStatus,
    LatencyMarker,
    Watermark,
)
from penstock.errors import assert_never
from penstock.facts import BatchDone, LatencyMeasured, WatermarkAdvanced
from penstock.ids import BEGINNING, EventTime, Instant
from penstock.runtime.alignment import (
    Abandon,
    Alignment,
    AlignmentEffect,
    BarrierArrived,
    Barriers,
    CancelArrived,
    InputEnded,
    TakeSnapshot,
)
from penstock.runtime.captures import BarrierWatch, Captures
from penstock.runtime.clock import Clock
from penstock.runtime.inputs import Inputs
from penstock.runtime.output import Output
from penstock.runtime.task_protocols import Completed, Progress, Shell, Work
from penstock.runtime.turns import Turns


class StepTask:
    """A task with inputs: follows barriers as ``barriers`` does, combines watermarks, lets its work do the rest."""

    def __init__(
        self,
        id: str,
        inputs: Inputs,
        output: Output,
        work: Work,
        *,
        barriers: Callable[[int], Barriers] = Alignment,
        shell: Shell,
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
        self._announced = BEGINNING
        self._passed_on = BEGINNING
        self._idle_announced = False
        self._captures = Captures()
        self._barriers = BarrierWatch()
        self._turns = Turns(id, inputs.wake, runs_batches=work.runs_batches)
        self._maintaining = False
        self._unsettled: tuple[Batch, Instant, int | None] | None = None
        self.doing = "starting"

    def post(self, mail: Completed) -> None:
        """Hand in mail; it is read before the next element."""
        self._mail.append(mail)

    def step(self) -> Progress:
        """Do at most one thing."""
        while self._mail:
            self._work.completed(self._mail.popleft().checkpoint)
            self._maintain()  # not only after batches: state settles too when no more come
        if not self._settle():
            self._report_captures()
            return Progress()
        self._advance()
        self._report_captures()
        if not self._output.has_room:
            self.doing = "waiting for room downstream"
            return Progress()
        now = self._clock.now()
        wake = self._inputs.check_idle(now)
        if (rest := self._work.tick(output=self._output)) is not None:
            wake = Instant(now + rest) if wake is None else min(wake, Instant(now + rest))
        self._advance()
        self._announce_status()
        for source, head in self._inputs.ready(self._alignment.blocked):
            wait = self._turns.wait_for(source, head, self._clock.now())
            if wait is None:
                self._take(source)
                return Progress(worked=True, done=len(self._ended) == len(self._inputs))
            wake = wait if wake is None else min(wake, wait)
        if self._output.is_awaited and (look := self._inputs.through(now)) is not None:
            wake = look if wake is None else min(wake, look)
        aligning = self._alignment.aligning
        self.doing = "idle" if aligning is None else f"aligning checkpoint {aligning}"
        return Progress(wake_at=wake)

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
            case InputStatus(idle=idle):
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
            self._output.broadcast(InputStatus(idle=idle))

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
                case Abandon(checkpoint=checkpoint):
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
            self._shell.capture(self.id, checkpoint, work)

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
