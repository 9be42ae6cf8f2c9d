"""The operator's tools as processes: each claims the log, looks again at what it wants, does it, and is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.entries import Condemn, Pin, Unpin
from penstock.checkpoint.gc import layers_of, needed_files
from penstock.errors import PenstockError, StateDirectoryRefused
from penstock.handles import CheckpointId
from simulation import process
from simulation.machine import Process
from simulation.outside import committer_for

if TYPE_CHECKING:
    from simulation.world import World

Act = Callable[["Tool"], None]


class Tool(Process):
    """Does one thing and is gone."""

    def __init__(self, world: World, name: str, act: Act) -> None:
        super().__init__(world, name)
        self._act = act
        self.spawn("tool", self._run)

    def _run(self) -> None:
        try:
            self._act(self)
        except PenstockError as error:
            self.ends(error)
        else:
            self.ends("done")


def rewind_tool(to: CheckpointId | None, *, discard: bool, past_unreadable: bool = False, plans: bool = False) -> Act:
    """``plans``: it looks first, without a claim, and refuses if the log has moved since."""

    def act(tool: Tool) -> None:
        world = tool.world
        seen = tool.log().read(past_unreadable=past_unreadable).tail if plans else None
        owned = tool.claim(take_over=True, past_unreadable=past_unreadable, expect_tail=seen)
        if seen is not None and owned.generation != seen + 1 and not tool.world.disk.rotten:
            world.ledger.violated("L2", f"entry {seen} was expected to be the newest, {owned.generation} is our claim")
        wanted: dict[str, Any] = {"fresh": True} if to is None else {"rewind_to": to}
        recovery = process.decide_recovery(
            owned.history,
            world.pipeline.steps,
            at=world.wall(),
            discard_unpublished=discard,
            allow_non_restored_state=True,
            **wanted,
        )
        process.execute_recovery(
            recovery,
            log=owned,
            filesystem=world.disk,
            commit=lambda item: committer_for(tool, item.kind).commit(item),
            void=lambda item: committer_for(tool, item.kind).void(item),
            listener=lambda fact: world.count(type(fact).__name__),
            pause=tool.pause,
        )

    return act


def pin_tool(to: CheckpointId, name: str) -> Act:
    def act(tool: Tool) -> None:
        owned = tool.claim(take_over=True)
        if to in owned.history.restorable:
            owned.append(Pin(name=name, checkpoint=to, at=tool.world.wall(), request=f"pin-{name}"))

    return act


def unpin_tool(name: str) -> Act:
    def act(tool: Tool) -> None:
        owned = tool.claim(take_over=True)
        if name in owned.history.pins:
            owned.append(Unpin(name=name, at=tool.world.wall()))

    return act


def condemn_tool(to: CheckpointId) -> Act:
    """Gives a checkpoint up by hand, with the files that only it needs."""

    def act(tool: Tool) -> None:
        owned = tool.claim(take_over=True)
        read, point = owned.history, owned.history.restore_point
        if to not in read.restorable or to in read.pinned or (point is not None and point.checkpoint == to):
            return
        others = {path for id, each in read.restorable.items() if id != to for path in layers_of(each)}
        files = sorted(layers_of(read.restorable[to]) - others - set(read.condemned_files()))
        assert needed_files(read) >= set(files)
        owned.append(Condemn(checkpoints=(to,), files=tuple(files), at=tool.world.wall(), reason="by hand"))

    return act


def stranger(tool: Tool) -> None:
    """A job of another name that was given this directory: refused before it writes anything."""
    before = tool.world.ledger.facts.tail
    try:
        tool.claim(job="another", take_over=True)
    except StateDirectoryRefused:
        return
    if before >= 0:
        tool.world.ledger.violated("job", "another job has claimed this log")
