"""Figures of a batch: rows on time and late, ends of panes; over its flagged rows, or over their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.spark.plans import AHEAD_BOUND, Figure, conditions_of, figure_by_partition
from penstock.state.layers import STATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column
    from pyspark.sql.types import StructType


INTERNAL: Final = "__penstock_"
"""Prefix of columns that a frame has only inside a step."""


# ---- figures over a batch's flagged rows -----------------------------------------------------------------------------
# Flagged rows have two more columns, the end of their pane and their timeliness.

TIMELINESS: Final = f"{INTERNAL}code"
"""Column of flagged rows: ``ROW_ON_TIME``, ``ROW_LATE`` or ``ROW_WITHOUT_TIME``."""
PANE: Final = f"{INTERNAL}pane"
"""Column of flagged rows: the end of a row's pane."""
ROW_ON_TIME, ROW_LATE, ROW_WITHOUT_TIME = 0, 1, 2
FIRST, LAST = "first", "last"
BEFORE: Final = "before: "
"""How the names of figures begin that were to be observed before the step."""
BY_PARTITION: Final = "late_by_partition"
"""The figure with the late rows of each source partition, as a JSON array."""


class WantedFigures(NamedTuple):
    """Figures wanted of a batch, in addition to the numbers of rows ``on_time``, ``late`` and ``missing`` a time.

    Attributes:
        late_by: the column with a row's source partition, and the partitions' names, for ``BY_PARTITION``.
        bounds: whether the least and the greatest end of panes of rows on time are wanted: ``FIRST``, ``LAST``.
    """

    late_by: tuple[str, tuple[str, ...]] | None = None
    bounds: bool = False


def figures_of(wanted: WantedFigures, schema: StructType) -> dict[str, Column]:
    """Aggregates over flagged rows with these columns, by name."""
    from pyspark.sql import functions as F

    codes = {"on_time": ROW_ON_TIME, "late": ROW_LATE, "missing": ROW_WITHOUT_TIME}
    figures = {name: F.expr(f"count_if({TIMELINESS} = {code})") for name, code in codes.items()}
    if wanted.bounds:
        for name, extreme in ((FIRST, "min"), (LAST, "max")):
            figures[name] = F.expr(f"{extreme}(CASE WHEN {TIMELINESS} = {ROW_ON_TIME} THEN {PANE} END)")
    if wanted.late_by is not None:
        column, names = wanted.late_by
        figure = f"count_if({{mine}} AND {TIMELINESS} <> {ROW_ON_TIME})"
        figures[BY_PARTITION] = F.expr(figure_by_partition(figure, column, names, schema).over_rows)
    return figures


# ---- the same figures over groups ------------------------------------------------------------------------------------
# Spark observes rows outside of generated code, so that each row of a large batch would be written and read again. Its
# figures are therefore aggregated with its groups, and observed on those. Rows that are not on time make groups too,
# one for each reason and source partition. They have no key and no time there, so what the user's expressions would
# make of them is never computed. One column has the end of a group's pane, or why its rows have none: each column that
# is grouped by costs every row something.

GROUP_PLACE: Final = f"{INTERNAL}place"
"""Column of groups: the end of their pane if their rows are on time, else what they are, as a number below any pane."""
ROWS_OF_GROUP: Final = f"{INTERNAL}rows"
"""Column of groups: how many rows they have."""
_NO_PLACE: Final = -(2**62)
"""Below the end of any pane: see ``penstock.operators.windows.panes.MAX_EVENT_MICROS``."""
_KIND: Final = f"({_NO_PLACE}L - {GROUP_PLACE})"
GROUP_ON_TIME: Final = f"{GROUP_PLACE} >= {_NO_PLACE}L"
"""SQL over groups: whether their rows are on time."""


def place_of_group(wanted: WantedFigures, schema: StructType) -> str:
    """SQL for ``GROUP_PLACE`` over flagged rows with these columns: below panes, ``timeliness + 2 * number``."""
    number = "0"
    if wanted.late_by is not None:
        column, names = wanted.late_by
        cases = (f"WHEN {mine} THEN {place}" for place, mine in enumerate(conditions_of(column, names, schema)))
        number = f"CASE {' '.join(cases)} ELSE {len(names)} END"
    kind = f"{TIMELINESS} + 2 * {number}"
    return f"CASE WHEN {TIMELINESS} = {ROW_ON_TIME} THEN {PANE} ELSE {_NO_PLACE}L - ({kind}) END"


def _rows_where(condition: str) -> str:
    """SQL for the number of rows in the groups for which the condition holds."""
    return f"coalesce(sum(CASE WHEN {condition} THEN {ROWS_OF_GROUP} END), 0)"


def figures_over_groups(wanted: WantedFigures) -> dict[str, Column]:
    """Aggregates over groups, by name: those of ``figures_of``, and the statistics of the groups of rows on time."""
    from pyspark.sql import functions as F

    figures = {
        "on_time": _rows_where(GROUP_ON_TIME),
        "late": _rows_where(f"NOT {GROUP_ON_TIME} AND {_KIND} % 2 = {ROW_LATE}"),
        "missing": _rows_where(f"NOT {GROUP_ON_TIME} AND {_KIND} % 2 = {ROW_WITHOUT_TIME % 2}"),
    }
    if wanted.late_by is not None:
        places = range(len(wanted.late_by[1]))
        each = (_rows_where(f"{_KIND} IN ({2 * place + ROW_LATE}, {2 * place + ROW_WITHOUT_TIME})") for place in places)
        figures[BY_PARTITION] = f"to_json(array({', '.join(each)}))"
    end = f"CASE WHEN {GROUP_ON_TIME} THEN {GROUP_PLACE} END"
    figures |= dict(zip(STATS, (f"count({end})", f"min({end})", f"max({end})"), strict=True))
    return {name: F.expr(sql) for name, sql in figures.items()}


class EarlierFigures:
    """Figures of the step before, taken over the rows of a step or over their groups.

    Args:
        figures: over rows, by name.
    """

    def __init__(self, figures: Mapping[str, Figure]) -> None:
        self._figures = figures
        self._columns = {
            name: [f"{INTERNAL}{name}_{place}" for place in range(len(figure.parts))]
            for name, figure in figures.items()
        }

    def over_rows(self) -> dict[str, Column]:
        """The figures as aggregates over rows, under names that begin with ``BEFORE``."""
        from pyspark.sql import functions as F

        return {f"{BEFORE}{name}": F.expr(figure.over_rows) for name, figure in self._figures.items()}

    def parts(self, bound: int | None) -> list[Column]:
        """The columns, as aggregates over rows; ``bound`` takes the place of ``AHEAD_BOUND``."""
        from pyspark.sql import functions as F

        sql = (
            (part if bound is None else part.replace(str(AHEAD_BOUND), str(bound)), column)
            for name, figure in self._figures.items()
            for part, column in zip(figure.parts, self._columns[name], strict=True)
        )
        return [F.expr(part).alias(column) for part, column in sql]

    def over_groups(self) -> dict[str, Column]:
        """The figures as aggregates over groups, under names that begin with ``BEFORE``."""
        from pyspark.sql import functions as F

        figures = self._figures.items()
        return {f"{BEFORE}{name}": F.expr(figure.over_groups(self._columns[name])) for name, figure in figures}

    def found(self, figures: Mapping[str, object]) -> dict[str, object]:
        """The figures among all that were observed, under their names."""
        return {name: figures[f"{BEFORE}{name}"] for name in self._figures}
