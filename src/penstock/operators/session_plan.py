"""The rows of sessions: put into sessions, merged, made of a batch. Runs no job, adds no exchange above layers.

Layers hold sessions, or parts of such: of each key, stretches of time that do not overlap within a layer, but may do so
with those of another layer, and are then one. Which are one is found by a running maximum over the key's stretches in
order of their starts, whatever their number. What ends at or before the horizon is closed and can be left out before
that, since all layers are merged into one before the horizon rises.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from penstock.ids import END_OF_TIME
from penstock.operators.window_checks import OWN
from penstock.operators.window_plan import WindowPlan
from penstock.state.changing import quoted
from penstock.state.layer import LayerFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

KIND: Final = "sessions/1"
SESSION: Final = f"{OWN}session"
_BEFORE: Final = f"{OWN}before"


def numbered(
    frame: DataFrame, keys: Sequence[str], start: str, end: str, *, among: str = "true", name: str = SESSION
) -> DataFrame:
    """``frame`` with the number of the session of its key that each row is in, counted in order of time.

    Args:
        frame: rows with a stretch of time; all of a key in one place, and without keys all rows.
        keys: SQL for the key columns.
        start: name of the column that says where the stretch starts.
        end: the one that says where it ends.
        among: SQL; only such rows make sessions, and the others have no number.
        name: of the column to add.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    places = [F.col(key) for key in keys] or [F.expr(f"pmod(hash({quoted(start)}), 1)")]
    by_start = Window.partitionBy(*places).orderBy(quoted(start))
    ends = F.expr(f"CASE WHEN {among} THEN {quoted(end)} END")
    before = F.max(ends).over(by_start.rowsBetween(Window.unboundedPreceding, -1))
    goes_on = f"{quoted(start)} < {_BEFORE} OR unix_micros({_BEFORE}) = {END_OF_TIME}L"
    begins = F.expr(f"CASE WHEN NOT ({among}) OR {goes_on} THEN 0 ELSE 1 END")
    number = F.sum(begins).over(by_start.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    found = frame.withColumn(_BEFORE, before)
    return found.withColumn(name, F.when(F.expr(among), number)).drop(_BEFORE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanFormat(LayerFormat):
    """Rows of layers whose stretches of time are those of the rows in them: any two of a key may become one."""

    def joined(self, frame: DataFrame, *more: Column, by: tuple[str, ...]) -> DataFrame:
        """One row for each key and value of ``by``, from the first start to the last end."""
        return frame.groupBy(*map(quoted, (*self.keys, *by))).agg(*bounds_of(self), *self.merging, *more)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SessionFormat(SpanFormat):
    """The rows of layers of sessions."""

    def merged(self, frame: DataFrame, *more: Column, by: tuple[str, ...] = ()) -> DataFrame:
        """One row for each key and session. See :meth:`LayerFormat.merged`."""
        found = numbered(frame, [quoted(key) for key in self.keys], self.start, self.end)
        merged = self.joined(found, *more, by=(SESSION, *by)).drop(SESSION)
        others = [name for name in merged.columns if name not in self.schema.names]
        return merged.select(*map(quoted, (*self.schema.names, *others)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SessionPlan(WindowPlan):
    """What the step does to frames."""

    def partial(self, flagged: DataFrame, *, fold: bool = False) -> DataFrame:  # noqa: ARG002
        """One row for each key and session of the batch's rows that are on time, placed as layers are.

        Nothing is folded: where a session begins is known only where all rows of its key are.
        """
        layers_format = self.layers_format
        rows = self.on_time(flagged)
        places = rows.columns[: len(layers_format.keys)]
        placed = rows.repartition(layers_format.partitions, *places) if places else rows.repartition(1)
        found = numbered(placed, places, layers_format.start, layers_format.end)
        groups = self.groups[: len(places)]
        sessions = found.groupBy(*groups, SESSION).agg(*bounds_of(layers_format), *self.partials)
        return sessions.select(*map(quoted, layers_format.schema.names))


def bounds_of(layers_format: LayerFormat) -> tuple[Column, Column]:
    """From the first start to the last end of some rows, as aggregates."""
    from pyspark.sql import functions as F

    start, end = layers_format.start, layers_format.end
    return F.min(start).alias(start), F.max(end).alias(end)


def as_sessions(plan: WindowPlan) -> SessionPlan:
    """The plan of the same step with layers of sessions."""
    given = {field.name: getattr(plan, field.name) for field in fields(plan)}
    layers = {field.name: getattr(plan.layers_format, field.name) for field in fields(plan.layers_format)}
    layers_format = SessionFormat(**{**layers, "scattered": False, "kind": KIND})
    return SessionPlan(**{**given, "layers_format": layers_format, "plain_keys": ()})
