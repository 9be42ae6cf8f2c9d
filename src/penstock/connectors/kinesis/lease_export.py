"""``LeaseExporter``: writes the positions of completed checkpoints to a lease table, where a KCL application goes on.

Nothing is restored from there. A KCL application that takes over reads at most one checkpoint interval again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar, final

from penstock.clock import MonotonicTime, format_duration, sleep
from penstock.connectors.kinesis.checkpointer import ATTEMPTS, KinesisCheckpointer, retry_random
from penstock.connectors.kinesis.lease_holder import OBSERVED_FAILOVERS, first_position
from penstock.connectors.kinesis.lease_rows import LeasedShard
from penstock.connectors.kinesis.lease_table import LeaseTable, LeaseWrite
from penstock.connectors.kinesis.positions import After, Finished, ShardPosition, to_lease
from penstock.errors import LeaseLost, LeaseTableUnavailable, LeaseThrottled
from penstock.facts import LeaseExported

if TYPE_CHECKING:
    from penstock.connectors.kinesis.lease_holder import LeaseHolder
    from penstock.connectors.kinesis.timer import TimerClock
    from penstock.facts import Fact

T = TypeVar("T")
log: Final = logging.getLogger("penstock")
EXPORT_EVERY: Final = 60_000_000
"""Microseconds between exports: at most 1,440 writes a shard and day."""


@final
class LeaseExporter:
    """Exports how far the newest completed checkpoint has read each shard, at regular times and when it is closed.

    Rows only advance. A failed write is a warning and a fact; the next one has the newest position. Of a worker that
    no longer renews a lease, the lease is taken; a lease that another worker renews stays as it is.

    Args:
        table: the table; it is created if it is missing.
        uid: of the source, for log lines and facts.
        report: gets a ``LeaseExported`` for each write.
        clock: the time.
        interval: microseconds between exports.
        failover: the KCL application's failover time in microseconds.
        holder: holds the leases; ``None`` if they shall have no owner.
        pause: called with the seconds of each wait between attempts.
    """

    def __init__(
        self,
        table: LeaseTable,
        uid: str,
        report: Callable[[Fact], None],
        clock: TimerClock,
        *,
        interval: int = EXPORT_EVERY,
        failover: int,
        holder: LeaseHolder | None = None,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._table = table
        self._uid = uid
        self._report = report
        self._clock = clock
        self._interval = interval
        self._failover = failover
        self._holder = holder
        self._pause = pause
        self._completed: Mapping[str, LeasedShard] = {}
        self._unended: dict[str, LeasedShard] = {}  # finished shards whose rows may not say so yet
        self._ended: set[str] = set()
        self._rows: set[str] | None = None
        self._writers: set[str] = set()
        self._owners: dict[str, tuple[str | None, int, MonotonicTime]] = {}
        self._checkpointer: KinesisCheckpointer | None = None
        self._is_closing = self._gave_up = False

    def checkpoint_completed(self, shards: Mapping[str, LeasedShard]) -> None:
        """Note the shards of a completed checkpoint; never waits for the table."""
        self._completed = shards
        if self._checkpointer is None and not self._is_closing:
            self._checkpointer = KinesisCheckpointer(
                self, format_duration(self._interval), self._uid, self._clock, prepare=self._prepare, pause=self._pause
            )

    def stored(self, shard: str) -> ShardPosition | None:
        """The position of a shard in the newest completed checkpoint."""
        state = self._completed.get(shard) or self._unended.get(shard)
        return None if state is None else state.position

    def close(self) -> None:
        """Export the last completed checkpoint. Gives up at the first request that is not answered."""
        self._is_closing = True
        if self._checkpointer is not None:
            self._checkpointer.shutdown()

    # ---- on the timer's thread

    def _prepare(self) -> None:
        """Make missing rows, end finished shards whose children have rows, and let all others be written."""
        if self._checkpointer is None:
            return
        if self._holder is not None:
            self._holder.check()
        completed = self._completed
        self._ended &= completed.keys()
        self._unended.update(
            {shard: state for shard, state in completed.items() if _is_finished(state) and shard not in self._ended}
        )
        shards = {**self._unended, **completed}
        if self._rows is None:
            self._rows = self._find_rows()
        for shard in sorted(shards):  # parents have lower numbers than their children
            self._insert(shard, shards[shard])
        for shard in sorted(self._unended):
            self._end(shard, shards)
        for shard, state in completed.items():
            is_ours = self._holder is None or self._holder.holds(shard)
            if is_ours and shard not in self._writers and not _is_finished(state):
                self._writers.add(shard)
                self._checkpointer.set_checkpointer(shard, _ShardWriter(self, shard))

    def _find_rows(self) -> set[str]:
        if not self._call(self._table.exists):
            log.warning("source %s creates lease table %s, which is not there", self._uid, self._table.name)
            self._call(self._table.create)
        return set(self._call(self._table.read))

    def _insert(self, shard: str, state: LeasedShard) -> None:
        assert self._rows is not None
        has_parent_row = not self._rows.isdisjoint(state.parents)
        if shard in self._rows or (_is_finished(state) and not has_parent_row):
            return
        at = first_position(state, has_parent_row=has_parent_row)
        self._call(lambda: self._table.insert(shard, state, at))
        self._rows.add(shard)

    def _end(self, shard: str, shards: Mapping[str, LeasedShard]) -> None:
        assert self._rows is not None
        assert self._checkpointer is not None
        children = {id: state for id, state in shards.items() if shard in state.parents}
        if shard in self._rows:
            # A row that has ended is never read again, so no child may be missing: the KCL would not look for it.
            if not _covers(children, self._unended[shard]):
                return
            try:
                self._checkpointer.remove_checkpointer(shard, _ShardWriter(self, shard, tuple(children)))
            except Exception:  # which is logged
                return
        else:
            self._checkpointer.remove_checkpointer(shard, None)
        self._writers.discard(shard)
        self._ended.add(shard)
        del self._unended[shard]

    def write(self, shard: str, position: After | None, children: tuple[str, ...]) -> None:
        """Write the row of a shard: a position, or that it has ended."""
        checkpoint = to_lease(Finished() if position is None else position).checkpoint
        fact = LeaseExported(task=self._uid, table=self._table.name, shard=shard, checkpoint=checkpoint)
        try:
            self._try_write(shard, position, children)
        except Exception as error:
            self._report(replace(fact, error=str(error)))
            raise
        self._report(fact)

    def _try_write(self, shard: str, position: After | None, children: tuple[str, ...]) -> None:
        try:
            written = self._write_row(shard, position, children)
        except LeaseLost:
            if self._holder is not None or not self._evict(shard):
                raise
            written = self._write_row(shard, position, children)
        state = self._completed.get(shard)
        if written is LeaseWrite.NO_ROW and position is not None and state is not None and self._holder is None:
            self._table.insert(shard, state, position)

    def _write_row(self, shard: str, position: After | None, children: tuple[str, ...]) -> LeaseWrite:
        if self._gave_up:
            msg = f"Lease table {self._table.name} did not answer while the job ended. The next start exports again."
            raise LeaseTableUnavailable(msg)
        writes = self._table if self._holder is None else self._holder
        try:
            return writes.end(shard, children) if position is None else writes.advance(shard, position)
        except (LeaseThrottled, LeaseTableUnavailable):
            self._gave_up = self._is_closing
            raise

    def _evict(self, shard: str) -> bool:
        """Take the lease from its worker if that has not renewed it since an earlier look at it, long enough ago."""
        lease = self._table.find(shard)
        if lease is None:
            return False
        now = self._clock.now()
        owner, counter, since = self._owners.get(shard, (None, -1, now))
        if (owner, counter) != (lease.holder, lease.counter):
            self._owners[shard] = (lease.holder, lease.counter, now)
            return False
        if now < since + OBSERVED_FAILOVERS * self._failover or not self._table.evict(lease):
            return False
        log.warning("source %s frees shard %s of worker %s, which is not at work", self._uid, shard, owner)
        return True

    def _call(self, request: Callable[[], T]) -> T:
        return retry_random(request, attempts=1 if self._is_closing else ATTEMPTS, pause=self._pause)


@final
class _ShardWriter:
    """The ``ShardCheckpointer`` of one shard."""

    def __init__(self, exporter: LeaseExporter, shard: str, children: tuple[str, ...] = ()) -> None:
        self._exporter = exporter
        self._shard = shard
        self._children = children

    def checkpoint(self, position: After | None = None) -> None:
        self._exporter.write(self._shard, position, self._children)


def _is_finished(state: LeasedShard) -> bool:
    return isinstance(state.position, Finished)


def _covers(children: Mapping[str, LeasedShard], parent: LeasedShard) -> bool:
    """Whether the hash keys of the children have all those of their parent."""
    found = sum(
        max(0, min(child.last_hash, parent.last_hash) - max(child.first_hash, parent.first_hash) + 1)
        for child in children.values()
    )
    return bool(children) and found >= parent.last_hash - parent.first_hash + 1
