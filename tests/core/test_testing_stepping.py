"""What stands for threads and workers in a test: order, failures, crashes, and that nothing is asked for ever."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from penstock.clock import MonotonicTime
from penstock.failpoints import FailpointCrash
from penstock.runtime.task import StepResult
from penstock.testing.clock import ManualClock
from penstock.testing.driver import SerialWorkers, SteppedTask
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
