"""What goes wrong outside: each a clear error or a counted, kept row, and nothing is lost."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from penstock.cli.output import ExitCode, exit_code_of
from penstock.errors import (
    CheckpointUnreadable,
    DecodeError,
    DuplicateUid,
    GraphError,
    SettingsError,
    SourceChanged,
    StateDirectoryRefused,
    StateIncompatible,
    StorageFailed,
)
from penstock.facts import BatchDone, CheckpointFailed, Counted, Published, Restarting
from penstock.failpoints import armed
from spark.job_kit import Watch, drop, published

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "id LONG, user STRING, at TIMESTAMP"


def rows(count: int = 10) -> list[dict[str, object]]:
    return [{"id": n, "user": f"u{n % 3}", "at": f"2026-01-01T00:00:{n % 60:02}Z"} for n in range(count)]


def copying(folder: Path, *, name: str = "copy", **source: Any) -> ps.PipelineDefinition:
    @ps.pipeline(name)
    def pipeline(p: ps.Pipeline) -> None:
        options = {"schema": SCHEMA, "bounded": True} | source
        read = p.read("in", ps.files.Source(folder / "in", **options))
        read.write("out", ps.files.Sink(folder / "out", format="json"))

    return pipeline


def test_an_unknown_option_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'checkpont_every' does not exist. Did you mean 'checkpoint_every'"):
        ps.Job(copying(tmp_path), state=tmp_path, checkpont_every="1s")


def test_a_duplicate_and_a_missing_uid_are_refused_with_the_users_line(tmp_path: Path) -> None:
    @ps.pipeline("twice")
    def twice(p: ps.Pipeline) -> None:
        stream = p.read("in", ps.rate.Source(10))
        stream.write("in", ps.console.Sink())

    with pytest.raises(DuplicateUid, match=r"test_bad_input\.py:\d+.*'in'"):
        ps.Job(twice, state=tmp_path)

    @ps.pipeline("unnamed")
    def unnamed(p: ps.Pipeline) -> None:
        p.read(ps.rate.Source(10)).write("out", ps.console.Sink())  # type: ignore[call-arg, arg-type]

    with pytest.raises(GraphError, match=r"test_bad_input\.py:\d+.*sink its uid first"):
        ps.Job(unnamed, state=tmp_path)


def test_an_aggregate_inside_transform_is_refused_with_what_to_use(spark: SparkSession, tmp_path: Path) -> None:
    @ps.pipeline("sums")
    def pipeline(p: ps.Pipeline) -> None:
        stream = p.read("in", ps.rate.Source(10))
        stream.transform(lambda frame: frame.groupBy("value").count()).write("out", ps.console.Sink())

    with pytest.raises(GraphError, match=r"(?s)test_bad_input\.py:\d+.*Aggregate.*group_by"):
        ps.Job(pipeline, state=tmp_path, spark=spark).run()


def test_a_malformed_row_ends_the_job_with_its_file_and_text_and_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    drop(tmp_path / "in", "a.json", [*rows(5), '{"id": "seven"'])
    with pytest.raises(DecodeError, match=r"(?s)a\.json.*seven"):
        ps.Job(copying(tmp_path, bounded=False), state=tmp_path / "state", spark=spark).run(until="caught-up")
    assert published(tmp_path / "out") == []
    (tmp_path / "in" / "a.json").unlink()
    drop(tmp_path / "in", "b.json", rows(5))
    ps.Job(copying(tmp_path, bounded=False), state=tmp_path / "state", spark=spark).run(until="caught-up")
    assert len(published(tmp_path / "out")) == 5


def test_an_input_that_is_not_mounted_at_a_start_is_waited_for_and_read_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drop(tmp_path / "in", "a.json", rows(2))
    watch = Watch()
    ps.Job(copying(tmp_path, bounded=False), state=tmp_path / "state", spark=spark).run(until="caught-up")
    (tmp_path / "in").rename(tmp_path / "mounted")
    (tmp_path / "in").mkdir()

    job = ps.Job(copying(tmp_path, bounded=False), state=tmp_path / "state", spark=spark, listener=watch)
    job.start(until="caught-up")
    cause = watch.wait_for(Restarting).cause
    assert "'a.json'" in cause
    assert "Mount it again" in cause
    drop(tmp_path / "mounted", "b.json", rows(3))
    (tmp_path / "in").rmdir()
    (tmp_path / "mounted").rename(tmp_path / "in")
    assert job.wait(timeout=120)
    delay = watch.of(Restarting)[0].delay_ms / 1_000
    said = f"job copy: attempt 1 failed, the next one begins in {delay:.1f} s: {cause}"
    assert said in {record.getMessage() for record in caplog.records}
    assert len(published(tmp_path / "out")) == 5


def test_a_fresh_start_without_its_input_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"step 'in'.*/in' does not exist") as refused:
        ps.Job(copying(tmp_path), state=tmp_path / "state", spark=spark).run(until="caught-up")
    assert exit_code_of(refused.value) is ExitCode.REFUSED


def test_a_compressed_file_that_ends_in_the_middle_ends_the_job_with_its_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    whole = gzip.compress(b"".join(b'{"id": %d}\n' % n for n in range(1_000)))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DecodeError, match=r"/in/a\.json\.gz' is damaged.*move it away"):
        ps.Job(copying(tmp_path), state=tmp_path / "state", spark=spark).run()
    (tmp_path / "in" / "a.json.gz").write_bytes(whole)
    ps.Job(copying(tmp_path, bounded=False), state=tmp_path / "state", spark=spark).run(until="caught-up")
    assert len(published(tmp_path / "out")) == 1_000


def test_output_that_can_no_longer_be_written_ends_the_job_with_the_folder(spark: SparkSession, tmp_path: Path) -> None:
    drop(tmp_path / "in", "a.json", rows(5))
    watch = Watch()
    state = tmp_path / "state"
    job = ps.Job(copying(tmp_path, bounded=False), state=state, spark=spark, listener=watch, checkpoint_every="200ms")
    job.start()
    watch.wait_for(Published)
    top = tmp_path / "out" / ".penstock"
    top.rename(tmp_path / "kept")
    top.write_text("")
    drop(tmp_path / "in", "b.json", rows(5))
    with pytest.raises(StateDirectoryRefused, match=r"\.penstock: Not a directory\)\. Move the file away that is in"):
        job.wait(timeout=120)


def test_null_keys_null_times_and_a_row_of_10_mb_are_counted_and_kept(spark: SparkSession, tmp_path: Path) -> None:
    big = "x" * 10_000_000
    drop(tmp_path / "in", "a.json", [{"id": 1, "user": big, "at": "2026-01-01T00:00:01Z"}, *rows(3)])
    drop(tmp_path / "in", "b.json", [{"id": 2, "at": "2026-01-01T00:00:02Z"}, {"id": 3, "user": "timeless"}])
    out, late, watch = ps.memory.Sink(), ps.memory.Sink(), Watch()

    @ps.pipeline("odd")
    def pipeline(p: ps.Pipeline) -> None:
        raw = p.read("in", ps.files.Source(tmp_path / "in", schema=SCHEMA, bounded=True))
        timed = raw.with_watermark("at", delay="1 minute")
        counted = timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counted.write("out", out)
        counted.late.write("late-out", late)

    ps.Job(pipeline, state=tmp_path / "state", spark=spark, listener=watch).run()
    found = {row["user"]: row["n"] for row in out.rows}
    assert found == {None: 1, big: 1, "u0": 1, "u1": 1, "u2": 1}
    assert [row["id"] for row in late.rows] == [3]
    assert sum(fact.amount for fact in watch.of(Counted, name="missing_time")) == 1


def test_a_file_that_changes_after_it_was_read_ends_the_job(spark: SparkSession, tmp_path: Path) -> None:
    watch = Watch()
    drop(tmp_path / "in", "a.json", rows(5))
    job = ps.Job(copying(tmp_path, bounded=False), state=tmp_path / "state", spark=spark, listener=watch)
    job.start()
    watch.wait_for(BatchDone, task="out")
    with (tmp_path / "in" / "a.json").open("a") as file:
        file.write('{"id": 1}\n')
    with pytest.raises(SourceChanged, match=r"a\.json"):
        job.wait(timeout=120)


def test_the_state_directory_of_another_job_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    drop(tmp_path / "in", "a.json", rows(5))
    ps.Job(copying(tmp_path), state=tmp_path / "state", spark=spark).run()
    (tmp_path / "state" / "copy").rename(tmp_path / "state" / "other")
    with pytest.raises(StateDirectoryRefused, match=r"(?s)'copy'.*'other'|'other'.*'copy'"):
        ps.Job(copying(tmp_path, name="other"), state=tmp_path / "state", spark=spark).run()


def test_a_state_directory_that_is_a_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a folder")
    drop(tmp_path / "in", "a.json", rows(5))
    with pytest.raises(StateDirectoryRefused, match="state"):
        ps.Job(copying(tmp_path), state=tmp_path / "state", spark=spark).run()


@pytest.mark.parametrize("problem", ["error:EROFS", "error:ENOSPC"])
def test_read_only_and_full_disks_say_so_and_the_next_start_goes_on(
    spark: SparkSession, tmp_path: Path, problem: str
) -> None:
    drop(tmp_path / "in", "a.json", rows(5))
    with armed("checkpoint.manifest.before", problem), pytest.raises((StorageFailed, StateDirectoryRefused)) as error:
        ps.Job(copying(tmp_path), state=tmp_path / "state", spark=spark, restart="none").run()
    assert "space" in str(error.value) or "writ" in str(error.value)
    assert published(tmp_path / "out") == []
    ps.Job(copying(tmp_path), state=tmp_path / "state", spark=spark).run()
    assert len(published(tmp_path / "out")) == 5


@pytest.mark.mission("D8")
def test_a_failed_checkpoint_is_shown_counted_and_tolerated(spark: SparkSession, tmp_path: Path) -> None:
    drop(tmp_path / "in", "a.json", rows(5))
    watch = Watch()
    job = ps.Job(copying(tmp_path), state=tmp_path / "s", spark=spark, listener=watch, tolerated_failures=3)
    with armed("local.create.temp_written", "error:ENOSPC", hit=3):
        report = job.run()
    assert (report.failed_checkpoints, report.restarts) == (1, 0)
    assert watch.of(CheckpointFailed)[0].reason == "manifest_failed"
    assert len(published(tmp_path / "out")) == 5


@pytest.mark.mission("D2", "D3")
def test_a_damaged_newest_entry_stops_the_start_and_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    drop(tmp_path / "in", "a.json", rows(5))
    ps.Job(copying(tmp_path), state=tmp_path / "state", spark=spark).run()
    newest = sorted((tmp_path / "state" / "copy" / "log").iterdir())[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    with pytest.raises(CheckpointUnreadable, match=newest.name):
        ps.Job(copying(tmp_path), state=tmp_path / "state", spark=spark).run()

    report = ps.Job(copying(tmp_path), state=tmp_path / "state", spark=spark, fresh=True).run(until="caught-up")
    assert sum(report.rows_read.values()) == 5, "to begin empty is the operator's way past it"
    report = ps.Job(copying(tmp_path), state=tmp_path / "state", spark=spark).run(until="caught-up")
    assert sum(report.rows_read.values()) == 0, "and from there on all is as ever"


@pytest.mark.mission("D7", "D9")
def test_changed_code_goes_on_with_old_state_and_lost_state_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    def counting(uid: str, minutes: int) -> ps.PipelineDefinition:
        @ps.pipeline("counting")
        def pipeline(p: ps.Pipeline) -> None:
            raw = p.read("in", ps.files.Source(tmp_path / "in", schema=SCHEMA))
            timed = raw.where(f"id >= {minutes - 1}").with_watermark("at", delay="0 seconds")
            counted = timed.group_by("user", ps.tumbling("1 minute")).agg(uid, ps.agg.count().alias("n"))
            counted.write("out", ps.files.Sink(tmp_path / "out", format="json"))

        return pipeline

    drop(tmp_path / "in", "a.json", rows(6))
    first = ps.Job(counting("counts", 1), state=tmp_path / "state", spark=spark)
    assert first.run(until="caught-up").rows_read == {"in": 6}
    with pytest.raises(StateIncompatible, match=r"'counts'.*--allow-non-restored-state"):
        ps.Job(counting("renamed", 1), state=tmp_path / "state", spark=spark).run(until="caught-up")
    drop(tmp_path / "in", "b.json", [{"id": 100, "user": "u0", "at": "2026-01-01T00:01:00Z"}])
    ps.Job(counting("counts", 2), state=tmp_path / "state", spark=spark).run(until="caught-up")
    assert sorted((row["user"], row["n"]) for row in published(tmp_path / "out")) == [("u0", 2), ("u1", 2), ("u2", 2)]
