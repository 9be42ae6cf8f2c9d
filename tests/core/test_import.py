"""Starts from an exported checkpoint: its files become the job's own in one entry; after a crash again or not."""

import shutil
from dataclasses import replace

import pytest

from core.checkpoint_values import CLAIM, SINK, SOURCE, STEP, history, keyed, manifest, output, pin, read_to
from core.copies_kit import JOB, Start, at, content, files_below, layer, write
from penstock.admin.export import export_checkpoint, verify_export
from penstock.checkpoint.entries import Manifest, Origin
from penstock.checkpoint.export import plan_import
from penstock.control.client import JobDirectory
from penstock.elements import CheckpointKind
from penstock.errors import CheckpointUnreadable, SettingsError, StateDirectoryRefused, StateIncompatible, UnknownName
from penstock.facts import Restoring
from penstock.failpoints import FailpointCrash, armed
from penstock.handles import with_replays
from penstock.job.start import StartOptions, parse_start_options, resolve_start

LAYERS = layer("g0-000001"), layer("g0-000002")
HELD = [(part, content(f"{name}/{part}").decode()) for name in ("g0-000001", "g0-000002") for part in ("0000", "0001")]
EXPORTED = {"next": 7}, HELD


@pytest.fixture
def folder(tmp_path):
    """An export of checkpoint 7, whose job is gone."""
    state = write(tmp_path / "first", CLAIM, at(0), at(7, 0, layers=LAYERS, open=(output(7),)))
    export_checkpoint(JobDirectory(state, JOB), "7", tmp_path / "export")
    shutil.rmtree(state)
    return tmp_path / "export"


def checkpoints(state):
    return {key: manifest for key, (_, manifest) in JobDirectory(state, JOB).read().manifests.items()}


def test_a_new_log_begins_with_the_exported_checkpoint_under_names_of_its_own(folder, tmp_path):
    export = verify_export(folder)
    start = Start(tmp_path / "second", folder)

    assert start.restored == EXPORTED
    assert (start.recovery.restored, start.recovery.next_checkpoint, start.recovery.initial) == (0, 1, False)
    [found] = checkpoints(tmp_path / "second").values()
    assert found.kind is CheckpointKind.IMPORT
    assert found.origin == Origin(log_id="log-1", job=JOB, checkpoint=7, export=export.sha256)
    paths = [file.path for task in found.tasks if task.state for each in task.state.layers for file in each.files]
    assert [path.rpartition("/")[0] for path in paths] == [
        f"state/totals/0/g0-i00000{number}/000{part}" for number in (1, 2) for part in (0, 1)
    ]
    assert found.tasks[1].state.layers[0].detail == {"slices": 2, "by": ["user"]}


@pytest.mark.parametrize(("log", "detail"), [("log-1", {"next": 7, "replayed": {"bad": 3}}), ("other", {"next": 7})])
def test_only_the_log_that_has_the_replays_is_told_how_many_were_read(folder, log, detail):
    export = verify_export(folder)
    read = replace(read_to(7), position=with_replays(read_to(7).position, {"bad": 3}))
    export = replace(export, log_id=log, manifest=replace(export.manifest, tasks=(read,)))
    here = history(CLAIM, at(0), at(7, 0), at(8, 7))
    brought = plan_import(export, here, folder=str(folder), generation=1, at=5, claims=False).manifest

    assert brought.tasks[0].position.detail == detail
    assert brought.undone == (((8, 9),) if log == "log-1" else ((0, 9),))


def test_R7_nothing_of_the_first_log_is_published_by_the_second(folder, tmp_path):
    start = Start(tmp_path / "second", folder)

    assert start.published == []
    assert start.owned.history.open_committables == ()
    assert start.owned.log_id != "log-1"


def test_without_claiming_the_folder_stays_as_it_is_and_is_not_needed_afterwards(folder, tmp_path):
    before = files_below(folder)
    Start(tmp_path / "second", folder)

    assert files_below(folder) == before
    shutil.rmtree(folder)
    assert Start(tmp_path / "second").restored == EXPORTED


def test_whoever_watches_is_told_how_many_bytes_are_copied(folder, tmp_path):
    start = Start(tmp_path / "second", folder)
    total = verify_export(folder).bytes

    told = [fact for fact in start.facts if isinstance(fact, Restoring)]
    assert told == [
        Restoring(doing="copying", task=None, done=done, total=total) for done in range(0, total, total // 4)
    ]


def test_a_folder_that_was_moved_is_as_good(folder, tmp_path):
    folder.rename(tmp_path / "elsewhere")

    assert Start(tmp_path / "second", tmp_path / "elsewhere").restored == EXPORTED


def test_beside_state_it_is_a_rewind_what_is_open_there_is_published_first(folder, tmp_path):
    own = layer("g0-000009")
    state = write(tmp_path / "second", CLAIM, at(0), at(4, 0, layers=[own], open=(output(4),)))
    start = Start(state, folder)

    assert start.published == [4]
    assert start.facts[0] == Restoring(doing="publishing", task="out", done=0, total=1)
    assert (start.restored, start.recovery.restored, start.recovery.next_checkpoint) == (EXPORTED, 5, 6)
    assert start.owned.history.open_committables == ()
    assert set(start.owned.history.restorable) == {0, 4, 5}
    held = [(part, content(f"g0-000009/{part}").decode()) for part in ("0000", "0001")]
    assert Start(state, 4).restored == ({"next": 4}, held)


def test_a_name_or_a_number_goes_back_in_the_log_and_says_so_in_it(tmp_path):
    layers = layer("g0-000001"), layer("g0-000002")
    bodies = [CLAIM, at(0), at(1, 0, layers=layers[:1]), pin("good", 1), at(2, 1, layers=layers, open=(output(2),))]
    state = write(tmp_path / "second", *bodies)
    start = Start(state, "good")

    assert start.published == [2]
    assert (start.recovery.rewind.to, start.recovery.rewind.left, start.recovery.next_checkpoint) == (1, 2, 3)
    assert Start(state).recovery.restored == 1, "R1: the next start remembers it"
    assert Start(state, "2").recovery.restored == 2, "forward again"


def test_a_name_that_was_never_given_is_refused_though_one_begins_alike():
    known = history(CLAIM, at(0), at(1, 0), pin("good", 1))

    assert resolve_start(StartOptions(checkpoint="good"), known, job=JOB, at=5)["rewind_to"] == 1
    with pytest.raises(UnknownName, match="has no savepoint 'goodbye'"):
        resolve_start(StartOptions(checkpoint="goodbye"), known, job=JOB, at=5)


def test_going_back_can_discard_what_is_not_published(tmp_path):
    layers = layer("g0-000001"), layer("g0-000002")
    bodies = [CLAIM, at(0), at(1, 0, layers=layers[:1]), at(2, 1, layers=layers, open=(output(2),))]
    start = Start(write(tmp_path / "second", *bodies), 1, discard_unpublished=True)

    assert (start.published, start.voided) == ([], [2])
    assert 2 not in start.owned.history.restorable


# ------------------------------------------------------------------------------------------------------------ crashes

BEFORE = ["import.file.before", "import.file.copied", "local.create.temp_written", "checkpoint.manifest.before"]


def crash(place, state, folder, *, hit, **rest):
    with armed(place, "raise", hit=hit), pytest.raises(FailpointCrash):
        Start(state, folder, **rest)


@pytest.mark.parametrize(("place", "hit"), [*((place, hit) for place in BEFORE for hit in (1, 2))][:-1])
def test_a_crash_before_the_entry_is_followed_by_the_same_import_or_by_what_was_before(folder, tmp_path, place, hit):
    own = layer("g0-000009")
    state = write(tmp_path / "second", CLAIM, at(0), at(4, 0, layers=[own]))
    crash(place, state, folder, hit=hit)

    assert list(checkpoints(state)) == [0, 4]
    plain = Start(state)
    assert plain.recovery.restored == 4
    again = Start(state, folder)
    assert again.restored == EXPORTED
    assert list(checkpoints(state)) == [0, 4, 5]
    generations = {path.split("/")[2] for path in files_below(state / JOB) if "-i0" in path}
    assert str(again.owned.generation) in generations, "names are never used twice"


@pytest.mark.parametrize("claim", [False, True])
def test_a_crash_right_after_the_entry_is_followed_by_a_start_that_does_not_bring_it_twice(folder, tmp_path, claim):
    state = tmp_path / "second"
    crash("checkpoint.manifest.written", state, folder, hit=1, claim=claim)
    again = Start(state, folder, claim=claim)

    assert again.restored == EXPORTED
    assert list(checkpoints(state)) == [0]
    assert again.recovery.next_checkpoint == 1
    assert Start(state).restored == EXPORTED
    assert bool(list((folder / "state").rglob("*.parquet"))) != claim


# ------------------------------------------------------------------------------------------------------- taking it over


def test_claiming_takes_the_files_over_and_nobody_else_can_have_them(folder, tmp_path):
    start = Start(tmp_path / "second", folder, claim=True)

    assert start.restored == EXPORTED
    assert set(files_below(folder)) == {"export.json", "claimed.json"}
    [found] = checkpoints(tmp_path / "second").values()
    assert found.origin.claimed
    for claim in (True, False):
        with pytest.raises(
            StateDirectoryRefused, match=r"belong to job 'orders' \(log id-second-0\), which has taken them over"
        ):
            Start(tmp_path / "third", folder, claim=claim)


@pytest.mark.parametrize("place", ["import.claimed", "checkpoint.manifest.before"])
def test_a_crash_while_claiming_loses_nothing_and_the_same_log_goes_on(folder, tmp_path, place):
    before = files_below(folder)
    crash(place, tmp_path / "second", folder, hit=1, claim=True)

    left = files_below(folder)
    assert left.pop("claimed.json")
    assert left == before, "the files stay until the entry is in the log"
    with pytest.raises(StateDirectoryRefused, match="has taken them over"):
        Start(tmp_path / "third", folder)
    assert Start(tmp_path / "second", folder, claim=True).restored == EXPORTED
    assert set(files_below(folder)) == {"export.json", "claimed.json"}


def test_a_folder_is_claimed_only_once_all_of_it_is_known_to_be_sound(folder, tmp_path):
    crash("import.file.copied", tmp_path / "second", folder, hit=1, claim=True)
    assert "claimed.json" not in files_below(folder), "others may still have it"
    damaged = sorted((folder / "state").rglob("*.parquet"))[-1]
    damaged.write_bytes(b"rot")

    with pytest.raises(CheckpointUnreadable):
        Start(tmp_path / "second", folder, claim=True)

    assert "claimed.json" not in files_below(folder)


def test_a_crash_while_the_folder_is_emptied_is_finished_by_the_same_start(folder, tmp_path):
    crash("import.release.before", tmp_path / "second", folder, hit=2, claim=True)
    assert len(list((folder / "state").rglob("*.parquet"))) == 3

    assert Start(tmp_path / "second", folder, claim=True).restored == EXPORTED
    assert not list((folder / "state").rglob("*.parquet"))


def test_once_the_job_has_gone_on_a_claimed_folder_begins_nothing_any_more(folder, tmp_path):
    state = tmp_path / "second"
    start = Start(state, folder, claim=True)
    tasks = next(iter(checkpoints(state).values())).tasks
    start.owned.append(
        Manifest(checkpoint=1, kind=CheckpointKind.PERIODIC, parent=0, triggered=1, completed=2, steps=(), tasks=tasks)
    )

    with pytest.raises(StateDirectoryRefused, match=r"taken over the files of .* already, as its checkpoint 0"):
        Start(state, folder, claim=True)


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_file_that_is_not_the_one_that_was_exported_is_found_before_the_entry(folder, tmp_path):
    victim = next((folder / "state").rglob("*.parquet"))
    victim.write_bytes(b"other rows")

    with pytest.raises(CheckpointUnreadable, match="has 10 bytes, sha256"):
        Start(tmp_path / "second", folder)
    assert not checkpoints(tmp_path / "second")


def test_state_that_the_pipeline_cannot_take_over_is_refused_before_a_file_is_copied(tmp_path):
    steps = (SOURCE, replace(STEP, kind="sessions/1"), SINK)
    odd = manifest(1, 0, tasks=(read_to(1), keyed(layer("g0-000001"), kind="sessions/1")), steps=steps)
    state = write(tmp_path / "first", CLAIM, at(0), odd)
    export_checkpoint(JobDirectory(state, JOB), "1", tmp_path / "export")

    with pytest.raises(StateIncompatible, match="kind 'sessions/1'"):
        Start(tmp_path / "second", tmp_path / "export")
    assert not (tmp_path / "second" / JOB / "state").exists()


def test_what_is_no_export_is_told_apart(folder, tmp_path):
    state = write(tmp_path / "first", CLAIM, at(0))
    (folder / "export.json").unlink()

    with pytest.raises(UnknownName, match=r"no export\.json|no exported checkpoint"):
        Start(tmp_path / "second", tmp_path / "nowhere")
    with pytest.raises(UnknownName, match="is the directory of a job"):
        Start(tmp_path / "second", state / JOB)
    with pytest.raises(CheckpointUnreadable, match="that export did not end"):
        Start(tmp_path / "second", folder)


def test_a_name_that_is_a_folder_here_is_answered_with_how_to_write_it(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UnknownName, match=r"written with a slash: \./export"):
        Start(tmp_path / "second", "export")
    state = write(tmp_path / "first", CLAIM, at(0))
    with pytest.raises(UnknownName, match=r"no savepoint 'export'.*: \./export"):
        Start(state, "export")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fresh": True, "restore_from": "x"}, "A start is either fresh or from"),
        ({"restore_from": "x", "claim": True}, "--claim takes over the files of an exported folder"),
        ({"restore_from": "./x", "discard_unpublished": True}, "in the job's own log"),
        ({"discard_unpublished": True}, "in the job's own log"),
    ],
)
def test_arguments_that_contradict_one_another_are_refused(arguments, message):
    given = {"fresh": False, "restore_from": None, "claim": False, "discard_unpublished": False, **arguments}

    with pytest.raises(SettingsError, match=message):
        parse_start_options(**given)


def test_a_path_object_is_a_folder_and_a_number_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rest = {"fresh": False, "claim": False, "discard_unpublished": False}

    assert parse_start_options(restore_from=tmp_path, **rest).folder == str(tmp_path)
    assert parse_start_options(restore_from="./x", **rest).folder == str(tmp_path / "x")
    assert parse_start_options(restore_from=12, **rest).checkpoint == "12"
    assert parse_start_options(restore_from="before-v2", **rest).folder is None
