"""How far a shadow run is, for whoever waits for it. Decides nothing, prints nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

COPYING: Final = "copying"
STARTING: Final = "starting"
COMPARING: Final = "comparing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What is done now, and how much of it.

    Attributes:
        doing: ``copying`` the savepoint, ``starting`` Spark, running the ``old`` or the ``new`` code, or ``comparing``
            what they wrote.
        done: bytes that were copied, rows that a run has read, sinks that were compared.
        of: how many there are; ``None`` if that is not known.
        behind: rows that wait, as far as sources tell, where ``of`` is not known.
    """

    doing: str
    done: int = 0
    of: int | None = None
    behind: int | None = None


Told: TypeAlias = Callable[[Stage], None]
"""Gets each stage, from any thread; must be quick and must not raise."""


def nobody(_stage: Stage) -> None:
    """Where nobody waits."""
