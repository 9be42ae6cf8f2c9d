"""A task's snapshots between barrier and worker: how long barriers took, and which watermarks are still to be told.

Knows neither elements nor what a snapshot holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from penstock.facts import BarrierPassed
from penstock.handles import TaskSnapshot
from penstock.ids import CheckpointId, EventTime, Instant
from penstock.runtime.inputs import FrozenWatermarks

Capture: TypeAlias = Callable[[tuple[EventTime, ...]], TaskSnapshot]
"""Makes a snapshot durable and describes it, given the watermarks at the barrier. Runs on a worker."""


class Captures:
    """Snapshots that were named and wait for what batches before the barrier tell of event time. In order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[CheckpointId, FrozenWatermarks, Capture]] = deque()

    def add(self, checkpoint: CheckpointId, watermarks: FrozenWatermarks, capture: Capture) -> None:
        """One more."""
        self._waiting.append((checkpoint, watermarks, capture))

    def ready(self) -> list[tuple[CheckpointId, Callable[[], TaskSnapshot]]]:
        """Those that wait for nothing any more, oldest first; each is told once."""
        found = []
        while self._waiting and self._waiting[0][1].settled:
            checkpoint, watermarks, capture = self._waiting.popleft()
            found.append((checkpoint, _given(capture, watermarks.values())))
        return found


class BarrierWatch:
    """How long a task's barriers take, from the first of a checkpoint on."""

    def __init__(self) -> None:
        self._first: Instant | None = None

    def came(self, now: Instant) -> None:
        """A barrier came; only the first of an alignment counts."""
        self._first = now if self._first is None else self._first

    def abandoned(self, now: Instant, *, aligning: bool) -> None:
        """An alignment was given up; ``aligning`` if the barrier that caused it has begun another."""
        self._first = now if aligning else None

    def passed(self, task: str, checkpoint: CheckpointId, *, began: Instant, now: Instant) -> BarrierPassed:
        """The last barrier came when naming state ``began``, and went on now."""
        first, self._first = self._first, None
        aligned = 0 if first is None else began - first
        return BarrierPassed(
            task=task, checkpoint=checkpoint, aligned_ms=aligned / 1_000, stall_ms=(now - began) / 1_000
        )


def _given(capture: Capture, watermarks: tuple[EventTime, ...]) -> Callable[[], TaskSnapshot]:
    return lambda: capture(watermarks)
