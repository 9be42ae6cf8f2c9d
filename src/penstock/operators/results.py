"""Results as frames over layers: panes put into their windows, merged and finished. Runs no job, adds no exchange.

Layers are hashed by the user's keys alone, so neither the windows of a pane nor the comparison of old with new rows
needs anything from another partition.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, cast

from penstock.ids import BEGINNING
from penstock.operators.window_checks import CHANGE, OWN, TIMING
from penstock.state.changing import changing, quoted
from penstock.state.layer import END, START, union

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from penstock.operators.window_base import Due, Paned
    from penstock.operators.window_plan import WindowPlan
    from penstock.state.layer import Layer, LayerFormat
    from penstock.state.stack import Told

NEW, _OLD, _AFTER, _BEFORE = (f"{OWN}{name}" for name in ("new", "old", "after", "before"))


class Results:
    """Makes the frames that a windowed aggregate sends on."""

    def __init__(self, plan: WindowPlan) -> None:
        self._plan = plan
        self._windows = replace(plan.layers_format, start=START, end=END)
        """Rows in their windows; for windows of one pane that is what layers hold."""

    def finished(self, layers: Sequence[Layer], due: Due) -> DataFrame:
        """The results of all windows that are due."""
        merged = self._windows.merged(self._in_windows(union(layers), due))
        return merged.select(*self._plan.bounds, *self._plan.finishes)

    def changed(self, told: Told, due: Due, *, fired: tuple[int, int], timing: bool) -> DataFrame:
        """The whole results of due windows that have new rows, or that end in ``fired``, whether new or not.

        With ``timing`` they say when they were sent: ``early``, ``on_time`` (ending in ``fired``) or ``late``.
        """
        return with_news(self._plan, self._windows, self._in_windows(marked(told), due), fired=fired, timing=timing)

    def changes(self, told: Told, due: Due) -> DataFrame:
        """What became of due windows that have new rows: ``insert``, or ``update_before`` and ``update_after``.

        The two come one after the other. A result that new rows have left as it was is not sent.
        """
        from pyspark.sql import functions as F

        rows = self._in_windows(marked(told), due)
        names = list(self._windows.merges)
        apart = self._windows.merged(rows, by=(NEW,))  # at most two rows a window: what was told, and what is new
        partials = F.struct(*(F.col(quoted(name)) for name in names))
        old = F.first(F.when(~F.col(NEW), partials), ignorenulls=True).alias(_OLD)
        both = self._windows.merged(apart, old, F.expr(f"bool_or({NEW})").alias(NEW)).where(NEW)
        result = F.struct(*self._plan.finishes)
        after = both.select(*self._plan.bounds, result.alias(_AFTER), F.col(_OLD))
        told_before = after.select(*self._plan.bounds, _AFTER, _OLD, f"{_OLD}.*")
        pairs = told_before.select(*self._plan.bounds, _AFTER, F.when(F.col(_OLD).isNotNull(), result).alias(_BEFORE))
        return self._as_changes(pairs)

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

    def _in_windows(self, rows: DataFrame, due: Due) -> DataFrame:
        """The rows of due windows: one for each pane and window that holds it. Other columns go along."""
        layers_format = self._plan.layers_format
        first, last = due.panes
        found = layers_format.between(rows, max(first - 1, BEGINNING), last)
        if not self._plan.window.is_paned:
            return found
        pane = f"unix_micros({layers_format.end})"
        bounds = (changing(bound, beside=layers_format.end) for bound in (due.first, due.last))
        windows = cast("Paned", self._plan.window).windows(pane, *bounds)
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


def marked(told: Told) -> DataFrame:
    """The rows of all layers of an emission, not merged, each with whether it is new."""
    from pyspark.sql import functions as F

    frames = [layer.frame.select("*", F.lit(False).alias(NEW)) for layer in told.old]
    frames += [layer.frame.select("*", F.lit(True).alias(NEW)) for layer in told.new]
    return reduce(lambda left, right: left.union(right), frames)
