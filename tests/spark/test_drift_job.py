"""Whole jobs whose sources wait for each other: what the one ahead has read never piles up in state."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

import penstock as ps
from penstock.facts import BatchDone, ReadingPaused, RowsLate, WatermarkAdvanced
from penstock.testing.sources import End, ScriptedSource

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.facts import Fact

pytestmark = pytest.mark.spark

SCHEMA = "partition INT, at TIMESTAMP"
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
ZERO, MINUTE = int(START.timestamp() * 1_000_000), 60_000_000


def row(minute: int, partition: int = 0) -> dict[str, object]:
    return {"partition": partition, "at": START + timedelta(minutes=minute)}


def minutes_ahead(facts: list[Fact]) -> list[int]:
    """For each batch of ``counts`` the minutes from event time, as it stood, to its latest row: state spans those."""
    at, found = 0, []
    for fact in facts:
        if isinstance(fact, WatermarkAdvanced) and fact.task == "counts":
            at = max(at, (fact.at - ZERO) // MINUTE)
        if isinstance(fact, BatchDone) and fact.task == "counts":
            latest: Any = [told["max"] for name, told in fact.figures.items() if name.startswith("time:")]
            found += [(time - ZERO) // MINUTE - at for time in latest if time is not None]
    return found


def pauses(facts: list[Fact]) -> list[tuple[tuple[str, ...], str | None]]:
    return [(fact.paused, fact.by) for fact in facts if isinstance(fact, ReadingPaused)]


def test_of_two_sources_the_one_far_ahead_waits_until_the_other_comes_after_or_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With as many rows ``b`` covers ten times the event time: else it would be 100 minutes ahead when all is read."""
    out = ps.memory.Sink()

    @ps.pipeline("meet")
    def meet(p: ps.Pipeline) -> None:
        def read(uid: str, every: int, drift: str | None) -> ps.Stream:
            source = ScriptedSource(SCHEMA, [*(row(every * n) for n in range(12)), End()])
            return p.read(uid, source).with_watermark("at", delay="0 seconds", max_drift=drift)

        timed = read("a", 1, None).union(read("b", 10, "5 minutes"))
        timed.group_by(ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n")).write("out", out)

    facts: list[Fact] = []
    job = ps.Job(meet, state=tmp_path, spark=spark, listener=facts.append, max_rows_per_batch=1)
    job.run()
    assert sum(each["n"] for each in out.rows) == 24
    assert pauses(facts)[0] == (("b",), "a")
    assert pauses(facts)[-1] == ((), None), "a has ended"
    until_then = facts[: next(i for i, fact in enumerate(facts) if fact == ReadingPaused(task="b", paused=(), by=None))]
    assert max(minutes_ahead(until_then)) <= 5 + 10, "the drift and one batch"


def test_of_two_partitions_the_one_far_ahead_waits_also_after_a_crash_and_nothing_is_lost(spark: SparkSession) -> None:
    @ps.pipeline("topic")
    def topic(p: ps.Pipeline) -> None:
        source = ScriptedSource(SCHEMA, partition_column="partition")
        timed = p.read("in", source).with_watermark("at", delay="0 seconds", max_drift="5 minutes")
        timed.group_by(ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n")).write("out", ps.memory.Sink())

    with ps.testing.run(topic, spark, max_rows_per_batch=2) as t:
        both = [each for n in range(6) for each in (row(n, 0), row(10 * n, 1))]
        t.send("in", [*both, row(60, 1), row(70, 1)])
        assert pauses(t.facts) == [(("in/1",), "in/0"), ((), None), (("in/1",), "in/0")]
        assert max(minutes_ahead(t.facts)) <= 5 + 20, "the drift and one batch"
        t.checkpoint()
        t.crash()
        t.send("in", [row(n, 0) for n in range(6, 12)])
        t.restart()
        assert max(minutes_ahead(t.facts)) <= 5 + 20 + 20, "and the first batch, before which nobody knows"
        t.end()
        assert sum(each["n"] for each in t.rows("out", "n")) == 20
        assert not [fact for fact in t.facts if isinstance(fact, RowsLate)]
