"""Turns batches into layers: the plans, the counts of late rows, and deferred layers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from penstock.clock import MAX_WATERMARK
from penstock.elements import Batch, ObservedMetrics
from penstock.errors import InternalError
from penstock.facts import RowsLate
from penstock.interfaces.operator import LATE_PORT, MAIN_PORT, Collector, DeferredBatch, OperatorContext
from penstock.operators.windows.figures import (
    BY_PARTITION,
    FIRST,
    LAST,
    EarlierFigures,
    WantedFigures,
    figures_of,
    figures_over_groups,
)
from penstock.spark.bound_plans import BoundPlan, BoundRows, ObservedRows, PreparedPlan, RebuiltRows, plan_of
from penstock.spark.prepared_plans import PlanPreparer
from penstock.spark.row_owners import Placement
from penstock.spark.sql import nullable, quote_identifier
from penstock.state.layers import STATS, LayerLabel, LazyLayer
from penstock.state.parquet import HashSlice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from penstock.elements import SourcePartitions
    from penstock.operators.windows.emitter import WindowEmitter
    from penstock.operators.windows.frames import WindowFrames
    from penstock.spark.kept_rows import KeptRows
    from penstock.spark.plans import ObservationSpec
    from penstock.state.layers import Layer, LayerFormat
    from penstock.state.stack import Stack


# ---- the plans that make layers --------------------------------------------------------------------------------------

_MAX_SPECS: Final = 16
"""Number of earlier specs and plans of figures that are kept: one for each watermark above a union, and each set of
source partitions, which come and go seldom. A batch whose spec is not kept has no kept plan either."""
_WHOLE: Final = (0, 1)
"""Number and count of the slice that has all rows."""


class LayerRows(NamedTuple):
    """The rows of a layer that is to be kept, how they are exchanged, and metrics that will have its statistics."""

    plan: BoundPlan
    placement: Placement | None
    metrics: ObservedMetrics


class _RowFigures(NamedTuple):
    """What observes figures of rows, with those of the step before."""

    observed: ObservationSpec
    earlier: EarlierFigures


class _GroupPlans(NamedTuple):
    """The plans of groups with figures, and of a layer's rows over them."""

    groups: PreparedPlan
    rows: PreparedPlan
    earlier: EarlierFigures


def _found(earlier: EarlierFigures, spec: ObservationSpec, metrics: ObservedMetrics) -> Mapping[str, object] | None:
    figures = metrics.read()
    return None if figures is None else spec.with_names(earlier.found(figures))


def _without_earlier(flagged: BoundPlan) -> tuple[BoundPlan, ObservedRows | None]:
    """Flagged rows without what the step before observes on them, and that; ``None`` if it observes nothing."""
    if isinstance(flagged, BoundRows) and isinstance(flagged.below, ObservedRows) and flagged.below.spec.sql:
        return replace(flagged, below=flagged.below.below), flagged.below
    return flagged, None


class LayerQueries:
    """Makes the plans of a step's layers; each is analysed once and bound to each batch. Runs no job.

    Args:
        frames: the transformations of frames that the step consists of.
        preparer: prepares plans in the job's session.
        schema: the columns of the step's input.
    """

    def __init__(self, frames: WindowFrames, preparer: PlanPreparer, schema: StructType) -> None:
        self._frames = frames
        self._preparer = preparer
        self._flagged = preparer.prepare(
            nullable(schema), frames.with_timeliness, numbers=3 if frames.window.is_processing else 2
        )
        self._flagged_schema = nullable(self._flagged.schema)
        self._partials: dict[bool, PreparedPlan] = {}
        self._row_figures = lru_cache(_MAX_SPECS)(self._make_row_figures)
        self._prepared_groups = lru_cache(_MAX_SPECS)(self._prepare_groups)
        self._keys: PreparedPlan | None = None
        self._is_volatile = self._has_volatile_inputs()

    def with_timeliness(self, frame: DataFrame, *, horizon: int, mark: int, arrival: int | None) -> BoundPlan:
        """The plan of a batch's flagged rows: see ``WindowFrames.with_timeliness``."""
        below = plan_of(frame)
        if not self._preparer.fits(self._flagged, below):
            msg = f"A batch has the columns {frame.schema.simpleString()}, not those that the step before it declared."
            raise InternalError(msg)
        return self._preparer.bind(self._flagged, below, horizon, mark, *(() if arrival is None else (arrival,)))

    def counted(
        self, flagged: BoundPlan, wanted: WantedFigures, *, takes_over: bool = False
    ) -> tuple[BoundPlan, ObservedMetrics]:
        """The plan of flagged rows with an observation, and metrics that will have the wanted figures.

        Args:
            flagged: the rows.
            wanted: the figures.
            takes_over: whether what the step before observes on the same rows is observed here too, and not below: two
                observations would cost each task twice as much. No other job may run the rows.
        """
        flagged, before = _without_earlier(flagged) if takes_over else (flagged, None)
        if before is None:
            return self._preparer.observe(flagged, self._row_figures(wanted, None).observed)
        figures = self._row_figures(wanted, before.spec)
        plan, metrics = self._preparer.observe(flagged, figures.observed, bound=before.bound)
        before.read_from(partial(_found, figures.earlier, before.spec, metrics))
        return plan, metrics

    def _make_row_figures(self, wanted: WantedFigures, spec: ObservationSpec | None) -> _RowFigures:
        earlier = EarlierFigures({} if spec is None else spec.sql)
        observed = self._preparer.observation(self._flagged, self.figures(wanted) | earlier.over_rows())
        return _RowFigures(observed, earlier)

    def figures(self, wanted: WantedFigures) -> dict[str, Column]:
        """The aggregates over flagged rows that are observed, by name."""
        return figures_of(wanted, self._flagged.schema)

    def partial(self, flagged: BoundPlan) -> LayerRows:
        """The rows of a batch's layer, exchanged before they are grouped."""
        if self._is_volatile:
            plan, metrics = self._observed(self._prepared_layer, self._rebuilt(flagged))
        else:
            plan, metrics = self._observed(self._prepared_partial(is_grouped=False), flagged)
        return LayerRows(plan, None, metrics)

    def grouped(self, flagged: BoundPlan, wanted: WantedFigures, *, may_copy: bool) -> LayerRows | None:
        """The rows of a batch's layer, grouped first, with figures taken over the groups: see ``figures_over_groups``.

        So are those that the step before observes on the same rows. ``None`` if rows are not grouped first, or no plan
        of that is kept.

        Args:
            flagged: the batch's rows.
            wanted: figures of them.
            may_copy: see ``Placement.may_copy``.
        """
        keys = self._frames.exchange_keys
        if self._is_volatile or keys is None:
            return None
        flagged, earlier = _without_earlier(flagged)
        plans = self._prepared_groups(wanted, earlier.spec if earlier is not None else None)
        bound = [earlier.bound] if earlier is not None and earlier.bound is not None else []
        groups, metrics = self._observed(plans.groups, flagged, *bound)
        plan, placement = self._preparer.bind(plans.rows, groups), self._placement(flagged, may_copy=may_copy)
        if keys and (placement is None or not self._preparer.is_kept(plan, placement)):
            return None
        if earlier is not None:
            earlier.read_from(partial(_found, plans.earlier, earlier.spec, metrics))
        return LayerRows(plan, placement, metrics)

    def unobserved(self, flagged: BoundPlan) -> tuple[BoundPlan, Placement | None]:
        """The rows of a small batch's layer, without their statistics, and how they are exchanged."""
        if self._is_volatile:
            return self._rebuilt(flagged), None
        placement = self._placement(flagged, may_copy=True)
        if placement is not None:
            plan = self._preparer.bind(self._prepared_partial(is_grouped=True), flagged)
            if self._preparer.is_kept(plan, placement):
                return plan, placement
        return self._preparer.bind(self._prepared_partial(is_grouped=False), flagged), None

    def merged(self, layers: Sequence[Layer], horizon: int) -> tuple[BoundPlan, ObservedMetrics]:
        """The rows of the layer that replaces ``layers``, and metrics that will have their statistics."""
        rows = self._preparer.union([layer.frame for layer in layers])
        return self._observed(self._prepared_merge, rows, horizon, MAX_WATERMARK, *_WHOLE)

    def merged_part(
        self, layers: Sequence[Layer], horizon: int, part: HashSlice
    ) -> tuple[BoundPlan, ObservedMetrics] | None:
        """As ``merged``, of a slice that lies in one partition; ``None`` if layers are partitioned differently."""
        frames = []
        for layer in layers:
            count = len(layer.parts)
            meeting = [layer.parts[each] for each in range(count) if part.meets(HashSlice(each, count))]
            frames.append((layer.frame, meeting))
        rows = self._preparer.in_one(frames, part.number % self._frames.layers_format.partitions)
        if rows is None:
            return None
        return self._observed(self._prepared_merge, rows, horizon, MAX_WATERMARK, part.number, part.count)

    def joined(self, parts: Sequence[DataFrame]) -> DataFrame:
        """What ``merged_part`` gave for each slice, once cached, as the rows of one layer. It reads their blocks."""
        layers_format = self._frames.layers_format
        columns = [quote_identifier(name) for name in layers_format.slice_columns]
        return self._preparer.side_by_side(parts, columns, partitions=layers_format.partitions)

    def frame(self, plan: BoundPlan) -> DataFrame:
        """A lazy frame of a plan."""
        return self._preparer.frame(plan)

    def _placement(self, flagged: BoundPlan, *, may_copy: bool) -> Placement | None:
        """How grouped rows of a batch are exchanged for its layer; ``None`` if they are not, or not by keys alone."""
        keys = self._frames.exchange_keys
        if not keys:
            return None
        if self._keys is None:
            self._keys = self._preparer.prepare(self._flagged_schema, lambda rows: rows.select(*keys))
        partitions = self._frames.layers_format.partitions
        return Placement(rows=flagged, keys=self._keys, partitions=partitions, may_copy=may_copy)

    def keep(self, plan: BoundPlan, placement: Placement | None = None) -> DataFrame:
        """Run a plan of a layer's rows, and keep them: one job."""
        observed = plan if isinstance(plan, ObservedRows) else cast("BoundRows", plan).below
        # A task that is tried again after it has kept its part finds that part, and observes nothing.
        counted = partial(cast("ObservedRows", observed).lose_unless, STATS[0])
        return self._preparer.checkpoint(plan, placement, counted=counted)

    def keep_later(self, plan: BoundPlan, placement: Placement | None) -> KeptRows:
        """Have the first job that reads a layer's rows keep them."""
        return self._preparer.checkpoint_later(plan, placement)

    @property
    def can_defer(self) -> bool:
        """Whether ``keep_later`` works with this Spark."""
        return self._preparer.can_checkpoint_later

    def _observed(self, prepared: PreparedPlan, below: BoundPlan, *numbers: int) -> tuple[BoundPlan, ObservedMetrics]:
        assert prepared.observation is not None
        return self._preparer.observe(self._preparer.bind(prepared, below, *numbers), prepared.observation)

    def _rebuilt(self, flagged: BoundPlan) -> BoundPlan:
        return RebuiltRows(self._frames.partial, flagged)

    @cached_property
    def _prepared_layer(self) -> PreparedPlan:
        """The rows of a layer as they are, to be observed."""
        return self._preparer.prepare(self._frames.layers_format.schema, lambda rows: rows, figures=self._stats())

    def _prepared_partial(self, *, is_grouped: bool) -> PreparedPlan:
        """The rows of a layer; with ``is_grouped`` in whatever partitions, for a placement to exchange."""
        if is_grouped not in self._partials:
            build = self._frames.grouped if is_grouped else self._frames.partial
            self._partials[is_grouped] = self._preparer.prepare(self._flagged_schema, build, figures=self._stats())
        return self._partials[is_grouped]

    def _prepare_groups(self, wanted: WantedFigures, spec: ObservationSpec | None) -> _GroupPlans:
        frames, preparer = self._frames, self._preparer
        earlier = EarlierFigures({} if spec is None else spec.sql)

        def build(rows: DataFrame, bound: int | None = None) -> DataFrame:
            return frames.grouped_with_figures(rows, wanted, earlier, bound)

        groups = preparer.prepare(
            self._flagged_schema,
            build,
            numbers=0 if spec is None or spec.max_ahead is None else 1,
            figures=figures_over_groups(wanted) | earlier.over_groups(),
        )
        rows = preparer.prepare(nullable(groups.schema), frames.without_figures)
        return _GroupPlans(groups, rows, earlier)

    @cached_property
    def _prepared_merge(self) -> PreparedPlan:
        """The merge of a slice. All rows are a slice, too: a first merge in parts would compile another plan late."""
        layers_format = self._frames.layers_format

        def merged(rows: DataFrame, after: int, until: int, number: int, count: int) -> DataFrame:
            alive = layers_format.between(rows, after, until)
            return layers_format.merged(alive.where(HashSlice(number, count).condition(layers_format)))

        return self._preparer.prepare(layers_format.schema, merged, numbers=4, figures=self._stats())

    def _stats(self) -> dict[str, Column]:
        return dict(zip(STATS, self._frames.layers_format.stats, strict=True))

    def _has_volatile_inputs(self) -> bool:
        """Whether an input of an aggregate is random: then the seed is in the analysed plan, which cannot be reused."""
        inputs = self._frames.inputs
        # one that is not row-wise does not depend on the row alone, so its plan cannot be reused either
        return self._preparer.prepare_row_wise(self._flagged_schema, lambda rows: rows.select(*inputs)) is None


# ---- one batch -------------------------------------------------------------------------------------------------------


class LateRowReport:
    """Reports a batch's late rows by source partition, if rows have a partition column or there is one partition.

    Args:
        partitions: the source partitions of the batch, if they are known.
    """

    def __init__(self, partitions: SourcePartitions | None) -> None:
        self._partitions = partitions

    @property
    def column_and_names(self) -> tuple[str, tuple[str, ...]] | None:
        """The column with a row's partition, and the partitions' names; ``None`` if rows have no such column."""
        partitions = self._partitions
        column = partitions.by_column() if partitions is not None else None
        return None if partitions is None or column is None else (column, partitions.names)

    def facts(self, task: str, late: int, figure: object) -> Iterator[RowsLate]:
        """A fact for each partition that has late rows.

        Args:
            task: uid of the step.
            late: number of late rows in all partitions.
            figure: the observed value of ``BY_PARTITION``, if it was observed.
        """
        partitions = self._partitions
        if partitions is None or not late:
            return
        counts = json.loads(figure) if isinstance(figure, str) else [late] if len(partitions.names) == 1 else []
        for name, rows in zip(partitions.names, counts, strict=False):
            if rows:
                yield RowsLate(task=task, partition=partitions.qualified(name), rows=rows)


class BatchIntake:
    """Observes the rows of a batch while they become a layer. Runs no job, unless an observation is lost.

    Args:
        batch: the batch.
        flagged: plan of its flagged rows, see ``WindowFrames.with_timeliness``.
        queries: the plans of the step.
        bounds: whether to observe the ends of its panes too, which ``stats`` needs.

    Attributes:
        on_time: number of rows that are on time, after ``finish``.
        late: number of rows that are late or without an event time, after ``finish``.
        missing: number of those without an event time.
    """

    def __init__(
        self,
        batch: Batch,
        flagged: BoundPlan,
        queries: LayerQueries,
        *,
        bounds: bool = False,
    ) -> None:
        self._batch = batch
        self._flagged = flagged
        self._queries = queries
        self._late_rows = LateRowReport(batch.partitions)
        self._wanted = WantedFigures(late_by=self._late_rows.column_and_names, bounds=bounds)
        self._late_by_partition: object = None
        self._metrics: ObservedMetrics | None = None
        self.on_time = self.late = self.missing = 0

    def observed(self, *, takes_over: bool = False) -> BoundPlan:
        """The plan of the same rows, to make a layer of. The first job over it observes the figures.

        Args:
            takes_over: see ``LayerQueries.counted``.
        """
        plan, self._metrics = self._queries.counted(self._flagged, self._wanted, takes_over=takes_over)
        return plan

    def layer_rows(self, *, may_copy: bool) -> LayerRows:
        """The rows of the batch's layer. The first job over them observes the figures.

        Args:
            may_copy: see ``Placement.may_copy``.
        """
        rows = self._queries.grouped(self._flagged, self._wanted, may_copy=may_copy)
        if rows is None:
            return self._queries.partial(self.observed())
        self._metrics = rows.metrics
        return rows

    def finish(self) -> None:
        """Take in the figures, after a job has run over all of ``observed``.

        Raises:
            ConnectorError: the job has not read what was planned.
        """
        figures = self._figures()
        self.on_time = figures["on_time"] or 0
        self.missing = figures["missing"] or 0
        self.late = (figures["late"] or 0) + self.missing
        self._late_by_partition = figures.get(BY_PARTITION)
        self._batch.settle()

    def report(self, context: OperatorContext) -> None:
        """Add late rows to the step's counters, and report them by partition."""
        for fact in self._late_rows.facts(context.uid, self.late, self._late_by_partition):
            context.report(fact)
        for name, rows in (("missing_time", self.missing), ("late", self.late)):
            if rows:
                context.count(name, rows)

    def stats(self) -> Mapping[str, Any] | None:
        """The statistics of the batch's layer, or bounds of them: see ``STATS``.

        ``None`` if the observation is lost. Then compute them from the layer: its rows are cached, the batch's are not.
        """
        figures = self._read()
        return None if figures is None else {"rows": figures["on_time"], "first": figures[FIRST], "last": figures[LAST]}

    def _figures(self) -> Mapping[str, Any]:
        """The observed figures, or those of a job that computes them if the observation is lost."""
        figures = self._read()
        if figures is None:
            columns = (figure.alias(name) for name, figure in self._queries.figures(self._wanted).items())
            figures = self._queries.frame(self._flagged).agg(*columns).collect()[0].asDict()
        return figures

    def _read(self) -> Mapping[str, Any] | None:
        return None if self._metrics is None else self._metrics.read()


def is_plain(batch: Batch) -> bool:
    """Whether no other step runs the batch and no join is in it, so that its rows are exchanged for the layer.

    A join may have partitioned the rows by key: then the stage that caches the layer would also observe them.
    """
    return not batch.run_gates and not batch.ref_counts


# ---- deferred layers -------------------------------------------------------------------------------------------------


MIN_ROWS: Final = 50_000
"""Rows of a large batch."""


class DeferredLayers:
    """Makes a batch's layer in the job that a consumer runs over the results, one layer at a time.

    It runs a job itself only if no consumer does.

    Args:
        layers_format: the format of the step's layers.
        queries: make the rows of layers.
        stack: gets the layers.
        emitter: sends the results that a layer changes.
        context: the context of the step.

    Attributes:
        last_rows: number of rows on time of the last batch that had any.
    """

    def __init__(
        self,
        layers_format: LayerFormat,
        queries: LayerQueries,
        stack: Stack,
        emitter: WindowEmitter,
        context: OperatorContext,
    ) -> None:
        self._format = layers_format
        self._queries = queries
        self._stack = stack
        self._emitter = emitter
        self._context = context
        self.last_rows = 0
        self._unfinished: Layer | None = None

    def may(self, batch: Batch) -> bool:
        """Whether one job can make a batch's layer and its results: nothing else runs the batch or reads its late rows.

        A large batch gets a job of its own: that costs little in comparison, and tells how many rows the layer has.
        """
        is_read = MAIN_PORT in self._context.consumed and LATE_PORT not in self._context.consumed
        is_small = self.last_rows < MIN_ROWS and not self._stack.loading
        return is_read and is_plain(batch) and is_small and self._emitter.may_defer and self._queries.can_defer

    def begin(self, intake: BatchIntake, emit: Collector) -> DeferredBatch:
        """Send the results that a batch changes; the first job over them also makes the layer."""
        # The statistics are observed on the rows before the exchange, not on the layer: a task that fails after it has
        # cached its part of the layer finds that part when it is retried, and would observe nothing.
        rows, placement = self._queries.unobserved(intake.observed(takes_over=True))
        label = LayerLabel(
            name=self._stack.next_name(),
            level=0,
            emission_number=self._emitter.emission_number,
        )
        kept = self._queries.keep_later(rows, placement)
        lazy = LazyLayer(self._format, kept, intake.stats, label)
        self._unfinished = lazy.layer
        ran = ObservedMetrics(dict)
        self._emitter.defer(lazy.layer, ran, emit)
        return DeferredBatch(ran=ran, finish=partial(self._finish, lazy, intake))

    def note(self, intake: BatchIntake) -> None:
        """Take in how large a batch was; one without rows changes nothing."""
        self.last_rows = intake.on_time or self.last_rows

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
        intake.finish()
        self.note(intake)
        if not self._stack.closed:
            intake.report(self._context)
