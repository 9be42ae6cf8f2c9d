"""A small world whose every decision is given: which process makes its next call, who dies, whose answer is lost.

Between two calls to the disk or a sink a process only touches what is its own, so it runs on eagerly; its own tasks
and workers take turns in one fixed order. Each process has a clock of its own, which moves only when it has nothing
else to do: so what a process is depends on what its calls have told it, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from penstock.checkpoint.policy import CoordinatorSettings
from penstock.ids import Instant, WallTime
from penstock.runtime.restart import NoRestart
from penstock.settings import Settings
from simulation.disk import UNCERTAIN
from simulation.fibers import Fiber, Killed
from simulation.mischief import Faults
from simulation.process import Driver, Process
from simulation.shapes import Shape
from simulation.tools import Tool, pin_tool, rewind_tool
from simulation.world import Terms, World

LONGEST = 2_000
"""Decisions of one run; far more than any of these worlds needs, unless two processes fence each other for ever."""


class Seen(Exception):
    """This state was reached before: what follows is known."""


class Directed(World):
    """``choose`` gets the number of alternatives at each decision and a key of the state, and says which is taken."""

    def __init__(self, kind: str, rows: int, faults: Faults, choose: Callable[[int, int], int], *, keyed: bool) -> None:
        shape = Shape(totals=(rows,), union=False, keyed=keyed, marked=False, sinks=(kind,))
        settings = CoordinatorSettings(interval=20_000, retry_pause=1_000, commit_backoff=1_000)
        super().__init__(Terms(shape=shape, coordinator=settings, settings=Settings(retained=1)), Random(1), faults)
        self.choose = choose
        self.takes = self.wipes = 0
        self.tools: list[Callable[[World], Process]] = []
        self.spare = 0
        """Drivers that start once nobody is left."""
        self._clocks: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._drawn: dict[str, int] = {}
        self._waits: dict[str, bool] = {}

    # ------------------------------------------------------------------------------------------ what a process sees

    def now(self) -> Instant:
        return Instant(self._clocks.get(self.current.name, 1_000_000) if self.current else 1_000_000)

    def wall(self) -> WallTime:
        return WallTime(1_000_000)

    def new_id(self) -> str:
        name = self.current.name if self.current else ""
        self._drawn[name] = self._drawn.get(name, 0) + 1
        return f"{name}-{self._drawn[name]}"

    def pace(self, source: int) -> tuple[int, int]:
        """A row, and then nothing for a while, so that a periodic checkpoint comes between."""
        name = self.current.name if self.current else ""
        self._waits[name] = not self._waits.get(name, True)
        return (0, 30_000) if self._waits[name] else (1, 0)

    def observe(self, what: object) -> None:
        """A call has told the running process something."""
        if self.current is not None:
            name = self.current.name
            self._told[name] = hash((self._told.get(name, 0), what))

    def sleep(self, process: Process, seconds: float) -> None:
        assert self.piece is not None
        self.piece.sleeps_until = self.now() + int(seconds * 1_000_000)
        if Fiber.current is None:
            self._clocks[process.name] = self.piece.sleeps_until
            return
        Fiber.current.pause()
        if process.is_dead:
            raise Killed

    # ------------------------------------------------------------------------------------------------ what goes wrong

    def before(self, name: str, path: str) -> None:
        """Every call of a worker waits for a decision; what a task writes unsynced is its own business."""
        process = self.current
        assert process is not None
        if Fiber.current is None:
            return
        process.is_waiting = True  # type: ignore[attr-defined]
        Fiber.current.pause()
        if process.is_dead:
            raise Killed

    def after(self, name: str, path: str) -> None:
        """A death here is a death before the next call."""

    def fault(self, name: str, path: str) -> str | None:
        faults = self.faults
        kinds = ["ok"]
        kinds += ["lost", "late"] if faults.unknown and name in UNCERTAIN else []
        kinds += ["fails"] if faults.failures and name == "settle" else []
        kind = kinds[self.choose(len(kinds), -1) if len(kinds) > 1 else 0]
        faults.unknown -= kind in ("lost", "late")
        faults.failures -= kind == "fails"
        self.observe(kind)
        return None if kind == "ok" else kind

    # ---------------------------------------------------------------------------------------------------- scheduling

    def alternatives(self) -> list[Callable[[], None]]:
        """What may happen next."""
        found: list[Callable[[], None]] = [lambda p=p: self._run(p) for p in self.processes]  # type: ignore[misc]
        if self.faults.crashes:
            found += [lambda p=p: self._crash(p) for p in self.processes]  # type: ignore[misc]
        found += [lambda: (self.disk.land_one(0), None)[1]] if self.disk.in_flight else []
        finals = [f for f in sorted(self.disk.files) if f.startswith("/out/") and "/.penstock/" not in f]
        if self.takes and finals:
            found.append(lambda: self._take(finals[0]))
        if self.wipes and self.ledger.facts.tail >= 0:
            found.append(self._wipe)
        if self.tools and len(self.ledger.facts.manifests) > 1:
            found.append(self._tool)
        if not self.processes and self.spare:
            found.append(self._another)
        return found

    def step(self) -> bool:
        """One decision, and what follows from it."""
        self.steps += 1
        found = self.alternatives()
        if not found or self.steps > LONGEST:
            return False
        found[self.choose(len(found), self.key()) if len(found) > 1 else 0]()
        if self.ledger.violation is not None:
            raise self.ledger.violation
        return True

    def _run(self, process: Process) -> None:
        """Make the call that is waited for, and go on to the next, or until there is nothing more to do."""
        process.is_waiting = False  # type: ignore[attr-defined]
        while process in self.processes and not process.is_waiting:  # type: ignore[attr-defined]
            unit = next(iter(process.units(self._clocks.setdefault(process.name, 1_000_000))), None)
            if unit is not None:
                self._do(process, *unit)
                continue
            at = process.next_time()
            if at is None:
                self.processes.remove(process)
                return
            self._clocks[process.name] = max(at, self._clocks[process.name])

    def _crash(self, process: Process) -> None:
        self.faults.crashes -= 1
        self.tell(f"{process.name} dies")
        self.kill(process)

    def _take(self, path: str) -> None:
        self.takes -= 1
        self.tell(f"a reader takes {path}")
        self.disk.remove(path)

    def _wipe(self) -> None:
        self.wipes -= 1
        for process in list(self.processes):
            self.kill(process)
        self.disk.wipe()
        self.ledger.wiped()
        self.tell("the state directory is deleted")
        self.spare = max(1, self.spare)

    def _tool(self) -> None:
        self.start(self.tools.pop()(self))

    def _another(self) -> None:
        self.spare -= 1
        self.start(Driver(self, self.name("D"), strategy=NoRestart()))

    # ---------------------------------------------------------------------------------------------------------- states

    def key(self) -> int:
        """Equal for states from which the same may follow."""
        disk, faults = self.disk, self.faults
        processes = frozenset(
            (p.name, self._told.get(p.name, 0), self._clocks.get(p.name), p.outcome is None) for p in self.processes
        )
        budgets = (faults.crashes, faults.unknown, faults.failures, self.takes, self.wipes, self.spare, len(self.tools))
        flying = tuple((name, path) for name, path, _ in disk.in_flight)
        return hash((processes, budgets, flying, self.durable_key(), frozenset(disk.files.items()), *self._ghosts()))

    def durable_key(self) -> int:
        """Equal where a fresh driver would meet the same."""
        owners = frozenset((key, self.last_init.get(key)) for key in self.outside.owners)
        remembered = frozenset(self.outside.versions.items())
        return hash((frozenset(self.disk.durable_items()), remembered, owners, *self._ghosts()))

    def _ghosts(self) -> tuple[Any, ...]:
        facts = self.ledger.facts
        published = frozenset((uid, frozenset(seen.items())) for uid, seen in facts.published.items())
        expected = frozenset((uid, frozenset(rows.items())) for uid, rows in facts.expected.items())
        return published, expected, frozenset(facts.done), frozenset(facts.void), frozenset(facts.discarded)


def make(kind: str, setting: str, choose: Callable[[int, int], int]) -> Directed:
    """A world of a setting: words with figures, as ``"2 crash 1 zombie"``."""
    parts = setting.split()
    wanted = {word: int(number) for number, word in zip(parts[::2], parts[1::2], strict=True)}
    faults = Faults(crashes=wanted.get("crash", 0), unknown=wanted.get("unknown", 0), failures=wanted.get("abort", 0))
    world = Directed(kind, wanted.get("rows", 2), faults, choose, keyed="keyed" in wanted)
    world.takes, world.wipes = wanted.get("take", 0), wanted.get("wipe", 0)
    world.spare = wanted.get("crash", 0)
    for word, discard in (("rewind", False), ("discard", True)):
        world.tools += [lambda w, d=discard: Tool(w, w.name("T"), rewind_tool(None, discard=d))] * wanted.get(word, 0)
    world.tools += [_pin] * wanted.get("pin", 0)
    for _ in range(1 + wanted.get("zombie", 0)):
        world.start(Driver(world, world.name("D"), strategy=NoRestart()))
    return world


def _pin(world: World) -> Process:
    return Tool(world, world.name("P"), pin_tool(max(world.ledger.facts.manifests), "kept"))  # type: ignore[arg-type]
