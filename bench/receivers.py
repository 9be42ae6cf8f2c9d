"""Rows that clients POST to a webhook, and lines of a socket: penstock, and for the socket Structured Streaming too.

make bench-receivers                                   about 5 minutes
make bench-receivers ARGS="--seconds 5 --warm 4"       a look

Rows have 100 B, a request 1,000 of them, and 64 requests are in flight: from 1, 8 and 64 clients, each a process. They
share the machine's cores with the job, which writes each batch to Spark's ``noop`` format. ``rows_per_s`` counts rows
that were acknowledged, ``ack_p99_ms`` is from the first byte of a request to its answer: both the worst of the three.
Requests of one row are shown apart. Requests that were pushed back (429, 503) count as none, and are shown.

A row of the socket has its latency from being sent to the end of the job that wrote its batch; both engines read the
same lines, 10,000 a second, as fast as they can. ``socket_p50_ratio`` is ours to theirs. Theirs keeps no row that a
crash finds.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import result  # noqa: E402 - found through the path above
from latency_sink import Arrivals, NoopSink, write_noop  # noqa: E402
from receivers_load import Lines, Load, post_rows  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLIENTS = (1, 8, 64)
IN_FLIGHT = 64
COLUMNS = ["clients", "rows a request", "rows/s", "requests", "ack p50 ms", "p99", "pushed back"]
CREATED = "CAST(substring_index(value, ',', 1) AS LONG) AS created"


# ---- the webhook -----------------------------------------------------------------------------------------------------


@contextmanager
def webhook(spark: SparkSession, folder: Path, arguments: argparse.Namespace) -> Iterator[int]:
    """A job that takes rows at a port."""
    import socket

    import penstock as ps

    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    arrivals = Arrivals()

    @ps.pipeline("hook")
    def job(p: Any) -> None:
        source = ps.http.Source(
            port,
            schema="id LONG, user STRING, created LONG, text STRING",
            block_interval_ms=arguments.block_interval_ms,
            max_connections=2 * IN_FLIGHT,
        )
        p.read("in", source).write("out", NoopSink(arrivals))

    running = ps.Job(job, state=folder / "state", spark=spark, checkpoint_every="5s")
    running.start()
    try:
        _wait_for(port)
        yield port
    finally:
        running.stop()


def _wait_for(port: int) -> None:
    import socket

    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            threading.Event().wait(0.1)
        else:
            return
    msg = f"nobody listens at {port}"
    raise AssertionError(msg)


def row(clients: int, rows: int, load: Load) -> list[object]:
    half = sorted(load.ack_ms)[len(load.ack_ms) // 2]
    return [clients, rows, load.rows_per_s, len(load.ack_ms), round(half, 1), load.ack_p99_ms, load.pushed_back]


# ---- the socket ------------------------------------------------------------------------------------------------------


@contextmanager
def penstock_lines(spark: SparkSession, port: int, folder: Path, arrivals: Arrivals) -> Iterator[None]:
    import penstock as ps

    @ps.pipeline("lines")
    def job(p: Any) -> None:
        p.read("in", ps.socket.Source("127.0.0.1", port)).select(CREATED).write("out", NoopSink(arrivals))

    running = ps.Job(job, state=folder / "state", spark=spark, checkpoint_every="5s")
    running.start()
    try:
        yield
    finally:
        running.stop()


@contextmanager
def spark_lines(spark: SparkSession, port: int, folder: Path, arrivals: Arrivals) -> Iterator[None]:
    session = spark.newSession()
    lines = session.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()

    def write(batch: DataFrame, _number: int) -> None:
        write_noop(batch, arrivals)

    writer = lines.selectExpr(CREATED).writeStream.foreachBatch(write).trigger(processingTime="0 seconds")
    query = writer.option("checkpointLocation", str(folder / "state")).start()
    try:
        yield
    finally:
        query.stop()


ENGINES = {"penstock": penstock_lines, "structured streaming": spark_lines}


def socket_p50(spark: SparkSession, engine: str, folder: Path, arguments: argparse.Namespace) -> float:
    """Milliseconds from a line that is sent to the end of its batch, in the middle."""
    lines, arrivals = Lines(arguments.per_second), Arrivals()
    try:
        with ENGINES[engine](spark, lines.port, folder, arrivals):
            threading.Event().wait(arguments.warm)
            began = time.time()
            threading.Event().wait(arguments.seconds)
            found = sorted(ms for ms, _ in arrivals.latencies(arrivals.between(began, time.time())))
    finally:
        lines.end()
    if not found:
        msg = f"{engine}: no batch in {arguments.seconds} s"
        raise AssertionError(msg)
    return found[len(found) // 2]


def main() -> int:
    arguments = _arguments()
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 4g pyspark-shell"
    from penstock.spark.session import make_session

    home, spark = result.bench_folder(), make_session("receivers")
    rows: list[list[object]] = []
    loads: dict[int, Load] = {}
    for clients in arguments.clients:
        with webhook(spark, home / f"hook-{clients}", arguments) as port:
            post_rows(port, clients=clients, in_flight=IN_FLIGHT, rows=arguments.rows, seconds=arguments.warm)
            loads[clients] = post_rows(
                port, clients=clients, in_flight=IN_FLIGHT, rows=arguments.rows, seconds=arguments.seconds
            )
        rows.append(row(clients, arguments.rows, loads[clients]))
    with webhook(spark, home / "hook-single", arguments) as port:
        post_rows(port, clients=8, in_flight=IN_FLIGHT, rows=1, seconds=arguments.warm)
        single = post_rows(port, clients=8, in_flight=IN_FLIGHT, rows=1, seconds=arguments.seconds)
    rows.append(row(8, 1, single))
    middle: dict[str, float] = {}
    for engine in ENGINES:
        folder = home / engine.split()[0]
        folder.mkdir()
        middle[engine] = socket_p50(spark, engine, folder, arguments)
    ours, theirs = middle["penstock"], middle["structured streaming"]
    figures: dict[str, result.Figure] = {
        "rows_per_s": min(load.rows_per_s for load in loads.values()),
        "ack_p99_ms": max(load.ack_p99_ms for load in loads.values()),
        "socket_p50_ratio": round(ours / theirs, 2),
        "socket_p50_ms": round(ours),
        "single_rows_per_s": single.rows_per_s,
        "single_ack_p99_ms": single.ack_p99_ms,
        **{f"rows_per_s_{clients}": load.rows_per_s for clients, load in loads.items()},
        **{f"ack_p99_ms_{clients}": load.ack_p99_ms for clients, load in loads.items()},
    }
    result.show("rows that clients POST", COLUMNS, rows)
    result.show("from a line to its batch", ["engine", "p50 ms"], [[name, round(ms)] for name, ms in middle.items()])
    if arguments.seconds >= FULL:
        details = [dict(zip(COLUMNS, each, strict=True)) for each in rows]
        print(f"written: {result.save('receivers', figures, settings=vars(arguments), details=details)}")
    result.tell(figures)
    return 0


FULL = 20
"""Seconds of a run whose figures are kept."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", type=int, default=list(CLIENTS))
    parser.add_argument("--rows", type=int, default=1_000, help="of a request")
    parser.add_argument("--block-interval-ms", type=int, default=200)
    parser.add_argument("--per-second", type=int, default=10_000, help="lines of the socket")
    parser.add_argument("--warm", type=float, default=15, help="seconds that do not count, for each part")
    parser.add_argument("--seconds", type=float, default=FULL, help="seconds that do")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
