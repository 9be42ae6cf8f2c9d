"""Whether a job can be restored and its output published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from penstock.admin.dead_letters import open_parquet
from penstock.admin.gc import Owner, assign_owners, files_of, sha256_of, stat_file
from penstock.checkpoint import paths
from penstock.checkpoint.history import History, timeline
from penstock.connectors.staging import committer
from penstock.dead_letters.store import (
    FOLDER,
    REPLAYS,
    LetterRange,
    checkpoint_of,
    read_replay,
    replay_numbers,
    replay_path,
)
from penstock.errors import CheckpointError, CheckpointUnreadable, LogGap, StateDirectoryRefused, StateIncompatible
from penstock.handles import CheckpointId, Generation, split_replays
from penstock.interfaces.sink import SupportsOutputLookup

if TYPE_CHECKING:
    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import Timeline
    from penstock.control.client import JobDirectory
    from penstock.filesystem.base import FileSystem
    from penstock.handles import Committable, FileRef


# ----------------------------------------------------------------------------------------------------
# Compares files with what was written down of them: there, as long, the same content. Knows no log and no job.
#
# What names files (a job's log, an exported savepoint) says which; this says what is wrong with them.

ByteProgress: TypeAlias = Callable[[int, int], None]
"""Gets the bytes that were checked and those there are, again and again."""


def ignore_progress(_done: int, _total: int) -> None:
    """Where nobody watches."""


class Fault(str, Enum):
    """What is wrong with a file."""

    MISSING = "missing"
    LENGTH = "length"
    CONTENT = "content"
    UNREADABLE = "unreadable"
    REFERENCE = "reference"
    """Two entries say different things of it, or one names what is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file that is not what was written, and how that shows."""

    path: str
    fault: Fault
    message: str


def check_files(
    filesystem: FileSystem, files: Iterable[FileRef], *, quick: bool = False, progress: ByteProgress = ignore_progress
) -> list[Problem]:
    """Everything that is wrong with these files; nothing is changed.

    Args:
        filesystem: to which their paths are relative.
        files: what was written down of them.
        quick: look at existence and length only; content is not read.
        progress: told how far it is.
    """
    listed = list(files)
    total = sum(file.length for file in listed)
    found, done = [], 0
    for file in listed:
        before = done
        progress(done, total)

        def read(piece: int) -> None:
            nonlocal done
            done += piece
            progress(min(done, total), total)

        problem = _check(filesystem, file, quick=quick, read=read)
        if problem is not None:
            found.append(problem)
        done = before + file.length
    progress(total, total)
    return found


def _check(filesystem: FileSystem, file: FileRef, *, quick: bool, read: Callable[[int], None]) -> Problem | None:
    try:
        there = stat_file(filesystem, file.path)
        if there is None:
            return Problem(path=file.path, fault=Fault.MISSING, message="is not there")
        if there.length != file.length:
            message = f"has {there.length:,} bytes, {file.length:,} were written"
            return Problem(path=file.path, fault=Fault.LENGTH, message=message)
        content = None if quick else sha256_of(filesystem, file.path, read)
    except CheckpointError as error:
        return Problem(path=file.path, fault=Fault.UNREADABLE, message=str(error))
    if content is None and not quick:
        return Problem(path=file.path, fault=Fault.MISSING, message="went away while it was checked")
    if content is not None and content != file.sha256:
        message = f"has other content than was written: sha256 is {content[:12]}…, {file.sha256[:12]}… was written"
        return Problem(path=file.path, fault=Fault.CONTENT, message=message)
    return None


# ----------------------------------------------------------------------------------------------------
# Whether replays that a start has yet to read can be read, with the letters they name. Changes nothing; no Spark.


def replay_problems(filesystem: FileSystem, history: History, *, quick: bool) -> Iterator[Problem]:
    """What is wrong with the replays above those that the next start's checkpoint has read, and with their letters.

    A start that begins empty reads none of them. With ``quick`` no file of letters is opened.
    """
    try:
        point = history.restore_point
    except CheckpointUnreadable:
        return  # told elsewhere
    if point is None:
        return
    line = timeline(history, point.checkpoint)
    listed = frozenset(filesystem.list(FOLDER))
    for uid in sorted({path.split("/")[1] for path in listed if path.split("/")[2:3] == [REPLAYS]}):
        yield from _of(filesystem, uid, _read_by(point, uid), listed, line, quick=quick)


def _read_by(point: Manifest, uid: str) -> int:
    read = (split_replays(task.position)[1].get(uid, 0) for task in point.tasks if task.position is not None)
    return max(read, default=0)


def _of(
    filesystem: FileSystem, uid: str, read: int, listed: frozenset[str], line: Timeline, *, quick: bool
) -> Iterator[Problem]:
    following = read + 1
    for number in (each for each in replay_numbers(filesystem, uid) if each > read):
        if number != following:
            message = f"is not there, so replay {number} behind it is never read"
            yield Problem(path=replay_path(uid, following), fault=Fault.MISSING, message=message)
        following = number + 1
        try:
            replay = read_replay(filesystem, uid, number)
        except StateIncompatible as error:
            yield Problem(path=replay_path(uid, number), fault=Fault.UNREADABLE, message=str(error))
            continue
        for each in replay.letters if replay is not None else ():
            checkpoint = checkpoint_of(uid, each.file)
            if checkpoint is None or line.has(checkpoint):  # else it is passed over
                yield from _letters(filesystem, f"{FOLDER}/{uid}/{each.file}", each, number, listed, quick=quick)


def _letters(
    filesystem: FileSystem, path: str, letters: LetterRange, number: int, listed: frozenset[str], *, quick: bool
) -> Iterator[Problem]:
    if path not in listed:
        message = f"is not there; replay {number} names {letters.rows} dead letters in it, which are left out"
        yield Problem(path=path, fault=Fault.MISSING, message=message)
        return
    if quick:
        return
    try:
        rows = open_parquet(filesystem.url(path).removeprefix("file://")).metadata.num_rows
    except CheckpointUnreadable as error:
        yield Problem(path=path, fault=Fault.UNREADABLE, message=str(error))
        return
    if any(end > rows for _, end in letters.ranges):
        message = f"holds {rows} dead letters; replay {number} names one behind its end"
        yield Problem(path=path, fault=Fault.REFERENCE, message=message)


# ----------------------------------------------------------------------------------------------------
# Where staged output is that is not where it was staged: published, or out of sight. Changes nothing.


class OutputLocation(Enum):
    """What has become of a staged file that is not there."""

    PUBLISHED = "published"
    """It lies under its final name, as it was staged."""
    TAKEN = "taken"
    """It counts as published, but is not there as it was: a reader took it, or it was removed unpublished."""
    NO_TARGET = "no target"
    """It cannot be told: the target is not mounted, or was emptied."""
    LOST = "lost"
    """Nothing proves that it was published."""


def locate_output(filesystem: FileSystem, item: Committable, file: FileRef, *, quick: bool = False) -> OutputLocation:
    """What has become of it, by the sink's own evidence.

    Args:
        filesystem: of the job.
        item: an output that is not known to be published.
        file: one of its staged files, which is not there.
        quick: believe a file by its name and length.

    Raises:
        StorageFailed: a file cannot be looked at.
    """
    try:
        understands = committer(item.kind, filesystem)
    except StateIncompatible:
        return OutputLocation.LOST
    if not isinstance(understands, SupportsOutputLookup) or (final := understands.final(item, file.path)) is None:
        return OutputLocation.LOST
    there = stat_file(filesystem, final)
    if there is None:
        return OutputLocation.TAKEN if understands.has_evidence(item) else OutputLocation.NO_TARGET
    same = there.length == file.length and (quick or sha256_of(filesystem, final) == file.sha256)
    return OutputLocation.PUBLISHED if same else OutputLocation.TAKEN


# ----------------------------------------------------------------------------------------------------
# Whether a job could be restored and its output published: reads the log and every file that either needs.
#
# Changes nothing. A job that runs goes on meanwhile: what it has let go by the end is not missed (rule G4).


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenItem:
    """Something that is not what was written, and what cannot be done because of it.

    Attributes:
        path: below the job's directory, or absolute where a sink stages beside its target.
        fault: what is wrong, as a word for scripts.
        message: the same for people.
        checkpoints: those that cannot be restored.
        savepoints: names of those that have one.
        outputs: that cannot be published.
    """

    path: str
    fault: Fault
    message: str
    checkpoints: tuple[CheckpointId, ...] = ()
    savepoints: tuple[str, ...] = ()
    outputs: tuple[Committable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was found.

    Attributes:
        job: its name.
        log_id: of its log, if that can be read.
        tail: the newest entry, ``-1`` if that cannot be told.
        quick: content was not read.
        files: how many were checked.
        bytes: of those.
        broken: what is wrong; nothing: the job is sound.
        taken: staged files that are gone, as they are after publishing, while the published file is not there either:
            a reader took it, or somebody removed the staged one. A start counts them as published.
        restorable: checkpoints that the log offers.
        sound: those of them whose files are all right.
        restore_point: what the next start continues; ``None`` is empty state.
        orphans: files that nobody needs and no entry names.
        condemned: files that are to be deleted and still there.
    """

    job: str
    log_id: str | None = None
    tail: int = -1
    quick: bool = False
    files: int = 0
    bytes: int = 0
    broken: tuple[BrokenItem, ...] = ()
    taken: tuple[str, ...] = ()
    restorable: tuple[CheckpointId, ...] = ()
    sound: tuple[CheckpointId, ...] = ()
    restore_point: CheckpointId | None = None
    orphans: tuple[str, ...] = ()
    condemned: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.broken

    @property
    def remedies(self) -> tuple[str, ...]:
        """What an operator can do, best first."""
        return tuple(_remedies(self))


def _remedies(verdict: VerifyReport) -> Iterable[str]:
    if verdict.is_sound:
        return
    yield "put the files back from a copy, if there is one"
    if verdict.log_id is None:
        return  # nothing can be decided without a log
    job, newest = verdict.job, max(verdict.sound, default=None)
    is_log = any(each.path.startswith(f"{paths.LOG}/") for each in verdict.broken)
    is_output = any(each.outputs for each in verdict.broken)
    is_point = verdict.restore_point is not None and verdict.restore_point not in verdict.sound
    if any(each.path.startswith(f"{FOLDER}/") for each in verdict.broken):
        yield (
            "a replay that cannot be read ends each start whose source reads it; without a copy, and if it is the "
            "newest one, move it away, start, and give the replay once more"
        )
    elif not (is_log or is_output or is_point):
        yield "the next start is not touched: the broken checkpoints are older, or on another timeline"
    if not (is_log or is_output or is_point):
        return
    discard = " --discard-unpublished" if is_output else ""
    if newest is None:
        yield f"no checkpoint is left; begin with empty state: penstock rewind {job} --fresh{discard}"
    else:
        yield f"begin again at checkpoint {newest}: penstock rewind {job} {newest}{discard}"


def verify(job: JobDirectory, *, quick: bool = False, progress: ByteProgress = ignore_progress) -> VerifyReport:
    """Look at everything that a restore, or the publishing of what is open, would read.

    Args:
        job: which, running or not.
        quick: look at existence and length only; content is not read.
        progress: gets the bytes that were checked and those there are.

    Raises:
        UnknownName: nobody has ever claimed the job.
        StorageFailed: a folder cannot be listed.
    """
    before = _read(job)
    if isinstance(before, BrokenItem):
        return VerifyReport(job=job.job, quick=quick, broken=(before,))
    needs = _needs(before)
    problems = check_files(job.filesystem, needs.values(), quick=quick, progress=progress)
    problems, taken = _without_published(job.filesystem, before, problems, quick=quick)
    is_running = job.owner() is not None
    after = _read(job)  # whatever was let go while we read is not missed (rule G4)
    if isinstance(after, BrokenItem):
        return VerifyReport(job=job.job, quick=quick, broken=(after,))
    still = _needs(after)
    gone = {path for path in needs if path not in still}
    problems = [each for each in problems if each.path not in gone]
    problems += replay_problems(job.filesystem, after, quick=quick)
    broken = (*_broken_entries(after), *_references(after), *(_consequence(after, each) for each in problems))
    verdict = VerifyReport(
        job=job.job,
        log_id=after.log_id,
        tail=after.tail,
        quick=quick,
        files=len(needs),
        bytes=sum(file.length for file in needs.values()),
        broken=broken,
        taken=tuple(sorted(path for path in taken if path not in gone)),
        restorable=tuple(after.restorable),
        sound=_sound(after, broken),
        restore_point=_restore_point(after),
    )
    return _with_leftovers(job.filesystem, after, verdict, is_running=is_running)


# ------------------------------------------------------------------------------------------------ what the log needs


def _needs(history: History) -> dict[str, FileRef]:
    """Every file that a restore, or publishing, reads, as it was written down first. To void needs none."""
    found: dict[str, FileRef] = {}
    for file in _referenced(history):
        found.setdefault(file.path, file)
    return found


def _referenced(history: History) -> Iterable[FileRef]:
    for manifest in history.restorable.values():
        yield from manifest.state_files
    for item in history.open_committables:
        yield from item.files


def _read(job: JobDirectory) -> History | BrokenItem:
    """The log, past what cannot be read; or why nothing of it can be believed."""
    try:
        return job.read(past_unreadable=True)
    except (LogGap, CheckpointUnreadable, StateDirectoryRefused) as error:
        fault = Fault.MISSING if isinstance(error, LogGap) else Fault.UNREADABLE
        return BrokenItem(path=paths.LOG, fault=fault, message=str(error))


def _broken_entries(history: History) -> Iterable[BrokenItem]:
    """Entries that cannot be read and that no rewind went past: what they said is not known."""
    for each in history.unreadable:
        if each.number not in history.lost:
            yield BrokenItem(path=paths.entry(each.number), fault=Fault.UNREADABLE, message=each.message)


def _references(history: History) -> Iterable[BrokenItem]:
    """Entries that contradict each other."""
    first: dict[str, FileRef] = {}
    for file in _referenced(history):
        known = first.setdefault(file.path, file)
        if known != file:
            message = "two entries say different things of its length or content"
            yield _consequence(history, Problem(path=file.path, fault=Fault.REFERENCE, message=message))
    for pin in history.pins.values():
        if pin.checkpoint not in history.restorable:
            message = f"savepoint {pin.name!r} is checkpoint {pin.checkpoint}, which cannot be restored"
            yield BrokenItem(path=paths.LOG, fault=Fault.REFERENCE, message=message, savepoints=(pin.name,))
    try:
        _ = history.restore_point
    except CheckpointUnreadable as error:
        yield BrokenItem(path=paths.LOG, fault=Fault.REFERENCE, message=str(error))


def _restore_point(history: History) -> CheckpointId | None:
    try:
        return history.restore_point.checkpoint if history.restore_point is not None else None
    except CheckpointUnreadable:
        return None


def _consequence(history: History, problem: Problem) -> BrokenItem:
    checkpoints = tuple(
        key for key, manifest in history.restorable.items() if any(f.path == problem.path for f in manifest.state_files)
    )
    outputs = (item for item in history.open_committables if any(f.path == problem.path for f in item.files))
    return BrokenItem(
        path=problem.path,
        fault=problem.fault,
        message=problem.message,
        checkpoints=checkpoints,
        savepoints=tuple(sorted(pin.name for pin in history.pins.values() if pin.checkpoint in checkpoints)),
        outputs=tuple(outputs),
    )


def _sound(history: History, broken: Iterable[BrokenItem]) -> tuple[CheckpointId, ...]:
    hurt = {key for each in broken for key in each.checkpoints}
    return tuple(key for key in history.restorable if key not in hurt)


# -------------------------------------------------------------------------------------------- what may be elsewhere


def _without_published(
    filesystem: FileSystem, history: History, problems: Iterable[Problem], *, quick: bool
) -> tuple[list[Problem], list[str]]:
    """Staged output that is not there may be published already; then it is no problem."""
    staged = {file.path: (item, file) for item in history.open_committables for file in item.files}
    left, taken = [], []
    for problem in problems:
        if problem.fault is not Fault.MISSING or problem.path not in staged:
            left.append(problem)
            continue
        match locate_output(filesystem, *staged[problem.path], quick=quick):
            case OutputLocation.PUBLISHED:
                pass
            case OutputLocation.TAKEN:
                taken.append(problem.path)
            case OutputLocation.NO_TARGET:
                message = "is not there, nor is its folder: the target is not mounted, or was emptied"
                left.append(replace(problem, message=message))
            case OutputLocation.LOST:
                left.append(problem)
    return left, taken


def _with_leftovers(
    filesystem: FileSystem, history: History, verdict: VerifyReport, *, is_running: bool
) -> VerifyReport:
    newest = history.generation or Generation(0)
    own = newest if is_running else Generation(newest + 1)
    of = assign_owners(history, files_of(filesystem, history), own=own)
    return replace(
        verdict,
        orphans=tuple(sorted(path for path, owner in of.items() if owner is Owner.ORPHAN)),
        condemned=tuple(sorted(path for path, owner in of.items() if owner is Owner.CONDEMNED)),
    )
