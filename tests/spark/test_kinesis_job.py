"""A whole job over a stream: windows of aggregated and plain records, a split, a failure, each record counted once."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from kinesis_fake import MAX_HASH, FakeKinesis
from penstock.clock import SystemClock
from penstock.connectors.kinesis import reader
from penstock.connectors.kinesis.aggregation import UserRecord, pack
from penstock.errors import SourceUnavailable
from penstock.facts import Restarting, RowsRead
from spark.job_kit import Watch, published

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def order(number: int) -> UserRecord:
    minute, second = divmod(number, 60)
    row = {"id": number, "user": f"u{number % 3}", "at": f"2026-01-01T00:{minute:02d}:{second:02d}Z"}
    return UserRecord(str(row["user"]), None, json.dumps(row).encode())


def put(stream: FakeKinesis, first: int, last: int) -> None:
    """Put orders: three records, then an aggregate of two."""
    for number in range(first, last, 5):
        for record in map(order, range(number, number + 3)):
            stream.put(record.partition_key, record.data)
        stream.put("any", pack([order(number + 3), order(number + 4)]))


def test_each_record_is_counted_once_over_a_split_and_a_failure(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kinesis E1, 73: rows of a checkpoint that was not reached are read again, in the children too."""
    stream, watch, out = FakeKinesis(SystemClock(), shards=2), Watch(), tmp_path / "out"
    monkeypatch.setattr(reader, "new_client", lambda address: stream)

    @ps.pipeline("orders")
    def pipeline(p: ps.Pipeline) -> None:
        orders = p.read("in", ps.kinesis.Source("orders", poll_every="20 milliseconds", max_rows_per_batch=60))
        parsed = orders.parse_json("data", "id LONG, user STRING, at TIMESTAMP")
        timed = parsed.with_watermark("at", delay="10 seconds")
        counts = timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counts.write("out", ps.files.Sink(str(out), format="json"))

    put(stream, 0, 200)
    job = ps.Job(pipeline, state=tmp_path / "state", spark=spark, listener=watch, checkpoint_every="100ms")
    job.start()
    watch.wait_for(RowsRead)
    for shard in list(stream.open_shards()):
        stream.split(shard.id)
    put(stream, 200, 400)
    watch.wait_for(RowsRead, len(watch.of(RowsRead)) + 1)
    stream.errors["GetRecords"] = [SourceUnavailable("The line is dead.")]
    put(stream, 400, 600)
    watch.wait_for(Restarting)
    watch.wait_for(RowsRead, len(watch.of(RowsRead)) + 1)
    job.stop()
    for quarter in range(8):  # event time comes to an end in every shard
        end = {"id": -1, "user": "end", "at": "2026-01-01T01:00:00Z"}
        stream.put("end", json.dumps(end), hash_key=quarter * (MAX_HASH // 7))
    ps.Job(pipeline, state=tmp_path / "state", spark=spark, listener=watch).run(until="caught-up")

    rows = published(out)
    expected = Counter((f"u{number % 3}", number // 60) for number in range(600))
    assert Counter({(row["user"], int(row["window_start"][14:16])): row["n"] for row in rows}) == expected
    assert len(rows) == len(expected)
    assert not stream.errors["GetRecords"]
