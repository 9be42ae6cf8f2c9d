"""``penstock plan`` on logs made by hand: golden text and documents, exit codes, and that it changes nothing."""

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from core.checkpoint_values import CLAIM, history, rewind
from core.cli_kit import say
from core.plan_kit import (
    NOON,
    SETTINGS,
    SHOP,
    at,
    golden,
    module,
    planned,
    run,
    saved,
    shop_folder,
    shown,
    story,
    tree,
    write_log,
)
from penstock.admin import plan
from penstock.admin.plan_document import SCHEMA, read_plan, require_unchanged
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Manifest, Stopped
from penstock.cli.run import RunCommand, as_planned
from penstock.errors import PlanOutdated
from penstock.graph.fingerprint import fingerprint
from penstock.job.start import FROM_LATEST, StartOptions
from penstock.settings import MODES

CHANGED = """\
import penstock as ps


@ps.pipeline("orders")
def orders(p):
    p.read("more", ps.files.Source("more", format="text")).write("lines", ps.console.Sink())
    numbers = p.read("in", ps.rate.Source(10)).with_watermark("at", delay="1 second")
    totals = numbers.group_by("value", ps.tumbling("1 minute")).agg("sums", ps.agg.count().alias("n"))
    totals.write("again", ps.files.Sink("again"))
"""
"""Another step, another sink, and a source of files, beside what there was."""


COUNTS_CALLS = """\
import penstock as ps


class Step:
    def __init__(self):
        self.calls = 0

    def __call__(self, frame):
        self.calls += 1
        return frame


STEP = Step()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return shop_folder(tmp_path, monkeypatch)


CASES = {
    "goes_on": ({}, SHOP, 0),
    "changed": ({"allow_non_restored_state": True}, CHANGED, 2),
    "refused": ({}, CHANGED, 65),
    "back": ({"start_at": "before-v2"}, SHOP, 2),
    "settings": ({"settings": {"checkpoint_every": "1s", "retained": 5}}, SHOP, 2),
    "fresh": ({"fresh": True, "discard_unpublished": True}, SHOP, 2),
    "renamed": ({"rename": ("totals=sums",)}, SHOP.replace('"totals", ps.agg', '"sums", ps.agg'), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_the_text_and_the_document_say_the_same_golden_things(folder, case):
    options, source, expected = CASES[case]
    write_log(folder / "state", story())  # killed, with output that is open

    code, text = planned(folder, source, lists_kept=case == "goes_on", **options)
    again, document = planned(folder, source, as_json=True, **options)

    assert (code, again) == (expected, expected)
    golden(f"plan_{case}.out", shown(text, folder))
    golden(f"plan_{case}.json", shown(document, folder))
    assert json.loads(document)["schema"] == SCHEMA


@pytest.mark.mission("D7")
def test_a_pipeline_that_goes_on_as_it_was_ends_with_0(folder):
    settings = {"checkpoint_every": "5s", "retained": 3}

    code, text = planned(folder, settings=settings, lists_kept=True)

    assert code == 0
    assert text.splitlines()[0] == "orders: a start would restore checkpoint 2 (12 s old)"
    assert text.splitlines()[-1] == "Plan: 0 new, 0 migrated, 0 dropped, 3 kept"


def test_a_start_in_another_time_zone_is_refused_unless_the_zone_is_a_setting_and_then_it_is_shown(folder):
    recorded = {**SETTINGS, "timezone": "Europe/Berlin"}
    taken = [replace(body, settings=recorded) if isinstance(body, Manifest) else body for body in story(stopped=True)]
    write_log(folder / "state", taken)

    refused, why = planned(folder)
    changed, text = planned(folder, settings={"timezone": "Etc/UTC"})
    kept, same = planned(folder, settings={"timezone": "Europe/Berlin"})

    assert (refused, changed, kept) == (65, 2, 0)
    assert "Checkpoint 2 was taken in the time zone 'Europe/Berlin', and this Spark session has 'UTC'" in why
    assert re.search(r"timezone +Europe/Berlin → UTC", text)
    assert "timezone" not in same


def test_a_new_job_is_planned_without_making_its_folder(folder):
    code, text = planned(folder, SHOP.replace('"orders"', '"others"'))

    assert code == 2
    assert text.splitlines()[0] == "others: a start would begin empty"
    assert not (folder / "state" / "others").exists()


def test_a_plan_that_is_written_says_how_it_is_carried_out(folder):
    said = say("plan", f"{module(folder)}:orders", "--state", "state", "--no-schemas", "--out", "plan.json")

    assert said.code == 0
    assert f"penstock run {module(folder)}:orders --state state --plan plan.json carries it out" in said.err
    assert json.loads((folder / "plan.json").read_text())["schema"] == SCHEMA


@pytest.mark.parametrize("options", [[], ["--from", "1"], ["--fresh", "--discard-unpublished"], ["--json"]])
def test_it_changes_nothing_and_loads_no_spark(folder, options):
    write_log(folder / "state", story())
    name = module(folder)
    before = tree(folder / "state")
    script = (
        "import sys\nfrom penstock.cli.main import dispatch\nfrom penstock.cli.output import Output\n"
        f"code = dispatch(['plan', {name + ':orders'!r}, '--state', 'state', '--no-schemas', *{options!r}], Output())\n"
        "sys.exit(code not in (0, 2) or 'pyspark' in sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert tree(folder / "state") == before


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--from", "9"], 64, "Checkpoint 9 is not in the log. Restorable checkpoints: 0, 1, 2."),
        (["--from", "befor-v2"], 64, "Did you mean 'before-v2'?"),
        (["--from", "1", "--fresh"], 64, "A start is either fresh or from '1'. Leave out --fresh or --from"),
        (["--claim"], 64, "--claim takes over the files of an exported folder"),
        (["--discard-unpublished"], 64, "--discard-unpublished is for going back in the job's own log"),
        (["--retained", "0"], 64, "retained is 0"),
        (["--rename", "totals=sums"], 64, "rename totals=sums: The pipeline has no step 'sums'"),
        (["--rename", "totals"], 64, "totals"),
        (["--out", "nowhere/plan.json"], 64, "--out nowhere/plan.json cannot be written"),
    ],
)
def test_what_cannot_be_planned_is_said(folder, arguments, code, says):
    said = say("plan", f"{module(folder)}:orders", "--state", "state", "--no-schemas", *arguments)

    assert said.code == code
    assert says in said.err


def test_a_damaged_entry_is_named(folder):
    path = folder / "state" / "orders" / paths.entry(4)
    path.write_bytes(path.read_bytes()[:-9])

    said = say("plan", f"{module(folder)}:orders", "--state", "state")

    assert said.code == 65
    assert "log/00000000000000000004.json" in said.err


def test_a_directory_that_has_lost_its_log_is_refused(folder):
    for path in (folder / "state" / "orders" / "log").iterdir():
        path.unlink()
    (folder / "state" / "orders" / "state" / "totals").mkdir(parents=True)
    (folder / "state" / "orders" / "state" / "totals" / "part-0").write_bytes(b"x")

    code, text = planned(folder)

    assert code == 65
    assert "The directory holds state/totals/part-0 but no log" in text


def test_a_job_that_was_not_ended_in_order_is_said_to_be_so(folder):
    write_log(folder / "state", story())

    _, text = planned(folder)

    assert "process 7 on here (generation 0) had the job last and has not ended it in order" in text


def test_a_job_that_runs_is_said_to_run(folder):
    from penstock.control.client import host_identity

    write_log(folder / "state", [replace(CLAIM, host=host_identity(), pid=os.getpid()), at(0)])

    _, text = planned(folder)

    assert f"the job runs: process {os.getpid()} on " in text


def test_a_sink_that_gets_less_than_exactly_once_says_whose_doing_it_is(folder, monkeypatch):
    monkeypatch.setenv("PENSTOCK_MODE", MODES[1])
    _, text = planned(folder, SHOP.replace("ps.console.Sink()", 'ps.files.Sink("out")'))

    assert "files /shop/out (parquet): at-least-once, mode at-least-once gives no more" in shown(text, folder)


# ---------------------------------------------------------------------------------------------------- carrying it out


def test_a_plan_is_refused_once_the_log_has_moved_and_says_by_what(folder):
    saved(folder)
    write_log(folder / "state", [*story(stopped=True), CLAIM, rewind(1, 2), at(3, 1), Stopped(checkpoint=3, at=NOON)])

    said = run(folder)

    assert said.code == 65
    assert (
        "The log has moved: entries after 5: a claim of process 7 on here, a rewind to checkpoint 1, checkpoint 3"
        in said.err
    )


def test_a_plan_is_refused_once_the_code_has_moved_and_names_the_steps(folder):
    saved(folder)

    said = run(folder, SHOP.replace("1 minute", "2 minutes"))

    assert said.code == 65
    assert "The plan is outdated. The code has moved: 'totals' was changed. Plan again." in said.err


def test_what_the_analysis_leaves_in_a_step_is_no_change_of_the_code(folder, monkeypatch):
    source = SHOP.replace("import penstock as ps\n", COUNTS_CALLS).replace(
        '.with_watermark("', '.transform(STEP)\\\n        .with_watermark("'
    )
    name = module(folder, source)
    real = plan._Asked.declare

    def declare(asked, *, compares_schemas):
        importlib.import_module(name).STEP.calls += 1  # as Spark's analysis would
        return real(asked, compares_schemas=compares_schemas)

    monkeypatch.setattr(plan._Asked, "declare", declare)

    assert saved(folder, source) == 0
    now = importlib.import_module(name)
    now.STEP.calls -= 1
    assert read_plan((folder / "plan.json").read_text(), "plan.json").code == fingerprint(now.orders.graph())


def test_a_plan_is_refused_with_other_settings(folder):
    saved(folder, settings={"checkpoint_every": "1s"})

    said = run(folder)

    assert said.code == 65
    assert "Setting checkpoint_every: 1 second was planned, it is 5 seconds" in said.err


def test_a_plan_of_another_job_or_one_that_was_refused_is_not_run(folder):
    assert saved(folder, CHANGED) == 65
    refused = run(folder, CHANGED)
    saved(folder)
    other = run(folder, SHOP.replace('"orders"', '"others"'))

    assert (refused.code, other.code) == (65, 65)
    assert "The plan says that a start would be refused" in refused.err
    assert "The plan is of job 'orders', not of 'others'. Run that pipeline, or plan this one and save it" in other.err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "--plan plan.json cannot be read"),
        ("{", "plan.json is not a plan that penstock plan --out has written"),
        ("[]", "plan.json is not a plan"),
        ('{"schema": "penstock.plan/9"}', "plan.json has schema 'penstock.plan/9'"),
        ('{"schema": "penstock.plan/1"}', "plan.json is not a plan"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_by_parent_and_child_alike(folder, content, says):
    if content is not None:
        (folder / "plan.json").write_text(content)
    command = ["run", f"{module(folder)}:orders", "--state", "state", "--plan", "plan.json"]

    for said in (say(*command), say(*command, "--no-parent")):
        assert said.code == 64
        assert says in said.err


@pytest.mark.parametrize("option", ["--fresh", "--allow-non-restored-state", "--from before-v2", "--rename a=b"])
def test_the_command_line_may_say_no_more_of_where_to_begin_than_the_plan(folder, option):
    saved(folder)

    said = run(folder, SHOP, *option.split())

    assert said.code == 64
    assert f"{option.split()[0]} differs from the plan, which says where to begin. Leave it out" in said.err


def test_only_the_first_process_of_a_run_is_held_to_the_plan(folder):
    saved(folder, fresh=True)
    asked = RunCommand(pipeline="shop:orders", state="state", start=FROM_LATEST, plan="plan.json")
    later = as_planned(asked)

    assert "--plan" in asked.child_command(begins=True, take_over=False, traceback=False)
    assert (later.plan, later.start) == (None, StartOptions(fresh=True))


def test_a_plan_that_goes_back_is_run_so_until_that_is_in_the_log(folder):
    saved(folder, start_at="before-v2", discard_unpublished=True)
    later = as_planned(RunCommand(pipeline="shop:orders", state="state", start=FROM_LATEST, plan="plan.json"))

    assert (later.start.checkpoint, later.start.discard_unpublished) == ("1", True)
    assert "--from" in later.child_command(begins=True, take_over=False, traceback=False)
    assert "--from" not in later.child_command(begins=False, take_over=False, traceback=False)


def test_another_log_is_not_the_one_that_was_planned_for(folder):
    plan = read_plan(planned(folder, as_json=True)[1], "plan.json")
    found = history(*story(stopped=True))
    other = replace(found, entries=tuple(replace(entry, log_id="log-2") for entry in found.entries))
    same = {"job": "orders", "settings": plan.settings, "code": plan.code}

    require_unchanged(plan, history=found, **same)
    assert plan.log == found.mark
    with pytest.raises(PlanOutdated, match="it is another one"):
        require_unchanged(plan, history=other, **same)
    with pytest.raises(PlanOutdated, match="it ends at entry 5, it ended at 5"):
        require_unchanged(plan, history=replace(found, tail_hash="x"), **same)
