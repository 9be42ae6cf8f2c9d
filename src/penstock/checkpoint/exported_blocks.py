"""Received rows in an export: the blocks that a checkpoint has not read, and how another log takes them in.

An imported source goes on in a folder of its own, which only its position names. So what a crash left half copied is
read by nobody. The blocks are the first ones of the importing generation there, and its writer goes on behind them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from penstock.checkpoint import paths
from penstock.checkpoint.entries import Manifest
from penstock.checkpoint.merged_blocks import BlockFiles, folders_of
from penstock.checkpoint.received import SEAL, ReceivedPosition, missing, recorded_positions
from penstock.checkpoint.request_keys import every_key, key_file_content
from penstock.errors import CheckpointUnreadable, StateIncompatible
from penstock.filesystem.base import FileSystem
from penstock.handles import RECEIVED, BlockId, FileRef, Generation, TaskSnapshot

_IMPORTED = "@"
"""Between a source's uid and the generation that imported it, in the name of its folder; no uid has this character."""


def received_files(filesystem: FileSystem, manifest: Manifest, log_id: str | None) -> Iterator[tuple[str, bytes]]:
    """The blocks that a start from a checkpoint would read, and all keys of requests: paths and contents.

    A pin of the checkpoint keeps the blocks while they are read.

    Raises:
        CheckpointUnreadable: one is missing or damaged.
    """
    for _, position in recorded_positions(manifest, log_id):
        files = BlockFiles(position.uid, filesystem)
        found = files.list().blocks
        gaps = missing(found, position.next)
        for block in (*gaps, *sorted(block for block in found if block >= position.next)):
            data = files.read(block)
            if data is None:
                msg = (
                    f"{paths.block(position.uid, block)} is missing: rows in it were acknowledged and are not read "
                    "yet. Restore the file from a copy, or go on without its rows with penstock skip."
                )
                raise CheckpointUnreadable(msg)
            if data != SEAL:
                yield paths.block(position.uid, block), data
        if keys := every_key(position.uid, filesystem, SEAL):
            first = BlockId(Generation(0), 0)  # before every block: an import reads the keys of all of them
            yield paths.key_file(position.uid, first), key_file_content(keys, covered=first)


def is_received_file(path: str) -> bool:
    """Whether a path is one that ``received_files`` gives.

    >>> is_received_file("wal/in/7/00000000000000000003.block"), is_received_file("wal/../log/0")
    (True, False)
    """
    return ".." not in path.split("/") and (paths.block_id(path) is not None or paths.key_file_id(path) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBlocks:
    """A source of an import: its snapshot in this log, and each exported file with its path here."""

    snapshot: TaskSnapshot
    files: tuple[tuple[FileRef, str], ...]


def move_blocks(
    snapshot: TaskSnapshot, exported: Collection[FileRef], *, log_id: str, generation: Generation
) -> MovedBlocks:
    """Give the blocks of an exported source the first numbers of our generation, in a folder of their own."""
    assert snapshot.position is not None  # of received rows
    position = ReceivedPosition.decode(snapshot.position)
    folder = f"{snapshot.task}{_IMPORTED}{generation}"
    own = [file for file in exported if file.path.startswith(f"{paths.WAL}/{position.uid}/")]
    blocks = sorted((block, file) for file in own if (block := paths.block_id(file.path)) is not None)
    files = [(file, paths.block(folder, BlockId(generation, number))) for number, (_, file) in enumerate(blocks)]
    keys = [file for file in own if paths.key_file_id(file.path) is not None]
    files += [(file, paths.key_file(folder, BlockId(generation, number))) for number, file in enumerate(keys)]
    moved = replace(position, log_id=log_id, uid=folder, next=BlockId(generation, 0), sealed=generation)
    return MovedBlocks(snapshot=replace(snapshot, position=moved.encode()), files=tuple(files))


def has_received(snapshot: TaskSnapshot) -> bool:
    """Whether a source has a position in received blocks."""
    return snapshot.position is not None and snapshot.position.kind == RECEIVED


def is_left_over(folder: str, named: Collection[str]) -> bool:
    """Whether a folder of blocks is what an import left that never got into the log; ``named`` are those of positions.

    >>> is_left_over("in@7", {"in"}), is_left_over("in@7", {"in@7"}), is_left_over("in", ())
    (True, False, False)
    """
    return _IMPORTED in folder and folder not in named


def imported_by(folder: str) -> Generation | None:
    """The generation that made a folder of blocks for an import; ``None`` for any other folder.

    >>> imported_by("in@7"), imported_by("in"), imported_by("in@7.bak")
    (7, None, None)
    """
    _, sign, generation = folder.rpartition(_IMPORTED)
    return Generation(int(generation)) if sign and generation.isdecimal() else None


def refuse_own_rows(filesystem: FileSystem, folders: Mapping[str, str]) -> None:
    """Refuse an import of received rows beside rows that its sources have here: nobody would read those.

    Args:
        filesystem: rooted at the job's directory.
        folders: those that may hold such rows, each with its source.

    Raises:
        StateIncompatible: there are such rows.
    """
    for folder, found in folders_of(filesystem.list(paths.WAL)).items():
        files = BlockFiles(folder, filesystem)
        if folder in folders and any(files.read(block) not in (None, SEAL) for block in sorted(found.blocks)):
            msg = (
                f"The export holds received rows of source {folders[folder]!r}, and this state directory has rows of "
                "its own that the source was given. Go on with those by penstock run … without --from, or start from "
                "the export in another state directory."
            )
            raise StateIncompatible(msg, uid=folders[folder])
