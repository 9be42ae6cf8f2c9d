"""``penstock savepoint export`` on a log made by hand: text, document, exit codes."""

import io
import json
import re

import pytest

from core.checkpoint_values import CLAIM, output, pin
from core.cli_kit import Terminal
from core.copies_kit import JOB, at, layer, write
from penstock.admin.export import export_checkpoint
from penstock.checkpoint.entries import Stopped
from penstock.cli.main import dispatch
from penstock.cli.output import Output
from penstock.cli.savepoint import document, summary, warnings
from penstock.control.client import JobDirectory

FIRST = layer("g0-000001")


@pytest.fixture
def state(tmp_path):
    open_now = {"open": (output(1),)}
    return write(tmp_path / "state", CLAIM, at(0), at(1, 0, layers=[FIRST], **open_now), pin("before-v2", 1))


def exported(state, folder):
    return export_checkpoint(JobDirectory(state, JOB), "before-v2", folder)


def test_a_person_reads_what_is_where_and_what_is_not(state, tmp_path):
    made = exported(state, tmp_path / "out")

    assert summary(made) == (
        f"orders: checkpoint 1 (before-v2) is in {tmp_path / 'out'} · 2 files, 44 B · sha256 {made.export.sha256[:12]}"
    )
    assert warnings(made) == [
        "the log does not know 1 output of it to be published: #1 of 'out'. The export does not hold them, job "
        "'orders' publishes them: by itself if it runs, else by penstock settle orders"
    ]


def test_the_document_has_a_versioned_schema(state, tmp_path):
    made = exported(state, tmp_path / "out")

    assert document(made) == {
        "folder": str(tmp_path / "out"),
        "job": "orders",
        "log_id": "log-1",
        "checkpoint": 1,
        "names": ["before-v2"],
        "exported": made.export.at,
        "file_count": 2,
        "bytes": 44,
        "sha256": made.export.sha256,
        "left_open": [
            {
                "uid": "out",
                "checkpoint": 1,
                "kind": "files/1",
                "target": "there",
                "file_count": None,
                "bytes": None,
            }
        ],
    }


def export(folder, state, out, err=None, *options):
    words = ["savepoint", "export", JOB, "1", str(folder), "--state", str(state), *options]
    return dispatch(words, Output(out=out, err=err or io.StringIO()))


def test_the_bytes_that_are_copied_are_told_and_shown_on_a_terminal_only(state, tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    told = []
    export_checkpoint(
        JobDirectory(state, JOB), "1", tmp_path / "out", progress=lambda done, total: told.append((done, total))
    )
    terminal, file = Terminal(), io.StringIO()
    for number, err in enumerate((terminal, file)):
        export(tmp_path / f"out-{number}", state, io.StringIO(), err)

    assert told == [(0, 44), (22, 44), (44, 44)]
    assert "copying" in terminal.getvalue()
    assert "44/44 bytes" in terminal.getvalue()
    assert "copying" not in file.getvalue()


def test_the_command_exports_and_says_so(tmp_path):
    state = write(tmp_path / "state", CLAIM, at(0), at(1, 0, layers=[FIRST]), Stopped(checkpoint=1, at=3))
    out = io.StringIO()
    code = export(tmp_path / "out", state, out, None, "--json")

    assert code == 0
    assert json.loads(out.getvalue())["left_open"] == []
    assert re.fullmatch("[0-9a-f]{64}", json.loads(out.getvalue())["sha256"])
