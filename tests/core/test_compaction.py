from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.compaction import SMALLEST_TIER, Sized, plan_merge, tier


def stack(*rows: int, group: int = 0, prefix: str = "l") -> list[Sized]:
    return [Sized(name=f"{prefix}{place}", level=0, rows=count, group=group) for place, count in enumerate(rows)]


def test_nothing_is_merged_while_no_tier_is_full():
    assert plan_merge(stack(100, 100, 100)) is None
    assert plan_merge([]) is None


def test_a_full_tier_is_merged_and_larger_layers_are_left_alone():
    plan = plan_merge(stack(5_000_000, 100, 200, 300, 400))
    assert plan is not None
    assert plan.names == ("l1", "l2", "l3", "l4")
    assert plan.level == 1
    assert plan.reason == "tier of 4 full"


def test_what_is_smaller_comes_along():
    plan = plan_merge(stack(30_000, 30_001, 30_002, 30_003, 7))
    assert plan is not None
    assert set(plan.names) == {"l0", "l1", "l2", "l3", "l4"}


def test_layers_of_two_groups_are_never_merged():
    assert plan_merge([*stack(1, 1, prefix="a"), *stack(1, 1, group=1, prefix="b")]) is None
    plan = plan_merge([*stack(1, 1, prefix="a"), *stack(1, 1, 1, 1, group=1, prefix="b")])
    assert plan is not None
    assert plan.names == ("b0", "b1", "b2", "b3")


def test_at_the_limit_the_smallest_are_merged_though_no_tier_is_full():
    sizes = [10**4 * 4**tier_number for tier_number in range(8)]
    plan = plan_merge(stack(*sizes))
    assert plan is not None
    assert plan.names == ("l0", "l1", "l2", "l3")
    assert plan.reason == "limit of 8 reached"


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 2)), max_size=8))
def test_a_merge_names_at_least_two_layers_of_one_group(layers):
    sized = [Sized(name=str(n), level=0, rows=rows, group=group) for n, (rows, group) in enumerate(layers)]
    plan = plan_merge(sized)
    if plan is None:
        assert len(sized) < 8
        return
    assert len(set(plan.names)) >= 2
    assert len({layer.group for layer in sized if layer.name in plan.names}) == 1


@pytest.mark.parametrize(("batch", "batches"), [(1_000, 2_000), (50_000, 500)])
def test_the_stack_stays_low_and_each_row_is_rewritten_about_once_a_tier_above_the_smallest(batch, batches):
    layers: list[Sized] = []
    rewritten = 0
    for number in range(batches):
        layers.append(Sized(name=str(number), level=0, rows=batch))
        while plan := plan_merge(layers):
            rows = sum(layer.rows for layer in layers if layer.name in plan.names)
            rewritten += rows
            layers = [layer for layer in layers if layer.name not in plan.names]
            layers.append(Sized(name=f"m{number}-{plan.level}-{rows}", level=plan.level, rows=rows))
        assert len(layers) < 8
    rows = batch * batches
    assert rewritten <= rows * (3 + tier(rows, fan=4)) + batches * 2 * SMALLEST_TIER
