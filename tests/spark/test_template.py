"""Plans that are analysed once: numbers get to their places, nothing is compiled again, random numbers stay random."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.spark.blocks import free_blocks, local_checkpoint
from penstock.spark.bound_plans import plan_of
from penstock.spark.prepared_plans import PlanPreparer
from penstock.spark.sql import variable_literal
from window_harness import Rig, compilations

pytestmark = pytest.mark.spark

SECOND = 1_000_000
NUMBERS = (7, -1, 2**31, MIN_WATERMARK, MAX_WATERMARK, 0)


def beside(rows, *numbers):
    return rows.selectExpr(
        "id", *(f"{variable_literal(number, column='id')} AS n{place}" for place, number in enumerate(numbers))
    )


def test_each_number_gets_to_its_place_whatever_its_size(spark):
    preparer = PlanPreparer(spark)
    batch = spark.range(2)
    prepared = preparer.prepare(batch.schema, beside, numbers=len(NUMBERS))
    for numbers in (NUMBERS, NUMBERS[::-1]):
        frame = preparer.frame(preparer.bind(prepared, plan_of(batch), *numbers))
        assert [tuple(row) for row in frame.orderBy("id").collect()] == [(0, *numbers), (1, *numbers)]


def test_a_template_is_compiled_once(spark):
    preparer = PlanPreparer(spark)
    prepared = preparer.prepare(spark.range(0).schema, beside, numbers=2)

    def run(low: int, high: int) -> None:
        preparer.frame(preparer.bind(prepared, plan_of(spark.range(9)), low, high)).collect()

    run(1, 2)
    before = compilations(spark)
    run(3, 4)
    assert compilations(spark) == before


def test_what_was_kept_of_one_template_can_be_put_together(spark):
    preparer = PlanPreparer(spark)
    prepared = preparer.prepare(spark.range(0).schema, beside, numbers=1)
    kept = [
        local_checkpoint(preparer.frame(preparer.bind(prepared, plan_of(spark.range(2)), number))) for number in (5, 6)
    ]
    both = preparer.frame(preparer.union(kept))
    assert sorted(tuple(row) for row in both.collect()) == [(0, 5), (0, 6), (1, 5), (1, 6)]
    assert sorted(tuple(row) for row in kept[0].join(kept[1], "id").collect()) == [(0, 5, 6), (1, 5, 6)]
    for frame in kept:
        free_blocks(frame)


@pytest.mark.parametrize("keys", [(("user", "user"),), ()], ids=["keyed", "all rows"])
def test_an_aggregate_that_draws_random_numbers_draws_others_for_each_batch(spark, tmp_path, keys):
    schema = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    drawn = WindowAggregate(
        keys=keys, time="at", window=tumbling("10 seconds"), aggregates=(agg.max("rand()").alias("drawn"),)
    )
    rig = Rig(spark, drawn, schema, tmp_path)
    for window in range(3):
        rig.process([{"user": "a", "at": (window * 10 + 1) * SECOND}])
        rig.advance((window + 1) * 10 * SECOND)
    assert len({drawn for *_, drawn in rig.take()}) == 3
    rig.operator.close()
