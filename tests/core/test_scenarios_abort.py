"""How a checkpoint comes to nothing, and what is left of it. Numbers are Flink's scenarios, for one that is pending."""

import pytest

from core.checkpoint_values import output, wrote
from core.coordinator_kit import (
    SAVEPOINT,
    SECOND,
    Job,
    aborted,
    answer,
    barrier,
    commit,
    discarded,
    tick,
)
from penstock.checkpoint.events import (
    AbortReason,
    AckResult,
    FailJob,
    RequestOutcome,
    TaskAcknowledged,
    TaskDeclined,
    TaskFailed,
)
from penstock.errors import CheckpointAborted, InternalError
from penstock.facts import CheckpointCompleted, CheckpointFailed
from penstock.observability.report import ReportCollector


def test_3_a_decline_of_one_leaves_the_other_alive():
    """Two cannot be pending; the one that waits is alive, and a second decline of the first does not reach it."""
    job = Job(tolerable_failures=1)
    job.request("r0")
    job.request("r1", "save")
    assert job.decline(0)[2:] == barrier(1, SAVEPOINT)
    job.ack_source(1)
    assert job.decline(0, task="in", attempt="in-1") == []
    [write] = job.ack_sink(1)
    assert (write.manifest.checkpoint, write.manifest.fulfils) == (1, ("r1",))


def test_6_a_time_out_commits_nothing_and_says_nothing_of_completion():
    job = Job(tolerable_failures=1)
    job.request("r")
    job.ack_sink(0, output(0))
    job.at = 60
    message = "timed out after 60 s, waiting for 'in' (polling)"
    assert job.expire(0, **{"in": "polling"}) == [
        aborted(0, AbortReason.EXPIRED, message),
        answer("r", RequestOutcome.FAILED, 0, message),
    ]
    assert job.ack_source(0) == [discarded(0, "in", "in-1")], "the last acknowledgement comes too late to complete it"
    assert job.expire(0) == []


STRANGERS = {
    "an acknowledgement": lambda job: job.tell(
        TaskAcknowledged, checkpoint=0, attempt="out-0", snapshot=wrote(output(0))
    ),
    "a decline": lambda job: job.decline(0, attempt="out-0"),
    "a failure": lambda job: job.tell(TaskFailed, task="out", attempt="out-0", message="boom"),
    "a decline of a checkpoint that is over": lambda job: job.tell(
        TaskDeclined, checkpoint=-1, task="in", attempt="in-1", reason=AbortReason.DECLINED, message="no"
    ),
    "the time-out of a checkpoint that is over": lambda job: job.expire(-1),
}


@pytest.mark.parametrize("what", STRANGERS)
def test_7_what_comes_from_other_runs_or_for_other_checkpoints_does_not_touch_the_pending_one(what):
    job = Job()
    job.request()
    lost = [discarded(0, "out", "out-0", AckResult.UNKNOWN)] if what == "an acknowledgement" else []

    assert STRANGERS[what](job) == lost

    assert job.ack(0, output(0)) == [job.manifest(0, output(0), fulfils=("r",))]


def test_7_an_acknowledgement_of_a_checkpoint_that_was_never_begun_is_a_bug_and_changes_nothing():
    job = Job()
    job.request()
    with pytest.raises(InternalError, match="'in' acknowledged checkpoint 1, which was never begun"):
        job.ack_source(1)
    assert job.ack(0) == [job.manifest(0, fulfils=("r",))]


def test_26_a_job_fails_once_more_fail_than_it_tolerates_whatever_the_counted_reason():
    for act in (lambda job, n: job.expire(n), lambda job, n: (job.ack(n), job.not_written(n))[1]):
        job = Job(tolerable_failures=1)
        job.request("r0")
        assert not any(isinstance(effect, FailJob) for effect in act(job, 0))
        job.request("r1")
        assert isinstance(act(job, 1)[-1], FailJob)


def test_28_45_a_manifest_that_cannot_be_stored_is_reported_fails_the_job_and_publishes_nothing():
    job = Job()
    job.request("r")
    job.ack(0, output(0))
    text = "checkpoint 0 failed: disk full (0 failures in a row are tolerated)"
    effects = job.not_written(0)
    assert effects == [
        aborted(0, AbortReason.MANIFEST_FAILED, "disk full"),
        answer("r", RequestOutcome.FAILED, 0, "disk full"),
        FailJob(error=CheckpointAborted, message=text),
    ]
    assert job.fails(text) == [], "all are answered, nothing is pending"


def test_28_38_the_counts_are_right_after_a_failure_and_after_what_comes_late():
    tally = ReportCollector(sources=frozenset({"in"}), sinks=frozenset({"out"}))
    tally(CheckpointFailed(checkpoint=0, reason="manifest_failed", message="disk full"))
    first = tally.report()
    assert (first.checkpoints, first.failed_checkpoints, first.last_checkpoint) == (0, 1, None)
    tally(CheckpointCompleted(checkpoint=1, kind="periodic", duration_ms=1.0, bytes=0, committables=0))
    second = tally.report()
    assert (second.checkpoints, second.failed_checkpoints, second.last_checkpoint) == (1, 1, 1)


@pytest.mark.parametrize("snapshot", [wrote(), wrote(output(0))], ids=["empty", "with output"])
def test_38_a_late_acknowledgement_is_told_to_observers_once_and_counts_for_nothing(snapshot):
    job = Job(tolerable_failures=1)
    job.request()
    job.decline(0)
    late = {"checkpoint": 0, "attempt": "out-1", "snapshot": snapshot}
    assert job.tell(TaskAcknowledged, **late) == [discarded(0, "out", "out-1")]
    assert job.tell(TaskAcknowledged, **late) == []
    assert job.ack_source(0) == [discarded(0, "in", "in-1")]


def test_32_the_time_out_also_covers_a_source_that_has_not_sent_its_barrier():
    """Flink's sources have a coordinator to snapshot first; ours sends a barrier, when it comes to it."""
    job = Job(tolerable_failures=1, timeout=5 * SECOND)
    assert job.request() == barrier(0, timeout=5)
    job.at = 5
    [abort, _] = job.expire(0, **{"in": "polling", "out": "idle"})
    assert abort.message == "timed out after 5 s, waiting for 'in' (polling); 'out' (idle)"


def test_33_a_run_that_fails_between_the_last_acknowledgement_and_the_log_aborts_nothing_and_says_so():
    job = Job()
    job.request("r", "save")
    job.ack(0, output(0))
    assert job.fails("fenced") == [answer("r", RequestOutcome.UNKNOWN, 0, "fenced")]
    assert job.written(0) == [], "the next owner finds it in the log, and publishes"


def test_33_a_run_that_fails_before_the_last_acknowledgement_aborts_and_answers_everybody():
    job = Job(next_checkpoint=4, parent=2)
    job.request("r0", "save")
    job.request("r1")
    job.request("r2", "another")
    job.ack_source(4)
    assert job.fails("out of memory") == [
        aborted(4, AbortReason.RUN_FAILED, "out of memory", last=2),
        answer("r0", RequestOutcome.FAILED, 4, "out of memory"),
        answer("r2", RequestOutcome.REFUSED, None, AbortReason.STOPPING.value),
        answer("r1", RequestOutcome.REFUSED, None, AbortReason.STOPPING.value),
    ]
    assert job.fails("again") == []
    assert job.ack_sink(4, output(4)) == []


@pytest.mark.mission("L10")
def test_35_after_a_failure_the_late_are_refused_and_timers_do_nothing():
    job = Job(interval=10 * SECOND)
    job.fails("boom")
    job.at = 10
    assert job.fire(tick(10)) == []
    assert job.request("r") == [answer("r", RequestOutcome.REFUSED, None, "the job is ending")]
    assert job.stop("s") == [answer("s", RequestOutcome.REFUSED, None, "the job is ending")]


def test_45_what_could_not_be_stored_is_published_by_the_next_that_is():
    job = Job(tolerable_failures=1)
    job.request()
    job.ack(0, output(0))
    job.not_written(0)
    job.request()
    assert job.ack(1) == [job.manifest(1, output(0), fulfils=("r",))]
    assert job.written(1)[2:] == [commit(output(0))]


def test_46_when_the_fate_of_a_manifest_is_not_known_nothing_is_aborted_and_its_asker_is_told_just_that():
    job = Job(tolerable_failures=9)
    job.request("r", "save")
    job.ack(0, output(0))
    [fail] = job.not_written(0, "no answer", definite=False)
    assert isinstance(fail, FailJob)
    assert job.fails(fail.message) == [answer("r", RequestOutcome.UNKNOWN, 0, fail.message)]
