"""``gc``: whose each file is, and that only what an entry condemns is deleted, under a claim, after asking."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from core.cli_kit import Terminal, say
from core.control_kit import Driver
from core.looking_kit import GONE, NOON, a_job, layer_in, put, staged_in, taken, write_log
from penstock.admin.gc import Owner, assign_owners, collect_garbage, inventory
from penstock.checkpoint.entries import Claim, Condemn, Rewind, Stopped
from penstock.checkpoint.log import read_history
from penstock.cli.main import dispatch
from penstock.cli.output import Output
from penstock.control.client import JobDirectory, is_at_rest
from penstock.errors import JobIsRunning
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import Committable

OLD = "state/totals/0/a/part-0.parquet"
NOBODYS = "state/totals/0/nobody/part-0.parquet"


@pytest.fixture
def job(tmp_path):
    made = a_job(tmp_path)
    put(made, NOBODYS, b"left behind")
    put(made, "wal/socket/0/7", b"received")
    put(made, "notes.txt", b"of a person")
    return made


def beside(folder, checkpoint, name):
    """Output that is staged beside its target."""
    path = f"{folder}/out/.penstock/log-1/out/0/{checkpoint}/{name}.json"
    ref = put(folder, path, name.encode())
    return Committable(uid="out", kind="files/1", checkpoint=checkpoint, target=f"{folder}/out", files=(ref,))


def directory(job):
    return JobDirectory(job.parent, job.name)


def log(job):
    return read_history(LocalFileSystem(job), "orders")


def files(job):
    return {path.relative_to(job).as_posix() for path in job.rglob("*") if path.is_file()}


def test_each_file_has_an_owner(job):
    put(job, "control/report.json", b"{}")
    put(job, "control/claim.json", b"{}")
    found = {file.path: file for file in inventory(directory(job)).files}

    assert found.keys() == files(job)
    assert {path: file.owner for path, file in found.items() if not path.startswith("log/")} == {
        "state/totals/0/b/part-0.parquet": Owner.CHECKPOINT,
        "state/totals/0/c/part-0.parquet": Owner.CHECKPOINT,
        "staged/out/0/2/part-0": Owner.OUTPUT,
        OLD: Owner.CONDEMNED,
        NOBODYS: Owner.ORPHAN,
        "wal/socket/0/7": Owner.WRITE_AHEAD,
        "control/report.json": Owner.CONTROL,
        "control/claim.json": Owner.CONTROL,
        "notes.txt": Owner.UNKNOWN,
    }
    shared = found["state/totals/0/b/part-0.parquet"]
    assert (shared.checkpoints, shared.savepoints, shared.generation) == ((1, 2), ("before-v2",), 0)
    assert found["staged/out/0/2/part-0"].outputs == log(job).open_committables


def test_a_dry_run_changes_nothing_and_says_what_would_be_deleted(job):
    before = files(job)

    said = say("gc", "orders", "--state", str(job.parent), "--dry-run")

    assert said.code == 0
    assert "orphan of generation 0" in said.out
    assert "checkpoint 1, 2, savepoint before-v2" in said.out
    assert said.out.splitlines()[-1] == "orders: penstock gc orders would delete 2 files, 14 B"
    assert files(job) == before


def test_G2_orphans_are_condemned_by_an_entry_before_they_are_deleted(job):
    done = collect_garbage(directory(job))

    assert (done.condemned_before, done.condemned_now, done.bytes) == ((OLD,), (NOBODYS,), 14)
    assert {OLD, NOBODYS} & files(job) == set()
    assert {"wal/socket/0/7", "notes.txt", "staged/out/0/2/part-0"} <= files(job)
    claim, condemned = log(job).entries[-2:]
    assert isinstance(claim.body, Claim)
    assert isinstance(condemned.body, Condemn)
    assert (condemned.body.checkpoints, condemned.body.files) == ((), (NOBODYS,))
    assert tuple(log(job).restorable) == (1, 2)


def test_a_second_time_there_is_nothing_to_delete_and_nobody_claims(job):
    collect_garbage(directory(job))
    tail = log(job).tail

    said = say("gc", "orders", "--state", str(job.parent), "--yes")

    assert (said.code, said.out) == (0, "orders: nothing to delete\n")
    assert log(job).tail == tail


def test_a_job_at_rest_is_at_rest_afterwards(tmp_path):
    job = write_log(tmp_path, GONE, taken(1, None), Stopped(checkpoint=1, at=NOON))
    put(job, NOBODYS, b"left behind")

    assert say("gc", "orders", "--state", str(tmp_path), "--yes").code == 0

    assert is_at_rest(log(job))
    assert NOBODYS not in files(job)


def test_a_running_job_is_left_alone_and_what_it_writes_is_no_orphan(job):
    driver = Driver(LocalFileSystem(job)).claim()
    put(job, f"state/totals/{driver.generation}/new/part-0.parquet", b"not in the log yet")
    driver.watch.start()
    try:
        found = {file.path: file.owner for file in inventory(directory(job)).files}
        with pytest.raises(JobIsRunning, match="cleans up by itself"):
            collect_garbage(directory(job))
    finally:
        driver.watch.close()

    assert found[f"state/totals/{driver.generation}/new/part-0.parquet"] is Owner.WRITING
    assert found[NOBODYS] is Owner.ORPHAN
    assert NOBODYS in files(job)


def test_what_somebody_needs_is_never_deletable_whatever_an_entry_says_of_it(tmp_path):
    job = tmp_path / "orders"
    one, item = layer_in(job, "a"), staged_in(job, 1)
    condemned = Condemn(checkpoints=(), files=(one.files[0].path, item.files[0].path), at=NOON)
    write_log(tmp_path, GONE, taken(1, None, one, open=(item,)), condemned)

    of = assign_owners(log(job), files(job), own=9)

    assert of[one.files[0].path] is Owner.CHECKPOINT
    assert of[item.files[0].path] is Owner.OUTPUT


def test_the_evidence_that_output_was_voided_stays_until_all_of_it_is(tmp_path):
    """Without it, whoever goes on with a void that was cut short would publish what is left of the output."""
    first, second = beside(tmp_path, 2, "a"), beside(tmp_path, 2, "b")
    item = replace(first, files=(*first.files, *second.files), detail={"moves": {}})
    voided = f"{first.files[0].path}.voided"
    rewind = Rewind(to=1, left=2, at=NOON, discard=(item,), condemned=(2,))
    job = write_log(tmp_path, GONE, taken(1, None), taken(2, 1, open=(item,)), rewind)
    shutil.move(first.files[0].path, voided)

    collect_garbage(directory(job))

    assert Path(voided).exists()
    assert Path(second.files[0].path).exists()


def test_without_a_terminal_nothing_is_deleted_unless_told(job):
    said = say("gc", "orders", "--state", str(job.parent))

    assert said.code == 64
    assert "Delete 2 files, 14 B" in said.err
    assert "Give --yes to do it without asking" in said.err
    assert NOBODYS in files(job)


@pytest.mark.parametrize(("answer", "code", "is_there"), [("y\n", 0, False), ("\n", 1, True), ("no\n", 1, True)])
def test_on_a_terminal_it_asks(job, monkeypatch, answer, code, is_there):
    typed = Terminal(answer)
    monkeypatch.setattr("sys.stdin", typed)
    err = Terminal()

    done = dispatch(["gc", "orders", "--state", str(job.parent)], Output(out=Terminal(), err=err))

    assert done == code
    assert "that no checkpoint needs? [y/N]" in err.getvalue()
    assert (NOBODYS in files(job)) is is_there
