"""Blocks of a source that keeps no log: they lie in memory, and a restart loses those that were not read."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import CheckpointUnreadable, StateIncompatible
from penstock.handles import UNLOGGED, AdoptedBlocks, BlockId, Generation, KeyLimits, Position, RequestKey


class UnloggedBlocks:
    """A ``penstock.interfaces.source.WriteAhead`` without a file. A block is forgotten once it was read.

    Args:
        uid: of the source.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._lock = threading.Lock()
        self._blocks: dict[BlockId, bytes] = {}
        self._next = 0

    def adopt(self, resume: Position | None, keys: KeyLimits | None = None) -> AdoptedBlocks:  # noqa: ARG002 - requests with keys need a log
        """No blocks: those of an earlier process are lost.

        Raises:
            StateIncompatible: the position is of another kind.
        """
        if resume is None:
            return AdoptedBlocks()
        detail: Any = resume.detail
        if resume.kind != UNLOGGED or not isinstance(detail, Mapping):
            msg = f"The position is of kind {resume.kind!r}, but the source has {UNLOGGED!r}. Give it a uid of its own."
            raise StateIncompatible(msg, uid=self._uid)
        return AdoptedBlocks(served=detail["tick"], floor=detail["tick"])

    def write(self, data: bytes, keys: Sequence[RequestKey] = ()) -> BlockId:  # noqa: ARG002 - likewise
        """Keep the next block."""
        with self._lock:
            block = BlockId(Generation(0), self._next)
            self._next += 1
            self._blocks[block] = data
            return block

    def check(self) -> None:
        """Do nothing: no row is acknowledged as durable."""

    def read(self, block: BlockId) -> bytes:
        """The content of a block, once.

        Raises:
            CheckpointUnreadable: it was read before.
        """
        with self._lock:
            data = self._blocks.pop(block, None)
        if data is None:
            msg = f"{self.place(block)} was read before, and is kept no longer. Report this as a bug."
            raise CheckpointUnreadable(msg, uid=self._uid)
        return data

    def place(self, block: BlockId) -> str:
        """What messages call a block."""
        return f"block {block.number} of source '{self._uid}' in memory"

    def position(self, next: BlockId | None = None, row: int = 0, *, tick: int = 0) -> Position:  # noqa: ARG002
        """The last tick that was served: nothing can be read again."""
        return Position(kind=UNLOGGED, detail={"tick": tick})

    def clean(self) -> int:
        """Nothing: blocks go as they are read."""
        return 0
