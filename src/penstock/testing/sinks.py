"""A sink that keeps rows for a test: what is staged and what is published apart, checkpoint by checkpoint."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, Final

from penstock.sinks import memory
from penstock.testing.frames import in_order
from penstock.testing.values import Row, rows_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.sinks.base import Sink, SinkContext

_NUMBERS: Final = itertools.count(1)


class CollectSink(memory.Sink):
    """Rows in this process, two-phase as in a sink of a database: staged, then published by their checkpoint.

    Exactly-once: the output of a checkpoint is published once, however often that is tried. Rows that a pipeline made
    twice are there twice.

    >>> out = CollectSink()
    >>> out.rows, out.staged
    ([], [])
    """

    def __init__(self) -> None:
        name = f"collected-{next(_NUMBERS)}"
        super().__init__(name)
        self._stands_for: Sink | None = None
        self._writer: _Writer | None = None
        self._generation: int | None = None
        weakref.finalize(self, memory.forget, name)

    def stand_for(self, sink: Sink) -> None:
        """Take the place of another sink, which still refuses the columns that it cannot write."""
        self._stands_for = sink

    @property
    def rows(self) -> list[Row]:
        """Published rows, in the order of checkpoints; those of one checkpoint sorted, see :func:`in_order`."""
        return [row for epoch in self.epochs for row in epoch]

    @property
    def epochs(self) -> list[list[Row]]:
        """Published rows by checkpoint, in the order of publishing."""
        with self._store.lock:
            published = [list(epoch) for epoch in self._store.published.values()]
        return [_sorted(epoch) for epoch in published]

    @property
    def staged(self) -> list[Row]:
        """Rows of the newest attempt that are written and not published, sorted.

        A crash takes them away, unless their checkpoint is in the log: then the restart publishes them.
        """
        with self._store.lock:
            waiting = [
                table
                for identity, epoch in self._store.staged.items()
                if identity.split("/")[-2] == str(self._generation)
                for table in epoch
            ]
        return _sorted([*waiting, *(self._writer.tables if self._writer is not None else ())])

    def check(self, schema: StructType) -> None:
        """What the sink that it stands for refuses, and what Arrow cannot hold.

        Raises:
            GraphError: with the column and the remedy.
        """
        if self._stands_for is not None:
            self._stands_for.check(schema)
        super().check(schema)

    def writer(self, context: SinkContext) -> memory.MemoryWriter:
        """A writer that stages in this process."""
        self._generation = context.generation
        self._writer = _Writer(self._name, context)
        return self._writer

    def describe(self) -> str:
        """For people."""
        return "collected" if self._stands_for is None else f"collected, in place of {self._stands_for.describe()}"


class _Writer(memory.MemoryWriter):
    @property
    def tables(self) -> list[pa.Table]:
        """What the open epoch holds."""
        return list(self._epoch)


def _sorted(tables: Iterable[Any]) -> list[Row]:
    return in_order(row for table in tables for row in rows_in(table))
