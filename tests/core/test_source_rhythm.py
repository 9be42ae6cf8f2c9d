"""When a source's task polls and when it sends latency markers: by the clock it is given, never twice, never early."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from core.runtime_fakes import Clock, NotingShell, drained, output_to
from penstock.clock import MonotonicTime, WallTime
from penstock.elements import Barrier, Batch, LatencyMarker
from penstock.facts import BatchRead, Counted
from penstock.handles import CheckpointId, Position
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, PollResult, ReadLimit
from penstock.runtime.channels import Channel, TaskOutput
from penstock.runtime.poll_schedule import AdaptiveBatching, FixedInterval, PollSchedule
from penstock.runtime.rate_control import RateControl
from penstock.runtime.source_task import Finish, LatencyMarkerTimer, SourceTask
from penstock.runtime.task import Completed, StepResult

SECOND = 1_000_000


@dataclass
class TwoClocks(Clock):
    """The wall clock is ahead of the other one, and off the beat."""

    ahead: int = 300

    def wall(self) -> WallTime:
        return WallTime(self.at + self.ahead)


@dataclass
class Numbers:
    """Gives scripted answers, then always rows."""

    script: list[PollResult] = field(default_factory=list)
    calls: list[object] = field(default_factory=list)

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        self.calls.append((now, limits.rows))
        return self.script.pop(0) if self.script else PlannedBatch(plan=[len(self.calls)], rows=1_000)

    def frame(self, plan: object) -> object:
        return plan

    def position(self) -> Position:
        self.calls.append("position")
        return Position(kind="numbers/1", detail=0)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        self.calls.append("committed")

    def close(self) -> None:
        """Nothing is held."""


class Bench:
    """A source task with its channel, by default so wide that it never fills."""

    def __init__(
        self,
        *script: PollResult,
        pace: PollSchedule | None = None,
        markers: LatencyMarkerTimer | None = None,
        capacity: int = 100,
    ) -> None:
        self.reader = Numbers(list(script))
        self.shell = NotingShell()
        self.clock = TwoClocks()
        self.channel = Channel(capacity=capacity)
        self.control = RateControl()
        self.output = output_to(self.channel)
        self.task = SourceTask(
            "in",
            self.reader,  # type: ignore[arg-type]
            self.output,
            limits=lambda: ReadLimit(rows=self.control.cap(5_000)),
            schedule=pace,
            markers=markers,
            shell=self.shell,
            clock=self.clock,
        )

    def at(self, now: int) -> StepResult:
        self.clock.at = now
        return self.task.step()

    @property
    def missed(self) -> int:
        return sum(fact.amount for fact in self.shell.facts if isinstance(fact, Counted))


def barrier(number: int) -> Barrier:
    return Barrier(checkpoint=CheckpointId(number))


@pytest.mark.mission("S15")
def test_a_source_is_polled_at_the_wall_clocks_ticks_and_waits_on_the_other_clock() -> None:
    bench = Bench(pace=FixedInterval(1_000))
    assert bench.at(0) == StepResult(wake_at=MonotonicTime(700)), "the wall clock says 300"
    assert bench.task.doing == "waiting for the time of its next batch"
    assert bench.at(699) == StepResult(wake_at=MonotonicTime(700))
    assert bench.at(700).worked
    assert bench.at(701) == StepResult(wake_at=MonotonicTime(1_700))
    assert bench.at(1_700).worked
    assert bench.missed == 0


@pytest.mark.mission("S18")
def test_the_first_batch_is_that_of_the_first_tick_after_the_start_and_zero_is_one_interval_before_it() -> None:
    bench = Bench(pace=FixedInterval(1_000))
    for now in range(0, 700, 50):
        assert not bench.at(now).worked, "nothing is read before the first tick"
    assert bench.at(700).worked
    assert bench.missed == 0, "what lies before the start is no tick that was missed"
    zero = bench.clock.wall() - 1_000
    assert zero <= 300 < bench.clock.wall(), "the start lies within the interval that the first batch is for"


@pytest.mark.mission("S18")
def test_a_source_without_a_beat_is_read_at_the_start() -> None:
    bench = Bench()
    assert bench.at(0).worked


def test_a_source_lingers_after_a_batch_that_took_all_but_not_while_more_waits() -> None:
    all_there_is = PlannedBatch(plan=[1], rows=1, takes_all=True)
    bench = Bench(all_there_is, pace=AdaptiveBatching(100))
    assert bench.at(0).worked
    drained(bench.channel)
    assert bench.at(40) == StepResult(wake_at=MonotonicTime(100))
    assert bench.at(100).worked
    assert bench.at(101).worked


@pytest.mark.mission("S17")
def test_a_source_that_was_held_up_reads_once_what_has_come_and_counts_the_ticks_it_missed() -> None:
    bench = Bench(pace=FixedInterval(1_000), capacity=1)
    bench.at(0)
    bench.at(700)
    bench.at(1_700)
    assert bench.task.doing == "waiting for room downstream"
    drained(bench.channel)
    assert bench.at(4_900).worked, "late, for the tick at 4,700"
    assert [call for call in bench.reader.calls if isinstance(call, tuple)] == [(700, 5_000), (4_900, 5_000)]
    assert [fact for fact in bench.shell.facts if isinstance(fact, Counted)] == [
        Counted(task="in", name="ticks_missed", amount=3)
    ]
    drained(bench.channel)
    assert bench.at(4_901) == StepResult(wake_at=MonotonicTime(5_700))


def test_ticks_at_which_the_reader_has_nothing_are_not_missed() -> None:
    bench = Bench(NoData(wake_at=MonotonicTime(3_500)), pace=FixedInterval(1_000))
    bench.at(0)
    assert bench.at(700) == StepResult(wake_at=MonotonicTime(3_500))
    assert bench.at(3_500) == StepResult(wake_at=MonotonicTime(3_700))
    assert bench.at(3_700).worked
    assert bench.missed == 0


def test_mail_does_not_wait_for_a_tick() -> None:
    bench = Bench(pace=FixedInterval(1_000))
    bench.at(0)
    bench.task.post(barrier(1))
    assert bench.at(1).worked
    assert drained(bench.channel) == [barrier(1)]


@pytest.mark.mission("S14")
def test_reading_checkpointing_and_clearing_are_done_one_a_step_in_the_order_they_were_asked() -> None:
    bench = Bench()
    bench.task.post(barrier(1))
    bench.task.post(Completed(checkpoint=CheckpointId(1)))
    bench.task.post(barrier(2))
    seen = []
    for _ in range(4):
        bench.task.step()
        seen.append(list(bench.reader.calls))
    assert seen[0] == ["position"]
    assert seen[1] == ["position", "committed"]
    assert seen[2] == ["position", "committed", "position"]
    assert seen[3] == ["position", "committed", "position", (0, 5_000)]


@pytest.mark.mission("S20")
@pytest.mark.parametrize("answer", [PlannedBatch(plan=["a"]), NoData(wake_at=MonotonicTime(9)), CaughtUp(), Ended()])
def test_whatever_a_poll_brought_the_checkpoint_asked_for_comes_after_it(answer: PollResult) -> None:
    bench = Bench(answer)
    bench.at(0)
    bench.task.post(barrier(1))
    bench.at(1)
    assert drained(bench.channel)[-1] == barrier(1)
    assert [checkpoint for _, checkpoint, _ in bench.shell.snapshots] == [1]


@pytest.mark.mission("S9")
def test_a_poll_without_rows_makes_no_batch_and_batches_leave_in_order() -> None:
    bench = Bench(PlannedBatch(plan=["a"]), NoData(wake_at=MonotonicTime(5)), PlannedBatch(plan=["b"]))
    for now in (0, 1, 5):
        bench.at(now)
    assert drained(bench.channel) == [["a"], ["b"]]
    assert [fact.sequence for fact in bench.shell.facts if isinstance(fact, BatchRead)] == [1, 2]


@pytest.mark.mission("S33")
def test_the_limit_is_asked_for_anew_before_each_poll() -> None:
    bench = Bench()
    bench.at(0)
    for number in (1, 2):
        bench.control.sent(number, MonotonicTime(number * SECOND))
        bench.control.completed(number, 2_000, MonotonicTime((number + 1) * SECOND))
    bench.at(1)
    assert bench.reader.calls == [(0, 5_000), (1, 2_000)]


def marks(bench: Bench) -> list[int]:
    return [element.sent for element in bench.channel.drain() if isinstance(element, LatencyMarker)]


@pytest.mark.mission("L2")
def test_markers_leave_at_a_fixed_rate_from_the_first_step_on_and_are_not_made_up() -> None:
    bench = Bench(*[NoData(wake_at=MonotonicTime(10_000))], markers=LatencyMarkerTimer(100))
    assert bench.at(40) == StepResult(wake_at=MonotonicTime(140))
    assert bench.at(139) == StepResult(wake_at=MonotonicTime(140))
    for now in (140, 250, 520):
        bench.at(now)
    assert marks(bench) == [40, 140, 250, 520]
    assert bench.at(539) == StepResult(wake_at=MonotonicTime(540)), "the rate is kept, what was missed is not made up"


def test_a_marker_wakes_the_task_only_if_nothing_else_does_so_earlier() -> None:
    bench = Bench(NoData(wake_at=MonotonicTime(50)), markers=LatencyMarkerTimer(100))
    assert bench.at(0) == StepResult(wake_at=MonotonicTime(50))
    assert bench.at(50).worked


@pytest.mark.mission("L2")
def test_a_marker_that_cannot_be_sent_is_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(markers=LatencyMarkerTimer(100))

    def fail() -> None:
        msg = "nobody there"
        raise OSError(msg)

    class Broken(TaskOutput):
        def broadcast(self, element: object) -> None:
            fail()

    bench.task._output = Broken({}, keep=lambda batch, readers: batch)
    with caplog.at_level(logging.WARNING, logger="penstock"):
        assert bench.at(0).worked, "the batch was read all the same"
    assert "source in could not send a latency marker" in caplog.text


def test_while_there_is_no_room_one_marker_at_most_waits_downstream() -> None:
    bench = Bench(markers=LatencyMarkerTimer(100), capacity=1)
    bench.at(0)
    for now in range(100, 1_000, 100):
        bench.at(now)
    assert marks(bench) == [0, 100]
    bench.at(1_000)
    assert marks(bench) == [1_000]


def test_a_marker_leaves_between_two_batches_and_after_the_mail() -> None:
    bench = Bench(PlannedBatch(plan=["a"]), PlannedBatch(plan=["b"]), markers=LatencyMarkerTimer(100))
    bench.task.post(barrier(1))
    for now in (0, 10, 110):
        bench.at(now)
    kinds = [element.frame if isinstance(element, Batch) else type(element) for element in bench.channel.drain()]
    assert kinds == [Barrier, LatencyMarker, ["a"], LatencyMarker, ["b"]]
    bench.task.post(Finish())
    assert bench.at(500).done
    assert marks(bench) == [], "nothing follows the end"
