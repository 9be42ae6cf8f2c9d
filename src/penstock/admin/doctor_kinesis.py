"""What ``penstock doctor`` asks of Kinesis and its lease tables: are they there, and may this job use them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.admin.doctor_checks import Finding, fail, ok, warn
from penstock.connectors.kinesis.client import describe, is_of_boto, list_shards, new_client, source_error
from penstock.connectors.kinesis.config import LeaseMode, LeaseOptions
from penstock.connectors.kinesis.lease_table import LeaseTable, new_dynamo_client
from penstock.errors import LeaseTableInvalid, PenstockError

if TYPE_CHECKING:
    from penstock.connectors.kinesis.client import KinesisClient, StreamAddress
    from penstock.connectors.kinesis.lease_rows import Lease
    from penstock.connectors.kinesis.lease_table import TableAddress

_HOUR_MS = 3_600_000
_SHOWN = 3
"""Workers that a finding names."""


def look_at_stream(name: str, address: StreamAddress, *, client: KinesisClient | None = None) -> Finding:
    """Check that the stream of a source or sink answers, with the credentials that the job would have.

    Args:
        name: of the finding.
        address: the stream.
        client: of boto3; made if there is none.
    """
    what = f"kinesis {address.stream} at {address.place}"
    try:
        client = client if client is not None else new_client(address)
        try:
            summary, listing = describe(client, address), list_shards(client, address)
        except Exception as error:
            if not is_of_boto(error):
                raise
            raise source_error(error, address) from error
    except PenstockError as error:
        return fail(name, f"{what}: {error}", "fix that first: a start fails, or waits for it")
    open = sum(not shard.is_closed for shard in listing.values())
    kept = summary.retention // _HOUR_MS
    found = f"{what}: {summary.status}, {open} open shard{'' if open == 1 else 's'}, records are kept for {kept} h"
    if summary.status not in ("ACTIVE", "UPDATING"):
        return warn(name, found, "wait until it is ACTIVE, or make it again")
    return ok(name, found)


def look_at_leases(options: LeaseOptions, *, client: Any = None) -> Iterator[Finding]:
    """Check credentials and the lease table; nothing for a source that uses none. Changes nothing.

    Args:
        options: how a source uses the table.
        client: of DynamoDB; one of boto3 by default.
    """
    address = options.address
    if address is None or options.mode is LeaseMode.NONE:
        return
    name = f"lease table {address.table}"
    if client is None:
        found, client = _connect(name, address)
        yield from found
    if client is not None:
        yield from _ask(name, LeaseTable(client, address.table, stream=address.stream), options.mode)


def _connect(name: str, address: TableAddress) -> tuple[list[Finding], Any]:
    """What was found on the way to a client, and the client, if there is one."""
    try:
        import boto3
    except ImportError:
        return [fail(name, "its client library is not installed", "pip install 'penstock[kinesis]'")], None
    found = []
    if "aws_access_key_id" not in address.options:
        finding, was_found = credentials_of(boto3.session.Session().get_credentials())
        found.append(finding)
        if not was_found:
            return found, None
    try:
        return found, new_dynamo_client(address)
    except PenstockError as error:
        return [*found, fail(name, str(error), "correct the arguments of the source")], None


def _ask(name: str, table: LeaseTable, mode: LeaseMode) -> Iterator[Finding]:
    try:
        leases = table.read() if table.exists() else None
    except LeaseTableInvalid as error:
        yield fail(name, str(error), "grant these rights to the job's credentials, or name another table")
    except PenstockError as error:
        yield fail(name, str(error), "look whether this machine can reach the service in that region")
    else:
        if leases is None:
            yield _missing(name, mode)
        else:
            yield from owners_of(name, leases, mode)


def credentials_of(credentials: Any) -> tuple[Finding, bool]:
    """Return the finding about what boto3 found, never a key of it, and whether it found something."""
    name = "credentials of AWS"
    if credentials is None:
        fix = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the machine a role"
        return fail(name, "boto3 finds none", fix), False
    return ok(name, f"found by {credentials.method}"), True


def _missing(name: str, mode: LeaseMode) -> Finding:
    if mode is LeaseMode.IMPORT:
        return fail(name, "is not there", "name the table of a KCL application, which has the application's name")
    return warn(name, "is not there", "check its name: the job creates it, as a KCL application would")


def owners_of(name: str, leases: dict[str, Lease], mode: LeaseMode) -> Iterator[Finding]:
    """Yield what the leases' owners mean for a job that uses the table in this mode."""
    many = "1 lease" if len(leases) == 1 else f"{len(leases)} leases"
    workers = Counter(lease.holder for lease in leases.values() if lease.holder and lease.claim is None)
    if mode is LeaseMode.IMPORT and not leases:
        yield fail(name, "has no leases of this stream", "name the table of the KCL application that read it")
    elif not workers:
        yield ok(name, many)
    else:
        shown = ", ".join(worker for worker, _ in workers.most_common(_SHOWN))
        more = f" and {len(workers) - _SHOWN} more" if len(workers) > _SHOWN else ""
        found = f"{many}, {sum(workers.values())} of them with a worker of the KCL: {shown}{more}"
        fixes = {
            LeaseMode.EXPORT: "stop the KCL application: nothing is exported to a lease that a worker renews",
            LeaseMode.OWN: "stop the KCL application: a start is refused while a worker renews a lease",
            LeaseMode.IMPORT: "stop the KCL application: an import is refused while a worker renews a lease",
        }
        yield warn(name, found, f"{fixes[mode]}; a worker that has stopped does not matter")
