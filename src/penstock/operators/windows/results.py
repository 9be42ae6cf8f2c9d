"""Results out of layers: whole, changed, changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from penstock.clock import MIN_WATERMARK
from penstock.operators.windows.frames import CHANGE_COLUMN, INTERNAL, TIMING_COLUMN
from penstock.spark.sql import quote_identifier, variable_literal
from penstock.state.layers import WINDOW_END, WINDOW_START

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.operators.windows.frames import WindowFrames
    from penstock.operators.windows.panes import DueWindows, PanedWindow
    from penstock.spark.blocks import JavaObject
    from penstock.spark.plans import PlanPreparer, PreparedPlan
    from penstock.state.layers import EmissionLayers, Layer, LayerFormat


# ----------------------------------------------------------------------------------------------------
# Results as frames over rows of layers: panes put into windows, merged and finished. Runs no job, adds no exchange.
#
# Layers are hashed by the user's keys alone, so neither the windows of a pane nor the comparison of old with new rows
# needs anything from another partition.

IS_NEW, _OLD, _TOLD, _AFTER, _BEFORE = (f"{INTERNAL}{name}" for name in ("new", "old", "told", "after", "before"))


class ResultBounds(NamedTuple):
    """Which rows and windows a result is made of: all are numbers that change, and nothing is reckoned with them here.

    Attributes:
        after: rows of panes that end after it …
        until: … and at or before it.
        first: see :attr:`DueWindows.first`.
        last: see :attr:`DueWindows.last`.
    """

    after: int
    until: int
    first: int
    last: int


def bounds_of(due: DueWindows) -> ResultBounds:
    """The bounds of windows that are due.

    >>> from penstock.operators.windows.panes import DueWindows
    >>> bounds_of(DueWindows(first=20, last=30, panes=(10, 30)))
    ResultBounds(after=9, until=30, first=20, last=30)
    """
    return ResultBounds(max(due.panes[0] - 1, MIN_WATERMARK), due.panes[1], due.first, due.last)


class PaneResults:
    """Makes the frames that a windowed aggregate sends on, out of rows of layers with the column :data:`IS_NEW`."""

    def __init__(self, plan: WindowFrames) -> None:
        self._plan = plan
        self._windows = replace(plan.layers_format, start=WINDOW_START, end=WINDOW_END)
        """Rows in their windows; for windows of one pane that is what layers hold."""

    def finished(self, rows: DataFrame, bounds: ResultBounds) -> DataFrame:
        """The results of all windows that are due; these rows lack that column."""
        merged = self._windows.merged(self._in_windows(rows, bounds))
        return merged.select(*self._plan.bounds, *self._plan.finishes)

    def changed(self, rows: DataFrame, bounds: ResultBounds, *, fired: tuple[int, int], timing: bool) -> DataFrame:
        """The whole results of due windows that have new rows, or that end in ``fired``, whether new or not.

        With ``timing`` they say when they were sent: ``early``, ``on_time`` (ending in ``fired``) or ``late``.
        """
        return changed_results(self._plan, self._windows, self._in_windows(rows, bounds), fired=fired, timing=timing)

    def changes(self, rows: DataFrame, bounds: ResultBounds) -> DataFrame:
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
        told = self._windows.merging_of(lambda partial: F.when(~F.col(IS_NEW), partial))
        olds = [column.alias(f"{_OLD}_{place}") for place, column in enumerate(told.values())]
        flags = F.expr(f"bool_or({IS_NEW})").alias(IS_NEW), F.expr(f"bool_or(NOT {IS_NEW})").alias(_TOLD)
        merged = self._windows.merged(rows, *olds, *flags).where(IS_NEW)
        old = F.struct(*(F.col(f"{_OLD}_{place}").alias(name) for place, name in enumerate(names)))
        kept = (F.col(quote_identifier(name)) for name in merged.columns[: -len(olds) - len(flags)])
        return merged.select(*kept, F.when(F.col(_TOLD), old).alias(_OLD))

    def _one_after_the_other(self, rows: DataFrame) -> DataFrame:
        """The same for any merges: what was told and what is new apart, then both."""
        from pyspark.sql import functions as F

        apart = self._windows.merged(rows, by=(IS_NEW,))  # at most two rows a window
        partials = F.struct(*(F.col(quote_identifier(name)) for name in self._windows.merges))
        old = F.first(F.when(~F.col(IS_NEW), partials), ignorenulls=True).alias(_OLD)
        return self._windows.merged(apart, old, F.expr(f"bool_or({IS_NEW})").alias(IS_NEW)).where(IS_NEW)

    def _as_changes(self, pairs: DataFrame) -> DataFrame:
        """Rows of changes, from a window's result before (NULL if there was none) and after."""
        bounds = ", ".join(quote_identifier(name) for name in (*self._windows.keys, WINDOW_START, WINDOW_END))
        fields = pairs.schema[_AFTER].dataType.fieldNames()  # type: ignore[attr-defined]

        def row(of: str, change: str) -> str:
            values = ", ".join(f"{of}.{quote_identifier(name)}" for name in fields)
            return f"struct({bounds}, {values}, '{change}' AS {CHANGE_COLUMN})"

        update = f"array({row(_BEFORE, 'update_before')}, {row(_AFTER, 'update_after')})"
        insert = f"array({row(_AFTER, 'insert')})"
        found = pairs.where(f"NOT ({_BEFORE} <=> {_AFTER})") if self._plan.is_ordered else pairs
        return found.selectExpr(f"inline(CASE WHEN {_BEFORE} IS NULL THEN {insert} ELSE {update} END)")

    def _in_windows(self, rows: DataFrame, bounds: ResultBounds) -> DataFrame:
        """The rows of due windows: one for each pane and window that holds it. Other columns go along."""
        layers_format = self._plan.layers_format
        found = layers_format.between(rows, bounds.after, bounds.until)
        if not self._plan.window.is_paned:
            return found
        pane = f"unix_micros({layers_format.end})"
        ends = (variable_literal(bound, beside=layers_format.end) for bound in (bounds.first, bounds.last))
        windows = cast("PanedWindow", self._plan.window).windows(pane, *ends)
        others = [
            quote_identifier(name) for name in found.columns if name not in (layers_format.start, layers_format.end)
        ]
        spread = found.selectExpr(*others, f"inline({windows}) AS ({INTERNAL}start, {INTERNAL}end)")
        times = (
            f"timestamp_micros({INTERNAL}start) AS {WINDOW_START}",
            f"timestamp_micros({INTERNAL}end) AS {WINDOW_END}",
        )
        return spread.selectExpr(*others, *times)


def changed_results(
    plan: WindowFrames, layers_format: LayerFormat, rows: DataFrame, *, fired: tuple[int, int], timing: bool
) -> DataFrame:
    """Whole results of marked rows that belong together: those that have news, or that end in ``fired``."""
    from pyspark.sql import functions as F

    after, until = (variable_literal(bound, beside=WINDOW_END) for bound in fired)
    end = f"unix_micros({WINDOW_END})"
    merged = layers_format.merged(rows, F.expr(f"bool_or({IS_NEW})").alias(IS_NEW))
    found = merged.where(f"{IS_NEW} OR ({end} > {after} AND {end} <= {until})")
    when = f"CASE WHEN {end} > {until} THEN 'early' WHEN {end} > {after} THEN 'on_time' ELSE 'late' END"
    more = (F.expr(when).alias(TIMING_COLUMN),) if timing else ()
    return found.select(*plan.bounds, *plan.finishes, *more)


# ----------------------------------------------------------------------------------------------------
# The plans of a windowed aggregate's results, each analysed once and hung onto the layers it is made of. Runs no job.
#
# Decides nothing: which layers, which windows and what kind of result is said by the emitter.


class ResultBuilder(Protocol):
    """Makes the frames that are sent on, of rows of layers: see :class:`PaneResults`."""

    def finished(self, rows: DataFrame, bounds: ResultBounds) -> DataFrame:
        """The results of all windows that are due."""
        ...

    def changed(self, rows: DataFrame, bounds: ResultBounds, *, fired: tuple[int, int], timing: bool) -> DataFrame:
        """The results of due windows that have new rows or end in ``fired``."""
        ...

    def changes(self, rows: DataFrame, bounds: ResultBounds) -> DataFrame:
        """What became of due windows that have new rows."""
        ...


class ResultQueries:
    """Results of layers.

    Args:
        plan: of the step.
        templates: of the job's session.
        results: makes the frames, if not in the way of windows that are made of panes.
    """

    def __init__(self, plan: WindowFrames, templates: PlanPreparer, results: ResultBuilder | None = None) -> None:
        from pyspark.sql import types as t

        self._templates = templates
        self._results = results or PaneResults(plan)
        self._rows = plan.layers_format.schema
        self._marked = t.StructType([*self._rows.fields, t.StructField(IS_NEW, t.BooleanType())])
        self._made: dict[str, PreparedPlan] = {}

    def finished(self, layers: Sequence[Layer], due: DueWindows) -> DataFrame:
        """The results of all windows that are due."""

        def build(rows: DataFrame, *bounds: int) -> DataFrame:
            return self._results.finished(rows, ResultBounds(*bounds))

        template = self._template("finished", self._rows, build, numbers=4)
        return self._hung(template, self._union(layers), *bounds_of(due))

    def changed(self, told: EmissionLayers, due: DueWindows, *, fired: tuple[int, int], timing: bool) -> DataFrame:
        """The whole results of due windows that have new rows, or that end in ``fired``, whether new or not."""

        def build(rows: DataFrame, *numbers: int) -> DataFrame:
            *bounds, after, until = numbers
            return self._results.changed(rows, ResultBounds(*bounds), fired=(after, until), timing=timing)

        template = self._template(f"changed, {timing}", self._marked, build, numbers=6)
        return self._hung(template, self._news(told), *bounds_of(due), *fired)

    def changes(self, told: EmissionLayers, due: DueWindows) -> DataFrame:
        """What became of due windows that have new rows."""

        def build(rows: DataFrame, *bounds: int) -> DataFrame:
            return self._results.changes(rows, ResultBounds(*bounds))

        template = self._template("changes", self._marked, build, numbers=4)
        return self._hung(template, self._news(told), *bounds_of(due))

    def _news(self, told: EmissionLayers) -> JavaObject:
        """The rows of all layers of an emission, not merged, each with whether it is new."""
        sides = []
        for is_new, layers in ((False, told.old), (True, told.new)):
            if layers:
                template = self._template(f"new: {is_new}", self._rows, _marking(is_new=is_new))
                sides.append(self._templates.hang(template, self._union(layers)))
        return self._templates.grafter.union(sides)

    def _union(self, layers: Sequence[Layer]) -> JavaObject:
        return self._templates.union([layer.frame for layer in layers])

    def _template(
        self, name: str, schema: StructType, build: Callable[..., DataFrame], *, numbers: int = 0
    ) -> PreparedPlan:
        if name not in self._made:
            self._made[name] = self._templates.make(schema, build, numbers=numbers)
        return self._made[name]

    def _hung(self, template: PreparedPlan, below: JavaObject, *numbers: int) -> DataFrame:
        return self._templates.frame(self._templates.hang(template, below, *numbers))


def _marking(*, is_new: bool) -> Callable[[DataFrame], DataFrame]:
    from pyspark.sql import functions as F

    return lambda rows: rows.select("*", F.lit(is_new).alias(IS_NEW))
