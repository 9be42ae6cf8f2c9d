"""How the runtime's threads meet Spark: job tags and pools for each thread, batches kept at branch points.

Knows neither the log nor the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from penstock.elements import Batch, FirstRun, Lease
from penstock.job.session import activate
from penstock.runtime.slots import BackgroundSlots
from penstock.sources.letter_frames import letters_frame
from penstock.state.blocks import unpersist

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.filesystem.base import FileSystem
    from penstock.sources.dead_letters import Replay

DATA_POOL: Final = "penstock-data"
BACKGROUND_POOL: Final = "penstock-background"


class SparkEdge:
    """The Spark side of one attempt."""

    def __init__(self, spark: SparkSession, *, job: str, generation: int, cores: int) -> None:
        self.spark = spark
        self._context = spark.sparkContext
        self._tag = f"penstock-{job}-{generation}"
        self._slots = BackgroundSlots(cores)

    @contextmanager
    def around(self, task: str) -> Iterator[None]:
        """Around a task's thread: its jobs bear the task's name and run in the data pool."""
        with self._marked(DATA_POOL, f"penstock-{task}", task):
            yield

    @contextmanager
    def _background(self, name: str) -> Iterator[None]:
        with self._slots.background(), self._marked(BACKGROUND_POOL, f"penstock-{name}-background", name):
            yield

    def background(self, name: str) -> Callable[[], AbstractContextManager[None]]:
        """What a step enters around each of its background jobs."""
        return lambda: self._background(name)

    def snapshot(self) -> AbstractContextManager[None]:
        """Around a snapshot: its background jobs go ahead of others."""
        return self._slots.snapshot()

    def foreground(self) -> AbstractContextManager[None]:
        """Around a step of a task: takes turns with the background where there is only one core."""
        return self._slots.foreground()

    @contextmanager
    def _marked(self, pool: str, group: str, description: str) -> Iterator[None]:
        context = self._context
        activate(self.spark)
        context.setLocalProperty("spark.scheduler.pool", pool)
        context.setJobGroup(group, description, interruptOnCancel=False)
        context.addJobTag(self._tag)
        yield

    def cancel(self) -> None:
        """Cancel every running Spark job of this attempt; a dead JVM has none."""
        with suppress(Exception):
            self._context.cancelJobsWithTag(self._tag)

    def letters(self, filesystem: FileSystem, replay: Replay, schema: StructType) -> DataFrame:
        """The dead letters of a replay, as rows of their source."""
        return letters_frame(self.spark, filesystem, replay, schema)

    def keep(self, batch: Batch, readers: int) -> Batch:
        """Persist a batch that ``readers`` branches will run; freed when each of them has released it."""
        from pyspark import StorageLevel

        frame = cast("DataFrame", batch.frame).persist(StorageLevel.MEMORY_AND_DISK)

        def free() -> None:
            unpersist(frame)
            batch.release()

        return replace(batch, frame=frame, leases=(Lease(free, holders=readers),), firsts=(*batch.firsts, FirstRun()))
