"""Rows become records in Spark: keys, JSON and raw values, headers, tombstones of deleted results."""

from __future__ import annotations

import json

import pytest

import penstock as ps
from penstock.connectors.kafka.records import OutputRecord

pytestmark = pytest.mark.spark


def records(spark, frame, **given) -> list[OutputRecord]:
    sink = ps.kafka.Sink(servers="k:9092", topic="out", guarantee="none", **given)
    sink.check(frame.schema)
    return list(sink.columns.read(sink.columns.records(frame).toArrow()))


def test_a_row_becomes_the_record_that_its_columns_say(spark):
    frame = spark.sql(
        "SELECT 'ü' AS user, 3L AS n, TIMESTAMP '2026-01-01 00:00:01Z' AS at, CAST(NULL AS INT) AS gap, "
        "map('a', '1') AS tags, 2 AS place, 'side' AS `to go`"
    )
    (record,) = records(
        spark, frame, key="user", headers="tags", timestamp="at", partition="place", topic_column="to go"
    )
    value = json.loads(record.value)
    assert value.pop("at").startswith("2026-01-01T00:00:01")
    assert value == {"user": "ü", "n": 3}
    assert record._replace(value=None) == OutputRecord("side", "ü".encode(), None, 2, 1_767_225_601_000, [("a", b"1")])
    (record,) = records(spark, frame.select("user", "n"), key="n", value=["user"])
    assert (record.key, record.value) == (b"3", '{"user":"ü"}'.encode())
    (record,) = records(spark, frame, key=["user", "n"], value="n")
    assert (record.key, record.value) == ('{"user":"ü","n":3}'.encode(), b'{"n":3}')


def test_a_raw_value_is_its_bytes_and_what_a_source_reads_can_be_written_as_it_is(spark):
    frame = spark.sql(
        "SELECT X'00ff' AS value, CAST(NULL AS BINARY) AS key, 1 AS partition, "
        "array(named_struct('key', 'h', 'value', X'01')) AS headers"
    )
    found = records(spark, frame, format="raw", key="key", partition="partition", headers="headers")
    assert found == [OutputRecord("out", None, b"\x00\xff", 1, None, [("h", b"\x01")])]


def test_a_change_stream_is_written_as_upserts_and_tombstones(spark):
    frame = spark.sql(
        "SELECT * FROM VALUES ('a', 1, 'insert'), ('b', 1, 'update_before'), ('b', 2, 'update_after'), "
        "('c', 5, 'delete') AS t(user, n, _change)"
    )
    found = [(record.key, record.value) for record in records(spark, frame, key="user")]
    assert found == [(b"a", b'{"user":"a","n":1}'), (b"b", b'{"user":"b","n":2}'), (b"c", None)]
