"""The rows of a lease table: what the KCL writes, what penstock adds, and how a row becomes a ``Lease``.

A table may have other rows beside leases, such as the KCL's elected leader, and the leases of several streams.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from penstock.connectors.kinesis.positions import (
    AT_TIMESTAMP,
    AtTime,
    LeaseCheckpoint,
    ShardPosition,
    from_lease,
    lease_order,
    to_lease,
)
from penstock.errors import LeaseTableInvalid

LeaseRow: TypeAlias = Mapping[str, Mapping[str, Any]]
"""A row as DynamoDB has it: each attribute with its type, such as ``{"leaseCounter": {"N": "7"}}``."""

KEY: Final = "leaseKey"
OWNER: Final = "leaseOwner"
COUNTER: Final = "leaseCounter"
CHECKPOINT: Final = "checkpoint"
SUB: Final = "checkpointSubSequenceNumber"
SWITCHES: Final = "ownerSwitchesSinceCheckpoint"
CHECKPOINT_OWNER: Final = "checkpointOwner"
PARENTS: Final = "parentShardId"
CHILDREN: Final = "childShardIds"
FIRST_HASH: Final = "startingHashKey"
LAST_HASH: Final = "endingHashKey"
PENDING: Final = ("pendingCheckpoint", "pendingCheckpointSubSequenceNumber", "pendingCheckpointState")
ENTITY: Final = "entityType"
STREAM: Final = "streamName"
SHARD: Final = "shardId"
TIME: Final = "penstockTimestampMs"
"""Our own: the time that ``AT_TIMESTAMP`` means. The KCL keeps attributes that it does not know."""
CLAIM: Final = "penstockClaim"
"""Our own: which attempt and process of a job holds a lease; its owner names only the source."""
_OF_STREAM: Final = re.compile(r"(\d{12}:[^:]+:\d+):(.+)")


class LeasedShard(Protocol):
    """What a lease says of a shard."""

    @property
    def position(self) -> ShardPosition:
        """How far it was read."""
        ...

    @property
    def parents(self) -> tuple[str, ...]:
        """The shards that it was split or merged from."""
        ...

    @property
    def first_hash(self) -> int:
        """The first hash key of its records."""
        ...

    @property
    def last_hash(self) -> int:
        """The last one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One lease.

    Attributes:
        key: of the row.
        shard: the shard's id.
        stream: ``account:name:creation`` of its stream in a table of several streams, otherwise ``None``.
        checkpoint: the last record that was processed.
        counter: it changes with each renewal and each write.
        owner: the worker that has it, or had it last.
        checkpoint_owner: the worker that still checkpoints it while it is handed over.
        ms: the time that ``AT_TIMESTAMP`` means, if penstock wrote it.
        claim: the process that holds it for a job of penstock.
        has_pending: whether a worker had prepared a checkpoint; such a checkpoint was not made.
    """

    key: str
    shard: str
    stream: str | None = None
    checkpoint: LeaseCheckpoint
    counter: int
    owner: str | None = None
    checkpoint_owner: str | None = None
    ms: int | None = None
    claim: str | None = None
    has_pending: bool = False

    @property
    def position(self) -> ShardPosition | None:
        """Where the next reader goes on; ``None`` if the row does not say that."""
        return from_lease(self.checkpoint, ms=self.ms)

    @property
    def holder(self) -> str | None:
        """The worker whose checkpoints count now."""
        return self.checkpoint_owner or self.owner


def is_stream(text: object) -> bool:
    """Whether ``text`` names a stream as the rows of a table of several streams do.

    >>> is_stream("123456789012:orders:1700000000"), is_stream("orders")
    (True, False)
    """
    return isinstance(text, str) and _OF_STREAM.fullmatch(f"{text}:shard") is not None


def parse_row(row: LeaseRow, table: str) -> Lease | None:
    """The lease that a row is; ``None`` if it is none.

    Raises:
        LeaseTableInvalid: it is neither a lease nor another row that the KCL writes.
    """
    key = _text(row, KEY) or ""
    if _text(row, ENTITY) not in (None, "LEASE"):
        return None
    of_stream = _OF_STREAM.fullmatch(key)
    try:
        checkpoint = LeaseCheckpoint(_text(row, CHECKPOINT) or "", _number(row, SUB) or 0)
        lease_order(checkpoint)
        return Lease(
            key=key,
            shard=of_stream[2] if of_stream else key,
            stream=of_stream[1] if of_stream else None,
            checkpoint=checkpoint,
            counter=_number(row, COUNTER) or 0,
            owner=_text(row, OWNER),
            checkpoint_owner=_text(row, CHECKPOINT_OWNER),
            ms=_number(row, TIME) if checkpoint.checkpoint == AT_TIMESTAMP else None,
            claim=_text(row, CLAIM),
            has_pending=PENDING[0] in row,
        )
    except ValueError as error:
        msg = (
            f"Row {key!r} of table {table!r} is no lease of a KCL application: {error} Name the application's table, "
            "or delete the row."
        )
        raise LeaseTableInvalid(msg) from error


def new_row(key: str, shard: LeasedShard, at: ShardPosition, *, has_types: bool) -> dict[str, Mapping[str, Any]]:
    """The row of a lease that nobody owns yet.

    Args:
        key: of the row.
        shard: what is known of the shard.
        at: the position that the row has first.
        has_types: whether the rows of the table have an ``entityType``, as the KCL writes since 3.5.
    """
    checkpoint = to_lease(at)
    row: dict[str, Mapping[str, Any]] = {
        KEY: {"S": key},
        COUNTER: {"N": "0"},
        SWITCHES: {"N": "0"},
        CHECKPOINT: {"S": checkpoint.checkpoint},
        SUB: {"N": str(checkpoint.sub)},
        FIRST_HASH: {"S": str(shard.first_hash)},
        LAST_HASH: {"S": str(shard.last_hash)},
    }
    if shard.parents:
        row[PARENTS] = {"SS": sorted(shard.parents)}
    if isinstance(at, AtTime):
        row[TIME] = {"N": str(at.ms)}
    if has_types:
        row[ENTITY] = {"S": "LEASE"}
    if (of_stream := _OF_STREAM.fullmatch(key)) is not None:
        row[STREAM], row[SHARD] = {"S": of_stream[1]}, {"S": of_stream[2]}
    return row


def _text(row: LeaseRow, name: str) -> str | None:
    value = row.get(name, {}).get("S")
    return value if isinstance(value, str) else None


def _number(row: LeaseRow, name: str) -> int | None:
    value = row.get(name, {}).get("N")
    return None if value is None else int(value)
