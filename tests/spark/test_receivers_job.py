"""Whole jobs over rows that are received: a socket, a receiver of one's own, those of receivers.md, a failure."""

from __future__ import annotations

import queue
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock as ps
from core.checkpoint_values import CLAIM, log_on
from core.http_kit import free_port
from page_kit import blocks
from penstock.api.pipeline import PipelineDefinition
from penstock.checkpoint.received import ReceivedBlocks
from penstock.connectors.receivers.blocks import encode_block
from penstock.control.client import host_identity
from penstock.errors import GraphError
from penstock.facts import CheckpointCompleted, Published, Restarting
from penstock.filesystem.local import LocalFileSystem
from spark.job_kit import PATIENCE, Watch, published

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Numbers(ps.receivers.Receiver):
    """Stores 0, 1, 2 … reliably, and notes which were acknowledged; fails once after five."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.acknowledged: list[int] = []  # shared by the copies that run
        self.over = threading.Event()
        self.begun = threading.Event()
        self.begun.set()

    def on_start(self, store: ps.receivers.Store) -> None:
        assert self.begun.wait(PATIENCE)
        first = len(self.acknowledged)
        for number in range(first, self.count):
            if number == 5 and first == 0:
                msg = "the line is dead"
                raise ConnectionError(msg)
            store.store_reliably([{"n": number}])
            self.acknowledged.append(number)
        assert self.over.wait(PATIENCE)

    def on_stop(self) -> None:
        self.over.set()


@pytest.mark.mission("S29")
def test_each_acknowledged_row_is_published_once_although_the_receiver_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    out, watch, numbers = ps.memory.Sink(), Watch(), Numbers(12)

    @ps.pipeline("numbers")
    def pipeline(p: ps.Pipeline) -> None:
        source = ps.receivers.Source(numbers, schema="n INT", block_interval_ms=1)
        read = p.read("in", source, pace=ps.every("20 ms", missed="each"))
        read.select("n * 2 AS twice").write("out", out)

    job = ps.Job(pipeline, state=tmp_path, spark=spark, listener=watch, checkpoint_every="50ms")
    job.start()
    watch.wait_for(Restarting)
    seen = 1
    while len(out.rows) < numbers.count:
        watch.wait_for(Published, seen)
        seen += 1
    job.stop()
    ps.Job(pipeline, state=tmp_path, spark=spark).run(until="caught-up")

    assert numbers.acknowledged == list(range(12))
    assert sorted(row["twice"] for row in out.rows) == [2 * number for number in range(12)]
    assert "The receiver failed: ConnectionError: the line is dead." in watch.of(Restarting)[0].cause


def given_before(folder: Path, job: str, blocks: list[tuple[int, list[int]]]) -> None:
    """A job that was given a block at each of these ticks, in seconds, and died before it read one."""
    filesystem = LocalFileSystem(folder / job)
    gone = replace(CLAIM, host=host_identity(), pid=2**31 - 2)
    log = ReceivedBlocks("in", log_on(filesystem, job=job)[0].claim(gone), filesystem, lambda _: None)
    log.adopt(None)
    for tick, seconds in blocks:
        times = pa.array([each * 1_000_000 for each in seconds], pa.timestamp("us", "UTC"))
        log.write(encode_block(pa.table({"at": times}), tick * 1_000_000))


@pytest.mark.mission("S22")
@pytest.mark.parametrize("missed", ["together", "each"])
def test_windows_by_event_time_are_the_same_after_an_hour_of_missed_ticks(
    spark: SparkSession, tmp_path: Path, missed: str
) -> None:
    out = ps.memory.Sink()
    noon = 1_700_000_000

    @ps.pipeline("windows")
    def pipeline(p: ps.Pipeline) -> None:
        source = ps.receivers.Source(Numbers(0), schema="at TIMESTAMP")
        pace = ps.every("1 second", missed="each") if missed == "each" else ps.every("1 second")
        timed = p.read("in", source, pace=pace).with_watermark("at", delay="0 seconds")
        timed.group_by(ps.tumbling("10 seconds")).agg("counts", ps.agg.count().alias("n")).write("out", out)

    ticks = [(noon + 60 * minute, [noon + 6 * minute + second for second in range(6)]) for minute in range(10)]
    given_before(tmp_path, "windows", ticks)
    job = ps.Job(pipeline, state=tmp_path, spark=spark, max_rows_per_batch=7)
    job.run(until="caught-up")

    assert [row["n"] for row in out.rows] == [10] * 5, "no row is late, and the last window is still open"
    assert ("counts", "late") not in job.report().counters


def test_the_lines_of_a_socket_are_rows_and_its_end_ends_the_job(spark: SparkSession, tmp_path: Path) -> None:
    out, watch = ps.memory.Sink(), Watch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        @ps.pipeline("lines")
        def pipeline(p: ps.Pipeline) -> None:
            p.read("in", ps.socket.Source("127.0.0.1", port, max_attempts=1, with_bad=True)).write("out", out)

        job = ps.Job(pipeline, state=tmp_path, spark=spark, listener=watch)
        job.start()
        server.settimeout(PATIENCE)
        connection, _ = server.accept()
        with connection:
            connection.sendall("eins\r\nzwei\n\xff\n".encode("latin-1"))
        assert job.wait(PATIENCE)

    assert [(row["value"], row["_bad"]) for row in out.rows] == [
        ("eins", None),
        ("zwei", None),
        ("\ufffd", "not utf-8: invalid start byte"),
    ]
    assert job.report().counters == {("in", "bad_records"): 1}
    assert job.report().lag["in"].rows == 0
    assert watch.of(CheckpointCompleted)


def test_the_jobs_of_receivers_md_run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    hook = str(free_port())
    with socket.create_server(("127.0.0.1", 0)) as server:
        for code in blocks("receivers.md", "python"):
            mine = code.replace("9999", str(server.getsockname()[1])).replace("8080", hook)
            exec(compile(mine, "receivers.md", "exec"), names)
        text, numbers = (ps.Job(names[name], state="state", spark=spark) for name in ("lines", "numbers"))
        assert names["elsewhere"].describe() == "webhook https://0.0.0.0:8443/"
        text.start()
        server.settimeout(PATIENCE)
        with server.accept()[0] as connection:
            numbers.start()
            answer: queue.Queue[str] = queue.Queue()
            names["inbox"].put((7, answer))
            assert answer.get(timeout=PATIENCE) == "received"
            numbers.stop()
            connection.sendall(b"one\n\ntwo\n")
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""  # it has read to the end, and is about to connect again
            text.stop()
    for pipeline in (names["lines"], names["numbers"]):
        ps.Job(pipeline, state="state", spark=spark).run(until="caught-up")

    assert sorted(row["value"] for row in published(tmp_path / "out")) == ["ONE", "TWO"]
    assert published(tmp_path / "numbers") == [{"n": 7}]


def test_what_is_received_cannot_be_shown(spark: SparkSession) -> None:
    stream = ps.Pipeline("lines").read("in", ps.socket.Source("localhost", 1))

    with pytest.raises(GraphError, match="state directory of a job"):
        ps.show(stream)


def test_a_shadow_run_receives_nothing_and_reads_the_blocks_that_a_savepoint_keeps(
    spark: SparkSession, tmp_path: Path
) -> None:
    out, watch, numbers = ps.memory.Sink(), Watch(), Numbers(4)
    numbers.begun.clear()
    opened: list[object] = []

    def times(factor: int) -> PipelineDefinition:
        @ps.pipeline("numbers")
        def pipeline(p: ps.Pipeline) -> None:
            source = ps.receivers.Source(numbers, schema="n INT", block_interval_ms=1)
            p.read("in", source).select("n", f"n * {factor} AS times").write("out", out)

        return pipeline

    job = ps.Job(times(2), state=tmp_path / "state", spark=spark, listener=watch, checkpoint_every="50ms")
    job.start()
    job.savepoint("before")
    numbers.begun.set()
    while len(out.rows) < numbers.count:
        watch.wait_for(Published, len(watch.of(Published)) + 1)
    job.stop()
    numbers.on_start = opened.append  # type: ignore[assignment, method-assign]

    result = ps.shadow(
        times(3),
        against=times(2),
        restore_from="before",
        state=tmp_path / "state",
        out=tmp_path / "shadow",
        key={"out": ["n"]},
        spark=spark,
    )

    assert {side: dict(report.rows_read) for side, report in result.reports.items()} == {
        "old": {"in": 4},
        "new": {"in": 4},
    }
    [written] = result.sinks
    assert written.comparison is not None
    assert (written.comparison.equal, written.comparison.changed) == (1, 3)
    assert opened == []
