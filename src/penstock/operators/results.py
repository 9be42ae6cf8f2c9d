"""Results as frames over rows of layers: panes put into windows, merged and finished. Runs no job, adds no exchange.

Layers are hashed by the user's keys alone, so neither the windows of a pane nor the comparison of old with new rows
needs anything from another partition.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from penstock.ids import BEGINNING
from penstock.operators.window_checks import CHANGE, OWN, TIMING
from penstock.state.changing import changing, quoted
from penstock.state.layer import END, START

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.operators.window_base import Due, Paned
    from penstock.operators.window_plan import WindowPlan
    from penstock.state.layer import LayerFormat

NEW, _OLD, _TOLD, _AFTER, _BEFORE = (f"{OWN}{name}" for name in ("new", "old", "told", "after", "before"))


class Bounds(NamedTuple):
    """Which rows and windows a result is made of: all are numbers that change, and nothing is reckoned with them here.

    Attributes:
        after: rows of panes that end after it …
        until: … and at or before it.
        first: see :attr:`Due.first`.
        last: see :attr:`Due.last`.
    """

    after: int
    until: int
    first: int
    last: int


def bounds_of(due: Due) -> Bounds:
    """The bounds of windows that are due.

    >>> from penstock.operators.window_base import Due
    >>> bounds_of(Due(first=20, last=30, panes=(10, 30)))
    Bounds(after=9, until=30, first=20, last=30)
    """
    return Bounds(max(due.panes[0] - 1, BEGINNING), due.panes[1], due.first, due.last)


class Results:
    """Makes the frames that a windowed aggregate sends on, out of rows of layers with the column :data:`NEW`."""

    def __init__(self, plan: WindowPlan) -> None:
        self._plan = plan
        self._windows = replace(plan.layers_format, start=START, end=END)
        """Rows in their windows; for windows of one pane that is what layers hold."""

    def finished(self, rows: DataFrame, bounds: Bounds) -> DataFrame:
        """The results of all windows that are due; these rows lack that column."""
        merged = self._windows.merged(self._in_windows(rows, bounds))
        return merged.select(*self._plan.bounds, *self._plan.finishes)

    def changed(self, rows: DataFrame, bounds: Bounds, *, fired: tuple[int, int], timing: bool) -> DataFrame:
        """The whole results of due windows that have new rows, or that end in ``fired``, whether new or not.

        With ``timing`` they say when they were sent: ``early``, ``on_time`` (ending in ``fired``) or ``late``.
        """
        return with_news(self._plan, self._windows, self._in_windows(rows, bounds), fired=fired, timing=timing)

    def changes(self, rows: DataFrame, bounds: Bounds) -> DataFrame:
        """What became of due windows that have new rows: ``insert``, or ``update_before`` and ``update_after``.

        The two come one after the other. A result that new rows have left as it was is not sent.
        """
        from pyspark.sql import functions as F

        rows = self._in_windows(rows, bounds)
        both = self._at_once(rows) if self._windows.skips_null else self._one_after_the_other(rows)
        result = F.struct(*self._plan.finishes)
        after = both.select(*self._plan.bounds, result.alias(_AFTER), F.col(_OLD))
        told_before = after.select(*self._plan.bounds, _AFTER, _OLD, f"{_OLD}.*")
        pairs = told_before.select(*self._plan.bounds, _AFTER, F.when(F.col(_OLD).isNotNull(), result).alias(_BEFORE))
        return self._as_changes(pairs)

    def _at_once(self, rows: DataFrame) -> DataFrame:
        """Windows with new rows: merged, and :data:`_OLD`, the partials without the new rows, NULL if there are none.

        In one aggregation, of which Spark keeps one row a window in a hash table if all partials have a fixed width.
        """
        from pyspark.sql import functions as F

        names = list(self._windows.merges)
        told = self._windows.merging_of(lambda partial: F.when(~F.col(NEW), partial))
        olds = [column.alias(f"{_OLD}_{place}") for place, column in enumerate(told.values())]
        flags = F.expr(f"bool_or({NEW})").alias(NEW), F.expr(f"bool_or(NOT {NEW})").alias(_TOLD)
        merged = self._windows.merged(rows, *olds, *flags).where(NEW)
        old = F.struct(*(F.col(f"{_OLD}_{place}").alias(name) for place, name in enumerate(names)))
        kept = (F.col(quoted(name)) for name in merged.columns[: -len(olds) - len(flags)])
        return merged.select(*kept, F.when(F.col(_TOLD), old).alias(_OLD))

    def _one_after_the_other(self, rows: DataFrame) -> DataFrame:
        """The same for any merges: what was told and what is new apart, then both."""
        from pyspark.sql import functions as F

        apart = self._windows.merged(rows, by=(NEW,))  # at most two rows a window
        partials = F.struct(*(F.col(quoted(name)) for name in self._windows.merges))
        old = F.first(F.when(~F.col(NEW), partials), ignorenulls=True).alias(_OLD)
        return self._windows.merged(apart, old, F.expr(f"bool_or({NEW})").alias(NEW)).where(NEW)

    def _as_changes(self, pairs: DataFrame) -> DataFrame:
        """Rows of changes, from a window's result before (NULL if there was none) and after."""
        bounds = ", ".join(quoted(name) for name in (*self._windows.keys, START, END))
        fields = pairs.schema[_AFTER].dataType.fieldNames()  # type: ignore[attr-defined]

        def row(of: str, change: str) -> str:
            values = ", ".join(f"{of}.{quoted(name)}" for name in fields)
            return f"struct({bounds}, {values}, '{change}' AS {CHANGE})"

        update = f"array({row(_BEFORE, 'update_before')}, {row(_AFTER, 'update_after')})"
        insert = f"array({row(_AFTER, 'insert')})"
        found = pairs.where(f"NOT ({_BEFORE} <=> {_AFTER})") if self._plan.is_ordered else pairs
        return found.selectExpr(f"inline(CASE WHEN {_BEFORE} IS NULL THEN {insert} ELSE {update} END)")

    def _in_windows(self, rows: DataFrame, bounds: Bounds) -> DataFrame:
        """The rows of due windows: one for each pane and window that holds it. Other columns go along."""
        layers_format = self._plan.layers_format
        found = layers_format.between(rows, bounds.after, bounds.until)
        if not self._plan.window.is_paned:
            return found
        pane = f"unix_micros({layers_format.end})"
        ends = (changing(bound, beside=layers_format.end) for bound in (bounds.first, bounds.last))
        windows = cast("Paned", self._plan.window).windows(pane, *ends)
        others = [quoted(name) for name in found.columns if name not in (layers_format.start, layers_format.end)]
        spread = found.selectExpr(*others, f"inline({windows}) AS ({OWN}start, {OWN}end)")
        times = (f"timestamp_micros({OWN}start) AS {START}", f"timestamp_micros({OWN}end) AS {END}")
        return spread.selectExpr(*others, *times)


def with_news(
    plan: WindowPlan, layers_format: LayerFormat, rows: DataFrame, *, fired: tuple[int, int], timing: bool
) -> DataFrame:
    """Whole results of marked rows that belong together: those that have news, or that end in ``fired``."""
    from pyspark.sql import functions as F

    after, until = (changing(bound, beside=END) for bound in fired)
    end = f"unix_micros({END})"
    merged = layers_format.merged(rows, F.expr(f"bool_or({NEW})").alias(NEW))
    found = merged.where(f"{NEW} OR ({end} > {after} AND {end} <= {until})")
    when = f"CASE WHEN {end} > {until} THEN 'early' WHEN {end} > {after} THEN 'on_time' ELSE 'late' END"
    more = (F.expr(when).alias(TIMING),) if timing else ()
    return found.select(*plan.bounds, *plan.finishes, *more)
