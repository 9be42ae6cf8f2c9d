"""Files below ``control/`` in memory and on a local disk: written once, listed once, removed in the safe order."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.runtime_fakes import Clock
from penstock.checkpoint import paths
from penstock.checkpoint.events import RequestOutcome
from penstock.clock import WallTime
from penstock.control.protocol import Answer, ControlFiles, FolderListing, Request, RequestKind
from penstock.errors import CheckpointUnreadable, StateDirectoryRefused, StorageFailed
from penstock.filesystem.base import FileSystem
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import Generation
from penstock.testing.filesystem import MemoryFileSystem

ONE, TWO = "one-00000", "two-00000"


@pytest.fixture(params=["memory", "local"])
def filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return MemoryFileSystem() if request.param == "memory" else LocalFileSystem(tmp_path / "job")


def hello(id: str, generation: int = 3) -> Request:
    return Request(request=id, kind=RequestKind.HELLO, generation=Generation(generation), asked=WallTime(1))


def here(id: str, message: str = "here I am") -> Answer:
    return Answer(request=id, outcome=RequestOutcome.DONE, message=message, generation=Generation(3), at=WallTime(2))


def never(seconds: float) -> None:
    raise AssertionError(seconds)


def test_a_request_is_open_until_it_is_answered(filesystem: FileSystem) -> None:
    files = ControlFiles(filesystem)
    assert files.scan() == FolderListing(open=(), answered=())
    files.ask(hello(TWO), pause=never)
    files.ask(hello(ONE), pause=never)
    assert files.scan() == FolderListing(open=(ONE, TWO), answered=())
    assert files.request(ONE) == hello(ONE)
    assert files.answer(here(ONE))
    assert files.scan() == FolderListing(open=(TWO,), answered=(ONE,))
    assert files.answer_to(ONE) == here(ONE)
    assert files.answer_to(TWO) is None


def test_C3_the_same_request_again_is_no_new_one_and_the_first_answer_stays(filesystem: FileSystem) -> None:
    files = ControlFiles(filesystem)
    files.ask(hello(ONE), pause=never)
    files.ask(hello(ONE), pause=never)
    files.answer(here(ONE))
    files.answer(here(ONE, "somebody else's words"))
    assert files.answer_to(ONE) == here(ONE)
    with pytest.raises(StateDirectoryRefused, match="holds another request"):
        files.ask(hello(ONE, generation=4), pause=never)


def test_what_is_forgotten_is_gone_and_forgetting_again_does_no_harm(filesystem: FileSystem) -> None:
    files = ControlFiles(filesystem)
    files.ask(hello(ONE), pause=never)
    files.answer(here(ONE))
    files.forget(ONE)
    files.forget(ONE)
    assert files.scan() == FolderListing(open=(), answered=())
    assert files.request(ONE) is None


def test_a_clean_up_that_is_cut_short_leaves_no_request_that_looks_open() -> None:
    disk = MemoryFileSystem()
    files = ControlFiles(disk)
    files.ask(hello(ONE), pause=never)
    files.answer(here(ONE))
    disk.fail("delete", StorageFailed("no"), path=paths.answer(ONE))
    with pytest.raises(StorageFailed):
        files.forget(ONE)
    assert files.scan() == FolderListing(open=(), answered=(ONE,)), (
        "the answer alone is found again by the next clean-up"
    )


def test_a_lost_answer_of_storage_is_asked_again() -> None:
    disk, pauses = MemoryFileSystem(), []
    files = ControlFiles(disk)
    disk.lose_answer("create", path=paths.request(ONE))
    files.ask(hello(ONE), pause=pauses.append)
    assert pauses == [0.1]
    disk.delay("create", path=paths.answer(ONE))
    assert not files.answer(here(ONE)), "nobody knows; it is tried again"
    assert files.answer(here(ONE))
    disk.land()
    assert files.answer_to(ONE) == here(ONE)


def test_waiting_ends_with_the_answer_or_with_the_time() -> None:
    disk, clock = MemoryFileSystem(), Clock()
    files = ControlFiles(disk)
    files.ask(hello(ONE), pause=never)

    def passes(seconds: float) -> None:
        clock.at += int(seconds * 1_000_000)
        if clock.at >= 500_000:
            files.answer(here(ONE))

    assert files.wait_for_answer(ONE, seconds=0.3, now=clock.now, pause=passes) is None
    assert clock.at == 300_000
    assert files.wait_for_answer(ONE, seconds=2, now=clock.now, pause=passes) == here(ONE)
    assert clock.at == 500_000
    assert files.wait_for_answer(ONE, seconds=0, now=clock.now, pause=never) == here(ONE)


def test_files_of_others_and_half_names_are_not_seen(filesystem: FileSystem) -> None:
    for path in ("control/notes.txt", "control/.one-00000.request.json.part", "control/sub/one-00000.request.json"):
        filesystem.create(path, b"?")
    filesystem.create(paths.request(ONE), b"?")
    files = ControlFiles(filesystem)
    assert files.scan() == FolderListing(open=(ONE,), answered=())
    with pytest.raises(CheckpointUnreadable, match=r"control/one-00000\.request\.json: The file is not JSON"):
        files.request(ONE)
