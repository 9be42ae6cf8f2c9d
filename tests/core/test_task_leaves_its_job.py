"""A step whose batches' jobs are run by its sink, among its neighbours: what passes, what waits, and who wakes whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from core.runtime_fakes import Clock, KeepingWork, NotingShell, drained, output_to, rows
from penstock.clock import EventTime, MonotonicTime, WallTime
from penstock.elements import Barrier, Batch, CancelBarrier, EndOfStream, ObservedMetrics, Watermark
from penstock.handles import CheckpointId, Position, StateHandle
from penstock.interfaces.operator import DeferredBatch
from penstock.interfaces.source import NoData, PlannedBatch, PollResult, ReadLimit
from penstock.runtime.channels import Channel
from penstock.runtime.inputs import Inputs
from penstock.runtime.poll_schedule import AdaptiveBatching
from penstock.runtime.source_task import SourceTask
from penstock.runtime.task import Completed, StepResult, StepTask
from penstock.runtime.task_logic import OperatorLogic


@dataclass
class Named:
    """A snapshot of what was in."""

    rows: list[object]

    def materialise(self) -> StateHandle:
        return StateHandle(kind="list/1", schema="", layers=(), detail=list(self.rows))  # type: ignore[arg-type]


@dataclass
class Leaving:
    """An operator that keeps rows, once somebody has run what it sends of them."""

    rows: list[object] = field(default_factory=list)
    calls: list[object] = field(default_factory=list)

    def process(self, batch: Batch, *, source: int, watermark: EventTime, emit: Callable[..., None]) -> DeferredBatch:
        ran = ObservedMetrics(dict)
        emit(Batch(frame=batch.frame, sequence=0, metrics={"ran": ran}))
        return DeferredBatch(ran=ran, finish=lambda: self.rows.extend(batch.frame))  # type: ignore[call-overload]

    def advance(self, watermark: EventTime, *, emit: object) -> None:
        self.calls.append(("advance", watermark))

    def snapshot(self, checkpoint: CheckpointId) -> Named:
        return Named(list(self.rows))

    def completed(self, checkpoint: CheckpointId) -> None:
        self.calls.append(("completed", checkpoint))

    def maintain(self) -> Callable[[], None]:
        return lambda: self.calls.append("merged")

    def close(self) -> None:
        self.calls.append("closed")


class Chain:
    """The step, and a sink behind it that has inputs of other steps too."""

    def __init__(self, inputs: int = 1) -> None:
        self.clock, self.shell = Clock(), NotingShell()
        self.operator, self.kept = Leaving(), KeepingWork("sink")
        self.source = Channel(capacity=1)
        self.between = [Channel(capacity=1) for _ in range(inputs)]
        self.woken = 0
        self.step = StepTask(
            "step",
            Inputs([self.source], [None], wake=self._wake),
            output_to(self.between[0]),
            OperatorLogic("step", self.operator),  # type: ignore[arg-type]
            shell=self.shell,
            clock=self.clock,
        )
        self.sink = StepTask(
            "sink",
            Inputs(self.between, [None] * inputs, wake=lambda: None),
            output_to(Channel()),
            self.kept,
            shell=self.shell,
            clock=self.clock,
        )

    def _wake(self) -> None:
        self.woken += 1

    @property
    def snapshots(self) -> list[tuple[str, int, object]]:
        return [(task, id, of.state.detail if of.state else None) for task, id, of in self.shell.snapshots]


def settle_down(task: StepTask) -> StepResult:
    while (progress := task.step()).worked and not progress.done:
        pass
    return progress


def barrier(number: int) -> Barrier:
    return Barrier(checkpoint=CheckpointId(number))


def test_whoever_runs_its_results_wakes_it_and_only_then_does_the_barrier_pass() -> None:
    chain = Chain()
    for element in (rows("a"), Watermark(at=EventTime(5)), barrier(1)):
        chain.source.put(element)
    assert settle_down(chain.step) == StepResult()
    assert (chain.woken, chain.snapshots) == (0, [])
    settle_down(chain.sink)
    assert chain.woken == 1
    settle_down(chain.step)
    settle_down(chain.sink)
    assert chain.snapshots == [("step", 1, ["a"]), ("sink", 1, None)]
    assert chain.kept.calls == [(0, ["a"]), ("advance", 5), ("snapshot", 1)]


@pytest.mark.mission("L8")
def test_a_sink_that_waits_for_another_inputs_barrier_holds_the_step_no_longer_than_that() -> None:
    chain = Chain(2)
    for element in (rows("before"), barrier(1), rows("behind"), barrier(2)):
        chain.source.put(element)
    for task in (chain.step, chain.sink, chain.step, chain.sink):
        settle_down(task)
    assert chain.snapshots == [("step", 1, ["before"])], "of the first checkpoint it is no part what is held"
    assert chain.step.doing == "waiting for a job over its results"
    chain.between[1].put(barrier(1))
    for task in (chain.sink, chain.step):
        settle_down(task)
    assert chain.snapshots[1:] == [("sink", 1, None), ("step", 2, ["before", "behind"])]


def test_a_checkpoint_that_is_given_up_frees_the_sink_and_so_the_step_behind_whose_barrier_rows_are_held() -> None:
    chain = Chain(2)
    for element in (barrier(1), rows("a"), CancelBarrier(checkpoint=CheckpointId(1)), barrier(2)):
        chain.source.put(element)
    settle_down(chain.step)
    settle_down(chain.sink)
    assert chain.step.doing == "waiting for a job over its results"
    chain.between[1].put(CancelBarrier(checkpoint=CheckpointId(1)))
    for task in (chain.sink, chain.step, chain.sink):
        settle_down(task)
    assert chain.snapshots == [("step", 1, []), ("step", 2, ["a"])]
    assert ("sink", 1) in chain.shell.abandonments


def test_the_end_passes_behind_what_was_held_and_nothing_else_is_done_meanwhile_but_merging() -> None:
    chain = Chain()
    for element in (rows("a"), EndOfStream()):
        chain.source.put(element)
    settle_down(chain.step)
    chain.step.post(Completed(checkpoint=CheckpointId(1)))
    assert not settle_down(chain.step).done
    assert chain.operator.calls == [("completed", 1), "merged"]
    settle_down(chain.sink)
    assert settle_down(chain.step).done
    assert chain.operator.rows == ["a"]


def test_a_step_that_is_torn_down_while_it_holds_rows_has_not_taken_them_in() -> None:
    chain = Chain()
    chain.source.put(rows("a"))
    settle_down(chain.step)
    chain.step.close()
    assert (chain.operator.rows, chain.operator.calls) == ([], ["closed"])


# --------------------------------------------------------------------------------------------------------- the source


@dataclass
class Topic:
    """What has come so far is read whole."""

    come: list[object] = field(default_factory=list)
    polls: list[tuple[int, list[object]]] = field(default_factory=list)

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        if not self.come:
            return NoData(wake_at=MonotonicTime(now + 10))
        plan, self.come = self.come, []
        self.polls.append((now, plan))
        return PlannedBatch(plan=plan, rows=len(plan), takes_all=True)

    def frame(self, plan: object) -> object:
        return plan

    def position(self) -> Position:
        return Position(kind="t/1", detail=0)

    def close(self) -> None:
        """Nothing is held."""


def test_rows_gather_while_a_batch_is_held_and_after_the_pause_they_come_out_though_no_more_do() -> None:
    chain, topic = Chain(), Topic(come=["a"])
    source = SourceTask(
        "in",
        topic,  # type: ignore[arg-type]
        output_to(chain.source),
        limits=ReadLimit,
        schedule=AdaptiveBatching(100),
        shell=chain.shell,
        clock=chain.clock,
    )
    source.step()
    settle_down(chain.step)
    topic.come += ["b", "c"]
    chain.clock.at = 150
    assert source.step() == StepResult()
    assert source.doing == "waiting for its last batch to be through"
    for task in (chain.sink, chain.step, chain.sink, chain.step):
        settle_down(task)
    pause = source.step()
    assert pause == StepResult(wake_at=MonotonicTime(210)), (
        "it took 150, and begins 1.4 times as long after the one before"
    )
    chain.clock.at = 210
    assert source.step().worked
    for task in (chain.step, chain.sink, chain.step):
        settle_down(task)
    assert topic.polls == [(0, ["a"]), (210, ["b", "c"])]
    assert chain.operator.rows == ["a", "b", "c"]
    assert drained(chain.source) == []
