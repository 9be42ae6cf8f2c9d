"""One windowed aggregate over generated rows, run by penstock, by Structured Streaming and as a plain Spark job.

All make the same rows from the same numbers in Spark, keep the same windows and write the same Parquet; each tells how
many rows a second went through once it was warm, and what processor time that took. Knows no table and no ratio.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from processes import processor_seconds

import penstock as ps
from penstock.facts import BatchDone, BatchRead, Fact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROWS_IN_A_WINDOW = 1_000_000
WINDOW = "1 minute"
DELAY = "2 seconds"
DISORDER = 20_000
"""A row may be so many rows late: 1.2 seconds of event time."""

_BASE = 1_700_000_040_000_000
_STEP = 60_000_000 // ROWS_IN_A_WINDOW
STORES = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


@dataclass(frozen=True)
class Load:
    """So many keys, so many rows a batch."""

    keys: int
    rows: int

    def build(self, numbers: DataFrame, name: str = "n") -> DataFrame:
        """From numbers to rows: a key, an event time a little out of order, a value."""
        late = f"pmod(xxhash64({name}, 'late'), {DISORDER})"
        return numbers.selectExpr(
            f"pmod(xxhash64({name}), {self.keys}) AS key",
            f"timestamp_micros({_BASE}L + ({name} - {late}) * {_STEP}L) AS at",
            f"{name} % 997 AS amount",
        )


@dataclass(frozen=True)
class Speed:
    """What went through in a warm engine: rows a second, batches, and microseconds of processor time for a row."""

    engine: str
    rows_per_second: float
    batches: int
    processor_micros: float


@dataclass(frozen=True)
class Phases:
    """Seconds (and batches, whichever takes longer) that warm an engine, and those that count."""

    warm: float = 12
    measured: float = 20
    batches: int = 6


class Progress:
    """The rows of all batches that are through, with the moment of each."""

    def __init__(self) -> None:
        self._moments: list[tuple[float, int]] = []
        self._changed = threading.Condition()

    def add(self, rows: int) -> None:
        with self._changed:
            total = self._moments[-1][1] if self._moments else 0
            self._moments.append((time.monotonic(), total + rows))
            self._changed.notify_all()

    def wait(self, seconds: float, batches: int) -> tuple[float, int, int]:
        """After so long and so many batches, at the end of one: its moment, rows so far, batches so far."""
        with self._changed:
            first, until = len(self._moments), time.monotonic() + seconds
            self._changed.wait_for(lambda: len(self._moments) >= first + batches and time.monotonic() >= until, 600)
            moment, rows = self._moments[-1]
            return moment, rows, len(self._moments)


def measure(engine: str, spark: SparkSession, progress: Progress, phases: Phases) -> Speed:
    """Speed of a running engine, over some seconds."""
    return _measure(engine, spark, progress, (phases.warm, phases.batches), (phases.measured, phases.batches))


def measured(engine: str, spark: SparkSession, progress: Progress, warm: int, count: int) -> Speed:
    """Speed of a running engine, over so many batches after those that warm it."""
    return _measure(engine, spark, progress, (0, warm), (0, count))


def _measure(
    engine: str, spark: SparkSession, progress: Progress, warm: tuple[float, int], counted: tuple[float, int]
) -> Speed:
    began, rows, batches = progress.wait(*warm)
    processor = processor_seconds(spark)
    clock = time.monotonic()
    ended, rows_then, batches_then = progress.wait(*counted)
    used, passed = processor_seconds(spark) - processor, time.monotonic() - clock
    rate = (rows_then - rows) / (ended - began)
    return Speed(engine, rate, batches_then - batches, used / passed / rate * 1e6)


# ------------------------------------------------------------------------------------------------------------- engines


def penstock(spark: SparkSession, load: Load, folder: Path, phases: Phases, *, every: str = "5s") -> Speed:
    """With exactly-once checkpoints ``every`` so often."""

    @ps.pipeline("bench")
    def totals(p: ps.Pipeline) -> None:
        rows = p.read("rows", ps.generator.Source(load.build, per_batch=load.rows))
        timed = rows.with_watermark("at", delay=DELAY)
        results = timed.group_by("key", ps.tumbling(WINDOW)).agg(
            "totals", ps.agg.sum("amount").alias("amount"), ps.agg.count().alias("n")
        )
        results.write("out", ps.files.Sink(str(folder / "out"), format="parquet"))

    progress, sizes = Progress(), {}

    def listen(fact: Fact) -> None:
        match fact:
            case BatchRead(task="rows", sequence=sequence, rows=rows):
                sizes[sequence] = rows
            case BatchDone(task="totals", sequence=sequence):
                progress.add(sizes.pop(sequence))

    job = ps.Job(totals, state=folder / "state", spark=spark, listener=listen, checkpoint_every=every)
    job.start()
    try:
        return measure(f"penstock {every}", spark, progress, phases)
    finally:
        job.stop()


def structured_streaming(spark: SparkSession, load: Load, folder: Path, phases: Phases, *, store: str) -> Speed:
    """Append mode, its own rows by number, with one of its two state stores."""
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
    numbers = session.readStream.format("rate-micro-batch").option("rowsPerBatch", load.rows)
    rows = load.build(numbers.option("numPartitions", spark.sparkContext.defaultParallelism).load(), "value")
    results = (
        rows.withWatermark("at", DELAY)
        .groupBy("key", F.window("at", WINDOW).alias("w"))
        .agg(F.sum("amount").alias("amount"), F.count(F.lit(1)).alias("n"))
        .selectExpr("key", "w.start AS window_start", "w.end AS window_end", "amount", "n")
    )
    writer = results.writeStream.format("parquet").outputMode("append")
    query = writer.option("checkpointLocation", str(folder / "state")).start(str(folder / "out"))
    with follow(query) as progress:
        return measure(f"structured streaming, {store}", spark, progress, phases)


@contextmanager
def follow(query: StreamingQuery) -> Iterator[Progress]:
    """What a running query tells of its batches; stops it at the end."""
    progress, stop = Progress(), threading.Event()

    def listen() -> None:
        seen = -1
        while not stop.wait(0.02):
            for told in [told for told in query.recentProgress if told["batchId"] > seen]:
                seen = told["batchId"]
                progress.add(told["numInputRows"])

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield progress
    finally:
        stop.set()
        listener.join()
        query.stop()


def plain_job(spark: SparkSession, load: Load, folder: Path, rows: int) -> Speed:
    """One batch job over all rows at once: what Spark can do at most."""
    from pyspark.sql import functions as F

    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
    session.conf.set("spark.sql.adaptive.enabled", "false")
    numbers = session.range(0, rows, 1, spark.sparkContext.defaultParallelism * 4).withColumnRenamed("id", "n")
    made = load.build(numbers)
    results = made.groupBy("key", F.window("at", WINDOW)).agg(F.sum("amount"), F.count(F.lit(1)))
    results.limit(1).collect()
    processor, began = processor_seconds(spark), time.monotonic()
    results.selectExpr("*").write.mode("overwrite").parquet(str(folder / "plain"))
    passed, used = time.monotonic() - began, processor_seconds(spark) - processor
    return Speed("plain Spark job", rows / passed, 1, used / rows * 1e6)


# ------------------------------------------------------------------------------------------------------------- results


def compare(spark: SparkSession, mine: Path, other: Path, columns: list[str]) -> int:
    """How many results of windows that both have written are equal in both; raises if one is not."""
    ours, theirs = (spark.read.parquet(str(folder / "out")) for folder in (mine, other))
    until = min(frame.agg({"window_end": "max"}).collect()[0][0] for frame in (ours, theirs))
    ours, theirs = (frame.where(frame.window_end <= until).selectExpr(*columns) for frame in (ours, theirs))
    count = ours.count()
    differ = ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
    if differ or not count:
        msg = f"of {count} results of windows until {until} {differ} differ"
        raise AssertionError(msg)
    return count


@contextmanager
def emptied(folder: Path) -> Iterator[Path]:
    """A new folder below this one, there for one run. A state store that is stopped may go on writing for a moment."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
