"""Where a batch from Kafka is best read: the same rows in the driver and by the executors, at several sizes of a batch.

python bench/kafka_crossover.py                       all sizes, some minutes
python bench/kafka_crossover.py --sizes 10000,30000   some of them

A topic of JSON records is drained in batches of one size, back to back; each batch is decoded while it is read and one
job counts it, so fetching counts wherever it is done. The places take turns, ``--rounds`` times, after a round that
warms the JVM; medians count. What it prints is what ``kafka.reader.MAX_DRIVER_ROWS`` is to be.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import result  # noqa: E402 - found through the path above

from integration.broker import FAST, Broker  # noqa: E402
from integration.topics import Record, Topics  # noqa: E402
from penstock.clock import SystemClock  # noqa: E402
from penstock.connectors.kafka import source as kafka  # noqa: E402
from penstock.formats import text  # noqa: E402
from penstock.interfaces.source import DECODED_RECORD, NoData, PlannedBatch, ReadLimit, SourceContext  # noqa: E402
from penstock.spark.session import make_session  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
PLACES = ("driver", "executors")
ROWS = 900_000
PARTITIONS = 4
CLOCK = SystemClock()


def fill(topics: Topics) -> str:
    """A topic with all records, about 135 bytes each."""
    topic = topics.create("crossover", partitions=PARTITIONS)
    pad = "x" * 60
    topics.produce(
        topic,
        (
            Record(
                b'{"id": %d, "user": "user%05d", "amount": %d.25, "at": "2026-01-01T00:00:%02dZ", "pad": "%s"}'
                % (n, n % 10_000, n % 97, n % 60, pad.encode()),
                key=b"%07d" % n,
                partition=n % PARTITIONS,
            )
            for n in range(ROWS)
        ),
    )
    return topic


def drain(spark: SparkSession, servers: str, topic: str, place: Any, size: int, batches: int) -> float:
    """Milliseconds for so many rows as a batch holds, batches following each other as fast as they can."""
    schema = text.struct_type(spark, "id LONG, user STRING, amount DOUBLE, at TIMESTAMP")
    source = kafka.Source(servers=servers, topics=[topic], read_in=place).decoding("value", schema)
    assert source is not None
    reader = source.open(SourceContext(uid="bench", spark=spark), None)
    rows, began = 0, time.perf_counter()
    while rows < size * batches:
        poll = reader.poll(now=CLOCK.now(), wall=CLOCK.wall(), limits=ReadLimit(rows=min(size, size * batches - rows)))
        if isinstance(poll, NoData):
            time.sleep(max(0, poll.wake_at - CLOCK.now()) / 1_000_000)
            continue
        assert isinstance(poll, PlannedBatch)
        frame = reader.frame(poll.plan).selectExpr(
            f"{DECODED_RECORD}.user AS user", f"{DECODED_RECORD}.at AS at", "partition"
        )
        rows += frame.where("user <> 'nobody'").count()
        assert poll.verify is not None
        poll.verify()
    took = time.perf_counter() - began
    reader.close()
    return took / rows * size * 1_000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", default=",".join(map(str, SIZES)))
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    with (
        tempfile.TemporaryDirectory(prefix="penstock-") as home,
        Broker(Path(home), heap_megabytes=512, jvm=FAST) as broker,
    ):
        topic = fill(Topics(broker.servers))
        spark = make_session("bench")
        took: dict[tuple[str, int], list[float]] = {(place, size): [] for size in sizes for place in PLACES}
        for number in range(given.rounds + 1):
            for size in sizes:
                for place in PLACES:
                    ms = drain(spark, broker.servers, topic, place, size, max(2, min(20, 300_000 // size)))
                    if number:
                        took[place, size].append(ms)
        medians = {at: statistics.median(each) for at, each in took.items()}
        rows = [
            [
                size,
                *(round(medians[place, size], 1) for place in PLACES),
                *(round(size / medians[place, size]) for place in PLACES),
            ]
            for size in sizes
        ]
        result.show(
            "milliseconds a batch, and rows a millisecond", ["rows", *PLACES, *(f"{p} rate" for p in PLACES)], rows
        )
        better = [size for size in sizes if medians["executors", size] < medians["driver", size]]
        figures: dict[str, result.Figure] = {"crossover": min(better, default=None)}
        figures |= {f"{place}_{size}_ms": round(medians[place, size], 1) for size in sizes for place in PLACES}
        result.save("kafka_crossover", figures, settings={"rounds": given.rounds, "rows": ROWS})
        spark.stop()
        result.tell(figures)


if __name__ == "__main__":
    main()
