"""A source that reads what a test wrote: rows, and between them faults, pauses, idleness and the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from penstock import formats
from penstock.elements import Measure, Partitions
from penstock.errors import HarnessError, StateIncompatible
from penstock.handles import Guarantee, Position
from penstock.ids import CheckpointId, Instant, WallTime
from penstock.sources.base import CaughtUp, Ended, Limits, Nothing, Poll, Rows, SourceContext, Until
from penstock.testing.script import SENTINELS, Crash, End, Idle, Pause, Script, Sentinel
from penstock.testing.values import fit_rows, frame_of, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

KIND: Final = "scripted/1"


class ScriptedSource:
    """Rows as written, replayable from any position. Exactly-once within one process.

    Neighbouring rows come as one batch (``max_rows_per_batch`` holds); a sentinel ends it, and so does each
    :meth:`send`. At the end of its script the source waits for more; with ``until="caught-up"`` it is caught up there.

    Args:
        schema: columns, as DDL or a ``StructType``.
        items: rows as dictionaries, and :class:`Crash`, :class:`Pause`, :class:`Idle` or :class:`End` among them. A
            column that is left out is ``NULL``; times, dates and decimals may be text.
        partition_column: a column whose values are the partitions that rows come from, as a topic's rows have one.
            There are as many as were sent so far; each has a watermark of its own.
        poll_interval_ms: milliseconds from one look for more rows to the next.

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
        self._known: StructType | None = None
        self._script = Script()

    @property
    def guarantee(self) -> Guarantee:
        """A script is never changed, it only grows."""
        return Guarantee.EXACTLY_ONCE

    @property
    def has_ended(self) -> bool:
        """Whether an :class:`End` was sent: nothing may follow it."""
        return self._script.has_ended or any(isinstance(item, End) for item in self._unchecked)

    def schema(self, spark: SparkSession) -> StructType:
        """The columns; rows given at construction are checked now.

        Raises:
            GraphError: the schema is no list of columns.
            SchemaMismatch: a row does not fit.
        """
        if self._known is None:
            declared = self._declared
            self._known = formats.struct_type(spark, declared) if isinstance(declared, str) else declared
            unchecked, self._unchecked = self._unchecked, []
            self._add(unchecked, self._known)
        return self._known

    def redeclare(self, schema: StructType, partition_column: str | None = None) -> None:
        """The same script under other columns, as for a new version of a pipeline."""
        self._known = schema
        self.partition_column = partition_column

    def send(self, rows: Iterable[object] | DataFrame) -> None:
        """Append rows and sentinels, as a batch of their own. A DataFrame is run now, its rows are kept.

        Raises:
            SchemaMismatch: a row does not fit; nothing was appended.
            HarnessError: the script has ended.
        """
        items: list[object] = [*(rows_of(cast("DataFrame", rows)) if hasattr(rows, "toArrow") else rows)]
        if self.has_ended:
            msg = f"{self._name}: the source has ended, nothing can follow"
            raise HarnessError(msg)
        if self._known is None:
            self._unchecked += [Pause(), *items]
        else:
            self._add([Pause(), *items] if self._script.ends_with_row else items, self._known)

    def _add(self, items: list[object], schema: StructType) -> None:
        rows = iter(fit_rows((item for item in items if not isinstance(item, SENTINELS)), schema, self._name))
        self._script.add([item if isinstance(item, SENTINELS) else next(rows) for item in items])

    def open(self, context: SourceContext, resume: Position | None) -> ScriptedReader:
        """A reader that goes on after ``resume``.

        Raises:
            StateIncompatible: the position is of another kind.
        """
        schema = self.schema(context.spark)
        at = 0 if resume is None else _place(resume)
        return ScriptedReader(
            self._script, schema, context, at, wait=self._wait, partition_column=self.partition_column
        )

    def describe(self) -> str:
        """For people."""
        return f"a script of {len(self._script) + len(self._unchecked)} items"


def _place(position: Position) -> int:
    detail: Any = position.detail
    if position.kind != KIND or not isinstance(detail, dict) or not isinstance(detail.get("next"), int):
        msg = f"the position is of kind {position.kind!r}, a scripted source reads {KIND!r}: give it a uid of its own"
        raise StateIncompatible(msg)
    return int(detail["next"])


@dataclass(frozen=True, slots=True)
class _Span:
    """The plan of a batch: places in the script."""

    first: int
    end: int


class ScriptedReader:
    """Walks along a script. Made by :meth:`ScriptedSource.open`."""

    def __init__(
        self,
        script: Script,
        schema: StructType,
        context: SourceContext,
        at: int,
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
        self._wait = wait
        self._paused_until: Instant | None = None
        self._is_idle = False

    def poll(self, *, now: Instant, wall: WallTime, limits: Limits) -> Poll:
        """The rows up to the next sentinel, or what the sentinel says.

        Raises:
            CrashRow: at a :class:`Crash` that was never read before.
        """
        del wall
        while not isinstance(item := self._script.at(self._at), dict):
            answer = self._at_sentinel(item, now)
            if answer is not None:
                return answer
            self._at += 1
        self._is_idle = False
        rows = self._script.rows_from(self._at, most=limits.rows)
        span = _Span(self._at, self._at + len(rows))
        self._at = span.end
        known = Measure.known({"rows": len(rows), "bytes": 0})
        return Rows(plan=span, rows=len(rows), bytes=0, measures={"rows": known}, partitions=self._partitions(span.end))

    def _partitions(self, end: int) -> Partitions | None:
        column = self._partition_column
        if column is None:
            return None
        names = (str(row[column]) for row in self._script.rows_between(0, None) if row[column] is not None)
        behind = (str(row[column]) for row in self._script.rows_between(end, None) if row[column] is not None)
        return Partitions(names=tuple(dict.fromkeys(names)), behind=frozenset(behind), column=column)

    def _at_sentinel(self, item: Sentinel | None, now: Instant) -> Poll | None:
        """What to answer there; ``None`` to go past it."""
        match item:
            case None:
                return CaughtUp() if self._until is Until.CAUGHT_UP else self._nothing(now)
            case End():
                return Ended()
            case Crash():
                self._script.crash_once(self._at)
                return None
            case Pause():
                return self._pause(item, now)
            case Idle():
                return self._idle(now)

    def _pause(self, pause: Pause, now: Instant) -> Poll | None:
        if self._paused_until is None:
            self._paused_until = Instant(now + pause.micros)
        if now < self._paused_until:
            return Nothing(wake_at=self._paused_until, idle=self._is_idle)
        self._paused_until = None
        return None

    def _idle(self, now: Instant) -> Poll | None:
        """The place is left only for something behind it, so that a restart is idle again."""
        if self._is_idle and self._script.at(self._at + 1) is not None:
            return None
        self._is_idle = True
        return self._nothing(now)

    def _nothing(self, now: Instant) -> Nothing:
        return Nothing(wake_at=Instant(now + self._wait), idle=self._is_idle)

    def frame(self, plan: object) -> DataFrame:
        """The rows of a plan, sent to the executors once more each time that it is asked for."""
        span = cast("_Span", plan)
        return frame_of(self._spark, self._script.rows_between(span.first, span.end), self._schema)

    def position(self) -> Position:
        """The place of the next item."""
        return Position(kind=KIND, detail={"next": self._at})

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Nothing is shown elsewhere."""

    def close(self) -> None:
        """Nothing is held."""
