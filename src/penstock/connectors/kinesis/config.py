"""The configuration of a Kinesis source, and the checks of the arguments that users give to sources and sinks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from penstock.connectors.kinesis.client import StreamAddress, to_millis
from penstock.connectors.kinesis.lease_export import EXPORT_EVERY
from penstock.connectors.kinesis.lease_import import FAILOVER, ImportedStart
from penstock.connectors.kinesis.lease_table import TableAddress
from penstock.connectors.kinesis.positions import ShardPosition
from penstock.connectors.secrets import EnvironmentSecret, FileSecret, Option, check_option
from penstock.errors import GraphError, did_you_mean
from penstock.interfaces.source import DECODED_RECORD, ReadIn, ReadLimit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.connectors.kinesis.shards import KinesisPosition
    from penstock.formats.json_arrow import JsonDecoder

OnLostRecords: TypeAlias = Literal["fail", "continue"]
StreamStart: TypeAlias = "Literal['earliest', 'latest'] | int | ImportedStart"
"""A word, a time in milliseconds since the epoch, or where a KCL application stands."""

SHARD_COLUMN: Final = "shard"
"""The column of the shard's id, which separates rows by shard."""


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


@dataclass(frozen=True, slots=True)
class DecodedData:
    """The type of the records that ``data`` is decoded to while it is read, and their decoder."""

    record: StructType
    decoder: JsonDecoder


@dataclass(frozen=True, init=False)
class KinesisConfig:
    """Which stream to read and how: the checked arguments of a Kinesis ``Source``, which is its subclass.

    Arguments are described there. Durations are microseconds here.
    """

    address: StreamAddress
    start: StreamStart
    on_lost_records: OnLostRecords
    discover_every: int
    poll_every: int
    max_rows_per_batch: int | None
    max_bytes_per_batch: int | None
    json: DecodedData | None
    needed_columns: frozenset[str] | None
    replay_end: KinesisPosition | None
    leases: LeaseOptions
    read_in: ReadIn

    @property
    def partition_column(self) -> str:
        """The column that identifies the shard of a row."""
        return SHARD_COLUMN

    def limit_batch(self, limits: ReadLimit) -> ReadLimit:
        """The job's limits of a batch, lowered to those of this source."""
        return limits.lowered(rows=self.max_rows_per_batch, bytes=self.max_bytes_per_batch)

    def schema(self, spark: SparkSession) -> StructType:
        """The columns of a record."""
        from pyspark.sql import types as t

        del spark  # an argument of the protocol that is not needed here
        columns = t.StructType().add("data", t.BinaryType()).add("partition_key", t.StringType())
        columns.add("explicit_hash_key", t.StringType()).add("stream", t.StringType())
        columns.add(SHARD_COLUMN, t.StringType()).add("sequence_number", t.StringType())
        columns.add("sub_sequence_number", t.IntegerType()).add("timestamp", t.TimestampType())
        return columns if self.json is None else columns.add(DECODED_RECORD, self.json.record)


# ---- checks of arguments ---------------------------------------------------------------------------------------------
# They raise ``GraphError`` for a value that is impossible.

_STREAM: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_ARN: Final = re.compile(r"arn:aws[a-z-]*:kinesis:[a-z0-9-]*:\d{12}:stream/[A-Za-z0-9_.-]{1,128}")
_URL: Final = re.compile(r"https?://[^\s/@]+/?")
_KINESIS_WORDS: Final = {"TRIM_HORIZON": "earliest", "LATEST": "latest"}
CLIENT_OPTIONS: Final = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "use_ssl", "verify")
"""Arguments of boto3's client that can be set; the others are penstock's own, or an argument of the source or sink."""


def parse_address(stream: object, region: object, endpoint_url: object, options: Mapping[Any, object]) -> StreamAddress:
    """Where the stream is.

    Raises:
        GraphError: an argument is impossible, or holds a secret.
    """
    if not isinstance(stream, str) or not (_STREAM.fullmatch(stream) or _ARN.fullmatch(stream)):
        msg = (
            f"stream={stream!r} is no stream. Write its name (1 to 128 of the characters a-z, A-Z, 0-9, '_', '.' and "
            "'-'), or its ARN, as in 'arn:aws:kinesis:eu-central-1:123456789012:stream/orders'."
        )
        raise GraphError(msg)
    return StreamAddress(
        stream=stream,
        region=check_region(region),
        endpoint_url=check_endpoint_url(endpoint_url),
        options=check_client_options(options),
    )


def check_region(region: object) -> str | None:
    """Return the name of a region unchanged, or raise ``GraphError`` if it is none."""
    if region is None or (isinstance(region, str) and region):
        return region
    msg = f"region={region!r} is no region. Write its name, as in 'eu-central-1', or leave it out."
    raise GraphError(msg)


def check_endpoint_url(endpoint_url: object) -> str | None:
    """Return the address of a service unchanged, or raise ``GraphError`` if it is none."""
    if endpoint_url is None or (isinstance(endpoint_url, str) and _URL.fullmatch(endpoint_url)):
        return endpoint_url
    # Not shown: there may be a password in it.
    msg = "The endpoint_url is no address of a service. Write 'http://localhost:4567', without a user or a path."
    raise GraphError(msg)


def check_client_options(options: Mapping[Any, object]) -> dict[str, Option]:
    """Check arguments of boto3's client, and return them unchanged.

    Raises:
        GraphError: one is unknown, a secret that is written out, or has an impossible value. The message does not show
            the value.

    >>> check_client_options({"verify": "/etc/ssl/our-ca.pem"})
    {'verify': '/etc/ssl/our-ca.pem'}
    """
    checked: dict[str, Option] = {}
    for name, value in options.items():
        if name not in CLIENT_OPTIONS:
            hint = did_you_mean(str(name), CLIENT_OPTIONS, otherwise=f"There are {', '.join(CLIENT_OPTIONS)}.")
            msg = f"Option {name!r} cannot be set in options{hint}"
            raise GraphError(msg)
        check_option(name, value, connector="kinesis")
        if not isinstance(value, str | bool | EnvironmentSecret | FileSecret):
            msg = (
                f"Option {name!r} is a {type(value).__name__}. Give text, true or false, or the reference of a secret."
            )
            raise GraphError(msg)
        checked[name] = value
    return checked


def parse_stream_start(start: object) -> StreamStart:
    """``start`` as a word, a time, or where a KCL application stands.

    Raises:
        GraphError: it is none of them.

    >>> parse_stream_start("latest"), parse_stream_start("1970-01-01T00:00:01Z")
    ('latest', 1000)
    """
    if isinstance(start, ImportedStart):
        return start
    if isinstance(start, str) and start in ("earliest", "latest"):
        return start  # type: ignore[return-value] # one of the words
    return parse_moment("start", start, words="'earliest', 'latest'")


def parse_moment(name: str, start: object, *, words: str) -> int:
    """A time as milliseconds since the epoch.

    Args:
        name: of the argument.
        start: its value.
        words: what else it can be, for the message.

    Raises:
        GraphError: it is no time, has no zone, or is before 1970.
    """
    moment = start
    if isinstance(start, str):
        try:
            moment = datetime.fromisoformat(start[:-1] + "+00:00" if start.endswith(("Z", "z")) else start)
        except ValueError:
            moment = None
    if not isinstance(moment, datetime):
        word = _KINESIS_WORDS.get(start) if isinstance(start, str) else None
        hint = "" if word is None else f" Kinesis's {start} is called {word!r}."
        msg = (
            f"{name}={start!r} is not a place in a stream.{hint} Write {words}, or a time such as "
            "'2026-01-31T00:00:00Z'."
        )
        raise GraphError(msg)
    if moment.tzinfo is None:
        msg = (
            f"{name}={moment.isoformat()!r} has no time zone, so it could be any of several moments. Write it with "
            "one, as in '2026-01-31T00:00:00Z' or datetime(2026, 1, 31, tzinfo=timezone.utc)."
        )
        raise GraphError(msg)
    ms = to_millis(moment.astimezone(timezone.utc))
    if ms < 0:
        msg = f"{name}={moment.isoformat()!r} is before 1970, and records have no such times. Write 'earliest'."
        raise GraphError(msg)
    return ms


def check_word(name: str, value: object, words: tuple[str, ...]) -> None:
    """Raise ``GraphError`` unless ``value`` is one of ``words``."""
    if value not in words:
        msg = f"{name}={value!r} is not possible. It must be one of {', '.join(map(repr, words))}."
        raise GraphError(msg)


def check_most(name: str, value: object) -> None:
    """Raise ``GraphError`` unless ``value`` is ``None`` or a whole number of at least 1."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        msg = f"{name} is {value!r}, but must be a whole number of at least 1, or None."
        raise GraphError(msg)
