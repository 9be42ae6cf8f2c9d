"""Attempt after attempt until one ends in order or none may follow; and how a stop reaches the one that runs.

Knows when attempts begin and end, not what they do.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Final

from penstock.errors import Domain, EngineDied, GenerationFenced, PenstockError
from penstock.facts import Restarting
from penstock.job.attempt import Attempt, Plan
from penstock.job.beginning import CONTINUE, Beginning
from penstock.runtime.clock import LONGEST_WAIT, Clock
from penstock.runtime.lifecycle import JobState, Lifecycle
from penstock.runtime.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy

log = logging.getLogger("penstock")

STRATEGIES: Final[dict[str, RestartStrategy]] = {
    "exponential": ExponentialDelay(),
    "fixed": FixedDelay(),
    "rate": FailureRate(),
    "none": NoRestart(),
}


class GivenUp(PenstockError):
    """A stop was asked for, and something could not be done in time; nothing is lost."""

    domain = Domain.EXTERNAL


class Stop:
    """Whether the job was asked to stop. Set once, from any thread."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def is_asked(self) -> bool:
        """Whether it was."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Ask."""
        self._asked.set()

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; returns whether it was asked for."""
        return self._asked.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Wait before something is tried again; once a stop is asked for, give up instead.

        Raises:
            GivenUp: it was.
        """
        if self._asked.wait(seconds):
            msg = "stopped while waiting for storage or a sink; the next start goes on where this one gave up"
            raise GivenUp(msg)


class Attempts:
    """The attempts of one job, one after the other, on the thread that calls :meth:`run`."""

    def __init__(self, plan: Plan, *, lifecycle: Lifecycle, stop: Stop, beginning: Beginning = CONTINUE) -> None:
        self._plan = plan
        self._lifecycle = lifecycle
        self._stop = stop
        self._beginning = beginning
        self._strategy = STRATEGIES[plan.settings.restart]
        self._current: Attempt | None = None
        self._is_given_up = False
        self.cut_short: PenstockError | None = None
        """What a stop could not wait for; what was read since the last checkpoint is read again by the next start."""
        self._lock = threading.Lock()

    def run(self) -> None:
        """Until the job has ended in order, or was cut short of that.

        Raises:
            PenstockError: what no restart helps, or one too many.
        """
        number = 1
        while not self._ends(number):
            self._lifecycle.to(JobState.RESTORING)
            number += 1

    def stop(self) -> None:
        """The job is to end: say so. The request itself comes to the attempt as all requests do."""
        with self._lock:
            if self._lifecycle.state is JobState.RUNNING:
                self._lifecycle.to(JobState.STOPPING)

    def give_up(self) -> None:
        """End without the last checkpoint: what it would have held is read again next time."""
        with self._lock:
            self._is_given_up = True
            attempt = self._current
        if attempt is not None:
            attempt.give_up(GivenUp("stopped before the last checkpoint was complete"))

    def _ends(self, number: int) -> bool:
        """Run one attempt; ``False`` if another is to follow, after a pause that is over."""
        try:
            self._next(number).run(self._running)
        except PenstockError as error:
            if isinstance(error, GivenUp) or (self._is_given_up and not isinstance(error, GenerationFenced)):
                self.cut_short = error
                log.warning("job %s: %s; the next start goes on from the last complete one", self._plan.name, error)
                return True
            self._wait_or_raise(error, number)
            return False
        return True

    def _next(self, number: int) -> Attempt:
        """The next attempt, which a stop can reach from here on.

        Raises:
            GivenUp: it came before.
        """
        before = self._current
        if before is not None and before.is_begun:
            self._beginning = CONTINUE  # and for good: the next one may fail before it has begun anything
        attempt = Attempt(
            self._plan,
            number=number,
            after=before.generation if before else None,
            beginning=self._beginning,
        )
        with self._lock:
            if self._is_given_up:
                msg = "stopped before the job had begun"
                raise GivenUp(msg)
            self._current = attempt
        return attempt

    def _wait_or_raise(self, error: PenstockError, number: int) -> None:
        clock = self._plan.clock
        self._strategy, delay = self._strategy.after_failure(clock.now(), chance=random.random())
        if not error.retry or isinstance(error, EngineDied) or delay is None or self._stop.is_asked:
            raise error
        self._lifecycle.to(JobState.RESTARTING)
        self._plan.listener(Restarting(cause=str(error), delay_ms=delay / 1_000, attempt=number))
        if self._stop.wait(delay / 1_000_000):
            raise error

    def _running(self) -> None:
        with self._lock:
            self._lifecycle.to(JobState.STOPPING if self._stop.is_asked else JobState.RUNNING)


class Patience:
    """How long a job that is asked to stop may take: the least patient of those who ask counts.

    Args:
        clock: of the job.
        over: waits so many seconds for the job to be over; whether it is.
        give_up: called, on a thread of its own, when somebody does not wait longer.
    """

    def __init__(self, clock: Clock, over: Callable[[float], bool], give_up: Callable[[], None]) -> None:
        self._clock = clock
        self._over = over
        self._give_up = give_up
        self._latest: int | None = None
        self._lock = threading.Lock()

    def least(self, patience: int | None) -> None:
        """Somebody waits so many microseconds; ``None`` is for ever."""
        if patience is None:
            return
        latest = self._clock.now() + patience
        with self._lock:
            if self._latest is not None and self._latest <= latest:
                return
            self._latest = latest
        watch(self._over, patience / 1_000_000, self._give_up)


def watch(over: Callable[[float], bool], seconds: float, give_up: Callable[[], None]) -> None:
    """Call ``give_up`` unless the job is over within ``seconds``; on a thread of its own."""

    def wait() -> None:
        left = seconds
        while left > LONGEST_WAIT:
            if over(LONGEST_WAIT):
                return
            left -= LONGEST_WAIT
        if not over(left):
            give_up()

    threading.Thread(target=wait, name="penstock-stop-timeout", daemon=True).start()
