"""What begins a checkpoint and what does not. Numbers are Flink's scenarios, retold for one pending checkpoint."""

from dataclasses import replace

import pytest

from core.checkpoint_values import CLAIM, SOURCE, STEPS, history, log_on, manifest, output, read_to
from core.coordinator_kit import (
    FINAL,
    PERIODIC,
    SAVEPOINT,
    SECOND,
    Job,
    aborted,
    answer,
    barrier,
    commit,
    tick,
    wake_tick,
)
from penstock.checkpoint.entries import Pin
from penstock.checkpoint.events import AbortReason, AllSourcesDone, NotifyCompleted, RequestOutcome
from penstock.checkpoint.recovery import decide_recovery
from penstock.errors import InternalError
from penstock.testing.filesystem import MemoryFileSystem


def test_12_a_tick_that_waits_does_not_run_within_the_completion_but_after_the_pause():
    job = Job(interval=10 * SECOND, min_pause=5 * SECOND)
    job.at = 10
    job.fire(tick(10))
    job.at = 20
    assert job.fire(tick(20)) == [], "the first is pending"
    job.at = 21
    assert job.complete(0) == [NotifyCompleted(checkpoint=0), wake_tick(26)]
    job.at = 26
    assert job.fire(tick(26)) == [wake_tick(30), *barrier(1, at=26)]


def test_14_ids_and_times_rise_and_after_the_end_a_tick_begins_nothing():
    job = Job(interval=10 * SECOND)
    seen = []
    for number in range(3):
        job.at = 10 * (number + 1)
        job.fire(tick(job.at))
        [write] = job.ack(number)
        seen.append((write.manifest.checkpoint, write.manifest.triggered))
        job.written(number)
    assert seen == [(number, 1_010 * SECOND + number * 10 * SECOND) for number in range(3)]
    job.stop()
    job.complete(3)
    job.at = 40
    assert job.fire(tick(40)) == []


def test_14_without_a_metronome_nothing_begins_by_itself_and_requests_are_served():
    job = Job(interval=None)
    assert job.started == []
    job.at = 3_600
    assert job.fire(tick(10)) == []
    assert job.request() == barrier(0, at=3_600)


def test_15_before_all_tasks_are_restored_no_event_begins_anything():
    """Flink's periodic trigger waits until all tasks run; here the start itself says that they are restored."""
    job = Job(start=False, interval=10 * SECOND)
    for early in (job.request, lambda: job.fire(tick(10)), lambda: job.tell(AllSourcesDone)):
        with pytest.raises(InternalError, match="The job has not started"):
            early()
    job.at = 33
    assert job.start(next_checkpoint=0) == [wake_tick(43)], "and the beat is that of the start"


@pytest.mark.mission("L10")
def test_18_once_a_task_is_gone_nothing_is_triggered_and_whoever_asks_is_told_at_the_end():
    job = Job(interval=10 * SECOND)
    assert job.lose("in", "disk on fire") == []
    job.at = 10
    assert job.fire(tick(10)) == []
    assert job.request("r", "save") == []
    assert job.fails("disk on fire") == [answer("r", RequestOutcome.REFUSED, None, AbortReason.STOPPING.value)]


def test_23_the_pause_does_not_delay_a_savepoint_however_long_it_is():
    job = Job(interval=10 * SECOND, min_pause=365 * 24 * 3_600 * SECOND)
    job.request("r0", "one")
    job.complete(0)
    assert job.request("r1", "two") == barrier(1, SAVEPOINT)


def test_36_an_id_is_used_once_though_its_checkpoint_came_to_nothing_and_the_next_trigger_works():
    """Flink's id counter may fail and must free the trigger; ours cannot, and no id is drawn twice."""
    job = Job(tolerable_failures=9)
    job.request("r0")
    with pytest.raises(InternalError, match="checkpoint 1, which was never begun"):
        job.ack_source(1)
    job.decline(0)
    assert job.request("r1") == barrier(1)
    job.expire(1)
    job.request("r2")
    assert job.ack(2) == [job.manifest(2, fulfils=("r2",))]


def test_37_looking_at_an_empty_directory_creates_nothing_in_it():
    filesystem = MemoryFileSystem()
    log, _ = log_on(filesystem)

    decided = decide_recovery(log.read(), STEPS, at=1)

    assert (decided.initial, decided.next_checkpoint) == (True, 0)
    assert filesystem.files == {}
    assert {operation.name for operation in filesystem.operations} <= {"list", "read"}


def test_40_the_first_fails_and_the_two_that_wait_run_one_after_the_other():
    job = Job(tolerable_failures=1)
    for request in ("r0", "r1", "r2"):
        job.request(request)
    assert job.decline(0)[1:] == [answer("r0", RequestOutcome.FAILED, 0, "'out' declined: no"), *barrier(1)]
    assert job.complete(1)[1:] == [answer("r1", RequestOutcome.DONE, 1, "in the log"), *barrier(2)]
    assert job.complete(2)[1:] == [answer("r2", RequestOutcome.DONE, 2, "in the log")]


def test_41_an_abort_while_the_barrier_is_on_its_way_frees_the_next_which_may_time_out_itself():
    job = Job(tolerable_failures=9, timeout=60 * SECOND)
    job.request("r0")
    job.request("r1")
    job.at = 30
    assert job.decline(0, AbortReason.BARRIER_FAILED, task="in", attempt="in-1")[2:] == barrier(1, at=30)
    job.at = 60
    assert job.expire(0) == [], "the deadline of the first is not that of the second"
    job.at = 90
    message = "timed out after 60 s, waiting for 'in' (not known); 'out' (not known)"
    assert job.expire(1) == [aborted(1, AbortReason.EXPIRED, message), answer("r1", RequestOutcome.FAILED, 1, message)]


def test_42_a_first_checkpoint_that_is_due_stays_due_over_restarts_until_it_is_in_the_log():
    """Flink's first full snapshot after a restore survives failovers; here the first that records a new source does."""
    steps = (*STEPS, replace(SOURCE, uid="second"))
    crashed = [CLAIM, manifest(1), CLAIM, CLAIM]
    assert decide_recovery(history(*crashed), steps, at=1).initial
    job = Job(start=False)
    assert job.start(next_checkpoint=2, parent=1, initial=True) == barrier(2), "before anything else"
    recorded = manifest(2, 1, steps=steps, tasks=(*manifest(2).tasks, read_to(0, task="second")))
    assert not decide_recovery(history(*crashed, recorded, CLAIM), steps, at=1).initial


@pytest.mark.parametrize(
    ("name", "kind"), [(None, PERIODIC), ("before-v2", SAVEPOINT)], ids=["checkpoint", "savepoint"]
)
def test_43_what_was_asked_for_is_what_is_taken_and_recorded(name, kind):
    """Flink's requests choose full or incremental; ours are all incremental, and a name makes a savepoint."""
    job = Job(interval=10 * SECOND)
    job.at = 10
    assert job.request("r", name, owner="me") == barrier(0, kind, at=10)
    assert job.fire(tick(10)) == [], "nor does a tick change it"
    pins = () if name is None else (Pin(name=name, checkpoint=0, at=job.wall, owner="me", request="r"),)
    assert job.ack(0) == [job.manifest(0, kind=kind, pins=pins, fulfils=("r",))]


PHASES = {
    "a source cannot send its barrier": lambda job: job.decline(
        0, AbortReason.BARRIER_FAILED, task="in", attempt="in-1"
    ),
    "a task cannot make its snapshot durable": lambda job: job.decline(0, AbortReason.SNAPSHOT_FAILED),
    "a task is not ready": lambda job: job.decline(0, AbortReason.TASK_NOT_READY),
    "a task does not answer": lambda job: job.expire(0),
    "the manifest cannot be written": lambda job: (job.ack(0, output(0)), job.not_written(0))[1],
}


@pytest.mark.parametrize("phase", PHASES)
def test_17_44_wherever_a_checkpoint_fails_nothing_is_left_pending_and_the_next_completes(phase):
    job = Job(tolerable_failures=1)
    job.request("r0")
    effects = PHASES[phase](job)

    assert [type(effect).__name__ for effect in effects] == ["AbortCheckpoint", "AnswerRequest"]
    assert job.request("r1") == barrier(1)
    known = (output(0),) if "manifest" in phase else ()
    assert job.ack(1, output(1)) == [job.manifest(1, *known, output(1), fulfils=("r1",))]
    assert job.written(1)[2:] == [commit([*known, output(1)][0])]


@pytest.mark.mission("L10")
def test_52_savepoints_go_before_checkpoints_requests_before_ticks_and_the_end_comes_last():
    job = Job(interval=10 * SECOND)
    job.request("pending")
    job.at = 10
    job.fire(tick(10))
    job.request("asked")
    job.request("named", "save")
    job.stop()
    assert [job.complete(checkpoint)[2].kind for checkpoint in range(3)] == [SAVEPOINT, PERIODIC, FINAL]
    assert job.complete(3)[0] == NotifyCompleted(checkpoint=3), "and the tick was not made up"


@pytest.mark.mission("L10")
def test_52_a_full_queue_refuses_the_newest_whoever_asks_and_evicts_nobody():
    job = Job(max_queued=2)
    job.request("pending")
    job.request("a")
    job.request("b", "save")
    for name in (None, "another"):
        assert job.request("c", name) == [answer("c", RequestOutcome.REFUSED, None, "too many requests are queued")]
    assert job.complete(0)[2:] == barrier(1, SAVEPOINT)
    assert job.request("c") == [], "a place is free again"
