"""The partitions of a source that a batch may have rows of; knows nothing of any connector, nor of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """What brings rows independently of each other: partitions of a topic, shards of a stream.

    Attributes:
        names: all that are live, whether or not the batch has rows of them. A name is the column's value as text.
        behind: those that have more rows to read by now than the batch takes: they are not idle.
        column: which column of the rows has the name; ``None`` if none has it, or a step changed or dropped it.
        source: the source's uid.

    >>> Partitions(names=("0", "1"), column="partition", source="orders").qualified("1")
    'orders/1'
    """

    names: tuple[str, ...]
    behind: frozenset[str] = frozenset()
    column: str | None = None
    source: str = ""

    def qualified(self, name: str) -> str:
        """A partition's name among those of all sources; the source's own for rows that say no partition."""
        return f"{self.source}/{name}" if name else self.source

    def by_column(self) -> str | None:
        """The column to tell rows apart by; ``None`` if there is nothing to tell apart, or nothing to do it by."""
        return self.column if len(self.names) > 1 else None

    def without_column(self) -> Partitions:
        """The same, but rows no longer say which they are of."""
        return replace(self, column=None)


def largest_times(figures: Mapping[str, object], partitions: Partitions | None) -> dict[str, int | None]:
    """What a measure ``time:<step>`` says: of each partition the largest event time, ``None`` if it had none.

    Where rows do not say which of several they are of, or there are none, all are one, and its name is empty.

    >>> largest_times({"max": 7}, Partitions(names=("0", "1")))
    {'': 7}
    """
    told, largest = figures.get("partitions"), figures.get("max")
    if partitions is not None and isinstance(told, Mapping):
        return {name: time if isinstance(time, int) else None for name, time in told.items()}
    name = partitions.names[0] if partitions is not None and len(partitions.names) == 1 else ""
    return {name: largest if isinstance(largest, int) else None}
