"""What operators ask of running jobs: savepoints, checkpoints, stops; from within or through ``control/``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint.events import CheckpointRequested, StopRequested
from penstock.control.protocol import RequestKind
from simulation.asker import asker, scribbler
from simulation.process import Driver
from simulation.tools import Tool

if TYPE_CHECKING:
    from simulation.world import World

MS = 1_000


class Orders:
    """Asks by chance."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stopping: Driver | None = None
        self._drains = False
        self._nags = 0

    def ask(self) -> bool:
        """Savepoints and checkpoints, one or several at a time, or a stop; from within, or through ``control/``."""
        world, chance = self._world, self._world.chance
        drivers = [p for p in world.processes if isinstance(p, Driver) and p.generation >= 0]
        if not drivers:
            return False
        asked = chance.choice(drivers)
        for number in range(chance.choice((1, 1, 3))):
            request = f"request-{world.steps}-{number}"
            name = f"s{world.steps}-{chance.choice((0, number))}" if chance.random() < 0.5 else None
            world.count("request")
            if world.terms.controlled and chance.random() < 0.7:
                self._ask_outside(request, name, asked.generation)
                continue
            now, wall = world.now(), world.wall()
            event: CheckpointRequested | StopRequested
            if chance.random() < 0.6:
                event = CheckpointRequested(at=now, wall=wall, request=request, name=name)
            else:
                patience = chance.choice((None, 1 * MS, 100 * MS))
                event = StopRequested(at=now, wall=wall, request=request, name=name, patience=patience)
                self._stopping, self._nags, self._drains = asked, 4, False
            asked.desk.ask(event)
        return True

    def drain(self) -> bool:
        """A stop after which nothing more is read; sometimes with somebody who wants a savepoint meanwhile."""
        world, chance = self._world, self._world.chance
        drivers = [p for p in world.processes if isinstance(p, Driver) and p.generation >= 0]
        if not drivers:
            return False
        asked, request = chance.choice(drivers), f"request-{world.steps}-drain"
        world.count("drain")
        world.is_draining = True
        world.ledger.facts.drains.add(request)
        if world.terms.controlled and chance.random() < 0.5:
            act = asker(world, RequestKind.DRAIN, request, None, asked.generation, repeats=chance.random() < 0.4)
            world.start(Tool(world, world.name("asker"), act))
            return True
        now, wall, patience = world.now(), world.wall(), chance.choice((None, 100 * MS))
        name = f"d{world.steps}" if chance.random() < 0.3 else None
        event = StopRequested(at=now, wall=wall, request=request, name=name, patience=patience, drain=True)
        self._stopping, self._nags, self._drains = asked, 6, True
        asked.desk.ask(event)
        return True

    @property
    def is_nagging(self) -> bool:
        """Whether somebody who asked a job to stop becomes impatient."""
        return self._nags > 0 and self._stopping in self._world.processes

    def nag(self) -> None:
        """Ask it again to stop, perhaps when it has nearly done so."""
        assert self._stopping is not None
        self._nags -= 1
        world = self._world
        request = f"request-{world.steps}-again"
        world.count("nag")
        if self._drains and world.chance.random() < 0.3:
            wanted = CheckpointRequested(at=world.now(), wall=world.wall(), request=request, name=f"n{world.steps}")
            self._stopping.desk.ask(wanted)
            return
        if self._drains:
            world.ledger.facts.drains.add(request)
        stop = StopRequested(at=world.now(), wall=world.wall(), request=request, drain=self._drains)
        self._stopping.desk.ask(stop)

    def _ask_outside(self, request: str, name: str | None, generation: int) -> None:
        world, chance = self._world, self._world.chance
        if chance.random() < 0.15:
            world.start(Tool(world, world.name("scribbler"), scribbler(world, request, generation)))
            return
        kinds = (
            (RequestKind.STOP, RequestKind.CHECKPOINT, RequestKind.HELLO)
            if name is None
            else (RequestKind.SAVEPOINT, RequestKind.PIN, RequestKind.UNPIN)
        )
        kind = chance.choice(kinds)
        if kind is RequestKind.PIN and not world.ledger.facts.manifests:
            kind = RequestKind.SAVEPOINT
        if kind is RequestKind.UNPIN:
            name = chance.choice(sorted(world.ledger.facts.pins) or [name])
        addressed = generation + chance.choice((0, 0, 0, -1, 1))
        act = asker(world, kind, request, name, max(0, addressed), repeats=chance.random() < 0.4)
        world.start(Tool(world, world.name("asker"), act))
