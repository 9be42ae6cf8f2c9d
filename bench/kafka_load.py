"""Orders as JSON on a topic of a real broker, and the streams that both engines make of it. Measures nothing.

Both read the same topic, parse the same schema and build the same columns; Structured Streaming through Spark's own
connector, whose jars are fetched once as the broker's are.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests")]

from integration.broker import FAST, Broker  # noqa: E402 - found through the path above
from integration.broker_jars import CONNECTOR, jars_folder  # noqa: E402
from integration.topics import Topics  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id LONG, user STRING, amount DOUBLE, at TIMESTAMP, created LONG"
FIELDS = ("id", "user", "amount", "at", "created")
PARTITIONS = 4
USERS = 1_000
ROWS_IN_A_MINUTE = 1_000_000
"""Of event time, in a backlog."""

_BASE = 1_700_000_040


def order(number: int, created: int, micros: int | None = None, users: int = USERS) -> bytes:
    """Some 130 bytes of JSON. ``micros``: its event time since the base, its number's if not given."""
    at = number * (60_000_000 // ROWS_IN_A_MINUTE) if micros is None else micros
    seconds, rest = divmod(at, 1_000_000)
    text = _second(seconds)
    user = number * 2_654_435_761 % 4_294_967_296 % users
    return (
        f'{{"id": {number}, "user": "u{user:05}", "amount": {number % 9973 / 100}, '
        f'"at": "{text}.{rest:06}Z", "created": {created}}}'
    ).encode()


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(_BASE + seconds))


@contextmanager
def broker(home: Path) -> Iterator[Broker]:
    """One that is as fast as on a server, but for its two cores."""
    with Broker(home, heap_megabytes=512, jvm=FAST, overrides={"log.segment.bytes": str(128 << 20)}) as started:
        yield started


def fill(servers: str, rows: int) -> str:
    """A topic with so many orders, in order of event time across its partitions; its name."""
    from confluent_kafka import Producer

    topic = Topics(servers).create("backlog", partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for number in range(rows):
        while True:
            try:
                producer.produce(topic, order(number, 0), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    assert left == 0, f"{left} orders not delivered"
    return topic


class Feed:
    """A process of its own that appends ``per_second`` orders to a topic, evenly; each knows when it was appended."""

    def __init__(self, servers: str, topic: str, per_second: int, users: int = USERS) -> None:
        command = [sys.executable, __file__, servers, topic, str(per_second), str(users)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._told: dict[str, Any] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._told = json.loads(line)

    @property
    def behind_ms(self) -> float:
        """How late it was at most in the last second: an even feed is the condition of a fair figure."""
        return float(self._told.get("behind_ms", 0))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def _feed(servers: str, topic: str, per_second: int, users: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "acks": 1})
    began, sent, second, worst = time.time(), 0, 0, 0.0
    while True:
        now = time.time()
        due = int((now - began) * per_second)
        micros = int(now * 1e6)
        for number in range(sent, due):
            value = order(number, micros, micros - _BASE * 1_000_000, users)
            producer.produce(topic, value, partition=number % PARTITIONS)
        worst = max(worst, (due - sent) / per_second * 1e3)
        sent = due
        producer.poll(0)
        if int(now) != second:
            print(json.dumps({"behind_ms": round(worst, 1)}), flush=True)
            second, worst = int(now), 0.0
        time.sleep(0.004)


# --------------------------------------------------------------------------------------------------- as both read it


@dataclass(frozen=True)
class Input:
    """Where an engine reads from."""

    servers: str
    topic: str
    start: str = "earliest"


def connector_options() -> str:
    """For ``PYSPARK_SUBMIT_ARGS``: Spark's own Kafka connector on the class path."""
    jars = ",".join(str(jar) for jar in sorted(jars_folder(CONNECTOR).glob("*.jar")))
    return f"--jars {jars} --driver-class-path {jars.replace(',', ':')}"


def penstock_orders(p: Any, of: Input) -> Any:
    """The parsed orders with the columns that say where they come from."""
    import penstock as ps

    source = ps.kafka.Source(servers=of.servers, topics=[of.topic], start=of.start)
    parsed = p.read("orders", source).parse_json("value", SCHEMA)
    return parsed.select("partition", "timestamp", *FIELDS)


def spark_orders(spark: SparkSession, of: Input, rows: int | None = None) -> DataFrame:
    """The same, as a streaming frame."""
    from pyspark.sql import functions as F

    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", of.servers)
    reader = reader.option("subscribe", of.topic).option("startingOffsets", of.start)
    if rows is not None:
        reader = reader.option("maxOffsetsPerTrigger", rows)
    parsed = reader.load().select(
        F.from_json(F.col("value").cast("string"), SCHEMA).alias("o"), "partition", "timestamp"
    )
    return parsed.select("partition", "timestamp", "o.*")


if __name__ == "__main__":
    _feed(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
