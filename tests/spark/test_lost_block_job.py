"""A cached block of a running job is lost: the job begins again from its durable layers, and its result is right."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.facts import BatchDone, CheckpointCompleted, JobStarted, Restarting
from spark.job_kit import Watch, drop
from window_harness import persistent

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, n LONG, at TIMESTAMP"


def row(user: str, n: int, hour: int) -> dict[str, object]:
    return {"user": user, "n": n, "at": f"2026-01-01T{hour:02}:00:00Z"}


def lose(spark, rdds: frozenset[int]) -> int:
    """Have the block managers drop all blocks of some RDDs, behind the back of whoever cached them."""
    kept = spark.sparkContext._jsc.getPersistentRDDs()
    for rdd in rdds:
        kept.get(rdd).unpersist(True)
    return len(rdds)


def test_a_job_that_lost_a_cached_block_restarts_from_durable_layers(spark, tmp_path):
    out, watch, before = ps.memory.Sink(), Watch(), persistent(spark)

    @ps.pipeline("lossy")
    def lossy(p: ps.Pipeline) -> None:
        timed = p.read("in", ps.files.Source(tmp_path / "in", schema=SCHEMA)).with_watermark("at", delay="0 seconds")
        hours = timed.group_by("user", ps.tumbling("1 hour"))
        hours.agg("hours", ps.agg.sum("n").alias("n"), ps.agg.count().alias("rows")).write("out", out)

    job = ps.Job(lossy, state=tmp_path / "state", spark=spark, listener=watch, checkpoint_every="300ms")
    (tmp_path / "in").mkdir()
    job.start()
    drop(tmp_path / "in", "1.json", [row("a", 1, 1), row("b", 2, 1)])
    watch.wait_for(BatchDone, 1, task="hours")
    number = 1
    while not watch.wait_for(CheckpointCompleted, number).bytes:  # the one with the first batch writes its layer
        number += 1
    assert lose(spark, persistent(spark) - before) > 0
    drop(tmp_path / "in", "2.json", [row("a", 4, 1), row("a", 8, 3)])
    restarting = watch.wait_for(Restarting)
    watch.wait_for(JobStarted, 2)
    drop(tmp_path / "in", "3.json", [row("b", 16, 3)])
    watch.wait_for(BatchDone, 1, task="out")
    assert job.stop()
    assert "Checkpoint" in restarting.cause or "cached block" in restarting.cause
    assert sorted((found["user"], found["n"], found["rows"]) for found in out.rows) == [("a", 5, 2), ("b", 2, 1)]
