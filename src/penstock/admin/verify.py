"""Whether a job can be restored and its output published: checks every file that either needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from penstock.admin.dead_letters import open_parquet, replays_read
from penstock.admin.gc import Owner, assign_owners, files_of, sha256_of, stat_file
from penstock.checkpoint import paths
from penstock.checkpoint.history import History, timeline
from penstock.checkpoint.merged_blocks import BlockFile, BlockFiles, folders_of, read_merged
from penstock.checkpoint.received import SEAL, low_mark, missing, recorded
from penstock.checkpoint.request_keys import decode_key_file, split_keys
from penstock.connectors.committers import committer
from penstock.connectors.receivers.blocks import decode_block
from penstock.dead_letters.store import (
    FOLDER,
    REPLAYS,
    LetterRange,
    checkpoint_of,
    read_replay,
    replay_numbers,
    replay_path,
)
from penstock.errors import (
    CheckpointError,
    CheckpointUnreadable,
    CommitterMissing,
    LogGap,
    StateDirectoryRefused,
    StateIncompatible,
)
from penstock.handles import BlockId, CheckpointId, Generation
from penstock.interfaces.sink import CommitContext, SupportsOutputLookup, SupportsPublishedLookup

if TYPE_CHECKING:
    from penstock.checkpoint.history import Timeline
    from penstock.control.client import JobDirectory
    from penstock.filesystem.base import FileSystem
    from penstock.handles import Committable, FileRef


# ---- files against what was recorded of them -------------------------------------------------------------------------

ByteProgress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes that were checked and the total, repeatedly."""


def ignore_progress(_done: int, _total: int) -> None:
    """The default: progress is not reported."""


class Fault(str, Enum):
    """What is wrong with a file."""

    MISSING = "missing"
    LENGTH = "length"
    CONTENT = "content"
    UNREADABLE = "unreadable"
    REFERENCE = "reference"
    """Two entries contradict each other about it, or an entry names something that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file that differs from what was recorded, and how."""

    path: str
    fault: Fault
    message: str


def check_files(
    filesystem: FileSystem, files: Iterable[FileRef], *, quick: bool = False, progress: ByteProgress = ignore_progress
) -> list[Problem]:
    """Return everything that is wrong with these files.

    Args:
        filesystem: their paths are relative to its root.
        files: what was recorded of them.
        quick: check existence and length only; content is not read.
        progress: called with the bytes that were checked and the total.
    """
    files = list(files)
    total = sum(file.length for file in files)
    found, done = [], 0
    for file in files:
        before = done
        progress(done, total)

        def read(chunk: int) -> None:
            nonlocal done
            done += chunk
            progress(min(done, total), total)

        problem = _check(filesystem, file, quick=quick, read=read)
        if problem is not None:
            found.append(problem)
        done = before + file.length
    progress(total, total)
    return found


def _check(filesystem: FileSystem, file: FileRef, *, quick: bool, read: Callable[[int], None]) -> Problem | None:
    try:
        stat = stat_file(filesystem, file.path)
        if stat is None:
            return Problem(path=file.path, fault=Fault.MISSING, message="is not there")
        if stat.length != file.length:
            message = f"has {stat.length:,} bytes, {file.length:,} were written"
            return Problem(path=file.path, fault=Fault.LENGTH, message=message)
        digest = None if quick else sha256_of(filesystem, file.path, read)
    except CheckpointError as error:
        return Problem(path=file.path, fault=Fault.UNREADABLE, message=str(error))
    if digest is None and not quick:
        return Problem(path=file.path, fault=Fault.MISSING, message="went away while it was checked")
    if digest is not None and digest != file.sha256:
        message = f"has other content than was written: sha256 is {digest[:12]}…, {file.sha256[:12]}… was written"
        return Problem(path=file.path, fault=Fault.CONTENT, message=message)
    return None


# ---- replays that a start has yet to read ----------------------------------------------------------------------------


def replay_problems(filesystem: FileSystem, history: History, *, quick: bool) -> Iterator[Problem]:
    """Return what is wrong with the replays that the next start would read, and with their letters.

    A start with empty state reads none. With ``quick`` no file of letters is opened.
    """
    try:
        point = history.restore_point
    except CheckpointUnreadable:
        return  # reported by _references
    if point is None:
        return
    line = timeline(history, point.checkpoint)
    existing = frozenset(filesystem.list(FOLDER))
    for uid in sorted({path.split("/")[1] for path in existing if path.split("/")[2:3] == [REPLAYS]}):
        yield from _problems_of_replays(filesystem, uid, replays_read(point, uid), existing, line, quick=quick)


def _problems_of_replays(
    filesystem: FileSystem, uid: str, read: int, existing: frozenset[str], line: Timeline, *, quick: bool
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
            if checkpoint is None or line.has(checkpoint):  # letters of another timeline are skipped
                yield from _problems_of_letters(
                    filesystem, f"{FOLDER}/{uid}/{each.file}", each, number, existing, quick=quick
                )


def _problems_of_letters(
    filesystem: FileSystem, path: str, letters: LetterRange, number: int, existing: frozenset[str], *, quick: bool
) -> Iterator[Problem]:
    if path not in existing:
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


# ---- blocks of received rows -----------------------------------------------------------------------------------------


def broken_blocks(
    filesystem: FileSystem, history: History, listed: Iterable[str], *, quick: bool
) -> Iterator[BrokenItem]:
    """Return what is wrong with the blocks of received rows that a start may read, and the checkpoints that read them.

    Args:
        filesystem: of the job.
        history: of its log, read after the folder was listed: blocks that were deleted since are not missed.
        listed: the files in the folder of blocks.
        quick: look for missing blocks only; content is not read.
    """
    for path in listed:
        if paths.key_file_id(path) is not None and not quick and _are_keys_damaged(filesystem, path):
            message = "has other content than was written; it says which requests were stored"
            yield BrokenItem(
                path=path,
                fault=Fault.CONTENT,
                message=message,
                checkpoints=tuple(history.restorable),
                savepoints=tuple(sorted(pin.name for pin in history.pins.values())),
            )
    for uid, folder in folders_of(listed).items():
        low, files = low_mark(history, uid), BlockFiles(uid, filesystem)
        for block in missing(folder.blocks, low):
            if _is_there(files, block):
                continue  # it was merged since the folder was listed
            message = "is not there; its rows were acknowledged"
            yield _broken_block(history, uid, paths.block(uid, block), block, Fault.MISSING, message)
        if quick:
            continue
        message = "has other content than was written; its rows were acknowledged"
        unknown: set[BlockId] = set()  # blocks of merged files that do not say where they are
        for file in folder.merged:
            if (low is None or file.last >= low) and _is_merged_damaged(filesystem, file):
                unknown |= set(file.blocks) - {each.first for each in folder.files if each.first == each.last}
                yield _broken_block(history, uid, file.path, file.last, Fault.CONTENT, message)
        for block in sorted(folder.blocks - unknown):
            if (low is None or block >= low) and _is_damaged(files, block, path := paths.block(uid, block)):
                yield _broken_block(history, uid, path, block, Fault.CONTENT, message)


def _is_there(files: BlockFiles, block: BlockId) -> bool:
    try:
        return files.read(block) is not None
    except CheckpointUnreadable:
        return True  # damaged


def _is_damaged(files: BlockFiles, block: BlockId, path: str) -> bool:
    try:
        data = files.read(block)
        if data is not None and data != SEAL:  # neither deleted since, nor a seal
            decode_block(split_keys(data, path)[0], path)
    except CheckpointUnreadable:
        return True
    return False


def _is_merged_damaged(filesystem: FileSystem, file: BlockFile) -> bool:
    try:
        read_merged(filesystem, file)
    except CheckpointUnreadable:
        return True
    return False


def _are_keys_damaged(filesystem: FileSystem, path: str) -> bool:
    data = filesystem.read(path)
    if data is None:
        return False  # merged since
    try:
        decode_key_file(data, path)
    except CheckpointUnreadable:
        return True
    return False


def _broken_block(history: History, uid: str, path: str, block: BlockId, fault: Fault, message: str) -> BrokenItem:
    readers = []
    for key, manifest in history.restorable.items():
        position = recorded(manifest, uid, history.log_id)
        if position is None or position.next <= block:
            readers.append(key)
    return BrokenItem(
        path=path,
        fault=fault,
        message=message,
        checkpoints=tuple(readers),
        savepoints=tuple(sorted(pin.name for pin in history.pins.values() if pin.checkpoint in readers)),
    )


# ---- staged output that is not where it was staged -------------------------------------------------------------------


class OutputLocation(Enum):
    """Where the content of a missing staged file is."""

    PUBLISHED = "published"
    """Under its final name, with the content that was staged."""
    TAKEN = "taken"
    """It counts as published, but is not there or has changed: a reader took it, or it was removed unpublished."""
    NO_TARGET = "no target"
    """Unknown: the target is not mounted, or was emptied."""
    LOST = "lost"
    """Unknown: nothing proves that it was published."""


def locate_output(filesystem: FileSystem, item: Committable, file: FileRef, *, quick: bool = False) -> OutputLocation:
    """Find a missing staged file by the sink's own evidence.

    Args:
        filesystem: of the job.
        item: an output that is not known to be published.
        file: one of its staged files, which does not exist.
        quick: compare name and length only.

    Raises:
        StorageFailed: a file cannot be accessed.
    """
    try:
        sink_committer = committer(item, CommitContext(filesystem=filesystem))
    except CommitterMissing:
        return OutputLocation.LOST
    if isinstance(sink_committer, SupportsPublishedLookup):
        return OutputLocation.PUBLISHED if sink_committer.is_published(item) else OutputLocation.LOST
    if not isinstance(sink_committer, SupportsOutputLookup) or (final := sink_committer.final(item, file.path)) is None:
        return OutputLocation.LOST
    stat = stat_file(filesystem, final)
    if stat is None:
        return OutputLocation.TAKEN if sink_committer.has_evidence(item) else OutputLocation.NO_TARGET
    is_unchanged = stat.length == file.length and (quick or sha256_of(filesystem, final) == file.sha256)
    return OutputLocation.PUBLISHED if is_unchanged else OutputLocation.TAKEN


# ---- the whole job ---------------------------------------------------------------------------------------------------
# A running job goes on meanwhile: files that it has released by the end are not missed (rule G4).


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenItem:
    """Something that differs from what was written, and what it breaks.

    Attributes:
        path: below the job's directory, or absolute where a sink stages next to its target.
        fault: what is wrong, as a word for scripts.
        message: the same for people.
        checkpoints: those that cannot be restored.
        savepoints: names of those that have one.
        outputs: those that cannot be published.
    """

    path: str
    fault: Fault
    message: str
    checkpoints: tuple[CheckpointId, ...] = ()
    savepoints: tuple[str, ...] = ()
    outputs: tuple[Committable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of a check.

    Attributes:
        job: its name.
        log_id: of its log, if that can be read.
        tail: the newest entry, ``-1`` if that is unknown.
        quick: content was not read.
        files: how many were checked.
        bytes: their size.
        broken: what is wrong; if nothing, the job is sound.
        taken: staged files that are gone as if published, while the published file is not there either. A reader took
            it, or the staged file was removed. A start counts them as published.
        restorable: checkpoints that the log offers.
        sound: those of them whose files are all right.
        restore_point: what the next start continues; ``None`` is empty state.
        orphans: files that are not needed and that no entry names.
        condemned: files that are to be deleted and still exist.
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


def _remedies(report: VerifyReport) -> Iterable[str]:
    if report.is_sound:
        return
    is_log = any(each.path.startswith(f"{paths.LOG}/") for each in report.broken)
    if not is_log:  # an entry that cannot be read, and was not given up, may still be put back
        lost = [name for each in report.broken if each.path == paths.LOG for name in each.savepoints]
        for name in lost:
            yield f"the checkpoint of savepoint {name} is lost; drop it: penstock savepoint drop {report.job} {name}"
        if len(lost) == len(report.broken):
            return
    yield "put the files back from a copy, if there is one"
    if report.log_id is None:
        return  # without a log there is no advice
    job, newest_sound = report.job, max(report.sound, default=None)
    is_output = any(each.outputs for each in report.broken)
    is_restore_point = report.restore_point is not None and report.restore_point not in report.sound
    if any(each.path.startswith(f"{paths.WAL}/") for each in report.broken):
        yield (
            "a missing or damaged block ends each start that reads it; without a copy, go on without its rows with "
            f"penstock skip {report.job} BLOCK"
        )
        return
    if any(each.path.startswith(f"{FOLDER}/") for each in report.broken):
        yield (
            "a replay that cannot be read ends each start whose source reads it; without a copy, and if it is the "
            "newest one, move it away, start, and give the replay once more"
        )
    elif not (is_log or is_output or is_restore_point):
        yield "the next start is not touched: the broken checkpoints are older, or on another timeline"
    if not (is_log or is_output or is_restore_point):
        return
    where = "--fresh" if newest_sound is None else str(newest_sound)
    command = f"penstock rewind {job} {where} --discard-unpublished" if is_output else f"penstock rewind {job} {where}"
    if newest_sound is None:
        yield f"no checkpoint is left; begin with empty state: {command}"
    else:
        yield f"begin again at checkpoint {newest_sound}: {command}"


def verify(job: JobDirectory, *, quick: bool = False, progress: ByteProgress = ignore_progress) -> VerifyReport:
    """Check everything that a restore, or the publishing of open output, would read.

    Args:
        job: the job's directory; the job may run.
        quick: check existence and length only; content is not read.
        progress: called with the bytes that were checked and the total.

    Raises:
        UnknownName: the job was never claimed.
        StorageFailed: a folder cannot be listed.
    """
    before = _read_log(job)
    if isinstance(before, BrokenItem):
        return VerifyReport(job=job.job, quick=quick, broken=(before,))
    needed = _needed_files(before)
    problems = check_files(job.filesystem, needed.values(), quick=quick, progress=progress)
    problems, taken = _without_published(job.filesystem, before, problems, quick=quick)
    is_running = job.owner() is not None
    blocks = job.filesystem.list(paths.WAL)
    after = _read_log(job)  # files released since are not missed (rule G4)
    if isinstance(after, BrokenItem):
        return VerifyReport(job=job.job, quick=quick, broken=(after,))
    released = needed.keys() - _needed_files(after).keys()
    problems = [each for each in problems if each.path not in released]
    problems += replay_problems(job.filesystem, after, quick=quick)
    broken = (
        *_broken_entries(after),
        *_references(after),
        *(_with_consequences(after, each) for each in problems),
        *broken_blocks(job.filesystem, after, blocks, quick=quick),
    )
    report = VerifyReport(
        job=job.job,
        log_id=after.log_id,
        tail=after.tail,
        quick=quick,
        files=len(needed),
        bytes=sum(file.length for file in needed.values()),
        broken=broken,
        taken=tuple(sorted(path for path in taken if path not in released)),
        restorable=tuple(after.restorable),
        sound=_sound(after, broken),
        restore_point=_restore_point(after),
    )
    return _with_leftovers(job.filesystem, after, report, is_running=is_running)


# ---- what the log needs ----------------------------------------------------------------------------------------------


def _needed_files(history: History) -> dict[str, FileRef]:
    """Every file that a restore or publishing reads, as it was recorded first. Voiding needs none."""
    found: dict[str, FileRef] = {}
    for file in _referenced(history):
        found.setdefault(file.path, file)
    return found


def _referenced(history: History) -> Iterable[FileRef]:
    for manifest in history.restorable.values():
        yield from manifest.state_files
    for item in history.open_committables:
        yield from item.files


def _read_log(job: JobDirectory) -> History | BrokenItem:
    """The log, past entries that cannot be read; or why none of it can be used."""
    try:
        return job.read(past_unreadable=True)
    except (LogGap, CheckpointUnreadable, StateDirectoryRefused) as error:
        fault = Fault.MISSING if isinstance(error, LogGap) else Fault.UNREADABLE
        return BrokenItem(path=paths.LOG, fault=fault, message=str(error))


def _broken_entries(history: History) -> Iterable[BrokenItem]:
    """Entries that cannot be read and that no rewind skipped."""
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
            yield _with_consequences(history, Problem(path=file.path, fault=Fault.REFERENCE, message=message))
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


def _with_consequences(history: History, problem: Problem) -> BrokenItem:
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
    broken_checkpoints = {key for each in broken for key in each.checkpoints}
    return tuple(key for key in history.restorable if key not in broken_checkpoints)


# ---- what may be elsewhere -------------------------------------------------------------------------------------------


def _without_published(
    filesystem: FileSystem, history: History, problems: Iterable[Problem], *, quick: bool
) -> tuple[list[Problem], list[str]]:
    """The problems without files that are published already, and the staged files that were taken."""
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
    filesystem: FileSystem, history: History, report: VerifyReport, *, is_running: bool
) -> VerifyReport:
    newest = history.generation or Generation(0)
    own = newest if is_running else Generation(newest + 1)
    owners = assign_owners(history, files_of(filesystem, history), own=own)
    return replace(
        report,
        orphans=tuple(sorted(path for path, owner in owners.items() if owner is Owner.ORPHAN)),
        condemned=tuple(sorted(path for path, owner in owners.items() if owner is Owner.CONDEMNED)),
    )
