"""Old rows of keys that a batch does not have are left out before rows are merged: what is sent stays the same."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK
from penstock.operators import aggregates as agg
from penstock.operators.windows import results
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import global_window, session, sliding, tumbling
from penstock.operators.windows.emit_strategy import EmitStrategy
from penstock.spark.prepared_plans import PlanPreparer
from window_harness import Rig, counted, persistent

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.operators.windows.panes import Window

pytestmark = pytest.mark.spark

SECOND = 1_000_000
ARROW = pa.schema(
    [
        ("k", pa.string()),
        ("d", pa.float64()),
        ("n", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("st", pa.struct([("a", pa.int32()), ("b", pa.float64())])),
    ]
)
DOUBLES = [0.0, -0.0, math.nan, None, 1.5, -math.nan]
TEXTS = [None, "a", "A", "b", "ä", "é"]


def rows(of: list[int], turn: int) -> list[dict[str, object]]:
    """Rows of some of six keys, over 40 seconds."""
    return [
        {
            "k": TEXTS[n],
            "d": DOUBLES[n],
            "n": 10 * turn + n,
            "at": (7 * turn + 5 * n) % 40 * SECOND,
            "st": {"a": n % 3, "b": DOUBLES[n]},
        }
        for n in of
    ]


def step(keys: list[str], window: Window, emission: EmitStrategy) -> WindowAggregate:
    named = tuple((f"key{place}", key) for place, key in enumerate(keys))
    aggregates = (agg.sum("n").alias("s"), agg.count().alias("c"), agg.max("n").alias("m"))
    return WindowAggregate(keys=named, time="at", window=window, aggregates=aggregates, emission=emission)


class Seen:
    """What ``PlanPreparer.matched`` made of old rows: how many they were, and the rows of how many keys are left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans: list[Any] = []
        real = PlanPreparer.matched

        def matched(preparer: PlanPreparer, rows: Any, others: Any, keys: Any) -> Any:
            found = real(preparer, rows, others, keys)
            self.plans.append((preparer, rows, found))
            return found

        monkeypatch.setattr(PlanPreparer, "matched", matched)

    @property
    def were_left_out(self) -> set[bool]:
        """Whether rows were left out, of each batch."""
        return {found is not rows for _, rows, found in self.plans}


def run(
    spark: SparkSession, folder: Path, step: WindowAggregate, *, late_read: bool = False
) -> tuple[list[list[str]], list[int], list[int]]:
    """What is sent after each batch, the jobs and the compilations of each; it restarts on the way."""
    rig = Rig(spark, step, ARROW, folder, late_read=late_read)
    sent, jobs, compiled = [], [], []
    for turn in range(6):
        rig.wall += 10
        with counted(spark) as cost:
            rig.process(rows([turn, (turn + 1) % 6, 2], turn))  # a key of all batches, and two that come again later
        sent.append(sorted(map(repr, rig.take())))
        jobs.append(cost.jobs)
        compiled.append(cost.compilations)
        if turn == 2:
            rig.advance(20 * SECOND)
        if turn == 3:
            handle = rig.checkpoint()
            sent.append(sorted(map(repr, rig.take())))
            rig = rig.again(handle, partitions=3)
    rig.advance(MAX_WATERMARK)
    sent.append(sorted(map(repr, rig.take())))
    rig.operator.close()
    return sent, jobs, compiled


def both_ways(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, step: WindowAggregate
) -> tuple[Seen, list[int], list[int]]:
    """Run a step with old rows left out and without, and compare what is sent."""
    before = persistent(spark)
    merged, _, _ = run(spark, folder / "merged", step)
    monkeypatch.setattr(results, "MANY_OLD_ROWS", 1)
    monkeypatch.setattr(results, "OLD_PER_NEW", 0)
    seen = Seen(monkeypatch)
    matched, jobs, compiled = run(spark, folder / "matched", step)
    assert matched == merged
    assert persistent(spark) <= before
    return seen, jobs, compiled


UPDATES = EmitStrategy(updates=True)
KEYS = {
    "a text": ["k"],
    "-0.0 and NaN": ["d"],
    "rows": ["st"],
    "computed": ["n % 7", "upper(k)"],
    "decimals and bytes": ["CAST(n AS DECIMAL(20, 2))", "CAST(k AS BINARY)"],
    "lists": ["array(d, n)"],
}


@pytest.mark.parametrize("keys", KEYS)
def test_keys_of_all_kinds_find_their_old_rows(spark, tmp_path, monkeypatch, keys):
    seen, jobs, compiled = both_ways(spark, tmp_path, monkeypatch, step(KEYS[keys], tumbling("10 seconds"), UPDATES))
    assert seen.were_left_out == {True}
    assert jobs[:4] == [1] * 4
    assert compiled[3] == 0


WINDOWS = {
    "sliding": (sliding("20 seconds", "5 seconds"), UPDATES),
    "sessions": (session("6 seconds"), UPDATES),
    "all time": (global_window(), UPDATES),
    "paced": (tumbling("10 seconds"), EmitStrategy(updates=True, every=1)),
    "again": (tumbling("10 seconds", allowed_lateness="1 hour"), EmitStrategy()),
    "early": (tumbling("20 seconds"), EmitStrategy(every=1, early=True)),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_windows_of_all_kinds_have_their_old_rows(spark, tmp_path, monkeypatch, kind):
    seen, _, _ = both_ways(spark, tmp_path, monkeypatch, step(["k"], *WINDOWS[kind]))
    assert seen.were_left_out == {True}


def test_a_text_in_a_language_has_keys_that_hashes_tell_apart_so_all_rows_are_merged(spark, tmp_path, monkeypatch):
    seen = Seen(monkeypatch)
    monkeypatch.setattr(results, "MANY_OLD_ROWS", 1)
    monkeypatch.setattr(results, "OLD_PER_NEW", 0)
    given = step(["k COLLATE UNICODE_CI"], tumbling("1 minute"), UPDATES)
    rig = Rig(spark, given, ARROW, tmp_path, late_read=False)
    for key in (1, 2):
        rig.process(rows([key], 0))
        sent = rig.take()
    assert {row[-1] for row in sent} == {"update_after", "update_before"}, "'A' is 'a'"
    assert seen.plans == []
    rig.operator.close()


def test_old_rows_are_left_out_from_some_number_on_and_only_those_of_other_keys(spark, tmp_path, monkeypatch):
    seen = Seen(monkeypatch)
    monkeypatch.setattr(results, "MANY_OLD_ROWS", 50)
    given = step(["n"], tumbling("10 seconds"), UPDATES)
    rig = Rig(spark, given, ARROW, tmp_path, late_read=False)
    for first, count in ((0, 30), (30, 20), (50, 13), (40, 12)):
        rig.process([{"n": n, "at": SECOND} for n in range(first, first + count)])
        rig.take()
    assert len(seen.plans) == 2, "30 old rows are few, 50 and 63 are not"
    preparer, old, left = seen.plans[-1]
    assert [len(preparer.frame(plan).collect()) for plan in (old, left)] == [63, 12]
    rig.operator.close()
