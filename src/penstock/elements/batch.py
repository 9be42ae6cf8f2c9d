"""A batch of rows on its way: a lazy frame, what its first job will tell, and who may still run it.

Knows nothing of Spark: the frame is opaque here, and only the Spark edge looks into it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.elements.first_run import FirstRun
from penstock.elements.partitions import Partitions
from penstock.ids import Instant


class Measure:
    """What the first job over a batch tells about it: set once, read without waiting.

    The one who ran a job over the batch calls :meth:`settle` after the job's success, never before: an observation
    read earlier can wait for ever, and one read after a failure reports zero. A measure whose job never brings it
    (the optimiser removed the branch) settles as lost: ``value`` stays ``None``.
    """

    def __init__(self, read: Callable[[], Mapping[str, object] | None]) -> None:
        self._bring = read
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []
        self._settled = False
        self._value: Mapping[str, object] | None = None

    @classmethod
    def known(cls, value: Mapping[str, object]) -> Measure:
        """A measure that the reader brought along with the rows."""
        measure = cls(lambda: value)
        measure.settle()
        return measure

    @property
    def settled(self) -> bool:
        """Whether asking again can bring nothing new."""
        return self._settled

    @property
    def value(self) -> Mapping[str, object] | None:
        """The figures, or ``None`` while unknown or if lost."""
        return self._value

    def is_zero(self, figure: str) -> bool:
        """Whether it has told that there is nothing of a figure."""
        return self._value is not None and self._value.get(figure) == 0

    def settle(self) -> None:
        """Read the figures; call it only after a job over the batch has succeeded. Later calls do nothing."""
        self._settle(self._bring)

    def read(self) -> Mapping[str, object] | None:
        """Settle, and say what it told."""
        self.settle()
        return self._value

    def lose(self) -> None:
        """Settle without reading: no job over the batch will tell. Does nothing if it is settled."""
        self._settle(lambda: None)

    def _settle(self, read: Callable[[], Mapping[str, object] | None]) -> None:
        with self._lock:
            if self._settled:
                return
            self._value = read()
            self._settled = True
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once figures are there; at once if they are."""
        with self._lock:
            if not self._settled:
                self._waiting.append(callback)
                return
        callback()


class Lease:
    """Counts who may still run a frame, and frees what lies under it (cached blocks) when nobody may."""

    def __init__(self, free: Callable[[], None], *, holders: int = 1) -> None:
        self._free = free
        self._holders = holders
        self._lock = threading.Lock()

    def share(self, more: int) -> None:
        """``more`` others may run the frame too."""
        with self._lock:
            self._holders += more

    def release(self) -> None:
        """One holder is done; the last one frees."""
        with self._lock:
            self._holders -= 1
            last = self._holders == 0
        if last:
            self._free()


@dataclass(frozen=True, slots=True)
class Reading:
    """Which source read rows, with which of its batches in this attempt (1, 2, …), and when it was asked for them."""

    source: str
    number: int
    at: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows between two control elements.

    Attributes:
        frame: a lazy Spark DataFrame; running it again gives the same rows.
        sequence: rises by one for each batch of the task that made it.
        rows: how many, if the maker knows; ``0`` is never sent.
        measures: by name, what the first job over it will tell. ``"rows"`` counts the rows as read
            (``{"rows": n, "bytes": n}``); ``"time:<step>"`` belongs to a ``with_watermark`` (``{"max": micros | None,
            "ahead": n, "missing": n}``, and ``"partitions": {name: max}`` where rows say which they are of);
            ``"bad:<step>"`` to a ``parse_json`` (``{"bad": n}``).
        leases: released by the last consumer when it will not run the frame again.
        only_if: name of a measure and figure without which this side branch has no rows (``("bad:…", "bad")``).
        verify: raises if what a job over the batch has read may not be what its source planned; called after a job,
            before a snapshot can contain the batch.
        partitions: of the source that its rows come from, where that has some.
        reading: of the source that read the rows; ``None`` if a step made them.
        firsts: of each branch point that kept the batch, the outermost first: who may run it before the others.
    """

    frame: object
    sequence: int
    rows: int | None = None
    measures: Mapping[str, Measure] = field(default_factory=dict)
    leases: tuple[Lease, ...] = ()
    only_if: tuple[str, str] | None = None
    verify: Callable[[], None] | None = None
    partitions: Partitions | None = None
    reading: Reading | None = None
    firsts: tuple[FirstRun, ...] = ()

    def settle(self) -> None:
        """A job over this batch has succeeded: read what it told, then see that it read what was planned.

        Raises:
            ConnectorError: it may have read something else; its output must not get into a checkpoint.
        """
        for measure in self.measures.values():
            measure.settle()
        if self.verify is not None:
            self.verify()
        for first in self.firsts:
            first.done()

    def skip(self) -> None:
        """This holder will not run the batch, which has no rows: figures that nobody read are lost, waits end.

        Leases stay the holder's business, see :meth:`release`.
        """
        for measure in self.measures.values():
            measure.lose()

    def release(self) -> None:
        """The holder will not run the frame again."""
        for lease in self.leases:
            lease.release()
