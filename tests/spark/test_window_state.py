"""Layers made durable, restored, merged and compared: state as checkpoints see it."""

from __future__ import annotations

import dataclasses
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK
from penstock.errors import CheckpointAborted, CheckpointUnreadable, LayerMissing, StateIncompatible
from penstock.operators import aggregates as agg
from penstock.operators.windows import operator
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.state import compaction, durable, layers, parquet, restore
from penstock.state.compaction import Compaction
from penstock.state.durable import PendingLayers
from penstock.state.parquet import HashSlice, files_of
from window_harness import Rig, counted, persistent

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])


def step(name: str = "x") -> WindowAggregate:
    aggregates = (agg.sum("x").alias(name), agg.count().alias("n"), agg.avg("x").alias("mean"))
    return WindowAggregate(keys=(("user", "user"),), time="at", window=tumbling("10 seconds"), aggregates=aggregates)


def rows(*seconds: int, user: str = "a") -> list[dict[str, object]]:
    return [{"user": user, "at": second * SECOND, "x": second} for second in seconds]


@pytest.fixture
def rig(spark, tmp_path):
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    yield rig
    rig.operator.close()


def rest_of(rig: Rig) -> list[tuple[object, ...]]:
    """All that is still to come out of it."""
    rig.sent.clear()
    rig.advance(MAX_WATERMARK)
    found = rig.take()
    rig.operator.close()
    return found


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_restored_with_another_n_it_goes_on_as_if_nothing_had_happened(spark, tmp_path, partitions):
    straight, first = (Rig(spark, step(), SCHEMA, tmp_path / name) for name in ("straight", "first"))
    for rig in (straight, first):
        rig.process([*rows(1, 12, 25), *rows(2, 13, user="b"), {"user": None, "at": -5 * SECOND, "x": 7}])
        rig.advance(10 * SECOND)
        rig.take()
        rig.process(rows(13, 26, -100))
    second = first.again(first.checkpoint(), partitions=partitions)
    assert second.operator._stack.height == 1
    for rig in (straight, second):
        rig.process(rows(14, 27, 9))
    assert straight.counts["late"] == 2
    assert second.counts["late"] == 1
    assert rest_of(second) == rest_of(straight) != []


def test_a_window_that_fired_before_the_snapshot_does_not_fire_after_it(rig):
    rig.process(rows(1, 12))
    rig.advance(10 * SECOND)
    assert len(rig.take()) == 1
    again = rig.again(rig.checkpoint())
    again.watermark = -(2**63)
    again.process(rows(2))
    assert again.counts["late"] == 1
    assert [row[0:1] + row[3:] for row in rest_of(again)] == [("a", 12, 1, 12.0)]


def test_naming_costs_nothing_and_empty_state_is_restored_too(spark, rig):
    handle = rig.checkpoint()
    assert handle.kind == "window/1"
    assert handle.layers == ()
    assert handle.detail == {
        "partitions": 2,
        "horizon": None,
        "fired": None,
        "closed": None,
        "window": "tumbling 10 seconds",
        "emit": "final",
        "table": {
            "window": {"kind": "tumbling", "size": 10 * SECOND, "offset": 0, "lateness": 0, "is_processing": False},
            "results": [
                {"name": "x", "function": "sum", "of": "bigint", "parts": ["sum"], "with": {}},
                {"name": "n", "function": "count", "of": "int", "parts": ["count"], "with": {}},
                {"name": "mean", "function": "avg", "of": "bigint", "parts": ["sum", "count"], "with": {}},
            ],
        },
    }
    again = rig.again(handle)
    again.process(rows(1, 2))
    with counted(spark) as cost:
        pending = again.operator.snapshot(1)
    assert cost.jobs == 0
    again.advance(MAX_WATERMARK)
    again.take()
    assert [layer.rows for layer in pending.materialise().layers] == [1]
    handle = again.checkpoint()
    assert handle.layers == ()
    last = again.again(handle)
    assert rest_of(last) == []


def test_a_checkpoint_writes_what_changed_and_refers_to_the_rest(spark, tmp_path):
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    many = "SELECT concat('user-', id) AS user, timestamp_micros(id % 1000 * 1000) AS at, id AS x FROM range({}, {})"
    rig.process_frame(spark.sql(many.format(0, 200_000)))
    first = rig.checkpoint()
    whole = rig.bytes_written()
    rig.process_frame(spark.sql(many.format(100_000, 102_000)))
    second = rig.checkpoint()
    changed = rig.bytes_written() - whole
    assert second.layers[:-1] == first.layers
    assert [layer.rows for layer in second.layers] == [200_000, 2_000]
    assert changed <= 1.5 * whole / 100
    third = rig.checkpoint()
    assert third.layers == second.layers
    assert rig.bytes_written() == whole + changed
    again = rig.again(third)
    again.process_frame(spark.sql(many.format(0, 2_000)))
    assert again.checkpoint().layers[:-1] == third.layers
    again.operator.close()


def test_a_layer_is_written_in_slices_that_hold_each_row_once(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "ROWS_A_TASK", 100)
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    rig.process_frame(spark.sql("SELECT concat('u', id) AS user, timestamp_micros(id) AS at, id AS x FROM range(450)"))
    with counted(spark) as cost:
        handle = rig.checkpoint()
    (layer,) = handle.layers
    assert cost.jobs == 8
    assert layer.rows == 450
    assert {Path(file.path).parent.name for file in layer.files} == {f"{part:04d}" for part in range(8)}
    again = rig.again(handle)
    assert len(rest_of(again)) == 450


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_one_job_writes_what_changed_and_its_slices_still_serve_a_restore(spark, tmp_path, monkeypatch, partitions):
    """Of much state a restore loads parts: it finds their rows in files of what little a checkpoint adds, too."""
    monkeypatch.setattr(parquet, "ROWS_A_TASK", 100)
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    many = "SELECT concat('u', id) AS user, timestamp_micros(id) AS at, id AS x FROM range({})"
    rig.process_frame(spark.sql(many.format(700)))
    rig.checkpoint()
    monkeypatch.setattr(parquet, "MIN_ROWS_A_FILE", 10)
    monkeypatch.setattr(restore, "ROWS_A_PART", 100)
    rig.process_frame(spark.sql(many.format(90)))
    with counted(spark) as cost:
        handle = rig.checkpoint()
    assert cost.jobs == 1
    layer = handle.layers[-1]
    assert layer.rows == 90
    assert layer.detail["slices"] == 8
    for number in range(8):
        found = files_of(layer, HashSlice(number, 8), ["user"])
        assert {Path(file.path).parent.name for file in found} == {f"{number:04d}"}
        rows = spark.read.parquet(*(str(tmp_path / file.path) for file in found))
        assert "__penstock_slice" not in rows.columns
        assert rows.count() == rows.where(f"pmod(hash(user), 8) = {number}").count() > 0
    assert sorted(rig.filesystem.list("state")) == sorted(file.path for file in handle.files), "nothing else lies there"
    again = rig.again(handle, partitions=partitions)
    assert len(again.operator._stack._loader._parts) == 8
    found = rest_of(again)
    assert len(found) == 700
    assert sum(row[3] for row in found) == sum(range(700)) + sum(range(90))


def test_another_program_reads_the_state_from_its_files_alone(rig):
    rig.process([*rows(1, 2, 12), {"user": "b", "at": -62_000_000_000 * SECOND, "x": 5}])
    rig.process(rows(3))
    handle = rig.checkpoint()
    assert handle.schema == (
        "`user` string, `window_start` timestamp, `window_end` timestamp, `x__sum` bigint, `n__count` bigint, "
        "`mean__sum` double, `mean__count` bigint"
    )
    files = [str(rig.root / file.path) for layer in handle.layers for file in layer.files]
    assert files == [str(rig.root / path) for path in rig.filesystem.list("state")], "nothing else lies there"
    found = duckdb.sql(
        "SELECT user, epoch_us(window_end), sum(x__sum), sum(n__count) "
        f"FROM read_parquet({files}) GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    assert found == [
        ("a", 10 * SECOND, 6, 3),
        ("a", 20 * SECOND, 12, 1),
        ("b", -61_999_999_990 * SECOND, 5, 1),
    ]


@pytest.mark.mission("L23")
def test_an_aborted_snapshot_loses_nothing_and_nothing_is_written_twice(spark, rig):
    rig.process(rows(1))
    given_up = rig.operator.snapshot(1)
    rig.process(rows(2))
    written = rig.operator.snapshot(2).materialise()
    with pytest.raises(CheckpointAborted, match="given up before it was written"):
        given_up.materialise()
    rig.process(rows(3))
    last = rig.checkpoint()
    assert last.layers[:-1] == written.layers
    assert [layer.rows for layer in last.layers] == [1, 1]
    (row,) = rest_of(rig.again(last))
    assert row[3:] == (6, 3, 2.0)


@pytest.mark.usefixtures("few_layers")
@pytest.mark.mission("L23")
@pytest.mark.parametrize("place", ["state.layer.before_write", "state.layer.written", "state.layer.durable"])
def test_a_write_that_fails_changes_nothing(spark, tmp_path, place):
    reached: list[str] = []

    def fail(name: str) -> None:
        reached.append(name)
        if name == place and reached.count(name) == 1:
            raise RuntimeError(name)

    before = persistent(spark)
    rig = Rig(spark, step(), SCHEMA, tmp_path, failpoint=fail)
    rig.process(rows(1))
    with pytest.raises(RuntimeError, match=place):
        rig.checkpoint()
    assert rig.bytes_written() == 0
    for second in (2, 3, 4, 5):
        rig.process(rows(second))
    assert rig.maintain() == 1
    handle = rig.checkpoint()
    names = ["state.layer.before_write", "state.layer.written", "state.layer.durable"]
    assert reached == names[: names.index(place) + 1] + names
    assert [layer.name for layer in handle.layers] == ["g1-000002"]
    assert rest_of(rig.again(handle))[0][3:] == (15, 5, 3.0)
    assert persistent(spark) <= before


def test_a_snapshot_named_while_another_is_being_written_writes_only_the_rest(spark, tmp_path):
    second: list[PendingLayers] = []

    def name_another(place: str) -> None:
        if place == "state.layer.written" and not second:
            rig.process(rows(2))
            second.append(rig.operator.snapshot(2))

    rig = Rig(spark, step(), SCHEMA, tmp_path, failpoint=name_another)
    rig.process(rows(1))
    first = rig.checkpoint()
    handle = second[0].materialise()
    assert [[layer.name for layer in found.layers] for found in (first, handle)] == [
        ["g1-000001"],
        ["g1-000001", "g1-000002"],
    ]
    assert rest_of(rig.again(handle))[0][3:5] == (3, 2)


@pytest.mark.parametrize("piece", [2, compaction.PIECE_ROWS])
def test_compaction_and_pieces_on_another_thread_lose_nothing(rig, monkeypatch, piece):
    monkeypatch.setattr(compaction, "PIECE_ROWS", piece)
    monkeypatch.setattr(durable, "PIECE_SHARE", 1e-9)  # however few keys there are
    ended = threading.Event()

    def compact() -> None:
        while not ended.is_set():
            rig.maintain()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(compact)
        for second in range(24):
            rig.process(rows(second % 10, 30))
        rig.advance(10 * SECOND)
        ended.set()
        running.result()
    assert [row[3:5] for row in rig.take()] == [(sum(second % 10 for second in range(24)), 24)]
    assert (rig.bytes_written() > 0) == (piece == 2)
    assert [row[3:5] for row in rest_of(rig.again(rig.checkpoint()))] == [(24 * 30, 24)]


@pytest.mark.usefixtures("few_layers")
@pytest.mark.mission("L14")
def test_compaction_between_naming_and_writing_changes_neither(rig):
    for second in range(5):
        rig.process(rows(second))
    pending = rig.operator.snapshot(1)
    for second in range(5, 8):
        rig.process(rows(second))
    assert rig.maintain() == 1
    rig.process(rows(9))
    assert sorted(size.group for size in rig.operator._stack.sized()) == [1, 2, 2, 2, 2]
    assert rig.maintain() == 1
    assert sorted(size.group for size in rig.operator._stack.sized()) == [1, 2]
    handle = pending.materialise()
    assert sorted(size.group for size in rig.operator._stack.sized()) == [0, 1]
    next_handle = rig.checkpoint()
    assert next_handle.layers[:-1] == handle.layers
    early = Rig(rig.spark, rig.spec, SCHEMA, rig.root, generation=7, restored=handle)
    assert rest_of(early)[0][3:5] == (sum(range(5)), 5)
    late = Rig(rig.spark, rig.spec, SCHEMA, rig.root, generation=8, restored=next_handle)
    assert rest_of(late)[0][3:5] == (sum(range(10)) - 8, 9)
    assert rest_of(rig)[0][3:5] == (sum(range(10)) - 8, 9)


@pytest.mark.usefixtures("few_layers")
def test_layers_that_are_durable_are_not_merged_with_those_that_are_not(rig):
    for second in (0, 1):
        rig.process(rows(second))
    rig.checkpoint()
    for second in (2, 3):
        rig.process(rows(second))
    assert rig.maintain() == 0
    for second in (4, 5):
        rig.process(rows(second))
    assert rig.maintain() == 1
    assert sorted(size.group for size in rig.operator._stack.sized()) == [0, 0, 1]
    assert rest_of(rig.again(rig.checkpoint()))[0][3:5] == (15, 6)


@pytest.mark.usefixtures("eight_of_a_size")
def test_durable_layers_are_merged_by_tiers_and_older_checkpoints_stay_whole(rig):
    for second in range(8):
        rig.process(rows(second))
        handle = rig.checkpoint()
    assert len(handle.layers) == 8
    rig.maintain()
    merged = rig.checkpoint()
    assert [(layer.level, layer.rows) for layer in merged.layers] == [(1, 1)]
    old = Rig(rig.spark, rig.spec, SCHEMA, rig.root, generation=7, restored=handle)
    new = Rig(rig.spark, rig.spec, SCHEMA, rig.root, generation=8, restored=merged)
    assert rest_of(old) == rest_of(new) == rest_of(rig)


def test_durable_layers_are_merged_also_where_layers_in_memory_are_always_due(rig, monkeypatch):
    """Batches may come as fast as one background worker merges them: neither kind may wait without end."""

    def always(layers, **_settings):
        groups = [[each.name for each in layers if each.group == group] for group in {each.group for each in layers}]
        return Compaction(names=tuple(max(groups, key=len)), level=1, reason="always")

    monkeypatch.setattr(operator, "plan_memory_compaction", always)
    heights = []
    for _ in range(24):
        rig.process(rows(1))
        rig.process(rows(2))
        rig.operator.maintain()()
        heights.append(len(rig.checkpoint().layers))
    assert max(heights) < 18
    assert min(heights[12:]) < 3


@pytest.mark.usefixtures("eight_of_a_size")
def test_merging_durable_layers_leaves_what_a_snapshot_under_way_still_needs(rig):
    for second in range(8):
        rig.process(rows(second, 30))
        rig.checkpoint()
    rig.process(rows(8))
    pending = rig.operator.snapshot(9)
    rig.advance(10 * SECOND)
    rig.take()
    assert rig.maintain() >= 1
    again = Rig(rig.spark, rig.spec, SCHEMA, rig.root, generation=7, restored=pending.materialise())
    assert [row[3:5] for row in rest_of(again)] == [(36, 9), (240, 8)]


def merging_meets(monkeypatch, rig: Rig, meanwhile) -> list:
    """Merge durable layers; when that has begun to write something else happens, on another thread."""
    real, found = parquet.LayerWriter._write_part, []

    def write(self, *given, **more):
        if not found:
            found.append(None)
            with ThreadPoolExecutor(1) as pool:
                found[0] = pool.submit(meanwhile).result(60)
        return real(self, *given, **more)

    monkeypatch.setattr(parquet.LayerWriter, "_write_part", write)
    rig.operator._compact(rig.operator._due)  # so that it is known how few rows are live
    rig.operator._durable.compact()
    monkeypatch.undo()
    assert found[0] is not None
    return found[0]


@pytest.mark.usefixtures("eight_of_a_size")
@pytest.mark.parametrize("seconds", [(), (30,)], ids=["closing", "open"])
def test_checkpoints_are_written_while_durable_layers_are_merged(rig, monkeypatch, seconds):
    for second in range(8):
        rig.process(rows(second, *seconds))
        before = rig.checkpoint()
    assert len(before.layers) == 8

    def meanwhile():
        rig.process(rows(8, 40))
        rig.advance(10 * SECOND)
        rig.take()
        return rig.checkpoint()

    during = merging_meets(monkeypatch, rig, meanwhile)
    assert {layer.name for layer in during.layers} > {layer.name for layer in before.layers}, "their files are read"
    after = rig.checkpoint()
    assert len(after.layers) == 1 + len(seconds)
    old, new = (
        Rig(rig.spark, rig.spec, SCHEMA, rig.root, generation=n, restored=h) for n, h in ((7, during), (8, after))
    )
    assert rest_of(old) == rest_of(new) == rest_of(rig) != []


@pytest.mark.usefixtures("eight_of_a_size")
def test_merging_durable_layers_is_in_vain_if_another_takes_the_place_of_all(rig, monkeypatch):
    for second in range(8):
        rig.process(rows(second, 30))
        rig.checkpoint()

    def meanwhile():
        rig.process(rows(8))
        rig.operator._merge_all()
        return rig.checkpoint()

    during = merging_meets(monkeypatch, rig, meanwhile)
    assert len(during.layers) == 1
    after = rig.checkpoint()
    assert after.layers == during.layers
    new = Rig(rig.spark, rig.spec, SCHEMA, rig.root, generation=8, restored=after)
    assert rest_of(new) == rest_of(rig) != []


def test_closed_windows_are_neither_written_nor_referred_to(rig):
    rig.process(rows(1, 2))
    first = rig.checkpoint()
    rig.process(rows(15))
    rig.process(rows(3))
    rig.advance(10 * SECOND)
    rig.take()
    second = rig.checkpoint()
    assert [layer.rows for layer in second.layers] == [1]
    assert first.layers[0] not in second.layers
    assert [second.detail[name] for name in ("horizon", "fired")] == [10 * SECOND, 10 * SECOND]


def test_refuses_state_of_another_schema_or_kind_with_both_and_the_remedy(spark, rig):
    rig.process(rows(1))
    handle = rig.checkpoint()
    other = dataclasses.replace(step(), keys=(("half", "x / 2"),))
    with pytest.raises(
        StateIncompatible, match=r"(?s)`user` string.*`half` double.*give the step (?:a new|another) uid"
    ):
        Rig(spark, other, SCHEMA, rig.root, generation=2, restored=handle)
    with pytest.raises(StateIncompatible, match="holds state of kind 'join/1', but this step keeps 'window/1'"):
        Rig(spark, step(), SCHEMA, rig.root, generation=2, restored=dataclasses.replace(handle, kind="join/1"))


def test_a_missing_or_altered_file_is_named_at_restore(rig):
    rig.process(rows(1))
    handle = rig.checkpoint()
    file = rig.root / handle.layers[0].files[0].path
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"?")
    with pytest.raises(CheckpointUnreadable, match=f"File {handle.layers[0].files[0].path} .* sha256"):
        rig.again(handle)
    file.unlink()
    with pytest.raises(LayerMissing, match="is not there, though the checkpoint recorded"):
        rig.again(handle)


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_work_gives_the_same_rows_as_sql_over_all_of_them(spark, tmp_path, monkeypatch, seed):
    """Batches, watermarks, compaction, snapshots written late, in vain or not at all, and restarts, as they fall."""
    chance = random.Random(seed)
    if seed:  # with pieces of a few rows, and merges in parts
        monkeypatch.setattr(compaction, "PIECE_ROWS", 6)
        monkeypatch.setattr(durable, "PIECE_SHARE", 1e-9)
        monkeypatch.setattr(operator, "MERGED_AT_ONCE", 9)
        monkeypatch.setattr(layers, "MIN_PACKED_ROWS", 1)
    before = persistent(spark)
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    accepted: list[dict[str, object]] = []
    out: list[tuple[object, ...]] = []
    kept, pending, clock = (rig.checkpoint(), 0, 0, rig.watermark), None, 0
    for _ in range(30):
        match chance.choice(["batch"] * 5 + ["advance", "maintain", "snapshot", "write", "write", "restart"]):
            case "batch":
                batch = [row for _ in range(3) for row in rows(clock + chance.randrange(40), user=chance.choice("abc"))]
                rig.process(batch)
                accepted += [row for row in batch if (int(str(row["at"])) // SECOND // 10 + 1) * 10 > clock]
            case "advance":
                clock += chance.choice([3, 10, 25])
                rig.advance(clock * SECOND)
                out += rig.take()
            case "maintain":
                rig.maintain()
            case "snapshot":
                pending = (rig.operator.snapshot(1), len(accepted), len(out), clock)
            case "write" if pending:
                kept, pending = (pending[0].materialise(), *pending[1:]), None
            case "restart":
                rig = rig.again(kept[0], partitions=chance.choice([1, 2, 3]))
                del accepted[kept[1] :], out[kept[2] :]
                clock, pending = kept[3] if kept[3] > 0 else 0, None
                rig.watermark = clock * SECOND if clock else -(2**63)
    out += rest_of(rig)
    assert persistent(spark) <= before
    spark.createDataFrame(pa.Table.from_pylist(accepted, schema=SCHEMA)).createOrReplaceTempView("accepted")
    expected = spark.sql(
        "SELECT user, timestamp_seconds(unix_seconds(at) div 10 * 10), "
        "timestamp_seconds(unix_seconds(at) div 10 * 10 + 10), sum(x), count(*), avg(x) FROM accepted GROUP BY ALL"
    )
    assert sorted(out, key=repr) == sorted((tuple(row) for row in expected.collect()), key=repr)
