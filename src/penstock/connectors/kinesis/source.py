"""``ps.kinesis.Source``: a Kinesis stream as a source."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from penstock.clock import parse_duration
from penstock.connectors.kinesis.config import (
    DecodedData,
    KinesisConfig,
    LeaseMode,
    LeaseOptions,
    OnLostRecords,
    check_most,
    check_word,
    parse_address,
    parse_stream_start,
)
from penstock.connectors.kinesis.lease_commits import leases_of
from penstock.connectors.kinesis.lease_import import ImportedStart
from penstock.connectors.kinesis.shards import KIND, decode
from penstock.errors import GraphError
from penstock.handles import Guarantee

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.connectors.kinesis.reader import KinesisReader
    from penstock.handles import Position
    from penstock.interfaces.source import Backlog, ReadIn, SourceContext

log = logging.getLogger("penstock")


@dataclass(frozen=True, init=False)
class Source(KinesisConfig):
    """A Kinesis stream. Exactly-once: where to read on is in the checkpoint.

    Rows have the columns ``data BINARY``, ``partition_key STRING``, ``explicit_hash_key STRING`` (of aggregated
    records), ``stream STRING``, ``shard STRING``, ``sequence_number STRING``, ``sub_sequence_number INT`` (0 unless
    aggregated) and ``timestamp TIMESTAMP``, when Kinesis has got the record. Records that the Kinesis Producer Library
    has aggregated are rows of their own. Each shard has a watermark of its own.

    Shards that are split or merged are read to their end before their children, so the records of one partition key
    come in the order in which they were put.

    ``start`` counts once, when the source has no position: then everything goes on from the checkpoint. Shards that
    appear later are read from their first record on.

    Args:
        stream: its name, or its ARN.
        region: its region; by default what boto3 finds (``AWS_DEFAULT_REGION``, the configuration file).
        endpoint_url: of another service than AWS, such as ``"http://localhost:4567"``.
        start: ``"earliest"``, so that a first start misses nothing that is still there; ``"latest"``: what arrives
            from the first start on; a time with its zone, as text or ``datetime``; or where a KCL application stands,
            as in ``ps.kinesis.imported("start.json")``.
        on_lost_records: what to do when records that were to be read are kept no longer, or their shard is gone:
            ``"fail"``, or ``"continue"`` behind them, each gap reported as a loss.
        discover_every: how often to look for shards that were split or merged. They are looked for at once when a
            shard ends.
        poll_every: how often a shard without more records is asked for some. Kinesis allows five reads a second and
            shard, for all consumers together.
        max_rows_per_batch: most rows a batch takes; the job's own setting holds too.
        max_bytes_per_batch: about how many bytes of ``data`` a batch takes at most.
        options: arguments of boto3's client: ``aws_access_key_id``, ``aws_secret_access_key``, ``aws_session_token``,
            ``use_ssl``, ``verify``. Without the first three, boto3's ordinary chain finds credentials. Secrets are
            referred to: ``{"aws_secret_access_key": ps.kinesis.env("KINESIS_SECRET")}``.
        leases: the lease table of a KCL application and what is done with it, as in
            ``ps.kinesis.leases("orders-app", mode="export")``; by default there is none.
        read_in: where records are fetched: ``"driver"``; ``"executors"``, which have to reach the service and to find
            credentials, and for which the driver only looks where ranges end; or ``"auto"``, by executors while more
            than 32 shards are read.

    Raises:
        GraphError: an argument is impossible, or holds a secret.

    >>> Source("orders", region="eu-central-1").describe()
    'kinesis orders at eu-central-1'
    """

    position_kind: ClassVar[str] = KIND

    def __init__(  # noqa: PLR0913 - the arguments of a Kinesis source
        self,
        stream: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        start: str | datetime | ImportedStart = "earliest",
        on_lost_records: OnLostRecords = "fail",
        discover_every: str = "10 seconds",
        poll_every: str = "250 milliseconds",
        max_rows_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        options: Mapping[str, object] | None = None,
        leases: LeaseOptions | None = None,
        read_in: ReadIn = "auto",
    ) -> None:
        check_word("on_lost_records", on_lost_records, ("fail", "continue"))
        check_word("read_in", read_in, ("auto", "driver", "executors"))
        check_most("max_rows_per_batch", max_rows_per_batch)
        check_most("max_bytes_per_batch", max_bytes_per_batch)
        address = parse_address(stream, region, endpoint_url, options or {})
        lease_options = leases_of(leases, address)
        if lease_options.mode is LeaseMode.IMPORT and isinstance(start, ImportedStart):
            msg = (
                "start=ps.kinesis.imported(...) and leases= with mode 'import' both say where a KCL application "
                "stands. Leave one of them out."
            )
            raise GraphError(msg)
        values: dict[str, object] = {
            "address": address,
            "start": parse_stream_start(start),
            "on_lost_records": on_lost_records,
            "discover_every": parse_duration("discover_every", discover_every, least=1_000),
            "poll_every": parse_duration("poll_every", poll_every, least=1_000),
            "max_rows_per_batch": max_rows_per_batch,
            "max_bytes_per_batch": max_bytes_per_batch,
            "json": None,
            "needed_columns": None,
            "replay_end": None,
            "leases": lease_options,
            "read_in": read_in,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def guarantee(self) -> Guarantee:
        """Replaying a position reads the same records again, as long as the stream keeps them."""
        return Guarantee.EXACTLY_ONCE

    def decoding(self, column: str, record: StructType) -> Source | None:
        """The same source with ``data`` decoded from JSON while it is read, where the result is exact."""
        from penstock.formats.json_arrow import decoder_of

        decoder = decoder_of(record) if self.json is None and column == "data" else None
        return None if decoder is None else self._with(json=DecodedData(record, decoder))

    def only(self, columns: Collection[str]) -> Source:
        """The same source with ``NULL`` in all other columns, which saves making them."""
        return self._with(needed_columns=frozenset(columns))

    def replayed(self, end: Position | None) -> Source:
        """The same stream without a write to a lease table; a run until caught up ends at ``end``, if given."""
        # An import only reads, and says where a run without a position begins.
        leases = self.leases if self.leases.mode is LeaseMode.IMPORT else LeaseOptions()
        return self._with(replay_end=None if end is None else decode(end), leases=leases)

    def _with(self, **changes: object) -> Source:
        """The same source with other values of some fields, which are not checked again."""
        other = object.__new__(Source)
        for field in fields(self):
            object.__setattr__(other, field.name, changes.get(field.name, getattr(self, field.name)))
        return other

    def open(self, context: SourceContext, resume: Position | None) -> KinesisReader:
        """A reader that goes on after ``resume``.

        Raises:
            StateIncompatible: the position is not one of a Kinesis source.
            SettingsError: boto3 is missing.
            ConnectorError: the stream does not exist, or may not be read.
            SourceUnavailable: the service cannot be reached.
            SourceChanged: the stream was deleted and made again, or is another one.
            LeaseLost: another worker has a lease that the job is to own, or a KCL application that is imported runs.
            LeaseTableInvalid: the lease table does not say where to begin, or may not be used.
        """
        from penstock.connectors.kinesis.reader import KinesisReader

        position = None if resume is None else decode(resume)
        if position is None:
            kcl = self.start.table if isinstance(self.start, ImportedStart) else self._imported_table
            start = self.start if kcl is None else f"the positions of the KCL application {kcl}"
            log.info("source %s has no position: it starts at %s", context.uid, start)
        return KinesisReader(self, context, position)

    @property
    def _imported_table(self) -> str | None:
        address = self.leases.address
        return address.table if self.leases.mode is LeaseMode.IMPORT and address is not None else None

    def backlog(self, resume: Position | None) -> Backlog:
        """What waits for a reader at this position, as far as Kinesis tells without reading; changes nothing."""
        from penstock.connectors.kinesis.lag import backlog_of

        return backlog_of(self, None if resume is None else decode(resume))

    def describe(self) -> str:
        """The stream and where it is, for people; none of the options."""
        return f"kinesis {self.address.stream} at {self.address.place}"
