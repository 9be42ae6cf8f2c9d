"""Sources that wait for each other, as tasks: what is not polled, what passes all the same, and who is woken."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from core.runtime_fakes import Clock, NotingShell
from penstock.clock import EventTime, MonotonicTime, WallTime
from penstock.elements import (
    Barrier,
    Batch,
    CheckpointKind,
    Element,
    EndOfStream,
    ObservedMetrics,
    SourceBatch,
    SourcePartitions,
)
from penstock.facts import ReadingPaused, SourceRests
from penstock.graph.nodes import CallSite, WithWatermark
from penstock.graph.queries import AlignedStream, AlignmentGroup
from penstock.handles import CheckpointId, Position
from penstock.interfaces.source import CaughtUp, NoData, PlannedBatch, PollResult, ReadLimit
from penstock.runtime.channels import Channel, OutputPath, Rewrite, TaskOutput
from penstock.runtime.inputs import Inputs, UpstreamInfo
from penstock.runtime.poll_schedule import FixedInterval, PollSchedule
from penstock.runtime.source_task import Finish, SourceTask, with_watermark_alignment
from penstock.runtime.task import StepResult
from penstock.runtime.watermark_alignment import NO_PAUSE, AlignmentCoordinator

DRIFT = 60
POLL = 1_000


def mark(id: int = 1, idle_after: int | None = None) -> WithWatermark:
    return WithWatermark(
        id=id,
        origin=CallSite("t.py", 1),
        inputs=(),
        column="at",
        delay=0,
        idle_after=idle_after,
        max_ahead=None,
        max_drift=DRIFT,
    )


def group(*sources: str, id: int = 1, idle_after: int | None = None) -> AlignmentGroup:
    return (AlignedStream(mark(id, idle_after), frozenset(sources)),)


@dataclass
class Reader:
    """Gives scripted answers, then nothing; a plan is the event times of its partitions."""

    script: list[PollResult]
    asked: list[frozenset[str]] = field(default_factory=list)

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        self.asked.append(limits.paused)
        return self.script.pop(0) if self.script else NoData(wake_at=MonotonicTime(now + POLL))

    def frame(self, plan: object) -> object:
        return plan

    def position(self) -> Position:
        return Position(kind="times/1", detail=len(self.asked))

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing is held."""


def times(all: int | None = None, behind: str = "", **each: int | None) -> PlannedBatch:
    """A batch with these event times."""
    if not each:
        return PlannedBatch(plan={"max": all})
    partitions = SourcePartitions(names=tuple(each), column="p", behind=frozenset(behind.split()))
    known = [time for time in each.values() if time is not None]
    return PlannedBatch(plan={"max": max(known, default=None), "partitions": each}, partitions=partitions)


class Bench:
    """Source tasks whose event times are aligned; each batch is told when the test says so."""

    def __init__(
        self,
        *groups: AlignmentGroup,
        pace: PollSchedule | None = None,
        finite: bool = False,
        **scripts: list[PollResult],
    ) -> None:
        self.clock, self.shell = Clock(), NotingShell()
        self.woken: list[str] = []
        self.alignment = AlignmentCoordinator(
            groups or [group(*scripts)], now=MonotonicTime(0), wake=self.woken.append, finite=finite
        )
        self.readers = {uid: Reader(script) for uid, script in scripts.items()}
        self.channels = {uid: Channel(capacity=9) for uid in scripts}
        self.tasks = {uid: self._task(uid, pace if uid == "b" else None) for uid in scripts}

    def _task(self, uid: str, pace: PollSchedule | None) -> SourceTask:
        def rewrite(batch: Batch) -> Batch:
            figures: dict[str, object] = batch.frame  # type: ignore[assignment]
            return replace(batch, metrics={f"time:{id}": ObservedMetrics(lambda: figures) for id in (1, 2)})

        follow: Rewrite = rewrite
        for step in filter(self.alignment.follows, (mark(1), mark(2))):
            follow = with_watermark_alignment(follow, step, self.alignment)
        path = OutputPath(rewrite=follow)
        return SourceTask(
            uid,
            self.readers[uid],  # type: ignore[arg-type]
            TaskOutput({"out": replace(path, channel=self.channels[uid])}, keep=lambda batch, readers: batch),
            limits=ReadLimit,
            schedule=pace,
            alignment=self.alignment,
            shell=self.shell,
            clock=self.clock,
        )

    def step(self, uid: str, now: int | None = None) -> StepResult:
        self.clock.at = self.clock.at if now is None else now
        return self.tasks[uid].step()

    def take(self, uid: str) -> list[Element]:
        """What a source sent since; its batches were run."""
        elements = list(self.channels[uid].drain())
        for element in elements:
            if isinstance(element, Batch):
                element.settle()
        return elements

    def read(self, uid: str) -> bool:
        """Step it, and run what it sends; whether it sent rows."""
        self.step(uid)
        return any(isinstance(element, Batch) for element in self.take(uid))

    @property
    def pauses(self) -> list[tuple[str, tuple[str, ...], str | None]]:
        found = [fact for fact in self.shell.facts if isinstance(fact, ReadingPaused)]
        return [(fact.task, fact.paused, fact.by) for fact in found]


def test_the_one_ahead_is_not_polled_and_is_woken_when_the_other_came_after() -> None:
    bench = Bench(a=[times(100), times(150)], b=[times(200), times(300)])
    assert bench.read("a")
    assert bench.read("b")
    bench.woken.clear()
    assert bench.step("b") == StepResult()
    assert bench.tasks["b"].doing == "waiting for a, which is behind"
    assert len(bench.readers["b"].asked) == 1
    assert bench.read("a")
    assert bench.woken == ["b"]
    assert bench.read("b")
    assert bench.pauses == [("b", ("b",), "a"), ("b", (), None)]
    rests = [fact for fact in bench.shell.facts if isinstance(fact, SourceRests)]
    assert rests == [SourceRests(task="b", until=None), SourceRests(task="b", until=WallTime(bench.clock.at))]


def test_barriers_pass_and_the_job_ends_while_a_source_is_paused() -> None:
    bench = Bench(a=[times(100)], b=[times(200), times(300)])
    bench.read("a")
    bench.read("b")
    first = Barrier(checkpoint=CheckpointId(1))
    last = Barrier(checkpoint=CheckpointId(2), kind=CheckpointKind.FINAL)
    bench.tasks["b"].post(first)
    assert bench.step("b").worked
    assert not bench.step("b").worked
    bench.tasks["b"].post(last)
    bench.tasks["b"].post(Finish())
    bench.step("b")
    assert bench.step("b").done
    assert bench.take("b") == [first, last, EndOfStream()]


def test_in_a_run_that_ends_those_ahead_are_let_go_as_the_others_reach_their_end() -> None:
    bench = Bench(a=[times(100), CaughtUp()], b=[times(900), CaughtUp()])
    bench.read("a")
    bench.read("b")
    assert not bench.read("b")
    bench.step("a")
    assert bench.woken[-1] == "b"
    bench.step("b")
    assert bench.shell.done == [("a", False), ("b", False)]


def test_partitions_ahead_are_named_in_the_limits_until_the_others_came_after() -> None:
    bench = Bench(a=[times(p=100, q=500, behind="p q"), times(p=470, q=None, behind="q")])
    for _ in range(3):
        bench.read("a")
    assert bench.readers["a"].asked == [frozenset(), {"q"}, frozenset()]
    assert bench.pauses == [("a", ("a/q",), "a/p"), ("a", (), None)]


def test_in_a_run_that_ends_partitions_ahead_are_let_go_when_those_behind_have_no_more() -> None:
    bench = Bench(a=[times(p=100, q=500, behind="q"), NoData(wake_at=MonotonicTime(10**9))], finite=True)
    bench.read("a")
    bench.read("a")
    assert bench.woken == ["a"]
    bench.step("a", now=1)
    assert bench.readers["a"].asked == [frozenset(), {"q"}, frozenset()], "although the reader wanted to rest"


def test_whoever_waits_is_stepped_when_the_one_behind_is_idle() -> None:
    bench = Bench(group("a", "b", idle_after=5_000), a=[times(100)], b=[times(200)])
    bench.read("a")
    bench.read("b")
    assert bench.step("b") == StepResult(wake_at=MonotonicTime(5_000))
    assert not bench.step("b", now=4_999).worked
    assert bench.step("b", now=5_000) == StepResult(wake_at=MonotonicTime(5_000 + POLL))


def test_a_reader_that_rests_for_long_is_asked_when_a_partition_behind_is_idle() -> None:
    script: list[PollResult] = [times(p=100, q=500, behind="q"), NoData(wake_at=MonotonicTime(10**9))]
    bench = Bench(group("a", idle_after=5_000), a=script)
    bench.read("a")
    assert bench.step("a") == StepResult(wake_at=MonotonicTime(5_000))
    assert bench.step("a", now=10) == StepResult(wake_at=MonotonicTime(5_000))
    bench.step("a", now=5_000)
    assert bench.readers["a"].asked == [frozenset(), {"q"}, frozenset()]


def test_nobody_is_named_while_all_that_is_awaited_is_what_a_first_job_will_tell() -> None:
    bench = Bench(a=[times(100), times(110)])
    bench.step("a")
    assert bench.step("a") == StepResult()
    assert bench.tasks["a"].doing == "waiting for the first event times"
    assert bench.pauses == []
    bench.take("a")
    assert bench.woken == ["a"]
    assert bench.read("a")


def test_ticks_that_a_source_was_paused_for_are_not_missed() -> None:
    bench = Bench(a=[times(100), times(300)], b=[times(200), times(310)], pace=FixedInterval(1_000))
    bench.read("a")
    bench.step("b", now=0)
    bench.step("b", now=1_000)
    bench.take("b")
    for now in range(1_500, 9_500, 1_000):
        assert not bench.step("b", now=now).worked
    bench.read("a")
    assert bench.step("b", now=9_600) == StepResult(wake_at=MonotonicTime(10_000))
    assert bench.step("b", now=10_000).worked
    assert not [fact for fact in bench.shell.facts if getattr(fact, "name", "") == "ticks_missed"]


def test_a_source_of_two_groups_waits_for_both_and_others_for_none() -> None:
    pair, other = group("a", "b"), group("b", "c", id=2)
    bench = Bench(pair, other, a=[times(100)], b=[times(500)], c=[times(200)], d=[times(900)])
    for uid in "abcd":
        bench.read(uid)
    hold = bench.alignment.pause("b", MonotonicTime(1))
    assert (hold.everything, hold.ahead, hold.by) == (True, ("b",), "a")
    assert bench.alignment.pause("d", MonotonicTime(1)) == NO_PAUSE
    bench.alignment.source_done("a")
    assert bench.alignment.pause("b", MonotonicTime(1)).by == "c"
    bench.alignment.source_done("c")
    assert bench.alignment.pause("b", MonotonicTime(1)) == NO_PAUSE


def test_rows_that_no_source_read_and_steps_outside_of_groups_are_not_followed() -> None:
    bench = Bench(a=[], b=[])
    assert [bench.alignment.follows(mark(id)) for id in (1, 2)] == [True, False]
    told = {"time:1": ObservedMetrics.known({"max": 7})}
    bench.alignment.follow(Batch(frame=None, sequence=1, metrics=told), mark())
    bench.alignment.follow(Batch(frame=None, sequence=1, source_batch=SourceBatch("a", 1)), mark())
    assert bench.woken == []
    assert bench.alignment.pause("a", MonotonicTime(0)) == NO_PAUSE


def test_a_batch_that_nobody_runs_tells_nothing_and_lets_its_source_go_on() -> None:
    bench = Bench(a=[times(100), times(110)])
    bench.step("a")
    for element in bench.channels["a"].drain():
        assert isinstance(element, Batch)
        element.skip()
    assert bench.read("a")


def test_rows_waiting_in_partitions_that_are_not_told_apart_are_no_silence() -> None:
    bench = Bench(group("a", "b", idle_after=100), a=[], b=[times(500)])
    bench.read("b")
    partitions = SourcePartitions(names=("p", "q"), behind=frozenset("p"), source="a")
    for number, now, time in ((1, 0, 100), (2, 150, None)):
        bench.alignment.sent("a", number, MonotonicTime(now))
        told = {"time:1": ObservedMetrics.known({"max": time})}
        batch = Batch(
            frame=None, sequence=1, metrics=told, partitions=partitions, source_batch=SourceBatch("a", number)
        )
        bench.alignment.follow(batch, mark())
    assert bench.alignment.pause("b", MonotonicTime(200)).by == "a"
    assert bench.alignment.pause("b", MonotonicTime(250)) == NO_PAUSE


# ---------------------------------------------------------------------------------------------------------- downstream


def test_a_stream_whose_source_was_told_to_pause_is_not_called_idle() -> None:
    bench = Bench(a=[times(100), times(300)], b=[times(200)])
    bench.read("a")
    bench.read("b")
    inputs = Inputs(
        [Channel(), Channel()],
        [mark(idle_after=100), mark(idle_after=100)],
        upstream=[
            UpstreamInfo(name="a", paused_until=lambda now: bench.alignment.paused_until({"a"}, now)),
            UpstreamInfo(name="b", paused_until=lambda now: bench.alignment.paused_until({"b"}, now)),
        ],
        wake=lambda: None,
    )
    inputs.check_idle(MonotonicTime(0))
    bench.step("b", now=10)
    inputs.check_idle(MonotonicTime(500))
    assert inputs.valve.idle == {0}
    bench.clock.at = 590
    bench.read("a")
    bench.step("b", now=600)
    assert inputs.check_idle(MonotonicTime(690)) == 700
    inputs.check_idle(MonotonicTime(700))
    assert inputs.valve.idle == {0, 1}


def test_a_stream_without_event_time_is_not_disturbed_by_pauses_before_it() -> None:
    upstream = UpstreamInfo(paused_until=lambda now: {"a": now})
    inputs = Inputs([Channel()], [None], upstream=[upstream], wake=lambda: None)
    assert inputs.check_idle(MonotonicTime(500)) is None
    assert inputs.valve.idle == set()


def test_a_partition_that_was_told_to_pause_is_not_called_idle_by_the_batches_of_others() -> None:
    held = {"t/p": MonotonicTime(180)}
    inputs = Inputs(
        [Channel()],
        [mark(idle_after=100)],
        upstream=[UpstreamInfo(name="t", paused_until=lambda _: held)],
        wake=lambda: None,
    )

    def took(now: int, **each: int | None) -> EventTime:
        partitions = SourcePartitions(names=tuple(each), column="p", source="t")
        figures = {"time:1": ObservedMetrics.known({"max": None, "partitions": each})}
        batch = Batch(frame=None, sequence=1, metrics=figures, partitions=partitions)
        inputs[0].received(batch, MonotonicTime(now), lambda: None)
        return inputs.advance()

    inputs.check_idle(MonotonicTime(0))
    took(1, p=50, q=5)
    assert took(200, p=None, q=90) == 50
    assert took(280, p=None, q=95) == 95
