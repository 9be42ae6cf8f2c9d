"""A layer on its way into memory: whoever needs it helps, each part is loaded once, nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.elements import RefCount
from penstock.state.layers import CachedRows, Layer
from penstock.state.stack import ExpectedLayer, LayerLoader, Stack


class Parts:
    """Parts of one row each, by name; tells which were loaded and which are still held."""

    def __init__(self, *names: str, rows: int = 1) -> None:
        self.names = names
        self.rows = rows
        self.loaded: list[str] = []
        self.held: set[str] = set()
        self.before: dict[str, Callable[[], None]] = {}

    def _load(self, name: str) -> CachedRows:
        self.loaded.append(name)
        self.before.get(name, lambda: None)()
        self.held.add(name)
        lease = RefCount(lambda: self.held.remove(name))
        frame: Any = name
        end = 10 * len(self.loaded)
        return CachedRows(frame=frame, rows=self.rows, first_end=end, last_end=end, lease=lease)

    def loading(self, *, emission_number: int = 0) -> LayerLoader:
        coming = ExpectedLayer(
            name="restored",
            level=3,
            emission_number=emission_number,
            rows=99,
            first_end=5,
            last_end=50,
            refs=frozenset({"g1-1", "g1-2"}),
        )
        joined: Any = "+".join
        return LayerLoader(coming, [lambda name=name: self._load(name) for name in self.names], joined)  # type: ignore[misc]


def layer_of(name: str, *, emission_number: int = 0) -> Layer:
    frame: Any = name
    lease = RefCount(lambda: None)
    return Layer(
        name=name,
        level=0,
        epoch=1,
        rows=7,
        first_end=20,
        last_end=20,
        frame=frame,
        lease=lease,
        emission_number=emission_number,
    )


def test_the_layer_is_all_parts_in_order_with_their_extent() -> None:
    parts = Parts("a", "b", "c")
    loading = parts.loading(emission_number=2)
    assert loading.step()
    assert not loading.is_loaded
    layer = loading.load()
    assert layer is not None
    assert (str(layer.frame), layer.rows, layer.first_end, layer.last_end) == ("a+b+c", 3, 10, 30)
    assert (layer.name, layer.level, layer.epoch, layer.emission_number) == ("restored", 3, 0, 2)
    assert loading.load() is layer, "asked again, it is the same"
    assert parts.loaded == ["a", "b", "c"]
    assert not loading.step()
    layer.lease.release()
    assert parts.held == set()


def test_two_who_need_it_share_the_parts() -> None:
    parts = Parts("a", "b")
    loading = parts.loading()
    began, may_end = threading.Event(), threading.Event()

    def hold_it() -> None:
        began.set()
        may_end.wait()

    parts.before["a"] = hold_it
    found: list[Layer | None] = []
    beside = threading.Thread(target=loading.step)
    beside.start()
    began.wait()
    waiting = threading.Thread(target=lambda: found.append(loading.load()))
    waiting.start()
    while "b" not in parts.held:
        pass  # the one who waits takes the other part meanwhile
    assert found == []
    may_end.set()
    beside.join()
    waiting.join()
    assert [str(layer.frame) for layer in found if layer] == ["a+b"]
    assert parts.loaded == ["a", "b"]


def test_all_who_wait_hear_of_a_failure() -> None:
    parts = Parts("a", "b")
    loading = parts.loading()

    def break_it() -> None:
        msg = "no such file"
        raise OSError(msg)

    parts.before["b"] = break_it
    with pytest.raises(OSError, match="no such file"):
        loading.load()
    with pytest.raises(OSError, match="no such file"):
        loading.load()
    assert not loading.step()
    loading.end()
    assert parts.held == set()


def test_a_part_that_comes_when_nobody_wants_it_any_more_is_freed() -> None:
    parts = Parts("a", "b")
    loading = parts.loading()
    parts.before["b"] = loading.end
    assert loading.load() is None
    assert parts.held == set()
    assert not loading.step()


def test_rows_of_closed_windows_only_make_no_layer() -> None:
    parts = Parts("a", "b", rows=0)
    stack = Stack(restored=parts.loading())
    assert stack.lease_due(MIN_WATERMARK, MAX_WATERMARK)[0] == ()
    assert (stack.height, stack.loading, parts.held) == (0, frozenset(), set())


def test_a_stack_waits_for_it_only_where_its_rows_may_matter() -> None:
    parts = Parts("a", "b")
    stack = Stack(restored=parts.loading())
    assert (stack.height, stack.rows, stack.loading) == (1, 99, frozenset({"g1-1", "g1-2"}))
    assert stack.may_have_rows(1, 5)
    assert not stack.may_have_rows(51, 60)
    stack.add(layer_of("new"))
    layers, lease = stack.lease_due(51, 60)
    assert (layers, parts.loaded) == ((), [])
    lease.release()
    assert [sized.name for sized in stack.sized()] == ["new"], "what is not here cannot be merged"
    assert stack.begin_snapshot().layers[0].name == "new", "nor need it be written again"
    layers, lease = stack.lease_due(20, 20)
    assert {layer.name for layer in layers} == {"new", "restored"}
    assert parts.loaded == ["a", "b"]
    assert (stack.height, stack.rows, stack.loading) == (2, 9, frozenset())


def test_beside_the_data_it_comes_part_by_part() -> None:
    parts = Parts("a", "b")
    stack = Stack(restored=parts.loading())
    stack.load_part()
    assert (parts.loaded, bool(stack.loading)) == (["a"], True)
    stack.load_part()
    assert (parts.loaded, bool(stack.loading)) == (["a", "b"], False)
    stack.load_part()
    assert [sized.name for sized in stack.sized()] == ["restored"]


@pytest.mark.parametrize("emission_number", [0, 1])
def test_what_was_not_told_before_is_news_before_it_is_here(emission_number: int) -> None:
    parts = Parts("a")
    stack = Stack(restored=parts.loading(emission_number=emission_number))
    assert stack.has_unsent(1, 50) is (emission_number == 1)
    told = stack.begin_emission(1, 50)
    assert [layer.name for layer in (told.new if emission_number else told.old)] == ["restored"]
    assert not stack.has_unsent(1, 50)


@pytest.mark.parametrize("end", ["close", "close_windows"])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_it_is_given_up_with_the_stack_or_its_windows(end: str, steps: int) -> None:
    parts = Parts("a", "b")
    stack = Stack(restored=parts.loading())
    for _ in range(steps):
        stack.load_part()
    if end == "close":
        stack.close()
    else:
        stack.close_windows(50)
    assert (parts.held, stack.loading, stack.height) == (set(), frozenset(), 0)
    stack.load_part()
    assert len(parts.loaded) == steps
