"""The command ``penstock import kcl``: where a KCL application stands, as the start of a job."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from penstock.cli.options import AsJson, Flag, seconds_of
from penstock.cli.output import CommandOutput, ExitCode, UsageError
from penstock.cli.words import plain_table
from penstock.clock import format_time
from penstock.connectors.kinesis.lease_import import encode_start, import_start
from penstock.connectors.kinesis.lease_table import LeaseTable, TableAddress, new_dynamo_client
from penstock.connectors.kinesis.positions import (
    TRIM_HORIZON,
    After,
    AtHorizon,
    AtTime,
    ShardPosition,
    position_to_json,
)

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.connectors.kinesis.lease_import import ImportedStart

SCHEMA: Final = "penstock.import.kcl/1"
"""The schema of the JSON document: see docs/json.md."""


def import_kcl(  # noqa: PLR0913 - the options of the command
    table: Annotated[str, Parameter(help="The application's lease table, which has the application's name.")],
    /,
    *,
    out: Annotated[str | None, Parameter(help="A file for the start, to be given to the source.")] = None,
    region: Annotated[str | None, Parameter(help="Region of the table; by default the one that boto3 finds.")] = None,
    endpoint_url: Annotated[str | None, Parameter(help="Address of another DynamoDB than that of AWS.")] = None,
    stream: Annotated[
        str | None, Parameter(help="account:name:creation of the stream, if the application reads several.")
    ] = None,
    at: Annotated[
        str | None, Parameter(help="Where to begin in shards without a number: TRIM_HORIZON or a time.")
    ] = None,
    failover: Annotated[str, Parameter(help="The application's failover time; twice as long is observed.")] = "10s",
    force: Annotated[bool, Flag, Parameter(help="Import although the application runs: rows come twice.")] = False,
    as_json: AsJson = False,
    output: CommandOutput,
) -> int:
    """Read the positions of a KCL application, and print them or write them to a file.

    Raises:
        PenstockError: the application runs, or its table cannot be read or does not say where to begin.
    """
    otherwise = None if at is None else _place(at)
    micros = int((seconds_of(failover, "--failover") or 0) * 1_000_000)
    client = new_dynamo_client(TableAddress(table=table, region=region, endpoint_url=endpoint_url))
    leases = LeaseTable(client, table, stream=stream)
    if not force:
        output.note(
            f"penstock: looking whether the application {table} runs; that takes {2 * micros / 1e6:g} s at most …"
        )
    start = import_start(leases, failover=micros, force=force, otherwise=otherwise, stream=stream)
    if out is not None:
        _write(out, encode_start(start))
    for note in start.notes:
        output.note(f"penstock: {note}")
    if as_json:
        shards = [{"shard": shard, "position": position_to_json(at)} for shard, at in start.positions.items()]
        output.document(SCHEMA, table=table, stream=stream, path=out, shards=shards, warnings=list(start.notes))
        return ExitCode.ENDED
    output.result(_table(start))
    if out is None:
        output.note("penstock: nothing was written; --out start.json makes a file for a source")
    else:
        output.note(f"penstock: the source begins there with start=ps.kinesis.imported({out!r})")
    return ExitCode.ENDED


def _place(text: str) -> ShardPosition:
    if text == TRIM_HORIZON:
        return AtHorizon()
    try:
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment.timestamp() < 0:
        msg = f"--at {text} is no place in a shard. Write TRIM_HORIZON, or a time such as 2026-01-31T00:00:00Z."
        raise UsageError(msg)
    return AtTime(int(moment.timestamp() * 1_000))


def _write(path: str, data: bytes) -> None:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        msg = f"--out {path} cannot be written: {error.strerror or error}. Name a file in a folder that exists."
        raise UsageError(msg) from error


def _table(start: ImportedStart) -> Table:
    table = plain_table(("shard", "left"), ("begins", "left"))
    for shard, position in start.positions.items():
        table.add_row(shard, _words(position))
    return table


def _words(position: ShardPosition) -> str:
    match position:
        case AtHorizon():
            return "at its first record"
        case AtTime(ms):
            return f"at {format_time(ms * 1_000)}"
        case After(seq, sub):
            return f"after {seq}" + (f", sub-sequence {sub}" if sub else "")
    return "not: it is finished"
