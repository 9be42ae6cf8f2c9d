"""What a source that was given rows reads between the request to stop and the final checkpoint."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from core.runtime_fakes import Clock, NotingShell, drained, output_to
from penstock.clock import MonotonicTime, WallTime
from penstock.elements import Barrier, CheckpointKind
from penstock.errors import SourceUnavailable
from penstock.handles import CheckpointId, Position
from penstock.interfaces.source import CaughtUp, NoData, PlannedBatch, PollResult, ReadLimit
from penstock.runtime.channels import Channel
from penstock.runtime.poll_schedule import FixedInterval, LastBatches
from penstock.runtime.source_task import Drain, SourceMail, SourceTask

BATCH = PlannedBatch(plan=["row"], rows=1)
FINAL = Barrier(checkpoint=CheckpointId(3), kind=CheckpointKind.FINAL)


@dataclass
class Given:
    """A reader that has been given these batches."""

    batches: list[PollResult] = field(default_factory=list)
    error: Exception | None = None
    was_told: bool = False
    read: int = 0

    def take_no_more(self) -> None:
        self.was_told = True

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        if self.error is not None:
            self.read += 1
            raise self.error
        return self.batches.pop(0) if self.batches else CaughtUp()

    def frame(self, plan: object) -> object:
        return plan

    def position(self) -> Position:
        return Position(kind="given/1", detail=self.read)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""


class Bench:
    def __init__(self, reader: Given, *, capacity: int = 100, reads_last: bool = True, held: bool = False) -> None:
        self.reader = reader
        self.clock = Clock()
        self.shell = NotingShell()
        self.channel = Channel(capacity=capacity)
        self.task = SourceTask(
            "in",
            reader,  # type: ignore[arg-type]
            output_to(self.channel),
            limits=ReadLimit,
            schedule=FixedInterval(1_000_000),
            reads_last=reads_last,
            held=held,
            shell=self.shell,
            clock=self.clock,
        )

    def stop(self, *mail: SourceMail, steps: int = 30) -> list[object]:
        """What is sent in so many steps after the request: a word for each batch, and the others as they are."""
        for each in mail or (FINAL,):
            self.task.post(each)
        for _ in range(steps):
            self.task.step()
        return self.sent()

    def sent(self) -> list[object]:
        return ["batch" if each == ["row"] else each for each in drained(self.channel)]


def test_all_that_was_given_is_read_before_the_final_barrier_whatever_the_tick() -> None:
    bench = Bench(Given([BATCH, BATCH]))

    assert bench.stop() == ["batch", "batch", FINAL]
    assert bench.reader.was_told


def test_no_more_than_ten_batches_are_read() -> None:
    bench = Bench(Given([BATCH] * 50))

    assert bench.stop() == ["batch"] * LastBatches.MOST + [FINAL]


def test_rows_that_are_on_their_way_into_the_log_are_waited_for_but_not_for_ever() -> None:
    bench = Bench(Given([NoData(wake_at=MonotonicTime(20)), BATCH, *[NoData(wake_at=MonotonicTime(0))] * 50]))

    assert bench.stop(steps=5) == ["batch"]
    bench.clock.at = LastBatches.TIME
    bench.task.step()
    bench.task.step()
    assert bench.sent() == [FINAL]


def test_a_drain_reads_them_before_event_time_ends() -> None:
    first, end, last = Bench(Given([BATCH])).stop(Drain(), FINAL)

    assert (first, last) == ("batch", FINAL)
    assert end != "batch"


def test_a_drain_reads_all_of_them_however_long_that_takes_since_no_start_reads_on() -> None:
    bench = Bench(Given([NoData(wake_at=MonotonicTime(20)), *[BATCH] * 50]), capacity=1)
    bench.task.post(Drain())
    bench.task.post(FINAL)
    sent: list[object] = []
    for step in range(200):
        bench.clock.at = step * LastBatches.TIME
        bench.task.step()
        sent += bench.sent()
    assert sent.count("batch") == 50
    assert sent[-1] == FINAL


def test_a_reader_that_fails_in_a_drain_fails_the_attempt_so_that_nothing_is_drained() -> None:
    bench = Bench(Given(error=SourceUnavailable("Gone.")))
    with pytest.raises(SourceUnavailable, match="Gone"):
        bench.stop(Drain(), FINAL)
    assert bench.sent() == []


def test_a_reader_that_fails_now_leaves_its_rows_to_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        bench = Bench(Given(error=SourceUnavailable("Gone.")))
        assert bench.stop() == [FINAL]
    position = bench.shell.snapshots[0][2].position
    assert position == Position(kind="given/1", detail=0), "that before the batch which was not sent"
    assert "does not read the rest of its rows before the stop: Gone." in caplog.text


def test_a_step_downstream_that_has_no_room_is_waited_for() -> None:
    bench = Bench(Given([BATCH, BATCH]), capacity=1)

    assert bench.stop(steps=5) == ["batch"]
    for _ in range(5):
        bench.task.step()
    assert bench.sent()[0] == "batch"


def test_a_step_downstream_that_never_has_room_does_not_hold_up_the_stop() -> None:
    bench = Bench(Given([BATCH, BATCH]), capacity=1)
    bench.task.post(FINAL)
    for now in (0, 0, 0, LastBatches.TIME, LastBatches.TIME):
        bench.clock.at = now
        bench.task.step()

    assert FINAL in drained(bench.channel)


@pytest.mark.parametrize("options", [{"reads_last": False}, {"held": True}])
def test_a_source_that_is_not_given_rows_or_has_not_begun_reads_nothing_more(options: dict[str, bool]) -> None:
    assert Bench(Given([BATCH]), **options).stop() == [FINAL]


def test_an_ordinary_barrier_reads_nothing() -> None:
    ordinary = Barrier(checkpoint=CheckpointId(2))

    assert Bench(Given([BATCH])).stop(ordinary, steps=1) == [ordinary]
