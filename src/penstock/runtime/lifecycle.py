"""Job states and restart strategies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from penstock.clock import MonotonicTime
from penstock.errors import InternalError

# ---- job states ------------------------------------------------------------------------------------------------------


class JobState(str, Enum):
    """The states of a job. A stopped job is not started again: a new one is made."""

    CREATED = "created"
    """Nothing was touched: no claim, no Spark job."""
    RESTORING = "restoring"
    """The log is claimed, open output is being published, state is being read."""
    RUNNING = "running"
    """Sources are read."""
    STOPPING = "stopping"
    """The last checkpoint is being taken and published; nothing new is read."""
    RESTARTING = "restarting"
    """The last attempt failed; the next begins after a pause."""
    STOPPED = "stopped"
    """Ended in order: everything read is published, the log says so."""
    FAILED = "failed"
    """Ended by an error that no restart follows. The log is kept for the next start."""
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
    """The state of one job, moved only along ``TRANSITIONS``."""

    def __init__(self) -> None:
        self._past: list[JobState] = [JobState.CREATED]

    @property
    def state(self) -> JobState:
        """The current state."""
        return self._past[-1]

    @property
    def is_over(self) -> bool:
        """Whether the state is a terminal one."""
        return self.state in TERMINAL_STATES

    def to(self, state: JobState) -> None:
        """Move to ``state``.

        Raises:
            InternalError: ``TRANSITIONS`` has no such move; the state stays as it was.
        """
        if state not in TRANSITIONS[self.state]:
            past = " → ".join(each.value for each in self._past[-8:])
            msg = f"A job cannot go from {self.state.value} to {state.value} (it went {past})."
            raise InternalError(msg)
        self._past.append(state)


# ---- restart strategies: Flink's, the exponential delay with the defaults of Flink 1.19 ------------------------------

SECOND = 1_000_000


class RestartStrategy(Protocol):
    """Decides whether and when a failed job is restarted."""

    @property
    def uncounted_delay(self) -> int | None:
        """The microseconds to wait after a failure that does not count, or ``None`` if no restart ever follows one."""
        ...

    def after_failure(self, at: MonotonicTime, *, chance: float) -> tuple[RestartStrategy, int | None]:
        """The strategy for the next failure, and the microseconds to wait, or ``None`` to give up.

        Args:
            at: when the attempt failed.
            chance: drawn from [0, 1) by the caller.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRestart:
    """Gives up at the first failure."""

    @property
    def uncounted_delay(self) -> None:
        """Give up after any failure."""
        return

    def after_failure(self, at: MonotonicTime, *, chance: float) -> tuple[RestartStrategy, int | None]:
        """Give up."""
        del at, chance
        return self, None


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay:
    """Waits the same time after each failure, at most ``attempts`` times in a run."""

    attempts: int = 3
    delay: int = SECOND

    @property
    def uncounted_delay(self) -> int:
        """``delay``, also when no attempt is left."""
        return self.delay

    def after_failure(self, at: MonotonicTime, *, chance: float) -> tuple[RestartStrategy, int | None]:
        """Wait ``delay`` while attempts are left."""
        del at, chance
        if self.attempts == 0:
            return self, None
        return FixedDelay(attempts=self.attempts - 1, delay=self.delay), self.delay


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Gives up when more than ``failures`` happen within ``interval``."""

    failures: int = 1
    interval: int = 60 * SECOND
    delay: int = SECOND
    seen: tuple[MonotonicTime, ...] = ()

    @property
    def uncounted_delay(self) -> int:
        """``delay``, however many failures were seen."""
        return self.delay

    def after_failure(self, at: MonotonicTime, *, chance: float) -> tuple[RestartStrategy, int | None]:
        """Count the failure; those older than the interval no longer count."""
        del chance
        seen = (*(each for each in self.seen if each > at - self.interval), at)
        following = FailureRate(failures=self.failures, interval=self.interval, delay=self.delay, seen=seen)
        return following, self.delay if len(seen) <= self.failures else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay:
    """Waits longer after each failure, up to a maximum; short again after ``reset_after`` without a failure.

    ``jitter`` spreads each pause by that fraction to either side, never above the maximum.
    """

    initial: int = SECOND
    maximum: int = 60 * SECOND
    multiplier: float = 1.5
    jitter: float = 0.1
    reset_after: int = 3_600 * SECOND
    next_delay: int | None = None
    last_failure: MonotonicTime | None = None

    @property
    def uncounted_delay(self) -> int:
        """``initial``: a failure that does not count makes no pause longer."""
        return self.initial

    def after_failure(self, at: MonotonicTime, *, chance: float) -> tuple[RestartStrategy, int | None]:
        """Wait the current delay, and longer the next time."""
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
