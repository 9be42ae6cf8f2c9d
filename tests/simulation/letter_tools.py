"""What a person does with dead letters: lists, replays, drops them. What decides is the product's commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.admin.dead_letter_replay import drop, plan_drop, replay
from penstock.admin.dead_letters import (
    CAUSE_COLUMNS,
    DeadLetterQueue,
    LetterFileInfo,
    dead_letter_queue,
    dead_letter_queues,
)
from penstock.clock import WallTime
from penstock.errors import CheckpointUnreadable, RequestRefused, UnknownName
from simulation.machine import Process
from simulation.outside import rows_of
from simulation.tools import Act, Tool

if TYPE_CHECKING:
    from simulation.world import World


@dataclass(frozen=True, slots=True)
class SimulatedLetterStore:
    """Opens files of the simulated disk, each call through its gate."""

    world: World

    def file_info(self, path: str) -> LetterFileInfo:
        data = self._read(path)
        return LetterFileInfo(
            rows=len(rows_of(data)), bytes=len(data), written=WallTime(self.world.disk.moved_at.get(path, 0))
        )

    def columns(self, path: str, names: Sequence[str]) -> list[list[Any]]:
        assert tuple(names) == CAUSE_COLUMNS
        sources = ["source0" if by == 0 else f"source0-r{by}" for _, _, by in rows_of(self._read(path))]
        rows = len(sources)
        return [["decode"] * rows, ["parse"] * rows, sources, [None] * rows]

    def _read(self, path: str) -> bytes:
        data = self.world.disk.read(path)
        if data is None:
            msg = f"{path} is gone"
            raise CheckpointUnreadable(msg)
        return data


@dataclass(frozen=True, slots=True)
class Directory:
    """The job's directory as commands see it; ``tool`` is the process of the command."""

    world: World
    tool: Process
    job: str = "sim"

    @property
    def filesystem(self) -> Any:
        return self.world.disk

    def read(self) -> Any:
        history = self.tool.log().read()
        if history.is_empty:
            msg = "there is no job sim"
            raise UnknownName(msg)
        return history

    def now(self) -> WallTime:
        return self.world.wall()


def replay_tool(world: World, uid: str | None, *, again: bool) -> Act:
    """Has all letters of a place read again."""
    command = world.new_id()
    if again:
        world.ledger.facts.asked_again.add(command)

    def act(tool: Tool) -> None:
        directory: Any = Directory(world, tool)
        judge = world.ledger.letters
        seen = judge.standing()
        try:
            done = replay(directory, uid, again=again, command=command, store=SimulatedLetterStore(world))
        except (UnknownName, RequestRefused) as error:
            world.tell(f"{tool.name}: {error}")
            world.count("replay refused")
            return
        world.tell(f"{tool.name} has written replays {done.replays} of '{done.uid}', {done.rows} rows")
        judge.told(seen, done)

    return act


def listed(world: World) -> tuple[DeadLetterQueue, ...]:
    """What somebody sees who lists letters between two steps of the story."""
    directory: Any = Directory(world, Process(world, "reader"))
    return dead_letter_queues(directory, store=SimulatedLetterStore(world))


class LetterDesk:
    """Does one of these things now and then."""

    def __init__(self, world: World) -> None:
        self._world = world

    def replay(self) -> bool:
        """Somebody looks at the letters, and has all of a place read again."""
        world, chance = self._world, self._world.chance
        world.ledger.letters.look()
        place = self._place()
        for _ in range(chance.choice((1, 1, 1, 2))):
            act = replay_tool(world, place, again=chance.random() < 0.2)
            world.start(Tool(world, world.name("replayer"), act))
        return True

    def drop(self) -> bool:
        """Somebody drops what is old, between two steps of the story."""
        world = self._world
        if world.disk.rotten or world.ledger.facts.tail < 0:
            return False
        directory: Any = Directory(world, Process(world, "dropper"))
        try:
            place = dead_letter_queue(directory, self._place(), store=SimulatedLetterStore(world))
        except UnknownName:
            return False
        times = sorted(file.written for file in place.files)
        before = WallTime(world.chance.choice((times[-1], *times)) + 1)
        dropping = plan_drop(directory.read(), place, before)
        files = [file.path for file in dropping.files]
        world.ledger.letters.drop(files)
        drop(directory, dropping)
        world.tell(f"dropped are {files}, kept {[file.path for file in dropping.kept]}")
        world.count("letters dropped" if files else "letters kept" if dropping.kept else "nothing dropped")
        return True

    def _place(self) -> str:
        finals = self._world.ledger.facts.finals
        return self._world.chance.choice(sorted({path.split("/")[3] for path in finals}))
