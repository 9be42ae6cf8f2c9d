"""What a start does before its sources read, in words for whoever waits. Decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.words import count, size

if TYPE_CHECKING:
    from penstock.facts import Restoring


def progress_of(fact: Restoring) -> str:
    """How far it is.

    >>> from penstock.facts import Restoring
    >>> progress_of(Restoring(doing="restoring", task="totals", done=2_000_000, total=44_000_000))
    "restoring 'totals', 2.0 MB of 44.0 MB done"
    >>> progress_of(Restoring(doing="publishing", task="out", done=0, total=2))
    "publishing what the log held open, 0 of 2 outputs, 'out'"
    """
    if fact.doing == "publishing":
        return f"publishing what the log held open, {fact.done:,} of {count(fact.total, 'output')}, '{fact.task}'"
    if fact.doing == "copying":
        return f"copying the exported checkpoint, {size(fact.done)} of {size(fact.total)}"
    return f"restoring '{fact.task}', {size(fact.done)} of {size(fact.total)} done"
