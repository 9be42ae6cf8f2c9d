"""How far a shard was read: as values in order, as JSON in a checkpoint, and as the two columns of a lease table.

Sequence numbers are integers. Their texts have different lengths, and as texts "9" comes after "10".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from penstock.errors import StateIncompatible
from penstock.handles import Json

MAX_DIGITS: Final = 128
"""Most digits of a sequence number. Kinesis promises at most 128; today's have 56."""
_DIGITS: Final = re.compile(r"0|[1-9][0-9]*")


# ---- positions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AtHorizon:
    """Nothing was read; the next record is the oldest one that the shard still has."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """Nothing was read; the next record is the first one that arrived at ``ms`` since the epoch or later."""

    ms: int


@dataclass(frozen=True, slots=True)
class After:
    """The record ``sub`` of the aggregate ``seq`` is the last one read; ``sub`` is 0 where nothing is aggregated."""

    seq: int
    sub: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """All records of a closed shard were read."""


ShardPosition: TypeAlias = AtHorizon | AtTime | After | Finished


def order(position: ShardPosition) -> tuple[int, int, int]:
    """A key that orders the positions of one shard, as the KCL does.

    >>> order(After(9)) < order(After(10)) < order(After(10, 1)) < order(Finished())
    True
    >>> order(AtTime(5)) < order(AtTime(6)) < order(AtHorizon()) < order(After(0))
    True
    """
    match position:
        case AtTime(ms):
            return 0, ms, 0
        case AtHorizon():
            return 1, 0, 0
        case After(seq, sub):
            return 3, seq, sub
        case Finished():
            return 4, 0, 0


def parse_sequence_number(text: str) -> int | None:
    """The number that ``text`` is; ``None`` if it is no sequence number.

    >>> parse_sequence_number("49590338271490256608559692538361571095921575989136588898")
    49590338271490256608559692538361571095921575989136588898
    >>> parse_sequence_number("TRIM_HORIZON"), parse_sequence_number("007"), parse_sequence_number("-1")
    (None, None, None)
    """
    return int(text) if len(text) <= MAX_DIGITS and _DIGITS.fullmatch(text) else None


# ---- JSON ------------------------------------------------------------------------------------------------------------


def position_to_json(position: ShardPosition) -> dict[str, Json]:
    """The position as a checkpoint holds it. A sequence number is text: other readers of JSON would round it.

    >>> position_to_json(After(4959, 2))
    {'at': 'after', 'seq': '4959', 'sub': 2}
    """
    match position:
        case AtHorizon():
            return {"at": "horizon"}
        case AtTime(ms):
            return {"at": "time", "ms": ms}
        case After(seq, sub):
            return {"at": "after", "seq": str(seq), "sub": sub}
        case Finished():
            return {"at": "finished"}


def position_from_json(value: object, shard: str) -> ShardPosition:
    """The inverse of ``position_to_json``; ``shard`` is named in messages.

    Raises:
        StateIncompatible: it is not exactly what ``position_to_json`` returns.
    """
    match value:
        case {"at": "horizon", **rest} if not rest:
            return AtHorizon()
        case {"at": "finished", **rest} if not rest:
            return Finished()
        case {"at": "time", "ms": ms, **rest} if not rest and _is_count(ms):
            return AtTime(ms)
        case {"at": "after", "seq": str(text), "sub": sub, **rest} if not rest and _is_count(sub):
            seq = parse_sequence_number(text)
            if seq is not None:
                return After(seq, sub)
    msg = (
        f"The position {value!r} of shard {shard} cannot be read. It was written by another version of penstock. Start "
        "that version, or give the source a uid of its own."
    )
    raise StateIncompatible(msg)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


# ---- lease tables ----------------------------------------------------------------------------------------------------

TRIM_HORIZON: Final = "TRIM_HORIZON"
LATEST: Final = "LATEST"
AT_TIMESTAMP: Final = "AT_TIMESTAMP"
SHARD_END: Final = "SHARD_END"
_SENTINELS: Final = {AT_TIMESTAMP: 0, TRIM_HORIZON: 1, LATEST: 2, SHARD_END: 4}


class LeaseCheckpoint(NamedTuple):
    """The columns ``checkpoint`` and ``checkpointSubSequenceNumber`` of a lease: the last record that was processed.

    Attributes:
        checkpoint: digits, or one of ``TRIM_HORIZON``, ``LATEST``, ``AT_TIMESTAMP`` and ``SHARD_END``.
        sub: the record within an aggregate, otherwise 0.
    """

    checkpoint: str
    sub: int


def to_lease(position: ShardPosition) -> LeaseCheckpoint:
    """The position as a lease has it. A lease has no column for the time of ``AtTime``.

    >>> to_lease(After(4959, 2)), to_lease(Finished())
    (LeaseCheckpoint(checkpoint='4959', sub=2), LeaseCheckpoint(checkpoint='SHARD_END', sub=0))
    """
    match position:
        case AtHorizon():
            return LeaseCheckpoint(TRIM_HORIZON, 0)
        case AtTime():
            return LeaseCheckpoint(AT_TIMESTAMP, 0)
        case After(seq, sub):
            return LeaseCheckpoint(str(seq), sub)
        case Finished():
            return LeaseCheckpoint(SHARD_END, 0)


def from_lease(lease: LeaseCheckpoint, *, ms: int | None = None) -> ShardPosition | None:
    """The position that a lease means; ``None`` if the lease does not say where that is.

    ``LATEST`` means that nothing was read of a shard whose end then is not recorded. ``AT_TIMESTAMP`` means the time
    that the application was configured with, which no row holds.

    Args:
        lease: the two columns.
        ms: the time that ``AT_TIMESTAMP`` means, if it is known: milliseconds since the epoch.

    Raises:
        ValueError: ``lease`` is not a checkpoint.

    >>> from_lease(LeaseCheckpoint("4959", 2)), from_lease(LeaseCheckpoint("AT_TIMESTAMP", 0), ms=5)
    (After(seq=4959, sub=2), AtTime(ms=5))
    """
    match lease.checkpoint:
        case "TRIM_HORIZON":
            return AtHorizon()
        case "SHARD_END":
            return Finished()
        case "AT_TIMESTAMP":
            return None if ms is None else AtTime(ms)
        case "LATEST":
            return None
    rank, seq, sub = lease_order(lease)
    assert rank == 3  # noqa: PLR2004 - all other ranks are sentinels
    return After(seq, sub)


def lease_order(lease: LeaseCheckpoint) -> tuple[int, int, int]:
    """A key that orders the checkpoints of one shard: the one of ``order``, with a place for ``LATEST``.

    Raises:
        ValueError: ``lease`` is not a checkpoint.

    >>> lease_order(LeaseCheckpoint("LATEST", 0)) < lease_order(LeaseCheckpoint("99", 0))
    True
    >>> lease_order(LeaseCheckpoint("99", 0)) < lease_order(LeaseCheckpoint("100", 0))
    True
    """
    if lease.checkpoint in _SENTINELS:
        return _SENTINELS[lease.checkpoint], 0, 0
    seq = parse_sequence_number(lease.checkpoint)
    if seq is None or lease.sub < 0:
        msg = f"{lease.checkpoint!r} with sub-sequence number {lease.sub} is not the checkpoint of a lease."
        raise ValueError(msg)
    return 3, seq, lease.sub
