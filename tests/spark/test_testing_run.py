"""Pipelines under test: rows in and out, crashes at named points, time by hand. All on one thread, nothing outside."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.errors import HarnessError
from penstock.testing.frames import assert_rows
from penstock.testing.sources import Crash
from spark.testing_kit import NOWHERE, at, clicks, counts, story
from window_harness import persistent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def add_tax(frame: DataFrame, rate: float) -> DataFrame:
    return frame.withColumn("amount", frame.amount * (1 + rate))


@ps.pipeline("orders")
def orders(p: ps.Pipeline) -> None:
    raw = p.read("orders", ps.files.Source(NOWHERE, format="text"))
    parsed, bad = raw.parse_json("value", "id LONG, user STRING, amount DOUBLE, at TIMESTAMP", on_error="split")
    countries = p.table("countries", "SELECT 'u1' AS user, 'DE' AS country", refresh="10 minutes")
    clean = (
        p.sql("SELECT o.*, c.country FROM {o} o LEFT JOIN {c} c USING (user)", o=parsed, c=countries)
        .where("amount > 0")
        .transform(add_tax, rate=0.5)
        .with_watermark("at", delay="5 seconds", idle_after="30 seconds")
    )
    totals = clean.group_by("user", ps.tumbling("1 minute")).agg(
        "totals", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n")
    )
    totals.write("totals-out", ps.files.Sink(NOWHERE + "/totals"))
    totals.late.write("late-out", ps.files.Sink(NOWHERE + "/late"))
    bad.write("bad-out", ps.files.Sink(NOWHERE + "/bad", format="json"))


def test_the_example_of_the_design(spark: SparkSession) -> None:
    with ps.testing.run(orders, spark) as t:
        t.send("orders", [{"value": '{"id": 1, "user": "u1", "amount": 3.0, "at": "2026-01-01T00:00:10Z"}'}])
        t.checkpoint()
        t.crash(at="sink.published")
        t.restart()
        t.end()
        assert t.rows("totals-out") == [
            {
                "user": "u1",
                "window_start": datetime(2026, 1, 1, tzinfo=timezone.utc),
                "window_end": datetime(2026, 1, 1, 0, 1, tzinfo=timezone.utc),
                "amount": 4.5,
                "n": 1,
            }
        ]
        assert t.facts


def test_side_outputs_are_sinks_and_rows_are_conserved(spark: SparkSession) -> None:
    with ps.testing.run(orders, spark) as t:
        t.send(
            "orders",
            [
                {"value": '{"user": "u1", "amount": 1.0, "at": "2026-01-01T00:00:10Z"}'},
                {"value": '{"user": "u1", "amount": -1.0, "at": "2026-01-01T00:00:10Z"}'},
                {"value": "no order"},
                {"value": '{"user": "u2", "amount": 1.0, "at": "2026-01-01T00:05:05Z"}'},
            ],
        )
        assert str(t.watermark("totals")) == "2026-01-01 00:05:00+00:00"
        t.send("orders", [{"value": '{"user": "u1", "amount": 8.0, "at": "2026-01-01T00:00:59Z"}'}])
        assert t.staged("late-out", "user", "amount") == [{"user": "u1", "amount": 12.0}]
        assert t.rows("late-out") == []
        t.checkpoint()
        assert t.rows("late-out", "user", "amount") == [{"user": "u1", "amount": 12.0}]
        assert t.staged("late-out") == []
        assert t.rows("bad-out", "value") == [{"value": "no order"}]
        assert t.rows("totals-out", "user", "n") == [{"user": "u1", "n": 1}]
        t.end()
        assert t.rows("totals-out", "user", "n") == [{"user": "u1", "n": 1}, {"user": "u2", "n": 1}]
        assert t.counters("totals") == {"late": 1, "fired": 2}
        assert t.report().rows_read == {"orders": 5}
        assert t.watermark("totals") == datetime.max.replace(tzinfo=timezone.utc)


POINTS = [
    "source.polled",
    "sink.staged",
    "sink.prepared",
    "state.layer.before_write",
    "state.layer.written",
    "state.layer.durable",
    "checkpoint.manifest.before",
    "checkpoint.manifest.written",
    "sink.commit.before",
    "sink.published",
    "log.append.written",
]


@pytest.mark.mission("D10", "L25", "S10", "S32")
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_gives_exactly_the_rows_of_a_run_without(spark: SparkSession, point: str) -> None:
    with ps.testing.run(clicks(), spark) as t:
        t.crash(at=point)
        t.restart()
        story(t)
        assert sorted(counts(t)) == [("u", 0, 1), ("u", 1, 2), ("u", 2, 1), ("v", 0, 1), ("v", 3, 2)]
        assert_rows(t.rows("late"), [at("v", 0, 59)])


@pytest.mark.mission("S21")
def test_what_was_not_in_a_checkpoint_is_read_again_and_what_was_is_not(spark: SparkSession) -> None:
    with ps.testing.run(clicks(), spark) as t:
        t.send("a", [at("u", 0)])
        t.checkpoint()
        t.send("a", [at("u", 1)])
        assert t.staged("out", "user", "n") == [{"user": "u", "n": 1}]
        t.crash()
        assert not t.is_alive
        t.send("a", [at("u", 2)])
        t.restart()
        assert t.report().rows_read == {"a": 4}, "the second row was read twice, the first once"
        assert str(t.watermark("counts")) == "2026-01-01 00:02:00+00:00"
        t.end()
        assert counts(t) == [("u", 0, 1), ("u", 1, 1), ("u", 2, 1)]


def test_a_recovery_that_crashes_is_followed_by_the_same_again(spark: SparkSession) -> None:
    with ps.testing.run(clicks(), spark) as t:
        t.send("a", [at("u", 0), at("u", 1)])
        t.crash(at="sink.commit.before")
        assert t.checkpoint() is None
        for point in ("log.claim.written", "sink.published", "recovery.committed", "recovery.restored"):
            t.crash(at=point)
            t.restart()
            assert not t.is_alive
        t.restart()
        assert counts(t) == [("u", 0, 1)]
        t.end()
        assert counts(t) == [("u", 0, 1), ("u", 1, 1)]


def test_a_crash_may_be_a_row(spark: SparkSession) -> None:
    with ps.testing.run(clicks(), spark) as t:
        t.send("a", [at("u", 0), Crash(), at("u", 1)])
        assert not t.is_alive
        with pytest.raises(HarnessError, match=r"The job is not running: it crashed at a Crash row of 'a'; restart"):
            t.checkpoint()
        t.restart()
        t.end()
        assert counts(t) == [("u", 0, 1), ("u", 1, 1)]


@pytest.mark.mission("L16", "L19")
@pytest.mark.parametrize(("mode", "found"), [("exactly-once", 2), ("at-least-once", 3)])
def test_rows_behind_an_early_barrier_count_twice_only_where_barriers_do_not_wait(
    spark: SparkSession, mode: str, found: int
) -> None:
    with ps.testing.run(clicks(sources=2), spark, mode=mode) as t:
        t.send("a", [at("u", 0)])
        t.hold("b")
        assert t.checkpoint(wait=False) is None, "the barrier of a has left, that of b has not"
        t.send("a", [at("u", 0, 1)])
        t.release("b")
        assert t.report().checkpoints == 2, "the first, at the start, and this one"
        t.crash()
        t.restart()
        t.end()
        assert counts(t) == [("u", 0, found)]


def test_the_same_script_gives_the_same_facts(spark: SparkSession) -> None:
    told = []
    for _ in range(2):
        with ps.testing.run(clicks(), spark) as t:
            t.crash(at="checkpoint.manifest.written", hit=2)
            t.restart()
            story(t)
            told.append((t.facts, t.rows("out"), t.report()))
    assert told[0] == told[1]


def test_nothing_is_started_and_the_session_is_left_as_it_was(spark: SparkSession) -> None:
    context = spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", "mine")
    description = context.getLocalProperty("spark.job.description")
    settings, threads, blocks = dict(spark.conf.getAll), threading.active_count(), persistent(spark)
    try:
        with ps.testing.run(clicks(), spark) as t:
            t.crash(at="state.layer.written")
            t.restart()
            story(t)
            assert threading.active_count() == threads
            assert context.getLocalProperty("spark.scheduler.pool") == "mine"
            assert context.getLocalProperty("spark.job.description") == description
            folder = t.folder
            assert list(folder.rglob("*.parquet"))
        assert not folder.exists()
        assert dict(spark.conf.getAll) == settings
        assert type(spark).getActiveSession() is not None
        assert spark.range(3).count() == 3
        assert persistent(spark) <= blocks
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]
