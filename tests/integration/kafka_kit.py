"""What tests of the Kafka source share: a topic with everything that is odd, and readers that are read to their end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from integration.topics import CODECS, Record, Topics
from penstock.clock import SystemClock
from penstock.handles import Position
from penstock.interfaces.source import (
    CaughtUp,
    Ended,
    NoData,
    PlannedBatch,
    ReadLimit,
    Source,
    SourceContext,
    SourceReader,
    Until,
)

CLOCK = SystemClock()
NEVER = threading.Event()
NO_LIMITS = ReadLimit()
LARGE = 10 << 20


def open_reader(
    source: Source,
    spark: SparkSession,
    resume: Position | None = None,
    *,
    until: Until = Until.CAUGHT_UP,
    report: Any = None,
) -> SourceReader:
    context = SourceContext(uid="in", spark=spark, until=until, **({"report": report} if report else {}))
    return source.open(context, resume)


def next_batch(reader: SourceReader, limits: ReadLimit = NO_LIMITS) -> PlannedBatch | None:
    """The next batch, however long it takes to come; ``None`` at the end."""
    while True:
        poll = reader.poll(now=CLOCK.now(), wall=CLOCK.wall(), limits=limits)
        match poll:
            case PlannedBatch():
                return poll
            case NoData(wake_at=wake_at):
                NEVER.wait(max(0, wake_at - CLOCK.now()) / 1_000_000)
            case CaughtUp() | Ended():
                return None


def read_all(
    reader: SourceReader, limits: ReadLimit = NO_LIMITS, *, wanted: Callable[[DataFrame], DataFrame] | None = None
) -> list[Any]:
    """All rows up to the end, in the order of partitions and offsets."""
    found: list[Any] = []
    while (batch := next_batch(reader, limits)) is not None:
        frame = reader.frame(batch.plan)
        rows = (wanted(frame) if wanted else frame).collect()
        assert batch.rows is None or batch.rows == len(rows)
        if batch.verify is not None:
            batch.verify()
        found += rows
    reader.close()
    return sorted(found, key=lambda row: (row.topic, row.partition, row.offset))


def odd_topic(topics: Topics) -> tuple[str, list[dict[str, Any]]]:
    """A topic of two partitions with all that can be in one, and its rows as they are to be read."""
    topic = topics.create("odd", partitions=2, retention_ms=-1)  # its records are as old as can be
    plain = [
        Record(f"plain {n}".encode(), key=b"k%d" % n, partition=0, timestamp_ms=1_700_000_000_000 + n) for n in range(3)
    ]
    headers = [("a", b"1"), ("a", b"2"), ("none", None), ("empty", b""), ("", b"no name")]
    odd = [
        Record(None, key=b"tombstone", partition=0, timestamp_ms=1),
        Record(b"", key=b"", partition=0, timestamp_ms=2),
        Record(None, key=None, partition=0, timestamp_ms=3),
        Record(b"headers", partition=0, headers=headers, timestamp_ms=4),
        Record(b"again none", partition=0, timestamp_ms=5),
        Record("ü\0".encode(), key=b"\xff\xfe", partition=0, timestamp_ms=6),
    ]
    sent = [*plain, *odd]
    topics.produce(topic, sent)
    for number, codec in enumerate(CODECS):
        batch = [Record(f"{codec} {n} ".encode() * 50, partition=1, timestamp_ms=10 + number) for n in range(20)]
        topics.produce(topic, batch, compression=codec)
        sent += batch

    def transact(name: str, count: int, partition: int, *, keep: bool) -> None:
        rows = [Record(f"{name} {n}".encode(), partition=partition, timestamp_ms=100) for n in range(count)]
        transaction = topics.transact(topic, rows)
        if keep:
            transaction.commit()
            sent.extend(rows)
        else:
            transaction.abort()

    transact("kept", 3, 0, keep=True)
    transact("aborted", 4, 0, keep=False)
    transact("kept too", 2, 1, keep=True)
    large = Record(b"\x07" * LARGE, key=b"large", partition=1, timestamp_ms=200)
    topics.produce(topic, [large])
    transact("aborted at the end", 3, 1, keep=False)
    transact("only a marker", 0, 0, keep=True)
    sent.append(large)
    return topic, [as_row(topic, record) for part in (0, 1) for record in sent if record.partition == part]


def as_row(topic: str, record: Record) -> dict[str, Any]:
    """A record as a source shows it, without its offset; a long value by its length."""
    value = record.value
    return {
        "key": record.key,
        "value": f"{len(value)} bytes" if value is not None and len(value) > 1_000_000 else value,
        "headers": [tuple(header) for header in record.headers] or None,
        "topic": topic,
        "partition": record.partition,
        "millis": record.timestamp_ms,
    }


def shown(row: Any) -> dict[str, Any]:
    """A row in the form of ``as_row``."""
    value = None if row.value is None else bytes(row.value)
    return {
        "key": None if row.key is None else bytes(row.key),
        "value": f"{len(value)} bytes" if value is not None and len(value) > 1_000_000 else value,
        "headers": None
        if row.headers is None
        else [(name, None if text is None else bytes(text)) for name, text in row.headers],
        "topic": row.topic,
        "partition": row.partition,
        "millis": row.millis,
    }


def with_millis(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("*", "unix_millis(timestamp) AS millis").drop("timestamp")
