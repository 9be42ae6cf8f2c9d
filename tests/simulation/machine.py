"""A simulated process: pieces of work that run in turns, and all die together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.entries import Claim
from penstock.checkpoint.log import Log, OwnedLog
from simulation.broker import SimulatedPublishers
from simulation.fibers import Fiber, FiberLock
from simulation.threadless import Piece

if TYPE_CHECKING:
    from simulation.world import World


@dataclass(frozen=True, slots=True)
class Trimming:
    """The disk in the hands of one claim, which trims its log only as long as it does not know of a fence (L5)."""

    owned: OwnedLog
    name: str
    _world: World

    def delete(self, path: str) -> None:
        if self.owned._fence is not None:
            self._world.ledger.violated("L5", f"{self.name} trims {path}, and knows that it is fenced")
        self._world.disk.delete(path)

    def list(self, prefix: str) -> Sequence[str]:
        return self._world.disk.list(prefix)


@dataclass(eq=False)
class Process:
    """Something that runs on a machine of its own and can die there."""

    world: World
    name: str
    pieces: list[Piece] = field(default_factory=list)
    is_dead: bool = False
    outcome: object = None
    frozen_until: int = 0
    owned: OwnedLog | None = None
    """The log under its newest claim."""

    def __post_init__(self) -> None:
        self.publishers = SimulatedPublishers(self.world)

    def spawn(self, name: str, work: Callable[[], None], *, after: int = 0) -> None:
        self.pieces.append(Piece(name, None, work, sleeps_until=after))

    def units(self, now: int) -> Iterator[tuple[str, Callable[[], None]]]:
        """What could go on now."""
        for piece in self.pieces:
            if piece.sleeps_until <= now:
                yield piece.name, partial(self.go_on, piece)

    def next_time(self) -> int | None:
        """When something could go on, if nothing can now."""
        return min((piece.sleeps_until for piece in self.pieces), default=None)

    def go_on(self, piece: Piece) -> None:
        if self.world.is_plain:
            self.world.piece = piece
            self.pieces.remove(piece)
            piece.work()
            return
        if piece.fiber is None:
            piece.fiber = Fiber(piece.work)
        self.world.piece = piece
        piece.fiber.resume()
        if piece.fiber.is_over:
            if piece in self.pieces:
                self.pieces.remove(piece)
            if isinstance(piece.fiber.error, BaseException):
                raise piece.fiber.error

    def kill(self) -> None:
        self.is_dead = True
        for piece in self.pieces:
            if piece.fiber is not None and piece.fiber is not Fiber.current:
                piece.fiber.kill()
        self.pieces = [piece for piece in self.pieces if piece.fiber is Fiber.current and piece.fiber]

    def log(self, job: str = "sim") -> Log:
        return Log(self.world.disk, job=job, new_id=self.world.new_id, pause=self.pause)

    def claim(self, *, job: str = "sim", **options: Any) -> OwnedLog:
        body = Claim(host=self.name, pid=1, started=self.world.wall(), version="sim")
        owned = self.log(job).claim(body, **options)
        owned._lock = FiberLock()  # type: ignore[assignment]  # a thread's lock would stop the whole simulation
        owned._filesystem = Trimming(owned, self.name, self.world)  # type: ignore[assignment]  # it calls no more than this
        self.owned = owned
        self.world.claimed(self, owned)
        return owned

    def pause(self, seconds: float) -> None:
        self.world.sleep(self, seconds)

    def ends(self, outcome: object) -> None:
        self.outcome = outcome
        self.world.tell(f"{self.name} ends: {outcome}")
        self.world.judge(self, outcome)
