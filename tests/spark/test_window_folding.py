"""Rows aggregated before they travel give the layers and results that rows aggregated in their places give."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK
from penstock.interfaces.operator import LATE_PORT
from penstock.operators import aggregates as agg
from penstock.operators.windows import ingest
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import sliding, tumbling
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
def test_folded_batches_are_one_job_and_mix_with_others(spark, tmp_path, monkeypatch, window):
    before = persistent(spark)
    plain, _, _ = run(spark, tmp_path / "plain", window)
    monkeypatch.setattr(ingest, "MIN_ROWS", 1)
    monkeypatch.setattr(ingest, "MIN_ROWS_PER_GROUP", 1)
    folded, jobs, compiled = run(spark, tmp_path / "folded", window)
    assert folded == plain
    assert jobs == [1] * 5
    assert compiled[3:] == [0, 0], "the second batch is the first that is folded"
    assert persistent(spark) <= before


def test_a_hot_key_among_many_is_noticed_and_changes_no_result(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(ingest, "MIN_ROWS", 100)
    found = {}
    for places in (1, 4):  # one place cannot be fuller than others, so nothing is folded there
        rig = Rig(spark, step(tumbling("10 seconds")), SCHEMA, tmp_path / str(places), partitions=places)
        folded, jobs = [], []
        for turn in range(4):
            hot = [{"k": 1.5, "at": n % 20 * SECOND, "x": n} for n in range(200)]
            rare = [{"k": 1000.0 * turn + n, "at": n % 20 * SECOND, "x": n} for n in range(150)]
            with counted(spark) as cost:
                rig.process([*hot, *rare])
            jobs.append(cost.jobs)
            folded.append(rig.operator._pre_aggregation.is_worthwhile)
        assert jobs == [1] * 4
        assert folded == [False, *[places > 1] * 3]
        rig.advance(MAX_WATERMARK)
        found[places] = sorted(map(repr, rig.take()))
        rig.operator.close()
    assert found[1] == found[4]
