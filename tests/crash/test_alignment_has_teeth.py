"""One barrier comes seconds after the other: what then stands in the snapshot, and what a kill makes of it."""

import json

import pyarrow.parquet as pq
import pytest

from crash.aligned_job import FAST, HELD, SLOW
from crash.driver import Driver
from crash.waiting import until
from penstock.checkpoint.entries import Manifest
from penstock.control.client import JobDirectory

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]

START = 240


def held(home):
    """The newest checkpoint, if its barriers left the sources seconds apart, once both are warm."""
    if not list((home / "state" / "aligned" / "log").glob("*.json")):
        return None
    bodies = [entry.body for entry in JobDirectory(str(home / "state"), "aligned").read().entries]
    newest = next((body for body in reversed(bodies) if isinstance(body, Manifest)), None)
    is_held = newest is not None and newest.completed - newest.triggered > HELD / 2 * 1_000_000
    return newest if is_held and position(newest, "slow") > 2 else None


def position(manifest, source):
    return next(task.position.detail["next"] for task in manifest.tasks if task.task == source)


def counted(home, manifest, source):
    """Rows of one source in the state that this checkpoint names, read without penstock and Spark."""
    state = next(task.state for task in manifest.tasks if task.task == "counts")
    files = [home / "state" / "aligned" / ref.path for layer in state.layers for ref in layer.files]
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return sum(row["n__count"] for row in rows if row["source"] == source)


def ahead(home, manifest):
    """Rows of the early input that stand in the snapshot although they came after its barrier."""
    return counted(home, manifest, "fast") - position(manifest, "fast")


def killed_after_a_held_barrier(home, mode, *, is_wanted=lambda manifest: True):
    """Run until a barrier was held, kill everything; returns that checkpoint, which the next start restores."""
    driver = Driver(home, 0, "--checkpoint-every", "500ms", pipeline="aligned_job:job", environment=of(mode))

    def is_there():
        found = held(home)
        return driver.is_over or (found is not None and is_wanted(found))

    try:
        until(START, "a checkpoint whose barrier was held", is_there, driver.tail)
        driver.kill("group")
    finally:
        driver.end()
    found = held(home)
    assert found is not None, driver.tail()
    return found


def of(mode):
    return {"PENSTOCK_MODE": mode}


def read_to_the_end(home, mode):
    """Start again, now in haste; returns how many rows of each source were published."""
    driver = Driver(home, 1, pipeline="aligned_job:job", environment={**of(mode), "ALIGNED_JOB_HASTE": "1"})
    assert driver.wait(START) == 0, driver.tail()
    rows = [json.loads(line) for part in (home / "out").glob("part-*") for line in part.read_text().splitlines()]
    return {row["source"]: row["n"] for row in rows}


@pytest.mark.mission("L16", "L19")
def test_exactly_once_keeps_the_early_input_out_of_the_snapshot_and_a_kill_repeats_nothing(tmp_path):
    checkpoint = killed_after_a_held_barrier(tmp_path, "exactly-once")

    assert ahead(tmp_path, checkpoint) == 0
    assert counted(tmp_path, checkpoint, "slow") == position(checkpoint, "slow")
    assert read_to_the_end(tmp_path, "exactly-once") == {"fast": FAST, "slow": SLOW}


@pytest.mark.long
def test_at_least_once_lets_the_early_input_through_and_a_kill_repeats_it(tmp_path):
    checkpoint = killed_after_a_held_barrier(
        tmp_path, "at-least-once", is_wanted=lambda manifest: ahead(tmp_path, manifest) > 0
    )

    twice = ahead(tmp_path, checkpoint)
    assert twice > 0
    assert counted(tmp_path, checkpoint, "slow") == position(checkpoint, "slow")
    assert read_to_the_end(tmp_path, "at-least-once") == {"fast": FAST + twice, "slow": SLOW}
