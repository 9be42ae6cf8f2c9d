"""A Kinesis sink: what is refused before anything runs, and what is put again, in which order ("kinesis P25")."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

import penstock as ps
from core.kinesis_kit import Bench
from kinesis_fake import FakeKinesis, refusal
from penstock.connectors.kinesis.client import StreamAddress
from penstock.connectors.kinesis.producer import MAX_AGGREGATE_BYTES, OutgoingRecord, RecordPutter
from penstock.connectors.kinesis.sink import StreamWriter, read_outgoing
from penstock.elements import Batch
from penstock.errors import ConnectorError, GraphError, SinkUnavailable
from penstock.handles import CheckpointId, Guarantee
from penstock.testing.clock import ManualClock

COUNTS = t.StructType().add("user", t.StringType()).add("at", t.TimestampType()).add("n", t.LongType())


class Putter:
    """A putter on a fake stream, and the records that it has put."""

    def __init__(self, shards: int = 3, *, keep_order: bool = True, aggregate: bool = False) -> None:
        self.clock = ManualClock()
        self.stream = FakeKinesis(self.clock, shards=shards)
        self.waits: list[float] = []
        self.putter = RecordPutter(
            self.stream,
            StreamAddress(stream="orders"),
            keeps_order=keep_order,
            aggregates=aggregate,
            clock=self.clock,
            random=random.Random(5),
            wait=self.wait,
        )

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock._elapsed += int(seconds * 1_000_000)

    def put(self, *records: tuple[str | None, bytes]) -> None:
        self.putter.put(OutgoingRecord(*record) for record in records)

    def of_key(self, key: str) -> list[bytes]:
        return [data for each, data in self.stream.everything() if each == key]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", "c", None]), max_size=40),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 4)),
    st.booleans(),
)
def test_entries_that_fail_are_put_again_in_the_order_of_their_key(keys, refused, aggregate):
    put = Putter(aggregate=aggregate)
    put.stream.refused_puts.update(refused)
    records = [(key, b"%d" % number) for number, key in enumerate(keys)]
    put.put(*records)
    bench = Bench(stream=put.stream)
    bench.until_quiet(20)
    assert sorted(bench.data) == sorted(data for _, data in records)
    for key in "abc":
        assert [data for _, each, data in bench.read if each == key] == [data for each, data in records if each == key]


def test_without_order_a_failed_entry_may_be_passed():
    put = Putter(keep_order=False)
    put.stream.refused_puts["a"] = 1
    put.put(("a", b"1"), ("a", b"2"))
    assert put.of_key("a") == [b"2", b"1"]
    assert put.stream.calls["PutRecords"] == 2
    assert put.waits != []


def test_a_request_has_no_more_entries_and_bytes_than_kinesis_takes():
    put = Putter()
    put.put(*[(f"k{number}", b"x") for number in range(1_100)])
    assert put.stream.calls["PutRecords"] == 3
    put.put(*[(f"k{number}", b"x" * 1_000_000) for number in range(12)])
    assert put.stream.calls["PutRecords"] == 3 + 3


def test_records_of_a_key_are_packed_up_to_a_size():
    put = Putter(aggregate=True)
    put.put(*[("a", b"%5d" % number * 1_000) for number in range(25)], ("b", b"1"), (None, b"2"), (None, b"3"))
    entries = put.stream.everything()
    assert len([key for key, _ in entries if key == "a"]) == 3
    assert all(len(data) < MAX_AGGREGATE_BYTES * 2 for _, data in entries)
    assert put.of_key("b") == [b"1"]
    assert len(entries) == 5


def test_rows_without_a_key_go_to_any_shard():
    put = Putter()
    put.put(*[(None, b"x")] * 60)
    assert all(shard.records for shard in put.stream.shards.values())
    assert put.stream.calls["PutRecords"] == 1, "they wait for no other"


def test_a_stream_that_takes_nothing_for_five_minutes_fails_the_job_which_restarts():
    put = Putter()
    put.stream.refused_puts["a"] = 10**6
    with pytest.raises(SinkUnavailable, match=r"has refused 1 records for 300 s.*slow down") as raised:
        put.put(("a", b"1"))
    assert raised.value.retry
    assert max(put.waits) <= 5


def test_requests_that_fail_are_repeated_and_what_is_refused_for_good_is_an_error():
    put = Putter()
    put.stream.errors["PutRecords"] = [refusal("InternalFailure", "PutRecords")] * 3
    put.put(("a", b"1"))
    assert put.of_key("a") == [b"1"]
    put.stream.errors["PutRecords"] = [refusal("ResourceNotFoundException", "PutRecords")]
    with pytest.raises(ConnectorError, match="There is no stream orders at AWS") as raised:
        put.put(("a", b"1"))
    assert not raised.value.retry


def test_a_key_that_is_too_long_is_named():
    with pytest.raises(ConnectorError, match=r"has 300 characters .*Name a shorter column"):
        Putter().put(("x" * 300, b"1"))


class FakeFrame:
    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def toArrow(self) -> pa.Table:
        return self.table


def test_a_batch_is_in_the_stream_when_it_was_written():
    put, columns = Putter(), ps.kinesis.Sink("orders").columns
    table = pa.table({"data": pa.array([b"1", b"2"], pa.binary()), "key": ["a", None]})
    writer = StreamWriter(type("All", (), {"records": staticmethod(FakeFrame)}), put.putter, uid="out")
    assert columns.format == "json"
    assert writer.write(Batch(frame=table, sequence=1)) == 2
    assert list(writer.prepare(CheckpointId(1)).materialise()) == []
    assert sorted(data for _, data in put.stream.everything()) == [b"1", b"2"]
    put.stream.errors["PutRecords"] = [refusal("AccessDeniedException", "PutRecords")]
    with pytest.raises(ConnectorError, match="step 'out': Not allowed"):
        writer.write(Batch(frame=table, sequence=2))
    writer.close()


def test_an_empty_key_is_none():
    table = pa.table({"data": pa.array([b"1", None], pa.binary()), "key": ["", "a"]})
    assert list(read_outgoing(table)) == [OutgoingRecord(None, b"1"), OutgoingRecord("a", b"")]


def test_a_sink_says_where_its_rows_go_and_how_often():
    sink = ps.kinesis.Sink("orders", endpoint_url="http://localhost:4567")
    assert sink.describe() == "kinesis orders at http://localhost:4567"
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    sink.check(COUNTS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stream": "a b"}, "stream='a b' is no stream"),
        ({"format": "avro"}, "format='avro' is not possible. It must be one of 'json', 'raw'"),
        ({"key": ["user", "user"]}, "does not name columns, each once"),
        ({"key": 3}, "key=3 does not name columns"),
        ({"format": "raw", "value": ["a", "b"]}, "Raw data is one column, and value has 2."),
        ({"options": {"aws_session_token": "canary"}}, "ps.kinesis.env('KINESIS_SECRET')"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(given, said):
    with pytest.raises(GraphError) as refused:
        ps.kinesis.Sink(**{"stream": "orders", **given})
    assert said in str(refused.value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"key": "usr"}, "'usr'"),
        ({"format": "raw", "value": "n"}, "Column 'n' is long, and raw data is BINARY or STRING"),
        ({"format": "raw", "value": "user"}, "Columns at, n go nowhere"),
    ],
)
def test_rows_of_which_no_records_can_be_made_are_refused(given, said):
    with pytest.raises(GraphError) as refused:
        ps.kinesis.Sink("orders", **given).check(COUNTS)
    assert said in str(refused.value)
