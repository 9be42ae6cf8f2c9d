"""What a source is to the runtime: all that a new connector has to satisfy.

A source is a frozen description; :meth:`Source.open` makes a reader. A reader never sleeps and holds no state but
what it got as position: it answers *what to read next* with a plan, and turns a plan into a lazy Spark frame that can
be run again and again with the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, runtime_checkable

from penstock.clock import MonotonicTime, WallTime
from penstock.elements import ObservedMetrics, SourcePartitions
from penstock.facts import Fact
from penstock.handles import CheckpointId, Guarantee, Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def ignore_fact(fact: Fact) -> None:
    """Where nobody listens to facts."""


class Until(str, Enum):
    """How far a run reads."""

    STOPPED = "stopped"
    CAUGHT_UP = "caught-up"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """What a reader may use. ``until=CAUGHT_UP`` fixes the end at what is there when the reader is opened.

    ``report`` tells observers of the job a fact; nothing is decided by it.
    """

    uid: str
    spark: SparkSession
    until: Until = Until.STOPPED
    report: Callable[[Fact], None] = ignore_fact


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimit:
    """What the next batch may hold. ``None`` is no limit.

    ``paused``: names of partitions, as :attr:`PlannedBatch.partitions` has them, that are too far ahead in event time
    of what they are aligned with. A reader that names partitions leaves them out of the plan and keeps their place;
    they stay in ``names`` and, if they have rows waiting, in ``behind``. Those that have rows waiting are neither idle
    nor caught up: where only such are left to read, the answer is :class:`NoData`, not idle. Readers without partitions
    never get any.
    """

    rows: int | None = None
    bytes: int | None = None
    paused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """A plan of a batch: the reader's own description of exact ranges, never empty.

    ``rows`` and ``bytes`` are what the reader knows or estimates. ``metrics`` holds what it already knows for sure.
    After this answer the reader's position is the one after the plan.

    ``verify`` raises ``SourceChanged`` if what a job over the plan has just read may not be what was planned. It is
    called after each job, on the thread that ran it, before a snapshot can contain the rows; it must not block.

    ``partitions``: all that the source has now, also those that the plan has no rows of; their ``source`` is filled in
    by whoever runs the reader. Each has a watermark of its own then, and the least of them holds.

    ``takes_all``: nothing else waits. The reader is asked again when the batch is through, and what came meanwhile is
    the next one, whole and fresh; while more waits, the next batch is read ahead.
    """

    plan: object
    rows: int | None = None
    bytes: int | None = None
    metrics: Mapping[str, ObservedMetrics] = field(default_factory=dict)
    verify: Callable[[], None] | None = None
    partitions: SourcePartitions | None = None
    takes_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoData:
    """No rows now; ask again at ``wake_at``. ``idle``: it does not hold watermarks back before its next rows.

    ``ended``: partitions that were read to their end while others, which are paused, have rows left. Nobody waits for
    them any more; where all were read to their end the answer is :class:`Ended` or :class:`CaughtUp`. In a run until
    caught up it may be left out: there nothing else can be meant.
    """

    wake_at: MonotonicTime
    idle: bool = False
    ended: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The end fixed by ``Until.CAUGHT_UP`` is reached. Not the end of the data: the watermark stays."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The source is bounded and all of it was read: the watermark goes to the end of time."""


PollResult: TypeAlias = PlannedBatch | NoData | CaughtUp | Ended


class SourceReader(Protocol):
    """Reads one source from one position on; called by one thread at a time."""

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        """What to read next. Must not block for long and must not run a Spark job.

        Raises:
            ConnectorError: with ``retry`` set truthfully.
        """
        ...

    def frame(self, plan: object) -> DataFrame:
        """A lazy frame of exactly the rows of a plan of this reader; its schema is the source's schema."""
        ...

    def position(self) -> Position:
        """After the last plan that was returned. Right after opening: the resolved start (``latest`` is a number)."""
        ...

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """The checkpoint with this position is complete. For monitoring (offsets shown elsewhere); cleans nothing."""
        ...

    def close(self) -> None:
        """Release what is held. May never be called."""
        ...


@runtime_checkable
class SupportsPartitions(Protocol):
    """A source whose rows say which partition they come from."""

    @property
    def partition_column(self) -> str | None:
        """The column of its schema that has the partition's name, as plain value; ``None`` if it has none."""
        ...


@runtime_checkable
class ChecksPosition(Protocol):
    """A source that says beforehand which positions it goes on after, so that another kind's is refused at once."""

    @property
    def position_kind(self) -> str:
        """What :attr:`Position.kind` is in its positions."""
        ...


@runtime_checkable
class SupportsPartitionNames(Protocol):
    """A reader that knows its partitions without a batch to tell them with."""

    def partitions(self) -> SourcePartitions:
        """All that it reads now."""
        ...


DECODED_RECORD: Final = "_record"
"""Column of frames whose source has decoded a column of JSON: the record, ``NULL`` where Spark is to decode it."""
UNDECODED_METRIC: Final = "undecided"
"""Name of a metric of such a source: ``{"rows": n}``, the number of rows without a :data:`DECODED_RECORD`.

One that has settled by the time its batch is sent (the reader has the rows at hand) saves looking for the others:
where there are none, the plan knows nothing of JSON. It goes no further than to the first step.
"""


@runtime_checkable
class SupportsJsonDecoding(Protocol):
    """A source of bytes that can decode a column of JSON while it reads, before the bytes get to Spark."""

    def decoding(self, column: str, record: StructType) -> Source | None:
        """The same source with the column :data:`DECODED_RECORD` added, or ``None`` if it cannot decode ``column``.

        Where ``DECODED_RECORD`` is there, it is what ``from_json`` would give, and ``column`` is ``NULL``. Where the
        source is not sure, ``DECODED_RECORD`` is ``NULL`` and ``column`` as it came. Positions and guarantees are the
        same as without.
        """
        ...


@runtime_checkable
class SupportsColumnPruning(Protocol):
    """A source that can save the work for columns that nobody looks at."""

    def only(self, columns: Collection[str]) -> Source:
        """The same source, with the same schema; in columns that are not named here it may have ``NULL``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What a reader that went on at a position would find, as far as it is known without reading.

    Attributes:
        rows: at most so many; ``None`` if only reading tells.
        files: so many of them, one that is partly read included.
        bytes: of these files.
        partitions: by name, where each would be read on, and its end now.
        warnings: what may go wrong, each a sentence.
    """

    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    partitions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@runtime_checkable
class SupportsBacklog(Protocol):
    """A source that can be asked what waits for it, without a session and without changing anything anywhere."""

    def backlog(self, resume: Position | None) -> Backlog:
        """What a reader opened with this position would find.

        Raises:
            StateIncompatible: the position is of another kind.
            ConnectorError: it cannot be told; a start may fail the same way.
        """
        ...


@runtime_checkable
class SupportsReplay(Protocol):
    """A source that can be read by a run of which nobody outside learns, and up to where another run has read it."""

    def replayed(self, end: Position | None) -> Source:
        """The same source, which tells the outside nothing. With ``end``, a run until caught up ends there.

        Raises:
            StateIncompatible: that position is of another kind.
        """
        ...


class Source(Protocol):
    """A frozen description of where rows come from."""

    @property
    def guarantee(self) -> Guarantee:
        """What replaying a position gives."""
        ...

    def schema(self, spark: SparkSession) -> StructType:
        """The columns of every frame, known before anything is read."""
        ...

    def open(self, context: SourceContext, resume: Position | None) -> SourceReader:
        """A reader that goes on after ``resume``; ``None`` is a fresh start.

        Raises:
            StateIncompatible: the position is of another kind.
        """
        ...

    def describe(self) -> str:
        """In a few words, for people: ``files in/*.json``. No secrets."""
        ...
