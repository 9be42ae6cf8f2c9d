"""Cached frames as one leaf of a plan: the same rows, in the same partitions; not where they are shared out else."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from penstock.spark.blocks import CachedUnion, frame_of_plan, free_blocks, local_checkpoint
from penstock.spark.plans import analyzed_plan
from penstock.spark.prepared_plans import PlanPreparer
from window_harness import exchanges

pytestmark = pytest.mark.spark


@pytest.fixture
def cut_of(spark):
    made = []

    def make(first: int, partitions: int = 3, by: str = "key"):
        rows = spark.range(first, first + 100).selectExpr("id % 7 AS key", "id AS n")
        made.append(local_checkpoint(rows.repartition(partitions, by)))
        return made[-1]

    yield make
    for frame in made:
        free_blocks(frame)


def parts(frame) -> dict[int, int]:
    """Of each partition how many rows it has."""
    found = frame.groupBy(F.spark_partition_id().alias("part")).count().collect()
    return {row["part"]: row["count"] for row in found}


def test_rows_above_one_another_are_one_leaf_in_the_partitions_where_they_were(spark, cut_of):
    frames = [cut_of(100 * number) for number in range(5)]
    together = frame_of_plan(CachedUnion(spark).stacked(frames), spark)
    assert sorted(map(tuple, together.collect())) == sorted((n % 7, n) for n in range(500))
    assert parts(together) == {part: sum(parts(frame).get(part, 0) for frame in frames) for part in parts(together)}
    merged = together.groupBy("key").agg(F.sum("n").alias("n"))
    assert exchanges(merged) == 0
    assert str(merged._jdf.queryExecution().executedPlan().toString()).count("Scan") == 1
    assert sum(row["n"] for row in merged.collect()) == sum(range(500))


def test_one_frame_alone_stays_what_it_is(spark, cut_of):
    frame = cut_of(0)
    assert CachedUnion(spark).stacked([frame]).equals(analyzed_plan(frame))


@pytest.mark.parametrize("other", [{"partitions": 2}, {"by": "n"}])
def test_frames_that_are_shared_out_in_other_ways_are_not_laid_above_one_another(spark, cut_of, other):
    frames = [cut_of(0), cut_of(100, **other)]
    assert CachedUnion(spark).stacked(frames) is None
    preparer = PlanPreparer(spark)
    rows = preparer.frame(preparer.union(frames)).collect()
    assert sorted(row["n"] for row in rows) == list(range(200))


def test_frames_of_which_spark_does_not_know_how_they_are_shared_out_are_not_either(spark):
    frames = [local_checkpoint(spark.range(number, number + 3).toDF("n")) for number in range(2)]
    try:
        assert CachedUnion(spark).stacked(frames) is None
    finally:
        for frame in frames:
            free_blocks(frame)


def test_a_merge_of_merges_is_still_shared_out_by_its_own_columns(spark, cut_of):
    union, merged = CachedUnion(spark), cut_of(0)
    for number in range(1, 4):
        below = frame_of_plan(union.stacked([merged, cut_of(100 * number)]), spark)
        merged = local_checkpoint(below.groupBy("key").agg(F.sum("n").alias("n")))
    assert exchanges(merged.groupBy("key").count()) == 0
    assert sum(row["n"] for row in merged.collect()) == sum(range(400))
    free_blocks(merged)
