"""What a snapshot and an emission name: layers as of one moment, kept until they are done with. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.elements import Lease
    from penstock.handles import Json
    from penstock.state.layer import Layer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cover:
    """What a snapshot names: layers up to ``epoch`` that were not durable then, the horizon, and the step's own notes.

    ``lease`` keeps the blocks of ``layers`` until the snapshot is durable or given up. ``base`` is the epoch in which
    one layer last took the place of all: what was durable before that is in it.
    """

    epoch: int
    base: int
    horizon: int
    layers: tuple[Layer, ...]
    lease: Lease
    notes: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Told:
    """The layers an emission is made of: those that were told of before, and those that are new. Kept by ``lease``."""

    old: tuple[Layer, ...]
    new: tuple[Layer, ...]
    lease: Lease
