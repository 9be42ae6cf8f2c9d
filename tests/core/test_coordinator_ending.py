"""How a run ends in order: the final checkpoint, everything published, an entry that says so."""

import pytest

from core.checkpoint_values import output
from core.coordinator_kit import FINAL, RETRY, SAVEPOINT, SECOND, Job, aborted, answer, barrier, commit, stopped, tick
from penstock.checkpoint.entries import Pin
from penstock.checkpoint.events import (
    AbortReason,
    AllSourcesDone,
    CommitRetryDue,
    EndJob,
    FailJob,
    NotifyCompleted,
    ProgressMade,
    RequestOutcome,
    RetryDue,
    StopDeadline,
    StoppedWritten,
    WakeAt,
)
from penstock.errors import InternalError

STOPPED = "stopped, everything is published"


def test_when_all_sources_are_done_the_final_checkpoint_is_taken_at_once():
    job = Job(interval=10 * SECOND, min_pause=60 * SECOND, skip_idle=True)

    assert job.tell(AllSourcesDone) == barrier(0, FINAL)
    assert job.complete(0, output(0)) == [NotifyCompleted(checkpoint=0), commit(output(0))]
    assert job.returned(0) == [stopped(job, 0)]
    assert job.tell(StoppedWritten, entry=2) == [EndJob(published=True)]


def test_the_final_checkpoint_waits_for_the_one_under_way_and_for_requests():
    job = Job(interval=10 * SECOND)
    job.at = 10
    job.fire(tick(10))
    job.tell(AllSourcesDone)
    job.request("r", "save")

    assert job.complete(0) == [NotifyCompleted(checkpoint=0), *barrier(1, SAVEPOINT, at=10)]
    assert job.complete(1)[2:] == barrier(2, FINAL, at=10)
    job.at = 20
    assert job.fire(tick(20)) == []
    assert job.complete(2) == [NotifyCompleted(checkpoint=2), stopped(job, 2)]


def test_C2_stop_answers_stopped_only_after_an_entry_that_says_so_with_nothing_open():
    job = Job()

    assert job.stop() == barrier(0, FINAL)
    [write] = job.ack(0, output(0))
    assert write.manifest.pins == ()
    assert write.manifest.fulfils == (), "it is fulfilled by the stopped entry"
    assert job.written(0) == [NotifyCompleted(checkpoint=0), commit(output(0))]
    assert job.returned(0, RETRY) == [
        WakeAt(at=SECOND, timer=CommitRetryDue(uid="out", checkpoint=0, due=SECOND)),
    ]
    job.at = 1
    job.fire(CommitRetryDue(uid="out", checkpoint=0, due=SECOND))
    assert job.returned(0) == [stopped(job, 0, "s")]
    assert job.tell(StoppedWritten, entry=2) == [
        answer("s", RequestOutcome.DONE, 0, STOPPED),
        EndJob(published=True),
    ]


def test_a_stop_with_a_savepoint_pins_the_final_checkpoint():
    job = Job()
    job.stop("s", name="end", owner="me")

    [write] = job.ack(0)

    assert write.manifest.pins == (Pin(name="end", checkpoint=0, at=job.wall, owner="me", request="s"),)


def test_several_stops_end_in_one_checkpoint_and_are_all_answered():
    job = Job()
    job.stop("s1")
    assert job.stop("s2", name="end") == []
    [write] = job.ack(0)
    assert [pin.name for pin in write.manifest.pins] == ["end"]
    assert job.stop("s3") == [], "without a name it can still join"
    assert job.stop("s4", name="late") == [answer("s4", RequestOutcome.REFUSED, None, "the job is ending")]

    assert job.written(0) == [NotifyCompleted(checkpoint=0), stopped(job, 0, "s1", "s2", "s3")]
    assert job.tell(StoppedWritten, entry=2) == [
        *(answer(request, RequestOutcome.DONE, 0, STOPPED) for request in ("s1", "s2", "s3")),
        EndJob(published=True),
    ]


def test_C3_a_stop_that_comes_while_the_entry_is_on_its_way_is_not_in_it_and_is_not_said_to_be_done():
    job = Job()
    job.stop("s1")
    assert job.complete(0)[-1] == stopped(job, 0, "s1")

    assert job.stop("s2", patience=SECOND) == [answer("s2", RequestOutcome.REFUSED, None, "the job is ending")]
    assert job.tell(StoppedWritten, entry=2) == [answer("s1", RequestOutcome.DONE, 0, STOPPED), EndJob(published=True)]


def test_C2_whoever_does_not_wait_longer_is_told_what_is_not_published():
    job = Job()
    assert job.stop(patience=5 * SECOND)[-1] == WakeAt(at=5 * SECOND, timer=StopDeadline(request="s"))
    job.complete(0, output(0), output(0, "two"))
    job.returned(0)
    job.at = 5

    assert job.fire(StopDeadline(request="s")) == [
        answer(
            "s",
            RequestOutcome.UNPUBLISHED,
            0,
            "Checkpoint 0 is taken, not yet published: #0 of 'two'. The next start publishes it.",
        ),
        EndJob(published=False),
    ]
    assert job.returned(0, uid="two") == [], "the run is over"


def test_C2_patience_may_end_before_the_final_checkpoint_does():
    job = Job()
    job.stop(patience=SECOND)
    job.at = 1
    assert job.fire(StopDeadline(request="s")) == [], "the checkpoint has a time of its own"

    assert job.complete(0, output(0))[-1] == EndJob(published=False)


def test_C2_patience_that_ends_while_stopped_is_being_written_changes_nothing():
    job = Job()
    job.stop(patience=SECOND)
    job.complete(0)

    assert job.fire(StopDeadline(request="s")) == []


def test_a_final_checkpoint_that_fails_is_tried_again_while_failures_are_tolerated():
    job = Job(tolerable_failures=1)
    job.stop()
    retry = RetryDue(due=SECOND)
    assert job.decline(0) == [
        aborted(0, AbortReason.DECLINED, "'out' declined: no"),
        WakeAt(at=SECOND, timer=retry),
    ]
    job.at = 1
    assert job.fire(retry) == barrier(1, FINAL, at=1)
    assert isinstance(job.decline(1)[-1], FailJob)


@pytest.mark.mission("L10")
def test_35_requests_are_refused_once_the_final_checkpoint_has_begun():
    job = Job()
    refused = [answer("r", RequestOutcome.REFUSED, None, "the job is ending")]
    job.stop()
    assert job.request() == refused
    job.ack(0)
    assert job.request() == refused
    job.written(0)
    assert job.request() == refused
    job.tell(StoppedWritten, entry=2)
    assert job.request() == refused
    assert job.stop("r") == refused


def test_after_the_end_nothing_that_comes_late_matters():
    job = Job(interval=10 * SECOND)
    job.tell(AllSourcesDone)
    job.complete(0)
    job.tell(StoppedWritten, entry=2)

    assert job.fire(tick(10)) == []
    assert job.ack_source(0) == []
    assert job.returned(0) == []
    assert job.tell(ProgressMade) == []
    with pytest.raises(InternalError, match="The job was started before"):
        job.start(next_checkpoint=1)
