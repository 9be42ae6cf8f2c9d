"""What is asked of a running job through ``control/``, and how it is answered: frozen values. Pure.

A request names the log and the generation that it is addressed to, and no other carries it out; what was done stands in
an entry of the log that holds the request's id, so that whoever owns the log later can tell (rule C3).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.checkpoint import paths
from penstock.checkpoint.effects import Answer
from penstock.checkpoint.entries import Manifest, Pin, Stopped
from penstock.checkpoint.history import History
from penstock.errors import SettingsError
from penstock.ids import CheckpointId, Generation, WallTime

LONGEST_PATIENCE: Final = 366 * 86_400_000_000
"""Microseconds that a stop can wait at most, unless it waits for ever: more than a year is a mistake in the unit."""

_SAVEPOINT = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")


class Kind(str, Enum):
    """What can be asked of a running job."""

    HELLO = "hello"
    """Who are you? Changes nothing."""
    STOP = "stop"
    """Take a last checkpoint, publish, end. With a name that checkpoint is a savepoint."""
    DRAIN = "drain"
    """Stop, but have the sources end first, for good: all windows close and are published."""
    CHECKPOINT = "checkpoint"
    """Take a checkpoint now."""
    SAVEPOINT = "savepoint"
    """Take a checkpoint and give it a name."""
    PIN = "pin"
    """Give a checkpoint of the log a name."""
    UNPIN = "unpin"
    """Take a name away; its checkpoint may be condemned then."""


_NAMED: Final = frozenset({Kind.SAVEPOINT, Kind.PIN, Kind.UNPIN})
_STOPS: Final = frozenset({Kind.STOP, Kind.DRAIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """One request.

    Attributes:
        request: random; the same in every repetition.
        kind: what is asked.
        generation: whom: the newest claim that the asker saw. Nobody else carries it out.
        log_id: of which log: in the directory may lie another one by now. ``None`` if the asker could not read it.
        asked: when, for people.
        owner: who asks, for people; it is written beside a name that is given.
        name: of the savepoint or pin.
        checkpoint: which one to pin.
        patience: microseconds that a stop waits for its last checkpoint and its output; ``None`` is for ever.
        expires: of a pin, until when it is meant to be needed; shown to people, and not enforced.
    """

    request: str
    kind: Kind
    generation: Generation
    asked: WallTime
    owner: str = ""
    name: str | None = None
    checkpoint: CheckpointId | None = None
    patience: int | None = None
    log_id: str | None = None
    expires: WallTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answerer:
    """Who answers: the process, since when it has had the job, and what the job is doing."""

    host: str
    pid: int
    started: WallTime
    version: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlAnswer:
    """The answer to one request; the first that is written counts.

    Attributes:
        request: the id.
        answer: how it ended; never ``UNKNOWN``.
        message: the same for people, with the reason.
        generation: who answers; not always who was asked.
        at: when, for people, and for the clean-up.
        checkpoint: the one that was taken, pinned, or is in the way.
        me: to a ``hello``.
    """

    request: str
    answer: Answer
    message: str
    generation: Generation
    at: WallTime
    checkpoint: CheckpointId | None = None
    me: Answerer | None = None


def check_savepoint_name(name: object) -> str:
    """Return ``name`` if a savepoint can have it; a number would be taken for a checkpoint's id.

    Raises:
        SettingsError: it cannot.

    >>> check_savepoint_name("before-v2")
    'before-v2'
    """
    if not isinstance(name, str) or not _SAVEPOINT.fullmatch(name):
        msg = (
            f"{name!r} cannot name a savepoint: use 1 to 100 letters, digits, '.', '_' and '-', beginning with a letter"
        )
        raise SettingsError(msg)
    return name


def told_by_log(history: History, request: str) -> tuple[CheckpointId | None, str] | None:
    """What an entry says that fulfils the request: its checkpoint and a sentence; ``None`` if there is no such entry.

    A stop that was cut short after its savepoint is not fulfilled: :func:`savepoint_of` tells that much.
    """
    entry = history.entry_that_fulfils(request)
    if entry is None:
        return None
    checkpoint = entry.body.checkpoint if isinstance(entry.body, Manifest | Stopped | Pin) else None
    return checkpoint, f"done: {paths.entry(entry.number)} says so"


def savepoint_of(history: History, request: str) -> Pin | None:
    """The name that was given for this request, if it was."""
    return next((pin for pin in history.pins.values() if pin.request == request), None)


def misfit(request: ControlRequest) -> str | None:
    """Why what is asked is not what this kind of request can ask."""
    kind = request.kind
    if kind in _NAMED and request.name is None:
        return f"a {kind.value} needs a name"
    if request.name is not None:
        if kind not in _NAMED and kind not in _STOPS:
            return f"a {kind.value} has no name"
        try:
            check_savepoint_name(request.name)
        except SettingsError as error:
            return str(error)
    is_pin = kind is Kind.PIN
    if (request.checkpoint is not None) != is_pin or (request.expires is not None and not is_pin):
        return "a pin, and nothing else, names a checkpoint and may expire"
    if request.patience is not None and (kind not in _STOPS or not 0 <= request.patience <= LONGEST_PATIENCE):
        return f"only a stop has patience, and it is not negative and at most {LONGEST_PATIENCE}"
    return None
