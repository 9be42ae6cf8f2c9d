"""What is sent when: changes, early results, windows sent again within the allowed lateness."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from penstock.clock import MAX_WATERMARK
from penstock.errors import StateIncompatible
from penstock.interfaces.operator import LATE_PORT
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import session, sliding, tumbling
from penstock.operators.windows.emit_strategy import ON_WINDOW_CLOSE, EmitStrategy
from window_harness import Rig, counted

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])
TEN = tumbling("10 seconds")


def rig_of(spark, folder, window=TEN, emission=ON_WINDOW_CLOSE, function=agg.sum, **more) -> Rig:
    aggregates = (function("x").alias("x"),)
    step = WindowAggregate(keys=(("user", "user"),), time="at", window=window, aggregates=aggregates, emission=emission)
    return Rig(spark, step, SCHEMA, folder, **more)


def rows(*seconds: int, user: str = "a", x: int = 1) -> list[dict[str, object]]:
    return [{"user": user, "at": second * SECOND, "x": x} for second in seconds]


def sent(rig: Rig) -> list[tuple[object, ...]]:
    """User, end of the window in seconds, x and the mark if there is one, in the order of sending."""
    found = []
    for port, batch in rig.sent:
        frame = batch.frame
        marks = [name for name in frame.columns if name.startswith("_")]
        if port != LATE_PORT:
            found += map(tuple, frame.selectExpr("user", "unix_seconds(window_end)", "x", *marks).collect())
        batch.release()
    rig.sent.clear()
    return found


def test_changes_come_in_pairs_and_only_where_something_changed(spark, tmp_path):
    rig = rig_of(spark, tmp_path, emission=EmitStrategy(updates=True), function=agg.max)
    rig.process([*rows(1), *rows(2, user="b"), *rows(11)])
    assert sorted(sent(rig)) == [("a", 10, 1, "insert"), ("a", 20, 1, "insert"), ("b", 10, 1, "insert")]
    rig.process([*rows(3, x=5), *rows(4, user="b")])
    assert sent(rig) == [("a", 10, 1, "update_before"), ("a", 10, 5, "update_after")], "the greatest of b is the same"
    rig.advance(10 * SECOND)
    rig.process(rows(4, x=9))
    assert (rig.counts["late"], sent(rig)) == (1, [])
    rig.operator.close()


def test_changes_wait_for_their_time_and_never_beyond_a_snapshot_or_a_windows_end(spark, tmp_path):
    rig = rig_of(spark, tmp_path, emission=EmitStrategy(updates=True, every=1_000), wall=500)
    told = []
    for wall in (900, 1_000, 1_999, 2_100):
        rig.wall = wall
        rig.process(rows(1))
        told.append(sent(rig))
    first = [("a", 10, 2, "insert")]
    assert told == [[], first, [], [("a", 10, 2, "update_before"), ("a", 10, 4, "update_after")]]
    assert rig.operator.tick(emit=rig._emit) is None, "nothing waits"
    rig.process(rows(2))
    assert rig.operator.tick(emit=rig._emit) == 900, "microseconds until its time"
    assert sent(rig) == []
    handle = rig.checkpoint()
    assert sent(rig) == [("a", 10, 4, "update_before"), ("a", 10, 5, "update_after")]
    rig = rig.again(handle, partitions=3)
    rig.checkpoint()
    rig.process(rows(3))
    assert sent(rig) == [], "what was told before the restore is not told again"
    rig.advance(10 * SECOND)
    assert sent(rig) == [("a", 10, 5, "update_before"), ("a", 10, 6, "update_after")]
    rig.process(rows(11))
    rig.wall = 10_000
    assert rig.operator.tick(emit=rig._emit) is None
    assert sent(rig) == [("a", 20, 1, "insert")], "its time came without a batch"
    rig.operator.close()


def test_a_window_is_sent_again_when_rows_within_the_lateness_change_it(spark, tmp_path):
    rig = rig_of(spark, tmp_path, tumbling("10 seconds", allowed_lateness="5 seconds"))
    rig.process([*rows(1, 12), *rows(2, user="b")])
    rig.advance(11 * SECOND)
    assert sorted(sent(rig)) == [("a", 10, 1), ("b", 10, 1)]
    rig.process(rows(13))
    assert sent(rig) == [], "no window that was sent has changed"
    rig.process(rows(3, 14))
    assert sent(rig) == [("a", 10, 2)], "the whole result of the one that changed"
    rig = rig.again(rig.checkpoint())
    rig.process(rows(4))
    assert sent(rig) == [("a", 10, 3)]
    rig.advance(15 * SECOND)
    assert (sent(rig), rig.operator._stack.horizon) == ([], 10 * SECOND)
    rig.process(rows(5))
    assert (sent(rig), rig.counts["late"]) == ([], 1)
    rig.advance(20 * SECOND)
    assert sent(rig) == [("a", 20, 3)]
    rig.operator.close()


def test_a_late_row_counts_in_the_windows_that_are_still_open(spark, tmp_path):
    rig = rig_of(spark, tmp_path, sliding("20 seconds", "10 seconds"))
    rig.process(rows(5))
    rig.advance(10 * SECOND)
    assert sent(rig) == [("a", 10, 1)]
    rig.process(rows(6))
    assert (sent(rig), rig.counts.get("late", 0)) == ([], 0)
    rig.advance(20 * SECOND)
    assert sent(rig) == [("a", 20, 2)]
    rig.process(rows(7))
    assert (rig.counts["late"], sent(rig)) == (1, [])
    rig.operator.close()


def test_early_results_say_so_and_final_ones_come_all(spark, tmp_path):
    window = tumbling("10 seconds", allowed_lateness="10 seconds")
    rig = rig_of(spark, tmp_path, window, EmitStrategy(early=True, every=1_000))
    rig.process([*rows(1), *rows(2, user="b")])
    rig.wall = 1_000
    rig.process(rows(3, 15))
    assert sorted(sent(rig)) == [("a", 10, 2, "early"), ("a", 20, 1, "early"), ("b", 10, 1, "early")]
    rig.process(rows(16))
    rig.advance(10 * SECOND)
    assert sorted(sent(rig)) == [("a", 10, 2, "on_time"), ("a", 20, 2, "early"), ("b", 10, 1, "on_time")]
    rig.wall = 2_000
    rig.process(rows(4))
    assert sent(rig) == [("a", 10, 3, "late")]
    rig.advance(20 * SECOND)
    assert sent(rig) == [("a", 20, 2, "on_time")]
    rig.operator.close()


def test_a_step_that_begins_to_send_changes_sends_all_that_is_open_as_inserts(spark, tmp_path):
    rig = rig_of(spark, tmp_path)
    rig.process(rows(1, 12))
    rig.advance(10 * SECOND)
    assert sent(rig) == [("a", 10, 1)]
    handle = rig.checkpoint()
    rig.operator.close()
    changed = rig_of(spark, tmp_path, emission=EmitStrategy(updates=True), restored=handle, generation=2)
    changed.process(rows(22))
    assert sorted(sent(changed)) == [("a", 20, 1, "insert"), ("a", 30, 1, "insert")]
    changed.operator.close()


def test_state_of_other_windows_is_refused_and_a_longer_lateness_is_not(spark, tmp_path):
    rig = rig_of(spark, tmp_path)
    rig.process(rows(1))
    handle = rig.checkpoint()
    rig.operator.close()
    told = "cut for windows 'tumbling 10 seconds', but the pipeline declares 'tumbling 20 seconds'"
    with pytest.raises(StateIncompatible, match=told):
        rig_of(spark, tmp_path, tumbling("20 seconds"), restored=handle, generation=2)
    later = rig_of(spark, tmp_path, tumbling("10 seconds", allowed_lateness="1 hour"), restored=handle, generation=2)
    later.advance(10 * SECOND)
    assert sent(later) == [("a", 10, 1)]
    later.operator.close()


def test_windows_of_processing_time_end_by_the_clock_whatever_rows_say(spark, tmp_path):
    rig = rig_of(spark, tmp_path, tumbling("10 seconds", time="processing"), wall=3 * SECOND)
    rig.process([*rows(1_000), {"user": "a", "at": None, "x": 5}])
    assert (sent(rig), rig.operator.tick(emit=rig._emit)) == ([], 7 * SECOND)
    rig.wall = 9 * SECOND
    rig.process(rows(-1_000))
    rig.advance(5_000 * SECOND)
    assert sent(rig) == [], "a watermark means nothing here"
    rig.wall = 10 * SECOND
    assert rig.operator.tick(emit=rig._emit) is None
    assert sent(rig) == [("a", 10, 7)]
    rig.wall = 12 * SECOND
    rig.process(rows(1))
    rig = rig.again(rig.checkpoint(), wall=5 * SECOND)  # the clock was put back
    assert rig.maintain() == 1, "the restored rows"
    with counted(spark) as warm:
        rig.process(rows(2))
        rig.wall = 21 * SECOND
        rig.process(rows(3))
    assert warm.jobs == 2
    assert sent(rig) == [("a", 20, 2)]
    rig.advance(MAX_WATERMARK)
    assert sent(rig) == [("a", 30, 1)]
    assert "late" not in rig.counts
    rig.operator.close()


def test_rows_of_processing_time_are_in_order_of_arrival(spark, tmp_path):
    aggregates = (agg.first("x").alias("x"), agg.collect("x").alias("all"))
    step = WindowAggregate(
        keys=(("user", "user"),), time="", window=tumbling("10 seconds", time="processing"), aggregates=aggregates
    )
    rig = Rig(spark, step, SCHEMA, tmp_path)
    for wall, x in ((1, 7), (2, 9), (3, 5)):
        rig.wall = wall * SECOND
        rig.process(rows(100 - wall, x=x))
    rig.advance(MAX_WATERMARK)
    assert [row[-2:] for row in rig.take()] == [(7, [7, 9, 5])]
    rig.operator.close()


def test_results_that_cannot_be_compared_may_change(spark, tmp_path):
    rig = rig_of(spark, tmp_path, emission=EmitStrategy(updates=True), function=variant)
    for x in (1, 2):
        rig.process(rows(1, x=x))
    assert [(str(x), change) for _, _, x, change in sent(rig)] == [
        ("1", "insert"),
        ("1", "update_before"),
        ("3", "update_after"),
    ]
    rig.operator.close()


def variant(of: str) -> agg.Aggregate:
    """A sum as a VARIANT."""
    return agg.custom(
        "variant",
        of=of,
        partial={"s": F.sum},
        merge={"s": F.sum},
        finish=lambda s: F.parse_json(s.cast("string")),
    )


def test_what_waits_is_sent_before_a_snapshot_even_if_only_the_clock_was_heard(spark, tmp_path):
    rig = rig_of(spark, tmp_path)
    rig.process(rows(1))
    handle = rig.checkpoint()
    rig.operator.close()
    changed = rig_of(
        spark, tmp_path, emission=EmitStrategy(updates=True, every=1_000), restored=handle, generation=2, wall=500
    )
    assert changed.operator.tick(emit=changed._emit) == 500
    changed.checkpoint()
    assert sent(changed) == [("a", 10, 1, "insert")]
    changed.operator.close()


@pytest.mark.parametrize("kind", [tumbling, session])
def test_windows_of_processing_time_compile_nothing_once_warm(spark, tmp_path, kind):
    rig = rig_of(spark, tmp_path, kind("10 seconds", time="processing"))
    for start in range(4):
        with counted(spark) as cost:
            for second in (1, 5, 12):
                rig.wall = (start * 100 + second) * SECOND
                rig.process(rows(second))
                sent(rig)
            rig.wall += 50 * SECOND
            rig.operator.tick(emit=rig._emit)
            sent(rig)
    assert cost.compilations == 0
    rig.operator.close()


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("function", [agg.sum, agg.avg, agg.max, agg.count, agg.collect, agg.count_distinct])
def test_changes_are_what_became_of_the_whole_rows_whatever_the_aggregate(spark, tmp_path, function):
    rig = rig_of(spark, tmp_path, emission=EmitStrategy(updates=True), function=function)
    seen: dict[object, object] = {}
    given: list[dict[str, object]] = []
    for number in range(6):
        some = [{"user": user, "at": 5 * number * SECOND, "x": x} for user, x in (("a", number), ("b", None), ("c", 1))]
        given += some[: 1 + number % 3]
        rig.process(some[: 1 + number % 3])
        for user, end, value, change in sent(rig):
            if change == "update_before":
                assert seen.pop((user, end)) == value
            else:
                assert (user, end) not in seen
                seen[user, end] = value
        rig.maintain()
    rig.operator.close()
    whole = rig_of(spark, tmp_path / "whole", function=function)
    whole.process(given)
    whole.advance(MAX_WATERMARK)
    assert seen == {(user, end): value for user, end, value, *_ in sent(whole)}
    whole.operator.close()


def test_changes_of_numbers_are_found_in_one_pass_and_nothing_is_sorted(spark, tmp_path):
    rig = rig_of(spark, tmp_path, emission=EmitStrategy(updates=True))
    for number in range(3):
        rig.process(rows(number))
    *_, known = rig.operator._preparer._kept._shapes.values()
    plan = known.plan._plan.toString()
    assert [plan.count(word) for word in ("HashAggregate", "SortAggregate", "Sort [", "Exchange", "Scan")] == [
        1,
        0,
        0,
        0,
        2,
    ]
    sent(rig)
    rig.operator.close()
