"""A whole job over a webhook: posts, a restart within the driver, the next run, keys over all of it; and the page."""

from __future__ import annotations

import http.client
import json
import shlex
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from core.http_kit import free_port
from page_kit import blocks
from penstock.facts import Published, Restarting
from penstock.failpoints import armed
from spark.job_kit import PATIENCE, Watch, published

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def post(port: int, rows: Any, key: str) -> tuple[dict[str, int], bool]:
    """The answer to rows that are sent until they are taken, and whether they had been before."""
    pause = threading.Event()
    for _ in range(PATIENCE * 20):
        connection = http.client.HTTPConnection("localhost", port, timeout=PATIENCE)
        try:
            headers = {"Content-Type": "application/json", "Idempotency-Key": key}
            connection.request("POST", "/", json.dumps(rows), headers)
            answer = connection.getresponse()
            document = json.loads(answer.read())
            if answer.status == 200:
                return document, answer.getheader("Idempotency-Replayed") is not None
            assert (answer.status, answer.getheader("Retry-After")) == (503, "1"), document
        except ConnectionRefusedError:
            pass  # it does not listen yet
        finally:
            connection.close()
        pause.wait(0.05)
    raise AssertionError


def test_rows_are_published_once_over_restarts_and_requests_that_come_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    out, watch, port = ps.memory.Sink(), Watch(), free_port()

    @ps.pipeline("hook")
    def pipeline(p: ps.Pipeline) -> None:
        p.read("in", ps.http.Source(port, schema="id LONG", block_interval_ms=1)).write("out", out)

    def start() -> ps.Job:
        job = ps.Job(pipeline, state=tmp_path, spark=spark, listener=watch, checkpoint_every="100ms")
        job.start()
        return job

    job = start()
    assert post(port, [{"id": 1}, {"id": 2}, "x"], "a") == ({"rows": 2, "bad": 1}, False)
    watch.wait_for(Published)
    with armed("received.block.durable", "error:EIO", hit=1):  # it is durable, and its client is not told
        assert post(port, {"id": 3}, "b") == ({"rows": 1, "bad": 0}, True)
    watch.wait_for(Restarting)
    assert post(port, [{"id": 1}, {"id": 2}, "x"], "a") == ({"rows": 2, "bad": 1}, True)
    job.stop()
    assert job.report().counters["in", "bad_records"] == 1

    again = start()
    assert post(port, {"id": 3}, "b")[1]
    assert post(port, {"id": 4}, "c") == ({"rows": 1, "bad": 0}, False)
    again.stop()
    ps.Job(pipeline, state=tmp_path, spark=spark).run(until="caught-up")

    assert sorted(row["id"] for row in out.rows) == [1, 2, 3, 4]


def test_the_webhook_of_receivers_md_is_curled(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    port = free_port()
    code = next(code for code in blocks("receivers.md", "python") if "ps.http.Source(8080" in code)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code.replace("8080", str(port)), "receivers.md", "exec"), names)
    (line,) = blocks("receivers.md", "sh")
    again = ["--silent", "--retry-all-errors", "--retry", "100", "--retry-delay", "1"]  # until it listens
    words = [*shlex.split(line.replace("8080", str(port))), *again]

    job = ps.Job(names["orders"], state="state", spark=spark)
    job.start()
    said = [subprocess.run(words, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    job.stop()
    ps.Job(names["orders"], state="state", spark=spark).run(until="caught-up")

    assert said == ['{"rows": 1, "bad": 0}\n'] * 2
    assert published(tmp_path / "orders") == [{"user": "ada", "amount": 3.5}]
