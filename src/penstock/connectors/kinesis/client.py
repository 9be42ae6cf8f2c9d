"""Kinesis through boto3: making a client, listing shards, and what errors mean. Imports boto3 when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, Final, TypeAlias

from penstock.connectors.kinesis.positions import After, AtTime, ShardPosition
from penstock.connectors.kinesis.shards import ListedShard, Listing
from penstock.connectors.secrets import Option, resolve
from penstock.errors import ConnectorError, PenstockError, SettingsError, SinkUnavailable, SourceUnavailable

KinesisClient: TypeAlias = Any
"""boto3's client for Kinesis, or what a test puts in its place. It may be called by several threads at once."""

CONNECT_SECONDS: Final = 5
ANSWER_SECONDS: Final = 20
"""Seconds until a request that gets no answer fails. A page has at most 10 MB."""
_MAX_CONNECTIONS: Final = 40
"""A thread a shard, and one that lists them."""


# ---- the client ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAddress:
    """Which stream, and how to reach it. Holds references to secrets, never the secrets.

    Attributes:
        stream: its name or ARN.
        region: its region; ``None``: what boto3 finds.
        endpoint_url: of another service than AWS.
        options: further arguments of boto3's client.
    """

    stream: str
    region: str | None = None
    endpoint_url: str | None = None
    options: Mapping[str, Option] = field(default_factory=dict, repr=False)

    @property
    def argument(self) -> dict[str, str]:
        """The argument of a request that names the stream."""
        return {"StreamARN" if self.stream.startswith("arn:") else "StreamName": self.stream}

    @property
    def place(self) -> str:
        """Where the stream is, for people."""
        return self.endpoint_url or self.region or "AWS"


def new_client(address: StreamAddress) -> KinesisClient:
    """A client of boto3, with the credentials that boto3 finds unless the options have some.

    Raises:
        SettingsError: boto3 is missing.
        ConnectorError: a secret is not there, boto3 refuses an option, or finds no region.
    """
    return boto_client(
        "kinesis",
        address.region,
        address.endpoint_url,
        address.options,
        needed_by="Kinesis",
        refusal=lambda error: ConnectorError(
            f"A client for stream {address.stream} cannot be made ({error}). Check region=, endpoint_url= and "
            "options=, or set AWS_DEFAULT_REGION."
        ),
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        max_pool_connections=_MAX_CONNECTIONS,
    )


def boto_client(
    service: str,
    region: str | None,
    endpoint_url: str | None,
    options: Mapping[str, Option],
    *,
    needed_by: str,
    refusal: Callable[[Exception], PenstockError],
    **config: Any,
) -> Any:
    """A client of boto3 that tries each request once: each caller has retries of its own, at its own pace.

    Times in its answers are seconds since the epoch.

    Args:
        service: as boto3 names it.
        region: ``None``: what boto3 finds.
        endpoint_url: of another service than AWS.
        options: further arguments of the client, with references to secrets.
        needed_by: what does not work without boto3.
        refusal: makes the error if boto3 refuses an option, or finds no region.
        config: further arguments of botocore's ``Config``.

    Raises:
        SettingsError: boto3 is missing.
    """
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
        from botocore.session import get_session
    except ImportError:
        msg = f"{needed_by} needs boto3, which is not installed. Run pip install 'penstock[kinesis]'."
        raise SettingsError(msg) from None
    session = get_session()
    # boto's own parser takes three times as long for a record as for all the rest of it, for a datetime.
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
    try:
        # A session is not for several threads, its clients are.
        return boto3.session.Session(botocore_session=session).client(
            service,
            region_name=region,
            endpoint_url=endpoint_url,
            config=Config(retries={"total_max_attempts": 1, "mode": "standard"}, user_agent_extra="penstock", **config),
            **resolve(options),
        )
    except (BotoCoreError, ValueError, TypeError) as error:
        raise refusal(error) from error


# ---- what errors mean ------------------------------------------------------------------------------------------------


class FailureKind(str, Enum):
    """What an error of a request means for the reader."""

    THROTTLED = "throttled"
    """More requests or bytes than the shard or the account allows; nothing is wrong."""
    EXPIRED = "expired"
    """The iterator is older than five minutes."""
    GONE = "gone"
    """There is no such stream, shard or record."""
    INVALID = "invalid"
    OUTAGE = "outage"
    REFUSED = "refused"
    """Credentials or rights are missing: no retry helps."""


_KINDS: Final = {
    **dict.fromkeys(
        (
            "ProvisionedThroughputExceededException",
            "ThrottlingException",
            "Throttling",
            "LimitExceededException",
            "RequestLimitExceeded",
            "TooManyRequestsException",
            "KMSThrottlingException",
        ),
        FailureKind.THROTTLED,
    ),
    "ExpiredIteratorException": FailureKind.EXPIRED,
    "ExpiredNextTokenException": FailureKind.EXPIRED,
    "ResourceNotFoundException": FailureKind.GONE,
    **dict.fromkeys(("InvalidArgumentException", "ValidationException"), FailureKind.INVALID),
    **dict.fromkeys(
        (
            "AccessDeniedException",
            "UnrecognizedClientException",
            "InvalidClientTokenId",
            "InvalidSignatureException",
            "SignatureDoesNotMatch",
            "MissingAuthenticationToken",
            "ExpiredTokenException",
            "ExpiredToken",
            "IncompleteSignature",
            "OptInRequired",
            "KMSAccessDeniedException",
            "KMSDisabledException",
            "KMSInvalidStateException",
            "KMSNotFoundException",
            "KMSOptInRequired",
        ),
        FailureKind.REFUSED,
    ),
}
_NO_CREDENTIALS: Final = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "NoRegionError", "ProfileNotFound"}
)


def error_code(error: Exception) -> str:
    """The service's name of an error, or that of its class where no answer came."""
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, Mapping) else None
    return str(code or type(error).__name__)


def failure_kind(error: Exception) -> FailureKind:
    """What an error of boto3 means. What is not known is an outage: it is tried again, for some minutes."""
    code = error_code(error)
    if code in _NO_CREDENTIALS:
        return FailureKind.REFUSED
    return _KINDS.get(code, FailureKind.OUTAGE)


def is_of_boto(error: Exception) -> bool:
    """Whether a client raised the error, so that it is one of a request and no mistake in code."""
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    return isinstance(error, BotoCoreError | ClientError | HTTPClientError | OSError)


def source_error(error: Exception, address: StreamAddress) -> ConnectorError:
    """The job's error for an error of a reader's request."""
    kind, cause = failure_kind(error), f"{error_code(error)}: {error}"
    if kind in (FailureKind.OUTAGE, FailureKind.THROTTLED, FailureKind.EXPIRED):
        return SourceUnavailable(
            f"Stream {address.stream} at {address.place} does not answer ({cause}). See that the service can be "
            "reached, and that no other consumer takes all of its reads."
        )
    return ConnectorError(_lasting(kind, cause, address, "kinesis:GetRecords, GetShardIterator, ListShards"))


def sink_error(error: Exception, address: StreamAddress) -> ConnectorError:
    """The job's error for an error of a sink's request."""
    kind, cause = failure_kind(error), f"{error_code(error)}: {error}"
    if kind in (FailureKind.OUTAGE, FailureKind.THROTTLED):
        return SinkUnavailable(
            f"Stream {address.stream} at {address.place} does not take records ({cause}). See that the service can be "
            "reached, and that the stream has enough shards."
        )
    return ConnectorError(_lasting(kind, cause, address, "kinesis:PutRecords"))


def _lasting(kind: FailureKind, cause: str, address: StreamAddress, rights: str) -> str:
    where = f"stream {address.stream} at {address.place}"
    if kind is FailureKind.REFUSED:
        return (
            f"Not allowed to use {where} ({cause}). Give this job credentials that boto3 finds, with the rights "
            f"{rights} and DescribeStreamSummary."
        )
    if kind is FailureKind.GONE:
        return f"There is no {where} ({cause}). Create it, or correct stream=, region= or the account."
    return f"The request for {where} is refused ({cause}). Check the arguments of the source or sink."


# ---- the stream ------------------------------------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND: Final = timedelta(milliseconds=1)
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """What DescribeStreamSummary says: identity, state, and how long records are kept, in milliseconds."""

    arn: str
    created: int
    status: str
    retention: int


def describe(client: KinesisClient, address: StreamAddress) -> StreamSummary:
    """The stream as it is now; raises what boto3 raises."""
    found = client.describe_stream_summary(**address.argument)["StreamDescriptionSummary"]
    return StreamSummary(
        arn=found["StreamARN"],
        created=to_millis(found["StreamCreationTimestamp"]),
        status=found["StreamStatus"],
        retention=found["RetentionPeriodHours"] * _HOUR_MS,
    )


def list_shards(client: KinesisClient, address: StreamAddress) -> Listing:
    """All shards, open and closed, from all pages; raises what boto3 raises."""
    found: dict[str, ListedShard] = {}
    page = client.list_shards(**address.argument)
    while True:
        for shard in page["Shards"]:
            listed = _listed(shard)
            found[listed.id] = listed
        token = page.get("NextToken")
        if not token:
            return found
        page = client.list_shards(NextToken=token)  # the stream's name beside a token is refused


def _listed(shard: Mapping[str, Any]) -> ListedShard:
    parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
    hashes = shard["HashKeyRange"]
    return ListedShard(
        id=shard["ShardId"],
        parents=tuple(parent for parent in parents if parent),
        first_hash=int(hashes["StartingHashKey"]),
        last_hash=int(hashes["EndingHashKey"]),
        # That number says that the shard is closed; what it is differs between the service and its emulators.
        is_closed=bool(shard["SequenceNumberRange"].get("EndingSequenceNumber")),
    )


def iterator_arguments(position: ShardPosition) -> dict[str, object]:
    """The arguments of GetShardIterator for a position of a checkpoint.

    The last record that was read is read again: it may be an aggregate of which a part was read.
    """
    if isinstance(position, After):
        return {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": str(position.seq)}
    if isinstance(position, AtTime):
        return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": from_millis(position.ms)}
    return {"ShardIteratorType": "TRIM_HORIZON"}


def _parse_time(value: Any) -> Any:
    """The time of an answer: seconds in JSON; text, as services of credentials send it, becomes a datetime."""
    if isinstance(value, int | float):
        return value
    from botocore.utils import parse_timestamp

    return parse_timestamp(value)


def to_millis(at: datetime | float) -> int:
    """Milliseconds since the epoch of a time of boto3."""
    return round(at * 1_000) if isinstance(at, int | float) else (at - _EPOCH) // _MILLISECOND


def from_millis(ms: int) -> datetime:
    """The inverse of ``to_millis``."""
    return _EPOCH + ms * _MILLISECOND
