"""Who owns each file; deletes what nobody needs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from penstock.checkpoint import paths
from penstock.checkpoint.entries import Condemn
from penstock.checkpoint.gc import layers_of, orphans_of, staged_of, stages_of
from penstock.clock import WallTime
from penstock.dead_letters.store import FOLDER
from penstock.errors import JobIsRunning, StorageFailed
from penstock.failpoints import failpoint
from penstock.handles import CheckpointId, Generation

if TYPE_CHECKING:
    from penstock.checkpoint.history import History
    from penstock.control.client import JobDirectory
    from penstock.filesystem.base import FileSystem
    from penstock.handles import Committable


# ----------------------------------------------------------------------------------------------------
# Looks at files without changing them: length, age, content, and which there are. Knows no meaning of any.

_CHUNK: Final = 1 << 20
_STAGED_LETTERS = re.compile(r"deadletters/[^/]+/\.penstock/.+")
"""Beside their target, which is below the job's directory: entries name them by absolute paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file that is there: its bytes, and when it was last written, as far as its file system tells."""

    length: int
    written: WallTime | None


def stat_file(filesystem: FileSystem, path: str) -> Found | None:
    """What a file is from outside, or ``None`` if it is not there.

    Raises:
        StorageFailed: it cannot be looked at.
    """
    place = _place(filesystem, path)
    if place is None:
        data = filesystem.read(path)
        return None if data is None else Found(length=len(data), written=None)
    try:
        told = os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _failed(place, error) from error
    return Found(length=told.st_size, written=WallTime(told.st_mtime_ns // 1_000))


def sha256_of(filesystem: FileSystem, path: str, read: Callable[[int], None] = lambda _bytes: None) -> str | None:
    """The sha256 of a file's content, read piece by piece, or ``None`` if it is not there; ``read`` hears of each.

    Raises:
        StorageFailed: it cannot be read.
    """
    place = _place(filesystem, path)
    if place is None:
        data = filesystem.read(path)
        return None if data is None else sha256(data).hexdigest()
    found = sha256()
    try:
        with open(place, "rb") as content:
            while chunk := content.read(_CHUNK):
                found.update(chunk)
                read(len(chunk))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _failed(place, error) from error
    return found.hexdigest()


def files_of(filesystem: FileSystem, history: History) -> Iterator[str]:
    """Every file in the job's directory, and what its sinks have staged beside their targets, as far as the log says.

    Raises:
        StorageFailed: a folder cannot be listed.
    """
    yield from (path for path in filesystem.list("") if not _STAGED_LETTERS.fullmatch(path))
    for folder in stages_of(history):
        yield from filesystem.list(folder)


def generation_below(path: str) -> int | None:
    """The generation in whose folder a file lies, write-ahead blocks included.

    >>> generation_below("wal/socket/7/0"), generation_below("control/report.json")
    (7, None)
    """
    parts = path.split("/")
    if parts[0] == paths.WAL and len(parts) > 3 and parts[2].isdecimal():  # noqa: PLR2004 - wal/uid/generation/block
        return int(parts[2])
    return paths.generation_of(path)


def _place(filesystem: FileSystem, path: str) -> str | None:
    """Where the operating system finds it; ``None`` if it does not."""
    address = filesystem.url(path)
    return address.removeprefix("file://") if address.startswith("file:") else None


def _failed(place: str, error: OSError) -> StorageFailed:
    return StorageFailed(f"cannot look at {place}: {error.strerror or error}")


# ----------------------------------------------------------------------------------------------------
# Who owns each file of a job: what may be deleted, and what must not be. Decides for ``gc``, and deletes last.
#
# Only what an entry condemns is deleted (rules G1 to G4): so a clean-up records first, under a claim, then deletes.


class Owner(str, Enum):
    """Why a file is there. The order is that of a report."""

    CHECKPOINT = "checkpoint"
    """State that a checkpoint which can be restored needs."""
    OUTPUT = "output"
    """Staged output that waits to be published, or to be voided."""
    WRITING = "writing"
    """Of the generation that runs now: no entry names it yet."""
    WRITE_AHEAD = "write-ahead"
    """Blocks that a receiver logged; never deleted by ``gc``."""
    LOG = "log"
    """Entries."""
    CONTROL = "control"
    """Requests, answers, and the numbers of the last run."""
    DEAD_LETTERS = "dead-letters"
    """Rows that the pipeline gave up on, and replays of them; only ``deadletter drop`` deletes them."""
    CONDEMNED = "condemned"
    """An entry says that it may be deleted, and nobody has yet."""
    ORPHAN = "orphan"
    """Nobody needs it, and no entry says so: left behind by a generation that is over."""
    UNKNOWN = "unknown"
    """Not written by penstock, as far as its name tells; never deleted."""


DELETABLE = frozenset({Owner.CONDEMNED, Owner.ORPHAN})
"""What a clean-up deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedFile:
    """One file and whose it is.

    Attributes:
        path: below the job's directory, or absolute where a sink stages beside its target.
        length: bytes.
        written: when, as far as the file system tells.
        owner: why it is there.
        checkpoints: that need it.
        savepoints: names of those that have one.
        outputs: that it belongs to.
        generation: that wrote it, if its name says.
    """

    path: str
    length: int
    written: WallTime | None
    owner: Owner
    checkpoints: tuple[CheckpointId, ...] = ()
    savepoints: tuple[str, ...] = ()
    outputs: tuple[Committable, ...] = ()
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerTotal:
    """Files of one owner together."""

    owner: Owner
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Every file of a job at one moment.

    Attributes:
        files: sorted by owner, then by path.
        is_running: somebody runs the job, and cleans up by itself.
    """

    files: tuple[OwnedFile, ...]
    is_running: bool

    @property
    def sums(self) -> tuple[OwnerTotal, ...]:
        """By owner, in the order of :class:`Owner`; those without a file are left out."""
        found = []
        for owner in Owner:
            own = [file.length for file in self.files if file.owner is owner]
            if own:
                found.append(OwnerTotal(owner=owner, files=len(own), bytes=sum(own)))
        return tuple(found)

    @property
    def deletable(self) -> tuple[OwnedFile, ...]:
        """What a clean-up deletes."""
        return tuple(file for file in self.files if file.owner in DELETABLE)


def assign_owners(history: History, files: Iterable[str], *, own: Generation) -> dict[str, Owner]:
    """Whose each file is; pure. Files of generation ``own`` may belong to what is not in the log yet.

    A file that somebody needs is never deletable, whatever else an entry says of it.
    """
    there = tuple(dict.fromkeys(files))
    state, staged = _checkpoints(history), _outputs(history)
    condemned = frozenset(history.condemned_files())
    orphans = frozenset(orphans_of(history, own, there))

    def owner(path: str) -> Owner:
        if path in state:
            return Owner.CHECKPOINT
        if path in staged or _stem(path) in staged:
            return Owner.OUTPUT
        if path in condemned:
            return Owner.CONDEMNED
        if path in orphans:
            return Owner.ORPHAN if paths.is_ours(path) else Owner.UNKNOWN
        return Owner.WRITING if paths.generation_of(path) is not None else _by_folder(path)

    return {path: owner(path) for path in there}


def _stem(path: str) -> str:
    """What a sink leaves beside a staged file under its name and an ending says what became of it: it stays as long.

    >>> _stem("/out/.penstock/log-1/out/7/3/part-0.json.voided")
    '/out/.penstock/log-1/out/7/3/part-0.json'
    """
    return path.rpartition(".")[0]


def _by_folder(path: str) -> Owner:
    if paths.entry_number(path) is not None:
        return Owner.LOG
    if path == paths.REPORT or paths.control_id(path) is not None:
        return Owner.CONTROL
    if path.startswith(f"{FOLDER}/"):
        return Owner.DEAD_LETTERS
    return Owner.WRITE_AHEAD if path.startswith(f"{paths.WAL}/") else Owner.UNKNOWN


def _checkpoints(history: History) -> dict[str, list[CheckpointId]]:
    """Of each file of state, the restorable checkpoints that need it."""
    found: dict[str, list[CheckpointId]] = {}
    for key, manifest in history.restorable.items():
        for path in layers_of(manifest):
            found.setdefault(path, []).append(key)
    return found


def _outputs(history: History) -> dict[str, list[Committable]]:
    """Of each staged file, the outputs that are to be published, or voided, from it."""
    found: dict[str, list[Committable]] = {}
    for item in (*history.open_committables, *history.to_void):
        for path in sorted(staged_of([item])):
            found.setdefault(path, []).append(item)
    return found


def inventory(job: JobDirectory) -> Inventory:
    """Whose each file is, now. Changes nothing.

    Raises:
        UnknownName: nobody has ever claimed the job.
        CheckpointError: its log, or a folder, cannot be read.
    """
    is_running = job.owner() is not None
    history = job.read()
    return Inventory(files=tuple(_look(job, history, is_running=is_running)), is_running=is_running)


def _look(job: JobDirectory, history: History, *, is_running: bool) -> list[OwnedFile]:
    newest = history.generation or Generation(0)
    own = newest if is_running else Generation(newest + 1)  # a claim makes a generation, and ends the one before
    state, staged = _checkpoints(history), _outputs(history)
    found = []
    for path, owner in assign_owners(history, files_of(job.filesystem, history), own=own).items():
        file = stat_file(job.filesystem, path)
        if file is None:
            continue  # a running job has deleted or published it meanwhile
        checkpoints = tuple(state.get(path, ()))
        found.append(
            OwnedFile(
                path=path,
                length=file.length,
                written=file.written,
                owner=owner,
                checkpoints=checkpoints,
                savepoints=tuple(sorted(pin.name for pin in history.pins.values() if pin.checkpoint in checkpoints)),
                outputs=tuple(staged.get(path, ())),
                generation=generation_below(path),
            )
        )
    order = list(Owner)
    return sorted(found, key=lambda file: (order.index(file.owner), file.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a clean-up did: files that were condemned before, those that it condemned itself, and bytes of both."""

    condemned_before: tuple[str, ...]
    condemned_now: tuple[str, ...]
    bytes: int


def collect_garbage(job: JobDirectory) -> Collected:
    """Delete what nobody needs of a job that nobody runs; each file is condemned in the log before it is deleted.

    Raises:
        JobIsRunning: somebody runs it, and cleans up by itself.
        CheckpointError: the log cannot be read or written.
    """
    if job.owner() is not None:
        msg = f"job {job.job!r} is running and cleans up by itself, after each checkpoint; nothing was deleted"
        raise JobIsRunning(msg)
    with job.own() as owned:
        history = owned.history  # read again, under the claim: what was shown before may not be true any more
        there = {
            path: found for path in files_of(job.filesystem, history) if (found := stat_file(job.filesystem, path))
        }
        of = assign_owners(history, there, own=owned.generation)
        orphans = tuple(sorted(path for path, owner in of.items() if owner is Owner.ORPHAN))
        before = tuple(sorted(path for path, owner in of.items() if owner is Owner.CONDEMNED))
        if orphans:
            owned.append(Condemn(checkpoints=(), files=orphans, at=job.now(), reason="orphans of penstock gc"))
        for path in (*before, *orphans):
            failpoint("gc.delete.before")
            job.filesystem.delete(path)
            failpoint("gc.delete.after")
        return Collected(
            condemned_before=before,
            condemned_now=orphans,
            bytes=sum(there[path].length for path in (*before, *orphans)),
        )
