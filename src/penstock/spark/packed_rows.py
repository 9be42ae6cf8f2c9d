"""Cached rows as blocks of columns, which take less memory than rows do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.blocks import JavaObject, RowLeaves, frame_of_plan, free_rows, logical_plan, scala_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

# A cached row is two objects, with headers, words for NULLs and padding. Spark's own cache of tables keeps columns of
# some thousand rows as arrays of bytes: about half the memory, and nothing that the collector would have to mark.
# Reading them takes hardly longer, writing them most of a microsecond a row.

_COLUMNAR: Final = "org.apache.spark.sql.execution.columnar"
_SETTINGS: Final = {
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # a third less memory, twice the time
    # An array of half a region of the collector's is a region of its own: 512 kB where the heap is 1 GB.
    "spark.sql.inMemoryColumnarStorage.batchSize": "2500",
}


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows in blocks of columns without lineage: the frame that reads them, and what frees them."""

    frame: DataFrame
    free: Callable[[], None]


class RowPacker:
    """Packs rows of local checkpoints into blocks of columns.

    Source: ``DefaultCachedBatchSerializer`` of Spark, which ``DataFrame.cache`` uses.
    """

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - there is no public way to rows of a local checkpoint
        self._spark = spark
        self._leaves = RowLeaves(spark)
        self._serializer = getattr(jvm, f"{_COLUMNAR}.DefaultCachedBatchSerializer")()
        self._kind_of = scala_object(jvm, f"{_COLUMNAR}.ColumnType").apply
        self._level = getattr(jvm, "org.apache.spark.storage.StorageLevel").MEMORY_AND_DISK()
        self._settings = spark._jsparkSession.sessionState().conf().clone()  # noqa: SLF001
        for name, value in _SETTINGS.items():
            self._settings.setConfString(name, value)

    def pack(self, kept: DataFrame) -> PackedRows | None:
        """The rows of a local checkpoint in blocks of columns, by one job over them; ``None`` if a type does not allow.

        The caller frees the blocks of ``kept``. A lost block is an error and never a recomputation.
        """
        leaf = logical_plan(kept)
        columns = leaf.output()
        if not self._can_pack(columns):
            return None
        blocks = self._serializer.convertInternalRowToCachedBatch(leaf.rdd(), columns, self._level, self._settings)
        blocks.localCheckpoint()
        try:
            blocks.count()
        except BaseException:
            free_rows(blocks)
            raise
        rows = self._serializer.convertCachedBatchToInternalRow(blocks, columns, columns, self._settings)
        frame = frame_of_plan(self._leaves.make(columns, rows, leaf.outputPartitioning()), self._spark)
        return PackedRows(frame, partial(free_rows, blocks))

    def _can_pack(self, columns: JavaObject) -> bool:
        try:
            for place in range(columns.size()):
                self._kind_of(columns.apply(place).dataType())
        except Exception:  # whatever Spark says of it
            return False
        return True
