"""kinesis.md as a newcomer follows it: the emulator on loopback, ``put.py``, ``shop.py``, and what comes out.

And a short form of ``make bench-kinesis``.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as ps
from integration.kinesis_server import HERE, EmulatorUnavailable, kinesis_server
from page_kit import blocks
from spark.job_kit import published

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from bench import kinesis  # noqa: E402 - found through the path above


def test_the_stream_of_kinesis_md_is_read(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in blocks("kinesis.md"):
        if line.startswith("export "):
            for name, _, value in (word.partition("=") for word in line.split()[1:]):
                monkeypatch.setenv(name, value)
    (loopback,) = blocks("kinesis.md", "js")
    assert (HERE / "loopback.js").read_text(encoding="utf-8").endswith(loopback)
    put, shop = (code for code in blocks("kinesis.md", "python") if "import" in code)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    try:
        with kinesis_server("kinesis-local", tmp_path / "server") as server:
            exec(put.replace("http://127.0.0.1:4568", server.url), {})
            exec(shop.replace("http://127.0.0.1:4568", server.url), names)
            ps.Job(names["orders"], state="state", spark=spark).run(until="caught-up")  # type: ignore[arg-type]
    except EmulatorUnavailable as error:
        pytest.skip(str(error))
    rows = published(tmp_path / "out")
    orders = Counter((f"user-{number % 5}", number * 3 // 60) for number in range(200))
    for minute in range(9):
        of_minute = {row["user"]: row["amount"] for row in rows if row["window_start"][14:16] == f"{minute:02}"}
        assert of_minute == {user: 1.5 * n for (user, at), n in orders.items() if at == minute}
    assert len(rows) == len({(row["user"], row["window_start"]) for row in rows})


def test_a_short_bench_reads_each_record_once_and_has_its_keys(spark: SparkSession) -> None:
    arguments = kinesis._arguments().parse_args(["--records", "3000", "--rounds", "1", "--warm", "3", "--seconds", "4"])
    try:
        figures = kinesis.measure(spark, arguments)
    except EmulatorUnavailable as error:
        pytest.skip(str(error))
    assert {"records_ratio", "p50_ms", "p99_ms"} <= figures.keys()
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert figures["records_ratio"] > 0
