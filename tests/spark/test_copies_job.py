"""Exported checkpoints of real jobs: taken while they run, moved, begun with elsewhere, the original gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from penstock.admin.export import export_checkpoint, verify_export
from penstock.api.pipeline import PipelineDefinition
from penstock.control.client import JobDirectory
from penstock.errors import StateDirectoryRefused, UnknownName
from penstock.facts import BatchDone, CheckpointCompleted, JobStarted, Restarting, WatermarkAdvanced
from penstock.failpoints import armed
from spark.job_kit import Watch, drop, published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def totals(folder: Path, out: str = "out") -> PipelineDefinition:
    """Amounts by user and minute, from JSON files to JSON files."""

    @ps.pipeline("orders")
    def orders(p: ps.Pipeline) -> None:
        source = ps.files.Source(folder / "in", schema="user STRING, amount LONG, at TIMESTAMP")
        stream = p.read("in", source).with_watermark("at", delay="0 seconds")
        made = stream.group_by("user", ps.tumbling("1 minute")).agg("totals", ps.agg.sum("amount").alias("amount"))
        made.write("out", ps.files.Sink(folder / out, format="json"))

    return orders


def order(user: str, amount: int, minute: int, second: int = 0) -> dict[str, Any]:
    return {"user": user, "amount": amount, "at": f"2026-01-01T00:{minute:02}:{second:02}Z"}


def results(folder: Path) -> list[tuple[str, str, int]]:
    return sorted((row["user"], row["window_start"][14:16], row["amount"]) for row in published(folder))


def run(spark: SparkSession, folder: Path, state: str, out: str, **options: Any) -> ps.Report:
    return ps.Job(totals(folder, out), state=folder / state, spark=spark, **options).run(until="caught-up")


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Path:
    """A job that has read three orders, published a minute and holds the next one open; exported."""
    drop(tmp_path / "in", "a.json", [order("u1", 1, 0), order("u2", 2, 0, 30), order("u1", 10, 1)])
    run(spark, tmp_path, "state", "out")
    assert results(tmp_path / "out") == [("u1", "00", 1), ("u2", "00", 2)]
    newest = JobDirectory(tmp_path / "state", "orders").read().restore_point
    assert newest is not None
    export_checkpoint(JobDirectory(tmp_path / "state", "orders"), str(newest.checkpoint), tmp_path / "export")
    drop(tmp_path / "in", "b.json", [order("u1", 100, 1, 5), order("u2", 5, 2)])
    return tmp_path


REST = [("u1", "01", 110)]
"""What the minute that was open comes to, with what was read before the export and after it."""


def test_a_moved_export_is_gone_on_with_when_the_job_is_gone(spark: SparkSession, folder: Path) -> None:
    (folder / "export").rename(folder / "moved")
    shutil.rmtree(folder / "state")
    report = run(spark, folder, "state", "second", restore_from=folder / "moved")
    assert report.restored == 0
    assert report.rows_read == {"in": 2}, "what the first job had read is not read again"
    assert results(folder / "second") == REST
    assert verify_export(folder / "moved").checkpoint


def test_the_folder_is_not_needed_after_the_start_and_the_second_start_restores(
    spark: SparkSession, folder: Path
) -> None:
    run(spark, folder, "copy", "second", restore_from=folder / "export")
    shutil.rmtree(folder / "export")
    shutil.rmtree(folder / "state")
    drop(folder / "in", "c.json", [order("u2", 7, 2, 1), order("u3", 1, 3)])
    report = run(spark, folder, "copy", "second")
    assert report.rows_read == {"in": 2}
    assert results(folder / "second") == [*REST, ("u2", "02", 12)]


def test_a_claimed_export_belongs_to_the_job(spark: SparkSession, folder: Path) -> None:
    run(spark, folder, "copy", "second", restore_from=folder / "export", claim=True)
    assert results(folder / "second") == REST
    assert not list((folder / "export" / "state").rglob("*.parquet"))
    with pytest.raises(StateDirectoryRefused, match="belong to job 'orders'"):
        run(spark, folder, "third", "third", restore_from=folder / "export")
    assert not (folder / "third" / "orders" / "log").exists(), "refused before anything was claimed"


def test_an_older_checkpoint_of_the_same_log_is_gone_back_to_by_its_number(spark: SparkSession, folder: Path) -> None:
    before = verify_export(folder / "export").checkpoint
    run(spark, folder, "state", "out")
    report = run(spark, folder, "state", "out", restore_from=before)
    assert report.restored == before
    assert report.rows_read == {"in": 2}, "once more"
    assert results(folder / "out") == [("u1", "00", 1), *REST, *REST, ("u2", "00", 2)], "published once more, and told"
    with pytest.raises(UnknownName, match=r"Checkpoint 99 is not in the log"):
        run(spark, folder, "state", "out", restore_from=99)


def test_a_running_job_is_exported_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    drop(tmp_path / "in", "a.json", [order("u1", 1, 0), order("u1", 10, 1)])
    watch = Watch()
    job = ps.Job(totals(tmp_path), state=tmp_path / "state", spark=spark, listener=watch, checkpoint_every="100ms")
    job.start()
    watch.wait_for(BatchDone, task="totals")
    taken = job.savepoint("before-v2")
    made = export_checkpoint(JobDirectory(tmp_path / "state", "orders"), "before-v2", tmp_path / "export", wait=60)
    assert (made.export.checkpoint, made.export.names) == (taken, ("before-v2",))
    assert made.export.left_open == (), "it was waited for"
    drop(tmp_path / "in", "b.json", [order("u1", 100, 1, 5), order("u2", 5, 2)])
    watch.wait_for(BatchDone, 2, task="totals")
    job.stop()
    assert set(JobDirectory(tmp_path / "state", "orders").read().pins) == {"before-v2"}
    assert results(tmp_path / "out") == [("u1", "00", 1), *REST]
    run(spark, tmp_path, "copy", "second", restore_from=tmp_path / "export")
    assert results(tmp_path / "second") == REST


def test_a_job_that_has_begun_from_a_folder_and_fails_goes_on_from_its_own_newest_checkpoint(
    spark: SparkSession, folder: Path
) -> None:
    watch = Watch()
    job = ps.Job(
        totals(folder, "second"),
        state=folder / "copy",
        spark=spark,
        restore_from=folder / "export",
        listener=watch,
        checkpoint_every="100ms",
        restart="fixed",
    )
    job.start()
    watch.wait_for(CheckpointCompleted)
    with armed("source.polled", "error:EIO", hit=1), armed("recovery.committed", "error:EIO", hit=1):
        drop(folder / "in", "c.json", [order("u3", 1, 3)])
        watch.wait_for(Restarting, 2)  # once while it runs, once more before the second attempt has begun
    watch.wait_for(JobStarted, 2)
    watch.wait_for(WatermarkAdvanced, task="totals", at=1_767_225_780_000_000)  # 00:03 is read, so 00:02 is closed
    job.stop()
    assert [fact.imported for fact in watch.of(JobStarted)] == [str(folder / "export"), None]
    assert results(folder / "second") == [*REST, ("u2", "02", 5)]
