"""A backlog on a Kafka topic, counted in windows: penstock against Structured Streaming with Spark's own connector.

make bench-kafka                                  10 k, 100 k and 1 M records a batch; about 8 minutes
make bench-kafka ARGS="--rows 100000"             one size

JSON is parsed, partition and timestamp are kept, watermark and checkpoints (5 s, exactly once) are on, both write the
same Parquet, and results must be equal. Both read the same topic from its beginning, in one JVM, one after the other;
of each engine's rounds the median counts, and of Structured Streaming's two state stores the better. A round before
them only warms the JVM. Processor time includes Python workers, but not the broker.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import result  # noqa: E402 - found through the path above
from engines import DELAY, STORES, WINDOW, Progress, Speed, compare, emptied, follow, measured  # noqa: E402
from kafka_load import Input, broker, connector_options, fill, penstock_orders, spark_orders  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

ROWS = {"10k": 10_000, "100k": 100_000, "1m": 1_000_000}
BATCHES = {"10k": (60, 120), "100k": (15, 40), "1m": (4, 7)}
"""So many warm an engine, and so many count."""

HEAP = "6g"


def penstock(spark: SparkSession, of: Input, rows: int, batches: tuple[int, int], folder: Path) -> Speed:
    import penstock as ps
    from penstock.facts import BatchDone, Fact

    @ps.pipeline("bench")
    def counts(p: Any) -> None:
        timed = penstock_orders(p, of).with_watermark("at", delay=DELAY)
        totals = timed.group_by("user", ps.tumbling(WINDOW)).agg(
            "totals",
            ps.agg.sum("amount").alias("amount"),
            ps.agg.count().alias("n"),
            ps.agg.max("partition").alias("partition"),
            ps.agg.max("timestamp").alias("newest"),
        )
        totals.write("out", ps.files.Sink(str(folder / "out"), format="parquet"))

    progress = Progress()

    def listen(fact: Fact) -> None:
        if isinstance(fact, BatchDone) and fact.task == "totals":
            progress.add(int(fact.figures["rows"]["rows"]))  # type: ignore[call-overload]

    state = folder / "state"
    job = ps.Job(counts, state=state, spark=spark, listener=listen, checkpoint_every="5s", max_rows_per_batch=rows)
    job.start()
    try:
        return measured("penstock", spark, progress, *batches)
    finally:
        job.stop()


def structured_streaming(
    spark: SparkSession, of: Input, rows: int, batches: tuple[int, int], folder: Path, *, store: str
) -> Speed:
    from pyspark.sql import functions as F

    session = spark.newSession()
    for name, value in {
        "spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism),
        "spark.sql.streaming.stateStore.providerClass": STORES[store],
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        session.conf.set(name, value)
    results = (
        spark_orders(session, of, rows)
        .withWatermark("at", DELAY)
        .groupBy("user", F.window("at", WINDOW).alias("w"))
        .agg(
            F.sum("amount").alias("amount"),
            F.count(F.lit(1)).alias("n"),
            F.max("partition").alias("partition"),
            F.max("timestamp").alias("newest"),
        )
        .selectExpr("user", "w.start AS window_start", "w.end AS window_end", "amount", "n", "partition", "newest")
    )
    writer = results.writeStream.format("parquet").outputMode("append")
    query = writer.option("checkpointLocation", str(folder / "state")).start(str(folder / "out"))
    with follow(query) as progress:
        return measured(f"structured streaming, {store}", spark, progress, *batches)


def main() -> int:
    arguments = _arguments()
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {HEAP} {connector_options()} pyspark-shell"
    from penstock.spark.session import make_session

    home = result.bench_folder()
    sizes = {size: rows for size, rows in ROWS.items() if arguments.rows in (None, rows)}
    figures: dict[str, result.Figure] = {}
    table, details = [], []
    with broker(home / "broker") as kafka:
        needed = max(sum(BATCHES[size]) * rows for size, rows in sizes.items())
        print(f"appending {needed:,} orders …", file=sys.stderr, flush=True)
        of = Input(kafka.servers, fill(kafka.servers, needed + 100_000))
        spark = make_session("bench")
        for size, rows in sizes.items():
            found = _compared(spark, of, rows, BATCHES[size], home, arguments.rounds)
            ours, theirs = found.pop("penstock"), max(found.values(), key=_rate)
            figures[f"ratio_{size}"] = round(_rate(ours) / _rate(theirs), 2)
            figures[f"cpu_ratio_{size}"] = round(theirs.processor_micros / ours.processor_micros, 2)
            table.append([rows, f"{_rate(ours):,.0f}", f"{_rate(theirs):,.0f}", theirs.engine])
            details.append({"rows": rows, "penstock": vars(ours), "other": vars(theirs)})
    result.show("records a second", ["records a batch", "penstock", "other", "which"], table)
    if arguments.rows is None:
        print(f"written: {result.save('kafka', figures, settings=vars(arguments), details=details)}")
    result.tell(figures)
    return 0


def _compared(
    spark: SparkSession, of: Input, rows: int, batches: tuple[int, int], home: Path, rounds: int
) -> dict[str, Speed]:
    """Each engine's median speed; results of the first round must be equal."""
    stores = {store: partial(structured_streaming, store=store) for store in STORES}
    engines: dict[str, Callable[..., Speed]] = {"penstock": penstock, **stores}
    found: dict[str, list[Speed]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        with emptied(home / "round") as folder:
            for name, engine in engines.items():
                (folder / name).mkdir()
                speed = engine(spark, of, rows, batches, folder / name)
                print(f"{rows:,} a batch: {speed.engine} {_rate(speed):,.0f} records/s", file=sys.stderr, flush=True)
                if number or not rounds:
                    found[name].append(speed)
            if number == 0:
                columns = ["user", "window_start", "window_end", "round(amount, 2)", "n", "partition", "newest"]
                for store in stores:
                    compare(spark, folder / "penstock", folder / store, columns)
    return {name: sorted(speeds, key=_rate)[(len(speeds) - 1) // 2] for name, speeds in found.items()}


def _rate(speed: Speed) -> float:
    return speed.rows_per_second


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, choices=ROWS.values(), help="records a batch")
    parser.add_argument("--rounds", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
