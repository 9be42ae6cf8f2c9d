"""Rows of layers out of a table that a person made: which columns it must have, and which rows it may have.

Knows nothing of files, checkpoints or who asks. A table holds an aggregate's partial columns, or the finished one where
the partial is the same value: of ``sum``, ``count``, ``min`` and ``max``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import SchemaMismatch
from penstock.ids import BEGINNING
from penstock.operators.count_window import Counted
from penstock.operators.global_window import FIRST, LAST, Global
from penstock.operators.window_base import Paned
from penstock.operators.window_checks import nearest
from penstock.state.changing import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from penstock.operators.window_record import Recorded
    from penstock.operators.window_table import StateTable

_INVERTIBLE: Final = frozenset({"sum", "count", "min", "max"})
_SHOWN: Final = 3


def to_layer_rows(table: StateTable, frame: DataFrame) -> DataFrame:
    """``frame`` with the columns of the layers, in their order; no job.

    Raises:
        SchemaMismatch: a column is missing, is not known, or has another type; with the remedy.
    """
    layers_format = table.layers_format
    sources = _sources(table, frame)
    unknown = [name for name in frame.columns if name not in sources.values()]
    if unknown:
        msg = f"column {unknown[0]!r} is none of the state's; {nearest(unknown[0], [*sources.values()])}"
        raise SchemaMismatch(msg, uid=layers_format.uid)
    given = {field.name: field.dataType for field in frame.schema}
    for field in layers_format.schema:
        name = sources.get(field.name)
        if name is not None and given[name] != field.dataType:
            kind = field.dataType.simpleString()
            msg = (
                f"column {name!r} is {given[name].simpleString()}, the state has {kind}: "
                f'cast it, as in .withColumn("{name}", F.col("{name}").cast("{kind}"))'
            )
            raise SchemaMismatch(msg, uid=layers_format.uid)
    return frame.select(*(_column(field.name, sources) for field in layers_format.schema))


def _sources(table: StateTable, frame: DataFrame) -> Mapping[str, str]:
    """Which column of the frame each column of the layers is; all time's bounds are none."""
    layers_format, there = table.layers_format, frame.columns
    found = {name: name for name in layers_format.keys}
    bounds = (layers_format.start, layers_format.end)
    if not isinstance(table.plan.window, Global) or all(name in there for name in bounds):
        found |= {name: name for name in bounds}
    missing = [name for name in found if name not in there]
    if missing:
        raise SchemaMismatch(_missing(table, missing), uid=layers_format.uid)
    for result in table.written:
        found |= _of_result(table, result, there)
    return found


def _missing(table: StateTable, missing: list[str]) -> str:
    needed = [*table.layers_format.keys]
    if not isinstance(table.plan.window, Global):
        needed += [table.layers_format.start, table.layers_format.end]
    panes = ""
    if table.plan.window.is_paned:
        panes = "; windows that overlap are kept as panes, which ps.read_state(…, raw=True) gives"
    return f"there is no column {missing[0]!r}: it takes {', '.join(needed)} and the aggregates{panes}"


def _of_result(table: StateTable, result: Recorded, there: list[str]) -> Mapping[str, str]:
    if all(name in there for name in result.columns):
        return {name: name for name in result.columns}
    function = result.aggregate.function if result.aggregate is not None else "custom"
    is_same = function in _INVERTIBLE
    if is_same and result.name in there:
        return {result.columns[0]: result.name}
    wanted = f"{result.name!r}, or " if is_same else ""
    parts = " and ".join(map(repr, result.columns))
    why = "" if is_same else f": a finished {function} does not say what it was made of"
    msg = f"aggregate {result.name!r} is missing: it takes {wanted}{parts}{why}; ps.read_state(…, raw=True) gives them"
    raise SchemaMismatch(msg, uid=table.layers_format.uid)


def _column(name: str, sources: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as F

    if name in sources:
        return F.col(quoted(sources[name])).alias(name)
    is_start = name.endswith("_start")
    return F.expr(f"timestamp_micros({FIRST if is_start else LAST}L)").alias(name)


def check_rows(table: StateTable, rows: DataFrame, *, horizon: int) -> None:
    """Refuse rows that the step could not have made; a few jobs. NULL is a key like any other.

    Raises:
        SchemaMismatch: bounds are NULL, the wrong way round or none of the step's windows'; a window is closed already;
            two rows have one key and window, or sessions of one key overlap. With the first such rows.
    """
    layers_format = table.layers_format
    for condition, what in _wrong(table, horizon):
        _refuse(rows.where(f"NOT coalesce({condition}, false)"), what, layers_format.uid)
    count = rows.count()
    merged = layers_format.merged(rows).count()
    if merged != count:
        together = ", ".join((*layers_format.keys, layers_format.start, layers_format.end))
        if isinstance(table.plan.window, Counted):
            together = ", ".join(layers_format.keys) or "it all"
        msg = f"{count - merged} of {count} rows have the key and window of another ({together}), or overlap with it"
        raise SchemaMismatch(msg, uid=layers_format.uid)


def _wrong(table: StateTable, horizon: int) -> list[tuple[str, str]]:
    """What must hold of each row, as SQL, and what is wrong with one of which it does not."""
    window, layers_format = table.plan.window, table.layers_format
    start, end = quoted(layers_format.start), quoted(layers_format.end)
    first, last = f"unix_micros({start})", f"unix_micros({end})"
    found = [
        (f"{start} IS NOT NULL AND {end} IS NOT NULL", "a bound that is NULL"),
        (f"{start} < {end}", f"a {layers_format.end} that is not after {layers_format.start}"),
    ]
    if isinstance(window, Paned):
        on_grid = f"{last} = {window.pane(first)} AND {first} = {window.pane_start(last)}"
        found.append((on_grid, f"bounds that are none of the step's, which are {window.describe()}"))
    if isinstance(window, Counted):
        rows = quoted("_rows__count")
        full = "true" if window.is_running else f"{rows} < {window.size}L"
        found.append((f"{rows} >= 1 AND {full}", f"a number of rows that no open window of {window.size} rows has"))
    elif horizon > BEGINNING:
        found.append((f"{last} > {horizon}L", "a window that is closed: the step would drop it unseen"))
    return found


def _refuse(wrong: DataFrame, what: str, uid: str) -> None:
    found = wrong.limit(_SHOWN).collect()
    if found:
        shown = "; ".join(", ".join(f"{name}={value}" for name, value in row.asDict().items()) for row in found)
        msg = f"{wrong.count()} rows have {what}, such as {shown}"
        raise SchemaMismatch(msg, uid=uid)
