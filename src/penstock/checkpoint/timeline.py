"""Which output of a log belongs to what the job has done as it stands now, after rewinds: a pure decision."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.checkpoint.entries import Rewind
from penstock.ids import CheckpointId

if TYPE_CHECKING:
    from penstock.checkpoint.entries import Manifest
    from penstock.checkpoint.history import History


@dataclass(frozen=True, slots=True)
class Timeline:
    """The checkpoints that led to one, among all that the log knows.

    Attributes:
        known: ids of all checkpoints of the log, sorted.
        mine: that checkpoint and those it was built on.
        undone: ranges of ids of other timelines, each with its first and the one behind its last; also of checkpoints
            that the log has forgotten.
        below: the newest checkpoint that it was built on and that the log no longer knows, or that cannot be read, if
            there is one.
    """

    known: tuple[CheckpointId, ...] = ()
    mine: frozenset[CheckpointId] = frozenset()
    undone: tuple[tuple[int, int], ...] = ()
    below: CheckpointId | None = None

    def has(self, checkpoint: int) -> bool:
        """Whether output that was prepared for a checkpoint is of this timeline, or of the time after it.

        Output of an aborted checkpoint is in the next one.

        >>> left = Timeline(known=(0, 1, 2, 3), mine=frozenset({0, 1}))
        >>> [left.has(each) for each in (1, 2, 3, 4)]
        [True, False, False, True]
        """
        if any(first <= checkpoint < end for first, end in self.undone):
            return False
        if self.below is not None and checkpoint <= self.below:
            return True
        at = bisect_left(self.known, checkpoint)
        return at == len(self.known) or self.known[at] in self.mine

    def others(self) -> tuple[tuple[int, int], ...]:
        """Ranges of all ids, up to the newest that is known, which are not of this timeline."""
        found, first = list(self.undone), 0 if self.below is None else self.below + 1
        for each in self.known:
            if each < first:
                continue  # known, and below one that is not: what was undone there that one's successor says
            if each not in self.mine:
                found.append((first, each + 1))
            first = each + 1
        return _joined(found)


WHOLE: Final = Timeline()
"""Of a log without checkpoints: nothing was undone."""


def timeline(history: History, restored: CheckpointId | None) -> Timeline:
    """The timeline that leads to a checkpoint; ``None`` for a job that began empty.

    What is read from the sources behind that checkpoint is read again: whatever other output there is of that time is
    of rows that come again.
    """
    manifests = history.manifests
    mine: set[CheckpointId] = set()
    undone = set(_gone_past(history))
    key = restored
    while key is not None and key in manifests and key not in mine:
        mine.add(key)
        manifest = manifests[key][1]
        undone.update(manifest.undone)
        key = _continues(manifest, history)
    return Timeline(tuple(sorted(manifests)), frozenset(mine), _joined(undone), key)


def _gone_past(history: History) -> Iterator[tuple[int, int]]:
    """Ids that only entries may have had that cannot be read (R8): those that a rewind past them jumps over.

    Whoever wrote such an entry knew it, and may have published what it says.
    """
    for number, body in ((entry.number, entry.body) for entry in history.entries):
        if isinstance(body, Rewind) and body.lost:
            before = replace(history, entries=tuple(each for each in history.entries if each.number < number))
            lost = frozenset(each for each in history.lost if each < number)
            yield max(before.manifests, default=-1) + 1, before.next_checkpoint_past(lost)


def left_behind(manifest: Manifest, history: History) -> tuple[tuple[int, int], ...]:
    """What a manifest that is about to be appended says in ``undone``.

    The log forgets rewinds and what they left, while output of that time may stay for ever: so each checkpoint says
    what is not of its timeline. Nothing, as long as nobody has gone back.
    """
    before = _continues(manifest, history)
    said = () if before is None else manifest.undone
    ranges = (*timeline(history, before).others(), *said)
    return _joined((first, min(end, manifest.checkpoint)) for first, end in ranges if first < manifest.checkpoint)


def _continues(manifest: Manifest, history: History) -> CheckpointId | None:
    """The checkpoint of this log whose state it has; what was exported from this log goes on where it was then."""
    origin = manifest.origin
    if manifest.parent is not None or origin is None or origin.log_id != history.log_id:
        return manifest.parent
    return origin.checkpoint if origin.checkpoint < manifest.checkpoint else None  # else of a copy that went apart


def _joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same ids in as few ranges as can be, sorted."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return tuple(found)
