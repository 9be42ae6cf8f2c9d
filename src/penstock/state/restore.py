"""Durable layers checked, and loaded back into memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.clock import MIN_WATERMARK
from penstock.errors import CheckpointUnreadable, LayerMissing
from penstock.spark.blocks import CachedUnion, frame_of_plan, logical_plan
from penstock.spark.session import empty_frame
from penstock.spark.sql import quote_identifier
from penstock.state.layers import CachedRows, LayerFormat, pack_rows, run_rows
from penstock.state.parquet import (
    MAX_READS,
    HashSlice,
    LayerWriter,
    SlicedRows,
    files_of,
    scan_layers,
    stats_of,
    window_bounds,
)
from penstock.state.schema import unexpected_detail
from penstock.state.stack import ExpectedLayer, LayerLoader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from penstock.filesystem.base import FileSystem
    from penstock.handles import FileRef, LayerRef, StateHandle
    from penstock.spark.packed_rows import RowPacker
    from penstock.state.parquet import Files

# A layer in memory has a partition for each part of the hash of its keys, and durable layers have slices of the same
# hash. Where both are powers of two, a partition is made of a few files, and no row is exchanged.

ROWS_A_PART: Final = 250_000
"""Rows to load at once: half a second of reading and merging."""


def horizon_of(handle: StateHandle) -> int:
    """The horizon recorded in a handle; see ``read_event_time``."""
    return read_event_time(handle, "horizon")


def read_event_time(handle: StateHandle, name: str) -> int:
    """An event time recorded in a handle's detail; NULL stands for the beginning of time.

    Raises:
        CheckpointUnreadable: the detail is not what a window step writes.
    """
    detail = handle.detail
    found = detail.get(name, "absent") if isinstance(detail, dict) else "absent"
    if found is None:
        return MIN_WATERMARK
    if not isinstance(found, int) or isinstance(found, bool):
        msg = f"State of kind {handle.kind} has the detail {detail!r}. Expected was {name!r} in microseconds."
        raise unexpected_detail(msg)
    return found


def restore_layer(
    handle: StateHandle,
    writer: LayerWriter,
    session: SparkSession,
    *,
    name: str,
    emission_number: int = 0,
    packer: RowPacker | None = None,
) -> LayerLoader | None:
    """A loader for the rows of a handle, as one merged layer; ``None`` if no row is alive. Runs no job.

    Args:
        handle: what the checkpoint recorded, under the writer's schema: see ``migrated``.
        writer: has the folder and the format of the files.
        session: the user's session, which the layer will belong to.
        name: of the layer.
        emission_number: of the layer; 0 if all of it was sent.
        packer: see ``pack_rows``.

    Raises:
        LayerMissing: a named file is not there.
        CheckpointUnreadable: a file is not the one that was written.
    """
    alive = [ref for ref in live_layers(handle) if ref.files]
    check_files(alive, writer.filesystem, writer.layers_format.uid)
    if not alive:
        return None
    stats = stats_of(alive)
    expected = ExpectedLayer(
        name=name,
        level=stats.level,
        emission_number=emission_number,
        rows=stats.rows,
        first_end=stats.first_end,
        last_end=stats.last_end,
        refs=frozenset(ref.name for ref in alive),
    )
    rows = _LiveRows(refs=alive, writer=replace(writer, session=session), horizon=horizon_of(handle), packer=packer)
    layers_format = writer.layers_format
    by, partitions = layers_format.slice_columns, layers_format.partitions
    sliced = SlicedRows.of(alive, by)
    if not same_hash_slices(layers_format) or sliced.reads(partitions) > MAX_READS:  # then an exchange costs less
        return LayerLoader(expected, [rows.all], lambda frames: frames[0])
    columns = [quote_identifier(name) for name in by]
    count = sliced.parts(least=partitions, most_rows=ROWS_A_PART, most_reads=MAX_READS)
    parts = [partial(rows.part, HashSlice(number, count)) for number in range(count)]

    def join(frames: Sequence[DataFrame]) -> DataFrame:
        return frame_of_plan(CachedUnion(session).side_by_side(frames, columns, partitions=partitions), session)

    return LayerLoader(expected, parts, join)


def same_hash_slices(layers_format: LayerFormat) -> bool:
    """Whether a row's slice determines its partition in memory.

    It does if the number of partitions is a power of two, as that of slices is, and if ``hash`` is the function by
    which Spark partitions. For texts with a collation it is not: see ``LayerFormat.slice_columns``.

    Source: ``HashPartitioning.partitionIdExpression`` of Spark, ``pmod(CollationAwareMurmur3Hash(…), n)``.
    """
    count = layers_format.partitions
    return bool(layers_format.slice_columns) and count & (count - 1) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _LiveRows:
    """The rows of durable layers above a horizon."""

    refs: Sequence[LayerRef]
    writer: LayerWriter
    horizon: int
    packer: RowPacker | None

    def part(self, part: HashSlice) -> CachedRows:
        """The rows of one part, merged by one task."""
        layers_format = self.writer.layers_format
        files = [(ref, files_of(ref, part, layers_format.slice_columns)) for ref in self.refs]
        found = self._scan(files).coalesce(1) if any(some for _, some in files) else self._none()
        return self._kept(layers_format.merged(found.where(part.condition(layers_format))))

    def all(self) -> CachedRows:
        """All rows, merged after an exchange."""
        layers_format = self.writer.layers_format
        found = self._scan([(ref, ref.files) for ref in self.refs])
        return self._kept(layers_format.merged(layers_format.hashed(found)))

    def _none(self) -> DataFrame:
        """No rows, in one partition."""
        session = self.writer.session
        columns = logical_plan(empty_frame(session, self.writer.layers_format.schema)).output()
        return frame_of_plan(CachedUnion(session).no_rows(columns), session)

    def _scan(self, files: Files) -> DataFrame:
        return self.writer.layers_format.between(
            scan_layers(self.writer.layers_format, self.writer.filesystem, self.writer.session, files), self.horizon
        )

    def _kept(self, merged: DataFrame) -> CachedRows:
        layers_format = self.writer.layers_format
        kept = pack_rows(layers_format, run_rows(layers_format, merged), self.packer)
        try:
            self.writer.failpoint("state.part.loaded")
        except Exception:
            kept.lease.release()
            raise
        return kept


def live_layers(handle: StateHandle) -> tuple[LayerRef, ...]:
    """The durable layers that hold windows not yet closed."""
    horizon = horizon_of(handle)
    return tuple(ref for ref in handle.layers if window_bounds(ref)[1] > horizon)


def check_files(refs: Sequence[LayerRef], filesystem: FileSystem, uid: str) -> None:
    """Check that every file of these layers is there and is the one that was written.

    Raises:
        LayerMissing: a file is not there.
        CheckpointUnreadable: a file is another one.
    """
    for ref in refs:
        for file in ref.files:
            _check_file(filesystem, file, uid)


def _check_file(filesystem: FileSystem, recorded: FileRef, uid: str) -> None:
    try:
        found = filesystem.settle(recorded.path)
    except CheckpointUnreadable as error:
        msg = (
            f"File {recorded.path} of a layer is not there, though the checkpoint recorded {recorded.length} bytes. "
            "Put it back from a copy, or rewind to a checkpoint that does not need it."
        )
        raise LayerMissing(msg, uid=uid) from error
    if (found.length, found.sha256) != (recorded.length, recorded.sha256):
        msg = (
            f"File {recorded.path} of a layer has {found.length} bytes, sha256 {found.sha256}, but the checkpoint "
            f"recorded {recorded.length} bytes, sha256 {recorded.sha256}. Put it back from a copy."
        )
        raise CheckpointUnreadable(msg, uid=uid)
