"""Decides which layers to merge next; a pure policy that knows nothing of rows, Spark or files.

Layers fall into tiers by size, each tier ``fan`` times the one below, so a row is rewritten about once for each tier
it climbs and not once for each batch. Size counts, not age: merging is commutative, so any layers may be merged,
as long as they are in one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALLEST_TIER = 10_000
"""Rows up to which a layer is in tier 0: below that a merge costs the same whatever it merges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """What the policy looks at. Only layers of one ``group`` may be merged."""

    name: str
    level: int
    rows: int
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A decision: make one layer of ``level`` out of those named, and why."""

    names: tuple[str, ...]
    level: int
    reason: str


def tier(rows: int, *, fan: int) -> int:
    """The tier of a layer of ``rows`` rows.

    >>> [tier(rows, fan=4) for rows in (0, 10_000, 10_001, 40_000, 40_001)]
    [0, 0, 1, 1, 2]
    """
    found, bound = 0, SMALLEST_TIER
    while rows > bound:
        found, bound = found + 1, bound * fan
    return found


def plan_merge(layers: Sequence[Sized], *, fan: int = 4, limit: int = 8) -> Merge | None:
    """What to merge next, or ``None`` if all is well.

    A tier with ``fan`` layers is merged, and what is smaller comes along. If no tier is full but ``limit`` layers are
    there in all, the smallest of the most crowded group are merged: the stack must not grow.

    Args:
        layers: the stack; order does not matter.
        fan: how many layers fill a tier.
        limit: how many layers there may be.
    """
    for group in sorted({layer.group for layer in layers}):
        found = _full_tier([layer for layer in layers if layer.group == group], fan)
        if found:
            return _merge(found, f"tier of {fan} full")
    if len(layers) >= limit:
        found = _smallest(layers, fan)
        if found:
            return _merge(found, f"limit of {limit} reached")
    return None


def _full_tier(layers: list[Sized], fan: int) -> list[Sized]:
    tiers = {layer.name: tier(layer.rows, fan=fan) for layer in layers}
    for level in sorted(set(tiers.values())):
        if sum(1 for found in tiers.values() if found == level) >= fan:
            return [layer for layer in layers if tiers[layer.name] <= level]
    return []


def _smallest(layers: Sequence[Sized], fan: int) -> list[Sized]:
    groups: dict[int, list[Sized]] = {}
    for layer in layers:
        groups.setdefault(layer.group, []).append(layer)
    crowded = max(groups.values(), key=len)
    if len(crowded) == 1:
        return []
    return sorted(crowded, key=lambda layer: layer.rows)[:fan]


def _merge(layers: Sequence[Sized], reason: str) -> Merge:
    return Merge(
        names=tuple(layer.name for layer in layers),
        level=1 + max(layer.level for layer in layers),
        reason=reason,
    )
