"""What a start does before its sources run: publish what is open, void what was discarded, delete what was condemned.

Carries out a :class:`~penstock.checkpoint.recovery.Recovery`; decides nothing. A crash at any point is followed by
the same again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.checkpoint.log import OwnedLog
from penstock.checkpoint.numbers import backoff
from penstock.checkpoint.recovery import Recovery
from penstock.errors import CommitFailed
from penstock.facts import Listener, Published, Restoring
from penstock.failpoints import failpoint
from penstock.filesystem.base import FileSystem
from penstock.filesystem.local import LocalFileSystem
from penstock.handles import CommitOutcome, Committable
from penstock.job.importing import Folders, bring_in

Publish = Callable[[Committable], CommitOutcome]
log_to = logging.getLogger("penstock")
_SETTLED = frozenset({CommitOutcome.DONE, CommitOutcome.ALREADY_DONE})


def carry_out(
    recovery: Recovery,
    *,
    log: OwnedLog,
    filesystem: FileSystem,
    commit: Publish,
    void: Publish,
    listener: Listener,
    pause: Callable[[float], None],
    folders: Folders = LocalFileSystem,
) -> None:
    """Do what the recovery says, in its order.

    ``pause`` is called before anything is tried again; it may raise, to give up. ``folders`` says how an
    exported folder is read.
    """
    for number, item in enumerate(recovery.commit):
        listener(Restoring(doing="publishing", task=item.uid, done=number, total=len(recovery.commit)))
        failpoint("sink.commit.before")
        outcome = _until_settled(item, commit, log, pause)
        failpoint("sink.published")
        listener(Published(task=item.uid, checkpoint=item.checkpoint, outcome=outcome.value))
    failpoint("recovery.committed")
    if recovery.rewind is not None:
        log.append(recovery.rewind)
    for item in recovery.void:
        _until_settled(item, void, log, pause)
        failpoint("sink.voided")
    if recovery.bring is not None:
        bring_in(recovery.bring, log=log, filesystem=filesystem, pause=pause, listener=listener, folders=folders)
    for path in recovery.delete:
        failpoint("recovery.delete.before")
        filesystem.delete(path)


def _until_settled(item: Committable, act: Publish, log: OwnedLog, pause: Callable[[float], None]) -> CommitOutcome:
    """Again and again until it is surely done: later output of the sink must not pass it (rule S1)."""
    for seconds in backoff():
        try:
            outcome = act(item)
        except CommitFailed as error:
            log_to.warning("publishing checkpoint %s of %s waits: %s", item.checkpoint, item.uid, error)
            outcome = CommitOutcome.RETRY
        if outcome in _SETTLED:
            return outcome
        pause(seconds)
        log.check()
    raise AssertionError  # pragma: no cover - the backoff has no end
