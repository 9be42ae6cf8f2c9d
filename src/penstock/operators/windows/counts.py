"""Count windows: frames, emitter, operator."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime
from penstock.operators.aggregates.basic import count
from penstock.operators.windows.emitter import WindowEmitter
from penstock.operators.windows.figures import INTERNAL
from penstock.operators.windows.frames import WindowedStep, WindowFrames, make_frames, partial_name
from penstock.operators.windows.operator import WindowOperator
from penstock.operators.windows.sessions import IntervalFormat, interval_of
from penstock.spark.blocks import may_run_twice
from penstock.spark.plans import FrameObservation
from penstock.spark.sql import quote_identifier
from penstock.state.layers import WINDOW_END, WINDOW_START, LayerLabel, build_layer, union_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.interfaces.operator import Collector
    from penstock.operators.windows.assigners import CountWindow
    from penstock.operators.windows.emit_strategy import EmitStrategy
    from penstock.operators.windows.ingest import BatchIntake
    from penstock.state.layers import Layer


# ---- layers and frames of count windows ------------------------------------------------------------------------------
# State is one layer, which each batch makes again: of each key the windows that the batch has filled, which are sent,
# and the one that is not full. The batch's rows are counted on from there, in order of their event time, then as they
# came. For one window for all time that is sent every ``size`` rows, state is the aggregate over all rows of a key.

KIND: Final = "counted/1"
ROWS_OF_WINDOW: Final = count().alias("_rows")
"""The aggregate that counts the rows of a window; the last one of a count window's step."""
_COUNT: Final = partial_name(ROWS_OF_WINDOW, "count")
_ARRIVED, _COUNTED, _INDEX = (f"{INTERNAL}{name}" for name in ("arrived", "counted", "index"))
_TOTAL, _LAST, _FROM, _DUE = (f"{INTERNAL}{name}" for name in ("total", "last", "from", "due"))
_BLOCK: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountFormat(IntervalFormat):
    """The format of the layer: windows that are full, and windows that are not.

    Attributes:
        size: rows of a full window.
    """

    size: int

    def kept(self, windows: DataFrame) -> DataFrame:
        """The rows of a layer, out of windows and parts of windows that are numbered within their key."""
        return self.joined(windows, by=(_INDEX,)).select(*map(quote_identifier, self.schema.names))

    def full(self, frame: DataFrame) -> DataFrame:
        """The windows that are full."""
        return frame.where(f"{_COUNT} >= {self.size}L")

    def rest(self, frame: DataFrame) -> DataFrame:
        """The windows to be sent at the end of the input."""
        return self.between(frame, MIN_WATERMARK)

    def between(self, frame: DataFrame, after: int, until: int | None = None) -> DataFrame:
        """The windows that are not full: the others are dead once they are sent."""
        del after, until
        return frame.where(f"{_COUNT} < {self.size}L")

    def merged(self, frame: DataFrame, *more: Column, by: tuple[str, ...] = ()) -> DataFrame:
        """One row for each key. See ``LayerFormat.merged``."""
        together = frame.selectExpr("*", f"pmod(hash({WINDOW_END}), 1) AS {_INDEX}")
        return self.joined(together, *more, by=(_INDEX, *by)).drop(_INDEX)

    def figure(self) -> Column:
        """The number of full windows, as an aggregate over the layer's rows."""
        from pyspark.sql import functions as F

        return F.expr(f"count_if({_COUNT} >= {self.size}L)").alias("full")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunningFormat(CountFormat):
    """The format of the layer of a running count: of each key results every ``size`` rows, and one over all its rows.

    The former are marked as due, and never in files.
    """

    def kept(self, windows: DataFrame) -> DataFrame:
        """As ``CountFormat.kept``, each part counted into all windows from its own on, the last one not due.

        It counts by blocks of windows, so that the work does not grow as the square of the windows that a batch fills:
        a part goes into the windows of its own block, and into the first one of each later block, which passes it on.
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
        """The results that are due."""
        return frame.where(_DUE)

    def between(self, frame: DataFrame, after: int, until: int | None = None) -> DataFrame:
        """The aggregates of each key over all its rows."""
        del after, until
        return frame.where(f"NOT {_DUE}").drop(_DUE) if _DUE in frame.columns else frame

    def rest(self, frame: DataFrame) -> DataFrame:
        """The keys that have had rows since their last result."""
        return self.between(frame, MIN_WATERMARK).where(f"{_COUNT} % {self.size}L <> 0")

    def figure(self) -> Column:
        """See ``CountFormat.figure``."""
        from pyspark.sql import functions as F

        return F.expr(f"count_if({_DUE})").alias("full")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountFrames(WindowFrames):
    """What a step with count windows does to frames."""

    @property
    def layers(self) -> CountFormat:
        """The format of its layer."""
        assert isinstance(self.layers_format, CountFormat)
        return self.layers_format

    def counted(self, flagged: DataFrame, state: DataFrame | None) -> DataFrame:
        """The rows of the next layer: the windows of ``state`` with the rows on time counted in."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        layers = self.layers
        rows = self.on_time(flagged.withColumn(_ARRIVED, F.monotonically_increasing_id()), _ARRIVED)
        keys = rows.columns[: len(layers.keys)]
        placed = rows.repartition(layers.partitions, *keys) if keys else rows.repartition(1)
        found = placed.selectExpr("*", f"1L AS {_COUNTED}")
        if state is not None:
            found = found.union(self._beginnings(state, found.schema))
        alike = [F.col(key) for key in keys] or [F.expr(f"pmod(hash({WINDOW_END}), 1)")]
        by_arrival = Window.partitionBy(*alike).orderBy(F.expr(f"{_ARRIVED} >= 0"), WINDOW_START, _ARRIVED)
        so_far = F.sum(_COUNTED).over(by_arrival.rowsBetween(Window.unboundedPreceding, Window.currentRow))
        found = found.withColumn(_INDEX, so_far).selectExpr("*", f"({_INDEX} - 1) div {layers.size}L AS {_INDEX}_")
        found = found.where(f"{_ARRIVED} >= 0").drop(_INDEX).withColumnRenamed(f"{_INDEX}_", _INDEX)
        windows = found.groupBy(*self.groups[: len(keys)], _INDEX).agg(*interval_of(layers), *self.partials)
        if state is not None:
            index = f"{_COUNT} div {layers.size}L AS {_INDEX}"
            windows = windows.union(state.selectExpr(*map(quote_identifier, layers.keys), index, *self._rest()))
        return layers.kept(windows)

    def _beginnings(self, state: DataFrame, schema: StructType) -> DataFrame:
        """The windows of ``state`` as rows that come before all others and count as many rows as they have."""
        from pyspark.sql import functions as F

        known = map(F.expr, (*map(quote_identifier, self.layers.keys), WINDOW_START, WINDOW_END))
        nothing = [F.lit(None).cast(field.dataType) for field in schema.fields]  # as text, some names would need quotes
        return state.select(*known, *nothing[len(self.layers.keys) + 2 : -2], F.expr("-1L"), F.expr(_COUNT))

    def _rest(self) -> list[str]:
        return [quote_identifier(name) for name in self.layers.schema.names if name not in self.layers.keys]


def make_count_frames(
    step: WindowedStep, window: CountWindow, *, uid: str, schema: StructType, session: SparkSession, partitions: int
) -> CountFrames:
    """As ``make_frames``, for a step whose last aggregate is ``ROWS_OF_WINDOW``."""
    frames = make_frames(step, uid=uid, schema=schema, session=session, partitions=partitions)
    values = {field.name: getattr(frames, field.name) for field in fields(frames)}
    layers = {field.name: getattr(frames.layers_format, field.name) for field in fields(frames.layers_format)}
    layers |= {"scattered": False, "kind": KIND, "size": window.size}
    layers_format = RunningFormat if window.is_running else CountFormat
    output = type(frames.output)(frames.output.fields[:-1])
    values |= {"output": output, "finishes": frames.finishes[:-1], "layers_format": layers_format(**layers)}
    return CountFrames(**values)


# ---- running count windows -------------------------------------------------------------------------------------------
# Jobs: one for each batch; none to send results, whose consumer runs them. A batch reads and writes the windows of all
# keys that are not full, or all keys of a running count, whichever keys it has.


class CountEmitter(WindowEmitter):
    """Sends windows that are full, and at the end of time the rest."""

    _frames: CountFrames
    _full = 0
    may_defer = False

    def set_full(self, full: int) -> None:
        """Set the number of full windows of the newest layer."""
        self._full = full

    def batch_added(self, emit: Collector) -> None:
        """Send the windows that a batch has filled."""
        if self._full:
            self._send_windows(emit, full=True)

    def advance(self, watermark: int, emit: Collector) -> EventTime | None:
        """Send the rest at the end of time."""
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
        found = self._frames.layers.full(rows) if full else self._frames.layers.rest(rows)
        return found.select(*self._frames.bounds, *self._frames.finishes)


class CountOperator(WindowOperator):
    """See ``penstock.interfaces.operator.Operator``. Counters are those of ``WindowOperator``."""

    _frames: CountFrames
    _emitter: CountEmitter

    def _make_emitter(self, emission: EmitStrategy, *, fired: int, closed: int) -> WindowEmitter:
        return CountEmitter(
            self._frames, self._results(), emission, self._stack, self._context, fired=fired, closed=closed
        )

    def _keep(self, intake: BatchIntake, *, may_copy: bool) -> None:  # noqa: ARG002 - rows are numbered in order
        layers_format, stack = self._frames.layers, self._stack
        observation = FrameObservation(("full",))
        layers, lease = stack.lease_due(MIN_WATERMARK, MAX_WATERMARK)
        try:
            state = layers_format.between(union_layers(layers), MIN_WATERMARK) if layers else None
            windows = observation.observe(
                self._frames.counted(self._queries.frame(intake.observed()), state), [layers_format.figure()]
            )
            layer = build_layer(layers_format, windows, LayerLabel(name=stack.next_name(), level=0))
        finally:
            lease.release()
        figures = None if may_run_twice(self._context.spark) else observation.read()
        if layer and figures is None:
            figures = layer.frame.agg(layers_format.figure()).collect()[0].asDict()
        if stack.rebase(layer):
            self._emitter.set_full((figures or {}).get("full") or 0)
