"""What is counted over a batch's flagged rows, by the way in its job: aggregates, and what one wants of them.

Knows nothing of layers, and of what is done with the figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.operators.by_partition import array_by_partition
from penstock.operators.window_checks import OWN
from penstock.state.changing import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

CODE: Final = f"{OWN}code"
"""Column of flagged rows: whether one is on time, late, or without an event time."""

PANE: Final = f"{OWN}pane"
"""Column of flagged rows: the end of its pane."""

ON_TIME, LATE, MISSING = 0, 1, 2
FIRST, LAST = "first", "last"

BY_PARTITION: Final = "late_by_partition"
"""The figure that tells late rows apart by source partition, as a JSON array."""

HEAVIEST: Final = "heaviest"
"""The figure that says how many rows on time the fullest place gets."""


class Wanted(NamedTuple):
    """What is to be told of a batch besides how many rows are ``on_time``, ``late`` and ``missing`` a time.

    Attributes:
        apart: the column that tells source partitions apart, and their names: late rows of each, :data:`BY_PARTITION`.
        places: among so many, how many rows on time the fullest gets: :data:`HEAVIEST`.
        reach: where the first and the last pane of rows on time end: :data:`FIRST` and :data:`LAST`.
    """

    apart: tuple[str, tuple[str, ...]] | None = None
    places: int = 0
    reach: bool = False


def figures_of(wanted: Wanted, keys: Sequence[str], schema: StructType) -> dict[str, Column]:
    """Aggregates over flagged rows, by name.

    Args:
        wanted: which.
        keys: plain columns of the rows.
        schema: of the rows.
    """
    from pyspark.sql import functions as F

    codes = {"on_time": ON_TIME, "late": LATE, "missing": MISSING}
    figures = {name: F.expr(f"count_if({CODE} = {code})") for name, code in codes.items()}
    if wanted.reach:
        for name, extreme in ((FIRST, "min"), (LAST, "max")):
            figures[name] = F.expr(f"{extreme}(CASE WHEN {CODE} = {ON_TIME} THEN {PANE} END)")
    if wanted.places:
        figures[HEAVIEST] = _heaviest(keys, wanted.places)
    if wanted.apart is not None:
        column, names = wanted.apart
        figure = f"count_if({{mine}} AND {CODE} <> {ON_TIME})"
        figures[BY_PARTITION] = F.expr(array_by_partition(figure, column, names, schema))
    return figures


def _heaviest(keys: Sequence[str], places: int) -> Column:
    from pyspark.sql import functions as F

    by = ", ".join(map(quoted, keys))
    place = f"CASE WHEN {CODE} = {ON_TIME} THEN pmod(CAST(hash({by}) AS BIGINT), {places}L) END"
    return F.greatest(*(F.expr(f"count_if({place} = {number}L)") for number in range(places)))
