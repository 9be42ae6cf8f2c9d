"""Requests that are open when an attempt breaks or the job ends: answered with the cause or from the log, not lost."""

from __future__ import annotations

import pytest

from core.control_kit import Driver, answer, ask, new_id, said
from penstock.checkpoint.events import AnswerRequest, RequestOutcome, StopRequested
from penstock.clock import WallTime
from penstock.control.protocol import Request, RequestKind
from penstock.control.server import RunningAttempt
from penstock.errors import LayerMissing, StorageFailed
from penstock.filesystem.base import FileSystem
from penstock.testing.filesystem import MemoryFileSystem


@pytest.fixture
def disk() -> MemoryFileSystem:
    return MemoryFileSystem()


def running(disk: FileSystem, name: str = "first") -> Driver:
    return Driver(disk, name).claim().begin()


def test_a_request_that_is_pending_when_the_attempt_breaks_is_answered_with_the_cause(disk) -> None:
    driver, replies = running(disk), []
    driver.workers.is_holding = True
    for name in ("one", "two"):
        driver.save(name, replies)
    driver.supervisor.failed("worker", LayerMissing("a layer is gone"))
    driver.turn()
    assert isinstance(driver.error, LayerMissing)
    driver.requests.close(driver.error)
    assert len(replies) == 2
    assert all(reply.outcome is not RequestOutcome.DONE for reply in replies)
    assert "a layer is gone" in replies[0].message


def test_C3_a_manifest_on_its_way_when_the_attempt_broke_is_found_in_the_log_by_the_next(disk) -> None:
    driver, replies = running(disk), []
    driver.save("one", replies)
    driver.turn(2)  # its manifest is in the log, nobody has been told
    driver.supervisor._mailbox.take()  # and the answer of the log is lost with the attempt
    driver.supervisor.failed("worker", LayerMissing("a layer is gone"))
    driver.turn()
    assert replies == []
    driver.claim()
    assert [(reply.outcome, reply.checkpoint) for reply in replies] == [(RequestOutcome.DONE, 0)]
    assert driver.owned.history.pins["one"].checkpoint == 0


def test_what_may_be_in_the_log_when_the_job_ends_is_left_to_the_next_owner(disk) -> None:
    driver, replies = running(disk), []
    asked = ask(disk, RequestKind.SAVEPOINT, 0, name="one")
    driver.watch.look()
    driver.save("two", replies)
    driver.turn(3)  # two requests, then the task's acknowledgement of the first
    driver.supervisor._mailbox.take()
    driver.supervisor.failed("worker", LayerMissing("a layer is gone"))
    driver.turn()
    driver.requests.close(driver.error)
    driver.watch.look()
    assert answer(disk, asked) is None
    Driver(disk, "second").claim().look()
    assert said(disk, asked) == ("done", 0)


def test_a_request_that_meets_an_attempt_on_its_way_out_is_taken_by_the_next(disk) -> None:
    driver, replies = running(disk), []
    driver.supervisor.tear_down(driver.wiring)
    driver.save("one", replies)
    asked = ask(disk, RequestKind.CHECKPOINT, 0)
    driver.watch.look()
    assert replies == [], "the attempt says that it is ending; whether the job is, is not known"
    driver.breaks(LayerMissing("a layer is gone"))
    driver.claim().begin().look()
    assert [(reply.outcome, reply.checkpoint) for reply in replies] == [(RequestOutcome.DONE, 0)]
    assert said(disk, asked) == ("failed", None), "what another process asked was for the generation before"
    driver.supervisor.tear_down(driver.wiring)
    id = driver.save("two", replies)
    driver.requests.close()
    assert replies[1] == AnswerRequest(request=id, outcome=RequestOutcome.REFUSED, message="The job has ended.")


def test_a_request_that_meets_an_attempt_after_its_successor_began_is_taken_by_that(disk) -> None:
    driver, replies = running(disk), []
    before = driver.supervisor
    driver.breaks(LayerMissing("a layer is gone"))
    driver.claim()
    stale = RunningAttempt(put=before.request, failed=before.failed, on_log=lambda work: None, clock=driver.clock)
    driver.requests.attempt_started(stale)  # what a slow thread still holds
    stop = StopRequested(at=driver.clock.now(), wall=driver.clock.wall(), request=new_id(), name="last")
    accepted: list[Driver] = []
    driver.requests.submit(stop, replies.append, accepted=lambda: accepted or accepted.append(driver.begin()))
    driver.turn()
    assert [(reply.outcome, reply.checkpoint) for reply in replies] == [(RequestOutcome.DONE, 0)]
    assert driver.supervisor.ended is not None


def test_a_pin_that_storage_refuses_is_answered_and_the_job_goes_on(disk) -> None:
    driver, replies = running(disk), []
    driver.save(None, replies)
    driver.turn()
    disk.fail("create", StorageFailed("full"), path="log/*")
    asked = ask(disk, RequestKind.PIN, 0, name="x", checkpoint=0)
    driver.look()
    assert said(disk, asked) == ("failed", None)
    assert driver.error is None


def test_a_pin_that_was_not_begun_when_the_attempt_broke_is_answered_and_never_done(disk) -> None:
    driver, replies = running(disk), []
    driver.save(None, replies)
    driver.turn()
    driver.workers.is_holding = True
    asked = ask(disk, RequestKind.PIN, 0, name="x", checkpoint=0)
    driver.watch.look()
    driver.breaks(LayerMissing("a layer is gone"))
    driver.watch.look()
    assert said(disk, asked) == ("failed", None)
    driver.workers.go()
    assert driver.owned.history.pins == {}


def test_the_same_request_twice_is_one_and_a_pin_between_two_attempts_is_refused(disk) -> None:
    driver, replies = running(disk), []
    id = driver.save("one", replies)
    driver.save("one", replies, request=id)
    driver.turn()
    assert len(replies) == len(driver.owned.history.manifests) == 1
    driver.breaks(LayerMissing("a layer is gone"))
    pin = Request(
        request=new_id(), kind=RequestKind.PIN, generation=driver.generation, asked=WallTime(1), name="x", checkpoint=0
    )
    driver.requests.append(pin, replies.append)
    assert replies[1] == AnswerRequest(
        request=pin.request, outcome=RequestOutcome.REFUSED, message="the job is not running"
    )


def test_requests_before_the_first_attempt_wait_for_it_and_names_are_judged_then(disk) -> None:
    before, replies = running(disk), []
    before.save("one", replies)
    before.turn()
    driver = Driver(disk, "second")
    driver.save("one", replies)
    driver.save("two", replies)
    driver.claim()
    assert len(replies) == 1
    driver.begin().turn()
    assert [(reply.outcome, reply.checkpoint) for reply in replies[1:]] == [
        (RequestOutcome.REFUSED, 0),
        (RequestOutcome.DONE, 1),
    ]


def test_the_time_of_a_request_is_that_of_its_handing_in(disk) -> None:
    driver, replies = Driver(disk), []
    driver.save("one", replies)
    driver.claim()
    driver.clock.at = 10**12
    driver.begin().turn()
    assert replies[0].outcome is RequestOutcome.DONE
    assert driver.owned.history.manifests[0][1].triggered == 10**12


def test_after_the_end_everything_is_refused_at_once(disk) -> None:
    driver, replies = running(disk), []
    driver.requests.close()
    driver.requests.close(LayerMissing("too late to count"))
    id = driver.save("one", replies)
    asked = ask(disk, RequestKind.CHECKPOINT, 0)
    pinned = ask(disk, RequestKind.PIN, 0, name="x", checkpoint=0)
    stopped = ask(disk, RequestKind.STOP, 0)
    driver.watch.look()
    assert replies == [AnswerRequest(request=id, outcome=RequestOutcome.REFUSED, message="The job has ended.")]
    assert said(disk, asked) == said(disk, pinned) == said(disk, stopped) == ("refused", None)
