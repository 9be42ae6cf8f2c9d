"""``LeaseCommits``: what a source does with a lease table, by its mode. A job restores from its checkpoints alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, final

from penstock.clock import sleep
from penstock.connectors.kinesis.lease_export import EXPORT_EVERY, LeaseExporter
from penstock.connectors.kinesis.lease_holder import LeaseHolder
from penstock.connectors.kinesis.lease_import import FAILOVER, import_start, match_listing
from penstock.connectors.kinesis.lease_rows import LeasedShard
from penstock.connectors.kinesis.lease_table import (
    DynamoClient,
    LeaseClaim,
    LeaseTable,
    TableAddress,
    new_dynamo_client,
)
from penstock.connectors.kinesis.positions import ShardPosition
from penstock.connectors.kinesis.timer import MachineTimerClock, TimerClock
from penstock.handles import new_id

if TYPE_CHECKING:
    from penstock.facts import Fact


class LeaseMode(str, Enum):
    """What a source does with a lease table."""

    NONE = "none"
    """Nothing: positions are in checkpoints only."""
    EXPORT = "export"
    """It writes the positions of completed checkpoints. That never delays or fails the job."""
    OWN = "own"
    """It also holds the leases, so that a KCL application of that name stays away. A lost lease fails the job."""
    IMPORT = "import"
    """It begins where a KCL application stands, if there is no checkpoint, and then does not use the table any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOptions:
    """How a source uses a lease table.

    Attributes:
        mode: what it does.
        address: of the table; needed in all modes but ``NONE``.
        interval: microseconds between exports.
        failover: the KCL application's failover time, in microseconds.
        force: import from an application that runs.
        otherwise: where to begin in shards of which the table does not say it.
    """

    mode: LeaseMode = LeaseMode.NONE
    address: TableAddress | None = None
    interval: int = EXPORT_EVERY
    failover: int = FAILOVER
    force: bool = False
    otherwise: ShardPosition | None = None


@final
class LeaseCommits:
    """The lease table of one source while its reader is open. In mode ``NONE`` every method does nothing.

    Args:
        options: what to do.
        uid: of the source. The owner of leases is ``penstock-UID``, and the same after a restart.
        report: gets facts.
        client: of DynamoDB; one of boto3 by default.
        clock: of the timers.
        pause: called with the seconds of each wait.

    Raises:
        ConnectorError: boto3 makes no client.
        SettingsError: boto3 is missing.
    """

    def __init__(
        self,
        options: LeaseOptions,
        uid: str,
        report: Callable[[Fact], None],
        *,
        client: DynamoClient | None = None,
        clock: TimerClock | None = None,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._options = options
        self._pause = pause
        self._table: LeaseTable | None = None
        self._holder: LeaseHolder | None = None
        self._exporter: LeaseExporter | None = None
        address, mode = options.address, options.mode
        if mode is LeaseMode.NONE or address is None:
            return
        self._table = table = LeaseTable(client or new_dynamo_client(address), address.table, stream=address.stream)
        clock = clock or MachineTimerClock()
        if mode is LeaseMode.OWN:
            claim = LeaseClaim(owner=f"penstock-{uid}", process=new_id())
            self._holder = LeaseHolder(table, claim, failover=options.failover, clock=clock, pause=pause)
        if mode in (LeaseMode.EXPORT, LeaseMode.OWN):
            self._exporter = LeaseExporter(
                table,
                uid,
                report,
                clock,
                interval=options.interval,
                failover=options.failover,
                holder=self._holder,
                pause=pause,
            )

    def start(self, parents: Mapping[str, tuple[str, ...]]) -> dict[str, ShardPosition] | None:
        """Where a source begins that has no checkpoint; ``None`` unless the mode is ``IMPORT``.

        Args:
            parents: all shards that the stream lists, with their parents.

        Raises:
            LeaseLost: the KCL application runs.
            LeaseTableInvalid: the table does not say where to begin.
            ConnectorError: the table does not answer.
        """
        if self._table is None or self._options.mode is not LeaseMode.IMPORT:
            return None
        options = self._options
        start = import_start(
            self._table, failover=options.failover, force=options.force, otherwise=options.otherwise, pause=self._pause
        )
        return match_listing(start.positions, parents, otherwise=options.otherwise)

    def opened(self, shards: Mapping[str, LeasedShard]) -> None:
        """Take the leases in mode ``OWN``, before anything is read.

        Raises:
            LeaseLost: another worker renews one.
            ConnectorError: the table cannot be used.
        """
        if self._holder is not None:
            self._holder.hold(shards)

    def shards_found(self, shards: Mapping[str, LeasedShard]) -> None:
        """Take the leases of new shards in mode ``OWN``, soon; never waits."""
        if self._holder is not None:
            self._holder.want(shards)

    def checkpoint_completed(self, shards: Mapping[str, LeasedShard]) -> None:
        """Note all shards of a completed checkpoint, to be exported; never waits."""
        if self._exporter is not None:
            self._exporter.checkpoint_completed(shards)

    def check(self) -> None:
        """Raise if a lease was lost in mode ``OWN``; asked at each poll.

        Raises:
            LeaseLost: that is so.
        """
        if self._holder is not None:
            self._holder.check()

    def close(self) -> None:
        """Export the last completed checkpoint, and give up the leases."""
        if self._exporter is not None:
            self._exporter.close()
        if self._holder is not None:
            self._holder.close()
