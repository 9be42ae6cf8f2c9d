"""Checkpoints that were written long ago are restored: by the code of then, and by other code."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from golden.shop import BEFORE, CHECKPOINTS, END, OPEN_FROM, RENAMED, SINCE, changed, drop, pipeline
from spark.job_kit import published

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.mission("D7")]

FORMATS = sorted(path.name for path in CHECKPOINTS.iterdir())
TOTALS = """
    SELECT user, date_format(window.start, 'HH:mm:ss') AS begins, sum(amount) AS amount, count(*) AS orders,
           min(n) AS low, max_by(n, at) AS newest, avg(amount) AS mean, max(amount) FILTER (WHERE is_new) AS top
    FROM rows GROUP BY user, window(at, '1 minute')"""
VISITS = """
    SELECT user, date_format(session_window.start, 'HH:mm:ss') AS begins,
           transform(array_sort(collect_list(struct(at, n))), pair -> pair.n) AS numbers
    FROM rows GROUP BY user, session_window(at, '20 seconds')"""


@pytest.fixture(params=FORMATS)
def home(request: Any, tmp_path: Path) -> Path:
    """Where the job goes on: its state as it was kept, its input, old and new."""
    shutil.copytree(CHECKPOINTS / request.param, tmp_path / "state")
    drop(tmp_path / "in", "a.json", BEFORE)
    drop(tmp_path / "in", "b.json", SINCE + END)
    drop(tmp_path / "more", "c.json", END)
    return tmp_path


def wanted(spark: SparkSession, query: str, *but: str) -> list[dict[str, Any]]:
    """What SQL says of all rows at once, in windows that were open."""
    rows = [(*row[:3], f"2026-01-01 {row[3]}", given is SINCE) for given in (BEFORE, SINCE) for row in given]
    frame = spark.createDataFrame(rows, "user STRING, n INT, amount DOUBLE, at STRING, is_new BOOLEAN")
    frame.withColumn("at", frame.at.cast("timestamp")).createOrReplaceTempView("rows")
    found = [row.asDict() for row in spark.sql(query).drop(*but).collect()]
    return in_order(row for row in found if row["begins"] >= OPEN_FROM)


def in_order(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["user"], row["begins"]))


def sent(folder: Path) -> list[dict[str, Any]]:
    """What was published, without the ends of windows; NULL is not written."""
    rows = published(folder)
    found = [{name: row[name] for name in row if not name.startswith("window")} for row in rows]
    return in_order({**row, "begins": old["window_start"][11:19]} for row, old in zip(found, rows, strict=True))


def test_the_code_of_then_goes_on(spark: SparkSession, home: Path) -> None:
    report = ps.Job(pipeline(home), state=home / "state", spark=spark).run(until="caught-up")
    assert report.rows_read == {"orders": len(SINCE + END)}
    assert sent(home / "totals") == wanted(spark, TOTALS, "top")
    assert sent(home / "visits") == wanted(spark, VISITS)


def test_other_code_goes_on(spark: SparkSession, home: Path) -> None:
    job = ps.Job(changed(home), state=home / "state", spark=spark, rename=RENAMED)
    assert job.run(until="caught-up").rows_read == {"sales": len(SINCE + END), "more": len(END)}
    totals = [{name: row[name] for name in row if row[name] is not None} for row in wanted(spark, TOTALS, "mean")]
    assert sent(home / "totals") == totals
    assert sent(home / "visits") == wanted(spark, VISITS)
    again = ps.Job(changed(home), state=home / "state", spark=spark, rename=RENAMED)
    assert again.run(until="caught-up").rows_read == {}, "a rename that is done does nothing"
