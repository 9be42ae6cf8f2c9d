"""What a program asks of its own job: errors that say what is wrong before anything is touched."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import penstock as ps
from core.control_kit import Driver
from penstock.clock import SystemClock
from penstock.errors import InternalError, LayerMissing, RequestFailed, RequestRefused, SettingsError
from penstock.handles import CheckpointId
from penstock.job.job import LocalRequests
from penstock.runtime.lifecycle import JobState
from penstock.testing.filesystem import MemoryFileSystem


@ps.pipeline("rates")
def rates(p: ps.Pipeline) -> None:
    p.read("in", ps.rate.Source(rows_per_second=1)).write("out", ps.memory.Sink())


def asking(driver: Driver) -> LocalRequests:
    return LocalRequests("orders", driver.requests, SystemClock(), lambda: JobState.RUNNING)


def beside(call) -> tuple[threading.Thread, list[object]]:
    """Call on a thread, as a user would; what it returned or raised."""
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(call())
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run, name="user")
    thread.start()
    return thread, ended


def is_asked(driver: Driver) -> None:
    """Wait until the request is in the inbox."""
    while driver.supervisor._mailbox.is_empty:
        threading.Event().wait(0.001)


@pytest.mark.mission("S6")
def test_a_job_that_does_not_run_takes_no_savepoint_and_says_so(tmp_path: Path) -> None:
    job = ps.Job(rates, state=tmp_path)
    for call in (lambda: job.savepoint("x"), job.checkpoint, lambda: job.stop(savepoint="x")):
        with pytest.raises(RequestRefused, match="of job 'rates' is refused, because the job is created"):
            call()
    job.request_stop()
    with pytest.raises(RequestRefused, match="because the job is stopped"):
        job.savepoint("x")
    assert job.stop(), "a stop without a savepoint is harmless in every state"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["41", "a/b", ""])
def test_a_name_that_is_none_is_refused_before_anything_is_asked(tmp_path: Path, name: str) -> None:
    job = ps.Job(rates, state=tmp_path)
    with pytest.raises(SettingsError, match="cannot name a savepoint"):
        job.savepoint(name)
    with pytest.raises(SettingsError, match="cannot name a savepoint"):
        job.stop(savepoint=name)


def test_a_thread_of_the_job_is_not_made_to_wait_for_itself(tmp_path: Path) -> None:
    job = ps.Job(rates, state=tmp_path)
    errors: list[object] = []

    def asks() -> None:
        for call in (job.checkpoint, job.stop):
            try:
                call()
            except InternalError as error:
                errors.append(error)

    thread = threading.Thread(target=asks, name="penstock-in")
    thread.start()
    thread.join()
    assert "Call it on a thread of your own" in str(errors[0])
    assert "Use request_stop()" in str(errors[1])


def test_a_savepoint_returns_its_id_and_its_name_is_refused_the_second_time() -> None:
    driver = Driver(MemoryFileSystem()).claim().begin()
    thread, ended = beside(lambda: asking(driver).checkpoint("one", 60))
    is_asked(driver)
    driver.turn()
    thread.join()
    assert ended == [CheckpointId(0)]
    with pytest.raises(RequestRefused, match=r"savepoint\(\) of job 'orders': 'one' exists already as checkpoint 0"):
        asking(driver).checkpoint("one", 60)


def test_one_that_comes_to_nothing_or_takes_too_long_raises_with_the_cause() -> None:
    driver = Driver(MemoryFileSystem()).claim().begin()
    with pytest.raises(RequestFailed, match=r"checkpoint\(\) of job 'orders' has not ended after 0 s. It may still"):
        asking(driver).checkpoint(None, 0)
    driver.turn()
    thread, ended = beside(lambda: asking(driver).checkpoint("one", 60))
    is_asked(driver)
    driver.supervisor.failed("worker", LayerMissing("a layer is gone"))
    driver.turn()
    driver.requests.close(driver.error)
    thread.join()
    assert isinstance(ended[0], RequestFailed)
    assert "a layer is gone" in str(ended[0])


def test_a_stop_with_a_savepoint_can_be_repeated_and_is_one_request() -> None:
    driver = Driver(MemoryFileSystem()).claim().begin()
    ours = asking(driver)
    driver.workers.is_holding = True

    def stop(seconds: float) -> bool:
        return ours.wait_for_stop(ours.stop_request("last", None), driver._stop, seconds)

    assert not stop(0)
    driver.turn()
    assert not stop(0)
    driver.workers.go()
    driver.turn()
    assert stop(0)
    driver.requests.close()
    assert stop(0), "it has stopped the job, which may be said again"
    assert len(driver.stops) == 1
    assert driver.owned.history.pins["last"].checkpoint == 0


def test_a_stop_that_came_to_nothing_is_a_new_request_the_next_time() -> None:
    driver, replies = Driver(MemoryFileSystem()).claim().begin(), []
    ours = asking(driver)
    driver.save("taken", replies)
    driver.turn()
    asked = [ours.stop_request("taken", None)]
    with pytest.raises(RequestRefused, match="'taken' exists already"):
        ours.wait_for_stop(asked[0], driver._stop, 0)
    asked.append(ours.stop_request("taken", None))
    assert asked[0].request != asked[1].request
    event = ours.stop_request("last", None)
    assert ours.stop_request("last", None) is event
