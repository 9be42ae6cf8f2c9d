"""The producer without transactions, on a real broker: what it was handed is there once it has waited."""

from __future__ import annotations

import pytest

from integration.topics import Record
from penstock.connectors.kafka.client import Connection
from penstock.connectors.kafka.producer import KafkaDeliveries
from penstock.connectors.kafka.records import OutputRecord
from penstock.errors import ConnectorError, SinkUnavailable


def record(topic: str, value: bytes | None, **more) -> OutputRecord:
    empty = {"key": None, "partition": None, "timestamp_ms": None, "headers": None}
    return OutputRecord(topic=topic, value=value, **{**empty, **more})


def deliveries(servers: str, topic: str, **options) -> KafkaDeliveries:
    return KafkaDeliveries(Connection(servers=servers, options=options), f"topic {topic!r}")


def test_records_are_delivered_with_all_their_parts_and_keys_go_where_java_sends_them(broker, topics):
    topic, other = topics.create("delivered", partitions=4, retention_ms=-1), topics.create("other")
    producer = deliveries(broker.servers, topic)
    whole = record(topic, b"v", key=b"k", partition=3, timestamp_ms=1_000, headers=[("a", b"1"), ("a", None)])
    keyed = [record(topic, b"%d" % n, key=b"user-%d" % n, timestamp_ms=5) for n in range(4)]
    producer.send([whole, *keyed, record(topic, None, key=b"gone", partition=0, timestamp_ms=2)])
    producer.send([record(other, b"elsewhere")])
    producer.flush()
    producer.close()
    found = topics.read(topic)
    assert Record(b"v", b"k", 3, [("a", b"1"), ("a", None)], 1_000) in found
    assert Record(None, b"gone", 0, (), 2) in found
    places = {each.key: each.partition for each in found}
    assert [places[b"user-%d" % n] for n in range(4)] == [murmur2(b"user-%d" % n) % 4 for n in range(4)]
    assert [each.value for each in topics.read(other)] == [b"elsewhere"]


def murmur2(data: bytes) -> int:
    """Kafka's own hash of a key, positive: ``Utils.toPositive(Utils.murmur2(key))``."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_what_is_not_delivered_is_an_error_that_says_whether_a_retry_helps(broker, topics):
    small = topics.create("small", max_message_bytes=1_000)
    producer = deliveries(broker.servers, small)
    producer.send([record(small, b"x" * 100_000)])
    with pytest.raises(ConnectorError, match=r"A record is too large \(MSG_SIZE_TOO_LARGE") as refused:
        producer.flush()
    assert refused.value.retry is False
    with pytest.raises(ConnectorError, match="too large"):
        producer.send([record(small, b"x")])
    producer.close()

    producer = deliveries(broker.servers, "no-such-topic", **{"topic.metadata.propagation.max.ms": 10})
    producer.send([record("no-such-topic", b"x")])
    with pytest.raises(ConnectorError, match="There is no such topic or partition"):
        producer.flush()
    producer.close()

    broker.pause()
    producer = deliveries(broker.servers, small, **{"message.timeout.ms": 500})
    producer.send([record(small, b"x")])
    with pytest.raises(SinkUnavailable, match="Not delivered"):
        producer.flush()
    producer.close()
