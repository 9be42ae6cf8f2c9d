"""Records are told apart by partition, in portions of a bounded size."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

from core.kafka_kit import FakeMessage, FakeTrouble
from penstock.connectors.kafka import fetch
from penstock.connectors.kafka.client import END_REACHED
from penstock.connectors.kafka.fetch import PartitionRecords, RecordCollector
from penstock.connectors.kafka.frames import RecordColumns
from penstock.connectors.kafka.offsets import TopicPartition

A, B, OTHER = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def told_apart(collector, *messages):
    return [(part.at, [each.place for each in part.messages], part.bytes) for part in collector.collect(messages)]


def records(at, *lengths):
    messages = [FakeMessage(at, place, b"v" * length) for place, length in enumerate(lengths)]
    return PartitionRecords(at, messages, sum(lengths))


def portions(*consumed):
    found = [*fetch._portions([[each] for each in consumed])]
    for part in (part for portion in found for part in portion):
        assert part.bytes == sum(map(len, part.messages))
    return [[[len(each) for each in part.messages] for part in portion] for portion in found]


@pytest.fixture
def bounds(monkeypatch):
    monkeypatch.setattr(fetch, "MAX_PORTION_ROWS", 4)
    monkeypatch.setattr(fetch, "MAX_PORTION_BYTES", 10)


def test_partitions_with_one_number_in_two_topics_are_told_apart():
    collector = RecordCollector({A: 0, B: 5, OTHER: 0}, {}, servers="s")
    came = [
        FakeMessage(A, 0),
        FakeMessage(A, 1),
        FakeMessage(OTHER, 0, b"six..."),
        FakeMessage(B, 5),
        FakeMessage(A, 2),
    ]
    assert told_apart(collector, *came) == [(A, [0, 1], 2), (OTHER, [0], 6), (B, [5], 1), (A, [2], 1)]
    assert collector.next == {A: 3, B: 6, OTHER: 1}


def test_an_event_amid_records_counts_after_them_and_is_no_record():
    collector = RecordCollector({A: 0, B: 0}, {A: 4, B: 9}, servers="s")
    event = FakeMessage(A, 4, trouble=FakeTrouble(END_REACHED))
    assert told_apart(collector, event, FakeMessage(A, 0), FakeMessage(B, 0)) == [(A, [0], 1), (B, [0], 1)]
    assert collector.unfinished == {B}


def test_records_after_the_end_and_of_finished_partitions_are_left_out():
    collector = RecordCollector({A: 0, B: 0}, {A: 2, B: 2}, servers="s")
    came = [FakeMessage(A, 1), FakeMessage(A, 2), FakeMessage(B, 3), FakeMessage(A, 3), FakeMessage(OTHER, 0)]
    assert told_apart(collector, *came) == [(A, [1], 1)]
    assert not collector.unfinished


def test_a_portion_ends_before_it_has_too_many_rows(bounds):
    assert portions(records(A, 1, 1), records(B, 1, 1), records(A, 1)) == [[[1, 1], [1, 1]], [[1]]]


def test_a_portion_ends_before_it_has_too_many_bytes(bounds):
    assert portions(records(A, 4), records(B, 6), records(A, 1), records(A, 9, 1)) == [[[4], [6]], [[1]], [[9, 1]]]


def test_records_that_are_too_many_or_too_long_for_a_portion_are_split(bounds):
    assert portions(records(A, 1, 1, 1, 1, 1)) == [[[1, 1, 1, 1]], [[1]]]
    assert portions(records(A, 6, 6, 4, 1)) == [[[6]], [[6, 4]], [[1]]]


def test_a_record_that_is_longer_than_a_portion_is_one_by_itself(bounds):
    assert portions(records(A, 1, 30, 1)) == [[[1]], [[30]], [[1]]]


@dataclass(frozen=True)
class Timed(FakeMessage):
    kind: int = 1
    millis: int = 0

    def timestamp(self):
        return self.kind, self.millis


@dataclass(frozen=True)
class Headed(FakeMessage):
    named: list[tuple[str, bytes | None]] | None = None

    def headers(self):
        return self.named


@pytest.mark.parametrize(
    "named", [[[("a", b"1"), ("a", None)], None, [("b", b"")]], [None, None, None], [None, [], None]]
)
def test_headers_keep_their_order_and_are_null_where_a_record_has_none(named):
    messages = [Headed(A, place, named=headers) for place, headers in enumerate(named)]
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema([("headers", pa.list_(header))])
    found = RecordColumns(schema=schema).batch([PartitionRecords(A, messages, 3)]).column("headers").to_pylist()
    assert [each and [(pair["key"], pair["value"]) for pair in each] for each in found] == [
        each or None for each in named
    ]


TIMED = pa.schema([("topic", pa.string()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])


def test_a_time_is_null_where_a_record_has_none_or_one_before_1970():
    messages = [Timed(A, 7, kind=1, millis=1_500), Timed(A, 8, kind=0, millis=9), Timed(A, 9, kind=2, millis=-1)]
    batch = RecordColumns(schema=TIMED).batch([PartitionRecords(A, messages, 3)])
    assert batch.column("offset").to_pylist() == [7, 8, 9]
    assert batch.column("topic").to_pylist() == ["a"] * 3
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1_500_000, None, None]


def test_a_time_is_null_where_it_is_later_than_spark_can_hold():
    last = (2**63 - 1) // 1_000
    nanos = 1_700_000_000_000_000_000  # sent as milliseconds
    messages = [Timed(A, place, millis=millis) for place, millis in enumerate([nanos, last + 1, last, 2**63 - 1])]
    batch = RecordColumns(schema=TIMED).batch([PartitionRecords(A, messages, 4)])
    assert batch.column("offset").to_pylist() == [0, 1, 2, 3]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [None, None, last * 1_000, None]
