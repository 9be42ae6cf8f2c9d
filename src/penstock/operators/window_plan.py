"""The frames that a windowed aggregate makes of a batch: which rows are late, and partials of the others; runs no job.

Everything that does not change from batch to batch is made once, here, when the step is opened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.operators.aggregates.base import is_ordered, once
from penstock.operators.count_window import Counted
from penstock.operators.global_window import Global
from penstock.operators.schemas import nullable
from penstock.operators.sessions import Session
from penstock.operators.window_base import Paned
from penstock.operators.window_checks import (
    OWN,
    PANE_END,
    PANE_START,
    analysed,
    check_gap,
    check_keys,
    check_names,
    check_time,
    partial_name,
)
from penstock.operators.window_figures import CODE, LATE, MISSING, ON_TIME, PANE
from penstock.operators.window_record import record_of
from penstock.state.changing import changing, quoted
from penstock.state.layer import END, START, LayerFormat
from penstock.state.migration import Keeps
from penstock.state.sessions import empty

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from penstock.operators.aggregates import Aggregate
    from penstock.operators.window_aggregate import WindowAggregate
    from penstock.operators.windows import Window

_ARRIVAL = f"{OWN}arrival"


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowPlan:
    """What the step does to frames.

    Attributes:
        micros: the event time, as SQL; in processing time the moment of the batch's arrival.
        window: how times fall into windows.
        layers_format: the rows of its layers.
        output: the schema of its results.
        inputs: keys and inputs of aggregates, as columns over the step's input, under names of the step's own. A key
            must not keep its input's name here: the optimiser would drop the alias, and the layer's partitioning
            would then name a column that the layer does not have.
        groups: group columns over ``inputs``, under their own names.
        partials: aggregates over a batch's rows.
        bounds: columns of a result: group columns, start and end of the window.
        finishes: columns of a result: aggregates, over merged partials.
        plain_keys: the columns of the input that are the keys; none if some key is computed, or rows cannot be folded.
    """

    micros: str
    window: Window
    layers_format: LayerFormat
    output: StructType
    inputs: tuple[Column, ...]
    groups: tuple[Column, ...]
    partials: tuple[Column, ...]
    bounds: tuple[Column, ...]
    finishes: tuple[Column, ...]
    plain_keys: tuple[str, ...]

    @property
    def is_ordered(self) -> bool:
        """Whether Spark can compare results."""
        return all(is_ordered(field.dataType) for field in self.output.fields)

    @property
    def keeps(self) -> Keeps:
        """What its state looks like: a restore compares it."""
        layers_format = self.layers_format
        return Keeps(kind=layers_format.kind, schema=layers_format.ddl(), window=self.window.describe())

    def flagged(self, frame: DataFrame, horizon: int, mark: int, arrival: int | None = None) -> DataFrame:
        """``frame`` with a code for each row: on time, late (its windows are closed), or without an event time.

        Args:
            frame: the step's input.
            horizon: all windows of panes that end at or before it are closed.
            arrival: the time of all rows, in processing time.
            mark: makes the plan unlike that of any other batch, so that its cache entry is its own.
        """
        closed = changing(horizon, beside=PANE, mark=mark)
        late = f"WHEN {PANE} <= {closed} THEN {LATE}"
        code = f"CASE WHEN {PANE} IS NULL THEN {MISSING} {late} ELSE {ON_TIME} END"
        given = frame if arrival is None else frame.selectExpr("*", f"{changing(arrival)} AS {_ARRIVAL}")
        return given.selectExpr("*", f"{self.window.pane(self.micros)} AS {PANE}").selectExpr("*", f"{code} AS {CODE}")

    def on_time(self, flagged: DataFrame, *more: str) -> DataFrame:
        """Keys, stretches of time and inputs of aggregates of the rows that are on time, and columns named besides."""
        return flagged.where(f"{CODE} = {ON_TIME}").select(*self.inputs, *more)

    @property
    def places(self) -> int:
        """Among how many places rows are shared out by their keys; one if nobody can tell, or nothing could be done.

        Keys that are no plain columns would have to be computed for late rows too, and some a second time.
        """
        return self.layers_format.partitions if self.plain_keys else 1

    def partial(self, flagged: DataFrame, *, fold: bool = False) -> DataFrame:
        """One row for each key and pane of the rows that are on time, placed as layers are.

        Rows go to their places first and are aggregated there, in one exchange. To ``fold``, or without keys, where
        there would be one place for each pane, each task aggregates its own rows first and only the partials travel:
        twice, since Spark brings those of a group together by key and pane.
        """
        rows = self.on_time(flagged)
        layers_format = self.layers_format
        if fold or not layers_format.keys:
            return layers_format.hashed(rows.groupBy(*self.groups).agg(*self.partials))
        places = [_key(place) for place in range(len(layers_format.keys))]
        return rows.repartition(layers_format.partitions, *places).groupBy(*self.groups).agg(*self.partials)

    def late(self, flagged: DataFrame) -> DataFrame:
        """The rows that are not on time, as they came."""
        return flagged.where(f"{CODE} <> {ON_TIME}").drop(CODE, PANE, _ARRIVAL)


def make_plan(
    step: WindowAggregate, *, uid: str, schema: StructType, session: SparkSession, partitions: int
) -> WindowPlan:
    """Check a step against its input and make its plan; analyses, but runs nothing.

    Raises:
        GraphError: a column is missing or has an impossible type, or two columns have one name.
    """
    window, aggregates = step.window, step.aggregates
    check_time(schema, None if window.is_processing else step.time)
    check_names(step.keys, aggregates, schema)
    inputs = _inputs(step, schema)
    given = empty(session, schema)
    given = given.selectExpr("*", f"0L AS {_ARRIVAL}") if window.is_processing else given
    if isinstance(window, Session) and window.by is not None:
        check_gap(given, window.by, schema)
    rows = _rows(given.selectExpr("*", f"{window.pane(_micros(step))} AS {PANE}"), inputs, step.keys, schema)
    types = _types(rows, aggregates)
    partials, merges = _partials(aggregates, types)
    names, ends = tuple(name for name, _ in step.keys), _ends(window)
    groups = (*(_column(_key(place)).alias(name) for place, name in enumerate(names)), *map(_column, ends))
    partial = analysed(lambda: rows.groupBy(*groups).agg(*partials), "aggregates", schema)
    bounds = (*(_column(quoted(name)) for name in names), *_window_columns(window))
    finishes = tuple(_finishes(aggregates, types))
    kept = nullable(partial.schema)
    skips = all(part.skips_null for aggregate in aggregates for part in aggregate.parts)
    windowed = LayerFormat(uid=uid, keys=names, schema=kept, merges=merges, partitions=partitions, skips_null=skips)
    windowed = replace(windowed, table=record_of(window, aggregates, types))
    layers_format = replace(windowed, start=ends[0], end=ends[1], scattered=not window.is_paned)
    output = analysed(lambda: _whole(layers_format, session).select(*bounds, *finishes), "aggregates", schema)
    return WindowPlan(
        micros=_micros(step),
        window=window,
        layers_format=layers_format,
        output=nullable(output.schema),
        inputs=tuple(inputs),
        groups=groups,
        partials=tuple(partials),
        bounds=bounds,
        finishes=finishes,
        plain_keys=_plain(step.keys, schema),
    )


def _plain(keys: Sequence[tuple[str, str | Column]], schema: StructType) -> tuple[str, ...]:
    names = tuple(key for _, key in keys if isinstance(key, str) and key in schema.names)
    return names if len(names) == len(keys) else ()


def _whole(layers_format: LayerFormat, session: SparkSession) -> DataFrame:
    """An empty frame of merged partials in windows."""
    merged = layers_format.merged(empty(session, layers_format.schema))
    return merged.withColumnsRenamed({layers_format.start: START, layers_format.end: END})


def _micros(step: WindowAggregate) -> str:
    if step.window.is_processing:
        return _ARRIVAL
    micros = f"unix_micros({quoted(step.time)})"
    return f"try_add({micros}, {step.shift}L)" if step.shift else micros


def _ends(window: Window) -> tuple[str, str]:
    """Names of the columns of layers that say where a stretch of time starts and ends."""
    return (PANE_START, PANE_END) if window.is_paned else (START, END)


def _window_columns(window: Window) -> tuple[Column, Column]:
    """Start and end of the window in results; all time has neither."""
    from pyspark.sql import functions as F

    if isinstance(window, Global) or (isinstance(window, Counted) and window.is_running):
        return F.expr("CAST(NULL AS TIMESTAMP)").alias(START), F.expr("CAST(NULL AS TIMESTAMP)").alias(END)
    return F.col(START), F.col(END)


def _rows(
    ended: DataFrame, inputs: Sequence[Column], keys: Sequence[tuple[str, str | Column]], schema: StructType
) -> DataFrame:
    """Keys and inputs of aggregates, over a frame that knows where windows end; the keys can be grouped by."""
    rows = analysed(lambda: ended.select(*inputs), "keys and aggregates", schema)
    check_keys({name: rows.schema[_key(place)].dataType for place, (name, _) in enumerate(keys)})
    return rows


def _types(rows: DataFrame, aggregates: Sequence[Aggregate]) -> list[DataType]:
    """The types of the aggregates' inputs, which the aggregates can take."""
    for place, aggregate in enumerate(aggregates):
        if aggregate.check:
            aggregate.check(rows, _column(_in(place)))
    return [rows.schema[_in(place)].dataType for place in range(len(aggregates))]


def _inputs(step: WindowAggregate, schema: StructType) -> list[Column]:
    from pyspark.sql import functions as F

    columns = [_expression(expression, schema).alias(_key(place)) for place, (_, expression) in enumerate(step.keys)]
    start, end = _ends(step.window)
    micros = step.window.pane_start(PANE) if isinstance(step.window, Paned) else _micros(step)
    columns.append(F.expr(f"timestamp_micros({micros})").alias(start))
    columns.append(F.expr(f"timestamp_micros({PANE})").alias(end))
    time = F.expr(f"timestamp_micros({_ARRIVAL})") if step.window.is_processing else _column(quoted(step.time))
    for place, aggregate in enumerate(step.aggregates):
        of = aggregate.input(lambda value: _expression(value, schema), time)
        columns.append(of.alias(_in(place)))
    return columns


def _partials(
    aggregates: Sequence[Aggregate], types: Sequence[DataType]
) -> tuple[list[Column], dict[str, Callable[[Column], Column]]]:
    columns: list[Column] = []
    merges: dict[str, Callable[[Column], Column]] = {}
    for place, (aggregate, kind) in enumerate(zip(aggregates, types, strict=True)):
        for part in aggregate.parts:
            name = partial_name(aggregate, part.name)
            columns.append(part.partial(_column(_in(place)), kind).alias(name))
            merges[name] = once(part.merge)
    return columns, merges


def _finishes(aggregates: Sequence[Aggregate], types: Sequence[DataType]) -> list[Column]:
    columns = []
    for aggregate, kind in zip(aggregates, types, strict=True):
        parts = {part.name: _column(quoted(partial_name(aggregate, part.name))) for part in aggregate.parts}
        columns.append(aggregate.finish(parts, kind).alias(aggregate.label))
    return columns


def _key(place: int) -> str:
    return f"{OWN}key_{place}"


def _in(place: int) -> str:
    return f"{OWN}in_{place}"


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(name)


def _expression(value: str | Column, schema: StructType) -> Column:
    from pyspark.sql import functions as F

    if not isinstance(value, str):
        return value
    return F.col(quoted(value)) if value in schema.names else F.expr(value)
