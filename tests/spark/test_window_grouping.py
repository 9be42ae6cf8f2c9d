"""Rows that are grouped before they are exchanged give the results of rows that are grouped in their places."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK
from penstock.interfaces.operator import LATE_PORT
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import sliding, tumbling
from penstock.spark import kept_plans
from window_harness import Rig, counted, persistent

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("k", pa.float64()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])
KEYS = [0.0, -0.0, math.nan, None, 1.5, -1.5]


def step(window) -> WindowAggregate:
    simple = (agg.sum("x"), agg.count().alias("n"), agg.avg("x"), agg.max("x"))
    aggregates = (*simple, agg.count_distinct("x"), agg.first("x", by="x"))
    return WindowAggregate(keys=(("k", "k"),), time="at", window=window, aggregates=aggregates)


def rows(start: int, count: int = 240) -> list[dict[str, object]]:
    return [{"k": KEYS[n % 6], "at": (start + n % 40) * SECOND, "x": n} for n in range(count)]


def run(spark, folder, window) -> tuple[list[tuple[object, ...]], list[int], list[int]]:
    rig = Rig(spark, step(window), SCHEMA, folder)
    jobs, compiled, found = [], [], []
    for turn in range(5):
        with counted(spark) as cost:
            rig.process(rows(turn * 7))
        jobs.append(cost.jobs)
        compiled.append(cost.compilations)
        rig.advance(turn * 10 * SECOND)
        found += rig.take()
    rig.take(LATE_PORT)
    rig = rig.again(rig.checkpoint(), partitions=3)
    rig.process(rows(60))
    rig.advance(MAX_WATERMARK)
    found += rig.take()
    rig.take(LATE_PORT)
    rig.operator.close()
    return sorted(map(repr, found)), jobs, compiled


@pytest.mark.parametrize("window", [tumbling("10 seconds"), sliding("20 seconds", "5 seconds")], ids=str)
def test_rows_grouped_before_their_exchange_are_those_that_are_grouped_after_it(spark, tmp_path, monkeypatch, window):
    before = persistent(spark)
    grouped, jobs, compiled = run(spark, tmp_path / "grouped", window)
    monkeypatch.setattr(kept_plans, "is_keepable", lambda _plan: False)  # so rows are exchanged and then grouped
    exchanged, _, _ = run(spark, tmp_path / "exchanged", window)
    assert grouped == exchanged
    assert jobs == [1] * 5
    assert compiled[2:] == [0] * 3
    assert persistent(spark) <= before
