"""Slots of the background: snapshots go ahead, and merges still have their turn."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from crash.waiting import until
from penstock.spark.scheduling import BackgroundSlots


class Merges:
    """Threads that want a slot each; what they did in which order."""

    def __init__(self, slots: BackgroundSlots) -> None:
        self.slots = slots
        self.story: list[str] = []
        self.pool = ThreadPoolExecutor(8)

    def ask(self, name: str):
        def run() -> None:
            with self.slots.background():
                self.story.append(name)

        return self.pool.submit(run)


@pytest.fixture
def merges():
    merges = Merges(BackgroundSlots(cores=2))
    yield merges
    merges.pool.shutdown()


def test_between_the_jobs_of_a_snapshot_one_merge_goes_and_the_others_after_it(merges):
    slots = merges.slots
    with slots.snapshot():
        with slots.background():
            waiting = [merges.ask(f"merge {number}") for number in range(3)]
        until(60, "one has gone", lambda: merges.story)
        for _ in range(3):
            with slots.background():
                merges.story.append("job")
    for each in waiting:
        each.result(60)
    assert [name.split()[0] for name in merges.story] == ["merge", "job", "job", "job", "merge", "merge"]


def test_a_job_of_a_snapshot_goes_before_a_merge_that_has_waited_for_longer(merges):
    slots = merges.slots
    with slots.background():
        first = merges.ask("merge")
        until(60, "it waits", lambda: slots._waiting[False])

        def snapshot() -> None:
            with slots.snapshot(), slots.background():
                merges.story.append("job")

        second = merges.pool.submit(snapshot)
        until(60, "it waits, too", lambda: slots._waiting[True])
    for each in (first, second):
        each.result(60)
    assert merges.story == ["job", "merge"]


def test_a_merge_that_has_waited_for_a_whole_snapshot_goes_before_the_next(merges):
    slots = merges.slots
    with slots.snapshot():
        with slots.background():
            waiting = merges.ask("merge")
            until(60, "it waits", lambda: slots._waiting[False])
            slots._others = 0  # as if another one had gone, or this one had been too slow
        slots._others = 1
    with slots.snapshot(), slots.background():
        merges.story.append("job")
    waiting.result(60)
    assert merges.story == ["merge", "job"]


def test_snapshot_after_snapshot_leaves_each_time_one_merge_its_turn(merges):
    for number in range(3):
        with merges.slots.snapshot():
            merges.ask(f"merge {number}").result(60)
    assert merges.story == ["merge 0", "merge 1", "merge 2"]


@pytest.mark.parametrize(("cores", "most"), [(1, 1), (2, 1), (4, 3)])
def test_so_many_run_beside_the_data_path(cores, most):
    slots, running, seen = BackgroundSlots(cores), threading.Semaphore(0), []
    go = threading.Event()

    def run() -> None:
        with slots.background():
            running.release()
            seen.append(1)
            go.wait(60)

    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(run) for _ in range(6)]
        for _ in range(most):
            assert running.acquire(timeout=60)
        assert not running.acquire(timeout=0.05)
        assert len(seen) == most
        go.set()
        for each in waiting:
            each.result(60)
    assert len(seen) == 6


def test_on_one_core_the_background_and_a_batch_take_turns():
    slots, story = BackgroundSlots(cores=1), []

    def run() -> None:
        with slots.background():
            story.append("merge")

    with ThreadPoolExecutor(1) as pool:
        with slots.foreground():
            waiting = pool.submit(run)
            assert not story
            story.append("batch")
        waiting.result(60)
    assert story == ["batch", "merge"]
