"""Blocks of received rows: how they are encoded, and the thread that writes those of all that wait at the moment.

A block is a stream in Arrow's IPC format, followed by a trailer: the sha256 of the stream, the number of rows, a mark.
Readers of Arrow stop at the end of the stream. Its tick is in the metadata of its schema.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from penstock.errors import CheckpointUnreadable, PenstockError, SourceUnavailable

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.handles import BlockId, RequestKey
    from penstock.interfaces.source import WriteAhead

# ---- the format -----------------------------------------------------------------------------------------------------

_TRAILER: Final = struct.Struct("<32sQ8s")
_MARK: Final = b"penstck1"
_TICK: Final = b"penstock.tick"


def encode_block(table: pa.Table, tick: int = 0) -> bytes:
    """The bytes of a block with these rows, which came before a tick."""
    import pyarrow as pa

    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _TICK: str(tick).encode()})
    into = pa.BufferOutputStream()
    with pa.ipc.new_stream(into, table.schema) as stream:
        stream.write_table(table)
    data: bytes = into.getvalue().to_pybytes()
    return data + _TRAILER.pack(sha256(data).digest(), table.num_rows, _MARK)


def empty_block() -> bytes:
    """The bytes of a block without rows and columns: it stands for one whose rows are given up."""
    import pyarrow as pa

    return encode_block(pa.table({}))


def decode_block(data: bytes, place: str) -> pa.Table:
    """The rows of a block; ``place`` is where it lies.

    Raises:
        CheckpointUnreadable: it is not what was written.
    """
    import pyarrow as pa

    if len(data) < _TRAILER.size or data[-len(_MARK) :] != _MARK:
        raise _damaged(place, "it does not end as a block")
    digest, rows, _ = _TRAILER.unpack(data[-_TRAILER.size :])
    content = data[: -_TRAILER.size]
    if sha256(content).digest() != digest:
        raise _damaged(place, "its checksum is wrong")
    table = pa.ipc.open_stream(pa.py_buffer(content)).read_all()
    if table.num_rows != rows:
        raise _damaged(place, f"it holds {table.num_rows} rows instead of {rows}")
    return table


def tick_of(table: pa.Table) -> int:
    """The tick of a block that was decoded."""
    return int((table.schema.metadata or {}).get(_TICK, 0))


def _damaged(place: str, what: str) -> CheckpointUnreadable:
    msg = (
        f"{place} is damaged: {what}. Its rows were acknowledged. Restore the file from a copy, or go on without "
        "them with penstock skip."
    )
    return CheckpointUnreadable(msg)


# ---- writing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLimits:
    """When a block is written, and how much may wait to be read.

    Attributes:
        interval_ms: a block is written so long after its first row, or after a tenth of it if the reader waits.
        bytes: or when so many bytes of rows are there.
        backlog_rows: ``store`` waits while so many rows are not read yet.
        backlog_bytes: or so many bytes.
    """

    interval_ms: int = 200
    bytes: int = 8 * 1024 * 1024
    backlog_rows: int = 10_000_000
    backlog_bytes: int = 256 * 1024 * 1024


_GATHERING: Final = 0.1
"""Part of the interval for which rows collect although the reader waits: those of many callers share one sync."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A durable block of this process, with its number of rows and the bytes of them in memory."""

    id: BlockId
    rows: int
    bytes: int


class _Receipt:
    """What one caller waits for: its rows are acknowledged, or they are not and ``error`` says why."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self.error: PenstockError | None = None

    def settle(self, error: PenstockError | None) -> None:
        self.error = error
        self._done.set()

    def wait(self) -> None:
        """Wait for the outcome.

        Raises:
            PenstockError: the rows are not acknowledged.
        """
        self._done.wait()
        if self.error is not None:
            raise self.error


class BlockWriter:
    """Collects rows of all callers and writes them block by block, on a thread of its own.

    All callers whose rows are in a block share its one write and are told together. After a failure nothing is
    written any more: the rows of that block, and all that come, are not acknowledged, and the job begins again.

    Args:
        uid: of the source.
        blocks: the write-ahead log.
        limits: when blocks are written, and how much may wait.
        label: the tick of a block that is written now.
    """

    def __init__(self, uid: str, blocks: WriteAhead, limits: BlockLimits, label: Callable[[], int] = lambda: 0) -> None:
        self._uid = uid
        self._blocks = blocks
        self._limits = limits
        self._label = label
        self._changed = threading.Condition()
        self._tables: list[pa.Table] = []
        self._receipts: list[_Receipt] = []
        self._keys: list[RequestKey] = []
        self._waiting_rows = self._waiting_bytes = 0  # in memory
        self._stored: deque[StoredBlock] = deque()
        self._stored_rows = self._stored_bytes = 0
        self._holds = False
        self._is_awaited = False
        self._closed = False
        self._done = False
        self.failure: PenstockError | None = None
        self._thread = threading.Thread(target=self._run, name=f"penstock-blocks-{uid}", daemon=True)

    def start(self, *, holds: bool = False) -> None:
        """Begin to take rows; with ``holds`` only after ``release``."""
        self._holds = holds
        self._thread.start()

    def release(self) -> None:
        """Take rows: what was there before is read."""
        with self._changed:
            self._holds = False
            self._changed.notify_all()

    # ---- callers -----------------------------------------------------------------------------------------------------

    def add(self, table: pa.Table, *, reliably: bool) -> None:
        """Take rows into the next block; with ``reliably`` wait until they are durable and the job is still ours.

        Waits while too much is not read yet.

        Raises:
            PenstockError: they are not acknowledged.
        """
        if not table.num_rows:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._refusal() is not None or not self._is_full())
            receipt = self._take_in(table, reliably=reliably)
        if receipt is not None:
            receipt.wait()

    def offer(self, table: pa.Table, key: RequestKey | None = None) -> bool:
        """Take rows and the key of their request into one block, and wait until they are durable.

        ``False``: too much is not read yet, and nothing was taken.

        Raises:
            PenstockError: they are not acknowledged.
        """
        if not table.num_rows:
            return True
        with self._changed:
            if self._refusal() is None and self._is_full():
                return False
            receipt = self._take_in(table, reliably=True)
            if key is not None:
                self._keys.append(key)
        assert receipt is not None  # made for each that waits
        receipt.wait()
        return True

    def _take_in(self, table: pa.Table, *, reliably: bool) -> _Receipt | None:
        """Put rows into the next block; the lock is held.

        Raises:
            PenstockError: no rows are taken any more.
        """
        if (refusal := self._refusal()) is not None:
            raise refusal
        self._tables.append(table)
        self._waiting_rows += table.num_rows
        self._waiting_bytes += table.nbytes
        receipt = _Receipt() if reliably else None
        if receipt is not None:
            self._receipts.append(receipt)
        self._changed.notify_all()
        return receipt

    @property
    def is_full(self) -> bool:
        """Whether too much is not read yet."""
        with self._changed:
            return self._is_full()

    @property
    def holds(self) -> bool:
        """Whether rows that were there before the start are read first."""
        return self._holds

    def _is_full(self) -> bool:
        limits = self._limits
        rows, size = self._waiting_rows + self._stored_rows, self._waiting_bytes + self._stored_bytes
        return self._holds or rows >= limits.backlog_rows or size >= limits.backlog_bytes

    def _refusal(self) -> PenstockError | None:
        if self.failure is not None:
            return self.failure
        if self._closed:
            msg = "The source is stopping, and takes no more rows. Send them again when the job runs."
            return SourceUnavailable(msg, uid=self._uid)
        return None

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_rows():
                self._write()
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _wait_for_rows(self) -> bool:
        """Wait until a block is due; ``False`` at the end."""
        interval = self._limits.interval_ms / 1_000
        gathering = interval * _GATHERING
        with self._changed:
            self._changed.wait_for(lambda: self._tables or self._closed)
            self._changed.wait_for(self._is_due, timeout=gathering)
            self._changed.wait_for(lambda: self._is_due() or self._is_awaited, timeout=interval - gathering)
            self._is_awaited = False
            return bool(self._tables) and self.failure is None

    def _is_due(self) -> bool:
        return self._closed or self._waiting_bytes >= self._limits.bytes

    def _write(self) -> None:
        import pyarrow as pa

        with self._changed:
            tables, self._tables = self._tables, []
            receipts, self._receipts = self._receipts, []
            keys, self._keys = self._keys, []
        table = pa.concat_tables(tables)
        error: PenstockError | None = None
        try:
            data = encode_block(table, self._label())
            stored = StoredBlock(self._blocks.write(data, keys), table.num_rows, table.nbytes)
            self._keep(stored)
            self._blocks.check()
        except PenstockError as raised:
            error = raised
        except BaseException as raised:  # whatever it is, those who wait are told
            msg = f"Rows could not be written to the log: {type(raised).__name__}: {raised}."
            error = SourceUnavailable(msg, uid=self._uid)
            error.__cause__ = raised
        with self._changed:
            if error is not None:
                self.failure = error
                receipts += self._receipts
                self._tables, self._receipts, self._keys = [], [], []
            self._changed.notify_all()
        for receipt in receipts:
            receipt.settle(error)

    def _keep(self, stored: StoredBlock) -> None:
        with self._changed:
            self._waiting_rows -= stored.rows
            self._waiting_bytes -= stored.bytes
            self._stored.append(stored)
            self._stored_rows += stored.rows
            self._stored_bytes += stored.bytes

    # ---- the reader --------------------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """Write the next block as soon as it has rows: the reader waits for them."""
        with self._changed:
            self._is_awaited = True
            if self._tables:  # an idle source wakes nobody
                self._changed.notify_all()

    def take(self) -> StoredBlock | None:
        """The next durable block, for the one reader."""
        with self._changed:
            if not self._stored:
                return None
            stored = self._stored.popleft()
            self._stored_rows -= stored.rows
            self._stored_bytes -= stored.bytes
            self._changed.notify_all()
            return stored

    @property
    def backlog(self) -> tuple[int, int]:
        """Rows and bytes that are taken and not read yet."""
        with self._changed:
            return self._waiting_rows + self._stored_rows, self._waiting_bytes + self._stored_bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be read, after the end."""
        with self._changed:
            return self._done and not self._stored

    def close(self) -> None:
        """Write what was taken, and take no more; returns at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, timeout: float | None = None) -> None:
        """Wait until all that was taken is written."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
