"""Static tables that row-wise steps join: read when first used, kept, and read again when due."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.clock import MonotonicTime
from penstock.elements import RefCount
from penstock.spark.blocks import free_rows
from penstock.spark.plans import analyzed_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TableDefinition(Protocol):
    """A table as the user declared it."""

    @property
    def name(self) -> str:
        """The name of the table."""
        ...

    @property
    def query(self) -> str:
        """The SQL that reads it."""
        ...

    @property
    def refresh(self) -> int | None:
        """The microseconds after which the table is read again, or ``None``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """The content of a table at one time.

    Attributes:
        name: of the table.
        frame: its content.
        rdd: the number of its RDD, by which an analysed plan is seen to read it.
        at: when it was read.
        lease: counts the batches that may still run it; the last release frees its blocks.
    """

    name: str
    frame: DataFrame
    rdd: int
    at: MonotonicTime
    lease: RefCount


class StaticTables:
    """The tables of one job. Without a clock no table is read again."""

    def __init__(self, spark: SparkSession, now: Callable[[], MonotonicTime] | None = None) -> None:
        self._spark = spark
        self._now = now
        self._lock = threading.Lock()
        self._snapshots: dict[str, TableSnapshot] = {}

    def acquire(self, table: TableDefinition) -> TableSnapshot:
        """Return the current snapshot of a table. The caller releases its ``lease`` when no batch runs it any more."""
        with self._lock:
            snapshot = self._snapshots.get(table.name)
            now = self._now() if self._now is not None else MonotonicTime(0)
            if snapshot is None or self._is_due(table, snapshot, now):
                if snapshot is not None:
                    snapshot.lease.release()
                snapshot = self._read(table, now)
                self._snapshots[table.name] = snapshot
            snapshot.lease.retain(1)
            return snapshot

    def close(self) -> None:
        """Release all tables; a table that a batch still needs is freed with that batch."""
        with self._lock:
            snapshots, self._snapshots = list(self._snapshots.values()), {}
        for snapshot in snapshots:
            snapshot.lease.release()

    def _is_due(self, table: TableDefinition, snapshot: TableSnapshot, now: MonotonicTime) -> bool:
        return table.refresh is not None and now - snapshot.at >= table.refresh

    def _read(self, table: TableDefinition, now: MonotonicTime) -> TableSnapshot:
        # A lazy local checkpoint cuts the table off from its query: every batch sees the same content until the next
        # reading, and the plan is a leaf that the plan check recognises.
        frame = self._spark.sql(table.query).localCheckpoint(eager=False)
        rows = analyzed_plan(frame).rdd()
        return TableSnapshot(
            name=table.name, frame=frame, rdd=rows.id(), at=now, lease=RefCount(lambda: free_rows(rows))
        )
