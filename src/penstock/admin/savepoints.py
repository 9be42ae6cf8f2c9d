"""Savepoints; stop, settle, rewind a job; a checkpoint held while read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.checkpoint.entries import Pin, Unpin
from penstock.checkpoint.events import RequestOutcome
from penstock.checkpoint.history import name_conflict, resolve_checkpoint
from penstock.checkpoint.recovery import Recovery, execute_recovery, plan_rewind
from penstock.clock import WallTime, sleep
from penstock.connectors.staging import committer
from penstock.control.client import JobDirectory, is_at_rest, process_name
from penstock.control.protocol import RequestKind
from penstock.errors import PenstockError, RequestFailed, RequestRefused, UnknownName, did_you_mean
from penstock.failpoints import failpoint
from penstock.handles import CheckpointId, check_savepoint_name, new_id, output_names

if TYPE_CHECKING:
    from penstock.checkpoint.entries import Rewind
    from penstock.checkpoint.history import History
    from penstock.checkpoint.log import OwnedLog
    from penstock.control.protocol import Answer
    from penstock.facts import Fact
    from penstock.handles import Committable


# ----------------------------------------------------------------------------------------------------
# Savepoints: names that checkpoints keep. Of a running job by asking it, of a stopped one under a claim.
#
# A savepoint is a pinned checkpoint and nothing else (DESIGN section 3), so it costs no copy, and taking its name away
# deletes nothing by itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """A checkpoint that has a name.

    Attributes:
        name: by which a restore finds it.
        checkpoint: its id.
        taken: when the checkpoint was complete.
        named: when it got the name.
        owner: who asked.
        bytes: of all files that it needs.
        is_restore_point: the next start continues it.
    """

    name: str
    checkpoint: CheckpointId
    taken: WallTime
    named: WallTime
    owner: str
    bytes: int
    is_restore_point: bool


def savepoints_of(history: History) -> tuple[Savepoint, ...]:
    """All savepoints, oldest checkpoint first."""
    point = history.restore_point
    found = []
    for pin in history.pins.values():
        manifest = history.manifests[pin.checkpoint][1]
        found.append(
            Savepoint(
                name=pin.name,
                checkpoint=pin.checkpoint,
                taken=manifest.completed,
                named=pin.at,
                owner=pin.owner,
                bytes=manifest.state_bytes,
                is_restore_point=point is not None and point.checkpoint == pin.checkpoint,
            )
        )
    return tuple(sorted(found, key=lambda each: (each.checkpoint, each.name)))


def savepoint_of(history: History, name: str) -> Savepoint:
    """The savepoint of this name.

    Raises:
        UnknownName: there is none; with the nearest.
    """
    for each in savepoints_of(history):
        if each.name == name:
            return each
    msg = f"job {history.job!r} has no savepoint {name!r}{did_you_mean(name, history.pins) or '; it has none at all'}"
    raise UnknownName(msg)


def create(job: JobDirectory, name: str, *, at: str | None = None, seconds: float | None = None) -> CheckpointId:
    """Give a name to a new checkpoint of a running job, to the newest of a stopped one, or to an older one.

    Args:
        job: whose.
        name: 1 to 100 letters, digits, ``.``, ``_`` and ``-``, beginning with a letter; never given twice.
        at: an older checkpoint, by number or by another name.
        seconds: how long to wait for a running job; for ever unless given.

    Returns:
        The checkpoint that has the name now.

    Raises:
        SettingsError: the name is none.
        UnknownName: there is no checkpoint ``at``.
        RequestRefused: the name is taken, or the job is stopping.
        RequestFailed: the checkpoint came to nothing, or there is none yet.
    """
    check_savepoint_name(name)
    history = job.read()
    target = None if at is None else resolve_checkpoint(history, at)
    _refuse_taken(history, name)
    if job.owner() is None:
        return _pin(job, name, target)
    if target is None:
        answer = job.ask(RequestKind.SAVEPOINT, name=name, seconds=seconds)
    else:
        answer = job.ask(RequestKind.PIN, name=name, checkpoint=target, seconds=seconds)
    checkpoint = require_done(answer, f"savepoint {name!r} of job {job.job!r}").checkpoint
    assert checkpoint is not None  # whatever names a checkpoint says which
    return checkpoint


def _refuse_taken(history: History, name: str) -> None:
    msg = name_conflict(history, name)
    if msg is not None:
        raise RequestRefused(msg)


def _pin(job: JobDirectory, name: str, target: CheckpointId | None) -> CheckpointId:
    with job.own() as owned:
        history = owned.history  # read again, under the claim (rule L5)
        _refuse_taken(history, name)
        if target is None and history.restore_point is not None:
            target = history.restore_point.checkpoint
        if target is None:
            msg = f"job {job.job!r} is not running and has no checkpoint that could have a name; run it first"
            raise RequestFailed(msg)
        checkpoint = resolve_checkpoint(history, str(target))
        owned.append(Pin(name=name, checkpoint=checkpoint, at=job.now(), owner=process_name()))
        return checkpoint


def drop(job: JobDirectory, name: str, *, seconds: float | None = None) -> CheckpointId:
    """Take the name away; the checkpoint stays until it is one of too many. Returns which it was.

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
    """The answer, if it is yes.

    Raises:
        RequestRefused: it was refused, and nothing was begun.
        RequestFailed: it came to nothing.
    """
    if answer.outcome is RequestOutcome.DONE:
        return answer
    msg = f"{what}: {answer.message}"
    raise (RequestRefused if answer.outcome is RequestOutcome.REFUSED else RequestFailed)(msg)


# ----------------------------------------------------------------------------------------------------
# A checkpoint of a job that stays while somebody reads it (rule G4): a name for a while, of a running or a dead job.
#
# Knows not what is read. Whoever dies while reading leaves the name behind, with who it was and until when it was
# meant; ``penstock savepoint drop`` takes it away.

EXPIRES: Final = 86_400_000_000
"""Microseconds: nobody reads a checkpoint for longer than a day; a name that is older was left behind."""
ANSWERED: Final = 60.0
"""Seconds that a running job gets to give a name, or to take it away again."""


@contextmanager
def pinned_while_reading(job: JobDirectory, checkpoint: CheckpointId, *, purpose: str) -> Iterator[str]:
    """Have the checkpoint keep its files as long as the ``with`` block lasts; gives the name that it has meanwhile.

    Args:
        job: whose.
        checkpoint: one that can be restored.
        purpose: begins the name: ``export`` makes ``export-1f0c5b3a``.

    Raises:
        UnknownName: it can no longer be restored.
        RequestFailed: a running job did not answer in time.
    """
    name = f"{purpose}-{new_id()[:8]}"
    _give(job, name, checkpoint)
    failpoint("export.pinned")
    try:
        yield name
    except (Exception, KeyboardInterrupt):
        _take(job, name, quietly=True)
        raise
    _take(job, name, quietly=False)


def _give(job: JobDirectory, name: str, checkpoint: CheckpointId) -> None:
    expires = WallTime(job.now() + EXPIRES)
    if job.owner() is None:
        with job.own() as owned:
            resolve_checkpoint(owned.history, str(checkpoint))  # again, under the claim (rule L5)
            owned.append(Pin(name=name, checkpoint=checkpoint, at=job.now(), owner=process_name(), expires=expires))
    else:
        answer = job.ask(RequestKind.PIN, name=name, checkpoint=checkpoint, expires=expires, seconds=ANSWERED)
        require_done(answer, f"keeping checkpoint {checkpoint} of job {job.job!r}")


def _take(job: JobDirectory, name: str, *, quietly: bool) -> None:
    try:
        if job.owner() is None:
            with job.own() as owned:
                owned.append(Unpin(name=name, at=job.now()))
        else:
            require_done(
                job.ask(RequestKind.UNPIN, name=name, seconds=ANSWERED), f"dropping {name!r} of job {job.job!r}"
            )
    except PenstockError:
        if not quietly:
            raise


# ----------------------------------------------------------------------------------------------------
# Stops a running job from outside, publishes what a dead one left open, and sets where the next start begins.


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """How a stop ended.

    Attributes:
        checkpoint: the last one; ``None`` if there is none.
        was_running: whether there was anything to stop.
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
    """Have a running job take a last checkpoint, publish, and end; one that is stopped already only gets its savepoint.

    Args:
        job: which.
        savepoint: a name for the last checkpoint.
        drain: have the sources end first, for good: all windows close and are published.
        patience: microseconds that the job waits for its last checkpoint and its output, before it ends without.
        seconds: how long to wait for the job's answer; for ever unless given.

    Raises:
        SettingsError: the name is none.
        RequestRefused: the name is taken: the job goes on; or it is to be drained and does not run.
        RequestFailed: the last checkpoint failed, or the job ended without it; or no answer came in time.
    """
    if savepoint is not None:
        check_savepoint_name(savepoint)
    if job.owner() is None:
        if drain:
            msg = f"nobody runs job {job.job!r}, and only a running job can be drained: start it, then stop --drain"
            raise RequestRefused(msg)
        checkpoint = create(job, savepoint) if savepoint is not None else _newest(job.read())
        return StopResult(checkpoint=checkpoint, was_running=False, unpublished=_waiting(job.read()))
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


def _waiting(history: History) -> str | None:
    if is_at_rest(history) or not history.open_committables:
        return None
    waiting = output_names(*history.open_committables)
    return f"the log does not know these to be published: {waiting}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleResult:
    """What was done to bring a job to rest: in this order."""

    published: tuple[Committable, ...] = ()
    voided: tuple[Committable, ...] = ()


def settle(job: JobDirectory) -> SettleResult:
    """Publish all that the log of a stopped job holds open, void what was discarded, and say that it is at rest.

    Raises:
        JobIsRunning: it runs, and publishes by itself.
        StateIncompatible: output of a kind that this penstock does not know.
    """
    with job.own() as owned:
        history = owned.history
        recovery = _settling(history)
        _carry_out(job, owned, recovery)
        if not is_at_rest(owned.history):
            job.write_stopped(owned)
        return SettleResult(published=recovery.commit, voided=recovery.void)


def rewind(
    job: JobDirectory, to: CheckpointId | None, *, discard_unpublished: bool = False, expect_tail: int | None = None
) -> tuple[Rewind, SettleResult]:
    """Set where the next start begins: publish what is open, write the entry, void what it discards (R1 to R3).

    Args:
        job: one that nobody runs.
        to: the checkpoint; ``None`` is empty state.
        discard_unpublished: what is open above the target is voided and not published; its checkpoints, and all that
            were built on them, can never be restored again.
        expect_tail: refuse if the log has moved since somebody looked at it.

    Raises:
        JobIsRunning: somebody runs it.
        GraphError: the target cannot be restored, or a discarded checkpoint has a name.
        StateIncompatible: output of a kind that this penstock does not know.
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
        _carry_out(job, owned, recovery)
        job.write_stopped(owned)
        return entry, SettleResult(published=recovery.commit, voided=recovery.void)


def _settling(history: History) -> Recovery:
    return Recovery(
        commit=history.open_committables,
        void=history.to_void,
        delete=history.condemned_files(after=history.deleted),
        next_checkpoint=history.next_checkpoint,
        initial=False,
    )


def _carry_out(job: JobDirectory, owned: OwnedLog, recovery: Recovery) -> None:
    execute_recovery(
        recovery,
        log=owned,
        filesystem=job.filesystem,
        commit=lambda item: committer(item.kind, job.filesystem, failpoint).commit(item),
        void=lambda item: committer(item.kind, job.filesystem, failpoint).void(item),
        listener=_nobody,
        pause=sleep,
    )


def _nobody(fact: Fact) -> None:
    """The caller tells what was done, once all of it is."""
