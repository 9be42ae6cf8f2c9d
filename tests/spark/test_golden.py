"""Golden cases: one expected result, run straight, crashed wherever the run comes by, compacted, and restored."""

from __future__ import annotations

import os
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

import penstock as ps
from golden.case import CASES, Case, Checkpoint, read
from penstock import failpoints
from penstock.facts import JobStarted
from penstock.job import attempt
from penstock.operators.windows import operator
from penstock.state import durable
from penstock.state.compaction import plan_durable_compaction
from penstock.testing.pipeline_run import PipelineRun

pytestmark = [pytest.mark.spark, pytest.mark.mission("D10")]

SHARE = 1 if os.environ.get("GOLDEN") == "all" else 5
"""Each case is crashed at one in so many of the places that it comes by; which, its name decides."""

BEGINNINGS = ("log.claim.", "recovery.")
"""Places that only a beginning comes by."""


@pytest.fixture(params=CASES, ids=lambda path: path.stem)
def case(request) -> Case:
    return read(request.param)


SOON = {"counted", "lateness", "sessions-updates", "sketches", "union"}
"""What each test run compacts and restores otherwise; the others are done by ``make test-long``."""


@pytest.fixture(
    params=[pytest.param(at, id=at.stem, marks=() if at.stem in SOON else pytest.mark.long) for at in CASES]
)
def soon(request) -> Case:
    return read(request.param)


def reached_by(spark, case: Case, folder: Path) -> list[str]:
    """The places that a straight run comes by, in order; its result is right."""
    record = folder / "reached"
    failpoints.record_to(record)
    try:
        with ps.testing.run(case.pipeline, spark) as t:
            for event in case.story:
                event.play(t)
            t.end()
            assert case.found(t) == case.wanted
    finally:
        failpoints.record_to(None)
    return list(dict.fromkeys(record.read_text().split()))


def died(t: PipelineRun) -> int:
    return sum(isinstance(fact, JobStarted) for fact in t.facts) - 1


def test_straight_and_crashed_at_the_places_that_it_comes_by(spark, tmp_path, case):
    """A crash at one place after another, in as few runs as that takes; each must end as a run without.

    Together the cases are crashed everywhere. ``GOLDEN=all`` crashes each of them everywhere, which takes minutes.
    """
    places = reached_by(spark, case, tmp_path)
    assert {"source.polled", "sink.published", "state.layer.durable", "checkpoint.manifest.written"} <= set(places)
    number = [path.stem for path in CASES].index(case.name)
    left, runs = places[number % SHARE :: SHARE], 0
    while left:
        runs += 1
        assert runs <= len(places), f"these were never reached again: {left}"
        with ps.testing.run(case.pipeline, spark) as t:
            left = crashing(t, case, left)
            assert case.found(t) == case.wanted, f"after {died(t)} crashes, all but {left}"


def crashing(t: PipelineRun, case: Case, places: list[str]) -> list[str]:
    """Tell the story with a crash wherever one can be; the places that are left."""
    waiting = list(places)
    while waiting and waiting[0].startswith(BEGINNINGS):
        strike_beginning(t, waiting.pop(0))
    armed = None
    for event in (*case.story, None):
        if armed is None and waiting:
            armed, deaths = waiting.pop(0), died(t)
            t.crash(at=armed)
            t.restart()
        if event is None:
            t.end()
        else:
            event.play(t)
        if armed is not None and died(t) > deaths:
            armed = None
    if armed is not None:  # not reached in this story any more
        waiting.append(armed)
        t._job.point = None
        failpoints.disarm(armed)
    return waiting


def strike_beginning(t: PipelineRun, place: str) -> None:
    """Die, and die again on the way back."""
    t.crash(at=place)
    t.crash()
    t.restart()
    assert not t.is_alive
    t.restart()


def test_compacted_after_every_batch(spark, soon, monkeypatch):
    monkeypatch.setattr(operator, "SLOWDOWN_LIMIT", 2)
    monkeypatch.setattr(durable, "plan_durable_compaction", partial(plan_durable_compaction, limit=2))
    with ps.testing.run(soon.pipeline, spark) as t:
        for event in soon.story:
            event.play(t)
        t.end()
        assert soon.found(t) == soon.wanted
        compacted = [amount for (_, name), amount in t.report().counters.items() if name == "compacted"]
        assert sum(compacted) > 0 or soon.name == "counted", "whose batches merge all there is"


def test_restored_with_another_number_of_partitions(spark, soon, monkeypatch):
    numbers = cycle((4, 3, 2, 1))  # powers of two are restored in parts, without an exchange
    with ps.testing.run(soon.pipeline, spark) as t:
        for event in (*soon.story, Checkpoint()):
            if not isinstance(event, Checkpoint):
                event.play(t)
                continue
            t.stop()
            cores = next(numbers)
            monkeypatch.setattr(attempt, "default_parallelism", lambda _, n=cores: n)
            t.restart()
        t.end()
        assert soon.found(t) == soon.wanted
