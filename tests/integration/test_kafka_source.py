"""The Kafka source on a real broker: the same rows from the driver and from the executors, whatever a topic holds."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

from crash.waiting import until
from integration.kafka_kit import next_batch, odd_topic, open_reader, read_all, shown, with_millis
from integration.ports import free_ports
from integration.topics import Record
from penstock.connectors.kafka import source as kafka
from penstock.connectors.kafka.client import Connection, FetchFailed
from penstock.connectors.kafka.config import ReadIn
from penstock.connectors.kafka.fetch import discard_consumer, read
from penstock.connectors.kafka.offsets import OffsetRange
from penstock.connectors.kafka.reader import KafkaReader
from penstock.errors import SourceChanged, SourceUnavailable
from penstock.formats import text
from penstock.interfaces.source import DECODED_RECORD, UNDECODED_METRIC, ReadLimit, Until
from penstock.job.failures import to_penstock_error
from penstock.testing.contracts import SourceContract
from window_harness import compilations

pytestmark = pytest.mark.spark

EITHER = pytest.mark.parametrize("read_in", ["driver", "executors"])


@pytest.fixture(scope="module")
def odd(topics):
    return odd_topic(topics)


@pytest.mark.parametrize("rows", [None, 29])
@EITHER
def test_everything_that_is_odd_is_read_the_same_from_either_place(spark, broker, odd, read_in, rows):
    topic, expected = odd
    source = kafka.Source(servers=broker.servers, topics=[topic], read_in=read_in)
    found = read_all(open_reader(source, spark), ReadLimit(rows=rows), wanted=with_millis)
    assert [shown(row) for row in found] == expected


def test_offsets_are_the_same_from_either_place_and_each_goes_on_where_the_other_stands(spark, broker, odd):
    topic, _ = odd

    def source(read_in: str) -> kafka.Source:
        return kafka.Source(servers=broker.servers, topics=[topic], read_in=read_in)

    whole = [[(row.partition, row.offset) for row in read_all(open_reader(source(place), spark))] for place in PLACES]
    assert whole[0] == whole[1]
    for first, second in (PLACES, PLACES[::-1]):
        reader, found = open_reader(source(first), spark), []
        while len(found) < 60:
            found += reader.frame(next_batch(reader, ReadLimit(rows=29)).plan).collect()
        position = reader.position()
        reader.close()
        found += read_all(open_reader(source(second), spark, position))
        assert sorted((row.partition, row.offset) for row in found) == whole[0]


PLACES = ["driver", "executors"]


@EITHER
def test_records_of_open_transactions_come_when_they_are_committed(spark, broker, topics, read_in):
    topic = topics.create("open")
    topics.produce(topic, [Record(b"before")])
    transaction = topics.transact(topic, [Record(b"in")])
    topics.produce(topic, [Record(b"behind")])
    source = kafka.Source(servers=broker.servers, topics=[topic], read_in=read_in)
    reader = open_reader(source, spark, until=Until.STOPPED)
    first = reader.frame(next_batch(reader).plan).collect()
    transaction.commit()
    rest = []
    while len(rest) < 2:
        rest += reader.frame(next_batch(reader).plan).collect()
    reader.close()
    assert [bytes(row.value) for row in first + rest] == [b"before", b"in", b"behind"]
    everything = kafka.Source(servers=broker.servers, topics=[topic], read_in=read_in, isolation="read_uncommitted")
    topics.transact(topic, [Record(b"aborted")]).abort()
    assert len(read_all(open_reader(everything, spark))) == 4


def test_a_compacted_topic_is_read_over_its_gaps(spark, broker, topics):
    topic = topics.create("compacted", cleanup_policy="compact", segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.001)
    for number in range(8):  # two of them fill a segment, and only full ones are compacted
        topics.produce(topic, [Record(b"%d" % number * 600_000, key=b"k%d" % (number % 2))])

    def read(read_in: str) -> list[tuple[int, bytes]]:
        source = kafka.Source(servers=broker.servers, topics=[topic], read_in=read_in)
        return [(row.offset, bytes(row.value[:1])) for row in read_all(open_reader(source, spark))]

    until(60, "the broker has compacted", lambda: len(read("driver")) < 8)
    rows = read("driver")
    assert rows[-1] == (7, b"7")
    assert rows == [(n, b"%d" % n) for n, _ in rows]
    assert set(read("executors")) <= set(rows)


@EITHER
def test_json_is_decoded_while_it_is_read_where_that_is_certain_and_left_to_spark_elsewhere(
    spark, broker, topics, read_in
):
    topic = topics.create("json")
    good = [b'{"id": %d, "user": "u%d"}' % (n, n) for n in range(20)]
    bad = [b"", b"null", b'{"id": "x"}', b'{"id": 1} {"id": 2}', b"\xff", None, b'{"id": 3.5}']
    for place, value in enumerate(bad):
        topics.produce(topic, [Record(each) for each in [*good[:place], value, *good[place:]]])
    schema = text.struct_type(spark, "id LONG, user STRING")
    plain = kafka.Source(servers=broker.servers, topics=[topic], read_in=read_in)
    decoding = plain.decoding("value", schema)
    rows = read_all(open_reader(decoding, spark))
    assert len(rows) == 21 * len(bad)
    for row, raw in zip(rows, read_all(open_reader(plain, spark)), strict=True):
        assert row.offset == raw.offset
        if row[DECODED_RECORD] is None:
            assert row.value == raw.value
            assert raw.value is None or bytes(raw.value) in bad
        else:
            assert row.value is None
            assert row[DECODED_RECORD].asDict() == json.loads(bytes(raw.value))


def test_the_driver_says_how_many_records_are_left_to_spark(spark, broker, topics):
    schema = text.struct_type(spark, "id LONG")
    for name, values, left in (
        ("all", [b'{"id": 1}', b"{}"], 0),
        ("some", [b'{"id": 1}', b'{"id": "x"}', None, b'{"id": 2}'], 2),
    ):
        topic = topics.create(f"left-{name}")
        topics.produce(topic, [Record(value) for value in values])
        plain = kafka.Source(servers=broker.servers, topics=[topic], read_in="driver")
        for source, told in ((plain, None), (plain.decoding("value", schema), {"rows": left})):
            reader = open_reader(source, spark)
            found = 0
            while (batch := next_batch(reader)) is not None:
                measure = batch.metrics.get(UNDECODED_METRIC)
                assert (measure is None) == (told is None)
                found += measure.value["rows"] if measure else 0
            assert found == (told or {"rows": 0})["rows"]
            reader.close()


def test_nothing_is_compiled_again_whatever_is_read_and_wherever(spark, broker, topics):
    topic = topics.create("compiled", partitions=2)
    schema = text.struct_type(spark, "id LONG")
    sent = 0

    def read(reader: KafkaReader) -> None:
        while sum(json.loads(json.dumps(reader.position().detail))["topics"][topic]["next"].values()) < sent:
            batch = next_batch(reader)
            reader.frame(batch.plan).selectExpr(f"sum({DECODED_RECORD}.id)", "max(offset)").collect()

    def opened(read_in: ReadIn) -> KafkaReader:
        source = kafka.Source(servers=broker.servers, topics=[topic], read_in=read_in).decoding("value", schema)
        return open_reader(source, spark, until=Until.STOPPED)

    readers = [opened("auto"), opened("driver"), opened("executors")]
    seen: list[int] = []
    for count in (3, 40_000, 5, 1, 33_000, 4_000):
        topics.produce(topic, [Record(b'{"id": %d}' % n, partition=n % 2) for n in range(count)])
        sent += count
        reached = compilations(spark)
        for reader in readers:  # by itself the first reads here or there, depending on what is at hand
            read(reader)
        seen.append(compilations(spark) - reached)
    for reader in readers:
        reader.close()
    assert seen[2:] == [0, 0, 0, 0]


def test_a_range_that_vanishes_before_it_is_read_is_an_error_with_its_place(spark, broker, topics):
    topic = topics.create("vanishing")
    topics.produce(topic, [Record(b"v")] * 10)
    source = kafka.Source(servers=broker.servers, topics=[topic], read_in="executors")
    reader = open_reader(source, spark)
    plan = next_batch(reader, ReadLimit(rows=6)).plan
    topics.delete_records(topic, {0: 8})
    with pytest.raises(Exception, match=r"penstock\.kafka:") as raised:
        reader.frame(plan).collect()
    told = to_penstock_error(raised.value)
    assert isinstance(told, SourceChanged)
    assert f"topic '{topic}' partition 0, offsets 0 to 6" in str(told)
    position = reader.position()
    reader.close()
    with pytest.raises(SourceChanged, match=f"{topic}-0: expired, 2 offsets from 6 on"):
        open_reader(source, spark, position)
    goes_on = kafka.Source(servers=broker.servers, topics=[topic], on_lost_offsets="continue")
    assert [row.offset for row in read_all(open_reader(goes_on, spark, position))] == [8, 9]


def test_a_topic_made_again_while_its_rows_were_read_is_noticed(spark, broker, topics):
    topic = topics.create("recreated")
    topics.produce(topic, [Record(b"old")] * 3)
    reader = open_reader(kafka.Source(servers=broker.servers, topics=[topic], read_in="executors"), spark)
    batch = next_batch(reader)
    topics.recreate(topic)
    topics.produce(topic, [Record(b"new")] * 5)
    assert [bytes(row.value) for row in reader.frame(batch.plan).collect()] == [b"new"] * 3, "Kafka does not notice"
    with pytest.raises(SourceChanged, match="made again while it was read"):
        batch.verify()
    reader.close()


def test_workers_that_wait_for_a_broker_in_vain_say_so_and_a_retry_may_help(spark, broker, topics):
    topic = topics.create("silent")
    topics.produce(topic, [Record(b"v")] * 10)
    patience = {"warn_stalled_after": "1 second", "reopen_stalled_after": "1 second", "fail_stalled_after": "1 second"}
    reader = open_reader(kafka.Source(servers=broker.servers, topics=[topic], read_in="executors", **patience), spark)
    frame = reader.frame(next_batch(reader).plan)
    broker.pause()
    with pytest.raises(Exception, match="nothing came for 1 seconds") as raised:
        frame.collect()
    told = to_penstock_error(raised.value)
    broker.resume()
    assert isinstance(told, SourceUnavailable)
    assert told.retry
    assert frame.count() == 10, "the next try has a consumer of its own"
    reader.close()


def test_workers_that_reach_no_broker_say_what_their_client_said():
    server = f"127.0.0.1:{free_ports(1)[0]}"
    options = Connection(servers=server, options={}).worker_options()
    with pytest.raises(FetchFailed, match=rf"nothing came for 1 seconds; .*{server}.*refused"):
        list(read([OffsetRange("orders", 0, 0, 5)], options, timeout=1))
    discard_consumer(options)


@pytest.fixture(scope="module")
def eight(topics):
    """A topic of eight records."""
    topic = topics.create("contract", partitions=2, retention_ms=-1)
    topics.produce(topic, [Record(b"v%d" % n, partition=n % 2, timestamp_ms=1_000 + n) for n in range(8)])
    return topic


class _Contract(SourceContract):
    limits: ClassVar[ReadLimit] = ReadLimit(rows=3)
    place: ClassVar[str]

    @pytest.fixture
    def source(self, broker, eight):
        return kafka.Source(servers=broker.servers, topics=[eight], read_in=self.place)

    @pytest.fixture
    def expected(self, eight):
        common = {"key": None, "headers": None, "topic": eight}
        return [
            {
                **common,
                "value": b"v%d" % n,
                "partition": n % 2,
                "offset": n // 2,
                "timestamp": f"1970-01-01T00:00:01.00{n}Z",
            }
            for n in range(8)
        ]


class TestInTheDriver(_Contract):
    place = "driver"


class TestInTheExecutors(_Contract):
    place = "executors"
