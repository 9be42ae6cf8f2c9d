"""Which checkpoint is due next: requests first, then what must be, then the metronome. Pure; takes none itself."""

from __future__ import annotations

from penstock.checkpoint.ending import Ending
from penstock.checkpoint.messages import (
    AbortReason,
    Answer,
    AnswerRequest,
    CheckpointRequested,
    Effect,
    PeriodicDue,
    RetryDue,
    WakeAt,
)
from penstock.checkpoint.policy import CoordinatorSettings, Due, Pace, Request, RequestQueue
from penstock.elements.control import CheckpointKind
from penstock.ids import Instant


class Agenda:
    """All reasons to take a checkpoint.

    Attributes:
        ending: whether a final one is wanted, and how far the end is.
        is_changed: something has happened since the last barriers, so that a periodic one is worth while.
    """

    def __init__(self, settings: CoordinatorSettings, *, started: Instant, initial: bool) -> None:
        self.ending = Ending()
        self.is_changed = False
        self._settings = settings
        self._queue = RequestQueue(settings.max_queued)
        self._pace = Pace(settings.interval, settings.min_pause, started)
        self._is_initial_due = initial
        self._retry: Instant | None = None  # until then nothing that must be is tried again

    def add(self, event: CheckpointRequested) -> bool:
        """Somebody asks; ``False`` if too many wait already."""
        return self._queue.add(Request(request=event.request, name=event.name, owner=event.owner))

    def arm(self, at: Instant) -> list[Effect]:
        """Wait for the next tick."""
        due = self._pace.rearm(at)
        return [] if due is None else [WakeAt(at=due, timer=PeriodicDue(due=due))]

    def fired(self, timer: PeriodicDue | RetryDue) -> bool:
        """A timer fired; whether it was awaited."""
        if isinstance(timer, PeriodicDue):
            return self._pace.fired(timer.due)
        if timer.due != self._retry:
            return False
        self._retry = None
        return True

    def next(self, at: Instant) -> tuple[Due | None, list[Effect]]:
        """What to begin if none is under way, and what to wait for."""
        request = self._queue.pop()
        if request is not None:
            kind = CheckpointKind.PERIODIC if request.name is None else CheckpointKind.SAVEPOINT
            return Due(kind=kind, request=request), []
        if self._retry is None and self._is_initial_due:
            return Due(kind=CheckpointKind.PERIODIC), []
        if self._retry is None and self.ending.is_wanted:
            return Due(kind=CheckpointKind.FINAL), []
        if self._pace.is_wanted and not self._must_be_first:
            return self._periodic(at)
        return None, []

    @property
    def _must_be_first(self) -> bool:
        return self._is_initial_due or self.ending.is_wanted

    def _periodic(self, at: Instant) -> tuple[Due | None, list[Effect]]:
        if self._settings.skip_idle and not self.is_changed:
            return None, self.arm(at)
        later = self._pace.wait_for_pause(at)
        if later is not None:
            return None, [WakeAt(at=later, timer=PeriodicDue(due=later))]
        return Due(kind=CheckpointKind.PERIODIC), self.arm(at)

    def drop(self) -> list[Effect]:
        """No checkpoint begins any more: what waits for one of its own was not begun, and another run may take it."""
        effects: list[Effect] = []
        message = AbortReason.STOPPING.value
        while (left := self._queue.pop()) is not None:
            refused = AnswerRequest(request=left.request, answer=Answer.REFUSED, checkpoint=None, message=message)
            effects.append(refused)
        return effects

    def completed(self, at: Instant) -> None:
        """A checkpoint is in the log; whatever its kind, it serves as the first one."""
        self._is_initial_due = False
        self._pace.completed(at)

    def failed(self, at: Instant) -> list[Effect]:
        """A checkpoint came to nothing; one that must be is tried again after a pause."""
        self.is_changed = True
        if not self._must_be_first or self._retry is not None:
            return []
        self._retry = Instant(at + self._settings.retry_pause)
        return [WakeAt(at=self._retry, timer=RetryDue(due=self._retry))]
