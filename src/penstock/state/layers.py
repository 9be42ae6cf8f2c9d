"""One immutable layer of cached rows: format, statistics, made at once or lazily."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.elements import RefCount
from penstock.errors import InternalError
from penstock.spark.blocks import explain_lost_blocks, free_blocks, local_checkpoint, may_run_twice
from penstock.spark.plans import FrameObservation
from penstock.spark.sql import filter_text, quote_identifier, variable_literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from penstock.handles import Json
    from penstock.spark.kept_rows import KeptRows
    from penstock.spark.packed_rows import RowPacker


# ---- one layer -------------------------------------------------------------------------------------------------------

WINDOW_START, WINDOW_END = "window_start", "window_end"
STATS = ("rows", "first", "last")
"""Names of the figures that ``LayerFormat.stats`` computes."""
MIN_PACKED_ROWS = 20_000
"""Rows from which ``pack_rows`` packs: fewer are not worth a job."""
KIND = "window/1"
"""The format of state, recorded in checkpoints."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerFormat:
    """The format of a step's layers: a row for each key and stretch of time, with partial aggregates.

    Columns that are the same for every layer are made once: each takes several calls to the JVM.

    Attributes:
        uid: the step, for messages.
        keys: names of the key columns, maybe none.
        schema: the key columns, where the stretch starts and ends (TIMESTAMP), then the partial columns.
        merges: for each partial column, how the values of one key and stretch become one.
        partitions: ``n``: every layer of a process is hashed into as many partitions.
        start: name of the column with the start of a stretch: of a window, or of a pane that several windows share.
        end: name of the column with its end.
        scattered: whether, without keys, different stretches may be in different partitions.
        skips_null: whether partials that are NULL make no difference to any merge.
        kind: name and version of the format, which a restore compares.
        table: what else it takes to read the rows as a table; recorded with the layers, opaque here.
    """

    uid: str
    keys: tuple[str, ...]
    schema: StructType
    merges: Mapping[str, Callable[[Column], Column]]
    partitions: int
    start: str = WINDOW_START
    end: str = WINDOW_END
    scattered: bool = True
    skips_null: bool = False
    kind: str = KIND
    table: Mapping[str, Json] | None = None

    @property
    def hash_columns(self) -> tuple[str, ...]:
        """The columns by whose hash layers are partitioned in memory; empty for one partition.

        Rows that may have to be merged are equal in these columns.
        """
        return self.keys or ((self.end,) if self.scattered else ())

    @cached_property
    def slice_columns(self) -> tuple[str, ...]:
        """The columns by whose hash layers are sliced on disk; empty for one slice.

        Of texts with a collation, some are equal that ``hash`` tells apart: their rows would never be merged on disk.
        """
        types = (self.schema[name].dataType.simpleString() for name in self.hash_columns)
        return () if any(" collate " in kind for kind in types) else self.hash_columns

    def hashed(self, frame: DataFrame) -> DataFrame:
        """``frame`` partitioned as all layers are: by the user's keys; without keys by end, or in one partition."""
        if not self.hash_columns:
            return frame.repartition(1)
        return frame.repartition(self.partitions, *(quote_identifier(name) for name in self.hash_columns))

    def merged(self, frame: DataFrame, *more: Column, by: tuple[str, ...] = ()) -> DataFrame:
        """One row for each key and stretch, and each value of ``by``; no exchange if ``frame`` is a union of layers.

        Args:
            frame: rows of the format, maybe with other columns.
            more: aggregates over other columns.
            by: more columns to group by.
        """
        groups = (quote_identifier(name) for name in (*self.keys, self.start, self.end, *by))
        return frame.groupBy(*groups).agg(*self.merging, *more)

    @cached_property
    def merging(self) -> tuple[Column, ...]:
        """The aggregates that merge the partials of one group, one for each partial column."""
        return tuple(column.alias(name) for name, column in self.merging_of(lambda partial: partial).items())

    def merging_of(self, shown: Callable[[Column], Column]) -> dict[str, Column]:
        """The same aggregates over what ``shown`` makes of each partial column, by name."""
        from pyspark.sql import functions as F

        types = {field.name: field.dataType for field in self.schema.fields}
        return {
            name: merge(shown(F.col(quote_identifier(name)))).cast(types[name]) for name, merge in self.merges.items()
        }

    @cached_property
    def stats(self) -> tuple[Column, ...]:
        """Number of rows, least end and greatest end, as aggregates over a layer's rows: see ``STATS``."""
        from pyspark.sql import functions as F

        end = F.expr(f"unix_micros({self.end})")
        return (F.count(F.lit(1)).alias("rows"), F.min(end).alias("first"), F.max(end).alias("last"))

    def between(self, frame: DataFrame, after: int, until: int = MAX_WATERMARK) -> DataFrame:
        """Rows whose stretch ends in ``(after, until]``. New bounds compile nothing."""
        end = f"unix_micros({self.end})"
        lower, upper = (f"{variable_literal(bound, column=self.end)}" for bound in (after, until))
        return frame.where(filter_text(f"{end} > {lower} AND {end} <= {upper}"))

    def ddl(self) -> str:
        """The schema as Spark DDL: what a state handle records."""
        return ", ".join(
            f"{quote_identifier(field.name)} {field.dataType.simpleString()}" for field in self.schema.fields
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerStats:
    """Statistics of a layer, which may still have to be written or read.

    Attributes:
        rows: how many there are, or an upper bound.
        level: how many merges deep it is.
        first_end: a lower bound of the ends of its rows' windows or panes, in microseconds.
        last_end: an upper bound of them.
    """

    rows: int
    level: int
    first_end: int
    last_end: int

    def spans(self, first: int, last: int) -> bool:
        """Whether some of its rows may end in ``[first, last]``."""
        return self.first_end <= last and self.last_end >= first


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer(LayerStats):
    """One immutable set of merged rows in Spark's cache.

    Attributes:
        name: unique within the process.
        epoch: number of the first snapshot that has it; of a batch's layer the stack says it.
        frame: the rows.
        lease: counts those who need the blocks; the stack is one of them.
        emission_number: number of the first emission that has it; 0 if the step does not send changes.
        parts: see ``CachedRows``.
    """

    name: str
    epoch: int
    frame: DataFrame
    lease: RefCount
    emission_number: int = 0
    parts: tuple[DataFrame, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CachedRows:
    """Rows in Spark's cache, and bounds of their ends, which mean nothing if there are none.

    Attributes:
        parts: the rows by slices of the hash, as many as there are frames, each of one partition. Empty if they are
            only in the partitions of ``frame``.
    """

    frame: DataFrame
    rows: int
    first_end: int
    last_end: int
    lease: RefCount
    parts: tuple[DataFrame, ...] = ()


def union_layers(layers: Sequence[Layer]) -> DataFrame:
    """The rows of several layers, not merged; their common partitioning is kept."""
    return reduce(lambda left, right: left.union(right), (layer.frame for layer in layers))


def release_layers(held: Sequence[Layer | CachedRows]) -> None:
    """Release one lease of each."""
    for each in held:
        each.lease.release()


# ---- the layers of a snapshot and of an emission ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SnapshotScope:
    """What a snapshot consists of.

    Attributes:
        epoch: number of the snapshot.
        base: the epoch in which one layer last replaced all: what was durable before that is in it.
        horizon: rows that end at or before it do not count.
        layers: layers up to ``epoch`` that are not durable yet.
        lease: keeps the blocks of ``layers`` until the snapshot is durable or given up.
        details: what the step records in addition to its layers.
    """

    epoch: int
    base: int
    horizon: int
    layers: tuple[Layer, ...]
    lease: RefCount
    details: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmissionLayers:
    """The layers an emission is made of: old ones of earlier emissions, and new ones. ``lease`` keeps their blocks."""

    old: tuple[Layer, ...]
    new: tuple[Layer, ...]
    lease: RefCount


# ---- frames run into layers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLabel:
    """Name and place in the stack of a layer to be made: see ``Layer``."""

    name: str
    level: int
    epoch: int = 0
    emission_number: int = 0


class LazyLayer:
    """A layer whose rows are kept by the first job that reads them.

    Args:
        layers_format: of its rows.
        rows: its rows, merged and hashed, which the first job over them keeps.
        read: returns ``STATS``, or bounds of them, after the job; ``None`` if they are lost.
        label: of the layer.

    Attributes:
        layer: to make results of, with no statistics yet. Its lease is shared with the results.
    """

    def __init__(
        self,
        layers_format: LayerFormat,
        rows: KeptRows,
        read: Callable[[], Mapping[str, Any] | None],
        label: LayerLabel,
    ) -> None:
        self._format = layers_format
        self._read = read
        self._rows = rows
        kept = rows.frame
        unbounded = CachedRows(
            frame=kept,
            rows=0,
            first_end=MIN_WATERMARK,
            last_end=MAX_WATERMARK,
            lease=RefCount(lambda: free_blocks(kept)),
        )
        self.layer = _layer(unbounded, label)

    def finish(self) -> Layer | None:
        """The layer with its statistics; ``None``, and freed, if it has no rows. Runs a job if none has read them.

        Other metrics that were observed below the layer can be read after this.

        Raises:
            LayerMissing: a block of a layer below it is lost.
        """
        with explain_lost_blocks(self._format.uid):
            self._rows.finish()
            rows, first, last = _bounds(self._read() or _count_stats(self._rows.frame, self._format), self._format)
        if not rows:
            self.layer.lease.release()
            return None
        return replace(self.layer, rows=rows, first_end=first, last_end=last)


def build_layer(layers_format: LayerFormat, frame: DataFrame, label: LayerLabel) -> Layer | None:
    """Run ``frame`` into a layer: see ``run_rows``. ``None`` if it has no rows.

    Raises:
        LayerMissing: a block of a layer that ``frame`` reads is lost.
    """
    return layer_of_rows(run_rows(layers_format, frame), label)


def run_rows(layers_format: LayerFormat, frame: DataFrame) -> CachedRows:
    """Run ``frame``, whose rows are merged and hashed, and keep its rows: one job, or two if a task may run twice.

    Raises:
        LayerMissing: a block of a layer that ``frame`` reads is lost.
    """
    if may_run_twice(frame.sparkSession):
        return cache_rows(layers_format, lambda: local_checkpoint(frame), lambda: None)
    observation = FrameObservation(STATS)
    observed = observation.observe(frame, layers_format.stats)
    return cache_rows(layers_format, lambda: local_checkpoint(observed), observation.read)


def cache_layer(
    layers_format: LayerFormat,
    keep: Callable[[], DataFrame],
    read: Callable[[], Mapping[str, Any] | None],
    label: LayerLabel,
) -> Layer | None:
    """As ``build_layer``, of rows that ``keep`` runs and keeps: see ``cache_rows``."""
    return layer_of_rows(cache_rows(layers_format, keep, read), label)


def cache_rows(
    layers_format: LayerFormat, keep: Callable[[], DataFrame], read: Callable[[], Mapping[str, Any] | None]
) -> CachedRows:
    """Run rows whose statistics are observed, and keep them: one job.

    Args:
        layers_format: of the rows.
        keep: runs the job, and returns the cached rows.
        read: returns ``STATS`` after it; ``None`` if they are lost or were not observed.
    """
    with explain_lost_blocks(layers_format.uid):
        kept = keep()
    lease = RefCount(lambda: free_blocks(kept))
    try:
        rows, first, last = _bounds(read() or _count_stats(kept, layers_format), layers_format)
    except BaseException:
        lease.release()
        raise
    return CachedRows(frame=kept, rows=rows, first_end=first, last_end=last, lease=lease)


def pack_rows(layers_format: LayerFormat, kept: CachedRows, packer: RowPacker | None) -> CachedRows:
    """The same rows in less memory, by one job, and ``kept`` is freed; ``kept`` itself if they are few or cannot be.

    Args:
        layers_format: of the rows.
        kept: the rows.
        packer: packs them; ``None`` to leave them as they are.

    Raises:
        LayerMissing: a block of ``kept`` is lost.
    """
    if packer is None or kept.rows < MIN_PACKED_ROWS:
        return kept
    try:
        with explain_lost_blocks(layers_format.uid):
            packed = packer.pack(kept.frame)
    except BaseException:
        kept.lease.release()
        raise
    if packed is None:
        return kept
    kept.lease.release()
    return replace(kept, frame=packed.frame, lease=RefCount(packed.free))


def join_rows(parts: Sequence[CachedRows], frame: DataFrame) -> CachedRows:
    """``parts``, the slices of the hash in order, as one: ``frame`` has the rows of all, and reads their blocks."""
    alive = [part for part in parts if part.rows]
    return CachedRows(
        frame=frame,
        rows=sum(part.rows for part in alive),
        first_end=min((part.first_end for part in alive), default=MAX_WATERMARK),
        last_end=max((part.last_end for part in alive), default=MIN_WATERMARK),
        lease=RefCount(lambda: release_layers(parts)),
        parts=tuple(part.frame for part in parts) if len(parts) > 1 else (),
    )


def layer_of_rows(kept: CachedRows, label: LayerLabel) -> Layer | None:
    """A layer of cached rows; ``None``, and they are freed, if there are none."""
    if not kept.rows:
        kept.lease.release()
        return None
    return _layer(kept, label)


def _layer(kept: CachedRows, label: LayerLabel) -> Layer:
    return Layer(
        name=label.name,
        level=label.level,
        epoch=label.epoch,
        emission_number=label.emission_number,
        rows=kept.rows,
        first_end=kept.first_end,
        last_end=kept.last_end,
        frame=kept.frame,
        lease=kept.lease,
        parts=kept.parts,
    )


def _bounds(stats: Mapping[str, Any], layers_format: LayerFormat) -> tuple[int, int, int]:
    """Number of rows, least end and greatest end; an empty stretch of time without rows."""
    rows, first, last = stats["rows"] or 0, stats["first"], stats["last"]
    if not rows:
        return 0, MAX_WATERMARK, MIN_WATERMARK
    if first is None or last is None:
        msg = f"A layer of step '{layers_format.uid}' has {rows} rows and no window."
        raise InternalError(msg)
    return rows, max(first, MIN_WATERMARK), last


def _count_stats(kept: DataFrame, layers_format: LayerFormat) -> dict[str, int | None]:
    """The statistics by a job of their own, if no observation has brought them."""
    row = kept.agg(*layers_format.stats).collect()[0]
    return dict(zip(STATS, row, strict=True))
