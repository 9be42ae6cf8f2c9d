"""Which files may be deleted: planned, recorded in the log, then deleted.

Only what an entry condemns is deleted, and what is condemned can never be restored. So a clean-up may run late, twice,
or in a process that no longer owns the log (G1 to G4).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.entries import NO_ENTRY, Condemn, Manifest, Rewind
from penstock.checkpoint.history import History, abandoned_ids
from penstock.errors import InternalError
from penstock.failpoints import failpoint
from penstock.filesystem.base import FileSystem
from penstock.handles import CheckpointId, Committable, EntryNumber, Generation

DEFAULT_RETAINED: Final = 3
"""Number of the newest checkpoints that are kept restorable by default."""
_STAGED: Final = re.compile(r"(/.*/\.penstock/([^/]+))/[^/]+/\d+/.+")

# ---- what is needed -------------------------------------------------------------------------------------------------


def layers_of(manifest: Manifest) -> frozenset[str]:
    """Paths of every file of state that a checkpoint's restore reads."""
    return frozenset(file.path for file in manifest.state_files)


def staged_of(items: Iterable[Committable]) -> frozenset[str]:
    """Paths of every staged file that publishing these committables reads."""
    return frozenset(file.path for item in items for file in item.files)


def needed_files(history: History) -> frozenset[str]:
    """Paths of the files that must exist (G1).

    These are layers of every restorable checkpoint, and staged files of all that is open or still to be voided.
    """
    layers = (layers_of(manifest) for manifest in history.restorable.values())
    return frozenset().union(*layers, staged_of(history.open_committables), staged_of(history.to_void))


def stages_of(history: History) -> tuple[str, ...]:
    """Folders next to targets in which sinks of this log have staged a file that an entry names.

    >>> _STAGED.fullmatch("/out/.penstock/log-1/totals-out/7/3/part-0.json").groups()
    ('/out/.penstock/log-1', 'log-1')
    """
    named = chain.from_iterable(_named(history))
    matches = (_STAGED.fullmatch(path) for path in named)
    return tuple(sorted({match[1] for match in matches if match is not None and match[2] == history.log_id}))


def _named(history: History) -> Iterator[tuple[str, ...]]:
    for entry in history.entries:
        match entry.body:
            case Manifest(open=items) as manifest:
                yield tuple(file.path for item in items for file in item.files)
                yield manifest.condemned_files
            case Rewind(discard=items):
                yield tuple(file.path for item in items for file in item.files)
            case Condemn(files=files):
                yield files


# ---- what a manifest condemns ---------------------------------------------------------------------------------------


def collect(
    manifest: Manifest,
    history: History,
    *,
    retained: int = DEFAULT_RETAINED,
    deleted: EntryNumber = NO_ENTRY,
    orphans: Sequence[str] = (),
) -> Manifest:
    """The manifest completed with what it condemns and undoes, how far deletions are done, and the floor.

    Args:
        manifest: about to be appended.
        history: all entries before it.
        retained: how many checkpoints stay restorable, including this one and not counting pinned ones.
        deleted: deletions recorded up to this entry are done, as :func:`delete_recorded` returned it.
        orphans: files of older generations that no entry names (:func:`orphans_of`).
    """
    if retained < 1:
        msg = f"at least the newest checkpoint is kept, got retained={retained}"
        raise InternalError(msg)
    condemned = _beyond_retained(_with(history, manifest), manifest.checkpoint, retained)
    final = replace(manifest, condemned=condemned, undone=abandoned_ids(manifest, history))
    after = _with(history, final)
    done = max(deleted, history.deleted)
    return replace(
        final,
        condemned_files=_unneeded(after, orphans),
        deleted=done,
        floor=_floor(after, done, at_least=history.floor),
    )


def _with(history: History, manifest: Manifest) -> History:
    """The history as it will be once this manifest is in the log."""
    newest = history.entries[-1]
    number = EntryNumber(history.tail + 1)
    return replace(history, entries=(*history.entries, replace(newest, number=number, body=manifest)), tail=number)


def _beyond_retained(history: History, newest: CheckpointId, retained: int) -> tuple[CheckpointId, ...]:
    free = sorted((key for key in history.restorable if key not in history.pinned), reverse=True)
    return tuple(sorted(key for key in free[retained:] if key != newest))


def _unneeded(history: History, orphans: Sequence[str]) -> tuple[str, ...]:
    """Named files and orphans that are not needed and not condemned yet."""
    named: set[str] = set(orphans)
    for _, manifest in history.manifests.values():
        named |= layers_of(manifest) | staged_of(manifest.open)
    for entry in history.entries:
        if isinstance(entry.body, Rewind):
            named |= staged_of(entry.body.discard)
    condemned = frozenset(history.condemned_files())
    return tuple(sorted(path for path in named - condemned - needed_files(history) if paths.is_ours(path)))


def _floor(history: History, done: EntryNumber, *, at_least: EntryNumber) -> EntryNumber:
    """The number below which no entry is needed: of the oldest restorable checkpoint, or of a deletion not yet done.

    Condemnations, pins and the last rewind have higher numbers than the checkpoints they name, so they stay as long as
    those do. A rewind older than every restorable checkpoint has no effect any more: the newest checkpoint follows it.
    """
    oldest = min(number for key, (number, _) in history.manifests.items() if key not in history.condemned)
    not_deleted = (number for number, _ in history.condemnations(after=done))
    return max(at_least, min(oldest, *not_deleted, history.tail))


def orphans_of(history: History, own: Generation, files: Iterable[str]) -> tuple[str, ...]:
    """Those of the existing files that belong to generations below ``own`` and that no entry names (G2).

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
    done = history.tail
    for path in history.condemned_files(after=history.deleted):
        failpoint("gc.delete.before")
        filesystem.delete(path)
        failpoint("gc.delete.after")
    return done
