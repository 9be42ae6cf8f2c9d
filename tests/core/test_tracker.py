"""Counting barriers at-least-once: whole effect lists. Numbers in names are Flink's scenarios."""

import random

import pytest

from penstock.elements import Barrier, CancelBarrier
from penstock.errors import InternalError
from penstock.handles import CheckpointId
from penstock.runtime.barriers import (
    MAX_TRACKED,
    AbortAlignment,
    AlignmentEffect,
    AlignmentEvent,
    BarrierArrived,
    BarrierTracker,
    CancelArrived,
    InputEnded,
    TakeSnapshot,
)


def barrier(checkpoint: int, source: int) -> BarrierArrived:
    return BarrierArrived(source=source, barrier=Barrier(checkpoint=CheckpointId(checkpoint)))


def cancel(checkpoint: int, source: int) -> CancelArrived:
    return CancelArrived(source=source, cancel=CancelBarrier(checkpoint=CheckpointId(checkpoint)))


def end(source: int) -> InputEnded:
    return InputEnded(source=source)


def outcome(effect: AlignmentEffect) -> int:
    """The checkpoint: as it is for a snapshot, negative if abandoned."""
    return effect.barrier.checkpoint if isinstance(effect, TakeSnapshot) else -effect.checkpoint


def follow(tracker: BarrierTracker, *events: AlignmentEvent) -> list[list[int]]:
    """What each event brings about; nothing is ever blocked."""
    found = []
    for event in events:
        found.append([outcome(effect) for effect in tracker.handle(event)])
        assert tracker.blocked == frozenset()
    return found


def flat(found: list[list[int]]) -> list[int]:
    return [number for effects in found for number in effects]


@pytest.mark.mission("L15")
def test_one_input_snapshots_at_each_barrier_and_ignores_an_older_one() -> None:
    tracker = BarrierTracker(1)
    events = (barrier(1, 0), barrier(3, 0), barrier(2, 0), barrier(3, 0), cancel(4, 0), barrier(4, 0), barrier(5, 0))
    assert follow(tracker, *events) == [[1], [3], [], [], [-4], [], [5]]
    assert tracker.pending == ()


def test_80_checkpoints_complete_one_after_the_other_though_their_barriers_overlap() -> None:
    arrivals = (
        "2:1 2:0 2:2 3:1 3:2 4:2 4:1 3:0 4:0 5:1 5:0 5:2 6:1 6:0 7:1 7:2 8:2 8:1 9:1 7:0 9:2 10:2 8:0 9:0 10:0 10:1"
    )
    events = [barrier(*map(int, each.split(":"))) for each in arrivals.split()]
    assert flat(follow(BarrierTracker(3), *events)) == [2, 3, 4, 5, 7, 8, 9, 10]


def test_81_inputs_that_skip_a_checkpoint_complete_the_one_they_jumped_to() -> None:
    tracker = BarrierTracker(3)
    arrivals = "1:1 1:2 1:0 2:0 2:1 2:2 3:2 4:0 4:1 4:2"
    events = [barrier(*map(int, each.split(":"))) for each in arrivals.split()]
    assert flat(follow(tracker, *events)) == [1, 2, 4]
    assert tracker.pending == ()
    assert follow(tracker, barrier(3, 0)) == [[]], "3 was dropped with 4"


def test_82_the_two_last_barriers_finish_two_checkpoints_one_by_one() -> None:
    tracker = BarrierTracker(2)
    assert follow(tracker, barrier(1, 1), barrier(2, 1)) == [[], []]
    assert (tracker.aligning, tracker.pending) == (1, (1, 2))
    assert follow(tracker, barrier(1, 0), barrier(2, 0)) == [[1], [2]]
    assert tracker.aligning is None


@pytest.mark.mission("L20")
def test_83_a_cancel_that_a_newer_barrier_overtook_does_not_hurt_the_newer_checkpoint() -> None:
    tracker = BarrierTracker(2)
    events = (barrier(1, 1), barrier(2, 1), cancel(1, 0), barrier(2, 0))
    assert follow(tracker, *events) == [[], [], [-1], [2]]


def test_84_an_input_that_ends_between_barriers_leads_to_one_snapshot_not_two() -> None:
    tracker = BarrierTracker(2)
    assert follow(tracker, barrier(1, 0), end(0), barrier(1, 1)) == [[], [], [1]]
    assert tracker.pending == ()
    assert follow(tracker, barrier(1, 1)) == [[]]


def test_84_an_input_that_ends_before_a_cancel_leads_to_one_abandonment() -> None:
    tracker = BarrierTracker(2)
    assert follow(tracker, barrier(1, 0), end(0), cancel(1, 1), cancel(1, 1)) == [[], [], [-1], []]
    assert tracker.pending == ()


def test_85_the_end_of_an_input_removes_the_aborted_checkpoint_and_keeps_the_later_one() -> None:
    tracker = BarrierTracker(3)
    assert follow(tracker, cancel(4, 0), barrier(4, 1), barrier(5, 1), end(2)) == [[-4], [], [], []]
    assert tracker.pending == (5,)
    assert follow(tracker, barrier(5, 0)) == [[5]]


def test_an_aborted_checkpoint_is_not_waited_for() -> None:
    tracker = BarrierTracker(2)
    follow(tracker, cancel(4, 0))
    assert (tracker.aligning, tracker.pending) == (None, (4,))


def test_a_barrier_after_the_end_of_its_input_begins_nothing() -> None:
    tracker = BarrierTracker(2)
    assert follow(tracker, end(1), barrier(9, 1), barrier(5, 0)) == [[], [], [5]]


def test_the_end_of_an_input_snapshots_only_the_newest_of_those_that_waited_for_it() -> None:
    tracker = BarrierTracker(3)
    events = [barrier(*each) for each in ((1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1), (5, 1))]
    assert flat(follow(tracker, *events)) == []
    assert follow(tracker, end(2)) == [[4]]
    assert tracker.pending == (5,)


@pytest.mark.mission("L20")
def test_inputs_that_have_ended_count_as_through_and_their_barriers_are_ignored() -> None:
    tracker = BarrierTracker(3)
    events = (end(2), barrier(5, 2), barrier(5, 0), barrier(6, 0), barrier(6, 1), end(1), barrier(7, 0))
    assert follow(tracker, *events) == [[], [], [], [], [6], [], [7]]


def test_interleaved_cancels_abandon_each_checkpoint_once() -> None:
    events = (barrier(1, 0), cancel(2, 0), cancel(1, 1), cancel(2, 1), cancel(1, 2), cancel(2, 2))
    assert follow(BarrierTracker(3), *events) == [[], [-1, -2], [], [], [], []]
    events = (end(2), barrier(5, 0), barrier(6, 0), cancel(6, 1), end(1), cancel(7, 0))
    assert follow(BarrierTracker(3), *events) == [[], [], [], [-5, -6], [], [-7]]


def test_88_a_checkpoint_that_was_cancelled_first_is_never_begun_by_its_barriers() -> None:
    tracker = BarrierTracker(3)
    events = (cancel(1, 1), barrier(1, 0), barrier(1, 2), barrier(2, 0), barrier(2, 1), barrier(2, 2))
    assert follow(tracker, *events) == [[-1], [], [], [], [], [2]]


def test_an_older_aborted_checkpoint_is_forgotten_with_a_newer_cancel_without_another_word() -> None:
    tracker = BarrierTracker(2)
    assert follow(tracker, cancel(1, 0), cancel(2, 0)) == [[-1], [-2]]
    assert tracker.pending == (2,)


def test_at_most_fifty_checkpoints_are_counted_and_the_oldest_is_dropped_for_good() -> None:
    tracker = BarrierTracker(2)
    assert flat(follow(tracker, *(barrier(number, 0) for number in range(MAX_TRACKED + 2)))) == []
    assert tracker.pending == tuple(range(2, MAX_TRACKED + 2))
    assert follow(tracker, barrier(1, 1), cancel(0, 1), barrier(2, 1)) == [[], [], [2]]


@pytest.mark.mission("L17")
def test_a_second_barrier_on_one_input_is_a_bug_and_changes_nothing() -> None:
    tracker = BarrierTracker(2)
    follow(tracker, barrier(1, 0))
    with pytest.raises(InternalError, match="Input 0 brought the barrier of checkpoint 1 twice"):
        tracker.handle(barrier(1, 0))
    assert follow(tracker, barrier(1, 1)) == [[1]]


@pytest.mark.parametrize("seed", range(50))
def test_random_barriers_cancels_and_ends_tell_each_checkpoint_at_most_once_and_leave_nothing(seed: int) -> None:
    chance = random.Random(seed)
    inputs = chance.randint(1, 4)
    tracker = BarrierTracker(inputs)
    queues: list[list[AlignmentEvent]] = [
        [(barrier if chance.random() < 0.8 else cancel)(n, i) for n in range(1, 30) if chance.random() < 0.9]
        for i in range(inputs)
    ]
    told: list[int] = []
    while any(queues):
        source = chance.choice([i for i, queue in enumerate(queues) if queue])
        told += flat(follow(tracker, queues[source].pop(0)))
    told += flat(follow(tracker, *(end(source) for source in range(inputs))))
    assert len({abs(number) for number in told}) == len(told)
    snapshots = [number for number in told if number > 0]
    assert snapshots == sorted(snapshots)
    assert tracker.pending == ()


def test_effects_are_those_of_the_alignment() -> None:
    tracker = BarrierTracker(1)
    assert tracker.handle(barrier(1, 0)) == [TakeSnapshot(barrier=Barrier(checkpoint=CheckpointId(1)))]
    assert tracker.handle(cancel(2, 0)) == [AbortAlignment(checkpoint=CheckpointId(2))]
