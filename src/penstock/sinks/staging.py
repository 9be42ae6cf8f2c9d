"""The Spark side of sinks: counted writes, and removal of what only this process wrote; knows no checkpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_ANSWER: Final = "2 s"
_QUIET: Final = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


def counted(frame: DataFrame) -> tuple[DataFrame, Callable[[], int | None]]:
    """``frame`` with its rows counted by whatever job runs over all of it, and the count.

    Read the count only after that job has succeeded. ``None``: Spark did not tell within two seconds, as when the
    optimiser finds that there are no rows.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observation: Any = Observation()
    observed = frame.observe(observation, F.count(F.lit(1)).alias("n"))

    def read() -> int | None:
        future = observation._jo.future()  # noqa: SLF001 - Observation.get would wait for ever
        if not _answered(frame.sparkSession, future):
            return None
        return int(observation.get["n"])

    return observed, read


def _answered(spark: SparkSession, future: Any) -> bool:
    if future.isCompleted():
        return True
    jvm: Any = spark._jvm  # noqa: SLF001
    try:
        patience = getattr(jvm, "scala.concurrent.duration.Duration").create(_ANSWER)
        getattr(jvm, "scala.concurrent.Await").ready(future, patience)
    except Exception:  # whatever it is, there is no answer
        return False
    return True


def stage(frame: DataFrame, url: str) -> int | None:
    """Write all rows as Parquet into a new folder, in one job. Returns how many, if Spark told."""
    observed, rows = counted(frame)
    observed.write.options(**_QUIET).mode("error").parquet(url)
    return rows()


def rows_in(path: str) -> int:
    """How many rows a staged file has, from its footer."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def staged(spark: SparkSession, urls: Sequence[str], schema: StructType) -> DataFrame:
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


def remove(spark: SparkSession, urls: Sequence[str]) -> None:
    """Delete whole folders. Only for what this process wrote and no committable names; absent is fine."""
    context: Any = spark.sparkContext
    for url in urls:
        path = getattr(context._jvm, "org.apache.hadoop.fs.Path")(url)  # noqa: SLF001
        path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)  # noqa: SLF001
