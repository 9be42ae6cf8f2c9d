"""A source that is given its rows, over the product's own write-ahead log; and the client that gives them.

The client sends the rows of a source in order, each with a key of its own: to whichever driver asks, until it has an
acknowledgement for it. After that it never sends it again. So a row that was acknowledged and is lost is missed in the
end, and one that is in the log twice comes out of order.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from penstock.clock import MonotonicTime
from penstock.errors import CheckpointUnreadable, PenstockError, SourceUnavailable
from penstock.handles import RECEIVED, BlockId, CheckpointId, KeyLimits, Position, RequestKey
from penstock.interfaces.source import CaughtUp, Ended, NoData, PlannedBatch, ReadLimit, Until
from simulation.sources import IntReader, IntSource, next_row

KEYS = KeyLimits(horizon=1 << 60, most=1_000)
MERGE_AT = 2
"""So many blocks become one file here."""
WAIT = 20_000
"""Microseconds between two looks for new blocks."""


def block_of(row: int) -> bytes:
    """The bytes of a block with this row; like those of the product they have a checksum."""
    return f"{row} {zlib.crc32(str(row).encode())}\n".encode()


def row_of(data: bytes, place: str) -> int:
    """The row in a block, whatever comes after it."""
    row, _, checksum = data.partition(b"\n")[0].partition(b" ")
    if not row.isdigit() or data[: len(block_of(int(row)))] != block_of(int(row)):
        msg = f"{place} is damaged: {checksum!r} is not the checksum of {row!r}"
        raise CheckpointUnreadable(msg)
    return int(row)


@dataclass(frozen=True, slots=True)
class ReceivingSource(IntSource):
    """``total`` rows, numbered from 0, that a client sends."""

    @property
    def position_kind(self) -> str:
        return RECEIVED

    def open(self, context: Any, resume: Position | None) -> ReceivingReader:
        at = 0 if resume is None else next_row(resume)
        context.spark.times.begins(self.number, at)
        return ReceivingReader(self, at, context, resume)

    def describe(self) -> str:
        return f"received source {self.number}"


class ReceivingReader(IntReader):
    """Reads one row from each block; rows are written by a piece of work of their own, as by the thread of a writer."""

    def __init__(self, source: ReceivingSource, at: int, context: Any, resume: Position | None) -> None:
        super().__init__(source, at, context.until, context.spark)
        self._uid = context.uid
        self._blocks = context.received
        self._blocks._merge_at = MERGE_AT
        self._to_read: list[BlockId] = list(self._blocks.adopt(resume, KEYS).blocks)
        self._next: BlockId | None = None
        self._is_giving = self._takes_no_more = self._is_closed = False
        self._failure: PenstockError | None = None
        if context.until is Until.CAUGHT_UP:
            self._takes_no_more = True

    # ---------------------------------------------------------------------------------------------------- the client

    def _let_client_send(self) -> None:
        outside, source = self._source.world.outside, self._source
        if self._takes_no_more or self._is_giving or outside.acknowledged.get(source.number, 0) >= source.total:
            return
        self._is_giving = True
        self._process.spawn(f"{self._uid}-writer", self._give)

    def _give(self) -> None:
        world, number = self._source.world, self._source.number
        row = self._ask_client()
        key = RequestKey(f"{number}-{row}", "", 1, 0, 0)
        try:
            if not self._is_closed and row < self._source.total:
                if not self._blocks.has_room_for_key(0, 0):
                    world.ledger.violated("G5", f"row {row} is refused for want of room, of {KEYS.most} keys")
                if self._blocks.find_key(key.key, 0) is None:
                    self._to_read.append(self._blocks.write(block_of(row), [key]))
                    self._blocks.check()
                world.touches("commit", f"client {number}")
                world.outside.acknowledged[number] = max(world.outside.acknowledged.get(number, 0), row + 1)
                world.tell(f"row {(number, row)} is acknowledged")
                world.count("acknowledged")
        except PenstockError as error:
            self._failure = error
        finally:
            self._is_giving = False

    def _ask_client(self) -> int:
        """The row that the client sends: the first that it has no acknowledgement for."""
        world, number = self._source.world, self._source.number
        world.touches("read", f"client {number}")
        row = world.outside.acknowledged.get(number, 0)
        world.observe(("sends", row))
        return row

    # ---------------------------------------------------------------------------------------------------- the reader

    def _interval(self) -> int | None:
        """None: its task looks for new blocks at any time, and the batch clock says which of them are read."""
        return None

    def poll(self, *, now: MonotonicTime, wall: int, limits: ReadLimit) -> Any:
        source, world = self._source, self._source.world
        self._judge(wall, limits)
        world.may_break(SourceUnavailable, f"source{source.number} cannot be reached")
        if self._failure is not None:
            raise self._failure
        self._let_client_send()
        if not self._to_read:
            if self._at >= source.total and not self._is_giving:
                return Ended() if self._until is Until.STOPPED else CaughtUp()
            if self._takes_no_more and not self._is_giving:
                return CaughtUp()
            return NoData(wake_at=MonotonicTime(now + WAIT))
        count, wait = world.pace(source.number, self._at)
        if wait:
            return NoData(wake_at=MonotonicTime(now + wait))
        count = min(count, limits.rows or count, len(self._to_read))
        before = self._at
        for _ in range(count):
            self._read_one()
        world.judge_first_read(self._process, source.number)
        return PlannedBatch(plan=(before, self._at), rows=count, takes_all=not self._to_read)

    def _read_one(self) -> None:
        block = self._to_read.pop(0)
        data, place = self._blocks.read(block), self._blocks.place(block)
        row = row_of(data, place)
        if data != block_of(row):
            msg = f"{place} is damaged: something comes after its row"
            raise CheckpointUnreadable(msg)
        if row != self._at:
            what = "is repeated" if row < self._at else f"comes, and row {self._at} is lost"
            self._source.world.ledger.violated("G5", f"row {row} of source{self._source.number} {what}")
        self._at, self._next = row + 1, BlockId(block.generation, block.number + 1)

    def take_no_more(self) -> None:
        self._takes_no_more = True

    def position(self) -> Position:
        found = self._blocks.position(self._next, tick=self._at)  # an import keeps no more than the product's own
        return replace(found, detail={**found.detail, **super().position().detail})

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        super().committed(checkpoint, position)
        with suppress(PenstockError):
            self._blocks.clean()

    def close(self) -> None:
        self._is_closed = True
        super().close()
