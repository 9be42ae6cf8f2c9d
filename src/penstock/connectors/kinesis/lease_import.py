"""Where a KCL application stands, as the start of a job: read from its lease table, and matched with the stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from penstock.clock import sleep
from penstock.codec import StrictFields, dump_sealed, load_sealed
from penstock.connectors.kinesis.checkpointer import retry_random
from penstock.connectors.kinesis.lease_holder import OBSERVED_FAILOVERS
from penstock.connectors.kinesis.lease_rows import Lease
from penstock.connectors.kinesis.lease_table import LeaseTable
from penstock.connectors.kinesis.positions import (
    After,
    AtHorizon,
    Finished,
    ShardPosition,
    position_from_json,
    position_to_json,
)
from penstock.errors import CheckpointUnreadable, LeaseLost, LeaseTableInvalid

FAILOVER: Final = 10_000_000
"""The KCL's default failover time, in microseconds: a worker renews its leases three times in it."""
_FORMAT: Final = 1
_SHOWN: Final = 5
"""Shards that a message names."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedStart:
    """The positions of a KCL application.

    Attributes:
        table: where they were read.
        stream: ``account:name:creation`` of the stream, in a table of several.
        positions: of each shard that has a lease. The records up to them were processed.
        notes: what a person should know about them, as sentences.
    """

    table: str
    stream: str | None = None
    positions: Mapping[str, ShardPosition]
    notes: tuple[str, ...] = ()


def import_start(
    table: LeaseTable,
    *,
    failover: int = FAILOVER,
    force: bool = False,
    otherwise: ShardPosition | None = None,
    stream: str | None = None,
    pause: Callable[[float], None] = sleep,
) -> ImportedStart:
    """Read the positions of a KCL application that does not run.

    If a lease has an owner, the table is read twice, two failover times apart: a worker that runs renews its leases
    meanwhile. An owner alone proves nothing, since the KCL leaves its name in the rows when it stops.

    Args:
        table: the lease table.
        failover: the application's failover time, in microseconds.
        force: read once, whether the application runs or not.
        otherwise: where to begin in shards whose lease has no position: ``LATEST``, of which nothing was processed,
            and ``AT_TIMESTAMP``, whose time is in the application's configuration.
        stream: the one that ``table`` was made for; it is written down.
        pause: called with the seconds between the two looks.

    Raises:
        LeaseLost: a worker renews a lease.
        LeaseTableInvalid: there is no such table, it has no leases, or a lease has no position.
        ConnectorError: the table does not answer.
    """
    leases = retry_random(table.read, pause=pause)
    if not leases:
        raise _nothing(table, retry_random(table.streams, pause=pause))
    if not force and any(lease.holder is not None for lease in leases.values()):
        pause(OBSERVED_FAILOVERS * failover / 1_000_000)
        before, leases = leases, retry_random(table.read, pause=pause)
        _refuse_running(table, before, leases)
    positions, unknown, notes = {}, [], []
    for shard, lease in sorted(leases.items()):
        position = lease.position or otherwise
        if position is None:
            unknown.append(f"{shard} ({lease.checkpoint.checkpoint})")
            continue
        positions[shard] = position
        if lease.position is None:
            notes.append(f"{shard} has {lease.checkpoint.checkpoint}, and begins where you said.")
        if lease.has_pending:
            notes.append(f"{shard} has a prepared checkpoint, which was never made and is left out.")
    if unknown:
        msg = (
            f"Table {table.name} does not say where to begin in {_list(unknown)}. Say it yourself, with penstock "
            "import kcl TABLE --at TRIM_HORIZON, or with the time at which the application was to start instead. A "
            "source with mode 'import' takes it as otherwise=."
        )
        raise LeaseTableInvalid(msg)
    return ImportedStart(table=table.name, stream=stream, positions=positions, notes=tuple(notes))


def _nothing(table: LeaseTable, streams: list[str]) -> LeaseTableInvalid:
    if streams:
        return LeaseTableInvalid(
            f"Table {table.name} has leases of several streams: {_list(streams)}. Name one, with penstock import kcl "
            "TABLE --stream STREAM, or a source with ps.kinesis.leases(TABLE, stream=STREAM)."
        )
    return LeaseTableInvalid(
        f"Table {table.name} has no leases. Name the table of a KCL application, which has the application's name."
    )


def _refuse_running(table: LeaseTable, before: Mapping[str, Lease], now: Mapping[str, Lease]) -> None:
    for shard in sorted({*before, *now}):
        old, new = before.get(shard), now.get(shard)
        if old is None or new is None or old.counter != new.counter:
            worker = next((lease.holder for lease in (new, old) if lease is not None and lease.holder), None)
            who = "A worker" if worker is None else f"Worker {worker!r}"
            msg = (
                f"{who} has written the lease of shard {shard} in table {table.name} just now: the application runs. "
                "Stop it, and import again: what it processes from now on would be processed twice. If that does not "
                "matter, use penstock import kcl TABLE --force, or force=True of a source with mode 'import'."
            )
            raise LeaseLost(msg)


def match_listing(
    start: Mapping[str, ShardPosition],
    parents: Mapping[str, tuple[str, ...]],
    *,
    otherwise: ShardPosition | None = None,
) -> dict[str, ShardPosition]:
    """The position of each shard of a stream, from those of the shards that have a lease.

    The KCL makes a lease for a child when its parent ends, at the child's first record, and deletes the lease of a
    parent once its children are being read. What is left without a lease is a shard that the application never saw.

    Args:
        start: positions by shard.
        parents: all shards that the stream lists now, with their parents.
        otherwise: where to begin in a shard that the application never saw.

    Raises:
        LeaseTableInvalid: there is such a shard, and ``otherwise`` is ``None``; or the application was not done with a
            shard that the stream does not list.

    >>> match_listing({"b": After(5)}, {"a": (), "b": ("a",), "c": ("b",)})
    {'a': Finished(), 'b': After(seq=5, sub=0), 'c': AtHorizon()}
    """
    gone = [shard for shard, at in start.items() if shard not in parents and not isinstance(at, Finished)]
    if gone:
        msg = (
            f"The KCL application was not done with {_list(sorted(gone))}, and the stream does not list that any more. "
            "Either the lease table is that of another stream: name the right one. Or the records are kept no longer: "
            "delete those rows of the table to go on without them, and import again."
        )
        raise LeaseTableInvalid(msg)
    children: dict[str, list[str]] = {}
    for shard, its_parents in parents.items():
        for parent in its_parents:
            children.setdefault(parent, []).append(shard)
    found: dict[str, ShardPosition] = {}
    unknown = []
    for shard in sorted(parents, reverse=True):  # children have higher numbers than their parents
        below = [found.get(child) for child in children.get(shard, ())]
        if shard in start:
            found[shard] = start[shard]
        elif below and all(isinstance(position, After | Finished) for position in below):
            found[shard] = Finished()
        elif parents[shard]:
            found[shard] = AtHorizon()
        elif otherwise is not None:
            found[shard] = otherwise
        else:
            unknown.append(shard)
    if unknown:
        msg = (
            f"The KCL application has no lease of {_list(sorted(unknown))}, so it never saw what the stream has there. "
            "Let the application list the stream once more, or say where to begin there, as in "
            "leases=ps.kinesis.leases(TABLE, mode='import', otherwise='earliest')."
        )
        raise LeaseTableInvalid(msg)
    return dict(sorted(found.items()))


# ---- a file of it ----------------------------------------------------------------------------------------------------


def encode_start(start: ImportedStart) -> bytes:
    """The start as a file has it, with its checksum."""
    positions = {shard: position_to_json(position) for shard, position in sorted(start.positions.items())}
    return dump_sealed(
        {"format": _FORMAT, "table": start.table, "stream": start.stream, "positions": positions},
    )


def decode_start(data: bytes, where: str) -> ImportedStart:
    """The inverse of ``encode_start``, without notes.

    Raises:
        CheckpointUnreadable: the bytes are not what was written.
        StateIncompatible: another version of penstock wrote a position.
    """
    with StrictFields(load_sealed(data, where), where) as fields:
        if fields.whole("format") != _FORMAT:
            msg = f"{where}: The file is of another format than {_FORMAT}. Import the table again."
            raise CheckpointUnreadable(msg)
        table, stream, positions = fields.text("table"), fields.text_or_none("stream"), fields.take("positions")
    if not isinstance(positions, dict):
        msg = f"{where}: Field 'positions' must be an object. Import the table again."
        raise CheckpointUnreadable(msg)
    read = {shard: position_from_json(position, shard) for shard, position in positions.items()}
    return ImportedStart(table=table, stream=stream, positions=read)


def imported(path: str | os.PathLike[str]) -> ImportedStart:
    """Return the start that ``penstock import kcl`` wrote, for ``ps.kinesis.Source(..., start=...)``.

    A job begins there if it has no checkpoint. Shards are matched with those that the stream lists then.

    Args:
        path: of the file.

    Raises:
        CheckpointUnreadable: there is no such file, or it was changed.
        StateIncompatible: another version of penstock wrote it.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        msg = f"The start {os.fspath(path)} cannot be read: {error}. Make it with penstock import kcl TABLE --out FILE."
        raise CheckpointUnreadable(msg) from error
    return decode_start(data, os.fspath(path))


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
