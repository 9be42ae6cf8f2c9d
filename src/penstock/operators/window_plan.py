"""The frames of a windowed aggregate: which rows are late, partials of a batch, the finished result; runs no job.

Everything that does not change from batch to batch is made once, here, when the step is opened.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import GraphError
from penstock.state.changing import changing, quoted
from penstock.state.layer import END, START, LayerFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from penstock.operators.aggregates import Aggregate
    from penstock.operators.windows import Window

OWN = "__penstock_"
"""Begins the names of columns that a frame has only inside a step."""

_CODE, _END_MICROS = f"{OWN}code", f"{OWN}end"
ON_TIME, LATE, MISSING = 0, 1, 2
FIGURES = ("on_time", "late", "missing")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowPlan:
    """What the step does to frames.

    Attributes:
        time: the event-time column.
        window: how times fall into windows.
        layers_format: the rows of its layers.
        output: the schema of its results.
        inputs: keys and inputs of aggregates, as columns over the step's input, under names of the step's own. A key
            must not keep its input's name here: the optimiser would drop the alias, and the layer's partitioning
            would then name a column that the layer does not have.
        groups: group columns over ``inputs``, under their own names.
        partials: aggregates over a batch's rows.
        finishes: result columns over merged partials.
    """

    time: str
    window: Window
    layers_format: LayerFormat
    output: StructType
    inputs: tuple[Column, ...]
    groups: tuple[Column, ...]
    partials: tuple[Column, ...]
    finishes: tuple[Column, ...]

    def flagged(self, frame: DataFrame, watermark: int, mark: int) -> DataFrame:
        """``frame`` with a code for each row: on time, late (its window is closed), or without an event time.

        Args:
            frame: the step's input.
            watermark: windows ending at or before it are closed.
            mark: makes the plan unlike that of any other batch, so that its cache entry is its own.
        """
        closed = changing(watermark, beside=_END_MICROS, mark=mark)
        late = f"WHEN {_END_MICROS} <= {closed} THEN {LATE}"
        code = f"CASE WHEN {_END_MICROS} IS NULL THEN {MISSING} {late} ELSE {ON_TIME} END"
        end = self.window.end(f"unix_micros({quoted(self.time)})")
        return frame.selectExpr("*", f"{end} AS {_END_MICROS}").selectExpr("*", f"{code} AS {_CODE}")

    def figures(self) -> list[Column]:
        """How many rows are on time, late, without a time: aggregates over a flagged frame, as in ``FIGURES``."""
        from pyspark.sql import functions as F

        return [
            F.expr(f"count_if({_CODE} = {code})").alias(name)
            for code, name in zip((ON_TIME, LATE, MISSING), FIGURES, strict=True)
        ]

    def partial(self, flagged: DataFrame) -> DataFrame:
        """One row for each key and window of the rows that are on time, placed as layers are.

        Rows go to their places first and are aggregated there, in one exchange. Without keys there would be one
        place for each window, so each task aggregates its own rows first and only the partials travel.
        """
        rows = flagged.where(f"{_CODE} = {ON_TIME}").select(*self.inputs)
        layers_format = self.layers_format
        if not layers_format.keys:
            return layers_format.hashed(rows.groupBy(*self.groups).agg(*self.partials))
        places = [_key(place) for place in range(len(layers_format.keys))]
        return rows.repartition(layers_format.partitions, *places).groupBy(*self.groups).agg(*self.partials)

    def late(self, flagged: DataFrame) -> DataFrame:
        """The rows that are not on time, as they came."""
        return flagged.where(f"{_CODE} <> {ON_TIME}").drop(_CODE, _END_MICROS)

    def finished(self, layers: DataFrame, after: int, until: int) -> DataFrame:
        """The results of windows ending in ``(after, until]``, from a union of layers, with no exchange."""
        layers_format = self.layers_format
        return layers_format.merged(layers_format.between(layers, after, until)).select(*self.finishes)


def make_plan(
    *,
    uid: str,
    keys: Sequence[tuple[str, str | Column]],
    time: str,
    window: Window,
    aggregates: Sequence[Aggregate],
    schema: StructType,
    session: SparkSession,
    partitions: int,
) -> WindowPlan:
    """Check a step against its input and make its plan; analyses, but runs nothing.

    Raises:
        GraphError: a column is missing or has an impossible type, or two columns have one name.
    """
    _check_time(schema, time)
    _check_names(keys, aggregates, schema)
    inputs = _inputs(keys, window, aggregates, schema)
    ended = f"{window.end(f'unix_micros({quoted(time)})')} AS {_END_MICROS}"
    rows = _rows(session.createDataFrame([], schema).selectExpr("*", ended), inputs, keys, schema)
    types = [rows.schema[f"{OWN}in_{place}"].dataType for place in range(len(aggregates))]
    partials, merges = _partials(aggregates, types)
    names = tuple(name for name, _ in keys)
    groups = (*(_column(_key(place)).alias(name) for place, name in enumerate(names)), _column(START), _column(END))
    partial = _analysed(lambda: rows.groupBy(*groups).agg(*partials), "aggregates", schema)
    finishes = (*(_column(quoted(name)) for name in (*names, START, END)), *_finishes(aggregates, types))
    output = _analysed(lambda: partial.select(*finishes), "aggregates", schema)
    layers_format = LayerFormat(
        uid=uid, keys=names, schema=_nullable(partial.schema), merges=merges, partitions=partitions
    )
    return WindowPlan(
        time=time,
        window=window,
        layers_format=layers_format,
        output=_nullable(output.schema),
        inputs=tuple(inputs),
        groups=groups,
        partials=tuple(partials),
        finishes=finishes,
    )


def _rows(
    ended: DataFrame, inputs: Sequence[Column], keys: Sequence[tuple[str, str | Column]], schema: StructType
) -> DataFrame:
    """Keys and inputs of aggregates, over a frame that knows where windows end; the keys can be grouped by."""
    rows = _analysed(lambda: ended.select(*inputs), "keys and aggregates", schema)
    _check_keys({name: rows.schema[_key(place)].dataType for place, (name, _) in enumerate(keys)})
    return rows


def _inputs(
    keys: Sequence[tuple[str, str | Column]], window: Window, aggregates: Sequence[Aggregate], schema: StructType
) -> list[Column]:
    from pyspark.sql import functions as F

    columns = [_expression(expression, schema).alias(_key(place)) for place, (_, expression) in enumerate(keys)]
    columns.append(F.expr(f"timestamp_micros({window.start(_END_MICROS)})").alias(START))
    columns.append(F.expr(f"timestamp_micros({_END_MICROS})").alias(END))
    for place, aggregate in enumerate(aggregates):
        of = F.lit(1) if aggregate.of is None else _expression(aggregate.of, schema)
        columns.append(of.alias(f"{OWN}in_{place}"))
    return columns


def _partials(
    aggregates: Sequence[Aggregate], types: Sequence[DataType]
) -> tuple[list[Column], dict[str, Callable[[Column], Column]]]:
    columns: list[Column] = []
    merges: dict[str, Callable[[Column], Column]] = {}
    for place, (aggregate, kind) in enumerate(zip(aggregates, types, strict=True)):
        for part in aggregate.parts:
            name = _partial_name(aggregate, part.name)
            columns.append(part.partial(_column(f"{OWN}in_{place}"), kind).alias(name))
            merges[name] = part.merge
    return columns, merges


def _finishes(aggregates: Sequence[Aggregate], types: Sequence[DataType]) -> list[Column]:
    columns = []
    for aggregate, kind in zip(aggregates, types, strict=True):
        parts = {part.name: _column(quoted(_partial_name(aggregate, part.name))) for part in aggregate.parts}
        columns.append(aggregate.finish(parts, kind).alias(aggregate.label))
    return columns


def _partial_name(aggregate: Aggregate, part: str) -> str:
    return f"{aggregate.label}__{part}"


def _key(place: int) -> str:
    return f"{OWN}key_{place}"


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(name)


def _expression(value: str | Column, schema: StructType) -> Column:
    from pyspark.sql import functions as F

    if not isinstance(value, str):
        return value
    return F.col(quoted(value)) if value in schema.names else F.expr(value)


def _nullable(schema: StructType) -> StructType:
    """Columns read back from files may all be NULL, as far as Spark knows; so a schema never says otherwise."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType, nullable=True) for field in schema.fields])


def _check_time(schema: StructType, time: str) -> None:
    from pyspark.sql.types import TimestampType

    if time not in schema.names:
        msg = f"the event-time column {time!r} is not in the input; {nearest(time, schema.names)}"
        raise GraphError(msg)
    kind = schema[time].dataType
    if not isinstance(kind, TimestampType):
        msg = (
            f"the event-time column {time!r} is {kind.simpleString()}, but windows need a TIMESTAMP: "
            f'convert it first, as in .with_column("{time}", "to_timestamp({time})")'
        )
        raise GraphError(msg)


def _check_names(keys: Sequence[tuple[str, str | Column]], aggregates: Sequence[Aggregate], schema: StructType) -> None:
    if not aggregates:
        msg = "agg() needs at least one aggregate, as in ps.agg.count()"
        raise GraphError(msg)
    group = [*(name for name, _ in keys), START, END]
    results = [aggregate.label for aggregate in aggregates]
    partials = [_partial_name(aggregate, part.name) for aggregate in aggregates for part in aggregate.parts]
    for names, what in (([*group, *results], "columns of the result"), ([*group, *partials], "columns of the state")):
        seen: set[str] = set()
        for name in names:
            if name.casefold() in seen:
                msg = f"two {what} would be called {name!r}: name one of them otherwise with .alias(…)"
                raise GraphError(msg)
            seen.add(name.casefold())
    for name in (*schema.names, *group, *results):
        if name.casefold().startswith(OWN):
            msg = f"column {name!r}: names that begin with {OWN} are penstock's own; rename it"
            raise GraphError(msg)


def _check_keys(types: Mapping[str, DataType]) -> None:
    for name, data_type in types.items():
        kind = data_type.simpleString()
        if re.search(r"\b(map<|variant\b)", kind):
            msg = (
                f"key {name!r} is {kind}, which Spark cannot group by: use a field of it, "
                f"or its text as in to_json({name})"
            )
            raise GraphError(msg)


def _analysed(make: Callable[[], DataFrame], what: str, schema: StructType) -> DataFrame:
    from pyspark.errors import AnalysisException

    try:
        return make()
    except AnalysisException as error:
        parameters = error.getMessageParameters() or {}
        unknown = parameters.get("objectName", "").replace("`", "")
        if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
            msg = f"column {unknown!r} is not in the input; {nearest(unknown, schema.names)}"
        else:
            msg = f"the {what} cannot be computed from the input: {error}"
        raise GraphError(msg) from error


def nearest(name: str, known: Sequence[str]) -> str:
    """The names most like ``name``, as part of a message.

    >>> nearest("amuont", ["amount", "user"])
    "did you mean 'amount'?"
    """
    near = difflib.get_close_matches(name, known, n=3)
    if near:
        return "did you mean " + " or ".join(repr(word) for word in near) + "?"
    return "it has " + ", ".join(known)
