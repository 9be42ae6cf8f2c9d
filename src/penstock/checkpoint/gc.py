"""Garbage collection: which files may be deleted; a deletion is recorded in the log before it is done.

Only what an entry condemns is deleted, and what is condemned can never be restored. So a clean-up may run late, twice,
or in a process that no longer owns the log (G1 to G4).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.entries import NO_ENTRY, Condemn, Manifest, Rewind
from penstock.checkpoint.history import History, abandoned_ids
from penstock.errors import InternalError, StateDirectoryRefused
from penstock.failpoints import failpoint
from penstock.filesystem.base import FileSystem
from penstock.handles import CheckpointId, Committable, EntryNumber, Generation

log = logging.getLogger("penstock")
DEFAULT_RETAINED: Final = 3
"""Number of the newest checkpoints that are kept restorable by default."""
_STAGED: Final = re.compile(r"(/.*/\.penstock/([^/]+))/[^/]+/\d+/.+")
"""Path of a staged file. Groups: the folder of its log, the log's id."""

# ---- what is needed -------------------------------------------------------------------------------------------------


def layers_of(manifest: Manifest) -> frozenset[str]:
    """Paths of the state files that restoring a checkpoint reads."""
    return frozenset(file.path for file in manifest.state_files)


def staged_of(items: Iterable[Committable]) -> frozenset[str]:
    """Paths of the staged files that publishing these committables reads."""
    return frozenset(file.path for item in items for file in item.files)


def needed_files(history: History) -> frozenset[str]:
    """Paths of the files that must exist (G1).

    These are the layers of every restorable checkpoint, and the staged files of open committables and of those that
    are still to be voided.
    """
    layers = (layers_of(manifest) for manifest in history.restorable.values())
    return frozenset().union(*layers, staged_of(history.open_committables), staged_of(history.to_void))


def stages_of(history: History) -> tuple[str, ...]:
    """Folders next to targets in which sinks of this log have staged a file that an entry names.

    >>> _STAGED.fullmatch("/out/.penstock/log-1/totals-out/7/3/part-0.json").groups()
    ('/out/.penstock/log-1', 'log-1')
    """
    matches = (_STAGED.fullmatch(path) for path in _recorded_files(history))
    return tuple(sorted({match[1] for match in matches if match is not None and match[2] == history.log_id}))


def _recorded_files(history: History) -> Iterator[str]:
    """Paths of the staged files and of the condemned files that entries name."""
    for entry in history.entries:
        match entry.body:
            case Manifest(open=items) as manifest:
                yield from staged_of(items)
                yield from manifest.condemned_files
            case Rewind(discard=items):
                yield from staged_of(items)
            case Condemn(files=files):
                yield from files


# ---- what a manifest condemns ---------------------------------------------------------------------------------------


def collect(
    manifest: Manifest,
    history: History,
    *,
    retained: int = DEFAULT_RETAINED,
    deleted: EntryNumber = NO_ENTRY,
    orphans: Sequence[str] = (),
) -> Manifest:
    """Complete a manifest: with what it condemns and undoes, how far deletions are done, and the floor.

    Args:
        manifest: the one to be appended next.
        history: all entries before it.
        retained: how many checkpoints stay restorable, including this one and not counting pinned ones.
        deleted: the entry up to which deletions are done, as ``delete_recorded`` returned it.
        orphans: files of older generations that no entry names (``orphans_of``).
    """
    if retained < 1:
        msg = f"At least the newest checkpoint is kept, but retained is {retained}."
        raise InternalError(msg)
    condemned = _checkpoints_to_condemn(_with_manifest(history, manifest), manifest.checkpoint, retained)
    final = replace(manifest, condemned=condemned, undone=abandoned_ids(manifest, history))
    after = _with_manifest(history, final)
    done = max(deleted, history.deleted)
    return replace(
        final,
        condemned_files=_files_to_condemn(after, orphans),
        deleted=done,
        floor=_floor(after, done, at_least=history.floor),
    )


def _with_manifest(history: History, manifest: Manifest) -> History:
    """The history as it will be once ``manifest`` is appended."""
    newest = history.entries[-1]
    number = EntryNumber(history.tail + 1)
    return replace(history, entries=(*history.entries, replace(newest, number=number, body=manifest)), tail=number)


def _checkpoints_to_condemn(history: History, newest: CheckpointId, retained: int) -> tuple[CheckpointId, ...]:
    """Restorable checkpoints that have no pin and are not among the ``retained`` newest; never ``newest`` itself."""
    unpinned = sorted((id for id in history.restorable if id not in history.pinned), reverse=True)
    return tuple(sorted(id for id in unpinned[retained:] if id != newest))


def _files_to_condemn(history: History, orphans: Sequence[str]) -> tuple[str, ...]:
    """Files of manifests, of discarded output, and orphans, that are neither needed nor condemned yet."""
    named: set[str] = set(orphans)
    for _, manifest in history.manifests.values():
        named |= layers_of(manifest) | staged_of(manifest.open)
    for entry in history.entries:
        if isinstance(entry.body, Rewind):
            named |= staged_of(entry.body.discard)
    condemned = frozenset(history.condemned_files())
    return tuple(sorted(path for path in named - condemned - needed_files(history) if paths.is_ours(path)))


def _floor(history: History, done: EntryNumber, *, at_least: EntryNumber) -> EntryNumber:
    """Number of the first entry that is needed: the oldest restorable checkpoint's, or one with a deletion not done.

    Condemnations, pins and the last rewind have higher numbers than the checkpoints they name, so they stay as long as
    those do. A rewind older than every restorable checkpoint has no effect any more: the newest checkpoint follows it.
    """
    oldest = min(number for id, (number, _) in history.manifests.items() if id not in history.condemned)
    not_deleted = (number for number, _ in history.condemnations(after=done))
    return max(at_least, min(oldest, *not_deleted, history.tail))


def orphans_of(history: History, own: Generation, files: Iterable[str]) -> tuple[str, ...]:
    """Files that belong to generations below ``own`` and that no entry names, out of the existing ``files`` (G2).

    A paused process of an older generation may still write files, but no entry can name them any more. Write-ahead
    blocks and files outside penstock's folders are never orphans.
    """
    kept = needed_files(history) | frozenset(history.condemned_files())
    older = (path for path in files if _is_older(path, own) and _is_of_log(path, history.log_id))
    return tuple(sorted(path for path in older if path not in kept))


def _is_older(path: str, own: Generation) -> bool:
    generation = paths.generation_of(path)
    return generation is not None and generation < own


def _is_of_log(path: str, log_id: str | None) -> bool:
    # Next to a sink's target, files of several logs may be staged; in the job's directory all belong to its own log.
    return not path.startswith("/") or f"/.penstock/{log_id}/" in path


# ---- deletion -------------------------------------------------------------------------------------------------------


def delete_recorded(filesystem: FileSystem, history: History) -> EntryNumber:
    """Delete every file whose deletion is recorded and not known to be done; repeating it does no harm.

    Returns:
        The entry up to which deletions are done, for the next manifest's ``deleted``.
    """
    delete_files(filesystem, history.condemned_files(after=history.deleted))
    return history.tail


def delete_files(filesystem: FileSystem, condemned: Iterable[str]) -> None:
    """Delete condemned files, and the folders of their layers: a job makes thousands a day."""
    folders = set()
    for path in condemned:
        failpoint("gc.delete.before")
        delete_file(filesystem, path)
        failpoint("gc.delete.after")
        if (folder := paths.layer_folder(path)) is not None:
            folders.add(folder)
    for folder in folders:
        filesystem.remove_empty_folders(folder)


def delete_file(filesystem: FileSystem, path: str) -> None:
    """Delete a condemned file. One beside a sink's target that this user may no longer delete stays, with a warning.

    Raises:
        StorageFailed: it cannot be deleted now.
        StateDirectoryRefused: it lies in the job's directory, where this user may not delete it.
    """
    try:
        filesystem.delete(path)
    except StateDirectoryRefused as error:
        if not path.startswith("/"):
            raise
        log.warning("a file that is no longer needed stays: %s", error)  # the target is somebody else's by now
