"""How long a stop may take: each has its own patience, and the first to run out counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

import penstock as ps
from penstock.cli.output import Output
from penstock.cli.run import RunCommand, run_as_parent
from penstock.clock import MAX_WAIT
from penstock.job.runner import JobRunner, StopTimedOut, call_after_timeout
from penstock.job.start import StartOptions
from penstock.runtime.lifecycle import JobState


@ps.pipeline("rates")
def rates(p: ps.Pipeline) -> None:
    p.read("in", ps.rate.Source(rows_per_second=1)).write("out", ps.memory.Sink())


class FakeRunner:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.is_cut_short = False

    def stop(self) -> None:
        self.said.append("stop")

    def give_up(self) -> None:
        self.said.append("give up")


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ps.Job, list[float]]:
    """A job that runs, and how long it is given to end, each time somebody says."""
    armed: list[float] = []
    monkeypatch.setattr("penstock.job.runner.call_after_timeout", lambda wait, seconds, give_up: armed.append(seconds))
    job = ps.Job(rates, state=tmp_path, stop_timeout="8s")
    job._runner = cast("Any", FakeRunner())
    job._thread = threading.Thread()
    return job, armed


def idle_runner(tmp_path: Path) -> JobRunner:
    """A runner as a job makes it, which has not begun."""
    job = ps.Job(rates, state=tmp_path, restart="none")
    with mock.patch("threading.Thread.start"):
        job.start()
    assert job._runner is not None
    return job._runner


def by_control(job: ps.Job, patience: int | None) -> None:
    job._ask_to_stop(job._local_requests.stop_request(None, patience), lambda reply: None)


def test_a_stop_of_another_process_has_its_own_patience(watched) -> None:
    job, armed = watched
    by_control(job, None)
    assert armed == [], "it waits for ever, whatever the job's own stop_timeout"
    by_control(job, 60_000_000)
    assert armed == [60.0]


def test_a_stop_that_wants_a_name_is_timed_from_when_it_is_sure_to_get_it(watched, monkeypatch) -> None:
    job, armed = watched
    sure: list[Any] = []
    monkeypatch.setattr(job._requests, "submit", lambda stop, callback, accepted: sure.append(accepted))
    stop = replace(job._local_requests.stop_request(None, 60_000_000), name="last")
    job._ask_to_stop(stop, lambda reply: None)
    assert armed == []
    sure[0]()
    assert armed == [60.0]


def test_a_signal_after_a_patient_stop_ends_the_job_in_its_own_time(watched) -> None:
    job, armed = watched
    by_control(job, None)
    job.request_stop()
    job.request_stop()
    assert armed == [8.0]
    by_control(job, 60_000_000)
    assert armed == [8.0], "the least patient counts"
    assert job._runner.said == ["stop"]


def test_a_time_out_of_any_length_can_be_watched() -> None:
    waited: list[float] = []
    given_up = threading.Event()

    ended = threading.Event()

    def over(seconds: float) -> bool:
        waited.append(seconds)
        if len(waited) == 3:
            ended.set()
        return ended.is_set()

    call_after_timeout(over, 2**63 / 1_000_000, given_up.set)
    assert ended.wait(10)
    assert waited == [MAX_WAIT] * 3
    call_after_timeout(lambda seconds: False, 2.5 * MAX_WAIT, given_up.set)
    assert given_up.wait(10)


# ------------------------------------------------------------------------------------ a stop while there is nothing yet


def test_a_stop_whose_time_is_up_while_the_session_is_made_ends_the_job_after_that(tmp_path, monkeypatch) -> None:
    job = ps.Job(rates, state=tmp_path, stop_timeout="1 hour")

    @contextmanager
    def slow(*_: object, **__: object) -> Iterator[object]:
        job.request_stop()
        job._give_up()
        yield object()

    monkeypatch.setattr("penstock.job.runner.borrow_session", slow)
    job.start()
    assert job.wait(30)
    assert job.state is JobState.STOPPED
    assert job.is_cut_short
    assert list(tmp_path.rglob("*.json")) == [], "nothing was claimed"


def test_a_runner_that_was_given_up_before_its_first_attempt_makes_none(tmp_path) -> None:
    runner = idle_runner(tmp_path)
    runner.give_up()
    with mock.patch("penstock.job.runner.Attempt") as made:
        runner._repeat_attempts(cast("Any", SimpleNamespace()))
    made.return_value.run.assert_not_called()
    assert runner.is_cut_short
    assert isinstance(runner._cut_short, StopTimedOut)


# ---------------------------------------------------------------------------------------------- the parent's options


def test_the_parent_passes_take_over_to_its_first_child_only(monkeypatch) -> None:
    commands: list[list[str]] = []

    class Two:
        def __init__(self, command, notify) -> None:
            self._command = command

        def run(self) -> int:
            commands.extend([self._command(False), self._command(False), self._command(True)])
            return 0

    monkeypatch.setattr("penstock.cli.run.ChildWatcher", Two)
    run_as_parent(RunCommand(pipeline="m:p", state="s", take_over=True, start=StartOptions(fresh=True)), Output())
    assert ["--take-over" in command for command in commands] == [True, False, False]
    assert ["--fresh" in command for command in commands] == [True, True, False]
