"""What a batch reads of a topic's partitions: within its caps, without gap or overlap, and nobody starves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.kafka.offsets import AvailableOffsets, KafkaPosition, OffsetRange, Topic, TopicPartition
from penstock.connectors.kafka.planning import RowSizes, backlog, cut, ends, plan
from penstock.interfaces.source import ReadLimit

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

waiting = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(0, 9)),
    st.tuples(st.integers(0, 1_000), st.integers(0, 5_000)),
    max_size=12,
)


def progress_of(parts: dict[TopicPartition, tuple[int, int]]) -> KafkaPosition:
    return KafkaPosition(ids={at.topic: None for at in parts}, next={at: start for at, (start, _) in parts.items()})


def ends_of(parts: dict[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
    return {at: start + length for at, (start, length) in parts.items()}


def test_a_partition_is_read_up_to_what_is_there_its_stop_and_where_a_drain_began():
    topics = {
        "a": Topic(None, {0: AvailableOffsets(0, 100), 1: AvailableOffsets(0, 50)}),
        "b": Topic(None, {0: AvailableOffsets(0, 7)}),
    }
    progress = KafkaPosition(next={A0: 3, A1: 0})
    assert ends(progress, topics) == {A0: 100, A1: 50}
    bounded = replace(progress, stop={A0: 80})
    assert ends(bounded, topics) == {A0: 80, A1: 0}
    assert ends(bounded, topics, caught_up={A0: 60, A1: 60}) == {A0: 60, A1: 0}
    assert ends(progress, topics, caught_up={A0: 200}) == {A0: 100, A1: 0}
    assert backlog(
        progress,
        {
            A1: 50,
            A0: 100,
        },
    ) == {A0: 97, A1: 50}
    assert backlog(progress, {A0: 3, A1: 0}) == {}


@given(parts=waiting, rows=st.none() | st.integers(1, 9_000), size=st.none() | st.integers(1, 2_000_000))
def test_a_batch_is_within_its_caps_follows_on_and_leaves_nothing_that_would_fit(parts, rows, size):
    sizes = RowSizes()
    sizes.learn("a", rows=1, bytes=100)
    sizes.learn("b", rows=1, bytes=3_000)
    progress, until = progress_of(parts), ends_of(parts)
    planned = plan(progress, until, ReadLimit(rows=rows, bytes=size), sizes)
    for part in planned.ranges:
        assert progress.next[part.at] == part.start < part.end <= until[part.at]
    assert len({part.at for part in planned.ranges}) == len(planned.ranges)
    assert planned.position.next == {**progress.next, **{part.at: part.end for part in planned.ranges}}
    taken = sum(part.offsets for part in planned.ranges)
    total = sum(length for _, length in parts.values())
    weight = sizes.estimate_bytes({part.at: part.offsets for part in planned.ranges})
    assert taken <= total if rows is None else taken <= rows
    assert size is None or weight <= size or taken == 1
    if size is None:
        assert taken == (total if rows is None else min(total, rows))
    assert (taken > 0) == (total > 0)
    assert planned.behind == {at for at in parts if planned.position.next[at] < until[at]}


@given(parts=waiting, rows=st.integers(1, 40))
def test_nobody_starves_however_much_waits_elsewhere_and_however_few_rows_a_batch_has(parts, rows):
    """The others are filled up again after each batch: whoever waits is served within as many batches as there are."""
    progress, turn, unserved = progress_of(parts), None, {at for at, (_, length) in parts.items() if length}
    for _ in range(len(unserved)):
        until = {at: offset + parts[at][1] for at, offset in progress.next.items()}
        planned = plan(progress, until, ReadLimit(rows=rows), RowSizes(), turn=turn)
        progress, turn = planned.position, planned.turn
        unserved -= {part.at for part in planned.ranges}
    assert not unserved


@given(parts=waiting, rows=st.integers(300, 5_000), size=st.integers(300_000, 5_000_000))
def test_batch_after_batch_reads_everything_once(parts, rows, size):
    progress, turn, seen = progress_of(parts), None, []
    while ranges := (
        planned := plan(progress, ends_of(parts), ReadLimit(rows=rows, bytes=size), RowSizes(), turn=turn)
    ).ranges:
        seen += ranges
        progress, turn = planned.position, planned.turn
    assert progress.next == ends_of(parts)
    for at in parts:
        mine = [part for part in seen if part.at == at]
        assert all(one.end == other.start for one, other in pairwise(mine))


def test_partitions_give_the_same_part_of_what_waits_but_a_small_one_does_not_wait_for_a_big_one():
    parts = {A0: (0, 900_000), A1: (0, 90_000), B0: (0, 10)}
    shares = {
        part.at: part.offsets
        for part in plan(progress_of(parts), ends_of(parts), ReadLimit(rows=9_900), RowSizes()).ranges
    }
    assert shares[B0] == 10, "all it has, though its part would be less than one"
    assert sum(shares.values()) == 9_900
    assert 6 < shares[A0] / shares[A1] < 10, "nearly ten times as many: what holds the same hours stays together"


def test_with_fewer_rows_than_partitions_they_take_turns():
    parts = {TopicPartition("a", n): (0, 5) for n in range(4)}
    progress, turn, order = progress_of(parts), None, []
    for _ in range(8):
        planned = plan(progress, ends_of(parts), ReadLimit(rows=1), RowSizes(), turn=turn)
        progress, turn = planned.position, planned.turn
        order += [part.partition for part in planned.ranges]
    assert order == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_thousand_partitions_and_a_small_cap():
    parts = {TopicPartition("a", n): (0, 10**6 if n == 7 else 3) for n in range(1_000)}
    planned = plan(progress_of(parts), ends_of(parts), ReadLimit(rows=100), RowSizes())
    assert sum(part.offsets for part in planned.ranges) == 100


def test_what_is_paused_keeps_its_place_and_is_behind():
    parts = {A0: (0, 10), A1: (0, 10), B0: (0, 0)}
    planned = plan(progress_of(parts), ends_of(parts), ReadLimit(), RowSizes(), paused={A1, B0, TopicPartition("x", 0)})
    assert planned.ranges == (OffsetRange("a", 0, 0, 10),)
    assert planned.behind == {A1}


def test_one_row_is_read_even_if_it_alone_is_over_the_cap():
    sizes = RowSizes()
    sizes.learn("a", rows=1, bytes=10**7)
    parts = {A0: (0, 10), A1: (0, 10)}
    assert plan(progress_of(parts), ends_of(parts), ReadLimit(bytes=1), sizes).ranges == (OffsetRange("a", 0, 0, 1),)


def test_what_rows_weigh_rises_at_once_and_falls_slowly():
    sizes = RowSizes()
    assert sizes.estimate_bytes({A0: 2}) == 2_048
    sizes.learn("a", rows=10, bytes=1_000)
    assert sizes.estimate_bytes({A0: 2}) == 200
    sizes.learn("a", rows=1, bytes=900)
    assert sizes.estimate_bytes({A0: 1}) == 900
    sizes.learn("a", rows=1, bytes=100)
    assert sizes.estimate_bytes({A0: 1}) == 700
    sizes.learn("a", rows=0, bytes=0)
    assert sizes.estimate_bytes({A0: 1}) == 700


@pytest.mark.mission("F14")
@given(parts=waiting, tasks=st.integers(1, 9))
def test_any_number_of_tasks_reads_the_same_records_each_about_as_many(parts, tasks):
    """Nothing about the number of readers is in a position, so a job goes on with any."""
    ranges = [
        OffsetRange(at.topic, at.partition, start, start + length) for at, (start, length) in parts.items() if length
    ]
    shares = cut(ranges, tasks)
    total = sum(part.offsets for part in ranges)
    assert len(shares) == min(tasks, total)
    counts = [sum(part.offsets for part in share) for share in shares]
    assert not counts or max(counts) - min(counts) <= 1
    assert all(part.start < part.end for share in shares for part in share)
    joined: list[OffsetRange] = []
    for part in (part for share in shares for part in share):
        if joined and (joined[-1].at, joined[-1].end) == (part.at, part.start):
            part = replace(joined.pop(), end=part.end)  # noqa: PLW2901 - the two are one again
        joined.append(part)
    assert joined == ranges
