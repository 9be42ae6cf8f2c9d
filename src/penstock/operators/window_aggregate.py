"""The description of a windowed aggregate: keys, event time, window, aggregates; it opens the operator that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import GraphError
from penstock.operators.base import LATE, MAIN, Operator, OperatorContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

    from penstock.handles import StateHandle
    from penstock.operators.aggregates import Aggregate
    from penstock.operators.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowAggregate:
    """Aggregates for each key and window, sent on once, when the watermark passes the window's end.

    Attributes:
        keys: name and expression (a column's name, SQL, or a Column) of each group column; none for one result a
            window.
        time: the event-time column, a TIMESTAMP.
        window: made by ``ps.tumbling``.
        aggregates: made by ``ps.agg``.

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

    @property
    def kind(self) -> str:
        """The state's format: see :class:`penstock.state.layer.LayerFormat`."""
        from penstock.state.durable import KIND

        return KIND

    def ports(self, inputs: tuple[StructType, ...]) -> Mapping[str, StructType]:
        """``out``: group columns, ``window_start``, ``window_end``, aggregates. ``late``: the input's columns.

        Raises:
            GraphError: a column is missing or has an impossible type; two columns have one name.
        """
        from penstock.operators.window_plan import make_plan

        plan = make_plan(
            uid="",
            keys=self.keys,
            time=self.time,
            window=self.window,
            aggregates=self.aggregates,
            schema=inputs[0],
            session=_session(),
            partitions=1,
        )
        return {MAIN: plan.output, LATE: inputs[0]}

    def open(self, context: OperatorContext, restored: StateHandle | None) -> Operator:
        """Begin from restored state or empty.

        Raises:
            StateIncompatible: the state has other columns or is of another kind.
            LayerMissing: a file of a layer is not there.
            CheckpointUnreadable: a file is not the one that was written.
        """
        from penstock.operators.window_operator import WindowOperator
        from penstock.operators.window_plan import make_plan

        plan = make_plan(
            uid=context.uid,
            keys=self.keys,
            time=self.time,
            window=self.window,
            aggregates=self.aggregates,
            schema=context.inputs[0],
            session=context.spark,
            partitions=context.partitions,
        )
        return WindowOperator(plan, context, restored)

    def describe(self) -> str:
        """In a few words, for people."""
        keys = ", ".join(name for name, _ in self.keys) or "all rows"
        results = ", ".join(aggregate.label for aggregate in self.aggregates)
        return f"{results} by {keys}, {self.window.describe()}"


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        msg = "a windowed aggregate is checked by Spark's analyser: create the SparkSession before the pipeline"
        raise GraphError(msg)
    return session
