"""How sinks stage rows with Spark: an epoch is kept in blocks or as Parquet files, and becomes one committable."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.connectors.epochs import KeptBatch, OutputEpochs, StagedBatch
from penstock.errors import CheckpointUnreadable, GraphError, InternalError
from penstock.filesystem.base import settle_all
from penstock.handles import Committable
from penstock.interfaces.sink import BlockBudget
from penstock.spark import jvm
from penstock.spark.blocks import free_rows
from penstock.spark.kept_output import RowKeeper, explain_lost_output
from penstock.spark.sql import STRICT_READ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from penstock.connectors.epochs import EpochPart
    from penstock.elements import Batch
    from penstock.filesystem.base import FileSystem
    from penstock.handles import CheckpointId, Json
    from penstock.interfaces.sink import SinkContext
    from penstock.spark.kept_output import KeptOutput


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
    twice = [name for name in schema.fieldNames() if names.count(name.lower()) > 1]
    if twice:
        msg = f"Columns {', '.join(map(repr, twice))}: A name appears twice (case does not count). Rename one of each."
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
    """The rows of staged files or folders. One that is damaged fails the read, whatever the session ignores."""
    return spark.read.schema(schema).options(**STRICT_READ).parquet(*urls)


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


MAX_KEPT_BYTES: Final = 128 * 1024 * 1024
"""Bytes that one sink keeps in blocks, also while checkpoints fail."""
LARGE_BATCH: Final = 32 * 1024 * 1024
"""Bytes of a batch, in blocks, from which on it is staged as files: next to its rows a job of its own costs little."""
BYTES_A_TASK: Final = 32 * 1024 * 1024
"""Bytes of blocks that one task writes as one staged file."""


class StagingWriter(ABC):
    """A sink's writer that keeps an epoch in blocks until its barrier, or stages its batches as Parquet.

    A batch is kept in blocks if each block has one copy, the sources can be read again, and there is room. Otherwise it
    is staged at once, in a folder of its own. A subclass says in ``committables`` what becomes of an epoch.

    Args:
        context: of the sink.
        root: the folder of this generation; nothing else writes there.
        most_kept: bytes that are kept in blocks.
    """

    def __init__(self, context: SinkContext, root: str, *, most_kept: int = MAX_KEPT_BYTES) -> None:
        self.context = context
        self.root = root
        self._epochs = OutputEpochs(BlockBudget(most_kept, context.kept))
        self._folders = itertools.count()
        self._last_rows = 0
        self._bytes_a_row = 0.0

    def frame(self, batch: Batch) -> DataFrame:
        """What is staged of a batch: all of its rows as they are, unless a subclass makes something else of them."""
        return cast("DataFrame", batch.frame)

    def write(self, batch: Batch) -> int:
        """Keep a batch, or stage it losslessly, in one job; then settle its metrics."""
        frame = self.frame(batch)
        if self._epochs.is_old(self.context.now()):
            self._stage_old()
        keeps = self._may_keep() and self._keeper.fits(frame)
        part = self._keep(batch, frame) if keeps else self._stage(batch, frame)
        self._last_rows = part.rows
        if part.rows:
            self._epochs.add(part)
        return part.rows

    def prepare(self, checkpoint: CheckpointId) -> PreparedBatches:
        """Close the epoch, without reading or writing."""
        return PreparedBatches(self, checkpoint, self._epochs.close_epoch())

    def completed(self, checkpoint: CheckpointId) -> None:
        """Free the blocks of which the log has files by now."""
        self._epochs.completed(checkpoint)

    def close(self) -> None:
        """Free all blocks. Staged rows of no checkpoint stay where they are and are never published."""
        self._epochs.close()

    # ---- one batch ---------------------------------------------------------------------------------------------------

    @cached_property
    def _keeper(self) -> RowKeeper:
        return RowKeeper(self.context.spark, self.context.uid)

    @cached_property
    def _one_copy(self) -> bool:
        return RowKeeper.keeps_one_copy(self.context.spark)

    def _may_keep(self) -> bool:
        """Whether the next batch may be kept in blocks, if it is as large as the last one."""
        expected = int(self._last_rows * self._bytes_a_row)
        has_room = expected < LARGE_BATCH and self._epochs.has_room(expected)
        return has_room and self.context.replays and self._one_copy

    def _keep(self, batch: Batch, frame: DataFrame) -> KeptBatch:
        content = self._keeper.keep(frame)
        kept = KeptBatch(
            content=content,
            rows=content.rows,
            bytes=content.bytes,
            since=self.context.now(),
            free=partial(free_rows, content.rdd),
        )
        try:
            batch.settle()
        except BaseException:  # it may have read what was not planned
            kept.free()
            raise
        if kept.rows:
            self._bytes_a_row = kept.bytes / kept.rows
        else:
            kept.free()
        return kept

    def _stage(self, batch: Batch, frame: DataFrame) -> StagedBatch:
        folder = self.new_folder()
        with self.explain_failure():
            write_staged(frame, self.url(folder))
        batch.settle()
        # Counted here and not in the job, where a count costs as much as a step of the pipeline.
        rows = sum(rows_in(self.url(path).removeprefix("file://")) for path in self.content(folder))
        staged = StagedBatch(folder, rows)
        if rows == 0:
            self.remove([staged])
        return staged

    def _stage_old(self) -> None:
        """Move an epoch that is open for long from blocks to files. Its blocks stay until the log names the files."""
        epoch = self._epochs.open_epoch()
        with self.removed_on_failure() as made, explain_lost_output(self.context.uid):
            self._epochs.replace(epoch, self.all_staged(epoch, made, nullcontext))

    # ---- an epoch ----------------------------------------------------------------------------------------------------

    def materialise(self, checkpoint: CheckpointId, epoch: Sequence[EpochPart]) -> Sequence[Committable]:
        """Turn an epoch into committables; if that fails, it joins the next one."""
        if not epoch:
            return ()
        try:
            with explain_lost_output(self.context.uid):
                items = self.committables(checkpoint, epoch)
        except BaseException:
            self._epochs.reopen(epoch)
            raise
        self._epochs.durable(checkpoint, epoch)
        return items

    @abstractmethod
    def committables(self, checkpoint: CheckpointId, epoch: Sequence[EpochPart]) -> Sequence[Committable]:
        """Make an epoch, which is not empty, durable."""

    def all_staged(
        self, epoch: Sequence[EpochPart], made: list[StagedBatch], slot: Callable[[], AbstractContextManager[None]]
    ) -> list[StagedBatch]:
        """The epoch in staged files alone: what is kept in blocks is written, in its place in the order.

        Args:
            epoch: in order.
            made: gets what is written.
            slot: is entered around each job.
        """
        staged: list[StagedBatch] = []
        waiting: list[KeptBatch] = []

        def write_waiting() -> None:
            rows = sum(part.rows for part in waiting)
            made.append(StagedBatch(self.new_folder(), rows, tuple(waiting)))
            frame = self.kept_frame(waiting)
            if sum(part.bytes for part in waiting) < 2 * BYTES_A_TASK:  # else it is one large batch
                frame = frame.coalesce(1)
            with self.explain_failure(), slot():
                write_staged(frame, self.url(made[-1].folder))
            staged.append(made[-1])
            waiting.clear()

        for part in epoch:
            is_full = sum(kept.bytes for kept in waiting) >= BYTES_A_TASK
            if waiting and (is_full or not isinstance(part, KeptBatch)):
                write_waiting()
            (waiting if isinstance(part, KeptBatch) else staged).append(part)  # type: ignore[arg-type]
        if waiting:
            write_waiting()
        return staged

    @contextmanager
    def removed_on_failure(self) -> Iterator[list[StagedBatch]]:
        """A list for what is staged inside; if that fails, it is deleted, since nothing names it."""
        made: list[StagedBatch] = []
        try:
            yield made
        except Exception:
            with suppress(Exception):  # the failure is the one that is raised
                self.remove(made)
            raise

    def kept_frame(self, kept: Sequence[KeptBatch]) -> DataFrame:
        """The rows of kept batches, in their order."""
        return self._keeper.frame([cast("KeptOutput", part.content) for part in kept])

    def new_folder(self) -> str:
        """A folder for staged rows whose name was not used before, and is not used again if writing fails."""
        return f"{self.root}/{next(self._folders)}"

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

    def remove(self, epoch: Iterable[StagedBatch]) -> None:
        """Delete staged batches that nothing names."""
        jvm.delete_folders(self.context.spark, [self.url(part.folder) for part in epoch])

    def no_file(self, checkpoint: CheckpointId, epoch: Sequence[EpochPart]) -> InternalError:
        """The error that an epoch has rows, and no file."""
        rows = sum(part.rows for part in epoch)
        msg = f"Checkpoint {checkpoint} has {rows} rows staged, but Spark's job wrote no file of them."
        return InternalError(msg, uid=self.context.uid)


@dataclass(frozen=True, slots=True)
class PreparedBatches:
    """One epoch of batches."""

    writer: StagingWriter
    checkpoint: CheckpointId
    epoch: Sequence[EpochPart]

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

    def committables(self, checkpoint: CheckpointId, epoch: Sequence[EpochPart]) -> Sequence[Committable]:
        """A committable for each shard, of all its files of the epoch, in the order of the batches."""
        context, filesystem = self.context, self.context.filesystem
        with self.removed_on_failure() as made:
            staged = self.all_staged(epoch, made, context.background)
            files = settle_all(filesystem, [path for part in staged for path in self.content(part.folder)])
            if not files:
                raise self.no_file(checkpoint, epoch)
            named = {file.path for file in files}
            for part in staged:
                for path in filesystem.list(part.folder):  # Hadoop's check sums, files of killed attempts
                    if path not in named:
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

    tables = staged_tables(item, filesystem)
    return pa.concat_tables(
        tables, promote_options="default"
    )  # columns of one file may be nullable, and of another not


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
