from __future__ import annotations

import math
import random
from contextlib import nullcontext
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from penstock.state.compaction import (
    DURABLE_LIMIT,
    MAX_ROWS_BESIDE,
    PIECE_ROWS,
    SMALLEST_TIER,
    LayerSize,
    changing_keys,
    is_piece,
    plan_durable_compaction,
    plan_memory_compaction,
    plan_piece_merge,
    tier,
)
from penstock.state.layers import LayerFormat, LayerStats
from penstock.state.parquet import MIN_ROWS_A_FILE, MIN_ROWS_AHEAD, ROWS_A_TASK, HashSlice, LayerWriter
from penstock.testing.filesystem import MemoryFileSystem


def stack(*rows: int, group: int = 0, prefix: str = "l") -> list[LayerSize]:
    return [LayerSize(name=f"{prefix}{place}", level=0, rows=count, group=group) for place, count in enumerate(rows)]


def test_nothing_is_merged_while_no_tier_is_full():
    assert plan_memory_compaction(stack(100, 100, 100)) is None
    assert plan_memory_compaction([]) is None


def test_a_full_tier_is_merged_and_larger_layers_are_left_alone():
    plan = plan_memory_compaction(stack(5_000_000, 100, 200, 300, 400))
    assert plan is not None
    assert plan.names == ("l1", "l2", "l3", "l4")
    assert plan.level == 1
    assert plan.reason == "tier of 4 full"


def test_what_is_smaller_comes_along():
    plan = plan_memory_compaction(stack(30_000, 30_001, 30_002, 30_003, 7))
    assert plan is not None
    assert set(plan.names) == {"l0", "l1", "l2", "l3", "l4"}


def test_layers_of_two_groups_are_never_merged():
    assert plan_memory_compaction([*stack(1, 1, prefix="a"), *stack(1, 1, group=1, prefix="b")]) is None
    plan = plan_memory_compaction([*stack(1, 1, prefix="a"), *stack(1, 1, 1, 1, group=1, prefix="b")])
    assert plan is not None
    assert plan.names == ("b0", "b1", "b2", "b3")


def test_all_are_merged_once_there_are_as_many_rows_beside_the_largest_layer_and_as_keys_change():
    layers = stack(8_000_000, 4_000_000, 4_000_000, 7)
    plan = plan_memory_compaction(layers, changing=10_000)
    assert plan is not None
    assert plan.names == ("l0", "l1", "l2", "l3")
    assert plan.reason == "8000007 rows beside the largest layer"
    assert plan_memory_compaction(layers, changing=8_000_008) is None, "most of them may be new"
    assert plan_memory_compaction(layers) is None, "all of them are"
    assert plan_memory_compaction(stack(8_000_000, 4_000_000, 3_999_999), changing=10_000) is None
    two = [*stack(8_000_000), *stack(8_000_000, group=1, prefix="m")]
    assert plan_memory_compaction(two, changing=10_000) is None, "they may not be merged"
    few = MAX_ROWS_BESIDE // 3
    assert plan_memory_compaction(stack(few, few, few), changing=10_000) is None, "few rows take little memory"


@pytest.mark.parametrize("keys", [10**5, 2 * 10**6, 2 * 10**7])
def test_memory_holds_about_twice_the_keys_that_change_however_long_they_do(keys):
    """Each batch changes some keys, drawn by chance."""
    layers = [LayerSize(name="base", level=0, rows=keys)]
    came = rewritten = most = 0
    for number in range(5_000):
        layers.append(LayerSize(name=str(number), level=0, rows=20_000))
        came += 20_000
        while plan := plan_memory_compaction(layers, changing=keys, fan=16, limit=40):
            rows = sum(layer.rows for layer in layers if layer.name in plan.names)
            rewritten += rows
            merged = keys if "base" in plan.names else round(keys * (1 - math.exp(-rows / keys)))
            layers = [layer for layer in layers if layer.name not in plan.names]
            name = "base" if "base" in plan.names else f"m{number}-{plan.level}"
            layers.append(LayerSize(name=name, level=plan.level, rows=merged))
        most = max(most, sum(layer.rows for layer in layers))
    assert most <= 2 * keys + 2 * MAX_ROWS_BESIDE
    assert rewritten <= 5 * came


def test_at_the_limit_the_smallest_are_merged_though_no_tier_is_full():
    sizes = [10**4 * 4**tier_number for tier_number in range(8)]
    plan = plan_memory_compaction(stack(*sizes))
    assert plan is not None
    assert plan.names == ("l0", "l1")
    assert plan.reason == "limit of 8 reached"


def test_at_the_limit_a_large_layer_is_not_rewritten_for_a_few_small_ones():
    plan = plan_memory_compaction(
        [*stack(2_000_000, 4_000, 9_000, 12_000), *stack(4_000, 4_000, 4_000, 300_000, group=1)]
    )
    assert plan is not None
    assert plan.names == ("l1", "l2", "l3")


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 2)), max_size=8))
def test_a_merge_names_at_least_two_layers_of_one_group(layers):
    sized = [LayerSize(name=str(n), level=0, rows=rows, group=group) for n, (rows, group) in enumerate(layers)]
    plan = plan_memory_compaction(sized)
    if plan is None:
        assert len(sized) < 8
        return
    assert len(set(plan.names)) >= 2
    assert len({layer.group for layer in sized if layer.name in plan.names}) == 1


@pytest.mark.parametrize(("batch", "batches"), [(1_000, 2_000), (50_000, 500)])
def test_the_stack_stays_low_and_each_row_is_rewritten_about_once_a_tier_above_the_smallest(batch, batches):
    layers: list[LayerSize] = []
    rewritten = 0
    for number in range(batches):
        layers.append(LayerSize(name=str(number), level=0, rows=batch))
        while plan := plan_memory_compaction(layers):
            rows = sum(layer.rows for layer in layers if layer.name in plan.names)
            rewritten += rows
            layers = [layer for layer in layers if layer.name not in plan.names]
            layers.append(LayerSize(name=f"m{number}-{plan.level}-{rows}", level=plan.level, rows=rows))
        assert len(layers) < 8
    rows = batch * batches
    assert rewritten <= rows * (3 + tier(rows, fan=4)) + batches * 2 * SMALLEST_TIER


def test_layers_that_are_not_durable_are_merged_once_they_may_be_a_piece():
    assert plan_piece_merge([], room=inf) is None
    assert plan_piece_merge(stack(PIECE_ROWS - 1), room=inf) is None
    assert plan_piece_merge(stack(30_000, 30_000), room=inf) is None
    plan = plan_piece_merge(stack(30_000, 30_000, 4_000), room=inf)
    assert plan is not None
    assert set(plan.names) == {"l0", "l1", "l2"}
    assert plan_piece_merge(stack(30_000, 30_000, 4_000, PIECE_ROWS), room=inf) is None, "one of them is enough"
    assert plan_piece_merge([*stack(40_000), *stack(40_000, group=1, prefix="m")], room=inf) is None


def test_no_piece_is_larger_than_the_room_that_is_left():
    assert is_piece(stack(PIECE_ROWS), room=PIECE_ROWS)
    assert not is_piece(stack(PIECE_ROWS), room=PIECE_ROWS - 1)
    assert not is_piece(stack(PIECE_ROWS, 2), room=PIECE_ROWS + 1), "all that is not durable is written"
    assert plan_piece_merge(stack(40_000, 40_000), room=PIECE_ROWS - 1) is None


@pytest.mark.parametrize("keys", [100_000, 10**6])
@pytest.mark.parametrize("sizes", [(0.4, 0.4), (0.4,) * 4, (0.9,) * 10, (0.9, *[0.05] * 8), (0.1, 0.02), (0.05,) * 16])
def test_from_a_merge_it_shows_how_many_keys_change(sizes, keys):
    """Layers of different sizes, each with a row for each of some keys, drawn by chance."""
    chance = random.Random(0)
    layers = [set(chance.sample(range(keys), round(part * keys))) for part in sizes]
    merged = len(set().union(*layers))
    assert changing_keys([len(layer) for layer in layers], merged) == pytest.approx(keys, rel=0.1)


@pytest.mark.parametrize("keys", [1_000, 40_000, 63_999, 64_000, 10**9])
def test_to_find_out_about_a_piece_each_row_is_rewritten_about_twice(keys):
    """Of hot keys none is written; of others all but the rest."""
    layers: list[LayerSize] = []
    came = rewritten = written = 0
    for number in range(2_000):
        layers.append(LayerSize(name=str(number), level=0, rows=min(5_000, keys)))
        came += layers[-1].rows
        if plan_piece_merge(layers, room=inf):
            rewritten += sum(layer.rows for layer in layers)
            layers = [LayerSize(name="m", level=1, rows=min(keys, sum(layer.rows for layer in layers)))]
        if is_piece(layers, room=inf):
            written += sum(layer.rows for layer in layers)
            layers = []
    assert rewritten <= 2.1 * came
    assert (written == 0) == (keys < PIECE_ROWS)
    if keys > came:
        assert came - PIECE_ROWS <= written <= came


def durable(*sizes: int) -> list[LayerSize]:
    return [LayerSize(name=f"d{place}", level=0, rows=size, bytes=size) for place, size in enumerate(sizes)]


def test_durable_layers_wait_while_a_merge_would_write_more_than_it_gives_back():
    assert plan_durable_compaction([], live_rows=0, settled=True) is None
    assert plan_durable_compaction(durable(100), live_rows=100, settled=True) is None
    assert plan_durable_compaction(durable(100, *[5] * 40), live_rows=100, settled=False) is None


def test_what_was_added_earns_a_merge_of_all():
    plan = plan_durable_compaction(durable(100, 80, 80, 80), live_rows=100, settled=False)
    assert plan is not None
    assert set(plan.names) == {"d0", "d1", "d2", "d3"}
    assert plan.reason == "240 bytes added to 100"
    assert plan_durable_compaction(durable(100, 80, 80, 80), live_rows=340, settled=False) is None, (
        "they may have no row in common"
    )


def test_at_the_limit_those_are_merged_that_cost_least_for_each_layer_less():
    apart = plan_durable_compaction(durable(10_000, 2, 1, 1, 1, 9_000), live_rows=10**6, settled=False, limit=6)
    assert apart is not None
    assert apart.reason == "limit of 6 reached"
    assert apart.names == ("d2", "d3", "d4")
    alike = plan_durable_compaction(durable(100, *[5] * 47), live_rows=110, settled=False)
    assert alike is not None
    assert len(alike.names) == 48


def test_once_little_changes_what_counts_no_more_is_left_out():
    assert plan_durable_compaction(durable(100, 10, 10, 10), live_rows=130, settled=True) is None
    plan = plan_durable_compaction(durable(100, 10, 10, 11), live_rows=131, settled=True)
    assert plan is not None
    assert (len(plan.names), plan.reason) == (4, "state has settled")


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
def test_no_more_than_half_as_many_bytes_are_rewritten_as_change(share):
    """Random keys of 2,000 change between checkpoints: a layer is the set of its keys, a byte a key."""
    chance = random.Random(7)
    layers = {"base": frozenset(range(2_000))}
    added = rewritten = 0
    for number in range(1_000):
        changed = frozenset(chance.sample(range(2_000), int(2_000 * share)))
        layers[f"d{number}"] = changed
        added += len(changed)
        sized = [LayerSize(name=name, level=0, rows=len(keys), bytes=len(keys)) for name, keys in layers.items()]
        plan = plan_durable_compaction(sized, live_rows=2_500, settled=False)
        if plan is not None:
            merged = frozenset().union(*(layers.pop(name) for name in plan.names))
            layers[f"m{number}"] = merged
            rewritten += len(merged)
        assert len(layers) < DURABLE_LIMIT
    assert rewritten <= 0.5 * added


M = ROWS_A_TASK


@pytest.mark.parametrize(
    ("rows", "live_rows", "slices", "parts"),
    [
        (MIN_ROWS_AHEAD, M, 1, 1),
        (4 * MIN_ROWS_AHEAD, M, 4, 1),
        (M, M, 16, 1),
        (M, 32 * M, 32, 1),
        (MIN_ROWS_A_FILE - 1, 4 * M, 1, 1),
        (3 * MIN_ROWS_A_FILE, 8 * M, 2, 1),
        (4 * M, M, 64, 4),
    ],
)
def test_a_layer_of_much_state_has_slices_while_each_has_rows_enough(
    monkeypatch: pytest.MonkeyPatch, rows: int, live_rows: int, slices: int, parts: int
):
    told: list[tuple[HashSlice, int]] = []

    def write_part(_self: object, _rows: object, _name: str, part: HashSlice, *, slices: int, **_more: int) -> int:
        told.append((part, slices))
        return rows // parts

    monkeypatch.setattr(LayerWriter, "_write_part", write_part)
    none: Any = None
    writer = LayerWriter(
        layers_format=LayerFormat(
            uid="n", keys=("k",), schema=StructType().add("k", "string"), merges={}, partitions=1
        ),
        filesystem=MemoryFileSystem(),
        folder="state",
        prefix="g1-",
        session=none,
        tasks=1,
        background=nullcontext,
        failpoint=lambda _: None,
    )
    stats = LayerStats(rows=rows, level=0, first_end=1, last_end=2)
    ref = writer.write(none, stats, horizon=0, live_rows=live_rows)
    assert (ref.rows, ref.detail["slices"]) == (rows, slices)
    assert told == [(part, slices) for part in HashSlice.all(parts)]


@given(st.integers(0, 2**32), st.integers(0, 6), st.integers(0, 6))
def test_a_row_is_in_slices_that_meet(code, one, other):
    slices = [HashSlice(code % 2**power, 2**power) for power in (one, other)]
    assert slices[0].meets(slices[1])
    assert sum(slices[0].meets(HashSlice(number, 2**other)) for number in range(2**other)) == 2 ** max(0, other - one)
