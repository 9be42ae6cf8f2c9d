"""The product's own classes under a seeded scheduler: crashes, zombies, lost answers, rewinds, on every seed anew."""

import pytest

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.journal import Journal
from penstock.checkpoint.log import OwnedLog
from penstock.job.wiring import Assembly
from penstock.runtime.alignment import Alignment
from penstock.runtime.channel import Channel
from penstock.runtime.inputs import Inputs
from penstock.runtime.output import Output
from penstock.runtime.source_task import SourceTask
from penstock.runtime.supervisor import Supervisor
from penstock.runtime.task import StepTask
from penstock.runtime.works import OperatorWork, SinkWork, UnionWork
from simulation import process
from simulation.fibers import Killed
from simulation.run import story_of
from simulation.scenario import Scenario

SEEDS = 1_000
PARTS = 10


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
    world.end()
