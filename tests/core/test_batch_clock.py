"""The ticks of blocks and polls: none falls, a block goes to one poll, and missed ticks are caught up within bounds."""

import random

import pytest

import penstock as ps
from core.receivers_kit import Given
from penstock.clock import WallTime
from penstock.connectors.receivers.batch_clock import BatchClock
from penstock.graph.nodes import Every
from penstock.interfaces.source import BatchTicks
from penstock.runtime.poll_schedule import FixedInterval


def clock(*, catch_up=1, interval=10, **options):
    return BatchClock(BatchTicks(interval=interval, catch_up=catch_up), **options)


def polls(clock, wall, waiting):
    """The batches of one poll after another until none is behind: their ticks; and how many ticks had none."""
    batches, missed = [], 0
    waiting = list(waiting)
    while True:
        missed += clock.poll(wall, waiting[0] if waiting else None)
        batch = []
        while waiting and clock.takes(waiting[0]):
            clock.took(waiting[0])
            batch.append(waiting.pop(0))
        batches += [batch] if batch else []
        if not (clock.is_catching_up and clock.is_behind(waiting[0] if waiting else None)):
            return batches, missed, waiting


# ------------------------------------------------------------------------------------------------------ while it runs


def test_a_block_belongs_to_the_first_tick_after_it():
    assert [clock().label(wall) for wall in (0, 9, 10, 11)] == [10, 10, 20, 20]


def test_a_poll_takes_the_blocks_of_its_tick_and_leaves_those_of_the_next():
    running = clock(served=20)
    running.poll(25, None)

    assert running.poll(31, None) == 0
    assert [running.takes(tick) for tick in (20, 30, 40)] == [True, True, False]


def test_a_late_poll_takes_what_has_come_and_a_tick_that_was_served_is_allocated_nothing():
    running = clock(served=20)
    running.poll(20, None)
    running.poll(58, None)

    assert running.served == 50
    assert running.takes(40)
    running.poll(59, None)
    assert not running.takes(50), "it was written while the poll was under way, and goes to the next tick"
    running.poll(60, None)
    assert running.takes(50)


def test_nothing_is_labelled_with_a_tick_that_was_served():
    running = clock(served=20)
    running.poll(50, None)

    assert running.label(33) == 60


@pytest.mark.parametrize("back", [3, 10, 17, 1_000_000])
def test_a_clock_that_is_set_back_lowers_no_tick_and_delays_no_block_by_more_than_two(back):
    running, schedule, wall = clock(), FixedInterval(10), 2_000_003
    labels, served, waiting = [], [], []
    schedule.wait(WallTime(wall))
    for step in range(200):
        wall += 1
        if step == 100:
            wall -= back
        labels.append(running.label(wall))
        waiting.append((step, labels[-1]))
        if schedule.wait(WallTime(wall)) == 0:
            schedule.polled(WallTime(wall))
            running.poll(wall, None)
            served.append(running.served)
            while waiting and running.takes(waiting[0][1]):
                running.took(waiting[0][1])
                assert step - waiting.pop(0)[0] <= 20
    assert labels == sorted(labels)
    assert served == sorted(served)
    assert len(waiting) <= 20


def test_a_block_of_a_clock_that_was_far_ahead_is_read_at_once():
    running = clock(served=20)
    running.poll(20, None)
    running.poll(30, None)

    assert running.takes(990)
    running.took(990)
    assert running.label(40) == 1_000


def test_any_clock_gives_ticks_that_never_fall_and_takes_each_block_once():
    for seed in range(300):
        choose = random.Random(seed)
        running, wall = clock(served=choose.choice([0, 50])), 100
        labels, waiting, taken, served = [], [], [], []
        for _ in range(60):
            wall = max(0, wall + choose.choice([1, 3, 9, 25, -7, -60]))
            if choose.random() < 0.6:
                labels.append(running.label(wall))
                waiting.append(labels[-1])
            else:
                running.poll(wall, waiting[0] if waiting and running.is_catching_up else None)
                while waiting and running.takes(waiting[0]):
                    running.took(waiting[0])
                    taken.append(waiting.pop(0))
                served.append(running.served)
        assert labels == sorted(labels), seed
        assert served == sorted(served), seed
        assert taken + waiting == labels, seed


# ------------------------------------------------------------------------------------------------- after a time down


@pytest.mark.mission("S21", "S22")
@pytest.mark.parametrize(
    ("catch_up", "batches", "missed"),
    [
        (1, [[30, 30, 40, 70]], 9),
        (100, [[30, 30], [40], [70]], 7),
        (6, [[30, 30, 40, 70]], 9),
        (7, [[30, 30, 40], [70]], 8),
        (10, [[30, 30], [40], [70]], 7),
    ],
)
def test_missed_ticks_are_one_batch_or_one_by_one_up_to_a_number_and_the_others_are_counted(catch_up, batches, missed):
    after = clock(catch_up=catch_up, served=20)

    found, counted, left = polls(after, 125, [30, 30, 40, 70, 130])
    if counted == 0:  # that is known when the first tick after the start is polled
        found_later, counted, left = polls(after, 130, left)
        found += [batch for batch in found_later if batch != [130]]

    assert (found, counted) == (batches, missed)
    assert left in ([], [130])


def test_a_job_that_was_down_without_rows_counts_its_ticks_and_runs_none():
    assert polls(clock(served=20), 125, []) == ([], 10, [])
    assert polls(clock(catch_up=9, served=20), 125, []) == ([], 10, [])


def test_a_first_start_has_missed_nothing():
    assert polls(clock(), 125, []) == ([], 0, [])


def test_a_start_within_the_interval_of_the_last_tick_has_missed_nothing_and_waits_for_the_next():
    assert polls(clock(served=120), 125, [130]) == ([], 0, [130])


def test_rows_for_which_the_batch_had_no_room_wait_for_the_next_tick_unless_ticks_are_read_one_by_one():
    once, each = clock(served=20), clock(catch_up=50, served=20)
    for behind in (once, each):
        behind.poll(125, 30)

    assert not once.is_behind(30)
    assert each.is_behind(30)


def test_a_run_that_receives_nothing_reads_every_tick():
    assert polls(clock(served=20, receives=False), 125, [30, 30, 130])[0] == [[30, 30, 130]]
    assert polls(clock(catch_up=50, served=20, receives=False), 125, [30, 30, 130])[0] == [[30, 30], [130]]


def test_a_source_without_ticks_takes_all_and_labels_all_the_same():
    ready = BatchClock(None, floor=7)

    assert (ready.label(3), ready.label(9), ready.label(4)) == (7, 10, 10)
    ready.poll(0, None)
    assert ready.takes(10)
    assert not ready.is_catching_up


def test_an_interval_that_was_changed_rounds_the_ticks_of_before():
    changed = clock(interval=60, served=50, catch_up=9)

    assert polls(changed, 185, [60, 70, 120, 130]) == ([[60], [70, 120], [130]], 0, [])


# ---------------------------------------------------------------------------------------------------------- the pace


def test_the_poll_at_the_start_and_those_of_missed_ticks_do_not_wait():
    schedule = FixedInterval(10, at_once=True)

    assert schedule.wait(WallTime(125)) == 0
    assert schedule.polled(WallTime(125)) == 0
    schedule.sent(takes_all=False, is_behind=True)
    assert schedule.wait(WallTime(126)) == 0
    assert schedule.polled(WallTime(126)) == 0
    schedule.sent(takes_all=False)
    assert schedule.wait(WallTime(127)) == 3


def test_ticks_that_pass_while_it_catches_up_are_missed_as_any_others():
    schedule = FixedInterval(10, at_once=True)
    schedule.polled(WallTime(125))
    schedule.sent(takes_all=False, is_behind=True)
    schedule.polled(WallTime(148))
    schedule.sent(takes_all=True)

    assert schedule.wait(WallTime(155)) == 0
    assert schedule.polled(WallTime(155)) == 2


def test_every_says_how_missed_ticks_are_read():
    source = ps.receivers.Source(Given(), schema="n LONG")
    pace = ps.every("1 second", missed="each", max_missed=7)
    node = ps.Pipeline("demo").read("in", source, pace=pace)

    assert pace == Every(1_000_000, catch_up=7)
    assert str(pace) == "every 1 second, up to 7 missed ones one by one"
    assert ps.every("1 second", missed="once") == ps.every("1 second")
    assert node is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [({"missed": "all"}, "missed='all'"), ({"max_missed": 0}, "max_missed=0"), ({"max_missed": "7"}, "max_missed='7'")],
)
def test_an_impossible_argument_of_every_is_refused(options, message):
    with pytest.raises(ps.GraphError, match=message):
        ps.every("1 second", **options)


def test_a_source_that_does_not_know_ticks_cannot_read_missed_ones_one_by_one():
    with pytest.raises(ps.GraphError, match=r"test_batch_clock.py:\d+.*only one that receives rows"):
        ps.Pipeline("demo").read("in", ps.rate.Source(1), pace=ps.every("1 second", missed="each"))
