"""A checkpoint of a job that stays while somebody reads it (rule G4): a name for a while, of a running or a dead job.

Knows not what is read. Whoever dies while reading leaves the name behind, with who it was and until when it was meant;
``penstock savepoint drop`` takes it away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.checkpoint.control import Kind
from penstock.checkpoint.entries import Pin, Unpin
from penstock.checkpoint.names import which_checkpoint
from penstock.errors import PenstockError
from penstock.failpoints import failpoint
from penstock.ids import CheckpointId, WallTime
from penstock.job.asking import new_id
from penstock.operate.directory import JobDirectory, me
from penstock.operate.savepoints import done

EXPIRES: Final = 86_400_000_000
"""Microseconds: nobody reads a checkpoint for longer than a day; a name that is older was left behind."""

ANSWERED: Final = 60.0
"""Seconds that a running job gets to give a name, or to take it away again."""


@contextmanager
def held(job: JobDirectory, checkpoint: CheckpointId, *, purpose: str) -> Iterator[str]:
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
            which_checkpoint(owned.history, str(checkpoint))  # again, under the claim (rule L5)
            owned.append(Pin(name=name, checkpoint=checkpoint, at=job.now(), owner=me(), expires=expires))
    else:
        answer = job.ask(Kind.PIN, name=name, checkpoint=checkpoint, expires=expires, seconds=ANSWERED)
        done(answer, f"keeping checkpoint {checkpoint} of job {job.job!r}")


def _take(job: JobDirectory, name: str, *, quietly: bool) -> None:
    try:
        if job.owner() is None:
            with job.own() as owned:
                owned.append(Unpin(name=name, at=job.now()))
        else:
            done(job.ask(Kind.UNPIN, name=name, seconds=ANSWERED), f"dropping {name!r} of job {job.job!r}")
    except PenstockError:
        if not quietly:
            raise
