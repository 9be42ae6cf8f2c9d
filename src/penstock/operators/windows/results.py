"""Results out of layers: of windows that end, that changed, and their changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from penstock.clock import MIN_WATERMARK
from penstock.interfaces.sink import CHANGE_COLUMN
from penstock.operators.windows.figures import INTERNAL
from penstock.operators.windows.frames import TIMING_COLUMN
from penstock.spark.sql import quote_identifier, variable_literal
from penstock.state.layers import WINDOW_END, WINDOW_START

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.operators.windows.frames import WindowFrames
    from penstock.operators.windows.panes import DueWindows, PanedWindow
    from penstock.spark.bound_plans import BoundPlan, PreparedPlan
    from penstock.spark.prepared_plans import PlanPreparer
    from penstock.state.layers import EmissionLayers, Layer, LayerFormat


# ---- results as frames over rows of layers ---------------------------------------------------------------------------
# Layers are hashed by the user's keys alone, so neither the windows of a pane nor the comparison of old with new rows
# needs anything from another partition. No exchange is added, and no job runs.

IS_NEW, _OLD, _HAS_OLD, _AFTER, _BEFORE = (f"{INTERNAL}{name}" for name in ("new", "old", "has_old", "after", "before"))


class ResultBounds(NamedTuple):
    """Which rows and windows a result is made of. A builder gets placeholders for them, and must not compute with them.

    Attributes:
        after: rows of panes that end after it …
        until: … and at or before it.
        first: see ``DueWindows.first``.
        last: see ``DueWindows.last``.
    """

    after: int
    until: int
    first: int
    last: int


def bounds_of(due: DueWindows) -> ResultBounds:
    """The bounds of due windows.

    >>> from penstock.operators.windows.panes import DueWindows
    >>> bounds_of(DueWindows(first=20, last=30, panes=(10, 30)))
    ResultBounds(after=9, until=30, first=20, last=30)
    """
    return ResultBounds(max(due.panes[0] - 1, MIN_WATERMARK), due.panes[1], due.first, due.last)


class PaneResults:
    """Makes the frames that a windowed aggregate sends, out of rows of layers with the column ``IS_NEW``."""

    def __init__(self, frames: WindowFrames) -> None:
        self._frames = frames
        self._windows = replace(frames.layers_format, start=WINDOW_START, end=WINDOW_END)
        """The format of rows in their windows; windows of one pane are what layers hold."""

    def finished(self, rows: DataFrame, bounds: ResultBounds) -> DataFrame:
        """See ``ResultBuilder.finished``; these rows lack the column ``IS_NEW``."""
        merged = self._windows.merged(self._in_windows(rows, bounds))
        return merged.select(*self._frames.bounds, *self._frames.finishes)

    def changed(self, rows: DataFrame, bounds: ResultBounds, *, fired: tuple[int, int], timing: bool) -> DataFrame:
        """See ``ResultBuilder.changed``."""
        return changed_results(self._frames, self._windows, self._in_windows(rows, bounds), fired=fired, timing=timing)

    def changes(self, rows: DataFrame, bounds: ResultBounds) -> DataFrame:
        """Changes of due windows with new rows: ``insert``, or ``update_before`` followed by ``update_after``.

        A result that new rows have not changed is not sent.
        """
        from pyspark.sql import functions as F

        rows = self._in_windows(rows, bounds)
        both = self._old_and_new(rows) if self._windows.skips_null else self._old_then_new(rows)
        result = F.struct(*self._frames.finishes)
        after = both.select(*self._frames.bounds, result.alias(_AFTER), F.col(_OLD))
        both_results = after.select(*self._frames.bounds, _AFTER, _OLD, f"{_OLD}.*")
        pairs = both_results.select(
            *self._frames.bounds, _AFTER, F.when(F.col(_OLD).isNotNull(), result).alias(_BEFORE)
        )
        return self._as_changes(pairs)

    def _old_and_new(self, rows: DataFrame) -> DataFrame:
        """Windows with new rows, merged, and in ``_OLD`` the partials without the new rows; NULL if there are none.

        It is one aggregation: Spark keeps one row a window in a hash table if all partials have a fixed width.
        """
        from pyspark.sql import functions as F

        names = list(self._windows.merges)
        old_partials = self._windows.merging_of(lambda partial: F.when(~F.col(IS_NEW), partial))
        olds = [column.alias(f"{_OLD}_{place}") for place, column in enumerate(old_partials.values())]
        flags = F.expr(f"bool_or({IS_NEW})").alias(IS_NEW), F.expr(f"bool_or(NOT {IS_NEW})").alias(_HAS_OLD)
        merged = self._windows.merged(rows, *olds, *flags).where(IS_NEW)
        old = F.struct(*(F.col(f"{_OLD}_{place}").alias(name) for place, name in enumerate(names)))
        kept = (F.col(quote_identifier(name)) for name in merged.columns[: -len(olds) - len(flags)])
        return merged.select(*kept, F.when(F.col(_HAS_OLD), old).alias(_OLD))

    def _old_then_new(self, rows: DataFrame) -> DataFrame:
        """The same for any merges: old and new rows are merged apart, then both."""
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
        found = pairs.where(f"NOT ({_BEFORE} <=> {_AFTER})") if self._frames.is_ordered else pairs
        return found.selectExpr(f"inline(CASE WHEN {_BEFORE} IS NULL THEN {insert} ELSE {update} END)")

    def _in_windows(self, rows: DataFrame, bounds: ResultBounds) -> DataFrame:
        """The rows of due windows: one for each pane and window that holds it. Other columns are kept."""
        layers_format = self._frames.layers_format
        found = layers_format.between(rows, bounds.after, bounds.until)
        if not self._frames.window.is_paned:
            return found
        pane = f"unix_micros({layers_format.end})"
        ends = (variable_literal(bound, column=layers_format.end) for bound in (bounds.first, bounds.last))
        windows = cast("PanedWindow", self._frames.window).windows(pane, *ends)
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
    frames: WindowFrames, layers_format: LayerFormat, rows: DataFrame, *, fired: tuple[int, int], timing: bool
) -> DataFrame:
    """Whole results of merged rows: of windows that have new rows, or that end in ``fired``."""
    from pyspark.sql import functions as F

    after, until = (variable_literal(bound, column=WINDOW_END) for bound in fired)
    end = f"unix_micros({WINDOW_END})"
    merged = layers_format.merged(rows, F.expr(f"bool_or({IS_NEW})").alias(IS_NEW))
    found = merged.where(f"{IS_NEW} OR ({end} > {after} AND {end} <= {until})")
    when = f"CASE WHEN {end} > {until} THEN 'early' WHEN {end} > {after} THEN 'on_time' ELSE 'late' END"
    more = (F.expr(when).alias(TIMING_COLUMN),) if timing else ()
    return found.select(*frames.bounds, *frames.finishes, *more)


# ---- the plans that make results -------------------------------------------------------------------------------------


MANY_OLD_ROWS: Final = 20_000
"""Old rows from which on those of keys without new rows are left out before all are merged."""
OLD_PER_NEW: Final = 4
"""How many times as many as the new rows they are at least."""


class ResultBuilder(Protocol):
    """Makes the frames that a step sends, out of rows of layers with the column ``IS_NEW``."""

    def finished(self, rows: DataFrame, bounds: ResultBounds) -> DataFrame:
        """The results of all windows that are due."""
        ...

    def changed(self, rows: DataFrame, bounds: ResultBounds, *, fired: tuple[int, int], timing: bool) -> DataFrame:
        """The whole results of due windows that have new rows, or that end in ``fired``, whether new or not.

        With ``timing`` a column has when they were sent: ``early``, ``on_time`` (ending in ``fired``) or ``late``.
        """
        ...

    def changes(self, rows: DataFrame, bounds: ResultBounds) -> DataFrame:
        """The changes of due windows that have new rows."""
        ...


class ResultQueries:
    """Makes the plans of a step's results, each analysed once and bound to layers. Runs no job.

    Args:
        frames: of the step.
        preparer: of the job's session.
        results: makes the frames; ``PaneResults`` if not given.
    """

    def __init__(self, frames: WindowFrames, preparer: PlanPreparer, results: ResultBuilder | None = None) -> None:
        from pyspark.sql import types as t

        self._preparer = preparer
        self._results = results or PaneResults(frames)
        self._rows = frames.layers_format.schema
        # hashes of keys tell some keys apart that are equal, where rows cannot be sliced either
        self._keys = frames.layers_format.keys if frames.layers_format.slice_columns else ()
        self._marked = t.StructType([*self._rows.fields, t.StructField(IS_NEW, t.BooleanType())])
        self._made: dict[str, PreparedPlan] = {}

    def finished(self, layers: Sequence[Layer], due: DueWindows) -> DataFrame:
        """The results of all windows that are due."""

        def build(rows: DataFrame, *bounds: int) -> DataFrame:
            return self._results.finished(rows, ResultBounds(*bounds))

        prepared = self._prepared("finished", self._rows, build, numbers=4)
        return self._bound(prepared, self._union(layers), *bounds_of(due))

    def changed(self, layers: EmissionLayers, due: DueWindows, *, fired: tuple[int, int], timing: bool) -> DataFrame:
        """See ``ResultBuilder.changed``."""

        def build(rows: DataFrame, *numbers: int) -> DataFrame:
            *bounds, after, until = numbers
            return self._results.changed(rows, ResultBounds(*bounds), fired=(after, until), timing=timing)

        prepared = self._prepared(f"changed, {timing}", self._marked, build, numbers=6)
        rows = self._marked_rows(layers, may_leave_out=fired[0] == fired[1])
        return self._bound(prepared, rows, *bounds_of(due), *fired)

    def changes(self, layers: EmissionLayers, due: DueWindows) -> DataFrame:
        """The changes of due windows that have new rows."""

        def build(rows: DataFrame, *bounds: int) -> DataFrame:
            return self._results.changes(rows, ResultBounds(*bounds))

        prepared = self._prepared("changes", self._marked, build, numbers=4)
        return self._bound(prepared, self._marked_rows(layers, may_leave_out=True), *bounds_of(due))

    def _marked_rows(self, layers: EmissionLayers, *, may_leave_out: bool) -> BoundPlan:
        """The rows of an emission's layers, not merged, with the column ``IS_NEW``.

        Args:
            layers: the layers.
            may_leave_out: whether old rows of keys that have no new rows may be left out.
        """
        sides = []
        for is_new, some in ((False, layers.old), (True, layers.new)):
            if some:
                rows = self._union(some)
                if may_leave_out and not is_new and self._are_many(layers):
                    rows = self._preparer.matched(rows, self._union(layers.new), self._keys)
                prepared = self._prepared(f"new: {is_new}", self._rows, _marking(is_new=is_new))
                sides.append(self._preparer.bind(prepared, rows))
        return self._preparer.unite(sides)

    def _are_many(self, layers: EmissionLayers) -> bool:
        """Whether it pays to leave out old rows of keys that have no new rows."""
        # a layer that is made by the job of its results has no number of rows yet, and few: see ``DeferredLayers``
        old, new = (sum(layer.rows for layer in some) for some in (layers.old, layers.new))
        return bool(self._keys and layers.new) and old >= max(MANY_OLD_ROWS, OLD_PER_NEW * new)

    def _union(self, layers: Sequence[Layer]) -> BoundPlan:
        return self._preparer.union([layer.frame for layer in layers])

    def _prepared(
        self, name: str, schema: StructType, build: Callable[..., DataFrame], *, numbers: int = 0
    ) -> PreparedPlan:
        if name not in self._made:
            self._made[name] = self._preparer.prepare(schema, build, numbers=numbers)
        return self._made[name]

    def _bound(self, prepared: PreparedPlan, below: BoundPlan, *numbers: int) -> DataFrame:
        return self._preparer.result(self._preparer.bind(prepared, below, *numbers))


def _marking(*, is_new: bool) -> Callable[[DataFrame], DataFrame]:
    from pyspark.sql import functions as F

    return lambda rows: rows.select("*", F.lit(is_new).alias(IS_NEW))
