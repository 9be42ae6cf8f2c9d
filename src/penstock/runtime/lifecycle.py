"""Job states and restart strategies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from penstock.clock import MonotonicTime
from penstock.errors import InternalError

# ----------------------------------------------------------------------------------------------------
# What a job may become from what it is: a table, and a machine that refuses everything else. Pure.
#
# A stopped job does not come back to life: a new one is made (mission rows S1, S2, S6).


class JobState(str, Enum):
    """Each state says what is true while it lasts."""

    CREATED = "created"
    """Nothing was touched: no claim, no Spark job."""
    RESTORING = "restoring"
    """The log is claimed, what was open is being published, state is being read."""
    RUNNING = "running"
    """Sources are read."""
    STOPPING = "stopping"
    """The last checkpoint is being taken and published; nothing new is read."""
    RESTARTING = "restarting"
    """The last attempt failed; the next begins after a pause."""
    STOPPED = "stopped"
    """Ended in order: everything read is published, the log says so."""
    FAILED = "failed"
    """Ended by an error that a restart does not help. What is in the log is kept for the next start."""
    FENCED = "fenced"
    """Another driver owns the job. Nothing more was committed or deleted here."""


TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.CREATED: frozenset({JobState.RESTORING, JobState.STOPPED, JobState.FAILED}),
    JobState.RESTORING: frozenset(
        {
            JobState.RUNNING,
            JobState.STOPPING,
            JobState.STOPPED,
            JobState.RESTARTING,
            JobState.FAILED,
            JobState.FENCED,
        }
    ),
    JobState.RUNNING: frozenset(
        {JobState.STOPPING, JobState.STOPPED, JobState.RESTARTING, JobState.FAILED, JobState.FENCED}
    ),
    JobState.STOPPING: frozenset({JobState.STOPPED, JobState.RESTARTING, JobState.FAILED, JobState.FENCED}),
    JobState.RESTARTING: frozenset({JobState.RESTORING, JobState.STOPPING, JobState.STOPPED, JobState.FAILED}),
    JobState.STOPPED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.FENCED: frozenset(),
}
TERMINAL_STATES: Final = frozenset({JobState.STOPPED, JobState.FAILED, JobState.FENCED})


class Lifecycle:
    """The state of one job, moved only along :data:`TRANSITIONS`."""

    def __init__(self) -> None:
        self._story: list[JobState] = [JobState.CREATED]

    @property
    def state(self) -> JobState:
        """What the job is now."""
        return self._story[-1]

    @property
    def is_over(self) -> bool:
        """Whether nothing follows."""
        return self.state in TERMINAL_STATES

    def to(self, state: JobState) -> None:
        """Move on.

        Raises:
            InternalError: the table has no such move; the state stays as it was.
        """
        if state not in TRANSITIONS[self.state]:
            story = " → ".join(each.value for each in self._story[-8:])
            msg = f"a job cannot go from {self.state.value} to {state.value} (it went {story})"
            raise InternalError(msg)
        self._story.append(state)


# ----------------------------------------------------------------------------------------------------
# Whether and when a failed job begins again; pure: time and chance are arguments.
#
# (Flink's restart strategies; its exponential delay with the defaults of 1.19.)

SECOND = 1_000_000


class RestartStrategy(Protocol):
    """Decides after each failure."""

    def after_failure(self, at: MonotonicTime, *, chance: float) -> tuple[RestartStrategy, int | None]:
        """The strategy to ask next time, and the microseconds to wait, or ``None`` to give up.

        ``chance`` is drawn from [0, 1) by the caller.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRestart:
    """The first failure ends the job."""

    def after_failure(self, at: MonotonicTime, *, chance: float) -> tuple[RestartStrategy, int | None]:
        """Give up."""
        del at, chance
        return self, None


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay:
    """The same pause each time, at most ``attempts`` times in a run."""

    attempts: int = 3
    delay: int = SECOND

    def after_failure(self, at: MonotonicTime, *, chance: float) -> tuple[RestartStrategy, int | None]:
        """Wait the same time again, while attempts are left."""
        del at, chance
        if self.attempts == 0:
            return self, None
        return FixedDelay(attempts=self.attempts - 1, delay=self.delay), self.delay


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Give up when more than ``failures`` happen within ``interval``."""

    failures: int = 1
    interval: int = 60 * SECOND
    delay: int = SECOND
    seen: tuple[MonotonicTime, ...] = ()

    def after_failure(self, at: MonotonicTime, *, chance: float) -> tuple[RestartStrategy, int | None]:
        """Count this one; those older than the interval no longer count."""
        del chance
        seen = (*(each for each in self.seen if each > at - self.interval), at)
        following = FailureRate(failures=self.failures, interval=self.interval, delay=self.delay, seen=seen)
        return following, self.delay if len(seen) <= self.failures else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay:
    """Ever longer pauses, up to a maximum; short again after ``reset_after`` without a failure.

    ``jitter`` spreads each pause by that fraction to either side, never above the maximum.
    """

    initial: int = SECOND
    maximum: int = 60 * SECOND
    multiplier: float = 1.5
    jitter: float = 0.1
    reset_after: int = 3_600 * SECOND
    next_delay: int | None = None
    last_failure: MonotonicTime | None = None

    def after_failure(self, at: MonotonicTime, *, chance: float) -> tuple[RestartStrategy, int | None]:
        """Wait the current pause, and longer the next time."""
        healthy = self.last_failure is None or at - self.last_failure >= self.reset_after
        delay = self.initial if healthy or self.next_delay is None else self.next_delay
        following = ExponentialDelay(
            initial=self.initial,
            maximum=self.maximum,
            multiplier=self.multiplier,
            jitter=self.jitter,
            reset_after=self.reset_after,
            next_delay=min(self.maximum, int(delay * self.multiplier)),
            last_failure=at,
        )
        spread = int(delay * self.jitter * (2 * chance - 1))
        return following, min(self.maximum, delay + spread)
