"""Whether a job could be restored and its output published: reads the log and every file that either needs.

Changes nothing. A job that runs goes on meanwhile: what it has let go by the end is not missed (rule G4).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.checkpoint import paths
from penstock.checkpoint.history import History
from penstock.errors import CheckpointUnreadable, LogGap, StateDirectoryRefused
from penstock.ids import CheckpointId, Generation
from penstock.operate.files.checking import Fault, Problem, Progress, check, silent
from penstock.operate.files.disk import files_of
from penstock.operate.files.ownership import Owner, owners
from penstock.operate.files.verify_replays import replay_problems
from penstock.operate.files.whereabouts import Whereabouts, whereabouts
from penstock.sources.dead_letters import FOLDER

if TYPE_CHECKING:
    from penstock.filesystem.base import FileSystem
    from penstock.handles import Committable, FileRef
    from penstock.operate.directory import JobDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
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
class Verdict:
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
    broken: tuple[Broken, ...] = ()
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


def _remedies(verdict: Verdict) -> Iterable[str]:
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


def verify(job: JobDirectory, *, quick: bool = False, progress: Progress = silent) -> Verdict:
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
    if isinstance(before, Broken):
        return Verdict(job=job.job, quick=quick, broken=(before,))
    needs = _needs(before)
    problems = check(job.filesystem, needs.values(), quick=quick, progress=progress)
    problems, taken = _without_published(job.filesystem, before, problems, quick=quick)
    is_running = job.owner() is not None
    after = _read(job)  # whatever was let go while we read is not missed (rule G4)
    if isinstance(after, Broken):
        return Verdict(job=job.job, quick=quick, broken=(after,))
    still = _needs(after)
    gone = {path for path in needs if path not in still}
    problems = [each for each in problems if each.path not in gone]
    problems += replay_problems(job.filesystem, after, quick=quick)
    broken = (*_broken_entries(after), *_references(after), *(_consequence(after, each) for each in problems))
    verdict = Verdict(
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


def _read(job: JobDirectory) -> History | Broken:
    """The log, past what cannot be read; or why nothing of it can be believed."""
    try:
        return job.read(past_unreadable=True)
    except (LogGap, CheckpointUnreadable, StateDirectoryRefused) as error:
        fault = Fault.MISSING if isinstance(error, LogGap) else Fault.UNREADABLE
        return Broken(path=paths.LOG, fault=fault, message=str(error))


def _broken_entries(history: History) -> Iterable[Broken]:
    """Entries that cannot be read and that no rewind went past: what they said is not known."""
    for each in history.unreadable:
        if each.number not in history.lost:
            yield Broken(path=paths.entry(each.number), fault=Fault.UNREADABLE, message=each.message)


def _references(history: History) -> Iterable[Broken]:
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
            yield Broken(path=paths.LOG, fault=Fault.REFERENCE, message=message, savepoints=(pin.name,))
    try:
        _ = history.restore_point
    except CheckpointUnreadable as error:
        yield Broken(path=paths.LOG, fault=Fault.REFERENCE, message=str(error))


def _restore_point(history: History) -> CheckpointId | None:
    try:
        return history.restore_point.checkpoint if history.restore_point is not None else None
    except CheckpointUnreadable:
        return None


def _consequence(history: History, problem: Problem) -> Broken:
    checkpoints = tuple(
        key for key, manifest in history.restorable.items() if any(f.path == problem.path for f in manifest.state_files)
    )
    outputs = (item for item in history.open_committables if any(f.path == problem.path for f in item.files))
    return Broken(
        path=problem.path,
        fault=problem.fault,
        message=problem.message,
        checkpoints=checkpoints,
        savepoints=tuple(sorted(pin.name for pin in history.pins.values() if pin.checkpoint in checkpoints)),
        outputs=tuple(outputs),
    )


def _sound(history: History, broken: Iterable[Broken]) -> tuple[CheckpointId, ...]:
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
        match whereabouts(filesystem, *staged[problem.path], quick=quick):
            case Whereabouts.PUBLISHED:
                pass
            case Whereabouts.TAKEN:
                taken.append(problem.path)
            case Whereabouts.NO_TARGET:
                message = "is not there, nor is its folder: the target is not mounted, or was emptied"
                left.append(replace(problem, message=message))
            case Whereabouts.LOST:
                left.append(problem)
    return left, taken


def _with_leftovers(filesystem: FileSystem, history: History, verdict: Verdict, *, is_running: bool) -> Verdict:
    newest = history.generation or Generation(0)
    own = newest if is_running else Generation(newest + 1)
    of = owners(history, files_of(filesystem, history), own=own)
    return replace(
        verdict,
        orphans=tuple(sorted(path for path, owner in of.items() if owner is Owner.ORPHAN)),
        condemned=tuple(sorted(path for path, owner in of.items() if owner is Owner.CONDEMNED)),
    )
