"""Every schedule of small worlds, over the product's own classes: depth first, with the states that were seen kept.

A run is told again from the start for each untried decision, until it comes to a state that was seen; from every
durable state that is new, one fresh driver must come to the end with everything published (the liveness oracle).

Searched to the end, in ``make test``: for each kind of sink and each row of ``SMALLEST``, two rows in two batches and
three checkpoints, every order of the calls of all processes to disk and sink, with a death before any call, a lost or
late answer, a failed fsync (which aborts a checkpoint) or an act of somebody else wherever the row grants one. That
is 25 to 800 states a row and kind. A death after a call is a death before the next.

``LARGER`` rows are searched as far as their time goes, and the table says whether that was all. ``1 pin`` (a tool
beside a living driver) ends after 1,800 to 2,100 states, in 10 to 20 seconds of CPU for tables and files. Two drivers
side by side (``zombie``), and a late answer together with a death, were stopped before their end; how many states they
have is not known.

Not searched: other orders within one process (its tasks and workers take turns in one order; the seeds of
``scenario`` vary that), more than one row a batch, several sources or sinks, wall clocks that run apart, a second
answer that is late. States are told apart by 64-bit hashes: two that collide would be taken for one.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from simulation.directed import Directed, Seen, make
from simulation.ledger import Violation
from simulation.oracle import check_liveness
from simulation.shapes import KINDS

SMALLEST = ("2 crash", "1 unknown", "1 abort 1 crash", "1 wipe", "1 take 1 crash")
LARGER = (
    "1 pin",
    "1 crash 1 unknown",
    "1 zombie",
    "1 zombie 1 crash",
    "1 zombie 1 unknown",
    "1 rewind",
    "1 discard",
    "1 rewind 1 crash",
    "1 discard 1 crash",
    "1 pin 1 crash",
    "1 zombie 1 keyed",
    "2 crash 1 keyed 3 rows",
)


@dataclass
class Search:
    """One row for one kind of sink."""

    kind: str
    setting: str
    seconds: float = 1e9
    runs: int = 0
    oracles: int = 0
    found: str = ""
    is_all: bool = False
    states: set[int] = field(default_factory=set)
    _durable: set[int] = field(default_factory=set)
    _todo: list[tuple[int, ...]] = field(default_factory=lambda: [()])

    def run(self) -> Search:
        began = time.perf_counter()
        while self._todo and time.perf_counter() - began < self.seconds:
            prefix = self._todo.pop()
            self.runs += 1
            try:
                self._play(prefix)
            except Violation as violation:
                self.found = f"{prefix}: {violation}"
                return self
        self.is_all = not self._todo
        return self

    def _play(self, prefix: tuple[int, ...]) -> None:
        taken: list[int] = []

        def choose(options: int, key: int) -> int:
            if len(taken) < len(prefix):
                taken.append(prefix[len(taken)])
                return taken[-1]
            if key != -1:
                if key in self.states:
                    raise Seen
                self.states.add(key)
            self._todo.extend((*taken, other) for other in range(1, options))
            taken.append(0)
            return 0

        world = make(self.kind, self.setting, choose)
        try:
            while world.step():
                if len(taken) >= len(prefix):
                    self._ask_oracle(world)
        except Seen:
            pass
        finally:
            world.end()

    def _ask_oracle(self, world: Directed) -> None:
        key = world.durable_key()
        if key not in self._durable:
            self._durable.add(key)
            self.oracles += 1
            check_liveness(world, durable_only=True)

    def __str__(self) -> str:
        state = self.found or ("searched to the end" if self.is_all else "stopped by its time, nothing found")
        return f"{len(self.states):7} states, {self.runs:6} runs, {self.oracles:5} oracles: {state}"


def search(kind: str, setting: str, seconds: float = 1e9) -> Search:
    return Search(kind, setting, seconds).run()


def main(seconds: float) -> int:
    failed = 0
    for setting in (*SMALLEST, *LARGER):
        for kind in KINDS:
            began = time.perf_counter()
            done = search(kind, setting, 1e9 if setting in SMALLEST else seconds)
            failed += bool(done.found)
            print(f"{kind:9} {setting:24} {time.perf_counter() - began:6.1f} s {done}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if sys.argv[1:] else 60.0))
