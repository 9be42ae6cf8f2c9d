"""The way of output: handed over, in the log, published; in order for each sink (S1, S2)."""

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
class _SinkQueue:
    """The open committables of one uid; at most the first is being committed."""

    items: deque[Committable]
    attempt: int = 0
    is_running: bool = False
    retry: MonotonicTime | None = None

    @property
    def is_at_rest(self) -> bool:
        return not self.is_running and self.retry is None


class CommitQueue:
    """Every committable that is not confirmed, in one queue for each sink uid.

    Committables of an aborted checkpoint go into the next manifest (S2). Those in the log are published: ``RETRY`` and
    ``UNKNOWN`` hold the queue back until the first was tried again, nothing is skipped (S1). The old identity of a uid
    is published before its new one, since both share one queue (S6).

    Args:
        backoff: microseconds before a commit is tried again; doubles each time.
        limit: the longest such wait.
    """

    def __init__(self, backoff: int, limit: int) -> None:
        self._backoff = backoff
        self._limit = limit
        self._queues: dict[str, _SinkQueue] = {}
        self._carried: list[Committable] = []  # handed over, in no manifest
        self._sent: list[Committable] = []  # what the manifest on its way adds to the log
        self._newest_sent = NONE  # the newest manifest on its way to the log or in it
        self._newest_logged = NONE
        self.is_unrecorded = False
        """Something was confirmed that the newest manifest lists as open."""

    @property
    def open(self) -> tuple[Committable, ...]:
        """The committables in the log that are not confirmed, in order for each uid."""
        return tuple(item for _, queue in sorted(self._queues.items()) for item in queue.items)

    # ---- into the log ------------------------------------------------------------------------------------------------

    def check_order(self, items: Iterable[Committable]) -> None:
        """Refuse output of a checkpoint that a manifest was sent without: a restore would not make it again.

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
        """Keep committables for the next manifest, whichever checkpoint they were made for."""
        known = [*self.open, *self._sent, *self._carried]
        self._carried += [item for item in items if item not in known]

    def send(self, checkpoint: CheckpointId) -> tuple[Committable, ...]:
        """The manifest of ``checkpoint`` goes to the log; returns all that it must list as open."""
        self._newest_sent = checkpoint
        self._sent, self._carried = [*self._sent, *self._carried], []
        self.is_unrecorded = False
        return tuple(sorted((*self.open, *self._sent), key=lambda item: (item.uid, item.checkpoint)))

    def not_logged(self) -> None:
        """The manifest is certainly not in the log."""
        self._carried, self._sent = [*self._sent, *self._carried], []
        self._newest_sent = self._newest_logged

    def logged(self) -> list[Effect]:
        """The manifest is in the log: publish what it added."""
        sent, self._sent = self._sent, []
        self._newest_logged = self._newest_sent
        return self.publish(sent)

    # ---- publishing --------------------------------------------------------------------------------------------------

    def publish(self, items: Iterable[Committable]) -> list[Effect]:
        """Queue committables that are in the log; commits the first of each queue that is at rest."""
        grown: dict[str, _SinkQueue] = {}
        for item in sorted(items, key=lambda item: item.checkpoint):
            queue = grown[item.uid] = self._queues.setdefault(item.uid, _SinkQueue(deque()))
            queue.items.append(item)
        return [self._commit(queue) for _, queue in sorted(grown.items()) if queue.is_at_rest]

    def returned(self, uid: str, checkpoint: CheckpointId, outcome: CommitOutcome, at: MonotonicTime) -> list[Effect]:
        """A commit has ended: commit the next one, or wait and try again.

        Raises:
            InternalError: no commit of this sink and checkpoint was under way.
        """
        queue = self._queues.get(uid)
        if queue is None or not queue.is_running or queue.items[0].checkpoint != checkpoint:
            msg = f"no commit of '{uid}' for checkpoint {checkpoint} is under way"
            raise InternalError(msg)
        queue.is_running = False
        if outcome in {CommitOutcome.RETRY, CommitOutcome.UNKNOWN}:
            queue.retry = MonotonicTime(at + min(self._backoff * 2 ** min(queue.attempt - 1, 30), self._limit))
            return [WakeAt(at=queue.retry, timer=CommitRetryDue(uid=uid, checkpoint=checkpoint, due=queue.retry))]
        self.is_unrecorded = True
        queue.items.popleft()
        queue.attempt = 0
        if queue.items:
            return [self._commit(queue)]
        del self._queues[uid]
        return []

    def due(self, timer: CommitRetryDue) -> list[Effect]:
        """Commit again; a timer that is no longer awaited does nothing."""
        queue = self._queues.get(timer.uid)
        if queue is None or queue.retry != timer.due:
            return []
        return [self._commit(queue)]

    @staticmethod
    def _commit(queue: _SinkQueue) -> Effect:
        queue.attempt += 1
        queue.is_running = True
        queue.retry = None
        return Commit(item=queue.items[0], attempt=queue.attempt)
