"""``LeaseCommits``: what a source does with a lease table, by its mode. A job restores from its checkpoints alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

from penstock.clock import parse_duration, sleep
from penstock.connectors.kinesis.config import (
    LeaseMode,
    LeaseOptions,
    check_client_options,
    check_endpoint_url,
    check_region,
    check_word,
    parse_moment,
)
from penstock.connectors.kinesis.lease_export import LeaseExporter
from penstock.connectors.kinesis.lease_holder import LeaseHolder
from penstock.connectors.kinesis.lease_import import import_start, match_listing
from penstock.connectors.kinesis.lease_rows import LeasedShard, is_stream
from penstock.connectors.kinesis.lease_table import (
    DynamoClient,
    LeaseClaim,
    LeaseTable,
    TableAddress,
    new_dynamo_client,
)
from penstock.connectors.kinesis.positions import AtHorizon, AtTime, ShardPosition
from penstock.connectors.kinesis.timer import MachineTimerClock, TimerClock
from penstock.errors import GraphError

if TYPE_CHECKING:
    from penstock.connectors.kinesis.client import StreamAddress
    from penstock.interfaces.source import SourceContext

LeaseModeName: TypeAlias = Literal["none", "export", "own", "import"]
_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")


def leases(  # noqa: PLR0913 - the arguments of a lease table
    table: str,
    *,
    mode: LeaseModeName = "export",
    region: str | None = None,
    endpoint_url: str | None = None,
    options: Mapping[str, object] | None = None,
    stream: str | None = None,
    interval: str = "60 seconds",
    failover: str = "10 seconds",
    force: bool = False,
    otherwise: str | datetime | None = None,
) -> LeaseOptions:
    """Return how a source uses the lease table of a KCL application, for ``ps.kinesis.Source(..., leases=...)``.

    A job restores from its checkpoints alone, in every mode.

    Args:
        table: the table's name, which is that of the KCL application.
        mode: ``"export"`` writes the positions of completed checkpoints, and never fails the job. ``"own"`` also holds
            the leases, so that the application stays away; a lost lease fails the job. ``"import"`` begins where the
            application stands if there is no checkpoint, and never writes. ``"none"`` does nothing.
        region: of the table; by default that of the source.
        endpoint_url: of another DynamoDB than that of AWS. The source's is not used: it is one of Kinesis.
        options: arguments of boto3's client, as for the source; by default those of the source.
        stream: ``account:name:creation`` of the stream, in the table of an application that reads several.
        interval: time between exports; the last completed checkpoint is exported at the end of the job, too.
        failover: the application's failover time. Leases are renewed three times in it, and a lease that its worker has
            not renewed for twice as long is abandoned.
        force: import although the application runs: records that it processes meanwhile are processed twice.
        otherwise: where an import begins in shards of which the table does not say it: ``"earliest"``, or a time with
            its zone. By default they are refused.

    Raises:
        GraphError: an argument is impossible, or holds a secret.

    >>> leases("orders-app", mode="own").mode.value
    'own'
    """
    if not isinstance(table, str) or not _TABLE.fullmatch(table):
        msg = (
            f"table={table!r} is no lease table. Write the name of the KCL application (3 to 255 of the characters "
            "a-z, A-Z, 0-9, '_', '.' and '-')."
        )
        raise GraphError(msg)
    check_word("mode", mode, tuple(each.value for each in LeaseMode))
    if stream is not None and not is_stream(stream):
        msg = f"stream={stream!r} is no stream of a lease table. Write it as in '123456789012:orders:1700000000'."
        raise GraphError(msg)
    return LeaseOptions(
        mode=LeaseMode(mode),
        address=TableAddress(
            table=table,
            region=check_region(region),
            endpoint_url=check_endpoint_url(endpoint_url),
            options=check_client_options(options or {}),
            stream=stream,
        ),
        interval=parse_duration("interval", interval, least=1_000_000),
        failover=parse_duration("failover", failover, least=1_000_000),
        force=force,
        otherwise=_place(otherwise),
    )


def _place(otherwise: object) -> ShardPosition | None:
    if otherwise is None:
        return None
    return AtHorizon() if otherwise == "earliest" else AtTime(parse_moment("otherwise", otherwise, words="'earliest'"))


def leases_of(leases: object, source: StreamAddress) -> LeaseOptions:
    """What a source does with a lease table that is reached as its stream is, where nothing else is said.

    Raises:
        GraphError: ``leases`` is not made by ``ps.kinesis.leases``.
    """
    if leases is None:
        return LeaseOptions()
    if not isinstance(leases, LeaseOptions):
        msg = f"leases={leases!r} does not say what to do. Write leases=ps.kinesis.leases('orders-app', mode='export')."
        raise GraphError(msg)
    if leases.address is None:
        return leases
    table = leases.address
    address = replace(table, region=table.region or source.region, options=table.options or source.options)
    return replace(leases, address=address)


@final
class LeaseCommits:
    """The lease table of one source while its reader is open. In mode ``NONE`` every method does nothing.

    Args:
        options: what to do.
        context: of the source. The owner of leases is ``penstock-UID``, and the same after a restart.
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
        context: SourceContext,
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
            claim = LeaseClaim.of_attempt(context.uid, context.log_id, context.generation)
            self._holder = LeaseHolder(
                table, claim, check_owner=context.check_owner, failover=options.failover, clock=clock, pause=pause
            )
        if mode in (LeaseMode.EXPORT, LeaseMode.OWN):
            self._exporter = LeaseExporter(
                table,
                context.uid,
                context.report,
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
            GenerationFenced: a newer attempt of the job has one.
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
            GenerationFenced: a newer attempt of the job has one that is wanted here.
        """
        if self._holder is not None:
            self._holder.check()

    def close(self) -> None:
        """Export the last completed checkpoint, and give up the leases."""
        if self._exporter is not None:
            self._exporter.close()
        if self._holder is not None:
            self._holder.close()
