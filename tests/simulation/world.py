"""One simulated world: a clock, a disk, sinks, processes, and the scheduler that lets one thing happen after another.

All chance comes from one seeded generator, so a seed is a story that can be told again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from penstock.checkpoint.policy import CoordinatorSettings
from penstock.errors import GenerationFenced, GraphError, PenstockError
from penstock.ids import BEGINNING, END_OF_TIME, EventTime, Instant, WallTime
from penstock.runtime.restart import NoRestart
from simulation.disk import UNCERTAIN, Disk
from simulation.fibers import Fiber, Killed
from simulation.ledger import Facts, Ledger
from simulation.outside import Outside
from simulation.process import Driver, Process
from simulation.shapes import Pipeline, Shape
from simulation.threadless import Piece

HORIZON = 30_000
"""Decisions after which a run without faults should long be over."""
SLOWNESS = 0.93


@dataclass(slots=True, kw_only=True)
class Faults:
    """How much may still go wrong, and how likely each is at every call."""

    crashes: int = 0
    starts: int = 0
    unknown: int = 0
    failures: int = 0
    preempt: float = 0.5
    crash_rate: float = 0.01
    fault_rate: float = 0.05
    sink_down: float = 0.0
    """How often a commit surely fails: output stays open for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under which settings jobs run in this world."""

    shape: Shape
    coordinator: CoordinatorSettings
    retained: int = 2
    capacity: int = 2


class World:
    """Everything there is. Also the clock of all processes, and where they all report."""

    def __init__(
        self, terms: Terms, chance: Random, faults: Faults, *, facts: Facts | None = None, is_plain: bool = False
    ) -> None:
        self.terms = terms
        self.chance = chance
        self.faults = faults
        self.is_plain = is_plain
        self.coordinator = terms.coordinator
        self.retained = terms.retained
        self.capacity = terms.capacity
        self.story: list[str] = []
        self.ledger = Ledger(self, facts)
        self.disk = Disk(self)
        self.outside = Outside()
        self.pipeline = Pipeline(terms.shape, self)
        self.sinks = tuple(f"sink{i}" for i in range(len(terms.shape.sinks)))
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.piece: Piece | None = None
        self.steps = 0
        self.coverage: dict[str, int] = {}
        self.slow: frozenset[str] = frozenset()
        """Tasks and workers that are seldom run while another can be: so barriers wait, and snapshots are late."""
        self._time = 1_000_000
        self._names = 0

    # -------------------------------------------------------------------------------------- clock, chance, observers

    def now(self) -> Instant:
        return Instant(self._time)

    def wall(self) -> WallTime:
        return WallTime(self._time)

    def new_id(self) -> str:
        return f"{self.chance.getrandbits(64):016x}"

    def tell(self, what: str) -> None:
        who = self.current.name if self.current is not None else "world"
        self.story.append(f"{self.steps:5} {self._time / 1e6:8.3f}s {who:8} {what}")

    def count(self, what: str) -> None:
        self.coverage[what] = self.coverage.get(what, 0) + 1

    def listen(self, fact: object) -> None:
        name = type(fact).__name__
        self.count(name)
        if name == "CheckpointFailed":
            self.tell(f"checkpoint {fact.checkpoint} aborted: {fact.reason}")  # type: ignore[attr-defined]

    def judge(self, process: Process, outcome: object) -> None:
        """Whether a process may end so: who is not fenced and met no fault must not fail for good."""
        self.count(f"ends {type(outcome).__name__}")
        if not isinstance(process, Driver) or not isinstance(outcome, PenstockError):
            return
        if isinstance(outcome, GraphError) or outcome.retry:
            return
        is_unclaimed = process.generation < 0 and not isinstance(outcome, GenerationFenced)
        if is_unclaimed or process.generation == self.ledger.facts.generation:
            self.ledger.violated("ends", f"{process.name} owns the log and fails: {type(outcome).__name__}: {outcome}")

    # ---------------------------------------------------------------------------------------- sources, event time

    def pace(self, source: int) -> tuple[int, int]:
        """How many rows a source has now, or else when to ask again."""
        if self.is_plain:
            return 3, 0
        if self.chance.random() < 0.3:
            return 0, self.chance.choice((1_000, 50_000, 300_000))
        return self.chance.choice((1, 1, 2)), 0

    def all_rows(self) -> list[tuple[int, int]]:
        return [(s, row) for s, total in enumerate(self.terms.shape.totals) for row in range(total)]

    def time_of(self, row: int) -> int:
        return row * 1_000

    def event_time_of(self, counts: dict[int, int]) -> int:
        """The highest watermark that what was seen allows."""
        allowed = [END_OF_TIME]
        for number, total in enumerate(self.terms.shape.totals):
            seen = counts.get(number, 0)
            if seen < total:
                seen_last = seen and self.terms.shape.marked
                allowed.append(EventTime(self.time_of(seen - 1)) if seen_last else BEGINNING)
        return min(allowed)

    # -------------------------------------------------------------------------------------- what calls go through

    def before(self, name: str, path: str) -> None:
        """A call is about to begin: another may go first, the process may die."""
        process = self.current
        assert process is not None
        if not self.is_plain and Fiber.current is not None and self.chance.random() < self.faults.preempt:
            Fiber.current.pause()
        if process.is_dead:
            raise Killed
        self._may_die(f"before {name} {path}")

    def after(self, name: str, path: str) -> None:
        """A call has had its effect."""
        self._may_die(f"after {name} {path}")

    def _may_die(self, where: str) -> None:
        faults = self.faults
        if faults.crashes and self.chance.random() < faults.crash_rate:
            faults.crashes -= 1
            self.tell(f"is killed {where}")
            self.count("crash in a call")
            raise Killed

    def fault(self, name: str, path: str) -> str | None:
        faults = self.faults
        if faults.sink_down and name == "move" and self.chance.random() < faults.sink_down:
            return "fails"
        rate = faults.fault_rate * (4 if name == "create" else 1)  # few calls, and all depends on them
        if not (faults.unknown or faults.failures) or self.chance.random() >= rate:
            return None
        if faults.unknown and name in UNCERTAIN and (not faults.failures or self.chance.random() < 0.6):
            faults.unknown -= 1
            kind = self.chance.choice(("late", "lost"))
        elif faults.failures:
            faults.failures -= 1
            kind = "fails"
        else:
            return None
        self.tell(f"{name} {path}: {kind}")
        self.count(f"fault {kind}")
        return kind

    def sink_call(self, name: str, uid: str) -> str | None:
        """A call to a table or broker: its answer may be lost, it may fail."""
        self.before(name, uid)
        return self.fault("move" if name in ("commit", "void") else name, f"{name} of {uid}")

    def sleep(self, process: Process, seconds: float) -> None:
        if self.is_plain or Fiber.current is None:
            self._time += int(seconds * 1_000_000)
            return
        assert self.piece is not None
        self.piece.sleeps_until = self._time + int(seconds * 1_000_000)
        Fiber.current.pause()
        if process.is_dead:
            raise Killed

    # ---------------------------------------------------------------------------------------------------- scheduling

    def start(self, process: Process) -> Process:
        self.processes.append(process)
        self.tell(f"{process.name} starts")
        return process

    def name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def kill(self, process: Process) -> None:
        before, self.current = self.current, process
        process.kill()
        self.current = before
        if process in self.processes:
            self.processes.remove(process)

    def step(self) -> bool:
        """Let one thing happen; ``False`` if nothing ever will."""
        self.steps += 1
        self._time += 1_000 if self.is_plain else self.chance.choice((0, 1_000, 5_000, 20_000))
        ready = [p for p in self.processes if p.frozen_until <= self.steps]
        units = [(p, unit) for p in ready for unit in p.units(self._time)]
        if not units:
            times = [at for p in ready if (at := p.next_time()) is not None]
            if not times:
                self.processes = [p for p in self.processes if p.frozen_until > self.steps]
                return bool(self.processes)
            self._time = max(self._time, min(times))
            return True
        chosen = units[0] if self.is_plain else self._choice(units)
        if chosen is not None:
            process, (name, act) = chosen
            self._do(process, name, act)
        return True

    def _choice(self, units: list[tuple[Process, tuple[str, Callable[[], None]]]]) -> Any:
        """A process first, then what it does: one with many tasks does not crowd another out."""
        owners = [unit[0] for unit in units]
        owner = self.chance.choice(owners) if self.chance.random() < 0.5 else owners[0]
        mine = [unit for unit in units if unit[0] is owner]
        if self.slow and self.chance.random() < SLOWNESS:
            mine = [unit for unit in mine if unit[1][0] not in self.slow]
            if not mine:
                return None
        return mine[int(self.chance.random() * len(mine))]

    def _do(self, process: Process, name: str, act: Callable[[], None]) -> None:
        self.current = process
        try:
            act()
        except Killed:
            self.kill(process)
        finally:
            self.current = None
        if process.outcome is not None and not process.pieces and process in self.processes:
            self.processes.remove(process)
        if self.ledger.violation is not None:
            raise self.ledger.violation

    def end(self) -> None:
        """Let go of every fiber."""
        for process in list(self.processes):
            self.kill(process)

    # ---------------------------------------------------------------------------------------------------- the oracle

    def check_liveness(self, *, durable_only: bool) -> None:
        """Kill everyone, drop what is in flight: one driver without faults comes to the end, everything published."""
        self.count("oracle")
        world = World(self.terms, Random(7), Faults(), facts=self.ledger.facts.copy(), is_plain=True)
        world.coordinator = CoordinatorSettings(interval=50_000, retry_pause=1_000, commit_backoff=1_000)
        world.disk = self.disk.copy_for(world, durable_only=durable_only)
        world.ledger.crashed()
        world.outside = self.outside.copy()
        world.pipeline = Pipeline(self.terms.shape, world)
        world.chance.seed(self.chance.getrandbits(32))
        driver = world.start(Driver(world, "oracle", strategy=NoRestart()))
        try:
            while driver.outcome is None:
                if not world.step() or world.steps > HORIZON:
                    self.ledger.violated("liveness", "the fresh driver does not come to an end")
                    break
            missing = world.ledger.missing()
            if self.ledger.violation is None and (missing or not getattr(driver.outcome, "published", False)):
                self.ledger.violated("liveness", f"the fresh driver ends with {driver.outcome!r}; {missing[:4]}")
            elif self.ledger.violation is None and (litter := world.ledger.litter()):
                self.ledger.violated("litter", f"nobody needs {litter[:4]}, and nobody deletes it")
        except AssertionError as violation:
            self.ledger.violated("liveness", str(violation))
        if self.ledger.violation is not None:
            self.story += ["---- the fresh driver of the liveness oracle ----", *world.story[-40:]]
            raise self.ledger.violation
