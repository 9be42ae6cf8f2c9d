"""``penstock plan --from FOLDER``: what beginning with an exported checkpoint would do; it changes neither folder."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from core import copies_kit
from core.checkpoint_values import CLAIM, keyed, output, pin, wrote
from core.cli_kit import say
from core.plan_kit import (
    NOON,
    SECOND,
    SHOP,
    STEPS,
    at,
    counted,
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
from penstock.admin.export import export_checkpoint, verify_export
from penstock.checkpoint.entries import Stopped
from penstock.checkpoint.export import decode_export, encode_export
from penstock.cli.run import RunCommand, as_planned
from penstock.control.client import JobDirectory
from penstock.errors import PlanOutdated, StateDirectoryRefused
from penstock.job.start import FROM_LATEST, StartOptions, parse_start_options, resolve_start
from penstock.testing.clock import ManualClock


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return shop_folder(tmp_path, monkeypatch)


def export(place, name="export", *, number=1, log="log-1", open=()):
    """An export of a checkpoint of the steps of SHOP, which a job of another log may have made."""
    tasks = (counted(number * 10), keyed(copies_kit.layer("g0-000001")), wrote())
    first = at(0, tasks=(counted(0), keyed(), wrote()))
    bodies = [CLAIM, first, at(number, 0, tasks=tasks, open=open), pin("before-v2", number)]
    source = copies_kit.write(place / f"of-{name}", *bodies)
    clock = ManualClock("2026-01-01T12:00:08Z")
    export_checkpoint(JobDirectory(source, "orders", clock=clock), str(number), place / name)
    held = place / name / "export.json"
    made = decode_export(held.read_bytes(), name)
    held.write_bytes(encode_export(replace(made, log_id=log, version="0.9")))
    return place / name


def shown_from(text, folder):
    return re.sub(r"(sha256\"?:? \"?)[0-9a-f]{12,64}", r"\1…", shown(text, folder))


CASES = {
    "export": ({}, {"log": "log-2", "open": (output(1),)}, []),
    "export_claimed": ({"claim": True}, {}, story()),
}
"""Of another log, with output that it has not published, into a new job; of this log, beside what it has done since."""


@pytest.mark.parametrize("case", CASES)
def test_the_text_and_the_document_say_the_same_golden_things(folder, case):
    options, exported, bodies = CASES[case]
    write_log(folder / "state", bodies)
    export(folder, **exported)

    code, text = planned(folder, start_at="./export", **options)
    again, document = planned(folder, start_at="./export", as_json=True, **options)

    assert (code, again) == (2, 2)
    golden(f"plan_{case}.out", shown_from(text, folder))
    golden(f"plan_{case}.json", shown_from(document, folder))


@pytest.mark.mission("D7")
@pytest.mark.parametrize("options", [[], ["--claim"], ["--json", "--claim"], ["--all"]])
def test_it_changes_neither_the_state_nor_the_export_and_loads_no_spark(folder, options):
    export(folder)
    name = module(folder)
    before = tree(folder / "state"), tree(folder / "export")
    script = (
        "import sys\nfrom penstock.cli.main import dispatch\nfrom penstock.cli.output import Output\n"
        f"code = dispatch(['plan', {name + ':orders'!r}, '--state', 'state', '--no-schemas', '--from', './export', "
        f"*{options!r}], Output())\nsys.exit(code != 2 or 'pyspark' in sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert (tree(folder / "state"), tree(folder / "export")) == before


def test_a_start_does_what_the_plan_says(folder):
    place = export(folder)
    planned_before = json.loads(planned(folder, start_at="./export", as_json=True)[1])
    start = copies_kit.Start(folder / "state", place, steps=STEPS)

    assert start.recovery.restored == planned_before["restore"]["checkpoint"]
    assert start.published == [item["checkpoint"] for item in planned_before["publish"]]
    kept = [step["uid"] for step in planned_before["steps"] if step["verdict"] == "kept"]
    assert sorted(start.recovery.snapshots) == sorted(kept)


def test_what_is_brought_already_is_said_to_be_and_is_no_change_any_more(folder):
    write_log(folder / "state", [])
    place = export(folder)
    copies_kit.Start(folder / "state", place, steps=STEPS)

    settings = {"checkpoint_every": "5s", "retained": 3}
    code, text = planned(folder, start_at="./export", settings=settings)
    document = json.loads(planned(folder, start_at="./export", settings=settings, as_json=True)[1])

    assert code == 0
    assert text.splitlines()[0].startswith("orders: a start would restore checkpoint 0 (")
    assert text.splitlines()[0].endswith(", which it has brought from ./export already".replace("./", f"{folder}/"))
    assert document["bring"]["is_brought"]


def test_readers_of_this_jobs_output_are_told_what_they_see_again_and_those_of_anothers_that_it_comes_twice(folder):
    own, other = (
        planned(folder, start_at=str(export(folder, log, log=log)))[1].splitlines() for log in ("log-1", "log-2")
    )

    assert "  out  output of checkpoint 2: 1 file, 3 B in there" in own
    assert not any("of another log" in line for line in own)
    assert "Readers see again" not in other
    assert any("what job 'orders' has published there behind checkpoint 1" in line for line in other)


def test_an_export_of_which_the_log_has_forgotten_the_checkpoint_still_says_what_came_after_it(folder):
    place = export(folder, number=1)
    bodies = [CLAIM, at(2, open=(output(2),)), at(3, 2, open=(output(2), output(3)))]
    write_log(folder / "state", bodies)

    document = json.loads(planned(folder, start_at=str(place), as_json=True)[1])

    assert [each["checkpoint"] for each in document["bring"]["again"]] == [2, 3]


def test_a_file_that_the_export_misses_is_found_before_the_start_and_named(folder):
    place = export(folder)
    victim = sorted((place / "state").rglob("*.parquet"))[0]
    victim.unlink()

    code, text = planned(folder, start_at=str(place))

    assert code == 65
    assert f"The export in {place} is not whole: {victim.relative_to(place)} is missing" in text


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--from", "./nowhere"], 64, "There is no exported checkpoint in"),
        (["--from", "export"], 64, "An exported folder is written with a slash: ./export"),
        (["--from", "./export", "--fresh"], 64, "A start is either fresh or from './export'"),
        (["--from", "./export", "--discard-unpublished"], 64, "--discard-unpublished is for going back"),
        (["--from", "before-v2", "--claim"], 64, "--claim takes over the files of an exported folder"),
        (["--from", "./state/orders"], 64, "is the directory of a job, not an exported checkpoint"),
    ],
)
def test_what_cannot_be_planned_is_said(folder, arguments, code, says):
    export(folder)
    said = say("plan", f"{module(folder)}:orders", "--state", "state", "--no-schemas", *arguments)

    assert said.code == code
    assert says in said.err


def test_an_export_that_another_job_has_taken_over_is_refused(folder):
    place = export(folder)
    copies_kit.Start(folder / "elsewhere", place, claim=True, steps=STEPS)

    said = say("plan", f"{module(folder)}:orders", "--state", "state", "--no-schemas", "--from", str(place))

    assert said.code == 65
    assert "belong to job 'orders' (log id-elsewhere-0), which has taken them over" in said.err


# ---------------------------------------------------------------------------------------------------- carrying it out


def test_a_plan_is_refused_once_the_folder_holds_another_export(folder):
    place = export(folder)
    saved(folder, start_at="./export")
    other = export(folder, "other", number=2)
    (place / "export.json").write_bytes((other / "export.json").read_bytes())

    said = run(folder)

    assert said.code == 65
    assert f"The export has moved: {place} holds another one, checkpoint 2 of job 'orders'. Plan again." in said.err


@pytest.mark.parametrize("became", ["gone", "damaged", "taken"])
def test_a_plan_is_refused_once_the_export_is_gone_or_damaged_or_taken_over(folder, became):
    place = export(folder)
    saved(folder, start_at="./export")
    if became == "taken":
        copies_kit.Start(folder / "elsewhere", place, claim=True, steps=STEPS)
    elif became == "gone":
        (place / "export.json").unlink()
    else:
        (place / "export.json").write_text("{}")

    said = run(folder)

    assert said.code == 65
    assert "The plan is outdated. The export has moved: " in said.err


def test_a_plan_with_an_export_is_refused_once_log_or_code_have_moved(folder):
    export(folder)
    saved(folder, start_at="./export")
    code = run(folder, SHOP.replace("1 minute", "2 minutes"))
    write_log(folder / "state", [*story(stopped=True), CLAIM, at(3, 2), Stopped(checkpoint=3, at=NOON + 5 * SECOND)])
    log = run(folder)

    assert (code.code, log.code) == (65, 65)
    assert "The code has moved: 'totals' was changed" in code.err
    assert "The log has moved: entries after 5: a claim of process 7 on here, checkpoint 3, a stop" in log.err


def test_the_command_line_may_name_the_folder_that_was_planned_and_no_other(folder):
    export(folder)
    saved(folder, start_at="./export")
    start = parse_start_options(fresh=False, restore_from="export/../export", claim=False, discard_unpublished=False)
    command = RunCommand(pipeline="shop:orders", state="state", plan="plan.json", start=start)

    assert as_planned(command).start.folder == str(folder / "export")
    for more in (["--from", "./other"], ["--from", "1"], ["--from", "./export", "--claim"]):
        said = run(folder, SHOP, *more)
        assert said.code == 64
        option = more[-2] if more[-1] != "--claim" else "--claim"
        assert f"{option} differs from the plan, which says where to begin. Leave it out" in said.err


def test_a_plan_that_claims_is_run_so_until_that_is_in_the_log(folder):
    place = export(folder)
    saved(folder, start_at="./export", claim=True)
    asked = RunCommand(pipeline="shop:orders", state="state", start=FROM_LATEST, plan="plan.json")
    later = as_planned(asked)

    assert (later.start.folder, later.start.claim) == (str(place), True)
    command = later.child_command(begins=True, take_over=False, traceback=False)
    assert ["--from" in command, "--claim" in command, "--plan" in command] == [True, True, False]
    command = later.child_command(begins=False, take_over=False, traceback=False)
    assert ["--from" in command, "--claim" in command] == [False, False]


def test_the_start_itself_looks_at_the_export_again(folder):
    place = export(folder)
    seen = verify_export(place).sha256
    log = JobDirectory(folder / "state", "orders").read()

    def begun(sha256):
        start = StartOptions(folder=str(place), sha256=sha256, claim=True)
        return resolve_start(start, log, job="orders", at=NOON)

    assert begun(seen)["bring"].export.sha256 == seen
    with pytest.raises(PlanOutdated, match=r"The export has moved: .* holds another one, checkpoint 1 of job"):
        begun("0" * 64)
    copies_kit.Start(folder / "elsewhere", place, claim=True, steps=STEPS)
    with pytest.raises(StateDirectoryRefused, match="has taken them over"):
        begun(seen)


def test_a_plan_of_an_earlier_release_knows_of_no_export(folder):
    saved(folder, start_at="before-v2")
    document = json.loads((folder / "plan.json").read_text())
    del document["beginning"]["export"]
    (folder / "plan.json").write_text(json.dumps(document))

    later = as_planned(RunCommand(pipeline="shop:orders", state="state", start=FROM_LATEST, plan="plan.json"))

    assert later.start == StartOptions(checkpoint="1")
