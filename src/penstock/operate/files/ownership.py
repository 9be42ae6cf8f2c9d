"""Who owns each file of a job: what may be deleted, and what must not be. Decides for ``gc``, and deletes last.

Only what an entry condemns is deleted (rules G1 to G4): so a clean-up records first, under a claim, then deletes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from penstock.checkpoint import paths
from penstock.checkpoint.entries import Condemn
from penstock.checkpoint.gc import layers_of, orphans_of, staged_of
from penstock.errors import JobIsRunning
from penstock.failpoints import failpoint
from penstock.ids import CheckpointId, Generation, WallTime
from penstock.operate.files.disk import files_of, find, generation_below
from penstock.sources.dead_letters import FOLDER

if TYPE_CHECKING:
    from penstock.checkpoint.history import History
    from penstock.handles import Committable
    from penstock.operate.directory import JobDirectory


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
class Owned:
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
class Sum:
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

    files: tuple[Owned, ...]
    is_running: bool

    @property
    def sums(self) -> tuple[Sum, ...]:
        """By owner, in the order of :class:`Owner`; those without a file are left out."""
        found = []
        for owner in Owner:
            own = [file.length for file in self.files if file.owner is owner]
            if own:
                found.append(Sum(owner=owner, files=len(own), bytes=sum(own)))
        return tuple(found)

    @property
    def deletable(self) -> tuple[Owned, ...]:
        """What a clean-up deletes."""
        return tuple(file for file in self.files if file.owner in DELETABLE)


def owners(history: History, files: Iterable[str], *, own: Generation) -> dict[str, Owner]:
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


def _look(job: JobDirectory, history: History, *, is_running: bool) -> list[Owned]:
    newest = history.generation or Generation(0)
    own = newest if is_running else Generation(newest + 1)  # a claim makes a generation, and ends the one before
    state, staged = _checkpoints(history), _outputs(history)
    found = []
    for path, owner in owners(history, files_of(job.filesystem, history), own=own).items():
        file = find(job.filesystem, path)
        if file is None:
            continue  # a running job has deleted or published it meanwhile
        checkpoints = tuple(state.get(path, ()))
        found.append(
            Owned(
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
        there = {path: found for path in files_of(job.filesystem, history) if (found := find(job.filesystem, path))}
        of = owners(history, there, own=owned.generation)
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
