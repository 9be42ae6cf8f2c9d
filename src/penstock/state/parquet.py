"""Layers as Parquet files: written, scanned, cut into hash slices."""

from __future__ import annotations

import itertools
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import CheckpointError
from penstock.filesystem.base import settle_all
from penstock.handles import ColumnAction, FileRef, LayerRef
from penstock.spark.blocks import explain_lost_blocks, free_blocks, local_checkpoint, with_session
from penstock.spark.plans import FrameObservation
from penstock.spark.session import empty_frame
from penstock.spark.sql import escape_glob, filter_text, quote_identifier, spark_type, variable_literal
from penstock.state.layers import LayerFormat, LayerStats
from penstock.state.schema import column_changes, layer_columns, unexpected_detail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
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
    """Part ``number`` of ``count``, by the hash of ``LayerFormat.slice_columns``.

    ``count`` is a power of two, in memory times the number of partitions. So each slice of 8 lies in one slice of 2,
    which holds four of them.
    """

    number: int
    count: int

    @classmethod
    def all(cls, count: int) -> Iterator[HashSlice]:
        """All ``count`` slices, a power of two; those that lie in one slice of fewer come one after another.

        >>> [part.number for part in HashSlice.all(8)]
        [0, 4, 2, 6, 1, 5, 3, 7]
        """
        numbers = [0]
        while len(numbers) < count:
            numbers = [number + more for number in numbers for more in (0, len(numbers))]
        return (cls(number, count) for number in numbers)

    def within(self, count: int) -> HashSlice:
        """The slice of ``count``, as many or fewer, that it lies in."""
        return HashSlice(self.number % count, count)

    def meets(self, other: HashSlice) -> bool:
        """Whether a row may be in both slices.

        >>> [HashSlice(5, 8).meets(HashSlice(number, 2)) for number in range(2)]
        [False, True]
        """
        least = min(self.count, other.count)
        return self.number % least == other.number % least

    def condition(self, layers_format: LayerFormat) -> str:
        """SQL for whether a row is in the slice. New numbers compile nothing."""
        if not layers_format.slice_columns:
            return "true"
        wanted = variable_literal(self.number, column=layers_format.end)
        return filter_text(f"{_slice_number(layers_format, self.count)} = {wanted}")


def _slice_number(layers_format: LayerFormat, count: int) -> str:
    """SQL for the number of a row's slice."""
    columns = ", ".join(quote_identifier(column) for column in layers_format.slice_columns)
    return f"pmod(CAST(hash({columns}) AS BIGINT), {variable_literal(count, column=layers_format.end)})"


def hash_parts(rows: int, *, most: int) -> int:
    """In how many parts of the hash no part has more than ``most`` of these rows: a power of two.

    >>> [hash_parts(rows, most=100) for rows in (0, 100, 101, 200, 201)]
    [1, 1, 2, 2, 4]
    """
    return _power_of_two(-(-rows // most) * 2 - 1)


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


MAX_READS: Final = 2
"""How often each row may be read from files, on average, to load layers in small parts."""
MAX_READS_TO_HOLD: Final = 4
"""How often each row may be read from files, on average, so that few are held at a time."""


@dataclass(frozen=True, slots=True)
class SlicedRows:
    """Of some layers, how many rows each has and in how many slices: all rows of one are read for any of them.

    >>> SlicedRows([(1_000, 2), (1_000, 8)]).reads(8)
    2.5
    """

    layers: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, refs: Sequence[LayerRef], by: Sequence[str]) -> SlicedRows:
        """Of durable layers, in slices of the hash of ``by``."""
        return cls([(ref.rows, slices_of(ref, by)) for ref in refs])

    def reads(self, parts: int) -> float:
        """How often each row is read, on average, if all are read in this number of parts of the hash."""
        read = sum(rows * max(1, parts // slices) for rows, slices in self.layers)
        return read / max(1, self._rows)

    def parts(self, *, least: int = 1, most_rows: int, most_reads: int) -> int:
        """In how many parts to read them: enough that none takes long, but few enough that no row is read often.

        Background tasks have to be short, since Spark never preempts one.

        Args:
            least: number of parts.
            most_rows: rows of a part, above which there are twice as many if that is allowed.
            most_reads: how often each row may be read, on average.
        """
        count = least
        while self._rows > most_rows * count and self.reads(2 * count) <= most_reads:
            count *= 2
        return count

    @property
    def _rows(self) -> int:
        return sum(rows for rows, _ in self.layers)


class SliceReader:
    """Reads the rows of durable layers, not merged, slice by slice in the order of ``HashSlice.all``.

    A layer that has fewer slices than are asked for has files with the rows of several. Those rows are read once or a
    few times, and kept in memory while slices that have some of them are asked for.

    Args:
        refs: the layers.
        writer: has their format and place; each of the reader's jobs has a slot of the writer's.
        horizon: rows that end at or before it may be left out.
        between: called before each job, without a slot: there may be many, and other work must not wait for all.
    """

    def __init__(
        self, refs: Sequence[LayerRef], writer: LayerWriter, *, horizon: int, between: Callable[[], None]
    ) -> None:
        self._refs = refs
        self._writer = writer
        self._by = writer.layers_format.slice_columns
        self._horizon = horizon
        self._between = between
        self._held_part: HashSlice | None = None
        self._held: list[DataFrame] = []

    def rows(self, part: HashSlice) -> DataFrame | None:
        """Rows that include all of a slice; ``None`` if no file has any."""
        mixed = [ref for ref in self._refs if slices_of(ref, self._by) < part.count]
        fine = [ref for ref in self._refs if slices_of(ref, self._by) >= part.count]
        count = SlicedRows.of(mixed, self._by).parts(most_rows=ROWS_HELD, most_reads=MAX_READS_TO_HOLD)
        within = part.within(min(part.count, count))
        if self._held_part != within:
            self.close()
            self._hold(mixed, within)
        self._between()
        files = [(ref, files_of(ref, part, self._by)) for ref in fine]
        frames = [self._scan(files), *self._held] if any(found for _, found in files) else self._held
        return reduce(lambda left, right: left.union(right), frames).coalesce(self._writer.tasks) if frames else None

    def close(self) -> None:
        """Free the rows that are held."""
        held, self._held, self._held_part = self._held, [], None
        for frame in held:
            free_blocks(frame)

    def _hold(self, refs: Sequence[LayerRef], part: HashSlice) -> None:
        layers_format = self._writer.layers_format
        self._held_part = part
        for files in _in_tasks([(ref, files_of(ref, part, self._by)) for ref in refs]):
            self._between()
            rows = layers_format.between(self._scan(files), self._horizon).where(part.condition(layers_format))
            with self._writer.background():
                self._held.append(local_checkpoint(rows.coalesce(1)))

    def _scan(self, files: Files) -> DataFrame:
        return scan_layers(self._writer.layers_format, self._writer.filesystem, self._writer.session, files)


def _in_tasks(files: Files) -> Iterator[Files]:
    """The same files, in parts that one task each reads in a short time."""
    taken: list[tuple[LayerRef, list[FileRef]]] = []
    rows = 0
    for ref, found in files:
        for file in found:
            if rows >= ROWS_A_MERGE:
                yield taken
                taken, rows = [], 0
            taken.append((ref, [file]))
            rows += ref.rows // len(ref.files)
    if taken:
        yield taken


# ---- writing ---------------------------------------------------------------------------------------------------------
# One job writes a layer, in a folder for each slice of the hash: it merges the rows once, and a restore finds the rows
# of a part in a few files. Only a layer of many rows takes several jobs, each for a part of the slices: Spark never
# preempts a task, so none may run long next to the data path. Every attempt has a folder of its own, whose name is
# never used again, so that what a dead or fenced process still writes does no harm.

ROWS_A_TASK: Final = 1_000_000
"""Most rows of one job that writes layers in memory, and of a slice of large state. Each such job reads all layers."""
ROWS_A_MERGE: Final = 250_000
"""Rows of one task that merges files, of which it reads only its own: half a second of merging and writing."""
ROWS_HELD: Final = 8 * ROWS_A_MERGE
"""Rows above which a reader of slices holds fewer in memory, if it need not read them too often for that."""
MIN_ROWS_A_FILE: Final = 8_000
"""Rows of a slice below which a layer has fewer slices: each file is synced, and named in every manifest."""
MAX_SLICES_AHEAD, MIN_ROWS_AHEAD = 64, 32_000
"""Slices, and rows of each, where the state is so small that nobody needs them yet: it may grow."""
_SLICE: Final = "__penstock_slice"
_COMMITTED: Final = re.compile(rf"\d+/(?:{_SLICE}=(\d+)/)?([^/_.][^/]*\.parquet)")
SliceRows: TypeAlias = "Callable[[HashSlice], DataFrame | None]"
"""Returns rows that include all of a slice, not merged; ``None`` if there are none."""
_OPTIONS: Final = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Most columns of a layer have few equal values or many. Up to the default of 1 MB, a whole file of keys would be
    # looked up in a dictionary that is then thrown away: a third of the time of writing it.
    "parquet.dictionary.page.size": "65536",
}


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

    def write(
        self, rows: SliceRows, stats: LayerStats, *, horizon: int, live_rows: int, are_files: bool = False
    ) -> LayerRef:
        """Merge ``rows``, leave out closed windows, write them and make them durable.

        Args:
            rows: of the format; of a union of layers, so that merging needs no exchange, or of files.
            stats: of the rows.
            horizon: windows ending at or before it are left out.
            live_rows: at most how many rows the state has: of much state a restore wants slices.
            are_files: whether ``rows`` reads only the files that a slice needs; else each of several jobs reads all.

        Raises:
            LayerMissing: a cached block of ``rows`` is lost.
            StorageFailed: the file system refused.
        """
        name = f"{self.prefix}{next(self.numbers):06d}"
        jobs = self._parts(stats.rows, ROWS_A_MERGE if are_files else ROWS_A_TASK)
        slices = max(jobs, min(self._parts(live_rows, ROWS_A_TASK), _power_of_two(stats.rows // MIN_ROWS_A_FILE)))
        if self.layers_format.slice_columns and not are_files:
            slices = max(slices, min(MAX_SLICES_AHEAD, _power_of_two(stats.rows // MIN_ROWS_AHEAD)))
        write = partial(
            self._write_part,
            rows,
            name,
            slices=slices,
            tasks=max(1, min(self.tasks, stats.rows // jobs // MIN_ROWS_A_FILE)),
            horizon=horizon,
        )
        self.failpoint("state.layer.before_write")
        counts: list[int | None] = []
        files: list[FileRef] = []
        try:
            for part in HashSlice.all(jobs):
                counts.append(write(part))
                self.failpoint("state.layer.written")
                files += self._settle(f"{self.folder}/{name}", part)
            self.failpoint("state.layer.durable")
        except Exception:
            self._clear(f"{self.folder}/{name}")
            raise
        known = [count for count in counts if count is not None]
        return LayerRef(
            name=name,
            level=stats.level,
            rows=sum(known) if len(known) == len(counts) else stats.rows,
            files=tuple(sorted(files, key=lambda file: file.path)),
            detail={
                "first_end": stats.first_end,
                "last_end": stats.last_end,
                "slices": slices,
                "by": [*self.layers_format.slice_columns],
            },
        )

    def discard(self, ref: LayerRef) -> None:
        """Delete the files of a layer that nothing refers to; those that storage refuses are left to the next claim."""
        self._clear(f"{self.folder}/{ref.name}")

    def _clear(self, folder: str) -> None:
        """Delete what a failed write has left, for others may fail after it. What still comes is left to the log."""
        with suppress(CheckpointError):
            for path in self.filesystem.list(folder):
                self.filesystem.delete(path)
            self.filesystem.remove_empty_folders(folder)

    def _parts(self, rows: int, most: int) -> int:
        return hash_parts(rows, most=most) if self.layers_format.slice_columns else 1

    def _write_part(
        self, rows_of: SliceRows, name: str, part: HashSlice, *, slices: int, tasks: int, horizon: int
    ) -> int | None:
        """Write a part, in one job, into folders for its slices if it has several. Returns how many rows it has."""
        from pyspark.sql import functions as F

        found = rows_of(part)
        if found is None:
            return 0
        layers_format = self.layers_format
        rows = layers_format.between(with_session(found, self.session), horizon)
        if part.count > 1:
            rows = rows.where(part.condition(layers_format))
        observation = FrameObservation(("rows",))
        merged = observation.observe(layers_format.merged(rows), [F.count(F.lit(1)).alias("rows")])
        if slices > part.count:
            merged = merged.withColumn(_SLICE, F.expr(_slice_number(layers_format, slices)))
        writing = merged.coalesce(tasks).write.mode("append").options(**_OPTIONS)
        with self.background(), explain_lost_blocks(layers_format.uid):
            (writing.partitionBy(_SLICE) if slices > part.count else writing).parquet(
                self.filesystem.url(f"{self.folder}/{name}/{part.number:04d}")
            )
        figures = observation.read()
        return figures["rows"] if figures else None

    def _settle(self, folder: str, part: HashSlice) -> list[FileRef]:
        """Make durable what the job of a part committed; delete the rest: check sums, files of killed attempts."""
        targets = []
        for path in self.filesystem.list(f"{folder}/{part.number:04d}"):
            target = committed_path(path.removeprefix(f"{folder}/"))
            if target is None:
                self.filesystem.delete(path)
                continue
            if path != f"{folder}/{target}":
                self.filesystem.move(path, f"{folder}/{target}")
            targets.append(f"{folder}/{target}")
        return settle_all(self.filesystem, targets)


def _power_of_two(most: int) -> int:
    """The greatest power of two up to ``most``; at least 1.

    >>> [_power_of_two(most) for most in (0, 1, 3, 4, 31)]
    [1, 1, 2, 4, 16]
    """
    return 1 << (max(1, most).bit_length() - 1)


def committed_path(path: str) -> str | None:
    """Where a file that a committed task left below a layer's folder belongs, ``<slice>/<name>``; ``None`` for others.

    An attempt writes below ``_temporary``; a killed speculative attempt may leave a whole file there.

    >>> committed_path("0000/part-00000-c000.zstd.parquet")
    '0000/part-00000-c000.zstd.parquet'
    >>> committed_path("0000/__penstock_slice=5/part-00000-c000.zstd.parquet")
    '0005/part-00000-c000.zstd.parquet'
    >>> committed_path("0000/_temporary/0/_temporary/attempt_1/part-00000-c000.zstd.parquet") is None
    True
    """
    found = _COMMITTED.fullmatch(path)
    if found is None:
        return None
    return path if found[1] is None else f"{int(found[1]):04d}/{found[2]}"


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
    msg = f"Layer {ref.name} says {detail!r} of its windows. Expected were first_end and last_end in microseconds."
    raise unexpected_detail(msg)
