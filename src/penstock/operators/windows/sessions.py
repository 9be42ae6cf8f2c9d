"""Session windows: frames, results, emitter."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, cast

from penstock.clock import MAX_WATERMARK, MIN_WATERMARK, EventTime
from penstock.interfaces.sink import CHANGE_COLUMN
from penstock.operators.windows.emitter import WindowEmitter
from penstock.operators.windows.figures import INTERNAL
from penstock.operators.windows.frames import WindowFrames
from penstock.operators.windows.results import IS_NEW, changed_results
from penstock.spark.sql import quote_identifier, variable_literal
from penstock.state.layers import WINDOW_END, WINDOW_START, LayerFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame

    from penstock.interfaces.operator import Collector, OperatorContext
    from penstock.operators.windows.assigners import SessionWindow
    from penstock.operators.windows.emit_strategy import EmitStrategy
    from penstock.operators.windows.panes import DueWindows
    from penstock.operators.windows.results import ResultBounds, ResultQueries
    from penstock.state.stack import Stack


# ---- layers of sessions ----------------------------------------------------------------------------------------------
# Layers hold sessions, or parts of them: of each key, stretches of time that neither overlap nor touch within a layer.
# They may overlap with those of another layer, or touch them, and are then one session. A running maximum over a key's
# stretches in order of their starts finds those that are one, whatever their number. Sessions that end at or before the
# horizon are closed and are left out first, since all layers are merged into one before the horizon rises. So a closed
# session never becomes one with a session that begins at its end.

KIND: Final = "sessions/1"
SESSION: Final = f"{INTERNAL}session"
_MAX_END_BEFORE: Final = f"{INTERNAL}before"


def number_sessions(
    frame: DataFrame, keys: Sequence[str], start: str, end: str, *, among: str = "true", name: str = SESSION
) -> DataFrame:
    """``frame`` with a column that numbers each key's sessions in order of time.

    Args:
        frame: rows with a stretch of time, partitioned by key; without keys in one partition.
        keys: SQL for the key columns.
        start: name of the column with the start of the stretch.
        end: name of the column with its end.
        among: SQL for the rows that make sessions; the others have no number.
        name: of the column to add.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    groups = [F.col(key) for key in keys] or [F.expr(f"pmod(hash({quote_identifier(start)}), 1)")]
    by_start = Window.partitionBy(*groups).orderBy(quote_identifier(start))
    ends = F.expr(f"CASE WHEN {among} THEN {quote_identifier(end)} END")
    before = F.max(ends).over(by_start.rowsBetween(Window.unboundedPreceding, -1))
    goes_on = f"{quote_identifier(start)} <= {_MAX_END_BEFORE}"
    begins = F.expr(f"CASE WHEN NOT ({among}) OR {goes_on} THEN 0 ELSE 1 END")
    number = F.sum(begins).over(by_start.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    found = frame.withColumn(_MAX_END_BEFORE, before)
    return found.withColumn(name, F.when(F.expr(among), number)).drop(_MAX_END_BEFORE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IntervalFormat(LayerFormat):
    """The format of layers whose stretches of time are those of their rows: any two of a key may become one."""

    def joined(self, frame: DataFrame, *more: Column, by: tuple[str, ...]) -> DataFrame:
        """One row for each key and value of ``by``, from the first start to the last end."""
        return frame.groupBy(*map(quote_identifier, (*self.keys, *by))).agg(*interval_of(self), *self.merging, *more)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SessionFormat(IntervalFormat):
    """The format of layers of sessions."""

    def merged(self, frame: DataFrame, *more: Column, by: tuple[str, ...] = ()) -> DataFrame:
        """One row for each key and session. See ``LayerFormat.merged``."""
        found = number_sessions(frame, [quote_identifier(key) for key in self.keys], self.start, self.end)
        merged = self.joined(found, *more, by=(SESSION, *by)).drop(SESSION)
        others = [name for name in merged.columns if name not in self.schema.names]
        return merged.select(*map(quote_identifier, (*self.schema.names, *others)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SessionFrames(WindowFrames):
    """What a step with sessions does to frames."""

    @property
    def exchange_keys(self) -> None:
        """``None``: only where all rows of a key are is it known where its sessions begin."""
        return None

    def partial(self, flagged: DataFrame) -> DataFrame:
        """One row for each key and session of the batch's rows on time, partitioned as layers are."""
        layers_format = self.layers_format
        rows = self.on_time(flagged)
        keys = rows.columns[: len(layers_format.keys)]
        placed = rows.repartition(layers_format.partitions, *keys) if keys else rows.repartition(1)
        found = number_sessions(placed, keys, layers_format.start, layers_format.end)
        groups = self.groups[: len(keys)]
        sessions = found.groupBy(*groups, SESSION).agg(*interval_of(layers_format), *self.partials)
        return sessions.select(*map(quote_identifier, layers_format.schema.names))


def interval_of(layers_format: LayerFormat) -> tuple[Column, Column]:
    """The first start and the last end of some rows, as aggregates."""
    from pyspark.sql import functions as F

    start, end = layers_format.start, layers_format.end
    return F.min(start).alias(start), F.max(end).alias(end)


def to_session_frames(frames: WindowFrames) -> SessionFrames:
    """The frames of the same step with layers of sessions."""
    values = {field.name: getattr(frames, field.name) for field in fields(frames)}
    layers = {field.name: getattr(frames.layers_format, field.name) for field in fields(frames.layers_format)}
    layers_format = SessionFormat(**{**layers, "scattered": False, "kind": KIND})
    return SessionFrames(**{**values, "layers_format": layers_format})


# ---- results of sessions ---------------------------------------------------------------------------------------------
# What has changed is found by putting old and new rows together into sessions, and the old rows also by themselves: so
# each session is compared with those that it was before. No exchange is added, and no job runs.

_OLD, _RESULT_BEFORE, _RESULT, _TWIN = (f"{INTERNAL}{name}" for name in ("old", "before", "result", "twin"))


class SessionResults:
    """Makes the frames that a step with sessions sends."""

    def __init__(self, frames: SessionFrames) -> None:
        self._frames = frames
        self._format = cast("SessionFormat", frames.layers_format)

    def finished(self, rows: DataFrame, bounds: ResultBounds) -> DataFrame:
        """See ``ResultBuilder.finished``; all rows are those of one layer."""
        found = self._format.between(rows, bounds.after, bounds.last)
        return found.select(*self._frames.bounds, *self._frames.finishes)

    def changed(self, rows: DataFrame, bounds: ResultBounds, *, fired: tuple[int, int], timing: bool) -> DataFrame:
        """See ``ResultBuilder.changed``."""
        found = self._format.between(rows, bounds.after)
        found = changed_results(self._frames, self._format, found, fired=fired, timing=timing)
        return found.where(f"unix_micros({WINDOW_END}) <= {variable_literal(bounds.last, column=WINDOW_END)}")

    def changes(self, rows: DataFrame, bounds: ResultBounds) -> DataFrame:
        """Changes of sessions with new rows.

        ``update_before`` followed by ``update_after`` if the session is as long as before. Else ``delete`` for each old
        session that is part of this one now, then ``insert``.
        """
        return self._as_rows(self._with_old_sessions(self._format.between(rows, bounds.after)))

    def _with_old_sessions(self, rows: DataFrame) -> DataFrame:
        """Sessions with new rows, and in ``_RESULT_BEFORE`` the sessions that they were before, as rows to be sent."""
        from pyspark.sql import functions as F

        keys = [quote_identifier(key) for key in self._format.keys]
        found = number_sessions(rows, keys, WINDOW_START, WINDOW_END)
        found = number_sessions(found, keys, WINDOW_START, WINDOW_END, among=f"NOT {IS_NEW}", name=_OLD)
        apart = self._format.joined(found, by=(SESSION, _OLD))
        before = f"CASE WHEN {_OLD} IS NOT NULL THEN {self._row('delete')} END"
        both = self._format.joined(
            apart,
            F.expr(f"collect_list({before})").alias(_RESULT_BEFORE),
            F.expr(f"bool_or({_OLD} IS NULL)").alias(IS_NEW),
            by=(SESSION,),
        )
        return both.where(IS_NEW)

    def _as_rows(self, sessions: DataFrame) -> DataFrame:
        """Rows of changes: partials become results, and an unchanged session is left out."""
        from pyspark.sql import functions as F

        keys = [quote_identifier(key) for key in self._format.keys]
        only = f"{_RESULT_BEFORE}[0]"
        same = f"size({_RESULT_BEFORE}) = 1 AND {only}.s = {WINDOW_START} AND {only}.e = {WINDOW_END}"
        before = self._row("update_before", of=f"{only}.p", twin=self._partials())
        pair = f"array({before}, {self._row('update_after', twin=f'{only}.p')})"
        apart = f"concat({_RESULT_BEFORE}, array({self._row('insert')}))"
        columns = f"({CHANGE_COLUMN}, {WINDOW_START}, {WINDOW_END}, {_RESULT}, {_TWIN})"
        rows = sessions.selectExpr(*keys, f"inline(CASE WHEN {same} THEN {pair} ELSE {apart} END) AS {columns}")
        result = F.struct(*self._frames.finishes)
        for name in (_RESULT, _TWIN):
            rows = rows.select(*keys, WINDOW_START, WINDOW_END, CHANGE_COLUMN, _RESULT, _TWIN, f"{name}.*")
            rows = rows.withColumn(name, result).select(*keys, WINDOW_START, WINDOW_END, CHANGE_COLUMN, _RESULT, _TWIN)
        if self._frames.is_ordered:
            rows = rows.where(f"NOT ({CHANGE_COLUMN} LIKE 'update%' AND {_RESULT} <=> {_TWIN})")
        return rows.select(*self._frames.bounds, f"{_RESULT}.*", CHANGE_COLUMN)

    def _row(self, change: str, *, of: str | None = None, twin: str | None = None) -> str:
        """SQL for a row of changes: its bounds, its partials and those of its twin, the other row of an update."""
        partials = self._partials()
        other = twin or f"CASE WHEN false THEN {partials} END"
        return f"struct('{change}' AS c, {WINDOW_START} AS s, {WINDOW_END} AS e, {of or partials} AS p, {other} AS t)"

    def _partials(self) -> str:
        names = map(quote_identifier, self._format.merges)
        return f"struct({', '.join(f'{name} AS {name}' for name in names)})"


# ---- sending sessions ------------------------------------------------------------------------------------------------
# A session that is sent or closed must be whole, and nothing that comes later may be a part of it. So event time passes
# in steps, and a step that may end a session merges all layers into one first. Then sessions that end are a filter over
# that layer, and closed ones can be left out of every later merge.


class SessionEmitter(WindowEmitter):
    """Decides when sessions are sent, and closes them. See ``penstock.operators.windows.emitter.WindowEmitter``.

    Args:
        merge: replaces all layers by one, in a job.
    """

    def __init__(
        self,
        frames: SessionFrames,
        results: ResultQueries,
        emission: EmitStrategy,
        stack: Stack,
        context: OperatorContext,
        *,
        fired: int,
        closed: int,
        merge: Callable[[], None],
    ) -> None:
        super().__init__(frames, results, emission, stack, context, fired=fired, closed=closed)
        self._session: SessionWindow = cast("SessionWindow", frames.window)
        self._merge = merge

    def late_before(self, watermark: int) -> int:
        """See ``WindowEmitter.late_before``. After a restore with less lateness, more sessions may be closed.

        Closed sessions must be whole, also on disk: restored rows in several layers are merged first, in a job.
        """
        if self._stack.horizon < self._closed:
            if self._stack.may_split(self._closed):
                self._merge()
            self._stack.close_windows(self._closed)
        return super().late_before(watermark)

    def advance(self, watermark: int, emit: Collector) -> EventTime:
        """Send and close sessions up to the last step of event time at or below ``watermark``. Returns that step.

        Sessions that end between it and the watermark are still to come.
        """
        bound = self._session.bound(watermark)
        if bound > self._fired and not self._waits(watermark):
            self._send_and_close(bound, emit)
        return EventTime(min(watermark, self._fired))

    def _send_and_close(self, bound: int, emit: Collector) -> None:
        """Send changes before merging: a merged layer does not tell new rows from old ones."""
        merging = self._stack.may_split(bound)
        due = self._session.due(self._fired, bound)
        if due and self._emission.early and self._stack.may_have_rows(due.first, due.last):
            super()._fire(due, bound, emit)
            self._fired = bound
        elif merging:
            self.flush(emit)
        if merging:
            self._merge()
        super().advance(bound, emit)

    def _waits(self, watermark: int) -> bool:
        """Whether changes wait for their time: once merged, new rows can no longer be told from old ones."""
        paced = self._emission.updates and self._emission.every is not None
        return paced and watermark != MAX_WATERMARK and self._unsent() is not None

    def _send_again(self, emit: Collector) -> None:
        """Send sessions again only if new layers may end where sessions were sent; open sessions were not sent yet."""
        due = self._session.due(self._closed, self._fired)
        if due is not None and self._stack.has_unsent(due.first, due.last):
            super()._send_again(emit)
        else:
            self._stack.begin_emission(MAX_WATERMARK, MIN_WATERMARK).lease.release()

    def _fire(self, due: DueWindows, watermark: int, emit: Collector) -> None:
        if self._stack.may_have_rows(due.first, due.last):
            super()._fire(due, watermark, emit)
