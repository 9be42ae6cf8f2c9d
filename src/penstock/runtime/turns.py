"""When a task may run a batch that others run too. Knows nothing of channels and operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.elements import Batch, Element
from penstock.ids import Instant

PATIENCE: Final = 2_000_000
"""Microseconds that a side branch waits for the main one to tell whether it has rows at all."""

WHEN_WOKEN: Final = Instant(2**62)
"""Nothing but a wake-up helps."""


class Turns:
    """Keeps the consumers of a kept batch apart until one of them has run it.

    A side branch that may have no rows lets the main one go first, which tells; of the others the first that asks runs
    alone, so that the figures of its job are whole.
    """

    def __init__(self, task: str, wake: Callable[[], None], *, runs_batches: bool) -> None:
        self._task = task
        self._wake = wake
        self._runs = runs_batches
        self._held: dict[int, Instant] = {}

    def wait_for(self, source: int, head: Element, now: Instant) -> Instant | None:
        """``None`` if the head of input ``source`` may be taken now; else when to ask again without being woken."""
        if not self._runs or not isinstance(head, Batch) or not head.firsts:
            return None
        due = self._patience(source, head, now)
        if due is not None:
            return due
        if is_empty(head) or all(first.claim(self._task, self._wake) for first in head.firsts):
            self._held.pop(source, None)
            return None
        return WHEN_WOKEN

    def _patience(self, source: int, head: Batch, now: Instant) -> Instant | None:
        """Until when a side branch waits for the main one, if it still does."""
        if head.only_if is None or all(first.is_done for first in head.firsts):
            return None
        if source not in self._held:
            self._held[source] = now
            for first in head.firsts:
                first.when_done(self._wake)
        due = Instant(self._held[source] + PATIENCE)
        return due if due > now else None


def is_empty(batch: Batch) -> bool:
    """Whether the batch is a side branch that is known to have no rows."""
    if batch.only_if is None:
        return False
    name, figure = batch.only_if
    measure = batch.measures.get(name)
    return measure is not None and measure.is_zero(figure)
