"""Rows of batches kept as cached blocks of this process, counted exactly, and read again in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import KeptOutputLost
from penstock.spark.blocks import (
    CachedUnion,
    JavaObject,
    frame_of_plan,
    free_rows,
    java_frame,
    logical_plan,
    lost_blocks_as,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """Rows in blocks without lineage: the RDD that reads them, their number, and the bytes of the blocks."""

    rdd: JavaObject
    rows: int
    bytes: int


class RowKeeper:
    """Keeps frames with the same columns in blocks of this process.

    Only for sessions that run their tasks in this process's JVM (``keeps_one_copy``).
    """

    def __init__(self, spark: SparkSession, uid: str) -> None:
        context: Any = spark.sparkContext
        self._spark = spark
        self._uid = uid
        self._union = CachedUnion(spark)
        self._blocks = _block_manager(context)
        self._block_id = getattr(context._jvm, "org.apache.spark.storage.RDDBlockId")  # noqa: SLF001
        self._columns: JavaObject = None
        self._schema: JavaObject = None

    @staticmethod
    def keeps_one_copy(spark: SparkSession) -> bool:
        """Whether there is provably one copy of each block, whatever is computed twice.

        That is so where all tasks run in one JVM. It has one store of blocks, where the first attempt that ends puts
        its block, and a later one finds it there. Spark speculates nowhere else than on a cluster.
        """
        context: Any = spark.sparkContext._jsc  # noqa: SLF001
        return bool(context.sc().isLocal())

    def fits(self, frame: DataFrame) -> bool:
        """Whether a frame has the types of those that are kept: rows are read again by position."""
        schema = java_frame(frame).schema()
        if self._schema is None:
            self._schema = schema
        return bool(schema.sameType(self._schema))

    def keep(self, frame: DataFrame) -> KeptOutput:
        """Run ``frame`` now, in one job, and keep its rows.

        They are counted in their blocks, so that the number is right whatever failed and was run again meanwhile.

        Raises:
            KeptOutputLost: a block is gone already.
        """
        leaf = logical_plan(frame.localCheckpoint(eager=True))
        rdd = leaf.rdd()
        try:
            counts = [self._count(rdd.id(), partition) for partition in range(rdd.getNumPartitions())]
        except BaseException:
            free_rows(rdd)
            raise
        self._columns = leaf.output() if self._columns is None else self._columns
        return KeptOutput(rdd, sum(rows for rows, _ in counts), sum(size for _, size in counts))

    def _count(self, rdd: int, partition: int) -> tuple[int, int]:
        """Rows and bytes of a block. Reading it to its end also gives it back to the store."""
        found = self._blocks.getLocalValues(self._block_id(rdd, partition))
        if not found.isDefined():
            raise _lost(self._uid)
        block = found.get()
        return int(block.data().size()), int(block.bytes())

    def frame(self, kept: Sequence[KeptOutput]) -> DataFrame:
        """The rows of all, as a lazy frame: one after another, a partition for each block."""
        plan = self._union.one_after_another(self._columns, [rows.rdd for rows in kept])
        return frame_of_plan(plan, self._spark)


def _block_manager(context: Any) -> JavaObject:
    """The store of blocks of this process."""
    # By its field: py4j cannot call a method of SparkEnv, since it looks at all, and some name classes that are absent.
    environment = getattr(context._jvm, "java.lang.Class").forName("org.apache.spark.SparkEnv")  # noqa: SLF001
    field = environment.getDeclaredField("blockManager")
    field.setAccessible(True)
    return field.get(context._jsc.sc().env())  # noqa: SLF001


def explain_lost_output(uid: str) -> AbstractContextManager[None]:
    """Turn the loss of a block in this context into an error that restarts the job from its checkpoint.

    Raises:
        KeptOutputLost: a job inside failed because a block is lost.
    """
    return lost_blocks_as(_lost(uid))


def _lost(uid: str) -> KeptOutputLost:
    msg = "A cached block that keeps output of this sink is gone. Its rows are read again from the last checkpoint."
    return KeptOutputLost(msg, uid=uid)
