"""What a windowed aggregate refuses, and how it says so; knows nothing of frames beyond their columns."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final

from penstock.errors import GraphError
from penstock.state.layer import END, START

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from penstock.operators.aggregates import Aggregate

OWN: Final = "__penstock_"
"""Begins the names of columns that a frame has only inside a step."""

CHANGE, TIMING = "_change", "_timing"
"""Columns that some results have besides: what a row does to the one before, and when it was sent."""

PANE_START, PANE_END = "pane_start", "pane_end"


def check_time(schema: StructType, time: str | None) -> None:
    """Refuse an event time that is not there, or is no TIMESTAMP; without one there is nothing to refuse."""
    from pyspark.sql.types import TimestampType

    if time is None:
        return
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


def check_gap(given: DataFrame, by: str, schema: StructType) -> None:
    """Refuse a gap that cannot be computed from the step's input, or is no length of time."""
    from pyspark.sql.types import DayTimeIntervalType

    found = analysed(lambda: given.selectExpr("*", f"({by}) AS {OWN}gap"), "gap of the sessions", schema)
    kind = found.schema.fields[-1].dataType
    if not isinstance(kind, DayTimeIntervalType):
        msg = (
            f"the gap {by!r} is {kind.simpleString()}, but sessions need an INTERVAL DAY TO SECOND: write "
            "INTERVAL 5 MINUTES, or make one of a number of seconds with make_dt_interval(0, 0, 0, seconds)"
        )
        raise GraphError(msg)


def check_names(keys: Sequence[tuple[str, str | Column]], aggregates: Sequence[Aggregate], schema: StructType) -> None:
    """Refuse two columns of one name, in results or state, and names that are penstock's own."""
    if not aggregates:
        msg = "agg() needs at least one aggregate, as in ps.agg.count()"
        raise GraphError(msg)
    group = [*(name for name, _ in keys), START, END]
    marks = [*group, CHANGE, TIMING]
    state = [*group, PANE_START, PANE_END]
    results = [aggregate.label for aggregate in aggregates]
    partials = [partial_name(aggregate, part.name) for aggregate in aggregates for part in aggregate.parts]
    for names, what in (([*marks, *results], "columns of the result"), ([*state, *partials], "columns of the state")):
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


def check_keys(types: Mapping[str, DataType]) -> None:
    """Refuse keys that Spark cannot group by."""
    for name, data_type in types.items():
        kind = data_type.simpleString()
        if re.search(r"\b(map<|variant\b)", kind):
            msg = (
                f"key {name!r} is {kind}, which Spark cannot group by: use a field of it, "
                f"or its text as in to_json({name})"
            )
            raise GraphError(msg)


def partial_name(aggregate: Aggregate, part: str) -> str:
    """The column of layers that holds a part of an aggregate."""
    return f"{aggregate.label}__{part}"


def analysed(make: Callable[[], DataFrame], what: str, schema: StructType) -> DataFrame:
    """What ``make`` makes, or the analyser's complaint in the user's words."""
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
