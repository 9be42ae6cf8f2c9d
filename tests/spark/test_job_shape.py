"""The budget of a batch: Spark jobs, compilations and cached blocks, counted from outside penstock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.facts import BatchDone, Counted, RowsRead, WatermarkAdvanced
from spark.job_kit import Jobs, Watch, drop
from window_harness import compilations, persistent

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

START = 1_767_225_600
SCHEMA = "id LONG, user STRING, at TIMESTAMP"


def rows(minute: int, count: int = 20) -> list[dict[str, object]]:
    return [
        {"id": n, "user": f"u{n % 3}", "at": f"2026-01-01T{minute // 60:02}:{minute % 60:02}:{n % 60:02}Z"}
        for n in range(count)
    ]


@pytest.mark.mission("S9")
def test_a_stateless_batch_runs_one_job_and_no_batch_none(spark: SparkSession, tmp_path: Path) -> None:
    @ps.pipeline("stateless")
    def pipeline(p: ps.Pipeline) -> None:
        raw = p.read("in", ps.files.Source(tmp_path / "in", schema=SCHEMA))
        raw.where("id >= 0").with_column("twice", "id * 2").write("plain-out", ps.files.Sink(tmp_path / "out"))

    (tmp_path / "in").mkdir()
    watch, jobs = Watch(), Jobs(spark)
    job = ps.Job(pipeline, state=tmp_path / "state", spark=spark, listener=watch, checkpoint_every="1 hour")
    job.start()
    warm = 4
    for number in range(1, warm + 5):
        if number == warm + 1:
            compiled = compilations(spark)
        drop(tmp_path / "in", f"{number}.json", rows(number))
        watch.wait_for(BatchDone, number, task="plain-out")
        assert jobs.of("plain-out") == number
    assert compilations(spark) == compiled, "nothing is compiled after warm-up"
    assert jobs.of("in") == 0
    assert job.stop()


@pytest.mark.usefixtures("few_layers")
def test_a_keyed_batch_runs_one_job_and_one_more_when_it_fires(spark: SparkSession, tmp_path: Path) -> None:
    @ps.pipeline("keyed")
    def pipeline(p: ps.Pipeline) -> None:
        raw = p.read("in", ps.files.Source(tmp_path / "in", schema=SCHEMA)).with_watermark("at", delay="0 seconds")
        counted = raw.group_by("user", ps.tumbling("1 minute")).agg("counting", ps.agg.count().alias("n"))
        counted.write("keyed-out", ps.files.Sink(tmp_path / "out"))

    (tmp_path / "in").mkdir()
    watch, jobs = Watch(), Jobs(spark)
    before = persistent(spark)
    job = ps.Job(pipeline, state=tmp_path / "state", spark=spark, listener=watch, checkpoint_every="1 hour")
    job.start()
    fired = 0
    minutes = [0, 0, 0, 0, 1, 2, 2, 3, 3, 3, 4, 5, 5, 6, 6, 6, 7]  # 4 layers are merged; then 1, 2 or 3, twice over
    for number, minute in enumerate(minutes, start=1):
        if number == 5:
            watch.wait_for(Counted, 1, task="counting", name="compacted")  # it compiles beside the data path
        if number == 12:
            watch.wait_for(Counted, 2, task="counting", name="compacted")  # the second one takes the code of its tasks
            compiled = compilations(spark)
        drop(tmp_path / "in", f"{number:02}.json", rows(minute))
        watch.wait_for(BatchDone, number, task="counting")
        if number > 1 and minute > minutes[number - 2]:
            fired += 1
            watch.wait_for(Counted, fired, task="counting", name="fired")
            watch.wait_for(BatchDone, fired, task="keyed-out")
        assert jobs.of("counting") == number, "one job a batch, firing or not"
        assert jobs.of("keyed-out") == fired, "one job for each firing, none else"
    assert compilations(spark) == compiled, "nothing is compiled after warm-up, firing included"
    # What the sink got stays in blocks until its checkpoint.
    assert len(persistent(spark) - before) <= 8 + fired, "a stack has at most 8 layers"
    assert job.stop()
    assert persistent(spark) <= before, "every block is freed by hand"


def test_a_branch_runs_the_source_once_and_an_empty_side_runs_no_job(spark: SparkSession, tmp_path: Path) -> None:
    @ps.pipeline("split")
    def pipeline(p: ps.Pipeline) -> None:
        lines = p.read("in", ps.files.Source(tmp_path / "in", format="text"))
        good, bad = lines.parse_json("value", SCHEMA, on_error="split")
        good.write("good-out", ps.files.Sink(tmp_path / "good", format="json"))
        bad.write("bad-out", ps.files.Sink(tmp_path / "bad", format="json"))

    (tmp_path / "in").mkdir()
    watch, jobs = Watch(), Jobs(spark)
    job = ps.Job(pipeline, state=tmp_path / "state", spark=spark, listener=watch, checkpoint_every="1 hour")
    job.start()
    for number in range(1, 4):
        drop(tmp_path / "in", f"{number}.json", rows(0))
        watch.wait_for(BatchDone, number, task="bad-out")
    assert jobs.of("bad-out") == 0
    assert jobs.of("good-out") == 3
    drop(tmp_path / "in", "4.json", [*rows(0), '{"id": "no number"}', "nothing at all"])
    assert watch.wait_for(BatchDone, 4, task="bad-out").rows == 2
    assert jobs.of("bad-out") == 1
    assert sum(fact.rows for fact in watch.of(RowsRead)) == 3 * 20 + 22
    assert job.stop()
    assert sum(fact.rows for fact in watch.of(BatchDone, task="good-out")) == 4 * 20


def test_a_row_far_ahead_is_kept_and_does_not_run_the_watermark_away(spark: SparkSession, tmp_path: Path) -> None:
    @ps.pipeline("ahead")
    def pipeline(p: ps.Pipeline) -> None:
        raw = p.read("in", ps.files.Source(tmp_path / "in", schema=SCHEMA, bounded=True, max_files_per_batch=1))
        timed = raw.with_watermark("at", delay="0 seconds", max_ahead="1 hour")
        counted = timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counted.write("out", out)
        counted.late.write("late-out", late)

    out, late, watch = ps.memory.Sink(), ps.memory.Sink(), Watch()
    drop(tmp_path / "in", "1.json", [*rows(0), {"id": 99, "user": "future", "at": "2999-01-01T00:00:00Z"}])
    drop(tmp_path / "in", "2.json", rows(1))
    ps.Job(pipeline, state=tmp_path / "state", spark=spark, listener=watch).run()
    assert watch.of(WatermarkAdvanced, task="counts")[0].at == (START + 19) * 1_000_000
    ahead = [fact.figures for fact in watch.of(BatchDone, task="counts")]
    assert [figures[f"time:{1}"]["ahead"] for figures in ahead] == [1, 0]
    assert sum(row["n"] for row in out.rows) == 41
    assert [row["user"] for row in out.rows].count("future") == 1
    assert late.rows == []
