"""The owner of each file of a job, and the deletion of files that are not needed."""

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
from penstock.checkpoint.gc import delete_files, layers_of, orphans_of, staged_of, stages_of
from penstock.clock import WallTime
from penstock.dead_letters.store import FOLDER
from penstock.errors import JobIsRunning, StorageFailed
from penstock.handles import CheckpointId, Generation

if TYPE_CHECKING:
    from penstock.checkpoint.history import History
    from penstock.control.client import JobDirectory
    from penstock.filesystem.base import FileSystem
    from penstock.handles import Committable


# ---- files -----------------------------------------------------------------------------------------------------------

_CHUNK: Final = 1 << 20
_STAGED_LETTERS = re.compile(r"deadletters/[^/]+/\.penstock/.+")
"""Staged dead letters. Their target is below the job's directory, but entries name them by absolute paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """The length of a file in bytes, and when it was last written, if its file system knows."""

    length: int
    written: WallTime | None


def stat_file(filesystem: FileSystem, path: str) -> FileStat | None:
    """Return the length and time of a file, or ``None`` if it does not exist.

    Raises:
        StorageFailed: the file cannot be accessed.
    """
    local = local_path(filesystem, path)
    if local is None:
        data = filesystem.read(path)
        return None if data is None else FileStat(length=len(data), written=None)
    try:
        status = os.stat(local)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _failed(local, error) from error
    return FileStat(length=status.st_size, written=WallTime(status.st_mtime_ns // 1_000))


def sha256_of(filesystem: FileSystem, path: str, read: Callable[[int], None] = lambda _bytes: None) -> str | None:
    """Return the sha256 of a file's content, or ``None`` if it does not exist.

    ``read`` gets the size of each chunk that was read.

    Raises:
        StorageFailed: the file cannot be read.
    """
    local = local_path(filesystem, path)
    if local is None:
        data = filesystem.read(path)
        return None if data is None else sha256(data).hexdigest()
    found = sha256()
    try:
        with open(local, "rb") as content:
            while chunk := content.read(_CHUNK):
                found.update(chunk)
                read(len(chunk))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _failed(local, error) from error
    return found.hexdigest()


def files_of(filesystem: FileSystem, history: History) -> Iterator[str]:
    """List the files in the job's directory, and those in its sinks' staging folders that the log knows.

    Raises:
        StorageFailed: a folder cannot be listed.
    """
    yield from (path for path in filesystem.list("") if not _STAGED_LETTERS.fullmatch(path))
    for folder in stages_of(history):
        yield from filesystem.list(folder)


def generation_below(path: str) -> int | None:
    """The generation whose folder a file is in, write-ahead blocks included.

    >>> generation_below("wal/socket/7/0"), generation_below("control/report.json")
    (7, None)
    """
    parts = path.split("/")
    if parts[0] == paths.WAL and len(parts) > 3 and parts[2].isdecimal():  # noqa: PLR2004 - wal/uid/generation/block
        return int(parts[2])
    return paths.generation_of(path)


def local_path(filesystem: FileSystem, path: str) -> str | None:
    """The path of a file for the operating system; ``None`` if it is not a local file."""
    address = filesystem.url(path)
    return address.removeprefix("file://") if address.startswith("file:") else None


def _failed(local: str, error: OSError) -> StorageFailed:
    return StorageFailed(f"{local} cannot be listed: {error.strerror or error}. Give this user the right to read it.")


# ---- owners ----------------------------------------------------------------------------------------------------------
# Only what an entry condemns is deleted (rules G1 to G4): a clean-up writes the entry first, under a claim.


class Owner(str, Enum):
    """Why a file exists, in the order of a report."""

    CHECKPOINT = "checkpoint"
    """State that a restorable checkpoint needs."""
    OUTPUT = "output"
    """Staged output to be published or voided."""
    WRITING = "writing"
    """Written by the running generation; no entry names it yet."""
    WRITE_AHEAD = "write-ahead"
    """Blocks that a receiver logged; ``gc`` never deletes them."""
    LOG = "log"
    """Entries of the log."""
    CONTROL = "control"
    """Requests, answers, and the status file."""
    DEAD_LETTERS = "dead-letters"
    """Dead letters and replays of them; only ``deadletter drop`` deletes them."""
    CONDEMNED = "condemned"
    """An entry says that it may be deleted."""
    ORPHAN = "orphan"
    """Left behind by a generation that is over: not needed, and no entry condemns it."""
    UNKNOWN = "unknown"
    """Its name is none that penstock gives; never deleted."""


DELETABLE = frozenset({Owner.CONDEMNED, Owner.ORPHAN})
"""The owners whose files a clean-up deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedFile:
    """One file and its owner.

    Attributes:
        path: below the job's directory, or absolute where a sink stages next to its target.
        length: bytes.
        written: time of the last write, if the file system knows.
        owner: why it exists.
        checkpoints: those that need it.
        savepoints: names of those that have one.
        outputs: the outputs it belongs to.
        generation: the one that wrote it, if its name says.
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
    """The number and size of the files of one owner."""

    owner: Owner
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Every file of a job at one moment.

    Attributes:
        files: sorted by owner, then by path.
        is_running: a process runs the job, and cleans up by itself.
    """

    files: tuple[OwnedFile, ...]
    is_running: bool

    @property
    def sums(self) -> tuple[OwnerTotal, ...]:
        """One total for each owner that has files, in the order of ``Owner``."""
        found = []
        for owner in Owner:
            own = [file.length for file in self.files if file.owner is owner]
            if own:
                found.append(OwnerTotal(owner=owner, files=len(own), bytes=sum(own)))
        return tuple(found)

    @property
    def deletable(self) -> tuple[OwnedFile, ...]:
        """The files that a clean-up deletes."""
        return tuple(file for file in self.files if file.owner in DELETABLE)


def assign_owners(history: History, files: Iterable[str], *, own: Generation) -> dict[str, Owner]:
    """Return the owner of each file. Files of generation ``own`` may belong to what is not in the log yet.

    A file that is needed is never deletable, even if an entry condemns it.
    """
    existing = tuple(dict.fromkeys(files))
    state, staged = _checkpoints(history), _outputs(history)
    condemned = frozenset(history.condemned_files())
    orphans = frozenset(orphans_of(history, own, existing))

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

    return {path: owner(path) for path in existing}


def _stem(path: str) -> str:
    """The staged file that a marker belongs to: its name is the file's and an ending, and it is kept as long.

    >>> _stem("/out/.penstock/log-1/out/7/3/part-0.json.voided")
    '/out/.penstock/log-1/out/7/3/part-0.json'
    """
    return path.rpartition(".")[0]


def _by_folder(path: str) -> Owner:
    if paths.entry_number(path) is not None:
        return Owner.LOG
    if path in {paths.REPORT, paths.CLAIM} or paths.control_id(path) is not None:
        return Owner.CONTROL
    if path.startswith(f"{FOLDER}/"):
        return Owner.DEAD_LETTERS
    return Owner.WRITE_AHEAD if path.startswith(f"{paths.WAL}/") else Owner.UNKNOWN


def _checkpoints(history: History) -> dict[str, list[CheckpointId]]:
    """The restorable checkpoints that need each file of state."""
    found: dict[str, list[CheckpointId]] = {}
    for key, manifest in history.restorable.items():
        for path in layers_of(manifest):
            found.setdefault(path, []).append(key)
    return found


def _outputs(history: History) -> dict[str, list[Committable]]:
    """The outputs that are to be published or voided from each staged file."""
    found: dict[str, list[Committable]] = {}
    for item in (*history.open_committables, *history.to_void):
        for path in sorted(staged_of([item])):
            found.setdefault(path, []).append(item)
    return found


def inventory(job: JobDirectory) -> Inventory:
    """List every file of a job with its owner.

    Raises:
        UnknownName: the job was never claimed.
        CheckpointError: its log, or a folder, cannot be read.
    """
    is_running = job.owner() is not None
    history = job.read()
    return Inventory(files=tuple(_owned_files(job, history, is_running=is_running)), is_running=is_running)


def _owned_files(job: JobDirectory, history: History, *, is_running: bool) -> list[OwnedFile]:
    newest = history.generation or Generation(0)
    own = newest if is_running else Generation(newest + 1)  # the next claim ends the newest generation
    state, staged = _checkpoints(history), _outputs(history)
    found = []
    for path, owner in assign_owners(history, files_of(job.filesystem, history), own=own).items():
        file = stat_file(job.filesystem, path)
        if file is None:
            continue  # a running job has deleted or published it since
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
    """The result of a clean-up: files condemned before, files that it condemned itself, bytes of both."""

    condemned_before: tuple[str, ...]
    condemned_now: tuple[str, ...]
    bytes: int


def collect_garbage(job: JobDirectory) -> Collected:
    """Delete what a stopped job does not need; each file is condemned in the log before it is deleted.

    Raises:
        JobIsRunning: the job runs, and cleans up by itself.
        CheckpointError: the log cannot be read or written.
    """
    if job.owner() is not None:
        msg = f"Job {job.job!r} is running and cleans up by itself after each checkpoint. Nothing was deleted."
        raise JobIsRunning(msg)
    with job.own() as owned:
        history = owned.history  # read again, under the claim
        files = {path: stat for path in files_of(job.filesystem, history) if (stat := stat_file(job.filesystem, path))}
        owners = assign_owners(history, files, own=owned.generation)
        orphans = tuple(sorted(path for path, owner in owners.items() if owner is Owner.ORPHAN))
        condemned = tuple(sorted(path for path, owner in owners.items() if owner is Owner.CONDEMNED))
        if orphans:
            owned.append(Condemn(checkpoints=(), files=orphans, at=job.now(), reason="orphans of penstock gc"))
        delete_files(job.filesystem, (*condemned, *orphans))
        return Collected(
            condemned_before=condemned,
            condemned_now=orphans,
            bytes=sum(files[path].length for path in (*condemned, *orphans)),
        )
