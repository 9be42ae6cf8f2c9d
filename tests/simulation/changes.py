"""What operators change: the pipeline, the names of its steps, where a job begins. Knows not how often they may."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.interfaces.source import Until
from penstock.job.start import StartOptions
from penstock.runtime.lifecycle import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from simulation.entries import layer_paths
from simulation.exports import export
from simulation.process import Driver

if TYPE_CHECKING:
    from simulation.world import World

MS = 1_000
STRATEGIES = (
    NoRestart(),
    FixedDelay(attempts=2, delay=50 * MS),
    FailureRate(failures=2, interval=500 * MS, delay=20 * MS),
    ExponentialDelay(initial=20 * MS, maximum=200 * MS, reset_after=1_000 * MS),
)


def driver(world: World, **options: object) -> Driver:
    """Somebody starts the job."""
    chance = world.chance
    until = Until.CAUGHT_UP if chance.random() < 0.12 else Until.STOPPED
    if world.importing is not None and chance.random() < 0.6:  # again what came to nothing
        options.setdefault("brings", world.importing)
    has_dropped = any(uid.startswith("source") for uid in world.pipeline.shape.without)
    return Driver(
        world,
        world.name("driver"),
        strategy=chance.choice(STRATEGIES),
        until=until,
        take_over=chance.random() < 0.2,
        is_polite=world.terms.controlled and chance.random() < 0.4,
        drops_state=has_dropped and chance.random() < 0.8,
        **options,  # type: ignore[arg-type]
    )


class Changes:
    """Everything that somebody may have changed when a job starts next."""

    def __init__(self, world: World) -> None:
        self._world = world

    def wipe(self) -> None:
        """Everybody is stopped and the state directory deleted; what lies beside targets stays, of a dead log."""
        world = self._world
        for process in list(world.processes):
            world.kill(process)
        world.disk.wipe()
        world.ledger.wiped()
        world.tell("the state directory is deleted")
        world.count("wipe")

    def deploy(self) -> None:
        """Whoever starts next runs another pipeline: a sink or a source more or less, or another prefix."""
        world, chance = self._world, self._world.chance
        shape = world.pipeline.shape
        kind = chance.random()
        if kind < 0.35:
            shape = replace(shape, prefix=f"-{world.steps}")
        elif kind < 0.8 or len(shape.sources) < 2:
            sink = chance.choice(shape.all_sinks)
            shape = replace(shape, without=shape.without ^ {sink})
            if not set(shape.all_sinks) - shape.without - {"dead", "late"}:
                return
        else:
            shape = replace(shape, without=shape.without | {f"source{chance.choice(shape.sources[1:])}"})
        world.deploy(shape)
        world.tell(f"the pipeline is now {shape}")
        world.count("deploy")

    def add_source(self) -> None:
        """A source that the pipeline did not have before."""
        shape = self._world.pipeline.shape
        hidden = {uid for uid in shape.without if uid.startswith("source")}
        self._world.deploy(replace(shape, without=shape.without - hidden))
        self._world.is_grown = True
        self._world.count("new source")

    def rename(self) -> None:
        """Whoever starts next runs a pipeline in which some steps have other uids, and says which are which."""
        world, chance = self._world, self._world.chance
        shape = world.pipeline.shape
        for step in chance.sample(shape.all_steps, min(len(shape.all_steps), chance.choice((1, 1, 2, 3)))):
            shape = shape.renamed(step, world.steps)
        world.deploy(shape)
        world.tell(f"steps are now called {dict(shape.names)}")
        world.count("rename")

    @property
    def exportable(self) -> list[int]:
        """Checkpoints that are worth a folder: where there is state to keep, such as have some."""
        world = self._world
        if world.is_strange or world.pipeline.shape.without:
            return []
        manifests, is_keyed = world.ledger.facts.manifests, world.pipeline.shape.keyed
        return [id for id in world.restorable_now() if layer_paths(manifests[id]) or not is_keyed]

    def export(self) -> None:
        """A checkpoint leaves as a folder."""
        if export(self._world, self._world.chance.choice(self.exportable)):
            self._world.count("export")

    def begin_with_a_folder(self) -> None:
        """A job begins with one: beside what is there, or in an empty directory."""
        world, chance = self._world, self._world.chance
        world.count("import")
        if chance.random() < 0.35:
            world.count("import elsewhere")
            self.wipe()
        world.faults.crashes = max(1, world.faults.crashes)
        world.importing = StartOptions(folder=chance.choice(world.exported), claim=chance.random() < 0.5)
        world.start(driver(world, brings=world.importing))
