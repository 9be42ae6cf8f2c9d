"""How sinks stage rows with Spark: batches become Parquet files, and the files of an epoch become one committable."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import CheckpointUnreadable, GraphError, InternalError
from penstock.handles import Committable
from penstock.spark import jvm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from penstock.elements import Batch
    from penstock.filesystem.base import FileSystem
    from penstock.handles import CheckpointId, Json
    from penstock.interfaces.sink import SinkContext


# ---- files --------------------------------------------------------------------------------------------------------

_NO_SUCCESS_FILE: Final = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


def check_staged(schema: StructType) -> None:
    """Refuse columns that cannot be staged.

    Raises:
        GraphError: names the column and the remedy.
    """
    check_names(schema)
    for column in schema.fields:
        check_column(column)


def check_names(schema: StructType) -> None:
    """Refuse two columns of one name."""
    names = [name.lower() for name in schema.fieldNames()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = f"Columns {', '.join(twice)} appear twice (case does not count). Rename one of each."
        raise GraphError(msg)


def check_column(column: StructField) -> None:
    """Refuse a column of a type that no file can hold."""
    kind = column.dataType.typeName()
    if kind in ("void", "null", "interval"):
        msg = f"Column {column.name!r} is {kind}, which no file can hold. Cast or drop it."
        raise GraphError(msg)


SHARD: Final = "_shard"
"""The column that says which shard of the output a row belongs to. Each shard has files of its own, without it."""
_PLACE: Final = "_place"


def write_staged(frame: DataFrame, url: str) -> None:
    """Write all rows as Parquet into a new folder, in one job."""
    shards = [SHARD] if SHARD in frame.columns else []
    if shards:
        # Spark sorts by the shard, and keeps rows of one shard in their order only if it is told that order.
        placed = frame.selectExpr("*", f"monotonically_increasing_id() AS {_PLACE}")
        frame = placed.sortWithinPartitions(SHARD, _PLACE).drop(_PLACE)
    frame.write.options(**_NO_SUCCESS_FILE).mode("error").parquet(url, partitionBy=shards)


def shard_of(path: str) -> int:
    """The shard that a staged file belongs to.

    >>> shard_of("staged/out/7/0/_shard=3/part-0.parquet"), shard_of("staged/out/7/0/part-0.parquet")
    (3, 0)
    """
    folder = path.rpartition("/")[0].rpartition("/")[2]
    name, _, number = folder.partition("=")
    return int(number) if name == SHARD else 0


def rows_in(path: str) -> int:
    """The number of rows of a staged file, from its footer."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def read_staged(spark: SparkSession, urls: Sequence[str], schema: StructType) -> DataFrame:
    """The rows of staged folders. Names of folders are neither patterns nor columns."""
    options = {"__globPaths__": "false", "recursiveFileLookup": "true"}
    return spark.read.schema(schema).options(**options).parquet(*urls)


def write(frame: DataFrame, url: str, format: str, partition_by: Sequence[str], options: Mapping[str, str]) -> None:
    """Write all rows in a format into a new folder, in one job."""
    writer = frame.write.format(format).options(**options).options(**_NO_SUCCESS_FILE).mode("error")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.save(url)


def sync_folders(files: Sequence[str], top: str) -> None:
    """Sync the folders that Spark made for files, up to and including the parent of ``top``.

    A ``FileSystem`` syncs only what lies below its own root, and a sink's target does not. Without this a power loss
    could remove a staged file with its folder, and a staged file that is gone counts as published.
    """
    folders = {os.path.dirname(top)}
    for file in files:
        folder = os.path.dirname(file)
        while folder.startswith(top) and folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)
    for folder in sorted(folders, reverse=True):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ---- writers that stage ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """One staged batch: its folder, and the number of its rows."""

    folder: str
    rows: int


class StagingWriter(ABC):
    """A sink's writer that stages each batch as Parquet in a folder of its own.

    A subclass says in ``committables`` what becomes of an epoch.

    Args:
        context: of the sink.
        root: the folder of this generation; nothing else writes there.
    """

    def __init__(self, context: SinkContext, root: str) -> None:
        self.context = context
        self.root = root
        self.lock = threading.Lock()
        self._epoch: list[StagedBatch] = []
        self._batches = 0

    def frame(self, batch: Batch) -> DataFrame:
        """What is staged of a batch: all of its rows as they are, unless a subclass makes something else of them."""
        return cast("DataFrame", batch.frame)

    def write(self, batch: Batch) -> int:
        """Stage a batch as Parquet, losslessly, in one job; then settle its metrics."""
        folder = f"{self.root}/{self._batches}"
        self._batches += 1  # even if writing fails: no folder is used twice
        with self.explain_failure():
            write_staged(self.frame(batch), self.url(folder))
        batch.settle()
        # Counted here and not in the job, where a count costs as much as a step of the pipeline.
        rows = sum(rows_in(self.url(path).removeprefix("file://")) for path in self.content(folder))
        if rows == 0:
            self.remove([StagedBatch(folder, rows)])
            return rows
        with self.lock:
            self._epoch.append(StagedBatch(folder, rows))
        return rows

    def prepare(self, checkpoint: CheckpointId) -> PreparedBatches:
        """Close the epoch, without reading or writing."""
        with self.lock:
            epoch, self._epoch = self._epoch, []
        return PreparedBatches(self, checkpoint, epoch)

    def close(self) -> None:  # noqa: B027 - staged rows need no release
        """Do nothing: staged rows of no checkpoint stay where they are and are never published."""

    def materialise(self, checkpoint: CheckpointId, epoch: Sequence[StagedBatch]) -> Sequence[Committable]:
        """Turn staged batches into committables; if that fails, they join the next epoch."""
        if not epoch:
            return ()
        try:
            return self.committables(checkpoint, epoch)
        except BaseException:
            with self.lock:
                self._epoch[:0] = epoch
            raise

    @abstractmethod
    def committables(self, checkpoint: CheckpointId, epoch: Sequence[StagedBatch]) -> Sequence[Committable]:
        """Make an epoch, which is not empty, durable."""

    def explain_failure(self) -> AbstractContextManager[None]:
        """Is entered around Spark jobs that write; may turn their failure into an error that names the folder."""
        return nullcontext()

    def url(self, path: str) -> str:
        """The address by which Spark reads and writes a path."""
        return self.context.filesystem.url(path)

    def content(self, folder: str) -> list[str]:
        """The files that a Spark job committed in a folder, sorted."""
        found = self.context.filesystem.list(folder)
        names_below = [(path, path[len(folder) :].strip("/").split("/")) for path in found]
        return sorted(path for path, names in names_below if not any(_is_hidden(name) for name in names))

    def remove(self, epoch: Sequence[StagedBatch]) -> None:
        """Delete staged batches that nothing names."""
        jvm.delete_folders(self.context.spark, [self.url(part.folder) for part in epoch])

    def no_file(self, checkpoint: CheckpointId, epoch: Sequence[StagedBatch]) -> InternalError:
        """The error that an epoch has rows, and no file."""
        rows = sum(part.rows for part in epoch)
        msg = f"Checkpoint {checkpoint} has {rows} rows staged, but Spark's job wrote no file of them."
        return InternalError(msg, uid=self.context.uid)


@dataclass(frozen=True, slots=True)
class PreparedBatches:
    """One epoch of staged batches."""

    writer: StagingWriter
    checkpoint: CheckpointId
    epoch: Sequence[StagedBatch]

    def materialise(self) -> Sequence[Committable]:
        """Turn the epoch into committables."""
        return self.writer.materialise(self.checkpoint, self.epoch)


class StagedWriter(StagingWriter):
    """A writer for sinks whose committer reads staged rows: Parquet files in the job's directory, synced.

    Each epoch with rows becomes one committable, which names its files. penstock deletes them once the log says that
    they were published. ``staged_table`` and ``staged_frame`` read them. A sink with several shards has a committable
    for each that has rows; its frames have the column ``SHARD``.

    Args:
        context: of the sink.
        kind: of the committables.
        target: where they go, for people and for identity.
        details: what else the committer needs, for each shard; no secrets.
    """

    def __init__(
        self, context: SinkContext, *, kind: str, target: str, details: Sequence[Mapping[str, Json]] = ({},)
    ) -> None:
        super().__init__(context, context.staging)
        self._kind = kind
        self._target = target
        self._details = [{**detail, "schema": context.schema.jsonValue()} for detail in details]

    def committables(self, checkpoint: CheckpointId, epoch: Sequence[StagedBatch]) -> Sequence[Committable]:
        """A committable for each shard, of all its files of the epoch, in the order of the batches."""
        context, filesystem = self.context, self.context.filesystem
        files = [filesystem.settle(path) for part in epoch for path in self.content(part.folder)]
        if not files:
            raise self.no_file(checkpoint, epoch)
        kept = {file.path for file in files}
        for part in epoch:
            for path in filesystem.list(part.folder):  # Hadoop's check sums, files of killed attempts
                if path not in kept:
                    filesystem.delete(path)
        return tuple(
            Committable(
                uid=context.uid,
                kind=self._kind,
                checkpoint=checkpoint,
                target=self._target,
                files=tuple(file for file in files if shard_of(file.path) == shard),
                detail={**self._details[shard], "log": context.log_id},
                shard=shard,
            )
            for shard in sorted({shard_of(file.path) for file in files})
        )


class NoOutput:
    """The prepared output of a sink without a commit."""

    def materialise(self) -> Sequence[Committable]:
        """No committables."""
        return ()


def staged_table(item: Committable, filesystem: FileSystem) -> pa.Table:
    """The rows that a ``StagedWriter`` staged, read into this process without Spark; batches in their order.

    Raises:
        CheckpointUnreadable: a file is not there.
    """
    import pyarrow as pa

    return pa.concat_tables(staged_tables(item, filesystem))


def staged_tables(item: Committable, filesystem: FileSystem) -> Iterator[pa.Table]:
    """Yield the rows of each file that a ``StagedWriter`` staged, one file in memory at a time.

    Raises:
        CheckpointUnreadable: a file is not there.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in item.files:
        content = filesystem.read(file.path)
        if content is None:
            raise _staged_gone(item, file.path)
        yield pq.read_table(pa.BufferReader(content))


def require_staged(item: Committable, filesystem: FileSystem) -> None:
    """Check that all staged files are there, without reading them.

    Raises:
        CheckpointUnreadable: a file is not there.
    """
    folders = sorted({file.path.rpartition("/")[0] for file in item.files})
    there = {path for folder in folders for path in filesystem.list(folder)}
    for file in item.files:
        if file.path not in there:
            raise _staged_gone(item, file.path)


def staged_frame(item: Committable, filesystem: FileSystem, spark: SparkSession) -> DataFrame:
    """The rows that a ``StagedWriter`` staged, as a lazy frame with the columns that they were written with.

    Raises:
        CheckpointUnreadable: a file is not there.
    """
    from pyspark.sql.types import StructType

    require_staged(item, filesystem)
    detail: Any = item.detail
    schema = StructType.fromJson(detail["schema"])
    return read_staged(spark, [filesystem.url(file.path) for file in item.files], schema)


def _staged_gone(item: Committable, path: str) -> CheckpointUnreadable:
    return CheckpointUnreadable(
        f"Staged file {path} of checkpoint {item.checkpoint} is not there, so its rows cannot be published. Put it "
        "back, or rewind to a checkpoint before it.",
        uid=item.uid,
    )


def _is_hidden(name: str) -> bool:
    """Whether Spark's readers skip a file or folder of that name. They read ``_column=value``."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
