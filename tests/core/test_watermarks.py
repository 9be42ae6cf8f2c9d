"""Watermarks: generated from event times, combined over inputs, never going back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime
from penstock.runtime.watermarks import BoundedOutOfOrderness, WatermarkValve


def test_139_two_rows_of_one_time_are_both_in_time_with_no_delay() -> None:
    edge = BoundedOutOfOrderness(delay=0)
    assert edge.observe(EventTime(10)) == 10  # late is strictly below 10


def test_the_generated_watermark_trails_by_the_delay_and_never_goes_back() -> None:
    edge = BoundedOutOfOrderness(delay=5)
    assert [edge.observe(EventTime(at)) for at in (20, 12, 26)] == [15, 15, 21]
    assert edge.end() == MAX_WATERMARK


@pytest.mark.mission("L9")
def test_140_the_least_input_holds_the_watermark() -> None:
    valve = WatermarkValve.of(3)
    assert [valve.advance(i, EventTime(at)) for i, at in ((0, 5), (1, 9), (2, 7), (0, 8))] == [None, None, 5, 7]


def test_140_an_idle_input_holds_nothing_back_and_one_that_returns_behind_does_not_pull_back() -> None:
    valve = WatermarkValve.of(2)
    valve.advance(0, EventTime(10))
    assert valve.set_idle(1, True) == 10
    assert valve.set_idle(1, False) is None
    assert valve.advance(1, EventTime(4)) is None
    assert valve.at == 10
    assert valve.advance(0, EventTime(30)) is None  # held where it is until input 1 has caught up
    assert valve.advance(1, EventTime(20)) == 20


def test_140_all_idle_shows_and_takes_the_furthest() -> None:
    valve = WatermarkValve.of(2)
    valve.advance(0, EventTime(3))
    valve.advance(1, EventTime(8))
    assert valve.at == 3
    assert valve.set_idle(0, True) == 8
    assert valve.set_idle(1, True) is None
    assert valve.all_idle


def test_140_removing_the_lowest_goes_on_from_the_others() -> None:
    valve = WatermarkValve.of(2)
    valve.advance(0, EventTime(3))
    valve.advance(1, EventTime(8))
    assert valve.end(0) == 8
    assert valve.end(1) is None


def test_140_an_ended_input_beside_an_idle_one_does_not_lift_the_watermark_to_the_end_of_time() -> None:
    valve = WatermarkValve.of(2)
    valve.advance(0, EventTime(10))
    valve.advance(1, EventTime(4))
    valve.set_idle(1, True)
    assert valve.advance(0, MAX_WATERMARK) is None
    assert valve.at == 10, "what the idle input brings when it comes back is not late for that"
    assert valve.all_idle, "tasks downstream are told that they need not wait for it"
    assert valve.advance(1, MAX_WATERMARK) == MAX_WATERMARK
    assert not valve.all_idle, "it has ended"


def test_a_restored_valve_stands_where_its_inputs_stood() -> None:
    valve = WatermarkValve.restored((EventTime(4), EventTime(9)))
    assert valve.at == 4
    assert WatermarkValve.restored(()).at == MIN_WATERMARK


moves = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["advance", "idle", "active"]), st.integers(0, 100)))


@given(moves)
def test_the_combined_watermark_never_goes_back(moves: list[tuple[int, str, int]]) -> None:
    valve = WatermarkValve.of(3)
    seen = valve.at
    for source, move, at in moves:
        if move == "advance":
            valve.advance(source, EventTime(at))
        else:
            valve.set_idle(source, move == "idle")
        assert valve.at >= seen
        seen = valve.at
