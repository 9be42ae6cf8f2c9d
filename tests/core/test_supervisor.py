"""The shell of an attempt, with nothing around it that moves by itself: how it begins, fails and ends."""

import logging
from dataclasses import replace

import pytest

from core.attempt_kit import Attempt
from core.attempt_parts import SECOND
from penstock.checkpoint.events import CheckpointRequested, RequestOutcome, StopRequested
from penstock.errors import CheckpointAborted, ConnectorError, GenerationFenced, InternalError, StorageFailed
from penstock.facts import CheckpointCompleted, CheckpointFailed, Published
from penstock.testing.filesystem import MemoryFileSystem

DONE, REFUSED, FAILED, UNKNOWN = (
    RequestOutcome.DONE,
    RequestOutcome.REFUSED,
    RequestOutcome.FAILED,
    RequestOutcome.UNKNOWN,
)


def raising(error):
    def act(*_, **__):
        raise error

    return act


def running(**options):
    """An attempt whose first checkpoint is in the log."""
    return Attempt(MemoryFileSystem(), **options).settle()


def asked(attempt, *requests):
    """Put requests in without letting anything happen."""
    for request in requests:
        attempt.supervisor.request(request)
    return attempt


def savepoint(request, name="save"):
    return CheckpointRequested(at=0, wall=0, request=request, name=name)


# ------------------------------------------------------------------------------------------------ beginning and ending


@pytest.mark.mission("S8")
def test_an_attempt_begins_in_a_fixed_order_the_coordinator_first_and_reads_nothing_before_it():
    attempt = Attempt(MemoryFileSystem(), total=3)
    assert attempt.story == ["job started", "start in", "start out"]
    assert attempt.reader.read == 0
    assert [type(mail).__name__ for mail in attempt.wiring.tasks["in"]._mail] == ["Barrier"], "before its first step"


@pytest.mark.mission("S30")
def test_an_attempt_that_fails_stops_its_parts_in_order_tasks_workers_jobs_and_waits_for_them():
    attempt = running(total=1)
    attempt.reader.poll = raising(ConnectorError("no bread"))
    attempt.reader.total = 2
    attempt.story.clear()
    for name, task in attempt.wiring.tasks.items():
        task.close = lambda name=name: attempt.story.append(f"close {name}")
    attempt.clock.at = 10**13
    attempt.settle()
    assert attempt.story == [
        *("stop in", "stop out", "close workers", "cancel jobs"),
        *("join in", "join out", "close in", "close out"),
    ]


@pytest.mark.mission("S30")
def test_an_attempt_that_ends_in_order_cancels_no_job_and_one_part_that_cannot_close_keeps_no_other_from_it(caplog):
    attempt = Attempt(MemoryFileSystem(), total=1, ends=True)
    closed = []
    attempt.wiring.tasks["in"].close = raising(OSError("stuck"))
    attempt.wiring.tasks["out"].close = lambda: closed.append("out")
    with caplog.at_level(logging.WARNING, logger="penstock"):
        attempt.settle()
    assert attempt.supervisor.ended.published
    assert "cancel jobs" not in attempt.story
    assert closed == ["out"]
    assert "task in could not let go" in caplog.text


# ------------------------------------------------------------------------------------------------------ what may break


def test_19_a_task_that_breaks_aborts_its_checkpoint_and_everybody_is_answered_before_the_error_is_raised():
    attempt = running()
    attempt.workers.held.add("in-snapshot")
    attempt.ask("r0", "save")
    asked(attempt, savepoint("r1"), StopRequested(at=0, wall=0, request="s")).settle()
    attempt.wiring.tasks["in"].step = raising(ConnectorError("no such table"))
    attempt.settle()
    assert attempt.answers == [("r0", FAILED, 1), ("r1", REFUSED, None), ("s", FAILED, None)]
    [failed] = attempt.seen(CheckpointFailed)
    assert (failed.checkpoint, failed.reason, failed.message) == (1, "task_failed", "'in' failed: no such table")
    assert str(attempt.error) == "step 'in': no such table"


def test_an_error_that_needs_no_explanation_keeps_its_cause_and_does_not_become_its_own():
    attempt = running()
    error, cause = ConnectorError("no such table"), OSError("no route")
    error.__cause__ = cause
    attempt.supervisor.failed("out", error)
    attempt.settle()
    assert attempt.error is error
    assert error.__cause__ is cause
    attempt = running()
    attempt.supervisor.failed("out", cause)
    attempt.settle()
    assert attempt.error.__cause__ is cause


def test_a_worker_that_breaks_is_no_task_and_the_error_names_none():
    attempt = running(total=1)
    attempt.workers.held.add("log")
    attempt.ask("r0", "save")
    attempt.workers.waiting.clear()
    attempt.workers.submit("clean-up", raising(StorageFailed("read-only")))
    attempt.settle()
    assert attempt.error.uid is None
    assert attempt.seen(CheckpointFailed) == [], "its manifest may still arrive"
    assert attempt.answers == [("r0", UNKNOWN, 1)]


def test_35_a_fenced_owner_says_that_it_does_not_know_and_commits_nothing():
    attempt = running(total=1)
    attempt.workers.held.add("log")
    attempt.ask("r0", "save")
    Attempt(attempt.filesystem, begin=False)
    attempt.workers.held.clear()
    attempt.settle()
    assert isinstance(attempt.error, GenerationFenced)
    assert attempt.answers == [("r0", UNKNOWN, 1)]
    assert attempt.seen(Published) == []
    assert attempt.published == []


def test_35_requests_that_nobody_has_taken_when_the_attempt_ends_are_refused():
    attempt = running()
    attempt.supervisor.failed("in", ConnectorError("gone"))
    asked(attempt, savepoint("r0"), StopRequested(at=0, wall=0, request="s")).settle()
    assert attempt.answers == [("r0", REFUSED, None), ("s", REFUSED, None)]
    asked(attempt, savepoint("too late"))
    assert attempt.answers[-1] == ("too late", REFUSED, None)


def test_35_requests_that_come_while_the_tasks_end_are_refused_too():
    attempt = Attempt(MemoryFileSystem(), total=1, ends=True)
    attempt.workers.held.add("log")
    attempt.settle()
    attempt.workers.held.clear()
    finish = attempt.supervisor.finish
    attempt.supervisor.finish = lambda: (asked(attempt, savepoint("r")), finish())
    attempt.settle()
    assert attempt.supervisor.ended.published
    assert attempt.answers == [("r", REFUSED, None)]


def test_27_who_cannot_be_answered_does_not_hide_what_failed(caplog):
    """Flink's failure callback throws; here it is the one who wants the answer."""
    attempt = running()
    attempt.workers.held.add("in-snapshot")
    attempt.ask("r0", "save")
    attempt.ask("r1", "another")
    answered = attempt.wiring.answered
    not_there = {"r0": raising(OSError("nobody there"))}
    attempt.supervisor._parts = replace(
        attempt.wiring, answered=lambda answer: not_there.get(answer.request, answered)(answer)
    )
    attempt.supervisor.failed("in", StorageFailed("disk full"))
    with caplog.at_level(logging.WARNING, logger="penstock"):
        attempt.settle()
    assert str(attempt.error) == "step 'in': disk full"
    assert "request r0 may not have got its answer" in caplog.text
    assert attempt.answers == [("r1", REFUSED, None)], "and keeps no other from its answer"


@pytest.mark.mission("L12")
@pytest.mark.parametrize(
    ("error", "reason"),
    [(StorageFailed("disk full"), "snapshot_failed"), (CheckpointAborted("still restoring"), "task_not_ready")],
    ids=["storage", "not ready"],
)
def test_a_snapshot_that_cannot_be_made_durable_declines_and_its_rows_are_in_the_next(error, reason):
    attempt = running(total=2, tolerable_failures=1)
    attempt.writer._filesystem = failing = MemoryFileSystem()
    failing.fail("create", error)
    if reason == "task_not_ready":
        attempt.writer.prepare = refusing_once(attempt.writer, error)
    attempt.ask("r0")
    [failed] = attempt.seen(CheckpointFailed)
    assert (failed.checkpoint, failed.reason) == (1, reason)
    assert attempt.answers == [("r0", FAILED, 1)]
    attempt.writer._filesystem = attempt.filesystem
    assert attempt.ask("r1").answers[1:] == [("r1", DONE, 2)]
    assert attempt.published == [1, 2]


def refusing_once(writer, error):
    prepare = writer.prepare

    def refuse(checkpoint):
        epoch = prepare(checkpoint)
        writer.prepare = prepare
        writer.rows[:0] = epoch._rows
        epoch.materialise = raising(error)
        return epoch

    return refuse


@pytest.mark.mission("L12")
def test_any_other_failure_of_a_snapshot_fails_the_attempt_and_what_the_task_held_is_let_go():
    attempt = running(total=1, tolerable_failures=9)
    closed = []
    attempt.writer.close = lambda: closed.append("writer")
    attempt.reader.close = lambda: closed.append("reader")
    attempt.writer.prepare(7)
    attempt.writer.prepare = lambda checkpoint: type("Epoch", (), {"materialise": raising(KeyError("rows"))})()
    attempt.ask("r0")
    assert isinstance(attempt.error, InternalError)
    assert attempt.answers == [("r0", FAILED, 1)]
    assert closed == ["reader", "writer"]


@pytest.mark.mission("L11")
def test_a_trigger_that_no_source_takes_does_no_harm_and_the_time_out_ends_its_checkpoint():
    attempt = running(timeout=60 * SECOND, tolerable_failures=1)
    attempt.threads["in"].is_over = True
    attempt.ask("r0")
    assert attempt.answers == []
    attempt.go_on(59)
    assert attempt.seen(CheckpointFailed) == []
    attempt.go_on(1)
    [failed] = attempt.seen(CheckpointFailed)
    assert (failed.reason, attempt.error) == ("expired", None)
    assert failed.message == "timed out after 60 s, waiting for 'in' (waiting for data); 'out' (idle)"
    assert attempt.answers == [("r0", FAILED, 1)]


def test_34_an_abort_reaches_every_source_which_forgets_its_position_and_passes_the_cancellation_on():
    """Flink tells the coordinators of its sources; here the sources themselves are told."""
    attempt = running(tolerable_failures=1)
    attempt.workers.held.add("out-snapshot")
    attempt.ask("r0")
    source = attempt.wiring.tasks["in"]
    assert list(source._positions) == [1]
    attempt.go_on(600)
    assert attempt.seen(CheckpointFailed)[0].reason == "expired"
    assert source._positions == {}
    attempt.workers.held.clear()
    assert attempt.ask("r1").answers[1:] == [("r1", DONE, 2)]
    assert [fact.checkpoint for fact in attempt.seen(CheckpointCompleted)] == [0, 2]


def test_what_background_work_has_changed_is_worth_a_checkpoint_though_no_rows_come():
    attempt = running(total=0, interval=10 * SECOND)
    attempt.go_on(25)
    taken = len(attempt.seen(CheckpointCompleted))
    attempt.go_on(25)
    assert len(attempt.seen(CheckpointCompleted)) == taken, "an idle job takes none"
    attempt.supervisor.maintain("out", lambda: None)
    attempt.settle().go_on(25)
    assert len(attempt.seen(CheckpointCompleted)) == taken + 1
