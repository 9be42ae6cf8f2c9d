"""``LeaseHolder``: holds the leases of shards as a KCL worker does, so that no KCL application reads them meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, final

from penstock.clock import sleep
from penstock.connectors.kinesis.checkpointer import retry_random
from penstock.connectors.kinesis.lease_rows import Lease, LeasedShard
from penstock.connectors.kinesis.lease_table import CREATE_SECONDS, LeaseClaim, LeaseTable, LeaseWrite
from penstock.connectors.kinesis.positions import SHARD_END, After, AtHorizon, Finished, ShardPosition
from penstock.connectors.kinesis.timer import RecurringTimer, TimerClock
from penstock.errors import GenerationFenced, LeaseLost, PenstockError

log: Final = logging.getLogger("penstock")
OBSERVED_FAILOVERS: Final = 2
"""A lease whose counter does not change for so many failover times is abandoned: the KCL renews thrice in one."""


def first_position(state: LeasedShard, *, has_parent_row: bool) -> ShardPosition:
    """The position of a row that is made for a shard.

    A child of a shard that has a row begins at its horizon, as the KCL makes it, and advances once that row has ended.
    """
    if isinstance(state.position, After | Finished) and has_parent_row:
        return AtHorizon()
    return state.position


@final
class LeaseHolder:
    """Holds the leases of shards for a job, and renews them on a thread of its own.

    Another worker that takes one, or changes its counter, ends all: ``check`` raises from then on. An outage of the
    table does not: no other worker can take a lease during one, and renewing goes on after it.

    Args:
        table: the table.
        claim: the job's name, and what tells this process from another one of the job.
        check_owner: see ``SourceContext``.
        failover: the application's failover time in microseconds; leases are renewed three times in it.
        clock: for renewing.
        pause: called with the seconds to wait while leases of another worker are observed.
    """

    def __init__(
        self,
        table: LeaseTable,
        claim: LeaseClaim,
        *,
        check_owner: Callable[[], None],
        failover: int,
        clock: TimerClock,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._table = table
        self._claim = claim
        self._check_owner = check_owner
        self._failover = failover
        self._pause = pause
        self._held: dict[str, Lease] = {}
        self._wanted: Mapping[str, LeasedShard] = {}
        self._lock = threading.Lock()  # a counter in memory and the one in its row change together
        self._lost: PenstockError | None = None
        self._timer = RecurringTimer(clock, max(1, failover // 3), self._renew, f"Kinesis leases - {claim.owner}")
        self._timer.start()

    def check(self) -> None:
        """Raise if a lease was lost.

        Raises:
            LeaseLost: that is so.
            GenerationFenced: a newer attempt of the job has one that is wanted here.
        """
        if self._lost is not None:
            raise self._lost

    def want(self, shards: Mapping[str, LeasedShard]) -> None:
        """Take the leases of these shards with the next renewal."""
        self._wanted = shards

    def hold(self, shards: Mapping[str, LeasedShard]) -> None:
        """Take the leases of all shards that are not finished; makes the table and rows that are missing.

        Blocks for two failover times if another worker is named in some: they may be abandoned.

        Raises:
            LeaseLost: another worker renews the lease of a shard.
            GenerationFenced: a newer attempt of the job has one.
            ConnectorError: the table cannot be used.
        """
        self._find_table()
        unfinished = {shard: state for shard, state in shards.items() if not isinstance(state.position, Finished)}
        owned = [lease for shard, state in sorted(unfinished.items()) if (lease := self._take(shard, state))]
        if owned:  # there is no wall clock in a row: only a second look tells whether a worker is at work
            self._pause(OBSERVED_FAILOVERS * self._failover / 1_000_000)
        for lease in owned:
            if self._take_as_seen(lease) or self._take_from_own(lease.shard, unfinished[lease.shard]):
                continue
            if lease.owner == self._claim.owner:
                msg = (
                    f"A newer process of this job renews the lease of shard {lease.shard} in table "
                    f"{self._table.name}, with another copy of its state directory. Stop one of them."
                )
                raise LeaseLost(msg)
            msg = (
                f"Worker {lease.holder!r} renews the lease of shard {lease.shard} in table {self._table.name}. "
                "Stop the KCL application before the job is started."
            )
            raise LeaseLost(msg)
        self._wanted = shards  # not before: a renewal takes a lease that names another worker for lost

    def _find_table(self) -> None:
        if not retry_random(self._table.exists, pause=self._pause):
            log.warning("%s creates lease table %s, which is not there", self._claim.owner, self._table.name)
            retry_random(self._table.create, pause=self._pause)
            for _ in range(CREATE_SECONDS):
                if retry_random(self._table.exists, pause=self._pause):
                    break
                self._pause(1)
        retry_random(self._table.read, pause=self._pause)  # what kind of rows it has, before some are added

    def _take_from_own(self, shard: str, state: LeasedShard) -> bool:
        """Take a lease from an older process of the job, which was faster; whether it was taken."""
        lease = retry_random(lambda: self._table.find(shard), pause=self._pause)
        return lease is not None and lease.owner == self._claim.owner and self._take(shard, state) is None

    def _take(self, shard: str, state: LeasedShard) -> Lease | None:
        """Take a lease, unless another worker or a newer attempt of the job is named in it: then return it.

        Raises:
            GenerationFenced: a newer attempt owns the job.
        """
        if shard in self._held:
            return None
        lease = retry_random(lambda: self._table.find(shard), pause=self._pause)
        if lease is None:
            at = first_position(state, has_parent_row=bool(state.parents))
            retry_random(lambda: self._table.insert(shard, state, at), pause=self._pause)
            lease = retry_random(lambda: self._table.find(shard), pause=self._pause)
        while lease is not None and lease.checkpoint.checkpoint != SHARD_END:
            if self._claim.is_older_than(lease):
                # A process that was stopped between its claim of the log and here does not know that another has
                # claimed it. Otherwise that attempt belongs to another copy of the log.
                self._check_owner()
                return lease
            if lease.checkpoint_owner is not None or lease.owner not in (None, self._claim.owner):
                return lease
            if self._take_as_seen(lease):
                return None
            # An older process of the job has renewed it meanwhile.
            lease = retry_random(lambda: self._table.find(shard), pause=self._pause)
        return None

    def _take_as_seen(self, lease: Lease) -> bool:
        with self._lock:
            if not retry_random(lambda: self._table.take(lease, self._claim), pause=self._pause):
                return False
            self._held[lease.shard] = replace(lease, counter=lease.counter + 1)
            return True

    def holds(self, shard: str) -> bool:
        """Whether the lease of a shard is held."""
        return shard in self._held

    def advance(self, shard: str, position: ShardPosition) -> LeaseWrite:
        """``LeaseTable.advance`` of a lease that is held."""
        return self._write(shard, lambda claim: self._table.advance(shard, position, claim=claim))

    def end(self, shard: str, children: Collection[str]) -> LeaseWrite:
        """``LeaseTable.end``; the lease is let go. One that was never taken must have no owner."""
        written = self._write(shard, lambda claim: self._table.end(shard, children, claim=claim))
        self._held.pop(shard, None)
        return written

    def _write(self, shard: str, write: Callable[[LeaseClaim | None], LeaseWrite]) -> LeaseWrite:
        with self._lock:
            self.check()
            lease = self._held.get(shard)
            try:
                written = write(None if lease is None else self._claim)
            except LeaseLost as error:
                self._lost = error
                raise
            if lease is not None:
                # After a write whose answer was lost, the counter may be any of two.
                again = None if written is LeaseWrite.NOW else self._table.find(shard)
                self._held[shard] = again or replace(lease, counter=lease.counter + 1)
            return written

    def close(self) -> None:
        """Stop renewing, and free the leases, so that others need not wait until they are abandoned."""
        self._timer.stop()
        with self._lock:
            try:
                for shard in tuple(self._held):
                    self._table.release(shard, self._claim)
                    del self._held[shard]
            except PenstockError as error:  # they expire
                log.warning("%s could not release its leases: %s", self._claim.owner, error)

    def _renew(self) -> None:
        if self._lost is not None:
            return
        for shard in tuple(self._held):
            with self._lock:
                if (lease := self._held.get(shard)) is None:
                    continue
                try:
                    self._table.renew(lease, self._claim)
                    self._held[shard] = replace(lease, counter=lease.counter + 1)
                except LeaseLost as error:
                    self._lost = error
                    return
                except PenstockError as error:
                    log.warning("%s could not renew the lease of shard %s: %s", self._claim.owner, shard, error)
        for shard, state in sorted(self._wanted.items()):
            if isinstance(state.position, Finished) or shard in self._held:
                continue
            try:
                lease = self._take(shard, state)
            except GenerationFenced as error:
                self._lost = error
                return
            except PenstockError as error:
                log.warning("%s could not take the lease of shard %s: %s", self._claim.owner, shard, error)
                continue
            if lease is not None:
                msg = (
                    f"The lease of new shard {shard} in table {self._table.name} belongs to worker {lease.holder!r}. "
                    "Stop that worker, and start the job again."
                )
                self._lost = LeaseLost(msg)
                return
