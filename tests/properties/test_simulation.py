"""The product's own classes under a seeded scheduler: crashes, zombies, lost answers, rewinds, on every seed anew."""

import pytest

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.journal import Journal
from penstock.checkpoint.log import OwnedLog
from penstock.checkpoint.recovery import decide_recovery
from penstock.job.recover import carry_out
from penstock.job.wiring import Assembly
from penstock.runtime.alignment import Alignment
from penstock.runtime.channel import Channel
from penstock.runtime.inputs import Inputs
from penstock.runtime.output import Output
from penstock.runtime.source_task import SourceTask
from penstock.runtime.supervisor import Supervisor
from penstock.runtime.task import StepTask
from penstock.runtime.works import OperatorWork, SinkWork, UnionWork
from planted import of_another_kind, of_rewinds, of_the_log, of_the_run  # noqa: F401 - they register themselves
from planted.bug import planted
from simulation import process
from simulation.exhaustive import search
from simulation.fibers import Killed
from simulation.run import story_of
from simulation.scenario import Scenario, Violation
from simulation.shapes import KINDS

SEEDS = 1_000
PARTS = 10


def run_seeds(first: int, end: int) -> None:
    for seed in range(first, end):
        Scenario(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_an_invariant(part: int) -> None:
    for seed in range(1 + part * SEEDS // PARTS, 1 + (part + 1) * SEEDS // PARTS):
        scenario = Scenario(seed)
        try:
            scenario.run()
        except (Exception, Killed) as error:
            pytest.fail(story_of(scenario, error))


def test_a_seed_tells_the_same_story_again() -> None:
    first, again = Scenario(17), Scenario(17)
    first.run()
    again.run()
    assert first.world.story == again.world.story
    assert len(first.world.story) > 10


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
            assert type(task._alignment) is Alignment
            assert type(task._inputs[0].channel) is Channel
            assert type(task._work) in {OperatorWork, SinkWork, UnionWork}
        assert type(task._output) is Output
    assert seen == {"SourceTask": SourceTask, "StepTask": StepTask}
    assert type(wiring.coordinator) is Coordinator
    assert type(wiring.journal) is Journal
    assert type(wiring.journal._log) is OwnedLog
    assert type(driver.supervisor) is Supervisor
    assert process.Assembly is Assembly
    assert process.decide_recovery is decide_recovery
    assert process.carry_out is carry_out
    world.end()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setting", ["zombie crash unknown", "rewind discard crash"])
def test_no_single_pause_crash_or_lost_answer_breaks_a_small_world(kind: str, setting: str) -> None:
    runs, is_all, found = search(kind, setting, deviations=1)
    assert found == ""
    assert is_all
    assert runs > 90


@pytest.mark.parametrize("bug", ["L5", "R3-above", "S1", "S2", "G1-staged", "commit-early", "no-blocking", "fsync"])
def test_a_planted_bug_is_found_within_a_few_seeds(bug: str) -> None:
    with planted(bug), pytest.raises(Violation):
        run_seeds(1, 151)
