"""Arrow batches as frames: the same rows as PySpark makes of them, in a partition each, whichever way they go."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock.spark import arrow as sending
from penstock.spark.arrow import MAX_INLINE_BYTES, ArrowSender, arrow_schema, factory_of
from window_harness import next_job

pytestmark = pytest.mark.spark

COLUMNS = (
    "n LONG, small SHORT, name STRING, raw BINARY, at TIMESTAMP, day DATE, wall TIMESTAMP_NTZ, cost DECIMAL(20, 3), "
    "yes BOOLEAN, part DOUBLE, many ARRAY<STRUCT<a: INT, b: STRING>>, told MAP<STRING, BINARY>"
)
MOMENT = dt.datetime(2026, 11, 23, 10, 0, 0, 123_456, tzinfo=dt.timezone.utc)


def row(n: int) -> dict[str, object]:
    return {
        "n": n,
        "small": n % 100,
        "name": f"n{n} é",
        "raw": b"\x00" + str(n).encode(),
        "at": MOMENT,
        "day": MOMENT.date(),
        "wall": MOMENT.replace(tzinfo=None),
        "cost": Decimal("12345678901234567.125"),
        "yes": n % 2 == 0,
        "part": n / 7,
        "many": [{"a": n, "b": None}, None],
        "told": {"k": b"v", "none": None},
    }


@pytest.fixture
def schema(spark):
    return spark.sql(f"SELECT from_json('', '{COLUMNS}') AS r").select("r.*").schema


def table_of(schema, rows) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=arrow_schema(schema))


def batches_of(schema, rows, parts: int = 1) -> list[pa.RecordBatch]:
    batch = table_of(schema, rows).combine_chunks().to_batches()[0]
    share = -(-batch.num_rows // parts)
    return [batch.slice(at, share) for at in range(0, batch.num_rows, share)]


def rows_of(frame) -> list[object]:
    return sorted(frame.collect(), key=lambda each: each["n"])


def test_the_first_frame_and_those_after_it_have_the_rows_that_pyspark_makes(spark, schema):
    rows = [row(n) for n in range(5)] + [dict.fromkeys(schema.names) | {"n": 5}]
    sender = ArrowSender(spark, schema)
    expected = rows_of(spark.createDataFrame(table_of(schema, rows), schema))
    for _ in range(3):
        frame = sender.frame(batches_of(schema, rows))
        assert rows_of(frame) == expected
        assert frame.schema == schema
    assert sender._factory is not None, "this Spark has what later frames are made of"


def test_each_batch_is_a_partition_and_no_job_runs_until_somebody_asks(spark, schema):
    sender = ArrowSender(spark, schema)
    frames = [sender.frame(batches_of(schema, [row(n) for n in range(parts)], parts)) for parts in (1, 3, 2)]
    before = next_job(spark)
    frames.append(sender.frame(batches_of(schema, [row(1)])))
    assert next_job(spark) == before
    assert [frame.rdd.getNumPartitions() for frame in frames] == [1, 3, 2, 1]
    assert rows_of(frames[0]) == rows_of(frames[0]), "it can be run again"


def test_frames_of_one_sender_are_told_apart_in_one_plan(spark, schema):
    sender = ArrowSender(spark, schema)
    made = [sender.frame(batches_of(schema, [row(n), row(n + 1)])) for n in range(4)]
    first, second = made[2].alias("a"), made[3].alias("b")
    joined = first.join(second, "n")
    assert [each["n"] for each in joined.collect()] == [3]
    assert made[2].union(made[3]).count() == 4
    assert made[2].where("n > 2").select("name").collect() == [("n3 é",)]


def test_what_is_too_large_for_a_call_goes_by_a_file(spark, schema, monkeypatch):
    small, large = [row(1)], [row(n) | {"name": "x" * 1000} for n in range(MAX_INLINE_BYTES // 900)]
    sender, went = ArrowSender(spark, schema), []
    real = spark.sparkContext._serialize_to_jvm
    monkeypatch.setattr(spark.sparkContext, "_serialize_to_jvm", lambda *given: went.append(1) or real(*given))
    for rows, parts, files in ((small, 1, 0), (large, 2, 1), (small, 1, 1), (large, 2, 2)):
        found = rows_of(sender.frame(batches_of(schema, rows, parts)))
        assert [(each["n"], each["name"]) for each in found] == [(each["n"], each["name"]) for each in rows]
        assert len(went) == files


def test_what_later_frames_share_holds_no_row_of_the_first(spark, schema):
    sender = ArrowSender(spark, schema)
    sender.frame(batches_of(schema, [row(n) | {"name": "x" * 1000} for n in range(500)]))
    mold = sender._factory
    assert mold is not None
    io = spark.sparkContext._jvm.java.io
    into = io.ByteArrayOutputStream()
    io.ObjectOutputStream(into).writeObject(mold.decode)
    assert into.size() < 20_000, "each task is sent it"


def test_a_slice_of_a_batch_brings_its_own_rows_alone(spark, schema):
    whole = batches_of(schema, [row(n) for n in range(10)])[0]
    sender = ArrowSender(spark, schema)
    for first in (0, 7, 3):
        assert [each["n"] for each in rows_of(sender.frame([whole.slice(first, 3)]))] == [first, first + 1, first + 2]


def test_a_spark_that_is_otherwise_inside_makes_frames_as_ever(spark, schema, monkeypatch):
    asked = []
    monkeypatch.setattr(sending, "factory_of", lambda *_: asked.append(1))
    sender = ArrowSender(spark, schema)
    for n in range(3):
        assert [each["n"] for each in rows_of(sender.frame(batches_of(schema, [row(n)])))] == [n]
    assert len(asked) == 1, "it is not asked again with each batch"


def test_a_frame_of_another_kind_is_no_mold(spark):
    assert factory_of(spark, spark.range(3)._jdf) is None
    assert factory_of(spark, spark.sparkContext._jvm.org.apache.spark.not_there) is None, (
        "nor a class that is not there"
    )
