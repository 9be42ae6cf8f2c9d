"""What one bad file, one bad moment or one bad request must not do to the others, nor to the job."""

from __future__ import annotations

import pytest

from core.control_kit import Driver, answer, ask, new_id, request_files, said
from penstock.checkpoint import paths
from penstock.checkpoint.events import RequestOutcome, StopRequested
from penstock.clock import MAX_WAIT, WallTime
from penstock.control.protocol import LONGEST_PATIENCE, Request, RequestKind, invalid_reason
from penstock.control.server import ANSWER_TTL, SWEEP_INTERVAL
from penstock.errors import LayerMissing, StateDirectoryRefused, StorageFailed
from penstock.filesystem.base import FileSystem
from penstock.handles import Generation
from penstock.testing.filesystem import MemoryFileSystem


@pytest.fixture
def disk() -> MemoryFileSystem:
    return MemoryFileSystem()


def running(disk: FileSystem, name: str = "first") -> Driver:
    return Driver(disk, name).claim().begin()


# ------------------------------------------------------------------------------------------------------ one bad file


@pytest.mark.parametrize("error", [StateDirectoryRefused("not for this user"), StorageFailed("bad sector")])
def test_a_request_that_cannot_be_read_holds_no_other_back_and_is_told_of_once(disk, caplog, error) -> None:
    driver = running(disk)
    bad = ask(disk, RequestKind.CHECKPOINT, 0, request="aaaa-0000")
    good = ask(disk, RequestKind.CHECKPOINT, 0)
    disk.fail("read", error, path=paths.request(bad), times=3)
    driver.look()
    assert said(disk, good) == ("done", 0)
    assert caplog.text.count(str(error)) == 1
    driver.watch.look()  # the third time
    driver.look()
    assert said(disk, bad) == ("done", 1), "it is taken in once it can be read"


def test_an_answer_that_cannot_be_written_holds_no_stop_back(disk, caplog) -> None:
    driver = running(disk)
    greeted = ask(disk, RequestKind.HELLO, 0, request="aaaa-0000")
    stop = ask(disk, RequestKind.STOP, 0)
    disk.fail("create", StorageFailed("full"), path="control/*", times=10**6)
    driver.look()
    assert driver.stops == [stop]
    assert driver.supervisor.ended is not None
    driver.watch.look()
    assert caplog.text.count("full") == 2, "once for each request"
    disk._faults.clear()
    driver.watch.look()
    assert said(disk, greeted) == ("done", None)
    assert said(disk, stop) == ("done", 0)


def test_a_file_that_cannot_be_removed_holds_no_clean_up_back(disk) -> None:
    driver = running(disk)
    first, second = ask(disk, RequestKind.HELLO, 0, request="aaaa-0000"), ask(disk, RequestKind.HELLO, 0)
    driver.look()
    driver.clock.at += ANSWER_TTL
    disk.fail("delete", StorageFailed("no"), path=paths.request(first), times=10)
    driver.look()
    assert answer(disk, first) is not None
    assert answer(disk, second) is None


# ------------------------------------------------------------------------------------------------- who is asked


def test_a_hello_is_not_answered_by_a_job_that_is_over(disk) -> None:
    driver = running(disk)
    driver.requests.close(LayerMissing("gone"))
    before, greeted = ask(disk, RequestKind.HELLO, 0), ask(disk, RequestKind.HELLO, 0)
    driver.watch.look()
    assert answer(disk, greeted) is answer(disk, before) is None


def test_C3_a_stop_for_a_log_that_was_removed_does_not_stop_the_next_one(disk) -> None:
    running(disk)
    stale = ask(disk, RequestKind.STOP, 0)
    for path in disk.list("log"):
        disk.delete(path)
    second = running(disk, "second")
    assert second.generation == 0
    second.look()
    assert second.stops == []
    assert said(disk, stale) == ("refused", None)
    assert "another log" in answer(disk, stale).message


def test_C3_a_request_to_a_generation_that_is_not_there_is_refused_before_there_can_be_one(disk) -> None:
    driver = running(disk)
    stale = ask(disk, RequestKind.STOP, 50)
    driver.look()
    assert said(disk, stale) == ("refused", None)
    assert "generation 50" in answer(disk, stale).message
    assert driver.error is None


def test_patience_has_an_end() -> None:
    def stop(patience: int) -> str | None:
        return invalid_reason(
            Request(
                request="x",
                kind=RequestKind.STOP,
                generation=Generation(0),
                asked=WallTime(0),
                log_id="",
                patience=patience,
            )
        )

    assert stop(LONGEST_PATIENCE) is None
    assert "from 0 to" in str(stop(LONGEST_PATIENCE + 1))


def test_a_wait_of_the_deciding_thread_has_an_end(disk) -> None:
    driver = running(disk)
    driver.workers.is_holding = True
    stop = StopRequested(at=driver.clock.now(), wall=driver.clock.wall(), request=new_id(), patience=2**63 - 1)
    driver.requests.submit(stop, lambda reply: None)
    driver.turn()
    driver.supervisor._mailbox._alarms.sort()
    del driver.supervisor._mailbox._alarms[:-1]
    assert driver.supervisor._seconds_to_alarm() == MAX_WAIT


# ------------------------------------------------------------------------------------------------- a name, a pin


def test_a_pin_that_the_file_system_refuses_is_answered_and_the_job_goes_on(disk) -> None:
    driver = running(disk)
    ask(disk, RequestKind.CHECKPOINT, 0)
    driver.look()
    disk.fail("create", StateDirectoryRefused("read-only for a moment"), path="log/*")
    asked = ask(disk, RequestKind.PIN, 0, name="x", checkpoint=0)
    driver.look()
    assert said(disk, asked) == ("failed", None)
    assert driver.error is None


def test_of_two_that_wait_for_the_same_name_the_first_gets_it(disk) -> None:
    driver, first, second = Driver(disk), [], []
    driver.save("one", first)
    driver.save("one", second)
    driver.claim().begin().turn()
    assert [(reply.outcome, reply.checkpoint) for reply in first] == [(RequestOutcome.DONE, 0)]
    assert second[0].outcome is RequestOutcome.REFUSED


def test_a_savepoint_that_was_not_begun_when_the_attempt_failed_is_taken_by_the_next(disk) -> None:
    driver, first, second = running(disk), [], []
    driver.save("one", first)
    driver.save("two", second)
    theirs = ask(disk, RequestKind.SAVEPOINT, 0, name="theirs")
    driver.watch.look()
    driver.supervisor.failed("worker", LayerMissing("a layer is gone"))
    driver.turn()
    assert isinstance(driver.error, LayerMissing)
    assert second == []
    driver.claim().begin().look()
    assert [reply.outcome for reply in second] == [RequestOutcome.DONE]
    assert said(disk, theirs) == ("failed", None)
    assert "a layer is gone" in answer(disk, theirs).message, "another process asked the generation before"


# ------------------------------------------------------------------------------------------------------ clean-up


def test_answers_that_fell_out_of_memory_are_cleaned_up_by_the_clock_of_people(disk) -> None:
    driver = running(disk)
    asked = ask(disk, RequestKind.HELLO, 0)
    driver.look()
    driver.watch._accepted.clear()
    driver.clock.at += ANSWER_TTL - SWEEP_INTERVAL
    driver.look()
    assert answer(disk, asked) is not None
    driver.clock.at += SWEEP_INTERVAL
    driver.look()
    assert request_files(disk) == []


def test_an_answer_that_cannot_be_understood_goes_with_the_second_clean_up_that_finds_it(disk) -> None:
    disk.create(paths.answer("strange-0"), b"?")
    driver = running(disk)
    driver.look()
    assert request_files(disk) == [paths.answer("strange-0")]
    driver.clock.at += SWEEP_INTERVAL
    driver.look()
    assert request_files(disk) == []
