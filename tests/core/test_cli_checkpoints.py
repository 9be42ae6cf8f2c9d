"""``penstock checkpoints`` on a log made by hand: everything comes from the directory, without Spark."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from core.checkpoint_values import CLAIM, condemn, entries, keyed, layer, manifest, output, pin, read_to, wrote
from core.cli_kit import say
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Stopped
from penstock.checkpoint.entry_codec import encode

SECOND = 1_000_000
NOON = 1_767_268_800 * SECOND


def at(number, parent=None, *, layers=(), **rest):
    made = manifest(number, parent, tasks=(read_to(number), keyed(*map(layer, layers)), wrote()), **rest)
    return replace(made, triggered=NOON + number * SECOND, completed=NOON + number * SECOND + 250_000)


@pytest.fixture
def state(tmp_path):
    """Three checkpoints: one condemned, one pinned, one with an output that is not known to be published."""
    bodies = [
        CLAIM,
        at(0),
        at(1, 0, layers=["a"]),
        pin("before-v2", 1),
        at(2, 1, layers=["a", "b"], open=(output(2),)),
        condemn(0),
    ]
    _write(tmp_path, bodies)
    return tmp_path


def _write(folder, bodies):
    for entry in entries(*bodies):
        path = folder / entry.job / paths.entry(entry.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(entry))


def job_of(state):
    return next(state.iterdir()).name


def test_the_table_shows_each_checkpoint_and_the_restore_point(state):
    said = say("checkpoints", job_of(state), "--state", str(state))

    assert said.code == 0
    assert [line.rstrip() for line in said.out.splitlines()] == [
        "   id  kind      completed                  took   new  state  total  outputs  open  status",
        "    0  periodic  2026-01-01 12:00:00 UTC  0.25 s  +0 B    0 B    0 B        0     0  condemned",
        "    1  periodic  2026-01-01 12:00:01 UTC  0.25 s  +3 B    3 B    3 B        0     0  "
        "restorable pinned:before-v2",
        "→   2  periodic  2026-01-01 12:00:02 UTC  0.25 s  +6 B    6 B    9 B        1     1  restorable",
        f"{job_of(state)}: running, or its process died · generation 0 · the next start continues "
        "checkpoint 2 (→) · 1 output not known to be published",
    ]


def test_the_document_has_a_versioned_schema(state):
    said = say("checkpoints", job_of(state), "--state", str(state), "--json")
    document = json.loads(said.out)

    assert document["schema"] == "penstock.checkpoints/1"
    assert document["restore_point"] == 2
    assert document["open"] == [
        {"uid": "out", "checkpoint": 2, "kind": "files/1", "target": "there", "file_count": 1, "bytes": 3}
    ]
    assert document["is_at_rest"] is False
    assert document["process"] == {"host": "here", "pid": 7, "started": CLAIM.started, "version": "0.1"}
    assert [row["is_restorable"] for row in document["checkpoints"]] == [False, True, True]
    assert document["checkpoints"][2] == {
        "checkpoint": 2,
        "kind": "periodic",
        "entry": 4,
        "generation": 0,
        "parent": 1,
        "triggered": NOON + 2 * SECOND,
        "completed": NOON + 2 * SECOND + 250_000,
        "took_seconds": 0.25,
        "new_bytes": 6,
        "state_bytes": 6,
        "bytes": 9,
        "output_count": 1,
        "open_count": 1,
        "is_restorable": True,
        "names": [],
        "is_restore_point": True,
    }


def test_a_stopped_job_says_so(tmp_path):
    _write(tmp_path, [CLAIM, at(0), Stopped(checkpoint=0, at=NOON)])

    said = say("checkpoints", job_of(tmp_path), "--state", str(tmp_path))

    assert "stopped in order" in said.out
    assert "everything is published" in said.out


def test_an_unknown_job_is_answered_with_the_nearest_one(state):
    said = say("checkpoints", job_of(state) + "x", "--state", str(state))

    assert said.code == 64
    assert f"Did you mean '{job_of(state)}'?" in said.err


def test_a_folder_without_jobs_says_so(tmp_path):
    said = say("checkpoints", "orders", "--state", str(tmp_path / "nowhere"))

    assert said.code == 64
    assert "No job has any state there" in said.err
    assert not (tmp_path / "nowhere").exists()


def test_a_damaged_entry_is_named(state):
    path = state / job_of(state) / paths.entry(4)
    path.write_bytes(path.read_bytes()[:-9])

    said = say("checkpoints", job_of(state), "--state", str(state))

    assert said.code == 65
    assert "log/00000000000000000004.json" in said.err
    assert "Traceback" not in said.err


def test_reading_a_log_loads_no_spark_and_changes_nothing(state):
    before = {path: path.stat().st_mtime_ns for path in state.rglob("*")}
    script = (
        "import sys\nfrom penstock.cli.main import dispatch\nfrom penstock.cli.output import Output\n"
        f"code = dispatch(['checkpoints', {job_of(state)!r}, '--state', {str(state)!r}], Output())\n"
        "sys.exit(code or 'pyspark' in sys.modules or 'pandas' in sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in state.rglob("*")} == before
