"""The life of a job, and its restart strategies."""

import pytest

from penstock.clock import MonotonicTime
from penstock.errors import InternalError
from penstock.runtime.lifecycle import (
    SECOND,
    TERMINAL_STATES,
    TRANSITIONS,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    JobState,
    Lifecycle,
    NoRestart,
    RestartStrategy,
)


def pauses(strategy: RestartStrategy, failures: list[int], *, chance: float = 0.5) -> list[int | None]:
    found = []
    for at in failures:
        strategy, pause = strategy.after_failure(MonotonicTime(at * SECOND), chance=chance)
        found.append(pause)
    return found


@pytest.mark.mission("S2")
def test_a_job_that_is_over_does_not_come_back() -> None:
    for state in TERMINAL_STATES:
        assert TRANSITIONS[state] == frozenset()


@pytest.mark.mission("S1", "S6")
def test_an_illegal_move_raises_with_the_story_and_changes_nothing() -> None:
    life = Lifecycle()
    life.to(JobState.RESTORING)
    life.to(JobState.RUNNING)
    with pytest.raises(InternalError, match=r"from running to created .*created → restoring → running"):
        life.to(JobState.CREATED)
    assert life.state is JobState.RUNNING
    life.to(JobState.STOPPING)
    life.to(JobState.STOPPED)
    assert life.is_over


def test_136_exponential_delay_grows_to_its_maximum_and_starts_again_after_health() -> None:
    strategy = ExponentialDelay(initial=SECOND, maximum=4 * SECOND, multiplier=2.0, reset_after=100 * SECOND)
    assert pauses(strategy, [0, 1, 2, 3, 200]) == [SECOND, 2 * SECOND, 4 * SECOND, 4 * SECOND, SECOND]


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.999])
def test_136_jitter_stays_within_its_bounds_and_below_the_maximum(chance: float) -> None:
    strategy = ExponentialDelay(initial=SECOND, maximum=2 * SECOND, multiplier=2.0, jitter=0.1)
    first, second = pauses(strategy, [0, 1], chance=chance)
    assert first is not None
    assert second is not None
    assert 0.9 * SECOND <= first <= 1.1 * SECOND
    assert 1.8 * SECOND <= second <= 2 * SECOND


def test_136_fixed_delay_gives_up_after_its_attempts() -> None:
    assert pauses(FixedDelay(attempts=2, delay=7), [0, 1, 2]) == [7, 7, None]


def test_136_failure_rate_forgets_failures_older_than_its_interval() -> None:
    strategy = FailureRate(failures=2, interval=10 * SECOND, delay=3)
    assert pauses(strategy, [0, 1, 20, 21, 22]) == [3, 3, 3, 3, None]


def test_134_no_restart_gives_up_at_once() -> None:
    assert pauses(NoRestart(), [0]) == [None]


def test_a_failure_that_does_not_count_is_followed_by_a_restart_though_none_is_left() -> None:
    spent, _ = FixedDelay(attempts=1, delay=7).after_failure(MonotonicTime(0), chance=0)
    full, _ = FailureRate(failures=0, delay=3).after_failure(MonotonicTime(0), chance=0)
    long, _ = ExponentialDelay(initial=5).after_failure(MonotonicTime(0), chance=0)
    assert [spent.uncounted_delay, full.uncounted_delay, long.uncounted_delay] == [7, 3, 5]
    assert NoRestart().uncounted_delay is None
