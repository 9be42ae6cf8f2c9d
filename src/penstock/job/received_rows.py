"""What received rows refuse a start: one that would leave some unread, and one whose sources would share a folder."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import paths
from penstock.checkpoint.exported_blocks import has_received, is_left_over, refuse_own_rows
from penstock.checkpoint.merged_blocks import BlockFiles, folders_of
from penstock.checkpoint.received import (
    SEAL,
    folder_of,
    named_folders,
    recorded,
    recorded_positions,
    source_folders,
)
from penstock.checkpoint.recovery import decide_recovery
from penstock.checkpoint.request_keys import split_keys
from penstock.connectors.receivers.blocks import decode_block
from penstock.errors import CheckpointUnreadable, StateIncompatible

if TYPE_CHECKING:
    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.export import Import
    from penstock.checkpoint.history import History
    from penstock.checkpoint.recovery import Recovery
    from penstock.clock import WallTime
    from penstock.filesystem.base import FileSystem


def restored_manifest(recovery: Recovery, history: History) -> Manifest | None:
    """The checkpoint that a recovery restores, also if it is not imported yet; ``None`` for an empty start."""
    if recovery.bring is not None:
        return recovery.bring.manifest
    return None if recovery.restored is None else history.manifests[recovery.restored][1]


def restored_anyway(history: History, resolved: Mapping[str, Any], *, at: WallTime) -> Manifest | None:
    """The checkpoint that a start restores, whatever its pipeline is.

    Args:
        history: of the job's log.
        resolved: the options of the start, as ``decide_recovery`` takes them.
        at: the present time.
    """
    anyhow: dict[str, Any] = {**resolved, "allow_non_restored_state": True, "rename": {}}
    return restored_manifest(decide_recovery(history, (), at=at, **anyhow), history)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadRows:
    """Rows that a source was given and that a start does not read, with the bytes of their blocks."""

    uid: str
    rows: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.rows:,} rows ({self.bytes:,} bytes) of '{self.uid}'"


def refuse_unread_rows(
    filesystem: FileSystem, history: History, restored: Manifest | None, sources: Collection[str]
) -> None:
    """Refuse a start that leaves received rows behind which the restored checkpoint has not read.

    The pipeline lacks their source, or the checkpoint reads another folder of it, from before or after an import.

    Args:
        filesystem: rooted at the job's directory.
        history: of the job's log.
        restored: the checkpoint that the start goes on from; without one, all blocks are unread.
        sources: the uids of the pipeline, and those that it renames.

    Raises:
        StateIncompatible: there are such rows.
    """
    positions = {} if restored is None else dict(recorded_positions(restored, history.log_id))
    read = {positions[uid].uid if uid in positions else folder_of(history, uid) for uid in sources}
    unread = [each for each in unread_rows(filesystem, history, restored, read) if each.rows]
    if not unread:
        return
    own = source_folders(history, sources)
    if unread[0].uid in own:
        why = "this start reads another folder of that source, from before or after an import"
        remedy = "Read them with penstock run … --from a checkpoint of that folder"
    else:
        why = "the pipeline has no such source"
        remedy = "Give the source its uid again and read them with penstock run … --until caught-up"
    msg = (
        f"The log of received rows holds {' and '.join(map(str, unread))} that were acknowledged and are not read yet, "
        f"and {why}. {remedy}, or leave them unread with penstock run … --allow-non-restored-state."
    )
    raise StateIncompatible(msg, uid=own.get(unread[0].uid, unread[0].uid))


def refuse_shared_folder(history: History, restored: Manifest | None, sources: Collection[str]) -> None:
    """Refuse a new source that has the old uid of one that was renamed: their blocks would lie in one folder.

    Raises:
        StateIncompatible: there is such a source.
    """
    if restored is None:
        return
    positions = dict(recorded_positions(restored, history.log_id))
    for uid, position in positions.items():
        if position.uid != uid and uid in sources and position.uid in sources and position.uid not in positions:
            msg = (
                f"Source {position.uid!r} is new, and the received rows of source {uid!r} lie in the folder of that "
                "name, from before it was renamed. Give the new source another uid."
            )
            raise StateIncompatible(msg, uid=position.uid)


def refuse_rows_beside_import(
    filesystem: FileSystem, history: History, bring: Import | None, rename: Mapping[str, str]
) -> None:
    """Refuse an import of received rows into a state directory that holds rows of its sources already.

    A log that takes its own export back reads the blocks that it still has, and is refused if it has deleted some.

    Raises:
        StateIncompatible: there are such rows.
    """
    if bring is None or bring.is_brought or bring.export.received is None:
        return
    if bring.export.log_id == history.log_id:
        _refuse_deleted_blocks(filesystem, history, bring)
        return
    sources = {snapshot.task for snapshot in bring.manifest.tasks if has_received(snapshot)}
    sources |= {rename[uid] for uid in sources if uid in rename}
    refuse_own_rows(filesystem, source_folders(history, sources))


def _refuse_deleted_blocks(filesystem: FileSystem, history: History, bring: Import) -> None:
    # They are not copied back: a driver that was superseded may still be deleting blocks of these names.
    exported = {file.path for file in bring.export.received or ()}
    for uid, position in recorded_positions(bring.manifest, history.log_id):
        found = BlockFiles(position.uid, filesystem).list().blocks
        wanted = (block for path in exported if (block := paths.block_id(path)) is not None)
        gone = sorted(block for block in wanted if paths.block(position.uid, block) in exported and block not in found)
        if gone:
            msg = (
                f"The export holds received rows of source {uid!r} that this job has read since and deleted, such as "
                f"{paths.block(position.uid, gone[0])}. Go on by penstock run … without --from, or start from the "
                "export in another state directory."
            )
            raise StateIncompatible(msg, uid=uid)


def unread_rows(
    filesystem: FileSystem, history: History, restored: Manifest | None, kept: Collection[str]
) -> Iterator[UnreadRows]:
    """The rows in each folder that is not among these, in the order of their names."""
    named = named_folders(history)
    for uid, folder in folders_of(filesystem.list(paths.WAL)).items():
        if uid in kept or is_left_over(uid, named):
            continue
        position = None if restored is None else recorded(restored, uid, history.log_id)
        files = BlockFiles(uid, filesystem)
        rows = size = 0
        for block in sorted(folder.blocks):
            if position is not None and block < position.next:
                continue
            try:
                data = files.read(block)
            except CheckpointUnreadable:  # a merged file is damaged: each of its blocks had a row
                rows += 1
                continue
            if data is None or data == SEAL:
                continue
            size += len(data)
            read = position.row if position is not None and block == position.next else 0
            rows += _rows(data, paths.block(uid, block)) - read
        yield UnreadRows(uid=uid, rows=rows, bytes=size)


def _rows(data: bytes, place: str) -> int:
    """The number of rows in a block; one that is damaged counts as one, since it had some."""
    try:
        return int(decode_block(split_keys(data, place)[0], place).num_rows)
    except CheckpointUnreadable:
        return 1
