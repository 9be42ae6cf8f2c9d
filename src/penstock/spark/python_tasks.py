"""Frames of what tasks read in Spark's Python workers. Every such worker imports this module, so it is light."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")


class TaskFrames:
    """Makes frames of what tasks read, each task something else.

    Args:
        spark: the session.
        schema: the columns that tasks return.
    """

    def __init__(self, spark: SparkSession, schema: StructType) -> None:
        self._spark = spark
        self._schema = schema
        self._numbers: dict[int, DataFrame] = {}

    def frame(self, tasks: Sequence[T], read: Callable[[T], Iterator[pa.RecordBatch]]) -> DataFrame:
        """A lazy frame of the rows that ``read`` yields, called once for each of ``tasks``.

        Each has a task of Spark to itself, unless there are more of them than cores.
        """
        if len(tasks) not in self._numbers:
            # The numbers are data of the plan, not literals of its code: Spark compiles nothing again.
            rows = ", ".join(f"({number})" for number in range(len(tasks)))
            self._numbers[len(tasks)] = self._spark.sql(f"SELECT n FROM VALUES {rows} AS t(n)")
        return self._numbers[len(tasks)].mapInArrow(_TaskReader(tuple(tasks), read), self._schema)


@dataclass(frozen=True, slots=True)
class _TaskReader(Generic[T]):
    """Reads for the tasks whose numbers it gets. Spark calls it in its Python workers."""

    tasks: Sequence[T]
    read: Callable[[T], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.read(self.tasks[number])
        _freeze_what_is_loaded()


@cache
def _freeze_what_is_loaded() -> None:
    """Have Python's collector never look again at what this worker has loaded so far."""
    # PySpark collects after each task. Among all objects of all imported modules that takes 40 ms, as long as the task
    # itself in a small batch. What is loaded after the first task stays loaded until the worker ends.
    gc.collect()
    gc.freeze()
