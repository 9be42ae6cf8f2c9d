"""One immutable layer of cached rows: format, statistics, made at once or lazily."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK
from penstock.elements import RefCount
from penstock.errors import InternalError
from penstock.spark.blocks import LazyCheckpoint, explain_lost_blocks, free_blocks, local_checkpoint
from penstock.spark.plans import FrameObservation
from penstock.spark.sql import filter_text, quote_identifier, variable_literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from penstock.handles import Json
    from penstock.spark.session import LeanSession


# ----------------------------------------------------------------------------------------------------
# What a snapshot and an emission name: layers as of one moment, kept until they are done with. Runs nothing.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SnapshotScope:
    """What a snapshot names: layers up to ``epoch`` that were not durable then, the horizon, and the step's own notes.

    ``lease`` keeps the blocks of ``layers`` until the snapshot is durable or given up. ``base`` is the epoch in which
    one layer last took the place of all: what was durable before that is in it.
    """

    epoch: int
    base: int
    horizon: int
    layers: tuple[Layer, ...]
    lease: RefCount
    notes: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmissionLayers:
    """The layers an emission is made of: those that were told of before, and those that are new. Kept by ``lease``."""

    old: tuple[Layer, ...]
    new: tuple[Layer, ...]
    lease: RefCount


# ----------------------------------------------------------------------------------------------------
# One immutable layer of merged rows in Spark's cache, and what the rows of a step's layers look like.
#
# Knows nothing of the stack a layer lies in, of checkpoints or of windows' shapes.

WINDOW_START, WINDOW_END = "window_start", "window_end"
STATS = ("rows", "first", "last")
KIND = "window/1"


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerFormat:
    """The rows of a step's layers: one for each key and stretch of time, with partial aggregates.

    Columns that are the same for every layer are made once: each takes several calls to the JVM.

    Attributes:
        uid: the step, for messages.
        keys: names of the key columns, maybe none.
        schema: the key columns, where the stretch starts and ends (TIMESTAMP), then the partial columns.
        merges: for each partial column, how the values of one key and stretch become one.
        partitions: ``n``: every layer of a process is hashed into as many.
        start: name of the column that says where a stretch starts: a window, or a pane that several windows share.
        end: name of the one that says where it ends.
        scattered: whether, without keys, different stretches may lie apart; not if they are to be put together.
        skips_null: whether partials that are NULL make no difference to any merge.
        kind: name and version of the format, which a restore compares.
        table: what else it takes to read the rows as a table; kept beside the layers, opaque here.
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
    def together(self) -> tuple[str, ...]:
        """Rows that may have to be merged are alike in these columns; none if any two may have to be.

        By their hash, layers lie in partitions in memory.
        """
        return self.keys or ((self.end,) if self.scattered else ())

    @cached_property
    def sliced(self) -> tuple[str, ...]:
        """By the hash of these columns a row falls into a slice; none if all are in one.

        Of texts with a collation, some are alike that ``hash`` tells apart: their rows would never be merged on disk.
        """
        types = (self.schema[name].dataType.simpleString() for name in self.together)
        return () if any(" collate " in kind for kind in types) else self.together

    def hashed(self, frame: DataFrame) -> DataFrame:
        """``frame`` placed as all layers are: by the user's keys alone; without keys by end, or all in one place."""
        if not self.together:
            return frame.repartition(1)
        return frame.repartition(self.partitions, *(quote_identifier(name) for name in self.together))

    def merged(self, frame: DataFrame, *more: Column, by: tuple[str, ...] = ()) -> DataFrame:
        """One row for each key and stretch, and each value of ``by``. No exchange if ``frame`` is a union of layers.

        ``more`` are aggregates over other columns of ``frame``.
        """
        groups = (quote_identifier(name) for name in (*self.keys, self.start, self.end, *by))
        return frame.groupBy(*groups).agg(*self.merging, *more)

    @cached_property
    def merging(self) -> tuple[Column, ...]:
        """The partials of one group become one: aggregates, one for each partial column."""
        return tuple(column.alias(name) for name, column in self.merging_of(lambda partial: partial).items())

    def merging_of(self, shown: Callable[[Column], Column]) -> dict[str, Column]:
        """The same over what is made of each partial column."""
        from pyspark.sql import functions as F

        types = {field.name: field.dataType for field in self.schema.fields}
        return {
            name: merge(shown(F.col(quote_identifier(name)))).cast(types[name]) for name, merge in self.merges.items()
        }

    @cached_property
    def extent(self) -> tuple[Column, ...]:
        """How many rows there are, and where the first and the last of them end: aggregates over a layer's rows."""
        from pyspark.sql import functions as F

        end = F.expr(f"unix_micros({self.end})")
        return (F.count(F.lit(1)).alias("rows"), F.min(end).alias("first"), F.max(end).alias("last"))

    def between(self, frame: DataFrame, after: int, until: int = MAX_WATERMARK) -> DataFrame:
        """Rows whose stretch ends in ``(after, until]``. Bounds change with every batch and compile nothing."""
        end = f"unix_micros({self.end})"
        lower, upper = (f"{variable_literal(bound, beside=self.end)}" for bound in (after, until))
        return frame.where(filter_text(f"{end} > {lower} AND {end} <= {upper}"))

    def ddl(self) -> str:
        """The schema as Spark DDL: what a state handle records."""
        return ", ".join(
            f"{quote_identifier(field.name)} {field.dataType.simpleString()}" for field in self.schema.fields
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerStats:
    """How much is in a layer, which may still have to be written, or to be read.

    Attributes:
        rows: how many there are, or an upper bound.
        level: how many merges deep it is.
        first_end: least end of the windows or panes of its rows, in microseconds, or less.
        last_end: the greatest, or more.
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
        epoch: the number of the snapshot that first covers it.
        frame: the rows.
        lease: who still needs the blocks; the stack is one of them.
        turn: the number of the emission that first tells of it; 0 if nobody asks what has changed.
    """

    name: str
    epoch: int
    frame: DataFrame
    lease: RefCount
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CachedRows:
    """Rows in Spark's cache, and their extent, which says nothing if there are none."""

    frame: DataFrame
    rows: int
    first_end: int
    last_end: int
    lease: RefCount


def union_layers(layers: Sequence[Layer]) -> DataFrame:
    """The rows of several layers, not yet merged; their common partitioning is kept."""
    return reduce(lambda left, right: left.union(right), (layer.frame for layer in layers))


def release_layers(held: Sequence[Layer | CachedRows]) -> None:
    """One holder of each is done with it."""
    for each in held:
        each.lease.release()


# ----------------------------------------------------------------------------------------------------
# Runs frames into layers of cached rows: at once, or by the way in the job of whoever reads them first.
#
# Knows nothing of the stack and of what the rows mean.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLabel:
    """What a layer to be made is called, and where it stands among the others: see :class:`Layer`."""

    name: str
    level: int
    epoch: int
    turn: int = 0


class LazyLayer:
    """A layer whose rows are there once a job has read them, whoever's that is.

    Args:
        layers_format: of its rows.
        frame: of them, merged and hashed.
        read: tells :data:`STATS`, or bounds of it, after the job, if it can.
        tag: of the layer.
        beside: see :class:`LazyCheckpoint`.

    Attributes:
        layer: to make results of; nothing is known of its extent. Its lease is shared with whoever runs them.
    """

    def __init__(
        self,
        layers_format: LayerFormat,
        frame: DataFrame,
        read: Callable[[], Mapping[str, Any] | None],
        tag: LayerLabel,
        *,
        beside: LeanSession,
    ) -> None:
        self._format = layers_format
        self._read = read
        self._cut = LazyCheckpoint(frame, beside)
        kept = self._cut.frame
        anything = CachedRows(
            frame=kept,
            rows=0,
            first_end=MIN_WATERMARK,
            last_end=MAX_WATERMARK,
            lease=RefCount(lambda: free_blocks(kept)),
        )
        self.layer = _layer(anything, tag)

    def finish(self) -> Layer | None:
        """The layer as its rows are; ``None``, and freed, if it has none. Runs a job if none has read them.

        What else was observed below it can be read after this.

        Raises:
            LayerMissing: a block is lost of a layer that it is made of.
        """
        with explain_lost_blocks(self._format.uid):
            self._cut.finish()
            rows, first, last = _extent(self._read() or _ask(self._cut.frame, self._format), self._format)
        if not rows:
            self.layer.lease.release()
            return None
        return replace(self.layer, rows=rows, first_end=first, last_end=last)


def build_layer(layers_format: LayerFormat, frame: DataFrame, tag: LayerLabel) -> Layer | None:
    """Run ``frame``, whose rows are merged and hashed, into a layer: one job. ``None`` if it has no rows.

    Raises:
        LayerMissing: ``frame`` reads another layer, and a block of that is lost.
    """
    figures = FrameObservation(STATS)
    return cache_layer(layers_format, figures.watch(frame, layers_format.extent), figures.read, tag)


def cache_layer(
    layers_format: LayerFormat, watched: DataFrame, read: Callable[[], Mapping[str, Any] | None], tag: LayerLabel
) -> Layer | None:
    """As :func:`build_layer`, of an observed frame: ``read`` returns :data:`STATS` after its job, if it can."""
    kept = cache_rows(layers_format, watched, read)
    if not kept.rows:
        kept.lease.release()
        return None
    return _layer(kept, tag)


def cache_rows(
    layers_format: LayerFormat, watched: DataFrame, read: Callable[[], Mapping[str, Any] | None]
) -> CachedRows:
    """Run a frame whose extent is observed, and keep its rows, if there are any: one job."""
    with explain_lost_blocks(layers_format.uid):
        kept = local_checkpoint(watched)
    lease = RefCount(lambda: free_blocks(kept))
    try:
        rows, first, last = _extent(read() or _ask(kept, layers_format), layers_format)
    except BaseException:
        lease.release()
        raise
    return CachedRows(frame=kept, rows=rows, first_end=first, last_end=last, lease=lease)


def _layer(kept: CachedRows, tag: LayerLabel) -> Layer:
    return Layer(
        name=tag.name,
        level=tag.level,
        epoch=tag.epoch,
        turn=tag.turn,
        rows=kept.rows,
        first_end=kept.first_end,
        last_end=kept.last_end,
        frame=kept.frame,
        lease=kept.lease,
    )


def _extent(told: Mapping[str, Any], layers_format: LayerFormat) -> tuple[int, int, int]:
    """Rows, and where the first and the last of them end: of none, no stretch of time."""
    rows, first, last = told["rows"] or 0, told["first"], told["last"]
    if not rows:
        return 0, MAX_WATERMARK, MIN_WATERMARK
    if first is None or last is None:
        msg = f"a layer of step '{layers_format.uid}' has {rows} rows and no window"
        raise InternalError(msg)
    return rows, max(first, MIN_WATERMARK), last


def _ask(kept: DataFrame, layers_format: LayerFormat) -> dict[str, int | None]:
    """The same figures by a job of their own: only if the observation was lost, since the layer depends on them."""
    row = kept.agg(*layers_format.extent).collect()[0]
    return dict(zip(STATS, row, strict=True))
