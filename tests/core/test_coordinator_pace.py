"""When the coordinator takes a checkpoint by itself."""

import pytest

from core.checkpoint_values import output
from core.coordinator_kit import SAVEPOINT, SECOND, Job, barrier, tick, wake_tick
from penstock.checkpoint.events import CommitRetryDue, NotifyCompleted, ProgressMade, RetryDue, StopDeadline


def test_14_periodic_checkpoints_keep_the_beat_of_the_start():
    job = Job(interval=10 * SECOND)

    assert job.started == [wake_tick(10)]
    job.at = 10.5
    assert job.fire(tick(10)) == [wake_tick(20), *barrier(0, at=10.5)]
    job.complete(0)
    job.at = 20
    assert job.fire(tick(20)) == [wake_tick(30), *barrier(1, at=20)]


def test_a_tick_that_was_missed_is_not_made_up_by_a_burst():
    job = Job(interval=10 * SECOND)
    job.at = 10
    job.fire(tick(10))
    job.at = 20
    assert job.fire(tick(20)) == [], "the first is still pending"
    job.at = 47
    job.ack(0)
    assert job.written(0) == [NotifyCompleted(checkpoint=0), wake_tick(50), *barrier(1, at=47)]
    assert job.complete(1) == [NotifyCompleted(checkpoint=1)]


@pytest.mark.mission("L10")
def test_13_23_a_pause_after_each_checkpoint_delays_periodic_ones_only():
    job = Job(interval=10 * SECOND, min_pause=8 * SECOND)
    job.at = 10
    job.fire(tick(10))
    job.at = 17
    job.complete(0)
    job.at = 20
    assert job.fire(tick(20)) == [wake_tick(25)]
    assert job.request("r", "save") == barrier(1, SAVEPOINT, at=20)
    job.at = 21
    job.complete(1)
    job.at = 25
    assert job.fire(tick(25)) == [wake_tick(29)]
    job.at = 29
    assert job.fire(tick(29)) == [wake_tick(30), *barrier(2, at=29)]


def test_a_timer_that_is_no_longer_waited_for_does_nothing():
    job = Job(interval=10 * SECOND)
    job.at = 10
    job.fire(tick(10))

    assert job.fire(tick(10)) == []
    assert job.fire(tick(11)) == []
    assert job.fire(RetryDue(due=4)) == []
    assert job.fire(CommitRetryDue(uid="out", checkpoint=0, due=4)) == []
    assert job.fire(StopDeadline(request="never asked")) == []
    assert job.expire(7) == []


def test_an_idle_job_takes_no_periodic_checkpoints():
    job = Job(interval=10 * SECOND, skip_idle=True)
    job.at = 10
    assert job.fire(tick(10)) == [wake_tick(20)]
    assert job.tell(ProgressMade) == []
    job.at = 20
    assert job.fire(tick(20)) == [wake_tick(30), *barrier(0, at=20)]
    job.complete(0, output(0))
    job.at = 30
    assert job.fire(tick(30)) == [wake_tick(40)], "nothing has come since"


def test_S5_an_idle_job_takes_one_more_checkpoint_so_that_the_log_calls_nothing_open_that_is_published():
    job = Job(interval=10 * SECOND, skip_idle=True)
    job.tell(ProgressMade)
    job.at = 10
    job.fire(tick(10))
    job.complete(0, output(0))
    job.returned(0)
    job.at = 20
    assert job.fire(tick(20)) == [wake_tick(30), *barrier(1, at=20)]
    assert job.ack(1) == [job.manifest(1, parent=0)]
    job.written(1)
    job.at = 30
    assert job.fire(tick(30)) == [wake_tick(40)]


def test_S5_an_idle_job_whose_recovery_published_something_takes_one_checkpoint_to_record_it():
    job = Job(start=False, interval=10 * SECOND, skip_idle=True)
    job.start(next_checkpoint=4, parent=3, settled=True)
    job.at = 10
    assert job.fire(tick(10)) == [wake_tick(20), *barrier(4, at=10)]
    job.complete(4)
    job.at = 20
    assert job.fire(tick(20)) == [wake_tick(30)]


def test_what_an_aborted_checkpoint_did_not_bring_home_keeps_an_idle_job_at_it():
    job = Job(interval=10 * SECOND, skip_idle=True, tolerable_failures=1)
    job.tell(ProgressMade)
    job.at = 10
    job.fire(tick(10))
    job.decline(0)
    job.at = 20

    assert job.fire(tick(20)) == [wake_tick(30), *barrier(1, at=20)]
