"""FAIR pools, job tags, background slots, persisted batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from penstock.elements import Batch, FirstRunGate, RefCount
from penstock.spark.blocks import unpersist
from penstock.spark.session import set_active_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# ---- background slots ------------------------------------------------------------------------------------------------


class BackgroundSlots:
    """The background's share of the cores: at most ``cores - 1`` jobs at a time, for Spark never preempts a task.

    On one core a background job runs between batches: it and the data path take turns. A snapshot takes several jobs.
    While it is under way at most one piece of other work begins, and none while a job of the snapshot waits: a
    checkpoint waits for what runs. Where snapshot follows snapshot merges would never run so. If none has begun during
    a snapshot and one waits at its end, the next snapshot waits for that one.
    """

    def __init__(self, cores: int) -> None:
        self._free = max(1, cores - 1)
        self._changed = threading.Condition()
        self._snapshots = 0
        self._others = 0  # pieces of other work that may still begin while snapshots are under way
        self._waiting = {True: 0, False: 0}  # jobs of snapshots, and of others
        self._is_turn_of_others = False
        self._thread = threading.local()
        self._turns = threading.Lock() if cores == 1 else None

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Context in which this thread's background jobs belong to a snapshot."""
        with self._changed:
            self._snapshots += 1
            self._others = 1
        self._thread.is_ahead = True
        try:
            yield
        finally:
            self._thread.is_ahead = False
            with self._changed:
                self._snapshots -= 1
                self._is_turn_of_others = bool(self._others and self._waiting[False])
                self._changed.notify_all()

    @contextmanager
    def background(self) -> Iterator[None]:
        """Hold a slot."""
        self._take(is_ahead=getattr(self._thread, "is_ahead", False))
        try:
            with self.foreground():
                yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

    def _take(self, *, is_ahead: bool) -> None:
        may_begin = self._may_snapshot if is_ahead else self._may_other
        with self._changed:
            self._waiting[is_ahead] += 1
            self._changed.wait_for(lambda: self._free and may_begin())
            self._waiting[is_ahead] -= 1
            self._free -= 1
            if not is_ahead:
                self._others -= bool(self._snapshots)
                self._is_turn_of_others = False
            self._changed.notify_all()  # others may have waited for this one to go

    def _may_snapshot(self) -> bool:
        return not (self._is_turn_of_others and self._waiting[False])

    def _may_other(self) -> bool:
        if not self._snapshots:
            return True
        return bool(self._others) and (self._is_turn_of_others or not self._waiting[True])

    @contextmanager
    def foreground(self) -> Iterator[None]:
        """Hold the data path's turn, if it takes turns with the background."""
        if self._turns is None:
            yield
        else:
            with self._turns:
                yield


# ---- pools, job tags, kept batches -----------------------------------------------------------------------------------

DATA_POOL: Final = "penstock-data"
BACKGROUND_POOL: Final = "penstock-background"


class SparkPools:
    """Runs the Spark jobs of one attempt in pools and under job tags."""

    def __init__(self, spark: SparkSession, *, job: str, generation: int, cores: int) -> None:
        self.spark = spark
        self._context = spark.sparkContext
        self._tag = f"penstock-{job}-{generation}"
        self._slots = BackgroundSlots(cores)

    @contextmanager
    def around(self, task: str) -> Iterator[None]:
        """Context of a task's thread: its jobs bear the task's name and run in the data pool."""
        with self._marked(DATA_POOL, f"penstock-{task}", task):
            yield

    @contextmanager
    def _background(self, name: str) -> Iterator[None]:
        with self._slots.background(), self._marked(BACKGROUND_POOL, f"penstock-{name}-background", name):
            yield

    def background(self, name: str) -> Callable[[], AbstractContextManager[None]]:
        """Makes the context that a step enters for each of its background jobs."""
        return lambda: self._background(name)

    def commit(self, name: str) -> AbstractContextManager[None]:
        """Context of a commit, whose jobs run in the background pool.

        It holds no slot: a commit may wait for another system, and snapshots would wait with it.
        """
        return self._marked(BACKGROUND_POOL, f"penstock-{name}-commit", name)

    def snapshot(self) -> AbstractContextManager[None]:
        """Context of a snapshot: its background jobs go ahead of others."""
        return self._slots.snapshot()

    def foreground(self) -> AbstractContextManager[None]:
        """Context of a step of a task: takes turns with the background where there is only one core."""
        return self._slots.foreground()

    @contextmanager
    def _marked(self, pool: str, group: str, description: str) -> Iterator[None]:
        context = self._context
        set_active_session(self.spark)
        context.setLocalProperty("spark.scheduler.pool", pool)
        context.setJobGroup(group, description, interruptOnCancel=False)
        context.addJobTag(self._tag)
        yield

    def cancel(self) -> None:
        """Cancel every running Spark job of this attempt; a dead JVM has none."""
        with suppress(Exception):
            self._context.cancelJobsWithTag(self._tag)

    def keep(self, batch: Batch, readers: int) -> Batch:
        """Persist a batch that ``readers`` branches will run; freed when each of them has released it."""
        from pyspark import StorageLevel

        frame = cast("DataFrame", batch.frame).persist(StorageLevel.MEMORY_AND_DISK)

        def free() -> None:
            unpersist(frame)
            batch.release()

        return replace(
            batch,
            frame=frame,
            ref_counts=(RefCount(free, holders=readers),),
            run_gates=(*batch.run_gates, FirstRunGate()),
        )
