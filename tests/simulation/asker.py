"""Another process that asks a running job through ``control/``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.checkpoint.control import ControlRequest, Kind
from penstock.checkpoint.control_files import ControlFiles
from penstock.ids import Generation
from simulation.tools import Act, Tool

if TYPE_CHECKING:
    from simulation.world import World


def asker(world: World, kind: Kind, request: str, name: str | None, generation: int, *, repeats: bool) -> Act:
    """Another process that asks through ``control/`` and waits; it may ask the same again."""

    def act(tool: Tool) -> None:
        files = ControlFiles(world.disk)
        known = sorted(world.ledger.facts.manifests)
        asked = ControlRequest(
            request=request,
            kind=kind,
            generation=Generation(generation),
            asked=world.wall(),
            owner=tool.name,
            name=name,
            checkpoint=known[-1] if kind is Kind.PIN else None,  # type: ignore[arg-type]
            patience=50_000 if kind is Kind.STOP and name is None else None,
        )
        files.ask(asked, pause=tool.pause)
        first = files.wait_for_answer(request, seconds=3.0, now=world.now, pause=tool.pause)
        if not repeats:
            return
        files.ask(asked, pause=tool.pause)
        second = files.wait_for_answer(request, seconds=1.0, now=world.now, pause=tool.pause)
        if first is not None and second != first:
            world.ledger.violated("C3", f"{request} was answered {first}, and now {second}")

    return act
