"""Periodic checkpoints stand on the multiples of their interval from the job's start, whatever happens in between."""

import random

import pytest

from penstock.checkpoint.policy import PeriodicTrigger
from penstock.clock import MonotonicTime

STARTED = 1_234_567


@pytest.mark.mission("S25")
@pytest.mark.parametrize("seed", range(10))
def test_ticks_are_multiples_of_the_interval_however_late_they_are_served(seed: int) -> None:
    chance = random.Random(seed)
    interval = chance.randint(1, 1_000)
    pace = PeriodicTrigger(interval, min_pause=0, started=MonotonicTime(STARTED))
    now, ticks = STARTED, []
    for _ in range(200):
        due = pace.rearm(MonotonicTime(now))
        assert due is not None
        assert due > now
        ticks.append(due)
        now = due + chance.choice((0, 1, interval - 1, interval, 5 * interval))
        assert not pace.fired(MonotonicTime(due - 1)), "nothing else is taken for the tick"
        assert pace.fired(due)
        pace.completed(MonotonicTime(now))
        assert pace.wait_for_pause(MonotonicTime(now)) is None
    assert {(tick - STARTED) % interval for tick in ticks} == {0}
    assert ticks == sorted(set(ticks)), "none twice, and those that were missed are not made up"
