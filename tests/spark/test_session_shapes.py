"""What sessions cost, and what they keep: jobs, exchanges, compilations, blocks and files, counted from outside."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from penstock.clock import MAX_WATERMARK
from penstock.errors import StateIncompatible
from penstock.interfaces.operator import MAIN_PORT
from penstock.operators import aggregates as agg
from penstock.operators.windows import sessions
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import session, tumbling
from penstock.operators.windows.emit_strategy import ON_WINDOW_CLOSE, EmitStrategy
from penstock.operators.windows.sessions import number_sessions
from penstock.state import parquet
from penstock.state.compaction import Compaction
from window_harness import Rig, counted, deliver, exchanges, persistent

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])

WAYS = {
    "final": (session("10 seconds"), ON_WINDOW_CLOSE),
    "by": (session(by="CASE WHEN x > 3 THEN INTERVAL 10 SECONDS ELSE INTERVAL 9 SECONDS END"), ON_WINDOW_CLOSE),
    "lateness": (session("10 seconds", allowed_lateness="1 minute"), ON_WINDOW_CLOSE),
    "updates": (session("10 seconds"), EmitStrategy(updates=True)),
    "early": (session("10 seconds"), EmitStrategy(early=True, every=10)),
}


def rig_of(spark, folder, kind: str, keys=(("user", "user"),), **more) -> Rig:
    window, emission = WAYS[kind]
    aggregates = (agg.sum("x"), agg.count().alias("n"), agg.collect("x").alias("all"))
    step = WindowAggregate(keys=keys, time="at", window=window, aggregates=aggregates, emission=emission)
    return Rig(spark, step, SCHEMA, folder, **more)


def rows(*seconds: int, user: str = "a") -> list[dict[str, object]]:
    return [{"user": user, "at": second * SECOND, "x": second} for second in seconds]


def one_round(spark, rig: Rig, start: int) -> None:
    """Batches, late rows, sessions that end while others go on, a snapshot; then all is closed."""
    some = [{"user": f"u{n % 7}", "at": (start + n % 40) * SECOND, "x": n} for n in range(60)]
    some += rows(start, user="brief")
    for upto, jobs in ((None, 1), (None, 1), (15, 1), (None, 1), (25, 1), (None, 1), (60, 1), (1_000, 0)):
        with counted(spark) as cost:
            if upto is None:
                rig.wall += 10
                rig.process([*some, *rows(start - 1_000)] if rig.watermark > 0 else some)
            else:
                rig.advance((start + upto) * SECOND)
        assert cost.jobs == jobs, "what ends is merged out of all layers, unless there is but one"
        deliver(spark, rig)
    rig.checkpoint()
    assert rig.operator._stack.height == 0


@pytest.mark.parametrize("kind", WAYS)
def test_a_batch_is_one_job_an_end_of_sessions_one_more_and_nothing_is_compiled_once_warm(spark, tmp_path, kind):
    before = persistent(spark)
    rig = rig_of(spark, tmp_path, kind)
    for number in (1, 2):
        one_round(spark, rig, number * 10_000)
    with counted(spark) as warm:
        one_round(spark, rig, 30_000)
    assert warm.compilations == 0
    rig.operator.close()
    assert persistent(spark) <= before


@pytest.mark.parametrize("keys", [(("user", "user"),), ()], ids=["string", "none"])
def test_no_exchange_lies_above_layers_at_any_height(spark, tmp_path, keys):
    rig = rig_of(spark, tmp_path, "final", keys)
    stack = rig.operator._stack
    for height in range(1, 13):
        rig.process(rows(*range(height, 90, 11)))
        layers, lease = stack.lease_due(0, MAX_WATERMARK)
        assert len(layers) == height
        layers_format = rig.operator._frames.layers_format
        frames = layers_format.merged(layers_format.between(_union(layers), 0))
        assert exchanges(frames) == 0
        lease.release()
    rig.advance(30 * SECOND)
    assert stack.height == 1
    rig.process(rows(33))
    layers, lease = stack.lease_due(0, MAX_WATERMARK)
    assert exchanges(layers_format.merged(_union(layers))) == 0
    lease.release()
    rig.operator.close()


def _union(layers):
    from penstock.state.layers import union_layers

    return union_layers(layers)


def test_a_merge_that_is_overtaken_by_the_end_of_sessions_comes_to_nothing(spark, tmp_path):
    rig = rig_of(spark, tmp_path, "final")
    for second in (1, 2, 30, 31):
        rig.process(rows(second))
    stack, operator = rig.operator._stack, rig.operator
    names = tuple(layer.name for layer in stack.sized())
    layers, lease = stack.lease_named(names)
    merged = operator._merged(layers, Compaction(names=names, level=1, reason="test"))
    rig.advance(20 * SECOND)
    assert not stack.replace(layers, merged)
    lease.release()
    rig.advance(MAX_WATERMARK)
    assert [row[3:5] for row in rig.take()] == [(3, 2), (61, 2)]
    operator.close()


def test_a_checkpoint_writes_what_is_new_and_all_that_is_open_once_sessions_have_ended(spark, tmp_path):
    rig = rig_of(spark, tmp_path, "final")
    rig.process([*rows(1, 30), *rows(35, user="b")])
    first = rig.checkpoint()
    rig.process(rows(33, user="c"))
    second = rig.checkpoint()
    assert [layer.rows for layer in second.layers] == [3, 1]
    assert second.layers[0] == first.layers[0]
    pending = rig.operator.snapshot(3)
    rig.process(rows(36))
    rig.advance(20 * SECOND)
    rig.process(rows(37, user="d"))
    overtaken = pending.materialise()
    assert overtaken.layers == second.layers, "the merge came after the snapshot was named"
    third = rig.checkpoint()
    assert [layer.rows for layer in third.layers] == [4], "sessions of a, b, c and d, without the one that has ended"
    assert rig.checkpoint().layers == third.layers
    rig.take()
    old = rig_of(spark, tmp_path, "final", restored=overtaken, generation=7, partitions=3)
    old.process(rows(36))
    old.advance(20 * SECOND)
    old.process(rows(37, user="d"))
    new = rig.again(third, generation=8)
    ends = []
    for each in (old, new):
        each.advance(MAX_WATERMARK)
        ends.append([row for row in each.take() if row[-1] != [1]])
        each.operator.close()
    assert ends[0] == ends[1] != []


def test_durable_layers_are_merged_without_losing_the_beginning_of_a_session(spark, tmp_path):
    rig = rig_of(spark, tmp_path, "final")
    rig.process(rows(1, 100))
    rig.advance(50 * SECOND)
    for second in range(101, 117):
        rig.process(rows(second))
        rig.checkpoint()
        rig.maintain()
    handle = rig.checkpoint()
    assert len(handle.layers) < 12
    rig = rig.again(handle, partitions=3)
    rig.sent.clear()
    rig.advance(MAX_WATERMARK)
    assert [row[4] for row in rig.take()] == [17]
    rig.operator.close()


def test_state_of_other_sessions_or_windows_is_refused(spark, tmp_path):
    rig = rig_of(spark, tmp_path, "final")
    rig.process(rows(1))
    handle = rig.checkpoint()
    rig.operator.close()
    with pytest.raises(
        StateIncompatible, match="windows 'sessions with a gap of 10 seconds', but the pipeline declares"
    ):
        rig_of(spark, tmp_path, "by", restored=handle, generation=2)
    spec = WindowAggregate(keys=rig.spec.keys, time="at", window=tumbling("10 s"), aggregates=rig.spec.aggregates)
    with pytest.raises(StateIncompatible, match="kind 'sessions/1', but this step keeps 'window/1'"):
        Rig(spark, spec, SCHEMA, tmp_path, restored=handle, generation=2)


def test_times_at_the_ends_of_time_and_keys_that_are_equal_but_not_alike(spark, tmp_path):
    keys = (
        ("k", "CASE x WHEN 0 THEN -0.0D WHEN 1 THEN 0.0D WHEN 2 THEN double('NaN') WHEN 3 THEN -double('NaN') END"),
    )
    rig = rig_of(spark, tmp_path, "final", keys)
    for at in (-(2**63), 0, 2**63 - 1):
        frame = spark.sql(
            f"SELECT 'a' AS user, timestamp_micros({at}L) AS at, id AS x FROM range(5)".replace(
                f"{-(2**63)}L", "-9223372036854775807L - 1L"
            )
        )
        rig.process_frame(frame)
        if at == 0:
            rig = rig.again(rig.checkpoint(), partitions=3)
    rig.advance(MAX_WATERMARK)
    frames = [
        batch.frame.selectExpr("k", "unix_micros(window_start)", "unix_micros(window_end)", "n")
        for _, batch in rig.sent
    ]
    assert len(frames) == 1
    found = sorted((str(k), start, end - start, n) for k, start, end, n in frames[0].collect())
    lengths = {-(2**63): 10 * SECOND, 0: 10 * SECOND, 2**63 - 1: 0}
    assert found == [(k, at, lengths[at], n) for k, n in (("0.0", 2), ("None", 1), ("nan", 2)) for at in lengths]
    assert rig.counts == {"fired": 1}
    rig.sent[0][1].release()
    rig.operator.close()


def test_results_are_sent_and_event_time_passed_on_in_steps_of_a_tenth_of_the_gap(spark, tmp_path):
    rig = rig_of(spark, tmp_path, "final")
    rig.process(rows(1))
    rig.process(rows(2, user="b"))
    told = [rig.operator.advance(micros, emit=rig._emit) for micros in (11 * SECOND + 1, 12 * SECOND - 1)]
    assert told == [11 * SECOND, 11 * SECOND]
    assert [row[0] for row in rig.take(MAIN_PORT)] == ["a"]
    assert rig.operator.advance(12 * SECOND, emit=rig._emit) == 11 * SECOND, "a row at 12 would prolong that of b"
    assert rig.operator.advance(12 * SECOND + 1, emit=rig._emit) == 12 * SECOND
    assert [row[0] for row in rig.take(MAIN_PORT)] == ["b"]
    rig.operator.close()


def came(rig: Rig) -> list[tuple[object, ...]]:
    """Who, from which second to which, and the sum."""
    return [(who, int(start.timestamp()), int(end.timestamp()), x) for who, start, end, x, *_ in rig.take()]


@pytest.mark.parametrize("together", [True, False])
def test_a_row_exactly_a_gap_after_the_last_prolongs_the_session(spark, tmp_path, together):
    """Whatever batch brings it, before and after a restart, even if the watermark is at the end already."""
    rig = rig_of(spark, tmp_path, "final")
    if together:
        rig.process(rows(0, 10, 20))
    else:
        rig.process(rows(0))
        rig.advance(10 * SECOND)
        rig.process(rows(10))
        rig = rig.again(rig.checkpoint())
        rig.advance(20 * SECOND)
        rig.process(rows(20))
    rig.advance(30 * SECOND)
    assert came(rig) == []
    rig.advance(30 * SECOND + 1)
    assert came(rig) == [("a", 0, 30, 30)]
    rig.operator.close()


def test_spark_and_penstock_begin_sessions_at_the_same_rows(spark, tmp_path):
    seconds = [0, 10, 20, 31, 40, 50, 61]
    frame = spark.createDataFrame([(n,) for n in seconds], "n LONG").selectExpr("n", "timestamp_seconds(n) AS at")
    by_spark = frame.groupBy(F.session_window("at", "10 seconds").alias("w")).agg(F.sum("n").alias("x"))
    expected = by_spark.selectExpr("unix_seconds(w.start)", "unix_seconds(w.end)", "x").collect()
    rig = rig_of(spark, tmp_path, "final")
    rig.process(rows(*seconds))
    rig.advance(MAX_WATERMARK)
    assert [row[1:] for row in came(rig)] == sorted(map(tuple, expected))
    rig.operator.close()


def test_a_row_at_the_end_of_a_closed_session_begins_another(spark, tmp_path):
    rig = rig_of(spark, tmp_path, "final")
    rig.process(rows(0))
    rig.advance(10 * SECOND + 1)
    assert came(rig) == [("a", 0, 10, 0)]
    rig.process(rows(10))
    rig = rig.again(rig.checkpoint())
    rig.process(rows(15))
    rig.advance(MAX_WATERMARK)
    assert came(rig) == [("a", 10, 25, 25)]
    rig.operator.close()


def apart(frame, keys, start, end, **more):
    """Number sessions as before those that touch became one."""
    earlier = frame.withColumns({"true_end": F.col(end), end: F.expr(f"{end} - INTERVAL '0.000001' SECOND")})
    found = number_sessions(earlier, keys, start, end, **more)
    return found.withColumn(end, F.col("true_end")).drop("true_end")


def test_open_sessions_that_touch_in_older_state_become_one_and_lose_nothing(spark, tmp_path):
    with pytest.MonkeyPatch.context() as older:
        older.setattr(sessions, "number_sessions", apart)
        rig = rig_of(spark, tmp_path, "final")
        rig.process([*rows(0, 10), *rows(3, user="b")])
        handle = rig.checkpoint()
        assert [layer.rows for layer in handle.layers] == [3]
        rig.operator.close()
    rig = rig_of(spark, tmp_path, "final", restored=handle, generation=2)
    rig.advance(14 * SECOND)
    assert came(rig) == [("b", 3, 13, 3)]
    rig = rig.again(rig.checkpoint())
    rig.advance(MAX_WATERMARK)
    assert came(rig) == [("a", 0, 20, 10)]
    rig.operator.close()


def test_state_merged_without_new_rows_is_in_the_next_checkpoint(spark, tmp_path):
    rig = rig_of(spark, tmp_path, "final")
    rig.process(rows(0))
    rig.process(rows(5, user="b"))
    rig.checkpoint()
    rig.advance(12 * SECOND)
    assert came(rig) == [("a", 0, 10, 0)]
    rig = rig.again(rig.checkpoint())
    rig.advance(MAX_WATERMARK)
    assert came(rig) == [("b", 5, 15, 5)]
    rig.operator.close()


def test_a_session_that_lies_in_two_durable_layers_keeps_its_beginning(spark, tmp_path):
    """In memory it is one row, which ends above the horizon; what it is made of on disk may end below."""
    rig = rig_of(spark, tmp_path, "final")
    for second in (0, 8):
        rig.process([*rows(second), *rows(second, user="b")] if second == 0 else rows(second))
        rig.checkpoint()
    rig = rig.again(rig.checkpoint())
    rig.advance(12 * SECOND)
    assert came(rig) == [("b", 0, 10, 0)]
    rig.advance(15 * SECOND)
    rig = rig.again(rig.checkpoint())
    rig.process(rows(16))
    rig.advance(MAX_WATERMARK)
    assert came(rig) == [("a", 0, 26, 24)]
    rig.operator.close()


@pytest.mark.usefixtures("few_layers")
def test_nor_does_one_whose_layers_in_memory_were_merged_before_time_passed_its_beginning(spark, tmp_path):
    rig = rig_of(spark, tmp_path, "final")
    for second in (0, 8):
        rig.process(rows(second))
    rig.checkpoint()
    for _ in range(3):
        rig.process(rows(8))
        rig.checkpoint()
    rig.maintain()
    rig.advance(15 * SECOND)
    assert came(rig) == []
    rig = rig.again(rig.checkpoint())
    rig.advance(MAX_WATERMARK)
    assert came(rig) == [("a", 0, 18, 32)]
    rig.operator.close()


def test_nor_does_one_that_is_all_in_the_past_once_no_lateness_is_allowed_any_more(spark, tmp_path):
    """More is closed then than was, and what one row of memory is made of on disk lies in part below."""
    for batch in ((), (52,)):
        rig = rig_of(spark, tmp_path / str(batch), "lateness")
        rig.process(rows(5))
        rig.advance(50 * SECOND)
        assert came(rig) == [("a", 5, 15, 5)]
        rig.checkpoint()
        rig.process(rows(13, 22, 31, 40, 49))
        handle = rig.checkpoint()
        rig.operator.close()
        rig = rig_of(spark, rig.root, "final", restored=handle, generation=2, watermark=50 * SECOND)
        if batch:
            rig.process(rows(*batch))
        rig = rig.again(rig.checkpoint())
        rig.advance(MAX_WATERMARK)
        assert came(rig) == [("a", 5, max(59, *(second + 10 for second in batch), 0), 160 + sum(batch))]
        rig.operator.close()


def test_nor_does_one_whose_key_has_a_collation(spark, tmp_path, monkeypatch):
    """Keys that are alike have other bytes there, by which they would lie in different slices of one layer."""
    monkeypatch.setattr(parquet, "ROWS_A_TASK", 1)
    users = "abcdefgh"
    rig = rig_of(spark, tmp_path, "final", (("user", "user COLLATE UTF8_LCASE"),))
    rig.process([row for user in users for row in rows(0, user=user.upper())])
    rig.process([row for user in users for row in rows(8, user=user)])
    handle = rig.checkpoint()
    assert len(handle.layers) == 1
    rig = rig.again(handle)
    rig.process([])
    rig.advance(12 * SECOND)
    rig = rig.again(rig.checkpoint())
    rig.advance(MAX_WATERMARK)
    found = sorted((who.lower(), start, end, x) for who, start, end, x in came(rig))
    assert found == [(user, 0, 18, 8) for user in users]
    rig.operator.close()


@pytest.mark.usefixtures("few_layers")
def test_a_merge_on_disk_that_comes_to_nothing_leaves_no_files(spark, tmp_path):
    handles = []

    def meanwhile(place: str) -> None:
        if merges and place == "state.layer.durable":
            merges.pop()
            rig.advance(20 * SECOND)
            handles.append(rig.checkpoint())

    merges: list[bool] = []
    rig = rig_of(spark, tmp_path, "final", failpoint=meanwhile)
    while rig.operator._durable.plan() is None:
        rig.process([*rows(len(handles) % 8), *rows(100, user="b")])
        handles.append(rig.checkpoint())
        if work := rig.operator._memory_work():  # so that it is known how few rows are live
            work()
        assert len(handles) < 20
    merges.append(True)
    rig.operator._durable.compact()
    assert not merges
    named = {file.path for handle in handles for layer in handle.layers for file in layer.files}
    assert named == set(rig.filesystem.list("state"))
    rig.take()
    rig.operator.close()
