"""Whether a job that was stopped has been drained: derived from its last checkpoint. Asks nobody, stops nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.errors import CheckpointUnreadable, RequestFailed, RequestRefused
from penstock.ids import END_OF_TIME

if TYPE_CHECKING:
    from penstock.checkpoint.history import History
    from penstock.checkpoint.log import OwnedLog


def undrained_for_it_never_ran(job: str) -> RequestRefused:
    """Only a job that runs can end its sources; one that has not begun stays so."""
    return RequestRefused(f"job {job!r} has not begun, and only a running job can be drained: start it first")


def refuse_undrained(job: str, sources: Collection[str], owned: OwnedLog | None, *, is_cut_short: bool) -> None:
    """Say so if a job that is over was to be drained and was not.

    A source that has ended by itself is as good as one that was drained: nothing can be read after either.

    Raises:
        RequestFailed: it has ended without its last checkpoint.
        RequestRefused: that checkpoint was begun before anybody asked for a drain.
    """
    if owned is not None and is_drained(owned.history, sources):
        return
    left = "its sources have not ended and windows stay open; start it again, then stop it with drain alone"
    if is_cut_short:
        msg = f"job {job!r} was not drained: it has ended without its last checkpoint, so {left}"
        raise RequestFailed(msg)
    msg = f"job {job!r} was not drained: its last checkpoint was begun before that was asked for, so {left}"
    raise RequestRefused(msg)


def is_drained(history: History, sources: Collection[str]) -> bool:
    """Whether the checkpoint that the next start continues says of every source that it has ended for good."""
    try:
        point = history.restore_point
    except CheckpointUnreadable:
        return False
    ended = {task.task for task in point.tasks if END_OF_TIME in task.watermarks} if point is not None else set()
    return point is not None and ended.issuperset(sources)
