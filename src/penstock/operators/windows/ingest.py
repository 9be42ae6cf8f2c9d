"""A batch to a layer: late rows, figures, partials, one job or none."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.clock import MAX_WATERMARK
from penstock.elements import Batch, ObservedMetrics
from penstock.errors import GraphError, InternalError
from penstock.facts import RowsLate
from penstock.interfaces.operator import LATE_PORT, MAIN_PORT, Collector, DeferredBatch, OperatorContext
from penstock.operators.windows.frames import BY_PARTITION, FIRST, LARGEST_PARTITION, LAST, WantedFigures, figures_of
from penstock.spark.blocks import JavaObject, can_complete_observations
from penstock.spark.plan_check import PlanCheck
from penstock.spark.plans import PlanPreparer, PreparedPlan, analyzed_plan, logical_plan, observe_columns
from penstock.spark.session import LeanSession
from penstock.spark.sql import nullable
from penstock.state.layers import STATS, LayerLabel, LazyLayer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from penstock.elements import SourcePartitions
    from penstock.operators.windows.emitter import WindowEmitter
    from penstock.operators.windows.frames import WindowFrames
    from penstock.spark.plans import ObservationSpec
    from penstock.state.layers import Layer, LayerFormat
    from penstock.state.stack import Stack


# ----------------------------------------------------------------------------------------------------
# Tells observers of which source partition late rows are; decides nothing, and runs no job.


class LateRowReport:
    """Late rows of one batch by partition: of those that its rows say, or of the only one that there is.

    Args:
        partitions: of the batch.
    """

    def __init__(self, partitions: SourcePartitions | None) -> None:
        self._partitions = partitions

    @property
    def apart(self) -> tuple[str, tuple[str, ...]] | None:
        """The column that says of which partition a row is, and their names; ``None`` where rows do not say."""
        partitions = self._partitions
        column = partitions.by_column() if partitions is not None else None
        return None if partitions is None or column is None else (column, partitions.names)

    def facts(self, task: str, late: int, told: object) -> Iterator[RowsLate]:
        """One for each partition that has late rows.

        Args:
            task: the step.
            late: how many rows are late in all.
            told: the figure, if there was one.
        """
        partitions = self._partitions
        if partitions is None or not late:
            return
        counts = json.loads(told) if isinstance(told, str) else [late] if len(partitions.names) == 1 else []
        for name, rows in zip(partitions.names, counts, strict=False):
            if rows:
                yield RowsLate(task=task, partition=partitions.qualified(name), rows=rows)


# ----------------------------------------------------------------------------------------------------
# One batch on its way into the state: its rows flagged and watched, and what a job over them tells.
#
# Runs no job itself, unless what was observed is lost. Knows nothing of layers, or of whose job it is.


class BatchIntake:
    """Counts the rows of a batch.

    Args:
        batch: that comes.
        flagged: its rows with a code for each, see :meth:`WindowFrames.flagged`.
        plans: of the step.
        folding: is told how many rows fall into how many groups.
        reach: whether its rows say how far the layer reaches: then :meth:`extent` is known.

    Attributes:
        watched: the plan to make a layer of: a job over it tells what is asked for here.
        late: how many rows are late or without an event time, once it is told.
        missing: how many of them have no event time.
    """

    def __init__(
        self, batch: Batch, flagged: JavaObject, plans: LayerQueries, folding: PreAggregation, *, reach: bool = False
    ) -> None:
        self._batch = batch
        self._flagged = flagged
        self._plans = plans
        self._folding = folding
        self._by_partition = LateRowReport(batch.partitions)
        self._wanted = WantedFigures(apart=self._by_partition.apart, places=folding.asks, reach=reach)
        self._where: object = None
        self.watched, self._counts = plans.counted(flagged, self._wanted)
        self.late = self.missing = 0

    def told(self, groups: int) -> None:
        """A job has run over all that is watched; its rows on time were of so many groups.

        Raises:
            ConnectorError: it has not read what was planned.
        """
        told = self._told()
        self._folding.told(rows=told["on_time"] or 0, groups=groups, heaviest=told.get(LARGEST_PARTITION))
        self.missing = told["missing"] or 0
        self.late = (told["late"] or 0) + self.missing
        self._where = told.get(BY_PARTITION)
        self._batch.settle()

    def report(self, context: OperatorContext) -> None:
        """Count what is late, and say of which partitions."""
        for fact in self._by_partition.facts(context.uid, self.late, self._where):
            context.report(fact)
        for name, rows in (("missing_time", self.missing), ("late", self.late)):
            if rows:
                context.count(name, rows)

    def extent(self) -> Mapping[str, Any] | None:
        """How far the layer of all that is watched reaches, and how many rows it has at most: see :data:`EXTENT`.

        ``None`` if the observation is lost: then the layer must be asked, for it is there, and not the batch.
        """
        told: Mapping[str, Any] | None = self._counts.read()
        return None if told is None else {"rows": told["on_time"], "first": told[FIRST], "last": told[LAST]}

    def _told(self) -> Mapping[str, Any]:
        """The figures; by a job of their own if the observation is lost."""
        told = self._counts.read()
        if told is None:
            figures = (figure.alias(name) for name, figure in self._plans.figures(self._wanted).items())
            told = self._plans.frame(self._flagged).agg(*figures).collect()[0].asDict()
        return told


# ----------------------------------------------------------------------------------------------------
# Leaves a batch's layer to the job of what it changes, where each batch sends all its changes at once.
#
# Runs no job itself, unless nobody else does. Knows nothing of how results are made, or of when a task waits.


class DeferredLayers:
    """Makes layers by the way, one at a time.

    Args:
        layers_format: of the step.
        plans: make the layers.
        stack: where they come to lie.
        emitter: sends what they change.
        folding: says whether batches are large.
        context: of the step.
    """

    def __init__(
        self,
        layers_format: LayerFormat,
        plans: LayerQueries,
        stack: Stack,
        emitter: WindowEmitter,
        folding: PreAggregation,
        context: OperatorContext,
    ) -> None:
        self._format = layers_format
        self._plans = plans
        self._stack = stack
        self._emitter = emitter
        self._folding = folding
        self._context = context
        self._can = can_complete_observations(context.spark)
        self._beside: LeanSession | None = None
        self._coming: Layer | None = None

    def may(self, batch: Batch) -> bool:
        """Whether one job can do for a batch and what it changes: nobody else runs the one or waits for the other.

        Large batches go alone: a job counts for little beside them, and how many groups they have must be known.
        """
        is_read = MAIN_PORT in self._context.consumed and LATE_PORT not in self._context.consumed
        is_small = self._folding.is_small and not self._stack.awaits
        return is_read and self._is_plain(batch) and is_small and self._emitter.may_defer and self._can

    def begin(self, arrival: BatchIntake, emit: Collector) -> DeferredBatch:
        """Send what a batch changes.

        How far the layer reaches is told by the rows before they travel, not by the layer: a task that has kept a part
        of it and fails over what comes after finds that part when it is tried again, and tells nothing of it.
        """
        if self._beside is None:
            self._beside = LeanSession(self._context.spark)
        rows = self._plans.unwatched(arrival.watched)
        tag = LayerLabel(name=self._stack.next_name(), level=0, epoch=self._stack.epoch, turn=self._emitter.turn)
        lazy = LazyLayer(self._format, rows, arrival.extent, tag, beside=self._beside)
        self._coming = lazy.layer
        ran = ObservedMetrics(dict)
        self._emitter.defer(lazy.layer, ran, emit)
        return DeferredBatch(ran=ran, finish=partial(self._finish, lazy, arrival))

    @staticmethod
    def _is_plain(batch: Batch) -> bool:
        """Whether nobody else runs the batch, and it is joined with nothing, so that its rows travel to the layer.

        A join may bring rows together by key already: then they would be counted where the layer is kept.
        """
        return not batch.run_gates and not batch.ref_counts

    def close(self) -> None:
        """Let go of a layer that was not finished."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.lease.release()

    def _finish(self, lazy: LazyLayer, arrival: BatchIntake) -> None:
        layer = lazy.finish()
        self._coming = None
        if layer is not None:
            self._stack.add(layer)
        arrival.told(layer.rows if layer is not None else 0)
        if not self._stack.closed:
            arrival.report(self._context)


# ----------------------------------------------------------------------------------------------------
# Whether rows are aggregated before they travel to their places: judged by the batches before. Knows no frame.

MIN_ROWS_PER_GROUP: Final = 8
"""So many rows a group must have: with fewer, aggregating twice costs more than moving rows does."""
MIN_ROWS: Final = 50_000
"""Rows of a batch below which moving them costs less than the stages that aggregating first adds."""
SAMPLE_EVERY: Final = 32
"""Of so many large batches one is asked how evenly its rows fall into places, which costs each row a hash more."""
MAX_PLACES: Final = 32
"""Places that are told apart then: a key that fills one of more of them fills one of these too."""


class PreAggregation:
    """Follows how many rows of a batch fall into one group, and whether a hot key has more than its place can take.

    Args:
        places: into how many rows travel.

    >>> folding = PreAggregation()
    >>> folding.is_worth
    False
    >>> folding.told(rows=100_000, groups=200)
    >>> folding.is_worth
    True
    """

    def __init__(self, places: int = 1) -> None:
        self._places = min(places, MAX_PLACES)
        self.is_worth = False
        self._left = 0
        self._is_large = False
        self._heaviest = 0.0

    @property
    def is_small(self) -> bool:
        """Whether batches are so small that nothing depends on how many groups they have."""
        return not self._is_large

    @property
    def asks(self) -> int:
        """Of so many places the next batch is to tell how many of its rows the fullest gets; 0: it is not to tell."""
        return self._places if self._places > 1 and self._is_large and not self._left else 0

    def told(self, *, rows: int, groups: int, heaviest: int | None = None) -> None:
        """A batch had so many rows that counted, in so many groups. One without rows says nothing.

        Args:
            rows: that counted.
            groups: of them.
            heaviest: rows of the fullest place, if it was asked for.
        """
        if not rows:
            return
        self._is_large = rows >= MIN_ROWS
        self._left = max(0, self._left - 1)
        if heaviest is not None:
            self._left, self._heaviest = SAMPLE_EVERY - 1, heaviest / rows
        self.is_worth = self._is_large and (rows >= MIN_ROWS_PER_GROUP * groups or self._is_skewed(rows, groups))

    def _is_skewed(self, rows: int, groups: int) -> bool:
        """Whether the fullest place has more to do than each has if all share the rows, and then the groups."""
        return rows + groups < self._heaviest * rows * self._places


# ----------------------------------------------------------------------------------------------------
# The plans that make the layers of a windowed aggregate, each analysed once and hung onto a batch. Runs no job.
#
# Knows nothing of the stack, of watermarks and of when a layer is made.

_GAUGES: Final = 3
"""What is kept of gauges made before."""


class LayerQueries:
    """Makes the plans of one step.

    Args:
        plan: what the step does to frames.
        templates: of the job's session.
        schema: of the step's input.
    """

    def __init__(self, plan: WindowFrames, templates: PlanPreparer, schema: StructType) -> None:
        self._plan = plan
        self._templates = templates
        self._flagged = templates.make(nullable(schema), plan.flagged, numbers=3 if plan.window.is_processing else 2)
        self._over = nullable(self._flagged.schema)
        self._gauges: dict[WantedFigures, ObservationSpec] = {}
        self._partials: dict[bool, PreparedPlan] = {}
        self._merging: PreparedPlan | None = None
        self._is_volatile = self._draws()

    # -------------------------------------------------------------------------------------------------------- a batch

    def flagged(self, frame: DataFrame, *, horizon: int, mark: int, arrival: int | None) -> JavaObject:
        """The plan of a batch's rows with a code for each: see :meth:`WindowFrames.flagged`."""
        below = logical_plan(frame)
        if not self._templates.fits(self._flagged, below):
            msg = f"a batch has the columns {frame.schema.simpleString()}, not those that the step before it declared"
            raise InternalError(msg)
        return self._templates.hang(self._flagged, below, horizon, mark, *(() if arrival is None else (arrival,)))

    def counted(self, flagged: JavaObject, wanted: WantedFigures) -> tuple[JavaObject, ObservedMetrics]:
        """The same, observed: tells what is wanted."""
        if wanted not in self._gauges:
            while len(self._gauges) > _GAUGES:  # partitions come and go seldom
                del self._gauges[next(iter(self._gauges))]
            self._gauges[wanted] = self._templates.gauge(self._flagged, self.figures(wanted))
        return self._templates.watch(flagged, self._gauges[wanted])

    def figures(self, wanted: WantedFigures) -> dict[str, Column]:
        """What is observed, by name: aggregates over flagged rows."""
        return figures_of(wanted, self._plan.plain_keys, self._flagged.schema)

    def partial(self, flagged: JavaObject, *, fold: bool) -> tuple[DataFrame, ObservedMetrics]:
        """The rows of a batch's layer, and what tells their extent: see :meth:`WindowFrames.partial`."""
        if self._is_volatile:
            frame = self._plan.partial(self.frame(flagged), fold=fold)
            plan, told = self._templates.watch(analyzed_plan(frame), observe_columns(frame, "layer", self._extent()))
            return self.frame(plan), told
        return self._hung(self._partial(fold=fold), flagged)

    def unwatched(self, flagged: JavaObject) -> DataFrame:
        """The rows of a small batch's layer, whose extent nobody is told."""
        if self._is_volatile:
            return self._plan.partial(self.frame(flagged))
        return self.frame(self._templates.hang(self._partial(fold=False), flagged))

    def _partial(self, *, fold: bool) -> PreparedPlan:
        if fold not in self._partials:
            self._partials[fold] = self._templates.make(
                self._over, lambda frame: self._plan.partial(frame, fold=fold), figures=self._extent()
            )
        return self._partials[fold]

    def frame(self, plan: JavaObject) -> DataFrame:
        """A lazy frame of a plan."""
        return self._templates.frame(plan)

    # ------------------------------------------------------------------------------------------------------- merging

    def merged(self, layers: Sequence[Layer], horizon: int) -> tuple[DataFrame, ObservedMetrics]:
        """The rows of one layer in the place of several, and what tells their extent."""
        layers_format = self._plan.layers_format
        if self._merging is None:
            self._merging = self._templates.make(
                layers_format.schema,
                lambda rows, *bounds: layers_format.merged(layers_format.between(rows, *bounds)),
                numbers=2,
                figures=self._extent(),
            )
        rows = self._templates.union([layer.frame for layer in layers])
        return self._hung(self._merging, rows, horizon, MAX_WATERMARK)

    def _hung(self, template: PreparedPlan, below: JavaObject, *numbers: int) -> tuple[DataFrame, ObservedMetrics]:
        assert template.gauge is not None
        plan, told = self._templates.watch(self._templates.hang(template, below, *numbers), template.gauge)
        return self.frame(plan), told

    def _extent(self) -> dict[str, Column]:
        return dict(zip(STATS, self._plan.layers_format.extent, strict=True))

    def _draws(self) -> bool:
        """Whether an input of an aggregate draws random numbers, whose seed analysis makes a part of the plan."""
        leaf = self._templates.grafter.leaf(self._over)
        check = PlanCheck(leaf.rdd, set())
        try:
            check.check(analyzed_plan(leaf.frame.select(*self._plan.inputs)))
        except GraphError:  # not a function of the row, either
            return True
        return check.is_volatile
