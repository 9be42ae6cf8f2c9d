"""Count windows: frames, emitter, operator."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime
from penstock.operators.aggregates.basic import count
from penstock.operators.windows.emitter import WindowEmitter
from penstock.operators.windows.frames import INTERNAL, WindowedStep, WindowFrames, make_frames, partial_name
from penstock.operators.windows.operator import WindowOperator
from penstock.operators.windows.sessions import IntervalFormat, interval_of
from penstock.spark.plans import FrameObservation
from penstock.spark.sql import quote_identifier
from penstock.state.layers import WINDOW_END, WINDOW_START, LayerLabel, build_layer, union_layers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.interfaces.operator import Collector
    from penstock.operators.windows.assigners import CountWindow
    from penstock.operators.windows.emit_strategy import EmitStrategy
    from penstock.spark.blocks import JavaObject
    from penstock.state.layers import Layer


# ----------------------------------------------------------------------------------------------------
# Windows of so many rows as frames: a batch's rows beside the windows that are not full. Runs no job.
#
# State is one layer, made anew with each batch: of each key what its batch has filled, which is sent, and the window
# that is not full. Rows of a batch are counted on from there in order of their event time, then as they came. In the
# one window for all time that is sent with each so many rows, state is what all rows of a key come to.

KIND: Final = "counted/1"
ROWS_OF_WINDOW: Final = count().alias("_rows")
"""The aggregate that says how many rows a window has; the last of a count window's step."""
_COUNT: Final = partial_name(ROWS_OF_WINDOW, "count")
_ARRIVED, _COUNTED, _INDEX = (f"{INTERNAL}{name}" for name in ("arrived", "counted", "index"))
_TOTAL, _LAST, _FROM, _DUE = (f"{INTERNAL}{name}" for name in ("total", "last", "from", "due"))
_BLOCK: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountFormat(IntervalFormat):
    """The rows of the layer: windows that are full, then those that are not.

    Attributes:
        size: how many rows a full one has.
    """

    size: int

    def kept(self, windows: DataFrame) -> DataFrame:
        """The rows of a layer, out of windows and parts of them, which have their number within the key."""
        return self.joined(windows, by=(_INDEX,)).select(*map(quote_identifier, self.schema.names))

    def full(self, frame: DataFrame) -> DataFrame:
        """The windows that are full."""
        return frame.where(f"{_COUNT} >= {self.size}L")

    def rest(self, frame: DataFrame) -> DataFrame:
        """The windows that are to be sent at the end of the input."""
        return self.between(frame, MIN_WATERMARK)

    def between(self, frame: DataFrame, after: int, until: int | None = None) -> DataFrame:
        """The windows that are not full: all that counts once the others are sent."""
        del after, until
        return frame.where(f"{_COUNT} < {self.size}L")

    def merged(self, frame: DataFrame, *more: Column, by: tuple[str, ...] = ()) -> DataFrame:
        """One row for each key. See :meth:`LayerFormat.merged`."""
        together = frame.selectExpr("*", f"pmod(hash({WINDOW_END}), 1) AS {_INDEX}")
        return self.joined(together, *more, by=(_INDEX, *by)).drop(_INDEX)

    def figure(self) -> Column:
        """How many windows are full, as an aggregate over the layer's rows."""
        from pyspark.sql import functions as F

        return F.expr(f"count_if({_COUNT} >= {self.size}L)").alias("full")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunningFormat(CountFormat):
    """The rows of the layer: what a key comes to with each so many rows, marked as due, then with all its rows.

    In files there are only the latter.
    """

    def kept(self, windows: DataFrame) -> DataFrame:
        """As :meth:`CountFormat.kept`, each part counted into all windows from its own on, the last one not due.

        By way of blocks of windows, so that the work is not the square of how many windows a batch fills: a part goes
        into those of its own block, and into the first of each later block, which takes along what it has.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        alike = [F.col(quote_identifier(key)) for key in self.keys] or [F.expr(f"pmod(hash({WINDOW_END}), 1)")]
        found = windows.withColumn(_TOTAL, F.sum(_COUNT).over(Window.partitionBy(*alike)))
        found = found.selectExpr("*", f"{_TOTAL} div {self.size}L AS {_LAST}")
        later = f"({_INDEX} div {_BLOCK}L + 1L) * {_BLOCK}L"
        heads = f"CASE WHEN {later} <= {_LAST} THEN sequence({later}, {_LAST}, {_BLOCK}L) ELSE array() END"
        found = found.selectExpr("*", f"explode(concat(array({_INDEX}), {heads})) AS {_FROM}")
        found = self.joined(found, by=(_FROM, _LAST))
        until = f"least({_LAST}, ({_FROM} div {_BLOCK}L + 1L) * {_BLOCK}L - 1L)"
        found = found.selectExpr("*", f"explode(sequence({_FROM}, {until})) AS {_INDEX}")
        return self.joined(found, by=(_INDEX, _LAST)).selectExpr(
            *map(quote_identifier, self.schema.names), f"{_INDEX} < {_LAST} AS {_DUE}"
        )

    def full(self, frame: DataFrame) -> DataFrame:
        """What is due."""
        return frame.where(_DUE)

    def between(self, frame: DataFrame, after: int, until: int | None = None) -> DataFrame:
        """What each key comes to with all its rows."""
        del after, until
        return frame.where(f"NOT {_DUE}").drop(_DUE) if _DUE in frame.columns else frame

    def rest(self, frame: DataFrame) -> DataFrame:
        """The keys that have had rows since they were last sent."""
        return self.between(frame, MIN_WATERMARK).where(f"{_COUNT} % {self.size}L <> 0")

    def figure(self) -> Column:
        """See :meth:`CountFormat.figure`."""
        from pyspark.sql import functions as F

        return F.expr(f"count_if({_DUE})").alias("full")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountFrames(WindowFrames):
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
        alike = [F.col(place) for place in places] or [F.expr(f"pmod(hash({WINDOW_END}), 1)")]
        by_arrival = Window.partitionBy(*alike).orderBy(F.expr(f"{_ARRIVED} >= 0"), WINDOW_START, _ARRIVED)
        so_far = F.sum(_COUNTED).over(by_arrival.rowsBetween(Window.unboundedPreceding, Window.currentRow))
        found = found.withColumn(_INDEX, so_far).selectExpr("*", f"({_INDEX} - 1) div {layers.size}L AS {_INDEX}_")
        found = found.where(f"{_ARRIVED} >= 0").drop(_INDEX).withColumnRenamed(f"{_INDEX}_", _INDEX)
        windows = found.groupBy(*self.groups[: len(places)], _INDEX).agg(*interval_of(layers), *self.partials)
        if state is not None:
            index = f"{_COUNT} div {layers.size}L AS {_INDEX}"
            windows = windows.union(state.selectExpr(*map(quote_identifier, layers.keys), index, *self._rest()))
        return layers.kept(windows)

    def _beginnings(self, state: DataFrame, schema: StructType) -> DataFrame:
        """What lies there, as rows that come before all others and count as many as they hold."""
        from pyspark.sql import functions as F

        known = map(F.expr, (*map(quote_identifier, self.layers.keys), WINDOW_START, WINDOW_END))
        nothing = [F.lit(None).cast(field.dataType) for field in schema.fields]  # as text, some names would need quotes
        return state.select(*known, *nothing[len(self.layers.keys) + 2 : -2], F.expr("-1L"), F.expr(_COUNT))

    def _rest(self) -> list[str]:
        return [quote_identifier(name) for name in self.layers.schema.names if name not in self.layers.keys]


def make_count_frames(
    step: WindowedStep, window: CountWindow, *, uid: str, schema: StructType, session: SparkSession, partitions: int
) -> CountFrames:
    """As :func:`make_frames`, for a step whose last aggregate is :data:`ROWS_OF_WINDOW`."""
    plan = make_frames(step, uid=uid, schema=schema, session=session, partitions=partitions)
    given = {field.name: getattr(plan, field.name) for field in fields(plan)}
    layers = {field.name: getattr(plan.layers_format, field.name) for field in fields(plan.layers_format)}
    layers |= {"scattered": False, "kind": KIND, "size": window.size}
    layers_format = RunningFormat if window.is_running else CountFormat
    output = type(plan.output)(plan.output.fields[:-1])
    given |= {"output": output, "finishes": plan.finishes[:-1], "layers_format": layers_format(**layers)}
    given["plain_keys"] = ()
    return CountFrames(**given)


# ----------------------------------------------------------------------------------------------------
# Runs an aggregate over windows of so many rows: each batch makes the one layer anew, and full windows are sent on.
#
# Jobs: one for each batch; none to send (the consumer's job runs the lazy result). A batch reads and writes the windows
# of all keys that are not full, or of all keys in the window for all time, whichever keys it has.


class CountEmitter(WindowEmitter):
    """Sends windows that are full, and at the end of time what is left."""

    _plan: CountFrames
    _full = 0
    may_defer = False

    def found(self, full: int) -> None:
        """The newest layer has so many full windows."""
        self._full = full

    def added(self, emit: Collector) -> None:
        """Send what a batch has filled."""
        if self._full:
            self._send_windows(emit, full=True)

    def advance(self, watermark: int, emit: Collector) -> EventTime | None:
        """At the end of time, send what is left."""
        if watermark == MAX_WATERMARK and self._fired != MAX_WATERMARK:
            if self._stack.rows > self._full:
                self._send_windows(emit, full=False)
            self._fired = self._closed = MAX_WATERMARK
            self._stack.close_windows(MAX_WATERMARK)
        return None

    def _send_windows(self, emit: Collector, *, full: bool) -> None:
        layers, lease = self._stack.lease_due(MIN_WATERMARK, MAX_WATERMARK)
        self._send(self._windows(layers, full=full) if layers else None, lease, emit)

    def _windows(self, layers: Sequence[Layer], *, full: bool) -> DataFrame:
        rows = union_layers(layers)
        found = self._plan.layers.full(rows) if full else self._plan.layers.rest(rows)
        return found.select(*self._plan.bounds, *self._plan.finishes)


class CountOperator(WindowOperator):
    """See :class:`penstock.interfaces.operator.Operator`. Counters are those of :class:`WindowOperator`."""

    _plan: CountFrames
    _emitter: CountEmitter

    def _sending(self, emission: EmitStrategy, *, fired: int, closed: int) -> WindowEmitter:
        return CountEmitter(
            self._plan, self._results(), emission, self._stack, self._context, fired=fired, closed=closed
        )

    def _keep(self, flagged: JavaObject) -> int:
        layers_format, stack = self._plan.layers, self._stack
        filled = FrameObservation(("full",))
        layers, lease = stack.lease_due(MIN_WATERMARK, MAX_WATERMARK)
        try:
            state = layers_format.between(union_layers(layers), MIN_WATERMARK) if layers else None
            windows = filled.watch(self._plan.counted(self._plans.frame(flagged), state), [layers_format.figure()])
            layer = build_layer(layers_format, windows, LayerLabel(name=stack.next_name(), level=0, epoch=stack.epoch))
        finally:
            lease.release()
        told: Mapping[str, int | None] | None = filled.read()
        if layer and told is None:
            told = layer.frame.agg(layers_format.figure()).collect()[0].asDict()
        if stack.rebase(layer):
            self._emitter.found((told or {}).get("full") or 0)
        return layer.rows if layer else 0
