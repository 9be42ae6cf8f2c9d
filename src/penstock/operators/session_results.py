"""Results of sessions as frames over layers. Runs no job, adds no exchange.

What has changed is found by putting what was told before and what is new into sessions together, and what was told
before also by itself: so each session is seen beside those that it was before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.operators.results import NEW, with_news
from penstock.operators.session_plan import SESSION, numbered
from penstock.operators.window_checks import CHANGE, OWN
from penstock.state.changing import changing, quoted
from penstock.state.layer import END, START

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.operators.results import Bounds
    from penstock.operators.session_plan import SessionFormat, SessionPlan

_OLD, _BEFORE, _RESULT, _TWIN = (f"{OWN}{name}" for name in ("old", "before", "result", "twin"))


class SessionResults:
    """Makes the frames that a step with sessions sends on."""

    def __init__(self, plan: SessionPlan) -> None:
        self._plan = plan
        self._format = cast("SessionFormat", plan.layers_format)

    def finished(self, rows: DataFrame, bounds: Bounds) -> DataFrame:
        """The results of all sessions that are due, out of the rows of the one layer that has them."""
        found = self._format.between(rows, bounds.after, bounds.last)
        return found.select(*self._plan.bounds, *self._plan.finishes)

    def changed(self, rows: DataFrame, bounds: Bounds, *, fired: tuple[int, int], timing: bool) -> DataFrame:
        """The whole results of due sessions that have new rows, or that end in ``fired``, whether new or not.

        With ``timing`` they say when they were sent: ``early``, ``on_time`` (ending in ``fired``) or ``late``.
        """
        found = self._format.between(rows, bounds.after)
        found = with_news(self._plan, self._format, found, fired=fired, timing=timing)
        return found.where(f"unix_micros({END}) <= {changing(bounds.last, beside=END)}")

    def changes(self, rows: DataFrame, bounds: Bounds) -> DataFrame:
        """What became of sessions that have new rows.

        ``update_before`` and ``update_after``, one after the other, if the session is as long as before; else
        ``delete`` for each session that was told and is part of this one now, then ``insert``.
        """
        return self._as_rows(self._beside(self._format.between(rows, bounds.after)))

    def _beside(self, rows: DataFrame) -> DataFrame:
        """Sessions with new rows, and in ``_BEFORE`` those that they were before, as rows to be sent."""
        from pyspark.sql import functions as F

        keys = [quoted(key) for key in self._format.keys]
        found = numbered(rows, keys, START, END)
        found = numbered(found, keys, START, END, among=f"NOT {NEW}", name=_OLD)
        apart = self._format.joined(found, by=(SESSION, _OLD))
        before = f"CASE WHEN {_OLD} IS NOT NULL THEN {self._row('delete')} END"
        both = self._format.joined(
            apart,
            F.expr(f"collect_list({before})").alias(_BEFORE),
            F.expr(f"bool_or({_OLD} IS NULL)").alias(NEW),
            by=(SESSION,),
        )
        return both.where(NEW)

    def _as_rows(self, beside: DataFrame) -> DataFrame:
        """Rows of changes: partials become results, and a session that is as it was is left out."""
        from pyspark.sql import functions as F

        keys = [quoted(key) for key in self._format.keys]
        only = f"{_BEFORE}[0]"
        same = f"size({_BEFORE}) = 1 AND {only}.s = {START} AND {only}.e = {END}"
        before = self._row("update_before", of=f"{only}.p", twin=self._partials())
        pair = f"array({before}, {self._row('update_after', twin=f'{only}.p')})"
        apart = f"concat({_BEFORE}, array({self._row('insert')}))"
        columns = f"({CHANGE}, {START}, {END}, {_RESULT}, {_TWIN})"
        rows = beside.selectExpr(*keys, f"inline(CASE WHEN {same} THEN {pair} ELSE {apart} END) AS {columns}")
        result = F.struct(*self._plan.finishes)
        for name in (_RESULT, _TWIN):
            rows = rows.select(*keys, START, END, CHANGE, _RESULT, _TWIN, f"{name}.*")
            rows = rows.withColumn(name, result).select(*keys, START, END, CHANGE, _RESULT, _TWIN)
        if self._plan.is_ordered:
            rows = rows.where(f"NOT ({CHANGE} LIKE 'update%' AND {_RESULT} <=> {_TWIN})")
        return rows.select(*self._plan.bounds, f"{_RESULT}.*", CHANGE)

    def _row(self, change: str, *, of: str | None = None, twin: str | None = None) -> str:
        """SQL for a row of changes: its bounds, its partials and those of the one that it stands beside."""
        partials = self._partials()
        other = twin or f"CASE WHEN false THEN {partials} END"
        return f"struct('{change}' AS c, {START} AS s, {END} AS e, {of or partials} AS p, {other} AS t)"

    def _partials(self) -> str:
        names = map(quoted, self._format.merges)
        return f"struct({', '.join(f'{name} AS {name}' for name in names)})"
