"""State of a windowed aggregate as a table: layers merged, panes put into windows, aggregates finished. Runs no job.

Knows nothing of files and checkpoints. What is dead or superseded is not in the table: rows at or below the horizon,
and rows of one key and window in several layers, which are merged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import StateIncompatible
from penstock.ids import END_OF_TIME
from penstock.operators import count_plan, session_plan
from penstock.operators.aggregates.base import once
from penstock.operators.count_window import Counted
from penstock.operators.global_window import Global
from penstock.operators.results import Results, bounds_of
from penstock.operators.sessions import Session
from penstock.operators.window_checks import PANE_END, PANE_START
from penstock.operators.window_plan import WindowPlan
from penstock.operators.window_record import results_of, window_of
from penstock.state import layer
from penstock.state.changing import quoted
from penstock.state.layer import END, START, LayerFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from penstock.handles import Json, StateHandle
    from penstock.operators.window_record import Recorded
    from penstock.operators.windows import Window

KINDS: Final = (layer.KIND, session_plan.KIND, count_plan.KIND)
"""The kinds of state that are tables here."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StateTable:
    """How the rows of a step's layers become a table.

    Attributes:
        plan: windows, the layers' rows, and how results are finished; from the pipeline, or made again from a record.
        lists: partial columns whose merge is not known, for a user wrote it: lists of what is to be merged.
        written: the aggregates, by what a checkpoint records of them.
    """

    plan: WindowPlan
    lists: tuple[str, ...] = ()
    written: tuple[Recorded, ...] = ()

    @property
    def layers_format(self) -> LayerFormat:
        """The rows of the layers."""
        return self.plan.layers_format

    @property
    def has_windows(self) -> bool:
        """Whether rows have bounds that mean something: all time has none."""
        window = self.plan.window
        return not (isinstance(window, Global) or (isinstance(window, Counted) and window.is_running))

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns by which a finished row is the same row in another checkpoint: key and window.

        Of a counted window that is not full the bounds move with its rows, and each key has one.
        """
        keys = self.layers_format.keys
        return (*keys, START, END) if self.has_windows and not isinstance(self.plan.window, Counted) else keys

    def partials(self, rows: DataFrame, *, horizon: int) -> DataFrame:
        """One row for each key and stretch of time above the horizon, with its partial aggregates.

        Args:
            rows: of layers.
            horizon: rows whose stretch ends at or before it are dead.
        """
        layers_format = self.layers_format
        merged = layers_format.merged(layers_format.between(self._listed(rows), horizon))
        return merged.select(*map(quoted, layers_format.schema.names))

    def finished(self, rows: DataFrame, *, horizon: int, closed: int) -> DataFrame:
        """One row for each key and open window: key columns, bounds where there are some, finished aggregates.

        Args:
            rows: of layers.
            horizon: rows whose stretch ends at or before it are dead.
            closed: windows that end at or before it lack rows.
        """
        window, layers_format = self.plan.window, self.layers_format
        if not window.is_paned:
            return self._chosen(layers_format.merged(layers_format.between(self._listed(rows), horizon)))
        due = window.due(closed, END_OF_TIME)
        found = layers_format.between(self._listed(rows), horizon)
        if due is None:
            return self._chosen(layers_format.merged(found.limit(0)).withColumnsRenamed(_RENAMED))
        return Results(self.plan).finished(found, bounds_of(due))

    def _listed(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return rows.withColumns({name: F.array(quoted(name)) for name in self.lists}) if self.lists else rows

    def _chosen(self, merged: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        bounds = (START, END) if self.has_windows else ()
        keys = (F.col(quoted(name)) for name in self.layers_format.keys)
        return merged.select(*keys, *bounds, *self.plan.finishes)


_RENAMED: Final = {PANE_START: START, PANE_END: END}


def planned(plan: WindowPlan) -> StateTable:
    """The table of a step of a pipeline."""
    return StateTable(plan=plan, written=results_of(plan.layers_format.table))


def recorded(handle: StateHandle, *, uid: str, partitions: int) -> StateTable:
    """The table of a step as a checkpoint recorded it, without its pipeline.

    Raises:
        StateIncompatible: the kind of state is no table, or too little was recorded of it.
        CheckpointUnreadable: what was recorded is not known here.
    """
    record = _record(handle, uid)
    window, results = window_of(record), results_of(record)
    schema = schema_of(handle)
    start, end = (PANE_START, PANE_END) if window.is_paned else (START, END)
    keys = tuple(schema.names[: schema.names.index(start)])
    lists = tuple(name for result in results if result.aggregate is None for name in result.columns)
    plain = LayerFormat(
        uid=uid,
        keys=keys,
        schema=_with_lists(schema, lists),
        merges=_merges(results),
        partitions=partitions,
        start=start,
        end=end,
        scattered=not window.is_paned,
        kind=handle.kind,
        table=record,
    )
    shown = results[:-1] if isinstance(window, Counted) else results  # the last one counts rows, for the step itself
    return StateTable(plan=_plan(window, _of_kind(plain, window), shown), lists=lists, written=results)


def _record(handle: StateHandle, uid: str) -> Mapping[str, Json]:
    if handle.kind not in KINDS:
        msg = f"its state is of kind {handle.kind!r}, which is no table; there are tables of {', '.join(KINDS)}"
        raise StateIncompatible(msg, uid=uid)
    if not isinstance(handle.detail, dict) or "table" not in handle.detail:
        msg = (
            "its state was written by an older penstock, which did not say how it is finished: give the pipeline, as "
            "in ps.read_state(spark, state, uid, pipeline=orders)"
        )
        raise StateIncompatible(msg, uid=uid)
    return cast("Mapping[str, Json]", handle.detail["table"])


def schema_of(handle: StateHandle) -> StructType:
    """The columns of the layers. Spark's parser reads them, so there must be a session."""
    from pyspark.sql.types import StructType

    return cast("StructType", StructType.fromDDL(handle.schema))


def _with_lists(schema: StructType, lists: Sequence[str]) -> StructType:
    from pyspark.sql.types import ArrayType, StructField, StructType

    return StructType(
        [StructField(field.name, ArrayType(field.dataType)) if field.name in lists else field for field in schema]
    )


def _merges(results: Sequence[Recorded]) -> Mapping[str, Callable[[Column], Column]]:
    merges: dict[str, Callable[[Column], Column]] = {}
    for result in results:
        if result.aggregate is None:
            merges |= dict.fromkeys(result.columns, _together)
        else:
            merges |= {
                name: once(part.merge) for name, part in zip(result.columns, result.aggregate.parts, strict=True)
            }
    return merges


def _together(lists: Column) -> Column:
    from pyspark.sql import functions as F

    return F.flatten(F.collect_list(lists))


def _of_kind(plain: LayerFormat, window: Window) -> LayerFormat:
    given: dict[str, Any] = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
    if isinstance(window, Session):
        return session_plan.SessionFormat(**{**given, "scattered": False})
    if isinstance(window, Counted):
        made = count_plan.RunningFormat if window.is_running else count_plan.CountFormat
        return made(**{**given, "scattered": False, "size": window.size})
    return replace(plain)


def _plan(window: Window, layers_format: LayerFormat, results: Sequence[Recorded]) -> WindowPlan:
    from pyspark.sql import functions as F

    finishes: list[Column] = []
    for result in results:
        partials = [F.col(quoted(name)) for name in result.columns]
        if result.aggregate is None:
            finishes += partials
        else:
            parts = dict(zip(result.parts, partials, strict=True))
            finishes.append(result.aggregate.finish(parts, result.of).alias(result.name))
    bounds = (*(F.col(quoted(name)) for name in layers_format.keys), F.col(START), F.col(END))
    return WindowPlan(
        micros="",
        window=window,
        layers_format=layers_format,
        output=layers_format.schema,
        inputs=(),
        groups=(),
        partials=(),
        bounds=bounds,
        finishes=tuple(finishes),
        plain_keys=(),
    )
