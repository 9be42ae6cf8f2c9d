"""What goes wrong in a simulated world: at every call another may go first, a process die, an answer be lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from simulation.disk import UNCERTAIN
from simulation.fibers import Fiber, Killed

if TYPE_CHECKING:
    from penstock.checkpoint.log import OwnedLog
    from simulation.process import Process


WEIGHTS = {"create": 4, "move": 3}
"""Few calls, and all depends on them: entries and commits."""
AT_A_FOLDER = 10
"""So much likelier is a death at a call to an exported folder: a job begins with one once, if at all."""


@dataclass(slots=True, kw_only=True)
class Faults:
    """How much may still go wrong, and how likely each is at every call."""

    crashes: int = 0
    starts: int = 0
    unknown: int = 0
    failures: int = 0
    broken: int = 0
    """How often a source or a Spark job fails: the attempt ends, and the next begins again."""
    preempt: float = 0.5
    crash_rate: float = 0.01
    fault_rate: float = 0.05
    sink_down: float = 0.0
    """How often a commit fails, or its answer is lost: output stays open for long."""


class Mischief:
    """The part of a world that all calls go through."""

    chance: Random
    faults: Faults
    is_plain: bool
    current: Process | None

    def tell(self, what: str) -> None:
        raise NotImplementedError

    def count(self, what: str) -> None:
        raise NotImplementedError

    def before(self, name: str, path: str) -> None:
        """A call is about to begin: another may go first, the process may die."""
        process = self.current
        assert process is not None
        if not self.is_plain and Fiber.current is not None and self.chance.random() < self.faults.preempt:
            Fiber.current.pause()
        if process.is_dead:
            raise Killed
        self._may_die("before", name, path)

    def after(self, name: str, path: str) -> None:
        """A call has had its effect."""
        self._may_die("after", name, path)

    def _may_die(self, when: str, name: str, path: str) -> None:
        faults = self.faults
        rate = faults.crash_rate * (AT_A_FOLDER if path.startswith("/exports/") else 1)
        if faults.crashes and self.chance.random() < rate:
            faults.crashes -= 1
            self.tell(f"is killed {when} {name} {path}")
            self.count("crash in a call")
            raise Killed

    def fault(self, name: str, path: str) -> str | None:
        faults = self.faults
        if faults.sink_down and name == "move" and self.chance.random() < faults.sink_down:
            return self.chance.choice(("fails", "fails", "lost", "late"))
        if not (faults.unknown or faults.failures):
            return None
        rate = faults.fault_rate * WEIGHTS.get(name, 1)
        if self.chance.random() >= rate:
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

    def observe(self, what: object) -> None:
        """A call has told something; a search that tells states apart wants to know."""

    def touches(self, name: str, path: str) -> None:
        """Something is looked at or changed that is not a call; a search wants to know that, too."""

    @contextmanager
    def remembering(self, call: str) -> Iterator[list[object]]:
        """A call of which only the result matters, which is put into the list."""
        yield []

    def claimed(self, process: Process, owned: OwnedLog) -> None:
        """A process has the log, and has read it under its claim."""

    def sink_call(self, name: str, uid: str) -> str | None:
        """A call to a table or broker: its answer may be lost, it may fail."""
        self.before(name, uid)
        return self.fault("move" if name in ("commit", "void") else name, f"{name} of {uid}")

    def may_break(self, kind: type[PenstockError], what: str) -> None:
        """A call that a restart may help: to a source, of a Spark job."""
        if self.faults.broken and self.chance.random() < 0.04:
            self.faults.broken -= 1
            self.tell(what)
            self.count(f"broken {kind.__name__}")
            raise kind(what)
