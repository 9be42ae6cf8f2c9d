"""A whole job that only counts barriers, whose sources keep a pace, are rate-controlled and send latency markers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.facts import CheckpointCompleted, Fact, LatencyMeasured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def identity(frame: DataFrame) -> DataFrame:
    return frame


def test_at_least_once_with_pace_rate_control_and_markers_everything_arrives(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = ps.memory.Sink()

    @ps.pipeline("rhythm")
    def rhythm(p: ps.Pipeline) -> None:
        fast = p.read("fast", ps.generator.Source(identity, rows=300, per_batch=100))
        slow = p.read("slow", ps.generator.Source(identity, rows=200, per_batch=100), pace=ps.every("300 ms"))
        fast.union(slow).write("out", out)

    facts: list[Fact] = []
    settings = {"mode": "at-least-once", "rate_control": True, "latency_every": "50 ms", "checkpoint_every": "200 ms"}
    job = ps.Job(rhythm, state=tmp_path, spark=spark, listener=facts.append, **settings)
    report = job.run()

    assert sorted(row["n"] for row in out.rows) == sorted([*range(300), *range(200)])
    assert report.rows_read == {"fast": 300, "slow": 200}
    measured = [fact for fact in facts if isinstance(fact, LatencyMeasured)]
    assert {(fact.source, fact.task) for fact in measured} == {("fast", "out"), ("slow", "out")}
    assert all(fact.micros >= 0 for fact in measured)
    assert any(isinstance(fact, CheckpointCompleted) for fact in facts)


def test_a_sink_asked_for_exactly_once_is_refused_before_anything_runs(tmp_path: Path) -> None:
    @ps.pipeline("strict")
    def strict(p: ps.Pipeline) -> None:
        p.read("in", ps.rate.Source(1)).write("out", ps.memory.Sink(), guarantee="exactly-once")

    with pytest.raises(ps.GraphError, match="but the job runs with mode='at-least-once'"):
        ps.Job(strict, state=tmp_path, mode="at-least-once")
    assert list(tmp_path.iterdir()) == []
