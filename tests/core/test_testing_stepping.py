"""What stands for threads and workers in a test: order, failures, crashes, and that nothing is asked for ever.

And what a run asks of the job under test, and shows of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.checkpoint.events import AnswerRequest, CheckpointRequested, RequestOutcome
from penstock.clock import MonotonicTime
from penstock.errors import HarnessError
from penstock.failpoints import FailpointCrash
from penstock.handles import CheckpointId
from penstock.runtime.task import StepResult
from penstock.testing.clock import ManualClock
from penstock.testing.driver import CrashPoint, JobUnderTest, SerialWorkers, SteppedTask
from penstock.testing.pipeline_run import PipelineRun, take_checkpoint
from penstock.testing.sources import CrashRow


class Task:
    """Answers what it is told to, and counts how often it was asked."""

    def __init__(self, *answers: StepResult | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    def step(self) -> StepResult:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Reports:
    def __init__(self) -> None:
        self.failed: list[tuple[str, BaseException]] = []
        self.finished: list[str] = []


def stepped(task: Task, clock: ManualClock, reports: Reports | None = None) -> SteppedTask:
    reports = reports or Reports()
    made = SteppedTask(
        "in",
        clock=clock,
        around=lambda _: nullcontext(),
        foreground=nullcontext,
        failed=lambda task, error: reports.failed.append((task, error)),
        finished=reports.finished.append,
    )
    given: Any = task
    made.start(given)
    return made


def test_a_task_is_due_when_it_worked_when_it_is_woken_and_when_it_asked_for_it() -> None:
    clock = ManualClock()
    task = Task(StepResult(worked=True), StepResult(wake_at=MonotonicTime(5_000_000)), StepResult())
    made = stepped(task, clock)
    assert (made.next_step, made.step(), made.next_step) == (0, True, 0)
    assert (made.step(), made.next_step) == (False, 5_000_000)
    made.wake()
    assert (made.next_step, made.step(), made.next_step) == (0, False, None)
    made.stop()
    made.wake()
    assert made.next_step is None
    assert made.join(1.0)


def test_a_task_that_asks_to_be_called_at_once_is_called_once_more_and_then_waits_for_something() -> None:
    clock = ManualClock()
    task = Task(StepResult(wake_at=MonotonicTime(0)))
    made = stepped(task, clock)
    assert (made.step(), task.asked, made.next_step) == (False, 2, None)
    made.wake()
    assert (made.step(), task.asked) == (False, 4)


def test_a_held_task_is_never_due() -> None:
    made = stepped(Task(StepResult()), ManualClock())
    made.is_held = True
    assert made.next_step is None
    made.is_held = False
    assert made.next_step == 0


def test_failures_are_reported_and_crashes_go_through() -> None:
    reports, clock = Reports(), ManualClock()
    error = ValueError("broken")
    made = stepped(Task(error), clock, reports)
    assert (made.step(), reports.failed, made.next_step) == (True, [("in", error)], None)
    done = stepped(Task(StepResult(worked=True, done=True)), clock, reports)
    assert (done.step(), reports.finished, done.next_step) == (True, ["in"], None)
    with pytest.raises(FailpointCrash, match="a Crash row of 'in'"):
        stepped(Task(CrashRow("here")), clock).step()


def test_pieces_are_done_in_the_order_they_came_and_failures_reported() -> None:
    done: list[str] = []
    failed: list[str] = []
    pieces = SerialWorkers(lambda owner, error: failed.append(f"{owner}: {error}"))

    def breaks() -> None:
        msg = "broken"
        raise ValueError(msg)

    def dies() -> None:
        name = "sink.published"
        raise FailpointCrash(name)

    pieces.submit("a", lambda: done.append("first"))
    pieces.submit("b", breaks)
    pieces.submit("a", lambda: done.append("second"))
    assert [pieces.do_next() for _ in range(4)] == [True, True, True, False]
    assert (done, failed) == (["first", "second"], ["b: broken"])
    pieces.submit("a", dies)
    with pytest.raises(FailpointCrash):
        pieces.do_next()
    pieces.submit("a", lambda: done.append("third"))
    pieces.close()
    pieces.submit("a", lambda: done.append("fourth"))
    assert not pieces.do_next()


class Job:
    """A job under test that dies in the first move, and restarts by itself.

    Each attempt gives one of the answers to what it is asked; with ``None`` it does not answer.
    """

    def __init__(self, *answers: AnswerRequest | None) -> None:
        self.clock = ManualClock()
        self.requests = self
        self.answers: dict[str, AnswerRequest] = {}
        self.asked: list[CheckpointRequested] = []
        self.number, self.is_alive, self.point, self.restarts_then = 1, True, CrashPoint("sink.published", {}), False
        self.running = SimpleNamespace(doing={"in": "held"})
        self._answers = answers

    def move(self, step: Callable[[Any], None]) -> None:
        step(None)
        if len(self.asked) == 1:
            self.number += 1

    def submit(self, event: CheckpointRequested, reply: Callable[[AnswerRequest], None]) -> None:
        self.asked.append(event)
        answer = self._answers[len(self.asked) - 1]
        if answer is not None:
            reply(answer)


DONE = AnswerRequest(request="", outcome=RequestOutcome.DONE, checkpoint=CheckpointId(7), message="done")
ABORTED = AnswerRequest(request="", outcome=RequestOutcome.FAILED, message="expired")


def test_after_a_crash_the_new_attempt_is_asked_the_same_so_that_it_can_answer_from_the_log() -> None:
    job = Job(None, DONE)
    assert take_checkpoint(cast("JobUnderTest", job), "kept", wait=True) == 7
    first, second = job.asked
    assert (first.request, first.name) == (second.request, second.name) == (first.request, "kept")
    other = Job(None, DONE)
    take_checkpoint(cast("JobUnderTest", other), "kept", wait=True)
    assert other.asked[0].request != first.request


def test_an_answer_of_an_attempt_that_died_does_not_count() -> None:
    assert take_checkpoint(cast("JobUnderTest", Job(ABORTED, None)), None, wait=False) is None
    assert take_checkpoint(cast("JobUnderTest", Job(ABORTED, DONE)), None, wait=True) == 7


@pytest.mark.parametrize("options", [{"rename": {"a": "b"}}, {"allow_non_restored_state": True}, {"pipeline": print}])
def test_a_restart_that_waits_for_a_crash_takes_no_options(options: dict[str, Any]) -> None:
    job, run = Job(), PipelineRun.__new__(PipelineRun)
    run._job = cast("JobUnderTest", job)
    with pytest.raises(HarnessError, match=r"takes no arguments. .*'sink.published'\) was never reached"):
        run.restart(**options)
    assert not job.restarts_then
    run.restart(rename={}, allow_non_restored_state=False)
    assert job.restarts_then


def test_rows_of_versions_with_other_columns_have_none_there() -> None:
    rows = [{"user": "u", "n": 1}, {"user": "v", "robot": True}]
    run = PipelineRun.__new__(PipelineRun)
    run._stand_ins = cast("Any", SimpleNamespace(sink=lambda _: SimpleNamespace(rows=rows, staged=rows[1:])))
    assert run.rows("out") == rows
    assert run.rows("out", "robot", "n") == [{"robot": None, "n": 1}, {"robot": True, "n": None}]
    assert run.staged("out", "robot") == [{"robot": True}]
    with pytest.raises(HarnessError, match=r"Sink 'out': Column 'm' does not exist. .*user, n, robot"):
        run.rows("out", "m")
