"""Requests and generations: what a predecessor did or did not do, what a zombie may say, and what stays lying there."""

from __future__ import annotations

import threading

import pytest

from core.control_kit import Driver, answer, ask, new_id, request_files, said
from penstock.checkpoint import paths
from penstock.checkpoint.events import AnswerRequest, RequestOutcome, StopRequested
from penstock.clock import SystemClock
from penstock.control.protocol import ControlFiles, RequestKind
from penstock.control.server import ANSWER_TTL, MAX_REMEMBERED, SWEEP_INTERVAL
from penstock.errors import GenerationFenced, LayerMissing, StorageFailed
from penstock.filesystem.base import FileSystem
from penstock.testing.filesystem import MemoryFileSystem


@pytest.fixture
def disk() -> MemoryFileSystem:
    return MemoryFileSystem()


def running(disk: FileSystem, name: str = "first") -> Driver:
    return Driver(disk, name).claim().begin()


# ------------------------------------------------------------------------------------------------------ C3, C2, L9


def test_C3_a_repetition_gets_the_same_answer_and_does_nothing(disk) -> None:
    driver = running(disk)
    asked = ask(disk, RequestKind.CHECKPOINT, 0)
    driver.look()
    first = answer(disk, asked)
    ask_again = ask(disk, RequestKind.CHECKPOINT, 0, request=asked)
    driver.look()
    assert answer(disk, ask_again) == first
    ControlFiles(disk).forget(asked)
    ask(disk, RequestKind.CHECKPOINT, 0, request=asked)
    driver.look()
    assert answer(disk, asked) == first, "even when the files were cleaned up meanwhile"
    assert len(driver.owned.history.manifests) == 1


@pytest.mark.parametrize("kind", [RequestKind.CHECKPOINT, RequestKind.SAVEPOINT, RequestKind.STOP, RequestKind.PIN])
def test_C3_a_driver_answers_what_its_dead_predecessor_did_from_the_log(disk, kind) -> None:
    first, replies = running(disk), []
    first.save(None, replies)
    first.turn()
    name = None if kind in {RequestKind.CHECKPOINT, RequestKind.STOP} else "x"
    asked = ask(disk, kind, 0, name=name, checkpoint=0 if kind is RequestKind.PIN else None)
    first.workers.is_holding = True
    first.watch.look()
    first.workers.go()
    first.turn()
    assert answer(disk, asked) is None, "it dies here: the entry is in the log, the answer is not"
    second = Driver(disk, "second").claim()
    second.look()
    assert said(disk, asked) == ("done", 0 if kind is RequestKind.PIN else 1)
    assert "says so" in answer(disk, asked).message
    first.watch.look()
    assert "says so" in answer(disk, asked).message, "the first answer stays"


def test_C3_what_the_predecessor_did_not_do_is_answered_not_done_and_is_not_done(disk) -> None:
    running(disk)
    asked = [ask(disk, kind, 0, name=name) for kind, name in ((RequestKind.SAVEPOINT, "x"), (RequestKind.STOP, None))]
    asked.append(ask(disk, RequestKind.HELLO, 0))
    second = running(disk, "second")
    second.look()
    assert [said(disk, each) for each in asked] == [("failed", None)] * 3
    assert answer(disk, asked[0]).message == "Not done: the driver changed, it is generation 1 now."
    assert second.supervisor.ended is None
    assert second.stops == []
    assert second.owned.history.manifests == {}


def test_C2_a_stop_that_died_after_its_savepoint_is_not_done_and_says_which_savepoint_there_is(disk) -> None:
    first = running(disk)
    asked = ask(disk, RequestKind.STOP, 0, name="last")
    first.watch.look()
    first.turn(2)  # the manifest is in the log
    first.workers.is_holding = True
    first.turn()  # the entry never is
    Driver(disk, "second").claim().look()
    assert said(disk, asked) == ("failed", 0)
    assert "the savepoint 'last' was taken as checkpoint 0" in answer(disk, asked).message


def test_C3_a_fenced_driver_answers_nobody_and_learns_of_its_fence_by_a_request_to_the_new_one(disk) -> None:
    first, replies = running(disk), []
    second = running(disk, "second")
    first.workers.is_holding = True
    stop = ask(disk, RequestKind.STOP, 0)
    first.watch.look()
    first.save("mine", replies)
    second.look()
    assert said(disk, stop) == ("failed", None)
    asked = ask(disk, RequestKind.SAVEPOINT, 1, name="x")
    first.workers.go()
    first.look()
    assert answer(disk, asked) is None, "it is not for the first one"
    assert isinstance(first.error, GenerationFenced)
    first.requests.close(first.error)
    first.look()
    assert replies[0].outcome is not RequestOutcome.DONE
    assert said(disk, stop) == ("failed", None)
    second.look()
    assert said(disk, asked) == ("done", 0)


def test_C3_a_fenced_driver_that_cannot_read_the_log_refuses_nobody_in_the_new_one_s_place(disk) -> None:
    running(disk, "oldest")
    first, second = running(disk), running(disk, "second")
    asked = ask(disk, RequestKind.SAVEPOINT, 2, name="x")
    oldest = sorted(disk.list("log"))[0]
    whole = disk.read(oldest)
    disk.remove(oldest)
    first.look()
    disk.create(oldest, whole)
    assert answer(disk, asked) is None, "a request to a newer generation: whether there is one, nobody can see"
    second.look()
    assert said(disk, asked) == ("done", 0)


def test_an_idle_driver_learns_of_its_fence_by_a_request_to_another(disk) -> None:
    first, second = running(disk), running(disk, "second")
    ask(disk, RequestKind.HELLO, 1)
    first.look()
    assert isinstance(first.error, GenerationFenced)
    assert second.error is None


def test_a_request_that_a_newer_version_wrote_for_its_own_driver_is_not_spoiled_by_a_zombie(disk) -> None:
    first = running(disk)
    Driver(disk, "second").claim()
    disk.create(paths.request("newer-000"), b'{"format":2}')
    first.look()
    assert answer(disk, "newer-000") is None
    assert isinstance(first.error, GenerationFenced)


def test_L9_a_job_that_restores_or_waits_for_its_next_attempt_says_that_it_lives(disk) -> None:
    driver = Driver(disk).claim()
    greeted, asked = ask(disk, RequestKind.HELLO, 0), ask(disk, RequestKind.SAVEPOINT, 0, name="x")
    driver.watch.look()
    assert said(disk, greeted) == ("done", None)
    assert answer(disk, asked) is None, "it is taken in once an attempt runs"
    driver.begin()
    driver.look()
    assert said(disk, asked) == ("done", 0)
    driver.breaks(LayerMissing("gone"))
    greeted, asked = ask(disk, RequestKind.HELLO, 0), ask(disk, RequestKind.CHECKPOINT, 0)
    driver.watch.look()
    assert said(disk, greeted) == ("done", None)
    assert answer(disk, asked) is None
    driver.claim().begin().look()
    assert said(disk, asked) == ("failed", None), "the next attempt is another generation"
    stop = ask(disk, RequestKind.STOP, driver.generation)
    driver.breaks(LayerMissing("gone"))
    driver.watch.look()
    assert stop not in driver.stops, "it was not marked by the kit, for it has no name"
    driver.requests.close(LayerMissing("gone again"))
    driver.watch.look()
    assert said(disk, stop) == ("failed", None)


# ------------------------------------------------------------------------------------------------------- clean-up


def test_a_day_after_its_answer_a_request_is_cleaned_up(disk) -> None:
    driver = running(disk)
    asked = ask(disk, RequestKind.HELLO, 0)
    driver.look()
    driver.clock.at += ANSWER_TTL - SWEEP_INTERVAL
    driver.look()
    assert answer(disk, asked) is not None
    driver.clock.at += SWEEP_INTERVAL
    driver.look()
    assert request_files(disk) == []


def test_answers_of_earlier_generations_go_by_the_clock_of_people(disk) -> None:
    first = running(disk)
    old = ask(disk, RequestKind.HELLO, 0)
    first.look()
    second = Driver(disk, "second").claim()
    second.look()
    assert answer(disk, old) is not None
    second.clock.at += ANSWER_TTL
    second.look()
    assert request_files(disk) == []


def test_a_look_that_finds_nothing_new_is_one_listing(disk) -> None:
    driver = running(disk)
    ask(disk, RequestKind.HELLO, 0)
    driver.look()
    disk.operations.clear()
    driver.watch.look()
    assert [operation.name for operation in disk.operations] == ["list"]


def test_only_so_many_answers_are_known_by_heart(disk) -> None:
    driver = running(disk)
    owned = driver.owned
    for _ in range(MAX_REMEMBERED + 5):
        driver.watch._note(AnswerRequest(request=new_id(), outcome=RequestOutcome.DONE, message=""), owned)
    assert len(driver.watch._accepted) == MAX_REMEMBERED


# -------------------------------------------------------------------------------------------------------- its thread


def test_the_thread_answers_at_the_end_what_came_at_the_last_moment_and_survives_bad_storage(disk, caplog) -> None:
    driver = running(disk)
    disk.fail("list", StorageFailed("no disk"), path="control", times=2)
    disk.fail("list", RuntimeError("a bug"), path="control")
    driver.watch.start()
    greeted = ask(disk, RequestKind.HELLO, 0)
    found = driver.files.wait_for_answer(greeted, seconds=30, now=SystemClock().now, pause=threading.Event().wait)
    assert found is not None
    assert caplog.text.count("requests to the job are not seen just now: no disk") == 1
    assert "looking for requests to the job failed" in caplog.text
    driver.requests.close()
    late = ask(disk, RequestKind.CHECKPOINT, 0)
    driver.watch.close()
    assert said(disk, late) == ("refused", None)


def test_a_stop_event_carries_who_asked_and_how_long_they_wait(disk) -> None:
    driver = running(disk)
    seen: list[StopRequested] = []
    driver.watch._stop = lambda event, tell: seen.append(event)
    asked = ask(disk, RequestKind.STOP, 0, name="last")
    driver.watch.look()
    assert [(each.request, each.name, each.owner, each.patience) for each in seen] == [(asked, "last", "tool", None)]
