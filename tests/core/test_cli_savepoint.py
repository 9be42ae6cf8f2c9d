"""``penstock savepoint``, ``stop``, ``settle``, ``rewind`` on the log of a job that nobody runs; no Spark."""

import json

import pytest

from core.checkpoint_values import CLAIM, condemn, pin
from core.cli_kit import say
from core.log_kit import JOB, checkpoint, kinds, log, published, staged, write
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Claim, Pin, Rewind, Stopped, Unpin

pytestmark = pytest.mark.usefixtures("nobody_answers")


@pytest.fixture
def state(tmp_path):
    """Checkpoints 0, 1 and 2; the output of 1 and 2 is not known to be published."""
    first, second = staged(tmp_path, 1), staged(tmp_path, 2)
    write(tmp_path, CLAIM, checkpoint(0), checkpoint(1, 0, open=(first,)), checkpoint(2, 1, open=(first, second)))
    return tmp_path


def outputs(state):
    """What is open there, as documents have it."""
    rest = {"kind": "files/1", "target": str(state / "out"), "file_count": 1, "bytes": 5}
    return [{"uid": "out", "checkpoint": checkpoint, **rest} for checkpoint in (1, 2)]


@pytest.fixture
def at_rest(tmp_path):
    """Two checkpoints, and an orderly end."""
    write(tmp_path, CLAIM, checkpoint(0), checkpoint(1, 0), pin("good", 0), Stopped(checkpoint=1, at=9))
    return tmp_path


# ---------------------------------------------------------------------------------------------------------- savepoints


def test_a_stopped_job_gives_its_newest_checkpoint_the_name_and_is_at_rest_again(at_rest):
    said = say("savepoint", "create", JOB, "before-v2", "--state", str(at_rest))

    assert (said.code, said.out) == (0, "1\n")
    history = log(at_rest)
    assert kinds(history)[-3:] == [Claim, Pin, Stopped]
    assert history.pins["before-v2"].checkpoint == 1
    assert history.restore_point.checkpoint == 1


def test_a_job_that_died_is_not_said_to_be_at_rest_for_a_name(state):
    assert say("savepoint", "create", JOB, "x", "--state", str(state)).code == 0

    assert kinds(log(state))[-2:] == [Claim, Pin]
    assert len(log(state).open_committables) == 2, "what is open stays open"


@pytest.mark.parametrize("at", ["0", "good"])
def test_an_older_checkpoint_gets_a_name_by_its_number_or_another_name(at_rest, at):
    said = say("savepoint", "create", JOB, "again", "--at", at, "--state", str(at_rest))

    assert (said.code, said.out) == (0, "0\n")
    assert log(at_rest).pins["again"].checkpoint == 0


def test_names_never_move(at_rest):
    said = say("savepoint", "create", JOB, "good", "--state", str(at_rest))

    assert said.code == 1
    assert "'good' exists already as checkpoint 0" in said.err
    assert len(log(at_rest).entries) == 5, "nothing was claimed for it"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["create", JOB, "41"], "'41' cannot name a savepoint"),
        (["create", JOB, "x", "--at", "7"], "Checkpoint 7 is not in the log. Restorable checkpoints: 0, 1."),
        (["create", JOB, "x", "--at", "god"], "no savepoint 'god'. Did you mean 'good'?"),
        (["show", JOB, "god"], "Did you mean 'good'?"),
        (["drop", JOB, "god", "--yes"], "Did you mean 'good'?"),
        (["list", "ordesr"], "There is no job 'ordesr'"),
        (["create", JOB, "x", "--timeout", "soon"], "--timeout 'soon' is not a length of time"),
        (["lst", JOB], 'Did you mean "list"?'),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(at_rest, arguments, told):
    said = say("savepoint", *arguments, "--state", str(at_rest))

    assert said.code == 64
    assert told in said.err


def test_a_condemned_checkpoint_gets_no_name(tmp_path):
    write(tmp_path, CLAIM, checkpoint(0), checkpoint(1, 0), condemn(0))

    said = say("savepoint", "create", JOB, "x", "--at", "0", "--state", str(tmp_path))

    assert said.code == 64
    assert "Checkpoint 0 is condemned, so its files may be gone. Restorable checkpoints: 1." in said.err


def test_the_list_has_a_line_each_and_a_document(at_rest):
    shown = say("savepoint", "list", JOB, "--state", str(at_rest))
    document = json.loads(say("savepoint", "list", JOB, "--state", str(at_rest), "--json").out)

    assert shown.out.splitlines()[0].split() == ["name", "checkpoint", "taken", "age", "size", "by"]
    assert shown.out.splitlines()[1].split()[:3] == ["good", "0", "1970-01-01"]
    good = {
        "savepoint": "good",
        "checkpoint": 0,
        "taken": 2,
        "named": 4,
        "by": "",
        "state_bytes": 3,
        "is_restore_point": False,
        "is_restorable": True,
    }
    one = json.loads(say("savepoint", "show", JOB, "good", "--state", str(at_rest), "--json").out)
    assert document == {"schema": "penstock.savepoint.list/1", "job": JOB, "savepoints": [good]}
    assert one == {"schema": "penstock.savepoint.show/1", "job": JOB, **good}


def test_a_savepoint_whose_checkpoint_is_lost_is_listed_and_can_only_be_dropped(tmp_path):
    """Its manifest rotted, and a rewind went past it."""
    write(tmp_path, CLAIM, checkpoint(0), checkpoint(1, 0), pin("good", 1))
    (tmp_path / JOB / paths.entry(2)).write_bytes(b"junk")
    assert say("rewind", JOB, "0", "--yes", "--state", str(tmp_path)).code == 0

    def of(*arguments):
        return say(*arguments, "--state", str(tmp_path))

    listed = of("savepoint", "list", JOB)
    document = json.loads(of("savepoint", "show", JOB, "good", "--json").out)
    told = [
        of(*command).err
        for command in (("savepoint", "create", JOB, "x", "--at", "good"), ("rewind", JOB, "good", "--dry-run"))
    ]
    looked = [of(command, JOB).code for command in ("status", "checkpoints", "gc")]
    dropped = of("savepoint", "drop", JOB, "good", "--yes")

    assert listed.out.splitlines()[1].split() == ["good", "1", "lost", "-", "-"]
    assert (document["taken"], document["state_bytes"], document["is_restorable"]) == (None, None, False)
    for text in told:
        assert "Savepoint 'good' is checkpoint 1, which is lost." in text
        assert "penstock savepoint drop orders good" in text
    assert looked == [0, 0, 0]
    assert dropped.code == 0, dropped.err
    assert log(tmp_path).pins == {}


def test_dropping_asks_and_refuses_where_nobody_can_answer(at_rest):
    refused = say("savepoint", "drop", JOB, "good", "--state", str(at_rest))
    dropped = say("savepoint", "drop", JOB, "good", "--yes", "--state", str(at_rest))

    assert refused.code == 64
    assert "Drop savepoint good of job orders: checkpoint 0," in refused.err
    assert "Give --yes" in refused.err
    assert dropped.code == 0
    assert kinds(log(at_rest))[-3:] == [Claim, Unpin, Stopped]
    assert log(at_rest).pins == {}
    assert 0 in log(at_rest).restorable


# ----------------------------------------------------------------------------------------------------- stop and settle


def test_a_dead_job_is_settled_without_pipeline_and_spark(state):
    said = say("settle", JOB, "--state", str(state))

    assert said.code == 0
    assert published(state) == ["part-1.json", "part-2.json"]
    assert "published #1 of 'out'" in said.err
    history = log(state)
    assert kinds(history)[-1] is Stopped
    assert history.open_committables == ()
    assert history.restore_point.checkpoint == 2


def test_documents_of_a_stop_and_of_a_settled_job(state):
    stopped = say("stop", JOB, "--json", "--state", str(state))
    settled = say("settle", JOB, "--json", "--state", str(state))
    waits = "the log does not know these to be published: #1 of 'out', #2 of 'out'"

    assert json.loads(stopped.out) == {
        "schema": "penstock.stop/1",
        "job": JOB,
        "savepoint": None,
        "checkpoint": 2,
        "was_running": False,
        "message": waits,
        "open": outputs(state),
    }
    assert json.loads(settled.out) == {
        "schema": "penstock.settle/1",
        "job": JOB,
        "published": outputs(state),
        "voided": [],
    }


def test_a_created_savepoint_has_a_document(at_rest):
    said = say("savepoint", "create", JOB, "x", "--json", "--state", str(at_rest))

    told = json.loads(said.out)
    assert (told["schema"], told["savepoint"], told["checkpoint"]) == ("penstock.savepoint.create/1", "x", 1)


def test_settling_again_publishes_nothing_twice(state):
    say("settle", JOB, "--state", str(state))
    for path in (state / "out").glob("part-*"):
        path.unlink()  # a reader took them

    said = say("settle", JOB, "--state", str(state))

    assert said.code == 0
    assert published(state) == []


def test_a_stop_of_a_job_that_nobody_runs_names_its_checkpoint_and_says_what_is_open(state):
    said = say("stop", JOB, "--savepoint", "end", "--state", str(state))

    assert (said.code, said.out) == (1, "2\n")
    assert "the log does not know these to be published: #1 of 'out', #2 of 'out'" in said.err
    assert "penstock settle orders" in said.err
    assert log(state).pins["end"].checkpoint == 2


def test_a_stop_of_a_job_at_rest_is_no_failure(at_rest):
    said = say("stop", JOB, "--state", str(at_rest))

    assert (said.code, said.out) == (0, "1\n")
    assert "job orders does not run: there is nothing to stop" in said.err


# -------------------------------------------------------------------------------------------------------------- rewind


def test_a_rewind_publishes_what_is_open_and_says_what_readers_see_again(state):
    said = say("rewind", JOB, "0", "--yes", "--state", str(state))

    assert said.code == 0
    assert said.err.splitlines()[:4] == [
        "rewind from checkpoint 2 to checkpoint 0",
        f"  + published first: #1 of 'out' → {state / 'out'}",
        f"  + published first: #2 of 'out' → {state / 'out'}",
        "  ~ readers of 'out' have the output of 2 checkpoints (1 to 2), and see its rows again",
    ]
    assert published(state) == ["part-1.json", "part-2.json"]
    history = log(state)
    assert kinds(history)[-2:] == [Rewind, Stopped]
    assert history.restore_point.checkpoint == 0
    assert history.next_checkpoint == 3, "ids go on above all timelines"
    assert set(history.restorable) == {0, 1, 2}, "what was left can be gone back to"


def test_a_discard_voids_what_is_above_the_target_and_condemns_it(state):
    said = say("rewind", JOB, "1", "--discard-unpublished", "--yes", "--state", str(state))

    assert said.code == 0
    assert published(state) == ["part-1.json"]
    assert "  - voided, never published: #2 of 'out'" in said.err
    assert "  - never to be restored again: checkpoints 2" in said.err
    assert "see its rows again" not in said.err
    assert set(log(state).restorable) == {0, 1}
    assert log(state).restore_point.checkpoint == 1


def test_to_empty_state(state):
    assert say("rewind", JOB, "--fresh", "--yes", "--state", str(state)).code == 0

    assert log(state).restore_point is None
    assert published(state) == ["part-1.json", "part-2.json"]


def test_a_dry_run_changes_nothing_and_has_a_document(state):
    before = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}

    said = say("rewind", JOB, "0", "--dry-run", "--json", "--state", str(state))

    assert json.loads(said.out) == {
        "schema": "penstock.rewind/1",
        "job": JOB,
        "is_dry_run": True,
        "was_done": False,
        "from_checkpoint": 2,
        "to_checkpoint": 0,
        "publish": outputs(state),
        "void": [],
        "condemned": [],
        "lost": [],
        "again": outputs(state),
    }
    assert {path: path.read_bytes() for path in state.rglob("*") if path.is_file()} == before


def test_forward_again_repeats_nothing(state):
    say("rewind", JOB, "0", "--yes", "--state", str(state))

    said = say("rewind", JOB, "2", "--yes", "--state", str(state))

    assert said.code == 0
    assert "see its rows again" not in said.err
    assert log(state).restore_point.checkpoint == 2


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--yes"], 64, "say where to"),
        (["0", "--fresh", "--yes"], 64, "say where to"),
        (["9", "--yes"], 64, "Checkpoint 9 is not in the log. Restorable checkpoints: 0, 1, 2."),
        (["0"], 64, "Rewind job orders to checkpoint 0? There is no terminal to answer on. Give --yes"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is(state, arguments, code, told):
    said = say("rewind", JOB, *arguments, "--state", str(state))

    assert said.code == code
    assert told in said.err
    assert len(log(state).entries) == 4


def test_a_discard_of_what_has_a_name_is_refused(state):
    say("savepoint", "create", JOB, "precious", "--state", str(state))

    said = say("rewind", JOB, "0", "--discard-unpublished", "--yes", "--state", str(state))

    assert said.code == 65
    assert "checkpoints that have names: precious" in said.err
    assert published(state) == []


def test_a_rewind_goes_past_an_entry_that_cannot_be_read(state):
    path = state / JOB / paths.entry(3)
    path.write_bytes(b"rot")

    refused = say("settle", JOB, "--state", str(state))
    said = say("rewind", JOB, "1", "--yes", "--state", str(state))

    assert refused.code == 65
    assert said.code == 0, said.err
    assert "  ! entry 3 of the log cannot be read and is given up" in said.err
    history = log(state)
    assert history.restore_point.checkpoint == 1
    assert history.next_checkpoint > 1_000_000
    assert published(state) == ["part-1.json"]
    assert path.exists()
