"""Whole jobs on a real session: start, continue, stop, fail, and what a crash leaves behind."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.api.pipeline import PipelineDefinition
from penstock.checkpoint.log import ManifestWriter
from penstock.errors import GenerationFenced, InternalError, SettingsError, StateIncompatible, UserFunctionError
from penstock.facts import BatchDone, CheckpointCompleted, Fact, JobEnded, JobStarted, Published, Restarting
from penstock.failpoints import armed
from penstock.runtime.lifecycle import JobState
from spark.job_kit import Watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

USERS = 3


def clicks(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("n AS id", f"concat('u', n % {USERS}) AS user", "timestamp_seconds(1767225600 + n) AS at")


def counting(out: ps.memory.Sink, *, rows: int | None = 600, per_batch: int = 100) -> PipelineDefinition:
    """Clicks counted by user and minute; 600 clicks are 10 minutes, 200 of each user."""

    @ps.pipeline("clicks")
    def pipeline(p: ps.Pipeline) -> None:
        source = ps.generator.Source(clicks, rows=rows, per_batch=per_batch)
        stream = p.read("in", source).with_watermark("at", delay="0 seconds")
        counted = stream.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counted.write("out", out)

    return pipeline


def totals(out: ps.memory.Sink) -> dict[tuple[str, str], int]:
    rows = [(row["user"], str(row["window_start"])[:16], row["n"]) for row in out.rows]
    assert len({row[:2] for row in rows}) == len(rows), "a window was published twice"
    return {(user, start): n for user, start, n in rows}


def expected(minutes: int = 10) -> dict[tuple[str, str], int]:
    return {(f"u{u}", f"2026-01-01 00:{m:02}"): 60 // USERS for u in range(USERS) for m in range(minutes)}


@pytest.mark.mission("L1", "L25", "S1", "S7", "S31")
def test_a_bounded_source_ends_with_every_window_fired_and_published_once(spark: SparkSession, tmp_path: Path) -> None:
    out, watch = ps.memory.Sink(), Watch()
    job = ps.Job(counting(out), state=tmp_path, spark=spark, listener=watch)
    report = job.run()
    assert totals(out) == expected()
    assert job.state is JobState.STOPPED
    assert report.rows_read == {"in": 600}
    assert report.rows_written == {"out": USERS * 10}
    assert job.wait(timeout=0)
    assert [type(fact) for fact in watch.facts if isinstance(fact, JobStarted | JobEnded)] == [JobStarted, JobEnded]


@pytest.mark.mission("D1", "D5", "S13")
def test_the_same_call_starts_afresh_or_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    out, watch = ps.memory.Sink(), Watch()
    first = ps.get_or_create(counting(out, rows=None), state=tmp_path, spark=spark, listener=watch)
    first.start()
    watch.wait_for(BatchDone, 2, task="counts")
    assert ps.get_or_create(counting(out), state=tmp_path, spark=spark) is first, "it runs in this process"
    first.stop()
    before = first.report()
    assert before.restored is None
    rows = before.rows_read["in"]
    second = ps.get_or_create(counting(out, rows=rows + 120), state=tmp_path, spark=spark)
    report = second.run()
    assert report.restored == before.last_checkpoint
    assert report.rows_read == {"in": 120}, "what was read before is not read again"
    assert sum(totals(out).values()) == rows + 120, "each click counts once, over both runs"


def test_a_source_that_ended_and_has_more_rows_is_refused_for_they_would_all_be_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = ps.memory.Sink()
    ps.Job(counting(out, rows=60), state=tmp_path, spark=spark).run()
    assert ps.Job(counting(out, rows=60), state=tmp_path, spark=spark).run().rows_read == {}
    with pytest.raises(StateIncompatible, match=r"'in' ended in an earlier run.*--fresh"):
        ps.Job(counting(out, rows=120), state=tmp_path, spark=spark).run()


@pytest.mark.mission("D4", "S6")
def test_a_given_session_is_used_and_left_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    before = dict(spark.conf.getAll)
    ps.Job(counting(ps.memory.Sink(), rows=10), state=tmp_path, spark=spark).run()
    assert dict(spark.conf.getAll) == before
    assert spark.range(3).count() == 3


@pytest.mark.mission("S2")
def test_a_second_start_only_warns_and_a_job_that_is_over_does_not_start(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = ps.Job(counting(ps.memory.Sink(), rows=10), state=tmp_path, spark=spark)
    job.start()
    job.start()
    assert "start() did nothing" in caplog.text
    job.wait()
    with pytest.raises(SettingsError, match=r"does not start again. Make a new Job"):
        job.start()


@pytest.mark.mission("S6", "S7")
def test_stop_takes_a_last_checkpoint_and_what_was_read_is_published(spark: SparkSession, tmp_path: Path) -> None:
    out, watch = ps.memory.Sink(), Watch()
    endless = counting(out, rows=None, per_batch=60)
    job = ps.Job(endless, state=tmp_path, spark=spark, listener=watch, checkpoint_every="1 hour")
    job.start()
    assert not job.wait(timeout=0)
    watch.wait_for(BatchDone, 6)
    assert job.stop()
    assert job.stop(), "a second stop is harmless"
    assert job.state is JobState.STOPPED
    assert watch.of(CheckpointCompleted)[-1].kind == "final"
    found = totals(out)
    assert found
    assert set(found.values()) == {60 // USERS}


def test_nothing_is_deleted_any_more_once_stop_has_returned(spark, tmp_path, monkeypatch) -> None:
    began, clean = threading.Event(), ManifestWriter.clean

    def slowly(journal: ManifestWriter) -> None:
        began.set()
        threading.Event().wait(0.5)
        clean(journal)

    monkeypatch.setattr(ManifestWriter, "clean", slowly)
    job = ps.Job(
        counting(ps.memory.Sink(), rows=None), state=tmp_path, spark=spark, checkpoint_every="100 ms", retained=1
    )
    job.start()
    assert began.wait(60)
    job.stop()
    there = set(tmp_path.rglob("*"))
    threading.Event().wait(1)
    assert set(tmp_path.rglob("*")) == there


@pytest.mark.mission("S6")
def test_stop_before_start_and_from_a_job_thread(spark: SparkSession, tmp_path: Path) -> None:
    never = ps.Job(counting(ps.memory.Sink()), state=tmp_path / "a", spark=spark)
    never.request_stop()
    assert never.state is JobState.STOPPED
    errors: list[Exception] = []

    def stops(fact: Fact) -> None:
        if isinstance(fact, JobStarted):
            try:
                job.stop()
            except InternalError as error:
                errors.append(error)

    job = ps.Job(counting(ps.memory.Sink(), rows=10), state=tmp_path / "b", spark=spark, listener=stops)
    job.run()
    assert "request_stop()" in str(errors[0])


@pytest.mark.mission("S29")
def test_a_signal_that_another_thread_gets_stops_the_job_in_order(spark: SparkSession, tmp_path: Path) -> None:
    asked, gave_up = threading.Event(), threading.Event()

    def asks(fact: Fact) -> None:
        if isinstance(fact, CheckpointCompleted) and not asked.is_set():
            asked.set()
            rescue.start()
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    def give_up() -> None:
        gave_up.set()
        job.request_stop()

    rescue = threading.Timer(30, give_up)  # else this test would not end
    settings = {"state": tmp_path, "spark": spark, "listener": asks}
    job = ps.Job(counting(ps.memory.Sink(), rows=None), checkpoint_every="200 ms", **settings)
    job.run()
    rescue.cancel()
    assert job.state is JobState.STOPPED
    assert not gave_up.is_set()


@pytest.mark.mission("S3")
def test_two_jobs_of_one_name_on_one_directory_fence_each_other(spark: SparkSession, tmp_path: Path) -> None:
    watch = Watch()
    first = ps.Job(
        counting(ps.memory.Sink(), rows=None), state=tmp_path, spark=spark, listener=watch, checkpoint_every="100 ms"
    )
    first.start()
    watch.wait_for(CheckpointCompleted)
    second = ps.Job(counting(ps.memory.Sink(), rows=None), state=tmp_path, spark=spark, take_over=True)
    second.start()
    with pytest.raises(GenerationFenced, match="no longer owns the job"):
        first.wait(timeout=120)
    assert first.state is JobState.FENCED
    assert second.stop(timeout=120), "the one that took over is unharmed"


@pytest.mark.mission("S3")
def test_jobs_of_different_names_share_a_context(spark: SparkSession, tmp_path: Path) -> None:
    out = ps.memory.Sink()

    @ps.pipeline("other")
    def other(p: ps.Pipeline) -> None:
        p.read("in", ps.generator.Source(clicks, rows=5)).write("out", out)

    jobs = [ps.Job(counting(ps.memory.Sink()), state=tmp_path, spark=spark), ps.Job(other, state=tmp_path, spark=spark)]
    for job in jobs:
        job.start()
    assert all(job.wait(timeout=120) for job in jobs)
    assert len(out.rows) == 5


@pytest.mark.mission("S4", "S7")
def test_an_error_while_starting_ends_the_job_and_is_rethrown_by_wait(spark: SparkSession, tmp_path: Path) -> None:
    def broken(frame: DataFrame) -> DataFrame:
        msg = "no such luck"
        raise ValueError(msg)

    @ps.pipeline("broken")
    def pipeline(p: ps.Pipeline) -> None:
        p.read("in", ps.generator.Source(clicks, rows=5)).transform(broken).write("out", ps.memory.Sink())

    job = ps.Job(pipeline, state=tmp_path, spark=spark)
    job.start()
    with pytest.raises(UserFunctionError, match=r"test_job\.py.*no such luck"):
        job.wait(timeout=120)
    assert job.state is JobState.FAILED
    assert not (tmp_path / "broken" / "log").exists(), "nothing was touched"


@pytest.mark.mission("D10", "L25", "S10", "S12")
@pytest.mark.parametrize(
    "place",
    [
        "source.polled",
        "sink.staged",
        "state.layer.written",
        "sink.prepared",
        "checkpoint.manifest.before",
        "checkpoint.manifest.written",
        "sink.commit.before",
        "sink.published",
    ],
)
def test_a_failure_at_any_step_restarts_the_job_and_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    out, watch = ps.memory.Sink(), Watch()
    job = ps.Job(
        counting(out, rows=600, per_batch=50),
        state=tmp_path,
        spark=spark,
        listener=watch,
        checkpoint_every="200 ms",
    )
    with armed(place, "error:EIO", hit=2):
        report = job.run()
    assert report.restarts == 1, watch.of(Restarting)
    assert totals(out) == expected()
    assert watch.of(Published)


def test_a_user_function_that_fails_in_a_worker_ends_the_job_with_its_line(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType

    def bad(n):  # type: ignore[no-untyped-def]
        return 1 // (n - 3)

    @ps.pipeline("divides")
    def pipeline(p: ps.Pipeline) -> None:
        stream = p.read("in", ps.generator.Source(clicks, rows=5))
        stream.with_column("x", F.udf(bad, LongType())("id")).write("out", ps.memory.Sink())

    with pytest.raises(UserFunctionError, match=r"test_job\.py:\d+ in bad.*ZeroDivisionError"):
        ps.Job(pipeline, state=tmp_path, spark=spark).run()


def test_an_unknown_option_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Did you mean 'checkpoint_every'"):
        ps.Job(counting(ps.memory.Sink()), state=tmp_path, checkpoint_evry="1s")
    with pytest.raises(SettingsError, match="must be one of stopped, caught-up"):
        ps.Job(counting(ps.memory.Sink()), state=tmp_path).run(until="tomorrow")
