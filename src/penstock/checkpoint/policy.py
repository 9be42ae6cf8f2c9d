"""When a checkpoint is due, which request goes first, how many failures are tolerated."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.checkpoint.events import AbortReason, CheckpointRequested
from penstock.clock import MonotonicTime
from penstock.elements import CheckpointKind
from penstock.errors import SettingsError
from penstock.handles import CheckpointId

SECOND = 1_000_000
"""Microseconds of a second. All durations here are whole microseconds."""
MIN_INTERVAL = SECOND // 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Settings of the coordinator. Durations are microseconds.

    Attributes:
        interval: from one periodic checkpoint to the next, in step with the job's start; ``None`` takes none.
        min_pause: from the end of a checkpoint to the next periodic one.
        timeout: how long a checkpoint may take before it is aborted.
        tolerable_failures: number of counted failures in a row that leave the job running.
        skip_idle: take no periodic checkpoint if nothing has changed since the last one.
        max_queued: number of requests that may wait.
        retry_pause: before a mandatory checkpoint (the initial or the final one) is tried again.
        commit_backoff: before a commit is tried again the first time; doubles each time.
        commit_backoff_limit: the longest such wait.
    """

    interval: int | None = 10 * SECOND
    min_pause: int = 0
    timeout: int = 600 * SECOND
    tolerable_failures: int = 0
    skip_idle: bool = True
    max_queued: int = 1000
    retry_pause: int = SECOND
    commit_backoff: int = SECOND
    commit_backoff_limit: int = 60 * SECOND

    def __post_init__(self) -> None:
        limits = {"timeout": MIN_INTERVAL, "min_pause": 0, "tolerable_failures": 0, "max_queued": 1, "retry_pause": 1}
        limits |= {"commit_backoff": 1, "commit_backoff_limit": self.commit_backoff}
        if self.interval is not None:
            limits["interval"] = MIN_INTERVAL
        for name, least in limits.items():
            if getattr(self, name) < least:
                msg = f"{name} is {getattr(self, name)}, but must be at least {least}."
                raise SettingsError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerRequest:
    """A checkpoint to begin now, and the request for it, if there was one."""

    kind: CheckpointKind
    request: CheckpointRequested | None = None


class RequestQueue:
    """Requests that wait for a checkpoint of their own: savepoints first, else in order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._savepoints: deque[CheckpointRequested] = deque()
        self._others: deque[CheckpointRequested] = deque()

    def __len__(self) -> int:
        return len(self._savepoints) + len(self._others)

    def add(self, request: CheckpointRequested) -> bool:
        """Queue a request; ``False`` if too many wait already."""
        if len(self) >= self._limit:
            return False
        (self._others if request.name is None else self._savepoints).append(request)
        return True

    def pop(self) -> CheckpointRequested | None:
        """The next to serve."""
        queue = self._savepoints or self._others
        return queue.popleft() if queue else None


class FailureCounter:
    """Counts failures in a row against a tolerated number: each checkpoint once, from zero after a success."""

    def __init__(self, tolerated: int) -> None:
        self._tolerated = tolerated
        self._last_success = CheckpointId(-1)
        self._failed: set[CheckpointId] = set()

    def is_too_many(self, checkpoint: CheckpointId, kind: CheckpointKind, reason: AbortReason) -> bool:
        """Count a failure; returns whether it was one too many, and then counts from zero again.

        Only some reasons count. A savepoint that timed out, or whose manifest could not be written, does not count: no
        job restarts because a savepoint was requested at a bad moment. Nor do failures older than the last success.
        """
        if not reason.is_counted or checkpoint <= self._last_success:
            return False
        if kind is CheckpointKind.SAVEPOINT and reason in {AbortReason.EXPIRED, AbortReason.MANIFEST_FAILED}:
            return False
        self._failed.add(checkpoint)
        if len(self._failed) <= self._tolerated:
            return False
        self._failed.clear()
        return True

    def succeeded(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is in the log."""
        self._last_success = checkpoint
        self._failed.clear()


class PeriodicTrigger:
    """When the next periodic checkpoint is due: in step with the job's start; a missed tick is not made up."""

    def __init__(self, interval: int | None, min_pause: int, started: MonotonicTime) -> None:
        self._interval = interval
        self._min_pause = min_pause
        self._started = started
        self._completed: MonotonicTime | None = None
        self.due: MonotonicTime | None = None
        """The tick that is waited for."""
        self.is_wanted = False
        """A tick has come and its checkpoint has not yet been taken."""

    def rearm(self, at: MonotonicTime) -> MonotonicTime | None:
        """Wait for the first tick strictly after ``at``; returns its time."""
        self.is_wanted = False
        if self._interval is not None:
            ticks = (at - self._started) // self._interval + 1
            self.due = MonotonicTime(self._started + ticks * self._interval)
        return self.due

    def fired(self, due: MonotonicTime) -> bool:
        """A timer fired; returns whether it was the awaited tick."""
        if due != self.due:
            return False
        self.due = None
        self.is_wanted = True
        return True

    def completed(self, at: MonotonicTime) -> None:
        """A checkpoint is in the log: ``min_pause`` begins."""
        self._completed = at

    def wait_for_pause(self, at: MonotonicTime) -> MonotonicTime | None:
        """Move the tick to the end of ``min_pause`` and return that time; ``None`` if the pause is over."""
        if self._completed is None or at >= self._completed + self._min_pause:
            return None
        self.is_wanted = False
        self.due = MonotonicTime(self._completed + self._min_pause)
        return self.due
