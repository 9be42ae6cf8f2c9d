"""One stage for a small batch: each task gets all rows and keeps its own, which lie where an exchange brings them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as t

from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.operators.windows.emit_strategy import EmitStrategy
from penstock.spark.arrow import ArrowSender, arrow_schema
from penstock.spark.blocks import free_blocks
from penstock.spark.bound_plans import BoundPlan, note_sent, plan_of
from penstock.spark.kept_rows import MANY_GROUPS
from penstock.spark.prepared_plans import PlanPreparer
from penstock.spark.row_owners import MAX_COPIED_ROWS, Placement
from window_harness import Rig, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from penstock.elements import ObservedMetrics

pytestmark = pytest.mark.spark

SECOND = 1_000_000
ROWS = (
    t.StructType()
    .add("k", "string")
    .add("d", "double")
    .add("n", "long")
    .add("at", "timestamp")
    .add("st", t.StructType().add("a", "integer").add("b", "double"))
)
DOUBLES = [0.0, -0.0, math.nan, None, 1.5, -math.nan]


def sent(spark: SparkSession, rows: int = 90) -> DataFrame:
    given = [
        {
            "k": [None, "a", "A", "b", "ä", "é"][n % 6],
            "d": DOUBLES[n % 6],
            "n": n % 50,
            "at": n * SECOND,
            "st": {"a": n % 3, "b": DOUBLES[n // 3 % 6]},
        }
        for n in range(rows)
    ]
    table = pa.Table.from_pylist(given, schema=arrow_schema(ROWS))
    return ArrowSender(spark, ROWS).frame(table.to_batches(max_chunksize=-(-rows // 2)))


class Placed:
    """A plan that groups rows by keys and one more column, to be exchanged by the keys alone."""

    def __init__(
        self, spark: SparkSession, keys: Sequence[str], below: Callable[[DataFrame], DataFrame], partitions: int = 2
    ) -> None:
        self.preparer, self.partitions = PlanPreparer(spark), partitions
        columns = [F.expr(key).alias(f"key{place}") for place, key in enumerate(keys)]
        names = [f"key{place}" for place in range(len(keys))]
        self.below = self.preparer.prepare(ROWS, below)
        self.keys = self.preparer.prepare(self.below.schema, lambda rows: rows.select(*columns))

        def grouped(rows: DataFrame) -> DataFrame:
            return rows.groupBy(*names, "m").agg(F.sum("n").alias("n"), F.count("*").alias("c"))

        def given(rows: DataFrame) -> DataFrame:
            return rows.select(*columns, F.expr("n % 3").alias("m"), "n")

        self.above = self.preparer.prepare(self.below.schema, lambda rows: grouped(given(rows)))
        self.exchanged = self.preparer.prepare(
            self.below.schema, lambda rows: grouped(given(rows).repartition(partitions, *map(F.col, names)))
        )
        self.figures = self.preparer.observation(self.below, {"rows": F.count("*"), "largest": F.max("n")})

    def plan(self, frame: DataFrame, *, may_copy: bool = True) -> tuple[BoundPlan, Placement, ObservedMetrics]:
        rows, metrics = self.preparer.observe(self.preparer.bind(self.below, plan_of(frame)), self.figures)
        placement = Placement(rows=rows, keys=self.keys, partitions=self.partitions, may_copy=may_copy)
        return self.preparer.bind(self.above, rows), placement, metrics

    def expected(self, frame: DataFrame) -> list[tuple[object, ...]]:
        """The rows in the partitions where Spark's exchange brings them."""
        below = self.preparer.bind(self.below, plan_of(frame))
        return in_partitions(self.preparer.frame(self.preparer.bind(self.exchanged, below)))

    def is_in_one_stage(self) -> bool:
        return any(shape.plan is not None and shape.plan._own is not None for shape in self._shapes())

    def _shapes(self) -> list[Any]:
        return list(self.preparer._kept._shapes.values())


def in_partitions(frame: DataFrame) -> list[tuple[object, ...]]:
    placed = frame.rdd.mapPartitionsWithIndex(lambda place, rows: ((place, repr(tuple(row))) for row in rows))
    return sorted(placed.collect())


KEYS = {
    "a text": ["k"],
    "a text in a language": ["k COLLATE UNICODE_CI"],
    "-0.0 and NaN": ["d"],
    "rows": ["st"],
    "computed": ["n % 7", "upper(k)"],
    "decimals and days": ["CAST(n AS DECIMAL(20, 2))", "CAST(at AS DATE)"],
    "bytes": ["CAST(k AS BINARY)"],
    "lists": ["array(d, n)"],
}


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("partitions", [2, 5])
def test_each_row_has_one_owner_where_an_exchange_would_bring_it(spark, monkeypatch, partitions, keys):
    placed = Placed(spark, KEYS[keys], lambda rows: rows.where("n <> 13"), partitions)
    for number, may_copy in enumerate((True, True, False)):  # a copy of the plan, its functions, with an exchange
        plan, placement, metrics = placed.plan(sent(spark, 90 + number), may_copy=may_copy)
        assert placed.preparer.is_kept(plan, placement)
        with counted(spark) as cost:
            kept = placed.preparer.checkpoint(plan, placement)
        assert (placed.is_in_one_stage(), cost.jobs) == (True, 1)
        assert metrics.read() == {"rows": 88 + number, "largest": 49}
        assert in_partitions(kept) == placed.expected(sent(spark, 90 + number)), may_copy
        free_blocks(kept)


def test_a_row_without_a_key_that_a_step_drops_fails_no_task(spark):
    placed = Placed(spark, ["10 div n"], lambda rows: rows.where("n > 0"))
    plan, placement, metrics = placed.plan(sent(spark))
    kept = placed.preparer.checkpoint(plan, placement)
    assert placed.is_in_one_stage()
    assert metrics.read() == {"rows": 88, "largest": 49}
    assert in_partitions(kept) == placed.expected(sent(spark))
    free_blocks(kept)


EXCHANGED: dict[str, tuple[list[str], Callable[[DataFrame], DataFrame]]] = {
    "a key of a function of Python": (
        ["length(f)"],
        lambda rows: rows.withColumn("f", F.udf(str, useArrow=False)("k")),
    ),
    "a key of the task": (["n + spark_partition_id()"], lambda rows: rows),
    "rows of rows": (["e"], lambda rows: rows.selectExpr("n", "explode(sequence(1, 2)) AS e")),
    "rows of a function of Python": (["k"], lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema)),
    "a table": (["k"], lambda rows: rows.join(rows.sparkSession.range(50).toDF("n"), "n")),
}


def test_rows_are_exchanged_where_a_key_is_no_expression_over_the_batch(spark):
    for what, (keys, below) in EXCHANGED.items():
        placed = Placed(spark, keys, below)
        plan, placement, _ = placed.plan(sent(spark))
        kept = placed.preparer.checkpoint(plan, placement)
        assert not placed.is_in_one_stage(), what
        if what not in ("a key of the task", "a table"):  # of the one each run is another, the other is not kept
            assert in_partitions(kept) == placed.expected(sent(spark)), what
        free_blocks(kept)


def test_a_function_of_python_beside_the_keys_sees_each_row_once(spark):
    seen = spark.sparkContext.accumulator(0)

    def see(n: int) -> int:
        seen.add(1)
        return n

    placed = Placed(spark, ["k"], lambda rows: rows.withColumn("n", F.udf(see, "BIGINT", useArrow=False)("n")))
    plan, placement, _ = placed.plan(sent(spark))
    kept = placed.preparer.checkpoint(plan, placement)
    assert (placed.is_in_one_stage(), seen.value) == (True, 90)
    free_blocks(kept)


def test_on_a_cluster_rows_of_a_function_of_python_are_exchanged(spark):
    for column, is_in_one_stage in ((F.expr("n + 1"), True), (F.udf(abs, "BIGINT", useArrow=False)("n"), False)):
        placed = Placed(spark, ["k"], lambda rows, column=column: rows.withColumn("n", column))
        placed.preparer._kept._classes.keeps_one_copy = False
        plan, placement, _ = placed.plan(sent(spark))
        kept = placed.preparer.checkpoint(plan, placement)
        assert placed.is_in_one_stage() is is_in_one_stage
        assert in_partitions(kept) == placed.expected(sent(spark))
        free_blocks(kept)


def test_more_groups_than_the_fast_map_has_room_for_are_grouped_too(spark, monkeypatch):
    monkeypatch.setitem(MANY_GROUPS, "spark.sql.codegen.aggregate.fastHashMap.capacityBit", "10")
    placed = Placed(spark, ["k", "d", "at"], lambda rows: rows)
    frame = sent(spark, 6000)
    plan, placement, metrics = placed.plan(frame, may_copy=False)
    kept = placed.preparer.checkpoint(plan, placement)
    assert metrics.read() == {"rows": 6000, "largest": 49}
    assert kept.count() == 6000
    assert in_partitions(kept) == placed.expected(frame)
    free_blocks(kept)


def test_many_rows_and_rows_that_tasks_read_are_exchanged(spark):
    placed = Placed(spark, ["k"], lambda rows: rows)
    frame = sent(spark)
    for rows, is_small in ((MAX_COPIED_ROWS // 2, True), (MAX_COPIED_ROWS // 2 + 1, False)):
        note_sent(frame, rows)
        assert (placed.plan(frame)[1].sent is not None) is is_small
    assert placed.plan(spark.createDataFrame([], ROWS))[1].sent is None


# ---------------------------------------------------------------------------------------------------- a whole step

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


@pytest.mark.parametrize("updates", [True, False], ids=["changes", "final"])
def test_small_and_large_batches_mix_on_one_state_and_late_rows_are_counted_once(spark, tmp_path, updates):
    aggregates = (agg.sum("v").alias("v"), agg.count().alias("n"))
    emission = EmitStrategy(updates=updates)
    step = WindowAggregate(
        keys=(("k", "k"),), time="at", window=tumbling("10 seconds"), aggregates=aggregates, emission=emission
    )
    rig = Rig(spark, step, SCHEMA, tmp_path, late_read=False)
    preparer = rig.operator._preparer
    expected: dict[tuple[str | None, int], list[int]] = {}
    found: dict[tuple[str | None, int], list[int]] = {}
    in_one_stage = []
    for number, size in enumerate((40, 40, MAX_COPIED_ROWS, 40, 40, 40)):
        given = [{"k": [None, "a", "b", "c", "d"][n % 5], "v": n, "at": (n % 4 * 10 + 1) * SECOND} for n in range(size)]
        frame = rig.frame(given)
        if size == 40:
            note_sent(frame, size)
        if number == 4:
            rig.advance(10 * SECOND)
            take_results(rig, found)
        for row in given:
            start = row["at"] // (10 * SECOND) * 10
            if number < 4 or start:
                total = expected.setdefault((row["k"], start), [0, 0])
                total[0], total[1] = total[0] + row["v"], total[1] + 1
        rig.process_frame(frame)
        take_results(rig, found)
        shapes = preparer._kept._shapes.values()
        in_one_stage.append(sum(each.plan is not None and each.plan._own is not None for each in shapes))
    rig.advance(100 * SECOND)
    take_results(rig, found)
    rig.operator.close()
    assert found == expected
    assert in_one_stage == [1] * 6
    assert rig.counts["late"] == 20, "the first window's rows of the last two batches"


def take_results(rig: Rig, found: dict[tuple[str | None, int], list[int]]) -> None:
    for key, start, _, v, n, *change in rig.take():
        if change != ["update_before"]:
            found[key, int(start.timestamp())] = [v, n]
