"""The page about windows is run as it stands, and its windows of windows are held against SQL."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

import penstock as ps
from spark.job_kit import drop

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "windows.md"


def test_the_examples_of_the_page_about_windows_run(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL))
    rows = [
        {"user": f"u{n % 3}", "n": n, "at": f"2026-03-29T{n % 24:02}:{n * 7 % 60:02}:{n % 60:02}.0Z"} for n in range(48)
    ]
    drop(tmp_path / "in", "1.json", rows)
    sinks = {name: ps.memory.Sink(name) for name in re.findall(r'memory\.Sink\("([\w-]+)"\)', code)}

    @ps.pipeline("page")
    def page(p: ps.Pipeline) -> None:
        exec(code, {"p": p, "ps": ps})

    ps.Job(page, state="state", spark=spark).run()
    found = {name: sink.rows for name, sink in sinks.items()}
    assert {name for name, kept in found.items() if not kept} == {"patient-late"}
    database = duckdb.connect()
    expected = database.sql("""
        SELECT user, date_trunc('hour', strptime("at", '%Y-%m-%dT%H:%M:%S.%gZ')), sum(n)
        FROM read_json('in/*.json', columns={user: 'VARCHAR', n: 'BIGINT', "at": 'VARCHAR'}) GROUP BY ALL ORDER BY ALL
    """).fetchall()
    hours = [(row["user"], row["window_start"].replace(tzinfo=None), row["n"]) for row in found["hours"]]
    assert sorted(hours) == expected
    days = {(row["window_end"] - row["window_start"]).total_seconds() / 3_600 for row in found["days"]}
    assert days == {23, 24}, "the 29th of March 2026 had 23 hours in Berlin"
    assert sum(row["n"] for row in found["days"]) == sum(row["n"] for row in rows)
