"""What a planted bug is: a rule taken away by replacing something small, and put back afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Plant = Callable[[Callable[[Any, str, Any], None]], None]
"""Given ``put(owner, name, replacement)``, replaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A rule, what is done instead, and which core tests are asked if the simulation does not find it.

    ``blind``: the simulation has nothing that could find it. ``receives``: it is looked for in stories of a source that
    is given its rows.
    """

    name: str
    what: str
    plant: Plant
    core: str = ""
    note: str = ""
    blind: bool = False
    receives: bool = False


BUGS: dict[str, Bug] = {}
INHERITED = object()


def bug(name: str, what: str, **more: Any) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        BUGS[name] = Bug(name=name, what=what, plant=plant, **more)
        return plant

    return register


@contextmanager
def planted(name: str) -> Iterator[None]:
    undo: list[tuple[Any, str, Any]] = []

    def put(owner: Any, attribute: str, replacement: Any) -> None:
        assert hasattr(owner, attribute), f"{name} is planted where nothing is any more: {owner} has no {attribute}"
        undo.append((owner, attribute, vars(owner).get(attribute, INHERITED)))
        setattr(owner, attribute, replacement)

    BUGS[name].plant(put)
    try:
        yield
    finally:
        for owner, attribute, before in reversed(undo):
            if before is INHERITED:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, before)
