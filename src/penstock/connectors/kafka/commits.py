"""Offsets committed to the consumer group, for monitoring: a job restores its position from checkpoints alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.clock import MonotonicTime
from penstock.connectors.kafka.config import CommitMode, KafkaConfig
from penstock.connectors.kafka.offsets import KafkaPosition, Offsets
from penstock.errors import ConnectorError
from penstock.facts import OffsetsCommitted

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.connectors.kafka.client import Cluster, KafkaFuture
    from penstock.facts import Fact

log: Final = logging.getLogger("penstock")
RENEW_AFTER: Final = 3_600_000_000
"""Microseconds after which unchanged offsets are committed again, before the broker forgets them."""
_PENDING_SECONDS: Final = 1.0
"""How long a closing reader waits for a commit that is under way."""
_LAST_SECONDS: Final = 5.0
"""How long a closing reader waits for its last commit."""


class OffsetCommitPolicy:
    """Decides what one source commits and when: one request at a time, all partitions at once.

    A commit that failed is counted. The next one, which has newer offsets, makes up for it.

    Attributes:
        committed: the offsets that this source last committed successfully.
        succeeded: number of successful commits.
        failed: number of failed commits.
    """

    def __init__(self, mode: CommitMode, *, interval: int) -> None:
        self._mode = mode
        self._interval = interval
        self._wanted: Offsets | None = None
        self._in_flight: Offsets | None = None
        self._sent: MonotonicTime | None = None
        self._renewed: MonotonicTime | None = None
        self.committed: Offsets = {}
        self.succeeded = 0
        self.failed = 0

    def checkpoint_completed(self, position: KafkaPosition) -> None:
        """Note the position of a complete checkpoint; ignored in other modes than ``ON_CHECKPOINTS``."""
        if self._mode is CommitMode.ON_CHECKPOINTS:
            self._wanted = position.next

    def read_up_to(self, position: KafkaPosition, now: MonotonicTime) -> None:
        """Note the current position once an interval; ignored in other modes than ``PERIODIC``."""
        due = self._sent is None or now >= self._sent + self._interval
        if self._mode is CommitMode.PERIODIC and due:
            self._wanted = position.next

    def next_commit(self, now: MonotonicTime) -> Offsets | None:
        """The offsets to commit now; ``None`` while a commit is under way, or if there is nothing new."""
        if self._in_flight is not None or not self._wanted:
            return None
        is_fresh = self._renewed is not None and now < self._renewed + RENEW_AFTER
        if not (offsets := self._start(renew=not is_fresh)):
            return None
        self._sent = now
        return offsets

    def last_commit(self) -> Offsets | None:
        """The offsets to commit when the reader closes; ``None`` if the group has them or a commit is under way."""
        return self._start(renew=False) if self._in_flight is None and self._wanted else None

    def _start(self, *, renew: bool) -> Offsets | None:
        wanted, self._wanted = self._wanted, None
        if wanted == self.committed and not renew:
            return None
        self._in_flight = wanted
        return wanted

    def finished(self, now: MonotonicTime, *, ok: bool) -> None:
        """Note the result of the commit under way; ignored if there is none."""
        if self._in_flight is None:
            return
        if ok:
            self.committed = self._in_flight
            self._renewed = now
            self.succeeded += 1
        else:
            self.failed += 1
        self._in_flight = None


class OffsetCommitter:
    """Sends the commits of a policy to the source's group, and reports each result as a fact."""

    def __init__(
        self,
        config: KafkaConfig,
        cluster: Cluster,
        uid: str,
        report: Callable[[Fact], None],
    ) -> None:
        self._group = config.group or ""
        self._cluster = cluster
        self._uid = uid
        self._report = report
        self._policy = OffsetCommitPolicy(config.commit_choice.mode, interval=config.commit_interval)
        self._sent: tuple[KafkaFuture[None], Offsets] | None = None
        self._last_poll = MonotonicTime(0)
        self._closed = False

    def checkpoint_completed(self, position: KafkaPosition) -> None:
        """Commit the offsets of a complete checkpoint at once: a source that has ended is not polled any more."""
        if not self._closed:
            self._policy.checkpoint_completed(position)
            self._advance(self._last_poll)

    def poll(self, position: KafkaPosition, now: MonotonicTime) -> None:
        """Report the commit that has ended, and send the one that is due."""
        self._last_poll = now
        self._policy.read_up_to(position, now)
        self._advance(now)

    def close(self) -> None:
        """Commit the offsets of the last checkpoint, which no poll follows, and nothing later."""
        self._closed = True
        if self._sent is not None and self._sent[0].wait(_PENDING_SECONDS):
            self._finish(self._last_poll)
        if self._sent is None and (offsets := self._policy.last_commit()) is not None:
            self._sent = self._cluster.commit(offsets), offsets
            if self._sent[0].wait(_LAST_SECONDS):
                self._finish(self._last_poll)

    def _advance(self, now: MonotonicTime) -> None:
        if self._sent is not None and self._sent[0].ready():
            self._finish(now)
        if self._sent is None and (offsets := self._policy.next_commit(now)) is not None:
            self._sent = self._cluster.commit(offsets), offsets
            self._sent[0].ready()  # the first poll sends the request

    def _finish(self, now: MonotonicTime) -> None:
        assert self._sent is not None
        (future, sent), self._sent = self._sent, None
        error: ConnectorError | None = None
        try:
            future.result()
        except ConnectorError as failed:
            error = failed
            log.warning("source %s could not commit offsets to group %s: %s", self._uid, self._group, failed)
        self._policy.finished(now, ok=error is None)
        offsets = {str(at): offset for at, offset in sent.items()}
        message = None if error is None else str(error)
        self._report(OffsetsCommitted(task=self._uid, group=self._group, offsets=offsets, error=message))
