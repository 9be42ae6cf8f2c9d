"""Checkpoints at a task that aligns and at one that only counts, stepped by hand. Numbers are Flink's scenarios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from core.runtime_fakes import Clock, KeepingWork, NotingShell, drained, output_to, rows
from penstock.clock import MonotonicTime
from penstock.elements import Barrier, CancelBarrier, Element, EndOfStream, LatencyMarker
from penstock.facts import LatencyMeasured
from penstock.handles import CheckpointId, TaskSnapshot
from penstock.runtime.barriers import MAX_TRACKED, AlignedBarrierHandler, BarrierHandler, BarrierTracker
from penstock.runtime.channels import Channel, TaskOutput
from penstock.runtime.inputs import Inputs
from penstock.runtime.task import Completed, StepTask

both_modes = pytest.mark.parametrize(
    "barriers", [AlignedBarrierHandler, BarrierTracker], ids=["exactly-once", "at-least-once"]
)


@dataclass
class OrderedShell(NotingShell):
    """Knows what was on its way downstream when a snapshot was asked for."""

    downstream: Channel = field(default_factory=Channel)
    forwarded: list[Element] = field(default_factory=list)

    def snapshot(self, task: str, checkpoint: CheckpointId, work: Callable[[], TaskSnapshot]) -> None:
        self.forwarded += drained(self.downstream)
        super().snapshot(task, checkpoint, work)


class Bench:
    """One task with two inputs, or as many as asked for."""

    def __init__(self, barriers: Callable[[int], BarrierHandler], inputs: int = 2) -> None:
        self.clock = Clock()
        self.shell = NotingShell()
        self.work = KeepingWork("step")
        self.sources = [Channel() for _ in range(inputs)]
        self.sink = Channel()
        self.task = self.made(barriers, self.shell)

    def made(self, barriers: Callable[[int], BarrierHandler], shell: NotingShell) -> StepTask:
        inputs = Inputs(self.sources, [None] * len(self.sources), wake=lambda: None)
        return StepTask(
            "step", inputs, output_to(self.sink), self.work, barriers=barriers, shell=shell, clock=self.clock
        )

    def feed(self, source: int, *elements: Element) -> None:
        for element in elements:
            self.sources[source].put(element)
        while (progress := self.task.step()).worked and not progress.done:
            pass

    @property
    def snapshots(self) -> list[int]:
        return [checkpoint for _, checkpoint, _ in self.shell.snapshots]


def barrier(number: int) -> Barrier:
    return Barrier(checkpoint=CheckpointId(number))


def cancel(number: int) -> CancelBarrier:
    return CancelBarrier(checkpoint=CheckpointId(number))


def test_at_least_once_nothing_waits_and_what_came_early_is_in_the_snapshot() -> None:
    bench = Bench(BarrierTracker)
    bench.feed(0, rows("a1"), barrier(1), rows("a2"))
    bench.feed(1, rows("b1"))
    assert bench.task.doing == "aligning checkpoint 1"
    bench.feed(1, barrier(1), rows("b2"))
    assert bench.work.calls == [(0, ["a1"]), (0, ["a2"]), (1, ["b1"]), ("snapshot", 1), (1, ["b2"])]
    assert drained(bench.sink) == [barrier(1)]
    assert bench.task.doing == "idle"


@both_modes
@pytest.mark.mission("L20")
def test_88_an_id_that_was_aborted_before_its_barriers_is_not_snapshotted(
    barriers: Callable[[int], BarrierHandler],
) -> None:
    bench = Bench(barriers)
    bench.feed(0, cancel(1))
    bench.feed(1, barrier(1), rows("b"))
    assert bench.snapshots == []
    assert bench.work.calls == [(1, ["b"])], "and nothing waits for it"
    bench.feed(0, barrier(2))
    bench.feed(1, barrier(2))
    assert bench.snapshots == [2]


@both_modes
def test_89_exactly_one_cancel_goes_downstream_however_many_come(barriers: Callable[[int], BarrierHandler]) -> None:
    bench = Bench(barriers, inputs=3)
    bench.feed(0, barrier(1), cancel(1))
    bench.feed(1, cancel(1))
    bench.feed(2, cancel(1))
    assert drained(bench.sink) == [cancel(1)]
    assert bench.shell.abandonments == [("step", 1)]
    assert bench.snapshots == []


@both_modes
def test_90_a_cancel_after_the_snapshot_is_late_and_changes_nothing(barriers: Callable[[int], BarrierHandler]) -> None:
    bench = Bench(barriers)
    bench.feed(0, barrier(2))
    bench.feed(1, barrier(2), cancel(2), rows("b"))
    bench.feed(0, cancel(2))
    assert bench.snapshots == [2]
    assert bench.shell.abandonments == []
    assert drained(bench.sink) == [barrier(2)]
    assert bench.work.calls[-1] == (1, ["b"])


@both_modes
def test_91_however_many_are_aborted_few_ids_are_remembered(barriers: Callable[[int], BarrierHandler]) -> None:
    bench = Bench(barriers)
    for number in range(1, 1_000):
        bench.feed(0, cancel(number))
    machine = bench.task._alignment
    remembered = len(machine.pending) if isinstance(machine, BarrierTracker) else len(machine.blocked)
    assert remembered <= MAX_TRACKED
    assert len(bench.shell.abandonments) == 999
    bench.feed(1, *(barrier(number) for number in range(1, 1_001)))
    bench.feed(0, barrier(1_000))
    assert bench.snapshots == [1_000]


@both_modes
@pytest.mark.mission("L13")
def test_state_is_named_the_barrier_goes_on_and_only_then_the_snapshot_is_made_durable(
    barriers: Callable[[int], BarrierHandler],
) -> None:
    bench = Bench(barriers, inputs=1)
    shell = OrderedShell(downstream=bench.sink)
    bench.task = bench.made(barriers, shell)
    named_before: list[object] = []
    bench.sink.connect(on_put=lambda: named_before.extend(bench.work.calls), on_take=lambda: None)
    bench.feed(0, barrier(1), rows("next"))
    assert named_before == [("snapshot", 1)], "it costs nothing to name immutable layers, so that comes first"
    assert shell.forwarded == [barrier(1)]
    assert [checkpoint for _, checkpoint, _ in shell.snapshots] == [1]


@pytest.mark.mission("L21")
def test_an_aligning_input_is_not_read_on_and_the_abort_of_its_checkpoint_frees_it() -> None:
    bench = Bench(AlignedBarrierHandler)
    bench.feed(0, barrier(1), rows("a1"), rows("a2"))
    assert bench.work.calls == []
    assert not bench.sources[0].has_room, "who sends there stops by itself: no more than the channel holds ever waits"
    bench.feed(1, cancel(1))
    assert bench.work.calls == [(0, ["a1"]), (0, ["a2"])]
    assert bench.snapshots == []


@both_modes
def test_an_input_that_ends_counts_as_through_once(barriers: Callable[[int], BarrierHandler]) -> None:
    bench = Bench(barriers)
    bench.feed(0, barrier(1), EndOfStream())
    assert bench.task.doing == "aligning checkpoint 1"
    bench.feed(1, barrier(1))
    assert bench.snapshots == [1]
    bench.feed(1, barrier(2), EndOfStream())
    assert bench.snapshots == [1, 2]


def test_a_latency_marker_ends_at_a_sink_and_tells_how_long_it_took() -> None:
    bench = Bench(AlignedBarrierHandler, inputs=1)
    inputs = Inputs(bench.sources, [None], wake=lambda: None)
    end = TaskOutput({}, keep=lambda batch, readers: batch)
    bench.task = StepTask("out", inputs, end, bench.work, shell=bench.shell, clock=bench.clock)
    bench.clock.at = 250
    bench.feed(0, LatencyMarker(source="in", sent=MonotonicTime(100)))
    assert bench.shell.facts == [LatencyMeasured(source="in", task="out", micros=150)]


def test_a_latency_marker_on_its_way_tells_nothing_yet() -> None:
    bench = Bench(AlignedBarrierHandler, inputs=1)
    marker = LatencyMarker(source="in", sent=MonotonicTime(100))
    bench.feed(0, marker)
    assert bench.shell.facts == []
    assert drained(bench.sink) == [marker]


def test_background_work_of_a_step_runs_one_at_a_time() -> None:
    bench = Bench(AlignedBarrierHandler, inputs=1)
    handed_in: list[Callable[[], None]] = []
    ran: list[int] = []
    bench.shell.maintain = lambda task, work: handed_in.append(work)  # type: ignore[method-assign]
    bench.work.maintain = lambda: lambda: ran.append(1)  # type: ignore[method-assign]
    bench.feed(0, rows("a"), rows("b"))
    assert len(handed_in) == 1
    handed_in.pop()()
    bench.feed(0, rows("c"))
    assert (ran, len(handed_in)) == ([1], 1)


def test_a_step_that_gets_no_more_rows_still_settles_its_state_when_a_checkpoint_is_complete() -> None:
    bench = Bench(AlignedBarrierHandler, inputs=1)
    handed_in: list[Callable[[], None]] = []
    bench.shell.maintain = lambda task, work: handed_in.append(work)  # type: ignore[method-assign]
    bench.work.maintain = lambda: lambda: None  # type: ignore[method-assign]
    bench.task.post(Completed(checkpoint=CheckpointId(1)))
    bench.task.step()
    assert len(handed_in) == 1
