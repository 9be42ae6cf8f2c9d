"""Layers made by whoever runs the results, for keys and windows of all kinds and consumers of all manners.

What was sent is compared with sums over plain rows: each change must take back what was told last, and say what is so.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.elements import Batch
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.operators.windows.emit_strategy import EmitStrategy
from penstock.spark.bound_plans import note_sent
from penstock.spark.scheduling import SparkPools
from window_harness import Rig, counted, persistent

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.interfaces.operator import DeferredBatch

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])
TEN = tumbling("10 seconds")
FOLDED = "user COLLATE UTF8_LCASE"
Told = dict[tuple[object, int], int]


def rig_of(spark: SparkSession, folder: Path, window: Any = TEN, keys: tuple[str, ...] = ("user",), **more: Any) -> Rig:
    step = WindowAggregate(
        keys=tuple((f"k{place}", key) for place, key in enumerate(keys)),
        time="at",
        window=window,
        aggregates=(agg.sum("x").alias("x"),),
        emission=EmitStrategy(updates=True),
    )
    return Rig(spark, step, SCHEMA, folder, late_read=False, **more)


def begin(rig: Rig, given: list[dict[str, object]], *, is_sent: bool = False) -> DeferredBatch:
    frame = rig.frame(given)
    if is_sent:
        note_sent(frame, len(given))
    deferred = rig.operator.process(Batch(frame=frame, sequence=0), source=0, watermark=rig.watermark, emit=rig._emit)
    assert deferred is not None, "it is left to others"
    return deferred


def assert_statistics_of_layers(rig: Rig) -> None:
    layers, lease = rig.operator._stack.lease_named([size.name for size in rig.operator._stack.sized()])
    for layer in layers:
        rows, last = layer.frame.selectExpr("count(1)", "max(unix_micros(window_end))").collect()[0]
        assert layer.rows >= rows, "it is a bound: rows are counted before they are grouped"
        assert layer.last_end == last
    lease.release()


def row(user: str, second: int, x: int) -> dict[str, object]:
    return {"user": user, "at": second * SECOND, "x": x}


def run(rig: Rig, told: Told) -> None:
    """Run what was sent, as its consumer does, and follow the changes."""
    for _, batch in rig.sent:
        follow(batch.frame, told)
        batch.settle()
        batch.release()
    rig.sent.clear()


def follow(frame: Any, told: Told) -> None:
    keys = [name for name in frame.columns if name.startswith("k")]
    key = f"lower({keys[0]})" if keys else "NULL"
    window = "unix_seconds(window_end)" if "window_end" in frame.columns else "0"
    for user, end, x, change in frame.selectExpr(key, window, "x", "_change").collect():
        before = told.pop((user, end), None)
        if change == "update_before":
            assert before == x, "what is taken back is what was told"
            told[user, end] = -1
        elif change == "update_after":
            assert before == -1
            told[user, end] = x
        else:
            assert (change, before) == ("insert", None)
            told[user, end] = x


def expected(every: list[dict[str, object]], *, keyed: bool = True) -> Told:
    found: Counter[tuple[object, int]] = Counter()
    for each in every:
        user = str(each["user"]).lower() if keyed else None
        found[user, int(each["at"]) // SECOND // 10 * 10 + 10] += each["x"]  # type: ignore[call-overload]
    return dict(found)


def drawn(seed: int, batches: int, *, users: str = "abc") -> list[list[dict[str, object]]]:
    chance = random.Random(seed)
    return [
        [
            row(chance.choice(users), chance.randrange(40), chance.randrange(-3, 9))
            for _ in range(chance.randrange(1, 9))
        ]
        for _ in range(batches)
    ]


# --------------------------------------------------------------------------------------------------------- of all kinds


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("keys", [(), ("lower(user)", "1"), (FOLDED,)], ids=["none", "computed", "folded"])
def test_whatever_the_keys_are_and_also_beyond_merges_and_restores(spark, tmp_path, keys):
    rig, told, every = rig_of(spark, tmp_path, keys=keys), {}, []
    for number, given in enumerate(drawn(len(keys), 7, users="abcABC")):
        every += given
        if number == 5:
            rig = rig.again(rig.checkpoint(), partitions=3)
            rig.operator._stack.lease_due(MIN_WATERMARK, MAX_WATERMARK)[1].release()  # all is restored
        deferred = begin(rig, given)
        run(rig, told)
        deferred.finish()
        rig.maintain()
    assert told == expected(every, keyed=bool(keys))
    rig.operator.close()


def test_windows_of_processing_time_tell_of_what_was_held_when_it_came_and_close_when_it_is_in(spark, tmp_path):
    rig, told = rig_of(spark, tmp_path, tumbling("10 seconds", time="processing"), keys=("user",)), {}
    rig.wall = 1 * SECOND
    deferred = begin(rig, [row("a", 77, 1)])
    rig.wall = 12 * SECOND
    run(rig, told)
    deferred.finish()
    assert told == {("a", 10): 1}, "by when it came, not by when its job ran"
    assert rig.operator.tick(emit=rig._emit) is None, "that window is over, nothing waits"
    assert rig.operator._stack.height == 0
    deferred = begin(rig, [row("a", 77, 2), row("a", 77, 3)])
    run(rig, told)
    deferred.finish()
    assert told == {("a", 10): 1, ("a", 20): 5}
    assert rig.operator.tick(emit=rig._emit) == 8 * SECOND
    rig = rig.again(rig.checkpoint(), wall=13 * SECOND)
    rig.operator._stack.lease_due(MIN_WATERMARK, MAX_WATERMARK)[1].release()
    deferred = begin(rig, [row("a", 77, 7)])
    run(rig, told)
    deferred.finish()
    assert told == {("a", 10): 1, ("a", 20): 12}
    assert rig.counts.get("late", 0) == 0
    rig.operator.close()


# ------------------------------------------------------------------------------------------------------- of all manners


LOOKS = {
    "the first": lambda frame: frame.limit(1).collect(),
    "none": lambda frame: frame.where("false").collect(),
    "all on one task": lambda frame: frame.coalesce(1).collect(),
    "all in order": lambda frame: frame.orderBy("x").collect(),
}


@pytest.mark.parametrize("is_sent", [False, True], ids=["exchange", "one stage"])
def test_a_consumer_that_looks_at_some_of_it_only_leaves_a_whole_layer(spark, tmp_path, is_sent):
    before = persistent(spark)
    rig, told, every = rig_of(spark, tmp_path), {}, []
    for number, (look, given) in enumerate(zip(LOOKS.values(), drawn(7, len(LOOKS), users="abcdefgh"), strict=True)):
        every += given
        deferred = begin(rig, given, is_sent=is_sent)
        ((_, batch),) = rig.sent
        look(batch.frame)
        batch.settle()
        deferred.finish()
        assert rig.operator._stack.height == number + 1
        assert_statistics_of_layers(rig)
        run(rig, told)
    assert told == expected(every)
    rig.operator.close()
    assert persistent(spark) <= before


def test_two_consumers_of_kept_results_get_the_same_and_the_step_needs_the_first_of_them_only(spark, tmp_path):
    before = persistent(spark)
    edge = SparkPools(spark, job="two", generation=1, cores=2)
    rig, first, second, every = rig_of(spark, tmp_path), {}, {}, []
    for given in drawn(9, 4):
        every += given
        deferred = begin(rig, given)
        ((_, batch),) = rig.sent
        rig.sent.clear()
        kept = edge.keep(batch, 2)
        assert not deferred.ran.settled
        follow(kept.frame, first)
        kept.settle()
        kept.release()
        assert deferred.ran.settled
        deferred.finish()
        with counted(spark) as cost:
            follow(kept.frame, second)
        assert cost.jobs == 1
        kept.release()
    assert first == second == expected(every)
    rig.operator.close()
    assert persistent(spark) <= before


# ------------------------------------------------------------------------------------------ beside merges and snapshots


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("moment", ["before its job", "after its job"])
def test_layers_are_merged_and_written_while_a_batch_is_held(spark, tmp_path, moment):
    rig, told, every, merged = rig_of(spark, tmp_path), {}, [], 0
    for number, given in enumerate(drawn(3, 9)):
        named = rig.operator.snapshot(number)
        deferred = begin(rig, given)
        if moment == "after its job":
            run(rig, told)
        merged += rig.maintain()
        handle = named.materialise()
        if moment == "before its job":
            run(rig, told)
        deferred.finish()
        if number < 8:
            every += given
    assert merged >= 2
    again = rig.again(handle)
    assert rows_of(again) == expected(every), (
        "a snapshot has what was in before it was named, and nothing of what was held"
    )
    again.operator.close()


def rows_of(rig: Rig) -> Told:
    """All that is in memory, merged, each key and window once."""
    found: Told = {}
    layers, lease = rig.operator._stack.lease_due(MIN_WATERMARK, MAX_WATERMARK)
    plan, _ = rig.operator._queries.merged(layers, rig.operator._stack.horizon)
    merged = rig.operator._queries.frame(plan)
    for user, end, x in merged.selectExpr("lower(k0)", "unix_seconds(window_end)", "x__sum").collect():
        assert (user, end) not in found
        found[user, end] = x
    lease.release()
    return found
