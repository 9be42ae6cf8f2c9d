"""What may become of one checkpoint at one task, as tables: for people, diagrams and tests; decides nothing.

A test drives ``AlignedBarrierHandler`` and ``BarrierTracker`` at random and holds what they do against these
tables, in both directions. What is not in a table changes nothing and has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class BarrierState(str, Enum):
    """Each state says what is true of the checkpoint while it lasts."""

    UNSEEN = "unseen"
    """Nothing of it has come yet, nor anything of a newer one."""
    WAITING = "waiting"
    """Its barrier came from some inputs, and others are live."""
    ABORTED = "aborted"
    """It was cancelled, and barriers of it may still come: they are counted, so that none of them begins it anew."""
    OVER = "over"
    """It was snapshotted, abandoned or overtaken: whatever still comes of it is ignored."""


class Trigger(str, Enum):
    """What was taken from an input, as seen from the checkpoint."""

    BARRIER = "its barrier"
    CANCEL = "its cancellation"
    NEWER_BARRIER = "a newer barrier"
    NEWER_CANCEL = "a newer cancellation"
    INPUT_ENDED = "the end of an input"


class Outcome(str, Enum):
    """What the task is told to do for the checkpoint."""

    NOTHING = "nothing"
    SNAPSHOT = "snapshot"
    """Take the snapshot, and forward the barrier."""
    ABANDON = "abandon"
    """Take none, and forward the cancellation: once for each checkpoint."""


@dataclass(frozen=True, slots=True)
class Move:
    """From one state to another, by what, and what the task does then."""

    before: BarrierState
    trigger: Trigger
    after: BarrierState
    outcome: Outcome = Outcome.NOTHING


_S, _T, _O = BarrierState, Trigger, Outcome

ALIGNMENT_MOVES: Final = (
    Move(_S.UNSEEN, _T.BARRIER, _S.WAITING),
    Move(_S.UNSEEN, _T.BARRIER, _S.OVER, _O.SNAPSHOT),
    Move(_S.UNSEEN, _T.CANCEL, _S.OVER, _O.ABANDON),
    Move(_S.UNSEEN, _T.NEWER_BARRIER, _S.OVER),
    Move(_S.UNSEEN, _T.NEWER_CANCEL, _S.OVER),
    Move(_S.WAITING, _T.BARRIER, _S.OVER, _O.SNAPSHOT),
    Move(_S.WAITING, _T.INPUT_ENDED, _S.OVER, _O.SNAPSHOT),
    Move(_S.WAITING, _T.CANCEL, _S.OVER, _O.ABANDON),
    Move(_S.WAITING, _T.NEWER_BARRIER, _S.OVER, _O.ABANDON),
    Move(_S.WAITING, _T.NEWER_CANCEL, _S.OVER, _O.ABANDON),
)
"""Exactly-once: inputs that brought the barrier wait, and one checkpoint is waited for at a time."""

TRACKER_MOVES: Final = (
    Move(_S.UNSEEN, _T.BARRIER, _S.WAITING),
    Move(_S.UNSEEN, _T.BARRIER, _S.OVER, _O.SNAPSHOT),
    Move(_S.UNSEEN, _T.CANCEL, _S.ABORTED, _O.ABANDON),
    Move(_S.UNSEEN, _T.CANCEL, _S.OVER, _O.ABANDON),
    Move(_S.UNSEEN, _T.NEWER_BARRIER, _S.OVER),
    Move(_S.UNSEEN, _T.NEWER_CANCEL, _S.OVER),
    Move(_S.WAITING, _T.BARRIER, _S.OVER, _O.SNAPSHOT),
    Move(_S.WAITING, _T.INPUT_ENDED, _S.OVER, _O.SNAPSHOT),
    Move(_S.WAITING, _T.INPUT_ENDED, _S.OVER),
    Move(_S.WAITING, _T.CANCEL, _S.ABORTED, _O.ABANDON),
    Move(_S.WAITING, _T.CANCEL, _S.OVER, _O.ABANDON),
    Move(_S.WAITING, _T.NEWER_BARRIER, _S.OVER),
    Move(_S.WAITING, _T.NEWER_CANCEL, _S.OVER, _O.ABANDON),
    Move(_S.ABORTED, _T.BARRIER, _S.OVER),
    Move(_S.ABORTED, _T.CANCEL, _S.OVER),
    Move(_S.ABORTED, _T.INPUT_ENDED, _S.OVER),
    Move(_S.ABORTED, _T.NEWER_BARRIER, _S.OVER),
    Move(_S.ABORTED, _T.NEWER_CANCEL, _S.OVER),
)
"""At-least-once: no input waits, and many checkpoints are counted at a time."""
