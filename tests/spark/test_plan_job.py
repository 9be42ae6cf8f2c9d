"""A plan of a real job: the run that carries it out does what it says, and none does once the log has moved."""

from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from core.cli_kit import say
from core.plan_kit import tree
from penstock.admin.export import export_checkpoint
from penstock.admin.plan import plan
from penstock.cli.options import load_pipeline
from penstock.cli.output import Output
from penstock.cli.plan import show_plan
from penstock.cli.run import RunCommand, as_planned, expected_log, run_settings
from penstock.control.client import JobDirectory
from penstock.errors import StateDirectoryRefused
from penstock.facts import JobStarted
from penstock.job.start import FROM_LATEST, StartOptions, parse_start_options
from penstock.settings import read_settings
from spark.job_kit import Watch, drop, published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]

V1 = """\
import penstock as ps


@ps.pipeline("shop")
def shop(p):
    orders = p.read("orders", ps.files.Source("in", format="json", schema="user STRING, amount LONG, at TIMESTAMP"))
    timed = orders.with_watermark("at", delay="0 seconds")
    totals = timed.group_by("user", ps.tumbling("1 minute")).agg("totals", ps.agg.sum("amount").alias("amount"))
    totals.write("totals-out", ps.files.Sink("out", format="json"))
    orders.write("archive", ps.files.Sink("archive", format="json"))
"""

V2 = V1.replace('    orders.write("archive", ps.files.Sink("archive", format="json"))\n', "").replace(
    '.agg("totals", ps.agg.sum("amount").alias("amount"))',
    '.agg("spent", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("orders"))',
) + (
    '    counts = timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))\n'
    '    counts.write("counts-out", ps.files.Sink("counts", format="json"))\n'
)
"""A step has another uid and an aggregate more; one is new, with a sink of its own; the archive is given up."""


def order(minute: int, user: str = "u1", amount: int = 1) -> dict[str, object]:
    return {"user": user, "amount": amount, "at": f"2026-01-01T00:{minute:02}:00Z"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan_shop_v1.py").write_text(V1)
    (tmp_path / "plan_shop_v2.py").write_text(V2)
    drop(tmp_path / "in", "a.json", [order(0), order(1, amount=2), order(2)])
    return tmp_path


@pytest.mark.mission("D7")
def test_a_run_does_what_was_planned_and_is_refused_once_the_log_has_moved(spark: SparkSession, folder: Path) -> None:
    settings = run_settings({})
    ps.Job(load_pipeline("plan_shop_v1:shop"), state="state", spark=spark, **settings).run(until="caught-up")
    drop(folder / "in", "b.json", [order(3), order(4)])
    before = tree(folder / "state")

    out = io.StringIO()
    code = show_plan(
        "plan_shop_v2:shop",
        StartOptions(rename={"totals": "spent"}),
        Output(out=out, err=io.StringIO()),
        state="state",
        settings={},
        out="plan.json",
        spark=spark,
    )

    assert tree(folder / "state") == before
    assert code == 2
    assert out.getvalue().splitlines()[-1] == "Plan: 2 new, 1 migrated, 1 dropped, 2 kept"
    saved = json.loads((folder / "plan.json").read_text())
    assert {step["uid"]: step["verdict"] for step in saved["steps"]} == {
        "orders": "kept",
        "spent": "migrated",
        "totals-out": "kept",
        "counts": "new",
        "counts-out": "new",
        "archive": "dropped",
    }
    [spent] = [step for step in saved["steps"] if step["uid"] == "spent"]
    assert spent["reason"] == "goes on with what was 'totals'; adds orders__count bigint, from now on"
    assert saved["sources"][0]["waiting"]["file_count"] == 1
    assert saved["changed_settings"] == []
    assert [sink["guarantee"] for sink in saved["sinks"]] == ["exactly-once", "exactly-once"]

    asked = RunCommand(pipeline="plan_shop_v2:shop", state="state", start=FROM_LATEST, plan="plan.json")
    definition, watch = load_pipeline("plan_shop_v2:shop"), Watch()
    mark = expected_log(asked, definition.graph(), read_settings(settings))
    given = {"spark": spark, "rename": {"totals": "spent"}, "expect": mark, **settings}
    ps.Job(definition, state="state", listener=watch, **given).run(until="caught-up")  # type: ignore[arg-type]

    started = watch.of(JobStarted)[0]
    assert started.migrated == ("spent",)
    assert (started.restored, started.new) == (saved["restore"]["checkpoint"], ("counts", "counts-out"))
    assert started.age_ms >= 0
    rows = [(row["user"], row["amount"]) for row in published(folder / "out")]
    assert rows == [("u1", 1), ("u1", 2), ("u1", 1), ("u1", 1)], "each window once, over both versions"

    late = say("run", "plan_shop_v2:shop", "--state", "state", "--no-parent", "--plan", "plan.json")
    assert late.code == 65
    assert f"The plan is outdated. The log has moved: entries after {saved['log']['tail']}: a claim of" in late.err
    job = ps.Job(definition, state="state", **given)  # type: ignore[arg-type]
    with pytest.raises(StateDirectoryRefused, match="The log has moved"):
        job.run(until="caught-up")


@pytest.mark.mission("D7")
def test_a_start_with_an_export_does_what_was_planned_and_nobody_else_can_have_what_it_claimed(
    spark: SparkSession, folder: Path
) -> None:
    settings = run_settings({})
    ps.Job(load_pipeline("plan_shop_v1:shop"), state="state", spark=spark, **settings).run(until="caught-up")
    export_checkpoint(JobDirectory("state", "shop"), "1", "export")
    drop(folder / "in", "b.json", [order(3), order(4)])
    for name in ("out", "archive"):  # its log is another one, and sinks refuse a folder that another has published in
        shutil.rmtree(folder / name)
    before = tree(folder / "state"), tree(folder / "export")

    start = parse_start_options(
        fresh=False, restore_from="./export", claim=True, discard_unpublished=False, rename={"totals": "spent"}
    )
    code = show_plan(
        "plan_shop_v2:shop",
        start,
        Output(out=io.StringIO(), err=io.StringIO()),
        state="other",
        settings={},
        out="plan.json",
        spark=spark,
    )
    assert code == 2

    assert (tree(folder / "state"), tree(folder / "export"), (folder / "other").exists()) == (*before, False)
    saved = json.loads((folder / "plan.json").read_text())
    [spent] = [step for step in saved["steps"] if step["uid"] == "spent"]
    assert spent["reason"] == "goes on with what was 'totals'; adds orders__count bigint, from now on"
    assert saved["sources"][0]["waiting"]["file_count"] == 1
    assert (saved["bring"]["checkpoint"], saved["bring"]["does_claim"], saved["restore"]["checkpoint"]) == (1, True, 0)

    asked = RunCommand(pipeline="plan_shop_v2:shop", state="other", start=FROM_LATEST, plan="plan.json")
    definition, watch = load_pipeline("plan_shop_v2:shop"), Watch()
    planned = as_planned(asked).start
    assert (planned.folder, planned.sha256, planned.claim) == (str(folder / "export"), saved["bring"]["sha256"], True)
    job = ps.Job(
        definition,
        state="other",
        listener=watch,
        spark=spark,
        rename={"totals": "spent"},
        expect=expected_log(asked, definition.graph(), read_settings(settings)),
        **settings,  # type: ignore[arg-type]
    )
    job._start = planned
    job.run(until="caught-up")

    started = watch.of(JobStarted)[0]
    assert (started.restored, started.migrated, started.imported) == (0, ("spent",), str(folder / "export"))
    rows = [(row["user"], row["amount"]) for row in published(folder / "out")]
    assert rows == [("u1", 1), ("u1", 1)], "the window that the export held open, and the one after it"
    late = say("run", "plan_shop_v2:shop", "--state", "third", "--no-parent", "--plan", "plan.json")
    assert late.code == 65
    assert "The export has moved: The files of" in late.err


@pytest.mark.mission("D9")
def test_settings_of_a_run_are_in_its_checkpoints_and_the_next_start_takes_its_own(
    spark: SparkSession, folder: Path
) -> None:
    """The next start is the example of the docs."""
    ps.Job(load_pipeline("plan_shop_v1:shop"), state="state", spark=spark, retained=5).run(until="caught-up")
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "plan.md").read_text(), flags=re.DOTALL)
    told = {"ps": ps, "spark": spark, "orders": load_pipeline("plan_shop_v1:shop")}

    exec(compile(code, "plan.md", "exec"), told)

    found: Any = told["found"]
    assert [asdict(change) for change in found.changed] == [{"name": "retained", "before": 5, "now": 3}]
    again = plan(load_pipeline("plan_shop_v1:shop").graph(), state="state", settings=read_settings({}), spark=spark)
    assert (again.changed, again.is_change) == ((), False)
    assert [row["user"] for row in published(folder / "out")] == ["u1", "u1"], "nothing twice"
