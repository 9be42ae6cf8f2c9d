"""Exports of a checkpoint: whole or none, self-contained, checked; the job itself gets a name for a while, no more."""

import shutil
from dataclasses import replace

import pytest

from core.checkpoint_values import CLAIM, output, pin
from core.copies_kit import JOB, at, content, files_below, layer, write
from penstock.admin.export import export_checkpoint, verify_export
from penstock.checkpoint.entries import Pin, Stopped, Unpin
from penstock.checkpoint.export import decode_export, encode_export
from penstock.control.client import JobDirectory, is_at_rest
from penstock.errors import CheckpointUnreadable, SettingsError, StateDirectoryRefused, UnknownName
from penstock.failpoints import FailpointCrash, armed

FIRST, SECOND = layer("g0-000001"), layer("g0-000002")


@pytest.fixture
def state(tmp_path):
    """A job at rest: checkpoint 1 has a name, checkpoint 2 needs a layer more."""
    bodies = [CLAIM, at(0), at(1, 0, layers=[FIRST]), pin("before-v2", 1), at(2, 1, layers=[FIRST, SECOND])]
    return write(tmp_path / "state", *bodies, Stopped(checkpoint=2, at=5))


def export(state, text, folder, **rest):
    return export_checkpoint(JobDirectory(state, JOB), text, folder, **rest).export


def test_an_export_has_exactly_what_its_checkpoint_needs(state, tmp_path):
    made = export(state, "before-v2", tmp_path / "out")

    assert (made.job, made.checkpoint, made.names, made.left_open) == (JOB, 1, ("before-v2",), ())
    assert set(files_below(tmp_path / "out")) == {"export.json", *(file.path for file in FIRST.files)}
    assert files_below(tmp_path / "out")[FIRST.files[0].path] == content("g0-000001/0000")
    assert made.bytes == sum(file.length for file in FIRST.files)


def test_a_number_names_a_checkpoint_too(state, tmp_path):
    assert export(state, "2", tmp_path / "out").checkpoint == 2


def test_it_can_be_moved_and_outlives_its_job(state, tmp_path):
    made = export(state, "2", tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    shutil.rmtree(state)

    assert verify_export(tmp_path / "elsewhere") == made


def test_a_job_at_rest_is_at_rest_again_and_the_name_is_gone(state, tmp_path):
    export(state, "2", tmp_path / "out")

    history = JobDirectory(state, JOB).read()
    held = [entry.body for entry in history.entries if isinstance(entry.body, Pin | Unpin)][1:]
    assert [type(body) for body in held] == [Pin, Unpin]
    assert held[0].name.startswith("export-")
    assert held[0].checkpoint == 2
    assert held[0].expires > held[0].at
    assert held[0].owner
    assert set(history.pins) == {"before-v2"}
    assert is_at_rest(history)


def test_nothing_open_goes_with_it_and_it_says_what_was(tmp_path):
    bodies = [CLAIM, at(0), at(1, 0, layers=[FIRST], open=(output(1),)), at(2, 1, open=(output(1), output(2)))]
    state = write(tmp_path / "state", *bodies)

    made = export(state, "1", tmp_path / "out")

    assert [(item.uid, item.checkpoint, item.target) for item in made.left_open] == [("out", 1, "there")]
    assert made.manifest.open == ()
    assert not (tmp_path / "out" / "staged").exists()


@pytest.mark.parametrize("text", ["before-v3", "7"])
def test_what_is_not_there_is_named_and_nothing_is_made(state, tmp_path, text):
    before = files_below(state)

    with pytest.raises(UnknownName, match=r"Did you mean 'before-v2'|Restorable checkpoints: 0, 1, 2"):
        export(state, text, tmp_path / "out")

    assert not (tmp_path / "out").exists()
    assert files_below(state) == before


def test_a_folder_with_something_in_it_is_refused(state, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")

    with pytest.raises(StateDirectoryRefused, match=r"is not empty, it has 'notes.txt'"):
        export(state, "1", tmp_path / "out")
    with pytest.raises(StateDirectoryRefused, match="is a file"):
        export(state, "1", tmp_path / "out" / "notes.txt")
    with pytest.raises(SettingsError, match="local or mounted"):
        export(state, "1", "s3://bucket/out")


def test_a_damaged_file_is_found_and_no_export_remains(state, tmp_path):
    damaged = state / JOB / FIRST.files[1].path
    damaged.write_bytes(b"rows of somebody else")

    with pytest.raises(CheckpointUnreadable, match=r"0001/part-0.parquet has 21 bytes, sha256"):
        export(state, "1", tmp_path / "out")

    assert files_below(tmp_path / "out") == {}
    assert set(JobDirectory(state, JOB).read().pins) == {"before-v2"}


def test_a_missing_file_is_found(state, tmp_path):
    (state / JOB / FIRST.files[0].path).unlink()

    with pytest.raises(CheckpointUnreadable, match=r"0000/part-0.parquet is missing"):
        export(state, "1", tmp_path / "out")


@pytest.mark.parametrize("place", ["export.pinned", "export.file.copied", "local.create.linked", "export.written"])
@pytest.mark.usefixtures("nobody_answers")
def test_a_crash_leaves_a_whole_export_or_none_and_a_name_that_says_who_had_it(state, tmp_path, place):
    with armed(place, "raise"), pytest.raises(FailpointCrash):
        export(state, "2", tmp_path / "out")

    left = [held for held in JobDirectory(state, JOB).read().pins.values() if held.expires is not None]
    if place != "local.create.linked":  # there the claim itself is struck
        assert [(held.checkpoint, bool(held.owner)) for held in left] == [(2, True)]
    if place == "export.written":
        assert verify_export(tmp_path / "out").checkpoint == 2
    else:
        with pytest.raises((UnknownName, CheckpointUnreadable), match="no export"):
            verify_export(tmp_path / "out")
    assert export(state, "2", tmp_path / "again").checkpoint == 2


def test_what_was_changed_in_an_export_is_found(state, tmp_path):
    export(state, "1", tmp_path / "out")
    file = tmp_path / "out" / FIRST.files[0].path
    file.write_bytes(file.read_bytes()[:-1])

    with pytest.raises(CheckpointUnreadable, match="has 21 bytes"):
        verify_export(tmp_path / "out")


def test_an_export_that_names_files_outside_of_its_folder_is_refused(state, tmp_path):
    made = export(state, "1", tmp_path / "out")
    for path in ("/etc/passwd", "state/../../secret/0/x", "log/00000000000000000000.json"):
        task = made.manifest.tasks[1]
        stolen = replace(task.state.layers[0], files=(replace(FIRST.files[0], path=path),))
        moved = replace(task, state=replace(task.state, layers=(stolen,)))
        forged = replace(made, manifest=replace(made.manifest, tasks=(moved,)))
        with pytest.raises(CheckpointUnreadable, match="below state/"):
            decode_export(encode_export(forged), "export.json")


def test_every_bit_of_export_json_counts(state, tmp_path):
    export(state, "1", tmp_path / "out")
    data = (tmp_path / "out" / "export.json").read_bytes()
    for place in range(0, len(data), 7):
        with pytest.raises(CheckpointUnreadable):
            decode_export(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], "export.json")
