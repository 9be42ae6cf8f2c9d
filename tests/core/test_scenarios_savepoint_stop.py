"""Savepoints and stops, whole and half done. Numbers are Flink's scenarios; its drain is a source's own end here."""

from dataclasses import replace

import pytest

from core.attempt_kit import Attempt, numbers
from core.attempt_parts import SECOND, TARGET
from core.checkpoint_values import log_on, output
from core.coordinator_kit import DONE, FINAL, RETRY, SAVEPOINT, Job, aborted, answer, barrier, commit, stopped, tick
from penstock.checkpoint.entries import Stopped
from penstock.checkpoint.events import (
    AbortReason,
    AllSourcesDone,
    EndJob,
    FailJob,
    NotifyCompleted,
    RequestOutcome,
    RetryDue,
    StopDeadline,
    StoppedWritten,
    WakeAt,
)
from penstock.clock import MAX_WATERMARK
from penstock.elements import Barrier, Batch, EndOfStream, Watermark
from penstock.errors import CheckpointAborted, ConnectorError, StateIncompatible, StorageFailed
from penstock.facts import CheckpointFailed
from penstock.testing.filesystem import MemoryFileSystem

DOWN = StorageFailed("target is away")


def job_with_open(**settings):
    """A stop with a name, its final checkpoint in the log, output not yet published."""
    job = Job(**settings)
    job.stop("s", name="end", patience=5 * SECOND)
    assert job.complete(0, output(0)) == [NotifyCompleted(checkpoint=0), commit(output(0))]
    return job


def test_25_a_declined_final_checkpoint_fails_the_job_with_its_cause_and_tells_whoever_asked_to_stop():
    job = Job()
    job.stop("s", name="end")
    cause = "checkpoint 0 failed: 'out' declined: no (0 failures in a row are tolerated)"
    assert job.decline(0) == [
        aborted(0, AbortReason.DECLINED, "'out' declined: no"),
        FailJob(error=CheckpointAborted, message=cause),
    ]
    assert job.fails(cause) == [answer("s", RequestOutcome.FAILED, None, cause)]


def test_95_the_end_waits_for_its_checkpoint_and_a_later_one_may_be_it():
    job = Job(tolerable_failures=1)
    assert job.tell(AllSourcesDone) == barrier(0, FINAL)
    assert job.decline(0) == [
        aborted(0, AbortReason.DECLINED, "'out' declined: no"),
        WakeAt(at=SECOND, timer=RetryDue(due=SECOND)),
    ]
    job.at = 1
    assert job.request("r", "save") == barrier(1, SAVEPOINT, at=1), "a savepoint is not the end"
    assert job.fire(RetryDue(due=SECOND)) == []
    assert job.complete(1)[2:] == barrier(2, FINAL, at=1)
    assert job.complete(2) == [NotifyCompleted(checkpoint=2), stopped(job, 2)]


def test_95_a_stop_with_a_savepoint_while_the_end_is_awaited_names_the_checkpoint_that_is_taken_anyway():
    job = Job()
    job.tell(AllSourcesDone)
    assert job.stop("s", name="end") == []
    [write] = job.ack(0)
    assert [(pin.name, pin.checkpoint) for pin in write.manifest.pins] == [("end", 0)]
    assert job.written(0)[-1] == stopped(job, 0, "s")


def test_123_a_stop_that_fails_while_snapshots_are_made_is_told_and_the_next_attempt_goes_on():
    filesystem = MemoryFileSystem()
    first = Attempt(filesystem, total=2).settle()
    first.writer._filesystem = broken = MemoryFileSystem()
    broken.fail("create", DOWN)
    first.stop("s", name="end")
    assert first.answers == [("s", RequestOutcome.FAILED, None)]
    assert isinstance(first.error, CheckpointAborted)
    second = Attempt(filesystem, total=3).settle().ask("r")
    assert (second.recovery.restored, second.published) == (0, [1, 2, 3])
    assert second.owned.history.pins == {}, "no name was given"


def test_124_a_stop_that_fails_after_its_checkpoint_is_in_the_log_says_which_it_is_and_the_next_start_publishes_it():
    filesystem = MemoryFileSystem()
    first = Attempt(filesystem, total=2).settle()
    filesystem.fail("move", DOWN, times=1)
    first.stop("s", name="end")
    assert (first.answers, first.published) == ([], [])
    first.supervisor.failed("clean-up", DOWN)
    first.settle()
    assert first.answers == [("s", RequestOutcome.UNPUBLISHED, 1)]
    second = Attempt(filesystem, begin=False)
    assert second.published == [1, 2]
    assert (second.recovery.restored, second.owned.history.pins["end"].checkpoint) == (1, 1)


def test_125_whoever_stops_with_a_savepoint_that_cannot_be_published_is_told_that_it_was_taken():
    job = job_with_open()
    job.returned(0, RETRY)
    job.at = 5
    taken = "Checkpoint 0 is taken, not yet published: #0 of 'out'. The next start publishes it."
    assert job.fire(StopDeadline(request="s")) == [
        answer("s", RequestOutcome.UNPUBLISHED, 0, taken),
        EndJob(published=False),
    ]
    assert job.fails("later") == [], "that was the answer"


def test_126_an_end_that_is_aborted_restarts_every_task_from_the_last_checkpoint():
    filesystem = MemoryFileSystem()
    first = Attempt(filesystem, total=2).settle().ask("r")
    first.reader.total = 4
    first.clock.at = 10**13
    first.workers.held.add("out-snapshot")
    first.settle().stop("s")
    first.supervisor.failed("in", ConnectorError("gone"))
    first.settle()
    assert [fact.checkpoint for fact in first.seen(CheckpointFailed)] == [2]
    assert "stop in" in first.story
    assert "stop out" in first.story
    second = Attempt(filesystem, total=4).settle()
    assert second.story[:3] == ["job started", "start in", "start out"]
    assert second.recovery.restored == 1
    second.stop("s")
    assert second.published == [1, 2, 3, 4]


@pytest.mark.mission("L1")
def test_127_a_source_that_ends_closes_event_time_before_the_final_barrier_and_a_stopped_one_leaves_it():
    def passed(*, ends, **stop):
        seen = []
        attempt = Attempt(MemoryFileSystem(), total=1, ends=ends, begin=False)
        output = attempt.wiring.tasks["in"]._output
        put = output._channels[0].put
        output._channels[0].put = lambda element: (seen.append(element), put(element))
        attempt.supervisor.begin(attempt.wiring)
        attempt.settle()
        if not ends:
            attempt.stop(**stop)
        assert attempt.published == [1]
        return [element if not isinstance(element, Batch) else "batch" for element in seen]

    first, final = Barrier(checkpoint=0), Barrier(checkpoint=1, kind=FINAL)
    assert passed(ends=True) == [first, "batch", Watermark(at=MAX_WATERMARK), final, EndOfStream()]
    assert passed(ends=False) == [first, "batch", final, EndOfStream()]
    assert passed(ends=False, drain=True) == [first, "batch", Watermark(at=MAX_WATERMARK), final, EndOfStream()]


def test_127_what_the_end_of_time_brings_about_is_in_the_final_snapshot():
    attempt = Attempt(MemoryFileSystem(), total=1, ends=True, begin=False)
    work, order = attempt.wiring.tasks["out"]._logic, []
    work.advance = lambda watermark, **_: order.append(("advance", watermark))
    snapshot = work.snapshot
    work.snapshot = lambda checkpoint: (order.append(("snapshot", checkpoint)), snapshot(checkpoint))[1]
    attempt.supervisor.begin(attempt.wiring)
    attempt.settle()
    assert order == [("snapshot", 0), ("advance", MAX_WATERMARK), ("snapshot", 1)]


def test_126_a_drain_whose_savepoint_fails_has_drained_nothing():
    filesystem = MemoryFileSystem()
    first = Attempt(filesystem, total=2).settle()
    first.writer._filesystem = broken = MemoryFileSystem()
    broken.fail("create", DOWN)
    first.stop("s", name="end", drain=True)
    assert first.answers == [("s", RequestOutcome.FAILED, None)]
    second = Attempt(filesystem, total=4).settle()
    second.stop("t")
    assert second.published == [1, 2, 3, 4], "the sources go on as if nothing had been asked"
    assert "end" not in second.owned.history.pins


def test_127_what_was_drained_refuses_more_rows_and_a_checkpoint_before_it_does_not():
    filesystem = MemoryFileSystem()
    first = Attempt(filesystem, total=2).settle().ask("r", name="open")
    first.stop("s", name="end", drain=True)
    assert first.answers[-1] == ("s", RequestOutcome.DONE, 2)
    assert first.published == [1, 2]
    second = Attempt(filesystem, total=4).settle()
    assert isinstance(second.error, StateIncompatible)
    assert "ended in an earlier run, or was drained" in str(second.error)
    third = Attempt(filesystem, total=4, rewind={"rewind_to": 1}).settle()
    third.stop("t")
    assert third.published == [1, 2, 3, 4]


def test_127_a_drain_that_comes_after_the_barriers_of_a_plain_stop_is_refused():
    job = Job()
    assert job.stop("s") == barrier(0, FINAL)
    refused = answer("d", RequestOutcome.REFUSED, None, AbortReason.STOPPING.value)
    assert job.stop("d", drain=True) == [refused]
    job.complete(0)
    assert job.stop("e", drain=True) == [replace(refused, request="e")]


def test_126_a_savepoint_between_a_drain_that_failed_and_its_next_try_is_refused_for_it_would_record_the_drain():
    job = Job(tolerable_failures=1)
    job.stop("s", drain=True)
    job.decline(0)
    assert job.request("r", "save") == [answer("r", RequestOutcome.REFUSED, None, AbortReason.STOPPING.value)]
    job.at = SECOND
    inject, _ = job.fire(RetryDue(due=SECOND))
    assert (inject.kind, inject.drain) == (FINAL, True)


def test_127_a_second_drain_joins_the_first_and_a_plain_stop_joins_both():
    job = Job()
    [inject, _] = job.stop("s", drain=True)
    assert inject.drain
    assert job.stop("d", name="end", drain=True) == []
    assert job.stop("p") == []
    [write] = job.ack(0)
    assert [pin.name for pin in write.manifest.pins] == ["end"]
    assert job.written(0)[-1] == stopped(job, 0, "s", "d", "p")


def test_127_a_drain_that_waits_for_a_checkpoint_ends_the_sources_only_with_the_last_one():
    job = Job()
    assert job.request("r", "save") == barrier(0, SAVEPOINT)
    assert job.stop("s", drain=True) == []
    *_, inject, _ = job.complete(0)
    assert (inject.kind, inject.drain) == (FINAL, True)


@pytest.mark.parametrize("first", ["commit", "patience"])
def test_130_published_or_out_of_patience_whichever_comes_first_decides_and_the_other_changes_nothing(first):
    job = job_with_open()
    deadline = StopDeadline(request="s")
    if first == "commit":
        assert job.returned(0) == [stopped(job, 0, "s")]
        assert job.fire(deadline) == []
        assert job.tell(StoppedWritten, entry=2) == [
            answer("s", RequestOutcome.DONE, 0, "stopped, everything is published"),
            EndJob(published=True),
        ]
    else:
        assert [type(effect).__name__ for effect in job.fire(deadline)] == ["AnswerRequest", "EndJob"]
        assert job.returned(0, DONE) == []


def test_130_a_run_that_fails_while_it_says_that_it_stopped_does_not_know_whether_it_did():
    job = job_with_open()
    job.returned(0)
    assert job.fails("fenced") == [answer("s", RequestOutcome.UNKNOWN, 0, "fenced")]


def test_130_nor_while_the_final_manifest_is_on_its_way():
    job = Job()
    job.stop("s", name="end")
    job.ack(0)
    assert job.fails("fenced") == [answer("s", RequestOutcome.UNKNOWN, None, "fenced")]


def test_130_after_an_end_that_failed_requests_are_served_and_ticks_wait_for_the_next_try():
    """Flink turns its scheduler on again and runs on; a job of ours that is to end tries that again, and is asked."""
    job = Job(interval=10 * SECOND, tolerable_failures=1, retry_pause=15 * SECOND)
    job.stop("s")
    job.decline(0)
    job.at = 10
    assert job.fire(tick(10)) == []
    assert job.request("r") == barrier(1, at=10)
    job.complete(1)
    job.at = 15
    assert job.fire(RetryDue(due=15 * SECOND)) == barrier(2, FINAL, at=15)
    job.complete(2)
    assert job.tell(StoppedWritten, entry=2)[0] == answer(
        "s", RequestOutcome.DONE, 2, "stopped, everything is published"
    )


def test_130_a_stop_ends_with_everything_published_and_an_entry_that_says_so():
    filesystem = MemoryFileSystem()
    attempt = Attempt(filesystem, total=3).settle()
    filesystem.fail("move", DOWN, times=2)
    attempt.stop("s", name="end")
    assert attempt.answers == [], "it waits for the target"
    assert attempt.go_on(1).answers == []
    assert attempt.go_on(2).answers == [("s", RequestOutcome.DONE, 1)]
    assert numbers(filesystem, f"{TARGET}/part-") == [1, 2, 3]
    [*_, last] = log_on(filesystem)[0].read().entries
    assert last.body == Stopped(checkpoint=1, at=attempt.clock.at, fulfils=("s",))
