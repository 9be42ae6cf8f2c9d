"""``verify`` of an exported checkpoint: wherever it lies, every damage is found and named; and its bar."""

import json

import pytest

from core.cli_kit import Terminal, say
from core.looking_kit import a_job, put
from penstock.admin.export import export_checkpoint
from penstock.cli.main import dispatch
from penstock.cli.output import Output
from penstock.control.client import JobDirectory

LAYER = "state/totals/0/b/part-0.parquet"


@pytest.fixture
def exported(tmp_path):
    job = a_job(tmp_path)
    folder = tmp_path / "exports" / "orders"
    export_checkpoint(JobDirectory(job.parent, job.name), "before-v2", folder)
    return folder


def test_an_export_is_sound_wherever_it_lies(exported, tmp_path):
    moved = exported.rename(tmp_path / "elsewhere")

    said = say("verify", str(moved))

    assert said.code == 0
    assert said.out == f"{moved}: sound · checkpoint 1 of orders, savepoint before-v2 · content of 1 file, 9 B\n"


@pytest.mark.parametrize(
    ("damage", "quick", "fault"),
    [
        (lambda file: file.write_bytes(b"rows of 2"), False, "content"),
        (lambda file: file.write_bytes(b"rows"), True, "length"),
        (lambda file: file.unlink(), True, "missing"),
    ],
)
def test_a_file_of_an_export_that_is_damaged_is_named(exported, damage, quick, fault):
    damage(exported / LAYER)
    put(exported, "notes.txt", b"of a person")

    said = say("verify", str(exported), "--json", *(["--quick"] if quick else []))
    told = json.loads(said.out)

    assert said.code == 1
    assert (told["schema"], told["is_sound"], told["checkpoint"]) == ("penstock.verify.export/1", False, 1)
    assert [(each["path"], each["fault"]) for each in told["broken"]] == [(LAYER, fault)]
    assert told["other_files"] == ["notes.txt"]
    assert "remedy: export the checkpoint once more" in say("verify", str(exported)).out


def test_an_export_whose_description_is_damaged_is_broken_and_a_folder_that_is_none_is_told_so(exported, tmp_path):
    description = exported / "export.json"
    description.write_bytes(description.read_bytes().replace(b"before-v2", b"before-v3"))

    said, none = say("verify", str(exported)), say("verify", f"{tmp_path}/nowhere")

    assert said.code == 1
    assert "  export.json: " in said.out
    assert none.code == 64
    assert "There is no exported checkpoint in" in none.err


def test_progress_is_shown_on_a_terminal_only(tmp_path):
    a_job(tmp_path)
    assert say("verify", "orders", "--state", str(tmp_path)).err == ""
    out, err = Terminal(), Terminal()

    assert dispatch(["verify", "orders", "--state", str(tmp_path)], Output(out=out, err=err)) == 0
    assert "verifying" in err.getvalue()
