"""What a windowed aggregate costs, by Spark's own counters: jobs, exchanges, compilations, cached blocks."""

from __future__ import annotations

from collections import deque

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from penstock.clock import MAX_WATERMARK
from penstock.errors import LayerMissing
from penstock.interfaces.operator import LATE_PORT
from penstock.operators import aggregates as agg
from penstock.operators.windows import operator
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.operators.windows.panes import DueWindows
from penstock.operators.windows.results import ResultQueries
from penstock.spark.blocks import free_blocks, is_lost_block
from penstock.spark.prepared_plans import PlanPreparer
from penstock.state import compaction
from penstock.state.compaction import Compaction
from penstock.state.layers import union_layers
from window_harness import Rig, counted, exchanges, persistent

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])


def step(keys=(("user", "user"),)) -> WindowAggregate:
    aggregates = (agg.sum("x"), agg.count().alias("n"), agg.avg("x"), agg.max("x"))
    return WindowAggregate(keys=keys, time="at", window=tumbling("10 seconds"), aggregates=aggregates)


def rows(start: int, count: int = 200) -> list[dict[str, object]]:
    return [{"user": f"u{n % 17}", "at": (start + n % 60) * SECOND, "x": n} for n in range(count)]


@pytest.fixture
def rig(spark, tmp_path):
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    yield rig
    rig.operator.close()


def test_a_batch_is_one_job_firing_is_the_consumers_and_nothing_due_is_none(spark, rig):
    with counted(spark) as batch:
        rig.process(rows(0))
    with counted(spark) as late:
        rig.watermark = 10 * SECOND
        rig.process(rows(0))
    with counted(spark) as idle:
        rig.advance(5 * SECOND)
        rig.advance(9 * SECOND)
        rig.operator.snapshot(1)
        assert rig.operator.maintain() is None
    with counted(spark) as advance:
        rig.advance(20 * SECOND)
    with counted(spark) as consumer:
        rig.sent[-1][1].frame.write.format("noop").mode("overwrite").save()
    assert [cost.jobs for cost in (batch, late, idle, advance, consumer)] == [1, 1, 0, 0, 1]
    assert len(rig.sent) == 2  # the late rows and what fired


KNOWN = {
    "not null": lambda frame: frame.where("user IS NOT NULL"),
    "one": lambda frame: frame.where("user = 'u1'"),
    "folded": lambda frame: frame.withColumn("user", F.expr("sha2('u1', 256)")),  # by analysis it may be null
}


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("known", KNOWN)
def test_no_exchange_lies_above_layers_of_batches_of_whose_keys_spark_knows_more(spark, tmp_path, known):
    rig = Rig(spark, step(), SCHEMA, tmp_path, late_read=False)
    rig.process(rows(0))
    for _ in range(3):
        rig.process_frame(KNOWN[known](rig.frame(rows(0)).repartition(1)))
    layers, lease = rig.operator._stack.lease_due(0, MAX_WATERMARK)
    assert len(layers) == 4
    for some in (layers, layers[1:], layers[::-1]):
        assert exchanges(rig.operator._queries.frame(rig.operator._queries.merged(some, 0)[0])) == 0
    lease.release()
    rig.operator._compact(rig.operator._due)
    rig.process(rows(0))
    rig.advance(10 * SECOND)
    (_, batch), *_ = rig.sent
    assert exchanges(batch.frame) == 0
    batch.release()
    rig.operator.close()


@pytest.mark.usefixtures("eight_of_a_size")
@pytest.mark.parametrize("keys", [(("user", "user"),), (("half", "x / 2"),), ()], ids=["string", "double", "none"])
def test_no_exchange_lies_above_layers_at_any_height(spark, tmp_path, keys):
    rig = Rig(spark, step(keys), SCHEMA, tmp_path)
    results = ResultQueries(rig.operator._frames, PlanPreparer(spark))
    for height in range(1, 13):
        rig.process(rows(0))
        assert rig.operator._stack.height == height
        layers, lease = rig.operator._stack.lease_due(0, MAX_WATERMARK)
        frames = rig.operator._frames
        assert exchanges(results.finished(layers, DueWindows(0, 20 * SECOND, (0, 20 * SECOND)))) == 0
        assert exchanges(frames.layers_format.merged(frames.layers_format.between(union_layers(layers), 0))) == 0
        lease.release()
    rig.operator._compact(rig.operator._due)
    rig.process(rows(0))
    layers, lease = rig.operator._stack.lease_due(0, MAX_WATERMARK)
    assert max(layer.level for layer in layers) == 1
    assert exchanges(results.finished(layers, DueWindows(0, 20 * SECOND, (0, 20 * SECOND)))) == 0
    lease.release()
    rig.operator.close()


def one_pass(rig: Rig, start: int, most: int = 9) -> int:
    """Every height: batches with late rows, a firing, a merge of all layers; then everything closes."""
    stack = rig.operator._stack
    for height in range(1, most + 1):
        for _ in range(height):
            rig.process([*rows(start), *rows(start - 600, 3)])
        rig.advance((start + 20) * SECOND)
        rig.take()
        rig.take(LATE_PORT)
        layers, lease = stack.lease_due(0, MAX_WATERMARK)
        assert len(layers) == height
        names = tuple(layer.name for layer in layers)
        stack.replace(layers, rig.operator._merged(layers, Compaction(names=names, level=1, reason="test")))
        lease.release()
        rig.process(rows(start))
        rig.checkpoint()
        rig.advance((start + 90) * SECOND)
        rig.take()
        assert stack.height == 0
        start += 100
    return start


def test_nothing_is_compiled_for_heights_that_were_not_there_before(spark, tmp_path):
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    start = one_pass(rig, 1_000, most=3)
    with counted(spark) as second:
        one_pass(rig, start)
    assert second.compilations == 0
    rig.operator.close()


@pytest.mark.usefixtures("few_layers")
def test_blocks_are_bounded_over_many_batches_and_none_are_left_after_the_end(spark, tmp_path):
    before = persistent(spark)
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    most = 0
    for batch in range(30):
        rig.process([*rows(batch * 15), *rows(-600, 3)])
        rig.advance(batch * 15 * SECOND)
        rig.take()
        rig.take(LATE_PORT)
        rig.maintain()
        if batch % 5 == 0:
            rig.checkpoint()
        most = max(most, len(persistent(spark) - before))
    assert most <= operator.STOP_LIMIT == 12
    rig.operator.close()
    assert persistent(spark) <= before


@pytest.mark.usefixtures("few_layers")
def test_without_compaction_beside_it_the_step_compacts_by_itself(spark, tmp_path):
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    for _ in range(20):
        rig.process(rows(0))
        assert rig.operator._stack.height <= operator.STOP_LIMIT == 12
    assert rig.counts["compacted"] >= 12
    rig.advance(MAX_WATERMARK)
    assert sum(row[4] for row in rig.take()) == 20 * 200
    rig.operator.close()


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_no_batch_runs_two_jobs_while_merging_ends_within_a_few_batches(spark, tmp_path, monkeypatch, behind):
    """Merging is found due after a batch, and done at once or only when ``behind`` more batches have come."""
    monkeypatch.setattr(compaction, "SMALLEST_TIER", 10)  # so that layers of 10 rows climb tiers
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    jobs, due = [], deque()
    for batch in range(40):
        with counted(spark) as cost:
            rig.process([{"user": f"{batch}-{n}", "at": n * SECOND, "x": n} for n in range(10)])
        jobs.append(cost.jobs)
        due.append(rig.operator.maintain())
        work = due.popleft() if len(due) > behind else None
        if work:
            work()
        if batch % 3 == 2:
            rig.checkpoint()
    assert jobs == [1] * 40
    assert rig.counts["compacted"] >= 30
    rig.operator.close()


@pytest.mark.usefixtures("few_layers")
def test_the_blocks_of_a_result_on_its_way_outlive_compaction_and_closing(spark, tmp_path):
    before = persistent(spark)
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    for _ in range(4):
        rig.process(rows(0))
    rig.advance(20 * SECOND)
    assert rig.maintain() == 1
    assert len(persistent(spark) - before) == 5
    rig.operator.close()
    assert len(persistent(spark) - before) == 4
    assert sum(row[4] for row in rig.take()) == 4 * len([row for row in rows(0) if row["at"] < 20 * SECOND])
    assert persistent(spark) <= before


@pytest.mark.mission("S34")
def test_a_layers_plan_does_not_reach_back_to_the_batch(spark, rig):
    rig.process(rows(0))
    rig.process(rows(0))
    rig.operator._compact(rig.operator._due)
    layers, lease = rig.operator._stack.lease_due(0, MAX_WATERMARK)
    for layer in layers:
        plan = layer.frame._jdf.queryExecution().analyzed()
        assert plan.getClass().getSimpleName() == "LogicalRDD"
        lineage = plan.rdd().toDebugString()
        assert "CheckpointRDD" in lineage
        assert "ShuffledRowRDD" not in lineage
    lease.release()


@pytest.mark.usefixtures("few_layers")
def test_a_lost_block_is_an_error_that_restarts_and_never_a_recomputation(spark, rig):
    for _ in range(4):
        rig.process(rows(0))
    layers, lease = rig.operator._stack.lease_due(0, MAX_WATERMARK)
    free_blocks(layers[2].frame)
    with pytest.raises(LayerMissing, match="A cached block of the state is lost"):
        rig.maintain()
    rig.advance(MAX_WATERMARK)
    with pytest.raises(Exception, match="CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND") as error:
        rig.take()
    assert is_lost_block(error.value)
    assert LayerMissing.retry
    lease.release()
