"""Pipelines under test: watermarks and time by hand, checkpoints that fail, new versions, and mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.errors import (
    CheckpointAborted,
    HarnessError,
    RequestRefused,
    SchemaMismatch,
    SettingsError,
    UserFunctionError,
)
from penstock.facts import CheckpointCompleted, CheckpointFailed
from penstock.testing.frames import assert_rows
from penstock.testing.pipeline_run import PipelineRun
from penstock.testing.sources import End
from spark.testing_kit import CLICKS, NOWHERE, at, clicks, counts, story

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.mission("L9")
def test_the_slower_of_two_sources_holds_the_watermark_until_it_is_idle(spark: SparkSession) -> None:
    with ps.testing.run(clicks(sources=2, delay="5 seconds"), spark) as t:
        assert t.watermark("counts") is None
        t.send("a", [at("u", 5, 5)])
        t.send("b", [at("u", 1, 5)])
        assert str(t.watermark("counts")) == "2026-01-01 00:01:00+00:00"
        t.idle("b")
        assert str(t.watermark("counts")) == "2026-01-01 00:05:00+00:00"
        t.send("b", [at("v", 1, 5)])
        t.checkpoint()
        assert counts(t) == [("u", 1, 1)]
        assert_rows(t.rows("late"), [at("v", 1, 5)])


def test_a_source_without_rows_becomes_idle_by_the_clock(spark: SparkSession) -> None:
    with ps.testing.run(clicks(sources=2), spark, checkpoint_every="1 minute") as t:
        t.send("a", [at("u", 5)])
        t.send("b", [at("u", 1)])
        t.advance("29 seconds")
        assert str(t.watermark("counts")) == "2026-01-01 00:01:00+00:00"
        t.send("a", [at("u", 6)])
        t.advance("1 second")
        assert str(t.watermark("counts")) == "2026-01-01 00:06:00+00:00"
        assert counts(t) == [], "fired, staged, and not yet in a checkpoint"
        t.advance("30 seconds")
        assert counts(t) == [("u", 1, 1), ("u", 5, 1)]
        assert str(t.clock.time) == "2026-01-01 00:01:00+00:00"


def test_an_aborted_checkpoint_is_raised_with_its_reason_and_the_next_one_has_all(spark: SparkSession) -> None:
    with ps.testing.run(clicks(sources=2), spark, checkpoint_timeout="10 seconds", tolerated_failures=1) as t:
        t.send("a", [at("u", 0)])
        t.hold("b")
        t.checkpoint(wait=False)
        t.advance("10 seconds")
        (failed,) = [fact for fact in t.facts if isinstance(fact, CheckpointFailed)]
        assert failed.reason == "expired"
        assert "waiting for 'b'" in failed.message
        t.release("b")
        done = t.checkpoint()
        assert done is not None
        assert done > failed.checkpoint
    with ps.testing.run(clicks(sources=2), spark, checkpoint_timeout="10 seconds") as t:
        t.hold("b")
        with pytest.raises(HarnessError, match=r"The checkpoint does not complete: .*'b' is held"):
            t.checkpoint()
        with pytest.raises(CheckpointAborted, match="0 failures in a row are tolerated"):
            t.advance("1 minute")
        assert not t.is_alive
        t.restart()
        t.end()


def test_a_savepoint_is_a_checkpoint_with_a_name(spark: SparkSession) -> None:
    with ps.testing.run(clicks(), spark) as t:
        t.send("a", [at("u", 0)])
        kept = t.savepoint("before-v2")
        last = [fact for fact in t.facts if isinstance(fact, CheckpointCompleted)][-1]
        assert (last.checkpoint, last.kind) == (kept, "savepoint")
        with pytest.raises(SettingsError, match="'Before V2' cannot name a savepoint"):
            t.savepoint("Before V2")
        with pytest.raises(RequestRefused, match=f"'before-v2' exists already as checkpoint {kept}"):
            t.savepoint("before-v2")
        assert t.savepoint("Before_V2") is not None, "what production takes"


@pytest.mark.parametrize("point", ["checkpoint.manifest.before", "checkpoint.manifest.written", "sink.published"])
def test_a_savepoint_that_a_crash_cut_short_is_taken_once(spark: SparkSession, point: str) -> None:
    with ps.testing.run(clicks(), spark) as t:
        t.send("a", [at("u", 0), at("u", 1)])
        t.crash(at=point)
        t.restart()
        kept = t.savepoint("kept")
        assert t.is_alive
        assert counts(t) == [("u", 0, 1)]
        with pytest.raises(RequestRefused, match=f"'kept' exists already as checkpoint {kept}"):
            t.savepoint("kept")


@pytest.mark.mission("D7")
def test_a_new_version_takes_over_the_state_of_the_old(spark: SparkSession) -> None:
    with ps.testing.run(clicks(), spark) as t:
        t.send("a", [at("u", 0)])
        t.stop()
        assert not t.is_alive
        assert counts(t) == [], "a stop closes no window"

        @ps.pipeline("clicks")
        def other(p: ps.Pipeline) -> None:
            source = ps.files.Source(NOWHERE, schema=f"{CLICKS}, robot BOOLEAN")
            stream = p.read("a", source).where("robot IS NOT TRUE").with_watermark("at", delay="0 seconds")
            found = stream.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
            found.write("new-out", ps.memory.Sink())

        with pytest.raises(HarnessError, match="'sessions' is no new version of 'clicks'"):
            t.restart(clicks(name="sessions"))
        t.restart(other)
        t.send("a", [at("u", 0), {**at("u", 0), "robot": True}])
        with pytest.raises(HarnessError, match="Source 'b' does not exist"):
            t.send("b", [])
        t.end()
        assert t.rows("new-out", "user", "n") == [{"user": "u", "n": 2}]
        assert t.rows("out") == []


def test_a_frame_may_be_sent_and_a_batch_be_cut(spark: SparkSession) -> None:
    with ps.testing.run(clicks(), spark, max_rows_per_batch=2) as t:
        t.send("a", spark.sql("SELECT 'u' AS user, timestamp_seconds(1767225600 + id) AS at FROM range(5)"))
        assert t.report().batches == {"a": 3}
        t.send("a", [at("u", 1), End()])
        assert not t.is_alive, "its only source has ended"
        assert counts(t) == [("u", 0, 5), ("u", 1, 1)]


def test_what_the_pipeline_raises_reaches_the_test(spark: SparkSession) -> None:
    @ps.pipeline("broken")
    def broken(p: ps.Pipeline) -> None:
        p.read("in", ps.files.Source(NOWHERE, schema="n LONG")).select("100 div n AS x").write("out", ps.memory.Sink())

    told = r"'out': '100 div n' in select 100 div n AS x at tests/spark/test_testing_steps.py:\d+ .*DIVIDE_BY_ZERO"
    with ps.testing.run(broken, spark) as t:
        t.send("in", [{"n": 5}])
        t.checkpoint()
        with pytest.raises(UserFunctionError, match=told):
            t.send("in", [{"n": 0}])
        with pytest.raises(HarnessError, match=r"The job is not running: it failed: .*DIVIDE_BY_ZERO"):
            t.checkpoint()
        assert t.report().state == "failed"
        assert t.rows("out") == [{"x": 20}]


def test_mistakes_are_told_with_what_was_meant(spark: SparkSession) -> None:
    with ps.testing.run(clicks(sources=2), spark) as t:
        for mistake, told in [
            (lambda: t.send("aa", []), r"Source 'aa' does not exist. Did you mean 'a'\?"),
            (lambda: t.send("out", []), r"'out' is a sink, not a source. The pipeline's sources: 'a', 'b'"),
            (lambda: t.send("counts", []), r"'counts' is a step, not a source"),
            (lambda: t.rows("a"), r"'a' is a source, not a sink. The pipeline's sinks: 'out', 'late'"),
            (lambda: t.rows("our"), r"Sink 'our' does not exist. Did you mean 'out'\?"),
            (lambda: t.watermark("a"), "'a' is a source, which has no watermark"),
            (lambda: t.watermark("count"), r"Step 'count' does not exist. Did you mean 'counts'\?"),
            (lambda: t.counters("count"), r"Did you mean 'counts'\?"),
            (lambda: t.hold("out"), "'out' is a sink"),
            (
                lambda: t.crash(at="sink.publish"),
                r"Crash point 'sink.publish' does not exist. Did you mean 'sink.published'\?",
            ),
            (t.restart, r"The job is running, and no crash is armed. Call crash\(\), stop\(\) or end\(\) first"),
        ]:
            with pytest.raises(HarnessError, match=told):
                mistake()
        with pytest.raises(SchemaMismatch, match=r"send\('a'\): row 2: Column 'at' is TIMESTAMP and cannot hold 'now'"):
            t.send("a", [at("u", 0), {"user": "u", "at": "now"}])
        t.send("a", [at("u", 9)])
        t.send("b", [at("u", 9)])
        t.checkpoint()
        t.end()
        with pytest.raises(HarnessError, match=r"Sink 'out': Column 'users' does not exist. Did you mean 'user'\?"):
            t.rows("out", "users")
        with pytest.raises(HarnessError, match="The job is not running: it has ended"):
            t.checkpoint()
        with pytest.raises(HarnessError, match=r"The source has ended. Send rows before"):
            t.send("a", [at("u", 9)])
    with pytest.raises(HarnessError, match="Use it in a with block"):
        ps.testing.run(clicks(), spark).checkpoint()
    with pytest.raises(ps.SettingsError, match="Did you mean 'mode'"):
        ps.testing.run(clicks(), spark, modes="x")
    with pytest.raises(HarnessError, match=r"is no pipeline. Write a function under @ps.pipeline"):
        ps.testing.run(print, spark).__enter__()  # type: ignore[arg-type]


def never_reached(t: PipelineRun) -> None:
    """A crash is armed where the job never comes."""
    with t:
        t.crash(at="state.compacted")
        with pytest.raises(HarnessError, match="one crash at a time"):
            t.crash(at="sink.staged")
        t.restart()
        with pytest.raises(HarnessError, match=r"The restart waits for the crash. .*never reached"):
            t.restart()
        story(t)


def test_a_crash_point_that_is_never_reached_fails_the_test(spark: SparkSession) -> None:
    told = r"crash\(at='state.compacted'\) was never reached. Reached since then: .*sink"
    with pytest.raises(AssertionError, match=told):
        never_reached(ps.testing.run(clicks(), spark))
    with ps.testing.run(clicks(), spark) as t:
        story(t)
