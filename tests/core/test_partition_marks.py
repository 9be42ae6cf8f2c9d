"""Watermarks of one edge by its source's partitions: the least holds, idle ones do not, none goes back."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime, MonotonicTime
from penstock.elements import Batch, ObservedMetrics, SourcePartitions
from penstock.facts import Counted, WatermarkHeld
from penstock.graph.nodes import PortRef, WithWatermark, call_site
from penstock.runtime.channels import Channel
from penstock.runtime.inputs import Inputs, UpstreamInfo
from penstock.runtime.watermarks import PartitionWatermarks


def marks(delay: int = 0, idle_after: int | None = None, at: int = MIN_WATERMARK) -> PartitionWatermarks:
    return PartitionWatermarks(delay, EventTime(at), idle_after)


def told(edge: PartitionWatermarks, now: int, source: str = "t", behind: str = "", **largest: int | None) -> int:
    return edge.observe(largest, source=source, now=MonotonicTime(now), behind=behind.split())


def test_the_slowest_partition_holds_the_edge_and_has_a_name() -> None:
    edge = marks(delay=2)
    assert told(edge, 1, a=10, b=5) == 3
    assert edge.holder == "b"
    assert told(edge, 2, a=30, b=None) == 3
    assert told(edge, 3, a=30, b=40) == 28
    assert edge.holder == "a"
    assert edge.end() == MAX_WATERMARK


def test_one_partition_alone_is_the_edge_and_nobody_holds_it_back() -> None:
    edge = marks(idle_after=10)
    assert edge.holder is None
    assert edge.idle_at() is None
    assert told(edge, 1, a=10) == 10
    assert edge.holder is None
    assert edge.idle_at() is None


def test_a_partition_that_never_brought_a_row_holds_the_edge_until_it_is_idle() -> None:
    edge = marks(idle_after=100)
    assert told(edge, 1, a=10, b=None) == MIN_WATERMARK
    assert edge.holder == "b"
    assert edge.idle_at() == 101
    assert told(edge, 60, a=20, b=None) == MIN_WATERMARK
    assert edge.mark_idle(MonotonicTime(101)) == 20
    assert edge.holder == "a"
    assert edge.idle_at() == 160


def test_one_with_rows_waiting_is_not_idle() -> None:
    edge = marks(idle_after=100)
    told(edge, 1, a=10, b=5)
    assert told(edge, 101, a=20, b=None, behind="b") == 5
    assert edge.mark_idle(MonotonicTime(200)) == 5
    assert edge.mark_idle(MonotonicTime(201)) == 20


def test_one_that_returns_behind_does_not_pull_the_edge_back() -> None:
    edge = marks(idle_after=100)
    told(edge, 1, a=10, b=5)
    assert told(edge, 101, a=50, b=None) == 50
    assert told(edge, 102, a=60, b=7) == 50
    assert edge.holder == "b"
    assert told(edge, 103, a=60, b=55) == 55


def test_when_all_are_idle_the_edge_stands_as_far_as_they_came() -> None:
    edge = marks(idle_after=100)
    told(edge, 1, a=10, b=5)
    assert edge.mark_idle(MonotonicTime(101)) == 10
    assert edge.holder is None
    assert edge.idle_at() is None


def test_one_that_is_gone_holds_nothing_back_and_one_that_is_new_stands_where_the_edge_does() -> None:
    edge = marks()
    told(edge, 1, a=10, b=5)
    assert told(edge, 2, a=12, c=None) == 5, "b is gone, c begins where the edge stands"
    assert edge.holder == "c"
    assert told(edge, 3, a=12, c=30) == 12


def test_a_partition_found_while_running_takes_nothing_back_and_begins_where_the_edge_stood() -> None:
    edge = marks()
    told(edge, 1, a=10)
    assert told(edge, 2, a=30, b=4) == 10, "in one batch with its first rows, which are behind"
    assert edge.holder == "b"
    assert told(edge, 3, a=50, b=25) == 25


def test_after_a_restart_no_partition_is_passed_by_one_that_is_read_before_it() -> None:
    before = marks()
    assert told(before, 1, a=90, b=40) == 40
    edge = marks(at=before.at)
    assert told(edge, 1, a=100, b=None) == 40, "b has yet to bring what it was behind with"
    assert told(edge, 2, a=110, b=41) == 41


def test_no_source_of_several_is_passed_before_it_has_told_its_partitions() -> None:
    edge = marks(at=40, idle_after=100)
    edge.expect(["t", "u"], MonotonicTime(0))
    assert edge.holder == "t"
    assert told(edge, 1, a=100) == 40
    assert edge.holder == "u"
    assert told(edge, 2, source="u", b=50, c=41) == 41
    assert told(edge, 3, source="u", b=50, c=70) == 50
    edge = marks(at=40, idle_after=100)
    edge.expect(["t", "u"], MonotonicTime(0))
    told(edge, 1, a=100)
    assert edge.mark_idle(MonotonicTime(99)) == 40
    assert edge.mark_idle(MonotonicTime(100)) == 100, "u is idle"


def test_partitions_of_two_sources_are_kept_apart() -> None:
    edge = marks()
    told(edge, 1, a=10)
    assert told(edge, 2, source="u", b=5) == 10
    assert edge.holder == "a"
    assert told(edge, 3, source="u", b=20) == 10
    assert told(edge, 4, a=30) == 20


def test_a_copy_goes_on_by_itself() -> None:
    edge = marks()
    told(edge, 1, a=10, b=5)
    other = edge.copy()
    assert told(other, 2, a=20, b=20) == 20
    assert (edge.at, edge.holder) == (5, "b")


times = st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 100), min_size=1)


@given(st.lists(st.tuples(st.integers(0, 30), times), max_size=12), st.none() | st.integers(1, 40))
def test_the_edge_never_goes_back_and_never_passes_an_active_partition(
    story: list[tuple[int, Mapping[str, int | None]]], idle_after: int | None
) -> None:
    edge, now, before = marks(idle_after=idle_after), 0, MIN_WATERMARK
    seen: dict[str, int] = {}
    for wait, largest in story:
        now += wait
        at = edge.observe(largest, source="t", now=MonotonicTime(now))
        assert at >= before
        seen = {
            name: max(seen.get(name, before), time if time is not None else before) for name, time in largest.items()
        }
        if idle_after is None:
            assert at == max(before, min(seen.values()))
        before = at


# ------------------------------------------------------------------------------------------------------ in a task


def mark(idle_after: int | None = None) -> WithWatermark:
    return WithWatermark(
        id=3, origin=call_site(), inputs=(PortRef(1),), column="at", delay=0, idle_after=idle_after, max_ahead=None
    )


def batch(largest: int | None, topic: SourcePartitions | None = None, **figures: object) -> Batch:
    measure = ObservedMetrics.known({"max": largest, "ahead": 0, "missing": 0, **figures})
    return Batch(frame=None, sequence=1, metrics={"time:3": measure}, partitions=topic)


def topic(*names: str, column: str | None = "p", behind: str = "") -> SourcePartitions:
    return SourcePartitions(names=names, column=column, source="orders", behind=frozenset(behind.split()))


def inputs(idle_after: int | None = None, count: int = 1) -> Inputs:
    channels = [Channel(capacity=9) for _ in range(count)]
    upstream = [UpstreamInfo(name=name) for name in ("orders", "clicks")[:count]]
    return Inputs(channels, [mark(idle_after)] * count, upstream=upstream, wake=lambda: None)


def took(of: Inputs, now: int, *batches: Batch, source: int = 0) -> int:
    for each in batches:
        of[source].received(each, MonotonicTime(now), lambda: None)
    return of.advance()


def test_an_input_follows_its_partitions_and_says_which_holds() -> None:
    of = inputs()
    assert took(of, 1, batch(9, topic("0", "1"), partitions={"0": 9, "1": 4})) == 4
    assert list(of.new_facts("totals", EventTime(4))) == [WatermarkHeld(task="totals", by="orders/1", at=EventTime(4))]
    assert took(of, 2, batch(12, topic("0", "1"), partitions={"0": 12, "1": None})) == 4
    assert list(of.new_facts("totals", EventTime(4))) == []
    frozen = of.frozen()
    assert frozen.settled
    assert frozen.values() == (4,)


def test_the_only_partition_needs_no_column() -> None:
    assert took(inputs(), 1, batch(9, topic("0", column=None))) == 9


@pytest.mark.parametrize("told", [batch(9, topic("0", "1", column=None)), batch(9)], ids=["no column", "no partitions"])
def test_where_rows_do_not_say_all_are_one(told: Batch) -> None:
    of = inputs()
    assert took(of, 1, told) == 9
    assert list(of.new_facts("totals", EventTime(9))) == []


def test_a_partition_found_while_running_does_not_hold_for_ever_where_rows_do_not_say_which_they_are_of() -> None:
    of = inputs()
    assert took(of, 1, batch(9, topic("0", column=None))) == 9
    assert took(of, 2, batch(12, topic("0", "1", column=None, behind="1"))) == 12
    assert took(of, 3, batch(15, topic("0", "1", column=None))) == 15


def test_a_measure_that_was_lost_says_nothing() -> None:
    of, lost = inputs(), ObservedMetrics(dict)
    lost.lose()
    assert took(of, 1, Batch(frame=None, sequence=1, metrics={"time:3": lost})) == MIN_WATERMARK
    assert took(of, 1, batch(None)) == MIN_WATERMARK


def test_a_quiet_partition_is_called_idle_while_others_bring_rows_but_not_before_all_is_told() -> None:
    of = inputs(idle_after=100)
    took(of, 1, batch(9, topic("0", "1"), partitions={"0": 9, "1": 4}))
    assert of.check_idle(MonotonicTime(2)) == 101
    unsettled = ObservedMetrics(lambda: {"max": 20, "partitions": {"0": 20, "1": None}})
    took(of, 50, Batch(frame=None, sequence=2, metrics={"time:3": unsettled}, partitions=topic("0", "1")))
    of.check_idle(MonotonicTime(101))
    assert of.advance() == 4
    assert of.frozen().settled is False
    unsettled.settle()
    assert of.frozen().values() == (4,)
    assert of.advance() == 4
    assert of.check_idle(MonotonicTime(101)) == 150
    assert of.valve.at == 20


def test_of_several_inputs_the_one_behind_is_named() -> None:
    of = inputs(count=2)
    took(of, 1, batch(9), source=0)
    assert took(of, 1, batch(7), source=1) == 7
    assert list(of.new_facts("union", EventTime(7))) == [WatermarkHeld(task="union", by="clicks", at=EventTime(7))]
    of.valve.set_idle(0, True)
    of.valve.set_idle(1, True)
    assert of.holder is None


def test_rows_too_far_ahead_are_counted_once() -> None:
    of = inputs()
    took(of, 1, batch(9, ahead=3), batch(9, ahead=1))
    assert list(of.new_facts("totals", EventTime(9))) == [Counted(task="totals", name="ahead", amount=4)]
    assert list(of.new_facts("totals", EventTime(9))) == []


def test_an_edge_without_a_generator_passes_on_what_it_gets() -> None:
    of = Inputs([Channel(capacity=1)], [None], restored=(EventTime(5),), wake=lambda: None)
    assert of[0].advance_from_upstream(EventTime(9)) == 9
    assert of.frozen().values() == (5,)
    assert of.holder is None
