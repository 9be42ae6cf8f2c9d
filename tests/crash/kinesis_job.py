"""The job that ``torture-kinesis`` kills: a stream, decoded, windows, files; its positions go to a lease table.

Its client of Kinesis is refused for too many reads, and loses its iterators: once at first, then by chance. ``trouble``
beside the job has a line for each. Mistakes on purpose, the negative controls: ``EXPORTED_EARLY=1`` exports what is
read and not yet in a checkpoint, ``COMPARED_AS_TEXT=1`` compares the checkpoints of leases as text.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from botocore.exceptions import ClientError

import penstock as ps
from crash.torture_pipeline import SCHEMA, publish, run_without_interruption, sink
from penstock.connectors.kinesis import lease_table, reader

URL, STREAM, TABLE_URL, TABLE = "KINESIS_JOB_URL", "KINESIS_JOB_STREAM", "KINESIS_JOB_TABLE_URL", "KINESIS_JOB_TABLE"
MODE = "KINESIS_JOB_MODE"
KEYS = {"aws_access_key_id": "000000000000", "aws_secret_access_key": ps.kinesis.env("KINESIS_JOB_SECRET")}

THROTTLED, EXPIRED = "ProvisionedThroughputExceededException", "ExpiredIteratorException"


class Troubled:
    """A client that now and then answers as Kinesis does to those who ask too often, or too late."""

    def __init__(self, client):
        self._client = client
        self._refused = set()

    def __getattr__(self, name):
        return getattr(self._client, name)

    def get_shard_iterator(self, **arguments):
        self._refuse("GetShardIterator", THROTTLED, 0.1)
        return self._client.get_shard_iterator(**arguments)

    def get_records(self, **arguments):
        self._refuse("GetRecords", THROTTLED, 0.1)
        self._refuse("GetRecords", EXPIRED, 0.1)
        return self._client.get_records(**arguments)

    def _refuse(self, request, code, share):
        if code not in self._refused or random.random() < share:  # on a slow machine a run has few requests
            self._refused.add(code)
            with Path("trouble").open("a", encoding="ascii") as notes:
                notes.write(f"{code}\n")
            raise ClientError({"Error": {"Code": code, "Message": "refused by chance"}}, request)


_new_client = reader.new_client
reader.new_client = lambda address: Troubled(_new_client(address))

if os.environ.get("EXPORTED_EARLY"):
    _position = reader.KinesisReader.position

    def position(self):
        self._leases.checkpoint_completed(self._position.shards)
        return _position(self)

    reader.KinesisReader.position = position

if os.environ.get("COMPARED_AS_TEXT"):
    lease_table._FORWARD = "(checkpoint < :checkpoint OR :length < :zero OR :horizon = :latest OR :time = :sub)"


@ps.pipeline("torture")
def job(p: ps.Pipeline) -> None:
    source = ps.kinesis.Source(
        os.environ[STREAM],
        endpoint_url=os.environ[URL],
        region="us-east-1",
        poll_every="100 ms",
        discover_every="1 second",
        max_rows_per_batch=500,  # what gathers while nobody reads makes several batches, and cuts aggregates
        options=KEYS,
        leases=ps.kinesis.leases(
            os.environ[TABLE],
            mode=os.environ.get(MODE, "export"),
            endpoint_url=os.environ[TABLE_URL],
            interval="1 second",
            failover="2 seconds",
        ),
    )
    parsed, bad = p.read("lines", source).parse_json("data", SCHEMA, on_error="split")
    # The shard stays, so that each has a watermark of its own: none makes the rows of another late.
    publish(parsed.select("shard", "id", "user", "amount", "at"), bad.select("CAST(data AS STRING) AS value"))
    parsed.select("id", "user").write("order-out", sink("order"))


if __name__ == "__main__":
    run_without_interruption(job, sys.argv[1], sys.argv[2])
