"""A task among its channels, stepped by hand: order, alignment, watermarks, snapshots, backpressure."""

from collections.abc import Callable

import pytest

from core.runtime_fakes import Clock, KeepingWork, NotingShell, drained, marked, output_to, rows
from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime, MonotonicTime
from penstock.elements import (
    Barrier,
    Batch,
    CancelBarrier,
    EndOfStream,
    FirstRunGate,
    LatencyMarker,
    ObservedMetrics,
    RefCount,
    Watermark,
    WatermarkStatus,
)
from penstock.facts import BarrierPassed, BatchDone
from penstock.graph.nodes import WithWatermark
from penstock.handles import CheckpointId, TaskSnapshot
from penstock.runtime.channels import Channel
from penstock.runtime.inputs import Inputs
from penstock.runtime.task import SIDE_BRANCH_TIMEOUT, UNTIL_WOKEN, BatchGate, Completed, StepResult, StepTask


class Bench:
    """One task with its channels."""

    def __init__(self, inputs: int = 1, *, mark: WithWatermark | None = None, passes_on: bool = False) -> None:
        self.clock = Clock()
        self.shell = NotingShell()
        self.work = KeepingWork("step", passes_on=passes_on)
        self.sources = [Channel() for _ in range(inputs)]
        self.sink = Channel()
        self.woken = 0
        self.task = StepTask(
            "step",
            Inputs(self.sources, [mark] * inputs, wake=self._wake),
            output_to(self.sink),
            self.work,
            shell=self.shell,
            clock=self.clock,
        )

    def _wake(self) -> None:
        self.woken += 1

    def settle_down(self) -> StepResult:
        """Step until nothing is left to do."""
        while (progress := self.task.step()).worked and not progress.done:
            pass
        return progress


def at(value: int) -> Watermark:
    return Watermark(at=EventTime(value))


def barrier(number: int) -> Barrier:
    return Barrier(checkpoint=CheckpointId(number))


def test_batches_of_one_input_are_through_while_another_has_a_backlog() -> None:
    first, last = Bench(2, passes_on=True), Bench(passes_on=False)
    few, many = first.sources
    last.sources[0].connect(on_put=lambda: None, on_take=lambda: None)
    through: list[int] = []
    for turn in range(30):
        while many.has_room:
            many.put(rows("many"))
        if few.is_drained:
            few.put(rows("few"))
        while first.sink.has_room and first.task.step().worked:
            pass
        last.sources[0].put(first.sink.take())
        last.settle_down()
        first.sink.acknowledge(last.sources[0].through)
        through.append(few.through)
        assert not many.is_drained, turn
        assert first.work.calls.count((0, ["few"])) <= few.through + 1, "the next one comes when the last is through"
    assert through[-1] >= 5


def test_batches_and_control_elements_keep_their_order() -> None:
    bench = Bench(passes_on=True)
    for element in (rows(1), at(5), barrier(1), rows(2)):
        bench.sources[0].put(element)
    bench.settle_down()
    assert bench.work.calls == [(0, [1]), ("advance", 5), ("snapshot", 1), (0, [2])]
    assert drained(bench.sink) == [[1], at(5), barrier(1), [2]]
    assert bench.shell.snapshots == [("step", 1, TaskSnapshot(task="step", watermarks=(EventTime(5),)))]


def test_a_watermark_that_was_held_back_comes_again_once_nothing_waits_for_its_time() -> None:
    bench = Bench()
    held: list[EventTime | None] = [EventTime(3), None]
    bench.work.advance = lambda at, *, output: held.pop(0)  # type: ignore[assignment,method-assign]
    bench.work.rest = 10
    bench.sources[0].put(at(5))
    assert bench.settle_down().wake_at == 10
    assert drained(bench.sink) == [at(3)]
    bench.work.rest = None
    bench.settle_down()
    assert drained(bench.sink) == [at(5)]
    bench.settle_down()
    assert held == [], "what has passed does not come again"


def test_a_watermark_that_was_held_back_comes_again_after_a_tick_that_had_nothing_to_wait_for() -> None:
    bench = Bench()
    held: list[EventTime | None] = [EventTime(3), None]
    bench.work.advance = lambda at, *, output: held.pop(0)  # type: ignore[assignment,method-assign]
    bench.work.rest = None  # what held it back was due in this very tick, and sent
    bench.sources[0].put(at(5))
    bench.settle_down()
    assert drained(bench.sink) == [at(3), at(5)]
    assert held == []


def test_a_watermark_that_is_held_back_for_good_is_offered_once_more_and_not_for_ever() -> None:
    bench = Bench()
    offers: list[EventTime] = []

    def advance(at: EventTime, **_: object) -> EventTime:
        offers.append(at)
        return EventTime(at - 2)

    bench.work.advance = advance  # type: ignore[assignment,method-assign]
    bench.work.rest = None
    for time in (5, 6):
        bench.sources[0].put(at(time))
        bench.settle_down()
    bench.settle_down()
    assert offers == [5, 5, 6, 6]
    assert drained(bench.sink) == [at(3), at(4)]


def test_what_was_taken_is_through_once_what_became_of_it_is() -> None:
    bench = Bench(passes_on=True)
    source, sink = bench.sources[0], bench.sink
    source.put(rows(1))
    assert not source.is_drained
    bench.settle_down()
    assert not source.is_drained, "it was sent on, and waits there"
    source.put(at(4))
    bench.settle_down()
    assert not source.is_drained, "what came behind it was taken, and it is not through for that"
    sink.take()
    sink.take()
    bench.settle_down()
    assert not source.is_drained, "the next one works on it"
    sink.acknowledge(sink.taken)
    bench.settle_down()
    assert source.is_drained
    source.put(at(5))
    assert not source.is_drained, "not yet taken"


@pytest.mark.mission("L8", "L16", "L19")
def test_71_what_follows_an_early_barrier_waits_for_the_other_input_and_keeps_its_order() -> None:
    bench = Bench(2)
    for element in (rows("a1"), barrier(1), rows("a2"), rows("a3")):
        bench.sources[0].put(element)
    bench.sources[1].put(rows("b1"))
    bench.settle_down()
    assert bench.task.doing == "aligning checkpoint 1"
    assert [call for call in bench.work.calls if call == (0, ["a2"])] == []
    bench.sources[1].put(barrier(1))
    bench.settle_down()
    assert bench.work.calls[-3:] == [("snapshot", 1), (0, ["a2"]), (0, ["a3"])]


def test_a_passed_barrier_tells_how_long_inputs_waited_for_it_and_how_long_naming_state_took() -> None:
    bench = Bench(2)
    bench.sources[0].put(barrier(1))
    bench.settle_down()
    bench.clock.at += 3_000
    bench.work.on_snapshot = lambda: setattr(bench.clock, "at", 3_500)
    bench.sources[1].put(barrier(1))
    bench.settle_down()
    (passed,) = [fact for fact in bench.shell.facts if isinstance(fact, BarrierPassed)]
    assert passed == BarrierPassed(task="step", checkpoint=CheckpointId(1), aligned_ms=3.0, stall_ms=0.5)


def test_a_newer_barrier_begins_its_own_alignment_and_a_cancelled_one_leaves_no_time_behind() -> None:
    bench = Bench(2)
    bench.sources[0].put(barrier(1))
    bench.settle_down()
    bench.clock.at += 3_000
    bench.sources[1].put(barrier(2))
    bench.settle_down()
    bench.clock.at += 1_000
    bench.sources[0].put(barrier(2))
    bench.settle_down()
    bench.sources[0].put(barrier(3))
    bench.settle_down()
    bench.clock.at += 4_000
    bench.sources[1].put(CancelBarrier(checkpoint=CheckpointId(3)))
    bench.settle_down()
    for source in bench.sources:
        source.put(barrier(4))
    bench.settle_down()
    told = [(fact.checkpoint, fact.aligned_ms) for fact in bench.shell.facts if isinstance(fact, BarrierPassed)]
    assert told == [(2, 1.0), (4, 0.0)]


@pytest.mark.mission("L20")
def test_a_cancelled_checkpoint_is_forwarded_once_and_told() -> None:
    bench = Bench(2)
    bench.sources[0].put(barrier(3))
    bench.sources[1].put(CancelBarrier(checkpoint=CheckpointId(3)))
    bench.sources[0].put(CancelBarrier(checkpoint=CheckpointId(3)))
    bench.settle_down()
    assert drained(bench.sink) == [CancelBarrier(checkpoint=CheckpointId(3))]
    assert bench.shell.abandonments == [("step", 3)]
    assert bench.shell.snapshots == []


def test_event_time_moves_once_the_first_job_has_told_it() -> None:
    bench = Bench(mark=marked(delay=3))
    bench.sources[0].put(rows(1, largest=10))
    bench.settle_down()
    assert drained(bench.sink) == [at(7)]


def test_a_step_that_runs_no_job_forwards_the_watermark_when_somebody_downstream_has_told_it() -> None:
    bench = Bench(mark=marked(), passes_on=True)
    bench.work.process = lambda batch, **_: bench.task._output.emit(batch)  # type: ignore[method-assign]
    batch = rows(1, largest=10)
    bench.sources[0].put(batch)
    bench.sources[0].put(barrier(1))
    bench.settle_down()
    assert drained(bench.sink) == [[1], barrier(1)]
    assert bench.shell.snapshots == []  # the watermark at the barrier is not known yet
    batch.settle()
    assert bench.woken > 0
    bench.settle_down()
    assert drained(bench.sink) == [at(10)]
    assert bench.shell.snapshots == [("step", 1, TaskSnapshot(task="step", watermarks=(EventTime(10),)))]


def test_a_watermark_from_upstream_passes_a_with_watermark_only_at_the_end_of_time() -> None:
    bench = Bench(mark=marked())
    bench.sources[0].put(at(99))
    bench.settle_down()
    assert drained(bench.sink) == []
    bench.sources[0].put(at(MAX_WATERMARK))
    bench.settle_down()
    assert drained(bench.sink) == [at(MAX_WATERMARK)]


def test_with_no_room_downstream_nothing_is_taken_in() -> None:
    bench = Bench(passes_on=True)
    for number in range(2):
        bench.sink.put(rows(number))
    bench.sources[0].put(rows("waits"))
    assert bench.task.step() == StepResult()
    assert bench.task.doing == "waiting for room downstream"
    bench.sink.take()
    assert bench.task.step().worked


def test_a_quiet_input_goes_idle_after_its_time_and_active_again_with_a_batch() -> None:
    bench = Bench(2, mark=marked(idle_after=100))
    bench.sources[0].put(rows(1, largest=50))
    bench.sources[1].put(rows(1, largest=10))
    bench.settle_down()
    assert drained(bench.sink) == [at(10)]
    bench.settle_down()  # all is through
    bench.clock.at = 99
    assert bench.settle_down().wake_at == 100
    bench.sources[0].put(rows(2, largest=60))
    bench.settle_down()
    bench.clock.at = 150
    bench.settle_down()
    assert drained(bench.sink) == [at(60)]  # input 1 holds nothing back any more
    bench.sources[1].put(rows(2, largest=20))
    bench.settle_down()
    assert drained(bench.sink) == []


def test_work_that_acts_in_processing_time_says_when_to_ask_again() -> None:
    bench = Bench()
    assert bench.task.step().wake_at is None
    bench.work.rest = 30
    assert bench.task.step().wake_at == bench.clock.now() + 30


def test_when_all_inputs_are_idle_the_next_task_is_told() -> None:
    bench = Bench()
    bench.sources[0].put(WatermarkStatus(idle=True))
    bench.settle_down()
    assert drained(bench.sink) == [WatermarkStatus(idle=True)]
    bench.sources[0].put(rows(1))
    bench.settle_down()
    assert drained(bench.sink)[-1] == WatermarkStatus(idle=False)


@pytest.mark.mission("L9")
def test_latency_markers_pass_by_the_work() -> None:
    bench = Bench()
    marker = LatencyMarker(source="s", sent=MonotonicTime(1))
    bench.sources[0].put(marker)
    bench.settle_down()
    assert bench.work.calls == []
    assert drained(bench.sink) == [marker]


def test_the_end_of_all_inputs_ends_the_task() -> None:
    bench = Bench(2)
    bench.sources[0].put(EndOfStream())
    assert not bench.settle_down().done
    bench.sources[1].put(EndOfStream())
    assert bench.settle_down().done
    assert drained(bench.sink) == [EndOfStream()]


def test_completion_is_told_between_two_elements() -> None:
    bench = Bench()
    bench.sources[0].put(rows(1))
    bench.task.post(Completed(checkpoint=CheckpointId(4)))
    bench.settle_down()
    assert bench.work.calls == [("completed", 4), (0, [1])]


def kept(*values: object, bad: int = 2, first: FirstRunGate, only_if: bool = False) -> Batch:
    """A branch of a kept batch; a side branch tells by its figure whether it has rows."""
    measures = {"bad:3": ObservedMetrics(lambda: {"bad": bad})}
    condition = ("bad:3", "bad") if only_if else None
    return Batch(frame=list(values), sequence=1, metrics=measures, only_if=condition, run_gates=(first,))


def test_a_side_batch_waits_for_the_main_one_to_tell_whether_it_has_rows() -> None:
    bench, first = Bench(), FirstRunGate()
    bench.sources[0].put(kept("bad row", first=first, only_if=True))
    assert bench.task.step() == StepResult(wake_at=MonotonicTime(SIDE_BRANCH_TIMEOUT))
    first.done()
    assert bench.woken == 1
    bench.settle_down()
    assert bench.work.calls == [(0, ["bad row"])]


def test_a_side_batch_is_run_anyway_when_nobody_tells() -> None:
    bench = Bench()
    bench.sources[0].put(kept("x", first=FirstRunGate(), only_if=True))
    bench.task.step()
    bench.clock.at = SIDE_BRANCH_TIMEOUT
    bench.settle_down()
    assert bench.work.calls == [(0, ["x"])]


def test_of_two_consumers_of_a_kept_batch_one_runs_it_alone_first_so_that_its_figures_are_whole() -> None:
    slow, fast, first = Bench(), Bench(), FirstRunGate()
    slow.task.id, fast.task.id = "slow", "fast"
    assert first.claim("slow", lambda: None), "its job over the batch is running"
    batch = kept("row", first=first)
    fast.sources[0].put(batch)
    assert fast.task.step() == StepResult(wake_at=UNTIL_WOKEN)
    batch.settle()
    assert fast.woken == 1
    fast.settle_down()
    assert fast.work.calls == [(0, ["row"])]


def test_a_step_that_only_passes_batches_on_does_not_claim_them() -> None:
    bench, first = Bench(passes_on=True), FirstRunGate()
    bench.task._gate = BatchGate("union", lambda: None, runs_batches=False)
    bench.sources[0].put(kept("row", first=first))
    bench.task.step()
    assert first.claim("sink behind it", lambda: None)


def test_an_input_that_was_quiet_since_the_start_goes_idle_too() -> None:
    bench = Bench(2, mark=marked(idle_after=100))
    bench.sources[0].put(rows(1, largest=50))
    bench.settle_down()
    assert drained(bench.sink) == []
    bench.clock.at = 99
    bench.sources[0].put(rows(2, largest=60))
    bench.settle_down()
    bench.clock.at = 101
    bench.settle_down()
    assert drained(bench.sink) == [at(60)]


def test_the_last_holder_of_a_lease_frees() -> None:
    freed: list[int] = []
    lease = RefCount(lambda: freed.append(1), holders=2)
    lease.retain(1)
    for expected in ([], [], [1]):
        lease.release()
        assert freed == expected


def test_a_snapshot_before_anything_stands_at_the_beginning() -> None:
    bench = Bench(2)
    for channel in bench.sources:
        channel.put(barrier(0))
    bench.settle_down()
    assert bench.shell.snapshots == [("step", 0, TaskSnapshot(task="step", watermarks=(MIN_WATERMARK, MIN_WATERMARK)))]
    bench.task.close()
    assert bench.work.calls[-1] == "closed"


def test_an_input_that_a_stop_ends_does_not_move_event_time() -> None:
    bench = Bench(2)
    for element in (at(100), EndOfStream()):
        bench.sources[0].put(element)
    for element in (at(3), EndOfStream()):
        bench.sources[1].put(element)
    bench.settle_down()
    assert drained(bench.sink) == [at(3), EndOfStream()]
    assert ("advance", 100) not in bench.work.calls


class LeavingWork(KeepingWork):
    """Leaves each batch's job to whoever runs what it emits."""

    ran = False

    def settle(self, wake: Callable[[], None]) -> bool:
        self.calls.append("asked")
        return self.ran


def test_nothing_comes_between_a_batch_and_the_job_that_it_was_left_to() -> None:
    bench = Bench()
    bench.work = bench.task._logic = LeavingWork("step")
    for element in (rows("a"), at(5), barrier(1), EndOfStream()):
        bench.sources[0].put(element)
    assert bench.settle_down() == StepResult()
    assert bench.work.calls == [(0, ["a"]), "asked", "asked"], "no watermark, no snapshot, no end"
    assert (bench.task.doing, bench.shell.facts) == ("waiting for a job over its results", [])
    bench.clock.at += 7_000
    bench.work.ran = True
    assert bench.settle_down().done
    assert bench.work.calls[3:] == ["asked", ("advance", 5), ("snapshot", 1)]
    done = [fact for fact in bench.shell.facts if isinstance(fact, BatchDone)]
    assert [fact.duration_ms for fact in done] == [7], "from its coming to the end of that job"
    assert [type(each).__name__ for each in drained(bench.sink)] == ["Watermark", "Barrier", "EndOfStream"]
