"""Asks a running job for a checkpoint or its end, and sees it through, whatever crashes and restarts come between."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from penstock.checkpoint.messages import Answer, CheckpointRequested, StopRequested
from penstock.errors import CheckpointAborted, HarnessError, RequestRefused
from penstock.ids import CheckpointId
from penstock.testing.life import Life
from penstock.testing.stepping import Running

_NUMBERS: Final = itertools.count(1)

_PATIENCE: Final = 500 * 86_400_000_000
"""Microseconds that a job may take to its end: what is due later than that would never come."""


def take_checkpoint(life: Life, name: str | None, *, wait: bool) -> CheckpointId | None:
    """Have a checkpoint taken, pinned under a name if there is one; ``None`` if it is pending, or the job died of it.

    Raises:
        CheckpointAborted: it was aborted.
        RequestRefused: the name is taken.
        HarnessError: the job is dead, or the checkpoint never completes.
    """
    while True:
        request, number = f"test-{next(_NUMBERS)}", life.number

        def ask(_: Running, request: str = request) -> None:
            at, wall = life.clock.now(), life.clock.wall()
            asked = CheckpointRequested(at=at, wall=wall, request=request, name=name, owner="test")
            life.requests.submit(asked, lambda reply: life.answers.__setitem__(request, reply))

        life.move(ask)
        if life.number == number:
            break  # else it died and began again, and knows nothing of what was asked
    if not life.is_alive:
        return None
    answer = life.answers.get(request)
    if answer is None:
        if not wait:
            return None
        msg = f"the checkpoint does not complete: {_told(life.running)}"
        raise HarnessError(msg)
    if answer.answer is Answer.REFUSED:
        raise RequestRefused(answer.message)
    if answer.answer is not Answer.DONE:
        raise CheckpointAborted(answer.message)
    return answer.checkpoint


def stop_job(life: Life) -> None:
    """Have the job stop in order.

    Raises:
        HarnessError: it is dead, or does not come to its end.
    """

    def ask(running: Running) -> None:
        at, wall = life.clock.now(), life.clock.wall()
        running.supervisor.request(StopRequested(at=at, wall=wall, request=f"test-{next(_NUMBERS)}"))

    until_over(life, "stop()", ask)


def restart_later(life: Life, *, is_new: bool) -> None:
    """A restart is asked for while the job runs: it follows the crash that is armed.

    Raises:
        HarnessError: none is, one was asked for already, or a new version of the pipeline is to begin with it.
    """
    if life.point is None:
        msg = "the job runs, and no crash is armed: crash(), stop() or end() it first"
        raise HarnessError(msg)
    if life.restarts_then or is_new:
        why = "a new version begins when the job has died" if is_new else "the restart waits for the crash"
        msg = f"{why}: {life.point.story()}"
        raise HarnessError(msg)
    life.restarts_then = True


def until_over(life: Life, what: str, ask: Callable[[Running], None]) -> None:
    """Ask each attempt for the end and let time pass until it has come, or the job is dead with no restart to follow.

    Raises:
        HarnessError: the job is dead, or does not come to its end.
    """
    asked, latest = -1, life.clock.now() + _PATIENCE
    while True:
        if life.number != asked:
            asked = life.number
            life.move(ask)
        if not life.is_alive:
            return
        if life.number != asked:
            continue  # it died and began again
        due = life.running.next_due
        if due is None or due > latest:
            msg = f"{what} does not come to its end: {_told(life.running)}"
            raise HarnessError(msg)
        life.move(lambda running, due=due: running.advance_to(due))  # type: ignore[misc]


def _told(running: Running) -> str:
    return "; ".join(f"'{task}' is {doing}" for task, doing in running.doing.items())
