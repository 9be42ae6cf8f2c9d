"""Savepoints; stop, settle and rewind a job; a checkpoint pinned while it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.checkpoint.entries import Pin, Unpin
from penstock.checkpoint.events import RequestOutcome
from penstock.checkpoint.history import name_conflict, resolve_checkpoint
from penstock.checkpoint.recovery import Recovery, execute_recovery, plan_rewind
from penstock.clock import WallTime, sleep
from penstock.connectors import committers
from penstock.control.client import JobDirectory, is_at_rest, process_name
from penstock.control.protocol import RequestKind
from penstock.errors import CommitterMissing, PenstockError, RequestFailed, RequestRefused, UnknownName, did_you_mean
from penstock.failpoints import failpoint
from penstock.handles import CheckpointId, check_savepoint_name, new_id, output_names
from penstock.interfaces.sink import CommitContext
from penstock.interfaces.source import ignore_fact

if TYPE_CHECKING:
    from penstock.checkpoint.entries import Rewind
    from penstock.checkpoint.history import History
    from penstock.checkpoint.log import OwnedLog
    from penstock.control.protocol import Answer
    from penstock.handles import Committable


# ---- savepoints ------------------------------------------------------------------------------------------------------
# A savepoint is a pinned checkpoint (DESIGN section 3): it costs no copy, and dropping its name deletes nothing.


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """A checkpoint that has a name. ``None`` is unknown: its entry in the log could not be read, and was given up.

    Attributes:
        name: a restore finds the checkpoint by it.
        checkpoint: its id.
        taken: when the checkpoint was complete.
        named: when it got the name.
        owner: the process that asked for it.
        bytes: size of all files that the checkpoint needs.
        is_restore_point: the next start continues it.
        is_restorable: ``False`` if the checkpoint is lost. Then the name can only be dropped.
    """

    name: str
    checkpoint: CheckpointId
    taken: WallTime | None
    named: WallTime
    owner: str
    bytes: int | None
    is_restore_point: bool
    is_restorable: bool = True


def savepoints_of(history: History) -> tuple[Savepoint, ...]:
    """Return all savepoints of a log, oldest checkpoint first."""
    point, restorable = history.restore_point, history.restorable
    found = []
    for pin in history.pins.values():
        manifest = restorable.get(pin.checkpoint)
        found.append(
            Savepoint(
                name=pin.name,
                checkpoint=pin.checkpoint,
                taken=None if manifest is None else manifest.completed,
                named=pin.at,
                owner=pin.owner,
                bytes=None if manifest is None else manifest.state_bytes,
                is_restore_point=point is not None and point.checkpoint == pin.checkpoint,
                is_restorable=manifest is not None,
            )
        )
    return tuple(sorted(found, key=lambda each: (each.checkpoint, each.name)))


def savepoint_of(history: History, name: str) -> Savepoint:
    """Return the savepoint of this name.

    Raises:
        UnknownName: there is none; the message names the nearest.
    """
    for each in savepoints_of(history):
        if each.name == name:
            return each
    msg = f"Job {history.job!r} has no savepoint {name!r}{did_you_mean(name, history.pins) or '. It has none at all.'}"
    raise UnknownName(msg)


def create(job: JobDirectory, name: str, *, at: str | None = None, seconds: float | None = None) -> CheckpointId:
    """Name a checkpoint: a new one of a running job, the newest of a stopped job, or an older one.

    Args:
        job: the job's directory.
        name: 1 to 100 letters, digits, ``.``, ``_`` and ``-``, beginning with a letter; never used before.
        at: an older checkpoint, by number or by another name.
        seconds: how long to wait for a running job; without limit unless given.

    Returns:
        The checkpoint that now has the name.

    Raises:
        SettingsError: the name is not valid.
        UnknownName: there is no checkpoint ``at``.
        RequestRefused: the name is taken, or the job is stopping.
        RequestFailed: the checkpoint failed, or there is none yet.
    """
    check_savepoint_name(name)
    history = job.read()
    target = None if at is None else resolve_checkpoint(history, at)
    _require_free(name, history)
    if job.owner() is None:
        return _pin_stopped(job, name, target)
    if target is None:
        answer = job.ask(RequestKind.SAVEPOINT, name=name, seconds=seconds)
    else:
        answer = job.ask(RequestKind.PIN, name=name, checkpoint=target, seconds=seconds)
    checkpoint = require_done(answer, f"savepoint {name!r} of job {job.job!r}").checkpoint
    assert checkpoint is not None  # set in each DONE answer that names a checkpoint
    return checkpoint


def _require_free(name: str, history: History) -> None:
    msg = name_conflict(history, name)
    if msg is not None:
        raise RequestRefused(msg)


def _pin_stopped(job: JobDirectory, name: str, target: CheckpointId | None) -> CheckpointId:
    with job.own() as owned:
        history = owned.history  # read again, under the claim (rule L5)
        _require_free(name, history)
        if target is None and history.restore_point is not None:
            target = history.restore_point.checkpoint
        if target is None:
            msg = f"Job {job.job!r} is not running and has no checkpoint that could have a name. Run it first."
            raise RequestFailed(msg)
        checkpoint = resolve_checkpoint(history, str(target))
        owned.append(Pin(name=name, checkpoint=checkpoint, at=job.now(), owner=process_name()))
        return checkpoint


def drop(job: JobDirectory, name: str, *, seconds: float | None = None) -> CheckpointId:
    """Take the name away and return its checkpoint, which stays until retention removes it.

    Raises:
        UnknownName: there is no such savepoint.
        RequestFailed: a running job did not answer in time.
    """
    checkpoint = savepoint_of(job.read(), name).checkpoint
    if job.owner() is None:
        with job.own() as owned:
            savepoint_of(owned.history, name)
            owned.append(Unpin(name=name, at=job.now()))
    else:
        require_done(
            job.ask(RequestKind.UNPIN, name=name, seconds=seconds), f"dropping savepoint {name!r} of job {job.job!r}"
        )
    return checkpoint


def require_done(answer: Answer, what: str) -> Answer:
    """Return the answer if it is ``DONE``.

    Raises:
        RequestRefused: the request was refused, and nothing was begun.
        RequestFailed: the request failed.
    """
    if answer.outcome is RequestOutcome.DONE:
        return answer
    msg = f"{what}: {answer.message}"
    raise (RequestRefused if answer.outcome is RequestOutcome.REFUSED else RequestFailed)(msg)


# ---- a checkpoint pinned while it is read (rule G4) ------------------------------------------------------------------
# A reader that dies leaves its pin behind, with its owner and an expiry; ``penstock savepoint drop`` removes it.

READ_PIN_TTL: Final = 86_400_000_000
"""Microseconds until a reader's pin expires."""  # a day: no reader takes longer, so an older pin was left behind
PIN_TIMEOUT: Final = 60.0
"""Seconds that a running job gets to pin or unpin a checkpoint."""


@contextmanager
def pinned_while_reading(job: JobDirectory, checkpoint: CheckpointId, *, purpose: str) -> Iterator[str]:
    """Keep the files of a checkpoint for the duration of a ``with`` block; yields the pin's name.

    Args:
        job: the job's directory.
        checkpoint: one that can be restored.
        purpose: begins the name: ``export`` makes ``export-1f0c5b3a``.

    Raises:
        UnknownName: the checkpoint can no longer be restored.
        RequestFailed: a running job did not answer in time.
    """
    name = f"{purpose}-{new_id()[:8]}"
    _pin_for_reading(job, name, checkpoint)
    failpoint("export.pinned")
    try:
        yield name
    except (Exception, KeyboardInterrupt):
        _unpin(job, name, ignore_errors=True)
        raise
    _unpin(job, name, ignore_errors=False)


def _pin_for_reading(job: JobDirectory, name: str, checkpoint: CheckpointId) -> None:
    expires = WallTime(job.now() + READ_PIN_TTL)
    if job.owner() is None:
        with job.own() as owned:
            resolve_checkpoint(owned.history, str(checkpoint))  # again, under the claim (rule L5)
            owned.append(Pin(name=name, checkpoint=checkpoint, at=job.now(), owner=process_name(), expires=expires))
    else:
        answer = job.ask(RequestKind.PIN, name=name, checkpoint=checkpoint, expires=expires, seconds=PIN_TIMEOUT)
        require_done(answer, f"keeping checkpoint {checkpoint} of job {job.job!r}")


def _unpin(job: JobDirectory, name: str, *, ignore_errors: bool) -> None:
    try:
        if job.owner() is None:
            with job.own() as owned:
                owned.append(Unpin(name=name, at=job.now()))
        else:
            require_done(
                job.ask(RequestKind.UNPIN, name=name, seconds=PIN_TIMEOUT), f"dropping {name!r} of job {job.job!r}"
            )
    except PenstockError:
        if not ignore_errors:
            raise


# ---- stop, settle, rewind --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """How a stop ended.

    Attributes:
        checkpoint: the last one; ``None`` if there is none.
        was_running: whether the job ran when it was asked to stop.
        unpublished: why the last checkpoint's output is not published yet, if it is not; ``settle`` publishes it.
    """

    checkpoint: CheckpointId | None
    was_running: bool
    unpublished: str | None = None


def stop(
    job: JobDirectory,
    *,
    savepoint: str | None = None,
    drain: bool = False,
    patience: int | None = None,
    seconds: float | None = None,
) -> StopResult:
    """Stop a running job after a last checkpoint whose output is published.

    A job that is stopped already gets only its savepoint.

    Args:
        job: the job's directory.
        savepoint: a name for the last checkpoint.
        drain: end the sources first, for good: all windows close and are published.
        patience: microseconds that the job waits for its last checkpoint and its output before it ends without them.
        seconds: how long to wait for the job's answer; without limit unless given.

    Raises:
        SettingsError: the name is not valid.
        RequestRefused: the name is taken, and the job goes on; or ``drain`` is given and the job does not run.
        RequestFailed: the last checkpoint failed, the job ended without it, or no answer came in time.
    """
    if savepoint is not None:
        check_savepoint_name(savepoint)
    if job.owner() is None:
        if drain:
            msg = (
                f"Job {job.job!r} is not running, and only a running job can be drained. Start it, then use penstock "
                f"stop {job.job} --drain."
            )
            raise RequestRefused(msg)
        checkpoint = create(job, savepoint) if savepoint is not None else _newest(job.read())
        return StopResult(checkpoint=checkpoint, was_running=False, unpublished=_unpublished_reason(job.read()))
    answer = job.ask(
        RequestKind.DRAIN if drain else RequestKind.STOP, name=savepoint, patience=patience, seconds=seconds
    )
    if answer.outcome is RequestOutcome.UNPUBLISHED:
        return StopResult(checkpoint=answer.checkpoint, was_running=True, unpublished=answer.message)
    require_done(answer, f"stopping job {job.job!r}")
    return StopResult(checkpoint=answer.checkpoint, was_running=True)


def _newest(history: History) -> CheckpointId | None:
    point = history.restore_point
    return point.checkpoint if point else None


def _unpublished_reason(history: History) -> str | None:
    if is_at_rest(history) or not history.open_committables:
        return None
    return f"the log does not know these to be published: {output_names(*history.open_committables)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleResult:
    """The outputs that ``settle`` or ``rewind`` published, and then those that it voided."""

    published: tuple[Committable, ...] = ()
    voided: tuple[Committable, ...] = ()


def settle(job: JobDirectory) -> SettleResult:
    """Publish the open output of a stopped job, void what was discarded, and write that the job is at rest.

    Raises:
        JobIsRunning: the job runs, and publishes by itself.
        StateIncompatible: an output is of a kind that this penstock does not know.
    """
    with job.own() as owned:
        history = owned.history
        recovery = Recovery(
            commit=history.open_committables,
            void=history.to_void,
            delete=history.condemned_files(after=history.deleted),
            next_checkpoint=history.next_checkpoint,
            initial=False,
        )
        _execute(job, owned, recovery)
        if not is_at_rest(owned.history):
            job.write_stopped(owned)
        return SettleResult(published=recovery.commit, voided=recovery.void)


def rewind(
    job: JobDirectory, to: CheckpointId | None, *, discard_unpublished: bool = False, expect_tail: int | None = None
) -> tuple[Rewind, SettleResult]:
    """Set where the next start begins: publish open output, write the entry, void what it discards (R1 to R3).

    Args:
        job: the directory of a job that does not run.
        to: the checkpoint; ``None`` is empty state.
        discard_unpublished: void the open output above the target instead of publishing it. Its checkpoints, and all
            that were built on them, can never be restored again.
        expect_tail: refuse if the log's newest entry is another one.

    Raises:
        JobIsRunning: the job runs.
        GraphError: the target cannot be restored, or a discarded checkpoint has a name.
        StateIncompatible: an output is of a kind that this penstock does not know.
    """
    with job.own(past_unreadable=True, expect_tail=expect_tail) as owned:  # type: ignore[arg-type]
        history = owned.history
        entry = plan_rewind(history, to, at=job.now(), discard_unpublished=discard_unpublished)
        recovery = Recovery(
            commit=tuple(item for item in history.open_committables if item not in entry.discard),
            rewind=entry,
            void=(*history.to_void, *entry.discard),
            delete=history.condemned_files(after=history.deleted),
            next_checkpoint=history.next_checkpoint,
            initial=False,
        )
        _execute(job, owned, recovery)
        job.write_stopped(owned)
        return entry, SettleResult(published=recovery.commit, voided=recovery.void)


def without_void(job: JobDirectory, items: Sequence[Committable]) -> list[str]:
    """For each of the outputs that can only be discarded, not voided, a sentence that says why."""
    found = []
    for item in items:
        try:
            committers.committer(item, _context(job))
        except CommitterMissing as error:
            found.append(committers.unvoided(item, error))
    return found


def _context(job: JobDirectory) -> CommitContext:
    return CommitContext(filesystem=job.filesystem, failpoint=failpoint, job=job.job)


def _execute(job: JobDirectory, owned: OwnedLog, recovery: Recovery) -> None:
    context = _context(job)
    execute_recovery(
        recovery,
        log=owned,
        filesystem=job.filesystem,
        commit=lambda item: committers.publish(item, context),
        void=lambda item: committers.void(item, context),
        listener=ignore_fact,  # the callers report the result as a whole
        pause=sleep,
    )
