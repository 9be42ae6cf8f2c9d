"""Layers as Parquet files: written, scanned, cut into hash slices."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import StorageFailed
from penstock.handles import ColumnAction, FileRef, LayerRef
from penstock.spark.blocks import explain_lost_blocks, with_session
from penstock.spark.plans import FrameObservation
from penstock.spark.session import empty_frame
from penstock.spark.sql import escape_glob, filter_text, quote_identifier, spark_type, variable_literal
from penstock.state.layers import LayerFormat, LayerStats
from penstock.state.schema import column_changes, layer_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.filesystem.base import FileSystem
    from penstock.handles import ColumnChange


# ---- reading ---------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    Files: TypeAlias = Sequence[tuple[LayerRef, Sequence[FileRef]]]
    """Layers, and the files of each to read."""
STRICT_READ: Final = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Options under which a missing or damaged file fails the job, whatever the session's settings."""


def scan_layers(layers_format: LayerFormat, filesystem: FileSystem, session: SparkSession, files: Files) -> DataFrame:
    """The rows of exactly these files of each layer, whatever else lies in their folders. Runs no job.

    One scan for all layers that were written with the same columns.
    """
    by_schema: dict[str | None, list[FileRef]] = {}
    for ref, found in files:
        if found:
            by_schema.setdefault(layer_columns(ref), []).extend(found)
    frames = []
    for schema, found in by_schema.items():
        changes = column_changes(schema, layers_format.ddl()) if schema is not None else ()
        paths = [escape_glob(filesystem.url(file.path)) for file in found]
        frame = session.read.schema(_recorded_schema(changes, layers_format)).options(**STRICT_READ).parquet(*paths)
        frames.append(frame.select(*_declared_columns(changes, layers_format)) if changes else frame)
    if not frames:
        return empty_frame(session, layers_format.schema)
    return reduce(lambda left, right: left.union(right), frames)


def _recorded_schema(changes: Sequence[ColumnChange], layers_format: LayerFormat) -> StructType:
    """The columns to read: those of the format, unless there are changes."""
    from pyspark.sql.types import DataType, StructType

    if not changes:
        return layers_format.schema
    made = StructType()
    for change in changes:
        if change.recorded is None or change.declared is None:
            continue
        if change.act is ColumnAction.KEEP:
            made.add(change.recorded.name, layers_format.schema[change.declared.name].dataType)
        else:
            made.add(change.recorded.name, DataType.fromDDL(spark_type(change.recorded.type)))
    return made


def _declared_columns(changes: Sequence[ColumnChange], layers_format: LayerFormat) -> list[Column]:
    """The declared columns, from those that were read. A new one is NULL, which no merge counts."""
    from pyspark.sql import functions as F

    made = []
    for change in changes:
        if change.declared is None:
            continue
        of = F.lit(None) if change.recorded is None else F.col(quote_identifier(change.recorded.name))
        kind = layers_format.schema[change.declared.name].dataType
        made.append((of if change.act is ColumnAction.KEEP else of.cast(kind)).alias(change.declared.name))
    return made


# ---- hash slices -----------------------------------------------------------------------------------------------------
# A layer is written in slices, each in a folder of its own; each row falls into exactly one.


@dataclass(frozen=True, slots=True)
class HashSlice:
    """Part ``number`` of ``count``, by the hash of ``LayerFormat.slice_columns``; ``count`` is a power of two.

    So each slice of 8 lies in one slice of 2, which holds four of them.
    """

    number: int
    count: int

    def meets(self, other: HashSlice) -> bool:
        """Whether a row may be in both slices.

        >>> [HashSlice(5, 8).meets(HashSlice(number, 2)) for number in range(2)]
        [False, True]
        """
        least = min(self.count, other.count)
        return self.number % least == other.number % least

    def condition(self, layers_format: LayerFormat) -> str:
        """SQL for whether a row is in the slice. New numbers compile nothing."""
        columns = ", ".join(quote_identifier(column) for column in layers_format.slice_columns)
        modulus, wanted = (variable_literal(value, column=layers_format.end) for value in (self.count, self.number))
        return filter_text(f"pmod(CAST(hash({columns}) AS BIGINT), {modulus}) = {wanted}") if columns else "true"


def slices_of(ref: LayerRef, by: Sequence[str]) -> int:
    """In how many slices of the hash of ``by`` a durable layer lies; one if it was sliced by other columns."""
    match ref.detail:
        case {"slices": int(count), "by": list(columns)} if columns == [*by]:
            return count
        case _:
            return 1


def files_of(ref: LayerRef, part: HashSlice, by: Sequence[str]) -> list[FileRef]:
    """The files of a durable layer that may have rows of a slice. A file's folder is the number of its slice."""
    count = slices_of(ref, by)
    if count == 1:
        return list(ref.files)
    return [file for file in ref.files if part.meets(HashSlice(int(file.path.split("/")[-2]), count))]


# ---- writing ---------------------------------------------------------------------------------------------------------
# A layer is written in slices, so that no task runs long next to the data path: Spark never preempts a task. Every
# attempt has a folder of its own, whose name is never used again, so that what a dead or fenced process still writes
# does no harm.

ROWS_A_TASK = 150_000
"""Rows of one task: about 100 ms of merging and writing."""
SliceRows: TypeAlias = "Callable[[HashSlice], DataFrame | None]"
"""Returns rows that include all of a slice, not merged; ``None`` if there are none."""
_OPTIONS = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerWriter:
    """Makes layers durable.

    Attributes:
        layers_format: of the rows.
        filesystem: makes files durable and describes them.
        folder: of this step and generation, relative to the job's directory.
        prefix: of the names of all layers of this generation, such as ``"g7-"``.
        session: the state's own session; its settings decide how Parquet is written.
        tasks: at most this many tasks at once.
        background: makes the context of each Spark job.
        failpoint: called at durable steps.
        numbers: of the layers that are written.
    """

    layers_format: LayerFormat
    filesystem: FileSystem
    folder: str
    prefix: str
    session: SparkSession
    tasks: int
    background: Callable[[], AbstractContextManager[None]]
    failpoint: Callable[[str], None]
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def write(self, rows: SliceRows, stats: LayerStats, *, horizon: int, share: int = 1) -> LayerRef:
        """Merge ``rows``, leave out closed windows, write them and make them durable: one job for each slice.

        Args:
            rows: of the format; of a union of layers, so that merging needs no exchange, or of files.
            stats: of the rows.
            horizon: windows ending at or before it are left out.
            share: rows that a slice may have, as a multiple of the usual.

        Raises:
            LayerMissing: a cached block of ``rows`` is lost.
            StorageFailed: the file system refused.
        """
        name = f"{self.prefix}{next(self.numbers):06d}"
        slices = self._slices(stats.rows, ROWS_A_TASK * share)
        self.failpoint("state.layer.before_write")
        counts = [self._write_slice(rows, name, HashSlice(part, slices), horizon) for part in range(slices)]
        self.failpoint("state.layer.written")
        files = self._settle(f"{self.folder}/{name}")
        self.failpoint("state.layer.durable")
        known = [count for count in counts if count is not None]
        return LayerRef(
            name=name,
            level=stats.level,
            rows=sum(known) if len(known) == len(counts) else stats.rows,
            files=files,
            detail={
                "first_end": stats.first_end,
                "last_end": stats.last_end,
                "slices": slices,
                "by": [*self.layers_format.slice_columns],
            },
        )

    def discard(self, ref: LayerRef) -> None:
        """Delete the files of a layer that nothing refers to; those that storage refuses are left to the next claim."""
        with suppress(StorageFailed):
            for file in ref.files:
                self.filesystem.delete(file.path)

    def _slices(self, rows: int, most: int) -> int:
        """Number of slices at which no task gets more than ``most`` rows; a slice's rows lie in several partitions."""
        layers_format, slices = self.layers_format, 1
        if not layers_format.slice_columns:
            return slices
        while rows > most * slices * max(1, min(self.tasks, layers_format.partitions // slices)):
            slices *= 2
        return slices

    def _write_slice(self, rows_of: SliceRows, name: str, part: HashSlice, horizon: int) -> int | None:
        from pyspark.sql import functions as F

        found = rows_of(part)
        if found is None:
            return 0
        source = self.layers_format.between(with_session(found, self.session), horizon)
        rows = source.where(part.condition(self.layers_format))
        observation = FrameObservation(("rows",))
        merged = observation.observe(self.layers_format.merged(rows), [F.count(F.lit(1)).alias("rows")])
        target = self.filesystem.url(f"{self.folder}/{name}/{part.number:04d}")
        with self.background(), explain_lost_blocks(self.layers_format.uid):
            merged.coalesce(self.tasks).write.mode("append").options(**_OPTIONS).parquet(target)
        figures = observation.read()
        return figures["rows"] if figures else None

    def _settle(self, folder: str) -> tuple[FileRef, ...]:
        """Make durable what the jobs committed; delete the rest: Hadoop's check sums, files of killed attempts."""
        files = []
        for path in self.filesystem.list(folder):
            if _is_committed(path.removeprefix(f"{folder}/")):
                files.append(self.filesystem.settle(path))
            else:
                self.filesystem.delete(path)
        return tuple(files)


def _is_committed(path: str) -> bool:
    """Whether a path below a layer's folder is one that a committed task leaves: ``<slice>/<name>``.

    An attempt writes below ``<slice>/_temporary``; a killed speculative attempt may leave a whole file there.

    >>> _is_committed("0000/part-00000-c000.zstd.parquet")
    True
    >>> _is_committed("0000/_temporary/0/_temporary/attempt_1/part-00000-c000.zstd.parquet")
    False
    """
    _, _, name = path.partition("/")
    return "/" not in name and not name.startswith(("_", ".")) and name.endswith(".parquet")


def stats_of(refs: Sequence[LayerRef]) -> LayerStats:
    """The statistics of durable layers together."""
    return LayerStats(
        rows=sum(ref.rows for ref in refs),
        level=1 + max(ref.level for ref in refs),
        first_end=min(window_bounds(ref)[0] for ref in refs),
        last_end=max(window_bounds(ref)[1] for ref in refs),
    )


def window_bounds(ref: LayerRef) -> tuple[int, int]:
    """Least and greatest window end of a durable layer, in microseconds, from its detail."""
    detail = ref.detail
    if isinstance(detail, dict):
        first, last = detail.get("first_end"), detail.get("last_end")
        if isinstance(first, int) and isinstance(last, int):
            return first, last
    from penstock.errors import CheckpointUnreadable

    msg = f"Layer {ref.name} says {detail!r} of its windows. Expected were first_end and last_end in microseconds."
    raise CheckpointUnreadable(msg)
