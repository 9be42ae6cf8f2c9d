"""``ps.memory``: rows kept in this process, for tests and notebooks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.connectors.committers import COMMITTERS
from penstock.handles import CommitOutcome, Committable, Guarantee

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.elements import Batch
    from penstock.handles import CheckpointId
    from penstock.interfaces.sink import CommitContext, SinkContext

__all__ = ["Sink"]


KIND: Final = "memory/1"
"""Kind of the committables."""


@dataclass(slots=True)
class _Store:
    """The epochs of the sinks of one name: staged, then published or voided, once."""

    staged: dict[str, list[pa.Table]] = field(default_factory=dict)
    published: dict[str, list[pa.Table]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_STORES: dict[str, _Store] = {}
_STORES_LOCK = threading.Lock()


def _store(name: str) -> _Store:
    with _STORES_LOCK:
        return _STORES.setdefault(name, _Store())


def clear_rows(name: str) -> None:
    """Drop all rows of the sinks of one name, once none of them is in use."""
    with _STORES_LOCK:
        _STORES.pop(name, None)


class Sink:
    """Keeps rows in this process: visible in ``rows`` once their checkpoint is complete. For few rows.

    Exactly-once within one process, across restarts of the job inside it. With the process all rows are gone, those
    that wait to be published too.

    Args:
        name: sinks of one name are one; without a name a sink is its own.

    >>> out = Sink()
    >>> out.rows
    []
    """

    _unnamed = 0

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            with _STORES_LOCK:
                Sink._unnamed += 1
                name = f"unnamed-{Sink._unnamed}"
        self._name = name
        self._store = _store(name)

    @property
    def accepts_changes(self) -> bool:
        """Change rows are kept as they are, with the column ``_change``."""
        return True

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once, within one process."""
        return Guarantee.EXACTLY_ONCE

    @property
    def committers(self) -> Mapping[str, str]:
        """Publishes within this process."""
        return {KIND: COMMITTERS[KIND]}

    @property
    def tables(self) -> list[pa.Table]:
        """Published rows as Arrow tables, in the order of publishing, one for each batch."""
        with self._store.lock:
            return [table for epoch in self._store.published.values() for table in epoch]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Published rows as dictionaries, in the order of publishing."""
        return [row for table in self.tables for row in table.to_pylist()]

    def clear(self) -> None:
        """Forget the rows that were published; they stay published."""
        with self._store.lock:
            for epoch in self._store.published.values():
                epoch.clear()

    def check(self, schema: StructType) -> None:
        """Check that Arrow can hold the columns.

        Raises:
            GraphError: it cannot.
        """
        from penstock.errors import GraphError
        from penstock.spark.arrow import arrow_schema
        from penstock.spark.query_log import first_line

        try:
            arrow_schema(schema)
        except Exception as error:
            msg = f"A memory sink cannot hold {schema.simpleString()}: {first_line(error)}. Cast or drop the column."
            raise GraphError(msg) from error

    def writer(self, context: SinkContext) -> MemoryWriter:
        """A writer that stages in this process."""
        return MemoryWriter(self._name, context)

    def stages_in(self, log_id: str, uid: str) -> Sequence[str]:  # noqa: ARG002
        """Nothing is staged."""
        return ()

    def describe(self) -> str:
        """The name, for people."""
        return f"memory {self._name}"


class MemoryWriter:
    """Stages batches in memory. Made by ``Sink.writer``."""

    def __init__(self, name: str, context: SinkContext) -> None:
        self._name = name
        self._context = context
        self._epoch: list[pa.Table] = []

    def write(self, batch: Batch) -> int | None:
        """Bring the rows into the driver, in one job."""
        table = cast("DataFrame", batch.frame).toArrow()
        batch.settle()
        if table.num_rows:
            self._epoch.append(table)
        return int(table.num_rows)

    def prepare(self, checkpoint: CheckpointId) -> PreparedMemory:
        """Close the epoch."""
        epoch, self._epoch = self._epoch, []
        return PreparedMemory(self._name, self._context, checkpoint, epoch)

    def close(self) -> None:
        """Drop staged rows of no checkpoint."""
        self._epoch = []


@dataclass(frozen=True, slots=True)
class PreparedMemory:
    """One epoch of rows."""

    name: str
    context: SinkContext
    checkpoint: CheckpointId
    epoch: list[pa.Table]

    def materialise(self) -> Sequence[Committable]:
        """Stage the epoch under an identity that is never used again."""
        if not self.epoch:
            return ()
        context = self.context
        identity = f"{context.log_id}/{context.uid}/{context.generation}/{self.checkpoint}"
        store = _store(self.name)
        with store.lock:
            store.staged[identity] = self.epoch
        committable = Committable(
            uid=context.uid,
            kind=KIND,
            checkpoint=self.checkpoint,
            target=self.name,
            files=(),
            detail={"identity": identity},
        )
        return (committable,)


class MemoryCommitter:
    """Commits and voids committables of kind ``memory/1``."""

    def __init__(self, context: CommitContext | None = None) -> None:
        """Take the argument of every committer; it is not used."""

    def commit(self, item: Committable) -> CommitOutcome:
        """Publish the rows. ``ALREADY_DONE``: they were published, voided, or lost with their process."""
        store, identity = _locate(item)
        with store.lock:
            if identity not in store.staged:
                return CommitOutcome.ALREADY_DONE
            store.published[identity] = store.staged.pop(identity)
            return CommitOutcome.DONE

    def void(self, item: Committable) -> CommitOutcome:
        """Drop the rows. ``ALREADY_DONE``: they were published."""
        store, identity = _locate(item)
        with store.lock:
            if identity in store.published:
                return CommitOutcome.ALREADY_DONE
            store.staged.pop(identity, None)
            return CommitOutcome.DONE


def _locate(item: Committable) -> tuple[_Store, str]:
    detail: Any = item.detail
    return _store(item.target), str(detail["identity"])
