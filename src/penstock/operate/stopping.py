"""Stops a running job from outside, publishes what a dead one left open, and sets where the next start begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.checkpoint.control import Kind, check_savepoint_name
from penstock.checkpoint.effects import Answer
from penstock.checkpoint.recovery import Recovery, plan_rewind
from penstock.errors import RequestRefused
from penstock.failpoints import failpoint
from penstock.handles import output_names
from penstock.job.recover import carry_out
from penstock.operate.directory import is_at_rest
from penstock.operate.savepoints import create, done
from penstock.runtime.clock import pause
from penstock.sinks.committers import committer

if TYPE_CHECKING:
    from penstock.checkpoint.entries import Rewind
    from penstock.checkpoint.history import History
    from penstock.checkpoint.log import OwnedLog
    from penstock.facts import Fact
    from penstock.handles import Committable
    from penstock.ids import CheckpointId
    from penstock.operate.directory import JobDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
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
) -> Stopping:
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
        return Stopping(checkpoint=checkpoint, was_running=False, unpublished=_waiting(job.read()))
    answer = job.ask(Kind.DRAIN if drain else Kind.STOP, name=savepoint, patience=patience, seconds=seconds)
    if answer.answer is Answer.UNPUBLISHED:
        return Stopping(checkpoint=answer.checkpoint, was_running=True, unpublished=answer.message)
    done(answer, f"stopping job {job.job!r}")
    return Stopping(checkpoint=answer.checkpoint, was_running=True)


def _newest(history: History) -> CheckpointId | None:
    point = history.restore_point
    return point.checkpoint if point else None


def _waiting(history: History) -> str | None:
    if is_at_rest(history) or not history.open_committables:
        return None
    waiting = output_names(*history.open_committables)
    return f"the log does not know these to be published: {waiting}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What was done to bring a job to rest: in this order."""

    published: tuple[Committable, ...] = ()
    voided: tuple[Committable, ...] = ()


def settle(job: JobDirectory) -> Settled:
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
            job.rest(owned)
        return Settled(published=recovery.commit, voided=recovery.void)


def rewind(
    job: JobDirectory, to: CheckpointId | None, *, discard_unpublished: bool = False, expect_tail: int | None = None
) -> tuple[Rewind, Settled]:
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
        job.rest(owned)
        return entry, Settled(published=recovery.commit, voided=recovery.void)


def _settling(history: History) -> Recovery:
    return Recovery(
        commit=history.open_committables,
        void=history.to_void,
        delete=history.condemned_files(after=history.deleted),
        next_checkpoint=history.next_checkpoint,
        initial=False,
    )


def _carry_out(job: JobDirectory, owned: OwnedLog, recovery: Recovery) -> None:
    carry_out(
        recovery,
        log=owned,
        filesystem=job.filesystem,
        commit=lambda item: committer(item.kind, job.filesystem, failpoint).commit(item),
        void=lambda item: committer(item.kind, job.filesystem, failpoint).void(item),
        listener=_nobody,
        pause=pause,
    )


def _nobody(fact: Fact) -> None:
    """The caller tells what was done, once all of it is."""
