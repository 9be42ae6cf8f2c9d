"""Writes merged rows as one durable layer of Parquet files; knows nothing of which layers a checkpoint names.

A layer is written in slices, so that no task runs long beside the data path: Spark never preempts a task. Every
attempt has a folder of its own, whose name is never used again, so what a dead or fenced process still writes can harm
nobody.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.errors import StorageFailed
from penstock.handles import FileRef, LayerRef
from penstock.state.blocks import Figures, blocks_needed, rebind
from penstock.state.layer import Extent, LayerFormat
from penstock.state.slices import Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from penstock.filesystem.base import FileSystem

ROWS_A_TASK = 150_000
"""About 100 ms of merging and writing."""

_OPTIONS = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


class Rows(Protocol):
    """Where the rows of a layer to be written come from."""

    def __call__(self, part: Slice, /) -> DataFrame | None:
        """Rows among which are all of a slice, not yet merged; ``None`` if there are none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerWriter:
    """Makes layers durable.

    Attributes:
        layers_format: what the rows look like and how they are merged.
        filesystem: makes files durable and describes them.
        folder: of this step and generation, relative to the job's directory.
        prefix: begins the names of all layers of this generation, ``"g7-"``.
        session: the state's own session; its settings decide how Parquet is written.
        tasks: at most this many tasks at once.
        background: entered around each Spark job.
        failpoint: called at durable steps.
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

    def write(self, rows: Rows, extent: Extent, *, horizon: int, share: int = 1) -> LayerRef:
        """Merge ``rows``, leave out closed windows, write them and make them durable: one job for each slice.

        Args:
            rows: of the format; of a union of layers, so that merging needs no exchange, or of files.
            extent: what is known of them.
            horizon: windows ending at or before it are left out.
            share: how many times as many rows as usual a slice may have.

        Raises:
            LayerMissing: a cached block of ``rows`` is lost.
            StorageFailed: the file system refused.
        """
        name = f"{self.prefix}{next(self.numbers):06d}"
        slices = self._slices(extent.rows, ROWS_A_TASK * share)
        self.failpoint("state.layer.before_write")
        counts = [self._write_slice(rows, name, Slice(part, slices), horizon) for part in range(slices)]
        self.failpoint("state.layer.written")
        files = self._settle(f"{self.folder}/{name}")
        self.failpoint("state.layer.durable")
        known = [count for count in counts if count is not None]
        return LayerRef(
            name=name,
            level=extent.level,
            rows=sum(known) if len(known) == len(counts) else extent.rows,
            files=files,
            detail={
                "first_end": extent.first_end,
                "last_end": extent.last_end,
                "slices": slices,
                "by": [*self.layers_format.sliced],
            },
        )

    def discard(self, ref: LayerRef) -> None:
        """Delete the files of a layer that nothing has referred to, and nothing will; or leave it to the next claim."""
        with suppress(StorageFailed):
            for file in ref.files:
                self.filesystem.delete(file.path)

    def _slices(self, rows: int, most: int) -> int:
        """So many that no task has more rows: those of a slice lie in as many partitions as are alike in its number."""
        layers_format, slices = self.layers_format, 1
        if not layers_format.sliced:
            return slices
        while rows > most * slices * max(1, min(self.tasks, layers_format.partitions // slices)):
            slices *= 2
        return slices

    def _write_slice(self, rows_of: Rows, name: str, part: Slice, horizon: int) -> int | None:
        from pyspark.sql import functions as F

        given = rows_of(part)
        if given is None:
            return 0
        source = self.layers_format.between(rebind(given, self.session), horizon)
        rows = source.where(part.condition(self.layers_format))
        figures = Figures(("rows",))
        merged = figures.watch(self.layers_format.merged(rows), [F.count(F.lit(1)).alias("rows")])
        target = self.filesystem.url(f"{self.folder}/{name}/{part.number:04d}")
        with self.background(), blocks_needed(self.layers_format.uid):
            merged.coalesce(self.tasks).write.mode("append").options(**_OPTIONS).parquet(target)
        told = figures.read()
        return told["rows"] if told else None

    def _settle(self, folder: str) -> tuple[FileRef, ...]:
        """Make durable what the jobs committed; all else goes: check sums of Hadoop's, files of killed attempts."""
        files = []
        for path in self.filesystem.list(folder):
            if _is_committed(path.removeprefix(f"{folder}/")):
                files.append(self.filesystem.settle(path))
            else:
                self.filesystem.delete(path)
        return tuple(files)


def _is_committed(path: str) -> bool:
    """Whether a file, given below its layer's folder, lies where committing a task puts it: ``<slice>/<name>``.

    An attempt writes below ``<slice>/_temporary``; of a speculative one that was killed a whole file may stay there.

    >>> _is_committed("0000/part-00000-c000.zstd.parquet")
    True
    >>> _is_committed("0000/_temporary/0/_temporary/attempt_1/part-00000-c000.zstd.parquet")
    False
    """
    _, _, name = path.partition("/")
    return "/" not in name and not name.startswith(("_", ".")) and name.endswith(".parquet")


def extent_of(refs: Sequence[LayerRef]) -> Extent:
    """The extent of durable layers together."""
    return Extent(
        rows=sum(ref.rows for ref in refs),
        level=1 + max(ref.level for ref in refs),
        first_end=min(bounds(ref)[0] for ref in refs),
        last_end=max(bounds(ref)[1] for ref in refs),
    )


def bounds(ref: LayerRef) -> tuple[int, int]:
    """Least and greatest window end of a durable layer, in microseconds, as its detail says."""
    detail = ref.detail
    if isinstance(detail, dict):
        first, last = detail.get("first_end"), detail.get("last_end")
        if isinstance(first, int) and isinstance(last, int):
            return first, last
    from penstock.errors import CheckpointUnreadable

    msg = f"layer {ref.name} says {detail!r} of its windows, expected first_end and last_end in microseconds"
    raise CheckpointUnreadable(msg)
