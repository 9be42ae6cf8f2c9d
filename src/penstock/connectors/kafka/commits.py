"""Offsets committed to the consumer group, for monitoring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.clock import MonotonicTime
from penstock.connectors.kafka.config import CommitMode, KafkaConfig
from penstock.connectors.kafka.monitor import log
from penstock.connectors.kafka.offsets import KafkaPosition, Offsets
from penstock.errors import ConnectorError
from penstock.facts import OffsetsCommitted

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.connectors.kafka.client import Cluster, KafkaFuture
    from penstock.facts import Fact


# ----------------------------------------------------------------------------------------------------
# Which offsets are committed to a consumer group and when; pure: it commits nothing itself and reads no clock.
#
# Committed offsets are there for people and their tools to look at. Nothing is ever restored from them: positions are
# in the checkpoint. Which position belongs to which checkpoint is the source task's business; what comes here is that
# of a checkpoint that is complete.

RENEW_AFTER: Final = 3_600_000_000
"""Microseconds: offsets that do not change are committed again, before the broker forgets them (a week unless set)."""


class OffsetCommitPolicy:
    """Follows one source: what to commit, one request at a time, all partitions at once.

    Whoever has the client asks :meth:`take` now and then, sends what it gets, and reports with :meth:`settled`. A
    commit that failed is counted and made good by the next, which has newer offsets; it never fails the job.

    Attributes:
        committed: the offsets that the group is known to have, as far as this source committed them.
        succeeded: commits that did.
        failed: commits that did not.
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

    def completed(self, progress: KafkaPosition) -> None:
        """A checkpoint with this progress is complete. Ignored in other modes."""
        if self._mode is CommitMode.ON_CHECKPOINTS:
            self._wanted = progress.next

    def read(self, progress: KafkaPosition, now: MonotonicTime) -> None:
        """Reading stands here now. Ignored in other modes, and until the interval is over."""
        due = self._sent is None or now >= self._sent + self._interval
        if self._mode is CommitMode.PERIODIC and due:
            self._wanted = progress.next

    def take(self, now: MonotonicTime) -> Offsets | None:
        """What to commit now: ``None`` while a commit is under way, or if there is nothing new to say."""
        if self._in_flight is not None or not self._wanted:
            return None
        is_fresh = self._renewed is not None and now < self._renewed + RENEW_AFTER
        if not (offsets := self._next(renew=not is_fresh)):
            return None
        self._sent = now
        return offsets

    def last(self) -> Offsets | None:
        """What to commit before the reader is closed: ``None`` if the group has it, or a commit is still under way."""
        return self._next(renew=False) if self._in_flight is None and self._wanted else None

    def _next(self, *, renew: bool) -> Offsets | None:
        wanted, self._wanted = self._wanted, None
        if wanted == self.committed and not renew:
            return None
        self._in_flight = wanted
        return wanted

    def settled(self, now: MonotonicTime, *, ok: bool) -> None:
        """The commit under way has ended; a second answer to it, or one that nobody asked for, is ignored."""
        if self._in_flight is None:
            return
        if ok:
            self.committed = self._in_flight
            self._renewed = now
            self.succeeded += 1
        else:
            self.failed += 1
        self._in_flight = None


# ----------------------------------------------------------------------------------------------------
# What a reader knows of its cluster from look to look, and what it tells of it: losses, lag, stalls. Plans nothing.
#
# Questions are asked and their answers looked for with each poll, so none holds up a batch.


class OffsetCommitter:
    """Sends what is to be committed to the source's group, and tells what became of it."""

    def __init__(
        self,
        source: KafkaConfig,
        cluster: Cluster,
        uid: str,
        report: Callable[[Fact], None],
        *,
        decides: OffsetCommitPolicy,
    ) -> None:
        self._group = source.group or ""
        self._cluster = cluster
        self._uid = uid
        self._report = report
        self._decides = decides
        self._sent: tuple[KafkaFuture[None], Offsets] | None = None
        self._looked = MonotonicTime(0)
        self._over = False

    def completed(self, progress: KafkaPosition) -> None:
        """A checkpoint with this progress is complete; a source that has ended is not polled any more."""
        if not self._over:
            self._decides.completed(progress)
            self._go_on(self._looked)

    def look(self, progress: KafkaPosition, now: MonotonicTime) -> None:
        """Send what is due, and hear what became of what was sent."""
        self._looked = now
        self._decides.read(progress, now)
        self._go_on(now)

    def _go_on(self, now: MonotonicTime) -> None:
        if self._sent is not None and self._sent[0].ready():
            self._settle(now)
        if self._sent is None and (offsets := self._decides.take(now)) is not None:
            self._sent = self._cluster.commit(offsets), offsets
            self._sent[0].ready()  # it is asked for by the first look

    def _settle(self, now: MonotonicTime) -> None:
        assert self._sent is not None
        (answer, offsets), self._sent = self._sent, None
        error: ConnectorError | None = None
        try:
            answer.result()
        except ConnectorError as failed:
            error = failed
            log.warning("source %s could not commit offsets to group %s: %s", self._uid, self._group, failed)
        self._decides.settled(now, ok=error is None)
        told = {str(at): offset for at, offset in offsets.items()}
        said = None if error is None else str(error)
        self._report(OffsetsCommitted(task=self._uid, group=self._group, offsets=told, error=said))

    def finish(self) -> None:
        """The reader is closed: commit what the last checkpoint has, which no poll comes after, and nothing later."""
        self._over = True
        if self._sent is not None and self._sent[0].wait(_MORE_SECONDS):
            self._settle(self._looked)
        if self._sent is None and (offsets := self._decides.last()) is not None:
            self._sent = self._cluster.commit(offsets), offsets
            if self._sent[0].wait(_LAST_SECONDS):
                self._settle(self._looked)


_MORE_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 5.0
