"""Windows of so many rows, and the window for all time: results, state, cost, and what is refused."""

from __future__ import annotations

import copy
import random

import pyarrow as pa
import pytest

import penstock as ps
from oracle.counted import Counted, Running
from penstock.clock import MAX_WATERMARK
from penstock.errors import GraphError, StateIncompatible
from penstock.interfaces.operator import LATE_PORT
from penstock.operators import aggregates as agg
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import count_window, global_window
from penstock.operators.windows.emit_strategy import ON_WINDOW_CLOSE, EmitStrategy
from window_harness import Rig, counted, deliver, exchanges, persistent, taken

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])


def rig_of(spark, folder, window, emission=ON_WINDOW_CLOSE, *, keys=(("user", "user"),), **more) -> Rig:
    aggregates = (agg.count().alias("n"), agg.sum("x").alias("x"))
    step = WindowAggregate(keys=keys, time="at", window=window, aggregates=aggregates, emission=emission)
    return Rig(spark, step, SCHEMA, folder, **more)


def rows(*seconds: int, user: str | None = "a") -> list[dict[str, object]]:
    return [{"user": user, "at": second * SECOND, "x": second} for second in seconds]


@pytest.mark.parametrize(("seed", "size", "keyed"), [(0, 3, True), (1, 1, True), (2, 7, True), (3, 4, False)])
def test_windows_of_so_many_rows_are_those_of_a_plain_count(spark, tmp_path, seed, size, keyed):
    chance = random.Random(seed)
    before = persistent(spark)
    rig = rig_of(spark, tmp_path, count_window(size), keys=(("user", "user"),) if keyed else ())
    oracle, out, kept, missing = Counted(size), [], None, 0
    for _ in range(10):
        match chance.choice(["batch"] * 4 + ["checkpoint", "restart", "maintain", "advance"]):
            case "batch":
                times = chance.sample(range(1_000), chance.choice([1, 3, 9]))  # no two alike: their order is their own
                batch = [
                    {"user": chance.choice(["a", "b", None]), "at": at * SECOND, "x": chance.randrange(9)}
                    for at in times
                ]
                rig.process([*batch, {"user": "a", "at": None, "x": 1}])
                missing += 1
                oracle.batch(batch if keyed else [{**row, "user": None} for row in batch])
            case "checkpoint":
                out += taken(rig)
                kept = rig.checkpoint(), copy.deepcopy(oracle), len(out)
            case "restart" if kept:
                taken(rig), taken(rig, LATE_PORT)
                rig = rig.again(kept[0], partitions=chance.choice([1, 2, 3]))
                oracle, missing = copy.deepcopy(kept[1]), 0
                del out[kept[2] :]
            case "maintain":
                rig.maintain()
            case "advance":
                rig.advance(rig.watermark + 2**62 if rig.watermark < 0 else 900 * SECOND)
    out += taken(rig)
    assert rig.counts.get("late", 0) == rig.counts.get("missing_time", 0) == len(taken(rig, LATE_PORT)) == missing
    expected = [row if keyed else row[1:] for row in oracle.full]
    assert sorted(out, key=repr) == sorted(expected, key=repr)
    rig.advance(MAX_WATERMARK)
    rest = [row if keyed else row[1:] for row in oracle.rest()]
    assert sorted(taken(rig), key=repr) == sorted(rest, key=repr)
    rig.operator.close()
    assert persistent(spark) <= before


def test_a_batch_of_counted_rows_is_one_job_a_result_one_more_and_nothing_is_compiled_once_warm(spark, tmp_path):
    before = persistent(spark)
    rig = rig_of(spark, tmp_path, count_window(5))
    for _ in range(4):
        with counted(spark) as warm:
            for _ in range(3):
                with counted(spark) as batch:
                    rig.process([*rows(*range(20)), *rows(3, 4, user="b"), {"user": "a", "at": None, "x": 1}])
                assert batch.jobs == 1
                assert rig.operator._stack.height == 1
                deliver(spark, rig)
            rig.checkpoint()
    assert warm.compilations == 0
    rig.operator.close()
    assert persistent(spark) <= before


def test_a_batch_beside_the_windows_that_are_not_full_needs_one_exchange(spark, tmp_path):
    rig = rig_of(spark, tmp_path, count_window(5))
    rig.process(rows(1, 2))
    frames = rig.operator._frames
    layers, lease = rig.operator._stack.lease_due(0, MAX_WATERMARK)
    flagged = frames.with_timeliness(rig.frame(rows(3)), 0, 1)
    assert exchanges(frames.counted(flagged, frames.layers.between(layers[0].frame, 0))) == 1, "that of the batch"
    lease.release()
    rig.operator.close()


def test_a_checkpoint_holds_what_is_not_full_and_a_window_of_another_size_is_refused(spark, tmp_path):
    rig = rig_of(spark, tmp_path, count_window(2))
    rig.process([*rows(1, 2, 3), *rows(4, 5, user="b")])
    first = rig.checkpoint()
    assert (first.kind, [layer.rows for layer in first.layers]) == ("counted/1", [1])
    assert rig.checkpoint().layers == first.layers
    rig.process(rows(6))
    assert rig.checkpoint().layers == ()
    rig.sent.clear()
    rig.operator.close()
    with pytest.raises(
        StateIncompatible, match="cut for windows 'every 2 rows', but the pipeline declares 'every 3 rows'"
    ):
        rig_of(spark, tmp_path, count_window(3), restored=first, generation=2)


def test_windows_without_a_watermark_count_rows_as_they_come(spark):
    @ps.pipeline("arrivals")
    def arrivals(p: ps.Pipeline) -> None:
        clicks = p.read("clicks", ps.files.Source("/nowhere", schema="user STRING, n LONG"))
        pairs = clicks.group_by("user", ps.count_window(2)).agg("pairs", ps.agg.sum("n").alias("n"))
        pairs.write("pairs-out", ps.memory.Sink())
        live = clicks.group_by("user", ps.global_window()).agg("live", ps.agg.sum("n").alias("n"), emit="updates")
        live.write("live-out", ps.memory.Sink())
        told = clicks.group_by("user", ps.global_window(every_rows=2)).agg("told", ps.agg.sum("n").alias("n"))
        told.write("told-out", ps.memory.Sink())

    with ps.testing.run(arrivals, spark) as t:
        for n in (1, 2, 4):
            t.send("clicks", [{"user": "a", "n": n}, {"user": "b", "n": -n}][: 1 + (n != 2)])
        t.checkpoint()
        t.crash()
        t.restart()
        assert t.rows("pairs-out", "user", "n") == [{"user": "a", "n": 3}, {"user": "b", "n": -5}]
        t.send("clicks", [{"user": "a", "n": 8}])
        t.end()
        assert {"user": "a", "n": 12} in t.rows("pairs-out", "user", "n")
        assert t.rows("told-out", "user", "n") == [
            {"user": "a", "n": 3},
            {"user": "b", "n": -5},
            {"user": "a", "n": 15},
        ]
        changes = t.rows("live-out")
        assert changes[0].keys() == {"user", "window_start", "window_end", "n", "_change"}
        assert {row["window_end"] for row in changes} == {None}
        assert {"user": "a", "n": 15, "_change": "update_after"} in t.rows("live-out", "user", "n", "_change")


@pytest.mark.parametrize(("seed", "size", "keyed"), [(0, 3, True), (1, 1, False)])
def test_all_time_is_told_with_each_so_many_rows_and_keeps_them(spark, tmp_path, seed, size, keyed):
    """Whatever batches, snapshots, restarts and numbers of partitions there are; many windows in one batch too."""
    chance = random.Random(seed)
    before = persistent(spark)
    window = global_window(every_rows=size)
    rig = rig_of(spark, tmp_path, window, keys=(("user", "user"),) if keyed else ())
    oracle, out, kept, sizes = Running(size), [], None, iter((1, 200 * size, 4, 0, 150 * size, 7, 2))
    for what in (*("batch", "batch", "checkpoint", "batch", "restart") * 2, "batch"):
        match what:
            case "batch":
                times = chance.sample(range(10_000), next(sizes))
                batch = [
                    {"user": chance.choice(["a", None]), "at": at * SECOND, "x": chance.randrange(9)} for at in times
                ]
                rig.process([*batch, {"user": "a", "at": None, "x": 1}])
                oracle.batch(batch if keyed else [{**row, "user": None} for row in batch])
            case "checkpoint":
                out += taken(rig)
                kept = rig.checkpoint(), copy.deepcopy(oracle), len(out)
                assert sum(layer.rows for layer in kept[0].layers) <= 2, "a row for each key"
            case "restart":
                taken(rig), taken(rig, LATE_PORT)
                rig = rig.again(kept[0], partitions=chance.choice([1, 2, 3]))
                oracle = copy.deepcopy(kept[1])
                del out[kept[2] :]
    out += taken(rig)
    assert {row[-4:-2] for row in out} == {(None, None)}
    assert told(out, keyed) == sorted(oracle.told if keyed else [row[1:] for row in oracle.told], key=repr)
    assert len(out) > 300
    assert len(taken(rig, LATE_PORT)) == 1, "no time, no place in the order"
    rig.advance(MAX_WATERMARK)
    assert told(taken(rig), keyed) == sorted((row if keyed else row[1:] for row in oracle.rest()), key=repr)
    rig.operator.close()
    assert persistent(spark) <= before


def told(rows: list[tuple[object, ...]], keyed: bool) -> list[tuple[object, ...]]:
    return sorted(((row[0], *row[3:]) if keyed else row[2:] for row in rows), key=repr)


def test_all_time_by_so_many_rows_is_one_job_a_batch_and_compiles_nothing_once_warm(spark, tmp_path):
    rig = rig_of(spark, tmp_path, global_window(every_rows=5))
    for _ in range(4):
        with counted(spark) as warm:
            for _ in range(3):
                with counted(spark) as batch:
                    rig.process([*rows(*range(20)), *rows(3, 4, user="b")])
                assert batch.jobs == 1
                deliver(spark, rig)
            rig.checkpoint()
    assert warm.compilations == 0
    frames = rig.operator._frames
    layers, lease = rig.operator._stack.lease_due(0, MAX_WATERMARK)
    flagged = frames.with_timeliness(rig.frame(rows(3)), 0, 1)
    assert exchanges(frames.counted(flagged, frames.layers.between(layers[0].frame, 0))) == 1, "that of the batch"
    lease.release()
    rig.operator.close()


@pytest.mark.parametrize("keys", [(("user", "user"),), ()], ids=["key", "none"])
def test_the_window_for_all_time_ends_when_its_input_does(spark, tmp_path, keys):
    before = persistent(spark)
    rig = rig_of(spark, tmp_path, global_window(), keys=keys)
    rig.process([*rows(1, 2), {"user": "a", "at": None, "x": 5}])
    rig.advance(2**62)
    assert taken(rig) == []
    rig = rig.again(rig.checkpoint(), partitions=3)
    rig.process(rows(-(10**9)))
    rig.advance(MAX_WATERMARK)
    assert [row[-4:] for row in taken(rig)] == [(None, None, 4, 8 - 10**9)]
    assert "late" not in rig.counts
    rig.operator.close()
    assert persistent(spark) <= before


def test_what_all_time_comes_to_is_told_at_most_so_often_and_compiles_nothing_once_warm(spark, tmp_path):
    rig = rig_of(spark, tmp_path, global_window(), EmitStrategy(updates=True, every=1_000))
    told = []
    for wall in (500, 1_000, 1_500, 2_000, 3_000):
        rig.wall = wall
        with counted(spark) as warm:
            rig.process(rows(1))
            told.append([row[-2:] for row in taken(rig)])
    first, *more = (told[1], told[3], told[4])
    assert (first, more[1]) == ([(2, "insert")], [(4, "update_before"), (5, "update_after")])
    assert (told[0], told[2]) == ([], [])
    assert warm.jobs >= 1
    rig.advance(MAX_WATERMARK)
    assert taken(rig) == []
    rig.operator.close()
    soon = rig_of(spark, tmp_path, global_window(), EmitStrategy(early=True, every=1_000))
    soon.wall = 500
    soon.process(rows(1))
    soon.wall = 1_000
    soon.process(rows(2))
    assert [row[-2:] for row in taken(soon)] == [(3, "early")]
    soon.advance(MAX_WATERMARK)
    assert [row[-2:] for row in taken(soon)] == [(3, "on_time")]
    soon.operator.close()


@pytest.mark.parametrize("count", [0, -1, True, "3", 2**31])
def test_a_count_that_is_none_is_refused(count):
    with pytest.raises(GraphError, match=r"count_window\(.*\): The number of rows must be a whole number from 1"):
        count_window(count)
    with pytest.raises(GraphError, match=r"global_window\(every_rows=.*\): The number of rows must be a whole number"):
        global_window(every_rows=count)


@pytest.mark.parametrize("how", [{"emit": "updates"}, {"early": "1 second"}])
def test_counted_windows_are_sent_once(how):
    numbers = ps.Pipeline("numbers").read("numbers", ps.rate.Source(rows_per_second=10))
    grouped = numbers.group_by("value", ps.count_window(2))
    with pytest.raises(GraphError, match=r"count_window\(\) sends each window when it is full") as error:
        grouped.agg("pairs", ps.agg.count(), **how)
    assert "test_count_windows.py" in str(error.value)
    running = numbers.group_by("value", ps.global_window(every_rows=2))
    with pytest.raises(GraphError, match=r"global_window\(every_rows=\d+\) sends a result after each \d+ rows"):
        running.agg("pairs", ps.agg.count(), **how)


def test_what_is_told_again_and_again_is_not_added_up_by_another_step():
    @ps.pipeline("again")
    def again(p: ps.Pipeline) -> None:
        numbers = p.read("numbers", ps.rate.Source(rows_per_second=10))
        running = numbers.group_by("value", ps.global_window(every_rows=2)).agg("running", ps.agg.count().alias("n"))
        running.group_by(ps.global_window()).agg("again", ps.agg.sum("n")).write("out", ps.memory.Sink())

    with pytest.raises(GraphError, match=r"'running' .* may send a window more than once.* every_rows out"):
        again.graph()


def test_what_is_aggregated_may_have_fields_of_any_name(spark, tmp_path):
    kind = "STRUCT<`user-id`: INT, `a b`: STRUCT<`x``y`: STRING COLLATE UTF8_LCASE>>"
    value = f"CAST(named_struct('id', x, 'a', named_struct('x', user)) AS {kind})"
    step = WindowAggregate(
        keys=(("user", "user"),), time="at", window=count_window(2), aggregates=(agg.last(value).alias("payload"),)
    )
    rig = Rig(spark, step, SCHEMA, tmp_path)
    rig.process(rows(1))
    rig = rig.again(rig.checkpoint())
    rig.process(rows(2))
    assert [row[-1] for row in taken(rig)] == [(2, ("a",))]
    rig.operator.close()


@pytest.mark.parametrize("size", [1, 2])
def test_a_snapshot_without_open_windows_leaves_no_files(spark, tmp_path, size):
    rig = rig_of(spark, tmp_path, count_window(size))
    for second in (1, 3):
        rig.process(rows(second, second + 1))
        assert rig.checkpoint().layers == ()
        assert list(rig.filesystem.list("state")) == []
    taken(rig)
    rig.operator.close()
