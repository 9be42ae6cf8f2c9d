"""A tool that owns a log for a while, and what may happen between its look and its claim."""

import pytest

from core.checkpoint_values import CLAIM
from core.log_kit import JOB, checkpoint, kinds, log, staged, write
from penstock.admin import savepoints
from penstock.checkpoint.entries import Claim, Pin, Stopped
from penstock.control.client import JobDirectory


@pytest.fixture
def at_rest(tmp_path):
    story = [CLAIM, checkpoint(0), checkpoint(1, 0), Stopped(checkpoint=1, at=9)]
    write(tmp_path, *story)
    return tmp_path, story


def test_a_job_at_rest_is_at_rest_again_and_one_that_died_is_not(at_rest):
    state, story = at_rest
    with JobDirectory(state, JOB).own():
        pass
    assert kinds(log(state))[-2:] == [Claim, Stopped]

    write(state / "dead", *story[:-1])
    with JobDirectory(state / "dead", JOB).own():
        pass
    assert kinds(log(state / "dead"))[-1] is Claim


def test_output_that_a_driver_left_open_between_the_look_and_the_claim_is_not_hidden(at_rest):
    state, story = at_rest
    job = JobDirectory(state, JOB)
    looked = job._check

    def look_then_sleep():
        looked()
        write(state, *story, CLAIM, checkpoint(2, 1, open=(staged(state, 2),)))  # and died before it published

    job._check = look_then_sleep
    job.owner = lambda: None
    savepoints.create(job, "late")

    assert kinds(log(state))[-2:] == [Claim, Pin], "not said to be at rest"
    assert [item.checkpoint for item in log(state).open_committables] == [2]
