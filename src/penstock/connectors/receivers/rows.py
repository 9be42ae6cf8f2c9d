"""What users write: a receiver, and the rows that it stores, turned into Arrow tables of the declared columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from penstock.errors import DecodeError, GraphError, sentence

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connectors.receivers.blocks import BlockWriter
    from penstock.handles import RequestKey
    from penstock.interfaces.source import KeyedWriteAhead

Rows: TypeAlias = "Iterable[Mapping[str, Any] | Sequence[Any] | bytes | str] | pa.Table"
"""Rows as dictionaries by column, as tuples in the order of the columns, as text or bytes of the only one, or Arrow."""


class Store(Protocol):
    """Where a receiver puts its rows. Safe to use from several threads."""

    def store(self, rows: Rows) -> None:
        """Take rows for the next block, without waiting for the disk. A crash may lose them."""
        ...

    def store_reliably(self, rows: Rows) -> None:
        """Take rows, and return when they are durable: from then on they are never lost.

        Raises:
            PenstockError: they are not acknowledged. They may be read all the same: send them again.
        """
        ...


class Receiver:
    """Receives rows and stores them. Subclass it for a system that pushes data, or that cannot be read again.

    Each attempt of the job runs a copy of the receiver, on a thread of its own. An exception out of ``on_start``
    restarts the job by its restart strategy.

    Example::

        class Sensor(ps.receivers.Receiver):
            def on_start(self, store):
                self.port = serial.Serial("/dev/ttyUSB0")
                for line in self.port:
                    store.store([(line.decode(),)])

            def on_stop(self):
                self.port.close()

        p.read("sensor", ps.receivers.Source(Sensor(), schema="value STRING"))
    """

    def on_start(self, store: Store) -> None:
        """Receive rows until ``on_stop`` is called. Returning earlier is the end of the data: all windows close."""
        raise NotImplementedError

    def on_stop(self) -> None:
        """Make ``on_start`` return, such as by closing what it reads from. It is called from another thread."""


# ---- rows to Arrow ---------------------------------------------------------------------------------------------------


class TableWriter(Protocol):
    """Takes tables of the declared columns: a ``BlockWriter``, or the way to one in another process."""

    def add(self, table: pa.Table, *, reliably: bool) -> None:
        """Take rows; with ``reliably`` return when they are durable."""
        ...


class RowStore:
    """A ``Store`` that gives rows, as Arrow tables of the declared columns, to the writer of blocks.

    Args:
        schema: the declared columns in Arrow's types.
        writer: takes the tables.
        durable: whether there is a log that makes rows durable.
    """

    def __init__(self, schema: pa.Schema, writer: TableWriter, *, durable: bool = True) -> None:
        self._schema = schema
        self._writer = writer
        self._durable = durable

    def store(self, rows: Rows) -> None:
        """Take rows for the next block.

        Raises:
            DecodeError: they do not fit the declared columns; none of them is taken.
            PenstockError: the source takes no rows any more.
        """
        self._writer.add(self._table(rows), reliably=False)

    def store_reliably(self, rows: Rows) -> None:
        """Take rows, and return when they are durable.

        Raises:
            DecodeError: they do not fit the declared columns; none of them is taken.
            GraphError: the source keeps no log.
            PenstockError: they are not acknowledged.
        """
        if not self._durable:
            msg = "The source keeps no log (durable=False), so no row is durable. Call store, or leave durable out."
            raise GraphError(msg)
        self._writer.add(self._table(rows), reliably=True)

    def _table(self, rows: Rows) -> pa.Table:
        import pyarrow as pa

        try:
            if isinstance(rows, pa.Table):
                if set(rows.column_names) - set(self._schema.names):
                    raise _unknown(rows.column_names, self._schema.names)
                return fit(rows, self._schema)
            return pa.Table.from_pylist([self._as_mapping(row) for row in rows], schema=self._schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            msg = f"A stored row does not fit the columns {', '.join(map(str, self._schema))}: {sentence(error)}"
            raise DecodeError(msg) from error

    def _as_mapping(self, row: Mapping[str, Any] | Sequence[Any] | bytes | str) -> Mapping[str, Any]:
        names = self._schema.names
        if isinstance(row, Mapping):
            if not row.keys() <= set(names):
                raise _unknown(row.keys(), names)
            return row
        if isinstance(row, str | bytes):
            row = (row,)
        if len(row) != len(names):
            msg = f"A stored row is {row!r}, and there are {len(names)} columns. Give a tuple or a dictionary of them."
            raise DecodeError(msg)
        return dict(zip(names, row, strict=True))


class RequestStore(RowStore):
    """A ``RowStore`` for rows that come in requests with keys, which are told at once when there is no room.

    Args:
        schema: the declared columns in Arrow's types.
        writer: takes the tables.
        blocks: the write-ahead log, which knows the keys of requests.
    """

    def __init__(self, schema: pa.Schema, writer: BlockWriter, blocks: KeyedWriteAhead) -> None:
        super().__init__(schema, writer)
        self._blocks_writer = writer
        self.blocks = blocks

    def offer(self, table: pa.Table, key: RequestKey | None = None) -> bool:
        """Take rows and the key of their request into one block, and return when they are durable.

        ``False``: too much is not read yet, and nothing was taken.

        Raises:
            PenstockError: they are not acknowledged.
        """
        return self._blocks_writer.offer(fit(table, self._schema), key)

    @property
    def is_full(self) -> bool:
        """Whether too much is not read yet."""
        return self._blocks_writer.is_full

    @property
    def holds(self) -> bool:
        """Whether rows that were there before the start are read first."""
        return self._blocks_writer.holds


def fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, cast where they have another type and ``NULL`` where the table has none."""
    import pyarrow as pa

    columns = [
        table[each.name].cast(each.type) if each.name in table.column_names else pa.nulls(len(table), each.type)
        for each in schema
    ]
    return pa.table(columns, schema=schema)


def _unknown(found: Iterable[str], names: Sequence[str]) -> DecodeError:
    extra = ", ".join(sorted(set(found) - set(names)))
    msg = f"A stored row has the columns {extra}, which are not declared. Declared columns: {', '.join(names)}."
    return DecodeError(msg)
