"""How sinks stage rows with Spark; the committer for each kind of committable."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

from penstock.errors import StateIncompatible
from penstock.spark.plans import with_row_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.filesystem.base import FileSystem
    from penstock.interfaces.sink import Committer


# ---- committers ------------------------------------------------------------------------------------------------------

COMMITTERS: Final[Mapping[str, str]] = {
    "files/1": "penstock.connectors.files.committer:FilesCommitter",
    "memory/1": "penstock.connectors.memory:MemoryCommitter",
}
"""Kind of committable to ``module:class``, imported when needed. No kind is ever removed.

So output of a sink that a pipeline no longer has can be published too.
"""


def committer(kind: str, filesystem: FileSystem, failpoint: Callable[[str], None] = lambda _name: None) -> Committer:
    """The committer for committables of ``kind``.

    Raises:
        StateIncompatible: this version of penstock does not know the kind, or its client library is missing.
    """
    if kind not in COMMITTERS:
        msg = (
            f"output of kind {kind!r} waits to be published, this penstock knows {', '.join(sorted(COMMITTERS))}: "
            "start the version that wrote it, or discard it with a rewind"
        )
        raise StateIncompatible(msg)
    module, _, name = COMMITTERS[kind].partition(":")
    try:
        make: Callable[[FileSystem, Callable[[str], None]], Committer] = getattr(import_module(module), name)
    except ImportError as error:
        msg = f"output of kind {kind!r} waits to be published, but {error}: install the extra that brings it"
        raise StateIncompatible(msg) from error
    return make(filesystem, failpoint)


# ---- staging ---------------------------------------------------------------------------------------------------------

_NO_SUCCESS_FILE: Final = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


def write_staged(frame: DataFrame, url: str) -> int | None:
    """Write all rows as Parquet into a new folder, in one job. Returns their number, if Spark reported it."""
    observed, rows = with_row_count(frame)
    observed.write.options(**_NO_SUCCESS_FILE).mode("error").parquet(url)
    return rows()


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
