"""Checks durable layers, and says how their rows come back into memory; knows nothing of the log that named them.

A layer in memory has a partition for each part of the hash of its keys, and durable layers have slices of the same
hash. Where both are powers of two, a partition is made of a few files, and no row is exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.clock import MIN_WATERMARK
from penstock.errors import CheckpointUnreadable, LayerMissing
from penstock.spark.blocks import CachedUnion, frame_of_plan
from penstock.spark.plans import FrameObservation
from penstock.spark.sql import quote_identifier
from penstock.state.layers import STATS, CachedRows, LayerFormat, cache_rows
from penstock.state.parquet import HashSlice, LayerWriter, files_of, scan_layers, slices_of, stats_of, window_bounds
from penstock.state.stack import ExpectedLayer, LayerLoader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from penstock.filesystem.base import FileSystem
    from penstock.handles import FileRef, LayerRef, StateHandle
    from penstock.state.parquet import Files

ROWS_A_PART: Final = 1_000_000
"""Rows to load at once: a second or two of reading and merging."""
READ_AGAIN: Final = 2
"""How many times all rows may be read, at most, in order to load them in small parts."""


def horizon_of(handle: StateHandle) -> int:
    """The horizon recorded in a handle: see :func:`read_event_time`."""
    return read_event_time(handle, "horizon")


def read_event_time(handle: StateHandle, name: str) -> int:
    """An event time recorded in a handle's detail; NULL there is the beginning of time.

    Raises:
        CheckpointUnreadable: the detail is not what a window step writes.
    """
    detail = handle.detail
    found = detail.get(name, "absent") if isinstance(detail, dict) else "absent"
    if found is None:
        return MIN_WATERMARK
    if not isinstance(found, int) or isinstance(found, bool):
        msg = f"state of kind {handle.kind} has the detail {detail!r}, expected {name!r} in microseconds"
        raise CheckpointUnreadable(msg)
    return found


def restore_layer(
    handle: StateHandle, writer: LayerWriter, session: SparkSession, *, name: str, turn: int = 0
) -> LayerLoader | None:
    """What brings the rows of a handle into memory, as one merged layer; ``None`` if nothing lives. No job.

    Args:
        handle: what the checkpoint recorded, brought under the writer's schema: see :func:`carried`.
        writer: where files lie and what their rows look like.
        session: the user's session, which the layer will belong to.
        name: of the layer.
        turn: of the layer; 0 if all was told.

    Raises:
        LayerMissing: a named file is not there.
        CheckpointUnreadable: a file is not the one that was written.
    """
    alive = [ref for ref in live_layers(handle) if ref.files]
    check_files(alive, writer.filesystem, writer.layers_format.uid)
    if not alive:
        return None
    extent = stats_of(alive)
    coming = ExpectedLayer(
        name=name,
        level=extent.level,
        turn=turn,
        rows=extent.rows,
        first_end=extent.first_end,
        last_end=extent.last_end,
        refs=frozenset(ref.name for ref in alive),
    )
    rows = _Rows(refs=alive, writer=replace(writer, session=session), horizon=horizon_of(handle))
    layers_format = writer.layers_format
    count = parts_of(alive, layers_format) if same_hash_slices(layers_format) else None
    if count is None:
        return LayerLoader(coming, [rows.all], lambda frames: frames[0])
    places, columns = layers_format.partitions, [quote_identifier(name) for name in layers_format.sliced]
    parts = [partial(rows.part, HashSlice(number, count)) for number in range(count)]

    def join(frames: Sequence[DataFrame]) -> DataFrame:
        return frame_of_plan(CachedUnion(session).beside(frames, columns, partitions=places), session)

    return LayerLoader(coming, parts, join)


def parts_of(refs: Sequence[LayerRef], layers_format: LayerFormat) -> int | None:
    """In how many parts to load layers: so many that none takes long, but few enough to read no file often.

    ``None`` if with a part for each partition files would be read too often: then an exchange costs less.

    A file has the rows of a slice, and is read for each part that the slice has rows of. Tasks beside the data have to
    be short, since Spark never preempts one.
    """
    sliced = [(ref.rows, slices_of(ref, layers_format.sliced)) for ref in refs]
    rows = sum(rows for rows, _ in sliced)
    count = layers_format.partitions

    def rows_read(parts: int) -> int:
        return sum(rows * max(1, parts // slices) for rows, slices in sliced)

    if rows_read(count) > READ_AGAIN * rows:
        return None
    while rows > ROWS_A_PART * count and rows_read(2 * count) <= READ_AGAIN * rows:
        count *= 2
    return count


def same_hash_slices(layers_format: LayerFormat) -> bool:
    """Whether a row's slice says in which partition in memory it belongs.

    It does if one number divides the other, and if the function ``hash`` is that by which Spark places rows. For texts
    with a collation it is not: see :attr:`LayerFormat.sliced`.

    Source: ``HashPartitioning.partitionIdExpression`` of Spark, ``pmod(CollationAwareMurmur3Hash(…), n)``.
    """
    count = layers_format.partitions
    return bool(layers_format.sliced) and count & (count - 1) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The rows of durable layers above a horizon."""

    refs: Sequence[LayerRef]
    writer: LayerWriter
    horizon: int

    def part(self, part: HashSlice) -> CachedRows:
        """Those of one partition, merged by one task."""
        layers_format = self.writer.layers_format
        files = [(ref, files_of(ref, part, layers_format.sliced)) for ref in self.refs]
        found = self._scan(files).coalesce(1).where(part.condition(layers_format))
        return self._kept(layers_format.merged(found))

    def all(self) -> CachedRows:
        """All of them, merged and exchanged."""
        layers_format = self.writer.layers_format
        found = self._scan([(ref, ref.files) for ref in self.refs])
        return self._kept(layers_format.merged(layers_format.hashed(found)))

    def _scan(self, files: Files) -> DataFrame:
        return self.writer.layers_format.between(
            scan_layers(self.writer.layers_format, self.writer.filesystem, self.writer.session, files), self.horizon
        )

    def _kept(self, merged: DataFrame) -> CachedRows:
        layers_format, figures = self.writer.layers_format, FrameObservation(STATS)
        kept = cache_rows(layers_format, figures.watch(merged, layers_format.extent), figures.read)
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
    """Every file of these layers is there and is the one that was written.

    Raises:
        LayerMissing: one is not there.
        CheckpointUnreadable: one is another.
    """
    for ref in refs:
        for file in ref.files:
            _check_file(filesystem, file, uid)


def _check_file(filesystem: FileSystem, recorded: FileRef, uid: str) -> None:
    try:
        found = filesystem.settle(recorded.path)
    except CheckpointUnreadable as error:
        msg = f"file {recorded.path} of a layer is not there; the checkpoint recorded {recorded.length} bytes"
        raise LayerMissing(msg, uid=uid) from error
    if (found.length, found.sha256) != (recorded.length, recorded.sha256):
        msg = (
            f"file {recorded.path} of a layer has {found.length} bytes, sha256 {found.sha256}; the checkpoint "
            f"recorded {recorded.length} bytes, sha256 {recorded.sha256}"
        )
        raise CheckpointUnreadable(msg, uid=uid)
