"""Sends sessions out of their layers: those that end, those that changed; closes them. Runs no job but by ``merge``.

A session that is sent or closed must be whole, and nothing that comes later may be a part of it. So event time is heard
of in steps, and at a step that may end a session all layers are merged into one first: then what ends is a filter over
that layer, and what is closed can be left out of every merge from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.ids import BEGINNING, END_OF_TIME, EventTime
from penstock.operators.emitter import Emitter

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.operators.base import Emit, OperatorContext
    from penstock.operators.emission import Emission
    from penstock.operators.result_plans import ResultPlans
    from penstock.operators.session_plan import SessionPlan
    from penstock.operators.sessions import Session
    from penstock.operators.window_base import Due
    from penstock.state.stack import Stack


class SessionEmitter(Emitter):
    """Decides when sessions are sent, and closes them. See :class:`penstock.operators.emitter.Emitter`.

    Args:
        merge: puts one layer in the place of all, in a job.
    """

    def __init__(
        self,
        plan: SessionPlan,
        results: ResultPlans,
        emission: Emission,
        stack: Stack,
        context: OperatorContext,
        *,
        fired: int,
        closed: int,
        merge: Callable[[], None],
    ) -> None:
        super().__init__(plan, results, emission, stack, context, fired=fired, closed=closed)
        self._session: Session = cast("Session", plan.window)
        self._merge = merge

    def begin(self, watermark: int) -> int:
        """See :meth:`Emitter.begin`. After a restore with less lateness more may be closed than was.

        What is closed must be whole, also on disk: restored rows that lie apart there are merged first, in a job.
        """
        if self._stack.horizon < self._closed:
            if self._stack.splits(self._closed):
                self._merge()
            self._stack.close_windows(self._closed)
        return super().begin(watermark)

    def advance(self, watermark: int, emit: Emit) -> EventTime | None:
        """Send and close sessions as far as the last step of event time below ``watermark``; returns how far.

        Those that end between that and the watermark are still to come.
        """
        bound = self._session.bound(watermark)
        if bound > self._fired and not self._waits(watermark):
            self._send_and_close(bound, emit)
        told = min(watermark, self._fired)
        return None if BEGINNING in (told, watermark) else EventTime(told)

    def _send_and_close(self, bound: int, emit: Emit) -> None:
        """What was merged is news no more, so news are sent before."""
        merging = self._stack.splits(bound)
        due = self._session.due(self._fired, bound)
        if due and self._emission.early and self._stack.holds(due.first, due.last):
            super()._fire(due, bound, emit)
            self._fired = bound
        elif merging:
            self.flush(emit)
        if merging:
            self._merge()
        super().advance(bound, emit)

    def _waits(self, watermark: int) -> bool:
        """Whether changes wait for their time: merged with what was told before, they would be news no more."""
        paced = self._emission.updates and self._emission.every is not None
        return paced and watermark != END_OF_TIME and self._owed() is not None

    def _send_again(self, emit: Emit) -> None:
        """Only if what is new may end where sessions were sent before; what is still open is no news."""
        due = self._session.due(self._closed, self._fired)
        if due is not None and self._stack.has_news(due.first, due.last):
            super()._send_again(emit)
        else:
            self._stack.tell(END_OF_TIME, BEGINNING).lease.release()

    def _fire(self, due: Due, watermark: int, emit: Emit) -> None:
        if self._stack.holds(due.first, due.last):
            super()._fire(due, watermark, emit)
