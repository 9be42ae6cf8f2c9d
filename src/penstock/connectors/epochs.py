"""Which output of a sink is in which epoch, and which blocks have to stay until the log names their files (rule S9)."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.clock import MonotonicTime
    from penstock.handles import CheckpointId
    from penstock.interfaces.sink import BlockBudget

MAX_KEPT_BATCHES: Final = 512
"""Most batches of a sink that are kept in blocks: a job that writes them reads each block."""
MAX_KEPT_TIME: Final = 300_000_000
"""Microseconds after which an open epoch is moved from blocks to files."""
# If a block is lost, all since the last checkpoint is read again, and a source may not keep rows for ever.


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeptBatch:
    """A batch whose rows are kept in blocks.

    Attributes:
        content: what reads the blocks.
        rows: number of rows.
        bytes: size of the blocks.
        since: when it was written.
        free: frees the blocks.
    """

    content: object
    rows: int
    bytes: int
    since: MonotonicTime
    free: Callable[[], None]


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """Staged rows: their folder, their number, and the kept batches that they were written from, if any."""

    folder: str
    rows: int
    kept: tuple[KeptBatch, ...] = ()


EpochPart: TypeAlias = KeptBatch | StagedBatch


class OutputEpochs:
    """The open epoch of a sink, and all of its blocks. Any thread may use it.

    A block is freed once the manifest that names the files with its rows is in the log, or when the writer is closed.
    Output that could not be made durable goes into the epoch that is open by then (rule S2).
    """

    def __init__(self, budget: BlockBudget) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._open: list[EpochPart] = []
        self._kept: dict[KeptBatch, CheckpointId | None] = {}  # with the checkpoint for which it became durable

    def has_room(self, size: int) -> bool:
        """Whether another batch of so many bytes may be kept in blocks."""
        return len(self._kept) < MAX_KEPT_BATCHES and self._budget.has_room(size)

    def add(self, part: EpochPart) -> None:
        """Add the next batch to the open epoch."""
        with self._lock:
            self._open.append(part)
            if isinstance(part, KeptBatch):
                self._kept[part] = None
                self._budget.take(part.bytes)

    def is_old(self, now: MonotonicTime) -> bool:
        """Whether the open epoch has blocks of before ``MAX_KEPT_TIME``."""
        with self._lock:
            kept = (part for part in self._open if isinstance(part, KeptBatch))
            return any(part.since < now - MAX_KEPT_TIME for part in kept)

    def open_epoch(self) -> list[EpochPart]:
        """The batches of the open epoch, in order."""
        with self._lock:
            return list(self._open)

    def replace(self, old: Sequence[EpochPart], new: Sequence[EpochPart]) -> None:
        """Put others in the place of batches that the open epoch has, one after the other."""
        with self._lock:
            start = self._open.index(old[0])  # not 0 if an earlier epoch was opened again meanwhile
            self._open[start : start + len(old)] = new

    def close_epoch(self) -> list[EpochPart]:
        """End the open epoch and begin the next; returns its batches, in order."""
        with self._lock:
            epoch, self._open = self._open, []
        return epoch

    def reopen(self, epoch: Iterable[EpochPart]) -> None:
        """Put a closed epoch that is not durable before the batches of the open one."""
        with self._lock:
            self._open[:0] = epoch

    def durable(self, checkpoint: CheckpointId, epoch: Iterable[EpochPart]) -> None:
        """Note that a closed epoch is in files, which the manifest of this checkpoint or of a later one will name."""
        with self._lock:
            for part in epoch:
                kept = (part,) if isinstance(part, KeptBatch) else part.kept
                self._kept.update((each, checkpoint) for each in kept if each in self._kept)

    def completed(self, checkpoint: CheckpointId) -> None:
        """Free the blocks whose rows are in files that the log names, now that this checkpoint is in it."""
        with self._lock:
            logged = [kept for kept, durable in self._kept.items() if durable is not None and durable <= checkpoint]
        self._free(logged)

    def close(self) -> None:
        """Free all blocks, and forget the open epoch."""
        with self._lock:
            self._open = []
            kept = list(self._kept)
        self._free(kept)

    def _free(self, batches: Iterable[KeptBatch]) -> None:
        for kept in batches:
            with self._lock:
                is_known = kept in self._kept
                self._kept.pop(kept, None)
            if is_known:
                self._budget.give_back(kept.bytes)
                kept.free()
