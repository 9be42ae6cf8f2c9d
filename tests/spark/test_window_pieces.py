"""State written before a checkpoint asks, and merged in parts: what a windowed aggregate does in the background."""

from __future__ import annotations

import contextlib
import dataclasses

import pyarrow as pa
import pytest

from penstock.clock import MAX_WATERMARK
from penstock.operators import aggregates as agg
from penstock.operators.windows import operator
from penstock.operators.windows.aggregate import WindowAggregate
from penstock.operators.windows.assigners import tumbling
from penstock.operators.windows.emit_strategy import ON_WINDOW_CLOSE, EmitStrategy
from penstock.spark.packed_rows import RowPacker
from penstock.state import compaction, durable, layers, parquet
from penstock.state.compaction import Compaction
from window_harness import Rig, counted, exchanges, persistent

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("x", pa.int64())])


def step(emission: EmitStrategy = ON_WINDOW_CLOSE) -> WindowAggregate:
    aggregates = (agg.sum("x").alias("x"), agg.count().alias("n"))
    window = tumbling("10 seconds")
    return WindowAggregate(keys=(("user", "user"),), time="at", window=window, aggregates=aggregates, emission=emission)


def users(first: int, last: int) -> list[dict[str, object]]:
    return [{"user": f"u{number}", "at": SECOND, "x": number} for number in range(first, last)]


@pytest.fixture
def rig(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "PIECE_ROWS", 100)
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    yield rig
    rig.operator.close()


def sums(rig: Rig) -> dict[str, int]:
    rig.sent.clear()
    rig.advance(MAX_WATERMARK)
    found = {str(row[0]): int(str(row[3])) for row in rig.take()}
    rig.operator.close()
    return found


def test_the_background_writes_what_comes_and_a_checkpoint_the_rest_in_one_job(spark, rig):
    for first in (0, 60, 120, 180):
        rig.process(users(first, first + 60))
        rig.maintain()
    assert rig.counts["compacted"] == 4, "of two batches each, which shows that they are enough"
    rig.process(users(230, 250))
    assert rig.maintain() == 0
    with counted(spark) as cost:
        handle = rig.checkpoint()
    assert cost.jobs == 1
    assert [layer.rows for layer in handle.layers] == [120, 120, 20]
    again = rig.again(handle)
    assert sums(again) == {f"u{number}": number * (2 if 230 <= number < 240 else 1) for number in range(250)}


@pytest.mark.parametrize(("most", "jobs"), [(1_000, 1), (10, 2)])
def test_a_snapshot_has_its_first_slot_before_it_waits_for_a_piece_and_one_for_each_job(rig, monkeypatch, most, jobs):
    monkeypatch.setattr(parquet, "ROWS_A_TASK", most)
    written, seen = rig.operator._durable, []

    @contextlib.contextmanager
    def slot():
        seen.append("waits" if written._writing.locked() else "free")
        yield
        seen.append("ended")

    written._writer = dataclasses.replace(written._writer, background=slot)
    rig.process(users(0, 20))
    rig.checkpoint()
    assert seen == ["free", "ended", *["waits", "ended"] * (jobs - 1)]
    rig.checkpoint()
    assert len(seen) == 2 * jobs, "there was nothing to write"


def test_changes_of_hot_keys_are_merged_in_memory_and_never_are_a_piece(rig):
    for _ in range(40):
        rig.process(users(0, 17))
        rig.maintain()
    assert rig.counts["compacted"] >= 30
    assert rig.bytes_written() == 0
    handle = rig.checkpoint()
    assert [layer.rows for layer in handle.layers] == [17]
    assert sums(rig.again(handle)) == {f"u{number}": 40 * number for number in range(17)}


def test_changes_of_keys_that_are_too_many_to_be_hot_wait_once_they_have_met_again(rig):
    for _ in range(20):
        rig.process(users(0, 150))
        rig.maintain()
    assert len(rig.operator._durable.refs) == 16, "the first merge shows it"
    handle = rig.checkpoint()
    assert sums(rig.again(handle)) == {f"u{number}": 20 * number for number in range(150)}


def test_a_merge_of_durable_layers_lets_pieces_go_between_its_jobs(rig, monkeypatch):
    monkeypatch.setattr(parquet, "ROWS_A_MERGE", 100)
    for first in (0, 200):
        rig.process(users(first, first + 200))
        rig.checkpoint()
    monkeypatch.setattr(
        durable,
        "plan_durable_compaction",
        lambda layers, **_: Compaction(names=tuple(each.name for each in layers), level=1, reason="test"),
    )
    rig.process(users(0, 200))
    rig.operator._compact_durable()
    assert [(ref.level, ref.rows) for ref in rig.operator._durable.refs] == [(0, 200), (1, 400)]
    monkeypatch.undo()
    assert sums(rig.again(rig.checkpoint())) == {
        f"u{number}": number * (2 if number < 200 else 1) for number in range(400)
    }


@pytest.mark.parametrize("fails", [False, True])
def test_a_merge_of_files_in_more_parts_than_they_have_slices_reads_none_for_each_part(spark, rig, monkeypatch, fails):
    monkeypatch.setattr(parquet, "ROWS_A_MERGE", 50)
    monkeypatch.setattr(parquet, "ROWS_HELD", 100)
    monkeypatch.setattr(parquet, "MIN_ROWS_A_FILE", 100)
    for first, slices in ((0, 2), (100, 4), (200, 1)):
        monkeypatch.setattr(parquet, "MIN_ROWS_AHEAD", 400 // slices)
        rig.process(users(first, first + 400))
        rig.checkpoint()
    assert [ref.detail["slices"] for ref in rig.operator._durable.refs] == [2, 4, 1]
    before, real, reads, jobs = persistent(spark), parquet.scan_layers, [], []

    def scan(layers_format, filesystem, session, files):
        reads.extend(file.path for _, found in files for file in found)
        return real(layers_format, filesystem, session, files)

    def between() -> None:
        jobs.append(None)
        if fails and len(jobs) == 6:
            raise OSError("no")  # noqa: EM101

    monkeypatch.setattr(parquet, "scan_layers", scan)
    monkeypatch.setattr(
        durable,
        "plan_durable_compaction",
        lambda layers, **_: Compaction(names=tuple(each.name for each in layers), level=1, reason="test"),
    )
    with pytest.raises(OSError, match="no") if fails else contextlib.nullcontext():
        rig.operator._durable.compact(between)
    assert persistent(spark) <= before
    monkeypatch.undo()
    if not fails:
        (merged,) = rig.operator._durable.refs
        assert (merged.rows, merged.detail["slices"], len(jobs)) == (600, 32, 32 + 4 * 3)
        # a quarter is held at a time; eighths would have rows of two layers be read more than 4 times on average
        assert sorted(reads.count(path) for path in set(reads)) == [1, 1, 1, 1, 2, 2, 4]
    expected = {f"u{n}": n * ((n < 400) + (100 <= n < 500) + (n >= 200)) for n in range(600)}
    assert sums(rig.again(rig.checkpoint())) == expected


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_a_merge_of_merged_layers_reads_of_them_only_what_a_part_needs(spark, tmp_path, monkeypatch, partitions):
    monkeypatch.setattr(operator, "MERGED_AT_ONCE", 40)
    monkeypatch.setattr(operator, "MAX_MERGE_READS", 2)
    before = persistent(spark)
    rig = Rig(spark, step(), SCHEMA, tmp_path, partitions=partitions)
    real, taken = rig.operator._queries._preparer.in_one, []

    def in_one(frames, number):
        taken.append([len(parts) for _, parts in frames])
        return real(frames, number)

    monkeypatch.setattr(rig.operator._queries._preparer, "in_one", in_one)

    def merge(layers) -> None:
        merging = Compaction(names=tuple(layer.name for layer in layers), level=1, reason="test")
        rig.operator._compact(lambda: merging)

    for first in (0, 100):
        for start in range(first, first + 160, 10):
            rig.process(users(start, start + 20))
        merge([layer for layer in rig.operator._stack._layers if not layer.parts])
    layers = list(rig.operator._stack._layers)
    assert [len(layer.parts) for layer in layers] == [2 * partitions] * 2, "as often as a row may be read"
    rig.process(users(0, 1))
    monkeypatch.setattr(operator, "MAX_MERGE_READS", 3)
    taken.clear()
    merge(rig.operator._stack._layers)
    assert len(taken) == {1: 4, 2: 8, 3: 12}[partitions], "twice as many"
    assert all(parts == [1, 1, 0] for parts in taken), "and each reads one part of each layer that has parts"
    expected: dict[str, int] = {}
    for first in (0, 100):
        for start in range(first, first + 160, 10):
            for number in range(start, start + 20):
                expected[f"u{number}"] = expected.get(f"u{number}", 0) + number
    assert sums(rig.again(rig.checkpoint())) == expected
    rig.operator.close()
    assert persistent(spark) <= before


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_a_large_merge_in_memory_is_several_jobs_with_a_slot_each_and_one_leaf_afterwards(
    spark, tmp_path, monkeypatch, partitions
):
    monkeypatch.setattr(operator, "MERGED_AT_ONCE", 100)
    before = persistent(spark)
    rig = Rig(spark, step(), SCHEMA, tmp_path, partitions=partitions)
    slots: list[int] = []

    @contextlib.contextmanager
    def slot():
        with counted(spark) as cost:
            yield
        slots.append(cost.jobs)
        if len(slots) == 2:
            rig.process(users(300, 310))  # data goes between

    rig.operator._context = dataclasses.replace(rig.operator._context, background=slot)
    for first in range(0, 160, 10):
        rig.process(users(first, first + 20))
    rig.maintain()
    assert slots == [1] * {1: 4, 2: 4, 3: 6}[partitions]
    assert rig.operator._stack.height == 2
    layers, lease = rig.operator._stack.lease_due(0, MAX_WATERMARK)
    assert sorted(layer.rows for layer in layers) == [10, 170]
    assert exchanges(rig.operator._queries.frame(rig.operator._queries.merged(layers, 0)[0])) == 0
    lease.release()
    handle = rig.checkpoint()
    expected = {f"u{n}": n * (2 if 10 <= n < 160 else 1) for n in (*range(170), *range(300, 310))}
    assert sums(rig.again(handle)) == expected
    assert persistent(spark) <= before


def test_layers_of_the_same_keys_are_merged_before_their_tier_is_full_once_they_are_large(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "MAX_ROWS_BESIDE", 100)
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    heights = []
    for _ in range(16 + 2):
        rig.process(users(0, 60))
        rig.maintain()
        heights.append(rig.operator._stack.height)
    assert heights == [*range(1, 16), 1, 2, 1], "the first merge shows that the same keys change"
    assert sums(rig) == {f"u{number}": 18 * number for number in range(60)}


EACH_CHANGE, EARLY = EmitStrategy(updates=True), EmitStrategy(early=True)


@pytest.mark.parametrize(("emission", "is_packed"), [(ON_WINDOW_CLOSE, True), (EACH_CHANGE, False), (EARLY, False)])
def test_many_rows_are_packed_once_merged_or_loaded_unless_each_batch_reads_them(
    spark, tmp_path, monkeypatch, emission, is_packed
):
    monkeypatch.setattr(operator, "MERGED_AT_ONCE", 100)
    monkeypatch.setattr(layers, "MIN_PACKED_ROWS", 10)
    before, real, packed = persistent(spark), RowPacker.pack, []

    def pack(self, kept):
        packed.append(None)
        return real(self, kept)

    monkeypatch.setattr(RowPacker, "pack", pack)
    rig = Rig(spark, step(emission), SCHEMA, tmp_path)
    for first in range(0, 160, 10):
        rig.process(users(first, first + 20))
    rig.maintain()
    assert len(packed) == 4 * is_packed, "as many as there are parts"
    rig.process(users(0, 20))
    rig.maintain()
    handle = rig.checkpoint()
    again = rig.again(handle)
    again.maintain()
    assert len(packed) == (4 + 2) * is_packed, "one more for each partition"
    if is_packed:
        expected = {f"u{n}": n * ((10 <= n < 160) + (n < 20) + 1) for n in range(170)}
        assert sums(again) == expected
    again.operator.close()
    for each in (rig, again):
        each.take()  # what was sent holds blocks
    assert persistent(spark) <= before


def third_fails(real):
    """A function of which the third call fails."""
    calls = []

    def call(*given):
        calls.append(None)
        if len(calls) == 3:
            raise OSError("no")  # noqa: EM101
        return real(*given)

    return call


def test_rows_that_cannot_be_packed_are_freed(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(operator, "MERGED_AT_ONCE", 100)
    monkeypatch.setattr(layers, "MIN_PACKED_ROWS", 10)
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    for first in range(0, 160, 10):
        rig.process(users(first, first + 20))
    before = persistent(spark)
    monkeypatch.setattr(RowPacker, "pack", third_fails(RowPacker.pack))
    with pytest.raises(OSError, match="no"):
        rig.maintain()
    assert persistent(spark) <= before
    monkeypatch.setattr(RowPacker, "pack", lambda *_: None)
    rig.maintain()
    assert len(sums(rig)) == 170


def test_a_part_that_fails_frees_those_before_it(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(operator, "MERGED_AT_ONCE", 100)
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    for first in range(0, 160, 10):
        rig.process(users(first, first + 20))
    before, real = persistent(spark), operator.cache_rows
    monkeypatch.setattr(operator, "cache_rows", third_fails(real))
    with pytest.raises(OSError, match="no"):
        rig.maintain()
    assert persistent(spark) <= before
    monkeypatch.setattr(operator, "cache_rows", real)
    rig.maintain()
    assert rig.operator._stack.height == 1
    assert len(sums(rig)) == 170


@pytest.mark.usefixtures("few_layers")
def test_the_data_path_does_not_wait_for_a_merge_in_the_background(spark, tmp_path):
    """On one core the background would wait for the data path's turn, while the data path waits for the merge."""
    rig = Rig(spark, step(), SCHEMA, tmp_path)
    heights: list[int] = []

    @contextlib.contextmanager
    def slot():
        if not heights:
            for _ in range(2 * operator.STOP_LIMIT):
                rig.process(users(0, 5))
                heights.append(rig.operator._stack.height)
        yield

    rig.operator._context = dataclasses.replace(rig.operator._context, background=slot)
    for _ in range(4):
        rig.process(users(0, 5))
    rig.maintain()
    assert max(heights) <= operator.STOP_LIMIT + 4
    assert sums(rig) == {f"u{n}": n * (4 + 2 * operator.STOP_LIMIT) for n in range(5)}
