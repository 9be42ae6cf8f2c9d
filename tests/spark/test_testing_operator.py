"""One stateful step alone on a real session."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

import penstock as ps
from penstock.errors import HarnessError, SchemaMismatch, StateIncompatible
from penstock.handles import StateHandle
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.testing.filesystem import MemoryFileSystem
from penstock.testing.operator_harness import OperatorHarness
from window_harness import persistent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.api.pipeline import PipelineDefinition
    from penstock.operators.windows.panes import Window

pytestmark = pytest.mark.spark


@ps.pipeline("clicks")
def clicks(p: ps.Pipeline) -> None:
    stream = p.read("in", ps.files.Source("/nowhere", schema="who STRING, at TIMESTAMP"))
    stream = stream.select("upper(who) AS user", "at").with_watermark("at", delay="0 seconds")
    stream.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n")).write(
        "out", ps.memory.Sink()
    )


def at(user: str, minute: int) -> dict[str, object]:
    return {"user": user, "at": f"2026-01-01T00:{minute:02}:00Z"}


def test_a_step_of_a_pipeline_fires_is_restored_and_counts(spark: SparkSession) -> None:
    before = persistent(spark)
    with OperatorHarness.of(clicks, "counts", spark) as counts:
        counts.send([at("A", 0), at("A", 0), at("B", 1)])
        assert counts.rows() == []
        counts.advance("2026-01-01T00:01:00Z")
        assert counts.rows("user", "n") == [{"user": "A", "n": 2}]
        assert counts.rows() == [], "what was looked at is gone"
        counts.send([at("A", 0), at("B", 1)])
        assert counts.rows(port="late") == [{"user": "A", "at": datetime(2026, 1, 1, tzinfo=timezone.utc)}]
        state = counts.snapshot()
        counts.send([at("C", 1)])
        counts.restore(state, partitions=3)
        counts.advance(datetime(2026, 1, 1, 0, 2, tzinfo=timezone.utc))
        assert counts.rows("user", "n") == [{"user": "B", "n": 2}]
        assert counts.counters == {"late": 1, "fired": 2}
        counts.restore(None)
        counts.advance("2026-01-01T00:03:00Z")
        assert counts.rows() == []
    assert persistent(spark) <= before


@pytest.mark.usefixtures("eight_of_a_size")
def test_background_work_is_done_when_asked_for(spark: SparkSession) -> None:
    spec = WindowAggregate(
        keys=(("user", "user"),), time="at", window=ps.tumbling("1 minute"), aggregates=(ps.agg.count(),)
    )
    with OperatorHarness(spec, spark, "user STRING, at TIMESTAMP", consumed=["out"]) as counts:
        for _ in range(8):
            counts.send(spark.sql("SELECT 'a' AS user, TIMESTAMP'2026-01-01 00:00:00' AS at"))
        assert counts.maintain() > 0
        assert counts.counters["compacted"] > 0


def test_mistakes_are_told(spark: SparkSession) -> None:
    with pytest.raises(HarnessError, match=r"Pipeline 'clicks' has no stateful step 'count'. Did you mean 'counts'\?"):
        OperatorHarness.of(clicks, "count", spark)
    harness = OperatorHarness.of(clicks, "counts", spark)
    with pytest.raises(HarnessError, match="in a with block"):
        harness.snapshot()
    with harness as counts:
        counts.advance("2026-01-01T00:01:00Z")
        with pytest.raises(HarnessError, match="never goes back"):
            counts.advance("2026-01-01T00:00:00Z")
        with pytest.raises(SchemaMismatch, match=r"send\(\): row 1: Column 'who' does not exist"):
            counts.send([{"who": "a"}])
        with pytest.raises(StateIncompatible):
            counts.restore(StateHandle(kind="other/1", schema="", layers=()))
    given = MemoryFileSystem()
    with OperatorHarness.of(clicks, "counts", spark, filesystem=given) as counts:
        assert counts.rows() == []


def running(window: Window) -> PipelineDefinition:
    """Counts that send their changes every ten seconds."""

    @ps.pipeline("running")
    def made(p: ps.Pipeline) -> None:
        stream = p.read("in", ps.files.Source("/nowhere", schema="user STRING, at TIMESTAMP"))
        counts = (
            stream.with_watermark("at", delay="0 seconds")
            .group_by("user", window)
            .agg("counts", ps.agg.count().alias("n"), emit="updates", emit_every="10 seconds")
        )
        counts.write("out", ps.memory.Sink())

    return made


def test_processing_time_passes_only_when_the_test_says_so(spark: SparkSession) -> None:
    with OperatorHarness.of(running(ps.tumbling("1 hour")), "counts", spark) as counts:
        counts.send([at("A", 0) | {"user": "a"}])
        assert counts.rows() == []
        counts.elapse("10 seconds")
        assert counts.rows("_change", "n") == [{"_change": "insert", "n": 1}]
        counts.send([at("A", 1) | {"user": "a"}])
        counts.elapse("10 seconds")
        assert counts.rows("_change", "n") == [
            {"_change": "update_after", "n": 2},
            {"_change": "update_before", "n": 1},
        ]


def test_sessions_whose_changes_waited_close_once_these_are_sent(spark: SparkSession) -> None:
    with OperatorHarness.of(running(ps.session("10 seconds")), "counts", spark) as counts:
        counts.send([at("A", 0) | {"user": "a"}])
        counts.advance("2026-01-01T00:05:00Z")
        counts.elapse("10 seconds")
        assert counts.rows("_change", "n") == [{"_change": "insert", "n": 1}]
        counts.send([at("A", 0) | {"user": "a"}])
        assert len(counts.rows(port="late")) == 1
