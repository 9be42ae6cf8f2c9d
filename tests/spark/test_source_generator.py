from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from penstock.clock import MonotonicTime, WallTime
from penstock.connectors import generator, rate
from penstock.connectors.counting import Rate
from penstock.errors import GraphError, StateIncompatible, UserFunctionError
from penstock.handles import Position
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, ReadLimit, SourceContext, Until
from penstock.spark.bound_plans import PlanBuilder, plan_of
from penstock.spark.kept_plans import KeptPlans
from window_harness import counted

pytestmark = pytest.mark.spark
T0 = 1_700_000_000_000_000
SECOND = 1_000_000


def open_(spark, source, resume=None, until=Until.STOPPED):
    return source.open(SourceContext(uid="in", spark=spark, until=until), resume)


def ask(reader, wall=T0, now=0, **limits):
    return reader.poll(now=MonotonicTime(now), wall=WallTime(wall), limits=ReadLimit(**limits))


def rows(reader, poll):
    return [tuple(row) for row in reader.frame(poll.plan).collect()]


@pytest.mark.parametrize("rows_per_second", [1, 3, 7.5, 0.1, 1_000_000, 33_333])
def test_what_is_due_is_what_has_a_time_not_after_now(rows_per_second):
    pace = Rate.of(rows_per_second)
    for elapsed in [0, 1, 99_999, 100_000, 333_333, 333_334, 10 * SECOND]:
        due = pace.due(elapsed)
        assert pace.at(due - 1) <= elapsed < pace.at(due)


def test_rate_rows_have_the_time_at_which_they_were_due(spark):
    reader = open_(spark, rate.Source(2))
    assert reader.position().detail == {"next": 0, "started": None}
    poll = ask(reader)
    assert (poll.rows, poll.metrics["rows"].value) == (1, {"rows": 1, "bytes": 0})
    assert ask(reader, now=5) == NoData(wake_at=MonotonicTime(5 + 500_000))
    poll = ask(reader, wall=T0 + SECOND)
    start = datetime.fromtimestamp(T0 / SECOND, timezone.utc)
    utc = [(n, at.astimezone(timezone.utc)) for n, at in rows(reader, poll)]
    assert utc == [(1, start + timedelta(seconds=0.5)), (2, start + timedelta(seconds=1))]
    again = open_(spark, rate.Source(2), Position(kind="rate/1", detail={"next": 1, "started": T0}))
    assert rows(again, ask(again, wall=T0 + SECOND)) == rows(reader, poll)
    assert reader.frame(poll.plan).schema.simpleString() == rate.Source(2).schema(spark).simpleString()


def test_a_plan_takes_all_where_a_rate_says_what_is_due(spark):
    paced = open_(spark, rate.Source(10))
    assert [ask(paced, wall=T0 + s * SECOND, rows=8).takes_all for s in (0, 1, 1)] == [True, False, True]
    assert not ask(open_(spark, generator.Source(lambda f: f, per_batch=5))).takes_all, "there is always more"


def test_rate_limit_caught_up_and_row_cap(spark):
    reader = open_(spark, rate.Source(10, limit=15))
    assert [ask(reader, wall=T0 + s * SECOND, rows=8).rows for s in (0, 1, 1)] == [1, 8, 2]
    assert ask(reader, wall=T0 + 9 * SECOND).rows == 4
    assert ask(reader) == Ended()
    paced = open_(spark, rate.Source(10), Position(kind="rate/1", detail={"next": 3, "started": T0}), Until.CAUGHT_UP)
    assert ask(paced, wall=T0 + SECOND).rows == 8
    assert ask(paced, wall=T0 + 5 * SECOND) == CaughtUp()
    with pytest.raises(GraphError, match="never caught up"):
        open_(spark, generator.Source(lambda f: f), until=Until.CAUGHT_UP)


def test_the_generator_resumes_at_any_batch_and_ends(spark):
    source = generator.Source(lambda f: f.selectExpr("n * 2 AS id", "cast(n AS string) AS s"), rows=25, per_batch=10)
    reader = open_(spark, source)
    batches, positions = [], []
    while isinstance(poll := ask(reader), PlannedBatch):
        batches.append(rows(reader, poll))
        positions.append(Position(kind="generator/1", detail=json.loads(json.dumps(reader.position().detail))))
    assert [row for batch in batches for row in batch] == [(2 * n, str(n)) for n in range(25)]
    assert ask(reader) == Ended()
    for at, position in enumerate(positions[:-1]):
        resumed = open_(spark, source, position)
        assert rows(resumed, ask(resumed)) == batches[at + 1]
    assert source.schema(spark).names == ["id", "s"]
    with pytest.raises(StateIncompatible, match="'generator/1'"):
        open_(spark, rate.Source(1), positions[0])


def test_one_job_and_nothing_compiled_whatever_the_size(spark):
    source = generator.Source(lambda f: f.selectExpr("n", "n % 7 AS k").where("k <> 3"), per_batch=10**6)
    reader = open_(spark, source)
    seen = []
    for size in (1, 1000, 2, 250_000, 17):
        with counted(spark) as cost:
            reader.frame(ask(reader, rows=size).plan).write.format("noop").mode("overwrite").save()
        seen.append((cost.jobs, cost.compilations))
    assert seen[1:] == [(1, 0)] * 4


def test_a_row_wise_function_is_called_once_and_any_other_for_each_batch(spark):
    calls = []

    def row_wise(numbers):
        calls.append("row-wise")
        return numbers.selectExpr("n", "n * n AS square").where("n % 2 = 0")

    def looking(numbers):
        calls.append("looking")
        return numbers.where("n NOT IN (SELECT id FROM range(3))")

    for build, of_batches in ((row_wise, ["row-wise"]), (looking, ["looking"] * 4)):
        source = generator.Source(build, per_batch=4)
        reader = open_(spark, source)
        calls.clear()
        found = [rows(reader, ask(reader)) for _ in range(3)]
        assert calls == of_batches
        assert [row for batch in found for row in batch] == [tuple(row) for row in build(numbers(spark, 12)).collect()]
    kept = KeptPlans(PlanBuilder(spark))
    reader = open_(spark, generator.Source(row_wise, per_batch=4))
    assert all(kept.kept(plan_of(reader.frame(ask(reader).plan))) is not None for _ in range(2))
    assert len(kept._shapes) == 1


def numbers(spark, count):
    return spark.range(count).toDF("n")


def test_what_the_user_did_wrong(spark):
    with pytest.raises(
        UserFunctionError, match=r"test_source_generator.py:\d+: .*returned NoneType\. Let it return a DataFrame"
    ):
        generator.Source(lambda f: None).schema(spark)
    with pytest.raises(UserFunctionError, match=r"test_source_generator.py:\d+: .*raised AnalysisException"):
        generator.Source(lambda f: f.select("none")).schema(spark)
    for wrong in (lambda: rate.Source(0), lambda: rate.Source(1, limit=-1), lambda: generator.Source(id, per_batch=0)):
        with pytest.raises(GraphError):
            wrong()
