"""The archive of Spark's classes with real JVMs: made, mapped, made by a run, and harmless when it is damaged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from core.plan_kit import module
from crash.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SESSION = """
import psutil
from pyspark import SparkContext
from penstock.spark.session import make_session
spark = make_session("archive", master="local[1]")
print(spark.range(3).count())
print(*sorted({m.path for m in psutil.Process(SparkContext._gateway.proc.pid).memory_maps() if "spark-" in m.path}))
spark.stop()
"""
"""Starts a session, and says which archive of ours its JVM has mapped."""
JOB = """
import penstock as ps

@ps.pipeline("copy")
def copy(p):
    p.read("rows", ps.files.Source("in", schema="id LONG")).write("out", ps.files.Sink("out", format="json"))
"""


def python(folder: Path, *words: str, use: str = "use") -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with a cache folder of its own."""
    left_out = ("SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS")  # the archive that tests are run with
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment |= {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PENSTOCK_CLASS_ARCHIVE": use,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def said_by(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on standard error, without times."""
    return [re.sub(r"\d", "", line) for line in done.stderr.splitlines()]


def archives(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "penstock").glob("spark-*.jsa"))


def test_a_session_maps_the_archive_that_doctor_has_made_and_starts_without_a_damaged_one(tmp_path: Path) -> None:
    without = python(tmp_path, "-c", SESSION)
    assert without.stdout.split() == ["3"]
    said = python(tmp_path, "-m", "penstock", "doctor", "--warm", "--no-spark").stdout
    (archive,) = archives(tmp_path)
    assert f"class archive: {archive}, " in said
    using = python(tmp_path, "-c", SESSION)
    assert using.stdout.split() == ["3", str(archive)]
    assert said_by(using) == said_by(without), "nothing is said of the archive"
    whole = archive.read_bytes()
    archive.chmod(0o600)
    archive.write_bytes(whole[: len(whole) // 2])  # Java 17 would end with SIGABRT
    damaged = python(tmp_path, "-c", SESSION)
    assert damaged.stdout.split() == ["3"]
    assert said_by(damaged) == said_by(without)
    assert archives(tmp_path) == []


def test_a_run_that_has_ended_in_order_leaves_a_process_that_makes_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"id": 1}\n')
    name = module(tmp_path, JOB)
    run = ("-m", "penstock", "run", f"{name}:copy", "--until", "caught-up", "--state", "state", "--master", "local[1]")
    python(tmp_path, *run, use="make")
    until(300, "an archive is there", lambda: archives(tmp_path))
    (tmp_path / "in" / "1.json").write_text('{"id": 2}\n')
    python(tmp_path, *run, use="make")
    assert len(archives(tmp_path)) == 1
    assert sum(len(path.read_text().splitlines()) for path in (tmp_path / "out").glob("part-*")) == 2
