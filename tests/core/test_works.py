"""What steps do with a batch, and that they let go of it: nothing a finished batch held is kept."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from core.runtime_fakes import drained, output_to
from penstock.clock import MAX_WATERMARK, EventTime
from penstock.elements import Batch, ObservedMetrics, RefCount
from penstock.errors import StateIncompatible
from penstock.handles import CheckpointId, Committable, StateHandle, TaskSnapshot
from penstock.interfaces.operator import DeferredBatch
from penstock.runtime.channels import Channel
from penstock.runtime.task_logic import OperatorLogic, SinkLogic, UnionLogic

STATE = StateHandle(kind="t/1", schema="n LONG", layers=())
ITEM = Committable(uid="w", kind="t/1", checkpoint=CheckpointId(1), target="t", files=())


@dataclass
class Everything:
    """An operator, a writer, and what both hand over at a barrier."""

    calls: list[object] = field(default_factory=list)
    due: bool = True

    def process(self, batch: Batch, *, source: int, watermark: EventTime, emit: object) -> None:
        self.calls.append(("process", batch.frame, source, watermark))
        batch.settle()

    def write(self, batch: Batch) -> int:
        self.calls.append(("write", batch.frame))
        return 3

    def advance(self, watermark: EventTime, *, emit: object) -> None:
        self.calls.append(("advance", watermark))

    def snapshot(self, checkpoint: CheckpointId) -> Pending:
        self.calls.append(("snapshot", checkpoint))
        return Pending(STATE)

    def prepare(self, checkpoint: CheckpointId) -> Pending:
        self.calls.append(("prepare", checkpoint))
        return Pending([ITEM])

    def completed(self, checkpoint: CheckpointId) -> None:
        self.calls.append(("completed", checkpoint))

    def maintain(self) -> object:
        return (lambda: self.calls.append("compacted")) if self.due else None

    def close(self) -> None:
        self.calls.append("closed")


@dataclass
class Pending:
    """What is made durable later."""

    value: object

    def materialise(self) -> object:
        return self.value


class Held:
    """A batch whose blocks are counted."""

    def __init__(self, *, bad: int | None = None) -> None:
        self.freed = 0
        self.rows = ObservedMetrics(lambda: {"rows": 1})
        measures = {"rows": self.rows} if bad is None else {"bad:1": ObservedMetrics.known({"bad": bad})}
        only_if = None if bad is None else ("bad:1", "bad")
        self.batch = Batch(frame="f", sequence=1, metrics=measures, only_if=only_if, ref_counts=(RefCount(self._free),))

    def _free(self) -> None:
        self.freed += 1


def run(work: UnionLogic | OperatorLogic | SinkLogic, held: Held, channel: Channel | None = None) -> int | None:
    return work.process(held.batch, source=0, watermark=EventTime(9), output=output_to(channel or Channel()))


@pytest.mark.mission("S26")
@pytest.mark.parametrize("bad", [None, 0, 2])
def test_a_step_and_a_sink_let_go_of_a_batch_whether_they_ran_it_or_not(bad: int | None) -> None:
    part = Everything()
    for work in (OperatorLogic("o", part), SinkLogic("w", part)):  # type: ignore[arg-type]
        held = Held(bad=bad)
        run(work, held)
        assert held.freed == 1
    ran = [("process", "f", 0, 9), ("write", "f")]
    assert part.calls == ([] if bad == 0 else ran), "a side branch that has no rows costs no job"


def test_a_union_passes_a_batch_on_and_its_reader_lets_go_of_it() -> None:
    channel, held = Channel(), Held()
    run(UnionLogic("u"), held, channel)
    assert held.freed == 0
    assert drained(channel) == ["f"]


def test_a_sink_tells_the_rows_it_wrote() -> None:
    part = Everything()
    assert run(SinkLogic("w", part), Held()) == 3  # type: ignore[arg-type]
    assert run(SinkLogic("w", part), Held(bad=0)) == 0  # type: ignore[arg-type]


def test_snapshots_hold_what_was_named_at_the_barrier() -> None:
    part, marks, one = Everything(), (EventTime(5),), CheckpointId(1)
    assert UnionLogic("u").snapshot(one)(marks) == TaskSnapshot(task="u", watermarks=marks)
    operator, sink = OperatorLogic("o", part), SinkLogic("w", part)  # type: ignore[arg-type]
    capture = operator.snapshot(one)
    assert capture(marks) == TaskSnapshot(task="o", state=STATE, watermarks=marks)
    assert sink.snapshot(one)(marks) == TaskSnapshot(task="w", watermarks=marks, committables=(ITEM,))
    assert part.calls == [("snapshot", 1), ("prepare", 1)]


def test_a_step_passes_everything_else_to_its_operator_and_a_sink_a_checkpoint_that_is_in_the_log() -> None:
    part, output = Everything(), output_to(Channel())
    works = (UnionLogic("u"), OperatorLogic("o", part), SinkLogic("w", part))  # type: ignore[arg-type]
    for work in works:
        work.advance(EventTime(7), output=output)
        work.completed(CheckpointId(2))
    assert part.calls == [("advance", 7), ("completed", 2), ("completed", 2)], "the operator's, and the writer's"
    due = [work.maintain() for work in works]
    assert due[0] is due[2] is None
    assert due[1] is not None
    due[1]()
    part.due = False
    assert works[1].maintain() is None
    for work in works:
        work.close()
    assert part.calls[3:] == ["compacted", "closed", "closed"]


def test_a_side_branch_whose_measure_is_gone_or_lost_is_not_taken_for_empty() -> None:
    part = Everything()
    for measures in ({}, {"bad:1": ObservedMetrics(lambda: None)}):
        batch = Batch(frame="f", sequence=1, metrics=measures, only_if=("bad:1", "bad"))
        OperatorLogic("o", part).process(batch, source=0, watermark=EventTime(9), output=output_to(Channel()))  # type: ignore[arg-type]
    assert len(part.calls) == 2


@dataclass
class Growing:
    """An operator whose state is a list; a snapshot names what is there."""

    rows: list[object] = field(default_factory=list)

    def process(self, batch: Batch, **_: object) -> None:
        self.rows.append(batch.frame)

    def snapshot(self, checkpoint: CheckpointId) -> Pending:
        return Pending(StateHandle(kind="list/1", schema="v STRING", layers=(), detail=list(self.rows)))


@pytest.mark.mission("L14")
def test_state_is_that_of_the_barrier_however_late_it_is_written_and_says_what_it_is() -> None:
    operator = Growing()
    work = OperatorLogic("o", operator)  # type: ignore[arg-type]
    run(work, Held())
    captures = [work.snapshot(CheckpointId(1))]
    run(work, Held())
    captures.append(work.snapshot(CheckpointId(2)))
    run(work, Held())
    late, early = [capture(()).state for capture in reversed(captures)]
    assert early == StateHandle(kind="list/1", schema="v STRING", layers=(), detail=["f"])
    assert late == StateHandle(kind="list/1", schema="v STRING", layers=(), detail=["f", "f"])


def test_rows_for_a_step_whose_event_time_has_ended_are_refused_not_dropped() -> None:
    part, released = Everything(), []
    batch = Batch(frame="rows", sequence=1, rows=3, ref_counts=(RefCount(lambda: released.append(1)),))

    with pytest.raises(StateIncompatible, match="came to its end") as refused:
        OperatorLogic("o", part).process(batch, source=0, watermark=MAX_WATERMARK, output=output_to(Channel()))  # type: ignore[arg-type]

    assert refused.value.uid == "o"
    assert (part.calls, released) == ([], [1])


def test_rows_that_come_again_at_least_once_are_late_then_not_refused() -> None:
    part = Everything()
    batch = Batch(frame="rows", sequence=1, rows=3)

    OperatorLogic("o", part, repeats=True).process(
        batch, source=0, watermark=MAX_WATERMARK, output=output_to(Channel())
    )  # type: ignore[arg-type]

    assert part.calls == [("process", "rows", 0, MAX_WATERMARK)]


@dataclass
class Leaving:
    """An operator that leaves its batches' jobs to others."""

    calls: list[object] = field(default_factory=list)
    ran: ObservedMetrics = field(default_factory=lambda: ObservedMetrics(dict))

    def process(self, batch: Batch, **_: object) -> DeferredBatch:
        self.calls.append(batch.frame)
        return DeferredBatch(ran=self.ran, finish=lambda: self.calls.append("finished"))

    def close(self) -> None:
        self.calls.append("closed")


@pytest.mark.parametrize("end", ["settle", "lose"])
def test_a_batch_left_to_others_is_kept_until_its_job_has_run_or_never_will(end: str) -> None:
    operator, held, woken = Leaving(), Held(), []
    work = OperatorLogic("o", operator)  # type: ignore[arg-type]
    run(work, held)
    assert (operator.calls, held.freed, held.rows.settled) == (["f"], 0, False)
    assert not work.settle(lambda: woken.append(1))
    assert not work.settle(lambda: woken.append(1))
    assert woken == []
    getattr(operator.ran, end)()
    assert woken == [1], "woken once, however often it asked"
    assert work.settle(lambda: woken.append(1))
    assert (operator.calls, held.freed, held.rows.settled) == (["f", "finished"], 1, True)
    assert work.settle(lambda: woken.append(1))
    work.close()
    assert (operator.calls, held.freed) == (["f", "finished", "closed"], 1)


def test_a_step_that_ends_before_such_a_job_lets_go_of_the_batch() -> None:
    operator, held = Leaving(), Held()
    work = OperatorLogic("o", operator)  # type: ignore[arg-type]
    run(work, held)
    work.close()
    assert (operator.calls, held.freed, held.rows.settled) == (["f", "closed"], 1, False)
