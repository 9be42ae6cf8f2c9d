"""Requests to a running job, from within and through ``control/``: each is answered once, and truly."""

from __future__ import annotations

import pytest

from core.control_kit import Driver, answer, ask, said
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Pin, Stopped, Unpin
from penstock.checkpoint.events import RequestOutcome
from penstock.control.protocol import RequestKind
from penstock.filesystem.base import FileSystem
from penstock.filesystem.local import LocalFileSystem
from penstock.testing.filesystem import MemoryFileSystem


@pytest.fixture
def disk() -> MemoryFileSystem:
    return MemoryFileSystem()


def running(disk: FileSystem, name: str = "first") -> Driver:
    return Driver(disk, name).claim().begin()


# --------------------------------------------------------------------------------------------------- carried out


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_savepoint_that_another_process_asks_for_is_in_the_log_with_name_and_id(kind, tmp_path) -> None:
    disk = MemoryFileSystem() if kind == "memory" else LocalFileSystem(tmp_path)
    driver = running(disk)
    asked = ask(disk, RequestKind.SAVEPOINT, driver.generation, name="before-v2")
    driver.look()
    assert said(disk, asked) == ("done", 0)
    body = driver.owned.history.manifests[0][1]
    assert body.fulfils == (asked,)
    assert [(each.name, each.checkpoint, each.owner, each.request) for each in body.pins] == [
        ("before-v2", 0, "tool", asked)
    ]


def test_a_checkpoint_and_a_hello(disk) -> None:
    driver = running(disk)
    asked, greeted = ask(disk, RequestKind.CHECKPOINT, 0), ask(disk, RequestKind.HELLO, 0)
    driver.look()
    assert said(disk, asked) == ("done", 0)
    assert said(disk, greeted) == ("done", None)
    me = answer(disk, greeted).me
    assert me is not None
    assert (me.pid > 0, me.state) == (True, "running")
    assert driver.owned.history.tail == 1, "a hello changes nothing"


def test_a_stop_with_a_savepoint_answers_stopped_after_the_entry(disk) -> None:
    driver = running(disk)
    asked = ask(disk, RequestKind.STOP, 0, name="last")
    driver.look()
    assert driver.supervisor.ended is not None
    assert driver.stops == [asked]
    assert said(disk, asked) == ("done", 0)
    last = driver.owned.history.entries[-1].body
    assert isinstance(last, Stopped)
    assert last.fulfils == (asked,)
    assert driver.owned.history.pins["last"].checkpoint == 0


def test_a_stop_is_not_answered_before_the_entry_is_in_the_log(disk) -> None:
    driver = running(disk)
    asked = ask(disk, RequestKind.STOP, 0)
    driver.watch.look()
    driver.turn(2)  # the request, then the task's acknowledgement: the manifest is in the log
    driver.workers.is_holding = True
    driver.turn(1)  # the manifest is known, the entry is on its way
    driver.watch.look()
    assert answer(disk, asked) is None
    driver.workers.go()
    driver.look()
    assert said(disk, asked) == ("done", 0)


def test_L5_a_pin_is_an_entry_between_manifests_and_what_it_names_is_checked_by_the_owner(disk) -> None:
    driver = running(disk)
    taken = ask(disk, RequestKind.CHECKPOINT, 0)
    driver.look()
    good = ask(disk, RequestKind.PIN, 0, name="good", checkpoint=0)
    driver.look()
    again = ask(disk, RequestKind.PIN, 0, name="good", checkpoint=0)
    nothing = ask(disk, RequestKind.PIN, 0, name="other", checkpoint=7)
    driver.look()
    assert [said(disk, each) for each in (taken, good, again, nothing)] == [
        ("done", 0),
        ("done", 0),
        ("refused", 0),
        ("refused", None),
    ]
    assert (
        "Checkpoint 7 cannot be restored, so it gets no name. Restorable checkpoints: 0"
        in answer(disk, nothing).message
    )
    off, nobody = ask(disk, RequestKind.UNPIN, 0, name="good"), ask(disk, RequestKind.UNPIN, 0, name="nobody")
    driver.look()
    assert said(disk, off) == ("done", None)
    assert "no checkpoint is called 'nobody'" in answer(disk, nobody).message
    pinned, unpinned = [entry.body for entry in driver.owned.history.entries[-2:]]
    assert isinstance(pinned, Pin)
    assert isinstance(unpinned, Unpin)
    assert (pinned.request, unpinned.request) == (good, off)


def test_a_pinned_checkpoint_outlives_those_that_would_have_condemned_it(disk) -> None:
    driver = running(disk)
    for _ in range(2):
        ask(disk, RequestKind.CHECKPOINT, 0)
        driver.look()
    ask(disk, RequestKind.PIN, 0, name="good", checkpoint=0)
    driver.look()
    for _ in range(4):
        ask(disk, RequestKind.CHECKPOINT, 0)
        driver.look()
    assert list(driver.owned.history.restorable) == [0, 4, 5]


# -------------------------------------------------------------------------------------------------------- refused


def test_a_name_that_is_taken_is_refused_with_the_checkpoint_that_has_it(disk) -> None:
    driver, replies = running(disk), []
    driver.save("one", replies)
    driver.turn()
    driver.save("one", replies)
    asked = ask(disk, RequestKind.SAVEPOINT, 0, name="one")
    stop = ask(disk, RequestKind.STOP, 0, name="one")
    driver.look()
    assert [reply.outcome for reply in replies] == [RequestOutcome.DONE, RequestOutcome.REFUSED]
    assert "'one' exists already as checkpoint 0. Choose another name" in replies[1].message
    assert said(disk, asked) == said(disk, stop) == ("refused", 0)
    assert driver.stops == [], "a stop that cannot have its savepoint stops nothing"
    assert driver.supervisor.ended is None


def test_a_name_that_is_being_given_is_refused_too(disk) -> None:
    driver, replies = running(disk), []
    driver.workers.is_holding = True
    driver.save("one", replies)
    driver.save("one", replies)
    driver.turn()
    assert [reply.message for reply in replies] == ["'one' is being given to another checkpoint just now."]
    driver.workers.go()
    driver.turn()
    assert replies[1].outcome is RequestOutcome.DONE
    assert len(driver.owned.history.manifests) == 1


def test_what_cannot_be_read_is_refused_with_the_reason(disk) -> None:
    driver = running(disk)
    disk.create(paths.request("by-hand-1"), b'{"format":1}')
    driver.look()
    assert said(disk, "by-hand-1") == ("refused", None)
    assert "Field 'request' is missing" in answer(disk, "by-hand-1").message
