"""What a source must implement: Source, SourceReader and the optional protocols next to them.

A source is a frozen description; ``Source.open`` makes a reader. A reader never sleeps, and its only state is its
position. ``SourceReader.poll`` plans the next batch. ``SourceReader.frame`` turns that plan into a lazy Spark
frame, which gives the same rows however often it is run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, runtime_checkable

from penstock.clock import MonotonicTime, SystemClock, WallTime
from penstock.elements import ObservedMetrics, SourcePartitions
from penstock.facts import Counted, Fact
from penstock.handles import (
    RECEIVED,
    UNLOGGED,
    AdoptedBlocks,
    BlockId,
    CheckpointId,
    Guarantee,
    KeyLimits,
    Position,
    RequestKey,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


ReadIn: TypeAlias = Literal["auto", "driver", "executors"]
"""Where a source fetches its rows."""


def ignore_fact(fact: Fact) -> None:
    """Drop a fact."""


class Until(str, Enum):
    """How far a run reads."""

    STOPPED = "stopped"
    CAUGHT_UP = "caught-up"


class WriteAhead(Protocol):
    """The write-ahead log of one source that receives rows, under one claim of its job (rule G5).

    One thread may write while another reads and cleans.
    """

    def adopt(self, resume: Position | None, keys: KeyLimits | None = None) -> AdoptedBlocks:
        """Make sure that no older process can acknowledge rows any more; returns the blocks to be read.

        With ``keys``, the idempotency keys of requests are known from then on.

        Raises:
            CheckpointUnreadable: a block is missing, or a file of keys is damaged.
            StateIncompatible: the position belongs to other blocks.
        """
        ...

    def write(self, data: bytes, keys: Sequence[RequestKey] = ()) -> BlockId:
        """Write the next block with keys of requests; it is durable on return. It is acknowledged after ``check``.

        Raises:
            StorageFailed: the block was not written, or that is not known.
            GenerationFenced: another process owns the job.
        """
        ...

    def check(self) -> None:
        """Check that the job is still ours.

        Raises:
            GenerationFenced: another process owns the job.
            CheckpointError: that cannot be found out now.
        """
        ...

    def read(self, block: BlockId) -> bytes:
        """The content of a block.

        Raises:
            CheckpointUnreadable: it is missing.
        """
        ...

    def place(self, block: BlockId) -> str:
        """Where a block is, for messages."""
        ...

    def position(self, next: BlockId | None = None, row: int = 0, *, tick: int = 0) -> Position:
        """The position before a block, or within it after some rows; without a block that of the start.

        ``tick`` is the last one whose blocks were read.
        """
        ...

    def clean(self) -> int:
        """Delete the blocks that every restorable checkpoint is past; returns their number."""
        ...


class KeyedWriteAhead(WriteAhead, Protocol):
    """A ``WriteAhead`` that knows the idempotency keys of requests, if ``adopt`` was given limits for them."""

    def find_key(self, key: str, now: int) -> RequestKey | None:
        """The request with this key, if its rows are in a block and its horizon has not ended."""
        ...

    def has_room_for_key(self, now: int, in_flight: int) -> bool:
        """Whether one more key may be taken, beside those of requests that are not stored yet."""
        ...


class Closable(Protocol):
    """What has to be closed."""

    def close(self) -> None:
        """Release what is held."""
        ...


class JobResources:
    """What sources keep open while their job restarts, such as a socket that listens; closed when the job ends.

    >>> resources = JobResources()
    >>> made = resources.get("hook", JobResources)
    >>> resources.get("hook", JobResources) is made
    True
    """

    def __init__(self) -> None:
        self._open: dict[str, Closable] = {}

    def get(self, name: str, make: Callable[[], Closable]) -> Closable:
        """The resource of this name, made if it is the first time."""
        if name not in self._open:
            self._open[name] = make()
        return self._open[name]

    def close(self) -> None:
        """Close all."""
        while self._open:
            _, resource = self._open.popitem()
            resource.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTicks:
    """The ticks at which a source is read: multiples of ``interval`` microseconds since the epoch.

    Attributes:
        interval: from one tick to the next.
        catch_up: rows of ticks that passed while the job was down are read in at most so many batches, the newest ticks
            one by one.
    """

    interval: int
    catch_up: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """What a reader may use.

    Attributes:
        uid: of the source.
        spark: the session for its frames.
        until: with ``CAUGHT_UP``, reading ends at what is there when the reader is opened.
        report: passes a fact to the job's listeners; nothing is decided by it.
        received: the write-ahead log for rows that the source is given; ``None`` outside of a job.
        ticks: when the source is read, if not whenever it is ready.
        wall: the wall clock.
        resources: of the job; they outlive the reader.
        log_id: identity of the job's log; empty outside of a job.
        generation: of the attempt. Of two attempts with one log, that with the lower generation is superseded. It may
            not know that yet when it opens its reader, so what a reader writes outside must tell the two apart.
        check_owner: raises ``GenerationFenced`` if another process surely owns the job's log by now.
    """

    uid: str
    spark: SparkSession
    until: Until = Until.STOPPED
    report: Callable[[Fact], None] = ignore_fact
    received: KeyedWriteAhead | None = None
    ticks: BatchTicks | None = None
    wall: Callable[[], WallTime] = SystemClock().wall
    resources: JobResources = field(default_factory=JobResources)
    log_id: str = ""
    generation: int = 0
    check_owner: Callable[[], None] = field(default=lambda: None)

    def count(self, name: str, amount: int) -> None:
        """Let a counter of the source grow, as ``penstock status`` shows it."""
        self.report(Counted(task=self.uid, name=name, amount=amount))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimit:
    """What the next batch may hold.

    Attributes:
        rows: most rows; ``None`` is no limit.
        bytes: most bytes; ``None`` is no limit.
        paused: names of partitions, as in ``PlannedBatch.partitions``, whose event time is too far ahead of those
            they are aligned with. The reader leaves them out of the plan and keeps their position. They stay in
            ``names`` and, if they have rows waiting, in ``behind``. A paused partition with rows waiting is neither
            idle nor caught up: if only such partitions are left to read, the answer is ``NoData``, not idle.
            Always empty for readers that name no partitions.
    """

    rows: int | None = None
    bytes: int | None = None
    paused: frozenset[str] = frozenset()

    def lowered(self, *, rows: int | None, bytes: int | None) -> ReadLimit:
        """The same with the lower ones of these limits and its own.

        >>> ReadLimit(rows=5).lowered(rows=3, bytes=None)
        ReadLimit(rows=3, bytes=None, paused=frozenset())
        """
        return replace(self, rows=_least(self.rows, rows), bytes=_least(self.bytes, bytes))


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """The next batch as the reader has planned it. The reader's position is now the one after the plan.

    Attributes:
        plan: the reader's own description of exact ranges, never empty.
        rows: number of rows, as far as the reader knows or estimates it.
        bytes: number of bytes, likewise.
        metrics: metrics that are known for sure without a job.
        verify: raises ``SourceChanged`` if a job over the plan may have read something else than was planned. It is
            called after each job, on the thread that ran it, before a snapshot can contain the rows. It must not block.
        partitions: all partitions that the source has now, with or without rows in the plan; the runtime fills in
            their ``source``. Each then has a watermark of its own, and the minimum of them holds.
        takes_all: no other rows are waiting. The reader is polled again when the batch has been processed, so that all
            rows that arrive meanwhile are the next batch. Otherwise the next batch is read ahead.
        is_behind: rows of ticks that passed while the job was down are waiting. The reader is polled again without
            waiting for a tick.
    """

    plan: object
    rows: int | None = None
    bytes: int | None = None
    metrics: Mapping[str, ObservedMetrics] = field(default_factory=dict)
    verify: Callable[[], None] | None = None
    partitions: SourcePartitions | None = None
    takes_all: bool = False
    is_behind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoData:
    """There are no rows now.

    Attributes:
        wake_at: when to poll again.
        idle: the source does not hold watermarks back before its next rows.
        ended: partitions that were read to their end while others, which are paused, have rows left. Other sources stop
            waiting for them. If all partitions were read to their end, the answer is ``Ended`` or
            ``CaughtUp``. A run until caught up may leave it empty: it is implied there.
    """

    wake_at: MonotonicTime
    idle: bool = False
    ended: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The end set by ``Until.CAUGHT_UP`` is reached. More data may come in a later run: the watermark stays."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The source is bounded and all of it was read: the watermark goes to the end of time."""


PollResult: TypeAlias = PlannedBatch | NoData | CaughtUp | Ended


class SourceReader(Protocol):
    """Reads one source from one position on; called by one thread at a time."""

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        """Plan what to read next. Must not block for long and must not run a Spark job.

        Raises:
            ConnectorError: with ``retry`` set truthfully.
        """
        ...

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of exactly the rows of a plan of this reader; its schema is the source's schema."""
        ...

    def position(self) -> Position:
        """The position after the last returned plan; at first the resolved start (``latest`` is a number by then)."""
        ...

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Note that the checkpoint with this position is complete; it may show or remove what was read.

        May be called late, again, or never: after a crash the position comes to ``Source.open`` instead.
        """
        ...

    def close(self) -> None:
        """Release what is held. May never be called."""
        ...


@runtime_checkable
class SupportsPartitions(Protocol):
    """A source whose rows say which partition they come from."""

    @property
    def partition_column(self) -> str | None:
        """The column of its schema that has the partition's name, as a plain value; ``None`` if it has none."""
        ...


@runtime_checkable
class ChecksPosition(Protocol):
    """A source that names the kind of its positions, so that a position of another kind is refused before opening."""

    @property
    def position_kind(self) -> str:
        """``Position.kind`` of its positions."""
        ...


def receives(source: object) -> bool:
    """Whether a source is given rows, and so knows at which tick each came. It is polled at its start, to begin."""
    return isinstance(source, ChecksPosition) and source.position_kind in (RECEIVED, UNLOGGED)


@runtime_checkable
class SupportsLastBatches(Protocol):
    """A reader whose rows are given to it, and that can read those it has before a stop."""

    def take_no_more(self) -> None:
        """Take no more rows. The polls that follow give those that were taken, and then ``CaughtUp``."""
        ...


@runtime_checkable
class SupportsPartitionNames(Protocol):
    """A reader that knows its partitions before its first batch."""

    def partitions(self) -> SourcePartitions:
        """All partitions that it reads now."""
        ...


DECODED_RECORD: Final = "_record"
"""Column with the decoded record, of frames whose source decodes JSON; ``NULL`` where Spark has to decode it."""
UNDECODED_METRIC: Final = "undecided"
"""Metric of such a source: ``{"rows": n}``, the number of rows without a ``DECODED_RECORD``.

If it is settled when the batch is sent (the reader has the rows at hand) and zero, the plan of the batch decodes no
JSON. Only the first step gets it.
"""


@runtime_checkable
class SupportsJsonDecoding(Protocol):
    """A source of bytes that can decode a column of JSON while it reads, before the bytes get to Spark."""

    def decoding(self, column: str, record: StructType) -> Source | None:
        """The same source with the column ``DECODED_RECORD`` added, or ``None`` if it cannot decode ``column``.

        In each row ``DECODED_RECORD`` is either what ``from_json`` would give, and ``column`` is ``NULL``. Or the
        source is not sure: then ``DECODED_RECORD`` is ``NULL``, and ``column`` is unchanged. Positions and guarantees
        stay the same.
        """
        ...


@runtime_checkable
class SupportsColumnPruning(Protocol):
    """A source that can skip the work for columns that the pipeline does not use."""

    def only(self, columns: Collection[str]) -> Source:
        """The same source with the same schema; other columns than these may be ``NULL``."""
        ...


@runtime_checkable
class SupportsFixedColumns(Protocol):
    """A source that may take its columns from its data. A job fixes them before its first attempt."""

    @property
    def takes_columns(self) -> bool:
        """Whether the columns come from the data: they are not declared."""
        ...

    def with_fixed_columns(self, spark: SparkSession, resume: Position | None) -> Source:
        """The same source with the columns that ``resume`` records; if it records none, with those of the data now.

        The source's positions record them from then on. A position of another kind is ignored here.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The data waiting for a reader that starts at a position, as far as it is known without reading.

    Attributes:
        rows: most rows that are waiting; ``None`` if that is not known without reading.
        files: number of files, including one that is partly read.
        bytes: size of these files.
        partitions: by name, where reading would start, and where the partition ends now.
        warnings: what may go wrong, each a sentence.
    """

    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    partitions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@runtime_checkable
class SupportsBacklog(Protocol):
    """A source that can report its backlog, without a Spark session and without changing anything."""

    def backlog(self, resume: Position | None) -> Backlog:
        """The data waiting for a reader that is opened with this position.

        Raises:
            StateIncompatible: the position is of another kind.
            ConnectorError: it cannot be found out; a start may fail the same way.
        """
        ...


@runtime_checkable
class KnowsEnd(Protocol):
    """A source that knows from a position alone whether it has more rows."""

    def has_more(self, position: Position) -> bool:
        """Whether rows follow the position, now or later.

        Raises:
            StateIncompatible: the position is of another kind.
        """
        ...


@runtime_checkable
class ChecksRows(Protocol):
    """A source that can tell before a start whether it could go on from a position."""

    def check_rows(self, position: Position) -> None:
        """Check, before anything is claimed or published, that all rows after the position can be read.

        Raises:
            PenstockError: they cannot; without ``retry`` the start is refused.
        """
        ...


@runtime_checkable
class SupportsReplay(Protocol):
    """A source that can be read without effects outside, and up to where another run has read it."""

    def replayed(self, end: Position | None) -> Source:
        """The same source without effects outside, such as commits. With ``end``, a run until caught up ends there.

        Raises:
            StateIncompatible: that position is of another kind.
        """
        ...


class Source(Protocol):
    """A frozen description of where rows come from."""

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee when a position is replayed."""
        ...

    def schema(self, spark: SparkSession) -> StructType:
        """The schema of every frame, known before anything is read."""
        ...

    def open(self, context: SourceContext, resume: Position | None) -> SourceReader:
        """A reader that goes on after ``resume``; ``None`` is a fresh start.

        Raises:
            StateIncompatible: the position is of another kind.
        """
        ...

    def describe(self) -> str:
        """A short description for people: ``files in/*.json``. No secrets."""
        ...
