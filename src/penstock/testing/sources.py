"""``ScriptedSource``: rows written by a test, with crashes, pauses and the end among them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from penstock.clock import MonotonicTime, WallTime, parse_duration
from penstock.elements import ObservedMetrics, SourcePartitions
from penstock.errors import HarnessError, SourceUnavailable, StateIncompatible
from penstock.formats import text
from penstock.handles import CheckpointId, Guarantee, Position
from penstock.interfaces.source import (
    CaughtUp,
    Ended,
    NoData,
    PlannedBatch,
    PollResult,
    ReadLimit,
    SourceContext,
    Until,
)
from penstock.testing.frames import fit_rows, frame_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# ---- scripts ---------------------------------------------------------------------------------------------------------
# A script only grows, so a position in it is a number, and a replay gives the same rows.


class CrashRow(SourceUnavailable):
    """A scripted source reached a ``Crash``: the attempt fails, and a restart may help."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A row at which the job dies when it is read for the first time; later reads skip it.

    In ``penstock.testing.pipeline_run.run`` the job dies as if killed; in a ``penstock.Job`` the attempt fails
    and the job restarts.

    >>> Crash()
    Crash()
    """


@dataclass(frozen=True, slots=True)
class Pause:
    """A row that makes the source pause. After a restart the pause starts again.

    Args:
        duration: how long no rows come, by the job's clock: ``"5 seconds"``. ``"0 seconds"`` only ends the batch.

    Raises:
        GraphError: it is not a length of time.

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
    """A row that makes the source idle: until its next rows it does not hold back the watermarks of others.

    >>> Idle()
    Idle()
    """


@dataclass(frozen=True, slots=True)
class End:
    """A row that ends the source: no others follow, and its watermark goes to the end of time.

    >>> End()
    End()
    """


Sentinel: TypeAlias = Crash | Pause | Idle | End
SENTINELS: Final = (Crash, Pause, Idle, End)


@dataclass(eq=False, slots=True)
class Script:
    """The items of one source and the crashes that have happened; safe for several threads.

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
        """Whether it has an ``End``."""
        with self._lock:
            return any(isinstance(item, End) for item in self._items)

    @property
    def ends_with_row(self) -> bool:
        """Whether the next row would be in one batch with the last one."""
        with self._lock:
            return bool(self._items) and isinstance(self._items[-1], dict)

    def add(self, items: Iterable[dict[str, Any] | Sentinel]) -> None:
        """Append rows and sentinels."""
        with self._lock:
            self._items += items

    def at(self, index: int) -> dict[str, Any] | Sentinel | None:
        """Return the item at an index; ``None`` beyond the end."""
        with self._lock:
            return self._items[index] if index < len(self._items) else None

    def rows_between(self, first: int, end: int | None) -> Sequence[dict[str, Any]]:
        """Return the rows in a range of indexes, ``None`` being the end."""
        with self._lock:
            return [item for item in self._items[first:end] if isinstance(item, dict)]

    def crash_once(self, index: int) -> None:
        """Raise at a ``Crash`` that is reached for the first time.

        Raises:
            CrashRow: it is.
        """
        with self._lock:
            if index in self._crashed:
                return
            self._crashed.add(index)
        msg = f"The script crashes here, at its item {index + 1}."
        raise CrashRow(msg)


# ---- ScriptedSource --------------------------------------------------------------------------------------------------

KIND: Final = "scripted/1"


class ScriptedSource:
    """A source of the rows that a test wrote, replayable from any position. Exactly-once within one process.

    Neighbouring rows come as one batch (``max_rows_per_batch`` holds); a sentinel ends it, and so does each
    ``send``. At the end of its script the source waits for more; with ``until="caught-up"`` it is caught up there.
    Rows of partitions that are paused are left and read later, as a batch of their own.

    Args:
        schema: columns, as DDL or a ``StructType``.
        items: rows as dictionaries, and ``Crash``, ``Pause``, ``Idle`` or ``End`` among them. A
            column that is left out is ``NULL``; times, dates and decimals may be text.
        partition_column: a column whose values are the partitions that rows come from, as a topic's rows have one.
            The partitions are those of the rows sent until then; each has its own watermark.
        poll_interval_ms: milliseconds between polls while there are no rows.

    Example::

        source = ScriptedSource("id LONG, at TIMESTAMP", [{"id": 1, "at": "2026-01-01T00:00:10Z"}, Crash(), {"id": 2}])

    >>> ScriptedSource("id LONG", [{"id": 1}, Pause("5 seconds"), {"id": 2}, End()]).describe()
    'a script of 4 items'
    """

    def __init__(
        self,
        schema: str | StructType,
        items: Iterable[object] = (),
        *,
        partition_column: str | None = None,
        poll_interval_ms: int = 10,
        name: str = "",
    ) -> None:
        self._declared = schema
        self.partition_column = partition_column
        self._name = name or "ScriptedSource"
        self._wait = poll_interval_ms * 1_000
        self._unchecked: list[object] = list(items)
        self._checked_schema: StructType | None = None
        self._script = Script()

    @property
    def guarantee(self) -> Guarantee:
        """Exactly-once: a script only grows."""
        return Guarantee.EXACTLY_ONCE

    @property
    def has_ended(self) -> bool:
        """Whether an ``End`` was sent: nothing may follow it."""
        return self._script.has_ended or any(isinstance(item, End) for item in self._unchecked)

    @property
    def position_kind(self) -> str:
        """The kind of its positions."""
        return KIND

    def schema(self, spark: SparkSession) -> StructType:
        """Return the columns; rows given at construction are checked now.

        Raises:
            GraphError: the schema is not a list of columns.
            SchemaMismatch: a row does not fit.
        """
        if self._checked_schema is None:
            declared = self._declared
            self._checked_schema = text.struct_type(spark, declared) if isinstance(declared, str) else declared
            unchecked, self._unchecked = self._unchecked, []
            self._add(unchecked, self._checked_schema)
        return self._checked_schema

    def redeclare(self, schema: StructType, partition_column: str | None = None) -> None:
        """Give the same script other columns, as for a new version of a pipeline."""
        self._checked_schema = schema
        self.partition_column = partition_column

    def send(self, rows: Iterable[object] | DataFrame) -> None:
        """Append rows and sentinels, as a batch of their own. A DataFrame is run now, and its rows are kept.

        Raises:
            SchemaMismatch: a row does not fit; nothing was appended.
            HarnessError: the script has ended.
        """
        items: list[object] = [*(rows_of(cast("DataFrame", rows)) if hasattr(rows, "toArrow") else rows)]
        if self.has_ended:
            msg = f"{self._name}: The source has ended. Send rows before end()."
            raise HarnessError(msg)
        if self._checked_schema is None:
            self._unchecked += [Pause(), *items]
        else:
            self._add([Pause(), *items] if self._script.ends_with_row else items, self._checked_schema)

    def _add(self, items: list[object], schema: StructType) -> None:
        rows = iter(fit_rows((item for item in items if not isinstance(item, SENTINELS)), schema, self._name))
        self._script.add([item if isinstance(item, SENTINELS) else next(rows) for item in items])

    def open(self, context: SourceContext, resume: Position | None) -> ScriptedReader:
        """Return a reader that continues after ``resume``.

        Raises:
            StateIncompatible: the position is of another kind.
        """
        schema = self.schema(context.spark)
        at, left = (0, []) if resume is None else _parse_position(resume)
        return ScriptedReader(
            self._script, schema, context, at, left, wait=self._wait, partition_column=self.partition_column
        )

    def describe(self) -> str:
        """Describe the script."""
        return f"a script of {len(self._script) + len(self._unchecked)} items"


def _parse_position(position: Position) -> tuple[int, list[int]]:
    """The index of the next item, and the indexes of earlier rows that were left."""
    detail: Any = position.detail
    if position.kind != KIND or not isinstance(detail, dict) or not isinstance(detail.get("next"), int):
        msg = f"The position is of kind {position.kind!r}, but this source reads {KIND!r}. Give it a uid of its own."
        raise StateIncompatible(msg)
    return int(detail["next"]), [int(index) for index in detail.get("left", ())]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan of a batch: indexes of the script."""

    indexes: tuple[int, ...]


class ScriptedReader:
    """Reads a script. Made by ``ScriptedSource.open``."""

    def __init__(
        self,
        script: Script,
        schema: StructType,
        context: SourceContext,
        at: int,
        left: list[int],
        *,
        wait: int,
        partition_column: str | None = None,
    ) -> None:
        self._script = script
        self._partition_column = partition_column
        self._schema = schema
        self._spark = context.spark
        self._until = context.until
        self._at = at
        self._left = left  # earlier rows, of partitions that were paused
        self._wait = wait
        self._paused_until: MonotonicTime | None = None
        self._is_idle = False

    def poll(self, *, now: MonotonicTime, wall: WallTime, limits: ReadLimit) -> PollResult:
        """Return the rows up to the next sentinel, or what the sentinel says.

        Raises:
            CrashRow: at a ``Crash`` that was never read before.
        """
        del wall
        while not (indexes := self._readable(limits)):
            result = self._at_sentinel(cast("Sentinel | None", self._script.at(self._at)), now)
            if result is not None:
                return result
            self._at += 1
        self._is_idle = False
        known = ObservedMetrics.known({"rows": len(indexes), "bytes": 0})
        return PlannedBatch(
            plan=_Plan(tuple(indexes)),
            rows=len(indexes),
            bytes=0,
            metrics={"rows": known},
            partitions=self._partitions(),
        )

    def _readable(self, limits: ReadLimit) -> list[int]:
        """The rows that were left and are no longer paused, else those up to the next sentinel that are not paused."""
        resumed = [index for index in self._left if not self._is_paused(index, limits)][: limits.rows]
        if resumed:
            self._left = [index for index in self._left if index not in resumed]
            return resumed
        found: list[int] = []
        while isinstance(self._script.at(self._at), dict) and (limits.rows is None or len(found) < limits.rows):
            (self._left if self._is_paused(self._at, limits) else found).append(self._at)
            self._at += 1
        return found

    def _is_paused(self, index: int, limits: ReadLimit) -> bool:
        return bool(limits.paused) and self._partition(self._row(index)) in limits.paused

    def _row(self, index: int) -> dict[str, Any]:
        return cast("dict[str, Any]", self._script.at(index))

    def _partition(self, row: Mapping[str, Any]) -> str | None:
        value = row[self._partition_column] if self._partition_column is not None else None
        return None if value is None else str(value)

    def _partitions(self) -> SourcePartitions | None:
        if self._partition_column is None:
            return None
        names = map(self._partition, self._script.rows_between(0, None))
        waiting = [*map(self._row, self._left), *self._script.rows_between(self._at, None)]
        return SourcePartitions(
            names=tuple(dict.fromkeys(name for name in names if name is not None)),
            behind=frozenset(name for name in map(self._partition, waiting) if name is not None),
            column=self._partition_column,
        )

    def _at_sentinel(self, item: Sentinel | None, now: MonotonicTime) -> PollResult | None:
        """What a sentinel answers; ``None`` if the reader goes past it."""
        match item:
            case None:
                is_end = self._until is Until.CAUGHT_UP and not self._left
                return CaughtUp() if is_end else self._nothing(now)
            case End():
                return Ended() if not self._left else self._all_but_left(now)
            case Crash():
                self._script.crash_once(self._at)
                return None
            case Pause():
                return self._pause(item, now)
            case Idle():
                return self._idle(now)

    def _all_but_left(self, now: MonotonicTime) -> NoData:
        partitions = self._partitions()
        assert partitions is not None  # without partitions no row is left
        return NoData(
            wake_at=MonotonicTime(now + self._wait), ended=frozenset(partitions.names).difference(partitions.behind)
        )

    def _pause(self, pause: Pause, now: MonotonicTime) -> PollResult | None:
        if self._paused_until is None:
            self._paused_until = MonotonicTime(now + pause.micros)
        if now < self._paused_until:
            return NoData(wake_at=self._paused_until, idle=self._is_idle and not self._left)
        self._paused_until = None
        return None

    def _idle(self, now: MonotonicTime) -> PollResult | None:
        """The reader stays at the sentinel until something follows, so that it is idle again after a restart."""
        if self._is_idle and self._script.at(self._at + 1) is not None:
            return None
        self._is_idle = True
        return self._nothing(now)

    def _nothing(self, now: MonotonicTime) -> NoData:
        return NoData(wake_at=MonotonicTime(now + self._wait), idle=self._is_idle and not self._left)

    def frame(self, plan: object) -> DataFrame:
        """Return the rows of a plan, sent to the executors with each call."""
        return frame_of(self._spark, [self._row(index) for index in cast("_Plan", plan).indexes], self._schema)

    def position(self) -> Position:
        """Return the index of the next item, and those of earlier rows that were left."""
        return Position(kind=KIND, detail={"next": self._at, **({"left": [*self._left]} if self._left else {})})

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Do nothing: progress is shown nowhere else."""

    def close(self) -> None:
        """Do nothing: nothing is open."""
