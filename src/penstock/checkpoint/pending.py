"""Who still has to acknowledge a checkpoint: told apart by attempt, never counted by number. Decides nothing else."""

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
    Effect,
    RequestOutcome,
)
from penstock.checkpoint.policy import Request, TriggerRequest
from penstock.clock import WallTime
from penstock.elements import CheckpointKind
from penstock.errors import InternalError
from penstock.handles import CheckpointId, Committable, Json, TaskSnapshot

MAX_REMEMBERED: Final = 16
"""How many checkpoints that are over are remembered, to tell a repeated acknowledgement from a late one."""


class PendingCheckpoint:
    """One checkpoint whose barriers are out.

    Args:
        checkpoint: its id.
        kind: why it is taken.
        request: who asked for it, if somebody did.
        triggered: when its barriers left.
        attempts: every task of the run.
    """

    def __init__(
        self,
        *,
        checkpoint: CheckpointId,
        kind: CheckpointKind,
        request: Request | None,
        triggered: WallTime,
        attempts: Mapping[str, AttemptId],
    ) -> None:
        self.checkpoint = checkpoint
        self.kind = kind
        self.request = request
        self.triggered = triggered
        self._tasks = {attempt: task for task, attempt in attempts.items()}
        self._snapshots: dict[str, TaskSnapshot] = {}

    def has(self, attempt: AttemptId) -> bool:
        """Whether this attempt has acknowledged."""
        return self._tasks[attempt] in self._snapshots

    def acknowledge(self, attempt: AttemptId, snapshot: TaskSnapshot) -> None:
        """Take in what a task's attempt hands over; the first counts."""
        self._snapshots.setdefault(self._tasks[attempt], snapshot)

    @property
    def late(self) -> tuple[str, ...]:
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
        """What goes to the log: tasks are sorted, ``pins`` stand beside the name that it was asked to have."""
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
        asked = self.request
        if asked is None or asked.name is None:
            return ()
        return (Pin(name=asked.name, checkpoint=self.checkpoint, at=at, owner=asked.owner, request=asked.request),)

    def abort(self, reason: AbortReason, message: str, last: CheckpointId | None) -> list[Effect]:
        """It comes to nothing; ``last`` is the newest checkpoint in the log."""
        abort = AbortCheckpoint(checkpoint=self.checkpoint, reason=reason, message=message, last_completed=last)
        return [abort, *self.answer(RequestOutcome.FAILED, message)]

    def answer(self, answer: RequestOutcome, message: str) -> list[Effect]:
        """Tell whoever asked for this checkpoint, if somebody did."""
        if self.request is None:
            return []
        request = self.request.request
        return [AnswerRequest(request=request, answer=answer, checkpoint=self.checkpoint, message=message)]


class AckTracker:
    """All acknowledgements of one run: of the checkpoint that is pending, and of those that are over.

    Args:
        attempts: every task of the run and its attempt.
    """

    def __init__(self, attempts: Mapping[str, AttemptId]) -> None:
        self.pending: PendingCheckpoint | None = None
        """The one checkpoint whose barriers are out (C1)."""
        self._attempts = attempts
        self._tasks = {attempt: task for task, attempt in attempts.items()}
        self._over: dict[CheckpointId, PendingCheckpoint] = {}

    def begin(self, checkpoint: CheckpointId, due: TriggerRequest, triggered: WallTime) -> None:
        """The barriers leave."""
        self.pending = PendingCheckpoint(
            checkpoint=checkpoint,
            kind=due.kind,
            request=due.request,
            triggered=triggered,
            attempts=self._attempts,
        )

    def end(self) -> PendingCheckpoint:
        """The pending checkpoint is complete or aborted; what comes for it from here on is late."""
        pending, self.pending = self.pending, None
        assert pending is not None, "only called while one is pending"
        self._over[pending.checkpoint] = pending
        if len(self._over) > MAX_REMEMBERED:
            del self._over[min(self._over)]
        return pending

    def knows(self, attempt: AttemptId) -> bool:
        """Whether this attempt is one of this run."""
        return attempt in self._tasks

    def is_pending(self, checkpoint: CheckpointId) -> bool:
        """Whether this is the checkpoint whose barriers are out."""
        return self.pending is not None and self.pending.checkpoint == checkpoint

    def expect(self, checkpoint: CheckpointId, attempt: AttemptId, task: str) -> AckResult:
        """What an acknowledgement will be; changes nothing.

        Raises:
            InternalError: the attempt is another task's.
        """
        if not self.knows(attempt):
            return AckResult.UNKNOWN
        self._check_name(attempt, task)
        asked = self._asked(checkpoint)
        if asked is not None and asked.has(attempt):
            return AckResult.DUPLICATE
        return AckResult.SUCCESS if self.is_pending(checkpoint) else AckResult.DISCARDED

    def acknowledge(self, checkpoint: CheckpointId, attempt: AttemptId, snapshot: TaskSnapshot) -> None:
        """Take it in, in time or late: the next of the same attempt is a duplicate."""
        asked = self._asked(checkpoint)
        if asked is not None:
            asked.acknowledge(attempt, snapshot)

    def _asked(self, checkpoint: CheckpointId) -> PendingCheckpoint | None:
        return self.pending if self.is_pending(checkpoint) else self._over.get(checkpoint)

    def _check_name(self, attempt: AttemptId, task: str) -> None:
        if self._tasks.get(attempt) != task:
            msg = f"attempt {attempt} is one of {self._tasks.get(attempt)!r}, not of {task!r}"
            raise InternalError(msg)
