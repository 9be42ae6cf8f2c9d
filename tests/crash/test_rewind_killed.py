"""A rewind that is killed at each of its steps, in a process of its own, and what the next start finds.

Numbers are the holes of the protocol that a rewind could fall into (DESIGN section 4).
"""

import subprocess
import sys

import pytest

from core.checkpoint_values import CLAIM
from core.log_kit import JOB, checkpoint, kinds, log, published, staged, write
from crash.driver import surroundings
from penstock.checkpoint.entries import Claim, Rewind, Stopped
from penstock.checkpoint.recovery import decide_recovery

pytestmark = [pytest.mark.crash]

KILLED = -9
BOTH = ["part-1.json", "part-2.json"]


@pytest.fixture
def state(tmp_path):
    """Checkpoints 0, 1 and 2; the output of 1 and 2 is not known to be published."""
    first, second = staged(tmp_path, 1), staged(tmp_path, 2)
    write(tmp_path, CLAIM, checkpoint(0), checkpoint(1, 0, open=(first,)), checkpoint(2, 1, open=(first, second)))
    return tmp_path


def penstock(state, *arguments, kill=None):
    extra = {"PENSTOCK_FAILPOINTS": f"{kill}=kill"} if kill else {}
    told = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments, "--state", str(state)],
        env=surroundings(state) | extra,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == (KILLED if kill else 0), told.stderr
    return told


def start(state):
    """What a start would do now."""
    history = log(state)
    return decide_recovery(history, history.manifests[0][1].steps, at=0)


@pytest.mark.parametrize(
    ("place", "seen"),
    [
        ("log.claim.before", []),
        ("log.claim.written", []),
        ("sink.commit.before", []),
        ("sink.files.moved", ["part-1.json"]),
        ("sink.published", ["part-1.json"]),
        ("recovery.committed", BOTH),
        ("log.append.before", BOTH),
    ],
)
def test_12_killed_before_its_entry_nothing_is_rewound_and_the_next_start_publishes_the_rest(state, place, seen):
    penstock(state, "rewind", JOB, "0", "--yes", kill=place)

    assert published(state) == seen
    assert start(state).restored == 2
    assert [item.checkpoint for item in start(state).commit] == [1, 2], "what is published already is found out"
    for path in (state / "out").glob("part-*"):
        path.unlink()  # a reader takes them away
    penstock(state, "settle", JOB)
    assert published(state) == [each for each in BOTH if each not in seen], "none lost, none twice"


def test_11_killed_after_its_entry_the_next_start_begins_there_and_so_does_the_one_after(state):
    penstock(state, "rewind", JOB, "0", "--yes", kill="log.append.written")

    assert kinds(log(state))[-1] is Rewind
    assert published(state) == BOTH
    assert start(state).restored == 0
    penstock(state, "settle", JOB)
    assert start(state).restored == 0, "a claim in between does not forget it"
    assert kinds(log(state))[-2:] == [Claim, Stopped]


@pytest.mark.parametrize("place", ["log.append.written", "sink.voided"])
def test_12_a_discard_that_is_killed_around_its_void_is_voided_by_whoever_recovers(state, place):
    penstock(state, "rewind", JOB, "1", "--discard-unpublished", "--yes", kill=place)

    assert published(state) == ["part-1.json"]
    assert [item.checkpoint for item in start(state).void] == [2]
    penstock(state, "settle", JOB)
    assert published(state) == ["part-1.json"], "never published, however late"
    assert start(state).restored == 1
    assert start(state).void == ()
    assert 2 not in log(state).restorable


def test_12_a_discard_that_is_killed_before_its_entry_discards_nothing(state):
    penstock(state, "rewind", JOB, "1", "--discard-unpublished", "--yes", kill="log.append.before")

    assert start(state).restored == 2
    penstock(state, "settle", JOB)
    assert published(state) == BOTH


def test_13_ids_go_on_above_every_timeline_however_often_it_is_rewound(state):
    for target in ("0", "2", "1"):
        penstock(state, "rewind", JOB, target, "--yes")

    assert start(state).next_checkpoint == 3
    assert start(state).restored == 1


def test_14_a_savepoint_brings_back_none_of_the_output_that_was_open_when_it_was_taken(state):
    penstock(state, "savepoint", "create", JOB, "one", "--at", "1")
    penstock(state, "settle", JOB)
    for path in (state / "out").glob("part-*"):
        path.unlink()

    penstock(state, "rewind", JOB, "one", "--yes")

    assert start(state).commit == ()
    assert published(state) == []


def test_15_what_an_abandoned_timeline_condemned_stays_condemned(state):
    penstock(state, "rewind", JOB, "0", "--discard-unpublished", "--yes")  # condemns 1 and 2

    refused = subprocess.run(
        [sys.executable, "-m", "penstock", "rewind", JOB, "2", "--yes", "--state", str(state)],
        env=surroundings(state),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert refused.returncode == 64
    assert "Checkpoint 2 is condemned, so its files may be gone. Restorable checkpoints: 0" in refused.stderr
    assert start(state).restored == 0
    assert published(state) == []


def test_16_readers_are_told_what_comes_again_by_a_second_rewind_too(state):
    first = penstock(state, "rewind", JOB, "1", "--yes")
    second = penstock(state, "rewind", JOB, "0", "--yes")

    assert "have the output of 1 checkpoint (2), and see its rows again" in first.stderr
    assert "have the output of 1 checkpoint (1), and see its rows again" in second.stderr


def test_18_past_an_entry_that_cannot_be_read_by_a_rewind_that_is_killed_and_done_again(state):
    newest = sorted((state / JOB / "log").iterdir())[-1]
    newest.write_bytes(b"rot")

    penstock(state, "rewind", JOB, "1", "--yes", kill="log.append.before")
    penstock(state, "rewind", JOB, "1", "--yes")

    assert start(state).restored == 1
    assert start(state).next_checkpoint > 1_000_000
    assert published(state) == ["part-1.json"]
