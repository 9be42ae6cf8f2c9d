"""Windows in whole jobs: changes over checkpoints and restarts, and by the clock when no rows come."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

import penstock as ps
from penstock.facts import BatchDone
from spark.job_kit import Watch, drop

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, n LONG, at TIMESTAMP"


def row(n: int) -> dict[str, object]:
    return {"user": "a", "n": n, "at": f"2026-01-01T00:00:0{n}Z"}


def pipeline(folder, out: ps.memory.Sink, **more: str) -> ps.PipelineDefinition:
    @ps.pipeline("live")
    def live(p: ps.Pipeline) -> None:
        timed = p.read("in", ps.files.Source(folder / "in", schema=SCHEMA)).with_watermark("at", delay="1 day")
        hours = timed.group_by("user", ps.tumbling("1 hour"))
        hours.agg("hours", ps.agg.sum("n").alias("n"), emit="updates", **more).write("out", out)

    return live


def told(out: ps.memory.Sink) -> list[tuple[object, object]]:
    return [(row["_change"], row["n"]) for row in out.rows]


def test_changes_that_wait_are_in_the_checkpoint_that_has_their_rows_and_never_come_twice(spark, tmp_path):
    out = ps.memory.Sink()
    made = pipeline(tmp_path, out, emit_every="1000 days")
    for n in (1, 2):
        drop(tmp_path / "in", f"{n}.json", [row(n)])
        ps.Job(made, state=tmp_path / "state", spark=spark).run(until="caught-up")
    ps.Job(made, state=tmp_path / "state", spark=spark).run(until="caught-up")
    assert told(out) == [("insert", 1), ("update_before", 1), ("update_after", 3)]


def test_changes_are_sent_when_their_time_comes_though_no_rows_do(spark, tmp_path):
    out, watch = ps.memory.Sink(), Watch()
    made = pipeline(tmp_path, out, emit_every="200 milliseconds")
    (tmp_path / "in").mkdir()
    job = ps.Job(made, state=tmp_path / "state", spark=spark, listener=watch, checkpoint_every="1 hour")
    job.start()
    drop(tmp_path / "in", "1.json", [row(1), row(2)])
    watch.wait_for(BatchDone, 1, task="out")
    assert job.stop()
    assert told(out) == [("insert", 3)]


def test_keys_may_be_columns(spark, tmp_path):
    out = ps.memory.Sink()

    @ps.pipeline("columns")
    def columns(p: ps.Pipeline) -> None:
        source = ps.files.Source(tmp_path / "in", schema=SCHEMA, bounded=True)
        timed = p.read("in", source).with_watermark("at", delay="1 day")
        grouped = timed.group_by(F.col("user"), F.upper("user").alias("loud"), ps.tumbling("1 hour"))
        grouped.agg("hours", ps.agg.sum("n").alias("n")).write("out", out)

    drop(tmp_path / "in", "1.json", [row(1), row(2)])
    ps.Job(columns, state=tmp_path / "state", spark=spark).run()
    assert [(row["user"], row["loud"], row["n"]) for row in out.rows] == [("a", "A", 3)]
