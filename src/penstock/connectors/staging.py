"""Output staged by Spark; the committer for each kind of committable."""

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


# ----------------------------------------------------------------------------------------------------
# Which committer understands a committable of which kind: so output of a removed sink can be published too.
#
# The one module that knows the connectors; it imports one only when a committable of its kind is there.

COMMITTERS: Final[Mapping[str, str]] = {
    "files/1": "penstock.connectors.files.committer:FilesCommitter",
    "memory/1": "penstock.connectors.memory:MemoryCommitter",
}
"""Kind of committable to ``module:class``, made with a file system and a failpoint. No kind is ever removed."""


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
        made: Callable[[FileSystem, Callable[[str], None]], Committer] = getattr(import_module(module), name)
    except ImportError as error:
        msg = f"output of kind {kind!r} waits to be published, but {error}: install the extra that brings it"
        raise StateIncompatible(msg) from error
    return made(filesystem, failpoint)


# ----------------------------------------------------------------------------------------------------
# The Spark side of sinks: counted writes, and removal of what only this process wrote; knows no checkpoint.

_QUIET: Final = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


def write_staged(frame: DataFrame, url: str) -> int | None:
    """Write all rows as Parquet into a new folder, in one job. Returns how many, if Spark told."""
    observed, rows = with_row_count(frame)
    observed.write.options(**_QUIET).mode("error").parquet(url)
    return rows()


def rows_in(path: str) -> int:
    """How many rows a staged file has, from its footer."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def read_staged(spark: SparkSession, urls: Sequence[str], schema: StructType) -> DataFrame:
    """The rows of staged folders. Names of folders are names only, neither patterns nor columns."""
    plain = {"__globPaths__": "false", "recursiveFileLookup": "true"}
    return spark.read.schema(schema).options(**plain).parquet(*urls)


def write(frame: DataFrame, url: str, form: str, partition_by: Sequence[str], options: Mapping[str, str]) -> None:
    """Write all rows in a format for readers into a new folder, in one job."""
    writer = frame.write.format(form).options(**options).options(**_QUIET).mode("error")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.save(url)


def sync_folders(files: Sequence[str], top: str) -> None:
    """Make the names of folders durable that Spark made for files, up to and with ``top``'s own.

    A file system syncs what lies below its root; a sink's target does not. Without this a power loss could take a
    staged file away with its folder, and a staged file that is gone counts as published.
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
