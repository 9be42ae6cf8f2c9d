"""One pending checkpoint by itself. The number is Flink's scenario."""

import pytest

from core.checkpoint_values import STEPS, keyed, layer, output, read_to, wrote
from penstock.checkpoint.entries import Pin
from penstock.checkpoint.events import (
    AbortCheckpoint,
    AbortReason,
    AckResult,
    AnswerRequest,
    CheckpointRequested,
    RequestOutcome,
)
from penstock.checkpoint.pending import MAX_REMEMBERED, AckTracker, PendingCheckpoint
from penstock.checkpoint.policy import TriggerRequest
from penstock.elements import CheckpointKind
from penstock.errors import InternalError
from penstock.handles import TaskSnapshot

ATTEMPTS = {"in": "in-1", "totals": "totals-1", "out": "out-1"}
SAVE = CheckpointRequested(at=1, wall=2, request="r", name="save", owner="me")


def pending(request=None):
    kind = CheckpointKind.SAVEPOINT if request else CheckpointKind.PERIODIC
    return PendingCheckpoint(checkpoint=3, kind=kind, request=request, triggered=7, attempts=ATTEMPTS)


def manifest(of, **rest):
    return of.manifest(**{"parent": 2, "completed": 9, "steps": STEPS, "open": (), "pins": (), "settings": {}} | rest)


def test_57_a_task_without_state_acknowledges_as_well_as_one_with_state():
    found = pending()
    snapshots = (read_to(1), wrote(output(3)), keyed(layer("a")))
    for snapshot in snapshots:
        found.acknowledge(ATTEMPTS[snapshot.task], snapshot)
    assert found.missing == ()
    assert manifest(found).tasks == (read_to(1), wrote(), keyed(layer("a"))), "by name, without what is published"
    empty = pending()
    for task, attempt in ATTEMPTS.items():
        empty.acknowledge(attempt, TaskSnapshot(task=task))
    assert empty.missing == ()
    assert [snapshot.state for snapshot in manifest(empty).tasks] == [None] * 3


def test_57_the_first_acknowledgement_of_a_task_counts_and_the_others_are_waited_for():
    found = pending()
    found.acknowledge("in-1", read_to(1))
    found.acknowledge("in-1", read_to(2))
    assert (found.has_acknowledged("in-1"), found.has_acknowledged("out-1")) == (True, False)
    assert found.missing == ("out", "totals")
    assert manifest(found).tasks == (read_to(1),)


def test_57_an_abort_tells_the_tasks_and_whoever_asked_and_nobody_else():
    told = AbortCheckpoint(checkpoint=3, reason=AbortReason.EXPIRED, message="late", last_completed=2)
    assert pending().abort(AbortReason.EXPIRED, "late", 2) == [told]
    failed = AnswerRequest(request="r", outcome=RequestOutcome.FAILED, checkpoint=3, message="late")
    assert pending(SAVE).abort(AbortReason.EXPIRED, "late", 2) == [told, failed]


def test_57_only_a_request_with_a_name_is_pinned_beside_names_of_others():
    stop = Pin(name="end", checkpoint=3, at=9)
    assert manifest(pending(CheckpointRequested(at=1, wall=2, request="r"))).pins == ()
    named = pending(SAVE).manifest(parent=2, completed=9, steps=STEPS, open=(), pins=(stop,), settings={})
    assert named.pins == (Pin(name="save", checkpoint=3, at=9, owner="me", request="r"), stop)
    assert (named.fulfils, named.kind, named.triggered) == (("r",), CheckpointKind.SAVEPOINT, 7)


def test_57_acknowledgements_are_told_apart_by_attempt_while_pending_and_after():
    calls = AckTracker(ATTEMPTS)
    calls.begin(0, TriggerRequest(kind=CheckpointKind.PERIODIC), 7)
    assert calls.classify(0, "in-1", "in") is AckResult.SUCCESS
    calls.acknowledge(0, "in-1", read_to(1))
    assert calls.classify(0, "in-1", "in") is AckResult.DUPLICATE
    assert calls.classify(0, "in-0", "in") is AckResult.UNKNOWN
    with pytest.raises(InternalError, match="Attempt out-1 is one of 'out', not of 'in'"):
        calls.classify(0, "out-1", "in")
    calls.end()
    assert calls.classify(0, "in-1", "in") is AckResult.DUPLICATE
    assert calls.classify(0, "out-1", "out") is AckResult.DISCARDED
    for checkpoint in range(1, MAX_REMEMBERED + 1):
        calls.begin(checkpoint, TriggerRequest(kind=CheckpointKind.PERIODIC), 7)
        calls.end()
    assert calls.classify(0, "in-1", "in") is AckResult.DISCARDED, "too long ago to be told apart"
