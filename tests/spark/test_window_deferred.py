"""One job for a batch and all that it changes: the layer is made by whoever runs the results first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import penstock as ps
from penstock.elements import Batch, FirstRunGate, RefCount, SourcePartitions
from penstock.facts import BatchDone, Counted, RowsLate
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import session, sliding, tumbling
from penstock.operators.windows.emit_strategy import EmitStrategy
from penstock.operators.windows.ingest import MIN_ROWS
from penstock.spark.bound_plans import ObservedRows, plan_of
from penstock.spark.plans import AHEAD_BOUND, Figure, figure_by_partition, observe_sql
from penstock.spark.sql import variable_literal
from spark.job_kit import Jobs, Watch, drop
from window_harness import Rig, compilations, counted, exchanges, persistent

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.interfaces.operator import DeferredBatch

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])
UPDATES = EmitStrategy(updates=True)


def rig_of(spark, folder, window=None, emission=UPDATES, **more) -> Rig:
    window = window or tumbling("10 seconds")
    step = WindowAggregate(
        keys=(("user", "user"),), time="at", window=window, aggregates=(agg.sum("x").alias("x"),), emission=emission
    )
    return Rig(spark, step, SCHEMA, folder, **{"late_read": False, **more})


def rows(*seconds: int, user: str = "a", x: int = 1) -> list[dict[str, object]]:
    return [{"user": user, "at": second * SECOND, "x": x} for second in seconds]


def begin(rig: Rig, given: list[dict[str, object]], **more: object) -> DeferredBatch | None:
    batch = Batch(**({"frame": rig.frame(given), "sequence": 0} | more))
    return rig.operator.process(batch, source=0, watermark=rig.watermark, emit=rig._emit)


def results(rig: Rig) -> list[tuple[object, ...]]:
    """Run what was sent, as its consumer does: one job each, and tell of it."""
    found = []
    for _, batch in rig.sent:
        found += map(tuple, batch.frame.selectExpr("user", "unix_seconds(window_end)", "x", "_change").collect())
        batch.settle()
        batch.release()
    rig.sent.clear()
    return found


def test_the_job_over_the_results_makes_the_layer_and_tells_all_that_is_observed(spark, tmp_path):
    rig = rig_of(spark, tmp_path)
    for number in range(3):
        with counted(spark) as cost:
            deferred = begin(rig, [*rows(1 + number), *rows(11, user="b")])
        assert cost.jobs == 0
        assert not deferred.ran.settled
        assert [exchanges(batch.frame) for _, batch in rig.sent] == [0]
        with counted(spark) as cost:
            changes = results(rig)
        assert cost.jobs == 1, "the layer, and what it changes"
        assert deferred.ran.settled
        with counted(spark) as cost:
            deferred.finish()
        assert cost.jobs == 0
        assert rig.operator._stack.height == number + 1
    assert changes == [
        ("a", 10, 2, "update_before"),
        ("a", 10, 3, "update_after"),
        ("b", 20, 2, "update_before"),
        ("b", 20, 3, "update_after"),
    ]
    assert rig.operator._stack.rows == 6, "the extent was observed by the way"
    rig.operator.close()


@pytest.mark.parametrize("lost", [False, True], ids=["observed", "lost"])
def test_what_the_step_before_observes_is_told_after_the_job_and_not_before(spark, tmp_path, *, lost):
    rig = rig_of(spark, tmp_path)
    rig.advance(2 * SECOND)
    preparer, told = rig.operator._preparer, []
    is_ahead = f"unix_micros(at) > {variable_literal(AHEAD_BOUND, column='at')}"
    below = preparer.prepare(rig.input, lambda rows: rows.where("x > 0"))
    figures = {
        "max": Figure(("max(unix_micros(at))",), merge="max"),
        "ahead": Figure((f"count(CASE WHEN {is_ahead} THEN 1 END)",)),
        "partitions": figure_by_partition("count_if({mine})", "user", ("a", "b"), rig.input),
    }
    spec = observe_sql(preparer.editor.frame(below.plan), "time", figures, names=("a", "b"), max_ahead=0)
    for bound in (2, 6):  # the second batch has the functions of the first one's plan
        frame = rig.frame([*rows(1, 7), *rows(3, user="b")])
        watched = ObservedRows(preparer.bind(below, plan_of(frame)), spec, bound * SECOND)
        told.append(watched.metrics)
        deferred = begin(rig, [], frame=rig.operator._queries.frame(watched), metrics={"time": watched.metrics})
        assert not watched.metrics.settled
        results(rig)
        assert not watched.metrics.settled, "the step settles its batch, not its consumer"
        if lost:
            deferred.finish.args[1]._metrics.lose()
        deferred.finish()
    partitions = {"a": 2, "b": 1}
    assert [metrics.value for metrics in told] == [
        {"max": 7 * SECOND, "ahead": ahead, "partitions": partitions} for ahead in (2, 1)
    ]
    shapes = preparer._kept._shapes.values()
    assert max(len(shape.plan._figures) for shape in shapes if shape.plan is not None) == 1, "one node observes all"
    rig.operator.close()


def test_late_rows_are_counted_and_told_apart_by_partition(spark, tmp_path):
    rig, facts = rig_of(spark, tmp_path), []
    rig.report = facts.append
    rig.advance(20 * SECOND)
    parts = SourcePartitions(source="in", names=("left",), column=None)
    deferred = begin(rig, [*rows(1, 25), {"user": "a", "at": None, "x": 1}], partitions=parts)
    assert results(rig) == [("a", 30, 1, "insert")]
    assert rig.counts == {"fired": 1}
    deferred.finish()
    assert rig.counts == {"fired": 1, "missing_time": 1, "late": 2}
    assert [(fact.partition, fact.rows) for fact in facts if isinstance(fact, RowsLate)] == [("in/left", 2)]
    rig.operator.close()


def test_what_is_told_is_whole_though_a_task_has_kept_its_part_and_failed_over_what_came_after(spark, tmp_path):
    rig = rig_of(spark, tmp_path)
    rig.advance(20 * SECOND)
    deferred = begin(rig, [*rows(1, 25), *(row for user in "bcdef" for row in rows(41, user=user))])
    with pytest.raises(Exception, match="a sink that fails"):
        rig.sent[0][1].frame.selectExpr("raise_error('a sink that fails')").collect()
    assert len(results(rig)) == 6
    deferred.finish()
    (layer,), lease = rig.operator._stack.lease_named([layer.name for layer in rig.operator._stack.sized()])
    assert (layer.first_end, layer.last_end, layer.rows) == (30 * SECOND, 50 * SECOND, 6)
    assert rig.counts["late"] == 1
    lease.release()
    rig.operator.close()


def test_if_what_was_observed_is_lost_the_layer_is_asked_and_the_batch_only_for_what_it_alone_knows(spark, tmp_path):
    rig = rig_of(spark, tmp_path)
    rig.advance(20 * SECOND)
    deferred = begin(rig, [*rows(1, 25), *rows(41, user="b")])
    intake = deferred.finish.args[1]
    results(rig)
    intake._metrics.lose()
    with counted(spark) as cost:
        deferred.finish()
    assert cost.jobs == 2, "the layer's extent, and how many rows are late"
    (layer,), lease = rig.operator._stack.lease_named([layer.name for layer in rig.operator._stack.sized()])
    assert (layer.first_end, layer.last_end, layer.rows, rig.counts["late"]) == (30 * SECOND, 50 * SECOND, 2, 1)
    lease.release()
    rig.operator.close()


def test_a_batch_after_a_large_one_runs_a_job_of_its_own(spark, tmp_path):
    rig = rig_of(spark, tmp_path)
    rig.operator._deferred.last_rows = MIN_ROWS
    assert begin(rig, rows(1)) is None
    assert results(rig) == [("a", 10, 1, "insert")]
    assert begin(rig, rows(2)) is not None
    for _, batch in rig.sent:
        batch.release()
    rig.operator.close()


def test_a_batch_without_a_row_on_time_leaves_no_layer_and_no_block(spark, tmp_path):
    before = persistent(spark)
    rig = rig_of(spark, tmp_path)
    rig.advance(20 * SECOND)
    deferred = begin(rig, rows(1))
    assert results(rig) == []
    deferred.finish()
    assert (rig.operator._stack.height, rig.counts["late"]) == (0, 1)
    assert persistent(spark) <= before
    rig.operator.close()


def test_results_that_nobody_runs_cost_a_job_of_the_steps_own(spark, tmp_path):
    before = persistent(spark)
    rig = rig_of(spark, tmp_path)
    deferred = begin(rig, rows(1, 2))
    for _, batch in rig.sent:
        batch.skip()
        batch.release()
    rig.sent.clear()
    assert deferred.ran.settled
    with counted(spark) as cost:
        deferred.finish()
    assert cost.jobs == 1
    rig.process(rows(3))
    assert results(rig) == [("a", 10, 2, "update_before"), ("a", 10, 3, "update_after")]
    rig.operator.close()
    assert persistent(spark) <= before


def test_a_step_closed_before_its_batch_is_done_keeps_no_block(spark, tmp_path):
    before = persistent(spark)
    rig = rig_of(spark, tmp_path)
    begin(rig, rows(1, 2))
    frame = rig.sent[0][1].frame
    frame.collect()
    rig.operator.close()
    rig.sent.pop()[1].release()
    assert persistent(spark) <= before


@pytest.mark.parametrize("shape", ["late rows are read", "an interval", "whole results", "run by others too", "joined"])
def test_a_job_of_its_own_where_the_results_cannot_do_it(spark, tmp_path, shape):
    emission = {"an interval": EmitStrategy(updates=True, every=1_000), "whole results": EmitStrategy()}.get(
        shape, UPDATES
    )
    rig = rig_of(spark, tmp_path, emission=emission, late_read=shape == "late rows are read")
    more = {
        "run by others too": {"run_gates": (FirstRunGate(),)},
        "joined": {"ref_counts": (RefCount(lambda: None),)},
    }.get(shape, {})
    with counted(spark) as cost:
        assert begin(rig, rows(1), **more) is None
    assert cost.jobs == 1
    for _, batch in rig.sent:
        batch.release()
    rig.operator.close()


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("window", [tumbling("10 seconds"), sliding("20 seconds", "10 seconds"), session("5 seconds")])
def test_the_same_is_sent_whoever_makes_the_layers_also_beyond_a_restart(spark, tmp_path, window):
    sent: dict[bool, list[object]] = {False: [], True: []}
    for late_read, told in sent.items():
        rig = rig_of(spark, tmp_path / str(late_read), window, late_read=late_read)
        for number in range(12):
            given = [row for user in "abc" for row in rows(3 * number, 2 * number, number // 2, user=user, x=number)]
            deferred = begin(rig, given)
            assert (deferred is None) == (late_read or number == 6), "who awaits restored rows sends them, too"
            rig.sent = [each for each in rig.sent if each[0] == "out"]
            told.append(sorted(results(rig)))
            if deferred is not None:
                deferred.finish()
            rig.maintain()
            if number % 3 == 2:
                rig.advance((2 * number - 12) * SECOND)
                told.append(sorted(results(rig)))
            if number == 5:
                rig = rig.again(rig.checkpoint())
        told.append(rig.counts.get("late", 0))
        rig.operator.close()
    assert sent[True] == sent[False]


@pytest.mark.usefixtures("few_layers")
def test_a_job_runs_one_job_a_batch_and_checkpoints_all_of_it(spark: SparkSession, tmp_path: Path) -> None:
    @ps.pipeline("changes")
    def pipeline(p: ps.Pipeline) -> None:
        schema = "id LONG, user STRING, at TIMESTAMP"
        raw = p.read("in", ps.files.Source(tmp_path / "in", schema=schema)).with_watermark("at", delay="10 minutes")
        counts = raw.group_by("user", ps.tumbling("1 minute")).agg(
            "changing", ps.agg.count().alias("n"), emit="updates"
        )
        counts.write("changes-out", ps.files.Sink(tmp_path / "out", format="json"))

    (tmp_path / "in").mkdir()
    watch, jobs = Watch(), Jobs(spark)
    before = persistent(spark)
    job = ps.Job(pipeline, state=tmp_path / "state", spark=spark, listener=watch, checkpoint_every="1 hour")
    job.start()
    for number in range(1, 13):
        if number == 5:
            watch.wait_for(Counted, 1, task="changing", name="compacted")  # it compiles beside the data path
        if number == 11:
            compiled = compilations(spark)
        given = [{"id": n, "user": f"u{n % 3}", "at": f"2026-01-01T00:0{number % 3}:{n:02}Z"} for n in range(20)]
        drop(tmp_path / "in", f"{number:02}.json", given)
        watch.wait_for(BatchDone, number, task="changing")
        assert (jobs.of("changes-out"), jobs.of("changing")) == (number, 0)
    assert compilations(spark) == compiled, "nothing is compiled after warm-up"
    assert [fact.figures["time:1"]["missing"] for fact in watch.of(BatchDone, task="changing")] == [0] * 12
    assert job.stop()
    assert persistent(spark) <= before, "every block is freed by hand"
    published = spark.read.schema("user STRING, n LONG, _change STRING").json(str(tmp_path / "out"))
    total = published.selectExpr("sum(CASE WHEN _change = 'update_before' THEN -n ELSE n END) AS n").collect()[0].n
    assert total == 12 * 20
