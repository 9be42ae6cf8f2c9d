"""Keys and values that hashing, comparing and writing may get wrong, against Spark's own groupBy over all rows."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.state import parquet
from window_harness import Rig

pytestmark = pytest.mark.spark

SECOND = 1_000_000
LONG = "k" * 299
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", tz="UTC")),
        ("s", pa.string()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("m", pa.decimal128(38, 18)),
        ("b", pa.binary()),
        ("x", pa.int64()),
    ]
)
VALUES = {
    "s": [None, "", "a", "A", "a ", "ä", "Ä", LONG + "x", LONG + "X", LONG + "y"],
    "d": [None, 0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 0.1, 5e-324],
    "f": [None, 0.0, -0.0, math.nan, 1.5],
    "m": [None, *map(Decimal, ("0", "-0.000000000000000001", "99999999999999999999.999999999999999999", "1.10"))],
    "b": [None, b"", b"\x00", b"\xff" * 300, LONG.encode()],
    "x": [None, 0, -1, 2**62],
}
KEYS = {
    "text": "s",
    "text whatever its case": "s COLLATE UTF8_LCASE",
    "text whatever ends it": "s COLLATE UTF8_BINARY_RTRIM",
    "text in a language": "s COLLATE UNICODE_CI",
    "double": "d",
    "float": "f",
    "decimal": "m",
    "bytes": "b",
    "struct": "named_struct('d', d, 's', s)",
    "array": "array(d, CAST(f AS DOUBLE))",
}
MEASURES = {
    "of": "count(s)",
    "most": "max(s)",
    "least": "min(b)",
    "low": "min(d)",
    "high": "max(d)",
    "m_least": "min(m)",
    "m_most": "max(m)",
    "folded": "count(DISTINCT lower(s))",
    "doubles": "count(DISTINCT d)",
    "floats": "count(DISTINCT f)",
}
SHOWN = {
    "s COLLATE UTF8_LCASE": "lower(k)",
    "s COLLATE UTF8_BINARY_RTRIM": "rtrim(k)",
    "s COLLATE UNICODE_CI": "lower(k)",
}
"""Any of the texts that are alike may stand for all: how to tell them by what they have in common."""


def step(key: str) -> WindowAggregate:
    aggregates = (
        agg.count("s").alias("of"),
        agg.max("s").alias("most"),
        agg.min("b").alias("least"),
        agg.min("d").alias("low"),
        agg.max("d").alias("high"),
        agg.min("m").alias("m_least"),
        agg.max("m").alias("m_most"),
        agg.count_distinct("lower(s)").alias("folded"),
        agg.count_distinct("d").alias("doubles"),
        agg.count_distinct("f").alias("floats"),
    )
    return WindowAggregate(keys=(("k", key),), time="at", window=tumbling("10 seconds"), aggregates=aggregates)


def drawn(count: int) -> list[dict[str, object]]:
    chance = random.Random(11)
    return [
        {"at": chance.randrange(20) * SECOND, **{name: chance.choice(values) for name, values in VALUES.items()}}
        for _ in range(count)
    ]


def shown(frame, key: str) -> list[str]:
    """Rows as text; the two zeros and all NaN are each one value."""
    times = [f"CAST({name} AS STRING) AS {name}" for name in ("window_start", "window_end")]
    found = frame.selectExpr(f"{SHOWN.get(key, 'k')} AS k", *times, *MEASURES).collect()
    return sorted(repr(tuple(row)).replace("-0.0", "0.0") for row in found)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_what_is_one_key_to_spark_is_one_key_over_batches_merges_and_restores(spark, tmp_path, monkeypatch, key):
    monkeypatch.setattr(parquet, "ROWS_A_TASK", 10)  # several slices a layer
    every = drawn(120)
    rig = Rig(spark, step(key), SCHEMA, tmp_path)
    for start in range(0, 120, 20):
        rig.process(every[start : start + 20])
        if start == 40:
            rig.maintain()
            rig = rig.again(rig.checkpoint(), partitions=3)
    rig.maintain()
    rig = rig.again(rig.checkpoint(), partitions=2)
    rig.advance(MAX_WATERMARK)
    found = [line for _, batch in rig.sent for line in shown(batch.frame, key)]
    rig.frame(every).createOrReplaceTempView("key_rows")
    start = "unix_seconds(at) div 10 * 10"
    bounds = f"timestamp_seconds({start}) AS window_start, timestamp_seconds({start} + 10) AS window_end"
    measures = ", ".join(f"{sql} AS {name}" for name, sql in MEASURES.items())
    expected = spark.sql(f"SELECT {key} AS k, {bounds}, {measures} FROM key_rows GROUP BY 1, 2, 3")
    assert sorted(found) == shown(expected, key)
    rig.operator.close()


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_restored_rows_lie_where_spark_places_their_keys(spark, tmp_path, monkeypatch, key):
    """Of its own accord Spark does not look: an aggregate over a layer that lies elsewhere would have a key twice."""
    monkeypatch.setattr(parquet, "ROWS_A_TASK", 10)
    rig = Rig(spark, step(key), SCHEMA, tmp_path, partitions=4)
    rig.process(drawn(120))
    rig.process(drawn(5))  # one slice, of which each partition takes its part
    rig.checkpoint()
    rig.process(drawn(60))
    rig = rig.again(rig.checkpoint())
    (layer,), lease = rig.operator._stack.lease_due(MIN_WATERMARK, MAX_WATERMARK)
    rows = layer.frame.selectExpr("k", "window_end", "spark_partition_id() AS place")
    assert layer.frame.rdd.getNumPartitions() == 4
    moved = rows.repartition(4, "k").where("place <> spark_partition_id()")
    assert (moved.count(), layer.rows) == (0, rows.count())
    lease.release()
    rig.operator.close()
