"""Sessions: a job changes nothing in the user's, uses its time zone, and is not changed by those of other threads."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import penstock as ps
from penstock.admin.plan import plan
from penstock.control.client import JobDirectory
from penstock.errors import StateIncompatible, UserFunctionError
from penstock.settings import read_settings
from penstock.spark.arrow import frame_of_arrow
from penstock.spark.session import active_session, clone_session, current_session, empty_frame, set_active_session
from spark.held_kit import row, sums
from spark.job_kit import drop

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DDL = "a STRING NOT NULL, b ARRAY<DECIMAL(9, 2)>, c STRING COLLATE UTF8_LCASE"


def is_active(spark: SparkSession) -> bool:
    """Whether it is for PySpark and for the JVM, on this thread."""
    own = active_session()
    told = type(spark).getActiveSession()
    return told is spark and own is not None and own._jsparkSession.equals(spark._jsparkSession)


def test_after_a_job_and_after_a_test_of_one_the_users_session_is_the_active_one(spark, tmp_path: Path):
    schema = "user STRING, n LONG, at TIMESTAMP"

    @ps.pipeline("users")
    def users(p: ps.Pipeline) -> None:
        rows = p.read("in", ps.files.Source(tmp_path / "in", schema=schema, bounded=True))
        hours = rows.with_watermark("at", delay="1 day").group_by("user", ps.tumbling("1 hour"))
        mine = ps.agg.custom("mine", of="n", partial={"s": F.sum}, merge={"s": F.sum}, finish=lambda s: s)
        hours.agg("hours", ps.agg.sum("n").alias("n"), mine.alias("mine")).write("out", ps.memory.Sink())

    spark.createDataFrame([(1,)], "n INT")
    drop(tmp_path / "in", "1.json", [{"user": "a", "n": 1, "at": "2026-01-01T00:00:01Z"}])
    ps.Job(users, state=tmp_path / "state", spark=spark).run()
    assert is_active(spark)
    with ps.testing.run(sums(), spark) as t:
        t.send("in", [row("a", 1)])
        assert is_active(spark)
        t.end()
    assert is_active(spark)


def test_the_session_of_a_thread_is_not_that_of_whoever_made_a_frame_last(spark):
    own, found = clone_session(spark), {}
    made, seen = threading.Event(), threading.Event()

    def work() -> None:
        set_active_session(own)
        made.set()
        seen.wait(60)
        found["own"] = active_session()

    thread = threading.Thread(target=work)
    thread.start()
    made.wait(60)
    spark.createDataFrame([(1,)], "n INT")
    seen.set()
    thread.join()
    assert found["own"]._jsparkSession.equals(own._jsparkSession)
    assert is_active(spark)


def test_a_thread_without_a_session_of_its_own_finds_that_of_the_process_and_never_another_threads(spark):
    own, found = clone_session(spark), {}
    spark.createDataFrame([(1,)], "n INT")

    def look() -> None:
        found["new"] = current_session()
        set_active_session(own)
        found["own"] = current_session()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found["new"] is spark
    assert found["own"]._jsparkSession.equals(own._jsparkSession)
    here = current_session()
    assert here is not None
    assert here._jsparkSession.equals(spark._jsparkSession)


def test_frames_are_made_as_by_pyspark_and_leave_no_note(spark):
    schema, own = StructType.fromDDL(DDL), clone_session(spark)
    spark.createDataFrame([(1,)], "n INT")
    assert empty_frame(own, schema).schema == schema
    assert empty_frame(own, schema).collect() == []
    table = pa.table({"n": [1, 2]})
    assert [tuple(each) for each in frame_of_arrow(own, table, StructType.fromDDL("n LONG")).collect()] == [(1,), (2,)]
    assert type(spark).getActiveSession() is spark


# ------------------------------------------------------------------------------------------- without a session given


def short(limit: int = 10) -> ps.PipelineDefinition:
    @ps.pipeline("short")
    def short(p: ps.Pipeline) -> None:
        p.read("n", ps.rate.Source(rows_per_second=1000, limit=limit)).write("o", ps.memory.Sink())

    return short


def test_a_job_without_a_session_takes_the_one_that_is_there_and_neither_stops_nor_changes_it(spark, tmp_path: Path):
    before = dict(spark.conf.getAll)
    report = ps.Job(short(), state=tmp_path).run()
    assert report.rows_read == {"n": 10}
    assert spark.range(3).count() == 3
    assert dict(spark.conf.getAll) == before


# ------------------------------------------------------------------------------------------------- settings of the user

SCHEMA = "at TIMESTAMP, z TIMESTAMP, n STRING"
EXPRESSIONS = ("CAST(at AS STRING) AS at", "to_date(z) AS day", "hour(z) AS hour", "CAST(n AS INT) AS n")
ROW = {"at": "2026-07-01T00:30:00", "z": "2026-07-01T00:30:00+02:00", "n": "x"}


def local(*, folder: Path, out: ps.memory.Sink) -> ps.PipelineDefinition:
    """Reads times without a zone, and takes times apart."""

    @ps.pipeline("local")
    def local(p: ps.Pipeline) -> None:
        rows = p.read("in", ps.files.Source(folder / "in", schema=SCHEMA))
        rows.select(*EXPRESSIONS, "current_timezone() AS zone").write("out", out)

    return local


@pytest.fixture
def berlin(spark):
    """A user's session, of another zone than UTC and without ANSI."""
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    own.conf.set("spark.sql.ansi.enabled", "false")
    own.conf.set("spark.sql.caseSensitive", "true")
    return own


def test_expressions_and_sources_follow_the_users_time_zone_and_ansi_as_spark_does(berlin, tmp_path: Path):
    drop(tmp_path / "in", "1.json", [ROW])
    spark_says = berlin.read.schema(SCHEMA).json(str(tmp_path / "in")).selectExpr(*EXPRESSIONS).collect()[0].asDict()
    out = ps.memory.Sink()
    ps.Job(local(folder=tmp_path, out=out), state=tmp_path / "state", spark=berlin).run(until="caught-up")
    assert out.rows == [spark_says | {"zone": "Europe/Berlin"}]
    assert (spark_says["at"], str(spark_says["day"]), spark_says["n"]) == ("2026-07-01 00:30:00", "2026-07-01", None)


def test_a_start_in_another_zone_is_refused_until_it_is_chosen_and_plan_says_so(spark, berlin, tmp_path: Path):
    drop(tmp_path / "in", "1.json", [ROW | {"n": "1"}])
    out, state = ps.memory.Sink(), tmp_path / "state"
    job = local(folder=tmp_path, out=out)
    ps.Job(job, state=state, spark=spark).run(until="caught-up")
    manifest = max(JobDirectory(state, "local").read().manifests.items())[1][1]
    assert manifest.settings["timezone"] == "UTC"

    drop(tmp_path / "in", "2.json", [ROW | {"n": "2"}])
    with pytest.raises(StateIncompatible, match=r"time zone 'UTC', .* session has 'Europe/Berlin'"):
        ps.Job(job, state=state, spark=berlin).run(until="caught-up")
    found = plan(job.graph(), state=state, settings=read_settings({}), spark=berlin)
    assert found.is_refused
    assert "'Europe/Berlin'" in found.refused[0]

    chosen = plan(job.graph(), state=state, settings=read_settings({"timezone": "Europe/Berlin"}), spark=spark)
    assert [(each.name, each.before, each.now) for each in chosen.changed or ()] == [
        ("timezone", "UTC", "Europe/Berlin")
    ]
    ps.Job(job, state=state, spark=spark, timezone="Europe/Berlin").run(until="caught-up")
    ps.Job(job, state=state, spark=berlin).run(until="caught-up")
    assert [row["zone"] for row in out.rows] == ["UTC", "Europe/Berlin"]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC", "the job's clone has it, not the user's session"


def test_windows_by_utc_and_rows_of_a_test_do_not_follow_the_users_time_zone(berlin):
    @ps.pipeline("days")
    def days(p: ps.Pipeline) -> None:
        rows = p.read("in", ps.files.Source("in", schema="user STRING, at TIMESTAMP"))
        windows = rows.with_watermark("at", delay="0 seconds").group_by("user", ps.tumbling("1 day"))
        windows.agg("days", ps.agg.count().alias("n")).write("out", ps.memory.Sink())

    with ps.testing.run(days, berlin) as t:
        t.send("in", [{"user": "a", "at": "2026-07-01T23:30:00"}])
        t.end()
        (row,) = t.rows("out", "window_start", "user", "n")
    assert row["window_start"] == datetime(2026, 7, 1, tzinfo=timezone.utc)
    assert row["window_start"].utcoffset().total_seconds() == 0


# ---------------------------------------------------------------------------------------------------- PySpark's own log


def test_an_error_that_the_job_reports_is_not_written_by_pyspark_as_well(spark, tmp_path: Path):
    @ps.pipeline("failing")
    def failing(p: ps.Pipeline) -> None:
        rows = p.read("n", ps.rate.Source(rows_per_second=1000, limit=10))
        rows.select("CAST(CAST(value AS STRING) || 'x' AS INT) AS n").write("o", ps.memory.Sink())

    written: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = written.append  # type: ignore[method-assign]
    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with pytest.raises(UserFunctionError, match="cannot be cast"):
            ps.Job(failing, state=tmp_path, spark=spark, restart="none").run()
        assert written == []
        with pytest.raises(Exception, match="cannot be cast"):
            spark.sql("SELECT CAST('x' AS INT)").collect()
        assert len(written) == 1, "the user's own queries are as they were"
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
