"""Cached rows as blocks of columns, which take less memory than rows do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.blocks import JavaObject, frame_of_plan, free_rows, logical_plan, scala_object
from penstock.spark.kept_rows import INTERNALS, SparkClasses

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

# A cached row is two objects, with headers, words for NULLs and padding. Spark's own cache of tables keeps columns of
# some thousand rows as arrays of bytes: about half the memory, and nothing that the collector would have to mark.
# Reading them takes hardly longer, writing them most of a microsecond a row.

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

    def __init__(self, classes: SparkClasses) -> None:
        self._classes = classes
        self._jvm: Any = classes.spark._jvm  # noqa: SLF001 - there is no public way to rows of a local checkpoint

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
        made = self._classes.leaves.make(columns, rows, leaf.outputPartitioning())
        frame = frame_of_plan(made, self._classes.spark)
        return PackedRows(frame, partial(free_rows, blocks))

    # What few steps need is made by the first of them, and not when a job starts.

    @cached_property
    def _serializer(self) -> JavaObject:
        return self._classes.column_packer()

    @cached_property
    def _level(self) -> JavaObject:
        return getattr(self._jvm, "org.apache.spark.storage.StorageLevel").MEMORY_AND_DISK()

    @cached_property
    def _settings(self) -> JavaObject:
        settings = self._classes.spark._jsparkSession.sessionState().conf().clone()  # noqa: SLF001
        for name, value in _SETTINGS.items():
            settings.setConfString(name, value)
        return settings

    @cached_property
    def _kind_of(self) -> Callable[[JavaObject], JavaObject]:
        return scala_object(self._jvm, INTERNALS["column_type"]).apply  # type: ignore[no-any-return]

    def _can_pack(self, columns: JavaObject) -> bool:
        try:
            for place in range(columns.size()):
                self._kind_of(columns.apply(place).dataType())
        except Exception:  # whatever Spark says of it
            return False
        return True
