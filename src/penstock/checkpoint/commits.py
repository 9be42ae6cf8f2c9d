"""The way of committables from the sinks into the log, and their publishing in order for each shard (S1, S2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.checkpoint.events import Commit, CommitRetryDue, CommitReturned, Effect, WakeAt
from penstock.clock import MonotonicTime
from penstock.errors import InternalError
from penstock.handles import CheckpointId, CommitOutcome, Committable

NONE: Final = CheckpointId(-1)
"""Before the first checkpoint."""
_Shard: TypeAlias = "tuple[str, int]"
"""A sink's uid, and one of its shards."""


@dataclass(slots=True)
class _ShardQueue:
    """The open committables of one shard of a sink uid; only the first is ever being committed.

    Attributes:
        items: in the order of their checkpoints.
        attempt: how often the first was tried.
        is_running: whether the first is being committed.
        retry_at: when the first is tried again.
    """

    items: deque[Committable]
    attempt: int = 0
    is_running: bool = False
    retry_at: MonotonicTime | None = None

    @property
    def is_at_rest(self) -> bool:
        return not self.is_running and self.retry_at is None


class CommitQueue:
    """Every committable that is not confirmed: first those in no manifest, then a queue for each shard of a sink uid.

    Committables of an aborted checkpoint go into the next manifest (S2). Those in the log are published in order: after
    ``RETRY`` or ``UNKNOWN`` the queue waits until its first is tried again, and nothing is skipped (S1). Output of a
    uid's old identity is published before that of its new one: a start publishes what is open before it runs (S6).

    Args:
        backoff: microseconds before a commit is tried again; doubled each time.
        limit: the longest such wait, in microseconds.

    Attributes:
        is_unrecorded: something was confirmed that the newest manifest lists as open.
    """

    def __init__(self, backoff: int, limit: int) -> None:
        self._backoff = backoff
        self._limit = limit
        self._queues: dict[_Shard, _ShardQueue] = {}
        self._carried: list[Committable] = []  # handed over, in no manifest yet
        self._sent: list[Committable] = []  # what the manifest that is being written adds to the log
        self._newest_sent = NONE  # checkpoint of the newest manifest that is in the log or being written
        self._newest_logged = NONE  # checkpoint of the newest manifest in the log
        self.is_unrecorded = False

    @property
    def open(self) -> tuple[Committable, ...]:
        """The committables in the log that are not confirmed, in order for each shard."""
        return tuple(item for _, queue in sorted(self._queues.items()) for item in queue.items)

    # ---- into the log ------------------------------------------------------------------------------------------------

    def check_order(self, items: Iterable[Committable]) -> None:
        """Refuse new output of a checkpoint whose manifest was sent without it: a restore would not make it again.

        Raises:
            InternalError: a task acknowledged out of order.
        """
        known = (*self.open, *self._sent, *self._carried)
        for item in items:
            if item.checkpoint <= self._newest_sent and item not in known:
                msg = (
                    f"'{item.uid}' handed over output of checkpoint {item.checkpoint} after the manifest of "
                    f"checkpoint {self._newest_sent} was sent without it (S2)."
                )
                raise InternalError(msg)

    def hand_over(self, items: Iterable[Committable]) -> None:
        """Keep committables for the next manifest, whichever checkpoint they belong to. Known ones are ignored."""
        known = [*self.open, *self._sent, *self._carried]
        self._carried += [item for item in items if item not in known]

    def send(self, checkpoint: CheckpointId) -> tuple[Committable, ...]:
        """Assign what was handed over to the manifest of ``checkpoint``; returns all that it must list as open."""
        self._newest_sent = checkpoint
        self._sent, self._carried = [*self._sent, *self._carried], []
        self.is_unrecorded = False
        return tuple(sorted((*self.open, *self._sent), key=lambda item: (item.uid, item.shard, item.checkpoint)))

    def not_logged(self) -> None:
        """Take back what was sent: its manifest is certainly not in the log. The next manifest gets it."""
        self._carried, self._sent = [*self._sent, *self._carried], []
        self._newest_sent = self._newest_logged

    def logged(self) -> list[Effect]:
        """Publish what was sent: its manifest is in the log."""
        sent, self._sent = self._sent, []
        self._newest_logged = self._newest_sent
        return self.publish(sent)

    # ---- publishing --------------------------------------------------------------------------------------------------

    def publish(self, items: Iterable[Committable]) -> list[Effect]:
        """Queue committables that are in the log; returns a commit for each queue that was at rest."""
        queues: dict[_Shard, _ShardQueue] = {}
        for item in sorted(items, key=lambda item: item.checkpoint):
            shard = item.uid, item.shard
            queue = queues[shard] = self._queues.setdefault(shard, _ShardQueue(deque()))
            queue.items.append(item)
        return [self._commit(queue) for _, queue in sorted(queues.items()) if queue.is_at_rest]

    def record_outcome(self, returned: CommitReturned) -> list[Effect]:
        """Take in the outcome of a commit; returns the commit of the next item, or the timer of the next try.

        Raises:
            InternalError: no commit of this shard and checkpoint was under way.
        """
        uid, shard, checkpoint = returned.uid, returned.shard, returned.checkpoint
        queue = self._queues.get((uid, shard))
        if queue is None or not queue.is_running or queue.items[0].checkpoint != checkpoint:
            of = f", shard {shard}," if shard else ""
            msg = f"No commit of '{uid}'{of} for checkpoint {checkpoint} is under way."
            raise InternalError(msg)
        queue.is_running = False
        if returned.outcome in {CommitOutcome.RETRY, CommitOutcome.UNKNOWN}:
            wait = min(self._backoff * 2 ** min(queue.attempt - 1, 30), self._limit)
            queue.retry_at = due = MonotonicTime(returned.at + wait)
            return [WakeAt(at=due, timer=CommitRetryDue(uid=uid, shard=shard, checkpoint=checkpoint, due=due))]
        self.is_unrecorded = True
        queue.items.popleft()
        queue.attempt = 0
        if queue.items:
            return [self._commit(queue)]
        del self._queues[uid, shard]
        return []

    def due(self, timer: CommitRetryDue) -> list[Effect]:
        """Try the commit again that the timer is for; returns nothing if that timer is outdated."""
        queue = self._queues.get((timer.uid, timer.shard))
        if queue is None or queue.retry_at != timer.due:
            return []
        return [self._commit(queue)]

    @staticmethod
    def _commit(queue: _ShardQueue) -> Effect:
        queue.attempt += 1
        queue.is_running = True
        queue.retry_at = None
        return Commit(item=queue.items[0], attempt=queue.attempt)
