"""Which offsets are committed to a consumer group and when; pure: it commits nothing itself and reads no clock.

Committed offsets are there for people and their tools to look at. Nothing is ever restored from them: positions are in
the checkpoint. Which position belongs to which checkpoint is the source task's business; what comes here is that of a
checkpoint that is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.ids import Instant
from penstock.sources.kafka.offsets import Offsets, Progress

RENEW_AFTER: Final = 3_600_000_000
"""Microseconds: offsets that do not change are committed again, before the broker forgets them (a week unless set)."""


class CommitMode(str, Enum):
    """When offsets are committed to the group."""

    ON_CHECKPOINTS = "on-checkpoints"
    """Those of a checkpoint, once it is complete."""
    PERIODIC = "periodic"
    """Where reading stands, every interval; what is read there may still be undone by a restart."""
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Choice:
    """The mode in force, and what to tell the user about it, if anything."""

    mode: CommitMode
    warning: str | None = None


def choose(wanted: CommitMode | None, group: str | None) -> Choice:
    """The mode that follows from what was asked for; a job always has checkpoints.

    >>> choose(None, "shop"), choose(None, None)
    (Choice(mode=<CommitMode.ON_CHECKPOINTS: 'on-checkpoints'>, warning=None), \
Choice(mode=<CommitMode.DISABLED: 'disabled'>, warning=None))
    """
    if group is not None:
        return Choice(wanted or CommitMode.ON_CHECKPOINTS)
    if wanted in (None, CommitMode.DISABLED):
        return Choice(CommitMode.DISABLED)
    return Choice(
        CommitMode.DISABLED,
        f"commit={wanted.value!r} without group=: no offsets are committed; name the group to commit them to",
    )


class OffsetCommits:
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
        self._sent: Instant | None = None
        self._renewed: Instant | None = None
        self.committed: Offsets = {}
        self.succeeded = 0
        self.failed = 0

    def completed(self, progress: Progress) -> None:
        """A checkpoint with this progress is complete. Ignored in other modes."""
        if self._mode is CommitMode.ON_CHECKPOINTS:
            self._wanted = progress.next

    def read(self, progress: Progress, now: Instant) -> None:
        """Reading stands here now. Ignored in other modes, and until the interval is over."""
        due = self._sent is None or now >= self._sent + self._interval
        if self._mode is CommitMode.PERIODIC and due:
            self._wanted = progress.next

    def take(self, now: Instant) -> Offsets | None:
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

    def settled(self, now: Instant, *, ok: bool) -> None:
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
