"""The session that is active is each thread's own: a job changes nothing in that, and is not changed by others."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import penstock as ps
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
