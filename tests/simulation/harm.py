"""Logs and exported folders that somebody has damaged, cut, mixed up or confused: on copies, beside the story.

What is damaged is refused by a documented error, or it makes no difference. It is never read as truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.checkpoint import paths
from penstock.checkpoint.entries import Claim, Entry, Manifest
from penstock.checkpoint.entry_codec import encode
from penstock.checkpoint.export import CLAIMED, EXPORT, Claimed, decode_export, encode_claimed, encode_export
from penstock.checkpoint.history import History, LogMark
from penstock.checkpoint.log import Log
from penstock.elements import CheckpointKind
from penstock.errors import (
    CheckpointUnreadable,
    LogGap,
    PenstockError,
    PlanOutdated,
    StateDirectoryRefused,
    UnknownName,
)
from penstock.handles import CheckpointId, EntryNumber, FileRef, Generation
from penstock.job.start import StartOptions, resolve_start
from penstock.testing.filesystem import MemoryFileSystem
from simulation.exports import packed

if TYPE_CHECKING:
    from simulation.world import World

Errors = tuple[type[PenstockError], ...]
NEVER: Errors = ()
"""Of what must not be refused."""
DAMAGED: Errors = (CheckpointUnreadable, LogGap, StateDirectoryRefused)


class Harm:
    """Damages copies by chance."""

    def __init__(self, world: World, chance: Random) -> None:
        self._world = world
        self._chance = chance
        self._seen: LogMark | None = None

    # ---- logs ------------------------------------------------------------------------------------------------------

    def log(self, history: History) -> None:
        """A log that lacks an entry, or has one of another log, job, generation or order."""
        if history.is_empty:
            return
        files, chance = self._copy(), self._chance
        newest, others = history.entries[-1], [entry.number for entry in history.entries[:-1]]
        if others and chance.random() < 0.5:
            files.remove(paths.entry(EntryNumber(chance.choice(others))))
            what = "that lacks an entry"
        else:
            what, entry = chance.choice(list(_foreign(history)))
            files.corrupt(paths.entry(newest.number), encode(entry))
        try:
            Log(files, job="sim", new_id=str, pause=lambda _: None).read()
        except PenstockError as error:
            self._world.count(f"harm {type(error).__name__}")
            if not isinstance(error, DAMAGED):
                self._violated(f"a log {what} is refused with {type(error).__name__}: {error}")
        else:
            self._violated(f"a log {what} is read as if it were whole")

    def lost_log(self, history: History) -> None:
        """A claim of a directory whose log is gone, or in which no entry can be read: refused before it writes."""
        if history.is_empty:
            return
        files = self._copy()
        entries = [path for path in files.files if path.startswith("log/")]
        is_gone = self._chance.random() < 0.5
        for path in entries:
            if is_gone:
                files.remove(path)
            else:
                files.corrupt(path, files.files[path][:-1])
        folders = (f"{paths.STATE}/", f"{paths.STAGED}/", f"{paths.WAL}/")
        if is_gone and not any(path.startswith(folders) for path in files.files):
            return  # as an empty directory
        self._claim(files, must_be=(StateDirectoryRefused,) if is_gone else (CheckpointUnreadable,))

    def outdated(self, history: History) -> None:
        """A start that has seen the log some time ago: refused if the log has moved."""
        seen, self._seen = self._seen, history.mark
        if seen is None:
            return
        files = self._copy()
        self._claim(files, must_be=(StateDirectoryRefused,) if seen != history.mark else NEVER, expect=seen)

    def _copy(self) -> MemoryFileSystem:
        copy = MemoryFileSystem()
        for path, data in self._world.disk.files.items():
            if not path.startswith("/"):
                copy.corrupt(path, data)
        return copy

    def _claim(self, files: MemoryFileSystem, *, must_be: Errors, **options: Any) -> None:
        before, body = files.files, Claim(host="a", pid=1, started=self._world.wall(), version="sim")
        try:
            Log(files, job="sim", new_id=lambda: "mistake", pause=lambda _: None).claim(
                body, past_unreadable=True, take_over=True, **options
            )
        except PenstockError as error:
            self._world.count(f"harm {type(error).__name__}")
            if not isinstance(error, must_be):
                self._violated(f"a claim is refused with {type(error).__name__}: {error}")
            if files.files != before:
                self._violated("a claim that is refused has written something")
        else:
            if must_be:
                self._violated("a log that is lost, or not the expected one, is claimed")

    # ---- folders ---------------------------------------------------------------------------------------------------

    def folder(self, history: History) -> None:
        """A start from a folder that is no export, not a whole one, or somebody else's."""
        world, chance = self._world, self._chance
        known = [id for id in world.restorable_now() if id in history.restorable]
        if not known:
            return
        taken = packed(world, history, CheckpointId(chance.choice(known)))
        if taken is None:
            return
        files = MemoryFileSystem()
        for path, data in taken.items():
            files.corrupt(path, data)
        kinds: tuple[Callable[[MemoryFileSystem, History], tuple[Errors, StartOptions]], ...] = (
            self._sound,
            self._unfinished,
            self._not_an_export,
            self._damaged,
            self._reaches_out,
            self._taken,
            self._another,
        )
        must_be, start = chance.choice(kinds)(files, history)
        before = files.files
        self._start(start, history, files, must_be=must_be)
        if files.files != before:
            self._violated("a start from a folder that was refused has changed it")

    def _start(self, start: StartOptions, history: History, files: MemoryFileSystem, *, must_be: Errors) -> None:
        try:
            found = resolve_start(start, history, job="sim", at=self._world.wall(), folders=lambda _: files)["bring"]
        except PenstockError as error:
            self._world.count(f"harm {type(error).__name__}")
            if not isinstance(error, must_be):
                self._violated(f"a folder is refused with {type(error).__name__}: {error}")
            return
        if must_be:
            self._violated(f"a folder is begun with that should be refused with {must_be[0].__name__}")
        if found is None or (found.manifest.open and not found.is_brought):
            self._violated("the folder is not what the start begins with, or brings output of another log")
        elif not found.is_brought and found.manifest.kind is not CheckpointKind.IMPORT:
            self._violated(f"a checkpoint from a folder is of kind {found.manifest.kind}")

    def _sound(self, files: MemoryFileSystem, history: History) -> tuple[Errors, StartOptions]:
        del files, history
        return NEVER, StartOptions(folder="/e")

    def _unfinished(self, files: MemoryFileSystem, history: History) -> tuple[Errors, StartOptions]:
        del history
        files.remove(EXPORT)
        has_state = any(path.startswith("state/") for path in files.files)
        return (CheckpointUnreadable,) if has_state else (UnknownName,), StartOptions(folder="/e")

    def _not_an_export(self, files: MemoryFileSystem, history: History) -> tuple[Errors, StartOptions]:
        """It is the directory of a job, as an operator may have copied it."""
        del history
        for path in files.files:
            files.remove(path)
        for path, data in self._world.disk.files.items():
            if not path.startswith("/"):
                files.corrupt(path, data)
        return (UnknownName,), StartOptions(folder="/e")

    def _damaged(self, files: MemoryFileSystem, history: History) -> tuple[Errors, StartOptions]:
        name = EXPORT
        if self._chance.random() < 0.3:
            name = CLAIMED
            files.corrupt(
                CLAIMED, encode_claimed(Claimed(log_id=history.log_id or "", job="sim", at=self._world.wall()))
            )
        files.corrupt(name, flipped(files.files[name], self._chance))
        return (CheckpointUnreadable,), StartOptions(folder="/e")

    def _reaches_out(self, files: MemoryFileSystem, history: History) -> tuple[Errors, StartOptions]:
        """Somebody else has written it: it names files that are not in it."""
        del history
        export = decode_export(files.files[EXPORT], "/e")
        path = self._chance.choice(("/etc/passwd", "state/../log/0/x", "wal/../../secret/00000000000000000000.block"))
        if export.manifest.state_files and self._chance.random() < 0.5:
            export = replace(export, manifest=_reaching(export.manifest, path))
        else:
            ref = FileRef(path=path, length=1, sha256="0" * 64)
            export = replace(export, received=(*(export.received or ()), ref))
        files.corrupt(EXPORT, encode_export(export))
        return (CheckpointUnreadable,), StartOptions(folder="/e")

    def _taken(self, files: MemoryFileSystem, history: History) -> tuple[Errors, StartOptions]:
        """A log has taken the files over: this one, or another."""
        own = self._chance.random() < 0.3
        log_id = (history.log_id or "") if own else "another"
        files.corrupt(CLAIMED, encode_claimed(Claimed(log_id=log_id, job="sim", at=self._world.wall())))
        return NEVER if own else (StateDirectoryRefused,), StartOptions(folder="/e")

    def _another(self, files: MemoryFileSystem, history: History) -> tuple[Errors, StartOptions]:
        """A plan has seen another export there."""
        del history
        own = decode_export(files.files[EXPORT], "/e").sha256
        digest = own if self._chance.random() < 0.3 else "0" * 64
        return NEVER if digest == own else (PlanOutdated,), StartOptions(folder="/e", sha256=digest)

    def _violated(self, what: str) -> None:
        self._world.ledger.violated("refusal", what)


def flipped(data: bytes, chance: Random) -> bytes:
    """The bytes with one bit flipped, or without their end."""
    at = chance.randrange(len(data))
    if chance.random() < 0.3:
        return data[:at]
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(7))]) + data[at + 1 :]


def _foreign(history: History) -> Iterator[tuple[str, Entry]]:
    """Entries that cannot be the newest of this log, each with what is wrong with it."""
    newest, claims = history.entries[-1], [entry for entry in history.entries if isinstance(entry.body, Claim)]
    yield "with an entry of another job", replace(newest, job="another")
    if len(history.entries) > 1:
        yield "with an entry of another log", replace(newest, log_id="another")
    if claims and newest not in claims:
        yield "with an entry of a generation that has not claimed it", replace(newest, generation=Generation(10_000))
    older = [manifest.checkpoint for _, manifest in history.manifests.values()][:-1]
    if older and isinstance(newest.body, Manifest):
        yield "whose checkpoints do not rise", replace(newest, body=replace(newest.body, checkpoint=older[-1]))


def _reaching(manifest: Manifest, path: str) -> Manifest:
    """The checkpoint with another path for one of its files of state."""
    at = next(i for i, task in enumerate(manifest.tasks) if task.state is not None and task.state.layers)
    task = manifest.tasks[at]
    assert task.state is not None
    first, *others = task.state.layers
    first = replace(first, files=(replace(first.files[0], path=path), *first.files[1:]))
    task = replace(task, state=replace(task.state, layers=(first, *others)))
    return replace(manifest, tasks=(*manifest.tasks[:at], task, *manifest.tasks[at + 1 :]))
