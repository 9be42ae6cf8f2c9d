"""A job's state is read by another program, from its log and files alone: DuckDB, no penstock, no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, n LONG, at TIMESTAMP"

PROGRAM = """
import json, pathlib, sys
import duckdb

root = pathlib.Path(sys.argv[1])
entries = [json.loads(path.read_text()) for path in sorted((root / "log").glob("*.json"))]
manifest = next(entry["body"] for entry in reversed(entries) if entry["kind"] == "checkpoint")

def state(step):
    (found,) = [task["state"] for task in manifest["tasks"] if task["task"] == step]
    files = [str(root / file["path"]) for layer in found["layers"] for file in layer["files"]]
    return found["detail"], f"read_parquet({files})"

detail, files = state("slides")
slides = duckdb.sql(f'''
    WITH panes AS (
        SELECT "user", epoch_us(pane_start) AS s, epoch_us(pane_end) AS e, sum(n__sum) AS n FROM {files}
        WHERE epoch_us(pane_end) > {detail["horizon"] or -2**63} GROUP BY ALL
    ), windows AS (SELECT unnest(range(-60, 600, 10)) * 1000000 + 1767225600000000 AS w)
    SELECT "user", (w - 1767225600000000) // 1000000, sum(n) FROM panes, windows
    WHERE s >= w AND e <= w + 20000000 AND w + 20000000 > {detail["fired"] or -2**63} GROUP BY ALL ORDER BY ALL
''').fetchall()

detail, files = state("live")
live = duckdb.sql(f'''
    SELECT "user", epoch_us(window_start) // 1000000 - 1767225600, sum(n__sum), max(n__max), count(*) > 1
    FROM {files} GROUP BY ALL ORDER BY ALL
''').fetchall()

foreign = [name for name in sys.modules if name.split(".")[0] in ("penstock", "pyspark")]
said = {"emit": detail["emit"], "window": detail["window"]}
print(json.dumps({"slides": slides, "live": live, "foreign": foreign, **said}))
"""


@ps.pipeline("elsewhere")
def elsewhere(p: ps.Pipeline) -> None:
    timed = p.read("in", ps.files.Source("/nowhere/at/all", schema=SCHEMA)).with_watermark("at", delay="0 seconds")
    slides = timed.group_by("user", ps.sliding("20 seconds", "10 seconds"))
    slides.agg("slides", ps.agg.sum("n").alias("n")).write("slides-out", ps.memory.Sink())
    live = timed.group_by("user", ps.tumbling("1 minute"))
    sums = (ps.agg.sum("n").alias("n"), ps.agg.max("n").alias("n_max"))
    live.agg("live", *sums, emit="updates").write("live-out", ps.memory.Sink())


def row(user: str, n: int, second: int) -> dict[str, object]:
    return {"user": user, "n": n, "at": f"2026-01-01T00:00:{second:02}Z"}


def read_elsewhere(root: Path) -> dict[str, object]:
    program = PROGRAM.replace("n__max", "n_max__max")
    done = subprocess.run([sys.executable, "-I", "-c", program, str(root)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_panes_and_what_changes_tell_of_are_read_with_duckdb_alone(spark):
    with ps.testing.run(elsewhere, spark) as t:
        t.send("in", [row("a", 1, 5), row("a", 2, 12), row("b", 4, 14)])
        t.checkpoint()
        t.send("in", [row("a", 8, 13), row("b", 16, 25)])
        t.checkpoint()
        found = read_elsewhere(t.folder / "elsewhere")
        assert found["foreign"] == []
        assert found["live"] == [["a", 0, 11, 8, True], ["b", 0, 20, 16, True]]
        assert (found["emit"], found["window"]) == ("updates", "tumbling 1 minute")
        assert found["slides"] == [["a", 10, 10], ["b", 10, 20], ["b", 20, 16]], "those that are still to be sent"
