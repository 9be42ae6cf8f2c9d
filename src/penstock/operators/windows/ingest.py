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


# ---- the plans that make layers --------------------------------------------------------------------------------------

_MAX_SPECS: Final = 3
"""Number of older observation specs that are kept."""


class LayerQueries:
    """Makes the plans of a step's layers, each analysed once and bound to each batch. Runs no job.

    Args:
        frames: what the step does to frames.
        preparer: of the job's session.
        schema: of the step's input.
    """

    def __init__(self, frames: WindowFrames, preparer: PlanPreparer, schema: StructType) -> None:
        self._frames = frames
        self._preparer = preparer
        self._flagged = preparer.prepare(
            nullable(schema), frames.with_timeliness, numbers=3 if frames.window.is_processing else 2
        )
        self._over = nullable(self._flagged.schema)
        self._specs: dict[WantedFigures, ObservationSpec] = {}
        self._partials: dict[bool, PreparedPlan] = {}
        self._merging: PreparedPlan | None = None
        self._is_volatile = self._draws()

    def with_timeliness(self, frame: DataFrame, *, horizon: int, mark: int, arrival: int | None) -> JavaObject:
        """The plan of a batch's rows, flagged: see :meth:`WindowFrames.with_timeliness`."""
        below = logical_plan(frame)
        if not self._preparer.fits(self._flagged, below):
            msg = f"a batch has the columns {frame.schema.simpleString()}, not those that the step before it declared"
            raise InternalError(msg)
        return self._preparer.bind(self._flagged, below, horizon, mark, *(() if arrival is None else (arrival,)))

    def counted(self, flagged: JavaObject, wanted: WantedFigures) -> tuple[JavaObject, ObservedMetrics]:
        """The plan of flagged rows, observed, and the wanted figures to come."""
        if wanted not in self._specs:
            while len(self._specs) > _MAX_SPECS:  # partitions come and go seldom
                del self._specs[next(iter(self._specs))]
            self._specs[wanted] = self._preparer.observation(self._flagged, self.figures(wanted))
        return self._preparer.observe(flagged, self._specs[wanted])

    def figures(self, wanted: WantedFigures) -> dict[str, Column]:
        """What is observed, by name: aggregates over flagged rows."""
        return figures_of(wanted, self._frames.plain_keys, self._flagged.schema)

    def partial(self, flagged: JavaObject, *, pre_aggregate: bool) -> tuple[DataFrame, ObservedMetrics]:
        """The rows of a batch's layer, and their statistics to come: see :meth:`WindowFrames.partial`."""
        if self._is_volatile:
            frame = self._frames.partial(self.frame(flagged), pre_aggregate=pre_aggregate)
            spec = observe_columns(frame, "layer", self._stats())
            plan, metrics = self._preparer.observe(analyzed_plan(frame), spec)
            return self.frame(plan), metrics
        return self._bound(self._partial(pre_aggregate=pre_aggregate), flagged)

    def unobserved(self, flagged: JavaObject) -> DataFrame:
        """The rows of a small batch's layer, without their statistics."""
        if self._is_volatile:
            return self._frames.partial(self.frame(flagged))
        return self.frame(self._preparer.bind(self._partial(pre_aggregate=False), flagged))

    def _partial(self, *, pre_aggregate: bool) -> PreparedPlan:
        if pre_aggregate not in self._partials:
            self._partials[pre_aggregate] = self._preparer.prepare(
                self._over,
                lambda frame: self._frames.partial(frame, pre_aggregate=pre_aggregate),
                figures=self._stats(),
            )
        return self._partials[pre_aggregate]

    def merged(self, layers: Sequence[Layer], horizon: int) -> tuple[DataFrame, ObservedMetrics]:
        """The rows of one layer that replaces several, and their statistics to come."""
        layers_format = self._frames.layers_format
        if self._merging is None:
            self._merging = self._preparer.prepare(
                layers_format.schema,
                lambda rows, *bounds: layers_format.merged(layers_format.between(rows, *bounds)),
                numbers=2,
                figures=self._stats(),
            )
        rows = self._preparer.union([layer.frame for layer in layers])
        return self._bound(self._merging, rows, horizon, MAX_WATERMARK)

    def frame(self, plan: JavaObject) -> DataFrame:
        """A lazy frame of a plan."""
        return self._preparer.frame(plan)

    def _bound(self, prepared: PreparedPlan, below: JavaObject, *numbers: int) -> tuple[DataFrame, ObservedMetrics]:
        assert prepared.observation is not None
        bound = self._preparer.bind(prepared, below, *numbers)
        plan, metrics = self._preparer.observe(bound, prepared.observation)
        return self.frame(plan), metrics

    def _stats(self) -> dict[str, Column]:
        return dict(zip(STATS, self._frames.layers_format.stats, strict=True))

    def _draws(self) -> bool:
        """Whether an input of an aggregate draws random numbers, whose seed analysis makes a part of the plan."""
        leaf = self._preparer.editor.new_leaf(self._over)
        check = PlanCheck(leaf.rdd, set())
        try:
            check.check(analyzed_plan(leaf.frame.select(*self._frames.inputs)))
        except GraphError:  # no function of the row either
            return True
        return check.is_volatile


# ---- one batch -------------------------------------------------------------------------------------------------------


class LateRowReport:
    """Late rows of one batch by source partition, if rows have a partition column or there is only one partition.

    Args:
        partitions: of the batch.
    """

    def __init__(self, partitions: SourcePartitions | None) -> None:
        self._partitions = partitions

    @property
    def column_and_names(self) -> tuple[str, tuple[str, ...]] | None:
        """The column with a row's partition, and the partitions' names; ``None`` if rows do not have it."""
        partitions = self._partitions
        column = partitions.by_column() if partitions is not None else None
        return None if partitions is None or column is None else (column, partitions.names)

    def facts(self, task: str, late: int, figure: object) -> Iterator[RowsLate]:
        """A fact for each partition that has late rows.

        Args:
            task: the step.
            late: how many rows are late in all.
            figure: the figure :data:`BY_PARTITION`, if there was one.
        """
        partitions = self._partitions
        if partitions is None or not late:
            return
        counts = json.loads(figure) if isinstance(figure, str) else [late] if len(partitions.names) == 1 else []
        for name, rows in zip(partitions.names, counts, strict=False):
            if rows:
                yield RowsLate(task=task, partition=partitions.qualified(name), rows=rows)


class BatchIntake:
    """Counts the rows of a batch on their way into the state. Runs no job, unless an observation is lost.

    Args:
        batch: the batch.
        flagged: plan of its rows with their timeliness, see :meth:`WindowFrames.with_timeliness`.
        queries: of the step.
        pre_aggregation: gets the numbers of rows and groups.
        bounds: whether the ends of its panes are observed: then :meth:`stats` is known.

    Attributes:
        observed: the plan to make a layer of. A job over it brings the figures.
        late: number of rows that are late or without an event time, after :meth:`finish`.
        missing: how many of them have no event time.
    """

    def __init__(
        self,
        batch: Batch,
        flagged: JavaObject,
        queries: LayerQueries,
        pre_aggregation: PreAggregation,
        *,
        bounds: bool = False,
    ) -> None:
        self._batch = batch
        self._flagged = flagged
        self._queries = queries
        self._pre_aggregation = pre_aggregation
        self._late_rows = LateRowReport(batch.partitions)
        self._wanted = WantedFigures(
            late_by=self._late_rows.column_and_names, key_partitions=pre_aggregation.sample_partitions, bounds=bounds
        )
        self._late_by_partition: object = None
        self.observed, self._metrics = queries.counted(flagged, self._wanted)
        self.late = self.missing = 0

    def finish(self, groups: int) -> None:
        """Take the figures, after a job has run over all that is observed.

        Args:
            groups: number of groups of its rows on time.

        Raises:
            ConnectorError: the job has not read what was planned.
        """
        figures = self._figures()
        largest = figures.get(LARGEST_PARTITION)
        self._pre_aggregation.record(rows=figures["on_time"] or 0, groups=groups, largest=largest)
        self.missing = figures["missing"] or 0
        self.late = (figures["late"] or 0) + self.missing
        self._late_by_partition = figures.get(BY_PARTITION)
        self._batch.settle()

    def report(self, context: OperatorContext) -> None:
        """Count late rows, and report them by partition."""
        for fact in self._late_rows.facts(context.uid, self.late, self._late_by_partition):
            context.report(fact)
        for name, rows in (("missing_time", self.missing), ("late", self.late)):
            if rows:
                context.count(name, rows)

    def stats(self) -> Mapping[str, Any] | None:
        """Bounds of the statistics of the batch's layer: see :data:`STATS`.

        ``None`` if the observation is lost: then the layer must be counted, for its rows are kept, and the batch's not.
        """
        figures: Mapping[str, Any] | None = self._metrics.read()
        return None if figures is None else {"rows": figures["on_time"], "first": figures[FIRST], "last": figures[LAST]}

    def _figures(self) -> Mapping[str, Any]:
        """The figures; by a job of their own if the observation is lost."""
        figures = self._metrics.read()
        if figures is None:
            columns = (figure.alias(name) for name, figure in self._queries.figures(self._wanted).items())
            figures = self._queries.frame(self._flagged).agg(*columns).collect()[0].asDict()
        return figures


# ---- whether rows are aggregated before they are exchanged -----------------------------------------------------------

MIN_ROWS_PER_GROUP: Final = 8
"""Rows of a group: with fewer, aggregating twice costs more than moving the rows does."""
MIN_ROWS: Final = 50_000
"""Rows of a batch: with fewer, moving them costs less than the stages that aggregating first adds."""
SAMPLE_EVERY: Final = 32
"""One of this many large batches is observed for how evenly its rows fall into partitions: a hash more for each row."""
MAX_PLACES: Final = 32
"""Partitions that are counted then: a key that fills one of more of them fills one of these too."""


class PreAggregation:
    """Follows how many rows of a batch fall into one group, and whether a hot key overloads its partition.

    Args:
        partitions: into how many rows are exchanged.

    >>> pre_aggregation = PreAggregation()
    >>> pre_aggregation.is_worthwhile
    False
    >>> pre_aggregation.record(rows=100_000, groups=200)
    >>> pre_aggregation.is_worthwhile
    True
    """

    def __init__(self, partitions: int = 1) -> None:
        self._partitions = min(partitions, MAX_PLACES)
        self.is_worthwhile = False
        self._left = 0
        self._is_large = False
        self._largest = 0.0

    @property
    def is_small(self) -> bool:
        """Whether batches are so small that nothing depends on how many groups they have."""
        return not self._is_large

    @property
    def sample_partitions(self) -> int:
        """Number of partitions of which the next batch's largest is to be counted; 0 if none."""
        return self._partitions if self._partitions > 1 and self._is_large and not self._left else 0

    def record(self, *, rows: int, groups: int, largest: int | None = None) -> None:
        """Take the figures of a batch; one without rows changes nothing.

        Args:
            rows: that counted.
            groups: of them.
            largest: rows of the largest partition, if that was counted.
        """
        if not rows:
            return
        self._is_large = rows >= MIN_ROWS
        self._left = max(0, self._left - 1)
        if largest is not None:
            self._left, self._largest = SAMPLE_EVERY - 1, largest / rows
        self.is_worthwhile = self._is_large and (rows >= MIN_ROWS_PER_GROUP * groups or self._is_skewed(rows, groups))

    def _is_skewed(self, rows: int, groups: int) -> bool:
        """Whether the largest partition has more to do than each has if all share the rows, and then the groups."""
        return rows + groups < self._largest * rows * self._partitions


# ---- layers made by the job that reads their results -----------------------------------------------------------------


class DeferredLayers:
    """Leaves a batch's layer to the job that sends what it changes; one at a time.

    It runs no job itself, unless no consumer does.

    Args:
        layers_format: of the step.
        queries: make the layers.
        stack: gets the layers.
        emitter: sends what they change.
        pre_aggregation: knows whether batches are large.
        context: of the step.
    """

    def __init__(
        self,
        layers_format: LayerFormat,
        queries: LayerQueries,
        stack: Stack,
        emitter: WindowEmitter,
        pre_aggregation: PreAggregation,
        context: OperatorContext,
    ) -> None:
        self._format = layers_format
        self._queries = queries
        self._stack = stack
        self._emitter = emitter
        self._pre_aggregation = pre_aggregation
        self._context = context
        self._can = can_complete_observations(context.spark)
        self._lean: LeanSession | None = None
        self._unfinished: Layer | None = None

    def may(self, batch: Batch) -> bool:
        """Whether one job can do for a batch and what it changes: no other step runs the one or waits for the other.

        Large batches have a job of their own: it costs little next to them, and the number of their groups is needed.
        """
        is_read = MAIN_PORT in self._context.consumed and LATE_PORT not in self._context.consumed
        is_small = self._pre_aggregation.is_small and not self._stack.loading
        return is_read and self._is_plain(batch) and is_small and self._emitter.may_defer and self._can

    def begin(self, intake: BatchIntake, emit: Collector) -> DeferredBatch:
        """Send what a batch changes.

        The layer's statistics are observed on the rows before the exchange, not on the layer: a task that has kept its
        part of the layer and then fails finds that part when it is tried again, and would observe nothing.
        """
        if self._lean is None:
            self._lean = LeanSession(self._context.spark)
        rows = self._queries.unobserved(intake.observed)
        label = LayerLabel(
            name=self._stack.next_name(),
            level=0,
            epoch=self._stack.epoch,
            emission_number=self._emitter.emission_number,
        )
        lazy = LazyLayer(self._format, rows, intake.stats, label, lean=self._lean)
        self._unfinished = lazy.layer
        ran = ObservedMetrics(dict)
        self._emitter.defer(lazy.layer, ran, emit)
        return DeferredBatch(ran=ran, finish=partial(self._finish, lazy, intake))

    @staticmethod
    def _is_plain(batch: Batch) -> bool:
        """Whether no other step runs the batch, and it is joined with nothing, so that its rows are exchanged.

        A join may bring rows together by key already: then they would be counted where the layer is kept.
        """
        return not batch.run_gates and not batch.ref_counts

    def close(self) -> None:
        """Release a layer that was not finished."""
        layer, self._unfinished = self._unfinished, None
        if layer is not None:
            layer.lease.release()

    def _finish(self, lazy: LazyLayer, intake: BatchIntake) -> None:
        layer = lazy.finish()
        self._unfinished = None
        if layer is not None:
            self._stack.add(layer)
        intake.finish(layer.rows if layer is not None else 0)
        if not self._stack.closed:
            intake.report(self._context)
