"""The scripted source: rows, faults, pauses, idleness and the end, from any position, without Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

from core.runtime_fakes import Clock, NotingShell, drained, output_to
from penstock.clock import MonotonicTime, WallTime
from penstock.elements import WatermarkStatus
from penstock.errors import HarnessError, SchemaMismatch, StateIncompatible
from penstock.handles import Guarantee, Position
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, ReadLimit, SourceContext, Until
from penstock.runtime.channels import Channel
from penstock.runtime.source_task import SourceTask
from penstock.testing.sources import Crash, CrashRow, End, Idle, Pause, ScriptedReader, ScriptedSource

N = StructType().add("n", LongType())
SECOND = 1_000_000


def numbers(*values: int) -> list[dict[str, object]]:
    return [{"n": value} for value in values]


def opened(source: ScriptedSource, resume: Position | None = None, until: Until = Until.STOPPED) -> ScriptedReader:
    spark: Any = None
    return source.open(SourceContext(uid="in", spark=spark, until=until), resume)


def ask(reader: ScriptedReader, now: int = 0, rows: int | None = None) -> Any:
    poll = reader.poll(now=MonotonicTime(now), wall=WallTime(0), limits=ReadLimit(rows=rows))
    if isinstance(poll, PlannedBatch):
        return [reader._row(place)["n"] for place in poll.plan.indexes]  # type: ignore[attr-defined]
    return poll


def test_neighbouring_rows_are_a_batch_and_a_pause_or_a_limit_ends_it() -> None:
    reader = opened(ScriptedSource(N, [*numbers(1, 2, 3), Pause(), *numbers(4)]))
    assert [ask(reader), ask(reader)] == [[1, 2, 3], [4]]
    assert ask(reader, now=7) == NoData(wake_at=MonotonicTime(10_007))
    reader = opened(ScriptedSource(N, numbers(1, 2, 3)))
    assert [ask(reader, rows=2), ask(reader, rows=2)] == [[1, 2], [3]]


def test_what_is_sent_later_comes_later_and_as_a_batch_of_its_own() -> None:
    source = ScriptedSource(N, numbers(1))
    source.send(numbers(2))
    reader = opened(source)
    source.send(numbers(3, 4))
    source.send(numbers(5))
    assert [ask(reader), ask(reader), ask(reader), ask(reader)] == [[1], [2], [3, 4], [5]]
    with pytest.raises(SchemaMismatch, match="row 2: Column 'n'"):
        source.send([{"n": 6}, {"n": "7"}])
    source.send([End()])
    assert ask(reader) == Ended()
    with pytest.raises(HarnessError, match=r"has ended. Send rows before"):
        source.send(numbers(8))


def test_a_reader_goes_on_at_any_position() -> None:
    source = ScriptedSource(N, [*numbers(1, 2), Pause(), *numbers(3), End()])
    reader = opened(source)
    start = reader.position()
    assert (start, ask(reader)) == (Position(kind="scripted/1", detail={"next": 0}), [1, 2])
    middle = reader.position()
    assert ask(reader) == [3]
    assert ask(opened(source, start)) == [1, 2]
    again = opened(source, middle)
    assert [ask(again), ask(again), ask(again)] == [[3], Ended(), Ended()]
    with pytest.raises(StateIncompatible, match="of kind 'files/1', but this source reads 'scripted/1'"):
        opened(source, Position(kind="files/1", detail={"next": 0}))


def test_a_crash_happens_once_however_often_it_is_passed() -> None:
    source = ScriptedSource(N, [*numbers(1), Crash(), *numbers(2)])
    reader = opened(source)
    assert ask(reader) == [1]
    with pytest.raises(CrashRow, match="its item 2") as caught:
        ask(reader)
    assert caught.value.retry
    again = opened(source)
    assert [ask(again), ask(again)] == [[1], [2]]


def test_a_pause_lasts_by_the_clock_and_begins_anew_after_a_restart() -> None:
    source = ScriptedSource(N, [Pause("5 seconds"), *numbers(1)])
    reader = opened(source)
    assert ask(reader, now=SECOND) == NoData(wake_at=MonotonicTime(6 * SECOND))
    assert ask(reader, now=5 * SECOND) == NoData(wake_at=MonotonicTime(6 * SECOND))
    assert ask(opened(source, reader.position()), now=9 * SECOND) == NoData(wake_at=MonotonicTime(14 * SECOND))
    assert ask(reader, now=6 * SECOND) == [1]


def test_an_idle_source_says_so_until_its_next_rows_also_after_a_restart() -> None:
    source = ScriptedSource(N, [*numbers(1), Idle()])
    reader = opened(source)
    assert ask(reader) == [1]
    assert ask(reader) == NoData(wake_at=MonotonicTime(10_000), idle=True)
    again = opened(source, reader.position())
    assert ask(again) == NoData(wake_at=MonotonicTime(10_000), idle=True)
    source.send(numbers(2))
    assert ask(again) == [2]
    assert ask(again) == NoData(wake_at=MonotonicTime(10_000))


def test_a_script_is_caught_up_at_its_end() -> None:
    source = ScriptedSource(N, numbers(1))
    reader = opened(source, until=Until.CAUGHT_UP)
    assert [ask(reader), ask(reader)] == [[1], CaughtUp()]
    assert source.guarantee is Guarantee.EXACTLY_ONCE


@pytest.mark.mission("L9")
def test_a_source_task_tells_once_that_its_reader_is_idle_and_again_after_a_batch() -> None:
    source, channel, clock, shell = ScriptedSource(N), Channel(capacity=9), Clock(), NotingShell()
    reader = opened(source)
    reader.frame = lambda plan: [1]  # type: ignore[assignment,method-assign,misc] - no Spark here
    task = SourceTask("in", reader, output_to(channel), limits=ReadLimit, shell=shell, clock=clock)
    source.send([Idle()])
    for _ in range(3):
        task.step()
        clock.at += 10_000
    assert drained(channel) == [WatermarkStatus(idle=True)]
    source.send([*numbers(1), Idle()])
    for _ in range(3):
        task.step()
        clock.at += 10_000
    assert drained(channel) == [[1], WatermarkStatus(idle=True)]
