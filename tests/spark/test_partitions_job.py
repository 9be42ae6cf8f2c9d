"""Partitions of a source in whole pipelines: each has its watermark, who holds it is named, late rows are told."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.api.pipeline import PipelineDefinition
from penstock.facts import BatchDone, Counted, RowsLate, WatermarkHeld
from penstock.testing.pipeline_run import PipelineRun
from penstock.testing.sources import ScriptedSource
from window_harness import compilations, jobs_of

pytestmark = pytest.mark.spark

SCHEMA = "partition INT, user STRING, at TIMESTAMP"


def pipeline(*steps: str, column: str | None = "partition", kind: str = "INT", **watermark: str) -> PipelineDefinition:
    @ps.pipeline("topic")
    def topic(p: ps.Pipeline) -> None:
        schema = SCHEMA.replace("partition INT", f"partition {kind}")
        stream = p.read("orders", ScriptedSource(schema, partition_column=column))
        for step in steps:
            stream = p.sql(step, o=stream)
        timed = stream.with_watermark("at", **{"delay": "0 seconds", **watermark})
        counts = timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counts.write("out", ps.memory.Sink())

    return topic


def row(partition: object, minute: int, second: int = 0) -> dict[str, object]:
    return {"partition": partition, "user": "u", "at": f"2026-01-01T00:{minute:02}:{second:02}Z"}


def clock(t: PipelineRun) -> str | None:
    at = t.watermark("counts")
    return None if at is None else f"{at:%H:%M:%S}"


def held(t: PipelineRun) -> list[str]:
    return [fact.by for fact in t.facts if isinstance(fact, WatermarkHeld) and fact.task == "counts"]


def late(t: PipelineRun) -> list[tuple[str, int]]:
    return [(fact.partition, fact.rows) for fact in t.facts if isinstance(fact, RowsLate)]


@pytest.mark.parametrize("kind", ["INT", "STRING", "SMALLINT"])
def test_the_slowest_partition_holds_and_is_named_and_late_rows_are_told_by_theirs(spark, kind):
    def of(partition: int, *at: int) -> dict[str, object]:
        return row(str(partition) if kind == "STRING" else partition, *at)

    with ps.testing.run(pipeline("SELECT o.*, 1 AS one FROM {o} o", kind=kind), spark) as t:
        t.send("orders", [of(0, 5), of(1, 2), of(2, 9)])
        assert (clock(t), held(t)) == ("00:02:00", ["orders/1"])
        t.send("orders", [of(1, 30), of(0, 7)])
        assert (clock(t), held(t)) == ("00:07:00", ["orders/1", "orders/0"])
        t.send("orders", [of(2, 1), of(2, 2), of(1, 0), of(0, 40)])
        assert late(t) == [("orders/1", 1), ("orders/2", 2)]
        assert t.counters("counts")["late"] == 3


def test_a_silent_partition_holds_until_it_is_idle_while_others_bring_rows(spark):
    with ps.testing.run(pipeline(idle_after="30 seconds"), spark) as t:
        t.send("orders", [row(0, 1), row(1, 1)])
        t.advance("20 seconds")
        t.send("orders", [row(0, 5)])
        assert clock(t) == "00:01:00"
        t.advance("10 seconds")
        assert clock(t) == "00:05:00"
        t.send("orders", [row(1, 2)])
        assert clock(t) == "00:05:00"
        assert late(t) == [("orders/1", 1)]


def test_a_row_of_the_far_future_moves_no_partition_and_is_counted(spark):
    with ps.testing.run(pipeline(max_ahead="1 hour"), spark) as t:
        t.send("orders", [row(0, 1), row(1, 2), {"partition": 1, "user": "u", "at": "2026-01-02T00:00:00Z"}])
        t.send("orders", [row(0, 3)])
        assert clock(t) == "00:02:00"
        assert t.counters("counts")["ahead"] == 1
        assert [fact.task for fact in t.facts if isinstance(fact, Counted) and fact.name == "ahead"] == ["counts"]


@pytest.mark.parametrize(
    "step",
    [
        "SELECT user, at FROM {o}",
        "SELECT 7 AS partition, user, at FROM {o}",
        "SELECT partition + 0 AS partition, user, at FROM {o}",
    ],
    ids=["dropped", "another", "changed"],
)
def test_where_a_step_drops_or_changes_the_column_all_partitions_are_one(spark, step):
    with ps.testing.run(pipeline(step), spark) as t:
        t.send("orders", [row(0, 5), row(1, 2)])
        t.send("orders", [row(1, 0)])
        assert (clock(t), held(t), late(t)) == ("00:05:00", [], [])
        assert t.counters("counts")["late"] == 1


def test_rows_of_the_only_partition_need_no_column(spark):
    with ps.testing.run(pipeline("SELECT user, at FROM {o}"), spark) as t:
        t.send("orders", [row(0, 5)])
        t.send("orders", [row(0, 1), row(0, 2)])
        assert late(t) == [("orders/0", 2)]


def test_through_a_union_partitions_of_two_sources_stay_apart(spark):
    @ps.pipeline("two")
    def two(p: ps.Pipeline) -> None:
        a, b = (p.read(uid, ScriptedSource(SCHEMA, partition_column="partition")) for uid in "ab")
        timed = a.union(b).with_watermark("at", delay="0 seconds")
        counts = timed.group_by("user", ps.tumbling("1 minute")).agg("counts", ps.agg.count().alias("n"))
        counts.write("out", ps.memory.Sink())

    with ps.testing.run(two, spark) as t:
        t.send("a", [row(0, 5), row(1, 4)])
        assert (held(t)[-1], clock(t)) == ("b", None), "until b has told its partitions, none is passed"
        t.send("b", [row(0, 6)])
        assert held(t)[-2:] == ["b", "a/1"]
        t.send("a", [row(1, 8), row(0, 7)])
        assert held(t)[-3:] == ["b", "a/1", "b/0"], "that a has no rows of it takes nothing away"
        assert clock(t) == "00:06:00"


def test_sixty_four_partitions_are_one_figure_of_the_same_job_and_compile_nothing_anew(spark):
    with ps.testing.run(pipeline(), spark) as t:
        names = range(64)
        for minute in range(4):
            if minute == 2:
                before, jobs = compilations(spark), _jobs(spark)
            t.send("orders", [row(partition, minute, partition % 60) for partition in names])
        assert compilations(spark) == before
        assert _jobs(spark) - jobs == 4, "for each batch its layer, and the result that was due for the sink"
        assert clock(t) == "00:03:00"
        figures = next(fact.figures for fact in t.facts if isinstance(fact, BatchDone) and fact.task == "counts")
        (time,) = (told for name, told in figures.items() if name.startswith("time:"))
        assert len(time["partitions"]) == 64


def _jobs(spark) -> int:
    return jobs_of(spark, *(f"penstock-{task}" for task in ("counts", "out", "orders")))
