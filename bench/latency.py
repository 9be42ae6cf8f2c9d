"""From append to sink, on a live Kafka topic of 10,000 JSON rows a second: penstock against Structured Streaming.

make bench-latency                                  four pipelines, about 14 minutes
make bench-latency ARGS="--pipelines keyed"         one

Pipelines: two stateless steps, fifteen, one keyed window of 1,000 users in update mode, and one of 200,000 users, all
of which stay open (``keyed_many``, windows of 10 minutes). The sink is the same in both: each batch
is written to Spark's ``noop`` format, while an observation in that job tells when the newest of its rows had been
appended. A row's latency is the time from its append to the end of the job that wrote its batch; rows between
the newest of one batch and of the next are taken to have come evenly, as they do. Both run as fast as they can
(``when_ready``, ``processingTime="0"``), penstock with exactly-once checkpoints every 5 seconds. Engines take turns,
after one round of everything that does not count: compiling for the first time would.

Processor time is that of all processes. Where Hadoop has no native library, Structured Streaming starts a ``readlink``
for each file of its log: a quarter of its processor time in the stateless pipelines, which counts.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import kafka_load  # noqa: E402 - found through the path above
import result  # noqa: E402
from kafka_load import Feed, Input, Topics, broker, connector_options, penstock_orders, spark_orders  # noqa: E402
from latency_sink import Arrivals, NoopSink, write_noop  # noqa: E402
from processes import compilations, jobs_run, processor_seconds  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PER_SECOND = 10_000
PIPELINES = ("stateless", "fifteen", "keyed", "keyed_many")
WINDOWS = {"keyed": "10 seconds", "keyed_many": "10 minutes"}
USERS = {"keyed_many": 200_000}
DELAY = "2 seconds"


@dataclass
class Run:
    """What one engine did in the seconds that count."""

    engine: str
    pipeline: str
    latencies: list[tuple[float, int]]
    """Milliseconds, each with the milliseconds of the feed for whose rows it holds."""

    rows: float
    """A batch."""

    batches: int
    batch_ms: list[float]
    plan_ms: list[float]
    jobs: int
    compilations: int
    processor_seconds: float

    def quantile(self, q: float) -> float:
        total = sum(rows for _, rows in self.latencies)
        passed = 0
        for latency, rows in sorted(self.latencies):
            passed += rows
            if passed >= q * total:
                return latency
        return float("nan")

    def row(self) -> list[object]:
        return [
            self.pipeline,
            self.engine,
            *(round(self.quantile(q)) for q in (0.5, 0.95, 0.99)),
            *(round(_quantile(self.batch_ms, q)) for q in (0.5, 0.99)),
            round(self.rows),
            round(self.jobs / max(1, self.batches), 2),
            round(statistics.median(self.plan_ms), 1),
            self.compilations,
            round(self.processor_seconds, 1),
        ]


MORE: dict[str, Callable[[Run], float]] = {
    "batch_p50": lambda run: _quantile(run.batch_ms, 0.5),
    "plan": lambda run: statistics.median(run.plan_ms),
    "cpu": lambda run: run.processor_seconds,
}
"""What is compared besides latency."""

COLUMNS = [
    "pipeline",
    "engine",
    "p50 ms",
    "p95",
    "p99",
    "batch p50",
    "batch p99",
    "rows",
    "jobs",
    "plan ms",
    "compiled",
    "CPU s",
]


# --------------------------------------------------------------------------------------------------------- the steps


def two_steps(frame: DataFrame) -> DataFrame:
    return frame.where("amount > 1").selectExpr("id", "user", "amount * 1.2 AS gross", "at", "partition", "created")


def fifteen_steps(frame: DataFrame) -> DataFrame:
    """Fifteen calls, as a grown pipeline has them."""
    return (
        frame.where("amount > 1")
        .withColumn("gross", frame["amount"] * 1.2)
        .withColumnRenamed("user", "customer")
        .selectExpr("*", "substring(customer, 2) AS number")
        .selectExpr("*", "CAST(number AS INT) AS code")
        .where("code >= 0")
        .selectExpr("*", "code % 16 AS shop")
        .selectExpr("*", "CASE WHEN gross > 50 THEN 'large' ELSE 'small' END AS size")
        .selectExpr("*", "date_trunc('HOUR', at) AS hour")
        .selectExpr("*", "concat_ws('/', size, shop) AS path")
        .selectExpr("*", "xxhash64(id) AS hash")
        .drop("number")
        .where("hash % 1000003 <> 0")
        .selectExpr("*", "round(gross, 1) AS shown")
        .selectExpr("id", "customer", "gross", "shown", "at", "hour", "path", "hash", "partition", "created")
    )


STEPS: dict[str, Callable[[DataFrame], DataFrame]] = {"stateless": two_steps, "fifteen": fifteen_steps}


# ------------------------------------------------------------------------------------------------------------- engines


@contextmanager
def penstock(spark: SparkSession, of: Input, pipeline: str, folder: Path, arrivals: Arrivals) -> Iterator[None]:
    import penstock as ps
    from penstock.facts import BatchRead, Fact

    @ps.pipeline("latency")
    def job(p: Any) -> None:
        orders = penstock_orders(p, of)
        if pipeline in STEPS:
            orders.transform(STEPS[pipeline]).write("out", NoopSink(arrivals))
            return
        windows = orders.with_watermark("at", delay=DELAY).group_by("user", ps.tumbling(WINDOWS[pipeline]))
        results = windows.agg(
            "totals",
            ps.agg.sum("amount").alias("amount"),
            ps.agg.count().alias("n"),
            ps.agg.max("created").alias("created"),
            emit="updates",
        )
        results.write("out", NoopSink(arrivals))

    def listen(fact: Fact) -> None:
        if isinstance(fact, BatchRead):
            arrivals.planned(fact.plan_ms)

    running = ps.Job(job, state=folder / "state", spark=spark, listener=listen, checkpoint_every="5s")
    running.start()
    try:
        yield
    finally:
        running.stop()


@contextmanager
def structured_streaming(
    spark: SparkSession, of: Input, pipeline: str, folder: Path, arrivals: Arrivals
) -> Iterator[None]:
    from pyspark.sql import functions as F

    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
    session.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    orders = spark_orders(session, of)
    if pipeline in STEPS:
        frame, mode = STEPS[pipeline](orders), "append"
    else:
        windows = orders.withWatermark("at", DELAY).groupBy("user", F.window("at", WINDOWS[pipeline]))
        totals = windows.agg(
            F.sum("amount").alias("amount"), F.count("*").alias("n"), F.max("created").alias("created")
        )
        frame, mode = totals, "update"

    def write(batch: DataFrame, _number: int) -> None:
        write_noop(batch, arrivals)

    writer = frame.writeStream.foreachBatch(write).outputMode(mode).trigger(processingTime="0 seconds")
    query = writer.option("checkpointLocation", str(folder / "state")).start()
    try:
        yield
    finally:
        for told in query.recentProgress:
            arrivals.planned(float(told["durationMs"].get("queryPlanning", 0)))
        query.stop()


ENGINES = {"penstock": penstock, "structured streaming": structured_streaming}


def run(
    spark: SparkSession,
    of: Input,
    engine: str,
    pipeline: str,
    folder: Path,
    arguments: argparse.Namespace,
    *,
    least: int,
) -> Run:
    """What an engine does; an error if it is fewer than ``least`` batches."""
    arrivals = Arrivals()
    with ENGINES[engine](spark, of, pipeline, folder, arrivals):
        threading.Event().wait(arguments.warm)
        before = compilations(spark), jobs_run(spark), processor_seconds(spark)
        began = time.time()
        threading.Event().wait(arguments.seconds)
        ended = time.time()
        after = compilations(spark), jobs_run(spark), processor_seconds(spark)
    batches = arrivals.between(began, ended)
    if len(batches) < least:
        msg = f"{engine}, {pipeline}: {len(batches)} batches in {arguments.seconds} s"
        raise AssertionError(msg)
    compiled, jobs, used = (now - then for now, then in zip(after, before, strict=True))
    return Run(
        engine=engine,
        pipeline=pipeline,
        latencies=list(arrivals.latencies(batches)),
        rows=sum(batch.newest - batch.before for batch in batches) * arguments.per_second / len(batches),
        batches=len(batches),
        batch_ms=[batch.took_ms for batch in batches],
        plan_ms=arrivals.plan_ms or [0.0],
        jobs=int(jobs),
        compilations=int(compiled),
        processor_seconds=used,
    )


# ----------------------------------------------------------------------------------------------------- an idle job


def idle(spark: SparkSession, of: Input) -> dict[str, result.Figure]:
    """What a source with nothing to read costs: how long a poll takes, and that it runs no job."""
    import penstock as ps
    from penstock.clock import MonotonicTime, WallTime
    from penstock.interfaces.source import NoData, ReadLimit, SourceContext

    source = ps.kafka.Source(servers=of.servers, topics=[of.topic], start="latest")
    reader = source.open(SourceContext(uid="idle", spark=spark), None)
    jobs, took = jobs_run(spark), []
    try:
        for _ in range(1000):
            began = time.perf_counter()
            answer = reader.poll(
                now=MonotonicTime(time.monotonic_ns() // 1000),
                wall=WallTime(time.time_ns() // 1000),
                limits=ReadLimit(),
            )
            took.append((time.perf_counter() - began) * 1e3)
            if not isinstance(answer, NoData):
                msg = f"an idle topic brought {answer}"
                raise AssertionError(msg)
    finally:
        reader.close()
    return {"empty_batch_ms": round(_quantile(took, 0.99), 3), "empty_batch_jobs": jobs_run(spark) - jobs}


def main() -> int:
    arguments = _arguments()
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory 4g {connector_options()} pyspark-shell"
    from penstock.spark.session import make_session

    home = result.bench_folder()
    runs: list[Run] = []
    with broker(home / "broker") as kafka:
        spark, topics = make_session("latency"), Topics(kafka.servers)
        quiet = Input(kafka.servers, topics.create("quiet", partitions=4))
        for number, pipeline, engine in itertools.product(range(arguments.rounds + 1), arguments.pipelines, ENGINES):
            topic = topics.create("live", partitions=4, retention_bytes=256 << 20)
            feed = Feed(kafka.servers, topic, arguments.per_second, USERS.get(pipeline, kafka_load.USERS))
            try:
                of = Input(kafka.servers, topic, "latest")
                folder = home / f"{pipeline}-{number}-{engine.split()[0]}"
                folder.mkdir()
                # a JVM that is not warm may take seconds for a batch
                done = run(spark, of, engine, pipeline, folder, arguments, least=10 if number else 1)
            finally:
                feed.end()
            print(done.row(), f"feed late by {feed.behind_ms} ms", file=sys.stderr, flush=True)
            if number:  # the first round, of all pipelines, only warms the JVM
                runs.append(done)
        figures = _figures(runs) | idle(spark, quiet)
    runs.sort(key=lambda run: arguments.pipelines.index(run.pipeline))
    result.show("latency from append to sink", COLUMNS, [run.row() for run in runs])
    if tuple(arguments.pipelines) == PIPELINES:
        details = [dict(zip(COLUMNS, run.row(), strict=False)) for run in runs]
        print(f"written: {result.save('latency', figures, settings=vars(arguments), details=details)}")
    result.tell(figures)
    return 0


def _figures(runs: list[Run]) -> dict[str, result.Figure]:
    figures: dict[str, result.Figure] = {}
    for pipeline in dict.fromkeys(run.pipeline for run in runs):
        ours, theirs = (
            [run for run in runs if run.pipeline == pipeline and (run.engine == "penstock") is mine]
            for mine in (True, False)
        )
        for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            mine, other = (statistics.median(run.quantile(q) for run in each) for each in (ours, theirs))
            figures[f"{pipeline}_{name}_ms"], figures[f"{pipeline}_{name}_ratio"] = round(mine), round(mine / other, 2)
        for name, of in MORE.items():
            mine, other = (statistics.median(map(of, each)) for each in (ours, theirs))
            figures[f"{pipeline}_{name}_ratio"] = round(mine / other, 2)
        figures[f"jobs_{pipeline}"] = max(round(run.jobs / run.batches, 2) for run in ours)
    mine = [run for run in runs if run.engine == "penstock"]
    return figures | {"compilations_after_warmup": max(run.compilations for run in mine)}


def _quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=list(PIPELINES))
    parser.add_argument("--per-second", type=int, default=PER_SECOND)
    parser.add_argument("--warm", type=float, default=30, help="seconds that do not count, for each engine and round")
    parser.add_argument("--seconds", type=float, default=20, help="seconds that do")
    parser.add_argument("--rounds", type=int, default=1, help="besides one that warms the JVM")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
