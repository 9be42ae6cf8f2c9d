"""State as a table: read, and written by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, format_time
from penstock.errors import SchemaMismatch, StateIncompatible, no_column
from penstock.operators.aggregates.base import merge_once
from penstock.operators.windows import counts, sessions
from penstock.operators.windows.assigners import FIRST, LAST, CountWindow, GlobalWindow, SessionWindow
from penstock.operators.windows.frames import PANE_END, PANE_START, WindowFrames
from penstock.operators.windows.panes import PanedWindow
from penstock.operators.windows.record import read_aggregates, read_window
from penstock.operators.windows.results import PaneResults, bounds_of
from penstock.spark.sql import parse_columns, quote_identifier, spark_type
from penstock.state import layers
from penstock.state.layers import WINDOW_END, WINDOW_START, LayerFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from penstock.handles import Json, StateHandle
    from penstock.operators.windows.panes import Window
    from penstock.operators.windows.record import RecordedAggregate


# ---- layers as a table -----------------------------------------------------------------------------------------------
# What is dead or superseded is not in the table: rows at or below the horizon are left out, and rows of one key and
# window in several layers are merged. No job runs.

KINDS: Final = (layers.KIND, sessions.KIND, counts.KIND)
"""The kinds of state that can be read as tables."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StateTable:
    """Makes a table of the rows of a step's layers.

    Attributes:
        frames: windows, format of the layers, and how results are finished; from the pipeline, or from a record.
        lists: partial columns whose merge is not known, since a user wrote it; the table has lists of their values.
        written: the aggregates, as a checkpoint records them.
    """

    frames: WindowFrames
    lists: tuple[str, ...] = ()
    written: tuple[RecordedAggregate, ...] = ()

    @property
    def layers_format(self) -> LayerFormat:
        """The rows of the layers."""
        return self.frames.layers_format

    @property
    def has_windows(self) -> bool:
        """Whether rows have bounds that mean something; those of all time have not."""
        window = self.frames.window
        return not (isinstance(window, GlobalWindow) or (isinstance(window, CountWindow) and window.is_running))

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a finished row across checkpoints: key and window.

        The bounds of a count window that is not full move with its rows, and each key has one such window.
        """
        keys = self.layers_format.keys
        return (
            (*keys, WINDOW_START, WINDOW_END)
            if self.has_windows and not isinstance(self.frames.window, CountWindow)
            else keys
        )

    def partials(self, rows: DataFrame, *, horizon: int) -> DataFrame:
        """One row for each key and stretch of time above the horizon, with its partial aggregates.

        Args:
            rows: of layers.
            horizon: rows whose stretch ends at or before it are dead.
        """
        layers_format = self.layers_format
        merged = layers_format.merged(layers_format.between(self._listed(rows), horizon))
        return merged.select(*map(quote_identifier, layers_format.schema.names))

    def finished(self, rows: DataFrame, *, horizon: int, closed: int) -> DataFrame:
        """One row for each key and open window: key columns, bounds where there are some, finished aggregates.

        Args:
            rows: of layers.
            horizon: rows whose stretch ends at or before it are dead.
            closed: windows that end at or before it lack rows.
        """
        window, layers_format = self.frames.window, self.layers_format
        if not window.is_paned:
            return self._chosen(layers_format.merged(layers_format.between(self._listed(rows), horizon)))
        due = window.due(closed, MAX_WATERMARK)
        found = layers_format.between(self._listed(rows), horizon)
        if due is None:
            return self._chosen(layers_format.merged(found.limit(0)).withColumnsRenamed(_RENAMED))
        return PaneResults(self.frames).finished(found, bounds_of(due))

    def _listed(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return rows.withColumns({name: F.array(quote_identifier(name)) for name in self.lists}) if self.lists else rows

    def _chosen(self, merged: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        bounds = (WINDOW_START, WINDOW_END) if self.has_windows else ()
        keys = (F.col(quote_identifier(name)) for name in self.layers_format.keys)
        return merged.select(*keys, *bounds, *self.frames.finishes)


_RENAMED: Final = {PANE_START: WINDOW_START, PANE_END: WINDOW_END}


def table_of_step(frames: WindowFrames) -> StateTable:
    """The table of a step of a pipeline."""
    return StateTable(frames=frames, written=read_aggregates(frames.layers_format.table))


def table_of_record(handle: StateHandle, *, uid: str, partitions: int) -> StateTable:
    """The table of a step from a checkpoint's record, without its pipeline.

    Raises:
        StateIncompatible: the kind of state cannot be read as a table, or too little was recorded of it.
        CheckpointUnreadable: this penstock does not know the record.
    """
    record = _record(handle, uid)
    window, results = read_window(record), read_aggregates(record)
    schema = schema_of(handle)
    start, end = (PANE_START, PANE_END) if window.is_paned else (WINDOW_START, WINDOW_END)
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
    # the last aggregate of a count window counts rows, for the step itself
    shown = results[:-1] if isinstance(window, CountWindow) else results
    return StateTable(frames=_frames(window, _for_window(plain, window), shown), lists=lists, written=results)


def _record(handle: StateHandle, uid: str) -> Mapping[str, Json]:
    if handle.kind not in KINDS:
        msg = f"Its state is of kind {handle.kind!r}, which is no table. Kinds with tables: {', '.join(KINDS)}."
        raise StateIncompatible(msg, uid=uid)
    if not isinstance(handle.detail, dict) or "table" not in handle.detail:
        msg = (
            "Its state was written by an older penstock, which did not say how it is finished. Give the pipeline, as "
            "in ps.read_state(spark, state, uid, pipeline=orders)."
        )
        raise StateIncompatible(msg, uid=uid)
    return cast("Mapping[str, Json]", handle.detail["table"])


def schema_of(handle: StateHandle) -> StructType:
    """The columns of the layers. Spark parses them, so there must be a session."""
    from pyspark.sql.types import StructType

    columns = (f"{quote_identifier(each.name)} {spark_type(each.type)}" for each in parse_columns(handle.schema))
    return cast("StructType", StructType.fromDDL(", ".join(columns)))


def _with_lists(schema: StructType, lists: Sequence[str]) -> StructType:
    from pyspark.sql.types import ArrayType, StructField, StructType

    return StructType(
        [StructField(field.name, ArrayType(field.dataType)) if field.name in lists else field for field in schema]
    )


def _merges(results: Sequence[RecordedAggregate]) -> Mapping[str, Callable[[Column], Column]]:
    merges: dict[str, Callable[[Column], Column]] = {}
    for result in results:
        if result.aggregate is None:
            merges |= dict.fromkeys(result.columns, _joined_lists)
        else:
            merges |= {
                name: merge_once(part.merge) for name, part in zip(result.columns, result.aggregate.parts, strict=True)
            }
    return merges


def _joined_lists(lists: Column) -> Column:
    from pyspark.sql import functions as F

    return F.flatten(F.collect_list(lists))


def _for_window(plain: LayerFormat, window: Window) -> LayerFormat:
    values: dict[str, Any] = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
    if isinstance(window, SessionWindow):
        return sessions.SessionFormat(**{**values, "scattered": False})
    if isinstance(window, CountWindow):
        made = counts.RunningFormat if window.is_running else counts.CountFormat
        return made(**{**values, "scattered": False, "size": window.size})
    return replace(plain)


def _frames(window: Window, layers_format: LayerFormat, results: Sequence[RecordedAggregate]) -> WindowFrames:
    from pyspark.sql import functions as F

    finishes: list[Column] = []
    for result in results:
        partials = [F.col(quote_identifier(name)) for name in result.columns]
        if result.aggregate is None:
            finishes += partials
        else:
            parts = dict(zip(result.parts, partials, strict=True))
            finishes.append(result.aggregate.finish(parts, result.of).alias(result.name))
    bounds = (*(F.col(quote_identifier(name)) for name in layers_format.keys), F.col(WINDOW_START), F.col(WINDOW_END))
    return WindowFrames(
        micros="",
        window=window,
        layers_format=layers_format,
        output=layers_format.schema,
        inputs=(),
        groups=(),
        partials=(),
        bounds=bounds,
        finishes=tuple(finishes),
    )


# ---- rows of layers out of a table written by hand -------------------------------------------------------------------
# A table has an aggregate's partial columns, or the finished one where the partial is the same value: of ``sum``,
# ``count``, ``min`` and ``max``.

_INVERTIBLE: Final = frozenset({"sum", "count", "min", "max"})
_SHOWN: Final = 3


def to_layer_rows(table: StateTable, frame: DataFrame) -> DataFrame:
    """``frame`` with the columns of the layers, in their order. Runs no job.

    Raises:
        SchemaMismatch: a column is missing, is not known, or has another type; the message has the remedy.
    """
    layers_format = table.layers_format
    sources = _sources(table, frame)
    unknown = [name for name in frame.columns if name not in sources.values()]
    if unknown:
        raise SchemaMismatch(no_column(unknown[0], [*sources.values()]), uid=layers_format.uid)
    types = {field.name: field.dataType for field in frame.schema}
    for field in layers_format.schema:
        name = sources.get(field.name)
        if name is not None and types[name] != field.dataType:
            kind = field.dataType.simpleString()
            msg = (
                f"Column {name!r} is {types[name].simpleString()}, but the state has {kind}. "
                f'Cast it, as in .withColumn("{name}", F.col("{name}").cast("{kind}")).'
            )
            raise SchemaMismatch(msg, uid=layers_format.uid)
    return frame.select(*(_column(field.name, sources) for field in layers_format.schema))


def _sources(table: StateTable, frame: DataFrame) -> Mapping[str, str]:
    """The column of the frame for each column of the layers; the bounds of all time may have none."""
    layers_format, there = table.layers_format, frame.columns
    found = {name: name for name in layers_format.keys}
    bounds = (layers_format.start, layers_format.end)
    if not isinstance(table.frames.window, GlobalWindow) or all(name in there for name in bounds):
        found |= {name: name for name in bounds}
    missing = [name for name in found if name not in there]
    if missing:
        raise SchemaMismatch(_missing(table, missing), uid=layers_format.uid)
    for result in table.written:
        found |= _of_result(table, result, there)
    return found


def _missing(table: StateTable, missing: list[str]) -> str:
    needed = [*table.layers_format.keys]
    if not isinstance(table.frames.window, GlobalWindow):
        needed += [table.layers_format.start, table.layers_format.end]
    panes = ""
    if table.frames.window.is_paned:
        panes = " Windows that overlap are kept as panes, which ps.read_state(…, raw=True) gives."
    return f"Column {missing[0]!r} does not exist. Columns needed: {', '.join(needed)} and the aggregates.{panes}"


def _of_result(table: StateTable, result: RecordedAggregate, there: list[str]) -> Mapping[str, str]:
    if all(name in there for name in result.columns):
        return {name: name for name in result.columns}
    function = result.aggregate.function if result.aggregate is not None else "custom"
    is_same = function in _INVERTIBLE
    if is_same and result.name in there:
        return {result.columns[0]: result.name}
    wanted = f"{result.name!r}, or " if is_same else ""
    parts = " and ".join(map(repr, result.columns))
    why = "" if is_same else f" A finished {function} does not say what it was made of."
    msg = (
        f"Aggregate {result.name!r} is missing. Give its columns {wanted}{parts}.{why} ps.read_state(…, raw=True) has "
        "them."
    )
    raise SchemaMismatch(msg, uid=table.layers_format.uid)


def _column(name: str, sources: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as F

    if name in sources:
        return F.col(quote_identifier(sources[name])).alias(name)
    is_start = name.endswith("_start")
    return F.expr(f"timestamp_micros({FIRST if is_start else LAST}L)").alias(name)


def check_rows(table: StateTable, rows: DataFrame, *, horizon: int) -> None:
    """Refuse rows that the step could not have made; runs a few jobs. NULL is a key like any other.

    Raises:
        SchemaMismatch: bounds are NULL, the wrong way round or not of the step's windows; a window is closed; two rows
            have one key and window; sessions of one key overlap or touch. The message has the first such rows.
    """
    layers_format = table.layers_format
    for condition, what in _conditions(table, horizon):
        _refuse(rows.where(f"NOT coalesce({condition}, false)"), what, layers_format)
    count = rows.count()
    merged = layers_format.merged(rows).count()
    if merged != count:
        together = ", ".join((*layers_format.keys, layers_format.start, layers_format.end))
        if isinstance(table.frames.window, CountWindow):
            together = ", ".join(layers_format.keys) or "it all"
        msg = (
            f"{count - merged} of {count} rows have the same key and window as another row ({together}), or their "
            "sessions touch. Write one row for each."
        )
        raise SchemaMismatch(msg, uid=layers_format.uid)


def _conditions(table: StateTable, horizon: int) -> list[tuple[str, str]]:
    """Conditions that each row must meet, as SQL, and what is wrong with a row that does not."""
    window, layers_format = table.frames.window, table.layers_format
    start, end = quote_identifier(layers_format.start), quote_identifier(layers_format.end)
    first, last = f"unix_micros({start})", f"unix_micros({end})"
    found = [
        (f"{start} IS NOT NULL AND {end} IS NOT NULL", "a bound that is NULL"),
        (f"{start} < {end}", f"a {layers_format.end} that is not after {layers_format.start}"),
    ]
    if isinstance(window, PanedWindow):
        on_grid = f"{last} = {window.pane(first)} AND {first} = {window.pane_start(last)}"
        found.append((on_grid, f"bounds that are none of the step's, which are {window.describe()}"))
    if isinstance(window, CountWindow):
        rows = quote_identifier("_rows__count")
        full = "true" if window.is_running else f"{rows} < {window.size}L"
        found.append((f"{rows} >= 1 AND {full}", f"a number of rows that no open window of {window.size} rows has"))
    elif horizon > MIN_WATERMARK:
        found.append((f"{last} > {horizon}L", "a window that is closed: the step would drop it unseen"))
    return found


def _refuse(wrong: DataFrame, what: str, layers_format: LayerFormat) -> None:
    bounds = (layers_format.start, layers_format.end)
    columns = [
        f"unix_micros({name}) AS {name}" if each in bounds else name
        for each, name in zip(wrong.columns, map(quote_identifier, wrong.columns), strict=True)
    ]
    found = wrong.limit(_SHOWN).selectExpr(*columns).collect()
    if found:
        shown = "; ".join(
            ", ".join(
                f"{name}={format_time(value) if name in bounds and value is not None else value}"
                for name, value in row.asDict().items()
            )
            for row in found
        )
        count = wrong.count()
        msg = f"{count} {'row has' if count == 1 else 'rows have'} {what}, such as {shown}. Correct or drop such rows."
        raise SchemaMismatch(msg, uid=layers_format.uid)
