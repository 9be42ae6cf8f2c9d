"""The coordinator: events in, whole effect lists out. Numbers are Flink's scenarios, letters the protocol's rules."""

import pytest

from core.checkpoint_values import output, wrote
from core.coordinator_kit import RETRY, SAVEPOINT, SECOND, Job, answer, barrier, commit, discarded, wake_tick
from penstock.checkpoint.coordinator import MAX_EVENTS_SHOWN
from penstock.checkpoint.entries import Pin
from penstock.checkpoint.events import (
    AbortReason,
    AckResult,
    ManifestFailed,
    NotifyCompleted,
    RequestOutcome,
    StoppedWritten,
    TaskAcknowledged,
)
from penstock.errors import InternalError


@pytest.mark.mission("L22")
def test_1_a_requested_checkpoint_goes_from_barrier_to_publication():
    job = Job(next_checkpoint=5, parent=3)

    assert job.started == []
    assert job.request() == barrier(5)
    assert job.ack_source(5) == []
    assert job.ack_sink(5, output(5)) == [job.manifest(5, output(5), parent=3, fulfils=("r",))]
    assert job.written(5) == [
        NotifyCompleted(checkpoint=5),
        answer("r", RequestOutcome.DONE, 5, "in the log"),
        commit(output(5)),
    ]
    assert job.returned(5) == []


def test_1_the_next_checkpoint_has_the_last_one_as_parent_and_a_higher_id():
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
def test_39_C1_one_checkpoint_is_pending_at_a_time_savepoints_included():
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


def test_52_too_many_requests_are_refused_and_say_so():
    job = Job(max_queued=1)
    job.request("pending")
    job.request("queued")

    assert job.request("r") == [answer("r", RequestOutcome.REFUSED, None, "too many requests are queued")]


def test_8_a_repeated_acknowledgement_is_ignored_with_what_it_brings():
    job = Job()
    job.request()
    job.ack_sink(0, output(0))

    assert job.ack_sink(0, output(0, name="other")) == []
    assert job.ack_source(0) == [job.manifest(0, output(0), fulfils=("r",))]
    assert job.ack_sink(0, output(0)) == [], "and while the manifest is on its way"
    job.written(0)
    assert job.ack_sink(0, output(0)) == [], "and after it"


def test_8_an_acknowledgement_of_an_attempt_of_another_run_is_discarded_and_carried_nowhere():
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


ILLEGAL = {
    "a job starts twice": (lambda job: job.start(next_checkpoint=0), "The job was started before"),
    "an acknowledgement of a checkpoint never begun": (lambda job: job.ack_source(7), "7, which was never begun"),
    "an acknowledgement under another task's attempt": (
        lambda job: job.tell(TaskAcknowledged, checkpoint=0, attempt="in-1", snapshot=wrote()),
        "Attempt in-1 is one of 'in', not of 'out'",
    ),
    "a manifest nobody writes": (lambda job: job.written(0), "manifest of checkpoint 0 is not being written"),
    "a failed manifest nobody writes": (
        lambda job: job.tell(ManifestFailed, checkpoint=0, definite=True, message=""),
        "not being written",
    ),
    "a commit nobody asked for": (lambda job: job.returned(0), "No commit of 'out' for checkpoint 0 is under way"),
    "a stopped entry nobody writes": (
        lambda job: job.tell(StoppedWritten, entry=1),
        "No 'stopped' entry is being written",
    ),
    "a decline with a reason that is not a task's": (
        lambda job: job.decline(0, AbortReason.EXPIRED),
        "declined with EXPIRED",
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
        answer("r", RequestOutcome.DONE, 0, "in the log"),
        commit(output(0)),
    ]


def test_15_nothing_can_happen_before_the_job_starts():
    with pytest.raises(InternalError, match="The job has not started"):
        Job(start=False).request()


def test_a_commit_that_is_waiting_for_its_retry_cannot_return():
    job = Job(open=(output(0),), next_checkpoint=1)
    job.returned(0, RETRY)

    with pytest.raises(InternalError, match="No commit of 'out' for checkpoint 0 is under way"):
        job.returned(0)
    with pytest.raises(InternalError, match="for checkpoint 4"):
        job.returned(4)


def test_an_illegal_event_tells_the_newest_events():
    job = Job()
    for number in range(MAX_EVENTS_SHOWN + 5):
        job.request(f"r{number}")

    with pytest.raises(InternalError) as raised:
        job.written(9)

    story = str(raised.value).split("\n")[1:]
    assert len(story) == MAX_EVENTS_SHOWN
    assert "'r6'" in story[0]
    assert "ManifestWritten" in story[-1]
