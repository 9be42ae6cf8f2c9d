"""From a seed to a story: what is run, what goes wrong when, what operators do meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from penstock.checkpoint.messages import CheckpointRequested, StopRequested
from penstock.checkpoint.policy import CoordinatorSettings
from penstock.ids import CheckpointId
from penstock.runtime.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from simulation.ledger import Violation
from simulation.process import Driver
from simulation.shapes import Shape
from simulation.tools import Tool, pin_tool, rewind_tool, unpin_tool
from simulation.world import Faults, Terms, World

MS = 1_000
SLOW = ("source0", "source1", "source2", "count", "sink0", "sink1", "log", "sink0-commit", "sink0-snapshot", "turn")
SLOW += ("count-snapshot", "source0-snapshot", "clean-up", "count-maintenance")
STRATEGIES = (
    NoRestart(),
    FixedDelay(attempts=2, delay=50 * MS),
    FailureRate(failures=2, interval=500 * MS, delay=20 * MS),
    ExponentialDelay(initial=20 * MS, maximum=200 * MS, reset_after=1_000 * MS),
)
logging.getLogger("penstock").addHandler(logging.NullHandler())  # what it warns of is the story's own business


@dataclass(slots=True)
class Plan:
    """How often operators and readers may still act."""

    rewinds: int = 0
    pins: int = 0
    takes: int = 0
    requests: int = 0
    power_cuts: int = 0
    freezes: int = 0
    wipes: int = 0


def terms_of(chance: Random) -> Terms:
    return Terms(
        shape=Shape.drawn(chance),
        coordinator=CoordinatorSettings(
            interval=chance.choice((50, 200, 800)) * MS,
            timeout=chance.choice((300, 1_500, 60_000)) * MS,
            min_pause=chance.choice((0, 0, 100 * MS)),
            tolerable_failures=chance.choice((0, 1, 3)),
            retry_pause=50 * MS,
            commit_backoff=50 * MS,
            commit_backoff_limit=200 * MS,
        ),
        retained=chance.choice((1, 2, 3, 3)),
        capacity=chance.choice((1, 2)),
    )


class Scenario:
    """One seed, run to its end. Raises :class:`Violation`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = Random(seed)
        is_calm = chance.random() < 0.1
        self.plan = Plan(
            rewinds=chance.choice((0, 0, 1, 2, 3)),
            pins=chance.choice((0, 0, 2)),
            takes=chance.choice((0, 0, 2)),
            requests=chance.choice((0, 0, 2)),
            power_cuts=chance.choice((0, 0, 1)),
            freezes=chance.choice((0, 1, 3)),
            wipes=chance.choice((0, 0, 0, 0, 1)),
        )
        faults = Faults(
            crashes=0 if is_calm else chance.choice((0, 1, 1, 2)),
            starts=chance.choice((0, 1, 1, 2)),
            unknown=0 if is_calm else chance.choice((0, 1, 2, 3)),
            failures=0 if is_calm else chance.choice((0, 0, 1, 2)),
            preempt=chance.choice((0.1, 0.4, 0.8)),
            crash_rate=chance.choice((0.003, 0.01, 0.03)),
            fault_rate=chance.choice((0.02, 0.1)),
            sink_down=0 if is_calm else chance.choice((0, 0, 0.5, 0.9)),
        )
        self._restarts_left = 3
        self.world = World(terms_of(chance), chance, faults)
        self.world.slow = frozenset(chance.sample(SLOW, chance.choice((0, 0, 1, 2))))

    def run(self, limit: int = 500) -> World:
        world = self.world
        world.start(Driver(world, world.name("driver"), strategy=world.chance.choice(STRATEGIES)))
        try:
            while world.steps < limit:
                if world.chance.random() < (0.12 if self.plan.rewinds and self._is_owing() else 0.04):
                    self._act()
                if not world.step() and not self._begin_again():
                    break
            self._check()
        finally:
            world.end()
        return world

    def _check(self) -> None:
        self.world.check_liveness(durable_only=self.world.chance.random() < 0.5)

    def _begin_again(self) -> bool:
        """Nobody is left: a supervisor starts the next."""
        if not self._restarts_left:
            return False
        self._restarts_left -= 1
        if self.world.chance.random() < 0.5:
            self._check()
        self.world.start(Driver(self.world, self.world.name("driver"), strategy=self.world.chance.choice(STRATEGIES)))
        return True

    # ---------------------------------------------------------------------------------------- what comes from outside

    def _act(self) -> None:
        world, plan = self.world, self.plan
        acts: list[Callable[[], None]] = []
        if world.disk.in_flight:
            acts += [self._land, self._land]
        for left, act in (
            (world.faults.starts, self._another),
            (world.faults.crashes, self._crash),
            (plan.rewinds and world.chance.random() < 0.3, self._rewind),
            (plan.pins, self._pin),
            (plan.takes, self._take),
            (plan.requests, self._request),
            (plan.power_cuts, self._cut),
            (plan.freezes, self._freeze),
            (plan.wipes, self._wipe),
        ):
            if left:
                acts.append(act)
        if plan.rewinds and self._is_owing():
            acts += [self._rewind] * 4
        if acts:
            world.chance.choice(acts)()
        if world.ledger.violation is not None:
            raise world.ledger.violation

    def _is_owing(self) -> bool:
        """Whether something is in the log and not published: when a rewind is most dangerous."""
        facts = self.world.ledger.facts
        return any(path not in facts.done and path not in facts.discarded for path in facts.staged)

    def _land(self) -> None:
        world = self.world
        what = world.disk.land_one(world.chance.randrange(len(world.disk.in_flight)))
        world.tell(f"what was on its way lands: {what}")
        world.count("landed late")

    def _another(self) -> None:
        """A driver beside those that live."""
        self.world.faults.starts -= 1
        self.world.count("zombie" if self.world.processes else "start")
        self.world.start(Driver(self.world, self.world.name("driver"), strategy=self.world.chance.choice(STRATEGIES)))

    def _crash(self) -> None:
        world = self.world
        if world.processes:
            world.faults.crashes -= 1
            victim = world.chance.choice(world.processes)
            world.tell(f"{victim.name} is killed")
            world.kill(victim)
            if world.chance.random() < 0.5:
                self._check()

    def _cut(self) -> None:
        """The power fails for everybody: what was not synced is lost."""
        world = self.world
        self.plan.power_cuts -= 1
        world.tell("the power fails")
        for process in list(world.processes):
            world.kill(process)
        world.disk.crash()
        world.ledger.crashed()
        world.count("power cut")

    def _wipe(self) -> None:
        """Everybody is stopped and the state directory deleted; files staged beside a target stay, of a dead log."""
        world = self.world
        self.plan.wipes -= 1
        for process in list(world.processes):
            world.kill(process)
        world.disk.wipe()
        world.ledger.wiped()
        world.tell("the state directory is deleted")
        world.count("wipe")

    def _freeze(self) -> None:
        world = self.world
        if world.processes:
            self.plan.freezes -= 1
            victim = world.chance.choice(world.processes)
            victim.frozen_until = world.steps + world.chance.choice((20, 100, 250))
            world.tell(f"{victim.name} is paused until step {victim.frozen_until}")

    def _target(self) -> CheckpointId | None:
        """Any checkpoint somebody may have seen in the log, condemned or not by now; mostly one that is restorable."""
        facts = self.world.ledger.facts
        known = sorted(facts.manifests)
        if self.world.chance.random() < 0.6:
            known = [id for id in known if id not in facts.condemned]
        return CheckpointId(self.world.chance.choice(known)) if known else None

    def _below_newest(self) -> CheckpointId | None:
        """Something restorable below the newest checkpoint, whose output may be open; or empty state."""
        facts = self.world.ledger.facts
        known = [id for id in sorted(facts.manifests)[:-1] if id not in facts.condemned]
        return CheckpointId(self.world.chance.choice(known)) if known else None

    def _rewind(self) -> None:
        """By a tool (which fences whoever runs), or by a driver that is started with it."""
        world, chance = self.world, self.world.chance
        if len(world.ledger.facts.manifests) < 2:
            return
        self.plan.rewinds -= 1
        to = self._target() if chance.random() < 0.4 else self._below_newest()
        discard = chance.random() < 0.6
        world.count("rewind")
        if chance.random() < 0.6:
            world.start(Tool(world, world.name("rewind"), rewind_tool(to, discard=discard)))
            return
        wanted = {"rewind_to": to} if to is not None else {"fresh": True}
        world.start(Driver(world, world.name("driver"), rewind={**wanted, "discard_unpublished": discard}))

    def _pin(self) -> None:
        world, to = self.world, self._target()
        self.plan.pins -= 1
        pins = sorted(world.ledger.facts.pins)
        if pins and world.chance.random() < 0.5:
            world.start(Tool(world, world.name("unpin"), unpin_tool(pins[0])))
        elif to is not None:
            world.start(Tool(world, world.name("pin"), pin_tool(to, f"p{world.steps}")))
            world.count("pin")

    def _take(self) -> None:
        """A reader takes a final file away."""
        world = self.world
        finals = [path for path in world.disk.files if path.startswith("/out/") and "/.penstock/" not in path]
        if finals:
            self.plan.takes -= 1
            world.disk.remove(world.chance.choice(sorted(finals)))
            world.count("reader takes")

    def _request(self) -> None:
        """A savepoint, or a stop."""
        world = self.world
        drivers = [p for p in world.processes if isinstance(p, Driver) and p.supervisor is not None]
        if not drivers:
            return
        self.plan.requests -= 1
        supervisor = world.chance.choice(drivers).supervisor
        assert supervisor is not None
        request = f"r{world.steps}"
        if world.chance.random() < 0.6:
            name = request if world.chance.random() < 0.7 else None
            supervisor.request(CheckpointRequested(at=world.now(), wall=world.wall(), request=request, name=name))
        else:
            patience = world.chance.choice((None, 100 * MS))
            supervisor.request(StopRequested(at=world.now(), wall=world.wall(), request=request, patience=patience))
        world.count("request")


__all__ = ["Scenario", "Violation"]
