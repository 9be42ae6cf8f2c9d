"""Every schedule of small worlds, over the product's own classes: depth first, with the states that were seen kept.

A run is told again from the start for each untried decision, until it comes to a state that was seen; from every
durable state that is new, one fresh driver must come to the end with everything published (the liveness oracle).

Rows of protocol.md part 4, each fault as often as the figure before it says; two rows of input in two batches, so
three checkpoints, where nothing else is said:

- ``crash``: a process dies before any of its calls (a death after a call is a death before the next), and another
  driver starts once nobody is left. ``unknown``: the answer of a create, a move, a commit or a void is lost, or the
  call lands at any later time or never. ``abort``: a settle, a create (and so a checkpoint), or
  a commit fails.
- ``zombie``: one driver more is started beside the first, at any time. ``rewind`` and ``discard``: a tool that takes
  the job over, to any older checkpoint that is kept or to the beginning. ``pin``: likewise, of the newest.
- ``received``: the rows are given by a client, which sends each until it is acknowledged, to whoever asks.
- ``take``: a reader takes a published file away. ``wipe``: the state directory is deleted while all are stopped.
- ``uneven``: two drivers end their batches behind different rows. ``keyed``: there is a step with state.
  ``retained``: so many checkpoints are kept.

``IN_TESTS`` is searched to the end by ``make test``: every order of the calls of all processes to disk and sink.
``LARGER`` rows are searched by ``make exhaust`` as far as their time goes; its table says whether that was all.

Steps of two processes whose order cannot matter are told in one order (``footprints``). A process is what its answers
have made of it; what it has read in vain is forgotten (``told``). Deaths before a call that only looks are left out,
and of two drivers that find no log the first to begin one is called the first.

Not searched: other orders within one process (its tasks and workers take turns in one order; the seeds of
``scenario`` vary that), several sources or sinks, wall clocks that run apart, a commit that finds its producer taken
more than once (``MOST_FENCED``), an expired marker (the seeds have it). States are told
apart by 64-bit hashes: two that collide would be taken for one.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from penstock.runtime.lifecycle import NoRestart
from simulation.directed import LONGEST, Directed
from simulation.fibers import on_one_core
from simulation.footprints import Footprint, are_independent
from simulation.ledger import Violation
from simulation.mischief import Faults
from simulation.oracle import check_liveness, left_behind
from simulation.process import Driver
from simulation.shapes import KINDS
from simulation.summaries import summarised

SMALLEST = (
    "2 crash",
    "1 unknown 3 rows",
    "1 abort 1 crash",
    "2 abort",
    "1 wipe 1 crash",
    "1 take 1 crash",
    "1 uneven 1 crash 3 rows",
    "1 pin",
    "1 rewind",
    "1 discard",
    "1 zombie",
    "1 received 1 crash",
    "1 received 1 unknown",
)
ONE_KIND = ("1 zombie", "1 received 1 crash", "1 received 1 unknown")
IN_TESTS = tuple((row, kind) for row in SMALLEST for kind in KINDS if row not in ONE_KIND or kind == "files/1")
"""All, but of the longest row, and of those that are not about sinks, only that of files; ``make exhaust`` has them."""

LARGER = (
    "1 crash 1 unknown",
    "1 pin 1 crash",
    "1 rewind 1 crash 2 retained",
    "1 discard 1 crash 2 retained",
    "1 rewind 1 abort 1 crash",
    "1 take 1 crash 1 unknown",
    "2 crash 1 keyed",
    "1 crash 1 unknown 1 keyed",
    "1 zombie 4 rows",
    "1 zombie 1 take",
    "1 zombie 1 abort",
    "1 zombie 1 crash",
    "1 zombie 1 pin",
    "1 zombie 1 uneven 3 rows",
    "1 zombie 1 unknown",
    "1 zombie 1 rewind",
    "1 zombie 1 discard",
    "1 received 1 pin",
    "1 received 1 rewind 2 retained",
    "1 received 1 crash 1 unknown",
    "1 received 1 zombie",
    "1 received 1 zombie 1 crash",
)


@dataclass
class Node:
    """A state with options that are not tried yet.

    ``asleep`` need not be tried: each was, and what was done since touches nothing that it touches.
    """

    path: tuple[str, ...]
    asleep: dict[str, Footprint]
    todo: list[str]


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
    states: dict[int, frozenset[str]] = field(default_factory=dict)
    """By key, what was asleep whenever it was reached."""
    _durable: set[int] = field(default_factory=set)
    _nodes: list[Node] = field(default_factory=list)

    def run(self) -> Search:
        began = time.perf_counter()
        self._nodes.append(Node((), {}, list(make(self.kind, self.setting).options())))
        while self._nodes and time.perf_counter() - began < self.seconds:
            node = self._nodes[-1]
            if not node.todo:
                self._nodes.pop()
                continue
            self.runs += 1
            world = make(self.kind, self.setting)
            try:
                self._play(world, node)
            except Violation as violation:
                self.found = "\n".join((*world.story, str(violation)))
                return self
            finally:
                world.end()
        self.is_all = not self._nodes
        return self

    def _play(self, world: Directed, node: Node) -> None:
        """Tell it again up to the node, and then on to what was seen."""
        world.replay(node.path)
        while node.todo and world.steps < LONGEST:
            option = node.todo.pop(0)
            footprint = world.do(option)
            self._ask_oracle(world)
            asleep = {name: each for name, each in node.asleep.items() if are_independent(each, footprint)}
            node.asleep[option] = footprint
            node = Node((*node.path, option), asleep, self._untried(world, asleep))
            if len(node.todo) > 1:
                self._nodes.append(node)

    def _untried(self, world: Directed, asleep: dict[str, Footprint]) -> list[str]:
        options = list(world.options())
        key = world.key()
        before = self.states.get(key)
        self.states[key] = frozenset(asleep) if before is None else before & asleep.keys()
        return [each for each in options if each not in asleep and (before is None or each in before)]

    def _ask_oracle(self, world: Directed) -> None:
        key = left_behind(world, durable_only=True)
        if key not in self._durable:
            self._durable.add(key)
            self.oracles += 1
            check_liveness(world, durable_only=True)

    def __str__(self) -> str:
        state = self.found or ("searched to the end" if self.is_all else "stopped by its time, nothing found")
        return f"{len(self.states):7} states, {self.runs:6} runs, {self.oracles:5} oracles: {state}"


def make(kind: str, setting: str) -> Directed:
    """A world of a setting: words with figures, as ``"2 crash 1 zombie"``."""
    parts = setting.split()
    wanted = {word: int(number) for number, word in zip(parts[::2], parts[1::2], strict=True)}
    faults = Faults(crashes=wanted.get("crash", 0), unknown=wanted.get("unknown", 0), failures=wanted.get("abort", 0))
    rows, retained = wanted.get("rows", 2), wanted.get("retained", 1)
    world = Directed(kind, faults, rows=rows, keyed="keyed" in wanted, retained=retained, receives="received" in wanted)
    world.takes, world.wipes = wanted.get("take", 0), wanted.get("wipe", 0)
    world.spare = wanted.get("crash", 0)
    world.is_uneven = "uneven" in wanted
    world.tools = [word for word in ("pin", "discard", "rewind") for _ in range(wanted.get(word, 0))]
    for _ in range(1 + wanted.get("zombie", 0)):
        world.start(Driver(world, world.name("D"), strategy=NoRestart()))
    return world


def search(kind: str, setting: str, seconds: float = 1e9) -> Search:
    with summarised(), on_one_core():
        return Search(kind, setting, seconds).run()


def main(seconds: float) -> int:
    """A table of all rows; the smallest to their end, the others for so many seconds each."""
    failed = 0
    for row in (*SMALLEST, *LARGER):
        for kind in KINDS:
            began = time.process_time()
            done = search(kind, row, 1e9 if row in SMALLEST else seconds)
            failed += bool(done.found)
            print(f"{kind:9} {row:28} {time.process_time() - began:6.1f} s of CPU {done}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if sys.argv[1:] else 60.0))
