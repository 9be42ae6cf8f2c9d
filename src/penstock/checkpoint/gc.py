"""What may be deleted: planned (pure), recorded in the log, then carried out. Fails closed; knows no file's meaning.

Only what an entry condemns is deleted, and what is condemned can never be restored: so a clean-up may run late, twice,
or in a process that no longer owns the log (G1 to G4, and hole 38).
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

_STAGES: Final = re.compile(r"(/.*/\.penstock/([^/]+))/[^/]+/\d+/.+")
DEFAULT_RETAINED: Final = 3
"""How many of the newest checkpoints are kept restorable if nobody says otherwise."""


def layers_of(manifest: Manifest) -> frozenset[str]:
    """Every file of state that a checkpoint's restore reads."""
    return frozenset(file.path for file in manifest.state_files)


def staged_of(items: Iterable[Committable]) -> frozenset[str]:
    """Every staged file that publishing these reads."""
    return frozenset(file.path for item in items for file in item.files)


def needed_files(history: History) -> frozenset[str]:
    """The files that must exist: layers of every restorable checkpoint, staged output of all that is open (G1).

    The restore point is always restorable; a discarded committable is needed until its void is known, too.
    """
    layers = (layers_of(manifest) for manifest in history.restorable.values())
    return frozenset().union(*layers, staged_of(history.open_committables), staged_of(history.to_void))


def stages_of(history: History) -> tuple[str, ...]:
    """Folders beside targets in which sinks of this log have staged something that an entry names.

    >>> _STAGES.fullmatch("/out/.penstock/log-1/totals-out/7/3/part-0.json").groups()
    ('/out/.penstock/log-1', 'log-1')
    """
    named = chain.from_iterable(_named(history))
    matches = (_STAGES.fullmatch(path) for path in named)
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


def collect(
    manifest: Manifest,
    history: History,
    *,
    retained: int = DEFAULT_RETAINED,
    deleted: EntryNumber = NO_ENTRY,
    orphans: Sequence[str] = (),
) -> Manifest:
    """The manifest with all that rides in it: what it condemns and leaves, how far deletions are done, the floor.

    Args:
        manifest: about to be appended.
        history: all entries before it.
        retained: how many checkpoints stay restorable, this one included and pinned ones not counted.
        deleted: deletions recorded up to this entry are done, as :func:`delete_recorded` returned it.
        orphans: files of older generations that no entry names (:func:`orphans_of`).
    """
    if retained < 1:
        msg = f"at least the newest checkpoint is kept, got retained={retained}"
        raise InternalError(msg)
    with_it = _with(history, manifest)
    condemned = _too_many(with_it, manifest.checkpoint, retained)
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


def _too_many(history: History, newest: CheckpointId, retained: int) -> tuple[CheckpointId, ...]:
    free = sorted((key for key in history.restorable if key not in history.pinned), reverse=True)
    return tuple(sorted(key for key in free[retained:] if key != newest))


def _unneeded(history: History, orphans: Sequence[str]) -> tuple[str, ...]:
    """Files that entries name, or that nobody names, and that nobody needs: each is condemned once."""
    named: set[str] = set(orphans)
    for _, manifest in history.manifests.values():
        named |= layers_of(manifest) | staged_of(manifest.open)
    for entry in history.entries:
        if isinstance(entry.body, Rewind):
            named |= staged_of(entry.body.discard)
    gone = frozenset(history.condemned_files())
    return tuple(sorted(path for path in named - gone - needed_files(history) if paths.is_ours(path)))


def _floor(history: History, done: EntryNumber, *, at_least: EntryNumber) -> EntryNumber:
    """Below the oldest restorable checkpoint, and below what deletions are not done, nothing is needed (hole 38).

    Condemnations, pins and the last rewind stand above the checkpoints that they speak of, so they stay as long as
    those do; a rewind older than every restorable checkpoint has been overtaken by the newest one.
    """
    oldest = min(number for key, (number, _) in history.manifests.items() if key not in history.condemned)
    undone = (number for number, _ in history.condemnations(after=done))
    return max(at_least, min(oldest, *undone, history.tail))


def orphans_of(history: History, own: Generation, files: Iterable[str]) -> tuple[str, ...]:
    """Of the files that exist, those of generations below ``own`` that no entry names: to be condemned by name (G2).

    What a paused process of an older generation writes from now on can never be referenced again. Write-ahead blocks
    and files outside our folders are never orphans.
    """
    kept = needed_files(history) | frozenset(history.condemned_files())
    older = (path for path in files if _is_older(path, own) and _is_of_log(path, history.log_id))
    return tuple(sorted(path for path in older if path not in kept))


def _is_older(path: str, own: Generation) -> bool:
    generation = paths.generation_of(path)
    return generation is not None and generation < own


def _is_of_log(path: str, log_id: str | None) -> bool:
    """Beside a sink's target the staged files of several logs may lie; in the job's directory all are of its own."""
    return not path.startswith("/") or f"/.penstock/{log_id}/" in path


def delete_recorded(filesystem: FileSystem, history: History) -> EntryNumber:
    """Delete every file whose deletion is recorded and not known to be done; once more does no harm.

    Returns:
        The entry up to which deletions are done now, for the next manifest's ``deleted``.
    """
    done = history.tail
    for path in history.condemned_files(after=history.deleted):
        failpoint("gc.delete.before")
        filesystem.delete(path)
        failpoint("gc.delete.after")
    return done
