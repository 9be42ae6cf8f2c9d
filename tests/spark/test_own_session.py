"""A process without a session: Columns can be made, and jobs share the session that penstock makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

SHOP = """\
import penstock as ps
from pyspark.sql import functions as F
from pyspark.sql.functions import udf
from pyspark.sql.types import DoubleType


@udf(DoubleType())
def with_tax(amount):
    return amount * 2


@ps.pipeline("shop")
def shop(p):
    orders = p.read("orders", ps.files.Source("in/", schema="user STRING, amount DOUBLE"))
    taxed = orders.where(F.col("amount") > 0).with_column("amount", with_tax("amount"))
    taxed.write("out", ps.files.Sink("out/", format="json"))
"""

JOBS = """\
import json, sys, threading
import penstock as ps
from penstock.facts import JobStarted
from penstock.spark.session import current_session
from shop import shop

started = threading.Event()
def make(name, limit=None, listener=None):
    source = ps.rate.Source(rows_per_second=100, limit=limit)
    pipeline = ps.pipeline(name)(lambda p: p.read("n", source).write("o", ps.memory.Sink(name)))
    return ps.Job(pipeline, state="state", checkpoint_every="1s", listener=listener)

found = {}
found["columns"] = ps.Job(shop, state="state").run(until="caught-up").rows_written["out"]
found["after columns"] = current_session() is None
long = make("long", listener=lambda fact: started.set() if isinstance(fact, JobStarted) else None)
long.start()
assert started.wait(120)
session = current_session()
found["zone"] = session.conf.get("spark.sql.session.timeZone")
found["short"] = make("short", limit=10).run().rows_read["n"]
long.checkpoint(60)
found["long after short"] = long.state.value
long.stop(60)
found["long"] = long.state.value
found["after both"] = current_session() is None
print(json.dumps(found))
"""


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "TZ": "Asia/Tokyo", "PENSTOCK_MASTER": "local[2]", **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"user": "ann", "amount": 3}\n{"user": "bob", "amount": -1}\n')
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "early.py").write_text(SHOP.replace("udf(DoubleType())", 'udf("double")'))
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


def test_jobs_of_a_process_share_a_session_that_ends_with_the_last_of_them(folder: Path) -> None:
    done = python(folder, "jobs.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "columns": 1,
        "after columns": True,
        "zone": "UTC",
        "short": 10,
        "long after short": "running",
        "long": "stopped",
        "after both": True,
    }


def test_a_pipeline_with_columns_and_a_udf_is_planned_and_run_from_the_command_line(folder: Path) -> None:
    """The module's UDF needs a session when the module is imported, the pipeline's Column when it is built."""
    planned = python(folder, "-m", "penstock", "plan", "early:shop", "--state", "state", "--out", "plan.json")
    assert planned.returncode == 2, planned.stderr
    assert "a start would begin empty" in planned.stdout
    run = ("-m", "penstock", "run", "early:shop", "--state", "state", "--no-parent", "--until", "caught-up")
    done = python(folder, *run, "--plan", "plan.json")
    assert done.returncode == 0, done.stderr
    assert "Exception" not in planned.stderr + done.stderr, planned.stderr + done.stderr
    (out,) = (path for path in (folder / "out").glob("*.json"))
    assert json.loads(out.read_text()) == {"user": "ann", "amount": 6.0}
