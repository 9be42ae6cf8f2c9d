"""Silence is not counted while a source may not be asked: its last batch is at work here, or behind, or in a queue.

Flink has had this as FLINK-35886: time spent under backpressure made inputs idle, and their next rows late.
"""

from __future__ import annotations

from collections.abc import Callable

from core.runtime_fakes import Clock, KeepingWork, NotingShell, drained, marked, output_to, rows
from penstock.clock import EventTime, MonotonicTime
from penstock.elements import Barrier, Batch, ObservedMetrics, SourceBatch, SourcePartitions, Watermark, WatermarkStatus
from penstock.handles import CheckpointId
from penstock.runtime.channels import Channel
from penstock.runtime.inputs import Inputs
from penstock.runtime.task import StepResult, StepTask


class Leaving(KeepingWork):
    """Leaves each batch's job to whoever runs what it emits."""

    has_run = True

    def settle(self, wake: Callable[[], None]) -> bool:
        return self.has_run


class Bench:
    """A step with inputs that are idle after 100, and a sink behind it that is stepped by hand."""

    def __init__(self, inputs: int = 1) -> None:
        self.clock, self.shell = Clock(), NotingShell()
        self.work = Leaving("step", passes_on=True)
        self.sources, self.sink = [Channel() for _ in range(inputs)], Channel()
        self.inputs = Inputs(self.sources, [marked(idle_after=100)] * inputs, wake=lambda: None)
        self.task = StepTask("step", self.inputs, output_to(self.sink), self.work, shell=self.shell, clock=self.clock)

    def at(self, now: int) -> StepResult:
        """Step until nothing is left to do."""
        self.clock.at = now
        while (progress := self.task.step()).worked:
            pass
        return progress

    def sink_takes(self) -> None:
        """It has taken all there is, and is at work."""
        while self.sink.peek() is not None:
            self.sink.take()

    def sink_is_through(self) -> None:
        """It has worked off all there is."""
        self.sink_takes()
        self.sink.acknowledge(self.sink.taken)

    @property
    def idle(self) -> set[int]:
        return self.inputs.valve.idle


def test_a_step_that_waits_for_the_job_over_its_results_does_not_call_its_source_idle_for_that() -> None:
    bench = Bench()
    bench.work.has_run = False
    bench.sources[0].put(rows(1, largest=5))
    assert bench.at(0) == StepResult()
    bench.work.has_run = True
    bench.at(250)
    assert bench.idle == set(), "nobody could have brought rows"
    bench.sink_is_through()
    assert bench.at(250) == StepResult(wake_at=MonotonicTime(350)), "silence begins here"
    bench.at(349)
    assert bench.idle == set()
    bench.at(350)
    assert bench.idle == {0}


def test_while_whoever_comes_behind_is_at_work_the_source_may_wait_for_that_too() -> None:
    bench = Bench()
    bench.sources[0].put(rows(1, largest=5))
    bench.at(0)
    bench.at(250)
    assert bench.idle == set()
    bench.sink_is_through()
    assert bench.at(300) == StepResult(wake_at=MonotonicTime(400))
    bench.at(400)
    assert bench.idle == {0}
    assert drained(bench.sink)[-1] == WatermarkStatus(idle=True)


def test_of_two_inputs_the_one_whose_rows_are_held_back_makes_nobodys_rows_late() -> None:
    bench = Bench(2)
    bench.sources[0].put(rows(1, largest=50))
    bench.at(0)
    bench.sources[1].put(rows(1, largest=10))
    bench.at(0)
    bench.sink_is_through()
    bench.at(0)
    bench.work.has_run = False
    bench.sources[1].put(rows(2, largest=11))
    bench.at(90)
    bench.sources[0].put(rows(2, largest=60))
    bench.work.has_run = True
    bench.at(250)
    bench.sink_is_through()
    bench.at(250)
    bench.sources[1].put(rows(3, largest=12))
    bench.at(260)
    assert bench.inputs.valve.at == 12, "what the second one has is as old as it says, and not late"


def test_an_alignment_that_takes_long_makes_nobody_idle_of_whom_something_waits() -> None:
    bench = Bench(2)
    for channel in bench.sources:
        channel.put(rows(1, largest=5))
    bench.at(0)
    bench.sink_is_through()
    bench.at(0)
    bench.sources[0].put(Barrier(checkpoint=CheckpointId(1)))
    bench.sources[0].put(rows(2, largest=6))
    bench.at(1)
    bench.at(500)
    assert bench.idle == {1}, "the other one is asked, and brings nothing"
    bench.sources[1].put(Barrier(checkpoint=CheckpointId(1)))
    bench.at(510)
    assert bench.idle == {1}
    assert bench.inputs.valve.inputs == [6, 5]


# ------------------------------------------------------------------------------------------------------- partitions


def of(asked: int, **largest: int | None) -> Batch:
    """A batch that its source was asked for then, with the largest event time of each partition."""
    told = {"max": None, "partitions": largest}
    return Batch(
        frame=[],
        sequence=1,
        metrics={"time:7": ObservedMetrics(lambda: told)},
        partitions=SourcePartitions(names=tuple(largest), column="p", source="t"),
        source_batch=SourceBatch("t", 1, MonotonicTime(asked)),
    )


def test_a_quiet_partition_is_not_idle_by_the_time_that_a_batch_took() -> None:
    bench = Bench()
    bench.sources[0].put(of(0, p=50, q=5))
    bench.at(0)
    bench.sink_is_through()
    bench.at(0)
    bench.work.has_run = False
    bench.sources[0].put(of(40, p=60, q=None))
    bench.at(40)
    bench.work.has_run = True
    bench.at(500)
    bench.sink_is_through()
    assert bench.at(500).wake_at == 560, "40 of silence are known of; sixty more make a hundred"
    assert bench.inputs.valve.at == 5
    bench.sources[0].put(of(500, p=70, q=6))
    bench.at(500)
    bench.sink_is_through()
    bench.at(500)
    assert bench.inputs.valve.at == 6, "it had brought rows meanwhile, which nobody asked for"


def test_a_partition_that_the_source_was_asked_for_in_vain_is_idle_though_batches_never_cease() -> None:
    bench = Bench()
    for now in range(0, 201, 20):
        bench.sources[0].put(of(now, p=50 + now, q=5 if now == 0 else None))
        bench.at(now)
        bench.sink_takes()
    assert bench.inputs.valve.at == 250, "the sink was never through"


def test_how_long_a_batch_stood_in_the_queue_says_nothing_of_partitions_that_it_lacks() -> None:
    bench = Bench()
    bench.sources[0].put(of(0, p=50, q=5))
    bench.at(0)
    bench.sink_takes()
    bench.sources[0].put(of(1, p=60, q=None))
    bench.sources[0].put(of(450, p=70, q=6))
    bench.at(460)
    assert bench.inputs.valve.at == 6


def test_what_becomes_known_when_a_batch_is_through_is_told_at_once() -> None:
    bench = Bench()
    bench.sources[0].put(of(0, p=50, q=5))
    bench.at(0)
    bench.sink_is_through()
    bench.at(0)
    without_times = Batch(frame=[], sequence=2, source_batch=SourceBatch("t", 2, MonotonicTime(150)))
    bench.sources[0].put(without_times)
    bench.at(150)
    bench.sink_is_through()
    bench.at(150)
    assert bench.inputs.valve.at == 50, "the source was asked at 150, and the second partition had nothing"
    assert drained(bench.sink) == [Watermark(at=EventTime(50))], "nobody would wake the step to tell it"
