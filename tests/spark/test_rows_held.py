"""A keyed step that leaves its batch's job to its sink, in a whole job: whatever comes while rows are held."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.checkpoint.events import StopRequested
from penstock.errors import HarnessError
from penstock.facts import BatchRead
from spark.held_kit import HELD, NOWHERE, SCHEMA, doing, expected, hold, row, sums, told
from window_harness import persistent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.testing.driver import SteppedAttempt
    from penstock.testing.pipeline_run import PipelineRun

pytestmark = pytest.mark.spark

FIRST = [row("a", 1), row("b", 1, 5), row("a", 2, 7)]
SECOND = [row("a", 1, 10), row("c", 3, 2)]
THIRD = [row("b", 1, 100), row("a", 2, 100)]


def holding(t: PipelineRun) -> None:
    """One batch is in a checkpoint, the next is held."""
    t.send("in", FIRST)
    t.checkpoint()
    hold(t, "out")
    t.send("in", SECOND)
    assert doing(t, "sums") == HELD


@pytest.mark.mission("L14")
def test_a_crash_while_rows_are_held_loses_none_and_tells_none_twice(spark: SparkSession) -> None:
    before = persistent(spark)
    with ps.testing.run(sums(), spark) as t:
        holding(t)
        t.crash()
        t.restart()
        t.send("in", THIRD)
        t.end()
        assert told(t.rows("out")) == expected([*FIRST, *SECOND, *THIRD])
    assert persistent(spark) <= before


@pytest.mark.parametrize("point", ["sink.staged", "checkpoint.manifest.before"])
def test_a_crash_at_any_moment_of_a_batch_that_is_left_to_its_sink(spark: SparkSession, point: str) -> None:
    with ps.testing.run(sums(), spark) as t:
        t.send("in", FIRST)
        t.checkpoint()
        t.crash(at=point)
        t.restart()
        t.send("in", SECOND)
        t.checkpoint()
        t.end()
        assert told(t.rows("out")) == expected([*FIRST, *SECOND])


def test_a_checkpoint_asked_for_while_rows_are_held_waits_for_them_and_has_them(spark: SparkSession) -> None:
    with ps.testing.run(sums(), spark) as t:
        holding(t)
        assert t.checkpoint(wait=False) is None
        t.send("in", THIRD)
        assert doing(t, "sums") == HELD, "neither the barrier nor what is behind it passes"
        hold(t, "out", is_held=False)
        assert told(t.rows("out")) == expected([*FIRST, *SECOND]), "the barrier lay between the two"
        assert t.staged("out") != []
        t.crash()
        t.restart()
        t.end()
        assert told(t.rows("out")) == expected([*FIRST, *SECOND, *THIRD])


def test_a_checkpoint_that_expires_while_rows_are_held_leaves_them_to_the_next(spark: SparkSession) -> None:
    with ps.testing.run(sums(), spark, checkpoint_timeout="10 seconds", tolerated_failures=1) as t:
        holding(t)
        t.checkpoint(wait=False)
        t.advance("11 seconds")
        hold(t, "out", is_held=False)
        t.checkpoint()
        t.crash()
        t.restart()
        t.end()
        assert told(t.rows("out")) == expected([*FIRST, *SECOND])


def test_a_stop_while_rows_are_held_waits_for_them_and_the_next_start_reads_them_no_more(spark: SparkSession) -> None:
    with ps.testing.run(sums(), spark, checkpoint_timeout="1000 days") as t:
        holding(t)
        with pytest.raises(HarnessError, match=f"'sums' is {HELD}, 'out' is held"):
            t.stop()
        hold(t, "out", is_held=False)
        assert not t.is_alive
        assert told(t.rows("out")) == expected([*FIRST, *SECOND])
        t.restart()
        t.send("in", THIRD)
        t.end()
        assert told(t.rows("out")) == expected([*FIRST, *SECOND, *THIRD])


def test_a_source_that_ends_while_rows_are_held_closes_its_windows_after_them(spark: SparkSession) -> None:
    with ps.testing.run(sums(), spark, checkpoint_timeout="1000 days") as t:
        holding(t)
        with pytest.raises(HarnessError, match=HELD):
            t.end()
        assert t.watermark("sums") < t.clock.time, "the end of time has not passed the rows before it"
        hold(t, "out", is_held=False)
        t.advance("1 second")
        assert not t.is_alive
        assert told(t.rows("out")) == expected([*FIRST, *SECOND])
        assert "late" not in t.counters("sums")


def test_a_drain_while_rows_are_held_closes_all_windows_with_them(spark: SparkSession) -> None:
    def drain(running: SteppedAttempt) -> None:
        at, wall = t.clock.now(), t.clock.wall()
        running.supervisor.request(StopRequested(at=at, wall=wall, request="drain", drain=True))

    with ps.testing.run(sums(), spark) as t:
        holding(t)
        t._job.move(drain)
        assert doing(t, "sums") == HELD
        hold(t, "out", is_held=False)
        assert not t.is_alive
        assert str(t.watermark("sums"))[:4] == "9999"
        assert told(t.rows("out")) == expected([*FIRST, *SECOND])
        assert "late" not in t.counters("sums")


def test_what_is_held_is_bounded_by_the_channel_and_comes_out_in_order(spark: SparkSession) -> None:
    with ps.testing.run(sums(), spark, channel_capacity=2) as t:
        hold(t, "out")
        for x in range(1, 9):
            t.send("in", [row("a", 1, x)])
        read = len([fact for fact in t.facts if isinstance(fact, BatchRead)])
        assert read == 3, "one is held, two wait behind it; the others were not read"
        hold(t, "out", is_held=False)
        t.end()
        assert [each["x"] for each in t.rows("out") if each["_change"] == "insert"] == [1]
        assert told(t.rows("out")) == {("a", 1): 36}


def test_two_sinks_of_one_step_get_the_same_whoever_runs_it_first(spark: SparkSession) -> None:
    before = persistent(spark)
    with ps.testing.run(sums(sinks=2), spark) as t:
        for slow in ("out", "out1"):
            hold(t, slow)
            t.send("in", FIRST)
            assert doing(t, "sums") != HELD, "the other one has run it"
            hold(t, slow, is_held=False)
        t.checkpoint()
        hold(t, "out")
        hold(t, "out1")
        t.send("in", SECOND)
        assert doing(t, "sums") == HELD
        t.crash()
        t.restart()
        t.end()
        assert told(t.rows("out")) == told(t.rows("out1")) == expected([*FIRST, *FIRST, *SECOND])
        assert t.rows("out") == t.rows("out1")
    assert persistent(spark) <= before


def test_a_sink_that_wants_none_of_the_changes_does_not_take_them_from_the_other(spark: SparkSession) -> None:
    @ps.pipeline("chosen")
    def pipeline(p: ps.Pipeline) -> None:
        rows = p.read("in", ps.files.Source(NOWHERE, schema=SCHEMA)).with_watermark("at", delay="1 hour")
        changes = rows.group_by("user", ps.tumbling("1 minute")).agg("sums", ps.agg.sum("x").alias("x"), emit="updates")
        changes.where("false").write("none", ps.memory.Sink())
        changes.where("user = 'a'").write("some", ps.memory.Sink())
        changes.write("out", ps.memory.Sink())

    with ps.testing.run(pipeline, spark) as t:
        for waits in ("none", "some", "out"):
            others = {"none", "some", "out"} - {waits}
            for other in others:
                hold(t, other)
            t.send("in", FIRST)
            for other in others:
                hold(t, other, is_held=False)
        t.end()
        assert told(t.rows("out")) == expected(FIRST * 3)
        assert told(t.rows("some")) == {key: x for key, x in expected(FIRST * 3).items() if key[0] == "a"}
        assert t.rows("none") == []


def test_a_step_beside_bad_records_and_one_whose_late_rows_are_read_lose_nothing(spark: SparkSession) -> None:
    @ps.pipeline("sides")
    def pipeline(p: ps.Pipeline) -> None:
        lines = p.read("in", ps.files.Source(NOWHERE, format="text"))
        good, bad = lines.parse_json("value", SCHEMA, on_error="split")
        bad.write("bad", ps.memory.Sink())
        timed = good.with_watermark("at", delay="0 seconds")
        for name in ("plain", "sides"):
            changes = timed.group_by("user", ps.tumbling("1 minute")).agg(
                name, ps.agg.sum("x").alias("x"), emit="updates"
            )
            changes.write(f"{name}-out", ps.memory.Sink())
            if name == "sides":
                changes.late.write("late", ps.memory.Sink())

    def line(user: str, minute: int, x: int) -> dict[str, object]:
        return {"value": f'{{"user": "{user}", "x": {x}, "at": "2026-01-01T00:{minute:02}:01Z"}}'}

    with ps.testing.run(pipeline, spark) as t:
        hold(t, "plain-out")
        t.send("in", [line("a", 1, 1), {"value": "no record"}, line("b", 2, 2)])
        t.send("in", [line("a", 2, 4), line("late", 1, 99)])
        hold(t, "plain-out", is_held=False)
        t.checkpoint()
        hold(t, "sides-out")
        t.send("in", [{"value": "nor this"}, line("a", 2, 8)])
        t.crash()
        t.restart()
        t.end()
        right = {("a", 1): 1, ("b", 2): 2, ("a", 2): 12}
        assert told(t.rows("plain-out")) == told(t.rows("sides-out")) == right
        assert [each["value"] for each in t.rows("bad")] == ["no record", "nor this"]
        assert [each["x"] for each in t.rows("late")] == [99]
        assert t.counters("plain")["late"] == t.counters("sides")["late"] == 1


def test_who_keeps_no_state_holds_nothing_and_neither_does_a_step_that_sends_whole_windows(spark: SparkSession) -> None:
    @ps.pipeline("prompt")
    def pipeline(p: ps.Pipeline) -> None:
        rows = p.read("in", ps.files.Source(NOWHERE, schema=SCHEMA)).with_watermark("at", delay="0 seconds")
        rows.where("x > 1").write("plain", ps.memory.Sink())
        rows.group_by("user", ps.tumbling("1 minute")).agg("whole", ps.agg.sum("x").alias("x")).write(
            "out", ps.memory.Sink()
        )

    with ps.testing.run(pipeline, spark) as t:
        hold(t, "out")
        began = t.clock.now()
        for number in (2, 3):
            t.send("in", [row("a", number, number)])
            assert [each["x"] for each in t.staged("plain")] == list(range(2, number + 1))
            assert doing(t, "whole") != HELD
        assert t.clock.now() == began, "nobody waited for any time"
        hold(t, "out", is_held=False)
        t.end()
        assert [(each["user"], each["x"]) for each in t.rows("out")] == [("a", 2), ("a", 3)]


def test_changes_that_wait_for_their_time_come_out_of_an_idle_job_when_that_has_come(spark: SparkSession) -> None:
    with ps.testing.run(sums(emit_every="10 seconds"), spark) as t:
        t.advance("1 second")
        t.send("in", FIRST)
        t.idle("in")
        t.advance("8 seconds")
        assert t.staged("out") == []
        t.advance("1 second")
        assert told(t.staged("out")) == expected(FIRST), "no row came, nor did event time move"
        t.send("in", SECOND)
        t.crash()
        t.restart()
        t.advance("20 seconds")
        t.checkpoint()
        assert told(t.rows("out")) == expected([*FIRST, *SECOND])
        t.end()
        assert told(t.rows("out")) == expected([*FIRST, *SECOND])


def test_of_two_steps_before_one_sink_that_waits_for_a_barrier_the_one_that_holds_does_not_hold_it_up(
    spark: SparkSession,
) -> None:
    @ps.pipeline("aligned")
    def pipeline(p: ps.Pipeline) -> None:
        streams = []
        for name in ("a", "b"):
            rows = p.read(name, ps.files.Source(NOWHERE, schema=SCHEMA)).with_watermark("at", delay="1 hour")
            grouped = rows.group_by("user", ps.tumbling("1 minute"))
            streams.append(grouped.agg(f"sums-{name}", ps.agg.sum("x").alias("x"), emit="updates"))
        streams[0].union(streams[1]).write("out", ps.memory.Sink())

    with ps.testing.run(pipeline, spark) as t:
        t.hold("b")
        t.checkpoint(wait=False)
        t.send("a", [row("a", 1)])
        assert doing(t, "sums-a") == HELD, "what is behind the barrier waits where the other one is awaited"
        t.send("b", [row("b", 1, 5)])
        t.release("b")
        assert doing(t, "sums-a") == "idle"
        assert t.rows("out") == [], "both were read after the barrier"
        t.crash()
        t.restart()
        t.checkpoint()
        assert told(t.rows("out")) == {("a", 1): 1, ("b", 1): 5}
