"""Another process that asks a running job through ``control/``."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.checkpoint import paths
from penstock.control.protocol import ControlFiles, Request, RequestKind
from penstock.filesystem.base import UnknownOutcome
from penstock.handles import Generation
from simulation.tools import Act, Tool

if TYPE_CHECKING:
    from simulation.world import World


def scribbler(world: World, request: str, generation: int) -> Act:
    """Another process that puts something there which is no request, or one that its kind cannot be."""
    asked: dict[str, object] = {
        "format": 1,
        "request": request,
        "kind": "stop",
        "generation": max(0, generation),
        "asked": world.wall(),
        "owner": "somebody",
        "name": None,
        "checkpoint": None,
        "patience": None,
        "log": None,
    }
    wrong = world.chance.choice(
        (
            {"format": 2},
            {"request": "another"},
            {"kind": "explode"},
            {"kind": "savepoint"},
            {"kind": "savepoint", "name": "7"},
            {"kind": "hello", "name": "why"},
            {"kind": "pin", "name": "kept"},
            {"patience": -1},
            {"generation": "new"},
            {"more": 1},
            None,
        )
    )
    data = b"{" if wrong is None else json.dumps({**asked, **wrong}).encode()

    def act(tool: Tool) -> None:
        with suppress(UnknownOutcome):
            tool.world.disk.create(paths.request(request), data)

    return act


def asker(world: World, kind: RequestKind, request: str, name: str | None, generation: int, *, repeats: bool) -> Act:
    """Another process that asks through ``control/`` and waits; it may ask the same again."""

    def act(tool: Tool) -> None:
        files = ControlFiles(world.disk)
        known = sorted(world.ledger.facts.manifests)
        asked = Request(
            request=request,
            kind=kind,
            generation=Generation(generation),
            asked=world.wall(),
            owner=tool.name,
            name=name,
            checkpoint=known[-1] if kind is RequestKind.PIN else None,  # type: ignore[arg-type]
            patience=50_000 if kind is RequestKind.STOP and name is None else None,
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
