"""Acknowledgements of a checkpoint: kept by task attempt, never counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.checkpoint.entries import Manifest, Pin, StepRecord
from penstock.checkpoint.events import (
    AbortCheckpoint,
    AbortReason,
    AckResult,
    AnswerRequest,
    AttemptId,
    CheckpointRequested,
    Effect,
    RequestOutcome,
)
from penstock.checkpoint.policy import TriggerRequest
from penstock.clock import WallTime
from penstock.elements import CheckpointKind
from penstock.errors import InternalError
from penstock.handles import CheckpointId, Committable, Json, TaskSnapshot

MAX_REMEMBERED: Final = 16
"""Number of ended checkpoints that are remembered, to distinguish a repeated acknowledgement from a late one."""


class PendingCheckpoint:
    """One checkpoint whose barriers are out.

    Args:
        checkpoint: its id.
        kind: why it is taken.
        request: the request for it, if there was one.
        triggered: when its barriers left.
        attempts: every task of the run.
    """

    def __init__(
        self,
        *,
        checkpoint: CheckpointId,
        kind: CheckpointKind,
        request: CheckpointRequested | None,
        triggered: WallTime,
        attempts: Mapping[str, AttemptId],
    ) -> None:
        self.checkpoint = checkpoint
        self.kind = kind
        self.request = request
        self.triggered = triggered
        self._tasks = {attempt: task for task, attempt in attempts.items()}
        self._snapshots: dict[str, TaskSnapshot] = {}

    def has_acknowledged(self, attempt: AttemptId) -> bool:
        """Whether this attempt has acknowledged."""
        return self._tasks[attempt] in self._snapshots

    def acknowledge(self, attempt: AttemptId, snapshot: TaskSnapshot) -> None:
        """Keep the snapshot of a task's attempt; the first counts."""
        self._snapshots.setdefault(self._tasks[attempt], snapshot)

    @property
    def missing(self) -> tuple[str, ...]:
        """The tasks that have not acknowledged, sorted."""
        return tuple(sorted(set(self._tasks.values()) - self._snapshots.keys()))

    def manifest(
        self,
        *,
        parent: CheckpointId | None,
        completed: WallTime,
        steps: tuple[StepRecord, ...],
        open: tuple[Committable, ...],
        pins: tuple[Pin, ...],
        settings: Mapping[str, Json],
    ) -> Manifest:
        """The manifest for the log: tasks are sorted, the requested name comes before ``pins``."""
        snapshots = (replace(snapshot, committables=()) for _, snapshot in sorted(self._snapshots.items()))
        return Manifest(
            checkpoint=self.checkpoint,
            kind=self.kind,
            parent=parent,
            triggered=self.triggered,
            completed=completed,
            steps=steps,
            tasks=tuple(snapshots),
            open=open,
            pins=(*self._pins(completed), *pins),
            settings=settings,
            fulfils=(self.request.request,) if self.request else (),
        )

    def _pins(self, at: WallTime) -> tuple[Pin, ...]:
        event = self.request
        if event is None or event.name is None:
            return ()
        return (Pin(name=event.name, checkpoint=self.checkpoint, at=at, owner=event.owner, request=event.request),)

    def abort(self, reason: AbortReason, message: str, last: CheckpointId | None) -> list[Effect]:
        """The effects of an abort; ``last`` is the newest checkpoint in the log."""
        abort = AbortCheckpoint(checkpoint=self.checkpoint, reason=reason, message=message, last_completed=last)
        return [abort, *self.answer(RequestOutcome.FAILED, message)]

    def answer(self, outcome: RequestOutcome, message: str) -> list[Effect]:
        """The answer to the request for this checkpoint, if there was one."""
        if self.request is None:
            return []
        request = self.request.request
        return [AnswerRequest(request=request, outcome=outcome, checkpoint=self.checkpoint, message=message)]


class AckTracker:
    """All acknowledgements of one run: of the pending checkpoint, and of those that have ended.

    Args:
        attempts: every task of the run and its attempt.
    """

    def __init__(self, attempts: Mapping[str, AttemptId]) -> None:
        self.pending: PendingCheckpoint | None = None
        """The one checkpoint whose barriers are out (C1)."""
        self._attempts = attempts
        self._tasks = {attempt: task for task, attempt in attempts.items()}
        self._ended: dict[CheckpointId, PendingCheckpoint] = {}

    def begin(self, checkpoint: CheckpointId, trigger: TriggerRequest, triggered: WallTime) -> None:
        """Make the checkpoint the pending one: its barriers leave."""
        self.pending = PendingCheckpoint(
            checkpoint=checkpoint,
            kind=trigger.kind,
            request=trigger.request,
            triggered=triggered,
            attempts=self._attempts,
        )

    def end(self) -> PendingCheckpoint:
        """End the pending checkpoint, complete or aborted; later acknowledgements of it are discarded."""
        pending, self.pending = self.pending, None
        assert pending is not None, "only called while one is pending"
        self._ended[pending.checkpoint] = pending
        if len(self._ended) > MAX_REMEMBERED:
            del self._ended[min(self._ended)]
        return pending

    def knows(self, attempt: AttemptId) -> bool:
        """Whether the attempt belongs to this run."""
        return attempt in self._tasks

    def is_pending(self, checkpoint: CheckpointId) -> bool:
        """Whether ``checkpoint`` is the pending one."""
        return self.pending is not None and self.pending.checkpoint == checkpoint

    def classify(self, checkpoint: CheckpointId, attempt: AttemptId, task: str) -> AckResult:
        """What this acknowledgement is; changes nothing.

        Raises:
            InternalError: the attempt is another task's.
        """
        if not self.knows(attempt):
            return AckResult.UNKNOWN
        self._check_name(attempt, task)
        known = self._find(checkpoint)
        if known is not None and known.has_acknowledged(attempt):
            return AckResult.DUPLICATE
        return AckResult.SUCCESS if self.is_pending(checkpoint) else AckResult.DISCARDED

    def acknowledge(self, checkpoint: CheckpointId, attempt: AttemptId, snapshot: TaskSnapshot) -> None:
        """Keep the acknowledgement, in time or late: the next of the same attempt is a duplicate."""
        known = self._find(checkpoint)
        if known is not None:
            known.acknowledge(attempt, snapshot)

    def _find(self, checkpoint: CheckpointId) -> PendingCheckpoint | None:
        return self.pending if self.is_pending(checkpoint) else self._ended.get(checkpoint)

    def _check_name(self, attempt: AttemptId, task: str) -> None:
        if self._tasks.get(attempt) != task:
            msg = f"Attempt {attempt} is one of {self._tasks.get(attempt)!r}, not of {task!r}."
            raise InternalError(msg)
