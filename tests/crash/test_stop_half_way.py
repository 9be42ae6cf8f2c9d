"""A stop with a savepoint that only half succeeds, between real processes: who is told what, and what comes next.

Numbers are Flink's scenarios of stopping with a savepoint.
"""

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from crash.driver import Driver, all_gone, surroundings
from crash.input_files import InputFiles
from crash.waiting import until
from penstock.control.client import JobDirectory, is_at_rest

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]

START = 240
"""Seconds for a driver to start, on a machine that others use too."""


@pytest.fixture
def home(tmp_path):
    InputFiles(tmp_path / "in", seed=3).drop(2)
    yield tmp_path
    assert all_gone(tmp_path) == 0


@contextmanager
def running(home, number=0, **options):
    """A job that has published what there is and waits for more."""
    driver = Driver(home, number, "--checkpoint-every", "500ms", pipeline="plain_job:job", **options)
    try:
        until(START, "all is published", lambda: driver.is_over or rows(home) == lines(home), driver.tail)
        assert not driver.is_over, driver.tail()
        yield driver
    finally:
        driver.end()


def asked(home, *arguments):
    """A command to the job in a process of its own, which is not waited for."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments, "--state", "state"],
        cwd=home,
        env=surroundings(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process):
    out, err = process.communicate(timeout=START)
    return process.returncode, out.strip(), err


def lines(home):
    return sorted(line for path in (home / "in").iterdir() for line in path.read_text().splitlines())


def rows(home):
    return sorted(
        json.loads(line)["value"] for path in (home / "out").glob("part-*") for line in path.read_text().splitlines()
    )


def log(home):
    return JobDirectory(home / "state", "torture").read()


def go_on(home, number=1):
    """The next start reads what is there, and ends."""
    driver = Driver(home, number, "--until", "caught-up", pipeline="plain_job:job")
    assert driver.wait(START) == 0, driver.tail()
    return driver


def test_a_stop_with_a_savepoint_publishes_everything_and_tells_its_number(home):
    with running(home) as driver:
        code, out, err = said(asked(home, "stop", "torture", "--savepoint", "end"))
        assert driver.wait(60) == 0

    assert code == 0, err
    assert log(home).pins["end"].checkpoint == int(out)
    assert is_at_rest(log(home))
    assert rows(home) == lines(home)


@contextmanager
def ready(home, **options):
    """A job that has read what there is and takes no checkpoint but the first unless asked."""
    driver = Driver(home, 0, "--checkpoint-every", "1h", pipeline="plain_job:job", **options)
    try:
        until(START, "it has read", lambda: driver.is_over or driver.hits("sink.staged") > 0, driver.tail)
        assert not driver.is_over, driver.tail()
        yield driver
    finally:
        driver.end()


def killed_at(home, place, *arguments):
    """What is told to whoever asks a job to stop that is killed there, on the way of its last checkpoint."""
    with ready(home, pause_at=place, hit=2) as driver:
        stop = asked(home, "stop", "torture", *arguments)
        assert driver.reaches(60), driver.tail()
        driver.kill("group")
        return said(stop)


def test_123_killed_before_the_last_checkpoint_is_in_the_log_there_is_no_savepoint_and_the_job_goes_on(home):
    code, out, err = killed_at(home, "checkpoint.manifest.before", "--savepoint", "end")

    assert (code, out) == (1, ""), err
    assert "the process that ran the job is gone" in err
    assert log(home).pins == {}
    go_on(home)
    assert rows(home) == lines(home)


def test_124_killed_once_it_is_in_the_log_the_savepoint_is_told_and_settle_publishes_it(home):
    code, _, err = killed_at(home, "checkpoint.manifest.written", "--savepoint", "end")

    assert code == 1
    assert "But the savepoint 'end' was taken as checkpoint 1" in err
    assert rows(home) == [], "not published yet"
    settled, _, told = said(asked(home, "settle", "torture"))
    assert settled == 0, told
    assert rows(home) == lines(home)
    assert is_at_rest(log(home))
    go_on(home)
    assert rows(home) == lines(home)


def test_125_output_that_cannot_be_published_in_time_is_told_with_the_way_out(home):
    trouble = {"PENSTOCK_FAILPOINTS": "local.move.before=error:EIO"}
    with ready(home, environment=trouble) as driver:
        code, out, err = said(asked(home, "stop", "torture", "--savepoint", "end", "--patience", "3s"))
        driver.wait(60)

    assert code == 1
    assert "is taken, not yet published: #" in err
    assert "penstock settle torture publishes it" in err
    assert log(home).pins["end"].checkpoint == int(out)
    assert rows(home) == []
    assert said(asked(home, "settle", "torture"))[0] == 0
    assert rows(home) == lines(home)


def test_126_a_drain_that_is_killed_before_the_log_has_it_drained_nothing(home):
    assert killed_at(home, "checkpoint.manifest.before", "--drain")[0] == 1

    InputFiles(home / "in", seed=4, files=2).drop(1)
    go_on(home)
    assert rows(home) == lines(home)


def test_127_a_drained_job_refuses_more_rows_until_it_is_rewound(home):
    with running(home) as driver:
        before = said(asked(home, "savepoint", "create", "torture", "open"))
        assert before[0] == 0, before
        code, _, err = said(asked(home, "stop", "torture", "--drain"))
        assert driver.wait(60) == 0
    assert code == 0, err
    InputFiles(home / "in", seed=4, files=2).drop(1)

    refused = Driver(home, 1, "--until", "caught-up", pipeline="plain_job:job")
    assert refused.wait(START) == 65
    assert "ended in an earlier run, or was drained" in refused.said
    assert said(asked(home, "rewind", "torture", "open", "--yes"))[0] == 0
    go_on(home, 2)
    assert rows(home) == lines(home)
