"""Settings, queue, failure counting and pace by themselves: what the coordinator's tests do not reach."""

import pytest

from penstock.checkpoint.events import AbortReason, CheckpointRequested
from penstock.checkpoint.policy import CheckpointConfig, FailureCounter, PeriodicTrigger, RequestQueue
from penstock.elements import CheckpointKind
from penstock.errors import SettingsError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval", 9_999),
        ("timeout", 9_999),
        ("min_pause", -1),
        ("tolerable_failures", -1),
        ("max_queued", 0),
        ("retry_pause", 0),
        ("commit_backoff", 0),
        ("commit_backoff_limit", 999_999),
    ],
)
def test_impossible_settings_are_refused_with_name_and_value(name, value):
    with pytest.raises(SettingsError, match=rf"{name} is {value}, but must be at least \d+"):
        CheckpointConfig(**{name: value})


def test_the_defaults_are_possible_and_an_interval_is_not_needed():
    assert CheckpointConfig().tolerable_failures == 0
    assert CheckpointConfig(interval=None).interval is None


def test_52_savepoints_leave_the_queue_first_and_each_in_order():
    queue = RequestQueue(limit=4)
    for name, request in [(None, "a"), ("x", "b"), (None, "c"), ("y", "d")]:
        assert queue.add(CheckpointRequested(at=0, wall=0, request=request, name=name))

    assert not queue.add(CheckpointRequested(at=0, wall=0, request="e", name="z"))
    assert [queue.pop().request for _ in range(4)] == ["b", "d", "a", "c"]
    assert queue.pop() is None


PERIODIC, SAVEPOINT = CheckpointKind.PERIODIC, CheckpointKind.SAVEPOINT


def test_55_one_checkpoint_counts_once_however_often_it_fails():
    failures = FailureCounter(1)

    assert [failures.is_too_many(4, PERIODIC, AbortReason.DECLINED) for _ in range(3)] == [False] * 3
    assert failures.is_too_many(5, PERIODIC, AbortReason.EXPIRED)


def test_56_failures_older_than_the_last_success_are_past():
    failures = FailureCounter(0)
    failures.succeeded(5)

    assert not failures.is_too_many(4, PERIODIC, AbortReason.EXPIRED)
    assert failures.is_too_many(6, PERIODIC, AbortReason.EXPIRED)


def test_54_counting_begins_anew_after_the_limit_was_told():
    failures = FailureCounter(1)

    told = [failures.is_too_many(number, PERIODIC, AbortReason.EXPIRED) for number in range(4)]

    assert told == [False, True, False, True]


@pytest.mark.parametrize("reason", [AbortReason.EXPIRED, AbortReason.MANIFEST_FAILED])
def test_54_a_savepoint_that_came_at_a_bad_moment_does_not_count(reason):
    assert not FailureCounter(0).is_too_many(1, SAVEPOINT, reason)


@pytest.mark.parametrize(("at", "due"), [(3, 13), (12, 13), (13, 23), (14, 23), (52, 53)])
def test_the_next_tick_is_strictly_later_and_in_step_with_the_start(at, due):
    assert PeriodicTrigger(10, 0, 3).rearm(at) == due


def test_without_an_interval_no_tick_is_waited_for():
    pace = PeriodicTrigger(None, 0, 0)

    assert pace.rearm(5) is None
    assert not pace.fired(5)
