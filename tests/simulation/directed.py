"""A small world whose every decision is given: which process makes its next call, who dies, whose answer is lost.

Between two calls to the disk or a sink a process only touches what is its own, so it runs on eagerly; its own tasks
and workers take turns in one fixed order. Each process has a clock of its own, which moves only when it has nothing
else to do: so what a process is depends on what its calls have told it, and on nothing else. Under a claim all is read
again: what it was told before is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random

from penstock.checkpoint.log import OwnedLog
from penstock.checkpoint.policy import CheckpointConfig
from penstock.clock import MonotonicTime, WallTime
from penstock.handles import CheckpointId
from penstock.runtime.lifecycle import NoRestart
from penstock.settings import Settings
from simulation.disk import UNCERTAIN
from simulation.fibers import Fiber, Killed
from simulation.footprints import EVERYTHING, Footprint, Touch, is_look
from simulation.mischief import Faults
from simulation.oracle import left_behind
from simulation.process import Driver, Process
from simulation.shapes import Shape
from simulation.told import Told
from simulation.tools import Tool, pin_tool, rewind_tool
from simulation.world import Terms, World

LONGEST = 2_000
"""Steps of one run; far more than any of these worlds needs, unless two processes fence each other for ever."""

LOST = frozenset({*UNCERTAIN, "commit", "void"})
"""Calls whose answer may be lost, those of sinks included."""

FAILS = frozenset({"settle", *LOST})
"""Calls that may fail for sure."""

MOST_FENCED = 1
"""How often a commit may find that another has taken its producer: two that take it from each other never end."""


class Directed(World):
    """What may happen next is given by ``options``; somebody chooses, and ``do`` does it."""

    def __init__(
        self, kind: str, faults: Faults, *, rows: int, keyed: bool, retained: int, receives: bool = False
    ) -> None:
        shape = Shape(totals=(rows,), union=False, keyed=keyed, marked=False, sinks=(kind,), receives=receives)
        settings = CheckpointConfig(interval=20_000, retry_pause=1_000, commit_backoff=50_000, tolerable_failures=3)
        terms = Terms(shape=shape, coordinator=settings, settings=Settings(retained=retained))
        super().__init__(terms, Random(1), faults)
        self.takes = self.wipes = self.fencings = 0
        self.tools: list[str] = []
        self.spare = 0
        """Drivers that start once nobody is left."""
        self.cuts: list[tuple[int, ...]] = []
        """Behind how many rows each driver ends its batches; the last goes for all that follow."""
        self.is_uneven = False
        """That is still to be decided."""
        self.touched: set[Touch] = set()
        """By the step that is being done."""
        self.told = Told()
        self._script: list[str] = []
        self._outcome = "ok"
        self._calls: dict[str, Touch] = {}
        self._clocks: dict[str, int] = {}
        self._drawn: dict[str, int] = {}
        self._waits: dict[str, bool] = {}

    # ------------------------------------------------------------------------------------------ what a process sees

    def now(self) -> MonotonicTime:
        return MonotonicTime(self._clocks.get(self.current.name, 1_000_000) if self.current else 1_000_000)

    def wall(self) -> WallTime:
        return WallTime(1_000_000)

    def new_id(self) -> str:
        name = self.current.name if self.current else ""
        self._drawn[name] = self._drawn.get(name, 0) + 1
        return f"{name}-{self._drawn[name]}"

    def pace(self, source: int, at: int) -> tuple[int, int]:
        """A batch, and then nothing for a while, so that a periodic checkpoint comes between."""
        name = self.current.name if self.current else ""
        self._waits[name] = not self._waits.get(name, True)
        if self._waits[name]:
            return 0, 30_000
        ends = self.cuts[min(int(name[1:]), len(self.cuts)) - 1] if self.cuts else (at + 1,)
        return min((end for end in ends if end > at), default=self.terms.shape.totals[source]) - at, 0

    def observe(self, what: object) -> None:
        """A call has told the running process something."""
        self.fencings += what == "fenced"
        if self.current is not None:
            self.told.tell(self.current.name, what)

    @contextmanager
    def remembering(self, call: str) -> Iterator[list[object]]:
        """Of all that it is told here the running process keeps what is put into the list."""
        if self.current is None:
            yield []
            return
        with self.told.remembering(self.current, call) as kept:
            yield kept
        if call == "read" and self.current.owned is None:
            self._drawn[self.current.name] = 0

    def claimed(self, process: Process, owned: OwnedLog) -> None:
        self.told.claimed(process.name, owned, self._clocks.get(process.name))

    def touches(self, name: str, path: str) -> None:
        self.touched.add((name, path))

    def judge(self, process: Process, outcome: object) -> None:
        self.touches("list", "log/")  # the verdict asks who owns the log
        super().judge(process, outcome)

    def judge_first_read(self, process: Driver, source: int) -> None:
        self.touches("list", "log/")
        super().judge_first_read(process, source)

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
        if is_look(name) and process.name in self.told.fenced:
            return
        if self._script and self._script[-1] == f"{process.name} ok" and Fiber.current is not None:
            self._script.pop()
            self.steps += 1
        elif Fiber.current is not None:
            self._calls[process.name] = (name, path)
            Fiber.current.pause()
            if process.is_dead:
                raise Killed
        self.touches(name, path)

    def after(self, name: str, path: str) -> None:
        """A death here is a death before the next call."""

    def fault(self, name: str, path: str) -> str | None:
        kind, self._outcome = self._outcome, "ok"
        self.faults.unknown -= kind in ("lost", "late")
        self.faults.failures -= kind == "fails"
        self.observe(kind)
        return None if kind == "ok" else kind

    # ---------------------------------------------------------------------------------------------------- scheduling

    def options(self) -> dict[str, Callable[[], None]]:
        """What may happen next, by names that stay as long as the same may happen."""
        if self.fencings > MOST_FENCED:
            return {}
        found: dict[str, Callable[[], None]] = {}
        if self.is_uneven:
            patterns = [(1, 2, 3), (1, 3), (2, 3)]
            return {f"batches {a} {b}": partial(self._cut, a, b) for a in patterns for b in patterns}
        for process in self.processes:
            for outcome in self._outcomes(process):
                found[f"{process.name} {outcome}"] = partial(self._run, process, outcome)
        for process in self.processes if self.faults.crashes else ():
            if not is_look(self._calls.get(process.name, ("read", ""))[0]):
                found[f"{process.name} dies"] = partial(self._crash, process)
        if self.disk.in_flight:
            found[f"{self.disk.in_flight[0][:2]} lands"] = self._land
        finals = [f for f in sorted(self.disk.files) if f.startswith("/out/") and "/.penstock/" not in f]
        if self.takes and finals:
            found[f"a reader takes {finals[0]}"] = partial(self._take, finals[0])
        if self.wipes and self.ledger.facts.tail >= 0:
            found["the state directory is deleted"] = self._wipe
        if self.tools and len(self.ledger.facts.manifests) > 1:
            found.update({f"{self.tools[-1]} {to}": partial(self._tool, to) for to in self._targets(self.tools[-1])})
        if not self.processes and self.spare:
            found["another driver"] = self._another
        return found

    def _outcomes(self, process: Process) -> list[str]:
        """Of its next call. Who begins the log is the first driver: the others are like it."""
        name, _ = self._calls.get(process.name, ("", ""))
        if name == "create" and self.ledger.facts.tail < 0 and process is not self.processes[0]:
            return []
        found = ["ok"]
        found += ["lost", "late"] if self.faults.unknown and name in LOST else []
        found += ["fails"] if self.faults.failures and name in FAILS else []
        return found

    def _targets(self, tool: str) -> list[CheckpointId | None]:
        known = [CheckpointId(id) for id in self.ledger.facts.known()]
        if tool == "pin":
            return [known[-1]]
        return [*known[:-1]] if self.terms.shape.receives else [*known[:-1], None]

    def replay(self, path: Sequence[str]) -> None:
        """Do all of this; one process goes on without a pause where it is the next anyway."""
        self._script = list(reversed(path))
        while self._script:
            self.do(self._script.pop())

    def do(self, option: str) -> Footprint:
        """Let it happen, and what follows from it. What it touched."""
        self.steps += 1
        self.touched = set()
        self.options()[option]()
        if self.ledger.violation is not None:
            raise self.ledger.violation
        return frozenset(self.touched)

    def _run(self, process: Process, outcome: str) -> None:
        """Make the call that is waited for, and go on to the next, or until there is nothing more to do."""
        if outcome != "ok":
            self.touches("fault", "fails" if outcome == "fails" else "unknown")
        self.touches("process", process.name)
        self._outcome = outcome
        self._calls.pop(process.name, None)
        while process in self.processes and process.name not in self._calls:
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
        self.touches("fault", "dies")
        self.touches("process", process.name)
        self.faults.crashes -= 1
        self.tell(f"{process.name} dies")
        self.kill(process)

    def _land(self) -> None:
        self.touches(*self.disk.in_flight[0][:2])
        self.disk.land_one(0)

    def _take(self, path: str) -> None:
        self.touches("list", "/out/")
        self.takes -= 1
        self.tell(f"a reader takes {path}")
        self.disk.remove(path)

    def _wipe(self) -> None:
        self.touched.add(EVERYTHING)
        self.wipes -= 1
        for process in list(self.processes):
            self.kill(process)
        self.disk.wipe()
        self.ledger.wiped()
        self.tell("the state directory is deleted")
        self.spare = max(1, self.spare)

    def _tool(self, to: CheckpointId | None) -> None:
        self.touches("list", "log/")  # what it may be told depends on what is in the log
        self.touches("process", "tool")
        kind = self.tools.pop()
        if kind == "pin":
            assert to is not None
            self.start(Tool(self, self.name("P"), pin_tool(to, "kept")))
        else:
            self.start(Tool(self, self.name("T"), rewind_tool(to, discard=kind == "discard")))

    def _another(self) -> None:
        self.touched.add(EVERYTHING)
        self.spare -= 1
        self.start(Driver(self, self.name("D"), strategy=NoRestart()))

    def _cut(self, first: tuple[int, ...], later: tuple[int, ...]) -> None:
        self.touched.add(EVERYTHING)
        self.is_uneven, self.cuts = False, [first, later]

    # ---------------------------------------------------------------------------------------------------------- states

    def key(self) -> int:
        """Equal for states from which the same may follow."""
        disk, faults = self.disk, self.faults
        processes = frozenset(
            (p.name, self.told.of(p.name), self._clocks.get(p.name), p.outcome is None) for p in self.processes
        )
        budgets = (faults.crashes, faults.unknown, faults.failures, self.takes, self.wipes, self.spare, len(self.tools))
        budgets += (self.fencings, self.is_uneven, *self.cuts)
        flying = tuple((name, path) for name, path, _ in disk.in_flight)
        left = left_behind(self, durable_only=True)
        return hash((processes, budgets, flying, left, frozenset(disk.files.items())))
