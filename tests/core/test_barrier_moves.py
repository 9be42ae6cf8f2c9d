"""The tables of what may become of a checkpoint say what the machines do, no more and no less."""

import random
from collections.abc import Callable

import pytest

from barrier_moves import ALIGNMENT_MOVES, TRACKER_MOVES, BarrierState, Move, Outcome, Trigger
from penstock.elements import Barrier, CancelBarrier
from penstock.handles import CheckpointId
from penstock.runtime.barriers import (
    AbortAlignment,
    AlignedBarrierHandler,
    AlignmentEffect,
    AlignmentEvent,
    BarrierArrived,
    BarrierHandler,
    BarrierTracker,
    CancelArrived,
    InputEnded,
    TakeSnapshot,
)

LAST = 8


def of_alignment(machine: BarrierHandler, checkpoint: int) -> BarrierState:
    assert isinstance(machine, AlignedBarrierHandler)
    if machine.aligning == checkpoint:
        return BarrierState.WAITING
    newest = max(machine._latest, machine.aligning if machine.aligning is not None else -1)
    return BarrierState.OVER if checkpoint <= newest else BarrierState.UNSEEN


def of_tracker(machine: BarrierHandler, checkpoint: int) -> BarrierState:
    assert isinstance(machine, BarrierTracker)
    count = machine._counts.get(CheckpointId(checkpoint))
    if count is not None:
        return BarrierState.ABORTED if count.is_aborted else BarrierState.WAITING
    return BarrierState.OVER if checkpoint <= machine._latest else BarrierState.UNSEEN


def seen_from(checkpoint: int, event: AlignmentEvent) -> Trigger | None:
    match event:
        case InputEnded():
            return Trigger.INPUT_ENDED
        case BarrierArrived():
            own, newer, number = Trigger.BARRIER, Trigger.NEWER_BARRIER, event.barrier.checkpoint
        case CancelArrived():
            own, newer, number = Trigger.CANCEL, Trigger.NEWER_CANCEL, event.cancel.checkpoint
    return own if number == checkpoint else newer if number > checkpoint else None


def outcome_for(checkpoint: int, effects: list[AlignmentEffect]) -> Outcome:
    for effect in effects:
        match effect:
            case TakeSnapshot() if effect.barrier.checkpoint == checkpoint:
                return Outcome.SNAPSHOT
            case AbortAlignment() if effect.checkpoint == checkpoint:
                return Outcome.ABANDON
    return Outcome.NOTHING


def walk(
    machine: BarrierHandler, state_of: Callable[[BarrierHandler, int], BarrierState], chance: random.Random
) -> set[Move]:
    """What a machine does on one random way; events of an input come in the order of their checkpoints."""
    inputs = chance.randint(1, 3)
    machine = type(machine)(inputs)  # type: ignore[call-arg]
    queues = [[n for n in range(LAST) if chance.random() < 0.8] for _ in range(inputs)]
    found: set[Move] = set()
    while live := [i for i, queue in enumerate(queues) if queue is not None and i not in machine.blocked]:
        source = chance.choice(live)
        event = next_event(source, queues, chance)
        before = [state_of(machine, checkpoint) for checkpoint in range(LAST)]
        effects = machine.handle(event)
        for checkpoint, was in enumerate(before):
            move_of = (was, seen_from(checkpoint, event), state_of(machine, checkpoint))
            done = outcome_for(checkpoint, effects)
            if move_of[0] is not move_of[2] or done is not Outcome.NOTHING:
                assert move_of[1] is not None, "an older event moved a checkpoint"
                found.add(Move(was, move_of[1], move_of[2], done))
    return found


def next_event(source: int, queues: list[list[int] | None], chance: random.Random) -> AlignmentEvent:
    queue = queues[source]
    if not queue or chance.random() < 0.05:
        queues[source] = None
        return InputEnded(source=source)
    checkpoint = CheckpointId(queue.pop(0))
    if chance.random() < 0.7:
        return BarrierArrived(source=source, barrier=Barrier(checkpoint=checkpoint))
    return CancelArrived(source=source, cancel=CancelBarrier(checkpoint=checkpoint))


@pytest.mark.parametrize(
    ("machine", "state_of", "table"),
    [(AlignedBarrierHandler(1), of_alignment, ALIGNMENT_MOVES), (BarrierTracker(1), of_tracker, TRACKER_MOVES)],
    ids=["alignment", "tracker"],
)
def test_the_table_is_what_the_machine_does(
    machine: BarrierHandler, state_of: Callable[[BarrierHandler, int], BarrierState], table: tuple[Move, ...]
) -> None:
    found: set[Move] = set()
    for seed in range(600):
        found |= walk(machine, state_of, random.Random(seed))
    assert len(set(table)) == len(table)
    assert found - {*table} == set(), "the machine does what the table does not have"
    assert {*table} - found == set(), "the table has what the machine never does"
