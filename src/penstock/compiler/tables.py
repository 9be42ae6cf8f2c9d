"""Static tables that row-wise steps join: read when first used, kept, and read again when due.

A table is cut off from its query (a lazy local checkpoint): every batch sees one and the same content until the next
reading, and its plan is a leaf that can be recognised. Knows nothing of steps.
"""

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
        """Its name."""
        ...

    @property
    def query(self) -> str:
        """SQL that reads it."""
        ...

    @property
    def refresh(self) -> int | None:
        """After how many microseconds it is read again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """A table as it was at one time.

    Attributes:
        name: of the table.
        frame: its content.
        rdd: the number by which it is recognised in an analysed plan.
        at: when it was read.
        lease: who may still run it; the last one frees its blocks.
    """

    name: str
    frame: DataFrame
    rdd: int
    at: MonotonicTime
    lease: RefCount


class StaticTables:
    """The tables of one job. Without a clock nothing is ever read again."""

    def __init__(self, spark: SparkSession, now: Callable[[], MonotonicTime] | None = None) -> None:
        self._spark = spark
        self._now = now
        self._lock = threading.Lock()
        self._readings: dict[str, TableSnapshot] = {}

    def take(self, table: TableDefinition) -> TableSnapshot:
        """The current reading, for one holder more: release its lease when it will not be run any more."""
        with self._lock:
            reading = self._readings.get(table.name)
            now = self._now() if self._now is not None else MonotonicTime(0)
            if reading is None or self._is_due(table, reading, now):
                if reading is not None:
                    reading.lease.release()
                reading = self._read(table, now)
                self._readings[table.name] = reading
            reading.lease.retain(1)
            return reading

    def close(self) -> None:
        """Let go of every table; those that a batch still needs go with that batch."""
        with self._lock:
            readings, self._readings = list(self._readings.values()), {}
        for reading in readings:
            reading.lease.release()

    def _is_due(self, table: TableDefinition, reading: TableSnapshot, now: MonotonicTime) -> bool:
        return table.refresh is not None and now - reading.at >= table.refresh

    def _read(self, table: TableDefinition, now: MonotonicTime) -> TableSnapshot:
        frame = self._spark.sql(table.query).localCheckpoint(eager=False)
        rows = analyzed_plan(frame).rdd()
        return TableSnapshot(
            name=table.name, frame=frame, rdd=rows.id(), at=now, lease=RefCount(lambda: free_rows(rows))
        )
