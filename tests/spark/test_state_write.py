"""State written by hand: the run goes on from it, a crash leaves the job as it was, what does not fit is refused."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql import functions as F

import penstock as ps
from penstock import failpoints
from penstock.admin.state_read import open_job, state_of
from penstock.checkpoint.gc import layers_of
from penstock.errors import JobIsRunning, PenstockError, RequestRefused, SchemaMismatch, StateIncompatible, UnknownName
from penstock.failpoints import FailpointCrash
from spark.job_kit import drop
from spark.testing_kit import NOWHERE, at, clicks, counts

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

SUMS = (ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n"), ps.agg.avg("amount").alias("mean"))


@ps.pipeline("shop")
def shop(p: ps.Pipeline) -> None:
    read = p.read("orders", ps.files.Source(NOWHERE, schema="user STRING, amount BIGINT, at TIMESTAMP"))
    rows = read.with_watermark("at", delay="0 seconds")
    for uid, window in {
        "two": ps.sliding("2 minutes", "1 minute"),
        "visits": ps.session("1 minute"),
        "threes": ps.count_window(3),
        "ever": ps.global_window(),
    }.items():
        rows.group_by("user", window).agg(uid, *SUMS).write(f"{uid}-out", ps.memory.Sink())


def minute(number: int) -> datetime:
    return datetime(2026, 1, 1, 0, number, tzinfo=timezone.utc)


def state(spark: SparkSession, folder: Path, **options: object) -> set[tuple[object, ...]]:
    found = ps.read_state(spark, folder, "counts", **options)
    return {(row["user"], row["window_start"].minute, row["n"]) for row in found.collect()}


def blocks(spark: SparkSession) -> frozenset[int]:
    """The cached rows of this context."""
    return frozenset(cast("Any", spark.sparkContext)._jsc.getPersistentRDDs().keySet())


def test_a_run_goes_on_from_repaired_state(spark: SparkSession) -> None:
    with ps.testing.run(clicks(), spark) as t:
        t.send("a", [at("u", 0), at("v", 0), at("test", 0), at(None, 0)])
        t.stop()
        before = open_job(t.folder).read()
        fixed = ps.read_state(spark, t.folder / "clicks", "counts").where("user IS NULL OR user <> 'test'")
        fixed = fixed.withColumn("n", F.expr("CASE WHEN user = 'v' THEN n + 10 ELSE n END"))

        kept = blocks(spark)
        number = ps.write_state(spark, t.folder / "clicks", "counts", fixed, name="without-test")

        assert blocks(spark) <= kept
        history = open_job(t.folder).read()
        written = history.restore_point
        assert number == written.checkpoint == before.restore_point.checkpoint + 1
        assert written.kind.value == "written"
        assert written.parent == before.restore_point.checkpoint
        assert history.pins["without-test"].checkpoint == number
        stamp = state_of(written, "counts").detail["written"]
        assert (stamp["on"], stamp["rows"]) == (written.parent, 3)
        assert "process" in stamp["by"]
        assert state(spark, t.folder, at=written.parent) == {("u", 0, 1), ("v", 0, 1), ("test", 0, 1), (None, 0, 1)}
        assert state(spark, t.folder, at="without-test") == {("u", 0, 1), ("v", 0, 11), (None, 0, 1)}

        t.restart()
        t.send("a", [at("u", 0), at("v", 1)])
        t.end()
        assert sorted(counts(t), key=str) == [("u", 0, 2), ("v", 0, 11), ("v", 1, 1), (None, 0, 1)]


CRASHES = {
    "log.claim.before": False,
    "log.claim.written": False,
    "state.layer.before_write": False,
    "state.layer.written": False,
    "local.settle.synced": False,
    "state.layer.durable": False,
    "checkpoint.manifest.before": False,
    "checkpoint.manifest.written": True,
}
"""Each step of the way, and whether the state counts from there on."""


def test_a_crash_at_any_step_leaves_the_job_as_it_was_or_done(spark: SparkSession) -> None:
    with ps.testing.run(clicks(), spark) as t:
        t.send("a", [at("u", 0), at("v", 0)])
        t.stop()
        old, kept = {("u", 0, 1), ("v", 0, 1)}, {("u", 0, 1)}
        without = ps.read_state(spark, t.folder, "counts").where("user = 'u'")
        for step, (point, is_done) in enumerate(CRASHES.items()):
            with failpoints.armed(point, "raise"), pytest.raises(FailpointCrash):
                ps.write_state(spark, t.folder, "counts", without, name=f"try-{step}")

            assert state(spark, t.folder) == (kept if is_done else old), point
            assert (f"try-{step}" in open_job(t.folder).read().pins) is is_done, point
        t.restart()
        t.send("a", [at("u", 0)])
        t.checkpoint()
        t.end()
        lying = {str(path.relative_to(t.folder / "clicks")) for path in (t.folder / "clicks/state").rglob("*.parquet")}

        assert counts(t) == [("u", 0, 2)]
        assert lying <= named(t.folder), "what the crashes left was swept"


def named(folder: Path) -> set[str]:
    return {path for _, manifest in open_job(folder).read().manifests.values() for path in layers_of(manifest)}


def test_all_kinds_of_windows_are_written_as_they_were_read(spark: SparkSession) -> None:
    """Raw partials go round; a run over them ends as one that nobody touched."""
    first = [("u", 1, "00:10"), ("v", 3, "01:10"), ("u", 4, "02:05"), ("u", 5, "02:20"), (None, 7, "02:50")]
    last = [("u", 6, "02:55"), ("v", 2, "04:00")]

    def sent(rows: list[tuple[str | None, int, str]]) -> list[dict[str, object]]:
        return [{"user": u, "amount": a, "at": f"2026-01-01T00:{time}Z"} for u, a, time in rows]

    def story(*, is_written: bool) -> dict[str, list[object]]:
        with ps.testing.run(shop, spark) as t:
            t.send("orders", sent(first))
            t.stop()
            if is_written:
                for uid in ("two", "visits", "threes", "ever"):
                    rows = ps.read_state(spark, t.folder, uid, raw=True)
                    ps.write_state(spark, t.folder, uid, rows, name=f"same-{uid}")
            t.restart()
            t.send("orders", sent(last))
            t.end()
            assert ps.read_state(spark, t.folder, "two").collect() == [], "all is closed"
            return {uid: t.rows(f"{uid}-out") for uid in ("two", "visits", "threes", "ever")}

    assert story(is_written=True) == story(is_written=False)


def test_output_that_waits_is_published_after_a_write(spark: SparkSession) -> None:
    """All that is open is open in the new entry too (rule R5)."""
    with ps.testing.run(clicks(), spark) as t:
        t.send("a", [at("u", 0), at("u", 1)])
        t.crash(at="sink.commit.before")
        t.checkpoint()
        waiting = open_job(t.folder).read().open_committables
        assert waiting
        same = ps.read_state(spark, t.folder, "counts")
        ps.write_state(spark, t.folder, "counts", same, name="same")
        assert open_job(t.folder).read().open_committables == waiting

        t.restart()
        t.end()
        assert counts(t) == [("u", 0, 1), ("u", 1, 1)]


def test_on_an_older_checkpoint_the_rest_is_redone(spark: SparkSession) -> None:
    with ps.testing.run(clicks(), spark) as t:
        t.send("a", [at("u", 0)])
        t.savepoint("early")
        t.send("a", [at("v", 0)])
        t.stop()
        early = ps.read_state(spark, t.folder, "counts", at="early").withColumn("n", F.lit(100).cast("bigint"))
        ps.write_state(spark, t.folder, "counts", early, name="again", at="early")

        t.restart()
        t.end()
        assert counts(t) == [("u", 0, 100), ("v", 0, 1)]


def test_a_job_begins_with_state_that_it_was_given(spark: SparkSession, tmp_path: Path) -> None:
    drop(tmp_path / "in", "1.json", [{"user": "u", "at": "2026-01-01T00:00:01Z"}])
    sink = ps.memory.Sink("seeded")

    @ps.pipeline("seeded")
    def seeded(p: ps.Pipeline) -> None:
        rows = p.read("in", ps.files.Source(str(tmp_path / "in"), schema="user STRING, at TIMESTAMP", bounded=True))
        timed = rows.with_watermark("at", delay="0 seconds")
        timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n")).write("out", sink)

    seed = spark.createDataFrame(
        [("u", minute(0), minute(1), 41), ("v", minute(0), minute(1), 7)],
        "user STRING, window_start TIMESTAMP, window_end TIMESTAMP, n BIGINT",
    )
    with pytest.raises(UnknownName, match="no job"):
        ps.write_state(spark, tmp_path / "state", "counts", seed, name="seed")
    number = ps.write_state(spark, tmp_path / "state", "counts", seed, name="seed", pipeline=seeded)
    assert number == 0
    assert state(spark, tmp_path / "state" / "seeded") == {("u", 0, 41), ("v", 0, 7)}

    ps.Job(seeded, state=tmp_path / "state", spark=spark).run()
    assert state(spark, tmp_path / "state", at="seed") == {("u", 0, 41), ("v", 0, 7)}
    assert {(row["user"], row["n"]) for row in sink.rows} == {("u", 42), ("v", 7)}


def table(spark: SparkSession, *rows: tuple[object, ...], kinds: str = "BIGINT") -> DataFrame:
    return spark.createDataFrame(list(rows), f"user STRING, window_start TIMESTAMP, window_end TIMESTAMP, n {kinds}")


def test_what_does_not_fit_is_refused_and_nothing_is_claimed(spark: SparkSession) -> None:
    with ps.testing.run(clicks(), spark) as t:
        t.send("a", [at("u", 0), at("u", 2)])
        t.savepoint("taken")
        t.stop()
        tail = open_job(t.folder).read().tail
        good = ("u", minute(2), minute(3), 1)
        wrong = {
            "n' is int, but the state has bigint. Cast it": table(spark, good, kinds="INT"),
            "Column 'window_end' does not exist. Columns needed: user, window_start": table(spark, good).drop(
                "window_end"
            ),
            "Column 'm' does not exist": table(spark, good).withColumn("m", F.lit(1)),
            "Aggregate 'n' is missing. Give its columns 'n', or 'n__count'": table(spark, good).drop("n"),
            "1 of 2 rows have the same key and window as another": table(spark, good, good),
            "1 row has a bound that is NULL, such as .*window_end=2026-01-01 00:03:00 UTC": table(
                spark, ("u", None, minute(3), 1)
            ),
            "1 row has a window_end that is not after": table(spark, ("u", minute(3), minute(2), 1)),
            "are none of the step's, which are tumbling 1 minute": table(spark, ("u", minute(2), minute(4), 1)),
            "a window that is closed: the step would drop it": table(spark, ("u", minute(0), minute(1), 1)),
        }
        for message, frame in wrong.items():
            with pytest.raises(SchemaMismatch, match=message):
                ps.write_state(spark, t.folder, "counts", frame, name="new")
        fine = table(spark, good)
        for error, message, options in (
            (RequestRefused, "'taken' exists already", {"name": "taken"}),
            (PenstockError, "name", {"name": "7 of 9"}),
            (UnknownName, "no savepoint 'tken'. Did you mean 'taken'", {"name": "new", "at": "tken"}),
            (UnknownName, "is of job 'other'", {"name": "new", "job": "clicks", "pipeline": clicks(name="other")}),
        ):
            with pytest.raises(error, match=message):
                ps.write_state(spark, t.folder, "counts", fine, **options)
        with pytest.raises(UnknownName, match="No checkpoint says what the state of step 'count' looks like"):
            ps.write_state(spark, t.folder, "count", fine, name="new")

        assert open_job(t.folder).read().tail == tail


def test_panes_and_means_cannot_be_made_of_what_is_finished(spark: SparkSession) -> None:
    with ps.testing.run(shop, spark) as t:
        t.send("orders", [{"user": "u", "amount": 1, "at": "2026-01-01T00:00:10Z"}])
        t.stop()
        for uid, message in (
            ("two", "Column 'pane_start' does not exist.*Windows that overlap are kept as panes, which ps.read_state"),
            ("visits", "A finished avg does not say what it was made of. ps.read_state"),
        ):
            finished = ps.read_state(spark, t.folder, uid)
            with pytest.raises(SchemaMismatch, match=message):
                ps.write_state(spark, t.folder, uid, finished, name="new")
        visits = ps.read_state(spark, t.folder, "visits", raw=True)
        overlap = visits.union(visits.withColumn("window_start", F.expr("window_start + INTERVAL 1 SECOND")))
        with pytest.raises(SchemaMismatch, match="1 of 2 rows have the same key and window as another"):
            ps.write_state(spark, t.folder, "visits", overlap, name="new")


def test_a_running_job_is_not_written_to(spark: SparkSession, tmp_path: Path) -> None:
    @ps.pipeline("busy")
    def busy(p: ps.Pipeline) -> None:
        rows = p.read(
            "in", ps.generator.Source(lambda frame: frame.selectExpr("n"), per_batch=3), pace=ps.every("1 day")
        )
        made = rows.group_by("n", ps.global_window()).agg("counts", ps.agg.count().alias("seen"))
        made.write("out", ps.memory.Sink("busy"))

    job = ps.Job(busy, state=tmp_path / "state", spark=spark)
    job.start()
    try:
        job.savepoint("now", timeout=120)
        rows = ps.read_state(spark, tmp_path / "state", "counts")  # reading asks nobody
        assert rows.columns == ["n", "seen"]
        with pytest.raises(JobIsRunning, match="Stop it first"):
            ps.write_state(spark, tmp_path / "state", "counts", rows, name="new")
    finally:
        job.stop(timeout=120)


def test_a_users_own_aggregate_takes_the_pipeline(spark: SparkSession) -> None:
    @ps.pipeline("own")
    def own(p: ps.Pipeline) -> None:
        read = p.read("in", ps.files.Source(NOWHERE, schema="user STRING, amount BIGINT, at TIMESTAMP"))
        squares = ps.agg.custom(
            "squares", of="amount", partial={"of": lambda x: F.sum(x * x)}, merge={"of": F.sum}, finish=lambda of: of
        )
        rows = read.with_watermark("at", delay="0 seconds").group_by("user", ps.tumbling("1 minute"))
        rows.agg("sums", squares.alias("squares")).write("out", ps.memory.Sink())

    with ps.testing.run(own, spark) as t:
        t.send("in", [{"user": "u", "amount": 3, "at": "2026-01-01T00:00:10Z"}])
        t.stop()
        raw = ps.read_state(spark, t.folder, "sums", raw=True, pipeline=own)
        raw = raw.withColumn("squares__of", F.col("squares__of") + 1)
        with pytest.raises(StateIncompatible, match=r"squares__of: .* Give pipeline="):
            ps.write_state(spark, t.folder, "sums", raw, name="more")
        ps.write_state(spark, t.folder, "sums", raw, name="more", pipeline=own)
        t.restart()
        t.send("in", [{"user": "u", "amount": 2, "at": "2026-01-01T00:00:20Z"}])
        t.end()
        assert t.rows("out", "user", "squares") == [{"user": "u", "squares": 14}]
