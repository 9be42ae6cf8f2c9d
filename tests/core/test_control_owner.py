"""A start asks a living owner first, and takes over from one that is silent or surely gone (rule L9)."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from core.checkpoint_values import manifest
from core.control_kit import Driver, ask, new_id, request_files
from core.runtime_fakes import Clock
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Stopped, host_of
from penstock.checkpoint.log import Log, read_history
from penstock.control import client
from penstock.control.client import OwnerCheck, host_identity, is_this_host, mark_released
from penstock.control.protocol import ControlFiles, RequestKind, RequestOutcome
from penstock.errors import JobIsRunning, StorageFailed
from penstock.filesystem.local import LocalFileSystem
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
    assert told.startswith(f"Job 'orders' is running already: process {os.getpid()} on {platform.node()}, since 1970-")
    assert (
        "(generation 0). Stop that one first, or start with penstock run … --take-over (in Python take_over=True)"
        in told
    )
    assert not refused.value.retry
    assert request_files(disk) == [], "who only asked leaves nothing behind"


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


def test_an_owner_that_is_busy_for_some_seconds_is_not_taken_for_gone_by_who_waits_for_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, clock = Driver(LocalFileSystem(tmp_path / "orders"), "host-a").claim().begin(), Clock()

    def pause(seconds: float) -> None:
        clock.at += int(seconds * 1_000_000)
        if clock.at > 12_000_000:
            owner.look()

    monkeypatch.setattr(client, "sleep", pause)
    directory = client.JobDirectory(tmp_path, "orders", clock=clock)
    assert directory.ask(RequestKind.SAVEPOINT, name="good").outcome is RequestOutcome.DONE
    asked, clock.at = clock.at, -(10**9)
    assert directory.ask(RequestKind.SAVEPOINT, name="never").outcome is RequestOutcome.FAILED
    assert clock.at - -(10**9) >= 15_000_000 > asked


def test_nobody_is_asked_where_nobody_can_answer(disk) -> None:
    start = Start(disk)
    assert start.waited() == 0, "an empty log"
    owner = Driver(disk, "host-a").claim().begin()
    ask(disk, RequestKind.STOP, owner.generation)
    owner.look()
    disk.operations.clear()
    assert start.waited() == 0, "it stopped in order"
    assert "create" not in {operation.name for operation in disk.operations}


def test_a_process_of_this_host_that_does_not_exist_is_not_waited_for(disk) -> None:
    gone = dead_process()
    Driver(disk, host_identity(), pid=gone).claim()
    assert Start(disk).waited() == 0
    for elsewhere in ("another-host", f"{platform.node()}#0123456789ab", platform.node()):
        Driver(disk, elsewhere, pid=gone).claim()
        assert Start(disk).waited() == 2.0, "numbers of processes elsewhere, a container of our name say, are not ours"
    Driver(disk, host_identity(), pid=os.getpid()).claim()
    assert Start(disk).waited() == 2.0, "a number that is in use may be anybody's"
    Driver(disk, host_identity(), pid=2**70).claim()
    assert Start(disk).waited() == 2.0


def dead_process() -> int:
    """The id of a process that existed."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


def trimmed(disk: MemoryFileSystem, owner: Driver) -> None:
    """The log needs the entries below its newest checkpoint no more, and trims them."""
    claim = owner.owned.generation
    owner.owned.append(manifest(1, floor=claim + 1, deleted=claim))
    disk.delete(paths.entry(claim))
    assert read_history(disk, "orders").claim is None


def test_a_process_that_does_not_exist_is_not_waited_for_after_the_log_has_trimmed_its_claim(disk) -> None:
    gone = dead_process()
    owner = Driver(disk, host_identity(), pid=gone).claim()
    owner.look()
    trimmed(disk, owner)
    assert Start(disk).waited() == 0
    later = Driver(disk, host_identity(), pid=gone).claim()
    trimmed(disk, later)
    assert Start(disk).waited() == 2.0, "the copy is that of the owner before"
    for damaged in (b"", b"{}", b"x" * 100):
        disk.replace(paths.CLAIM, damaged)
        assert Start(disk).waited() == 2.0
    later.look()
    assert Start(disk).waited() == 0
    disk.delete(paths.CLAIM)
    assert Start(disk).waited() == 2.0


def test_L9_a_refusal_names_the_owner_of_a_trimmed_claim_if_its_answer_cannot_be_read(disk) -> None:
    owner = Driver(disk, "host-a", pid=77).claim()
    owner.look()
    trimmed(disk, owner)
    answer = Start(disk)

    def in_other_words() -> None:
        for request in owner.files.scan().open:
            disk.create(paths.answer(request), b"from the future")

    answer._meanwhile = in_other_words
    with pytest.raises(JobIsRunning, match="process 77 on host-a"):
        answer.waited()


def test_a_place_is_the_boot_of_a_machine_and_its_processes_and_where_these_are_unknown_nowhere(tmp_path) -> None:
    def proc(name: str, boot: str, space: str) -> Path:
        made = tmp_path / name
        (made / "sys/kernel/random").mkdir(parents=True)
        (made / "self/ns").mkdir(parents=True)
        (made / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
        (made / "self/ns/pid").symlink_to(f"pid:[{space}]")
        return made

    places = [
        host_identity(proc("a", "b1", "1")),
        host_identity(proc("b", "b1", "2")),
        host_identity(proc("c", "b2", "1")),
    ]
    assert len(set(places)) == 3
    assert {host_of(each) for each in places} == {platform.node()}
    assert host_identity(tmp_path / "a") == places[0]
    assert host_identity(tmp_path) == platform.node()
    assert is_this_host(host_identity())
    assert not is_this_host(platform.node())


def test_a_job_of_this_process_that_is_over_is_not_waited_for(disk) -> None:
    owner = Driver(disk, platform.node(), pid=os.getpid()).claim().owned
    mark_released(owner.log_id, owner.generation)
    assert Start(disk).waited() == 0


def test_an_answer_in_the_words_of_another_version_is_an_answer(disk) -> None:
    Driver(disk, "host-a").claim()

    def answers() -> None:
        for path in disk.list("control"):
            disk.create(path.replace("request", "answer", 2).replace("answer-", "request-"), b'{"format":2}')

    with pytest.raises(JobIsRunning, match="process 1 on host-a"):
        Start(disk, answers).check()


@pytest.mark.parametrize(
    ("operation", "path"),
    [("list", "log"), ("read", "log/*"), ("create", "control/*"), ("read", "control/*.answer.json")],
)
def test_L9_storage_that_fails_for_a_moment_hides_no_living_owner(disk, operation: str, path: str) -> None:
    owner = Driver(disk, "host-a").claim()
    disk.fail(operation, StorageFailed("for a moment"), path=path, times=3)
    with pytest.raises(JobIsRunning):
        Start(disk, owner.watch.look).check()


@pytest.mark.parametrize(
    ("operation", "path"), [("list", "log"), ("create", "control/*"), ("read", "control/*.answer.json")]
)
def test_L9_where_nobody_can_be_asked_nothing_is_claimed(disk, operation: str, path: str) -> None:
    Driver(disk, "host-a").claim()
    disk.fail(operation, StorageFailed("no disk"), path=path, times=10**6)
    with pytest.raises(StorageFailed, match="no disk"):
        Start(disk).check()


def test_what_cannot_be_cleaned_up_afterwards_stays(disk) -> None:
    Driver(disk, "host-a").claim()
    disk.fail("delete", StorageFailed("full"), path="control/*")
    assert Start(disk).waited() == 2.0


@pytest.mark.parametrize("stopped", [False, True])
def test_L9_behind_an_entry_that_cannot_be_read_may_be_an_owner_who_is_asked(disk, stopped: bool) -> None:
    first = Driver(disk, "host-a").claim().begin()
    if stopped:
        ask(disk, RequestKind.STOP, 0)
        first.look()
    owner = Driver(disk, "host-b").claim()
    disk.corrupt(paths.entry(owner.generation), b"?")
    with pytest.raises(JobIsRunning):
        Start(disk, owner.watch.look).check()
    start = Start(disk)
    assert start.waited() == 2.0
    assert start.waited() == 0
    disk.corrupt(paths.entry(0), b"?")
    with pytest.raises(JobIsRunning):
        Start(disk, owner.watch.look).check()


def test_L9_a_claim_that_cannot_be_read_is_another_one_than_that_which_was_silent(disk) -> None:
    Driver(disk, "host-a").claim()
    start = Start(disk)
    assert start.waited() == 2.0
    owner = Driver(disk, "host-b").claim()
    disk.corrupt(paths.entry(owner.generation), b"?")
    start._meanwhile = owner.watch.look
    with pytest.raises(JobIsRunning):
        start.check()


def test_L9_the_claim_of_an_earlier_owner_does_not_stand_for_one_that_cannot_be_read(disk) -> None:
    gone = dead_process()
    Driver(disk, host_identity(), pid=gone).claim()
    owner = Driver(disk, "host-b").claim()
    owner.owned.append(manifest(1))
    disk.corrupt(paths.entry(owner.generation), b"?")
    with pytest.raises(JobIsRunning):
        Start(disk, owner.watch.look).check()


def test_L9_an_owner_that_is_stopping_is_waited_for_and_the_start_goes_on_once_it_has(disk) -> None:
    owner = Driver(disk, "host-a").claim().begin()
    owner.watch._state = lambda: "stopping"
    start = Start(disk)

    def goes_on() -> None:
        if start.clock.at > 6_000_000 and not owner.stops:
            ask(disk, RequestKind.STOP, 0)
            owner.look()
            owner.requests.close()
        owner.watch.look()

    start._meanwhile = goes_on
    assert 6.0 < start.waited() < 9.0
    assert isinstance(owner.owned.history.entries[-1].body, Stopped)


def test_L9_an_owner_that_does_not_end_its_stop_refuses_in_the_end(disk) -> None:
    owner = Driver(disk, "host-a").claim()
    owner.watch._state = lambda: "stopping"
    start = Start(disk, owner.watch.look)
    with pytest.raises(JobIsRunning):
        start.check()
    assert 15_000_000 <= start.clock.at < 16_000_000
    assert request_files(disk) == []
