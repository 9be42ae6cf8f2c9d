"""Static tables that row-wise steps join: read, kept, read again when due; errors of reading them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.clock import MonotonicTime
from penstock.elements import RefCount
from penstock.errors import GraphError, PenstockError, SchemaMismatch, SourceUnavailable, no_column
from penstock.graph.nodes import Table
from penstock.spark.blocks import free_rows, is_gone, with_size_of_blocks
from penstock.spark.plans import analyzed_plan, forget_listed_files, list_files_of_views_again
from penstock.spark.query_log import first_line, quiet
from penstock.spark.sql import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log: Final = logging.getLogger("penstock")

# ---- errors ----------------------------------------------------------------------------------------------------------


@contextmanager
def explain_table_errors(name: str, origin: object) -> Iterator[None]:
    """Turn errors raised within the block into errors that name the table and the user's line."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        with quiet():
            yield
    except PenstockError as error:
        error.where = error.where or str(origin)
        raise
    except (AnalysisException, ParseException) as error:
        msg = f"Table {name!r} cannot be read: {first_line(error)}."
        raise GraphError(msg, where=str(origin)) from error
    except Exception as error:
        msg = f"Table {name!r} cannot be read now: {first_line(error)}."
        raise SourceUnavailable(msg, where=str(origin)) from error


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """The content of a table at one time.

    Attributes:
        name: of the table.
        frame: its content.
        rdd: the number of its RDD, by which an analysed plan is seen to read it.
        at: when it was read; ``None`` if it is to be read again in any case.
        lease: counts the batches that may still run it; the last release frees its blocks.
    """

    name: str
    frame: DataFrame
    rdd: int
    at: MonotonicTime | None
    lease: RefCount


class StaticTables:
    """The tables of one job. Without a clock nothing will run: no table is read again, and no job reads one."""

    def __init__(self, spark: SparkSession, now: Callable[[], MonotonicTime] | None = None) -> None:
        self._spark = spark
        self._now = now
        self._lock = threading.Lock()
        self._snapshots: dict[str, TableSnapshot] = {}

    def acquire(self, table: Table) -> TableSnapshot:
        """Return the current snapshot of a table. The caller releases its ``lease`` when no batch runs it any more.

        Raises:
            SourceUnavailable: the table is due to be read again and cannot be, as while another job rewrites it.
            SchemaMismatch: the table is due to be read again and lacks a column, or one has another type.
        """
        with self._lock:
            snapshot = self._snapshots.get(table.name)
            now = self._now() if self._now is not None else MonotonicTime(0)
            if snapshot is None:
                snapshot = self._read(table, now)
            elif self._is_due(table, snapshot, now):
                snapshot = self._read_again(table, snapshot, now)
            self._snapshots[table.name] = snapshot
            snapshot.lease.retain(1)
            return snapshot

    def acquire_all(self, tables: Iterable[Table]) -> tuple[TableSnapshot, ...]:
        """Return the current snapshots of some tables, or none of them: see ``acquire``."""
        acquired: list[TableSnapshot] = []
        try:
            for table in tables:
                acquired.append(self.acquire(table))  # noqa: PERF401 - it has those before a failure
        except BaseException:
            for snapshot in acquired:
                snapshot.lease.release()
            raise
        return tuple(acquired)

    def expire(self) -> None:
        """Have each table read again when it is next used: the blocks of its content may be lost."""
        with self._lock:
            self._snapshots = {name: replace(snapshot, at=None) for name, snapshot in self._snapshots.items()}

    def close(self) -> None:
        """Release all tables; a table that a batch still needs is freed with that batch."""
        with self._lock:
            snapshots, self._snapshots = list(self._snapshots.values()), {}
        for snapshot in snapshots:
            snapshot.lease.release()

    def _is_due(self, table: Table, snapshot: TableSnapshot, now: MonotonicTime) -> bool:
        if snapshot.at is None:
            return True
        return table.refresh is not None and now - snapshot.at >= table.refresh

    def _read_again(self, table: Table, last: TableSnapshot, now: MonotonicTime) -> TableSnapshot:
        """The content as it is now; if it cannot be read, and the table is to be kept then, what was read last."""
        try:
            with quiet():
                snapshot = self._read(table, now, last.frame.schema)
        except Exception as error:
            if is_gone(self._spark):
                raise
            msg = f"Table {table.name!r} cannot be read again: {first_line(error)}."
            if table.on_error == "keep":
                log.warning("%s: %s Its rows are still those that were read last.", table.origin, msg)
                return replace(last, at=now)
            msg = f'{msg} With on_error="keep" its rows would be those that were read last.'
            # Another attempt of the job would need the same columns, as its steps stay compiled.
            kind = SchemaMismatch if isinstance(error, SchemaMismatch) else SourceUnavailable
            raise kind(msg, where=str(table.origin)) from error
        last.lease.release()
        return snapshot

    def _read(self, table: Table, now: MonotonicTime, columns: StructType | None = None) -> TableSnapshot:
        """The content as it is now, with these columns."""
        if self._now is not None:
            forget_listed_files(self._spark)
        frame = self._spark.sql(table.query)
        if self._now is not None:
            list_files_of_views_again(frame)
        if columns is not None:
            frame = _with_columns(frame, columns)
        # A local checkpoint cuts the table off from its query: every batch sees the same content until the next
        # reading, and the plan is a leaf that the plan check recognises. A job reads it at once: read by the job of a
        # batch, a file that is gone by then would look like a failure of that batch.
        frame = frame.localCheckpoint(eager=self._now is not None)
        if self._now is not None:  # so that a small one is sent to all tasks once, wherever it comes from
            frame = with_size_of_blocks(frame)
        rows = analyzed_plan(frame).rdd()
        return TableSnapshot(
            name=table.name, frame=frame, rdd=rows.id(), at=now, lease=RefCount(lambda: free_rows(rows))
        )


def _with_columns(frame: DataFrame, columns: StructType) -> DataFrame:
    """The frame with these columns, found by name. Later steps are compiled for them and bound to them by position.

    Raises:
        SchemaMismatch: a column is missing or has another type.
    """
    wanted = [(field.name, field.dataType.simpleString()) for field in columns]
    there = [(field.name, field.dataType.simpleString()) for field in frame.schema]
    if there == wanted:
        return frame
    fold = str if frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true" else str.lower
    types = {fold(name): data_type for name, data_type in there}
    for name, data_type in wanted:
        found = types.get(fold(name))
        if found == data_type:
            continue
        if found is None:
            missing = no_column(name, frame.schema.fieldNames())
            change = f"{missing} It was {data_type} when the table was first read."
        else:
            change = f"Column {name!r} was {data_type} when the table was first read, and is {found} now."
        msg = f"{change} Let the query of the table give it with that type, or start the job again for other columns."
        raise SchemaMismatch(msg)
    return frame.select(*(quote_identifier(name) for name, _ in wanted))
