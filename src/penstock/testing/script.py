"""What a scripted source will do, row by row, faults and pauses among them; knows no Spark and no clock.

A script only grows: what stands at a place stays there, so a position in it is a number and a replay gives the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from penstock.durations import parse_duration
from penstock.errors import SourceUnavailable


class CrashRow(SourceUnavailable):
    """A scripted source came to a :class:`Crash`: the attempt fails, and a restart may help."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A row at which the job dies, the first time that it is read; later readings pass it by.

    In :func:`penstock.testing.run` the job dies as if killed; in a :class:`penstock.Job` the attempt fails and the job
    restarts.

    >>> Crash()
    Crash()
    """


@dataclass(frozen=True, slots=True)
class Pause:
    """A row that stands for time without rows. A pause begins anew after a restart.

    Args:
        duration: how long nothing comes, by the job's clock: ``"5 seconds"``. ``"0 seconds"`` only ends the batch.

    Raises:
        GraphError: it is no length of time.

    >>> Pause("5 seconds").micros
    5000000
    """

    duration: str = "0 seconds"

    def __post_init__(self) -> None:
        parse_duration("duration", self.duration)

    @property
    def micros(self) -> int:
        """The duration in microseconds."""
        return parse_duration("duration", self.duration)


@dataclass(frozen=True, slots=True)
class Idle:
    """A row that says that the source is idle: until its next rows it does not hold back the watermarks of others.

    >>> Idle()
    Idle()
    """


@dataclass(frozen=True, slots=True)
class End:
    """A row that says that no others follow: the source ends by itself, and its watermark goes to the end of time.

    >>> End()
    End()
    """


Sentinel: TypeAlias = Crash | Pause | Idle | End
SENTINELS: Final = (Crash, Pause, Idle, End)


@dataclass(eq=False, slots=True)
class Script:
    """The items of one source, and which crashes have happened; safe for several threads.

    >>> script = Script()
    >>> script.add([{"n": 1}, {"n": 2}, End()])
    >>> script.rows_between(0, 2), script.at(2), script.at(3)
    ([{'n': 1}, {'n': 2}], End(), None)
    """

    _items: list[dict[str, Any] | Sentinel] = field(default_factory=list)
    _crashed: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_ended(self) -> bool:
        """Whether it has an :class:`End`."""
        with self._lock:
            return any(isinstance(item, End) for item in self._items)

    @property
    def ends_with_row(self) -> bool:
        """Whether the next row would come in one batch with the last one."""
        with self._lock:
            return bool(self._items) and isinstance(self._items[-1], dict)

    def add(self, items: Iterable[dict[str, Any] | Sentinel]) -> None:
        """Append rows and sentinels."""
        with self._lock:
            self._items += items

    def at(self, place: int) -> dict[str, Any] | Sentinel | None:
        """What stands at a place; ``None`` beyond the end."""
        with self._lock:
            return self._items[place] if place < len(self._items) else None

    def rows_between(self, first: int, end: int | None) -> Sequence[dict[str, Any]]:
        """The rows in a range of places, ``None`` being the end."""
        with self._lock:
            return [item for item in self._items[first:end] if isinstance(item, dict)]

    def crash_once(self, place: int) -> None:
        """Come to a :class:`Crash`.

        Raises:
            CrashRow: for the first time.
        """
        with self._lock:
            if place in self._crashed:
                return
            self._crashed.add(place)
        msg = f"the script crashes here, at its item {place + 1}"
        raise CrashRow(msg)
