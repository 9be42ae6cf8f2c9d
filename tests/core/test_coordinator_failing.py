"""How the coordinator gives a checkpoint up, and when it gives up the run."""

import pytest

from core.checkpoint_values import output
from core.coordinator_kit import SECOND, Job, aborted, answer, barrier, discarded, tick, wake_tick
from penstock.checkpoint.events import (
    AbortReason,
    FailJob,
    ManifestFailed,
    NotifyCompleted,
    RequestOutcome,
    RetryDue,
    TaskFailed,
    WakeAt,
)
from penstock.errors import CheckpointAborted


@pytest.mark.mission("D8")
def test_a_timeout_names_the_late_tasks_and_what_they_were_doing():
    job = Job()
    job.request()
    job.ack_source(0)
    job.at = 60
    message = "timed out after 60 s, waiting for 'out' (writing part 3 of 7)"

    assert job.expire(0, out="writing part 3 of 7") == [
        aborted(0, AbortReason.EXPIRED, message),
        answer("r", RequestOutcome.FAILED, 0, message),
        FailJob(error=CheckpointAborted, message=f"checkpoint 0 failed: {message} (0 failures in a row are tolerated)"),
    ]


def test_a_timeout_of_tasks_nobody_knows_about_says_so():
    job = Job(tolerable_failures=1)
    job.request()

    [abort, *_] = job.expire(0, out="at rest")

    assert abort.message == "timed out after 60 s, waiting for 'in' (not known); 'out' (at rest)"


@pytest.mark.mission("L23")
def test_2_a_decline_aborts_at_once_and_the_next_request_is_served():
    job = Job(tolerable_failures=1)
    job.request("r0")
    job.request("r1")

    assert job.decline(0) == [
        aborted(0, AbortReason.DECLINED, "'out' declined: no"),
        answer("r0", RequestOutcome.FAILED, 0, "'out' declined: no"),
        *barrier(1),
    ]
    assert job.decline(0) == [], "once more does no harm"


def test_a_decline_by_another_runs_attempt_is_ignored():
    job = Job()
    job.request()

    assert job.decline(0, attempt="out-0") == []


def test_29_an_abort_tells_the_newest_checkpoint_in_the_log():
    job = Job(next_checkpoint=4, parent=2, tolerable_failures=1)
    job.request()
    assert job.decline(4)[0].last_completed == 2
    job.request()
    job.complete(5)
    job.request()
    assert job.decline(6)[0].last_completed == 5


COUNTED = [
    AbortReason.BARRIER_FAILED,
    AbortReason.SNAPSHOT_FAILED,
    AbortReason.EXPIRED,
    AbortReason.DECLINED,
    AbortReason.MANIFEST_FAILED,
]


@pytest.mark.mission("D8")
def test_53_exactly_five_reasons_count():
    assert [reason for reason in AbortReason if reason.is_counted] == COUNTED


@pytest.mark.mission("D8")
@pytest.mark.parametrize("reason", [reason for reason in AbortReason if reason.is_for_tasks])
def test_53_54_a_counted_decline_fails_the_job_past_the_limit_and_others_do_not(reason):
    job = Job()
    job.request()

    effects = job.decline(0, reason)

    assert any(isinstance(effect, FailJob) for effect in effects) == (reason in COUNTED)


def fail(job, checkpoint):
    job.request()
    return any(isinstance(effect, FailJob) for effect in job.decline(checkpoint))


@pytest.mark.mission("D8")
def test_54_failures_in_a_row_are_tolerated_up_to_the_limit_and_a_success_begins_anew():
    job = Job(tolerable_failures=2)

    assert [fail(job, 0), fail(job, 1)] == [False, False]
    job.request()
    job.complete(2)
    assert [fail(job, 3), fail(job, 4), fail(job, 5)] == [False, False, True]


def test_a_savepoint_that_times_out_fails_nobodys_job():
    job = Job()
    job.request("r", "save")

    [abort, told] = job.expire(0)

    assert (abort.reason, told.outcome) == (AbortReason.EXPIRED, RequestOutcome.FAILED)


def test_a_savepoint_that_a_task_cannot_make_counts():
    job = Job()
    job.request("r", "save")

    assert isinstance(job.decline(0, AbortReason.SNAPSHOT_FAILED)[-1], FailJob)


def test_19_a_failed_task_aborts_what_it_has_not_acknowledged_and_nothing_is_begun_any_more():
    job = Job()
    job.request("r0")
    job.request("r1")

    assert job.tell(TaskFailed, task="out", attempt="out-1", message="boom") == [
        aborted(0, AbortReason.TASK_FAILED, "'out' failed: boom"),
        answer("r0", RequestOutcome.FAILED, 0, "'out' failed: boom"),
    ]
    assert job.request("r2") == []


def test_a_task_that_fails_after_its_acknowledgement_does_not_abort():
    job = Job()
    job.request()
    job.ack_source(0)

    assert job.tell(TaskFailed, task="in", attempt="in-1", message="boom") == []
    assert job.ack_sink(0) == [job.manifest(0, fulfils=("r",))]


def test_a_failure_of_another_runs_attempt_is_ignored():
    job = Job()
    assert job.tell(TaskFailed, task="in", attempt="in-0", message="boom") == []
    assert job.request() == barrier(0)


@pytest.mark.parametrize("what", ["timeout", "decline", "failure"])
def test_33_L3_once_its_manifest_is_sent_a_checkpoint_cannot_be_aborted(what):
    job = Job()
    job.request()
    job.ack(0)
    act = {
        "timeout": lambda: job.expire(0),
        "decline": lambda: job.decline(0),
        "failure": lambda: job.tell(TaskFailed, task="out", attempt="out-1", message="boom"),
    }

    assert act[what]() == []
    assert job.written(0)[0] == NotifyCompleted(checkpoint=0)


@pytest.mark.mission("D8")
def test_16_a_manifest_that_surely_was_not_written_counts_and_its_output_goes_into_the_next():
    job = Job(tolerable_failures=1)
    job.request()
    job.ack(0, output(0))

    assert job.tell(ManifestFailed, checkpoint=0, definite=True, message="disk full") == [
        aborted(0, AbortReason.MANIFEST_FAILED, "disk full"),
        answer("r", RequestOutcome.FAILED, 0, "disk full"),
    ]
    job.request()
    assert job.ack(1, output(1)) == [job.manifest(1, output(0), output(1), fulfils=("r",))]


def test_output_may_still_be_handed_over_for_a_checkpoint_whose_manifest_was_not_written():
    job = Job(tolerable_failures=2)
    job.request()
    job.expire(0)
    job.request()
    job.ack(1)
    job.tell(ManifestFailed, checkpoint=1, definite=True, message="disk full")

    assert job.ack_sink(0, output(0)) == [discarded(0, "out", "out-1")]


def test_46_L3_a_manifest_of_unknown_fate_ends_the_run_without_an_abort():
    job = Job(tolerable_failures=9)
    job.request()
    job.ack(0, output(0))

    assert job.tell(ManifestFailed, checkpoint=0, definite=False, message="no answer") == [
        FailJob(error=CheckpointAborted, message="Whether checkpoint 0 is in the log is not known: no answer")
    ]
    assert job.written(0) == [], "the run is over; the next claim decides"


def test_C4_the_first_checkpoint_is_tried_again_after_a_pause_until_any_is_in_the_log():
    job = Job(initial=True, tolerable_failures=9)
    job.at = 1
    retry = RetryDue(due=2 * SECOND)
    assert job.decline(0)[1:] == [WakeAt(at=2 * SECOND, timer=retry)]
    assert job.request("r") == barrier(1, at=1), "a request need not wait"
    assert job.decline(1)[2:] == [], "the pause is running already"
    job.at = 2
    assert job.fire(retry) == barrier(2, at=2)
    assert job.complete(2) == [NotifyCompleted(checkpoint=2)]
    assert job.fire(retry) == []


def test_a_tick_waits_while_the_first_checkpoint_waits_for_its_retry():
    job = Job(initial=True, tolerable_failures=9, interval=10 * SECOND, retry_pause=60 * SECOND)
    job.decline(0)
    job.at = 10
    assert job.fire(tick(10)) == []
    job.at = 60
    assert job.fire(RetryDue(due=60 * SECOND)) == barrier(1, at=60)
    assert job.complete(1) == [NotifyCompleted(checkpoint=1), wake_tick(70), *barrier(2, at=60)]
