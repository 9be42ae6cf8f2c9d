"""Barrier counting over the inputs of one task, at-least-once: a pure machine. Knows neither channels nor operators.

Nothing is ever blocked, so rows behind an early barrier are in the snapshot too and come again after a restart.
Barriers are counted for each checkpoint; several may be under way at a time. A checkpoint whose last awaited barrier
came is snapshotted, and it and all older ones are over.
(Flink: ``CheckpointBarrierTracker``; scenarios 80-85.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.elements import Barrier
from penstock.errors import InternalError, assert_never
from penstock.ids import CheckpointId
from penstock.runtime.alignment import (
    Abandon,
    AlignmentEffect,
    AlignmentEvent,
    BarrierArrived,
    CancelArrived,
    InputEnded,
    TakeSnapshot,
)

MOST: Final = 50
"""Checkpoints that are counted at a time. One more, and the oldest is forgotten: it will not be snapshotted here."""


@dataclass(slots=True)
class _Count:
    """The inputs that are through with a checkpoint: their barrier or its cancellation came."""

    arrived: set[int] = field(default_factory=set)
    barrier: Barrier | None = None
    is_aborted: bool = False


class BarrierTracker:
    """Decides when to snapshot, never what waits. :meth:`handle` is the only way to change it."""

    def __init__(self, inputs: int) -> None:
        self._live = set(range(inputs))
        self._counts: dict[CheckpointId, _Count] = {}  # oldest first
        self._latest = CheckpointId(-1)  # the newest checkpoint seen: nothing up to it is begun again

    @property
    def blocked(self) -> frozenset[int]:
        """No input ever waits."""
        return frozenset()

    @property
    def aligning(self) -> CheckpointId | None:
        """The oldest checkpoint whose barriers are still to come."""
        return next((id for id, count in self._counts.items() if not count.is_aborted), None)

    @property
    def pending(self) -> tuple[CheckpointId, ...]:
        """The checkpoints that are counted, oldest first; aborted ones stay until all their barriers were seen."""
        return tuple(self._counts)

    def handle(self, event: AlignmentEvent) -> list[AlignmentEffect]:
        """Take in one event; return what to do, in order.

        Raises:
            InternalError: a second barrier of a checkpoint on one input; nothing has changed.
        """
        match event:
            case BarrierArrived():
                return self._barrier(event.source, event.barrier)
            case CancelArrived():
                return self._cancel(event.source, event.cancel.checkpoint)
            case InputEnded():
                self._live.discard(event.source)
                return self._complete()
            case _:
                assert_never(event)

    def _barrier(self, source: int, barrier: Barrier) -> list[AlignmentEffect]:
        if source not in self._live or self._is_over(barrier.checkpoint):
            return []
        count = self._count(barrier.checkpoint)
        if source in count.arrived and not count.is_aborted:
            msg = f"input {source} brought the barrier of checkpoint {barrier.checkpoint} twice"
            raise InternalError(msg)
        count.barrier = barrier
        count.arrived.add(source)
        return self._complete()

    def _cancel(self, source: int, checkpoint: CheckpointId) -> list[AlignmentEffect]:
        if self._is_over(checkpoint):
            return []
        effects: list[AlignmentEffect] = []
        for older in [id for id in self._counts if id < checkpoint]:
            effects += self._abort(older)
            del self._counts[older]
        self._count(checkpoint).arrived.add(source)
        return effects + self._abort(checkpoint) + self._complete()

    def _abort(self, checkpoint: CheckpointId) -> list[AlignmentEffect]:
        """Told once for each checkpoint."""
        count = self._counts[checkpoint]
        if count.is_aborted:
            return []
        count.is_aborted = True
        return [Abandon(checkpoint=checkpoint)]

    def _is_over(self, checkpoint: CheckpointId) -> bool:
        return checkpoint <= self._latest and checkpoint not in self._counts

    def _count(self, checkpoint: CheckpointId) -> _Count:
        """The count of a checkpoint that is not over; begun if it is new."""
        if checkpoint not in self._counts:
            self._latest = checkpoint
            self._counts[checkpoint] = _Count()
            if len(self._counts) > MOST:
                del self._counts[min(self._counts)]
        return self._counts[checkpoint]

    def _complete(self) -> list[AlignmentEffect]:
        """Forget what all live inputs are through with; snapshot the newest of it that is not aborted."""
        through = [id for id, count in self._counts.items() if not self._live - count.arrived]
        counts = [self._counts.pop(id) for id in through]
        barrier = next((count.barrier for count in reversed(counts) if not count.is_aborted), None)
        if barrier is None:
            return []
        self._counts = {id: count for id, count in self._counts.items() if id > barrier.checkpoint}
        return [TakeSnapshot(barrier=barrier)]
