"""``LeaseTable``: the lease table of a KCL application in DynamoDB, and each request that penstock makes of it.

A write changes the counter, since that is what tells the KCL that its copy of a row is old. No write takes a shard
back: sequence numbers are texts in the table, so a longer one is higher, and of two that are equally long the one that
comes later as a text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias

from penstock.connectors.kinesis import lease_rows as rows
from penstock.connectors.kinesis.client import boto_client
from penstock.connectors.kinesis.lease_rows import Lease, LeasedShard, new_row, parse_row
from penstock.connectors.kinesis.positions import (
    AT_TIMESTAMP,
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    Finished,
    ShardPosition,
    lease_order,
    to_lease,
)
from penstock.connectors.secrets import Option
from penstock.errors import (
    InternalError,
    LeaseLost,
    LeaseTableInvalid,
    LeaseTableUnavailable,
    LeaseThrottled,
    PenstockError,
)
from penstock.handles import new_id

DynamoClient: TypeAlias = Any
"""boto3's client for DynamoDB, or what a test puts in its place. It may be called by several threads at once."""
_Values: TypeAlias = Mapping[str, Mapping[str, Any]]
CONNECT_SECONDS: Final = 3
ANSWER_SECONDS: Final = 5
CREATE_SECONDS: Final = 60
"""Seconds that a new table gets until it can be used."""


# ---- the client, and what its errors mean ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAddress:
    """Which lease table, and how to reach it. Holds references to secrets, never the secrets.

    Attributes:
        table: its name, which is that of the KCL application.
        region: its region; ``None``: what boto3 finds.
        endpoint_url: of another service than AWS.
        options: further arguments of boto3's client.
        stream: ``account:name:creation`` of the stream, in the table of an application that reads several.
    """

    table: str
    region: str | None = None
    endpoint_url: str | None = None
    options: Mapping[str, Option] = field(default_factory=dict, repr=False)
    stream: str | None = None


def new_dynamo_client(address: TableAddress) -> DynamoClient:
    """A client of boto3, with the credentials that boto3 finds unless the options have some.

    Raises:
        SettingsError: boto3 is missing.
        LeaseTableInvalid: boto3 refuses an option, or finds no region.
    """
    return boto_client(
        "dynamodb",
        address.region,
        address.endpoint_url,
        address.options,
        needed_by="A lease table",
        refusal=lambda error: LeaseTableInvalid(
            f"No client can be made for lease table {address.table} ({error}). Check the region, the address and the "
            "options, or set AWS_DEFAULT_REGION."
        ),
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
    )


_THROTTLED: Final = frozenset(
    {"ProvisionedThroughputExceededException", "ThrottlingException", "Throttling", "RequestLimitExceeded"}
)
_NO_CREDENTIALS: Final = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "NoRegionError", "ProfileNotFound"}
)
_CONDITION_FAILED: Final = "ConditionalCheckFailedException"
_SERVER_ERROR: Final = 500


def lease_error(error: Exception, table: str) -> PenstockError | None:
    """What an error of boto3 means for a checkpointer; ``None`` if it is no error of boto3."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return _answered(table, _code(error), status, error)
    if type(error).__name__ in _NO_CREDENTIALS:
        return LeaseTableInvalid(
            f"No credentials are found for lease table {table} ({error}). Set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, a profile, or a role."
        )
    if isinstance(error, OSError) or type(error).__module__.startswith("botocore."):
        return LeaseTableUnavailable(f"Lease table {table} does not answer ({error}). It is tried again.")
    return None


def _answered(table: str, code: str, status: int, error: Exception) -> PenstockError:
    """What an answer with an error means."""
    if code in _THROTTLED:
        return LeaseThrottled(f"Lease table {table} has no capacity now ({code}). Raise it if that lasts.")
    if status >= _SERVER_ERROR:
        return LeaseTableUnavailable(f"Lease table {table} cannot answer now ({code}). It is tried again.")
    if code == "ResourceNotFoundException":
        return LeaseTableInvalid(f"There is no lease table {table}. Create it, or correct its name or region.")
    return LeaseTableInvalid(
        f"Lease table {table} refuses the request ({code}: {error}). Give this job credentials with the rights "
        "dynamodb:DescribeTable, Scan, GetItem, PutItem and UpdateItem."
    )


class LeaseWrite(str, Enum):
    """What became of a write that was not refused."""

    NOW = "now"
    ALREADY = "already"
    """The row was as far or further."""
    NO_ROW = "no row"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClaim:
    """By whom a lease is held.

    Attributes:
        owner: the name in the column ``leaseOwner``; for a job of penstock it is the same after a restart.
        process: tells two processes of that owner apart. That of a job is ``LOG/GENERATION/RANDOM``, which earlier
            releases take for one word.
    """

    owner: str
    process: str

    @classmethod
    def of_attempt(cls, uid: str, log_id: str, generation: int) -> LeaseClaim:
        """The claim of a source, in one attempt of its job."""
        return cls(owner=f"penstock-{uid}", process=f"{log_id}/{generation}/{new_id()}")

    def is_older_than(self, lease: Lease) -> bool:
        """Whether a newer attempt of the same job holds the lease.

        >>> lease = Lease(key="s", shard="s", checkpoint=to_lease(Finished()), counter=1, owner="a", claim="log/8/x")
        >>> [LeaseClaim(owner="a", process=f"log/{it}/y").is_older_than(lease) for it in (7, 8, 9)]
        [True, False, False]
        """
        (own_log, own), (log, generation) = _attempt(self.process), _attempt(lease.claim or "")
        return lease.owner == self.owner and log == own_log and generation > own


def _attempt(process: str) -> tuple[str, int]:
    """The log and the generation of a process; 0 for a claim of an earlier release, which does not say them."""
    log_id, _, rest = process.partition("/")
    generation = rest.partition("/")[0]
    return log_id, int(generation) if generation.isdecimal() else 0


# ---- the table -------------------------------------------------------------------------------------------------------

_FREE: Final = "attribute_not_exists(leaseOwner)"
_MINE: Final = "leaseOwner = :owner AND penstockClaim = :claim"
_NOT_HANDED_OVER: Final = "attribute_not_exists(checkpointOwner)"
_FORWARD: Final = (
    "(checkpoint IN (:horizon, :latest, :time) OR size(checkpoint) < :length"
    " OR (size(checkpoint) = :length AND checkpoint < :checkpoint)"
    " OR (checkpoint = :checkpoint AND checkpointSubSequenceNumber < :sub))"
)
_SET_CHECKPOINT: Final = (
    "SET checkpoint = :checkpoint, checkpointSubSequenceNumber = :sub, ownerSwitchesSinceCheckpoint = :zero"
)
_NO_PENDING: Final = "pendingCheckpoint, pendingCheckpointSubSequenceNumber, pendingCheckpointState"


class LeaseTable:
    """The leases of one stream.

    Every method may raise ``LeaseThrottled``, ``LeaseTableUnavailable`` and ``LeaseTableInvalid``.

    Args:
        client: of DynamoDB.
        name: of the table.
        stream: ``account:name:creation`` of the stream, in a table of several streams.
    """

    def __init__(self, client: DynamoClient, name: str, *, stream: str | None = None) -> None:
        self._client = client
        self.name = name
        self._stream = stream
        self._has_types = False

    def exists(self) -> bool:
        """Whether the table can be used."""
        try:
            answer = self._client.describe_table(TableName=self.name)
        except Exception as error:
            if _code(error) == "ResourceNotFoundException":
                return False
            raise self._meaning(error) from error
        return bool(answer["Table"]["TableStatus"] in ("ACTIVE", "UPDATING"))

    def create(self) -> None:
        """Create the table as the KCL does, paid by request. It can be used once ``exists`` says so."""
        try:
            self._client.create_table(
                TableName=self.name,
                KeySchema=[{"AttributeName": rows.KEY, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": rows.KEY, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        except Exception as error:
            if _code(error) != "ResourceInUseException":  # another process was faster
                raise self._meaning(error) from error

    def read(self) -> dict[str, Lease]:
        """All leases of the stream, by shard."""
        return {lease.shard: lease for lease in self._scan() if lease.stream == self._stream}

    def streams(self) -> list[str]:
        """The streams that a table of several streams has leases of."""
        return sorted({lease.stream for lease in self._scan() if lease.stream is not None})

    def _scan(self) -> Iterator[Lease]:
        start: dict[str, Any] = {}
        while True:
            page = self._call("scan", TableName=self.name, ConsistentRead=True, **start)
            for row in page["Items"]:
                self._has_types = self._has_types or rows.ENTITY in row
                if (lease := parse_row(row, self.name)) is not None:
                    yield lease
            if not page.get("LastEvaluatedKey"):
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def insert(self, shard: str, state: LeasedShard, at: ShardPosition) -> bool:
        """Make the row of a shard with no owner; whether there was none."""
        row = new_row(self._key(shard), state, at, has_types=self._has_types)
        return self._write("put_item", Item=row, ConditionExpression="attribute_not_exists(leaseKey)") is None

    def advance(self, shard: str, position: ShardPosition, *, claim: LeaseClaim | None = None) -> LeaseWrite:
        """Write how far a shard was read, unless its row is as far.

        Args:
            shard: the shard.
            position: a record.
            claim: who holds the lease; ``None`` if it must have no owner.

        Raises:
            LeaseLost: another worker has the lease.
        """
        checkpoint, sub = to_lease(position)
        values: _Values = {
            ":checkpoint": {"S": checkpoint},
            ":sub": {"N": str(sub)},
            ":length": {"N": str(len(checkpoint))},
            ":horizon": {"S": TRIM_HORIZON},
            ":latest": {"S": LATEST},
            ":time": {"S": AT_TIMESTAMP},
        }
        update = f"{_SET_CHECKPOINT} ADD leaseCounter :one REMOVE {_NO_PENDING}, {rows.TIME}"
        return self._checkpoint(shard, position, update, f"checkpoint <> :end AND {_FORWARD}", values, claim)

    def end(self, shard: str, children: Collection[str], *, claim: LeaseClaim | None = None) -> LeaseWrite:
        """Write that a shard is finished and which its children are, whose rows must be there before.

        Raises:
            LeaseLost: another worker has the lease.
        """
        values: _Values = {":checkpoint": {"S": SHARD_END}, ":sub": {"N": "0"}, ":children": {"SS": sorted(children)}}
        free = f", {rows.OWNER}, {rows.CLAIM}" if claim else ""
        update = (
            f"{_SET_CHECKPOINT}, {rows.CHILDREN} = :children ADD leaseCounter :one "
            f"REMOVE {_NO_PENDING}, {rows.TIME}{free}"
        )
        return self._checkpoint(shard, Finished(), update, "checkpoint <> :end", values, claim)

    def _checkpoint(
        self,
        shard: str,
        position: ShardPosition,
        update: str,
        condition: str,
        values: _Values,
        claim: LeaseClaim | None,
    ) -> LeaseWrite:
        seen = self._update(
            shard,
            update,
            f"attribute_exists(leaseKey) AND {_FREE if claim is None else _MINE} AND {_NOT_HANDED_OVER} AND "
            + condition,
            {**values, ":end": {"S": SHARD_END}, ":zero": {"N": "0"}, ":one": {"N": "1"}, **_of(claim)},
        )
        if seen is None:
            return LeaseWrite.NOW
        if not seen:
            return LeaseWrite.NO_ROW
        lease = self._lease(seen)
        if lease_order(lease.checkpoint) >= lease_order(to_lease(position)):
            return LeaseWrite.ALREADY
        raise self._lost(lease)

    # ---- owning leases

    def find(self, shard: str) -> Lease | None:
        """The lease of one shard; ``None`` if it has no row."""
        answer = self._call(
            "get_item", TableName=self.name, Key={rows.KEY: {"S": self._key(shard)}}, ConsistentRead=True
        )
        return self._lease(answer["Item"]) if answer.get("Item") else None

    def take(self, lease: Lease, claim: LeaseClaim) -> bool:
        """Become the owner of a lease that is as it was seen; whether it still was."""
        values = {":seen": {"N": str(lease.counter)}, ":one": {"N": "1"}, **_of(claim)}
        update = f"SET leaseOwner = :owner, penstockClaim = :claim ADD leaseCounter :one REMOVE {rows.CHECKPOINT_OWNER}"
        seen = self._update(lease.shard, update, "leaseCounter = :seen", values)
        return seen is None or self._is_repeated(seen, lease.counter, claim)

    def renew(self, lease: Lease, claim: LeaseClaim) -> None:
        """Change the counter of a lease that is ours, so that no other worker takes it for abandoned.

        Raises:
            LeaseLost: another worker has the lease, or has changed its counter.
        """
        values = {":seen": {"N": str(lease.counter)}, ":one": {"N": "1"}, **_of(claim)}
        condition = f"leaseCounter = :seen AND {_MINE} AND {_NOT_HANDED_OVER}"
        seen = self._update(lease.shard, "ADD leaseCounter :one", condition, values)
        if seen is None or self._is_repeated(seen, lease.counter, claim):
            return
        if not seen:
            msg = f"The lease of shard {lease.shard} in table {self.name} was deleted. Start the job again."
            raise LeaseLost(msg)
        raise self._lost(self._lease(seen))

    def release(self, shard: str, claim: LeaseClaim) -> bool:
        """Give up a lease that is ours; whether it was."""
        values = {":one": {"N": "1"}, **_of(claim)}
        update = f"ADD leaseCounter :one REMOVE {rows.OWNER}, {rows.CLAIM}"
        return self._update(shard, update, _MINE, values) is None

    def evict(self, lease: Lease) -> bool:
        """Take the owner from a lease that is as it was seen; whether it still was."""
        values = {":seen": {"N": str(lease.counter)}, ":one": {"N": "1"}}
        update = f"ADD leaseCounter :one REMOVE {rows.OWNER}, {rows.CHECKPOINT_OWNER}, {rows.CLAIM}"
        return self._update(lease.shard, update, "leaseCounter = :seen", values) is None

    def _is_repeated(self, seen: rows.LeaseRow, counter: int, claim: LeaseClaim) -> bool:
        """Whether a write that failed had been made: its answer was lost, and it was sent again."""
        if not seen:
            return False
        lease = self._lease(seen)
        return (lease.owner, lease.claim, lease.counter) == (claim.owner, claim.process, counter + 1)

    # ---- requests

    def _key(self, shard: str) -> str:
        return shard if self._stream is None else f"{self._stream}:{shard}"

    def _update(self, shard: str, update: str, condition: str, values: _Values) -> rows.LeaseRow | None:
        return self._write(
            "update_item",
            Key={rows.KEY: {"S": self._key(shard)}},
            UpdateExpression=update,
            ConditionExpression=condition,
            ExpressionAttributeValues=values,
        )

    def _write(self, request: str, **arguments: object) -> rows.LeaseRow | None:
        """Make a conditional write; the row if the condition failed, which is empty if there is none."""
        try:
            getattr(self._client, request)(
                TableName=self.name, ReturnValuesOnConditionCheckFailure="ALL_OLD", **arguments
            )
        except Exception as error:
            if _code(error) != _CONDITION_FAILED:
                raise self._meaning(error) from error
            response: Any = error.response  # type: ignore[attr-defined] # of a ClientError
            return response.get("Item", {})  # type: ignore[no-any-return]
        return None

    def _call(self, request: str, **arguments: object) -> Any:
        try:
            return getattr(self._client, request)(**arguments)
        except Exception as error:
            raise self._meaning(error) from error

    def _meaning(self, error: Exception) -> Exception:
        return lease_error(error, self.name) or error

    def _lease(self, row: rows.LeaseRow) -> Lease:
        lease = parse_row(row, self.name)
        if lease is None:
            msg = f"Row {row.get(rows.KEY)} of table {self.name} is no lease any more."
            raise InternalError(msg)
        return lease

    def _lost(self, lease: Lease) -> LeaseLost:
        if lease.holder is None:
            return LeaseLost(
                f"The lease of shard {lease.shard} in table {self.name} was taken away. Look which worker did that, "
                "and start the job again."
            )
        return LeaseLost(
            f"The lease of shard {lease.shard} in table {self.name} belongs to worker {lease.holder!r}. Stop that "
            "worker, or give this job another table."
        )


def _of(claim: LeaseClaim | None) -> dict[str, Mapping[str, Any]]:
    return {} if claim is None else {":owner": {"S": claim.owner}, ":claim": {"S": claim.process}}


def _code(error: Exception) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code")) if isinstance(response, Mapping) else ""
