"""An executor dies and takes its cached layers along: the job begins again from durable ones, and loses nothing."""

import pytest

from crash.driver import Driver, all_gone, executors
from crash.input_files import InputFiles
from crash.verdict import judge
from crash.waiting import until
from penstock.checkpoint.entries import Manifest
from penstock.control.client import JobDirectory

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

START = 300
CLUSTER = {"PENSTOCK_MASTER": "local-cluster[2,1,1024]"}
"""Two executors, processes of their own with a core and a gigabyte each."""


def rows_in_state(home):
    """How many rows of state the newest checkpoint names."""
    if not list((home / "state" / "torture" / "log").glob("*.json")):
        return 0
    found = [entry.body for entry in JobDirectory(str(home / "state"), "torture").read().entries]
    newest = next((body for body in reversed(found) if isinstance(body, Manifest)), None)
    states = [task.state for task in newest.tasks if task.state is not None] if newest else []
    return sum(layer.rows for state in states for layer in state.layers)


def after_its_restart(driver):
    """What it said since it began again by itself."""
    _, began_again, said = driver.said.partition("restoring from checkpoint")
    return said if began_again else ""


def test_a_job_whose_executor_was_killed_goes_on_from_durable_layers_and_loses_nothing(tmp_path):
    files = InputFiles(tmp_path / "in", seed=5)
    files.drop(4)
    driver = Driver(tmp_path, 0, "--checkpoint-every", "1s", "--stop-timeout", "2min", environment=CLUSTER)
    try:
        until(START, "state in a checkpoint", lambda: driver.is_over or rows_in_state(tmp_path) > 0, driver.tail)
        assert not driver.is_over, driver.tail()
        victim, _ = executors(driver)
        victim.kill()
        files.drop(4)
        until(
            START,
            "a checkpoint of another attempt",
            lambda: driver.is_over or " ok [" in after_its_restart(driver),
            driver.tail,
        )
        assert not driver.is_over, driver.tail()
        assert "A cached block of" in driver.said
        files.drop(2)
        files.drop_flush("~flush")
        assert driver.stop(START) == 0, driver.tail()
    finally:
        driver.end()
    last = Driver(tmp_path, 1, "--until", "caught-up")
    assert last.wait(START) == 0, last.tail()
    verdict = judge(tmp_path, files)
    assert (verdict.problems, verdict.lost, verdict.repeated) == ([], 0, 0)
    assert verdict.windows > 0
    assert all_gone(tmp_path) == 0
