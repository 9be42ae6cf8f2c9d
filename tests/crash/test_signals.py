"""Signals and deaths of a real job under ``penstock run``: what reaches whom, and with which exit code it ends."""

import os
import signal
from contextlib import suppress

import psutil
import pytest

from crash.driver import Driver, all_gone, entries
from crash.input_files import InputFiles
from crash.waiting import until
from penstock.control.client import JobDirectory

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]

START = 240
"""Seconds for a driver to start, on a machine that others use too."""


@pytest.fixture
def files(tmp_path):
    dropped = InputFiles(tmp_path / "in", seed=3)
    dropped.drop(3)
    return dropped


@pytest.fixture
def start(tmp_path, files):
    """Starts the job of the torture over a few files; ends whatever is left of it."""
    made = []

    def begin(*, parent=True):
        arguments = ("--checkpoint-every", "500ms", "--stop-timeout", "2min")  # so long, for others use this machine
        made.append(Driver(tmp_path, len(made), *arguments, parent=parent))
        until(START, "a checkpoint with output", lambda: reads(made[-1]), made[-1].tail)
        assert not made[-1].is_over, made[-1].tail()
        return made[-1]

    yield begin
    for driver in made:
        below = psutil.Process(driver.process.pid).children(recursive=True) if not driver.is_over else []
        driver.end()
        for each in below:
            if each.is_running():
                each.kill()
    assert all_gone(tmp_path) == 0


def reads(driver):
    """It runs, or is over, and rows are published: it is in the middle of its work."""
    return driver.is_over or (
        driver.is_running
        and bool(list((driver.home / "out").glob("part-*")) or list((driver.home / "bad").glob("part-*")))
    )


def child_of(driver):
    (child,) = [
        each for each in psutil.Process(driver.process.pid).children() if "penstock" in " ".join(each.cmdline())
    ]
    return child


def stopped(driver):
    """Its last word in the log is that everything is published."""
    history = JobDirectory(str(driver.home / "state"), "torture").read()
    return type(history.entries[-1].body).__name__ == "Stopped" and not history.open_committables


@pytest.mark.mission("S29")
def test_sigterm_to_the_parent_takes_a_last_checkpoint_publishes_and_ends_with_0(start):
    driver = start()

    assert driver.stop(seconds=120) == 0

    assert stopped(driver)
    assert "(final)" in driver.said


@pytest.mark.mission("S29")
def test_a_stop_does_not_wait_for_a_long_batch_and_the_next_start_reads_it_again(tmp_path, files):
    slow = Driver(tmp_path, 0, pipeline="slow_job:job", parent=True)
    until(START, "it runs", lambda: slow.is_running or slow.is_over, slow.tail)
    with suppress(AssertionError):
        slow.wait(2)  # until its batch is under way, which takes minutes

    assert slow.stop(seconds=120) == 130

    assert "stopped before the last checkpoint was complete" in slow.said
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("part-*"))
    again = Driver(tmp_path, 1, "--until", "caught-up", pipeline="slow_job:job", environment={"SLOW_JOB_STEPS": "1"})
    assert again.wait(START) == 0, again.tail()
    rows = sum(len(path.read_text().splitlines()) for path in (tmp_path / "out").glob("part-*"))
    assert rows == sum(len(path.read_text().splitlines()) for path in (tmp_path / "in").iterdir())


def test_ctrl_c_to_the_whole_group_counts_once(start):
    driver = start()

    os.killpg(driver.process.pid, signal.SIGINT)

    assert driver.wait(120) == 0
    assert stopped(driver)
    assert driver.said.count("taking a last checkpoint") == 1


def test_sigterm_to_the_child_stops_the_job_in_order_and_the_parent_ends_too(start):
    driver = start()

    child_of(driver).send_signal(signal.SIGTERM)

    assert driver.wait(120) == 0
    assert stopped(driver)


@pytest.mark.mission("S29")
def test_a_second_ctrl_c_ends_at_once_with_130_and_the_next_start_goes_on(start):
    driver = start()
    child = child_of(driver)
    child.suspend()  # so that the first request cannot be carried out before the second
    driver.signal(signal.SIGINT)
    driver.signal(signal.SIGTERM)  # two of one kind that wait to be delivered would be one
    child.resume()

    assert driver.wait(120) == 130
    assert not stopped(driver)
    assert start().stop(seconds=120) == 0


def test_the_death_of_the_jvm_is_told_and_the_parent_starts_the_job_again(start, files):
    driver = start()
    first, entry = child_of(driver), entries(driver.home)
    driver.jvm().kill()
    files.drop(2)

    def writes_again():
        began = driver.said.count("· generation ") == 2
        return driver.is_over or (began and entries(driver.home) > entry + 1 and not first.is_running())

    until(START, "another child has written", writes_again, driver.tail)

    assert driver.stop(seconds=120) == 0
    assert "the engine died; it starts again in" in driver.said
    assert "Traceback" not in driver.said
    assert "restoring from checkpoint" in driver.said
    assert stopped(driver)


def test_a_job_whose_parent_is_killed_stops_in_order(start):
    driver = start()
    child = child_of(driver)

    driver.process.kill()
    driver.process.wait()

    until(120, "the child ended", lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert stopped(driver)
    assert "the parent process is gone" in driver.said
