"""Decides which layers to merge next, in memory and on disk, and which to write before a checkpoint asks."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# In memory, many layers cost planning. So layers fall into tiers by size, each tier ``fan`` times the one below: a row
# is rewritten about once for each tier it climbs and not once for each batch. Durable layers cost little as they are,
# and bytes rewritten cost much: they wait until a merge gives back more than it writes. Size counts, not age: merging
# is commutative, so any layers may be merged, as long as they are in one group.

SMALLEST_TIER = 10_000
"""Rows up to which a layer is in tier 0: below that a merge costs the same whatever it merges."""
_SMALL_MERGE: Final = 4 * SMALLEST_TIER
"""Rows up to which a merge costs about the same."""
MERGED_AT_ONCE: Final = 300_000
"""Rows above which layers in memory are merged by several jobs in turn: other tasks go between."""
MAX_MERGE_READS: Final = 8
"""How often such a merge may read each row, on average: a layer that was made at once is read by each job."""
MAX_ROWS_BESIDE: Final = 2_500_000
"""Rows beside the largest layer in memory up to which it does not matter how many are superseded."""
PIECE_ROWS: Final = 64_000
"""Rows that are not durable at which they are written as a piece: a few tenths of a second of merging and writing."""
PIECE_SHARE: Final = 4
"""Pieces between two checkpoints hold at most 1/PIECE_SHARE of the keys that change: more would be written twice."""
DURABLE_LIMIT: Final = 48
"""Number of durable layers at which some are merged, whatever it costs: a restore scans all their files at once."""
MAX_WRITE_AMPLIFICATION: Final = 0.45
"""Bytes that a merge of all durable layers may write, for each byte written since the last such merge."""
MAX_SPACE_AMPLIFICATION: Final = 1.3
"""Bytes of all durable layers, over those of the largest, above which a settled state is merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSize:
    """A layer as the policies see it. Only layers of one ``group`` may be merged."""

    name: str
    level: int
    rows: int
    group: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A decision to merge the named layers into one of ``level``, and why."""

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


def plan_memory_compaction(
    layers: Sequence[LayerSize], *, changing: float = inf, fan: int = 4, limit: int = 8
) -> Compaction | None:
    """Which layers in memory to merge next, or ``None`` if none.

    All of a group, if many of their rows are superseded; a full tier, of ``fan`` layers, together with all smaller
    layers; else as ``plan_crowded_compaction``.

    Args:
        layers: the stack; order does not matter.
        changing: about how many keys change: see ``changing_keys``.
        fan: how many layers fill a tier.
        limit: how many layers there may be.
    """
    for group in sorted({layer.group for layer in layers}):
        some = [layer for layer in layers if layer.group == group]
        beside = _superseding(some, changing)
        if beside:
            return _merge(some, f"{beside} rows beside the largest layer")
        found = _full_tier(some, fan)
        if found:
            return _merge(found, f"tier of {fan} full")
    return plan_crowded_compaction(layers, fan=fan, limit=limit)


def plan_crowded_compaction(layers: Sequence[LayerSize], *, fan: int, limit: int) -> Compaction | None:
    """Which layers in memory to merge only because there are ``limit`` in all, or ``None`` if there are fewer.

    The smallest layers of the largest group: at most ``fan``, and the number that costs least for each layer saved.
    """
    if len(layers) >= limit:
        found = _most_crowded(layers, fan)
        if found:
            return _merge(found, f"limit of {limit} reached")
    return None


def changing_keys(rows: Sequence[int], merged: int) -> float:
    """About how many keys change, if layers of so many ``rows`` each are ``merged`` rows once merged.

    >>> [round(found) if found < inf else found for found in (changing_keys([100, 50], n) for n in (150, 145, 100, 60))]
    [inf, 1000, 100, 60]
    """
    if merged == sum(rows):
        return inf

    def expected(keys: float) -> float:
        """What they would be if each had rows of as many keys, drawn by chance."""
        return keys * (1 - prod(max(0.0, 1 - count / keys) for count in rows))

    least = most = float(merged)  # there are no fewer
    while most and expected(most) < merged:
        least, most = most, 2 * most
    while most - least > least / 1e6:
        middle = (least + most) / 2
        least, most = (middle, most) if expected(middle) < merged else (least, middle)
    return most


def is_piece(layers: Sequence[LayerSize], *, room: float) -> bool:
    """Whether layers that are not durable surely have ``PIECE_ROWS`` rows once merged, and no more than ``room``."""
    rows = [layer.rows for layer in layers]
    return max(rows, default=0) >= PIECE_ROWS and sum(rows) <= room


def plan_piece_merge(layers: Sequence[LayerSize], *, room: float) -> Compaction | None:
    """Which layers to merge to find out whether there are enough rows for a piece; ``None`` if it is not yet worth it.

    Changes of the same keys merge to few rows, which wait for the checkpoint: a piece would write them again and again.
    Rows have doubled when they are merged again, so that each is rewritten once or twice.

    Args:
        layers: that are not durable; order does not matter.
        room: rows that pieces may still have until the next checkpoint.
    """
    if room < PIECE_ROWS or is_piece(layers, room=room):
        return None
    for group in sorted({layer.group for layer in layers}):
        found = [layer for layer in layers if layer.group == group]
        rows = [layer.rows for layer in found]
        if sum(rows) >= max(PIECE_ROWS, 2 * max(rows)):
            return _merge(found, f"{sum(rows)} rows may be enough for a piece")
    return None


def plan_durable_compaction(
    layers: Sequence[LayerSize], *, live_rows: int, settled: bool, limit: int = DURABLE_LIMIT
) -> Compaction | None:
    """Which durable layers to merge next, or ``None`` if waiting is cheaper.

    All of them once enough bytes were added since the last such merge (``MAX_WRITE_AMPLIFICATION``), or when the
    state has settled and superseded rows take up space (``MAX_SPACE_AMPLIFICATION``). At ``limit``, those whose
    merge writes least for each layer saved.

    Args:
        layers: with their bytes; order does not matter.
        live_rows: at most how many rows there are when all are merged.
        settled: whether the last checkpoints added next to nothing.
        limit: how many layers there may be.
    """
    if len(layers) < 2:  # noqa: PLR2004 - there is nothing to merge
        return None
    rising = sorted(layers, key=lambda layer: layer.bytes)
    total = sum(layer.bytes for layer in layers)
    greatest = rising[-1].bytes
    live = _live_bytes(layers, live_rows)
    if settled and total > MAX_SPACE_AMPLIFICATION * greatest:
        return _merge(rising, "state has settled")
    if MAX_WRITE_AMPLIFICATION * (total - greatest) >= live:
        return _merge(rising, f"{total - greatest} bytes added to {greatest}")
    if len(layers) < limit:
        return None
    written = _cheapest(rising, lambda some: min(live, sum(layer.bytes for layer in some)))
    return _merge(written, f"limit of {limit} reached")


def _live_bytes(layers: Sequence[LayerSize], live_rows: int) -> float:
    """Bytes of all layers once merged, at most."""
    rows = max(1, sum(layer.rows for layer in layers))
    return sum(layer.bytes for layer in layers) * min(1.0, live_rows / rows)


def _superseding(layers: Sequence[LayerSize], changing: float) -> int:
    """Rows beside the largest layer, if they are no fewer than it has and than keys change; else 0.

    A tier of large layers fills late, and until then they may be the same keys again and again. Merged now, there are
    about twice as many rows in memory as keys. Where keys only come, nothing is superseded, and tiers are cheaper.
    """
    rows = [layer.rows for layer in layers]
    largest = max(rows, default=0)
    beside = sum(rows) - largest
    return beside if beside >= max(MAX_ROWS_BESIDE, largest, changing) else 0


def _full_tier(layers: Sequence[LayerSize], fan: int) -> Sequence[LayerSize]:
    tiers = {layer.name: tier(layer.rows, fan=fan) for layer in layers}
    for level in sorted(set(tiers.values())):
        if sum(1 for found in tiers.values() if found == level) >= fan:
            return [layer for layer in layers if tiers[layer.name] <= level]
    return []


def _most_crowded(layers: Sequence[LayerSize], fan: int) -> Sequence[LayerSize]:
    """Some of the smallest layers of the largest group; a far larger layer is not worth merging for one less."""
    groups: dict[int, list[LayerSize]] = {}
    for layer in layers:
        groups.setdefault(layer.group, []).append(layer)
    crowded = max(groups.values(), key=len)
    if len(crowded) == 1:
        return []
    rising = sorted(crowded, key=lambda layer: layer.rows)[:fan]
    return _cheapest(rising, lambda some: max(_SMALL_MERGE, sum(layer.rows for layer in some)))


def _cheapest(rising: Sequence[LayerSize], cost: Callable[[Sequence[LayerSize]], float]) -> Sequence[LayerSize]:
    """The smallest layers, in the number that costs least to merge for each layer saved."""
    prefixes = (rising[:count] for count in range(2, len(rising) + 1))
    return min(prefixes, key=lambda some: cost(some) / (len(some) - 1))


def _merge(layers: Sequence[LayerSize], reason: str) -> Compaction:
    return Compaction(
        names=tuple(layer.name for layer in layers),
        level=1 + max(layer.level for layer in layers),
        reason=reason,
    )
