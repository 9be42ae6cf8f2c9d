"""Barrier alignment (exactly-once) and barrier counting (at-least-once) over the inputs of one task.

Pure state machines: events in, effects out. They read no channel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from penstock.elements import Barrier, CancelBarrier
from penstock.errors import InternalError, assert_never
from penstock.handles import CheckpointId

# ---- events and effects ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierArrived:
    """A barrier was taken from an input."""

    source: int
    barrier: Barrier


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelArrived:
    """A cancel barrier was taken from an input."""

    source: int
    cancel: CancelBarrier


@dataclass(frozen=True, slots=True, kw_only=True)
class InputEnded:
    """An input ended: it brings no more barriers, so it counts as aligned."""

    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshot:
    """The barrier has arrived from all live inputs: take a snapshot, then forward the barrier."""

    barrier: Barrier


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortAlignment:
    """The task abandons this checkpoint: forward the cancellation."""

    checkpoint: CheckpointId


AlignmentEvent: TypeAlias = BarrierArrived | CancelArrived | InputEnded
AlignmentEffect: TypeAlias = TakeSnapshot | AbortAlignment


class BarrierHandler(Protocol):
    """Follows the barriers of one task: ``AlignedBarrierHandler`` blocks, ``BarrierTracker`` counts."""

    @property
    def blocked(self) -> frozenset[int]:
        """Inputs that must not be read for now."""
        ...

    @property
    def aligning(self) -> CheckpointId | None:
        """The oldest checkpoint whose barriers are still to come."""
        ...

    def handle(self, event: AlignmentEvent) -> list[AlignmentEffect]:
        """The effects of one event, in order.

        Raises:
            InternalError: a second barrier of a checkpoint on one input.
        """
        ...


# ---- exactly-once ----------------------------------------------------------------------------------------------------


class AlignedBarrierHandler:
    """Barrier alignment: decides which inputs are blocked and when to take a snapshot.

    The first barrier of a new checkpoint blocks its input. When the barrier has arrived from every live input, the task
    takes a snapshot, and all inputs are read again. One checkpoint is aligned at a time: a newer barrier abandons the
    older checkpoint. (Flink: ``SingleCheckpointBarrierHandler``; scenarios 71-79.)
    """

    def __init__(self, inputs: int) -> None:
        self._live = set(range(inputs))
        self._arrived: set[int] = set()
        self._current: Barrier | None = None
        # The newest checkpoint that was aligned, abandoned or cancelled here; none up to it starts again.
        self._latest = CheckpointId(-1)

    @property
    def blocked(self) -> frozenset[int]:
        """Inputs that must not be read until the alignment ends."""
        return frozenset(self._arrived)

    @property
    def aligning(self) -> CheckpointId | None:
        """The checkpoint whose barriers are still to come."""
        return self._current.checkpoint if self._current else None

    def handle(self, event: AlignmentEvent) -> list[AlignmentEffect]:
        """The effects of one event, in order."""
        match event:
            case BarrierArrived():
                return self._barrier(event)
            case CancelArrived():
                return self._cancel(event.cancel.checkpoint)
            case InputEnded():
                self._live.discard(event.source)
                self._arrived.discard(event.source)
                return self._complete()
            case _:
                assert_never(event)

    def _barrier(self, event: BarrierArrived) -> list[AlignmentEffect]:
        barrier = event.barrier
        if event.source not in self._live or barrier.checkpoint <= self._latest:
            return []
        effects: list[AlignmentEffect] = []
        current = self._current
        if current is not None and barrier.checkpoint < current.checkpoint:
            return []
        if current is not None and barrier.checkpoint > current.checkpoint:
            effects += self._abandon(current.checkpoint)
            current = None
        if current is None:
            self._current = barrier
        elif event.source in self._arrived:
            msg = f"Input {event.source} brought the barrier of checkpoint {barrier.checkpoint} twice."
            raise InternalError(msg)
        self._arrived.add(event.source)
        return effects + self._complete()

    def _cancel(self, checkpoint: CheckpointId) -> list[AlignmentEffect]:
        if checkpoint <= self._latest:
            return []
        if self._current is not None and checkpoint < self._current.checkpoint:
            return []
        effects: list[AlignmentEffect] = []
        if self._current is not None and checkpoint > self._current.checkpoint:
            effects += self._abandon(self._current.checkpoint)
        return effects + self._abandon(checkpoint)

    def _abandon(self, checkpoint: CheckpointId) -> list[AlignmentEffect]:
        self._latest = checkpoint
        self._current = None
        self._arrived.clear()
        return [AbortAlignment(checkpoint=checkpoint)]

    def _complete(self) -> list[AlignmentEffect]:
        current = self._current
        if current is None or self._live - self._arrived:
            return []
        self._latest = current.checkpoint
        self._current = None
        self._arrived.clear()
        return [TakeSnapshot(barrier=current)]


# ---- at-least-once ---------------------------------------------------------------------------------------------------

MAX_TRACKED: Final = 50
"""Most checkpoints that are counted at a time. With one more the oldest is forgotten: no snapshot is taken for it."""


@dataclass(slots=True)
class _Count:
    """The inputs from which the barrier of a checkpoint, or its cancellation, has arrived."""

    arrived: set[int] = field(default_factory=set)
    barrier: Barrier | None = None
    is_aborted: bool = False


class BarrierTracker:
    """Barrier counting: decides when to take a snapshot, and never blocks an input.

    So rows behind an early barrier are in the snapshot too, and come again after a restart. Barriers are counted for
    each checkpoint; several may be pending. When the last barrier of a checkpoint has arrived, the task takes a
    snapshot, and that checkpoint and all older ones are over. (Flink: ``CheckpointBarrierTracker``; scenarios 80-85.)
    """

    def __init__(self, inputs: int) -> None:
        self._live = set(range(inputs))
        self._counts: dict[CheckpointId, _Count] = {}  # oldest first
        self._latest = CheckpointId(-1)  # the newest checkpoint seen; none up to it starts again

    @property
    def blocked(self) -> frozenset[int]:
        """Always empty."""
        return frozenset()

    @property
    def aligning(self) -> CheckpointId | None:
        """The oldest checkpoint whose barriers are still to come."""
        return next((id for id, count in self._counts.items() if not count.is_aborted), None)

    @property
    def pending(self) -> tuple[CheckpointId, ...]:
        """The checkpoints that are counted, oldest first; aborted ones stay until all their barriers have arrived."""
        return tuple(self._counts)

    def handle(self, event: AlignmentEvent) -> list[AlignmentEffect]:
        """The effects of one event, in order."""
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
            msg = f"Input {source} brought the barrier of checkpoint {barrier.checkpoint} twice."
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
        """The effect of an abort, once for each checkpoint."""
        count = self._counts[checkpoint]
        if count.is_aborted:
            return []
        count.is_aborted = True
        return [AbortAlignment(checkpoint=checkpoint)]

    def _is_over(self, checkpoint: CheckpointId) -> bool:
        return checkpoint <= self._latest and checkpoint not in self._counts

    def _count(self, checkpoint: CheckpointId) -> _Count:
        """The count of a checkpoint that is not over, made if it is new."""
        if checkpoint not in self._counts:
            self._latest = checkpoint
            self._counts[checkpoint] = _Count()
            if len(self._counts) > MAX_TRACKED:
                del self._counts[min(self._counts)]
        return self._counts[checkpoint]

    def _complete(self) -> list[AlignmentEffect]:
        """Remove the checkpoints whose barriers have all arrived; snapshot the newest that is not aborted."""
        complete = [id for id, count in self._counts.items() if not self._live - count.arrived]
        counts = [self._counts.pop(id) for id in complete]
        barrier = next((count.barrier for count in reversed(counts) if not count.is_aborted), None)
        if barrier is None:
            return []
        self._counts = {id: count for id, count in self._counts.items() if id > barrier.checkpoint}
        return [TakeSnapshot(barrier=barrier)]
