"""Barrier alignment: whole effect lists. Numbers in names are Flink's scenarios."""

import random

import pytest

from penstock.elements import Barrier, CancelBarrier
from penstock.errors import InternalError
from penstock.handles import CheckpointId
from penstock.runtime.barriers import (
    AbortAlignment,
    AlignedBarrierHandler,
    AlignmentEffect,
    BarrierArrived,
    CancelArrived,
    InputEnded,
    TakeSnapshot,
)


def barrier(source: int, checkpoint: int) -> BarrierArrived:
    return BarrierArrived(source=source, barrier=Barrier(checkpoint=CheckpointId(checkpoint)))


def cancel(source: int, checkpoint: int) -> CancelArrived:
    return CancelArrived(source=source, cancel=CancelBarrier(checkpoint=CheckpointId(checkpoint)))


def snapshot(checkpoint: int) -> TakeSnapshot:
    return TakeSnapshot(barrier=Barrier(checkpoint=CheckpointId(checkpoint)))


def abandon(checkpoint: int) -> AbortAlignment:
    return AbortAlignment(checkpoint=CheckpointId(checkpoint))


@pytest.mark.mission("L15")
def test_one_input_snapshots_at_its_barrier_and_ignores_an_older_one() -> None:
    alignment = AlignedBarrierHandler(1)
    assert alignment.handle(barrier(0, 5)) == [snapshot(5)]
    assert alignment.handle(barrier(0, 5)) == []
    assert alignment.handle(barrier(0, 4)) == []
    assert alignment.blocked == frozenset()


@pytest.mark.mission("L16", "L19")
def test_71_an_early_input_waits_until_the_barrier_came_everywhere() -> None:
    alignment = AlignedBarrierHandler(3)
    assert alignment.handle(barrier(1, 1)) == []
    assert (alignment.blocked, alignment.aligning) == (frozenset({1}), 1)
    assert alignment.handle(barrier(0, 1)) == []
    assert alignment.blocked == frozenset({0, 1})
    assert alignment.handle(barrier(2, 1)) == [snapshot(1)]
    assert (alignment.blocked, alignment.aligning) == (frozenset(), None)


@pytest.mark.mission("L17")
def test_a_second_barrier_on_one_input_is_a_bug_and_changes_nothing() -> None:
    alignment = AlignedBarrierHandler(2)
    alignment.handle(barrier(0, 1))
    with pytest.raises(InternalError, match="Input 0 brought the barrier of checkpoint 1 twice"):
        alignment.handle(barrier(0, 1))
    assert alignment.handle(barrier(1, 1)) == [snapshot(1)]


@pytest.mark.mission("L18", "L22")
def test_72_a_newer_barrier_abandons_the_older_alignment_and_leaves_nothing_blocked() -> None:
    alignment = AlignedBarrierHandler(2)
    alignment.handle(barrier(0, 2))
    assert alignment.handle(barrier(1, 3)) == [abandon(2)]
    assert alignment.blocked == frozenset({1})
    assert alignment.handle(barrier(0, 3)) == [snapshot(3)]
    assert alignment.handle(barrier(1, 2)) == []


@pytest.mark.mission("L18")
def test_an_older_barrier_during_alignment_is_ignored() -> None:
    alignment = AlignedBarrierHandler(2)
    alignment.handle(barrier(0, 3))
    assert alignment.handle(barrier(1, 2)) == []
    assert alignment.handle(barrier(1, 3)) == [snapshot(3)]


def test_73_though_no_cancellation_came_for_what_was_given_up_no_input_stays_blocked() -> None:
    alignment = AlignedBarrierHandler(3)
    assert alignment.handle(barrier(0, 1)) == []
    assert alignment.handle(barrier(1, 2)) == [abandon(1)]
    assert alignment.blocked == frozenset({1}), "input 0 waits for a checkpoint that is over no longer"
    assert alignment.handle(barrier(2, 3)) == [abandon(2)]
    assert alignment.blocked == frozenset({2})
    assert alignment.handle(barrier(0, 3)) == []
    assert alignment.handle(barrier(1, 3)) == [snapshot(3)]
    assert alignment.blocked == frozenset()
    for source in range(3):
        assert alignment.handle(cancel(source, 1)) == [], "and those that come late do no harm"
        assert alignment.handle(cancel(source, 2)) == []


@pytest.mark.mission("L20")
def test_77_a_cancel_releases_the_inputs_and_a_second_one_is_silent() -> None:
    alignment = AlignedBarrierHandler(2)
    alignment.handle(barrier(0, 1))
    assert alignment.handle(cancel(1, 1)) == [abandon(1)]
    assert alignment.blocked == frozenset()
    assert alignment.handle(cancel(0, 1)) == []


@pytest.mark.mission("L20")
def test_a_cancel_before_any_barrier_is_remembered() -> None:
    alignment = AlignedBarrierHandler(2)
    assert alignment.handle(cancel(0, 4)) == [abandon(4)]
    assert alignment.handle(barrier(1, 4)) == []
    assert alignment.blocked == frozenset()


def test_75_a_stale_cancel_does_not_kill_the_newer_alignment() -> None:
    alignment = AlignedBarrierHandler(2)
    alignment.handle(barrier(0, 5))
    assert alignment.handle(cancel(1, 4)) == []
    assert alignment.handle(barrier(1, 5)) == [snapshot(5)]


def test_a_newer_cancel_abandons_the_current_alignment_too() -> None:
    alignment = AlignedBarrierHandler(2)
    alignment.handle(barrier(0, 5))
    assert alignment.handle(cancel(1, 6)) == [abandon(5), abandon(6)]
    assert alignment.blocked == frozenset()


@pytest.mark.mission("L19")
def test_74_76_78_an_ended_input_counts_as_aligned_once() -> None:
    alignment = AlignedBarrierHandler(3)
    assert alignment.handle(InputEnded(source=2)) == []
    alignment.handle(barrier(0, 1))
    assert alignment.handle(InputEnded(source=0)) == []
    assert alignment.handle(barrier(1, 1)) == [snapshot(1)]


@pytest.mark.mission("L20")
def test_a_barrier_after_the_end_of_an_input_is_ignored() -> None:
    alignment = AlignedBarrierHandler(2)
    alignment.handle(InputEnded(source=0))
    assert alignment.handle(barrier(0, 1)) == []
    assert alignment.blocked == frozenset()


@pytest.mark.parametrize("seed", range(50))
def test_79_random_barriers_never_deadlock_and_snapshot_each_complete_checkpoint_once(seed: int) -> None:
    chance = random.Random(seed)
    inputs = chance.randint(1, 4)
    alignment = AlignedBarrierHandler(inputs)
    queues = [[n for n in range(1, 30) if chance.random() < 0.9] for _ in range(inputs)]
    taken: list[int] = []
    while any(queue for i, queue in enumerate(queues) if i not in alignment.blocked):
        source = chance.choice([i for i, queue in enumerate(queues) if queue and i not in alignment.blocked])
        effects: list[AlignmentEffect] = alignment.handle(barrier(source, queues[source].pop(0)))
        taken += [effect.barrier.checkpoint for effect in effects if isinstance(effect, TakeSnapshot)]
    for source in range(inputs):
        alignment.handle(InputEnded(source=source))
    assert alignment.blocked == frozenset()
    assert taken == sorted(set(taken))
