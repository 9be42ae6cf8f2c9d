"""What a step of a simulated process touches, and whether the order of two steps can matter.

Steps whose order cannot matter are told in one order only (sleep sets): all states are still met. When in doubt two
steps are taken to depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Touch = tuple[str, str]
"""A call and its path; or an identity in a sink, a budget of faults, or everything."""

Footprint = frozenset[Touch]

EVERYTHING: Final[Touch] = ("everything", "")
LOOKS: Final = frozenset({"read", "list", "marker"})
SHOWS: Final = frozenset({"move", "commit", "void", "delete", "settle"})
"""What the judge compares with the log: it must know which entry was there first."""


def is_look(name: str) -> bool:
    """Whether a call changes nothing, so that a death before it is the same as a death after it."""
    return name in LOOKS


def are_independent(one: Iterable[Touch], other: Footprint) -> bool:
    """Whether two steps, of two processes, lead to the same whichever comes first."""
    return not any(_collide(a, b) for a in one for b in other)


def _collide(a: Touch, b: Touch) -> bool:
    if EVERYTHING in (a, b):
        return True
    (name, path), (other, place) = a, b
    if name in LOOKS and other in LOOKS:
        return False
    if path == place or _lists(a, place) or _lists(b, path):
        return True
    return (_is_entry(a) and other in SHOWS) or (_is_entry(b) and name in SHOWS) or (_is_entry(a) and _is_entry(b))


def _lists(a: Touch, path: str) -> bool:
    return a[0] == "list" and path.startswith(a[1])


def _is_entry(a: Touch) -> bool:
    return a[0] == "create" and a[1].startswith("log/")
