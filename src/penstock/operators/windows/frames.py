"""Columns and SQL of the step: late rows, partials, checks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, cast

from penstock.errors import GraphError, no_column
from penstock.interfaces.operator import StateSchema
from penstock.interfaces.sink import CHANGE_COLUMN
from penstock.operators.aggregates.base import is_ordered, merge_once
from penstock.operators.windows.assigners import CountWindow, GlobalWindow, SessionWindow
from penstock.operators.windows.figures import (
    GROUP_ON_TIME,
    GROUP_PLACE,
    INTERNAL,
    PANE,
    ROW_LATE,
    ROW_ON_TIME,
    ROW_WITHOUT_TIME,
    ROWS_OF_GROUP,
    TIMELINESS,
    EarlierFigures,
    WantedFigures,
    place_of_group,
)
from penstock.operators.windows.panes import PanedWindow
from penstock.operators.windows.record import to_record
from penstock.spark.query_log import first_line
from penstock.spark.session import empty_frame
from penstock.spark.sql import nullable, quote_identifier, variable_literal
from penstock.state.layers import WINDOW_END, WINDOW_START, LayerFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from penstock.operators.aggregates.base import Aggregate
    from penstock.operators.windows.panes import Window


# ---- names of columns ------------------------------------------------------------------------------------------------

TIMING_COLUMN: Final = "_timing"
"""The column that some results have in addition: when a row was sent."""
PANE_START, PANE_END = "pane_start", "pane_end"


def partial_name(aggregate: Aggregate, part: str) -> str:
    """The column of layers that holds a part of an aggregate."""
    return f"{aggregate.label}__{part}"


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_time(schema: StructType, time: str | None) -> None:
    """Refuse an event-time column that is missing or no TIMESTAMP; ``None`` is fine."""
    from pyspark.sql.types import TimestampType

    if time is None:
        return
    if time not in schema.names:
        raise GraphError(no_column(time, schema.names))
    kind = schema[time].dataType
    if not isinstance(kind, TimestampType):
        msg = (
            f"Column {time!r} is {kind.simpleString()}, but the event time of windows is a TIMESTAMP. "
            f'Convert it first, as in .with_column("{time}", "to_timestamp({time})").'
        )
        raise GraphError(msg)


def check_gap(frame: DataFrame, by: str, schema: StructType) -> None:
    """Refuse a gap that cannot be computed from the step's input, or is no length of time."""
    from pyspark.sql.types import DayTimeIntervalType

    found = explain_analysis(lambda: frame.selectExpr("*", f"({by}) AS {INTERNAL}gap"), "gap of the sessions", schema)
    kind = found.schema.fields[-1].dataType
    if not isinstance(kind, DayTimeIntervalType):
        msg = (
            f"The gap {by!r} is {kind.simpleString()}, but sessions need an INTERVAL DAY TO SECOND. Write "
            "INTERVAL 5 MINUTES, or make one of a number of seconds with make_dt_interval(0, 0, 0, seconds)."
        )
        raise GraphError(msg)


def check_names(keys: Sequence[tuple[str, str | Column]], aggregates: Sequence[Aggregate], schema: StructType) -> None:
    """Refuse two columns of one name, in results or state, and names with penstock's own prefix."""
    if not aggregates:
        msg = "agg() needs at least one aggregate, such as ps.agg.count()."
        raise GraphError(msg)
    group = [*(name for name, _ in keys), WINDOW_START, WINDOW_END]
    marks = [*group, CHANGE_COLUMN, TIMING_COLUMN]
    state = [*group, PANE_START, PANE_END]
    results = [aggregate.label for aggregate in aggregates]
    partials = [partial_name(aggregate, part.name) for aggregate in aggregates for part in aggregate.parts]
    for names, what in (([*marks, *results], "columns of the result"), ([*state, *partials], "columns of the state")):
        seen: set[str] = set()
        for name in names:
            if name.casefold() in seen:
                msg = f"Two {what} would be called {name!r}. Give one of them another name with .alias(…)."
                raise GraphError(msg)
            seen.add(name.casefold())
    for name in (*schema.names, *group, *results):
        if name.casefold().startswith(INTERNAL):
            msg = f"Column {name!r} begins with {INTERNAL}, as only penstock's own columns do. Rename it."
            raise GraphError(msg)


def check_keys(types: Mapping[str, DataType]) -> None:
    """Refuse keys that Spark cannot group by."""
    for name, data_type in types.items():
        if not is_ordered(data_type):
            msg = (
                f"Key {name!r} is {data_type.simpleString()}, which Spark cannot group by. Use a field of it, "
                f"or its text as in to_json({name})."
            )
            raise GraphError(msg)


def explain_analysis(make: Callable[[], DataFrame], what: str, schema: StructType) -> DataFrame:
    """The frame that ``make`` returns.

    Raises:
        GraphError: Spark's analyser refused it; the message names the column or ``what``.
    """
    from pyspark.errors import AnalysisException

    try:
        return make()
    except AnalysisException as error:
        parameters = error.getMessageParameters() or {}
        unknown = parameters.get("objectName", "").replace("`", "")
        if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
            msg = no_column(unknown, schema.names)
        else:
            msg = f"The {what} cannot be computed from the input: {first_line(error)}."
        raise GraphError(msg) from error


# ---- frames of a batch -----------------------------------------------------------------------------------------------

_ARRIVAL = f"{INTERNAL}arrival"


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowFrames:
    """What a step does to frames. All that does not change from batch to batch is made once, when the step is opened.

    Attributes:
        micros: the event time, as SQL; in processing time that of the batch's arrival.
        window: assigns times to windows.
        layers_format: the rows of its layers.
        output: the schema of its results.
        inputs: keys and inputs of aggregates, as columns over the step's input, under internal names. A key must not
            keep its input's name here: the optimiser would drop the alias, and the layer's partitioning would then
            name a column that the layer does not have.
        groups: group columns over ``inputs``, under their own names.
        partials: aggregates over a batch's rows.
        bounds: columns of a result: group columns, start and end of the window.
        finishes: columns of a result: aggregates, over merged partials.
        constants: names of the inputs that are the same in all rows.
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
    constants: frozenset[str] = frozenset()

    @property
    def is_ordered(self) -> bool:
        """Whether Spark can compare results."""
        return all(is_ordered(field.dataType) for field in self.output.fields)

    @property
    def keeps(self) -> StateSchema:
        """The schema of its state, which a restore compares."""
        layers_format = self.layers_format
        return StateSchema(kind=layers_format.kind, schema=layers_format.ddl(), window=self.window.describe())

    def with_timeliness(self, frame: DataFrame, horizon: int, mark: int, arrival: int | None = None) -> DataFrame:
        """``frame`` flagged: each row with its pane, and whether it is on time, late or without an event time.

        Args:
            frame: the step's input.
            horizon: rows are late if their panes end at or before it: all windows of these are closed.
            mark: makes the plan unlike that of any other batch, so that its cache entry is its own.
            arrival: the time of all rows, in processing time.
        """
        closed = variable_literal(horizon, column=PANE, mark=mark)
        late = f"WHEN {PANE} <= {closed} THEN {ROW_LATE}"
        code = f"CASE WHEN {PANE} IS NULL THEN {ROW_WITHOUT_TIME} {late} ELSE {ROW_ON_TIME} END"
        timed = frame if arrival is None else frame.selectExpr("*", f"{variable_literal(arrival)} AS {_ARRIVAL}")
        return timed.selectExpr("*", f"{self.window.pane(self.micros)} AS {PANE}").selectExpr(
            "*", f"{code} AS {TIMELINESS}"
        )

    def on_time(self, flagged: DataFrame, *more: str) -> DataFrame:
        """Keys, stretches of time and inputs of aggregates of the rows on time, and the columns ``more``."""
        return flagged.where(f"{TIMELINESS} = {ROW_ON_TIME}").select(*self.inputs, *more)

    @property
    def exchange_keys(self) -> tuple[Column, ...] | None:
        """The keys, if rows that are ``grouped`` only have to be exchanged by them to be a layer; else ``None``."""
        return self.inputs[: len(self.layers_format.keys)]

    def grouped(self, flagged: DataFrame) -> DataFrame:
        """One row for each key and pane of the rows on time, in whatever partition."""
        return self.on_time(flagged).groupBy(*self.groups).agg(*self.partials)

    def grouped_with_figures(
        self, flagged: DataFrame, wanted: WantedFigures, before: EarlierFigures, bound: int | None
    ) -> DataFrame:
        """As ``grouped``, with groups of rows that are not on time, and with columns to make figures of."""
        from pyspark.sql import functions as F

        is_on_time = F.expr(f"{TIMELINESS} = {ROW_ON_TIME}")
        layers_format = self.layers_format
        set_aside = (
            column if name in self.constants else F.when(is_on_time, column).alias(name)
            for name, column in zip(flagged.select(*self.inputs).columns, self.inputs, strict=True)
            if name not in (layers_format.start, layers_format.end)
        )
        rows = flagged.select("*", *set_aside, F.expr(place_of_group(wanted, flagged.schema)).alias(GROUP_PLACE))
        keys = self.groups[: len(layers_format.keys)]
        counted = F.count(F.lit(1)).alias(ROWS_OF_GROUP)
        return rows.groupBy(*keys, _column(GROUP_PLACE)).agg(*self.partials, counted, *before.parts(bound))

    def without_figures(self, groups: DataFrame) -> DataFrame:
        """The rows of ``grouped``, of those of ``grouped_with_figures``; without keys partitioned as layers are."""
        layers_format, start = self.layers_format, cast("PanedWindow", self.window).pane_start(GROUP_PLACE)
        times = {layers_format.start: start, layers_format.end: GROUP_PLACE}
        columns = (
            f"timestamp_micros({times[name]}) AS {name}" if name in times else quote_identifier(name)
            for name in layers_format.schema.names
        )
        rows = groups.where(GROUP_ON_TIME).selectExpr(*columns)
        return rows if layers_format.keys else layers_format.hashed(rows)

    def partial(self, flagged: DataFrame) -> DataFrame:
        """The rows of ``grouped``, partitioned as layers are.

        Rows are exchanged by key and then aggregated. Without keys each task aggregates its own first.
        """
        layers_format = self.layers_format
        if not layers_format.keys:
            return layers_format.hashed(self.grouped(flagged))
        keys = [_key(place) for place in range(len(layers_format.keys))]
        rows = self.on_time(flagged).repartition(layers_format.partitions, *keys)
        return rows.groupBy(*self.groups).agg(*self.partials)

    def late(self, flagged: DataFrame) -> DataFrame:
        """The rows that are not on time, as they came."""
        return flagged.where(f"{TIMELINESS} <> {ROW_ON_TIME}").drop(TIMELINESS, PANE, _ARRIVAL)


class WindowedStep(Protocol):
    """The description that frames are made of; see ``penstock.operators.windows.aggregate.WindowAggregate``."""

    @property
    def keys(self) -> tuple[tuple[str, str | Column], ...]:
        """Name and expression of each group column."""

    @property
    def time(self) -> str:
        """The event-time column."""

    @property
    def window(self) -> Window:
        """Assigns times to windows."""

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """What is computed for each key and window."""

    @property
    def shift(self) -> int:
        """Microseconds added to event times."""


def make_frames(
    step: WindowedStep, *, uid: str, schema: StructType, session: SparkSession, partitions: int
) -> WindowFrames:
    """Check a step against its input, and make its frames. Spark analyses them; no job runs.

    Raises:
        GraphError: a column is missing or has an impossible type, or two columns have one name.
    """
    window, aggregates = step.window, step.aggregates
    check_time(schema, None if window.is_processing else step.time)
    check_names(step.keys, aggregates, schema)
    inputs = _inputs(step, schema)
    frame = empty_frame(session, schema)
    frame = frame.selectExpr("*", f"0L AS {_ARRIVAL}") if window.is_processing else frame
    if isinstance(window, SessionWindow) and window.by is not None:
        check_gap(frame, window.by, schema)
    rows = _rows(frame.selectExpr("*", f"{window.pane(_micros(step))} AS {PANE}"), inputs, step.keys, schema)
    types = _types(rows, aggregates)
    partials, merges = _partials(aggregates, types)
    names, ends = tuple(name for name, _ in step.keys), _ends(window)
    groups = (*(_column(_key(place)).alias(name) for place, name in enumerate(names)), *map(_column, ends))
    partial = explain_analysis(lambda: rows.groupBy(*groups).agg(*partials), "aggregates", schema)
    bounds = (*(_column(quote_identifier(name)) for name in names), *_window_columns(window))
    finishes = tuple(_finishes(aggregates, types))
    kept = nullable(partial.schema)
    skips = all(part.skips_null for aggregate in aggregates for part in aggregate.parts)
    windowed = LayerFormat(uid=uid, keys=names, schema=kept, merges=merges, partitions=partitions, skips_null=skips)
    windowed = replace(windowed, table=to_record(window, aggregates, types))
    layers_format = replace(windowed, start=ends[0], end=ends[1], scattered=not window.is_paned)
    output = explain_analysis(
        lambda: _merged_frame(layers_format, session).select(*bounds, *finishes), "aggregates", schema
    )
    return WindowFrames(
        micros=_micros(step),
        window=window,
        layers_format=layers_format,
        output=nullable(output.schema),
        inputs=tuple(inputs),
        groups=groups,
        partials=tuple(partials),
        bounds=bounds,
        finishes=finishes,
        constants=frozenset(_in(place) for place, aggregate in enumerate(aggregates) if aggregate.is_of_rows),
    )


def _merged_frame(layers_format: LayerFormat, session: SparkSession) -> DataFrame:
    """An empty frame of merged partials in windows."""
    merged = layers_format.merged(empty_frame(session, layers_format.schema))
    return merged.withColumnsRenamed({layers_format.start: WINDOW_START, layers_format.end: WINDOW_END})


def _micros(step: WindowedStep) -> str:
    if step.window.is_processing:
        return _ARRIVAL
    micros = f"unix_micros({quote_identifier(step.time)})"
    return f"try_add({micros}, {step.shift}L)" if step.shift else micros


def _ends(window: Window) -> tuple[str, str]:
    """Names of the columns of layers with the start and the end of a stretch of time."""
    return (PANE_START, PANE_END) if window.is_paned else (WINDOW_START, WINDOW_END)


def _window_columns(window: Window) -> tuple[Column, Column]:
    """Start and end of the window in results; NULL for all time."""
    from pyspark.sql import functions as F

    if isinstance(window, GlobalWindow) or (isinstance(window, CountWindow) and window.is_running):
        return F.expr("CAST(NULL AS TIMESTAMP)").alias(WINDOW_START), F.expr("CAST(NULL AS TIMESTAMP)").alias(
            WINDOW_END
        )
    return F.col(WINDOW_START), F.col(WINDOW_END)


def _rows(
    ended: DataFrame, inputs: Sequence[Column], keys: Sequence[tuple[str, str | Column]], schema: StructType
) -> DataFrame:
    """Keys and inputs of aggregates, over a frame with ``PANE``. Refuses keys that cannot be grouped by."""
    rows = explain_analysis(lambda: ended.select(*inputs), "keys and aggregates", schema)
    check_keys({name: rows.schema[_key(place)].dataType for place, (name, _) in enumerate(keys)})
    return rows


def _types(rows: DataFrame, aggregates: Sequence[Aggregate]) -> list[DataType]:
    """The types of the aggregates' inputs. Refuses those that an aggregate cannot take."""
    for place, aggregate in enumerate(aggregates):
        if aggregate.check:
            aggregate.check(rows, _column(_in(place)))
    return [rows.schema[_in(place)].dataType for place in range(len(aggregates))]


def _inputs(step: WindowedStep, schema: StructType) -> list[Column]:
    from pyspark.sql import functions as F

    columns = [_expression(expression, schema).alias(_key(place)) for place, (_, expression) in enumerate(step.keys)]
    start, end = _ends(step.window)
    micros = step.window.pane_start(PANE) if isinstance(step.window, PanedWindow) else _micros(step)
    columns.append(F.expr(f"timestamp_micros({micros})").alias(start))
    columns.append(F.expr(f"timestamp_micros({PANE})").alias(end))
    time = (
        F.expr(f"timestamp_micros({_ARRIVAL})") if step.window.is_processing else _column(quote_identifier(step.time))
    )
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
            merges[name] = merge_once(part.merge)
    return columns, merges


def _finishes(aggregates: Sequence[Aggregate], types: Sequence[DataType]) -> list[Column]:
    columns = []
    for aggregate, kind in zip(aggregates, types, strict=True):
        parts = {part.name: _column(quote_identifier(partial_name(aggregate, part.name))) for part in aggregate.parts}
        columns.append(aggregate.finish(parts, kind).alias(aggregate.label))
    return columns


def _key(place: int) -> str:
    return f"{INTERNAL}key_{place}"


def _in(place: int) -> str:
    return f"{INTERNAL}in_{place}"


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(name)


def _expression(value: str | Column, schema: StructType) -> Column:
    from pyspark.sql import functions as F

    if not isinstance(value, str):
        return value
    return F.col(quote_identifier(value)) if value in schema.names else F.expr(value)
