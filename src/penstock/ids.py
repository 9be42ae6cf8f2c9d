"""Names and numbers with one meaning each, validated where they enter; knows nothing of what they name."""

from __future__ import annotations

import re
from typing import Final, NewType

from penstock.errors import GraphError

CheckpointId = NewType("CheckpointId", int)
"""Number of a checkpoint. Rises over the whole log, on any timeline; gaps are allowed."""

Generation = NewType("Generation", int)
"""Number of the claim under which a driver runs: the number of its entry in the log."""

EntryNumber = NewType("EntryNumber", int)
"""Place of an entry in the log: 0, 1, 2 … without gaps."""

EventTime = NewType("EventTime", int)
"""Microseconds since the epoch, as the data says."""

WallTime = NewType("WallTime", int)
"""Microseconds since the epoch, as the wall clock says. Data for people, never used to decide an order."""

Instant = NewType("Instant", int)
"""Microseconds of a clock that never goes back; its zero means nothing. Durations and timers use it."""

BEGINNING: Final = EventTime(-(2**63))
"""The watermark before anything was seen."""

END_OF_TIME: Final = EventTime(2**63 - 1)
"""The watermark after the last row of a source that ended by itself."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")


def check_name(what: str, value: object) -> str:
    """Return ``value`` if it can name a job or a step, else raise :class:`GraphError`.

    Names become folders and parts of identities in sinks, so they are 1 to 64 characters of ``a-z 0-9 . _ -``
    and begin and end with a letter or a digit.

    >>> check_name("uid", "orders-by_user.v2")
    'orders-by_user.v2'
    """
    if not isinstance(value, str):
        msg = f"{what} must be a string, got {value!r} ({type(value).__name__})"
        raise GraphError(msg)
    if not _NAME.fullmatch(value):
        msg = (
            f"{what} {value!r} is not a valid name: use 1 to 64 characters of a-z, 0-9, '.', '_' and '-', "
            "beginning and ending with a letter or a digit"
        )
        raise GraphError(msg)
    return value
