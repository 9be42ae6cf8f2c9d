"""What penstock doctor finds out about Spark itself: a trial in a process of its own, and this run's session."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.admin.doctor import session_of, try_spark
from penstock.admin.doctor_checks import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_a_session_comes_up_and_runs_python_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    found = try_spark()
    assert found.status is Status.OK, found
    assert f"on {os.cpu_count()} cores" in found.found


@pytest.mark.slow
def test_a_master_that_cannot_be_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_MASTER", "nonsense")
    found = try_spark()
    assert found.status is Status.FAIL
    assert "Spark has no master 'nonsense'. Write 'penstock run … --master M'" in found.found
    assert "\n" not in found.found


def test_what_the_session_of_the_tests_lacks_is_told_with_the_way_to_build_it(spark: SparkSession) -> None:
    told = {finding.found.split(" is ")[0]: finding for finding in session_of(spark)}
    assert "spark.ui.enabled" not in told, "as ours"
    assert "spark.sql.codegen.cache.maxEntries" not in told, "as ours"
    lacks = told["spark.scheduler.mode"]
    assert lacks.status is Status.WARN
    assert "spark.scheduler.mode is not set" in lacks.found
    assert lacks.fix == 'build the session with .config("spark.scheduler.mode", "FAIR")'
