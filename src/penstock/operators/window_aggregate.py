"""The description of a windowed aggregate: keys, event time, window, aggregates; it opens the operator that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.durations import format_duration
from penstock.errors import GraphError
from penstock.operators.base import LATE, MAIN, Operator, OperatorContext
from penstock.operators.count_window import Counted
from penstock.operators.emission import FINAL, Emission
from penstock.operators.sessions import Session
from penstock.operators.window_checks import CHANGE, TIMING
from penstock.state.sessions import active_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

    from penstock.handles import StateHandle
    from penstock.operators.aggregates import Aggregate
    from penstock.operators.window_plan import WindowPlan
    from penstock.operators.windows import Window
    from penstock.state.migration import Keeps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowAggregate:
    """Aggregates for each key and window, sent on once, when the watermark passes the window's end.

    Attributes:
        keys: name and expression (a column's name, SQL, or a Column) of each group column; none for one result a
            window.
        time: the event-time column, a TIMESTAMP; not looked at in processing time.
        window: made by ``ps.tumbling``, ``ps.sliding`` and so on.
        aggregates: made by ``ps.agg``.
        shift: microseconds added to event times.
        emission: what is sent, and when.

    Example::

        WindowAggregate(
            keys=(("user", "user"),),
            time="at",
            window=tumbling("1 minute"),
            aggregates=(agg.sum("amount").alias("amount"), agg.count().alias("n")),
        )
    """

    keys: tuple[tuple[str, str | Column], ...]
    time: str
    window: Window
    aggregates: tuple[Aggregate, ...]
    shift: int = 0
    emission: Emission = FINAL

    @property
    def is_change_stream(self) -> bool:
        """Whether its rows undo one another."""
        return self.emission.updates

    @property
    def may_repeat(self) -> bool:
        """Whether a window may be sent more than once."""
        window = self.window
        return self.emission.early or window.lateness > 0 or (isinstance(window, Counted) and window.is_running)

    @property
    def kind(self) -> str:
        """The state's format: see :class:`penstock.state.layer.LayerFormat`."""
        from penstock.operators import count_plan, session_plan
        from penstock.state import layer

        kinds = {Session: session_plan.KIND, Counted: count_plan.KIND}
        return kinds.get(type(self.window), layer.KIND)

    def ports(self, inputs: tuple[StructType, ...]) -> Mapping[str, StructType]:
        """``out``: group columns, ``window_start``, ``window_end``, aggregates, and ``_change`` or ``_timing``.

        ``late``: the input's columns.

        Raises:
            GraphError: a column is missing or has an impossible type; two columns have one name.
        """
        plan = self.plan(uid="", schema=inputs[0], session=_session(), partitions=1)
        return {MAIN: self._output(plan.output), LATE: inputs[0]}

    def keeps(self, inputs: tuple[StructType, ...], session: SparkSession) -> Keeps:
        """What its state looks like; analyses, runs nothing."""
        return self.plan(uid="", schema=inputs[0], session=session, partitions=1).keeps

    def open(self, context: OperatorContext, restored: StateHandle | None) -> Operator:
        """Begin from restored state or empty.

        Raises:
            StateIncompatible: the state has columns that cannot become its own, or is of another kind.
            LayerMissing: a file of a layer is not there.
            CheckpointUnreadable: a file is not the one that was written.
        """
        from penstock.operators.count_operator import CountOperator
        from penstock.operators.window_operator import WindowOperator

        plan = self.plan(
            uid=context.uid, schema=context.inputs[0], session=context.spark, partitions=context.partitions
        )
        operator = CountOperator if isinstance(self.window, Counted) else WindowOperator
        return operator(plan, self.emission, context, restored)

    def describe(self) -> str:
        """In a few words, for people."""
        keys = ", ".join(name for name, _ in self.keys) or "all rows"
        results = ", ".join(aggregate.label for aggregate in self.aggregates)
        late = f", lateness {format_duration(self.window.lateness)}" if self.window.lateness else ""
        return f"{results} by {keys}, {self.window.describe()}{late}{self.emission.describe()}"

    def plan(self, *, uid: str, schema: StructType, session: SparkSession, partitions: int) -> WindowPlan:
        """What it does to frames, and what the rows of its layers are; analyses, but runs nothing.

        Raises:
            GraphError: as :meth:`ports`.
        """
        from penstock.operators.count_plan import make_count_plan
        from penstock.operators.session_plan import as_sessions
        from penstock.operators.window_plan import make_plan

        if isinstance(self.window, Counted):
            return make_count_plan(self, self.window, uid=uid, schema=schema, session=session, partitions=partitions)
        plan = make_plan(self, uid=uid, schema=schema, session=session, partitions=partitions)
        return as_sessions(plan) if isinstance(self.window, Session) else plan

    def _output(self, results: StructType) -> StructType:
        from pyspark.sql.types import StringType, StructField, StructType

        more = [CHANGE] if self.emission.updates else [TIMING] if self.emission.early else []
        return StructType([*results.fields, *(StructField(name, StringType()) for name in more)])


def _session() -> SparkSession:
    session = active_session()
    if session is None:
        msg = "a windowed aggregate is checked by Spark's analyser: create the SparkSession before the pipeline"
        raise GraphError(msg)
    return session
