"""Stacks around the numbers at which layers are merged: the same rows, in memory, restored, and merged on disk."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.elements import Batch
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.operators.windows.emit_strategy import EmitStrategy
from penstock.state.compaction import DURABLE_LIMIT
from penstock.state.stack import MERGE_FAN_IN, SLOWDOWN_LIMIT, STOP_LIMIT
from window_harness import Rig

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.handles import StateHandle

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])
HEIGHTS = (MERGE_FAN_IN - 3, MERGE_FAN_IN, MERGE_FAN_IN + 1, SLOWDOWN_LIMIT, STOP_LIMIT, STOP_LIMIT + 3)
Sums = dict[tuple[str, int], int]


def rig_of(spark: SparkSession, folder: Path) -> Rig:
    step = WindowAggregate(
        keys=(("user", "user"),),
        time="at",
        window=tumbling("10 seconds"),
        aggregates=(agg.sum("x").alias("x"),),
        emission=EmitStrategy(updates=True),
    )
    return Rig(spark, step, SCHEMA, folder, late_read=False)


def given(number: int) -> list[dict[str, object]]:
    """Three rows: of a user that all batches have, of one that some have, and of one that none else has."""
    users = ("all", f"some-{number % 5}", f"one-{number}")
    return [{"user": user, "at": number % 4 * 10 * SECOND, "x": 2**number % 1_009} for user in users]


def expected(batches: int) -> Sums:
    found: Counter[tuple[str, int]] = Counter()
    for number in range(batches):
        for row in given(number):
            found[str(row["user"]), int(row["at"]) // SECOND + 10] += row["x"]  # type: ignore[call-overload, operator]
    return dict(found)


def rows_of(rig: Rig) -> Sums:
    """All that is in memory, merged as for whoever reads it: each key and window once."""
    layers, lease = rig.operator._stack.lease_due(MIN_WATERMARK, MAX_WATERMARK)
    plan, _ = rig.operator._queries.merged(layers, rig.operator._stack.horizon)
    merged = rig.operator._queries.frame(plan)
    found = [
        (row[0], row[1], row[2]) for row in merged.selectExpr("user", "unix_seconds(window_end)", "x__sum").collect()
    ]
    lease.release()
    sums = {(user, end): x for user, end, x in found}
    assert len(sums) == len(found)
    return sums


def test_whatever_the_height_the_rows_are_the_same_in_memory_restored_and_merged(spark, tmp_path):
    rig, handles = rig_of(spark, tmp_path), {}
    for number in range(max(HEIGHTS)):
        deferred = rig.operator.process(
            Batch(frame=rig.frame(given(number)), sequence=number), source=0, watermark=rig.watermark, emit=rig._emit
        )
        for _, batch in rig.sent:
            batch.release()
        rig.sent.clear()
        deferred.finish()
        handle = rig.checkpoint()
        if number + 1 in HEIGHTS:
            handles[number + 1] = handle
            assert rows_of(rig) == expected(number + 1)
            assert rig.operator._stack.height <= STOP_LIMIT
    assert {height: len(handle.layers) for height, handle in handles.items()} == {each: each for each in HEIGHTS}
    assert rig.operator._stack.height < max(HEIGHTS), "at the limit the data path merges by itself"
    merged_beside(rig, expected(max(HEIGHTS)))
    rig.operator.close()
    for generation, (height, handle) in enumerate(handles.items(), start=2):
        restored(rig, handle, height, generation)


def merged_beside(rig: Rig, right: Sums) -> None:
    """What is due in the background, one piece after the other."""
    while (work := rig.operator.maintain()) is not None:
        work()
        assert rows_of(rig) == right
    assert rig.operator._stack.height < MERGE_FAN_IN
    assert len(rig.checkpoint().layers) < DURABLE_LIMIT


def restored(rig: Rig, handle: StateHandle, height: int, generation: int) -> None:
    again = rig.again(handle, generation=generation, partitions=1 + height % 3)
    assert rows_of(again) == expected(height)
    assert again.operator._stack.height == 1, "it comes as one layer"
    again.operator.close()
