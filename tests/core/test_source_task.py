"""A source's task: barriers leave between batches with the position, and nothing is read when it must not be."""

from dataclasses import dataclass, field

import pytest

from core.runtime_fakes import Clock, KeepingWork, NotingShell, drained, output_to
from penstock.clock import MAX_WATERMARK, MonotonicTime, WallTime
from penstock.elements import Barrier, CancelBarrier, CheckpointKind, EndOfStream, Watermark
from penstock.errors import SourceUnavailable, StateIncompatible
from penstock.facts import SourceRests
from penstock.handles import CheckpointId, Position, TaskSnapshot
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, PollResult, ReadLimit
from penstock.runtime.channels import Channel
from penstock.runtime.inputs import Inputs
from penstock.runtime.source_task import MOST_PENDING, Finish, SourceTask
from penstock.runtime.task import Completed, StepResult, StepTask


@dataclass
class Numbers:
    """A reader of scripted answers; its position is how many plans it gave."""

    script: list[PollResult]
    read: int = 0
    told: list[tuple[int, object]] = field(default_factory=list)

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        answer = self.script.pop(0) if self.script else NoData(wake_at=MonotonicTime(now + 5))
        self.read += isinstance(answer, PlannedBatch)
        return answer

    def frame(self, plan: object) -> object:
        return plan

    def position(self) -> Position:
        return Position(kind="numbers/1", detail=self.read)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        self.told.append((checkpoint, position.detail))

    def close(self) -> None:
        self.told.append((-1, "closed"))


class Bench:
    """A source task with its channel."""

    def __init__(self, *script: PollResult, held: bool = False, has_ended: bool = False) -> None:
        self.reader = Numbers(list(script))
        self.shell = NotingShell()
        self.clock = Clock()
        self.channel = Channel()
        self.task = SourceTask(
            "in",
            self.reader,  # type: ignore[arg-type]
            output_to(self.channel),
            limits=ReadLimit,
            held=held,
            has_ended=has_ended,
            shell=self.shell,
            clock=self.clock,
        )

    def settle_down(self) -> StepResult:
        while (progress := self.task.step()).worked and not progress.done:
            pass
        return progress


def barrier(number: int, kind: CheckpointKind = CheckpointKind.PERIODIC) -> Barrier:
    return Barrier(checkpoint=CheckpointId(number), kind=kind)


def completed(number: int) -> Completed:
    return Completed(checkpoint=CheckpointId(number))


def test_a_barrier_leaves_between_two_batches_with_the_position_after_the_last() -> None:
    bench = Bench(PlannedBatch(plan=["a"]), PlannedBatch(plan=["b"]))
    bench.task.step()
    bench.task.post(barrier(1))
    bench.settle_down()
    assert drained(bench.channel) == [["a"], barrier(1), ["b"]]
    position = Position(kind="numbers/1", detail=1)
    assert bench.shell.snapshots == [("in", 1, TaskSnapshot(task="in", position=position))]


@pytest.mark.mission("F5")
def test_rule_c4_a_new_source_reads_nothing_before_the_first_checkpoint_is_in_the_log() -> None:
    bench = Bench(PlannedBatch(plan=["a"]), held=True)
    bench.task.post(barrier(0))
    bench.settle_down()
    assert drained(bench.channel) == [barrier(0)]
    assert bench.task.doing == "waiting for the first checkpoint"
    bench.task.post(completed(0))
    bench.settle_down()
    assert drained(bench.channel) == [["a"]]


def test_nothing_to_read_says_when_to_ask_again_and_is_not_asked_before() -> None:
    bench = Bench(NoData(wake_at=MonotonicTime(50)), PlannedBatch(plan=["a"]))
    assert bench.task.step() == StepResult(wake_at=MonotonicTime(50))
    bench.clock.at = 49
    assert bench.task.step() == StepResult(wake_at=MonotonicTime(50))
    bench.clock.at = 50
    assert bench.task.step().worked


def test_a_long_pause_without_polls_is_reported_with_its_end_and_a_short_one_is_not() -> None:
    hour = MonotonicTime(3_600_000_000)
    bench = Bench(NoData(wake_at=MonotonicTime(5)), NoData(wake_at=hour), NoData(wake_at=hour + 5), Ended())
    bench.settle_down()
    assert bench.shell.facts == []
    for at in (5, 6, hour, hour + 5):
        bench.clock.at = at
        bench.settle_down()
    assert bench.shell.facts == [SourceRests(task="in", until=WallTime(hour)), SourceRests(task="in", until=None)]


def test_a_batch_that_took_all_is_through_before_the_next_is_read_and_others_are_read_ahead() -> None:
    bench = Bench(PlannedBatch(plan=["a"], takes_all=True), PlannedBatch(plan=["b"]), PlannedBatch(plan=["c"]))
    woken: list[str] = []
    bench.channel.connect(on_put=lambda: None, on_take=lambda: woken.append(bench.task.doing))
    bench.settle_down()
    assert bench.task.doing == "waiting for its last batch to be through"
    bench.channel.take()
    assert not bench.task.step().worked, "it was taken, and is worked on"
    assert woken == [bench.task.doing]
    bench.channel.acknowledge(bench.channel.taken)
    bench.channel.acknowledge(bench.channel.taken)
    assert len(woken) == 2, "told once"
    bench.settle_down()
    assert drained(bench.channel) == [["b"], ["c"]], "more waits, so one is read while the other is worked on"


def test_a_batch_is_not_through_while_anything_sent_behind_it_waits() -> None:
    bench = Bench(PlannedBatch(plan=["a"], takes_all=True), PlannedBatch(plan=["b"]))
    bench.task.step()
    bench.task.post(barrier(1))
    bench.settle_down()
    bench.channel.take()
    bench.channel.acknowledge(bench.channel.taken)
    assert not bench.task.step().worked
    bench.channel.take()
    assert bench.task.step().worked


def test_backpressure_with_no_room_nothing_is_polled() -> None:
    bench = Bench(*(PlannedBatch(plan=[n]) for n in range(5)))
    bench.settle_down()
    assert bench.reader.read == 2
    assert bench.task.doing == "waiting for room downstream"
    bench.task.post(barrier(1))
    bench.task.step()
    assert drained(bench.channel) == [[0], [1], barrier(1)]


@pytest.mark.mission("L1")
def test_a_source_that_ends_sends_the_end_of_time_and_one_that_caught_up_or_is_stopped_does_not() -> None:
    ended = Bench(PlannedBatch(plan=["a"]), Ended())
    ended.settle_down()
    assert drained(ended.channel) == [["a"], Watermark(at=MAX_WATERMARK)]
    assert ended.shell.done == [("in", True)]
    caught_up = Bench(PlannedBatch(plan=["a"]), CaughtUp())
    caught_up.settle_down()
    assert drained(caught_up.channel) == [["a"]]
    assert caught_up.shell.done == [("in", False)]
    stopped = Bench(PlannedBatch(plan=["a"]), PlannedBatch(plan=["b"]))
    stopped.task.step()
    stopped.task.post(barrier(1, CheckpointKind.FINAL))
    stopped.task.post(Finish())
    assert stopped.settle_down().done
    assert drained(stopped.channel) == [["a"], barrier(1, CheckpointKind.FINAL), EndOfStream()]
    stopped.task.close()
    assert stopped.reader.told == [(-1, "closed")]


def test_after_a_final_barrier_nothing_is_read_even_if_its_checkpoint_is_cancelled() -> None:
    bench = Bench(PlannedBatch(plan=["a"]))
    bench.task.post(barrier(1, CheckpointKind.FINAL))
    bench.task.post(CancelBarrier(checkpoint=CheckpointId(1)))
    bench.settle_down()
    assert bench.reader.read == 0


def cancel(number: int) -> CancelBarrier:
    return CancelBarrier(checkpoint=CheckpointId(number))


def test_a_barrier_whose_cancellation_is_in_the_mail_too_is_not_sent_but_the_cancellation_is() -> None:
    bench = Bench(PlannedBatch(plan=["a"]))
    for mail in (barrier(1), cancel(1), barrier(2)):
        bench.task.post(mail)
    bench.settle_down()
    assert drained(bench.channel) == [cancel(1), barrier(2), ["a"]]
    assert [checkpoint for _, checkpoint, _ in bench.shell.snapshots] == [2]
    bench.task.post(completed(1))
    bench.settle_down()
    assert bench.reader.told == [], "no position of the first was kept"


def test_a_cancellation_after_its_barrier_left_follows_it_and_does_not_stop_a_later_one() -> None:
    bench = Bench(held=True)
    for mail in (barrier(1), cancel(1), barrier(2)):
        bench.task.post(mail)
        bench.settle_down()
    assert drained(bench.channel) == [barrier(1), cancel(1), barrier(2)]


def test_inputs_that_wait_for_a_barrier_are_freed_by_the_cancellation_of_a_source_that_never_sent_it() -> None:
    """It cannot come from those that sent the barrier: their inputs are blocked, and it stands behind what waits."""
    early, late = Bench(), Bench()
    for mail in (barrier(1), cancel(1)):
        early.task.post(mail)
        early.settle_down()
        late.task.post(mail)
    work, shell, sink = KeepingWork("step"), NotingShell(), Channel()
    inputs = Inputs([early.channel, late.channel], [None, None], wake=lambda: None)
    step = StepTask("step", inputs, output_to(sink), work, shell=shell, clock=Clock())
    while step.step().worked:
        pass
    assert step.doing == "aligning checkpoint 1"
    late.settle_down()
    while step.step().worked:
        pass
    assert step.doing == "idle"
    assert drained(sink) == [cancel(1)]
    assert work.calls == [], "no snapshot of a checkpoint that is over"


@pytest.mark.mission("L24")
def test_a_completion_that_was_not_told_is_made_good_by_the_next_which_stands_for_all_before_it() -> None:
    bench = Bench(PlannedBatch(plan=["a"]), PlannedBatch(plan=["b"]), PlannedBatch(plan=["c"]))
    for number in (1, 2, 3):
        bench.task.post(barrier(number))
        bench.task.step()
        bench.task.step()
    bench.task.post(completed(2))
    bench.task.step()
    assert bench.reader.told == [(2, 1)], "1 is never told, and what it would have said is in 2"
    assert list(bench.task._positions) == [3]


@pytest.mark.mission("L24")
def test_164_a_completion_that_comes_after_a_newer_one_is_no_error_and_tells_nothing() -> None:
    bench = Bench(PlannedBatch(plan=["a"]))
    for mail in (barrier(1), barrier(2), completed(2), completed(1), completed(2)):
        bench.task.post(mail)
    bench.settle_down()
    assert bench.reader.told == [(2, 0)]


@pytest.mark.mission("F6", "F10")
def test_completion_tells_the_reader_the_position_of_exactly_that_checkpoint() -> None:
    bench = Bench(PlannedBatch(plan=["a"]), PlannedBatch(plan=["b"]))
    bench.task.post(barrier(1))
    bench.task.step()
    bench.task.step()
    bench.task.post(barrier(2))
    bench.task.post(completed(1))
    bench.task.post(completed(9))
    bench.settle_down()
    assert bench.reader.told == [(1, 0)]
    bench.task.post(completed(2))
    bench.settle_down()
    assert bench.reader.told == [(1, 0)], "older than one that completed: forgotten"


@pytest.mark.mission("F9")
def test_a_checkpoint_that_the_source_knows_nothing_of_is_a_warning_and_tells_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(PlannedBatch(plan=["a"]))
    for mail in (barrier(1), completed(3)):
        bench.task.post(mail)
    bench.settle_down()
    assert bench.reader.told == []
    assert "source in has no position for completed checkpoint 3" in caplog.text
    caplog.clear()
    for mail in (completed(1), completed(3)):
        bench.task.post(mail)
    bench.settle_down()
    assert (bench.reader.told, caplog.text) == ([], ""), "older than one that completed: nothing is amiss"


@pytest.mark.mission("F7")
def test_positions_of_which_nothing_is_heard_are_bounded_the_oldest_go_first() -> None:
    bench = Bench()
    for number in range(MOST_PENDING + 5):
        bench.task.post(barrier(number))
        bench.settle_down()
        drained(bench.channel)
    assert list(bench.task._positions) == list(range(5, MOST_PENDING + 5))


@pytest.mark.mission("F3")
def test_a_barrier_for_a_source_that_is_through_takes_no_snapshot_and_changes_nothing() -> None:
    bench = Bench(PlannedBatch(plan=["a"]))
    for mail in (barrier(1), Finish(), barrier(2)):
        bench.task.post(mail)
    assert bench.settle_down().done, "its thread asks it no more"
    assert [checkpoint for _, checkpoint, _ in bench.shell.snapshots] == [1]
    assert list(bench.task._positions) == [1]


@pytest.mark.mission("F12")
def test_what_is_posted_waits_for_the_task_so_that_snapshots_and_completions_never_meet() -> None:
    bench = Bench(PlannedBatch(plan=["a"]))
    bench.task.post(barrier(1))
    bench.task.post(completed(1))
    assert (bench.shell.snapshots, bench.reader.told) == ([], [])
    bench.task.step()
    assert (len(bench.shell.snapshots), bench.reader.told) == (1, []), "one piece of mail a step"
    bench.task.step()
    assert bench.reader.told == [(1, 0)]


@pytest.mark.mission("S19")
def test_a_batch_that_cannot_be_planned_or_built_fails_the_task_before_a_snapshot_can_contain_it() -> None:
    """What to read is decided first; the job then goes on from the position before."""
    bench = Bench(PlannedBatch(plan=["a"]), PlannedBatch(plan=["b"]))
    bench.task.post(barrier(1))
    bench.task.step()

    def breaks(plan: object) -> object:
        assert bench.reader.read == 1, "the plan came first"
        msg = "the topic is away"
        raise SourceUnavailable(msg)

    bench.reader.frame = breaks  # type: ignore[method-assign]
    with pytest.raises(SourceUnavailable):
        bench.task.step()
    assert drained(bench.channel) == [barrier(1)]
    assert [snapshot.position for _, _, snapshot in bench.shell.snapshots] == [Position(kind="numbers/1", detail=0)]


def test_a_source_that_ended_says_so_in_its_snapshot_and_may_not_go_on() -> None:
    ended = Bench(Ended())
    ended.settle_down()
    ended.task.post(barrier(1))
    ended.settle_down()
    assert ended.shell.snapshots[0][2].watermarks == (MAX_WATERMARK,)
    again = Bench(PlannedBatch(plan=["more"]), has_ended=True)
    with pytest.raises(StateIncompatible, match="'in' ended in an earlier run"):
        again.settle_down()
