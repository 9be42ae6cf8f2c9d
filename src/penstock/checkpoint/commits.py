"""Output on its way: handed over, in the log, published; per sink in order (S1, S2). Pure, publishes nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.checkpoint.events import Commit, CommitRetryDue, Effect, WakeAt
from penstock.clock import MonotonicTime
from penstock.errors import InternalError
from penstock.handles import CheckpointId, CommitOutcome, Committable

NONE: Final = CheckpointId(-1)


@dataclass(slots=True)
class _Line:
    """The open committables of one uid; at most the first is being committed."""

    items: deque[Committable]
    attempt: int = 0
    is_running: bool = False
    retry: MonotonicTime | None = None


class CommitQueue:
    """Every committable that is not confirmed, a line for each sink uid.

    What was handed over for a checkpoint that was aborted goes into the next manifest (S2). What is in the log is
    published: ``Retry`` and ``Unknown`` hold the line back until the first has been tried again, nothing is skipped
    (S1). The old identity of a uid is published before its new one, for both stand in one line (S6).

    Args:
        backoff: microseconds before a commit is tried again; doubles each time.
        limit: the longest such wait.
    """

    def __init__(self, backoff: int, limit: int) -> None:
        self._backoff = backoff
        self._limit = limit
        self._lines: dict[str, _Line] = {}
        self._carried: list[Committable] = []  # handed over, in no manifest
        self._sent: list[Committable] = []  # what the manifest on its way adds to the log
        self._newest_sent = NONE  # the newest manifest on its way to the log or in it
        self._newest_logged = NONE
        self.is_unrecorded = False
        """Something was confirmed that the newest manifest calls open."""

    @property
    def open(self) -> tuple[Committable, ...]:
        """All that the log holds and nobody has confirmed, per uid in order."""
        return tuple(item for _, line in sorted(self._lines.items()) for item in line.items)

    # ---------------------------------------------------------------------------------------------------- into the log

    def check_order(self, items: Iterable[Committable]) -> None:
        """Refuse output of a checkpoint that a manifest has passed without it: a restore would not make it again.

        Raises:
            InternalError: a task acknowledged out of order.
        """
        known = (*self.open, *self._sent, *self._carried)
        for item in items:
            if item.checkpoint <= self._newest_sent and item not in known:
                msg = (
                    f"'{item.uid}' handed over output of checkpoint {item.checkpoint} after the manifest of checkpoint "
                    f"{self._newest_sent} was sent without it (S2)"
                )
                raise InternalError(msg)

    def hand_over(self, items: Iterable[Committable]) -> None:
        """This goes into the next manifest, whichever checkpoint it was made for."""
        known = [*self.open, *self._sent, *self._carried]
        self._carried += [item for item in items if item not in known]

    def send(self, checkpoint: CheckpointId) -> tuple[Committable, ...]:
        """A manifest goes to the log: all that it must call open."""
        self._newest_sent = checkpoint
        self._sent, self._carried = [*self._sent, *self._carried], []
        self.is_unrecorded = False
        return tuple(sorted((*self.open, *self._sent), key=lambda item: (item.uid, item.checkpoint)))

    def not_logged(self) -> None:
        """The manifest surely is not in the log."""
        self._carried, self._sent = [*self._sent, *self._carried], []
        self._newest_sent = self._newest_logged

    def logged(self) -> list[Effect]:
        """The manifest is in the log: publish what it added."""
        sent, self._sent = self._sent, []
        self._newest_logged = self._newest_sent
        return self.publish(sent)

    # ------------------------------------------------------------------------------------------------------ publishing

    def publish(self, items: Iterable[Committable]) -> list[Effect]:
        """These are in the log. Begins to commit where nothing is under way."""
        touched: dict[str, _Line] = {}
        for item in sorted(items, key=lambda item: item.checkpoint):
            line = touched[item.uid] = self._lines.setdefault(item.uid, _Line(deque()))
            line.items.append(item)
        return [self._commit(line) for _, line in sorted(touched.items()) if not line.is_running and line.retry is None]

    def returned(self, uid: str, checkpoint: CheckpointId, outcome: CommitOutcome, at: MonotonicTime) -> list[Effect]:
        """A commit has ended.

        Raises:
            InternalError: none of this sink and checkpoint was under way.
        """
        line = self._lines.get(uid)
        if line is None or not line.is_running or line.items[0].checkpoint != checkpoint:
            msg = f"no commit of '{uid}' for checkpoint {checkpoint} is under way"
            raise InternalError(msg)
        line.is_running = False
        if outcome in {CommitOutcome.RETRY, CommitOutcome.UNKNOWN}:
            line.retry = MonotonicTime(at + min(self._backoff * 2 ** min(line.attempt - 1, 30), self._limit))
            return [WakeAt(at=line.retry, timer=CommitRetryDue(uid=uid, checkpoint=checkpoint, due=line.retry))]
        self.is_unrecorded = True
        line.items.popleft()
        line.attempt = 0
        if line.items:
            return [self._commit(line)]
        del self._lines[uid]
        return []

    def due(self, timer: CommitRetryDue) -> list[Effect]:
        """Time to try again; a timer that is no longer waited for does nothing."""
        line = self._lines.get(timer.uid)
        if line is None or line.retry != timer.due:
            return []
        return [self._commit(line)]

    @staticmethod
    def _commit(line: _Line) -> Effect:
        line.attempt += 1
        line.is_running = True
        line.retry = None
        return Commit(item=line.items[0], attempt=line.attempt)
