"""``penstock state``: which state there is, from the log alone, against golden text and JSON; what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from core.checkpoint_values import CLAIM, condemn, entries, file, history, keyed, manifest, output, pin, read_to, wrote
from core.cli_kit import say
from penstock.admin.state_read import open_job, require_still_restorable, resolve_manifest, state_of
from penstock.admin.state_write import ManualWrite, manifest_with
from penstock.checkpoint import paths
from penstock.checkpoint.entries import StepRole
from penstock.checkpoint.entry_codec import decode, encode
from penstock.checkpoint.history import History
from penstock.cli.state import plain_name
from penstock.control.client import JobDirectory
from penstock.elements import CheckpointKind
from penstock.errors import CondemnedWhileRead, UnknownName
from penstock.handles import LayerRef, StateHandle

GOLDEN = Path(__file__).parent / "cli_golden"
NOON = 1_767_268_800_000_000
WRITTEN = {"by": "process 7 on here", "at": NOON, "on": 1, "rows": 2}


def layer(name: str, rows: int) -> LayerRef:
    return LayerRef(name=name, level=0, rows=rows, files=(file(f"state/totals/0/{name}/0000/part-0.parquet"),))


def at(number: int, parent: int | None = None, *layers: LayerRef, detail: object = None, **rest: object) -> object:
    state = keyed(*layers, schema="`user` string, `n__count` bigint", detail=detail)
    made = manifest(number, parent, tasks=(read_to(number), state, wrote()), **rest)
    return replace(made, triggered=NOON, completed=NOON + number * 1_000_000)


BODIES = (
    CLAIM,
    at(0),
    at(1, 0, layer("a", 1_200), layer("b", 34), settings={"interval": 5}),
    pin("before-v2", 1),
    at(2, 1, layer("c", 2), kind=CheckpointKind.WRITTEN, detail={"written": WRITTEN}, open=(output(2),)),
    condemn(0),
)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    for entry in entries(*BODIES):
        path = tmp_path / entry.job / paths.entry(entry.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(entry))
    return tmp_path


def golden(name: str, text: str) -> str:
    path = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text)
    return path.read_text()


@pytest.mark.parametrize("command", ["state", "state show", "state query"])
def test_help_teaches_with_examples_and_exit_codes(command: str) -> None:
    said = say(*command.split(), "--help")

    assert said.code == 0
    assert said.out == golden(f"{command.replace(' ', '-')}.txt", said.out)


def test_show_prints_what_each_step_holds(state: Path) -> None:
    said = say("state", "show", "orders", "--state", str(state), "--at", "before-v2")

    assert said.code == 0
    assert said.out == golden("state-show-text.txt", said.out)
    assert "totals  window/1  ≤ 1,234   6 B       2" in said.out


def test_the_document_has_a_versioned_schema_and_says_what_was_written_by_hand(state: Path) -> None:
    said = say("state", "show", "orders", "--state", str(state), "--json")
    document = json.loads(said.out)

    assert said.out == golden("state-show.json", said.out)
    assert document["schema"] == "penstock.state.show/1"
    assert (document["checkpoint"], document["kind"], document["is_restore_point"]) == (2, "written", True)
    (held,) = document["steps"]
    assert held["by_hand"] == {"by": "process 7 on here", "written": NOON, "parent": 1, "rows": 2}
    assert held["files"] == [{"path": "state/totals/0/c/0000/part-0.parquet", "bytes": 3}]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "order"], "Did you mean 'orders'?"),
        (["show", "orders", "--at", "befor-v2"], "Did you mean 'before-v2'?"),
        (["show", "orders", "--at", "0"], "Checkpoint 0 is condemned"),
        (["query", "orders", "total"], "has no step 'total'. Did you mean 'totals'?"),
        (
            ["query", "orders", "in"],
            "'in' is a source. A checkpoint has its position, which is not a table. State is held by",
        ),
        (["query", "orders", "out"], "'out' is a sink, which keeps no state. State is held by: totals."),
        (["query", "orders", "totals", "--at", "1", "--diff", "1", "2"], "--at and --diff exclude one another"),
        (["query", "orders", "totals", "--format", "parquet"], "needs a file. Add --to totals.parquet."),
        (["query", "orders", "totals", "--limit", "-1"], "--limit is -1"),
        (["query", "orders", "totals", "--format", "cvs"], "csv"),
        (
            ["query", "orders", "totals", "--diff", "1", "9"],
            "Checkpoint 9 is not in the log. Restorable checkpoints: 1, 2.",
        ),
        (["sho"], 'Did you mean "show"?'),
    ],
)
def test_what_is_wrong_is_named_before_spark_starts(state: Path, arguments: list[str], expected: str) -> None:
    said = say("state", *arguments, *(["--state", str(state)] if len(arguments) > 1 else []))

    assert said.code == 64
    assert expected in said.err
    assert "Spark" not in said.err


def test_show_loads_no_spark_and_changes_nothing(state: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in state.rglob("*")}
    script = (
        "import sys\nfrom penstock.cli.main import dispatch\nfrom penstock.cli.output import Output\n"
        f"code = dispatch(['state', 'show', 'orders', '--state', {str(state)!r}], Output())\n"
        "sys.exit(code or 'pyspark' in sys.modules or 'pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in state.rglob("*")} == before


def test_a_job_is_found_by_its_folder_its_name_or_as_the_only_one(state: Path) -> None:
    assert open_job(state / "orders").job == open_job(state).job == open_job(state, "orders").job == "orders"
    (state / "late" / "log").mkdir(parents=True)
    with pytest.raises(UnknownName, match=r"several jobs: late, orders. Name one, as in job='late'"):
        open_job(state)


def test_the_newest_is_what_the_next_start_continues(state: Path) -> None:
    told = JobDirectory(state, "orders").read()

    assert [resolve_manifest(told, each).checkpoint for each in (None, 1, "1", "before-v2")] == [2, 1, 1, 1]
    assert state_of(resolve_manifest(told, None), "totals").layers[0].name == "c"


def test_a_checkpoint_that_is_condemned_meanwhile_is_no_answer(state: Path) -> None:
    require_still_restorable(JobDirectory(state, "orders"), 1)
    with pytest.raises(CondemnedWhileRead, match="Checkpoint 0 of job 'orders' was condemned while it was read"):
        require_still_restorable(JobDirectory(state, "orders"), 0)


def test_an_entry_by_hand_carries_all_that_is_open_and_stands_above_all() -> None:
    told: History = history(*BODIES)
    handle = StateHandle(kind="window/1", schema="`n` bigint", layers=(layer("mine", 1),))
    by = ManualWrite(name="fixed", owner="me", at=NOON)

    made = manifest_with(told, told.manifests[1][1], "totals", handle, by)
    new = manifest_with(told, None, "fresh", handle, by)

    assert (made.checkpoint, made.parent, made.kind) == (3, 1, CheckpointKind.WRITTEN)
    assert made.open == (output(2),)
    assert made.floor == told.floor
    assert made.settings == {"interval": 5}
    assert made.deleted == told.deleted
    assert made.condemned == ()
    assert [pin.name for pin in made.pins] == ["fixed"]
    assert [task.task for task in made.tasks] == ["in", "totals", "out"]
    assert made.tasks[1].state == handle
    assert made.tasks[0] == told.manifests[1][1].tasks[0]
    assert [step.role for step in new.steps] == [StepRole.STEP]
    assert (new.parent, new.open) == (None, (output(2),))
    last = entries(*BODIES, made)[-1]
    assert decode(encode(last), last.number).body == made


@pytest.mark.parametrize(("uid", "name"), [("totals", "totals"), ("totals-out", "totals_out"), ("1st", "_1st")])
def test_a_step_is_a_table_by_a_plain_name(uid: str, name: str) -> None:
    assert plain_name(uid) == name
