"""Every run of a small world with at most so many deviations from the plain one: a pause, a crash, a lost answer.

The plain run goes on with one process as long as it can. A deviation is taken at one decision; all places and all
alternatives are tried, then all pairs of them, and so on (delay-bounded search). Prints how many runs that were.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

from penstock.checkpoint.policy import CoordinatorSettings
from penstock.runtime.restart import NoRestart
from simulation.disk import UNCERTAIN
from simulation.fibers import Fiber, Killed
from simulation.ledger import Violation
from simulation.process import Driver, Process
from simulation.shapes import KINDS, Shape
from simulation.tools import Tool, rewind_tool
from simulation.world import Faults, Terms, World

Choices = dict[int, int]


class Directed(World):
    """A world whose every decision is the first alternative, unless ``choices`` says otherwise."""

    def __init__(self, kind: str, choices: Choices, *, crashes: int, unknown: int) -> None:
        shape = Shape(totals=(2,), union=False, keyed=True, marked=False, sinks=(kind,))
        settings = CoordinatorSettings(interval=20_000, retry_pause=1_000, commit_backoff=1_000)
        terms = Terms(shape=shape, coordinator=settings, retained=1)
        super().__init__(terms, Random(1), Faults(crashes=crashes, unknown=unknown))
        self.choices = choices
        self.options: list[int] = []
        self._running: Process | None = None
        self._yields = False

    def decide(self, options: int) -> int:
        self.options.append(options)
        return self.choices.get(len(self.options) - 1, 0)

    def pace(self, source: int) -> tuple[int, int]:
        return 1, 0

    def before(self, name: str, path: str) -> None:
        assert self.current is not None
        crash = self.faults.crashes > 0
        others = Fiber.current is not None and len(self.processes) > 1
        decided = self.decide(1 + others + crash) if others or crash else 0
        if decided and others and decided == 1:
            self._yields = True
            assert Fiber.current is not None
            Fiber.current.pause()
        elif decided:
            self.faults.crashes -= 1
            raise Killed
        if self.current.is_dead:
            raise Killed

    def after(self, name: str, path: str) -> None:
        if self.faults.crashes and name not in ("read", "list") and self.decide(2):
            self.faults.crashes -= 1
            raise Killed

    def fault(self, name: str, path: str) -> str | None:
        if not self.faults.unknown or name not in UNCERTAIN:
            return None
        decided = self.decide(3)
        self.faults.unknown -= decided > 0
        return (None, "lost", "late")[decided]

    def step(self) -> bool:
        if self.disk.in_flight and self.decide(2):
            self.disk.land_one(0)
        return super().step()

    def _choice(self, units: list[tuple[Process, tuple[str, Callable[[], None]]]]) -> Any:
        owners = list(dict.fromkeys(process for process, _ in units)) if len(self.processes) > 1 else [units[0][0]]
        if self._running in owners and not self._yields:
            owners.sort(key=lambda process: process is not self._running)
        elif self._yields:
            owners.sort(key=lambda process: process is self._running)
        self._yields = False
        self._running = owners[0]
        return next(unit for unit in units if unit[0] is owners[0])


def play(kind: str, choices: Choices, setting: str) -> Directed:
    """One run to its end, and the oracle."""
    world = Directed(kind, choices, crashes="crash" in setting, unknown="unknown" in setting)
    world.start(Driver(world, "A", strategy=NoRestart()))
    if "zombie" in setting:
        world.start(Driver(world, "B", strategy=NoRestart()))
    if "rewind" in setting:
        world.start(Tool(world, "T", rewind_tool(None, discard="discard" in setting)))
    try:
        while world.steps < 3_000 and world.step():
            if world.ledger.violation is not None:
                raise world.ledger.violation
        world.check_liveness(durable_only="crash" in setting)
    finally:
        world.end()
    return world


def search(kind: str, setting: str, deviations: int, budget: float = 1e9) -> tuple[int, bool, str]:
    """How many runs, whether that was all, and the first violation."""
    began, runs = time.perf_counter(), 0
    level: list[Choices] = [{}]
    for depth in range(deviations + 1):
        following: list[Choices] = []
        for choices in level:
            if time.perf_counter() - began > budget:
                return runs, False, ""
            runs += 1
            try:
                world = play(kind, choices, setting)
            except Violation as violation:
                return runs, False, f"{choices}: {violation}"
            if depth < deviations:
                first = max(choices, default=-1) + 1
                following += [
                    {**choices, place: other}
                    for place in range(first, len(world.options))
                    for other in range(1, world.options[place])
                ]
        level = following
    return runs, True, ""


SETTINGS = ("crash", "crash unknown", "zombie", "zombie crash unknown", "rewind", "rewind discard crash")


def main(deviations: int, budget: float) -> int:
    failed = 0
    for kind in KINDS:
        for setting in SETTINGS:
            began = time.perf_counter()
            runs, is_all, found = search(kind, setting, deviations, budget)
            failed += bool(found)
            state = found or ("searched to the end" if is_all else "stopped by its budget, nothing found")
            print(f"{kind:9} {setting:22} {runs:7} runs {time.perf_counter() - began:6.1f} s  {state}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]) if sys.argv[2:] else 1e9))
