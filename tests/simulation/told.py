"""What each process of a search has come to know, as one number: equal for processes that will do the same.

It grows with every answer. It is cut back where the product itself begins anew: what was read before a claim is read
again under it, and of a call that keeps nothing else only the result counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from simulation.fibers import Fiber

if TYPE_CHECKING:
    from penstock.checkpoint.log import OwnedLog
    from simulation.machine import Process


class Told:
    """By the names of processes."""

    def __init__(self) -> None:
        self.fenced: set[str] = set()
        """Who knows that the log is another's only looks whose it is, and ends: when it looks is all the same."""
        self._known: dict[str, int] = {}
        self._first_looks: dict[str, object] = {}
        self._speakers: dict[str, list[Fiber | None]] = {}

    def of(self, name: str) -> int:
        """What it knows."""
        return self._known.get(name, 0)

    def tell(self, name: str, what: object) -> None:
        """One answer more."""
        if name not in self.fenced:
            self._known[name] = hash((self.of(name), what))
            self._speakers.setdefault(name, []).append(Fiber.current)

    @contextmanager
    def remembering(self, process: Process, call: str) -> Iterator[list[object]]:
        """Of all that it is told here only what is put into the list is kept, unless others of its pieces hear more."""
        name, kept = process.name, list[object]()
        before, heard = self.of(name), len(self._speakers.get(name, ()))
        try:
            yield kept
        finally:
            if kept and call == "read" and process.owned is None:
                self._look(name, kept[0])  # type: ignore[arg-type]
            elif kept and all(each is Fiber.current for each in self._speakers.get(name, [])[heard:]):
                self._known[name] = hash((before, call, kept[0]))
            if process.owned is not None and call in ("take", "is_newest") and kept == [False]:
                self.fenced.add(name)

    def _look(self, name: str, history: tuple[Any, ...] | str) -> None:
        """Who has no claim yet knows its newest entry now, and which that was at first: no more than a claim needs."""
        newest = history[1:3] if isinstance(history, tuple) else history
        self._known[name] = hash((self._first_looks.setdefault(name, newest), newest))

    def claimed(self, name: str, owned: OwnedLog, now: int | None) -> None:
        """What it is now depends on what the log said under its claim, whatever it had read before."""
        history = owned.history
        read = (tuple(entry.number for entry in history.entries), history.tail_hash, history.below_floor)
        self._known[name] = hash((read, now))
