"""Which crash points a test of a pipeline comes to: all that the page on crashes does not leave to real jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import crash_points
import penstock as ps
from penstock import failpoints
from penstock.failpoints import FAILPOINTS
from spark.testing_kit import at, clicks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.slow
@pytest.mark.usefixtures("few_layers")
def test_a_test_of_a_pipeline_comes_to_every_point_that_is_not_left_to_real_jobs(
    spark: SparkSession, tmp_path: Path
) -> None:
    record = tmp_path / "record"
    failpoints.record_to(record)
    try:
        with ps.testing.run(clicks(), spark, retained=1) as t:
            for minute in range(6):
                t.send("a", [at("u", minute)])
                t.checkpoint()
            t.savepoint("here")
            t.crash()
            t.restart()
            t.crash(at="sink.commit.before")
            t.send("a", [at("u", 20)])
            t.checkpoint()
            t.restart()
            t.stop()
    finally:
        failpoints.record_to(None)

    reached = set(record.read_text().split())

    assert reached == FAILPOINTS.keys() - crash_points.REAL_JOBS_ONLY
