"""Timers are due once, in order, and survive a snapshot."""

import json

import pytest

from penstock.errors import StateIncompatible
from penstock.operators.timers import KeyedTimer, TimeKind, TimerQueue

EVENT, PROCESSING = TimeKind.EVENT, TimeKind.PROCESSING


def filled(*timers: KeyedTimer, kind: TimeKind = EVENT) -> TimerQueue:
    queue = TimerQueue()
    for timer in timers:
        queue.add(kind, timer)
    return queue


def test_timers_are_due_in_order_of_time_then_key_up_to_and_with_the_time_reached() -> None:
    queue = filled(KeyedTimer(30), KeyedTimer(10, "b"), KeyedTimer(20), KeyedTimer(10, "a"))
    assert queue.due(EVENT, 9) == []
    assert queue.due(EVENT, 20) == [KeyedTimer(10, "a"), KeyedTimer(10, "b"), KeyedTimer(20)]
    assert (queue.next(EVENT), len(queue)) == (30, 1)


def test_a_timer_is_never_due_twice() -> None:
    queue = filled(KeyedTimer(10, "a"))
    assert not queue.add(EVENT, KeyedTimer(10, "a"))
    assert queue.due(EVENT, 10) == [KeyedTimer(10, "a")]
    assert queue.due(EVENT, 99) == []
    assert queue.next(EVENT) is None


def test_one_that_is_added_while_timers_fire_is_due_at_the_next_question_even_in_the_past() -> None:
    queue = filled(KeyedTimer(10))
    assert queue.due(EVENT, 50) == [KeyedTimer(10)]
    assert queue.add(EVENT, KeyedTimer(7))
    assert queue.add(EVENT, KeyedTimer(10))
    assert queue.due(EVENT, 50) == [KeyedTimer(7), KeyedTimer(10)]


def test_event_time_and_processing_time_do_not_mix() -> None:
    queue = filled(KeyedTimer(10))
    queue.add(PROCESSING, KeyedTimer(10))
    assert len(queue) == 2
    assert queue.due(PROCESSING, 10) == [KeyedTimer(10)]
    assert queue.next(PROCESSING) is None
    assert queue.due(EVENT, 10) == [KeyedTimer(10)]


def test_a_removed_timer_is_not_due_unless_it_is_added_again() -> None:
    queue = filled(KeyedTimer(10), KeyedTimer(20))
    assert queue.remove(EVENT, KeyedTimer(10))
    assert not queue.remove(EVENT, KeyedTimer(10))
    assert not queue.remove(PROCESSING, KeyedTimer(20))
    assert queue.next(EVENT) == 20
    queue.remove(EVENT, KeyedTimer(20))
    queue.add(EVENT, KeyedTimer(20))
    assert queue.due(EVENT, 99) == [KeyedTimer(20)]


def test_timers_that_are_moved_again_and_again_take_no_more_room() -> None:
    queue = filled(KeyedTimer(10_000, "x"))
    for at in range(5_000):
        queue.add(EVENT, KeyedTimer(10_000 + at, "a"))
        queue.remove(EVENT, KeyedTimer(10_000 + at, "a"))
    assert len(queue._heaps[EVENT]._heap) < 100
    assert queue.due(EVENT, 99_999) == [KeyedTimer(10_000, "x")]


def test_a_snapshot_is_plain_values_and_gives_the_same_queue() -> None:
    queue = filled(KeyedTimer(20, "b"), KeyedTimer(10, "a"))
    queue.add(PROCESSING, KeyedTimer(5))
    snapshot = queue.snapshot()
    assert snapshot == {"event": [[10, "a"], [20, "b"]], "processing": [[5, ""]]}
    restored = TimerQueue.restored(json.loads(json.dumps(snapshot)))
    assert restored.snapshot() == snapshot
    assert restored.due(EVENT, 10) == [KeyedTimer(10, "a")]
    assert queue.due(EVENT, 10) == [KeyedTimer(10, "a")], "the queue that was copied goes on"
    assert len(TimerQueue.restored(None)) == 0


@pytest.mark.parametrize(
    "wrong", [[], "x", {"lunar": []}, {"event": "x"}, {"event": [[1]]}, {"event": [["a", 1]]}, {"event": [7]}]
)
def test_a_snapshot_of_something_else_is_refused(wrong: object) -> None:
    with pytest.raises(StateIncompatible, match="where timers are expected"):
        TimerQueue.restored(wrong)  # type: ignore[arg-type]
