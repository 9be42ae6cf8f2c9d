"""What flows along an edge: Batch, Barrier, Watermark, EndOfStream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from penstock.clock import EventTime, MonotonicTime
from penstock.handles import CheckpointId

# ----------------------------------------------------------------------------------------------------
# Lets one consumer of a kept batch run it alone first: only then are its figures whole. Knows neither tasks nor Spark.
#
# Figures of a persisted frame arrive when the tasks that computed its partitions end. A consumer that finds partitions
# in the cache, computed by another's job that still runs, would read figures that lack them, and take zero for an
# answer.


class FirstRunGate:
    """Who runs first. Nothing here blocks: whoever may not go yet is called back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: str | None = None
        self._done = False
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_done(self) -> bool:
        """Whether a job over the batch has succeeded."""
        return self._done

    def claim(self, who: str, when_done: Callable[[], None]) -> bool:
        """Whether ``who`` may run the batch now; if not, ``when_done`` is called once it may ask again."""
        with self._lock:
            if self._done or self._runner in {None, who}:
                self._runner = self._runner or who
                return True
            self._waiting.append(when_done)
            return False

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the first job has succeeded; at once if it has."""
        with self._lock:
            if not self._done:
                self._waiting.append(callback)
                return
        callback()

    def done(self) -> None:
        """The first job over the batch has succeeded: the others may go. Later calls do nothing."""
        with self._lock:
            self._done = True
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()


# ----------------------------------------------------------------------------------------------------
# The partitions of a source that a batch may have rows of; knows nothing of any connector, nor of Spark.


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePartitions:
    """What brings rows independently of each other: partitions of a topic, shards of a stream.

    Attributes:
        names: all that are live, whether or not the batch has rows of them. A name is the column's value as text.
        behind: those that have more rows to read by now than the batch takes: they are not idle.
        column: which column of the rows has the name; ``None`` if none has it, or a step changed or dropped it.
        source: the source's uid.

    >>> SourcePartitions(names=("0", "1"), column="partition", source="orders").qualified("1")
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

    def without_column(self) -> SourcePartitions:
        """The same, but rows no longer say which they are of."""
        return replace(self, column=None)


def max_event_times(figures: Mapping[str, object], partitions: SourcePartitions | None) -> dict[str, int | None]:
    """What a measure ``time:<step>`` says: of each partition the largest event time, ``None`` if it had none.

    Where rows do not say which of several they are of, or there are none, all are one, and its name is empty.

    >>> max_event_times({"max": 7}, SourcePartitions(names=("0", "1")))
    {'': 7}
    """
    told, largest = figures.get("partitions"), figures.get("max")
    if partitions is not None and isinstance(told, Mapping):
        return {name: time if isinstance(time, int) else None for name, time in told.items()}
    name = partitions.names[0] if partitions is not None and len(partitions.names) == 1 else ""
    return {name: largest if isinstance(largest, int) else None}


# ----------------------------------------------------------------------------------------------------
# A batch of rows on its way: a lazy frame, what its first job will tell, and who may still run it.
#
# Knows nothing of Spark: the frame is opaque here, and only the Spark edge looks into it.


class ObservedMetrics:
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
    def known(cls, value: Mapping[str, object]) -> ObservedMetrics:
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


class RefCount:
    """Counts who may still run a frame, and frees what lies under it (cached blocks) when nobody may."""

    def __init__(self, free: Callable[[], None], *, holders: int = 1) -> None:
        self._free = free
        self._holders = holders
        self._lock = threading.Lock()

    def retain(self, more: int) -> None:
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
class SourceBatch:
    """Which source read rows, with which of its batches in this attempt (1, 2, …), and when it was asked for them."""

    source: str
    number: int
    at: MonotonicTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows between two control elements.

    Attributes:
        frame: a lazy Spark DataFrame; running it again gives the same rows.
        sequence: rises by one for each batch of the task that made it.
        rows: how many, if the maker knows; ``0`` is never sent.
        metrics: by name, what the first job over it will tell. ``"rows"`` counts the rows as read
            (``{"rows": n, "bytes": n}``); ``"time:<step>"`` belongs to a ``with_watermark`` (``{"max": micros | None,
            "ahead": n, "missing": n}``, and ``"partitions": {name: max}`` where rows say which they are of);
            ``"bad:<step>"`` to a ``parse_json`` (``{"bad": n}``).
        ref_counts: released by the last consumer when it will not run the frame again.
        only_if: name of a measure and figure without which this side branch has no rows (``("bad:…", "bad")``).
        verify: raises if what a job over the batch has read may not be what its source planned; called after a job,
            before a snapshot can contain the batch.
        partitions: of the source that its rows come from, where that has some.
        source_batch: of the source that read the rows; ``None`` if a step made them.
        run_gates: of each branch point that kept the batch, the outermost first: who may run it before the others.
    """

    frame: object
    sequence: int
    rows: int | None = None
    metrics: Mapping[str, ObservedMetrics] = field(default_factory=dict)
    ref_counts: tuple[RefCount, ...] = ()
    only_if: tuple[str, str] | None = None
    verify: Callable[[], None] | None = None
    partitions: SourcePartitions | None = None
    source_batch: SourceBatch | None = None
    run_gates: tuple[FirstRunGate, ...] = ()

    def settle(self) -> None:
        """A job over this batch has succeeded: read what it told, then see that it read what was planned.

        Raises:
            ConnectorError: it may have read something else; its output must not get into a checkpoint.
        """
        for measure in self.metrics.values():
            measure.settle()
        if self.verify is not None:
            self.verify()
        for first in self.run_gates:
            first.done()

    def skip(self) -> None:
        """This holder will not run the batch, which has no rows: figures that nobody read are lost, waits end.

        Ref counts stay the holder's business, see :meth:`release`.
        """
        for measure in self.metrics.values():
            measure.lose()

    def release(self) -> None:
        """The holder will not run the frame again."""
        for count in self.ref_counts:
            count.release()


# ----------------------------------------------------------------------------------------------------
# Control elements: plain frozen values that travel between batches, in order with them.


class CheckpointKind(str, Enum):
    """Why a checkpoint is taken."""

    PERIODIC = "periodic"
    SAVEPOINT = "savepoint"
    FINAL = "final"
    IMPORT = "import"
    """Brought from an exported folder: no task ever took it."""
    WRITTEN = "written"
    """By hand: one step's state was made of a table, all else was taken from another checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """No row strictly below ``at`` is expected any more on this edge."""

    at: EventTime


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkStatus:
    """The edge went idle (it no longer holds the watermark back) or became active again."""

    idle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMarker:
    """Sent by a source now and then, waits behind batches like a row, bypasses operators' logic, ends at sinks."""

    source: str
    sent: MonotonicTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """Everything before it belongs to the checkpoint, nothing after it."""

    checkpoint: CheckpointId
    kind: CheckpointKind = CheckpointKind.PERIODIC


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelBarrier:
    """The checkpoint is aborted: whoever waits for its barrier waits no longer."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfStream:
    """Nothing comes after it on this edge."""


# ----------------------------------------------------------------------------------------------------
# What flows along an edge: batches of rows, and the control elements between them.

Element = Batch | Watermark | WatermarkStatus | LatencyMarker | Barrier | CancelBarrier | EndOfStream


# ----------------------------------------------------------------------------------------------------
# When a task may run a batch that others run too. Knows nothing of channels and operators.


def is_empty(batch: Batch) -> bool:
    """Whether the batch is a side branch that is known to have no rows."""
    if batch.only_if is None:
        return False
    name, figure = batch.only_if
    measure = batch.metrics.get(name)
    return measure is not None and measure.is_zero(figure)
