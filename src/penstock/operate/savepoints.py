"""Savepoints: names that checkpoints keep. Of a running job by asking it, of a stopped one under a claim.

A savepoint is a pinned checkpoint and nothing else (DESIGN section 3), so it costs no copy, and taking its name away
deletes nothing by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.checkpoint.control import Kind, check_savepoint_name
from penstock.checkpoint.effects import Answer
from penstock.checkpoint.entries import Pin, Unpin
from penstock.checkpoint.names import near, taken, which_checkpoint
from penstock.errors import RequestFailed, RequestRefused, UnknownName
from penstock.operate.directory import me

if TYPE_CHECKING:
    from penstock.checkpoint.control import ControlAnswer
    from penstock.checkpoint.history import History
    from penstock.ids import CheckpointId, WallTime
    from penstock.operate.directory import JobDirectory


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
    msg = f"job {history.job!r} has no savepoint {name!r}{near(name, history.pins) or '; it has none at all'}"
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
    target = None if at is None else which_checkpoint(history, at)
    _refuse_taken(history, name)
    if job.owner() is None:
        return _pin(job, name, target)
    if target is None:
        answer = job.ask(Kind.SAVEPOINT, name=name, seconds=seconds)
    else:
        answer = job.ask(Kind.PIN, name=name, checkpoint=target, seconds=seconds)
    checkpoint = done(answer, f"savepoint {name!r} of job {job.job!r}").checkpoint
    assert checkpoint is not None  # whatever names a checkpoint says which
    return checkpoint


def _refuse_taken(history: History, name: str) -> None:
    msg = taken(history, name)
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
        checkpoint = which_checkpoint(history, str(target))
        owned.append(Pin(name=name, checkpoint=checkpoint, at=job.now(), owner=me()))
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
        done(job.ask(Kind.UNPIN, name=name, seconds=seconds), f"dropping savepoint {name!r} of job {job.job!r}")
    return checkpoint


def done(answer: ControlAnswer, what: str) -> ControlAnswer:
    """The answer, if it is yes.

    Raises:
        RequestRefused: it was refused, and nothing was begun.
        RequestFailed: it came to nothing.
    """
    if answer.answer is Answer.DONE:
        return answer
    msg = f"{what}: {answer.message}"
    raise (RequestRefused if answer.answer is Answer.REFUSED else RequestFailed)(msg)
