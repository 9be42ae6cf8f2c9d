"""Barrier alignment over the inputs of one task, exactly-once: a pure machine. Knows neither channels nor operators.

The first barrier of a new checkpoint blocks its input; when the barrier came on every live input, the task snapshots,
and all inputs go on. One checkpoint is aligned at a time: a newer barrier abandons the older one.
(Flink: ``SingleCheckpointBarrierHandler``; scenarios 71-79.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from penstock.elements import Barrier, CancelBarrier
from penstock.errors import InternalError, assert_never
from penstock.ids import CheckpointId


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
    """An input ended: no barrier will come from it, so it counts as aligned."""

    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshot:
    """All live inputs have brought the barrier: snapshot, then forward it."""

    barrier: Barrier


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """This checkpoint will not be aligned here any more: forward the cancellation."""

    checkpoint: CheckpointId


AlignmentEvent: TypeAlias = BarrierArrived | CancelArrived | InputEnded
AlignmentEffect: TypeAlias = TakeSnapshot | Abandon


class Barriers(Protocol):
    """Follows the barriers of one task: :class:`Alignment`, or ``BarrierTracker`` where nothing may wait."""

    @property
    def blocked(self) -> frozenset[int]:
        """Inputs that must not be read for now."""
        ...

    @property
    def aligning(self) -> CheckpointId | None:
        """The checkpoint whose barriers are being waited for."""
        ...

    def handle(self, event: AlignmentEvent) -> list[AlignmentEffect]:
        """Take in one event; return what to do, in order."""
        ...


class Alignment:
    """Decides which inputs wait and when to snapshot. :meth:`handle` is the only way to change it."""

    def __init__(self, inputs: int) -> None:
        self._live = set(range(inputs))
        self._arrived: set[int] = set()
        self._current: Barrier | None = None
        self._latest = CheckpointId(-1)
        """The newest checkpoint that was aligned, abandoned or cancelled here: nothing up to it starts again."""

    @property
    def blocked(self) -> frozenset[int]:
        """Inputs that must not be read until the alignment ends."""
        return frozenset(self._arrived)

    @property
    def aligning(self) -> CheckpointId | None:
        """The checkpoint whose barriers are being waited for."""
        return self._current.checkpoint if self._current else None

    def handle(self, event: AlignmentEvent) -> list[AlignmentEffect]:
        """Take in one event; return what to do, in order."""
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
            msg = f"input {event.source} brought the barrier of checkpoint {barrier.checkpoint} twice"
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
        return [Abandon(checkpoint=checkpoint)]

    def _complete(self) -> list[AlignmentEffect]:
        current = self._current
        if current is None or self._live - self._arrived:
            return []
        self._latest = current.checkpoint
        self._current = None
        self._arrived.clear()
        return [TakeSnapshot(barrier=current)]
