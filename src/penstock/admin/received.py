"""The write-ahead log of a job's sources, for operators: who holds its blocks, and going on without a damaged one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.admin.gc import local_path, stat_file
from penstock.checkpoint import paths
from penstock.checkpoint.entries import Condemn
from penstock.checkpoint.merged_blocks import (
    BlockFile,
    BlockFiles,
    BlockFolder,
    block_file,
    folders_of,
    read_merged,
)
from penstock.checkpoint.received import SEAL, recorded
from penstock.checkpoint.request_keys import split_keys
from penstock.connectors.receivers.blocks import decode_block, empty_block
from penstock.errors import CheckpointUnreadable, StateIncompatible, UnknownName
from penstock.failpoints import failpoint

if TYPE_CHECKING:
    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import History
    from penstock.control.client import JobDirectory
    from penstock.filesystem.base import FileSystem
    from penstock.handles import CheckpointId

LOW_SPACE: Final = 1 << 30
"""Bytes that should be free on a disk that takes received rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBlocks:
    """The bytes of blocks that a start from one checkpoint would read; ``names`` are its savepoints."""

    checkpoint: CheckpointId
    names: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBlocks:
    """The blocks of one source.

    Attributes:
        uid: of the source.
        blocks: their number; seals do not count.
        bytes: of all of them.
        unread_bytes: of those that the next start reads.
        held: what each restorable checkpoint holds, oldest first.
    """

    uid: str
    blocks: int
    bytes: int
    unread_bytes: int
    held: tuple[HeldBlocks, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedLog:
    """The blocks of all sources of a job, and the bytes that are free on their disk, if that is known."""

    sources: tuple[KeptBlocks, ...] = ()
    free: int | None = None

    def warning(self, job: str) -> str | None:
        """What to do before the disk is full; ``None`` if there is room, or nothing is kept."""
        if not self.sources or self.free is None or self.free >= LOW_SPACE:
            return None
        kept = sum(each.bytes for each in self.sources)
        oldest = min(
            (held for each in self.sources for held in each.held), key=lambda held: held.checkpoint, default=None
        )
        what = f"The disk has {self.free:,} bytes left, and received rows take {kept:,}."
        if oldest is not None and oldest.names:
            return f"{what} Drop the oldest savepoint with penstock savepoint drop {job} {oldest.names[0]}."
        return f"{what} Free some space, or let the job catch up."


def read_received(filesystem: FileSystem, history: History) -> ReceivedLog:
    """The write-ahead logs of all sources.

    Raises:
        StorageFailed: the folder cannot be read.
    """
    found: dict[str, dict[BlockFile, int]] = {}
    for uid, folder in folders_of(filesystem.list(paths.WAL)).items():
        for each in folder.files:
            file = stat_file(filesystem, each.path)
            if file is not None and file.length != len(SEAL):  # blocks are longer
                found.setdefault(uid, {})[each] = file.length
    local = local_path(filesystem, "")
    free = shutil.disk_usage(local).free if found and local is not None else None
    sources = tuple(kept_blocks(history, uid, files) for uid, files in found.items())
    return ReceivedLog(sources=sources, free=free)


def kept_blocks(history: History, uid: str, files: Mapping[BlockFile, int]) -> KeptBlocks:
    """Who holds the blocks of a source, whose files have these lengths."""
    held = tuple(
        HeldBlocks(
            checkpoint=key, names=history.names_of(key), bytes=sum(_from_position(history, manifest, uid, files))
        )
        for key, manifest in sorted(history.restorable.items())
    )
    return KeptBlocks(
        uid=uid,
        blocks=len({block for file in files for block in file.blocks}),
        bytes=sum(files.values()),
        unread_bytes=sum(_from_position(history, history.restore_point, uid, files)),
        held=held,
    )


def _from_position(
    history: History, manifest: Manifest | None, uid: str, files: Mapping[BlockFile, int]
) -> Iterable[int]:
    """The lengths of the files with a block that a checkpoint has not read; without a position in them, of all."""
    position = None if manifest is None else recorded(manifest, uid, history.log_id)
    return (length for file, length in files.items() if position is None or file.last >= position.next)


# ---- going on without a block ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedBlock:
    """A block whose rows will not be read.

    Attributes:
        path: of the block, below the job's directory.
        reason: why it cannot be read.
        bytes: of what was there.
    """

    path: str
    reason: str
    bytes: int


def unreadable_block(filesystem: FileSystem, path: str) -> SkippedBlock:
    """The block at a path that cannot be read, or the merged file that does not say where its blocks are.

    Raises:
        UnknownName: it is not the path of a block that was written.
        StateIncompatible: the block is sound.
    """
    file = block_file(path)
    uid = path.split("/")[1] if file is not None else ""
    folder = BlockFolder.of(filesystem.list(f"{paths.WAL}/{uid}")) if file is not None else BlockFolder()
    if file is None or not _was_written(file, folder):
        msg = f"{path} is no block of received rows. Give the path of one, as penstock verify shows it."
        raise UnknownName(msg)
    data = filesystem.read(path)
    found = len(data) if data is not None else 0
    try:
        if file.first != file.last:
            read_merged(filesystem, file)
        else:
            data = BlockFiles(uid, filesystem).read(file.first)
            if data is None:
                return SkippedBlock(path=path, reason="it is missing", bytes=0)
            found = len(data)
            if data != SEAL:
                decode_block(split_keys(data, path)[0], path)
    except CheckpointUnreadable as error:
        return SkippedBlock(path=path, reason=str(error), bytes=found)
    msg = f"{path} is sound, and its rows can be read. Nothing was skipped."
    raise StateIncompatible(msg)


def _was_written(file: BlockFile, folder: BlockFolder) -> bool:
    """Whether a block is there, or a later one of its generation is; a merged file has to be there itself."""
    if file.first != file.last:
        return file in folder.files
    return any(each.generation == file.first.generation and each >= file.first for each in folder.blocks)


def skip_block(job: JobDirectory, path: str) -> SkippedBlock:
    """Put an empty block in the place of one that cannot be read, once the log of the job records it.

    All blocks of a merged file that cannot be read become empty, but for those that have a file of their own too.

    Raises:
        JobIsRunning: the job runs.
        UnknownName: it is not the path of a block that was written.
        StateIncompatible: the block is sound.
        CheckpointError: the log or the folder cannot be read or written.
    """
    with job.own() as owned:
        found = unreadable_block(job.filesystem, path)
        reason = f"skipped {path}, a block of received rows: {found.reason}"
        owned.append(Condemn(checkpoints=(), files=(), at=job.now(), reason=reason))
        failpoint("received.skip.before")
        file = block_file(path)
        assert file is not None  # it was found
        if file.first == file.last:
            job.filesystem.delete(path)  # if this is all that is done, the block is missing, and can be skipped again
        for block in file.blocks:
            job.filesystem.create(paths.block(path.split("/")[1], block), empty_block())
        if file.first != file.last:
            job.filesystem.delete(path)  # last: until then it can be skipped again
    return found
