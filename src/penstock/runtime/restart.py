"""Whether and when a failed job begins again; pure: time and chance are arguments.

(Flink's restart strategies; its exponential delay with the defaults of 1.19.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.ids import Instant

SECOND = 1_000_000


class RestartStrategy(Protocol):
    """Decides after each failure."""

    def after_failure(self, at: Instant, *, chance: float) -> tuple[RestartStrategy, int | None]:
        """The strategy to ask next time, and the microseconds to wait, or ``None`` to give up.

        ``chance`` is drawn from [0, 1) by the caller.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRestart:
    """The first failure ends the job."""

    def after_failure(self, at: Instant, *, chance: float) -> tuple[RestartStrategy, int | None]:
        """Give up."""
        del at, chance
        return self, None


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay:
    """The same pause each time, at most ``attempts`` times in a run."""

    attempts: int = 3
    delay: int = SECOND

    def after_failure(self, at: Instant, *, chance: float) -> tuple[RestartStrategy, int | None]:
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
    seen: tuple[Instant, ...] = ()

    def after_failure(self, at: Instant, *, chance: float) -> tuple[RestartStrategy, int | None]:
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
    last_failure: Instant | None = None

    def after_failure(self, at: Instant, *, chance: float) -> tuple[RestartStrategy, int | None]:
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
