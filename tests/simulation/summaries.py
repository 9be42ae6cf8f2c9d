"""What a call of the product has told its caller is what it returned: what was read on its way is forgotten.

While a search lasts, the calls that keep nothing but their result report it to the world. So two processes that have
come to know the same in two ways are one state. The calls themselves are the product's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.checkpoint.history import History
from penstock.checkpoint.log import Log, LogWriter, OwnedLog
from penstock.connectors.files.committer import FilesCommitter
from penstock.errors import PenstockError
from simulation.broker import SimulatedCommitter
from simulation.outside import EpochCommitter

CALLS: tuple[tuple[type, str], ...] = (
    (Log, "read"),
    (LogWriter, "is_newest"),
    (LogWriter, "take"),
    (OwnedLog, "trim"),
    (FilesCommitter, "commit"),
    (FilesCommitter, "void"),
    (EpochCommitter, "commit"),
    (EpochCommitter, "void"),
    (SimulatedCommitter, "commit"),
    (SimulatedCommitter, "void"),
)


@contextmanager
def summarised() -> Iterator[None]:
    """Only results are remembered."""
    before = [(owner, name, vars(owner)[name]) for owner, name in CALLS]
    for owner, name, real in before:
        setattr(owner, name, _summarised(real, name))
    try:
        yield
    finally:
        for owner, name, real in before:
            setattr(owner, name, real)


def _summarised(real: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(self: Any, *given: Any, **named: Any) -> Any:
        world = self._world if isinstance(self, EpochCommitter | SimulatedCommitter) else self._filesystem._world
        with world.remembering(name) as told:
            try:
                result = real(self, *given, **named)
            except PenstockError as error:
                told.append(_told(self, str(error)))
                raise
            told.append(_told(self, _brief(result)))
            return result

    return call


def _told(of: Any, result: Any) -> Any:
    """With what a call leaves behind besides its result: producers that go on."""
    return (result, of.state()) if isinstance(of, SimulatedCommitter) else result


def _brief(result: Any) -> Any:
    """Entries are never changed: their numbers and the hash of the newest say what they are."""
    if isinstance(result, History):
        return tuple(e.number for e in result.entries), result.tail, result.tail_hash, result.below_floor
    return result
