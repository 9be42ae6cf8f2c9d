"""Which name was meant: the nearest of those that are there, and which checkpoint a name or number is. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from penstock.checkpoint.history import History
from penstock.errors import UnknownName
from penstock.ids import CheckpointId


def near(name: str, there: Iterable[str]) -> str:
    """The nearest of the names that are there, as the end of a message; empty if there are none.

    >>> near("ordrs", ["orders", "late"])
    "; did you mean 'orders'?"
    """
    known = sorted(there)
    found = get_close_matches(name, known, n=1)
    if found:
        return f"; did you mean {found[0]!r}?"
    return f"; there is {', '.join(known)}" if known else ""


def taken(history: History, name: str) -> str | None:
    """Why a new savepoint cannot have this name, if another has it."""
    pin = history.pins.get(name)
    if pin is None:
        return None
    return f"{name!r} exists already: it is checkpoint {pin.checkpoint}; choose another name, names never move"


def which_checkpoint(history: History, text: str) -> CheckpointId:
    """The restorable checkpoint that a savepoint's name, or a number, means.

    Raises:
        UnknownName: there is none, or its files may be gone; with those there are.
    """
    if not text.isdecimal():
        pin = history.pins.get(text)
        if pin is None:
            msg = f"job {history.job!r} has no savepoint {text!r}{near(text, history.pins) or '; it has none at all'}"
            raise UnknownName(msg)
        return pin.checkpoint
    checkpoint = CheckpointId(int(text))
    if checkpoint not in history.restorable:
        why = "is condemned, its files may be gone" if checkpoint in history.condemned else "is not in the log"
        known = ", ".join(map(str, history.restorable)) or "none"
        msg = f"checkpoint {checkpoint} {why}; restorable are: {known}"
        raise UnknownName(msg)
    return checkpoint
