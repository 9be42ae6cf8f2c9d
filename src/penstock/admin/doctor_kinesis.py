"""What ``penstock doctor`` asks of Kinesis: is the stream there, and may this job use it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.admin.doctor_checks import Finding, fail, ok, warn
from penstock.connectors.kinesis.client import describe, is_of_boto, list_shards, new_client, source_error
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.connectors.kinesis.client import KinesisClient, StreamAddress

_HOUR_MS = 3_600_000


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
