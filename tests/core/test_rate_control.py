"""Rows of the next batch from the pace of those before: Spark Streaming's estimator, by its own tests' numbers."""

import random

import pytest

from penstock.clock import MonotonicTime
from penstock.runtime.rate_control import SECOND, BatchSample, PIDRateEstimator, RateControl

MILLI = 1_000


def sample(at: int, rows: int, processing: int, scheduling: int = 0) -> BatchSample:
    """Times in milliseconds."""
    return BatchSample(
        at=MonotonicTime(at * MILLI), rows=rows, processing=processing * MILLI, scheduling=scheduling * MILLI
    )


def estimates(estimator: PIDRateEstimator, *samples: BatchSample) -> list[float | None]:
    return [estimator.estimate(each) for each in samples]


def test_the_first_batch_only_sets_the_starting_point() -> None:
    assert PIDRateEstimator(20 * MILLI, least=10).estimate(sample(0, 10, 10)) is None


def test_batches_that_say_nothing_change_nothing() -> None:
    estimator = PIDRateEstimator(20 * MILLI, least=10)
    estimates(estimator, sample(10, 10, 10))
    says_nothing = [sample(5, 10, 10), sample(10, 10, 10), sample(20, 0, 10), sample(20, 10, 0)]
    assert estimates(estimator, *says_nothing) == [None] * 4


def test_proportional_alone_the_rate_is_what_was_achieved() -> None:
    estimator = PIDRateEstimator(20, integral=0, least=10)
    samples = [sample(n * 20 + 1, n * 20, 20) for n in range(1, 50)]
    assert estimates(estimator, *samples)[1:] == pytest.approx([each.rows / 0.02 for each in samples[1:]])


def test_the_rate_never_falls_below_its_least() -> None:
    estimator = PIDRateEstimator(20 * MILLI, integral=0)
    samples = [sample(n * 20 + 1, 1, 20 * n) for n in range(1, 50)]
    assert estimates(estimator, *samples)[1:] == [100.0] * 48


def test_what_waits_lowers_the_rate_until_the_least() -> None:
    estimator = PIDRateEstimator(20 * MILLI, least=10)
    samples = [sample(n * 20 + 1, 500, 20, scheduling=n * 20) for n in range(1, 100)]
    found = [rate for rate in estimates(estimator, *samples)[1:] if rate is not None]
    assert found == sorted(found, reverse=True)
    assert found[-1] == 10
    assert found[0] == pytest.approx(25_000 - 0.2 * 40 * 25_000 / 20)


def test_the_derivative_damps_a_change_of_the_error() -> None:
    plain = PIDRateEstimator(SECOND, integral=0, least=1)
    damped = PIDRateEstimator(SECOND, integral=0, derivative=0.1, least=1)
    samples = (sample(1_000, 1_000, 1_000), sample(2_000, 500, 1_000))
    assert estimates(plain, *samples) == [None, 500]
    assert estimates(damped, *samples) == [None, pytest.approx(500 - 0.1 * 500)]
    error = 450 - 400  # the rate asked for, less what came of it; it was 500 before
    assert damped.estimate(sample(3_000, 400, 1_000)) == pytest.approx(400 - 0.1 * (error - 500))


@pytest.mark.parametrize("seed", range(10))
def test_any_batches_keep_the_rate_at_or_above_its_least(seed: int) -> None:
    chance = random.Random(seed)
    estimator = PIDRateEstimator(SECOND)
    rates = [
        estimator.estimate(sample(n, chance.randint(0, 9_999), chance.randint(0, 999), chance.randint(0, 9_999)))
        for n in range(200)
    ]
    assert all(rate is None or rate >= 100 for rate in rates)


def seconds(number: float) -> MonotonicTime:
    return MonotonicTime(int(number * SECOND))


@pytest.mark.mission("S33")
def test_the_next_batch_is_capped_by_what_the_completed_ones_achieved() -> None:
    control = RateControl()
    assert control.cap(None) is None
    assert control.cap(5_000) == 5_000
    control.sent(1, seconds(0))
    control.completed(1, 10_000, seconds(2))
    assert control.cap(None) is None, "the first batch only sets the starting point"
    control.sent(2, seconds(2))
    control.completed(2, 10_000, seconds(4))
    assert control.cap(None) == 5_000, "10,000 rows in 2 seconds are 5,000 in one"
    assert control.cap(3_000) == 3_000
    assert control.cap(9_000) == 5_000
    control.sent(3, seconds(4))
    control.completed(3, 5_000, seconds(4.5))
    assert control.cap(None) == 10_000, "faster again"
    control.sent(4, seconds(5))
    control.completed(4, 0, seconds(6))
    assert control.cap(None) == 10_000, "a batch without rows says nothing"


def test_batches_that_queue_up_lower_the_cap_below_what_is_achieved() -> None:
    control = RateControl()
    for number in (1, 2, 3):
        control.sent(number, seconds(0))
    for number in (1, 2, 3):
        control.completed(number, 1_000, seconds(number))
    cap = control.cap(None)
    assert cap is not None
    assert cap < 1_000


@pytest.mark.mission("S11")
def test_scheduling_and_processing_of_a_batch_add_up_to_its_total_delay() -> None:
    control = RateControl()
    control.sent(1, seconds(0))
    control.sent(2, seconds(1))
    first = control.completed(1, 10, seconds(3))
    second = control.completed(2, 10, seconds(5))
    assert first == BatchSample(at=seconds(3), rows=10, processing=3 * SECOND, scheduling=0)
    assert second == BatchSample(at=seconds(5), rows=10, processing=2 * SECOND, scheduling=2 * SECOND)
    assert second.processing + second.scheduling == seconds(5) - seconds(1)


def test_a_batch_that_never_told_is_forgotten_with_the_next_one() -> None:
    control = RateControl()
    control.sent(1, seconds(0))
    control.sent(2, seconds(1))
    assert control.completed(2, 10, seconds(2)) is not None
    assert control.completed(1, 10, seconds(3)) is None
    assert control.completed(2, 10, seconds(3)) is None


def test_a_cap_is_never_below_one_row() -> None:
    control = RateControl(10_000, estimator=PIDRateEstimator(10_000, least=1))
    for number in (1, 2):
        control.sent(number, seconds(number))
        control.completed(number, 1, seconds(number + 1))
    assert control.cap(None) == 1
