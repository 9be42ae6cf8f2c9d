"""``ps.receivers``: sources that are given rows, and keep them in a write-ahead log until every checkpoint has them."""

from __future__ import annotations

import copy
import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.clock import MonotonicTime, WallTime
from penstock.connectors.limits import check_limit
from penstock.connectors.receivers.batch_clock import BatchClock
from penstock.connectors.receivers.blocks import BlockLimits, BlockWriter, decode_block, tick_of
from penstock.connectors.receivers.rows import Receiver, RequestStore, RowStore, Store, fit
from penstock.connectors.receivers.unlogged import UnloggedBlocks
from penstock.elements import ObservedMetrics
from penstock.errors import GraphError, PenstockError, SourceUnavailable, StateIncompatible, sentence
from penstock.facts import SourceLag
from penstock.handles import RECEIVED, UNLOGGED, BlockId, CheckpointId, Guarantee, KeyLimits, Position
from penstock.interfaces.source import (
    CaughtUp,
    Ended,
    KeyedWriteAhead,
    NoData,
    PlannedBatch,
    PollResult,
    ReadLimit,
    SourceContext,
    Until,
    WriteAhead,
)
from penstock.spark.arrow import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.spark.arrow import ArrowSender

log = logging.getLogger("penstock")

# ---- reading the blocks ----------------------------------------------------------------------------------------------

_POLL_INTERVAL: Final = 20_000
"""Microseconds between two looks for new blocks."""
_LAG_INTERVAL: Final = 1_000_000
"""Microseconds between two reports of the backlog."""
_JOIN_SECONDS: Final = 5.0
"""How long a stop waits for the receiver's thread."""


@dataclass(frozen=True, slots=True)
class ReceivedRows:
    """The plan of a batch: its rows, which were read from blocks and checked."""

    table: pa.Table


class ReceiverReader:
    """Runs a receiver, and reads its blocks in order. A batch takes as many rows as it may, also parts of blocks.

    A source with a batch clock takes the blocks of the tick that the poll serves, and leaves those of the next.

    Args:
        context: of the source, with its write-ahead log.
        receiver: a copy of its own; it is started by the first poll.
        schema: the declared columns.
        limits: of blocks and backlog.
        resume: the position to go on from.
        durable: keep the rows in the write-ahead log; otherwise in memory.
        keys: how long idempotency keys of requests are known, if there are any.
    """

    def __init__(
        self,
        context: SourceContext,
        receiver: Receiver,
        schema: StructType,
        limits: BlockLimits,
        resume: Position | None,
        *,
        durable: bool = True,
        keys: KeyLimits | None = None,
    ) -> None:
        self._uid = context.uid
        self._report, self._count = context.report, context.count
        logged = _write_ahead(context) if durable else None
        self._blocks: WriteAhead = UnloggedBlocks(context.uid) if logged is None else logged
        adopted = self._blocks.adopt(resume, keys)
        self._adopted, self._skip = list(adopted.blocks), adopted.row
        self._next: tuple[BlockId, int] | None = None  # the position, once rows were read
        self._table: pa.Table | None = None  # what is left of the block that was read in part
        self._block: BlockId | None = None  # that block
        self._block_tick = 0  # its tick
        self._clock = BatchClock(
            context.ticks,
            served=adopted.served,
            floor=adopted.floor,
            receives=context.until is Until.STOPPED,
        )
        self._is_eager = context.ticks is None  # otherwise rows wait for their tick, and blocks may be large
        self._columns = arrow_schema(schema)
        self._spark, self._schema = context.spark, schema
        self._sender: ArrowSender | None = None
        self._receives = context.until is Until.STOPPED
        self._writer = BlockWriter(context.uid, self._blocks, limits, lambda: self._clock.label(context.wall()))
        store = (
            RowStore(self._columns, self._writer, durable=durable)
            if keys is None or logged is None
            else RequestStore(self._columns, self._writer, logged)
        )
        self._runner = _ReceiverThread(context.uid, receiver, store, self._writer)
        self._started = self._is_stopped = False
        self._lag_at = MonotonicTime(0)

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        """The rows of the next blocks.

        Raises:
            PenstockError: the receiver failed, a block cannot be written or read, or the job was taken over.
        """
        if self._receives and not self._started and not self._is_stopped:
            self._started = True
            self._writer.start(holds=bool(self._adopted))
            self._runner.start()
        if (failure := self._failure()) is not None:
            raise failure
        is_over = self._is_over()  # asked before the last block is
        missed = self._clock.poll(wall, self._next_tick() if self._clock.is_catching_up else None)
        if missed:
            self._count("ticks_missed", missed)
        table = self._take(limits)
        self._report_lag(now)
        if table is not None:
            known = ObservedMetrics.known({"rows": table.num_rows, "bytes": table.nbytes})
            return PlannedBatch(
                plan=ReceivedRows(table),
                rows=table.num_rows,
                bytes=table.nbytes,
                metrics={"rows": known},
                takes_all=self._table is None and not self._adopted and self._writer.backlog[0] == 0,
                is_behind=self._clock.is_catching_up and self._clock.is_behind(self._next_tick()),
            )
        if not is_over or self._table is not None:  # or its tick has not come
            if self._is_eager:
                self._writer.hurry()
            return NoData(wake_at=MonotonicTime(now + _POLL_INTERVAL))
        self._report_lag(now, is_last=True)
        return Ended() if self._receives and not self._is_stopped else CaughtUp()

    def take_no_more(self) -> None:
        """Stop the receiver. The polls that follow give what it has stored, of any tick, and then ``CaughtUp``."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._clock.finish()
        if self._started:
            self._runner.stop()
            self._writer.close()

    def _next_tick(self) -> int | None:
        """The tick of the next row; ``None`` if there is none."""
        return self._block_tick if self._table is not None or self._open_next() else None

    def _failure(self) -> PenstockError | None:
        failure = self._writer.failure or self._runner.failure
        if failure is not None and failure.uid is None:
            failure.uid = self._uid
        return failure

    def _is_over(self) -> bool:
        if not self._receives or not self._started:
            return True
        return (self._is_stopped or self._runner.is_over) and self._writer.is_empty

    def _take(self, limits: ReadLimit) -> pa.Table | None:
        """As many rows as a batch may have, at least one; ``None`` if there are none."""
        import pyarrow as pa

        taken: list[pa.Table] = []
        rows = size = 0
        while (limits.rows is None or rows < limits.rows) and (limits.bytes is None or size < limits.bytes):
            if (tick := self._next_tick()) is None:
                break
            if not self._clock.takes(tick):
                if self._started:
                    self._writer.release()  # what is left of older blocks is soon read
                break
            self._clock.took(tick)
            assert self._table is not None  # opened just now
            assert self._block is not None  # likewise
            most = self._table.num_rows if limits.rows is None else max(1, limits.rows - rows)
            part, rest = self._table.slice(0, most), self._table.slice(most)
            taken.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
            if rest.num_rows:
                done = self._next[1] if self._next is not None and self._next[0] == self._block else self._skip
                self._table, self._next = rest, (self._block, done + part.num_rows)
            else:
                self._table, self._next = None, (BlockId(self._block.generation, self._block.number + 1), 0)
                self._skip = 0
        return pa.concat_tables(taken).combine_chunks() if taken else None

    def _open_next(self) -> bool:
        """Read the next block that has rows left; ``False`` if there is none."""
        while (block := self._next_block()) is not None:
            table = decode_block(self._blocks.read(block), self._blocks.place(block))
            if table.num_rows:
                self._block, self._block_tick = block, tick_of(table)
                self._table = self._in_columns(table, block).slice(self._skip)
                return True
            self._skip = 0  # an operator has given up its rows
        return False

    def _next_block(self) -> BlockId | None:
        if self._adopted:
            return self._adopted.pop(0)
        if self._started:
            self._writer.release()
        stored = self._writer.take()
        return None if stored is None else stored.id

    def _in_columns(self, table: pa.Table, block: BlockId) -> pa.Table:
        """The rows of a block in the columns of now: others may have been declared when it was written."""
        import pyarrow as pa

        try:
            return table.replace_schema_metadata() if table.schema.equals(self._columns) else fit(table, self._columns)
        except pa.ArrowException as error:
            msg = (
                f"{self._blocks.place(block)} holds rows of the columns {', '.join(map(str, table.schema))}, which "
                f"cannot become those that are declared now: {sentence(error)} Read them with the old schema first."
            )
            raise StateIncompatible(msg, uid=self._uid) from error

    def _report_lag(self, now: MonotonicTime, *, is_last: bool = False) -> None:
        if is_last or now >= self._lag_at:
            self._lag_at = MonotonicTime(now + _LAG_INTERVAL)
            rows, _ = self._writer.backlog
            left = self._table.num_rows if self._table is not None else 0
            seconds = 0.0 if rows + left == 0 else None
            self._report(SourceLag(task=self._uid, rows=rows + left, seconds=seconds, eta_seconds=None, partitions={}))

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of the planned rows."""
        assert isinstance(plan, ReceivedRows)
        if self._sender is None:
            from penstock.spark.arrow import ArrowSender

            self._sender = ArrowSender(self._spark, self._schema)
        rows, cores = plan.table.num_rows, self._spark.sparkContext.defaultParallelism
        return self._sender.frame(plan.table.to_batches(max_chunksize=-(-rows // cores)))

    def position(self) -> Position:
        """The first row that is not read, and the last tick that was served."""
        next, row = (None, 0) if self._next is None else self._next
        return self._blocks.position(next, row, tick=self._clock.served)

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:  # noqa: ARG002
        """Delete the blocks that every restorable checkpoint is past; what cannot be deleted now is so later."""
        try:
            self._blocks.clean()
        except PenstockError as error:
            log.warning("blocks of source %s could not be deleted or merged: %s", self._uid, error)

    def close(self) -> None:
        """Stop the receiver; what it has stored is written, and read by the next start."""
        if self._started:
            self._runner.stop()
            self._writer.close()
            self._writer.join(_JOIN_SECONDS)
            self._runner.join(_JOIN_SECONDS)


def _write_ahead(context: SourceContext) -> KeyedWriteAhead:
    if context.received is None:
        msg = (
            "A source that receives rows keeps them in the state directory of a job, and here is none. Run the "
            "pipeline as a job, or give a test rows of its own with ps.testing.run."
        )
        raise GraphError(msg, uid=context.uid)
    return context.received


class _ReceiverThread:
    """Runs ``on_start`` of a receiver; its end closes the writer."""

    def __init__(self, uid: str, receiver: Receiver, store: Store, writer: BlockWriter) -> None:
        self._uid = uid
        self._receiver = receiver
        self._store = store
        self._writer = writer
        self._stopping = False
        self.is_over = False
        self.failure: PenstockError | None = None
        self._thread = threading.Thread(target=self._run, name=f"penstock-receiver-{uid}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._receiver.on_start(self._store)
        except Exception as error:
            if self._stopping:
                log.debug("receiver of source %s ended: %s", self._uid, error)
            elif isinstance(error, PenstockError):
                self.failure = error
            else:
                msg = f"The receiver failed: {type(error).__name__}: {sentence(error)}"
                self.failure = SourceUnavailable(msg, uid=self._uid)
                self.failure.__cause__ = error
        finally:
            self._writer.close()
            self.is_over = self.failure is None and not self._stopping

    def stop(self) -> None:
        """Ask the receiver to end; its failure to do so is only logged."""
        self._stopping = True
        try:
            self._receiver.on_stop()
        except Exception:
            log.warning("on_stop of source %s failed", self._uid, exc_info=True)

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("the receiver of source %s did not return from on_start within %g s", self._uid, timeout)


# ---- the source ------------------------------------------------------------------------------------------------------


def block_limits(
    *, block_interval_ms: int, block_bytes: int, max_backlog_rows: int, max_backlog_bytes: int
) -> BlockLimits:
    """The limits, checked.

    Raises:
        GraphError: one of them is impossible.
    """
    check_limit("block_interval_ms", block_interval_ms, least=0)
    check_limit("block_bytes", block_bytes)
    check_limit("max_backlog_rows", max_backlog_rows)
    check_limit("max_backlog_bytes", max_backlog_bytes)
    return BlockLimits(
        interval_ms=block_interval_ms,
        bytes=block_bytes,
        backlog_rows=max_backlog_rows,
        backlog_bytes=max_backlog_bytes,
    )


@dataclass(frozen=True, slots=True)
class Source:
    """Rows that a receiver stores. Rows that it stored reliably are read exactly once, whatever happens.

    Rows collect in blocks of the job's write-ahead log. A block is kept until every checkpoint that can be restored
    has its rows. A run until caught up reads what is kept, and receives nothing.

    Args:
        receiver: a ``ps.receivers.Receiver``; each attempt of the job runs a shallow copy of it.
        schema: the columns, as DDL or a ``StructType``. All columns can be ``NULL``.
        block_interval_ms: how long rows collect before their block is written at most; a tenth of it if the job
            waits for rows.
        block_bytes: or how many bytes of rows.
        max_backlog_rows: storing waits while so many rows are not read yet.
        max_backlog_bytes: or so many bytes.
        durable: keep rows in the log. Without it they lie in memory until they are read: at-most-once, and
            ``store_reliably`` is refused.
        process: run the receiver in a process of its own, which it must be possible to send it to by pickle. If that
            process dies, the job restarts.

    Raises:
        GraphError: an argument is impossible.

    >>> class Nothing(Receiver):
    ...     def on_start(self, store):
    ...         pass
    >>> Source(Nothing(), schema="id LONG").describe()
    'receiver Nothing'
    """

    receiver: Receiver
    columns: str | StructType
    limits: BlockLimits = field(default_factory=BlockLimits)
    durable: bool = True
    process: bool = False

    def __init__(
        self,
        receiver: Receiver,
        *,
        schema: str | StructType,
        block_interval_ms: int = 200,
        block_bytes: int = 8 * 1024 * 1024,
        max_backlog_rows: int = 10_000_000,
        max_backlog_bytes: int = 256 * 1024 * 1024,
        durable: bool = True,
        process: bool = False,
    ) -> None:
        given: object = receiver
        if not isinstance(given, Receiver):
            msg = f"receiver={given!r} is no receiver. Give an instance of a subclass of ps.receivers.Receiver."
            raise GraphError(msg)
        limits = block_limits(
            block_interval_ms=block_interval_ms,
            block_bytes=block_bytes,
            max_backlog_rows=max_backlog_rows,
            max_backlog_bytes=max_backlog_bytes,
        )
        fields = {"receiver": receiver, "columns": schema, "limits": limits, "durable": durable, "process": process}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def guarantee(self) -> Guarantee:
        """A position is replayed from the log; without a log nothing is."""
        return Guarantee.EXACTLY_ONCE if self.durable else Guarantee.AT_MOST_ONCE

    def replayed(self, end: Position | None) -> Source:  # noqa: ARG002 - all blocks of a copy are read
        """The same source: a run until caught up receives nothing, and reads the blocks of its state to their end."""
        return self

    @property
    def position_kind(self) -> str:
        """The kind of this source's positions."""
        return RECEIVED if self.durable else UNLOGGED

    def schema(self, spark: SparkSession) -> StructType:
        """The declared columns."""
        from penstock.formats.text import struct_type

        return struct_type(spark, self.columns)

    def open(self, context: SourceContext, resume: Position | None) -> ReceiverReader:
        """A reader that goes on after ``resume``.

        Raises:
            GraphError: there is no job whose state directory could keep the rows.
            StateIncompatible: the position is of another kind, or belongs to other blocks.
            CheckpointUnreadable: a block is missing.
        """
        schema, receiver = self.schema(context.spark), copy.copy(self.receiver)
        if self.process:
            from penstock.connectors.receivers.process import ChildProcess

            receiver = ChildProcess(receiver, arrow_schema(schema))
        return ReceiverReader(context, receiver, schema, self.limits, resume, durable=self.durable)

    def describe(self) -> str:
        """The receiver's class, for people."""
        return f"receiver {type(self.receiver).__name__}"
