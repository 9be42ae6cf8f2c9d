"""The page about state as a table is run as it stands: its Python, and its command lines."""

from __future__ import annotations

import re
import shlex
import subprocess
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from core.cli_kit import say
from penstock.admin.savepoints import create
from penstock.admin.state_read import open_job
from spark.job_kit import drop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "state-queries.md"


@ps.pipeline("orders")
def orders(p: ps.Pipeline) -> None:
    rows = p.read("orders", ps.files.Source("in", schema="user STRING, amount DOUBLE, at TIMESTAMP"))
    clean = rows.with_watermark("at", delay="0 seconds")
    totals = clean.group_by("user", ps.tumbling("1 hour")).agg(
        "totals", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n")
    )
    totals.write("out", ps.memory.Sink())


def test_the_page_about_state_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    commands = re.findall(r"^penstock (state .*)$", text, flags=re.MULTILINE)
    assert len(commands) == 8
    for number, user in enumerate(("u1", "test")):
        drop(tmp_path / "in", f"{number}.json", [{"user": user, "amount": 3.0, "at": "2026-01-01T00:00:01Z"}])
        ps.Job(orders, state="./state", spark=spark).run(until="caught-up")
        if number == 0:
            create(open_job("state"), "before-v2")

    for line in commands:
        said = say(*shlex.split(line))
        assert said.code == 0, (line, said.err)
    monkeypatch.setattr(subprocess, "run", _in_this_process())
    space = {"ps": ps, "spark": spark, "orders": orders, "datetime": datetime}
    for block in code:
        exec(compile(block, str(PAGE), "exec"), space)

    assert space["new_users"].collect()[0]["user"] == "test"
    assert {(row[0], row[2]) for row in space["by_user"]} == {("u1", 3.0), ("test", 3.0)}
    assert [row["user"] for row in ps.read_state(spark, "state", "totals").collect()] == ["u1"]
    assert [row["amount"] for row in ps.read_state(spark, "new-state", "totals").collect()] == [41.0]


def _in_this_process() -> object:
    """The command line that the page starts as a process, which here would be another Python's."""

    def run(arguments: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        assert arguments[0] == "penstock"
        said = say(*arguments[1:])
        return subprocess.CompletedProcess(arguments, said.code, stdout=said.out)

    return run
