"""State of a windowed aggregate under changed code: aggregates that come and go, wider types, layers of both times."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from aggregate_cases import NAMES, SECOND, assert_same, expected, step
from aggregate_cases import SCHEMA as ALL
from penstock.clock import MAX_WATERMARK
from penstock.errors import StateIncompatible
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import count_window, global_window, session, sliding, tumbling
from penstock.state import durable
from penstock.state.compaction import plan_durable_compaction
from penstock.state.schema import layer_columns
from window_harness import Rig

if TYPE_CHECKING:
    from penstock.handles import StateHandle
    from penstock.operators.windows.panes import Window

pytestmark = [pytest.mark.spark, pytest.mark.mission("D7")]

KINDS: dict[str, Window] = {
    "tumbling": tumbling("1 minute"),
    "sliding": sliding("1 minute", "30 seconds"),
    "session": session("1 minute"),
    "count": count_window(100),
    "all time": global_window(every_rows=100),
}
OLD = pa.schema(
    [("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int32()), ("m", pa.decimal128(6, 2))]
)
NEW = pa.schema(
    [("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64()), ("m", pa.decimal128(9, 2))]
)
SUMS, LEAST, TOP = agg.sum("x").alias("total"), agg.min("x").alias("low"), agg.max("m").alias("top")
LAST = agg.last("x").alias("newest")


def over(window: Window, *aggregates: agg.Aggregate) -> WindowAggregate:
    return WindowAggregate(keys=(("user", "user"),), time="at", window=window, aggregates=aggregates)


def rows(*values: int, user: str = "a") -> list[dict[str, object]]:
    """All within the first half of a minute, each value at its second."""
    return [{"user": user, "at": value * SECOND, "x": value, "m": Decimal(value)} for value in values]


def changed(rig: Rig, handle: StateHandle, spec: WindowAggregate, schema: pa.Schema, **more: Any) -> Rig:
    """Other code on what the checkpoint holds."""
    rig.operator.close()
    return Rig(rig.spark, spec, schema, rig.root, restored=handle, generation=rig.generation + 1, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_aggregates_come_and_go_and_types_widen_while_layers_of_both_times_lie_together(
    spark, tmp_path, monkeypatch, kind
):
    """Restored, checkpointed, crashed, restored, merged into one layer, restored: the same all the way."""
    before, now = over(KINDS[kind], SUMS, TOP, LEAST, LAST), over(KINDS[kind], LAST, agg.count().alias("n"), LEAST, TOP)
    rig = Rig(spark, before, OLD, tmp_path)
    rig.process(rows(5, 9))
    rig.checkpoint()
    rig.process(rows(7) + rows(3, user="b"))
    held = rig.checkpoint()

    rig = changed(rig, held, now, NEW, partitions=3)
    rig.process(rows(12, 4))
    mixed = rig.checkpoint()
    old, new = held.schema, mixed.schema
    assert new != old
    said = {layer_columns(ref) is not None for ref in mixed.layers}
    assert True in said or kind in ("session", "count", "all time"), "those write one layer in the place of all"

    rig = rig.again(mixed)  # as after a crash
    rig.process(rows(11, user="b"))
    monkeypatch.setattr(durable, "plan_durable_compaction", partial(plan_durable_compaction, limit=2))
    rig.checkpoint()
    rig.maintain()
    merged = rig.checkpoint()
    assert [layer_columns(ref) for ref in merged.layers] == [None]
    rig = rig.again(merged)
    rig.advance(MAX_WATERMARK)
    assert {row[:1] + row[3:] for row in rig.take()} == {
        ("a", 12, 2, 4, Decimal("12.00")),
        ("b", 11, 1, 3, Decimal("11.00")),
    }
    rig.operator.close()


def test_what_was_dropped_begins_anew_if_it_comes_back_merged_or_not(spark, tmp_path):
    window = KINDS["tumbling"]
    rig = Rig(spark, over(window, SUMS, LEAST), NEW, tmp_path)
    rig.process(rows(5))
    rig = changed(rig, rig.checkpoint(), over(window, LEAST), NEW)
    rig.process(rows(9))
    rig = changed(rig, rig.checkpoint(), over(window, LEAST, SUMS), NEW)
    rig.process(rows(7))
    rig.advance(MAX_WATERMARK)
    assert [row[3:] for row in rig.take()] == [(5, 7)]
    rig.operator.close()


def test_every_aggregate_that_is_added_begins_with_nothing_seen(spark, tmp_path):
    """Windows go on: in those with new rows it tells of these alone, in the others what it tells of no rows."""
    names = [name for name in NAMES if name not in ("sum_x", "last_pair", "count_distinct_nested")]

    def row(user: str, second: int, *values: object) -> dict[str, object]:
        found = dict(zip(("x", "d", "f", "m", "s"), (*values, *[None] * 5), strict=False))
        return {"user": user, "at": second * SECOND, **found}

    before = [row("a", 1, 4, 0.5, 0.5, Decimal("1.10"), "p"), row("old", 2, 9, 1.5, 1.5, Decimal("2.00"), "q")]
    since = [row("a", 3, 7, 2.5, 0.25, Decimal("3.10"), "r"), row("a", 5, 5, -1.0, 4.0, Decimal("0.01"), "p")]
    rig = Rig(spark, step(["sum_x"]), ALL, tmp_path)
    rig.process(before)
    rig = changed(rig, rig.checkpoint(), step(["sum_x", *names]), ALL)
    rig.process(since)
    rig = rig.again(rig.checkpoint())
    rig.advance(MAX_WATERMARK)
    found = rig.take()
    assert {each[0]: each[3] for each in found} == {"a": 16, "old": 9}
    assert_same([each[:3] + each[4:] for each in found], expected(spark, [*since, row("old", 2)], names), names)
    rig.operator.close()


def test_whoever_opens_the_step_itself_is_refused_too(spark, tmp_path):
    rig = Rig(spark, over(KINDS["tumbling"], LEAST), NEW, tmp_path)
    rig.process(rows(5))
    held = rig.checkpoint()
    with pytest.raises(StateIncompatible, match="'low__min' was bigint and would be int"):
        changed(rig, held, over(KINDS["tumbling"], LEAST), OLD)
    with pytest.raises(StateIncompatible, match=r"cut for windows 'tumbling 1 minute'.* declares 'tumbling 2 minutes'"):
        changed(rig, held, over(tumbling("2 minutes"), LEAST), NEW)
