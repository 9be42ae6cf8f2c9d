"""The coordinator: events in, whole effect lists out. Rule ids are those of the protocol."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.checkpoint_values import STEPS, file, output, read_to, wrote
from penstock.checkpoint.coordinator import STORY, Coordinator, CoordinatorSettings
from penstock.checkpoint.entries import Manifest, Pin, Stopped
from penstock.checkpoint.messages import (
    AbortCheckpoint,
    AbortReason,
    AckResult,
    AllSourcesDone,
    Answer,
    AnswerRequest,
    CheckpointDeadline,
    CheckpointRequested,
    Commit,
    CommitRetryDue,
    CommitReturned,
    DiscardSnapshot,
    EndJob,
    FailJob,
    InjectBarrier,
    JobStarted,
    ManifestFailed,
    ManifestWritten,
    NotifyCompleted,
    PeriodicDue,
    ProgressMade,
    RetryDue,
    StopDeadline,
    StoppedWritten,
    StopRequested,
    TaskAcknowledged,
    TaskDeclined,
    TaskFailed,
    TaskFinished,
    TimerFired,
    WakeAt,
    WriteManifest,
    WriteStopped,
)
from penstock.elements import CheckpointKind
from penstock.errors import CheckpointAborted, InternalError
from penstock.handles import CommitOutcome, TaskSnapshot

SECOND = 1_000_000
PERIODIC, SAVEPOINT, FINAL = CheckpointKind.PERIODIC, CheckpointKind.SAVEPOINT, CheckpointKind.FINAL
DONE, RETRY, UNKNOWN = CommitOutcome.DONE, CommitOutcome.RETRY, CommitOutcome.UNKNOWN


class Job:
    """A coordinator under test: one source, one sink; time in seconds, moved by hand."""

    def __init__(self, *, start=True, open=(), parent=None, next_checkpoint=0, initial=False, **settings):
        settings = {"interval": None, "timeout": 60 * SECOND, "skip_idle": False, **settings}
        self.coordinator = Coordinator(CoordinatorSettings(**settings))
        self.at = 0
        self.started = ()
        if start:
            self.started = self.start(open=open, parent=parent, next_checkpoint=next_checkpoint, initial=initial)

    def tell(self, event, **fields):
        return self.coordinator.handle(event(at=round(self.at * SECOND), wall=self.wall, **fields))

    @property
    def wall(self):
        return round(1_000 * SECOND + self.at * SECOND)

    def start(self, **fields):
        return self.tell(JobStarted, attempts={"in": "in-1", "out": "out-1"}, sources=("in",), steps=STEPS, **fields)

    def ack_source(self, checkpoint, offset=None):
        snapshot = read_to(checkpoint if offset is None else offset)
        return self.tell(TaskAcknowledged, checkpoint=checkpoint, attempt="in-1", snapshot=snapshot)

    def ack_sink(self, checkpoint, *items):
        return self.tell(TaskAcknowledged, checkpoint=checkpoint, attempt="out-1", snapshot=wrote(*items))

    def ack(self, checkpoint, *items):
        assert self.ack_source(checkpoint) == []
        return self.ack_sink(checkpoint, *items)

    def written(self, checkpoint):
        return self.tell(ManifestWritten, checkpoint=checkpoint, entry=checkpoint + 1)

    def complete(self, checkpoint, *items):
        [write] = self.ack(checkpoint, *items)
        assert write.manifest.checkpoint == checkpoint
        return self.written(checkpoint)

    def request(self, request="r", name=None, **rest):
        return self.tell(CheckpointRequested, request=request, name=name, **rest)

    def stop(self, request="s", **rest):
        return self.tell(StopRequested, request=request, **rest)

    def fire(self, timer, **doing):
        return self.tell(TimerFired, timer=timer, doing=doing)

    def expire(self, checkpoint, **doing):
        return self.fire(CheckpointDeadline(checkpoint=checkpoint), **doing)

    def decline(self, checkpoint, reason=AbortReason.DECLINED, *, task="out", attempt="out-1"):
        return self.tell(TaskDeclined, checkpoint=checkpoint, task=task, attempt=attempt, reason=reason, message="no")

    def returned(self, checkpoint, outcome=DONE, uid="out"):
        return self.tell(CommitReturned, uid=uid, checkpoint=checkpoint, outcome=outcome)

    def manifest(self, checkpoint, *open, parent=None, kind=PERIODIC, triggered=None, sink=(), **rest):
        return WriteManifest(
            manifest=Manifest(
                checkpoint=checkpoint,
                kind=kind,
                parent=parent,
                triggered=self.wall if triggered is None else triggered,
                completed=self.wall,
                steps=STEPS,
                tasks=(read_to(checkpoint), wrote()),
                open=open,
                **rest,
            )
        )


def barrier(checkpoint, kind=PERIODIC, *, at=0, timeout=60, sources=("in",)):
    return [
        InjectBarrier(checkpoint=checkpoint, kind=kind, sources=sources),
        WakeAt(at=round((at + timeout) * SECOND), timer=CheckpointDeadline(checkpoint=checkpoint)),
    ]


def tick(at):
    return PeriodicDue(due=round(at * SECOND))


def wake_tick(at):
    return WakeAt(at=round(at * SECOND), timer=tick(at))


def aborted(checkpoint, reason, message, last=None):
    return AbortCheckpoint(checkpoint=checkpoint, reason=reason, message=message, last_completed=last)


def answer(request, kind, checkpoint, message):
    return AnswerRequest(request=request, answer=kind, checkpoint=checkpoint, message=message)


def discarded(checkpoint, task, attempt, result=AckResult.DISCARDED):
    return DiscardSnapshot(checkpoint=checkpoint, task=task, attempt=attempt, result=result)


def commit(item, attempt=1):
    return Commit(item=item, attempt=attempt)


# ---------------------------------------------------------------------------------------------- the simple checkpoint


@pytest.mark.mission("L22")
def test_a_requested_checkpoint_goes_from_barrier_to_publication():
    job = Job(next_checkpoint=5, parent=3)

    assert job.started == []
    assert job.request() == barrier(5)
    assert job.ack_source(5) == []
    assert job.ack_sink(5, output(5)) == [job.manifest(5, output(5), parent=3, fulfils=("r",))]
    assert job.written(5) == [
        NotifyCompleted(checkpoint=5),
        answer("r", Answer.DONE, 5, "in the log"),
        commit(output(5)),
    ]
    assert job.returned(5) == []


def test_the_next_checkpoint_has_the_last_one_as_parent_and_a_higher_id():
    job = Job(next_checkpoint=5, parent=3)
    job.request()
    job.complete(5)

    assert job.request() == barrier(6)
    assert job.ack(6) == [job.manifest(6, parent=5, fulfils=("r",))]


def test_C3_a_savepoint_is_pinned_and_its_request_fulfilled_by_its_own_manifest():
    job = Job()

    assert job.request("r7", "before-v2", owner="me") == barrier(0, SAVEPOINT)
    pins = (Pin(name="before-v2", checkpoint=0, at=job.wall, owner="me", request="r7"),)
    assert job.ack(0) == [job.manifest(0, kind=SAVEPOINT, pins=pins, fulfils=("r7",))]


def test_C4_a_new_log_begins_with_a_checkpoint_before_any_batch():
    job = Job(initial=True, interval=5 * SECOND)

    assert job.started == [wake_tick(5), *barrier(0)]
    assert job.complete(0) == [NotifyCompleted(checkpoint=0)]


@pytest.mark.mission("L22")
def test_C1_one_checkpoint_is_pending_at_a_time_savepoints_included():
    job = Job()
    job.request("r0")

    assert job.request("r1") == []
    assert job.request("r2", "save") == []
    job.ack_source(0)
    [_] = job.ack_sink(0)
    assert job.request("r3", "save-too") == [], "nor while its manifest is on its way"
    assert job.written(0)[2:] == barrier(1, SAVEPOINT), "savepoints go first"
    assert job.complete(1)[2:] == barrier(2, SAVEPOINT)
    assert job.complete(2)[2:] == barrier(3)
    assert job.complete(3)[2:] == []


def test_too_many_requests_are_refused_and_say_so():
    job = Job(max_queued=1)
    job.request("pending")
    job.request("queued")

    assert job.request("r") == [answer("r", Answer.REFUSED, None, "too many requests are queued")]


# ----------------------------------------------------------------------------------------------------------- the pace


def test_periodic_checkpoints_keep_the_beat_of_the_start():
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


def test_a_pause_after_each_checkpoint_delays_periodic_ones_only():
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


# ---------------------------------------------------------------------------------------------------- acknowledgements


def test_a_repeated_acknowledgement_is_ignored_with_what_it_brings():
    job = Job()
    job.request()
    job.ack_sink(0, output(0))

    assert job.ack_sink(0, output(0, name="other")) == []
    assert job.ack_source(0) == [job.manifest(0, output(0), fulfils=("r",))]
    assert job.ack_sink(0, output(0)) == [], "and while the manifest is on its way"
    job.written(0)
    assert job.ack_sink(0, output(0)) == [], "and after it"


def test_an_acknowledgement_of_an_attempt_of_another_run_is_discarded_and_carried_nowhere():
    job = Job()
    job.request()

    effects = job.tell(TaskAcknowledged, checkpoint=0, attempt="out-0", snapshot=wrote(output(0)))

    assert effects == [discarded(0, "out", "out-0", AckResult.UNKNOWN)]
    assert job.ack(0) == [job.manifest(0, fulfils=("r",))]


@pytest.mark.mission("L23")
def test_S2_output_acknowledged_late_for_an_aborted_checkpoint_goes_into_the_next():
    job = Job(tolerable_failures=1)
    job.request()
    job.expire(0)

    assert job.ack_sink(0, output(0)) == [discarded(0, "out", "out-1")]
    assert job.ack_sink(0, output(0)) == [], "the same once more is a duplicate"
    job.request()
    assert job.ack(1, output(1)) == [job.manifest(1, output(0), output(1), fulfils=("r",))]
    assert job.written(1)[2:] == [commit(output(0))]
    assert job.returned(0) == [commit(output(1))]


def test_S2_output_acknowledged_in_time_for_an_aborted_checkpoint_goes_into_the_next():
    job = Job(tolerable_failures=1)
    job.request()
    job.ack_sink(0, output(0))
    job.expire(0)
    job.request()

    assert job.ack(1, output(0), output(1)) == [job.manifest(1, output(0), output(1), fulfils=("r",))], "once only"


def test_S2_output_that_a_manifest_has_passed_without_it_is_a_broken_promise():
    job = Job(tolerable_failures=1)
    job.request()
    job.expire(0)
    job.request()
    job.ack(1)

    with pytest.raises(InternalError, match=r"'out' handed over output of checkpoint 0 after the manifest of .* 1"):
        job.ack_sink(0, output(0))
    assert job.written(1)[0] == NotifyCompleted(checkpoint=1), "nothing has changed"


def test_late_acknowledgements_are_told_apart_for_a_while():
    job = Job(tolerable_failures=100)
    for checkpoint in range(20):
        job.request()
        job.expire(checkpoint)

    for _ in range(2):
        assert job.ack_source(0) == [discarded(0, "in", "in-1")], "too long ago to remember"
    assert job.ack_source(19) == [discarded(19, "in", "in-1")]
    assert job.ack_source(19) == []


def test_a_finished_task_is_not_waited_for_and_its_last_snapshot_stands_in():
    job = Job()
    assert job.tell(TaskFinished, attempt="in-1", snapshot=read_to(99)) == []

    assert job.request() == barrier(0, sources=())
    [write] = job.ack_sink(0)
    assert write.manifest.tasks == (read_to(99), wrote())


def test_a_task_that_finishes_before_its_barrier_acknowledges_by_it():
    job = Job()
    job.request()
    job.ack_source(0)

    [write] = job.tell(TaskFinished, attempt="out-1", snapshot=wrote(output(0)))

    assert write.manifest.open == (output(0),)
    assert write.manifest.tasks == (read_to(0), wrote())


def test_a_task_that_finishes_after_its_acknowledgement_changes_nothing_of_it():
    job = Job()
    job.request()
    job.ack_source(0, offset=4)

    assert job.tell(TaskFinished, attempt="in-1", snapshot=read_to(9)) == []
    [write] = job.ack_sink(0)
    assert write.manifest.tasks[0] == read_to(4)


def test_when_all_tasks_have_finished_a_checkpoint_needs_nobody():
    job = Job()
    job.tell(TaskFinished, attempt="in-1", snapshot=read_to(0))
    job.tell(TaskFinished, attempt="out-1", snapshot=wrote(output(0)))

    assert job.request() == [*barrier(0, sources=()), job.manifest(0, output(0), fulfils=("r",))]


# ------------------------------------------------------------------------------------------------------------ failing


@pytest.mark.mission("D8")
def test_a_timeout_names_the_late_tasks_and_what_they_were_doing():
    job = Job()
    job.request()
    job.ack_source(0)
    job.at = 60
    message = "timed out after 60 s, waiting for 'out' (writing part 3 of 7)"

    assert job.expire(0, out="writing part 3 of 7") == [
        aborted(0, AbortReason.EXPIRED, message),
        answer("r", Answer.FAILED, 0, message),
        FailJob(error=CheckpointAborted, message=f"checkpoint 0 failed: {message} (0 failures in a row are tolerated)"),
    ]


def test_a_timeout_of_tasks_nobody_knows_about_says_so():
    job = Job(tolerable_failures=1)
    job.request()

    [abort, *_] = job.expire(0, out="at rest")

    assert abort.message == "timed out after 60 s, waiting for 'in' (not known); 'out' (at rest)"


@pytest.mark.mission("L23")
def test_a_decline_aborts_at_once_and_the_next_request_is_served():
    job = Job(tolerable_failures=1)
    job.request("r0")
    job.request("r1")

    assert job.decline(0) == [
        aborted(0, AbortReason.DECLINED, "'out' declined: no"),
        answer("r0", Answer.FAILED, 0, "'out' declined: no"),
        *barrier(1),
    ]
    assert job.decline(0) == [], "once more does no harm"


def test_a_decline_by_another_runs_attempt_is_ignored():
    job = Job()
    job.request()

    assert job.decline(0, attempt="out-0") == []


def test_an_abort_tells_the_newest_checkpoint_in_the_log():
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
def test_exactly_five_reasons_count():
    assert [reason for reason in AbortReason if reason.is_counted] == COUNTED


@pytest.mark.mission("D8")
@pytest.mark.parametrize("reason", [reason for reason in AbortReason if reason.is_told_by_task])
def test_a_counted_decline_fails_the_job_past_the_limit_and_others_do_not(reason):
    job = Job()
    job.request()

    effects = job.decline(0, reason)

    assert any(isinstance(effect, FailJob) for effect in effects) == (reason in COUNTED)


def fail(job, checkpoint):
    job.request()
    return any(isinstance(effect, FailJob) for effect in job.decline(checkpoint))


@pytest.mark.mission("D8")
def test_failures_in_a_row_are_tolerated_up_to_the_limit_and_a_success_begins_anew():
    job = Job(tolerable_failures=2)

    assert [fail(job, 0), fail(job, 1)] == [False, False]
    job.request()
    job.complete(2)
    assert [fail(job, 3), fail(job, 4), fail(job, 5)] == [False, False, True]


def test_a_savepoint_that_times_out_fails_nobodys_job():
    job = Job()
    job.request("r", "save")

    [abort, told] = job.expire(0)

    assert (abort.reason, told.answer) == (AbortReason.EXPIRED, Answer.FAILED)


def test_a_savepoint_that_a_task_cannot_make_counts():
    job = Job()
    job.request("r", "save")

    assert isinstance(job.decline(0, AbortReason.SNAPSHOT_FAILED)[-1], FailJob)


def test_a_failed_task_aborts_what_it_has_not_acknowledged_and_nothing_is_begun_any_more():
    job = Job()
    job.request("r0")
    job.request("r1")

    assert job.tell(TaskFailed, task="out", attempt="out-1", message="boom") == [
        aborted(0, AbortReason.TASK_FAILED, "'out' failed: boom"),
        answer("r0", Answer.FAILED, 0, "'out' failed: boom"),
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
def test_L3_once_its_manifest_is_sent_a_checkpoint_cannot_be_aborted(what):
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
def test_a_manifest_that_surely_was_not_written_counts_and_its_output_goes_into_the_next():
    job = Job(tolerable_failures=1)
    job.request()
    job.ack(0, output(0))

    assert job.tell(ManifestFailed, checkpoint=0, definite=True, message="disk full") == [
        aborted(0, AbortReason.MANIFEST_FAILED, "disk full"),
        answer("r", Answer.FAILED, 0, "disk full"),
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


def test_L3_a_manifest_of_unknown_fate_ends_the_run_without_an_abort():
    job = Job(tolerable_failures=9)
    job.request()
    job.ack(0, output(0))

    assert job.tell(ManifestFailed, checkpoint=0, definite=False, message="no answer") == [
        FailJob(error=CheckpointAborted, message="whether checkpoint 0 is in the log is not known: no answer")
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


# ---------------------------------------------------------------------------------------------------------- publishing


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


# -------------------------------------------------------------------------------------------------------------- ending


def stopped(job, checkpoint, *requests):
    return WriteStopped(body=Stopped(checkpoint=checkpoint, at=job.wall, fulfils=requests))


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
        answer("s", Answer.DONE, 0, STOPPED),
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
    assert job.stop("s4", name="late") == [answer("s4", Answer.REFUSED, None, "the job is ending")]

    assert job.written(0) == [NotifyCompleted(checkpoint=0), stopped(job, 0, "s1", "s2", "s3")]
    assert job.tell(StoppedWritten, entry=2) == [
        *(answer(request, Answer.DONE, 0, STOPPED) for request in ("s1", "s2", "s3")),
        EndJob(published=True),
    ]


def test_C2_whoever_does_not_wait_longer_is_told_what_is_not_published():
    job = Job()
    assert job.stop(patience=5 * SECOND)[-1] == WakeAt(at=5 * SECOND, timer=StopDeadline(request="s"))
    job.complete(0, output(0), output(0, "two"))
    job.returned(0)
    job.at = 5

    assert job.fire(StopDeadline(request="s")) == [
        answer(
            "s",
            Answer.UNPUBLISHED,
            0,
            "checkpoint 0 is taken, not yet published: #0 of 'two'; run 'penstock settle'",
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


def test_requests_are_refused_once_the_final_checkpoint_has_begun():
    job = Job()
    refused = [answer("r", Answer.REFUSED, None, "the job is ending")]
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
    with pytest.raises(InternalError, match="the job was started before"):
        job.start(next_checkpoint=1)


# ------------------------------------------------------------------------------------------------------------- illegal


ILLEGAL = {
    "a job starts twice": (lambda job: job.start(next_checkpoint=0), "the job was started before"),
    "an acknowledgement of a checkpoint never begun": (lambda job: job.ack_source(7), "7, which was never begun"),
    "an acknowledgement under another task's attempt": (
        lambda job: job.tell(TaskAcknowledged, checkpoint=0, attempt="in-1", snapshot=wrote()),
        "attempt in-1 is one of 'in', not of 'out'",
    ),
    "a manifest nobody writes": (lambda job: job.written(0), "manifest of checkpoint 0 is not being written"),
    "a failed manifest nobody writes": (
        lambda job: job.tell(ManifestFailed, checkpoint=0, definite=True, message=""),
        "not being written",
    ),
    "a commit nobody asked for": (lambda job: job.returned(0), "no commit of 'out' for checkpoint 0 is under way"),
    "a stopped entry nobody writes": (
        lambda job: job.tell(StoppedWritten, entry=1),
        "no 'stopped' entry is being written",
    ),
    "a decline with a reason that is not a task's": (
        lambda job: job.decline(0, AbortReason.EXPIRED),
        "declined with EXPIRED",
    ),
    "an end of a task of another run": (
        lambda job: job.tell(TaskFinished, attempt="in-0", snapshot=read_to(0)),
        "attempt in-0 is one of None, not of 'in'",
    ),
}


@pytest.mark.parametrize("what", ILLEGAL)
def test_an_illegal_event_raises_and_changes_nothing(what):
    act, message = ILLEGAL[what]
    job = Job()
    job.request()

    with pytest.raises(InternalError, match=message):
        act(job)

    assert job.complete(0, output(0)) == [
        NotifyCompleted(checkpoint=0),
        answer("r", Answer.DONE, 0, "in the log"),
        commit(output(0)),
    ]


def test_nothing_can_happen_before_the_job_starts():
    with pytest.raises(InternalError, match="the job has not started"):
        Job(start=False).request()


def test_a_task_cannot_finish_twice():
    job = Job()
    job.tell(TaskFinished, attempt="in-1", snapshot=read_to(0))

    with pytest.raises(InternalError, match="'in' has finished before"):
        job.tell(TaskFinished, attempt="in-1", snapshot=read_to(0))


def test_a_commit_that_is_waiting_for_its_retry_cannot_return():
    job = Job(open=(output(0),), next_checkpoint=1)
    job.returned(0, RETRY)

    with pytest.raises(InternalError, match="no commit of 'out' for checkpoint 0 is under way"):
        job.returned(0)
    with pytest.raises(InternalError, match="for checkpoint 4"):
        job.returned(4)


def test_an_illegal_event_tells_the_newest_events():
    job = Job()
    for number in range(STORY + 5):
        job.request(f"r{number}")

    with pytest.raises(InternalError) as raised:
        job.written(9)

    story = str(raised.value).split("\n")[1:]
    assert len(story) == STORY
    assert "'r6'" in story[0]
    assert "ManifestWritten" in story[-1]


# ----------------------------------------------------------------------------------------------------------- any order


class Model:
    """Plays supervisor, tasks and sink in an order that hypothesis chooses, and checks what must hold."""

    def __init__(self, data):
        self.data = data
        self.job = Job(
            interval=10 * SECOND,
            tolerable_failures=data.draw(st.sampled_from([0, 100])),
            skip_idle=data.draw(st.booleans()),
        )
        self.rows = 0
        self.pending = None
        self.writing = None
        self.owed = {"in": [], "out": []}  # barriers that tasks have not answered, in order
        self.prepared = []  # output the sink has not handed over
        self.logged = []
        self.committing = {}
        self.published = []
        self.timers = []
        self.over = False
        self.last = -1
        self.absorb(self.job.started)

    def absorb(self, effects):
        for effect in effects:
            match effect:
                case InjectBarrier(checkpoint=checkpoint):
                    assert self.pending is None
                    assert self.writing is None
                    assert checkpoint > self.last
                    self.last = self.pending = checkpoint
                    for task in self.owed.values():
                        task.append(checkpoint)
                    self.prepared.append(output(checkpoint, name=f"rows-{self.rows}"))
                case AbortCheckpoint(checkpoint=checkpoint):
                    assert checkpoint in {self.pending, self.writing and self.writing.checkpoint}
                    self.pending = self.writing = None
                case WriteManifest(manifest=manifest):
                    assert manifest.checkpoint == self.pending
                    self.pending, self.writing = None, manifest
                case Commit(item=item):
                    assert item in self.logged
                    assert item.uid not in self.committing
                    self.committing[item.uid] = item
                case WakeAt(timer=timer):
                    self.timers.append(timer)
                case EndJob() | FailJob():
                    self.over = True
                case _:
                    pass

    def answer(self, task):
        if not self.owed[task]:
            return
        checkpoint = self.owed[task].pop(0)
        items = [self.prepared.pop(0)] if task == "out" else []
        self.absorb(self.job.ack_sink(checkpoint, *items) if task == "out" else self.job.ack_source(checkpoint))

    def write(self):
        if self.writing is None:
            return
        manifest = self.writing
        if self.data.draw(st.booleans(), label="in the log"):
            new = [item for item in manifest.open if item not in self.logged]
            lost = [
                item for item in self.handed if item.checkpoint <= manifest.checkpoint and item not in self.logged + new
            ]
            assert lost == [], "S2: every row before the barrier is in this manifest or an older one"
            self.logged += new
            self.writing = None
            self.absorb(self.job.written(manifest.checkpoint))
        else:
            self.absorb(self.job.tell(ManifestFailed, checkpoint=manifest.checkpoint, definite=True, message="full"))

    @property
    def handed(self):
        return [output(checkpoint, name=f"rows-{self.rows}") for checkpoint in range(self.last + 1)]

    def commit(self):
        if not self.committing:
            return
        item = self.committing.pop("out")
        outcome = self.data.draw(st.sampled_from(CommitOutcome), label="outcome")
        if outcome in {DONE, CommitOutcome.ALREADY_DONE}:
            assert [*self.published, item] == self.logged[: len(self.published) + 1], "S1: in order, none skipped"
            self.published.append(item)
        self.absorb(self.job.returned(item.checkpoint, outcome))

    def fire(self):
        if self.timers:
            timer = self.timers.pop(self.data.draw(st.integers(0, len(self.timers) - 1), label="timer"))
            self.job.at += self.data.draw(st.integers(0, 20), label="seconds")
            self.absorb(self.job.fire(timer))

    def decline(self):
        if self.pending is not None:
            self.absorb(self.job.decline(self.pending, AbortReason.TASK_NOT_READY))

    def step(self):
        acts = [
            lambda: self.answer("in"),
            lambda: self.answer("out"),
            lambda: self.answer("out"),
            self.write,
            self.commit,
            self.fire,
            self.decline,
            lambda: self.absorb(self.job.request(name=self.data.draw(st.sampled_from([None, "save"])))),
            lambda: self.absorb(self.job.tell(ProgressMade)),
            lambda: self.absorb(self.job.stop()),
        ]
        self.data.draw(st.sampled_from(acts), label="act")()


@settings(deadline=None)
@given(st.data())
def test_in_any_order_of_events_nothing_is_lost_doubled_or_published_out_of_order(data):
    """C1, L3, S1, S2 over orders that nobody thought of."""
    model = Model(data)
    for _ in range(data.draw(st.integers(0, 40), label="steps")):
        if not model.over:
            model.step()


def test_values_of_the_vocabulary_are_frozen():
    with pytest.raises(AttributeError):
        barrier(0)[0].checkpoint = 1
    assert file("a") == file("a")
    assert isinstance(wrote(), TaskSnapshot)
