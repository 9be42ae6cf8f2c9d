"""The product's own classes under a seeded scheduler: crashes, zombies, lost answers, rewinds, on every seed anew."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.log import ManifestWriter, OwnedLog
from penstock.checkpoint.recovery import decide_recovery, execute_recovery
from penstock.control.server import ControlServer, RequestRegistry
from penstock.job.wiring import AttemptBuilder
from penstock.runtime.barriers import AlignedBarrierHandler
from penstock.runtime.channels import Channel, TaskOutput
from penstock.runtime.inputs import Inputs
from penstock.runtime.source_task import SourceTask
from penstock.runtime.supervisor import Supervisor
from penstock.runtime.task import StepTask
from penstock.runtime.task_logic import OperatorLogic, SinkLogic, UnionLogic
from planted import (  # noqa: F401 - they register
    of_another_kind,
    of_files,
    of_functions,
    of_letters,
    of_mistakes,
    of_received,
    of_rewinds,
    of_the_breadth,
    of_the_log,
    of_the_operator,
    of_the_run,
)
from planted.bug import BUGS, planted
from simulation import fibers, process
from simulation.exhaustive import IN_TESTS, search
from simulation.run import BLOCK, run_block
from simulation.scenario import Scenario, Violation
from simulation.tools import Tool

SEEDS = 2_000
"""Stories of a long test run: 1 to 2,000, each with its own pipeline, settings, faults and operators."""

EARLY_SEEDS = ((1, 101), (101, 301))
"""Stories of each test run, and of each in CI."""

LATER = ("rename", "drained", "import", "import elsewhere", "begun with a folder", "oracle of an import")
"""What operators learned after the rest."""

REFUSED = ("mistake StateIncompatible", "mistake UnknownName", "harm LogGap", "branch slower")
"""What operators get wrong, and what becomes of files."""

WITH_LETTERS = ("replay", "replay in a checkpoint", "letters undone", "letters dropped", "letters kept")
"""What becomes of dead letters."""

WORKERS = 2
TESTS = Path(__file__).resolve().parents[1]


OF_THE_PROTOCOL = ["L5", "R3-above", "S1", "S2", "G1-staged", "commit-early", "no-blocking", "fsync"]
SEEDS_OF_RARE = {"S1": 1001}  # it shows in about one of 250
OF_OPERATORS = ["drain-never", "rename-state", "R7", "import-order"]
OF_REFUSALS = ["refusal-condemned", "refusal-merged", "refusal-unlike", "refusal-left-over", "refusal-gap"]
OF_EXPORTED_ROWS = ["received-half", "received-shuffled", "received-not-missed"]
OF_LETTERS = ["letters-early", "letters-swept", "replay-unmarked", "replay-again"]


def run_seeds(first: int, end: int) -> None:
    for seed in range(first, end):
        Scenario(seed).run()


def run_those_that_receive(first: int, end: int) -> Counter[str]:
    """What stories in which a source is given its rows came across."""
    seen: Counter[str] = Counter()
    for seed in range(first, end):
        seen.update(Scenario(seed, receives=True).run().coverage)
    return seen


def run_those_with_letters(first: int, end: int) -> None:
    for scenario in map(Scenario, range(first, end)):
        if scenario.world.terms.shape.letters:
            scenario.run()


@pytest.mark.mission("D10", "S10", "S27", "S32", "L16", "L19", "L20", "L22", "L23")
@pytest.mark.parametrize(("first", "end"), EARLY_SEEDS)
def test_no_early_seed_breaks_an_invariant(first: int, end: int) -> None:
    run_seeds(first, end)


@pytest.mark.mission("S24", "S27")
def test_no_early_story_of_received_rows_loses_or_repeats_one() -> None:
    seen = run_those_that_receive(1, 31)
    assert seen["acknowledged"] > 50


@pytest.mark.slow
def test_no_story_of_received_rows_loses_or_repeats_one() -> None:
    seen = run_those_that_receive(31, 601)
    always = ("acknowledged", "zombie", "rewind", "power cut", "pin", "fault late", "fault lost", "merged")
    for name in (*always, "branch elsewhere", "branch without", "branch rot CheckpointUnreadable"):
        assert seen[name] > 20, f"hardly any story has a {name}"


@pytest.mark.parametrize(
    "bug", ["G5-unsealed", "G5-no-folder-no-seal", "G5-keys-of-blocks-forgotten", *OF_EXPORTED_ROWS]
)
def test_a_planted_bug_of_received_rows_is_found_within_a_few_stories(bug: str) -> None:
    with planted(bug), pytest.raises(Violation):
        run_those_that_receive(1, 61)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug", ["G5-seal-deleted", "G5-cleaned-at-newest", "G5-merged-twice", "G5-merged-not-listed", "G5-keys-lost"]
)
def test_a_planted_bug_of_received_rows_is_found_within_more_stories(bug: str) -> None:
    with planted(bug), pytest.raises(Violation):
        run_those_that_receive(1, 201)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.mission("D10", "S10", "S27", "S32", "L16", "L19", "L20", "L22", "L23")
def test_no_seed_breaks_an_invariant() -> None:
    seen: Counter[str] = Counter()
    context = multiprocessing.get_context("spawn")
    cores = fibers.queue_of_cores(WORKERS, context)
    with ProcessPoolExecutor(WORKERS, context, initializer=fibers.take_core, initargs=(cores,)) as workers:
        for found, failure in workers.map(run_block, range(1, SEEDS + 1, BLOCK)):
            if failure:
                workers.shutdown(cancel_futures=True)
                pytest.fail(failure)
            seen += found
    assert seen["exact: repeated"] == 0
    assert seen["at least once: repeated"] > 20, "at-least-once repeats rows after a crash, or nothing was tested"
    assert seen["exact: oracle at every step"] > 5_000, "the liveness oracle was hardly asked after every step"
    always = ("zombie", "rewind", "power cut", "deploy", "go past", "new source", "again TaskAcknowledged")
    for name in (*always, *LATER, *REFUSED, *WITH_LETTERS):
        assert seen[f"exact: {name}"] > 20, f"hardly any story has a {name}"


def test_a_seed_tells_the_same_story_again() -> None:
    first, again = Scenario(17), Scenario(17)
    first.run()
    again.run()
    assert first.world.story == again.world.story
    assert len(first.world.story) > 10


def test_a_seed_tells_the_same_story_in_any_process() -> None:
    told = []
    for hashing in ("1", "2"):  # what a set of names is iterated by
        command = [sys.executable, "-m", "simulation.run", "replay", "138"]
        environment = {**os.environ, "PYTHONHASHSEED": hashing}
        told.append(subprocess.run(command, env=environment, cwd=TESTS, stdout=subprocess.PIPE, check=True).stdout)
    assert told[0] == told[1]
    assert len(told[0].splitlines()) > 10


def test_a_world_in_which_everybody_waits_goes_on_in_time() -> None:
    world, ended = Scenario(3).world, []

    def waits(tool: Tool) -> None:
        tool.pause(10.0)
        ended.append(tool.name)

    world.start(Tool(world, "first", waits))
    world.start(Tool(world, "second", waits))
    while world.step():
        pass
    assert sorted(ended) == ["first", "second"]


def test_no_thread_outlives_its_story() -> None:
    before = fibers.busy()
    run_seeds(1, 31)
    assert fibers.busy() == before


def test_the_simulation_runs_the_classes_of_the_product() -> None:
    seen: dict[str, type] = {}
    scenario = Scenario(11)
    world = scenario.world
    driver = world.start(process.Driver(world, "driver"))
    assert isinstance(driver, process.Driver)
    while driver.wiring is None:
        world.step()
    wiring = driver.wiring
    for task in wiring.tasks.values():
        seen[type(task).__name__] = type(task)
        if isinstance(task, StepTask):
            assert type(task._inputs) is Inputs
            assert type(task._barriers) is AlignedBarrierHandler
            assert type(task._inputs[0].channel) is Channel
            assert type(task._logic) in {OperatorLogic, SinkLogic, UnionLogic}
        assert type(task._output) is TaskOutput
    assert seen == {"SourceTask": SourceTask, "StepTask": StepTask}
    assert type(wiring.coordinator.coordinator) is Coordinator
    assert type(wiring.manifest_writer) is ManifestWriter
    assert type(wiring.manifest_writer._log) is OwnedLog
    assert type(driver.supervisor) is Supervisor
    assert type(driver.desk.requests) is RequestRegistry
    assert type(driver.desk._watch) is ControlServer
    assert process.AttemptBuilder is AttemptBuilder
    assert process.decide_recovery is decide_recovery
    assert process.execute_recovery is execute_recovery
    world.end()


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "kind"), IN_TESTS)
def test_every_schedule_of_a_small_world_keeps_the_invariants(setting: str, kind: str) -> None:
    done = search(kind, setting)
    assert done.found == ""
    assert done.is_all
    assert len(done.states) > 300


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_bug_is_planted_where_something_is_and_taken_away_again(bug: str) -> None:
    before = {name: vars(OwnedLog)[name] for name in ("append", "trim")}
    with planted(bug):
        pass
    assert {name: vars(OwnedLog)[name] for name in before} == before


@pytest.mark.parametrize(
    "bug",
    [
        "L5",
        "R3-above",
        "S1",
        "S2",
        "G1-staged",
        "commit-early",
        "no-blocking",
        "fsync",
        "S5",
        *OF_OPERATORS,
        *OF_LETTERS,
        *OF_REFUSALS,
    ],
)
def test_a_planted_bug_is_found_within_a_few_seeds(bug: str) -> None:
    with planted(bug), pytest.raises(Violation):
        run_seeds(1, SEEDS_OF_RARE.get(bug, 301))


@pytest.mark.parametrize("bug", OF_LETTERS)
def test_a_planted_bug_of_dead_letters_is_found_within_a_few_stories_that_have_some(bug: str) -> None:
    with planted(bug), pytest.raises(Violation):
        run_those_with_letters(1, 301)


@pytest.mark.parametrize(
    ("bug", "setting"),
    [
        ("L2", "1 zombie"),
        ("L3", "1 unknown"),
        ("L4", "1 zombie 4 rows"),  # so many, that the number at which the zombie lost the log is trimmed
        ("L5", "1 zombie"),
        ("S1", "2 abort"),
        ("S2", "1 abort"),
    ],
)
def test_a_planted_bug_is_found_by_the_search(bug: str, setting: str) -> None:
    with planted(bug):
        assert search("table/1", setting).found


@pytest.mark.parametrize(
    ("bug", "setting"),
    [("S3-broker", "1 zombie"), ("S3-apart", "2 crash"), ("S3-again", "1 unknown"), ("S5-late", "1 pin")],
)
def test_a_planted_bug_of_the_committer_of_kafka_is_found_by_the_search(bug: str, setting: str) -> None:
    with planted(bug):
        assert search("broker/1", setting).found
