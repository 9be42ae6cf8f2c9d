"""How the coordinator has output published: per sink in order, none skipped, none forgotten."""

import itertools

import pytest

from core.checkpoint_values import output
from core.coordinator_kit import (
    RETRY,
    SECOND,
    UNKNOWN,
    Job,
    commit,
)
from penstock.handles import CommitOutcome


def test_what_the_recovery_left_open_is_committed_from_the_start_and_stays_in_the_manifests():
    job = Job(next_checkpoint=3, parent=2, open=(output(1), output(2)))

    assert job.started == [commit(output(1))]
    job.request()
    assert job.ack(3, output(3)) == [job.manifest(3, output(1), output(2), output(3), parent=2, fulfils=("r",))]


def test_S1_a_sinks_commits_go_strictly_in_order_of_checkpoints():
    job = Job()
    job.request()
    assert job.complete(0, output(0))[2:] == [commit(output(0))]
    job.request()
    assert job.complete(1, output(1))[2:] == [], "the first is under way"
    assert job.returned(0) == [commit(output(1))]
    assert job.returned(1, CommitOutcome.ALREADY_DONE) == []


def test_S1_everything_that_waits_goes_in_order_and_none_is_skipped():
    items = [output(checkpoint) for checkpoint in range(4)]
    job = Job(next_checkpoint=4, open=tuple(items))

    assert job.started == [commit(items[0])]
    for before, after in itertools.pairwise(items):
        assert job.returned(before.checkpoint) == [commit(after)]
    assert job.returned(3) == []


@pytest.mark.parametrize("outcome", [RETRY, UNKNOWN])
def test_S1_retry_and_unknown_hold_back_the_later_ones(outcome):
    job = Job(commit_backoff=SECOND, commit_backoff_limit=4 * SECOND)
    job.request()
    job.complete(0, output(0))
    due = []
    for attempt, wait in enumerate([1, 2, 4, 4], start=1):
        [wake] = job.returned(0, outcome)
        assert wake.at == round((job.at + wait) * SECOND)
        if attempt == 1:
            job.request()
            assert job.complete(1, output(1))[2:] == [], "checkpoints go on, commits wait"
        job.at += wait
        due.append(wake.timer)
        assert job.fire(wake.timer) == [commit(output(0), attempt + 1)]
    assert job.fire(due[0]) == []
    assert job.returned(0) == [commit(output(1))]


def test_one_sink_does_not_hold_back_another():
    job = Job()
    job.request()
    assert job.complete(0, output(0), output(0, "two"))[2:] == [commit(output(0)), commit(output(0, "two"))]
    job.returned(0, RETRY)

    assert job.returned(0, uid="two") == []
    job.request()
    assert job.complete(1, output(1), output(1, "two"))[2:] == [commit(output(1, "two"))]


def test_several_committables_of_one_checkpoint_go_one_by_one():
    job = Job()
    job.request()
    items = [output(0, name=name) for name in ("b", "a")]
    assert job.complete(0, *items)[2:] == [commit(items[0])]
    assert job.returned(0) == [commit(items[1])]


def test_S6_the_old_identity_of_a_sink_is_published_before_its_new_one():
    old = output(1, kind="kafka/1", detail={"id": "old"})
    job = Job(next_checkpoint=2, open=(old,))
    job.request()
    new = output(2, kind="kafka/1", detail={"id": "new"})

    assert job.complete(2, new)[2:] == []
    assert job.returned(1) == [commit(new)]


def test_the_manifest_carries_all_that_is_open_and_nothing_that_is_confirmed():
    job = Job()
    job.request()
    job.complete(0, output(0))
    job.request()
    job.complete(1, output(1))
    job.returned(0)
    job.request()

    assert job.ack(2, output(2)) == [job.manifest(2, output(1), output(2), parent=1, fulfils=("r",))]
