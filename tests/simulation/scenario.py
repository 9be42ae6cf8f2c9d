"""From a seed to a story: what is run, what goes wrong when, what operators do meanwhile."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from penstock.checkpoint.policy import CheckpointConfig
from penstock.settings import Settings
from simulation.acts import Acts, Plan
from simulation.branches import Branches
from simulation.changes import MS, driver
from simulation.ledger import Violation
from simulation.mischief import Faults
from simulation.mistakes import Mistakes
from simulation.oracle import check_liveness, left_behind, undrained
from simulation.shapes import Shape
from simulation.tools import Tool, rewind_tool
from simulation.world import Terms, World

SLOW = ("source0", "source1", "source2", "count", "sink0", "sink1", "log", "sink0-commit", "sink0-snapshot", "turn")
SLOW += ("count-snapshot", "source0-snapshot", "clean-up", "count-maintenance", "dead", "late")


def terms_of(chance: Random, *, is_core: bool) -> Terms:
    """``is_core``: barriers, commits and recovery only, so that more of these happens in a story."""
    is_exact = is_core or chance.random() < 0.7
    return Terms(
        shape=Shape.core(chance) if is_core else Shape.drawn(chance, least=1 if is_exact else 2),
        coordinator=CheckpointConfig(
            interval=chance.choice((50 * MS, 200 * MS, 800 * MS, 200 * MS, None)) if is_exact else 50 * MS,
            timeout=chance.choice((300, 1_500, 60_000)) * MS,
            min_pause=chance.choice((0, 0, 100 * MS)),
            tolerable_failures=chance.choice((0, 1, 3)),
            skip_idle=chance.random() < 0.8,
            max_queued=chance.choice((1, 2, 1000)),
            retry_pause=50 * MS,
            commit_backoff=50 * MS,
            commit_backoff_limit=200 * MS,
        ),
        settings=Settings(
            retained=chance.choice((1, 1, 2, 3)),
            channel_capacity=chance.choice((1, 2)),
            mode="exactly-once" if is_exact else "at-least-once",
            rate_control=chance.random() < 0.5 and not is_core,
            latency_every=None if is_core else chance.choice((None, 200 * MS, 500 * MS)),
            max_rows_per_batch=None if is_core else chance.choice((None, 1, 2)),
        ),
        relayed=chance.random() < 0.3,
        controlled=chance.random() < 0.5 and not is_core,
    )


def plan_of(chance: Random, *, is_core: bool) -> Plan:
    extra = 0 if is_core else 1
    return Plan(
        rewinds=chance.choice((0, 0, 1, 2, 3)),
        pins=chance.choice((0, 0, 2)),
        takes=chance.choice((0, 0, 2)),
        requests=chance.choice((0, 0, 2, 3)),
        power_cuts=chance.choice((0, 0, 1)),
        freezes=chance.choice((0, 1, 3, 3)),
        wipes=chance.choice((0, 0, 0, 1)),
        deploys=extra * chance.choice((0, 0, 1, 2)),
        damages=extra * chance.choice((0, 0, 1)),
        strangers=extra * chance.choice((0, 0, 0, 1)),
    )


def more_of(plan: Plan, chance: Random) -> Plan:
    """What operators learned later: by a chance of its own, so that the other stories stay as they were told."""
    return replace(
        plan,
        drains=chance.choice((0, 0, 0, 1, 2)),
        renames=chance.choice((0, 0, 0, 1, 2)),
        imports=chance.choice((0, 0, 1, 2)),
        replays=chance.choice((1, 2, 3, 6)),
        drops=chance.choice((0, 1, 2)),
        expiries=chance.choice((0, 1)),
    )


def with_letters(terms: Terms, plan: Plan, faults: Faults, chance: Random) -> Terms:
    """People replay dead letters meanwhile; less else happens, so that there are some before the story ends."""
    plan.power_cuts, plan.strangers, plan.damages = 0, 0, chance.choice((0, 0, 0, 1))
    plan.wipes, plan.drains, plan.freezes = chance.choice(((plan.wipes, plan.drains, 1), (0, 0, 1), (0, 0, 0)))
    plan.rewinds = chance.choice((0, 1, 2, 3))
    plan.deploys = chance.choice((0, 0, plan.deploys))
    faults.sink_down = chance.choice((0, 0, 0, 0.5))
    faults.starts = min(1, faults.starts)
    faults.preempt = chance.choice((0.05, 0.2, 0.5))
    coordinator = replace(
        terms.coordinator, interval=chance.choice((20, 50, 100)) * MS, timeout=60_000 * MS, min_pause=0
    )
    settings = replace(terms.settings, retained=chance.choice((1, 2, 3)))
    return replace(terms, shape=terms.shape.with_letters(), coordinator=coordinator, settings=settings)


def faults_of(chance: Random) -> Faults:
    is_calm = chance.random() < 0.1
    return Faults(
        crashes=0 if is_calm else chance.choice((0, 1, 1, 2)),
        starts=chance.choice((0, 1, 1, 2)),
        unknown=0 if is_calm else chance.choice((0, 1, 2, 3)),
        failures=0 if is_calm else chance.choice((0, 0, 1, 2)),
        broken=0 if is_calm else chance.choice((0, 0, 1)),
        preempt=chance.choice((0.1, 0.4, 0.8)),
        crash_rate=chance.choice((0.003, 0.01, 0.03)),
        fault_rate=chance.choice((0.02, 0.1)),
        sink_down=0 if is_calm else chance.choice((0, 0, 0.5, 0.7, 0.9)),
    )


def with_a_receiver(terms: Terms, plan: Plan) -> Terms:
    """The first source is given its rows. What would leave acknowledged ones behind in earnest is not done."""
    plan.wipes = plan.drains = plan.imports = plan.deploys = plan.damages = plan.strangers = 0
    shape = replace(terms.shape, receives=True, letters=False)
    return replace(terms, shape=shape, settings=replace(terms.settings, mode="exactly-once"))


LETTERS = 0.3
"""Of the stories that may have dead letters."""

EVERY_STEP = 40
"""One of so many seeds asks the liveness oracle after each step; the others when somebody dies, and at the end."""


class Scenario:
    """One seed, run to its end. Raises ``Violation``.

    ``watched``: whether the liveness oracle is asked after each step, whatever the seed: some five times as long, and a
    story of its own, for the oracle draws from the same chance. ``receives``: the first source is given its rows; that
    is another story, too.
    """

    def __init__(self, seed: int, *, watched: bool | None = None, receives: bool = False) -> None:
        self.seed = seed
        chance = Random(seed)
        is_core = chance.random() < 0.45
        plan, faults = plan_of(chance, is_core=is_core), faults_of(chance)
        self.plan = more_of(plan, Random(f"more of {seed}"))
        self._restarts_left = 3
        self._watch = seed % EVERY_STEP == 0 if watched is None else watched
        self._asked: set[int] = set()
        terms = terms_of(chance, is_core=is_core)
        of_letters = Random(f"letters of {seed}")
        if not is_core and terms.settings.mode == "exactly-once" and of_letters.random() < LETTERS:
            terms = with_letters(terms, self.plan, faults, of_letters)
        if receives:
            terms = with_a_receiver(terms, self.plan)
        self.world = World(terms, chance, faults)
        self.world.slow = frozenset(chance.sample(SLOW, chance.choice((0, 0, 1, 2, 3))))
        if receives and Random(f"received of {seed}").random() < 0.5:
            self.world.slow = frozenset({"source0-writer"})  # so that a client is answered late
        if terms.shape.letters and of_letters.random() < 0.8:
            self.world.slow = frozenset()
        if not self.world.is_exact:  # who goes back or ends early repeats less
            self.plan.drains = self.plan.imports = 0
        if not self.world.is_exact:  # what comes behind an early barrier is what repeats
            self.world.slow = frozenset({f"source{chance.choice((0, 1))}"})
            faults.crashes = max(1, faults.crashes)
        self._acts = Acts(self.world, self.plan)
        self._mistakes = Mistakes(self.world, seed)
        self._branches = Branches(self.world, seed)
        shape = self.world.pipeline.shape
        self._grows = not is_core and len(shape.sources) > 1 and chance.random() < 0.3
        if self._grows:  # the last source is added later
            self.world.deploy(replace(shape, without=frozenset({f"source{shape.sources[-1]}"})))

    def run(self, limit: int = 600) -> World:
        world = self.world
        world.start(driver(world))
        try:
            while world.steps < limit:
                if world.chance.random() < (0.12 if self._acts.is_urgent else 0.04):
                    self._act()
                if not world.step() and not self._begin_again():
                    break
                self._mistakes.look()
                self._branches.look()
                if self._watch:
                    self._check_all()
            self._check()
            world.answers.judge_all()
        finally:
            world.end()
            if world.ledger.violation is not None:
                raise world.ledger.violation
        return world

    def _act(self) -> None:
        if self._grows and self.world.steps > 100:
            self._grows = False
            self._acts.changes.add_source()
        self._acts.act()

    def _check(self) -> None:
        check_liveness(self.world, durable_only=self.world.chance.random() < 0.5)

    def _check_all(self) -> None:
        """From what the death of all processes would leave now, and from what a power cut would; where that is new."""
        self.world.count("oracle at every step")
        for durable_only in (False, True):
            key = left_behind(self.world, durable_only=durable_only)
            if key not in self._asked:
                self._asked.add(key)
                check_liveness(self.world, durable_only=durable_only)

    def _begin_again(self) -> bool:
        """Nobody is left: a supervisor starts the next."""
        if not self._restarts_left:
            return False
        self._restarts_left -= 1
        world = self.world
        if world.chance.random() < 0.3 or world.importing is not None:
            self._check()
        is_cut = world.is_strange or world.pipeline.shape.without
        if world.ledger.facts.is_drained and not is_cut and world.chance.random() < 0.7:
            world.count("go back")
            world.start(Tool(world, world.name("rewind"), rewind_tool(undrained(world), discard=False)))
            return True
        world.start(driver(world))
        return True


__all__ = ["Scenario", "Violation"]
