"""A Kinesis stream through penstock to a sink, against a bare loop of GetRecords on the same stream; then live records.

make bench-kinesis                                    about 5 minutes
make bench-kinesis ARGS="--records 5000 --seconds 3"  a look

The stream is that of ``kinesalite``, an emulator on loopback that npm brings; it shares the machine's cores with both.
A backlog of records of 100 B is read by a thread for each shard that does nothing but GetRecords, and then by a job
that parses JSON and writes to Spark's ``noop`` format, in turns; ``records_ratio`` is the job's records a second to
the loop's, in the middle. The job's time begins with its start. A round before the ones that count warms the JVM.

Live, ``p50_ms`` and ``p99_ms`` are from the moment a record is put to the end of the Spark job that wrote its batch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import result  # noqa: E402 - found through the path above
from latency_sink import Arrivals, NoopSink  # noqa: E402

from integration.kinesis_server import KinesisServer, kinesis_server  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "orders"
PAGE = 10_000
FILLER = "x" * 40


def records(numbers: range) -> list[dict[str, Any]]:
    now = int(time.time() * 1e6)
    rows = ({"id": number, "created": now, "text": FILLER} for number in numbers)
    return [{"PartitionKey": str(row["id"] % 1_000), "Data": json.dumps(row).encode()} for row in rows]


def fill(client: Any, count: int) -> None:
    for first in range(0, count, 500):
        answer = client.put_records(StreamName=STREAM, Records=records(range(first, min(count, first + 500))))
        assert not answer["FailedRecordCount"]


def shards_of(client: Any) -> list[str]:
    return [shard["ShardId"] for shard in client.list_shards(StreamName=STREAM)["Shards"]]


def bare(client: Any) -> tuple[int, float]:
    """Records, and seconds, of a loop of GetRecords for each shard."""

    def read(shard: str) -> int:
        answer = client.get_shard_iterator(StreamName=STREAM, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
        iterator, count = answer["ShardIterator"], 0
        while True:
            page = client.get_records(ShardIterator=iterator, Limit=PAGE)
            count, iterator = count + len(page["Records"]), page["NextShardIterator"]
            if not page["Records"]:
                return count

    shards, began = shards_of(client), time.perf_counter()
    with ThreadPoolExecutor(len(shards)) as pool:
        return sum(pool.map(read, shards)), time.perf_counter() - began


def pipeline(server: KinesisServer, arrivals: Arrivals) -> Any:
    import penstock as ps

    @ps.pipeline("orders")
    def job(p: Any) -> None:
        source = ps.kinesis.Source(
            STREAM,
            endpoint_url=server.url,
            region="us-east-1",
            poll_every="50 ms",
            options={"aws_access_key_id": "000000000000", "aws_secret_access_key": ps.kinesis.env("BENCH_SECRET")},
        )
        parsed = p.read("in", source).parse_json("data", "id LONG, created LONG, text STRING")
        parsed.select("created").write("out", NoopSink(arrivals))

    return job


def through_penstock(spark: SparkSession, server: KinesisServer, folder: Path) -> tuple[int, float]:
    """Records, and seconds, of a job from its start until it has caught up."""
    import penstock as ps

    job = ps.Job(pipeline(server, Arrivals()), state=folder, spark=spark, checkpoint_every="5s")
    began = time.perf_counter()
    report = job.run(until="caught-up")
    return report.rows_read["in"], time.perf_counter() - began


def live(spark: SparkSession, server: KinesisServer, folder: Path, arguments: argparse.Namespace) -> list[float]:
    """Milliseconds of live records, sorted."""
    import penstock as ps

    arrivals, over, client = Arrivals(), threading.Event(), server.client()

    def feed() -> None:
        for number in itertools.count():
            client.put_records(
                StreamName=STREAM, Records=records(range(number * 10, number * 10 + arguments.per_second // 20))
            )
            if over.wait(0.05):
                return

    # Not from "latest": kinesalite does not answer for a time after its last record. Warming reads the backlog.
    job = ps.Job(pipeline(server, arrivals), state=folder, spark=spark, checkpoint_every="5s")
    job.start()
    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        over.wait(arguments.warm)
        began = time.time()
        over.wait(arguments.seconds)
        return sorted(ms for ms, _ in arrivals.latencies(arrivals.between(began, time.time())))
    finally:
        over.set()
        feeder.join()
        job.stop()


def measure(spark: SparkSession, arguments: argparse.Namespace) -> dict[str, result.Figure]:
    """The figures of a run, on a stream of its own."""
    os.environ["BENCH_SECRET"] = "none"
    home = result.bench_folder()
    with kinesis_server("kinesalite", home / "server") as server:
        client = server.client()
        client.create_stream(StreamName=STREAM, ShardCount=arguments.shards)
        client.get_waiter("stream_exists").wait(StreamName=STREAM, WaiterConfig={"Delay": 1})
        fill(client, arguments.records)
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(arguments.rounds + 1):
            for times, (count, seconds) in (
                (theirs, bare(client)),
                (ours, through_penstock(spark, server, home / f"state-{number}")),
            ):
                assert count == arguments.records, "each record once"
                if number:
                    times.append(count / seconds)
        latencies = live(spark, server, home / "live", arguments)
    if not latencies:
        msg = f"no live batch in {arguments.seconds} s"
        raise AssertionError(msg)
    return {
        "records_ratio": round(statistics.median(ours) / statistics.median(theirs), 2),
        "p50_ms": round(latencies[len(latencies) // 2]),
        "p99_ms": round(latencies[len(latencies) * 99 // 100]),
        "records_per_s": round(statistics.median(ours)),
        "bare_records_per_s": round(statistics.median(theirs)),
    }


def main() -> int:
    arguments = _arguments().parse_args()
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 4g pyspark-shell"
    from penstock.spark.session import make_session

    figures = measure(make_session("kinesis"), arguments)
    rows = [["penstock", figures["records_per_s"]], ["a loop of GetRecords", figures["bare_records_per_s"]]]
    result.show("a backlog", ["reader", "records/s"], rows)
    if arguments.records >= FULL:
        print(f"written: {result.save('kinesis', figures, settings=vars(arguments))}")
    result.tell(figures)
    return 0


FULL = 100_000
"""Records of a run whose figures are kept."""


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=FULL, help="of the backlog")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3, help="that count")
    parser.add_argument("--per-second", type=int, default=1_000, help="live records")
    parser.add_argument("--warm", type=float, default=10, help="seconds of live records that do not count")
    parser.add_argument("--seconds", type=float, default=20, help="seconds that do")
    return parser


if __name__ == "__main__":
    sys.exit(main())
