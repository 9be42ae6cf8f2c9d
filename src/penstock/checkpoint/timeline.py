"""Which output of a log belongs to what the job has done as it stands now, after rewinds: a pure decision."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.checkpoint.history import History
    from penstock.ids import CheckpointId


@dataclass(frozen=True, slots=True)
class Timeline:
    """The checkpoints that led to one, among all that the log knows.

    Attributes:
        known: ids of all checkpoints of the log, sorted.
        mine: that checkpoint and those it was built on.
    """

    known: tuple[CheckpointId, ...] = ()
    mine: frozenset[CheckpointId] = frozenset()

    def has(self, checkpoint: int) -> bool:
        """Whether output that was prepared for a checkpoint is of this timeline, or of the time after it.

        Output of an aborted checkpoint is in the next one. Of checkpoints that the log no longer knows none was undone,
        as far as anybody can tell, unless the job began empty.

        >>> left = Timeline(known=(0, 1, 2, 3), mine=frozenset({0, 1}))
        >>> [left.has(each) for each in (1, 2, 3, 4)]
        [True, False, False, True]
        """
        at = bisect_left(self.known, checkpoint)
        if at == len(self.known):
            return True
        if at == 0 and checkpoint < self.known[0]:
            return bool(self.mine)
        return self.known[at] in self.mine


WHOLE: Final = Timeline()
"""Of a log without checkpoints: nothing was undone."""


def timeline(history: History, restored: CheckpointId | None) -> Timeline:
    """The timeline that leads to a checkpoint; ``None`` for a job that began empty.

    What is read from the sources behind that checkpoint is read again: whatever other output there is of that time is
    of rows that come again.
    """
    manifests = history.manifests
    mine: set[CheckpointId] = set()
    key = restored
    while key is not None and key in manifests and key not in mine:
        mine.add(key)
        key = manifests[key][1].parent
    return Timeline(tuple(sorted(manifests)), frozenset(mine))
