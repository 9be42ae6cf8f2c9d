"""One simulated world: a clock, a disk, sinks, processes, and the scheduler that lets one thing happen after another.

All chance comes from one seeded generator, so a seed is a story that can be told again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.checkpoint.entries import Manifest
from penstock.checkpoint.policy import CheckpointConfig
from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime, MonotonicTime, WallTime
from penstock.errors import (
    CheckpointUnreadable,
    GenerationFenced,
    GraphError,
    JobIsRunning,
    LogGap,
    PenstockError,
    SinkIdentityConflict,
)
from penstock.job.start import StartOptions
from penstock.settings import Settings
from simulation.answers import Answers
from simulation.disk import Disk
from simulation.entries import positions
from simulation.exports import Folder
from simulation.facts import Facts
from simulation.fibers import Fiber, Killed
from simulation.ledger import Ledger
from simulation.letters import AGAIN
from simulation.mischief import Faults, Mischief
from simulation.outside import Outside
from simulation.process import Driver, Process
from simulation.shapes import Pipeline, Shape
from simulation.threadless import Piece

SLOWNESS = 0.93
logging.getLogger("penstock").addHandler(logging.NullHandler())  # what it warns of is the story's own business


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under which settings jobs run in this world."""

    shape: Shape
    coordinator: CheckpointConfig
    settings: Settings = field(default_factory=Settings)
    relayed: bool = False
    """What tasks tell the coordinator may be told twice, or by an attempt that is gone."""
    controlled: bool = False
    """Drivers look for requests below ``control/``."""


class World(Mischief):
    """Everything there is. Also the clock of all processes, and where they all report."""

    def __init__(
        self, terms: Terms, chance: Random, faults: Faults, *, facts: Facts | None = None, is_plain: bool = False
    ) -> None:
        self.terms = terms
        self.chance = chance
        self.faults = faults
        self.is_plain = is_plain
        self.is_exact = terms.settings.mode == "exactly-once"
        self.coordinator = terms.coordinator
        self.story: list[str] = []
        self.ledger = Ledger(self, facts)
        self.disk = Disk(self)
        self.outside = Outside()
        self.answers = Answers(self)
        self.pipeline = Pipeline(terms.shape, self)
        self.sinks = terms.shape.all_sinks
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.piece: Piece | None = None
        self.steps = 0
        self.coverage: dict[str, int] = {}
        self.last_init: dict[str, str] = {}
        """Who last initialised a producer, by its identity."""
        self.expired: set[str] = set()
        """Identities whose marker has expired once."""
        self.asked_about_markers = False
        """A job has stopped since a marker was lost: from now on the operator says what was published."""
        self.slow: frozenset[str] = frozenset()
        """Tasks and workers that are seldom run while another can be: so barriers wait, and snapshots are late."""
        self.quiet: dict[int, int] = {}
        """Sources that bring nothing until then."""
        self.is_strange = False
        """Somebody has laid hands on the log: drivers may refuse it."""
        self.is_grown = False
        """A source was added: others may have ended before."""
        self.is_recut = False
        """Some pipeline had fewer sources than others."""
        self.is_draining = False
        """Somebody has asked for a drain."""
        self.exported: list[str] = []
        """Folders with exported checkpoints."""
        self.importing: StartOptions | None = None
        """How somebody wants the job to begin, and it has not yet."""
        self.refusals: tuple[type[PenstockError], ...] = ()
        """What a job may end with, since somebody has done what it must refuse."""
        self.open_folder: Callable[[str], Folder] | None = None
        """How exported folders are opened, if not as they are."""
        self._time = 1_000_000
        self._names = 0

    @classmethod
    def plain(cls, of: World, chance: Random, faults: Faults, facts: Facts) -> World:
        """A world without mischief, under the same terms and with the same pipeline."""
        world = World(of.terms, chance, faults, facts=facts, is_plain=True)
        world.deploy(of.pipeline.shape)
        world.expired, world.asked_about_markers = set(of.expired), of.asked_about_markers
        world.is_grown, world.is_recut, world.is_draining = of.is_grown, of.is_recut, of.is_draining
        return world

    def deploy(self, shape: Shape) -> None:
        """Whoever starts from now on runs this pipeline."""
        self.is_recut |= any(uid.startswith("source") for uid in shape.without)
        self.pipeline = Pipeline(shape, self)

    # -------------------------------------------------------------------------------------- clock, chance, observers

    def now(self) -> MonotonicTime:
        return MonotonicTime(self._time)

    def wall(self) -> WallTime:
        return WallTime(self._time)

    def new_id(self) -> str:
        return f"{self.chance.getrandbits(64):016x}"

    def tell(self, what: str) -> None:
        who = self.current.name if self.current is not None else "world"
        self.story.append(f"{self.steps:5} {self._time / 1e6:8.3f}s {who:8} {what}")

    def count(self, what: str) -> None:
        self.coverage[what] = self.coverage.get(what, 0) + 1

    def judge(self, process: Process, outcome: object) -> None:
        """Whether a process may end so: who is not fenced and met no fault must not fail for good."""
        self.count(f"ends {type(outcome).__name__}")
        if not isinstance(process, Driver) or not isinstance(outcome, PenstockError):
            return
        if isinstance(outcome, GraphError) or outcome.retry or process.may_refuse or isinstance(outcome, JobIsRunning):
            return
        if isinstance(outcome, self.refusals):
            return
        if self.expired and isinstance(outcome, SinkIdentityConflict):
            return  # something was open, and nobody can say whether it was published
        if self.is_strange and isinstance(outcome, CheckpointUnreadable | LogGap) and "log/" in str(outcome):
            return
        if self.is_strange and isinstance(outcome, GenerationFenced):
            return  # what lies under its own number is not what it wrote
        is_unclaimed = process.generation < 0 and not isinstance(outcome, GenerationFenced)
        if is_unclaimed or process.generation == self.ledger.facts.generation:
            self.ledger.violated("ends", f"{process.name} owns the log and fails: {type(outcome).__name__}: {outcome}")

    def judge_first_read(self, process: Driver, source: int) -> None:
        """Rows leave a source: where it began must be in the log, or another start begins elsewhere (C4)."""
        facts = self.ledger.facts
        if process.generation != facts.generation:
            return
        manifest = facts.manifests.get(facts.restore) if facts.restore is not None else None
        if manifest is None or source not in positions(manifest):
            self.ledger.violated("C4", f"source{source} is read, and no checkpoint holds where it began")

    # ---------------------------------------------------------------------------------------- sources, event time

    def folder(self, place: str) -> Any:
        """What is in an exported folder."""
        return Folder(self.disk, place) if self.open_folder is None else self.open_folder(place)

    def pace(self, source: int, at: int) -> tuple[int, int]:
        """How many rows a source has now behind those that were read, or else when to ask again."""
        if self.is_plain:
            return 6, 0
        until = self.quiet.get(source, 0)
        if until > self._time:
            return 0, until - self._time
        if self.terms.shape.letters and source == 0 and at and self.chance.random() < 0.6:
            return 0, 100_000  # so that people have the time to look at its letters before it ends
        chance = self.chance.random()
        if chance < 0.3:
            if chance < 0.02 and self.terms.shape.idle_after is not None:
                self.quiet[source] = self._time + 900_000
            return 0, self.chance.choice((1_000, 50_000, 300_000))
        return self.chance.choice((1, 1, 2)), 0

    def all_rows(self) -> list[tuple[int, int]]:
        """Also those that replays bring back."""
        rows = [(s, row) for s, total in enumerate(self.terms.shape.totals) for row in range(total)]
        return rows + sorted(self.ledger.facts.again)

    def time_of(self, row: int) -> int:
        return row % AGAIN * 1_000

    def time_allowed(self, source: int, seen: int, *, good: bool = False) -> EventTime:
        """The highest watermark of a source of which so many rows (or good rows) were seen."""
        shape = self.terms.shape
        rows = [row for row in range(shape.totals[source]) if not (good and shape.is_bad(source, row))]
        if seen >= len(rows):
            return MAX_WATERMARK
        return EventTime(self.time_of(rows[seen] - 1)) if (seen or shape.letters) and shape.marked else MIN_WATERMARK

    def restorable_now(self) -> list[int]:
        """Checkpoints that a rewind could name: known to the judge, and there to be read."""
        facts = self.ledger.facts
        there = {e.body.checkpoint for n, e in facts.entries.items() if self.disk.is_entry(n) and _is_manifest(e)}
        return [id for id in facts.known() if id in there]

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
        self._time += 1_000 if self.is_plain else (0, 1_000, 5_000, 20_000)[int(self.chance.random() * 4)]
        ready = [p for p in self.processes if p.frozen_until <= self.steps]
        found = self._next(list(ready))
        if found is None:
            times = [at for p in ready if (at := p.next_time()) is not None]
            if not times:
                self.processes = [p for p in self.processes if p.frozen_until > self.steps]
                return bool(self.processes)
            self._time = max(self._time, min(times))
            return True
        process, unit = found
        if unit is not None:
            self._do(process, *unit)
        return True

    def _next(self, ready: list[Process]) -> tuple[Process, tuple[str, Callable[[], None]] | None] | None:
        """A process first, then what it does: one with many tasks does not crowd another out."""
        if self.is_plain:
            return next(((p, unit) for p in ready for unit in p.units(self._time)), None)
        while ready:
            process = ready.pop(int(self.chance.random() * len(ready)) if self.chance.random() < 0.5 else 0)
            mine = list(process.units(self._time))
            if mine:
                return process, self._choice(mine)
        return None

    def _choice(self, mine: list[tuple[str, Callable[[], None]]]) -> Any:
        if self.slow and self.chance.random() < SLOWNESS:
            mine = [unit for unit in mine if unit[0] not in self.slow]
        return mine[int(self.chance.random() * len(mine))] if mine else None

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


def _is_manifest(entry: Any) -> bool:
    return isinstance(entry.body, Manifest)
