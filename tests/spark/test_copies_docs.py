"""The examples of the pages on savepoints and shadow runs, in their order, as a reader would run them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.admin import savepoints
from penstock.control.client import JobDirectory
from spark.job_kit import drop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[2] / "docs"

SHOP = """
import penstock as ps


@ps.pipeline("orders")
def orders(p: ps.Pipeline) -> None:
    source = ps.files.Source("in/", schema="user STRING, amount DOUBLE, at TIMESTAMP")
    taxed = p.read("orders", source).with_column("amount", "amount * RATE").with_watermark("at", delay="0 seconds")
    made = taxed.group_by("user", ps.tumbling("1 minute"))
    totals = made.agg("totals", ps.agg.sum("amount").alias("amount"))
    totals.write("totals-out", ps.memory.Sink("docs-of-copies"))
"""


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a module, a job that has run there, and a savepoint of it."""
    monkeypatch.chdir(tmp_path)
    for name, rate in (("shop", "1"), ("shop_v2", "2")):
        module = ModuleType(name)
        exec(compile(SHOP.replace("RATE", rate), f"{name}.py", "exec"), vars(module))
        monkeypatch.setitem(sys.modules, name, module)
    drop(tmp_path / "in", "a.json", [{"user": "u1", "amount": 1.0, "at": "2026-01-01T00:00:00Z"}])
    job = ps.Job(sys.modules["shop"].orders, state="./state", spark=spark)
    job.start()
    job.stop(savepoint="before-v2")
    drop(tmp_path / "in", "b.json", [{"user": "u1", "amount": 2.0, "at": "2026-01-01T00:01:00Z"}])


@pytest.mark.usefixtures("shop")
def test_the_examples_of_both_pages_run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    name, export, begin = examples("savepoints.md")
    savepoints.drop(JobDirectory("./state", "orders"), "before-v2")  # which the page gives anew
    exec(compile(name, "savepoints.md", "exec"), {})
    assert JobDirectory("./state", "orders").read().pins.keys() == {"before-v2"}
    exec(compile(export, "savepoints.md", "exec"), {})
    begin = begin.replace('restore_from="./exports/orders")', 'restore_from="./exports/orders", spark=spark)')
    exec(compile(begin, "savepoints.md", "exec"), {"spark": spark})
    [shadow] = examples("shadow.md")
    shadow = shadow.replace('out="./shadow-orders",', 'out="./shadow-orders", spark=spark,')
    exec(compile(shadow, "shadow.md", "exec"), {"spark": spark})
    assert "totals-out {'old': 1, 'new': 1} False" in capsys.readouterr().out
