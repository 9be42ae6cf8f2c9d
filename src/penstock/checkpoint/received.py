"""The write-ahead log of a source that receives rows: who may write a block, which are read, which may be deleted (G5).

Blocks are numbered per source and generation, and created if absent. A successor first **seals** every older
generation: it takes the number after the last block for a seal, so that nothing can be appended there. Then it
**adopts** the blocks behind its position. Blocks are deleted when every restorable checkpoint is past them; seals stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.checkpoint import paths
from penstock.checkpoint.entries import Manifest
from penstock.checkpoint.history import History
from penstock.checkpoint.log import OwnedLog, Sleep, backoff
from penstock.checkpoint.merged_blocks import MERGED_BLOCKS, BlockFiles, BlockMerger
from penstock.checkpoint.request_keys import RequestKeys, split_keys, with_keys
from penstock.errors import CheckpointUnreadable, GenerationFenced, StateIncompatible, StorageFailed, sentence
from penstock.failpoints import failpoint
from penstock.filesystem.base import Created, FileSystem, UnknownOutcome
from penstock.handles import (
    RECEIVED,
    AdoptedBlocks,
    BlockId,
    Generation,
    KeyLimits,
    Position,
    RequestKey,
    split_replays,
)

SEAL: Final = b"penstock seal/1\n"
"""Content of a seal: no block can have it, since blocks begin with other bytes."""

# ---- positions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedPosition:
    """How far the blocks of a source were read.

    Attributes:
        log_id: of the log whose generations the blocks belong to.
        uid: of the folder of the blocks: that of the source, or the one it had before it was renamed.
        next: the first block that is not read to its end.
        row: number of its rows that were read.
        sealed: every generation below this one is sealed.
        tick: the last one whose blocks were read; 0 if there is none.
    """

    log_id: str
    uid: str
    next: BlockId
    sealed: Generation
    row: int = 0
    tick: int = 0

    def encode(self) -> Position:
        """The position as a manifest holds it."""
        return Position(
            kind=RECEIVED,
            detail={
                "log": self.log_id,
                "uid": self.uid,
                "generation": self.next.generation,
                "block": self.next.number,
                "row": self.row,
                "sealed": self.sealed,
                "tick": self.tick,
            },
        )

    @classmethod
    def decode(cls, position: Position) -> ReceivedPosition:
        """The inverse of ``encode``.

        Raises:
            StateIncompatible: the position is of another kind.
        """
        detail: Any = split_replays(position)[0].detail
        if position.kind != RECEIVED or not isinstance(detail, Mapping):
            msg = (
                f"The position is of kind {position.kind!r}, but the source reads {RECEIVED!r}. Give it a uid of its "
                "own."
            )
            raise StateIncompatible(msg)
        next = BlockId(Generation(detail["generation"]), detail["block"])
        sealed = Generation(detail["sealed"])
        return cls(
            log_id=detail["log"], uid=detail["uid"], next=next, row=detail["row"], sealed=sealed, tick=detail["tick"]
        )


def recorded_positions(manifest: Manifest, log_id: str | None) -> Iterator[tuple[str, ReceivedPosition]]:
    """The sources of a checkpoint that have a position in blocks of this log, with that position."""
    for task in manifest.tasks:
        if task.position is not None and task.position.kind == RECEIVED:
            position = ReceivedPosition.decode(task.position)
            if position.log_id == log_id:
                yield task.task, position


def recorded(manifest: Manifest, folder: str, log_id: str | None) -> ReceivedPosition | None:
    """The position that a checkpoint has in the blocks of a folder, whatever the source is called there."""
    found = (position for _, position in recorded_positions(manifest, log_id) if position.uid == folder)
    return next(found, None)


def folder_of(history: History, uid: str) -> str:
    """The folder of the blocks of a source without a position: that of its newest one, if it had any."""
    for _, manifest in reversed(list(history.manifests.values())):
        for task, position in recorded_positions(manifest, history.log_id):
            if task == uid:
                return position.uid
    return uid


def source_folders(history: History, sources: Collection[str]) -> dict[str, str]:
    """The folders of blocks that these sources have by their uids or by a position in the log, each with its source."""
    own = {uid: uid for uid in sources}
    return own | {position.uid: uid for uid, position in _positions_in(history) if uid in sources}


def named_folders(history: History) -> frozenset[str]:
    """The folders of blocks that a position in the log names."""
    return frozenset(position.uid for _, position in _positions_in(history))


def _positions_in(history: History) -> Iterator[tuple[str, ReceivedPosition]]:
    """As ``recorded_positions``, of all checkpoints in the log."""
    for _, manifest in history.manifests.values():
        yield from recorded_positions(manifest, history.log_id)


# ---- decisions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedGeneration:
    """The blocks of a generation to which nothing can be added.

    Attributes:
        generation: the generation.
        numbers: those of the blocks that exist, rising.
        end: the number of its seal: it has had so many blocks.
    """

    generation: Generation
    numbers: tuple[int, ...]
    end: int


def generations_to_seal(claimed: Iterable[int], found: Iterable[int], own: Generation) -> tuple[Generation, ...]:
    """The generations to be sealed before anything is read: those that the log knows or that have a folder.

    A generation without a folder is sealed too: its writer may be about to make one.

    >>> generations_to_seal([0, 4, 7], [2, 4], Generation(7))
    (0, 2, 4)
    """
    return tuple(Generation(each) for each in sorted({*claimed, *found}) if each < own)


def known_claims(history: History) -> frozenset[int]:
    """Every generation that the log still knows. A claim that cannot be read counts, since it was made."""
    return frozenset(
        {int(each.generation) for each in history.entries} | {int(each.number) for each in history.unreadable}
    )


def sealed_below(history: History, folder: str) -> Generation:
    """Every generation below this one is sealed, by what checkpoints record."""
    positions = (recorded(manifest, folder, history.log_id) for _, manifest in history.manifests.values())
    return max((each.sealed for each in positions if each is not None), default=Generation(0))


def newest_tick(history: History, folder: str) -> int:
    """The last tick that a checkpoint has read blocks of: those that it is past have no later one."""
    positions = (recorded(manifest, folder, history.log_id) for _, manifest in history.manifests.values())
    return max((each.tick for each in positions if each is not None), default=0)


def low_mark(history: History, folder: str) -> BlockId | None:
    """The first block that a restorable checkpoint still has to read; those before it are needed no more.

    ``None`` if a restorable checkpoint is from before the source was there, or there is none: a start from it reads
    all blocks.
    """
    positions = [recorded(manifest, folder, history.log_id) for manifest in history.restorable.values()]
    known = [each.next for each in positions if each is not None]
    return min(known) if known and len(known) == len(positions) else None


def adopt(
    generations: Sequence[SealedGeneration], start: BlockId | None, *, place: Callable[[BlockId], str]
) -> tuple[BlockId, ...]:
    """The blocks from ``start`` on, in order; without it, from the first that exists.

    Seals say how many blocks a generation has had, so that a missing one is noticed, the last one too.

    Raises:
        CheckpointUnreadable: a block is missing.
    """
    found = {BlockId(each.generation, number) for each in generations for number in each.numbers}
    first = start if start is not None else min(found, default=None)
    if first is None:
        return ()
    wanted = [
        BlockId(each.generation, number)
        for each in generations
        if each.generation >= first.generation
        for number in range(first.number if each.generation == first.generation else 0, each.end)
    ]
    # Its blocks were read, and its folder has lost them.
    wanted += [
        BlockId(each.generation, each.end)
        for each in generations
        if each.generation == first.generation and each.end < first.number
    ]
    for block in wanted:
        if block not in found:
            msg = (
                f"{place(block)} is missing: rows in it were acknowledged and are not read yet. Restore the file from "
                "a copy, or go on without its rows with penstock skip."
            )
            raise CheckpointUnreadable(msg)
    return tuple(wanted)


def removable(found: Iterable[BlockId], low: BlockId | None) -> tuple[BlockId, ...]:
    """The blocks that no restorable checkpoint reads, oldest first: what is left is never full of holes.

    The last of each generation stays. It is the seal, or it says where a successor has to seal.

    >>> blocks = [BlockId(Generation(4), 0), BlockId(Generation(4), 1), BlockId(Generation(7), 0)]
    >>> removable(blocks, BlockId(Generation(7), 1))
    (BlockId(generation=4, number=0),)
    """
    blocks = frozenset(found)
    last = {block.generation: block for block in sorted(blocks)}
    return tuple(sorted(block for block in blocks - set(last.values()) if low is not None and block < low))


def missing(found: Iterable[BlockId], low: BlockId | None) -> tuple[BlockId, ...]:
    """The blocks that a start may read and that are not there, as far as those behind them tell.

    >>> blocks = [BlockId(Generation(4), 0), BlockId(Generation(4), 3), BlockId(Generation(7), 1)]
    >>> [str(block) for block in missing(blocks, BlockId(Generation(4), 2))]
    ['4/2', '7/0']
    """
    blocks = frozenset(found)
    first = min(blocks, default=None) if low is None else low
    if first is None:
        return ()
    last = {block.generation: block.number for block in sorted(blocks) if block >= first}
    wanted = (
        BlockId(generation, number)
        for generation, end in last.items()
        for number in range(first.number if generation == first.generation else 0, end)
    )
    return tuple(sorted(block for block in wanted if block not in blocks))


# ---- the log of one source -------------------------------------------------------------------------------------------


class ReceivedBlocks:
    """The write-ahead log of one source under one claim: a ``penstock.interfaces.source.WriteAhead``.

    One thread writes, another reads and cleans.

    Args:
        uid: of the source.
        log: the log under our claim.
        filesystem: rooted at the job's directory.
        pause: waits before a seal of unknown outcome is written again.
        merge_at: so many small blocks become one file.
    """

    def __init__(
        self, uid: str, log: OwnedLog, filesystem: FileSystem, pause: Sleep, *, merge_at: int = MERGED_BLOCKS
    ) -> None:
        self._uid = uid
        self._log = log
        self._filesystem = filesystem
        self._pause = pause
        self._merge_at = merge_at
        self._open_folder(uid)
        self._next = 0
        self._start = BlockId(log.generation, 0)
        self._start_row = 0
        self._broken: str | None = None
        self._keys: RequestKeys | None = None

    def _open_folder(self, folder: str) -> None:
        self._folder = folder
        self._files = BlockFiles(folder, self._filesystem)
        self._merger = BlockMerger(
            folder, self._log.generation, self._filesystem, self._log.refuse_if_claimed, self._merge_at
        )

    # ---- a start -----------------------------------------------------------------------------------------------------

    def adopt(self, resume: Position | None, keys: KeyLimits | None = None) -> AdoptedBlocks:
        """Seal all older generations; returns the blocks to be read. With ``keys``, those of all blocks are known then.

        Raises:
            CheckpointUnreadable: a block is missing, or a file of keys is damaged.
            GenerationFenced: a successor has sealed our own generation meanwhile.
            StateIncompatible: the position belongs to other blocks.
            StorageFailed: a seal cannot be written.
        """
        history = self._log.history
        position = None if resume is None else self._resumed(resume)
        self._open_folder(folder_of(history, self._uid) if position is None else position.uid)
        start = low_mark(history, self._folder) if position is None else position.next
        found = self._files.list().blocks
        below = sealed_below(history, self._folder)
        generations = generations_to_seal(
            known_claims(history), {block.generation for block in found}, self._log.generation
        )
        for each in generations:  # not of newer ones: if we were taken over, a successor writes there
            self._filesystem.remove_temporary(paths.wal_folder(self._folder, each))
        sealed = [self._seal(each, found, is_sealed=each < below) for each in generations]
        failpoint("received.sealed")
        if (imported := self._imported(found)) is not None:
            sealed.append(imported)
        blocks = adopt(sealed, start, place=self.place)
        if keys is not None:  # after sealing: no older process can add one any more
            self._keys = RequestKeys(self._folder, self._log.generation, self._filesystem, keys)
            self._keys.rebuild(SEAL)
        self._start = start or min(blocks, default=self._start)
        self._start_row = 0 if position is None else position.row
        return AdoptedBlocks(
            blocks,
            self._start_row,
            served=0 if position is None else position.tick,
            floor=newest_tick(history, self._folder),
        )

    def _imported(self, found: frozenset[BlockId]) -> SealedGeneration | None:
        """The blocks that an import has put into our own generation, if there are some: we write on behind them."""
        own = self._log.generation
        numbers = sorted(block.number for block in found if block.generation == own)
        if not numbers:
            return None
        if self._files.read(BlockId(own, numbers[-1])) == SEAL:
            msg = f"{self._path(own, numbers[-1])} is a seal: this job was taken over while it started."
            raise GenerationFenced(msg, uid=self._uid)
        self._next = numbers[-1] + 1
        self._merger.skip(self._next)
        return SealedGeneration(generation=own, numbers=tuple(numbers), end=self._next)

    def _resumed(self, resume: Position) -> ReceivedPosition:
        position = ReceivedPosition.decode(resume)
        if position.log_id != self._log.log_id:
            msg = (
                f"The position is one of blocks that were received in another state directory (log {position.log_id}), "
                "and the export does not hold them. Export the checkpoint once more with this version of penstock."
            )
            raise StateIncompatible(msg, uid=self._uid)
        return position

    def _seal(self, generation: Generation, found: frozenset[BlockId], *, is_sealed: bool) -> SealedGeneration:
        """Take the number after the last block of a generation, unless a seal has it."""
        numbers = sorted(block.number for block in found if block.generation == generation)
        if numbers and (is_sealed or self._filesystem.read(self._path(generation, numbers[-1])) == SEAL):
            if not is_sealed:
                self._take(self._path(generation, numbers[-1]))  # syncs the folder: its writer may have died before it
            return SealedGeneration(generation=generation, numbers=tuple(numbers[:-1]), end=numbers[-1])
        end = numbers[-1] + 1 if numbers else 0
        while not self._take(self._path(generation, end)):
            if self._filesystem.read(self._path(generation, end)) == SEAL:
                break  # another process has sealed it at the same moment
            numbers.append(end)  # its writer was faster: the block is adopted
            end += 1
        return SealedGeneration(generation=generation, numbers=tuple(numbers), end=end)

    def _take(self, path: str) -> bool:
        """Whether the seal has the number now; tried again until that is known (L3)."""
        failpoint("received.seal.before")
        for seconds in backoff():
            try:
                return self._filesystem.create(path, SEAL) is Created.CREATED
            except UnknownOutcome:
                self._pause(seconds)
        raise AssertionError  # pragma: no cover - the backoff has no end

    # ---- writing -----------------------------------------------------------------------------------------------------

    def write(self, data: bytes, keys: Sequence[RequestKey] = ()) -> BlockId:
        """Write the next block with keys of requests; it is durable on return. It is acknowledged only after ``check``.

        Raises:
            StorageFailed: surely nothing was written, or an earlier write has an unknown outcome. Then nothing is
                written by this generation any more: only a successor, which seals it, can tell what is there.
            GenerationFenced: a successor has sealed this generation.
        """
        if self._broken is not None:
            raise StorageFailed(self._broken, uid=self._uid)
        block = BlockId(self._log.generation, self._next)
        failpoint("received.block.before")
        content = with_keys(data, keys)
        try:
            created = self._filesystem.create(self.place(block), content)
        except UnknownOutcome as error:
            self._broken = (
                f"Whether {self.place(block)} is durable is not known: {sentence(error)} Its rows were not "
                "acknowledged. The job begins again with new blocks."
            )
            raise StorageFailed(self._broken, uid=self._uid) from error
        if created is Created.EXISTS:
            self._broken = f"{self.place(block)} was written by another process: this job was taken over."
            raise GenerationFenced(self._broken, uid=self._uid)
        self._merger.add(len(content))
        self._next += 1
        if self._keys is not None:
            self._keys.add(block, keys)
        failpoint("received.block.durable")
        return block

    def check(self) -> None:
        """Check that no other process has claimed the job: rows are acknowledged only after that.

        A successor reads the folder after its claim. So a block that was durable before the claim is adopted.

        Raises:
            GenerationFenced: another process owns the job.
            CheckpointError: the log cannot be read now.
        """
        self._log.refuse_if_claimed()

    # ---- idempotency keys --------------------------------------------------------------------------------------------

    def find_key(self, key: str, now: int) -> RequestKey | None:
        """The request with this key, if its rows are in a block and its horizon has not ended."""
        return None if self._keys is None else self._keys.find(key, now)

    def has_room_for_key(self, now: int, in_flight: int) -> bool:
        """Whether one more key may be taken, beside those of requests that are not stored yet."""
        return self._keys is None or self._keys.has_room(now, in_flight)

    # ---- reading and deleting ----------------------------------------------------------------------------------------

    def read(self, block: BlockId) -> bytes:
        """The content of a block, without keys.

        Raises:
            CheckpointUnreadable: it is missing, or its keys or the merged file that holds it are damaged.
        """
        data = self._files.read(block)
        if data is None:
            msg = f"{self.place(block)} is missing: rows in it were acknowledged. Restore the file from a copy."
            raise CheckpointUnreadable(msg, uid=self._uid)
        return split_keys(data, self.place(block))[0]

    def position(self, next: BlockId | None = None, row: int = 0, *, tick: int = 0) -> Position:
        """The position before a block, or within it after some rows; without a block that of the start."""
        if next is None:
            next, row = self._start, self._start_row
        position = ReceivedPosition(
            log_id=self._log.log_id, uid=self._folder, next=next, row=row, sealed=self._log.generation, tick=tick
        )
        return position.encode()

    def place(self, block: BlockId) -> str:
        """The path of a block below the job's directory."""
        return paths.block(self._folder, block)

    def _path(self, generation: Generation, number: int) -> str:
        return paths.block(self._folder, BlockId(generation, number))

    def clean(self) -> int:
        """Delete the blocks that every restorable checkpoint is past; returns the number of files. Merge small ones.

        Raises:
            GenerationFenced: another process owns the job.
            CheckpointError: the folder cannot be read or written now; the next clean-up goes on.
        """
        low = low_mark(self._log.history, self._folder)
        copied: list[str] = []
        if self._keys is not None:
            # Keys outlive their blocks. They are durable in a file before the log is asked for a newer claim: whoever
            # claims after that finds them there.
            covered = self._keys.save()
            low = low if low is None else min(low, covered)
            copied = self._keys.merged()
        folder = self._files.list()
        doomed = folder.whole(frozenset(removable(folder.blocks, low)))
        if doomed or copied:
            self._log.refuse_if_claimed()
        for file in doomed:
            failpoint("received.clean.before")
            self._filesystem.delete(file.path)
        for path in copied:
            self._filesystem.delete(path)
        is_own = low is not None and low.generation == self._log.generation
        self._merger.merge(kept=low.number if low is not None and is_own else 0)
        return len(doomed)
