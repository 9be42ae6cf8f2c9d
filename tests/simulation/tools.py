"""The operator's tools as processes: each claims the log, looks again at what it wants, does it, and is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.entries import Pin, Unpin
from penstock.checkpoint.log import OwnedLog
from penstock.errors import PenstockError
from penstock.ids import CheckpointId
from simulation import process
from simulation.outside import committer_for

if TYPE_CHECKING:
    from simulation.world import World


class Tool(process.Process):
    """Claims a log that nobody may own, looks again at what it wants, does it, and is gone."""

    def __init__(self, world: World, name: str, act: Callable[[Tool, OwnedLog], None]) -> None:
        super().__init__(world, name)
        self._act = act
        self.spawn("tool", self._run)

    def _run(self) -> None:
        try:
            self._act(self, self.claim(take_over=True))
        except PenstockError as error:
            self.ends(error)
        else:
            self.ends("done")


def rewind_tool(to: CheckpointId | None, *, discard: bool) -> Callable[[Tool, OwnedLog], None]:
    def act(tool: Tool, owned: OwnedLog) -> None:
        world = tool.world
        wanted: dict[str, Any] = {"fresh": True} if to is None else {"rewind_to": to}
        recovery = process.decide_recovery(
            owned.history, world.pipeline.steps, at=world.wall(), discard_unpublished=discard, **wanted
        )
        process.carry_out(
            recovery,
            log=owned,
            filesystem=world.disk,
            commit=lambda item: committer_for(world, item.kind).commit(item),
            void=lambda item: committer_for(world, item.kind).void(item),
            listener=world.listen,
            pause=tool.pause,
        )

    return act


def pin_tool(to: CheckpointId, name: str) -> Callable[[Tool, OwnedLog], None]:
    def act(tool: Tool, owned: OwnedLog) -> None:
        if to in owned.history.restorable:
            owned.append(Pin(name=name, checkpoint=to, at=tool.world.wall()))

    return act


def unpin_tool(name: str) -> Callable[[Tool, OwnedLog], None]:
    def act(tool: Tool, owned: OwnedLog) -> None:
        if name in owned.history.pins:
            owned.append(Unpin(name=name, at=tool.world.wall()))

    return act
