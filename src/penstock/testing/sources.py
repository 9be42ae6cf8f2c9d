"""A source that reads what a test wrote: rows, and between them faults, pauses, idleness and the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    Rows of partitions that are paused are left and read later, as a batch of their own.

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

    @property
    def position_kind(self) -> str:
        """The kind of its positions."""
        return KIND

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
        at, left = (0, []) if resume is None else _places(resume)
        return ScriptedReader(
            self._script, schema, context, at, left, wait=self._wait, partition_column=self.partition_column
        )

    def describe(self) -> str:
        """For people."""
        return f"a script of {len(self._script) + len(self._unchecked)} items"


def _places(position: Position) -> tuple[int, list[int]]:
    """The place of the next item, and those of rows before it that were left."""
    detail: Any = position.detail
    if position.kind != KIND or not isinstance(detail, dict) or not isinstance(detail.get("next"), int):
        msg = f"the position is of kind {position.kind!r}, a scripted source reads {KIND!r}: give it a uid of its own"
        raise StateIncompatible(msg)
    return int(detail["next"]), [int(place) for place in detail.get("left", ())]


@dataclass(frozen=True, slots=True)
class _Pick:
    """The plan of a batch: places in the script."""

    places: tuple[int, ...]


class ScriptedReader:
    """Walks along a script. Made by :meth:`ScriptedSource.open`."""

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
        self._left = left  # rows before that place, of partitions that were paused
        self._wait = wait
        self._paused_until: Instant | None = None
        self._is_idle = False

    def poll(self, *, now: Instant, wall: WallTime, limits: Limits) -> Poll:
        """The rows up to the next sentinel, or what the sentinel says.

        Raises:
            CrashRow: at a :class:`Crash` that was never read before.
        """
        del wall
        while not (places := self._readable(limits)):
            answer = self._at_sentinel(cast("Sentinel | None", self._script.at(self._at)), now)
            if answer is not None:
                return answer
            self._at += 1
        self._is_idle = False
        known = Measure.known({"rows": len(places), "bytes": 0})
        return Rows(
            plan=_Pick(tuple(places)),
            rows=len(places),
            bytes=0,
            measures={"rows": known},
            partitions=self._partitions(),
        )

    def _readable(self, limits: Limits) -> list[int]:
        """What was left and is not paused any more, else the rows up to the next sentinel that are not paused."""
        again = [place for place in self._left if not self._is_paused(place, limits)][: limits.rows]
        if again:
            self._left = [place for place in self._left if place not in again]
            return again
        found: list[int] = []
        while isinstance(self._script.at(self._at), dict) and (limits.rows is None or len(found) < limits.rows):
            (self._left if self._is_paused(self._at, limits) else found).append(self._at)
            self._at += 1
        return found

    def _is_paused(self, place: int, limits: Limits) -> bool:
        return bool(limits.paused) and self._partition(self._row(place)) in limits.paused

    def _row(self, place: int) -> dict[str, Any]:
        return cast("dict[str, Any]", self._script.at(place))

    def _partition(self, row: Mapping[str, Any]) -> str | None:
        value = row[self._partition_column] if self._partition_column is not None else None
        return None if value is None else str(value)

    def _partitions(self) -> Partitions | None:
        if self._partition_column is None:
            return None
        names = map(self._partition, self._script.rows_between(0, None))
        waiting = [*map(self._row, self._left), *self._script.rows_between(self._at, None)]
        return Partitions(
            names=tuple(dict.fromkeys(name for name in names if name is not None)),
            behind=frozenset(name for name in map(self._partition, waiting) if name is not None),
            column=self._partition_column,
        )

    def _at_sentinel(self, item: Sentinel | None, now: Instant) -> Poll | None:
        """What to answer there; ``None`` to go past it."""
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

    def _all_but_left(self, now: Instant) -> Nothing:
        partitions = self._partitions()
        assert partitions is not None  # else nothing could have been left
        return Nothing(
            wake_at=Instant(now + self._wait), ended=frozenset(partitions.names).difference(partitions.behind)
        )

    def _pause(self, pause: Pause, now: Instant) -> Poll | None:
        if self._paused_until is None:
            self._paused_until = Instant(now + pause.micros)
        if now < self._paused_until:
            return Nothing(wake_at=self._paused_until, idle=self._is_idle and not self._left)
        self._paused_until = None
        return None

    def _idle(self, now: Instant) -> Poll | None:
        """The place is left only for something behind it, so that a restart is idle again."""
        if self._is_idle and self._script.at(self._at + 1) is not None:
            return None
        self._is_idle = True
        return self._nothing(now)

    def _nothing(self, now: Instant) -> Nothing:
        return Nothing(wake_at=Instant(now + self._wait), idle=self._is_idle and not self._left)

    def frame(self, plan: object) -> DataFrame:
        """The rows of a plan, sent to the executors once more each time that it is asked for."""
        return frame_of(self._spark, [self._row(place) for place in cast("_Pick", plan).places], self._schema)

    def position(self) -> Position:
        """The place of the next item, and of rows before it that were left."""
        return Position(kind=KIND, detail={"next": self._at, **({"left": [*self._left]} if self._left else {})})

    def committed(self, checkpoint: CheckpointId, position: Position) -> None:
        """Nothing is shown elsewhere."""

    def close(self) -> None:
        """Nothing is held."""
