"""What flows along an edge: Batch, Barrier, Watermark, EndOfStream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from penstock.clock import EventTime, MonotonicTime
from penstock.handles import CheckpointId

# ---- which consumer of a persisted batch runs first ------------------------------------------------------------------


class FirstRunGate:
    """Lets one consumer of a persisted batch run it alone first, so that its metrics are complete.

    The metrics of a persisted frame arrive when the tasks that computed its partitions end. A consumer that finds
    cached partitions of another consumer's unfinished job would read metrics that lack them. Nothing here blocks: a
    consumer that has to wait is called back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: str | None = None
        self._done = False
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_done(self) -> bool:
        """Whether a job over the batch has succeeded."""
        return self._done

    def claim(self, consumer: str, when_done: Callable[[], None]) -> bool:
        """Whether ``consumer`` may run the batch now; if not, ``when_done`` is called once it may ask again."""
        with self._lock:
            if self._done or self._runner in {None, consumer}:
                self._runner = self._runner or consumer
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
        """Note that the first job over the batch has succeeded, and call back the others. Later calls do nothing."""
        with self._lock:
            self._done = True
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()


# ---- partitions of a source ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePartitions:
    """The partitions that a batch may have rows of: partitions of a topic, shards of a stream.

    Attributes:
        names: all live partitions, with or without rows in the batch. A name is the column's value as text.
        behind: partitions that have more rows to read than the batch takes: they are not idle.
        column: the column of the rows that has the name; ``None`` if there is none, or a step changed or dropped it.
        source: the source's uid.

    >>> SourcePartitions(names=("0", "1"), column="partition", source="orders").qualified("1")
    'orders/1'
    """

    names: tuple[str, ...]
    behind: frozenset[str] = frozenset()
    column: str | None = None
    source: str = ""

    def qualified(self, name: str) -> str:
        """The partition's name with its source's; the source's own name where ``name`` is empty."""
        return f"{self.source}/{name}" if name else self.source

    def by_column(self) -> str | None:
        """The column that separates rows by partition; ``None`` with one partition, or without such a column."""
        return self.column if len(self.names) > 1 else None

    def without_column(self) -> SourcePartitions:
        """These partitions, for rows that no longer say which one they are of."""
        return replace(self, column=None)


def max_event_times(figures: Mapping[str, object], partitions: SourcePartitions | None) -> dict[str, int | None]:
    """Each partition's largest event time in the metric ``time:<step>``; ``None`` for a partition without any.

    Rows that do not say which of several partitions they are of count as one partition, whose name is empty.

    >>> max_event_times({"max": 7}, SourcePartitions(names=("0", "1")))
    {'': 7}
    """
    by_partition, largest = figures.get("partitions"), figures.get("max")
    if partitions is not None and isinstance(by_partition, Mapping):
        return {name: time if isinstance(time, int) else None for name, time in by_partition.items()}
    name = partitions.names[0] if partitions is not None and len(partitions.names) == 1 else ""
    return {name: largest if isinstance(largest, int) else None}


# ---- batches ---------------------------------------------------------------------------------------------------------


class ObservedMetrics:
    """Figures that the first job over a batch observes: set once, read without waiting.

    The task that ran the job calls ``settle`` after it has succeeded, never before: an observation read earlier
    can wait for ever, and one read after a failure reports zero. Metrics that no job brings (the optimiser removed the
    branch) settle as lost: ``value`` stays ``None``.
    """

    def __init__(self, read: Callable[[], Mapping[str, object] | None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []
        self._settled = False
        self._value: Mapping[str, object] | None = None

    @classmethod
    def known(cls, value: Mapping[str, object]) -> ObservedMetrics:
        """Metrics that are settled already, such as those that a reader brings along with the rows."""
        metrics = cls(lambda: value)
        metrics.settle()
        return metrics

    @property
    def settled(self) -> bool:
        """Whether the value is final."""
        return self._settled

    @property
    def value(self) -> Mapping[str, object] | None:
        """The figures, or ``None`` while unknown or if lost."""
        return self._value

    def is_zero(self, figure: str) -> bool:
        """Whether the figure is known to be zero."""
        return self._value is not None and self._value.get(figure) == 0

    def settle(self) -> None:
        """Read the figures; call it only after a job over the batch has succeeded. Later calls do nothing."""
        self._settle(self._read)

    def read(self) -> Mapping[str, object] | None:
        """Settle, and return the figures."""
        self.settle()
        return self._value

    def lose(self) -> None:
        """Settle without figures: no job over the batch will bring any. Does nothing if settled."""
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
        """Call ``callback`` once settled; at once if that is so already."""
        with self._lock:
            if not self._settled:
                self._waiting.append(callback)
                return
        callback()


class RefCount:
    """Counts the holders that may still run a frame; when the last one releases it, its cached blocks are freed."""

    def __init__(self, free: Callable[[], None], *, holders: int = 1) -> None:
        self._free = free
        self._holders = holders
        self._lock = threading.Lock()

    def retain(self, more: int) -> None:
        """Add ``more`` holders."""
        with self._lock:
            self._holders += more

    def release(self) -> None:
        """Drop one holder; the last one frees."""
        with self._lock:
            self._holders -= 1
            last = self._holders == 0
        if last:
            self._free()


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """The source that read the rows, the number of its batch in this attempt (from 1), and when it was polled."""

    source: str
    number: int
    polled_at: MonotonicTime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows between two control elements.

    Attributes:
        frame: a lazy Spark DataFrame; running it again gives the same rows.
        sequence: rises by one for each batch of the task that made it.
        rows: number of rows, if known; ``0`` is never sent.
        metrics: by name, what the first job over the batch observes. ``"rows"`` counts the rows as read
            (``{"rows": n, "bytes": n}``); ``"time:<step>"`` belongs to a ``with_watermark`` (``{"max": micros | None,
            "ahead": n, "missing": n}``, and ``"partitions": {name: max}`` where rows say which partition they are of);
            ``"bad:<step>"`` to a ``parse_json`` (``{"bad": n}``).
        ref_counts: each consumer releases them once it will not run the frame again.
        only_if: a metric and its figure: if that is zero, this side branch has no rows (``("bad:…", "bad")``).
        verify: raises if what a job has read may differ from what the source planned; called after each job, before a
            snapshot can contain the batch.
        partitions: the partitions of the source that the rows come from, if it has any.
        source_batch: the source's batch that the rows were read with; ``None`` if a step made them.
        run_gates: one for each branch point that persisted the batch, the outermost first.
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
        """Settle the metrics after a job over this batch has succeeded, and verify that it read what was planned.

        Raises:
            ConnectorError: it may have read something else; its output must not get into a checkpoint.
        """
        for metrics in self.metrics.values():
            metrics.settle()
        if self.verify is not None:
            self.verify()
        for gate in self.run_gates:
            gate.done()

    def skip(self) -> None:
        """Settle the metrics without a job, for a batch that has no rows; ``release`` is called separately."""
        for metrics in self.metrics.values():
            metrics.lose()

    def release(self) -> None:
        """Release the ref counts: this holder will not run the frame again."""
        for count in self.ref_counts:
            count.release()


def is_empty(batch: Batch) -> bool:
    """Whether the batch is a side branch that is known to have no rows."""
    if batch.only_if is None:
        return False
    name, figure = batch.only_if
    metrics = batch.metrics.get(name)
    return metrics is not None and metrics.is_zero(figure)


# ---- control elements, which travel between batches in order with them -----------------------------------------------


class CheckpointKind(str, Enum):
    """Why a checkpoint is taken."""

    PERIODIC = "periodic"
    SAVEPOINT = "savepoint"
    FINAL = "final"
    IMPORT = "import"
    """Imported from an exported folder: no task took it."""
    WRITTEN = "written"
    """Written by hand: one step's state was made from a table, the rest is that of another checkpoint."""


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
    """Measures latency: a source sends it at intervals, it queues like a row, bypasses operators, ends at sinks."""

    source: str
    sent: MonotonicTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """Everything before it belongs to the checkpoint, nothing after it."""

    checkpoint: CheckpointId
    kind: CheckpointKind = CheckpointKind.PERIODIC


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelBarrier:
    """The checkpoint is aborted: tasks stop waiting for its barrier."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfStream:
    """Nothing comes after it on this edge."""


Element = Batch | Watermark | WatermarkStatus | LatencyMarker | Barrier | CancelBarrier | EndOfStream
