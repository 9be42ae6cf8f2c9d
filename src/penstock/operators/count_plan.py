"""Windows of so many rows as frames: a batch's rows beside the windows that are not full. Runs no job.

State is one layer, made anew with each batch: of each key what its batch has filled, which is sent, and the window that
is not full. Rows of a batch are counted on from there in order of their event time, then as they came.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from penstock.operators.aggregates import count
from penstock.operators.session_plan import SpanFormat, bounds_of
from penstock.operators.window_checks import OWN, partial_name
from penstock.operators.window_plan import WindowPlan, make_plan
from penstock.state.changing import quoted
from penstock.state.layer import END, START

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.operators.count_window import Counted
    from penstock.operators.window_aggregate import WindowAggregate

KIND: Final = "counted/1"
_ROWS: Final = count().alias("_rows")
_COUNT: Final = partial_name(_ROWS, "count")
_ARRIVED, _COUNTED, _INDEX = (f"{OWN}{name}" for name in ("arrived", "counted", "index"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountFormat(SpanFormat):
    """The rows of the layer: windows that are full, then those that are not.

    Attributes:
        size: how many rows a full one has.
    """

    size: int

    def full(self, frame: DataFrame) -> DataFrame:
        """The windows that are full."""
        return frame.where(f"{_COUNT} >= {self.size}L")

    def between(self, frame: DataFrame, after: int, until: int | None = None) -> DataFrame:
        """The windows that are not full: all that counts once the others are sent."""
        del after, until
        return frame.where(f"{_COUNT} < {self.size}L")

    def merged(self, frame: DataFrame, *more: Column, by: tuple[str, ...] = ()) -> DataFrame:
        """One row for each key. See :meth:`LayerFormat.merged`."""
        together = frame.selectExpr("*", f"pmod(hash({END}), 1) AS {_INDEX}")
        return self.joined(together, *more, by=(_INDEX, *by)).drop(_INDEX)

    def figure(self) -> Column:
        """How many windows are full, as an aggregate over the layer's rows."""
        from pyspark.sql import functions as F

        return F.expr(f"count_if({_COUNT} >= {self.size}L)").alias("full")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountPlan(WindowPlan):
    """What the step does to frames."""

    @property
    def layers(self) -> CountFormat:
        """The rows of its layer."""
        assert isinstance(self.layers_format, CountFormat)
        return self.layers_format

    def counted(self, flagged: DataFrame, state: DataFrame | None) -> DataFrame:
        """The rows of the next layer: what the windows of ``state`` become with the rows that are on time."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        layers = self.layers
        rows = self.on_time(flagged.withColumn(_ARRIVED, F.monotonically_increasing_id()), _ARRIVED)
        places = rows.columns[: len(layers.keys)]
        placed = rows.repartition(layers.partitions, *places) if places else rows.repartition(1)
        found = placed.selectExpr("*", f"1L AS {_COUNTED}")
        if state is not None:
            found = found.union(self._beginnings(state, found.schema))
        alike = [F.col(place) for place in places] or [F.expr(f"pmod(hash({END}), 1)")]
        by_arrival = Window.partitionBy(*alike).orderBy(F.expr(f"{_ARRIVED} >= 0"), START, _ARRIVED)
        so_far = F.sum(_COUNTED).over(by_arrival.rowsBetween(Window.unboundedPreceding, Window.currentRow))
        found = found.withColumn(_INDEX, so_far).selectExpr("*", f"({_INDEX} - 1) div {layers.size}L AS {_INDEX}_")
        found = found.where(f"{_ARRIVED} >= 0").drop(_INDEX).withColumnRenamed(f"{_INDEX}_", _INDEX)
        windows = found.groupBy(*self.groups[: len(places)], _INDEX).agg(*bounds_of(layers), *self.partials)
        if state is not None:
            windows = windows.union(state.selectExpr(*map(quoted, layers.keys), f"0L AS {_INDEX}", *self._rest()))
        return layers.joined(windows, by=(_INDEX,)).select(*map(quoted, layers.schema.names))

    def _beginnings(self, state: DataFrame, schema: StructType) -> DataFrame:
        """Windows that are not full, as rows that come before all others and count as many as they hold."""
        keys = map(quoted, self.layers.keys)
        nothing = [f"CAST(NULL AS {field.dataType.simpleString()})" for field in schema.fields]
        inputs = nothing[len(self.layers.keys) + 2 : -2]
        return state.selectExpr(*keys, START, END, *inputs, "-1L", _COUNT)

    def _rest(self) -> list[str]:
        return [quoted(name) for name in self.layers.schema.names if name not in self.layers.keys]


def make_count_plan(
    step: WindowAggregate, window: Counted, *, uid: str, schema: StructType, session: SparkSession, partitions: int
) -> CountPlan:
    """As :func:`make_plan`, with one aggregate more, which says how many rows a window has."""
    counting = replace(step, aggregates=(*step.aggregates, _ROWS))
    plan = make_plan(counting, uid=uid, schema=schema, session=session, partitions=partitions)
    given = {field.name: getattr(plan, field.name) for field in fields(plan)}
    layers = {field.name: getattr(plan.layers_format, field.name) for field in fields(plan.layers_format)}
    layers |= {"scattered": False, "kind": KIND, "size": window.size}
    output = type(plan.output)(plan.output.fields[:-1])
    given |= {"output": output, "finishes": plan.finishes[:-1], "layers_format": CountFormat(**layers)}
    return CountPlan(**given)
