"""A start asks a living owner first, and takes over from one that is silent or surely gone (rule L9)."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable

import pytest

from core.control_kit import Driver, ask, new_id
from core.runtime_fakes import Clock
from penstock.checkpoint import paths
from penstock.checkpoint.control import Kind
from penstock.checkpoint.control_files import ControlFiles
from penstock.checkpoint.log import Log
from penstock.errors import JobIsRunning, StorageFailed
from penstock.job.owner import OwnerCheck, note_over
from penstock.testing.filesystem import MemoryFileSystem


class Start:
    """Somebody who wants to start the job; time passes only while it waits."""

    def __init__(self, disk: MemoryFileSystem, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.clock = Clock()
        self._meanwhile = meanwhile
        self.check = OwnerCheck(
            job="orders",
            log=Log(disk, job="orders", new_id=new_id, pause=lambda _: None),
            files=ControlFiles(disk),
            clock=self.clock,
            new_id=new_id,
            pause=self._pause,
        )

    def _pause(self, seconds: float) -> None:
        self.clock.at += int(seconds * 1_000_000)
        self._meanwhile()

    def waited(self) -> float:
        """Seconds that the check took."""
        self.check()
        passed, self.clock.at = self.clock.at, 0
        return passed / 1_000_000


@pytest.fixture
def disk() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.mark.mission("S3")
def test_L9_a_living_owner_refuses_the_start_and_the_error_says_who_it_is_and_what_to_do(disk) -> None:
    owner = Driver(disk, "host-a").claim()
    start = Start(disk, owner.watch.look)
    with pytest.raises(JobIsRunning) as refused:
        start.check()
    told = str(refused.value)
    assert told.startswith(f"job 'orders' is running already: process {os.getpid()} on {platform.node()}, since 1970-")
    assert "(generation 0); stop that one first, or start with --take-over (in Python take_over=True)" in told
    assert not refused.value.retry
    assert disk.list("control") == [], "who only asked leaves nothing behind"


def test_L9_a_silent_owner_is_waited_for_once_and_the_next_one_again(disk) -> None:
    Driver(disk, "host-a").claim()
    start = Start(disk)
    assert start.waited() == 2.0
    assert start.waited() == 0, "the same generation is not asked twice"
    Driver(disk, "host-b").claim()
    assert start.waited() == 2.0


def test_L9_an_owner_that_begins_again_while_it_is_asked_lives_too(disk) -> None:
    owner = Driver(disk, "host-a").claim()

    def restarts() -> None:
        if owner.generation == 0:
            owner.claim()
        owner.watch.look()

    with pytest.raises(JobIsRunning, match=r"process 1 on host-a, since 1970-01-01 00:00:00 UTC \(generation 1\)"):
        Start(disk, restarts).check()


def test_nobody_is_asked_where_nobody_can_answer(disk) -> None:
    start = Start(disk)
    assert start.waited() == 0, "an empty log"
    owner = Driver(disk, "host-a").claim().begin()
    ask(disk, Kind.STOP, owner.generation)
    owner.look()
    disk.operations.clear()
    assert start.waited() == 0, "it stopped in order"
    assert "create" not in {operation.name for operation in disk.operations}


def test_a_process_of_this_host_that_does_not_exist_is_not_waited_for(disk) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    Driver(disk, platform.node(), pid=gone.pid).claim()
    assert Start(disk).waited() == 0
    Driver(disk, "another-host", pid=gone.pid).claim()
    assert Start(disk).waited() == 2.0, "numbers of another host's processes say nothing here"
    Driver(disk, platform.node(), pid=os.getpid()).claim()
    assert Start(disk).waited() == 2.0, "a number that is in use may be anybody's"
    Driver(disk, platform.node(), pid=2**70).claim()
    assert Start(disk).waited() == 2.0


def test_a_job_of_this_process_that_is_over_is_not_waited_for(disk) -> None:
    owner = Driver(disk, platform.node(), pid=os.getpid()).claim().owned
    note_over(owner.log_id, owner.generation)
    assert Start(disk).waited() == 0


def test_an_answer_in_the_words_of_another_version_is_an_answer(disk) -> None:
    Driver(disk, "host-a").claim()

    def answers() -> None:
        for path in disk.list("control"):
            disk.create(path.replace("request", "answer", 2).replace("answer-", "request-"), b'{"format":2}')

    with pytest.raises(JobIsRunning, match="process 1 on host-a"):
        Start(disk, answers).check()


def test_what_is_wrong_with_log_or_storage_is_left_for_the_claim_to_say(disk) -> None:
    Driver(disk, "host-a").claim()
    disk.fail("create", StorageFailed("full"), path="control/*")
    assert Start(disk).waited() == 0
    disk.fail("delete", StorageFailed("full"), path="control/*")
    assert Start(disk).waited() == 2.0
    disk.corrupt(paths.entry(0), b"?")
    assert Start(disk).waited() == 0
