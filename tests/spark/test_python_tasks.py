"""Frames of what Python workers read: each task gets its own, and a worker's collector leaves modules alone."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from penstock.spark.python_tasks import TaskFrames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = StructType().add("n", LongType())


def test_each_task_reads_what_is_meant_for_it(spark: SparkSession) -> None:
    def read(numbers: list[int]) -> Iterator[pa.RecordBatch]:
        for number in numbers:
            yield pa.record_batch({"n": [number, number + 1]})

    frames = TaskFrames(spark, SCHEMA)
    for tasks in ([[10, 20], [30]], [[], [40], [50, 60]], [[70]]):
        frame = frames.frame(tasks, read)
        assert [row.n for row in frame.collect()] == [each for task in tasks for n in task for each in (n, n + 1)]
        assert frame.rdd.getNumPartitions() == min(len(tasks), spark.sparkContext.defaultParallelism)


def test_the_collector_of_a_worker_no_longer_looks_at_what_is_loaded(spark: SparkSession) -> None:
    def read(_: int) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [gc.get_freeze_count()]})

    frames = TaskFrames(spark, SCHEMA)
    first, second, third = (frames.frame([0], read).collect()[0].n for _ in range(3))
    assert second > 10_000, "all modules of the worker"
    assert third == second >= first, "once: what is loaded later may be garbage"
