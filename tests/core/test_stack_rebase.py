"""One layer in the place of all: what becomes of merges and snapshots that are under way."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.elements import RefCount
from penstock.state.layers import Layer
from penstock.state.stack import Stack


def layer(stack: Stack, freed: list[str], end: int = 10) -> Layer:
    frame: Any = None
    name = stack.next_name()
    lease = RefCount(lambda: freed.append(name))
    return Layer(name=name, level=0, epoch=stack.epoch, rows=1, first_end=1, last_end=end, frame=frame, lease=lease)


def names(stack: Stack) -> list[str]:
    return [each.name for each in stack.sized()]


def test_it_takes_the_place_of_all_and_a_merge_of_some_of_them_comes_to_nothing():
    freed: list[str] = []
    stack = Stack()
    members = [layer(stack, freed) for _ in range(2)]
    for member in members:
        stack.add(member)
    held, lease = stack.lease_named([member.name for member in members])
    one = layer(stack, freed)
    assert stack.rebase(one)
    assert freed == []
    late = layer(stack, freed)
    assert not stack.replace(held, late)
    lease.release()
    assert (names(stack), freed) == ([one.name], [late.name, members[0].name, members[1].name])


@pytest.mark.parametrize("horizon", [5, 7])
def test_a_merge_counts_although_a_member_has_died_meanwhile(horizon: int):
    freed: list[str] = []
    stack = Stack()
    dying, living = layer(stack, freed, end=5), layer(stack, freed, end=20)
    stack.add(dying)
    stack.add(living)
    held, lease = stack.lease_named([dying.name, living.name])
    stack.close_windows(horizon)
    merged = layer(stack, freed, end=20)
    assert stack.replace(held, merged)
    lease.release()
    assert (names(stack), sorted(freed)) == ([merged.name], [dying.name, living.name])


def test_a_snapshot_named_before_keeps_its_layers_and_the_next_refers_to_nothing_older():
    freed: list[str] = []
    stack = Stack()
    stack.add(layer(stack, freed))
    first = stack.begin_snapshot()
    stack.rebase(layer(stack, freed))
    stack.add(layer(stack, freed))
    second = stack.begin_snapshot()
    assert [each.name for each in first.layers] == ["m00000001"]
    assert (first.base, second.base) == (0, 2)
    assert [each.name for each in second.layers] == ["m00000002", "m00000003"]
    assert freed == []
    stack.end_snapshot(first, durable=True)
    assert freed == ["m00000001"]
    stack.end_snapshot(second, durable=False)
    third = stack.begin_snapshot()
    assert (third.base, [each.name for each in third.layers]) == (2, ["m00000002", "m00000003"])
    stack.end_snapshot(third, durable=True)
    stack.close()
    assert freed == ["m00000001", "m00000002", "m00000003"]


def test_a_closed_stack_frees_it():
    freed: list[str] = []
    stack = Stack()
    stack.close()
    assert not stack.rebase(layer(stack, freed))
    assert freed == ["m00000001"]
