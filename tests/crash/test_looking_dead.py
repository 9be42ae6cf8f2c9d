"""A real job that was killed with -9: everything about it is told from its directory alone, and it goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress

import pytest

from core.cli_kit import say
from crash.driver import Driver, all_gone, entries, surroundings
from crash.input_files import InputFiles
from crash.waiting import until
from penstock.filesystem.local import LocalFileSystem
from penstock.observability.status_file import read_status_file

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]

START = 240
"""Seconds for a driver to start, on a machine that others use too."""


@pytest.fixture
def killed(tmp_path):
    """The folder of a job that ran until it had published something, and was killed with its JVM."""
    InputFiles(tmp_path / "in", seed=5).drop(3)
    driver = Driver(tmp_path, 0, "--checkpoint-every", "500ms")
    disk = LocalFileSystem(tmp_path / "state" / "torture")

    def has_written():
        hint = read_status_file(disk)
        return driver.is_over or (hint is not None and sum(hint.report.published.values()) > 0)

    try:
        until(START, "numbers of a run that has published", has_written, driver.tail)
        assert not driver.is_over, driver.tail()
        alive = told(tmp_path, "status", "torture")
        driver.kill("group")
    finally:
        driver.end()
        all_gone(tmp_path)
    return tmp_path, alive


def told(home, *words):
    """As a person would type it, in another process: without Spark."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words, "--state", "state", "--json"],
        cwd=home,
        env=surroundings(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rows_read(status):
    return {each["uid"]: each["rows_read"] for each in status["run"]["sources"]}


def test_status_list_lag_late_verify_and_gc_work_on_a_job_that_was_killed(killed):
    home, alive = killed
    before = entries(home)
    assert alive["is"] == "running"
    assert alive["uptime_seconds"] > 0

    status, verdict = told(home, "status", "torture"), told(home, "verify", "torture")
    (listed,) = told(home, "list")["jobs"]
    late, lag = told(home, "late", "torture"), told(home, "lag", "torture")
    files = told(home, "gc", "torture", "--dry-run")

    assert status["is"] == listed["is"] == late["is"] == lag["is"] == "dead"
    assert status["uptime_seconds"] is None
    assert status["generation"] == status["run"]["generation"]
    assert status["run"]["numbers_age_seconds"] >= 0
    assert list(rows_read(status)) == ["lines"]
    assert rows_read(status)["lines"] >= rows_read(alive).get("lines", 0)
    assert status["checkpoint"] == listed["checkpoint"]
    assert {each["kind"] for each in late["put_aside"]} == {"bad", "late"}
    assert [each["uid"] for each in lag["sources"]] == ["lines"]
    assert verdict["is_sound"] is True, verdict
    assert verdict["restore_point"] == status["restore_point"]
    assert "unknown" not in {each["owner"] for each in files["sums"]}
    assert say("lag", "torture", "--state", str(home / "state"), "--max-lag", "1000000").code == 4
    assert entries(home) == before, "looking appends nothing"

    swept = say("gc", "torture", "--state", str(home / "state"), "--yes")
    assert swept.code == 0, swept.err
    assert told(home, "gc", "torture", "--dry-run")["sums"] == [
        each for each in told(home, "gc", "torture", "--dry-run")["sums"] if not each["is_deletable"]
    ]
    again = Driver(home, 1, "--until", "caught-up")
    try:
        assert again.wait(START) == 0, again.tail()
    finally:
        with suppress(AssertionError):
            again.end()
    assert told(home, "status", "torture")["is"] == "stopped"
    assert told(home, "verify", "torture")["is_sound"] is True
