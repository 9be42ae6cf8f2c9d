"""Staged rows of several shards: each shard's files have its rows, in the order in which they came."""

from __future__ import annotations

import pyarrow.parquet as pq

from penstock.connectors import staging
from penstock.connectors.kafka.records import RecordParts
from penstock.filesystem.local import LocalFileSystem


def test_rows_of_a_shard_stay_in_their_order_and_those_of_a_key_in_one_shard(spark, tmp_path):
    frame = spark.range(60_000, numPartitions=2).selectExpr("id", "CAST(id * 7 % 1000 AS STRING) AS user")
    columns = RecordParts(format="json", topic="t", key=("user",))
    records = columns.in_shards(columns.records(frame), 3)
    url = f"file://{tmp_path}/staged"
    staging.write_staged(records, url)

    shards: dict[bytes, set[int]] = {}
    rows = 0
    for path in sorted(LocalFileSystem(tmp_path).list("staged")):
        if not path.endswith(".parquet"):
            continue
        table = pq.read_table(tmp_path / path, partitioning=None)
        assert table.column_names == ["value", "key"]
        ids = [int(value.split(b",")[0].split(b":")[1]) for value in table["value"].to_pylist()]
        assert ids == sorted(ids), path
        rows += len(ids)
        for key in table["key"].to_pylist():
            shards.setdefault(key, set()).add(staging.shard_of(path))
    assert rows == 60_000
    assert {len(each) for each in shards.values()} == {1}
    assert set().union(*shards.values()) == {0, 1, 2}


def test_rows_without_a_key_are_dealt_out_and_those_of_a_partition_stay_together(spark):
    frame = spark.range(100).selectExpr("id", "CAST(IF(id < 50, NULL, 7) AS INT) AS place")
    plain = RecordParts(format="json", topic="t")
    dealt = plain.in_shards(plain.records(frame), 4).groupBy(staging.SHARD).count().collect()
    assert {row[0] for row in dealt} == {0, 1, 2, 3}
    placed = RecordParts(format="json", topic="t", partition="place")
    found = placed.in_shards(placed.records(frame), 4).where("partition = 7").select(staging.SHARD).distinct()
    assert found.count() == 1
