"""A replay whose command is killed, and then the job that reads it: each row is in the output once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from crash.driver import Driver, all_gone, surroundings

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

START = 240
OLD, NEW = "id LONG, amount LONG", "id LONG, amount DOUBLE"


def test_a_kill_of_the_command_and_of_the_job_that_reads_the_replay_doubles_and_loses_nothing(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(3):
        rows = [{"id": n, "amount": n if n % 4 else n + 0.5} for n in range(number * 8, number * 8 + 8)]
        (tmp_path / "in" / f"{number}.txt").write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        run(tmp_path, 0, OLD)
        assert len(published(tmp_path)) == 18

        killed = command(tmp_path, PENSTOCK_FAILPOINTS="local.create.linked=kill")
        assert killed.returncode == -9
        again = command(tmp_path)
        assert "bad-lines: nothing to replay; 6 rows left out" in again.stdout, again.stderr

        for number, place in enumerate(("sink.prepared", "checkpoint.manifest.written", "sink.files.before_move"), 1):
            driver = start(tmp_path, number, NEW, pause_at=place)
            assert driver.reaches(START), driver.tail()
            driver.kill("group")
        run(tmp_path, 9, NEW)
        assert published(tmp_path) == sorted((n, float(n if n % 4 else n + 0.5)) for n in range(24))
    finally:
        assert all_gone(tmp_path) == 0


def start(home: Path, number: int, schema: str, *, pause_at: str | None = None) -> Driver:
    environment = {"LETTERS_SCHEMA": schema}
    return Driver(
        home, number, "--until", "caught-up", pipeline="letters_job:job", pause_at=pause_at, environment=environment
    )


def run(home: Path, number: int, schema: str) -> None:
    driver = start(home, number, schema)
    assert driver.wait(START) == 0, driver.tail()


def command(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    words = ("deadletter", "replay", "letters", "bad-lines", "--all", "--state", "state")
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        cwd=home,
        env=surroundings(home) | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def published(home: Path) -> list[tuple[int, float]]:
    """The rows of all published files."""
    rows = [json.loads(line) for path in (home / "out").glob("part-*") for line in path.read_text().splitlines()]
    return sorted((row["id"], row["amount"]) for row in rows)
