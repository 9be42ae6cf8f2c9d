"""Received rows in an export: copied with the checkpoint, read once in another job, with the keys of requests."""

import shutil
from contextlib import suppress
from dataclasses import replace

import pytest

import penstock as ps
from core.checkpoint_values import CLAIM, log_on, manifest
from core.copies_kit import JOB, Start, files_below
from core.test_received import at, past
from core.test_request_keys import LIMITS, key
from penstock.admin.export import export_checkpoint, verify_export
from penstock.admin.savepoints import pinned_while_reading
from penstock.checkpoint import export
from penstock.checkpoint.entries import StepRecord, StepRole
from penstock.checkpoint.export import decode_export, encode_export
from penstock.checkpoint.gc import collect
from penstock.checkpoint.received import ReceivedBlocks, ReceivedPosition, named_folders
from penstock.control.client import JobDirectory, host_identity, mark_released
from penstock.errors import CheckpointUnreadable, GenerationFenced, StateIncompatible
from penstock.failpoints import FailpointCrash, armed
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import FileRef, TaskSnapshot
from penstock.job.decision import decide_start
from penstock.job.received_rows import refuse_rows_beside_import, unread_rows
from penstock.job.start import DeclaredSteps, parse_start_options

STEPS = (StepRecord(uid="in", role=StepRole.SOURCE, kind="received/1"),)
GRAPH = ps.Pipeline(JOB).graph()
GONE = replace(CLAIM, host=host_identity(), pid=2**31 - 2)


class Driver:
    """One claim on a job's directory, with the blocks of its source."""

    claims = 0

    def __init__(self, state, owned=None, resume=None, merge_at=2):
        Driver.claims += 1
        self.filesystem = LocalFileSystem(state / JOB)
        self.owned = owned or log_on(self.filesystem, ids=f"claim-{Driver.claims}")[0].claim(GONE, take_over=True)
        self.blocks = ReceivedBlocks("in", self.owned, self.filesystem, lambda _: None, merge_at=merge_at)
        self.to_read = list(self.blocks.adopt(resume, LIMITS).blocks)
        self.last = None

    def give(self, *names):
        for name in names:
            self.to_read.append(self.blocks.write(f"row {name}".encode(), [key(name)]))
        return self

    def read(self, most=100):
        taken, self.to_read = self.to_read[:most], self.to_read[most:]
        self.last = past(taken[-1]) if taken else self.last
        return [self.blocks.read(block).decode() for block in taken]

    def checkpoint(self, *, row=0, **rest):
        history = self.owned.history
        parent = history.restore_point
        task = TaskSnapshot(task="in", position=self.blocks.position(self.last, row))
        made = manifest(history.next_checkpoint, parent and parent.checkpoint, tasks=(task,), steps=STEPS)
        self.owned.append(collect(made, history, **rest))
        return self


@pytest.fixture
def first(tmp_path):
    """A stopped job that was given six rows and has read two; two of the other four lie in one file."""
    driver = Driver(tmp_path / "first").give(*"abcdef")
    driver.read(2)
    driver.checkpoint()
    driver.blocks.clean()
    mark_released(driver.owned.log_id, driver.owned.generation)
    return JobDirectory(tmp_path / "first", JOB)


@pytest.fixture
def folder(first, tmp_path):
    export_checkpoint(first, "0", tmp_path / "export")
    return tmp_path / "export"


def start(state, folder=None):
    """A start with or without the export, up to a source that has adopted its blocks."""
    begun = Start(state, folder, steps=STEPS)
    return Driver(state, begun.owned, begun.recovery.snapshots["in"].position)


UNREAD = ["row c", "row d", "row e", "row f"]


def test_an_export_holds_the_blocks_behind_its_position_and_a_new_job_reads_them_once(first, folder, tmp_path):
    assert any(path.endswith(".blocks") for path in first.filesystem.list("wal"))
    shutil.rmtree(first.state)
    assert len(verify_export(folder).received) == 5, "four blocks and the keys"

    driver = start(tmp_path / "second", folder)
    driver.give("g")

    assert driver.read() == [*UNREAD, "row g"]
    driver.checkpoint()
    assert start(tmp_path / "second").read() == []


def test_the_next_start_reads_what_the_first_one_did_not(folder, tmp_path):
    driver = start(tmp_path / "second", folder)
    driver.give("g")
    assert driver.read(1) == ["row c"]
    driver.checkpoint()
    driver.blocks.clean()

    assert start(tmp_path / "second").read() == [*UNREAD[1:], "row g"]


def test_rows_of_a_block_that_were_read_stay_read(first, tmp_path):
    driver = Driver(tmp_path / "first", resume=first.read().restore_point.tasks[0].position)
    driver.last = at(0, 2)
    driver.checkpoint(row=3)
    mark_released(driver.owned.log_id, driver.owned.generation)
    export_checkpoint(first, "1", tmp_path / "export")

    begun = Start(tmp_path / "second", tmp_path / "export", steps=STEPS)
    position = ReceivedPosition.decode(begun.recovery.snapshots["in"].position)

    assert (position.uid, position.next, position.row) == ("in@0", at(0, 0), 3)


def test_keys_of_requests_come_with_the_blocks_and_from_before_them(folder, tmp_path):
    driver = start(tmp_path / "second", folder)
    assert all(driver.blocks.find_key(name, 0) for name in "abcdef")

    driver.give("g").read()
    driver.checkpoint(retained=1)
    driver.blocks.clean()

    assert all(start(tmp_path / "second").blocks.find_key(name, 0) for name in "abcdefg")


@pytest.mark.parametrize("where", ["import.file.before", "import.file.copied"])
def test_what_a_crash_left_half_imported_is_read_by_nobody(folder, tmp_path, where):
    with armed(where, "raise", hit=3), pytest.raises(FailpointCrash):
        Start(tmp_path / "second", folder, steps=STEPS)

    plain = Driver(tmp_path / "second")
    assert plain.read() == []
    history, filesystem = plain.owned.history, plain.filesystem
    assert [each.uid for each in unread_rows(filesystem, history, None, ())] == ["in"], "with a seal alone"
    assert start(tmp_path / "second", folder).read() == UNREAD
    assert {path.split("/")[1] for path in filesystem.list("wal") if path.endswith(".keys")} == {"in@2"}


def test_rows_that_a_job_was_given_itself_are_not_left_behind(folder, tmp_path):
    Driver(tmp_path / "second").give("own")
    begun = Start(tmp_path / "other", folder, steps=STEPS)
    filesystem = LocalFileSystem(tmp_path / "second" / JOB)
    history = log_on(filesystem, ids="looks")[0].read()

    bring = begun.recovery.bring
    with pytest.raises(StateIncompatible, match="rows of its own"):
        refuse_rows_beside_import(filesystem, history, bring, {})
    refuse_rows_beside_import(filesystem, history, replace(bring, is_brought=True), {})


def decide(state, *, fresh=False, at=None, **more):
    """What the checks of a start say."""
    asked = parse_start_options(fresh=fresh, restore_from=at, claim=False, discard_unpublished=False, **more)
    filesystem = LocalFileSystem(state / JOB)
    history = log_on(filesystem, ids="looks")[0].read()
    declared = DeclaredSteps(steps=STEPS)
    return decide_start(GRAPH, asked, history, declared=declared, zone=None, filesystem=filesystem, at=9)


@pytest.mark.parametrize("again", [False, True])
def test_rows_that_a_job_was_given_after_an_import_are_not_left_behind(first, folder, tmp_path, again):
    source = Driver(tmp_path / "first", resume=first.read().restore_point.tasks[0].position)
    source.read(1)
    source.checkpoint()
    mark_released(source.owned.log_id, source.owned.generation)
    export_checkpoint(first, "1", tmp_path / "newer")
    driver = start(tmp_path / "second", folder).give("own")
    assert driver.read(4) == UNREAD
    driver.checkpoint()

    with pytest.raises(StateIncompatible, match=r"'in', and this .* rows of its own.*without --from") as refused:
        decide(tmp_path / "second", at=folder if again else tmp_path / "newer")

    assert refused.value.uid == "in"
    decide(tmp_path / "second")
    assert start(tmp_path / "second").read() == ["row own"]


def test_the_same_start_goes_on_with_an_import_that_is_in_the_log(folder, tmp_path):
    start(tmp_path / "second", folder).give("own")

    assert decide(tmp_path / "second", at=folder).bring.is_brought
    assert start(tmp_path / "second", folder).read() == [*UNREAD, "row own"]


def test_an_import_is_not_refused_for_folders_without_rows(folder, tmp_path):
    driver = start(tmp_path / "second", folder)
    driver.read()
    driver.checkpoint(retained=1)
    driver = start(tmp_path / "second")
    driver.checkpoint(retained=1)
    driver.blocks.clean()

    decide(tmp_path / "second", at=folder)
    assert start(tmp_path / "second", folder).read() == UNREAD
    decide(tmp_path / "second")


def test_rows_in_the_folder_of_an_earlier_uid_are_not_left_behind(folder, tmp_path):
    driver = Driver(tmp_path / "second").give("own")
    history = driver.owned.history
    task = TaskSnapshot(task="renamed", position=driver.blocks.position())
    driver.owned.append(collect(manifest(history.next_checkpoint, None, tasks=(task,)), history))
    bring = Start(tmp_path / "other", folder, steps=STEPS).recovery.bring
    tasks = [replace(each, task="renamed") for each in bring.manifest.tasks]
    bring = replace(bring, manifest=replace(bring.manifest, tasks=tuple(tasks)))

    with pytest.raises(StateIncompatible, match="source 'renamed', and"):
        refuse_rows_beside_import(driver.filesystem, driver.owned.history, bring, {})


@pytest.mark.parametrize("back", ["to a number", "with an export"])
def test_going_back_beyond_an_import_does_not_leave_rows_behind_in_silence(folder, tmp_path, back):
    Driver(tmp_path / "second").checkpoint()
    second = JobDirectory(tmp_path / "second", JOB)
    mark_released(second.read().log_id, second.read().generation)
    export_checkpoint(second, "0", tmp_path / "own")
    start(tmp_path / "second", folder).give("own").checkpoint()
    at = "0" if back == "to a number" else tmp_path / "own"

    with pytest.raises(StateIncompatible, match=r"5 rows .* of 'in@\d+' .* reads another folder of that source"):
        decide(tmp_path / "second", at=at)
    decide(tmp_path / "second", at=at, allow_non_restored_state=True)
    decide(tmp_path / "second")
    decide(tmp_path / "second", fresh=True)


# --------------------------------------------------------------------------------------------- what is left of imports


def test_G5_an_import_that_was_overtaken_deletes_nothing_of_its_successor(folder, tmp_path, monkeypatch):
    real, successors = export._remove_left_over, []

    def overtaken(*arguments):
        monkeypatch.undo()
        successors.append(start(tmp_path / "second", folder).give("g"))
        real(*arguments)

    monkeypatch.setattr(export, "_remove_left_over", overtaken)
    with pytest.raises(GenerationFenced):
        Start(tmp_path / "second", folder, steps=STEPS)

    successors[0].blocks.check()
    assert successors[0].read() == [*UNREAD, "row g"]
    assert start(tmp_path / "second").read() == [*UNREAD, "row g"]


def test_an_import_keeps_the_blocks_that_its_own_checkpoint_reads(folder, tmp_path):
    driver = start(tmp_path / "second", folder)
    driver.read(1)
    driver.checkpoint()
    second = JobDirectory(tmp_path / "second", JOB)
    mark_released(driver.owned.log_id, driver.owned.generation)
    export_checkpoint(second, "1", tmp_path / "own")
    driver = Driver(tmp_path / "second")
    driver.owned.append(collect(manifest(2), driver.owned.history, retained=1))
    driver.owned.trim()
    assert not named_folders(driver.owned.history)

    assert start(tmp_path / "second", tmp_path / "own").read() == UNREAD[1:]


def test_only_folders_of_imports_count_as_left_over(folder, tmp_path):
    with armed("import.file.copied", "raise", hit=3), suppress(FailpointCrash):
        Start(tmp_path / "second", folder, steps=STEPS)
    copied = tmp_path / "second" / JOB / "wal" / "in@0.bak" / "0" / "00000000000000000000.block"
    copied.parent.mkdir(parents=True)
    copied.write_bytes(b"kept by an operator")

    driver = start(tmp_path / "second", folder)

    assert {path.split("/")[1] for path in driver.filesystem.list("wal")} == {"in@0.bak", "in@1"}


def test_a_missing_or_damaged_block_ends_the_export(first, tmp_path):
    block = next(path for path in first.filesystem.list("wal") if path.endswith(".blocks"))
    first.filesystem.delete(block)

    with pytest.raises(CheckpointUnreadable, match="is missing"):
        export_checkpoint(first, "0", tmp_path / "export")
    assert files_below(tmp_path / "export") == {}


def test_the_own_log_goes_back_to_the_blocks_that_it_still_has(first, folder, tmp_path):
    driver = start(tmp_path / "first", folder)

    assert driver.read() == UNREAD
    assert {path.split("/")[1] for path in driver.filesystem.list("wal")} == {"in"}


def test_the_own_log_is_refused_blocks_that_it_has_deleted_since(first, folder, tmp_path):
    driver = start(tmp_path / "first")
    assert driver.read() == UNREAD
    driver.checkpoint(retained=1)
    driver.blocks.clean()

    with pytest.raises(StateIncompatible, match=r"this job has read since and deleted, such as wal/in/"):
        decide(tmp_path / "first", at=folder)
    assert start(tmp_path / "first").read() == []
    assert start(tmp_path / "second", folder).read() == UNREAD


def test_the_own_log_takes_no_received_rows_from_the_folder_that_it_claims(first, folder, tmp_path):
    driver = Start(tmp_path / "first", folder, steps=STEPS, claim=True)

    assert driver.recovery.bring is not None
    assert [path.split("/")[0] for path in files_below(folder) if "/" in path] == ["wal"] * 5


def test_an_export_without_its_blocks_is_refused(folder, tmp_path):
    whole = verify_export(folder)
    (folder / "export.json").write_bytes(encode_export(replace(whole, received=None)))

    with pytest.raises(StateIncompatible, match="does not hold them"):
        start(tmp_path / "second", folder)


@pytest.mark.parametrize("path", ["log/00000000000000000000.json", "wal/in/../../log/0/00000000000000000000.block"])
def test_an_export_that_names_other_files_is_refused(folder, path):
    whole = verify_export(folder)
    changed = replace(whole, received=(FileRef(path=path, length=1, sha256="0"),))

    with pytest.raises(CheckpointUnreadable, match=r"below wal/"):
        decode_export(encode_export(changed), "export.json")


# ---------------------------------------------------------------------------------------------------------------- pins


def test_G4_blocks_are_kept_while_somebody_reads_the_checkpoint_and_go_afterwards(first, tmp_path):
    position = first.read().restore_point.tasks[0].position
    with pinned_while_reading(first, 0, purpose="query"):
        driver = Driver(tmp_path / "first", resume=position)
        assert driver.read() == UNREAD
        driver.checkpoint(retained=1)
        driver.blocks.clean()
        held = Driver(tmp_path / "first", resume=position)
        assert held.read() == UNREAD
        mark_released(held.owned.log_id, held.owned.generation)

    driver = Driver(tmp_path / "first", resume=first.read().restore_point.tasks[0].position)
    driver.checkpoint(retained=1)
    driver.blocks.clean()

    assert 0 not in driver.owned.history.restorable
    with pytest.raises(CheckpointUnreadable, match="is missing"):
        Driver(tmp_path / "first", resume=position)
