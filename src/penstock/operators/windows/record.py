"""A windowed aggregate as a checkpoint records it, to read its layers as a table without its pipeline."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import CheckpointUnreadable
from penstock.operators.windows.assigners import CountWindow, GlobalWindow, SessionWindow
from penstock.operators.windows.panes import CumulativeWindow, SlidingWindow, TumblingWindow, ZonedWindow
from penstock.spark.sql import spark_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import DataType

    from penstock.handles import Json
    from penstock.operators.aggregates.base import Aggregate
    from penstock.operators.windows.panes import FixedWindow, Window

# A checkpoint holds no code. It holds which windows rows were cut for, and of each aggregate of ``ps.agg`` the
# function, the type of its input and its parameters: from these its ``merge`` and ``finish`` are made again. What users
# wrote themselves (``ps.agg.custom``) is code, so of that only the partials can be shown.

_KINDS: Final[Mapping[str, type[Any]]] = {
    "tumbling": TumblingWindow,
    "sliding": SlidingWindow,
    "cumulative": CumulativeWindow,
    "session": SessionWindow,
    "counted": CountWindow,
    "global": GlobalWindow,
}
"""Kinds of windows by their names in a record, which never change once released."""
_ZONED: Final = "zoned"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedAggregate:
    """An aggregate as a checkpoint recorded it.

    Attributes:
        name: of the result column.
        parts: names of its parts; each is the column ``<name>__<part>`` of the layers.
        of: the type of its input.
        aggregate: finishes and merges its partials; ``None`` for one that a user wrote.
    """

    name: str
    parts: tuple[str, ...]
    of: DataType
    aggregate: Aggregate | None

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns in the layers."""
        return tuple(f"{self.name}__{part}" for part in self.parts)


def to_record(window: Window, aggregates: Sequence[Aggregate], types: Sequence[DataType]) -> Mapping[str, Json]:
    """The record of a step, by which its layers can be read as a table.

    >>> from pyspark.sql.types import LongType
    >>> from penstock.operators.aggregates.basic import sum
    >>> to_record(TumblingWindow(size=10), [sum("n")], [LongType()])["results"]
    [{'name': 'sum_n', 'function': 'sum', 'of': 'bigint', 'parts': ['sum'], 'with': {}}]
    """
    results: list[Json] = [
        {
            "name": aggregate.label,
            "function": aggregate.function,
            "of": kind.simpleString(),
            "parts": [part.name for part in aggregate.parts],
            "with": None if aggregate.parameters is None else dict(aggregate.parameters),
        }
        for aggregate, kind in zip(aggregates, types, strict=True)
    ]
    return {"window": _write_window(window), "results": results}


def read_window(record: Json) -> Window:
    """The windows of a record.

    Raises:
        CheckpointUnreadable: this penstock does not know their kind.

    >>> read_window(to_record(ZonedWindow(TumblingWindow(size=3_600_000_000), "Europe/Berlin"), [], [])).describe()
    'tumbling 1 hour, Europe/Berlin'
    """
    match record:
        case {"window": window}:
            return _read_window(window)
        case _:
            raise _unknown(record)


def read_aggregates(record: Json) -> tuple[RecordedAggregate, ...]:
    """The aggregates of a record, in their order. Spark parses their types, so there must be a session.

    Raises:
        CheckpointUnreadable: this penstock does not know the kind of one.
    """
    match record:
        case {"results": list(results)}:
            return tuple(_read_result(result) for result in results)
        case _:
            raise _unknown(record)


def _write_window(window: Window) -> Json:
    if isinstance(window, ZonedWindow):
        return {"kind": _ZONED, "zone": window.zone, "local": _write_window(window.local)}
    kind = next(name for name, made in _KINDS.items() if made is type(window))
    made: Any = window  # each of them is a dataclass of plain values
    return {"kind": kind, **dataclasses.asdict(made)}


def _read_window(record: Json) -> Window:
    match record:
        case {"kind": str(kind), "zone": str(zone), "local": local} if kind == _ZONED:
            return ZonedWindow(cast("FixedWindow", _read_window(local)), zone)
        case {"kind": str(kind), **values} if kind in _KINDS:
            names = [field.name for field in dataclasses.fields(_KINDS[kind])]
            known = {name: values[name] for name in names if name in values}
            if len(known) == len(values):
                made: Window = _KINDS[kind](**known)
                return made
    raise _unknown(record)


def _read_result(record: Json) -> RecordedAggregate:
    from pyspark.sql.types import StructType

    match record:
        case {"name": str(name), "function": str(function), "of": str(of), "parts": list(parts), "with": parameters}:
            kind = cast("StructType", StructType.fromDDL(f"given {spark_type(of)}"))[0].dataType
            return RecordedAggregate(
                name=name, parts=tuple(map(str, parts)), of=kind, aggregate=_aggregate(name, function, parameters)
            )
    raise _unknown(record)


def _aggregate(name: str, function: str, parameters: Json) -> Aggregate | None:
    """The aggregate over any column; ``None`` if a user wrote it."""
    from penstock.operators import aggregates
    from penstock.operators.aggregates.base import FUNCTIONS

    if parameters is None:
        return None
    if function not in FUNCTIONS:
        raise _unknown({"name": name, "function": function})
    made: Aggregate = getattr(aggregates, function)("given", **cast("Mapping[str, Any]", parameters))
    return made.alias(name)


def _unknown(record: object) -> CheckpointUnreadable:
    msg = (
        f"The checkpoint describes the table of its state by {record!r}, which this penstock does not know. "
        "Read it with the version that wrote it."
    )
    return CheckpointUnreadable(msg)
