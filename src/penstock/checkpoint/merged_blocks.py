"""Small blocks of received rows in one file: which are merged, what the file holds, and where each block lies (G5).

Only the process that wrote blocks merges them. A merged file holds the bytes of consecutive blocks of one generation
as they were: numbers, positions, checksums and keys of requests stay. The blocks' own files go after it is durable.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from typing import Final

from penstock.checkpoint import paths
from penstock.errors import CheckpointUnreadable, StorageFailed
from penstock.failpoints import failpoint
from penstock.filesystem.base import Created, FileSystem, UnknownOutcome
from penstock.handles import BlockId, Generation

MERGED_BLOCKS: Final = 256
"""Number of small blocks that become one file."""
MERGED_BYTES: Final = 8 * 1024 * 1024
"""Bytes of small blocks that become one file, also if they are fewer."""
_SMALL: Final = MERGED_BYTES // 16
"""Bytes of the smallest block that stays a file of its own."""

# ---- the format -----------------------------------------------------------------------------------------------------
# The blocks one after another, then 8 bytes for the length of each, then a trailer: the SHA-256 of the lengths, the
# number of blocks, a mark. Each block has a checksum of its own, so damage to one leaves the others readable.

_LENGTH: Final = struct.Struct("<Q")
_TRAILER: Final = struct.Struct("<32sQ8s")
_MARK: Final = b"penstmrg"


def encode_merged(blocks: Sequence[bytes]) -> bytes:
    """The bytes of a file with these blocks."""
    lengths = b"".join(_LENGTH.pack(len(each)) for each in blocks)
    return b"".join([*blocks, lengths, _TRAILER.pack(sha256(lengths).digest(), len(blocks), _MARK)])


def decode_merged(content: bytes, place: str) -> tuple[bytes, ...]:
    """The blocks in a merged file; ``place`` is where it lies.

    >>> decode_merged(encode_merged([b"one", b"", b"three"]), "here")
    (b'one', b'', b'three')

    Raises:
        CheckpointUnreadable: it does not say where its blocks are.
    """
    if len(content) < _TRAILER.size or content[-len(_MARK) :] != _MARK:
        raise _damaged(place)
    digest, count, _ = _TRAILER.unpack(content[-_TRAILER.size :])
    end = len(content) - _TRAILER.size - count * _LENGTH.size
    lengths = content[end : -_TRAILER.size] if end >= 0 else b""
    sizes = [size for (size,) in _LENGTH.iter_unpack(lengths)] if sha256(lengths).digest() == digest else []
    if len(sizes) != count or sum(sizes) != end:
        raise _damaged(place)
    return tuple(content[until - size : until] for size, until in zip(sizes, accumulate(sizes), strict=True))


def _damaged(place: str) -> CheckpointUnreadable:
    msg = (
        f"{place} is damaged: it does not say where its blocks are. Their rows were acknowledged. Restore the file "
        "from a copy, or go on without them with penstock skip."
    )
    return CheckpointUnreadable(msg)


# ---- decisions ------------------------------------------------------------------------------------------------------


def runs_to_merge(sizes: Sequence[int], most: int = MERGED_BLOCKS) -> tuple[tuple[range, ...], int]:
    """Which of these blocks become one file each time, and of how many of them that is decided.

    A run ends after ``most`` blocks or ``MERGED_BYTES``, or before a large block. A short one is not worth a file.

    >>> runs_to_merge([1, 1, 1, 1, 1], most=2)
    ((range(0, 2), range(2, 4)), 4)
    >>> runs_to_merge([1, 1, MERGED_BYTES, 1], most=4)
    ((range(0, 2),), 3)
    """
    runs: list[range] = []
    start = total = 0
    for at, size in enumerate(sizes):
        total += size
        is_large = size >= _SMALL
        if is_large or at + 1 - start >= most or total >= MERGED_BYTES:
            run = range(start, at if is_large else at + 1)
            if len(run) >= max(2, most // 16):
                runs.append(run)
            start, total = at + 1, 0
    return tuple(runs), start


@dataclass(frozen=True, slots=True)
class BlockFile:
    """A file with the blocks from ``first`` to ``last`` of one generation: one of them, a seal, or several merged."""

    path: str
    first: BlockId
    last: BlockId

    @property
    def blocks(self) -> Iterator[BlockId]:
        """All of them, rising."""
        return (BlockId(self.first.generation, number) for number in range(self.first.number, self.last.number + 1))


@dataclass(frozen=True, slots=True)
class BlockFolder:
    """The files of blocks of one source, as they were listed."""

    files: tuple[BlockFile, ...] = ()
    blocks: frozenset[BlockId] = field(default=frozenset())

    @classmethod
    def of(cls, listed: Iterable[str]) -> BlockFolder:
        """The folder with these files; others than blocks do not count."""
        files = tuple(file for path in listed if (file := block_file(path)) is not None)
        return cls(files, frozenset(block for file in files for block in file.blocks))

    @property
    def merged(self) -> Iterator[BlockFile]:
        """The files that hold several blocks."""
        return (file for file in self.files if file.first != file.last)

    def whole(self, blocks: frozenset[BlockId]) -> tuple[BlockFile, ...]:
        """The files that hold none but these blocks, oldest first."""
        found = (file for file in self.files if all(block in blocks for block in file.blocks))
        return tuple(sorted(found, key=lambda file: (file.first, file.last)))


def block_file(path: str) -> BlockFile | None:
    """The file of blocks at a path, or ``None`` if it is not the path of one.

    >>> block_file("wal/in/7/00000000000000000003.block").last
    BlockId(generation=7, number=3)
    """
    if (merged := paths.merged_ids(path)) is not None:
        return BlockFile(path, *merged)
    block = paths.block_id(path)
    return None if block is None else BlockFile(path, block, block)


def folders_of(listed: Iterable[str]) -> dict[str, BlockFolder]:
    """The folder of each source, by its name, out of the files below ``wal/``; those without a block are left out."""
    found: dict[str, list[str]] = {}
    for path in listed:
        if block_file(path) is not None:
            found.setdefault(path.split("/")[1], []).append(path)
    return {uid: BlockFolder.of(files) for uid, files in sorted(found.items())}


# ---- reading --------------------------------------------------------------------------------------------------------


def read_merged(filesystem: FileSystem, file: BlockFile) -> tuple[bytes, ...] | None:
    """The blocks in a merged file, or ``None`` if it is gone.

    Raises:
        CheckpointUnreadable: it does not say where its blocks are.
    """
    content = filesystem.read(file.path)
    if content is None:
        return None
    blocks = decode_merged(content, file.path)
    if len(blocks) != file.last.number - file.first.number + 1:
        raise _damaged(file.path)
    return blocks


class BlockFiles:
    """Reads the blocks of one source, wherever they lie. For one thread.

    Args:
        folder: the name of the folder below ``wal/``.
        filesystem: rooted at the job's directory.
    """

    def __init__(self, folder: str, filesystem: FileSystem) -> None:
        self._folder = folder
        self._filesystem = filesystem
        self._merged: tuple[BlockFile, ...] = ()
        self._open: BlockFile | None = None  # the merged file that was read last: blocks are read in order
        self._blocks: tuple[bytes, ...] = ()  # its content

    def list(self) -> BlockFolder:
        """What is in the folder now."""
        found = BlockFolder.of(self._filesystem.list(f"{paths.WAL}/{self._folder}"))
        self._merged = tuple(found.merged)
        return found

    def read(self, block: BlockId) -> bytes | None:
        """The bytes of a block, or of the seal that has its number; ``None`` if it is not there.

        Raises:
            CheckpointUnreadable: it is in a merged file that is damaged.
        """
        # A file of its own comes first: an operator has put it there if the block in the merged file is damaged.
        data = self._filesystem.read(paths.block(self._folder, block))
        if data is not None:
            return data
        data = self._read_merged(block)
        if data is None:  # merged since the folder was listed
            self.list()
            data = self._read_merged(block)
        return data

    def _read_merged(self, block: BlockId) -> bytes | None:
        for file in self._merged:
            if file.first <= block <= file.last and self._is_opened(file):
                return self._blocks[block.number - file.first.number]
        return None

    def _is_opened(self, file: BlockFile) -> bool:
        """Whether the content of a merged file is at hand; not if the file is gone."""
        if self._open != file:
            blocks = read_merged(self._filesystem, file)
            if blocks is None:
                return False
            self._open, self._blocks = file, blocks
        return True


# ---- merging --------------------------------------------------------------------------------------------------------


class BlockMerger:
    """Merges the small blocks of one generation in the process that writes them. One thread adds, another merges.

    Args:
        folder: the name of the folder below ``wal/``.
        generation: of our claim.
        filesystem: rooted at the job's directory.
        refuse_if_claimed: raises ``GenerationFenced`` if another process has claimed the job.
        most: so many blocks become one file.
    """

    def __init__(
        self,
        folder: str,
        generation: Generation,
        filesystem: FileSystem,
        refuse_if_claimed: Callable[[], None],
        most: int = MERGED_BLOCKS,
    ) -> None:
        self._folder = folder
        self._generation = generation
        self._filesystem = filesystem
        self._refuse_if_claimed = refuse_if_claimed
        self._most = most
        self._first = 0  # the first block of which it is not decided whether it is merged
        self._sizes: list[int] = []  # of the blocks from there on

    def add(self, size: int) -> None:
        """Know the bytes of the next block, which is durable."""
        self._sizes.append(size)

    def skip(self, first: int) -> None:
        """Leave the blocks before a number as they are: another process wrote them. Before the first ``add``."""
        self._first = first

    def merge(self, kept: int) -> None:
        """Merge the small blocks from the number ``kept`` on, but for the newest block.

        Raises:
            GenerationFenced: another process owns the job.
            CheckpointError: a file cannot be read or written now. Its blocks stay files of their own.
        """
        passed = min(max(0, kept - self._first), len(self._sizes))
        # The newest stays a file, as the last of its generation always does: a seal comes after it.
        runs, decided = runs_to_merge(self._sizes[passed:-1], self._most)
        first = self._first + passed
        # Decided once: blocks of which it is not known whether they were merged are not merged again.
        del self._sizes[: passed + decided]
        self._first = first + decided
        for run in runs:
            self._merge([BlockId(self._generation, first + number) for number in run])

    def _merge(self, blocks: Sequence[BlockId]) -> None:
        failpoint("received.merge.before")
        contents = [self._filesystem.read(paths.block(self._folder, block)) for block in blocks]
        whole = [content for content in contents if content is not None]
        if len(whole) < len(blocks):
            return  # one was deleted by hand: the reader says so if it needs it
        self._refuse_if_claimed()
        path = paths.merged_blocks(self._folder, blocks[0], blocks[-1])
        try:
            created = self._filesystem.create(path, encode_merged(whole))
        except UnknownOutcome as error:
            msg = f"Whether {path} is durable is not known. The files of its blocks stay."
            raise StorageFailed(msg) from error
        if created is Created.EXISTS:
            return  # it was put there by hand, and may hold anything
        failpoint("received.merge.written")
        # A successor that has listed the folder before finds a block that is gone in the merged file: it lists again.
        # The log is asked all the same, since an operator may have replaced a block.
        self._refuse_if_claimed()
        for block in blocks:
            failpoint("received.merge.delete")
            self._filesystem.delete(paths.block(self._folder, block))
