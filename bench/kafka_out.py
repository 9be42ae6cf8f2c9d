"""From a Kafka topic to another one: penstock against Structured Streaming with Spark's own connector.

make bench-kafka-out                                 live, then a backlog of 2 M records; about 10 minutes
make bench-kafka-out ARGS="--seconds 20 --backlog 0" live only

Live, 10,000 JSON orders a second are parsed and written as JSON. A consumer in a process of its own reads the output
with ``read_committed``; the latency of a record is the time from its append to the consumer's sight of it. penstock
runs exactly-once with a checkpoint each second, and then at-least-once, as the connector of Structured Streaming is.
The backlog is what is on the topic when an engine starts, which ends when it has caught up; each engine's output must
have each order. Engines take turns; a round before the ones that count only warms the JVM.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import result  # noqa: E402 - found through the path above
from kafka_load import (  # noqa: E402
    PARTITIONS,
    Feed,
    Input,
    Topics,
    broker,
    connector_options,
    fill,
    penstock_orders,
    spark_orders,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAP = "5g"
COLUMNS = ("id", "user", "amount", "at", "created")
PER_SECOND = 10_000
BACKLOG = 2_000_000


# ------------------------------------------------------------------------------------------------- what readers see


class Sight:
    """A process of its own that reads committed records of a topic, and tells how old each was when it saw it."""

    def __init__(self, servers: str, topic: str) -> None:
        command = [sys.executable, __file__, "--see", servers, topic]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end(self, began: float, ended: float) -> list[float]:
        """Milliseconds for each record that was seen between two moments, sorted."""
        said, _ = self._process.communicate(json.dumps([began, ended]))
        return sorted(json.loads(said))


def see(servers: str, topic: str) -> None:
    """Read until standard input says between which moments it matters."""
    consumer = _consumer(servers, topic)
    asked: list[str] = []
    threading.Thread(target=lambda: asked.append(sys.stdin.read()), daemon=True).start()
    seen: list[tuple[float, float]] = []
    while not asked:
        for message in consumer.consume(1_000, timeout=0.02):
            if message.error() is None:
                now = time.time()
                seen.append((now, (now - json.loads(message.value())["created"] / 1e6) * 1e3))
    began, ended = json.loads(asked[0])
    print(json.dumps([round(age, 1) for at, age in seen if began <= at < ended]))


def _consumer(servers: str, topic: str) -> Any:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "sight",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    return consumer


def count(servers: str, topic: str) -> int:
    """The number of committed records; each order's number must be there, and those of one run once."""
    consumer, ids = _consumer(servers, topic), []
    while messages := consumer.consume(10_000, timeout=3):
        ids += [int(each.value().split(b",", 1)[0].split(b":")[1]) for each in messages if each.error() is None]
    consumer.close()
    if len(set(ids)) != len(ids):
        msg = f"{topic}: {len(ids) - len(set(ids))} records are there more than once"
        raise AssertionError(msg)
    return len(ids)


# ------------------------------------------------------------------------------------------------------------- engines


@dataclass(frozen=True)
class Copy:
    """From where, to where."""

    of: Input
    to: str
    folder: Path


def penstock_job(spark: SparkSession, copy: Copy, guarantee: str) -> Any:
    import penstock as ps

    @ps.pipeline("copy")
    def pipeline(p: Any) -> None:
        prefix = {"transactional_id_prefix": copy.to} if guarantee == "exactly-once" else {}
        sink = ps.kafka.Sink(servers=copy.of.servers, topic=copy.to, key="user", guarantee=guarantee, **prefix)
        penstock_orders(p, copy.of).where("amount >= 0").select(*COLUMNS).write("out", sink)

    return ps.Job(pipeline, state=copy.folder / "state", spark=spark, checkpoint_every="1s")


def query_of(spark: SparkSession, copy: Copy, **trigger: Any) -> Any:
    frame = spark_orders(spark, copy.of).where("amount >= 0")
    records = frame.selectExpr("user AS key", f"to_json(struct({', '.join(COLUMNS)})) AS value")
    writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", copy.of.servers)
    writer = writer.option("topic", copy.to).option("checkpointLocation", str(copy.folder / "state"))
    return writer.trigger(**trigger).start()


@contextmanager
def live_penstock(spark: SparkSession, copy: Copy, guarantee: str) -> Iterator[None]:
    job = penstock_job(spark, copy, guarantee)
    job.start()
    try:
        yield
    finally:
        job.stop()


@contextmanager
def live_query(spark: SparkSession, copy: Copy) -> Iterator[None]:
    query = query_of(spark, copy, processingTime="0 seconds")
    try:
        yield
    finally:
        query.stop()


LIVE: dict[str, Callable[[SparkSession, Copy], Any]] = {
    "exactly-once": lambda spark, copy: live_penstock(spark, copy, "exactly-once"),
    "at-least-once": lambda spark, copy: live_penstock(spark, copy, "at-least-once"),
    "structured streaming": live_query,
}
BACKLOGS: dict[str, Callable[[SparkSession, Copy], object]] = {
    "exactly-once": lambda spark, copy: penstock_job(spark, copy, "exactly-once").run(until="caught-up"),
    "at-least-once": lambda spark, copy: penstock_job(spark, copy, "at-least-once").run(until="caught-up"),
    "structured streaming": lambda spark, copy: query_of(spark, copy, availableNow=True).awaitTermination(),
}


# ------------------------------------------------------------------------------------------------------------- measure


def live(spark: SparkSession, servers: str, home: Path, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of each engine's records, of all rounds that count."""
    topics, ages = Topics(servers), {engine: list[float]() for engine in LIVE}
    for number, engine in itertools.product(range(arguments.rounds + 1), LIVE):
        topic = topics.create("live", partitions=PARTITIONS, retention_bytes=256 << 20)
        to = topics.create("seen", partitions=PARTITIONS, retention_bytes=256 << 20)
        feed, sight = Feed(servers, topic, arguments.per_second), Sight(servers, to)
        with LIVE[engine](spark, Copy(Input(servers, topic, "latest"), to, _folder(home))):
            threading.Event().wait(arguments.warm)
            began = time.time()
            threading.Event().wait(arguments.seconds)
            found = sight.end(began, time.time())
        feed.end()
        print(f"live, {engine}: {len(found)} records, p50 {_quantile(found, 0.5):.0f} ms", file=sys.stderr, flush=True)
        if number:
            ages[engine] += found
    return {engine: sorted(each) for engine, each in ages.items()}


def backlog(spark: SparkSession, servers: str, home: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Records a second of each engine, the median of all rounds that count."""
    topics, speeds = Topics(servers), {engine: list[float]() for engine in BACKLOGS}
    source = fill(servers, arguments.backlog)
    for number, engine in itertools.product(range(arguments.rounds + 1), BACKLOGS):
        to = topics.create("copied", partitions=PARTITIONS)
        began = time.monotonic()
        BACKLOGS[engine](spark, Copy(Input(servers, source), to, _folder(home)))
        speed = arguments.backlog / (time.monotonic() - began)
        if (there := count(servers, to)) != arguments.backlog:
            msg = f"{engine} wrote {there} of {arguments.backlog} records"
            raise AssertionError(msg)
        print(f"backlog, {engine}: {speed:,.0f} records/s", file=sys.stderr, flush=True)
        if number:
            speeds[engine].append(speed)
        topics.delete(to)
    return {engine: statistics.median(each) for engine, each in speeds.items()}


def _folder(home: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=home))


def _quantile(values: list[float], q: float) -> float:
    return values[min(len(values) - 1, int(len(values) * q))] if values else float("nan")


def main() -> int:
    arguments = _arguments()
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {HEAP} {connector_options()} pyspark-shell"
    from penstock.spark.session import make_session

    home = result.bench_folder()
    figures: dict[str, result.Figure] = {}
    with broker(home / "broker") as kafka:
        spark = make_session("bench")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        if arguments.seconds:
            ages = live(spark, kafka.servers, home, arguments)
            quantiles = [
                (engine, *(round(_quantile(each, q)) for q in (0.5, 0.95, 0.99))) for engine, each in ages.items()
            ]
            result.show(
                "Milliseconds from append to sight", ["engine", "p50", "p95", "p99"], [list(row) for row in quantiles]
            )
            p50 = {row[0]: row[1] for row in quantiles}
            figures["visible_p99_s"] = round(quantiles[0][3] / 1e3, 2)
            figures["at_least_once_p50_ratio"] = round(p50["at-least-once"] / p50["structured streaming"], 2)
        if arguments.backlog:
            speeds = backlog(spark, kafka.servers, home, arguments)
            result.show(
                "Records a second", ["engine", "records/s"], [[name, f"{each:,.0f}"] for name, each in speeds.items()]
            )
            theirs = speeds["structured streaming"]
            figures["rows_per_s_ratio"] = round(speeds["at-least-once"] / theirs, 2)
            figures["exactly_once_rows_per_s_ratio"] = round(speeds["exactly-once"] / theirs, 2)
    if arguments.seconds and arguments.backlog:
        print(f"written: {result.save('kafka_out', figures, settings=vars(arguments), details=[])}")
    result.tell(figures)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-second", type=int, default=PER_SECOND)
    parser.add_argument("--warm", type=float, default=20, help="seconds that do not count, for each engine and round")
    parser.add_argument("--seconds", type=float, default=20, help="seconds that do; 0 leaves the live part out")
    parser.add_argument("--backlog", type=int, default=BACKLOG, help="records; 0 leaves the backlog out")
    parser.add_argument("--rounds", type=int, default=1, help="besides one that warms the JVM")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--see"]:
        see(*sys.argv[2:4])
    else:
        sys.exit(main())
