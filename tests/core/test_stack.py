from __future__ import annotations

from typing import Any

from penstock.elements import RefCount
from penstock.state.layers import Layer
from penstock.state.stack import SLOWDOWN_LIMIT, STOP_LIMIT, Stack


def layer(freed: list[str], name: str = "m1") -> Layer:
    frame: Any = None
    lease = RefCount(lambda: freed.append(name))
    return Layer(name=name, level=0, epoch=1, rows=1, first_end=10, last_end=10, frame=frame, lease=lease)


def test_an_open_stack_takes_a_layer_and_frees_it_when_closed():
    freed: list[str] = []
    stack = Stack()
    assert stack.add(layer(freed))
    assert (stack.height, stack.closed, freed) == (1, False, [])
    stack.close()
    assert (stack.height, stack.closed, freed) == (0, True, ["m1"])


def test_a_closed_stack_frees_what_it_does_not_take():
    freed: list[str] = []
    stack = Stack()
    stack.close()
    assert not stack.add(layer(freed))
    assert (stack.height, freed) == (0, ["m1"])


def test_the_background_begins_some_batches_before_the_data_path_has_to():
    assert SLOWDOWN_LIMIT + 3 <= STOP_LIMIT
