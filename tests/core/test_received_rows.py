"""Received rows that nobody would read: a start is refused with their number; and what `status` says of those kept."""

import re
from dataclasses import replace

import pytest

import penstock as ps
from core.checkpoint_values import pin
from core.cli_kit import Terminal, say
from core.looking_kit import Noon
from core.receivers_kit import Job, numbered, read
from core.test_cli_acting import compare
from penstock.admin.received import LOW_SPACE, ReceivedLog, read_received, skip_block
from penstock.checkpoint.entries import Condemn
from penstock.control import client
from penstock.control.client import JobDirectory, mark_released
from penstock.errors import StateIncompatible
from penstock.failpoints import FailpointCrash, armed
from penstock.filesystem.local import LocalFileSystem
from penstock.job.decision import decide_start
from penstock.job.received_rows import refuse_shared_folder, refuse_unread_rows
from penstock.job.start import DeclaredSteps, parse_start_options
from penstock.testing.filesystem import MemoryFileSystem


@pytest.fixture
def job():
    """A job that has received 2, 3 and 4 rows; its checkpoint has read the first 3."""
    job = Job(MemoryFileSystem())
    job.open()
    store = job.store()
    for ids in ((1, 2), (3, 4, 5), (6, 7, 8, 9)):
        store.store_reliably(numbered(*ids))
    job.read(rows=3)
    job.checkpoint(0)
    yield job
    job.close()


def refuse(job, *sources, restored=True):
    history = job.owned.history
    refuse_unread_rows(job.filesystem, history, history.restore_point if restored else None, sources)


def test_rows_that_no_source_would_read_refuse_a_start_with_rows_and_bytes(job):
    with pytest.raises(
        StateIncompatible, match=r"6 rows \([\d,]+ bytes\) of 'in'.*--allow-non-restored-state"
    ) as refused:
        refuse(job, "another")
    assert refused.value.uid == "in"
    refuse(job, "in", "another")


def test_without_a_checkpoint_all_that_is_kept_is_unread(job):
    with pytest.raises(StateIncompatible, match="7 rows"):
        refuse(job, restored=False)


def test_what_was_read_to_its_end_refuses_nothing(job):
    job.read()
    job.checkpoint(1)

    refuse(job)


def test_a_start_asks_unless_it_may_leave_state_unused(job):
    p = ps.Pipeline("orders")
    p.read("numbers", ps.rate.Source(1)).write("out", ps.memory.Sink())
    asked = {"fresh": True, "restore_from": None, "claim": False, "discard_unpublished": False}
    history, graph = job.owned.history, p.graph()

    def decide(**more):
        start = parse_start_options(**asked, **more)
        return decide_start(
            graph, start, history, declared=DeclaredSteps(steps=()), zone=None, filesystem=job.filesystem, at=9
        )

    with pytest.raises(StateIncompatible, match="7 rows"):
        decide()
    assert decide(allow_non_restored_state=True).restored is None


# ------------------------------------------------------------------------------------------------------- a rename


def renamed(job):
    """The job, gone on under another uid of the source."""
    position = job.reader.position()
    job.reader.close()
    job.uid = "renamed"
    job.open(position)
    return job


def test_a_renamed_source_reads_the_blocks_of_its_old_name_and_goes_on_in_their_folder(job):
    renamed(job)
    job.store().store_reliably(numbered(10))

    assert job.early + read(job.reader) == numbered(4, 5, 6, 7, 8, 9, 10)
    assert {block.split("/")[1] for block in job.blocks} == {"in"}


def test_blocks_are_kept_for_checkpoints_from_before_the_rename_and_deleted_with_them(job):
    renamed(job)
    read(job.reader)
    job.checkpoint(1, retained=2)
    held = len(job.blocks)
    job.checkpoint(2, retained=2)

    assert held == 3, "the block that checkpoint 0 reads, the one after it, and the seal"
    assert len(job.blocks) == 1


def test_a_fresh_start_after_a_rename_finds_the_folder(job):
    renamed(job)
    job.checkpoint(1)
    job.reader.close()

    assert read(job.open()) == numbered(*range(3, 10)), "blocks from the first that a checkpoint reads"


def test_a_renamed_source_is_not_missed_and_a_new_one_of_its_old_name_is_refused(job):
    renamed(job)
    job.checkpoint(1)
    history = job.owned.history

    refuse(job, "renamed")
    refuse_shared_folder(history, history.restore_point, {"renamed"})
    with pytest.raises(StateIncompatible, match=r"Source 'in' is new.*Give the new source another uid"):
        refuse_shared_folder(history, history.restore_point, {"renamed", "in"})
    with pytest.raises(StateIncompatible, match="6 rows"):
        refuse(job, "in-between")


# ------------------------------------------------------------------------------------------------------------- status


def test_status_knows_the_bytes_that_each_checkpoint_holds(job):
    job.owned.append(pin("before-v2", 0))
    job.read()
    job.checkpoint(1)

    (kept,) = read_received(job.filesystem, job.owned.history).sources
    newest, oldest = kept.held[1], kept.held[0]

    assert (kept.uid, kept.blocks, kept.unread_bytes) == ("in", 2, 0)
    assert (oldest.checkpoint, oldest.names, oldest.bytes) == (0, ("before-v2",), kept.bytes)
    assert (newest.checkpoint, newest.bytes) == (1, 0)


def test_seals_are_no_blocks(job):
    job.reader.close()
    job.open()

    assert read_received(job.filesystem, job.owned.history).sources[0].blocks == 2


def test_status_warns_before_the_disk_is_full(job):
    job.owned.append(pin("before-v2", 0))
    found = read_received(job.filesystem, job.owned.history)
    full = replace(found, free=LOW_SPACE - 1)

    assert found.warning("orders") is None
    assert replace(found, free=LOW_SPACE).warning("orders") is None
    assert str(full.warning("orders")).endswith("penstock savepoint drop orders before-v2.")
    assert ReceivedLog(free=0).warning("orders") is None, "no row takes any of it"
    unnamed = replace(found.sources[0], held=())
    assert "let the job catch up" in str(ReceivedLog(sources=(unnamed,), free=0).warning("orders"))


# ------------------------------------------------------------------------------------------------- a damaged block


@pytest.fixture
def damaged(tmp_path):
    """A stopped job whose second block of three is damaged."""
    job = Job(LocalFileSystem(tmp_path / "state" / "orders"))
    job.open()
    store = job.store()
    for ids in ((1, 2), (3, 4, 5), (6,)):
        store.store_reliably(numbered(*ids))
    job.read(rows=3)
    job.checkpoint(0)
    job.close()
    mark_released(job.owned.log_id, job.owned.generation)
    block = sorted(job.blocks)[-2]
    file = tmp_path / "state" / "orders" / block
    file.write_bytes(file.read_bytes()[:-1])
    return job, block, file


def skip(tmp_path, block, *options):
    return say("skip", "orders", block, "--state", str(tmp_path / "state"), *options)


@pytest.mark.parametrize("harm", ["damaged", "missing"])
@pytest.mark.usefixtures("nobody_answers")
def test_an_operator_goes_on_without_a_block_that_cannot_be_read_and_the_log_says_so(damaged, tmp_path, harm):
    job, block, file = damaged
    position = job.reader.position()
    if harm == "missing":
        file.unlink()
    said = skip(tmp_path, block, "--yes")

    assert (said.code, said.err) == (0, "")
    assert block in said.out
    job.open(position)
    assert block in next(each.body.reason for each in job.owned.history.entries if isinstance(each.body, Condemn))
    assert read(job.reader) == numbered(6)
    assert say("verify", "orders", "--state", str(tmp_path / "state")).code == 0
    job.close()


def test_a_skip_that_died_half_way_is_done_again(damaged, tmp_path):
    _, block, file = damaged
    directory = JobDirectory(tmp_path / "state", "orders")

    with armed("received.skip.before", "raise"), pytest.raises(FailpointCrash):
        skip_block(directory, block)
    file.unlink()
    assert skip(tmp_path, block, "--yes").code == 0


@pytest.mark.parametrize("which", ["sound", "seal", "beyond", "nothing"])
def test_what_can_be_read_is_not_skipped(damaged, tmp_path, which):
    job, block, _ = damaged
    job.open()
    job.close()
    mark_released(job.owned.log_id, job.owned.generation)
    blocks = sorted(job.blocks)
    path = {"sound": blocks[1], "seal": blocks[-1], "beyond": block.replace("/0/", "/9/"), "nothing": "log/0"}[which]

    said = skip(tmp_path, path, "--yes")

    assert said.code != 0
    assert ("is sound" if which in ("sound", "seal") else "is no block") in said.err


def test_a_skip_asks_first(damaged, tmp_path, monkeypatch):
    _, block, file = damaged
    before = file.read_bytes()
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))

    assert skip(tmp_path, block).code == 1
    assert file.read_bytes() == before


# ------------------------------------------------------------------------------------------------- what commands say


def steady(text):
    """The text without the sizes of blocks, which depend on the version of Arrow."""
    text = re.sub(r'("(?:unread_)?bytes": )[1-9]\d*', r"\g<1>1000", text)
    return re.sub(r"[1-9][\d.]* (?:kB|B)\b", "1.0 kB", text)


@pytest.mark.parametrize(("ending", "options"), [("txt", []), ("json", ["--json"])])
def test_what_status_says_of_received_rows_is_golden(damaged, tmp_path, monkeypatch, ending, options):
    monkeypatch.setattr(client, "SystemClock", Noon)
    job, _, _ = damaged
    job.owned.append(pin("before-v2", 0))

    said = say("status", "orders", "--state", str(tmp_path / "state"), *options)

    assert (said.code, said.err) == (0, "")
    compare(f"status-received.{ending}", steady("".join(line.rstrip() + "\n" for line in said.out.splitlines())))


@pytest.mark.parametrize(("ending", "options"), [("txt", []), ("json", ["--json"])])
def test_what_a_skip_says_is_golden(damaged, tmp_path, ending, options):
    said = skip(tmp_path, damaged[1], "--yes", *options)

    assert (said.code, said.err) == (0, "")
    compare(f"skip-said.{ending}", steady(said.out))
