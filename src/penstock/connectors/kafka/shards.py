"""One shard of an epoch is published by a task of Spark: the executor's own producer does all from fence to commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.connectors.kafka.transactions import Failed, KafkaCommitter, Publishers
from penstock.errors import CommitFailed, PenstockError
from penstock.failpoints import failpoint
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import output_names
from penstock.interfaces.sink import CommitContext
from penstock.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.connectors.kafka.identity import Identity
    from penstock.filesystem.base import FileSystem
    from penstock.handles import CommitOutcome, Committable


def publish_in_executor(
    spark: SparkSession, item: Committable, identity: Identity, filesystem: FileSystem
) -> CommitOutcome:
    """Publish a committable in a job of one task, which reads the staged files itself.

    A second attempt of the task, after the loss of an executor or beside a slow one, fences the first and reads its
    marker. So it does not matter how often Spark runs it.

    Raises:
        Failed: it is not known to be published.
        CommitFailed: the task ended without an answer.
        PenstockError: as ``KafkaCommitter.commit``.
    """
    root = filesystem.url("").removeprefix("file://")

    def work(_number: int) -> CommitOutcome | Exception:
        return publish_in_task(item, identity, LocalFileSystem(root))

    try:
        (answer,) = spark.sparkContext.parallelize([0], 1).map(work).collect()
    except Exception as error:
        if not jvm.is_spark_error(error):
            raise
        msg = f"The task that publishes {output_names(item)} to {item.target} ended without an answer: {error}"
        raise CommitFailed(msg, uid=item.uid) from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def publish_in_task(
    item: Committable, identity: Identity, filesystem: FileSystem, publishers: Publishers | None = None
) -> CommitOutcome | Exception:
    """The outcome, or the error: a task that raised would be run again by Spark, before the driver looks at the log."""
    committer = KafkaCommitter(CommitContext(filesystem=filesystem, failpoint=failpoint), publishers or Publishers())
    try:
        return committer.publish_alone(item, identity)
    except (Failed, PenstockError) as error:
        return error
